"""Networks that encode numbers are, in all that is computed, plain networks on encoded inputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import tensors_of
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass, curvature_passes
from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.piecewise import Bins, bins_of
from nas_evidence.models import build, count_parameters, infeasible
from nas_evidence.models.number_layers import Piecewise, behind_encoding, stored_bins
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.cost import cost_of
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import compute, passes_of

GOLDEN = Path(__file__).parents[1] / "golden" / "piecewise.json"
SHAPE = (3,)
MLP = {"depth": 1, "width": 4}


def rows(n: int = 23) -> Tensor:
    """Two columns of numbers and a flag, float32 [n, 3]."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, generator=generator)
    x[:, 2] = (x[:, 2] > 0).float()
    return x


def bins() -> Bins:
    return bins_of(rows().numpy(), np.array([True, True, True]))


def encoded(x: Tensor) -> Tensor:
    """The rows with their encodings, by numpy and equation 1."""
    own, raw = bins(), x.double().numpy()
    ramps = (raw[:, own.column] - own.low) / (own.high.astype(float) - own.low)
    ramps = (ramps.clip(0, 1) - own.mean) / own.std
    return torch.from_numpy(np.concatenate([raw, ramps], 1)).to(x.dtype)


def pair(family: str, n_outputs: int = 2, **values: object) -> tuple[nn.Module, nn.Module]:
    """A network that encodes numbers, and the plain one on encoded inputs with equal weights."""
    draw = torch.Generator().manual_seed(0)
    given = ArchitectureSpec(family=family, values={**values, "numbers": "piecewise"})
    model = build(given, SHAPE, n_outputs, draw, bins())
    plain = ArchitectureSpec(family=family, values=values)
    other = build(plain, (3 + len(bins()),), n_outputs, torch.Generator().manual_seed(0))
    return model, other


def test_the_layer_gives_golden_values() -> None:
    golden = json.loads(GOLDEN.read_text())
    found = bins_of(np.array(golden["x"], np.float32)[:, None], np.array([True]))
    layer = Piecewise(len(found))
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in vars(found).items()})
    for name in ("low", "high", "mean", "std"):
        np.testing.assert_allclose(getattr(found, name), golden[name], rtol=1e-5, atol=1e-6)
    outputs = layer(torch.tensor(golden["seen"])[:, None])
    torch.testing.assert_close(outputs, torch.tensor(golden["outputs"]), rtol=1e-5, atol=1e-5)


def test_encodings_of_the_training_rows_have_mean_0_and_variance_1_and_flags_have_none() -> None:
    model, _ = pair("linear")
    outputs = model[:2](rows().double())
    assert set(bins().column.tolist()) == {0, 1}
    torch.testing.assert_close(outputs[:, :3], rows().double(), rtol=0, atol=0)
    ramps = outputs[:, 3:]
    torch.testing.assert_close(ramps.mean(0), torch.zeros(len(bins())).double(), rtol=0, atol=1e-6)
    ones = torch.ones(len(bins())).double()
    torch.testing.assert_close(ramps.square().mean(0), ones, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("family", "values"), [("linear", {}), ("mlp", MLP)])
