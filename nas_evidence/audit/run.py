"""Every registered estimator, compared with the right value where that is known.

    linear-*     linear regression          evidence and every curvature in closed form, and the
                                            density of one half of the data given the other
    logistic-2   two parameters             evidence by quadrature
    softmax-15   one mode                   evidence by a long temperature ladder
    tanh-22      a network, many modes      the same
    linear-noise regression, noise 0.01     as linear-*, where quadrature over temperatures fails
    *-power      the likelihood to the 0.3  as linear-*, and logistic-2
    trial        a short trial on digits    scores of the training curve from the curve itself
    trial-linear linear regression          predictive scores and the training of prior and noise
                                            against closed forms
    parts        what scores are made of, and formulas beside them; see audit/pieces.py

A row has a value, the true log evidence if there is one, and the interval that must contain the
value. A Laplace evidence must equal its definition, computed by dense algebra that shares nothing
with `curvature`, and a Monte-Carlo one that of its exact kind; a bound must be at most the truth,
in expectation; a sampled value must be within four standard errors of the truth. Bias and spread
show how far a correct implementation of each definition is from the evidence.
"""

import copy
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from nas_evidence.audit.known_problems import (
    NOISE_STD,
    Problem,
    definition,
    early_half,
    ladder_problem,
    linear_problem,
    logistic_problem,
)
from nas_evidence.audit.pieces import NAMES as PARTS
from nas_evidence.audit.pieces import part_rows
from nas_evidence.audit.rows import AuditRow, Claim, around, judged, measured
from nas_evidence.audit.sampled import (
    SAMPLED,
    STANDARD_ERRORS,
    box_rows,
    noise_of,
    sampled_rows,
)
from nas_evidence.audit.trained import (
    linear_trial_names,
    linear_trial_rows,
    trial_names,
    trial_rows,
)
from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.curvature.products import LogJoint
from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.evidence.jacobian import jacobian
from nas_evidence.evidence.linearised import log_evidence, tangent_of
from nas_evidence.maths.precisions import Precisions
from nas_evidence.scores.conditional import KIND, conditional_estimate
from nas_evidence.scores.conditional import NAME as CONDITIONAL
from nas_evidence.scores.full_ggn_slq import evidence_by_products
from nas_evidence.scores.given_folds import NAMES as GIVEN_FOLDS
from nas_evidence.scores.given_folds import late_given_early
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import ALIASES, CURVATURES, SCORES
from nas_evidence.spec.study import derive_seed

_ROUNDING = 1e-8  # relative
_N_DRAWS = 8
_IN_A_BOX = ("linear-3", "linear-noise")  # one output
#: κ of the problems whose name ends with "power".
_POWER = 0.3


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

    Only problems that have a row of the estimator are run.

    Raises:
        ValueError: for any other name.
    """
    name = ALIASES.get(name, name)
    if name in PROBLEMS:
        return [name], None
    if name not in (*SCORES, *PARTS):
        known = ", ".join(PROBLEMS)
        raise ValueError(f"{name} is no problem of the audit ({known}) and no estimator.")
    return [problem for problem in PROBLEMS if name in estimators_in(problem)], name


def estimators_in(problem: str) -> set[str]:
    """Return the names of the rows of a problem, without computing them."""
    if problem == "trial":
        return set(trial_names(SAMPLED))
    if problem == "trial-linear":
        return set(linear_trial_names(SAMPLED))
    if problem == "parts":
        return set(PARTS)
    found = {*CURVATURES, "tangent", "full_ggn_slq", *SAMPLED} - {"thermodynamic_box"}
    if problem != "tanh-22":  # one linear layer
        found.add("ntk_init")
    if problem.startswith("linear"):
        found |= {CONDITIONAL, *GIVEN_FOLDS}
    if problem.endswith("power"):
        found -= set(SAMPLED)
    if problem in _IN_A_BOX:
        found.add("thermodynamic_box")
    if problem == "linear-noise":  # few draws from the prior predict too badly
        found.discard("sto_lk")
    return found


def rows_of(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the rows of all estimators that need no training."""
    rows = {k: measured(problem, k, partial(_laplace, problem, k, seed)) for k in CURVATURES}
    found = [judged(row, _laplace_claim(problem, rows, kind)) for kind, row in rows.items()]
    found += tangent_rows(problem, seed)
    if problem.power != 1:
        return found
    return found + sampled_rows(problem, rows["full_ggn"].value, seed)


