"""Every registered estimator, compared with the right value where that is known.

    linear-*     linear regression          evidence and every curvature in closed form, and the
                                            density of one half of the data given the other
    logistic-2   two parameters             evidence by quadrature
    softmax-15   one mode                   evidence by a long temperature ladder
    tanh-22      a network, many modes      the same
    linear-noise regression, noise 0.01     as linear-*, where quadrature over temperatures fails
    trial        a short trial on digits    scores of the training curve from the curve itself
    trial-linear linear regression          predictive scores and the training of prior and noise
                                            against closed forms

A row has a value, the true log evidence if there is one, and the interval that must contain the
value. A Laplace evidence must equal its definition, computed by dense algebra that shares nothing
with `curvature`, and a Monte-Carlo one that of its exact kind; a bound must be at most the truth,
in expectation; a sampled value must be within four standard errors of the truth. Bias and spread
show how far a correct implementation of each definition is from the evidence.
"""

import contextlib
import copy
import ctypes
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nas_evidence.auditing_problems import (
    NOISE_STD,
    Problem,
    definition,
    early_half,
    entropy_bound_of_linear,
    exact_ensembles,
    in_a_box,
    ladder_problem,
    linear_problem,
    logistic_problem,
    of_single_data,
)
from nas_evidence.auditing_rows import AuditRow, Claim, around, judged
from nas_evidence.auditing_trials import linear_trial_rows, trial_rows
from nas_evidence.curvature.products import LogJoint
from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.evidence.jacobian import jacobian
from nas_evidence.evidence.stochastic_bound import stochastic_lower_bound
from nas_evidence.evidence.tangent import log_evidence, tangent_of
from nas_evidence.likelihood import Gaussian
from nas_evidence.maths.precisions import Precisions
from nas_evidence.record import EvidenceEstimate
from nas_evidence.registry import CURVATURES, SCORES
from nas_evidence.sampling_plan import EnsemblePlan, EntropyPlan, LadderPlan, SweepPlan
from nas_evidence.scores.conditional import conditional_estimate
from nas_evidence.scores.full_ggn_slq import evidence_by_products
from nas_evidence.scores.on_halves import NAMES as ON_HALVES
from nas_evidence.scores.on_halves import late_given_early
from nas_evidence.scores.sample_then_optimise import sample_then_optimise_evidence
from nas_evidence.scores.sgd_entropy import sgd_entropy_bound
from nas_evidence.scores.temperature_ladder import temperature_ladder_evidence
from nas_evidence.scores.thermodynamic import thermodynamic_evidence
from nas_evidence.scores.thermodynamic_box import thermodynamic_box_evidence
from nas_evidence.spec import derive_seed

SAMPLED = (
    "stochastic_ggn", "sgd_entropy", "thermodynamic", "thermodynamic_box", "temperature_ladder",
    "sto_lk",
)  # fmt: skip
#: A sampled value must be within this many. Errors from six runs are themselves uncertain: with
#: other seeds about one such row in a hundred would fail by chance.
STANDARD_ERRORS = 4.0
_ROUNDING = 1e-8  # relative
#: Noise below which a few draws from the prior predict so badly that no mean has a standard error.
_HEAVY_TAILS = 0.1
_QUADRATURE = 0.1  # nats, of a ladder with 20 temperatures
_LADDER = LadderPlan(n_burn_in=100, n_samples=100)
_SWEEP = SweepPlan(n_nodes=12, n_burn_in=100, n_settle=8, n_samples=20)
_ENSEMBLES = EnsemblePlan(n_runs=6, n_draws=2, n_chunks=4)
_N_DRAWS = 8


