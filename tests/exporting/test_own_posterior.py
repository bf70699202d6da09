"""The posterior of a network of one's own: closed forms, draws, a file that keeps every bit."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import refused
from scipy.stats import norm
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import nas_evidence
from nas_evidence import ModelPosterior
from nas_evidence.curvature.wide import WIDE
from nas_evidence.evidence.posterior import fit_posterior, jacobians
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.gaussian_softmax import pairwise_mean
from nas_evidence.plumbing.seals import DamagedError


def data(n: int = 30, labels: bool = False) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=random).double()
    y = torch.sin(x[:, :2]) + 0.2 * torch.randn(n, 2, generator=random).double()
    return x, y.argmax(1) if labels else y


def network(frozen: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))
    model[0].requires_grad_(not frozen)
    return model.double()


def at_the_mode(x: Tensor, y: Tensor, delta: float, std: float) -> tuple[nn.Linear, Tensor]:
    """Bayesian linear regression: the model at its mode, and the covariance of its weights."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    precision = design.T @ design / std**2 + delta * torch.eye(4)
    weights = torch.linalg.solve(precision, design.T @ y / std**2)
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(weights[:3].T)
        model.bias.copy_(weights[3])
    return model, torch.linalg.inv(precision)


def test_predictions_of_a_linear_model_are_those_of_bayesian_regression() -> None:
    x, y = data()
    delta, std = 1.3, 0.4
    model, covariance = at_the_mode(x, y, delta, std)
    found = nas_evidence.posterior(
        model, DataLoader(TensorDataset(x, y), batch_size=7), likelihood="gaussian",
        prior_precision=delta, noise_std=std,
    )  # fmt: skip
    new = torch.randn(5, 3, generator=torch.Generator().manual_seed(2)).double()
    design = torch.cat([new, torch.ones(5, 1)], 1)
    of_mean = (design @ covariance @ design.T).diagonal()
    predicted = found.predict(new, level=0.8, quantiles=[0.1])
    mean = (design @ torch.cat([model.weight.T, model.bias[None]])).detach()
    np.testing.assert_allclose(predicted.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(predicted.std_model, of_mean.sqrt()[:, None].expand(5, 2))
    wanted = (of_mean + std**2).sqrt()[:, None].expand(5, 2)
    np.testing.assert_allclose(predicted.std, wanted)
    np.testing.assert_allclose(predicted.low, mean + norm.ppf(0.1) * wanted)
    np.testing.assert_allclose(predicted.to_frame()["q10 of y1"], predicted.low[:, 1])
    plain = found.predict(new.numpy(), method="map")
    np.testing.assert_allclose(plain.std, std)
    np.testing.assert_allclose(plain.std_model, 0)


def test_the_fitted_prior_is_that_of_the_evidence() -> None:
    x, y = data()
    model = network()
    found = nas_evidence.posterior(model, (x, y), likelihood="gaussian", noise_std=0.4)
    estimate = nas_evidence.estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="full_ggn", noise_std=0.4,
        prior_precision="fit",
    )  # fmt: skip
    fitted = {t.group: t.value for t in estimate.terms if t.term == "prior_precision"}
    assert found.prior_precision == pytest.approx(fitted, rel=1e-9)


