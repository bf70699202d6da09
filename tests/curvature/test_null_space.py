"""Float32 factors: what no datum informs counts for nothing, and what little counts stays."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.blocks import without_noise
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.spec.estimates import EvidenceEstimate

FLOAT = torch.finfo(torch.float32).eps
TINY = 6e-6  # the lowest prior precision, e^-12


def deficient(dtype: torch.dtype, kind: str) -> tuple[BlockDiagonal, Tensor]:
    """30 data for 60 inputs far from 0, and a softmax head, whose gradients sum to 0."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 5)).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Small: a saturated softmax has eigenvalues below float32 that are not noise.
            parameter.copy_(0.1 * torch.rand(parameter.shape, generator=random) - 0.05)
    x = (torch.randn(30, 60, generator=random) + 2).to(dtype)
    y = torch.randint(0, 5, (30,), generator=random)
    curvature = curvature_pass(
        kind, model.to(dtype), x, y, Categorical(), batch_size=8,
        generator=torch.Generator().manual_seed(0),
    ).curvature  # fmt: skip
    assert isinstance(curvature, BlockDiagonal)
    return curvature, torch.randn(curvature.n_parameters, generator=random).double()


@pytest.mark.parametrize("kind", ["kfac_ggn", "kfac_ggn_mc", "kfac_ef"])
def test_float32_factors_give_the_log_determinant_of_float64_at_a_tiny_precision(
    kind: str,
) -> None:
    single, vector = deficient(torch.float32, kind)
    double, _ = deficient(torch.float64, kind)
    precision = torch.full((4,), TINY, dtype=torch.float64)
    # Noise of 1e-7 that survives is worth 12 nats here.
    found, expected = single.log_det_ratio(precision), double.log_det_ratio(precision)
    assert_close(found, expected, atol=0.02, rtol=0)
    found, expected = (c.inverse_quadratic(vector, precision) for c in (single, double))
    assert_close(found, expected, rtol=0.02, atol=0)


def decaying(
    n_data: int, dtype: torch.dtype, precision: float
) -> tuple[EvidenceEstimate, BlockDiagonal]:
    """Data as smooth as images: 400 inputs with variances from 30 down to 6e-8."""
    random = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(400, 400, generator=random).double())[0]
    spread = torch.exp(-torch.arange(400).double() / 20).mul(30).sqrt()
    x = ((torch.randn(n_data, 400, generator=random).double() * spread) @ turn).float()
    y = torch.randint(0, 4, (n_data,), generator=random)
    model = nn.Sequential(nn.Linear(400, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=random))
    model = model.to(dtype)
    pass_ = curvature_pass("kfac_ggn", model, x.to(dtype), y, Categorical(), batch_size=512)
    assert isinstance(pass_.curvature, BlockDiagonal)
    found = laplace_estimate("kfac_ggn", pass_, model, torch.full((4,), precision).double())
    return found, pass_.curvature


@pytest.mark.slow
@pytest.mark.parametrize("n_data", [300, 1000])
def test_float32_factors_of_a_spectrum_that_decays_give_the_evidence_of_float64(
    n_data: int,
) -> None:
    """With fewer rows than inputs and with more: eigenvalues near rounding are mostly true."""
    for precision in (1.0, 0.1, 0.01):
        found, expected = (
            decaying(n_data, dtype, precision)[0] for dtype in (torch.float32, torch.float64)
        )
        assert_close(found.value, expected.value, atol=0.2, rtol=0)
        assert not expected.note


def cosines(n_data: int, side: int, power: float, noise: float) -> tuple[Tensor, Tensor]:
    """Images as sums of cosines with weights (1 + i + j)^-power, and noise; labels at random."""
    random = torch.Generator().manual_seed(0)
    i = torch.arange(side).double()
    wave = torch.cos(math.pi * (i[:, None] + 0.5) * i / side)
    weights = (1 + i[:, None] + i) ** -power
    drawn = torch.randn(n_data, side, side, generator=random).double() * weights
    x = wave @ drawn @ wave.mT
    x += noise * torch.randn(n_data, side, side, generator=random).double()
    y = torch.randint(0, 10, (n_data,), generator=random)
    return (x / x.std()).flatten(1).float(), y


