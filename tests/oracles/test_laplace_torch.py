"""laplace-torch's evidence, where it is right: classification, and no empirical Fisher."""

import copy

import pytest
import torch
from cases import Case, case, golden
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

laplace = pytest.importorskip("laplace", reason="laplace-torch is an oracle, not a dependency")
from laplace.curvature import BackPackEF, BackPackGGN  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::UserWarning",
)

STRUCTURES = {"diag": "diag", "kfac": "kron", "full": "full"}


def theirs(kind: str, c: Case) -> float:
    layers = [m for m in copy.deepcopy(c.model) if not isinstance(m, nn.Dropout)]
    model = nn.Sequential(*layers)
    task = "classification" if c.noise_std is None else "regression"
    fitted = laplace.Laplace(
        model,
        task,
        subset_of_weights="all",
        hessian_structure=STRUCTURES[kind.split("_")[0]],
        backend=BackPackEF if kind.endswith("ef") else BackPackGGN,
        sigma_noise=1.0 if c.noise_std is None else c.noise_std,
    )
    fitted.fit(DataLoader(TensorDataset(c.x, c.y), batch_size=len(c.x)))
    delta = c.prior_precision
    if kind.startswith(("diag", "full")):
        sizes = torch.tensor([p.numel() for p in model.parameters()])
        delta = delta.repeat_interleave(sizes)
    return float(fitted.log_marginal_likelihood(prior_precision=delta.float()))


def ours(kind: str, c: Case) -> float:
    return c.estimate(kind, prior_precision=c.prior_precision.float(), batch_size=512).value


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn", "full_ggn", "diag_ef", "full_ef"])
def test_evidence_of_a_classifier_agrees(kind: str) -> None:
    c = case("mlp")
    assert_close(ours(kind, c), theirs(kind, c), rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn", "full_ggn"])
def test_gauss_newton_evidence_of_a_regression_agrees(kind: str) -> None:
    c = case("regression")
    assert_close(ours(kind, c), theirs(kind, c), rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", ["diag_ggn", "kfac_ggn", "full_ggn", "diag_ef"])
def test_evidence_of_the_trained_digits_net_agrees(kind: str) -> None:
    c, _ = golden("digits_mlp")
    assert_close(ours(kind, c), theirs(kind, c), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["diag_ef", "full_ef"])
def test_empirical_fisher_evidence_of_a_regression_is_theirs_with_another_scale(kind: str) -> None:
    # Their curvature is ours times 2 s²: the known defect, and nothing else.
    c = case("regression")
    assert abs(ours(kind, c) - theirs(kind, c)) > 1e-3
    c.noise_std = 0.5**0.5  # where 2 s² = 1
    assert_close(ours(kind, c), theirs(kind, c), rtol=2e-6, atol=0)