@pytest.mark.parametrize("structure", ["full", "kronecker", "last_layer"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("given", ["categorical", "gaussian"])
def test_draws_of_the_weights_have_the_covariance_of_the_posterior(
    structure: str, frozen: bool, given: str
) -> None:
    x, y = data(labels=given == "categorical")
    model = network(frozen)
    found = nas_evidence.posterior(
        model, (x, y), likelihood=given, structure=structure,
        noise_std=None if given == "categorical" else 0.5,
    )  # fmt: skip
    n = 4000
    draws = found.sample(n, seed=3)
    free = [name for name, p in model.named_parameters() if p.requires_grad]
    assert [*draws] == (free if structure != "last_layer" else ["3.weight", "3.bias"])
    assert found.structure == structure
    j = jacobians(model.eval(), x[:4], tuple(draws))
    whole = torch.cat([j[name].flatten(2) for name in draws], 2)  # [4, C, P]
    mode = dict(model.named_parameters())
    moved = torch.cat([(w - mode[name].detach()).flatten(1) for name, w in draws.items()], 1)
    outputs = torch.einsum("ncp,sp->snc", whole, moved)
    expected = found.posterior.output_covariance(model, x[:4])
    sampled = torch.einsum("snc,snd->ncd", outputs, outputs) / n
    scale = expected.diagonal(dim1=1, dim2=2)
    error = (scale[:, :, None] * scale[:, None] + expected.square()).sqrt() / n**0.5
    assert float(((sampled - expected).abs() / error).max()) < 5  # standard errors
    assert_close(found.sample(n, seed=3), draws, rtol=0, atol=0)
    one, other = draws["3.bias"], found.sample(n, seed=4)["3.bias"]
    assert not torch.equal(one, other)


def test_draws_reach_where_few_data_say_nothing() -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(5, WIDE + 3, generator=random).double()
    model = nn.Linear(WIDE + 3, 1, bias=False).double()
    found = nas_evidence.posterior(
        model, (x, x[:, :1]), likelihood="gaussian", prior_precision=4.0, noise_std=0.01,
        structure="kronecker",
    )  # fmt: skip
    assert "weight/outside" in found.posterior.tensors
    moved = found.sample(200)["weight"][:, 0] - model.weight.detach()
    total = float(moved.square().sum(1).mean())
    assert total == pytest.approx(
        (WIDE + 3 - 5) / 4, rel=0.02
    )  # of the prior but for 5 directions
    assert float((moved @ x.T).std()) < 0.05


def test_probabilities_are_those_of_the_linearised_outputs() -> None:
    x, y = data(labels=True)
    model = network().train()  # dropout must not count
    found = nas_evidence.posterior(
        model, list(zip(x, y, strict=True)), likelihood="categorical", prior_precision=0.5,
        temperature=1.4,
    )  # fmt: skip
    assert model.training
    predicted = found.predict(x[:6])
    plain = copy.deepcopy(model).eval()
    covariance = found.posterior.output_covariance(plain, x[:6])
    expected = pairwise_mean(plain(x[:6]).detach(), covariance, 1.4)
    np.testing.assert_allclose(predicted.probabilities, expected, rtol=1e-12)
    simple = found.predict(x[:6], method="map").probabilities
    np.testing.assert_allclose(simple, (plain(x[:6]).detach() / 1.4).softmax(1), rtol=1e-9)
    drawn = found.predict(x[:6], method="mc", seed=1).probabilities
    np.testing.assert_allclose(drawn, predicted.probabilities, atol=0.06)
    assert predicted.uncertainty.mean() > found.predict(x[:6], method="map").uncertainty.mean()
    assert predicted.labels.tolist() == simple.argmax(1).tolist()


@pytest.mark.parametrize("structure", ["full", "kronecker", "last_layer"])
@pytest.mark.parametrize("given", ["categorical", "gaussian", "heteroscedastic"])
def test_a_file_keeps_every_bit(structure: str, given: str, tmp_path: Path) -> None:
    x, y = data(labels=given == "categorical")
    model = network()
    y = y[:, :1] if given == "heteroscedastic" else y
    found = nas_evidence.posterior(
        model, (x, y), likelihood=given, structure=structure, prior_precision=[1, 2, 3, 0.7],
        noise_std=0.37 if given == "gaussian" else None,
    )  # fmt: skip
    found.save(tmp_path / "p.safetensors")
    twin = network()
    twin.load_state_dict(model.state_dict())
    again = ModelPosterior.load(tmp_path / "p.safetensors", twin)
    assert again.posterior.names == found.posterior.names
    assert_close(dict(again.posterior.tensors), dict(found.posterior.tensors), rtol=0, atol=0)
    assert (again.likelihood, again.prior_precision, again.structure) == (
        found.likelihood, found.prior_precision, structure
    )  # fmt: skip
    one, other = found.predict(x), again.predict(x)
    for name in ("probabilities", "mean", "std", "std_model"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert_close(found.sample(3), again.sample(3), rtol=0, atol=0)


def test_a_network_with_other_weights_is_refused(tmp_path: Path) -> None:
    x, y = data()
    model = network()
    found = nas_evidence.posterior(model, (x, y), likelihood="gaussian", noise_std=0.4)
    found.save(tmp_path / "p.safetensors")
    model.requires_grad_(False)  # for predictions, as many do
    found.predict(x[:2])
    with torch.no_grad():
        model[0].bias += 0.1
    for ask in (lambda: found.predict(x), found.sample, lambda: found.save(tmp_path / "q")):
        with refused("posterior-of-other-weights"):
            ask()
    with refused("posterior-of-other-weights"):
        ModelPosterior.load(tmp_path / "p.safetensors", model)
    fit_posterior(
        network(), x, y, Gaussian(0.4), {n: torch.ones(1) for n, _ in model.named_parameters()}
    ).save(tmp_path / "of_export.safetensors")
    with pytest.raises(DamagedError) as caught:
        ModelPosterior.load(tmp_path / "of_export.safetensors", network())
    assert caught.value.code == "not-a-posterior"


def test_the_network_and_its_modes_are_left_as_they_were() -> None:
    x, y = data()
    model = network(frozen=True).train()
    before = [(n, id(p), p.requires_grad) for n, p in model.named_parameters()]
    state = copy.deepcopy(model.state_dict())
    found = nas_evidence.posterior(model, (x, y), likelihood="gaussian", noise_std=0.4)
    found.predict(x)
    found.sample(2)
    assert [(n, id(p), p.requires_grad) for n, p in model.named_parameters()] == before
    assert all(module.training for module in model.modules())
    assert_close(model.state_dict(), state, rtol=0, atol=0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(1, 12, batch_first=True), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x[..., None])[0][:, -1])


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"structure": "kron"}, "unknown-structure", "'kronecker'"),
        ({"likelihood": "gausian"}, "unknown-likelihood", "'gaussian'"),
        ({"noise_std": None}, "noise-std-missing", "noise_std"),
        ({"prior_precision": "auto"}, "prior-precision-word", '"fit"'),
        ({"prior_precision": torch.ones(32)}, "prior-precision-values", "32"),
        ({"model": Recurrent().double()}, "posterior-without-factors", 'structure="full"'),
    ],
)
def test_what_cannot_work_is_one_sentence(change: dict[str, object], code: str, says: str) -> None:
    x, y = data()
    given = {"model": network(), "likelihood": "gaussian", "noise_std": 0.4} | change
    with refused(code) as caught:
        nas_evidence.posterior(given.pop("model"), (x, y), **given)
    assert says in str(caught.value)