def random_weights(model: nn.Module) -> nn.Module:
    """Return the model with normal weights of variance 2 over the fan-in, small biases."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            spread = math.sqrt(2 / p[0].numel()) if p.ndim > 1 else 0.1
            p.copy_(spread * torch.randn(p.shape, generator=random))
    return model


def perceptron(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return random_weights(nn.Sequential(*layers[:-1]))


def lost(kind: str, model: nn.Module, data: tuple[Tensor, Tensor], precision: float) -> float:
    """Return the evidence with float32 factors minus that in float64, nats."""
    x, y = data
    values = []
    for dtype in (torch.float32, torch.float64):
        network = copy.deepcopy(model).to(dtype)
        random = torch.Generator().manual_seed(0)
        pass_ = curvature_pass(
            kind, network, x.to(dtype), y, Categorical(), batch_size=256, generator=random
        )
        prior = torch.full((len(list(network.parameters())),), precision).double()
        values.append(laplace_estimate(kind, pass_, network, prior).value)
    return values[0] - values[1]


@pytest.mark.parametrize("kind", ["kfac_ggn", "kfac_ggn_mc", "kfac_ef", "ekfac_ggn"])
@pytest.mark.parametrize("power", [2, 3])
def test_float32_networks_have_the_evidence_of_float64_on_smooth_inputs(
    kind: str, power: float
) -> None:
    """With SA summed in float32: up to 7 nats."""
    model, data = perceptron(144, 16, 10), cosines(200, 12, power, 1e-4)
    assert abs(lost(kind, model, data, 0.001)) < 0.05


def test_the_first_layer_of_a_network_that_prepares_its_inputs_is_summed_in_float64() -> None:
    """With SA summed in float32: 2.0 nats at 0.01."""
    model, data = nn.Sequential(Halved(), perceptron(196, 64, 10)), cosines(400, 14, 3, 0)
    assert abs(lost("kfac_ggn", model, data, 0.001)) < 0.05


def test_the_null_vector_of_a_softmax_has_no_curvature_in_float32() -> None:
    """With SB of the head summed in float32: 0.8 nats."""
    random = torch.Generator().manual_seed(0)
    data = torch.randn(400, 8, generator=random), torch.randint(0, 4, (400,), generator=random)
    assert abs(lost("kfac_ggn", perceptron(8, 64, 64, 4), data, 0.001)) < 0.05


def test_a_hidden_layer_of_many_inputs_is_summed_in_float64() -> None:
    model, data = perceptron(144, 300, 10), cosines(400, 12, 3, 0)
    for kind in ("kfac_ggn", "kfac_ggn_mc"):
        assert abs(lost(kind, model, data, 0.001)) < 0.05


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("n_data", [600, 1000])
@pytest.mark.parametrize("noise", [1e-3, 1e-4, 0.0])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_no_spectrum_of_784_inputs_loses_a_fifth_of_a_nat(
    power: float, noise: float, n_data: int
) -> None:
    """With SA summed in float32: 2 to 37 nats at a prior precision of 0.01 for power 2 and 3."""
    model, data = perceptron(784, 32, 10), cosines(n_data, 28, power, noise)
    for precision in (0.01, 0.001):
        assert abs(lost("kfac_ggn", model, data, precision)) < 0.2


@pytest.mark.slow
@pytest.mark.long
def test_smooth_images_lose_no_fifth_of_a_nat_in_a_convolutional_network() -> None:
    """With SA of the last layer, of 784 inputs, summed in float32: 2.9 nats."""
    model = random_weights(
        nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(784, 10),
        )
    )  # fmt: skip
    assert abs(lost("kfac_ggn_mc", model, cosines(600, 28, 3, 0), 0.01)) < 0.2


class Halved(nn.Module):
    """What a network may do with its inputs before its first layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def narrow(dtype: torch.dtype, precision: float) -> str:
    """Return the note of a network with few smooth inputs in its second layer."""
    model = nn.Sequential(
        nn.Linear(196, 196, bias=False), nn.Identity(), nn.Linear(196, 8, bias=False), nn.ReLU(),
        nn.Linear(8, 10),
    )  # fmt: skip
    x, y = cosines(400, 14, 3, 1e-5)
    pass_ = curvature_pass(
        "kfac_ggn", random_weights(model).to(dtype), x.to(dtype), y, Categorical(), batch_size=256
    )
    prior = torch.full((4,), precision).double()
    return laplace_estimate("kfac_ggn", pass_, model, prior).note


def test_a_prior_precision_within_rounding_is_noted() -> None:
    assert "log determinant of 2.weight may be off" in narrow(torch.float32, TINY)
    assert "may be off" not in narrow(torch.float32, 100.0)
    assert "may be off" not in narrow(torch.float64, TINY)
    assert "may be off" not in decaying(1000, torch.float32, TINY)[0].note  # summed in float64


def test_eigenvalues_below_a_tenth_of_rounding_or_beyond_the_rank_are_zero() -> None:
    values = torch.tensor([-1e-7, 1e-8, 1e-7, 1.0], dtype=torch.float64)
    kept, below = without_noise(values, FLOAT)
    assert kept.tolist() == [0.0, 0.0, 1e-7, 1.0]
    assert below == 1
    assert without_noise(values, FLOAT, 1)[0].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert without_noise(values, FLOAT, 9)[0].tolist() == kept.tolist()
    kept, _ = without_noise(values, torch.finfo(torch.float64).eps)
    assert kept.tolist() == [0.0, 1e-8, 1e-7, 1.0]
    kept, below = without_noise(torch.zeros(3).double(), FLOAT)
    assert (kept.tolist(), below) == ([0.0, 0.0, 0.0], 0)
