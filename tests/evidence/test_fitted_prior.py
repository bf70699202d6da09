"""`prior_precision="fit"`: the maximum of the evidence at the trained weights, per tensor."""

import math

import numpy as np
import pytest
import torch
from dense_blocks import matrices
from messages import refused
from scipy.optimize import minimize
from torch import Tensor, nn

import nas_evidence
from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.structured import FullKernel, FullMatrix


def problem(labels: bool, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=random).to(dtype)
    y = torch.sin(x[:, :2]) + 0.3 * torch.randn(40, 2, generator=random).to(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    return model, x, y.argmax(1) if labels else y


def dense(
    kind: str, model: nn.Module, x: Tensor, y: Tensor, noise_std: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The curvature as one matrix [P, P], the free parameters [P] and the log likelihood."""
    likelihood = Gaussian(noise_std) if y.is_floating_point() else Categorical()
    passed = curvature_pass(kind, model, x, y, likelihood, batch_size=7)
    found = passed.curvature
    if isinstance(found, FullKernel):
        found = found.as_matrix()
    whole = isinstance(found, FullMatrix)
    matrix = found.matrix if whole else torch.block_diag(*matrices(passed))
    theta = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    return matrix.numpy(), theta.numpy(), passed.log_likelihood


@pytest.mark.parametrize(
    ("kind", "labels", "frozen"),
    [("full_ggn", True, False), ("kfac_ggn", False, False), ("diag_ef", True, False),
     ("full_ef", False, True), ("ekfac_ggn", True, True)],
)  # fmt: skip
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_the_fitted_prior_is_the_maximum_found_by_brute_force(
    kind: str, labels: bool, frozen: bool, power: float
) -> None:
    model, x, y = problem(labels)
    model[0].requires_grad_(not frozen)
    names = [name for name, p in model.named_parameters() if p.requires_grad]

    def estimate(prior: object) -> nas_evidence.EvidenceEstimate:
        return nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical" if labels else "gaussian", curvature=kind,
            prior_precision=prior, noise_std=None if labels else 0.5, likelihood_power=power,
            diagnose=False,
        )  # fmt: skip

    found = estimate("fit")
    h, theta, log_likelihood = dense(kind, model, x, y, 0.5)
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]

    def loss(z: np.ndarray) -> float:
        delta = np.repeat(np.exp(z), sizes)
        log_det = np.linalg.slogdet(power * h / delta[:, None] + np.eye(len(h)))[1]
        return 0.5 * float(delta @ theta**2 + log_det) - power * log_likelihood

    best = minimize(loss, np.zeros(len(names)), method="BFGS", options={"gtol": 1e-7})
    assert found.value == pytest.approx(-best.fun, abs=1e-6)
    fitted = {t.group: t.value for t in found.terms if t.term == "prior_precision"}
    assert [*fitted] == names
    np.testing.assert_allclose([*fitted.values()], np.exp(best.x), rtol=1e-2)
    assert estimate(fitted).value == pytest.approx(found.value, rel=1e-12)
    assert found.note == (f"likelihood power {power:g}" if power != 1 else "")


def test_several_draws_share_the_prior_that_maximises_the_mean_of_their_evidences() -> None:
    model, x, y = problem(labels=True)

    def estimate(prior: object) -> nas_evidence.EvidenceEstimate:
        return nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature="kfac_ggn_mc", n_draws=3,
            prior_precision=prior, diagnose=False,
        )  # fmt: skip

    found = estimate("fit")
    fitted = {t.group: t.value for t in found.terms if t.term == "prior_precision"}
    assert estimate(fitted).value == pytest.approx(found.value, rel=1e-12)
    for name, delta in fitted.items():
        for factor in (0.9, 1.1):
            assert estimate(fitted | {name: factor * delta}).value < found.value


def test_a_tensor_without_a_maximum_is_named() -> None:
    model, x, y = problem(labels=True)
    with torch.no_grad():
        model[2].bias.zero_()
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="categorical", curvature="full_ggn", prior_precision="fit",
        diagnose=False,
    )  # fmt: skip
    assert "at a bound for 2.bias" in found.note
    assert math.isfinite(found.value)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="categorical", curvature="diag_ef", prior_precision="fit",
        diagnose=False,
    )  # fmt: skip
    assert (found.valid, "0.weight" in found.note) == (False, True)


@pytest.mark.parametrize(
    ("change", "code", "hint"),
    [
        ({"curvature": "kfac-ggn"}, "unknown-curvature", "'kfac_ggn'"),
        ({"curvature": "Full_GGN"}, "unknown-curvature", "'full_ggn'"),
        ({"curvature": "kfac"}, "unknown-curvature", "'kfac_ef'"),
        ({"curvature": "kron"}, "unknown-curvature", "did you mean 'kfac_ggn'"),
        ({"likelihood": "gausian"}, "unknown-likelihood", "'gaussian'"),
        ({"likelihood": "Categorical"}, "unknown-likelihood", "'categorical'"),
        ({"prior_precision": "fitted"}, "prior-precision-word", '"fit"'),
    ],
)
def test_near_misses_of_a_name_are_told(change: dict[str, object], code: str, hint: str) -> None:
    model, x, y = problem(labels=True)
    given = {"likelihood": "categorical", "curvature": "diag_ef", "prior_precision": 1.0} | change
    with refused(code) as caught:
        nas_evidence.estimate_evidence(model, x, y, **given)
    assert hint in str(caught.value)
    if "prior_precision" in change:
        return
    with pytest.raises(ValueError, match="did you mean") as caught:
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y),
            **{"likelihood": "categorical"} | change,
        )  # fmt: skip
    assert hint in str(caught.value)


def test_near_misses_of_the_groups_of_a_loop_are_told() -> None:
    model, x, y = problem(labels=True)
    with refused("own-loop-plan") as caught:
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), likelihood="categorical",
            prior_groups="tensors",
        )  # fmt: skip
    assert "did you mean 'tensor'?" in str(caught.value)


def test_a_fit_beside_the_correction_for_the_mode_says_that_it_is_without() -> None:
    model, x, y = problem(labels=True)
    given = {"likelihood": "categorical", "curvature": "diag_ef", "prior_precision": "fit"}
    plain, corrected = (
        nas_evidence.estimate_evidence(model, x, y, at_mode_correction=on, **given)
        for on in (False, True)
    )
    assert "without at_mode_correction" not in plain.note
    assert "without at_mode_correction" in corrected.note
    fitted = [t.value for t in plain.terms if t.term == "prior_precision"]
    assert fitted == [t.value for t in corrected.terms if t.term == "prior_precision"]