def test_mistakes_of_a_prediction_are_told() -> None:
    x, y = data()
    found = nas_evidence.posterior(network(), (x, y), likelihood="gaussian", noise_std=0.4)
    with refused("unknown-method") as caught:
        found.predict(x, method="probi")
    assert "did you mean 'probit'?" in str(caught.value)
    with refused("level-out-of-range"):
        found.predict(x, level=2)
    for n in (0, True, "a"):
        with refused("draws-not-a-count"):
            found.sample(n)
    assert len(found.sample(np.int64(2))["0.bias"]) == 2
    with refused("inputs-not-a-tensor"):
        found.predict("x.csv")
    with refused("level-out-of-range", "'a'"):
        found.predict(x, level="a")
    for ask in (lambda: found.sample(seed="a"), lambda: found.predict(x, seed=1.5)):
        with refused("posterior-seed"):
            ask()
    for inputs in (torch.ones(3, 9).double(), x[0], torch.ones(2, 3, dtype=torch.int64)):
        with refused("posterior-inputs", str(list(inputs.shape))):
            found.predict(inputs)


def test_a_path_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    x, y = data()
    found = nas_evidence.posterior(network(), (x, y), likelihood="gaussian", noise_std=0.4)
    for path in (tmp_path, tmp_path / "no" / "p.safetensors"):
        with refused("posterior-path", str(path)):
            found.save(path)
    with refused("no-such-file", "nope"):
        ModelPosterior.load(tmp_path / "nope", network())
    with refused("model-not-a-module"):
        ModelPosterior.load(tmp_path / "nope", None)


@pytest.mark.parametrize("what", ["inputs", "targets", "weights", "model"])
def test_what_has_no_evidence_has_no_posterior(what: str) -> None:
    (x, y), model = data(), network()
    if what == "weights":
        with torch.no_grad():
            model[0].bias[1] = float("nan")
    elif what != "model":
        {"inputs": x, "targets": y}[what][3, 1] = float("nan")
    code, says = {
        "inputs": ("tensor-not-finite", "`inputs`"),
        "targets": ("tensor-not-finite", "row 3"),
        "weights": ("posterior-weights-not-finite", "0.bias"),
        "model": ("model-not-a-module", "str"),
    }[what]
    with refused(code, says):
        nas_evidence.posterior(
            "model" if what == "model" else model, (x, y), likelihood="gaussian", noise_std=0.4
        )


def test_a_fitted_precision_at_a_bound_is_told_and_kept(tmp_path: Path) -> None:
    x, y = data()
    model = network()
    nn.init.zeros_(model[3].bias)
    given = {"likelihood": "gaussian", "noise_std": 0.4}
    found = nas_evidence.posterior(model, (x, y), **given)
    assert found.note == "the prior precision is at a bound for 3.bias"
    found.save(tmp_path / "p")
    assert ModelPosterior.load(tmp_path / "p", model).note == found.note
    assert nas_evidence.posterior(model, (x, y), prior_precision=1.0, **given).note == ""


def test_full_and_factored_agree_where_factors_are_exact() -> None:
    x, y = data()
    model = nn.Linear(3, 1, bias=False).double()
    both = []
    for structure in ("full", "kronecker"):
        found = nas_evidence.posterior(
            model, (x, y[:, :1]), likelihood="gaussian", noise_std=0.4, prior_precision=2.0,
            structure=structure,
        )  # fmt: skip
        both.append(found.predict(x).std)
    np.testing.assert_allclose(*both, rtol=1e-9)