def run_audit(
    problems: Collection[str] | None = None,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> list[AuditRow]:
    """Return the rows of the audit; it passes if all of them hold.

    Args:
        problems: names in `PROBLEMS`; None for all.
        seed: for data, draws and chains.
        say: told about each problem when its rows are known.

    Raises:
        ValueError: for an unknown problem.
    """
    unknown = sorted(set(problems or ()) - set(PROBLEMS))
    if unknown:
        raise ValueError(f"`problems` must be of {', '.join(PROBLEMS)}, but got {unknown}")
    names = [name for name in PROBLEMS if problems is None or name in problems]
    rows: list[AuditRow] = []
    for done, name in enumerate(names, start=1):
        started = time.perf_counter()
        found = PROBLEMS[name](seed)
        missed = sum(not row.holds for row in found)
        say(
            f"{done}/{len(names)} {name}: {len(found) - missed} of {len(found)} rows hold, "
            f"{time.perf_counter() - started:.0f} s"
        )
        rows += found
    return rows


def named(name: str) -> tuple[list[str], str | None]:
    """Return the problems to run for the name of a problem or of an estimator, and that estimator.

    Raises:
        ValueError: for any other name.
    """
    if name in PROBLEMS:
        return [name], None
    if name not in SCORES:
        known = ", ".join(PROBLEMS)
        raise ValueError(f"{name} is no problem of the audit ({known}) and no estimator.")
    return list(PROBLEMS), name


def rows_of(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the rows of all estimators that need no training."""
    rows = {k: _row(problem, k, partial(_laplace, problem, k, seed)) for k in CURVATURES}
    found = [judged(row, _laplace_claim(problem, rows, kind)) for kind, row in rows.items()]
    found += tangent_rows(problem, seed)
    return found + _sampled_rows(problem, rows["full_ggn"].value, seed)


def tangent_rows(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the rows of the linearised network, and of the full curvature by its products.

    At a mode of the network the linearised one has the same mode and the same curvature, so its
    evidence is `full_ggn`; with a linear network, whatever the weights it is linearised at.
    """
    full = definition(problem, "full_ggn")
    assert full is not None
    exact = around(full, _ROUNDING * abs(full), "closed form of full_ggn")
    row = _row(problem, "tangent", partial(_tangent, problem, "tangent"))
    rows = [judged(row, exact)]
    if isinstance(problem.model, nn.Linear):
        row = _row(problem, "ntk_init", partial(_tangent, problem, "ntk_init"))
        rows.append(judged(row, exact))
    generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, "full_ggn_slq"))
    row = _row(problem, "full_ggn_slq", partial(_by_products, problem, generator))
    slack = STANDARD_ERRORS * (row.spread or 0.0) + _ROUNDING * abs(full)
    claim = around(full, slack, f"{STANDARD_ERRORS:g} errors of full_ggn")
    return [*rows, judged(row, claim)]


def _tangent(problem: Problem, name: str) -> EvidenceEstimate:
    theta = torch.cat([p.detach().flatten() for p in problem.model.parameters()])
    at = theta if name == "tangent" else None
    tangent = tangent_of(jacobian(problem.model, problem.x), problem.y, at)
    fit = log_evidence(tangent, problem.likelihood, problem.precision)
    return EvidenceEstimate(estimator=name, value=fit.value)


def _by_products(problem: Problem, generator: torch.Generator) -> EvidenceEstimate:
    model = copy.deepcopy(problem.model)
    sizes = [p.numel() for p in model.parameters()]
    each = Precisions(problem.precision, sizes).of_each_parameter()
    joint = LogJoint(model, problem.x, problem.y, problem.likelihood, each, 1.0, len(problem.x))
    theta = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    return evidence_by_products(joint, theta, generator)


def half_rows(problem: Problem) -> list[AuditRow]:
    """Return the rows of the conditional evidences of linearised networks on linear regression.

    The truth is the log density of the late half given the early one, in this order only.
    """
    half = early_half(problem)
    late = replace(problem, truth=problem.truth - half.truth)
    slack = _ROUNDING * (abs(problem.truth) + abs(half.truth))
    claim = around(late.truth, slack, "closed form")
    return [
        judged(_row(late, name, partial(_late_given_early, problem, half, name)), claim)
        for name in ON_HALVES
    ]


def _late_given_early(problem: Problem, half: Problem, name: str) -> EvidenceEstimate:
    value = late_given_early(
        name, half.model, problem.x, problem.y, n_early=len(half.x),
        likelihood=problem.likelihood, prior_precision=problem.precision,
    )  # fmt: skip
    return EvidenceEstimate(estimator=name, value=value)