def tangent_rows(problem: Problem, seed: int) -> list[AuditRow]:
    """Return the rows of the linearised network, and of the full curvature by its products.

    At a mode of the network the linearised one has the same mode and the same curvature, so its
    evidence is `full_ggn`; with a linear network, whatever the weights it is linearised at.
    """
    full = definition(problem, "full_ggn")
    assert full is not None
    exact = around(full, _ROUNDING * abs(full), "closed form of full_ggn")
    row = measured(problem, "tangent", partial(_tangent, problem, "tangent"))
    rows = [judged(row, exact)]
    if isinstance(problem.model, nn.Linear):
        row = measured(problem, "ntk_init", partial(_tangent, problem, "ntk_init"))
        rows.append(judged(row, exact))
    generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, "full_ggn_slq"))
    row = measured(problem, "full_ggn_slq", partial(_by_products, problem, generator))
    slack = STANDARD_ERRORS * (row.spread or 0.0) + _ROUNDING * abs(full)
    claim = around(full, slack, f"{STANDARD_ERRORS:g} errors of full_ggn")
    return [*rows, judged(row, claim)]


def _tangent(problem: Problem, name: str, dual: bool | None = None) -> EvidenceEstimate:
    theta = torch.cat([p.detach().flatten() for p in problem.model.parameters()])
    at = theta if name == "tangent" else None
    tangent = tangent_of(jacobian(problem.model, problem.x), problem.y, at)
    fit = log_evidence(
        tangent, problem.likelihood, problem.precision, power=problem.power, dual=dual
    )
    return EvidenceEstimate(estimator=name, value=fit.value)


def _by_products(problem: Problem, generator: torch.Generator) -> EvidenceEstimate:
    model = copy.deepcopy(problem.model)
    sizes = [p.numel() for p in model.parameters()]
    each = Precisions(problem.precision, sizes).of_each_parameter()
    rows, power = len(problem.x) // 2, problem.power
    joint = LogJoint(model, problem.x, problem.y, problem.likelihood, each, power, rows)
    theta = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    return evidence_by_products(joint, theta, generator, n_exact=0)


def half_rows(problem: Problem) -> list[AuditRow]:
    """Return the rows of the conditional evidences of linearised networks on linear regression.

    The truth is the log density of the late half given the early one, in this order only.
    """
    half = early_half(problem)
    late = replace(problem, truth=problem.truth - half.truth)
    slack = _ROUNDING * (abs(problem.truth) + abs(half.truth))
    claim = around(late.truth, slack, "closed form")
    return [
        judged(measured(late, name, partial(_late_given_early, problem, half, name)), claim)
        for name in GIVEN_FOLDS
    ]


def _late_given_early(problem: Problem, half: Problem, name: str) -> EvidenceEstimate:
    found = late_given_early(
        name, half.model, problem.x, problem.y, n_early=len(half.x),
        likelihood=problem.likelihood, prior_precision=problem.precision, power=problem.power,
    )  # fmt: skip
    return EvidenceEstimate(estimator=name, value=found.value)


def conditional_row(problem: Problem, seed: int) -> AuditRow:
    """Return the row of the conditional evidence on linear regression, late half given early half.

    The truth is the log density of the late half given the early one.
    """
    half = early_half(problem)
    late = replace(problem, truth=problem.truth - half.truth)
    row = measured(late, CONDITIONAL, partial(_difference, problem, half, seed))
    slack = _ROUNDING * (abs(problem.truth) + abs(half.truth))
    return judged(row, around(late.truth, slack, "closed form of its definition"))


def _difference(problem: Problem, half: Problem, seed: int) -> EvidenceEstimate:
    early, whole = (_laplace(one, KIND, seed) for one in (half, problem))
    return conditional_estimate(
        early, whole, n_early=len(half.x), n_data=len(problem.x), labels=False
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


def _laplace(problem: Problem, kind: str, seed: int) -> EvidenceEstimate:
    gaussian = isinstance(problem.likelihood, Gaussian)
    return estimate_evidence(
        problem.model,
        problem.x,
        problem.y,
        likelihood="gaussian" if gaussian else "categorical",
        curvature=kind,
        prior_precision=problem.precision,
        noise_std=noise_of(problem) if gaussian else None,
        likelihood_power=problem.power,
        seed=derive_seed(seed, problem.name, kind),
        n_draws=_N_DRAWS,
    )


def _linear(
    name: str,
    n_data: int,
    n_features: int,
    n_outputs: int,
    seed: int,
    *,
    noise: float = NOISE_STD,
    power: float = 1.0,
) -> list[AuditRow]:
    problem = linear_problem(
        name, seed, n_data=n_data, n_features=n_features, n_outputs=n_outputs, noise_std=noise,
        power=power,
    )  # fmt: skip
    rows = [*rows_of(problem, seed), conditional_row(problem, seed), *half_rows(problem)]
    return rows + (box_rows(problem, seed) if name in _IN_A_BOX else [])


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
    "linear-power": partial(_linear, "linear-power", 40, 5, 2, power=_POWER),
    "logistic-2": lambda seed: rows_of(logistic_problem("logistic-2", seed), seed),
    "logistic-power": lambda seed: rows_of(logistic_problem("logistic-power", seed, _POWER), seed),
    "softmax-15": _softmax,
    "tanh-22": _tanh,
    "trial": partial(trial_rows, sampled=SAMPLED),
    "trial-linear": partial(linear_trial_rows, sampled=SAMPLED),
    "parts": part_rows,
}
