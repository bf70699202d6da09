"""The rows of the audit whose values are random: bounds, and evidences by sampling.

A sampled evidence must be within four standard errors of the truth. A bound has a limit below it
too: its expectation in closed form, whole Hessians in place of products, or dense algebra.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from nas_evidence.audit.known_problems import (
    KnownProblem,
    entropy_bound_of_linear,
    exact_ensembles,
)
from nas_evidence.audit.rows import AuditRow, Claim, around, judged, measured
from nas_evidence.maths.precisions import of_each_parameter
from nas_evidence.scores.sample_then_optimise import sample_then_optimise_evidence
from nas_evidence.scores.sampling_plan import EnsemblePlan, EntropyPlan, LadderPlan, SweepPlan
from nas_evidence.scores.sgd_entropy import sgd_entropy_bound
from nas_evidence.scores.temperature_ladder import temperature_ladder_evidence
from nas_evidence.scores.thermodynamic import thermodynamic_evidence
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import derive_seed

SAMPLED = ("sgd_entropy", "thermodynamic", "temperature_ladder", "sto_lk")
#: Those that are not for targets with a noise of each, or whose claims are not.
OF_ONE_NOISE = ("sgd_entropy", "sto_lk")
#: A sampled value must be within this many. Errors from six runs are themselves uncertain: with
#: other seeds about one such row in a hundred would fail by chance.
STANDARD_ERRORS = 4.0
#: Noise below which a few draws from the prior predict so badly that no mean has a standard error.
_HEAVY_TAILS = 0.1
_QUADRATURE = 0.1  # nats, of nodes and of few runs
_LADDER = LadderPlan(n_burn_in=100, n_samples=100)
_SWEEP = SweepPlan(n_nodes=12, n_burn_in=100, n_settle=8, n_samples=20)
_ENSEMBLES = EnsemblePlan(n_runs=6, n_draws=2, n_chunks=4)


def sampled_rows(problem: KnownProblem, seed: int) -> list[AuditRow]:
    """Return the rows of all estimators of `SAMPLED` on a problem with a truth."""
    rows = []
    for name, call in _sampled_calls(problem).items():
        if name in OF_ONE_NOISE and not declared(problem.likelihood.name).convex:
            continue
        if name == "sto_lk" and problem.likelihood.scale < _HEAVY_TAILS:
            continue
        generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, name))
        row = measured(problem, name, partial(call, generator))
        slack = STANDARD_ERRORS * math.hypot(row.spread or 0.0, problem.truth_error)
        if name == "sgd_entropy":
            claim = _entropy_claim(problem, slack, seed)
        elif name == "sto_lk" and declared(problem.likelihood.name).learned:
            mean, error = exact_ensembles(problem, _ENSEMBLES, generator)
            slack = STANDARD_ERRORS * math.hypot(row.spread or 0.0, error)
            claim = around(mean, slack, f"{STANDARD_ERRORS:g} errors of exact draws")
        elif name == "sto_lk":
            uniform = -len(problem.x) * math.log(problem.model(problem.x[:1]).shape[1])
            text = "at most the truth, in the mean; better than twice the loss of a uniform guess"
            claim = Claim(text, 2 * uniform, problem.truth + slack)
        else:
            claim = around(problem.truth, slack + _QUADRATURE, f"{STANDARD_ERRORS:g} errors")
        if name == "thermodynamic" and problem.symmetries > 1:
            low = problem.truth - math.log(problem.symmetries) - slack - _QUADRATURE
            claim = Claim("between one mode and all its copies", low, claim.high)
        rows.append(judged(row, claim))
    return rows


def _entropy_claim(problem: KnownProblem, slack: float, seed: int) -> Claim:
    """Return the limits of the entropy bound: closed form, or full Hessians, and the truth."""
    plan = _descent(problem)
    if declared(problem.likelihood.name).learned:
        best = entropy_bound_of_linear(problem, plan)
        return Claim(
            "at most the truth; its expectation in closed form",
            best - slack - _QUADRATURE, min(best + slack, problem.truth + slack),
        )  # fmt: skip
    generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, "whole Hessians"))
    whole = sgd_entropy_bound(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=problem.precision, generator=generator,
        plan=plan.model_copy(update={"exact": True}),
    )  # fmt: skip
    slack = math.hypot(slack, STANDARD_ERRORS * (whole.standard_error or 0.0))
    entropy = next(term.value for term in whole.terms if term.term == "entropy")
    sizes = [p.numel() for p in problem.model.parameters()]
    each = of_each_parameter(problem.precision, sizes)
    lost = float(0.5 * (1 + (2 * math.pi / each).log()).sum()) - entropy
    # −a − a² is at most a tenth below log(1 − a) for a <= 0.3, the longest step of the plan.
    return Claim(
        "at most the truth; a tenth of the lost entropy below full Hessians",
        whole.value - slack - 0.1 * abs(lost), min(whole.value, problem.truth) + slack,
    )  # fmt: skip


def _descent(problem: KnownProblem) -> EntropyPlan:
    """Return a plan with steps of 0.3 divided by the largest curvature at most."""
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    steepest = float(torch.linalg.eigvalsh(phi.mT @ phi / len(phi))[-1])
    rate = 0.3 * problem.likelihood.scale**2 / steepest
    return EntropyPlan(learning_rate=rate, n_steps=150, n_seeds=32)


def _sampled_calls(
    problem: KnownProblem,
) -> dict[str, Callable[[torch.Generator], EvidenceEstimate]]:
    given: tuple[Any, ...] = (problem.model, problem.x, problem.y)
    known: dict[str, Any] = {
        "likelihood": problem.likelihood,
        "prior_precision": problem.precision,
    }
    descent = _descent(problem)
    # Neighbours must overlap: their number grows with that of the parameters.
    ladder = _LADDER if problem.n_parameters < 40 else _LADDER.model_copy(update={"n_nodes": 40})
    return {
        "sgd_entropy": lambda g: sgd_entropy_bound(*given, generator=g, plan=descent, **known),
        "thermodynamic": lambda g: thermodynamic_evidence(
            *given, generator=g, plan=_SWEEP, **known
        ),
        "temperature_ladder": lambda g: temperature_ladder_evidence(
            *given, generator=g, plan=ladder, **known
        ),
        "sto_lk": lambda g: sample_then_optimise_evidence(
            *given, generator=g, plan=_ENSEMBLES, **known
        ),
    }