def conditional_rows(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the rows of conditional evidences on linear regression, late half given early half.

    The truth is the log density of the late half given the early one.
    """
    half = early_half(problem)
    late = replace(problem, truth=problem.truth - half.truth)
    rows: list[AuditRow] = []
    for name, score in SCORES.items():
        if score.taken != "before" or score.curvature is None:
            continue
        kind = score.curvature
        row = _row(late, name, partial(_difference, problem, half, name, seed))
        whole, early = definition(problem, kind), definition(half, kind)
        claim = Claim()
        if score.approximates is not None:
            exact = next(r for r in rows if r.estimator == score.approximates)
            slack = STANDARD_ERRORS * (row.spread or 0.0)
            slack += problem.n_parameters / len(half.x)
            claim = around(exact.value, slack, f"{STANDARD_ERRORS:g} errors and P / n of exact")
        elif whole is not None and early is not None:
            slack = _ROUNDING * (abs(whole) + abs(early))
            claim = around(whole - early, slack, "closed form of its definition")
        rows.append(judged(row, claim))
    return rows


def _difference(problem: Problem, half: Problem, name: str, seed: int) -> EvidenceEstimate:
    kind = SCORES[name].curvature
    assert kind is not None
    early, whole = (_laplace(one, kind, seed) for one in (half, problem))
    return conditional_estimate(
        early, whole, name=name, n_early=len(half.x), n_data=len(problem.x), labels=False
    )


def _laplace_claim(problem: Problem, rows: Mapping[str, AuditRow], kind: str) -> Claim:
    exact = CURVATURES[kind].approximates
    if exact is not None:
        # Noise in the curvature increases the evidence (Jensen), here by less than P / n.
        slack = STANDARD_ERRORS * (rows[kind].spread or 0.0)
        slack += problem.n_parameters / len(problem.x)
        return around(rows[exact].value, slack, f"{STANDARD_ERRORS:g} errors and P / n of {exact}")
    value = definition(problem, kind)
    if value is None:
        return Claim()
    return around(value, _ROUNDING * abs(value), "closed form of its definition")


def _noise(problem: Problem) -> float:
    """Return the noise of a regression, 1 for labels."""
    likelihood = problem.likelihood
    return likelihood.noise_std if isinstance(likelihood, Gaussian) else 1.0


def _laplace(problem: Problem, kind: str, seed: int) -> EvidenceEstimate:
    gaussian = isinstance(problem.likelihood, Gaussian)
    return estimate_evidence(
        problem.model,
        problem.x,
        problem.y,
        likelihood="gaussian" if gaussian else "categorical",
        curvature=kind,
        prior_precision=problem.precision,
        noise_std=_noise(problem) if gaussian else None,
        seed=derive_seed(seed, problem.name, kind),
        n_draws=_N_DRAWS,
    )


def _sampled_rows(problem: Problem, full: float, seed: int) -> list[AuditRow]:
    block = max(2, len(problem.x) // 4)
    rows = []
    for name, call in _sampled_calls(problem, block).items():
        if name == "sto_lk" and _noise(problem) < _HEAVY_TAILS:
            continue
        generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, name))
        row = _row(problem, name, partial(call, generator))
        slack = STANDARD_ERRORS * math.hypot(row.spread or 0.0, problem.truth_error)
        if name == "stochastic_ggn":
            low = of_single_data(problem) - _ROUNDING * abs(full)
            text = "between blocks of one datum and full_ggn"
            claim = Claim(text, low, full + _ROUNDING * abs(full))
        elif name == "sto_lk" and isinstance(problem.likelihood, Gaussian):
            mean, error = exact_ensembles(problem, _ENSEMBLES, generator)
            slack = STANDARD_ERRORS * math.hypot(row.spread or 0.0, error)
            claim = around(mean, slack, f"{STANDARD_ERRORS:g} errors of exact draws")
        elif name == "sgd_entropy":
            claim = _entropy_claim(problem, slack, seed)
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


def _entropy_claim(problem: Problem, slack: float, seed: int) -> Claim:
    """Return the limits of the entropy bound: closed form, or full Hessians, and the truth."""
    plan = _descent(problem)
    if isinstance(problem.likelihood, Gaussian):
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
    each = Precisions(problem.precision, sizes).of_each_parameter()
    lost = float(0.5 * (1 + (2 * math.pi / each).log()).sum()) - entropy
    # −a − a² is at most a tenth below log(1 − a) for a <= 0.3, the longest step of the plan.
    return Claim(
        "at most the truth; a tenth of the lost entropy below full Hessians",
        whole.value - slack - 0.1 * abs(lost), min(whole.value, problem.truth) + slack,
    )  # fmt: skip


def _descent(problem: Problem) -> EntropyPlan:
    """Return a plan with steps of 0.3 divided by the largest curvature at most."""
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    steepest = float(torch.linalg.eigvalsh(phi.mT @ phi / len(phi))[-1])
    rate = 0.3 * _noise(problem) ** 2 / steepest
    return EntropyPlan(learning_rate=rate, n_steps=150, n_seeds=32)


def _sampled_calls(
    problem: Problem, block_size: int
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
        "stochastic_ggn": lambda g: stochastic_lower_bound(
            *given, block_size=block_size, generator=g, **known
        ),
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


def _row(problem: Problem, name: str, call: Callable[[], EvidenceEstimate]) -> AuditRow:
    """Return the row of one estimate, measured but not yet checked."""
    with _peak_memory() as peak:
        started = time.process_time()
        estimate = call()
        seconds = time.process_time() - started
    return AuditRow(
        problem=problem.name,
        estimator=name,
        n_parameters=problem.n_parameters,
        n_data=len(problem.x),
        value=estimate.value if estimate.valid else math.nan,
        truth=problem.truth,
        truth_error=problem.truth_error,
        bias=estimate.value - problem.truth,
        spread=estimate.standard_error,
        seconds=seconds,
        memory_bytes=peak[0] if peak else None,
        holds=True,
    )


@contextlib.contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield a list that on exit holds the growth of the resident set in bytes, on Linux."""
    peak: list[int] = []
    try:
        # Return freed memory to the system, and reset the peak.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
    except (OSError, AttributeError):
        yield peak
        return
    yield peak
    peak.append(max(0, _status_bytes("VmHWM") - before))


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def box_rows(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the row of the uniform prior; far from the walls the integral is Gaussian."""
    inside = in_a_box(problem)
    generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, "thermodynamic_box"))
    row = _row(
        inside,
        "thermodynamic_box",
        lambda: thermodynamic_box_evidence(
            inside.model, inside.x, inside.y, likelihood=inside.likelihood, generator=generator,
            plan=_SWEEP,
        ),
    )  # fmt: skip
    slack = STANDARD_ERRORS * (row.spread or 0.0) + _QUADRATURE
    return [judged(row, around(inside.truth, slack, f"{STANDARD_ERRORS:g} errors"))]


def _linear(
    name: str, n_data: int, n_features: int, n_outputs: int, seed: int, noise: float = NOISE_STD
) -> list[AuditRow]:
    problem = linear_problem(
        name, seed, n_data=n_data, n_features=n_features, n_outputs=n_outputs, noise_std=noise
    )
    rows = rows_of(problem, seed) + conditional_rows(problem, seed) + half_rows(problem)
    return rows + (box_rows(problem, seed) if n_outputs == 1 else [])


def _softmax(seed: int) -> list[AuditRow]:
    model = nn.Linear(4, 3).double()
    problem = ladder_problem("softmax-15", seed, model, n_data=40, n_features=4)
    return rows_of(problem, seed)


def _tanh(seed: int) -> list[AuditRow]:
    """Modes come in 2⁴ 4! copies: units can change signs and places."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    problem = ladder_problem("tanh-22", seed, model, n_data=40, n_features=2, symmetries=384)
    return rows_of(problem, seed)


PROBLEMS: dict[str, Callable[[int], list[AuditRow]]] = {
    "linear-3": partial(_linear, "linear-3", 12, 2, 1),
    "linear-12": partial(_linear, "linear-12", 40, 5, 2),
    "linear-63": partial(_linear, "linear-63", 60, 20, 3),
    "linear-noise": partial(_linear, "linear-noise", 12, 2, 1, noise=0.01),
    "logistic-2": lambda seed: rows_of(logistic_problem("logistic-2", seed), seed),
    "softmax-15": _softmax,
    "tanh-22": _tanh,
    "trial": partial(trial_rows, sampled=SAMPLED),
    "trial-linear": partial(linear_trial_rows, sampled=SAMPLED),
}
