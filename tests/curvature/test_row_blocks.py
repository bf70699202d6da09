"""Exact blocks kept as rows where there are fewer rows than parameters: the same numbers."""

import copy
import itertools
import math

import pytest
import reference
import torch
from cases import Case
from dense_blocks import run
from largest_tensor import LargestTensor
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import CurvaturePass, curvature_pass, wide
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.blocks import Dense, FewInputs, LowRank, Rotated, without_noise
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.spec.estimates import EvidenceEstimate
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.cost import cost_of, too_costly

N_OUTPUTS = 3


def random_net(n_data: int, *, labels: bool, seed: int) -> Case:
    """Tensors of 24, 6, 24, 4, 12 and 3 parameters; 2 or 3 rows for each datum."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, N_OUTPUTS)
    ).double()
    x = torch.randn(n_data, 4).double()
    if labels:
        return Case(model, x, torch.randint(0, N_OUTPUTS, (n_data,)))
    return Case(model, x, torch.randn(n_data, N_OUTPUTS).double(), 0.6)


def blocks_of(passed: CurvaturePass) -> BlockDiagonal:
    assert isinstance(passed.curvature, BlockDiagonal)
    return passed.curvature


def definition(c: Case) -> BlockDiagonal:
    """The blocks as matrices, from dense Jacobians."""
    names = tuple(name for name, _ in c.model.named_parameters())
    matrices = reference.tensor_blocks(reference.full_ggn(c.model, c.x, c.noise_std), c.model)
    return BlockDiagonal(names, tuple(Dense(matrix) for matrix in matrices))


def agree(found: BlockDiagonal, expected: BlockDiagonal) -> None:
    """Compare everything that can be asked of a curvature."""
    random = torch.Generator().manual_seed(0)
    delta = torch.rand(len(found.names), generator=random).double() + 0.1
    vector = torch.randn(found.n_parameters, generator=random).double()
    close = {"rtol": 1e-10, "atol": 1e-10}
    assert found.sizes == expected.sizes
    assert_close(found.trace(), expected.trace(), **close)
    for one, other in zip(found.spectra(), expected.spectra(), strict=True):
        assert_close(one.sort().values, other.sort().values, **close)
    for one, other in zip(found.slopes(delta), expected.slopes(delta), strict=True):
        assert_close(one, other, **close)
    quadratics = [s.inverse_quadratic(vector, delta) for s in (found, expected)]
    assert_close(*quadratics, **close)
    solved = [BlockInverse(s, delta, 0.7)(vector) for s in (found, expected)]
    assert_close(*solved, **close)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("n_data", [1, 3, 7, 40])
def test_rows_and_matrices_give_the_numbers_of_dense_jacobians(
    n_data: int, labels: bool, seed: int
) -> None:
    c = random_net(n_data, labels=labels, seed=seed)
    found = blocks_of(run("block_ggn", c, batch_size=2))
    n_rows = n_data * (N_OUTPUTS - labels)
    for block in found.blocks:
        assert isinstance(block, LowRank if n_rows < block.size else Dense)
    agree(found, definition(c))


def test_a_model_with_a_layer_without_rules_has_the_same_rows() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 6)
            self.scale = nn.Parameter(torch.ones(6))
            self.head = nn.Linear(6, N_OUTPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x).tanh() * self.scale)

    model = Scaled().double()
    c = Case(model, torch.randn(5, 4).double(), torch.randint(0, N_OUTPUTS, (5,)))
    found = blocks_of(run("block_ggn", c, batch_size=2))
    assert {type(block) for block in found.blocks} == {LowRank, Dense}
    by_name = dict(zip(found.names, found.blocks, strict=True))
    expected = definition(c)
    assert set(by_name) == set(expected.names)
    ordered = BlockDiagonal(expected.names, tuple(by_name[name] for name in expected.names))
    agree(ordered, expected)


@pytest.mark.slow
def test_a_wide_layer_needs_memory_for_its_rows_and_not_for_its_matrix() -> None:
    n_data, width = 184, 150
    model = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                          nn.Linear(width, 1))  # fmt: skip
    c = Case(model, torch.randn(n_data, 10), torch.randn(n_data, 1), 0.6)
    delta = torch.ones(6).double()
    with LargestTensor() as seen:
        found = blocks_of(run("block_ggn", c, batch_size=2))
        vector = torch.ones(found.n_parameters).double()
        found.slopes(delta)
        found.inverse_quadratic(vector, delta)
        BlockInverse(found, delta)(vector)
    assert isinstance(found.blocks[2], LowRank)
    assert found.blocks[2].rows.dtype == torch.float32
    assert n_data * width**2 <= seen.largest < 2 * n_data * width**2
    assert seen.largest < width**4 / 100


def test_a_tiny_precision_loses_no_digits_to_cancellation() -> None:
    # In the span of the rows vᵀ(H + δ)⁻¹v is |v|²/(λ + δ); |v|²/δ is 10¹⁴ times larger.
    basis = torch.linalg.qr(torch.randn(50, 3).double())[0]
    block = LowRank(1e4 * basis.mT)
    precision = torch.tensor(1e-6, dtype=torch.float64)
    vector = basis @ torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    found = block.inverse_quadratic(vector, precision)
    assert_close(found, torch.tensor(6e-8, dtype=torch.float64), rtol=1e-8, atol=0)


# --- kronecker factors of wide layers, kept as rows: the same numbers from a smaller matrix


MLP = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})
DIAGONAL = TrainingPlan.model_validate({"online": {"curvature": "diag_ef"}})


def wide_pass(kind: str, rows: slice = slice(None), inputs: int = 9) -> CurvaturePass:
    """Return a pass over up to 6 data; the first layer is 9 wide."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    x = torch.randn(6, inputs, generator=random, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    likelihood = Categorical()
    return curvature_pass(kind, model, x[rows], y[rows], likelihood, batch_size=4)


