"""What every curvature kind owes the evidence; a new one is tested by being registered."""

import copy
from dataclasses import replace

import pytest
import torch
from cases import case
from dense_blocks import run
from torch import nn

from nas_evidence import curvature, estimate_evidence
from nas_evidence.audit.known_problems import definition, linear_problem
from nas_evidence.curvature import BUILDERS, KINDS
from nas_evidence.curvature.wide import WIDE, WIDEST, too_wide
from nas_evidence.spec.registry import (
    CURVATURES,
    ONLINE_CURVATURES,
    SCORES,
    STRUCTURES,
    Curvature,
    Structure,
)
from nas_evidence.training.cost import MANY, factor_bytes

CASES = ("mlp", "regression", "residual")


def test_a_study_can_name_registered_kinds_only() -> None:
    assert set(CURVATURES) == set(KINDS) >= set(ONLINE_CURVATURES)
    assert [name for name in SCORES if name in KINDS] == list(KINDS)


@pytest.mark.parametrize("kind", [name for name, kind in CURVATURES.items() if not kind.is_full])
def test_a_kind_of_blocks_has_a_spectrum_for_every_tensor(kind: str) -> None:
    curvature = run(kind, case("residual")).curvature
    assert [len(s) for s in curvature.spectra()] == list(curvature.sizes)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_log_determinant_and_effective_parameters_fit_each_other(kind: str, name: str) -> None:
    passed = run(kind, case(name))
    curvature = passed.curvature
    sizes = torch.tensor(curvature.sizes, dtype=torch.float64)
    delta = torch.logspace(-1, 2, len(sizes), dtype=torch.float64, requires_grad=True)
    log_det_ratio = curvature.log_det_ratio(delta)
    assert log_det_ratio.dtype == torch.float64
    assert log_det_ratio.isfinite().all()
    assert (log_det_ratio >= 0).all()
    assert passed.n_data == len(case(name).x)
    assert curvature.n_parameters == sizes.sum()

    effective = curvature.effective_parameters(delta.detach())
    assert ((effective >= -1e-12) & (effective <= sizes + 1e-9)).all()
    # gamma_l = sum lambda / (lambda + delta_l) = -delta_l d log|H + D| |D|^-1 / d delta_l
    (gradient,) = torch.autograd.grad(log_det_ratio.sum(), delta)
    torch.testing.assert_close(effective, -delta.detach() * gradient, rtol=1e-7, atol=1e-9)

    weaker = curvature.log_det_ratio(10 * delta.detach())
    assert (weaker <= log_det_ratio.detach() + 1e-12).all()
    none = curvature.log_det_ratio(1e14 * delta.detach())
    torch.testing.assert_close(none, torch.zeros_like(none), rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_is_a_function_of_its_arguments_and_changes_none(kind: str, name: str) -> None:
    c = case(name)
    before = copy.deepcopy((c.model.state_dict(), c.x, c.y))
    state = torch.get_rng_state()
    one, two = (run(kind, case(name), seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close((c.model.state_dict(), c.x, c.y), before, rtol=0, atol=0)
    assert one.log_likelihood == two.log_likelihood
    torch.testing.assert_close(one.curvature.trace(), two.curvature.trace(), rtol=0, atol=0)
    # The likelihood part of a pass is the same for every kind, in any batches.
    other = run("diag_ef", case(name), batch_size=len(c.x))
    assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-12)
    assert one.squared_errors == pytest.approx(other.squared_errors, rel=1e-12)


@pytest.fixture
def new_kind(monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind whose structure is declared and built like Kronecker factors, under a new name."""
    monkeypatch.setitem(STRUCTURES, "nearest", Structure("nearest", "factors", shares_bias=True))
    monkeypatch.setitem(BUILDERS, "nearest", BUILDERS["kronecker"])
    monkeypatch.setitem(CURVATURES, "kfoc_ggn", Curvature("nearest", "exact", trace="diag_ggn"))
    monkeypatch.setitem(SCORES, "kfoc_ggn", replace(SCORES["kfac_ggn"], name="kfoc_ggn"))
    monkeypatch.setattr(curvature, "KINDS", (*KINDS, "kfoc_ggn"))
    return "kfoc_ggn"


def test_a_new_kind_of_factors_is_counted_checked_and_judged_as_one(new_kind: str) -> None:
    model = nn.Sequential(nn.Linear(2 * WIDE, 3), nn.Linear(3, 2))
    for n_data in (10, MANY):
        assert factor_bytes(new_kind, model, n_data) == factor_bytes("kfac_ggn", model, n_data)
    assert factor_bytes(new_kind, model, 10) < factor_bytes(new_kind, model)
    refused = too_wide(nn.Linear(WIDEST + 1, 1), [new_kind], MANY)
    assert f"instead of {new_kind} in" in refused
    c = case("mlp")
    first = next(name for name, one in c.model.named_modules() if isinstance(one, nn.Linear))
    new, old = (
        estimate_evidence(
            c.model, c.x, c.y, likelihood="categorical", curvature=kind, prior_precision=1.0,
            kfac_reduce=[first],
        )
        for kind in (new_kind, "kfac_ggn")
    )  # fmt: skip
    assert new.value == old.value
    problem = linear_problem("linear-3", 1, n_data=12, n_features=2, n_outputs=1)
    assert definition(problem, new_kind) == definition(problem, "kfac_ggn")