def test_weights_and_outputs_are_those_of_the_plain_network_on_encoded_inputs(
    family: str, values: dict[str, object]
) -> None:
    model, other = pair(family, **values)
    state = model.state_dict()
    own = {name: tensor for name, tensor in state.items() if not name.startswith("numbers.")}
    torch.testing.assert_close(own, dict(other.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(model(rows()), other(encoded(rows())), rtol=1e-5, atol=1e-5)
    found = stored_bins(state)
    assert found is not None
    for name, value in vars(bins()).items():
        np.testing.assert_array_equal(getattr(found, name), value)


@pytest.mark.parametrize("family", ["linear", "mlp"])
def test_plain_is_the_same_as_no_encoding_at_all(family: str) -> None:
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    plain = ArchitectureSpec(family=family, values={"numbers": "plain"})
    one = build(plain, SHAPE, 2, draws[0], bins())
    other = build(ArchitectureSpec(family=family), SHAPE, 2, draws[1])
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=0)


def test_images_are_refused_with_the_value() -> None:
    spec = ArchitectureSpec(family="mlp", values={"numbers": "piecewise"})
    reason = infeasible(spec, (1, 8, 8), 2)
    assert reason is not None
    assert '"piecewise" needs vectors' in reason
    assert infeasible(ArchitectureSpec(family="mlp"), (1, 8, 8), 2) is None


@pytest.mark.parametrize("kind", CURVATURES)
def test_every_curvature_is_that_of_the_plain_network_on_encoded_inputs(kind: str) -> None:
    model, other = (one.double() for one in pair("mlp", **MLP))
    y = torch.randn(23, 2, generator=torch.Generator().manual_seed(5)).double()
    found, expected = (
        curvature_pass(
            kind, network, x, y, Gaussian(0.5), batch_size=7,
            generator=torch.Generator().manual_seed(3),
        )
        for network, x in ((model, rows().double()), (other, encoded(rows().double())))
    )  # fmt: skip
    assert found.curvature.names == expected.curvature.names
    precision = torch.full((4,), 0.7).double()
    for of in ("trace", "diagonal"):
        if hasattr(found.curvature, of):
            own, right = getattr(found.curvature, of)(), getattr(expected.curvature, of)()
            torch.testing.assert_close(own, right, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        found.curvature.log_det_ratio(precision), expected.curvature.log_det_ratio(precision)
    )


def regression() -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A linear map at its mode: model, inputs, targets, features and precisions."""
    x = rows().double()
    y = torch.randn(23, 2, generator=torch.Generator().manual_seed(7)).double()
    phi = torch.cat([encoded(x), torch.ones(23, 1).double()], 1)
    precision = torch.tensor([0.8, 2.0]).double()
    each = precision[[0] * (phi.shape[1] - 1) + [1]]
    mode = mode_of_linear(phi, y, prior_precision=each, noise_std=0.5)
    model = pair("linear")[0].double()
    with torch.no_grad():
        model.head.weight.copy_(mode[:-1].T)
        model.head.bias.copy_(mode[-1])
    return model, x, y, phi, each


@pytest.mark.parametrize("kind", ["full_ggn", "block_ggn", "kfac_ggn"])
def test_the_evidence_of_a_linear_map_is_the_closed_form_on_the_encoded_matrix(kind: str) -> None:
    model, x, y, phi, each = regression()
    found = estimate_evidence(
        model, x, y, likelihood="gaussian", curvature=kind, noise_std=0.5,
        prior_precision=torch.stack([each[0], each[-1]]),
    )  # fmt: skip
    truth = log_evidence_of_linear(phi, y, prior_precision=each, noise_std=0.5)
    if kind == "full_ggn":
        assert found.value == pytest.approx(truth, rel=1e-9)
    else:  # without the curvature between weight and bias it is at most the truth (Fischer)
        assert found.value <= truth + 1e-9


def test_conditional_evidence_and_posterior_are_those_on_the_encoded_matrix() -> None:
    model, x, y, phi, each = regression()
    layer = last_layer_of(model, x, torch.stack([each[0], each[-1]]))
    torch.testing.assert_close(layer.features, phi, rtol=1e-9, atol=1e-12)
    found = late_given_early(layer, y, 11, Gaussian(0.5)).value
    whole, early = (
        log_evidence_of_linear(phi[:n], y[:n], prior_precision=each, noise_std=0.5)
        for n in (23, 11)
    )
    assert found == pytest.approx(whole - early, rel=1e-9)
    precisions = {"head.weight": each[:1], "head.bias": each[-1:]}
    posterior = fit_posterior(model, x, y, Gaussian(0.5), precisions)
    covariance = torch.linalg.inv(phi.T @ phi / 0.25 + torch.diag(each))
    expected = torch.einsum("ni,ij,nj->n", phi, covariance, phi)
    own = posterior.output_covariance(model, x)
    torch.testing.assert_close(own.diagonal(dim1=1, dim2=2)[:, 0], expected, rtol=1e-6, atol=0)


def trained(n: int, *, plain: bool) -> list[Network]:
    """`n` networks trained side by side, each on other rows."""
    plan = TrainingPlan(likelihood="gaussian", epochs=3, batch_size=8, settle=0)
    networks = []
    for k in range(n):
        model, other = pair("mlp", **MLP)
        x = rows(20 + 3 * k)
        y = torch.randn(len(x), 2, generator=torch.Generator().manual_seed(k))
        x = encoded(x) if plain else x
        used = other if plain else model
        networks.append(begin(used, tensors_of(x, y), plan, 40 + k, family="mlp"))
    train_epochs(networks, n_epochs=3)
    return networks


@pytest.mark.parametrize("n", [1, 3])
def test_trainings_side_by_side_are_those_of_plain_networks_on_encoded_inputs(n: int) -> None:
    for found, expected in zip(trained(n, plain=False), trained(n, plain=True), strict=True):
        own = dict(found.model.named_parameters())
        torch.testing.assert_close(
            own, dict(expected.model.named_parameters()), rtol=1e-4, atol=1e-5
        )


def test_passes_side_by_side_are_those_on_encoded_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they are of one program, not one by one."""
    monkeypatch.setattr("nas_evidence.training.online.curvature_passes", None)
    networks = trained(3, plain=False)
    passes = [passes_of(network) for network in networks]
    assert compute(passes, "kfac_ggn_mc") == [None] * 3
    for one, network in zip(passes, networks, strict=True):
        x, plain = encoded(network.data.x_train), behind_encoding(network.model)
        (expected,) = curvature_passes(
            "kfac_ggn_mc", plain, x, network.data.y_train, one.likelihood, batch_size=100,
            generator=passes_of(network)._random_of("kfac_ggn_mc"),
        )  # fmt: skip
        found = one.of("kfac_ggn_mc")[0]
        assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-6)
        torch.testing.assert_close(
            found.curvature.trace(), expected.curvature.trace(), rtol=1e-5, atol=0
        )


def test_costs_are_those_of_the_plain_network_on_encoded_inputs() -> None:
    given = ArchitectureSpec(family="mlp", values={**MLP, "numbers": "piecewise"})
    plain, width = ArchitectureSpec(family="mlp", values=MLP), 3 + len(bins())
    plan = TrainingPlan()
    found = cost_of(given, SHAPE, 2, plan, ("kfac_ggn",), 50, columns=bins())
    expected = cost_of(plain, (width,), 2, plan, ("kfac_ggn",), 50)
    assert found.n_parameters == expected.n_parameters == count_parameters(plain, (width,), 2)
    assert found.n_parameters == count_parameters(given, SHAPE, 2, bins())
    assert found.flops == expected.flops
    assert expected.memory_bytes < found.memory_bytes < 1.5 * expected.memory_bytes