@pytest.mark.parametrize("kind", ["kfac_ggn", "kfac_ef", "ekfac_ggn"])
def test_rows_give_the_spectra_and_inverses_of_the_matrix(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = wide_pass(kind).curvature
    monkeypatch.setattr(wide, "WIDE", 5)
    few = wide_pass(kind).curvature
    assert isinstance(few.blocks[0], FewInputs | Rotated)
    assert not isinstance(few.blocks[2], FewInputs)  # four wide: not wide enough
    for one, other in zip(few.spectra(), matrix.spectra(), strict=True):
        one, other = one.sort().values, other.sort().values
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.max()))
    torch.testing.assert_close(few.trace(), matrix.trace(), rtol=1e-10, atol=0)
    delta = torch.full((4,), 0.3, dtype=torch.float64)
    vector = torch.arange(matrix.n_parameters, dtype=torch.float64).cos()
    solved = BlockInverse(few, delta, 2.0)(vector)
    expected = BlockInverse(matrix, delta, 2.0)(vector)
    torch.testing.assert_close(solved, expected, rtol=1e-9, atol=1e-9)
    quadratics = few.inverse_quadratic(vector, delta), matrix.inverse_quadratic(vector, delta)
    torch.testing.assert_close(*quadratics, rtol=1e-9, atol=0)


def test_a_factor_too_wide_for_its_eigenvalues_is_refused_by_name() -> None:
    shape, many, few = (3, 64, 64), 20_000, 1_000
    why = too_costly(MLP, shape, 10, TrainingPlan(), ("kfac_ggn",), n_data=many)
    assert "factor of side 12,288, of 1.1 GiB" in why
    assert "use diag_ef or diag_ggn instead of kfac_ggn, kfac_ggn_mc" in why
    assert "plan.online.curvature" in why
    assert too_costly(MLP, shape, 10, TrainingPlan(), ("kfac_ggn",), n_data=few) == ""
    assert too_costly(MLP, shape, 10, DIAGONAL, ("diag_ggn", "sotl"), n_data=many) == ""
    assert too_costly(MLP, (3, 32, 32), 10, TrainingPlan(), ("kfac_ggn",), n_data=many) == ""


def test_the_forecast_of_memory_knows_how_a_wide_factor_is_kept() -> None:
    few, many = (
        cost_of(MLP, (3, 64, 64), 10, TrainingPlan(), ("kfac_ggn",), n_data).memory_bytes
        for n_data in (1_000, 20_000)
    )
    side = 12_288
    assert many - few > 3 * 8 * side**2
    assert few < 8 * side**2


# --- float32 factors: what no datum informs counts for nothing, and what little counts stays


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
