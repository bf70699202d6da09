"""Every registered estimator, compared with the right value where that is known.

    linear-*     linear regression          evidence and every curvature in closed form, and the
                                            density of one half of the data given the other
    logistic-2   two parameters             evidence by quadrature
    softmax-15   one mode                   evidence by a long temperature ladder
    tanh-22      a network, many modes      the same
    noise-2      mean and noise of a datum  evidence, and density of one half of the data given
                                            the other, by quadrature
    linear-noise regression, noise 0.01     as linear-*, where quadrature over temperatures fails
    *-power      the likelihood to the 0.3  as linear-*, and logistic-2

A row has a value, the true log evidence if there is one, and the interval that must contain the
value. A Laplace evidence must equal its definition, computed by dense algebra that shares nothing
with `curvature`, and a Monte-Carlo one that of its exact kind; a bound must be at most the truth,
in expectation; a sampled value must be within four standard errors of the truth. On linear
regression `sotl`, a sum of training losses, is such a bound. Bias and spread show how far a
correct implementation of each definition is from the evidence.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from nas_evidence.audit.known_problems import (
    NOISE_STD,
    KnownProblem,
    definition,
    early_half,
    ladder_problem,
    linear_problem,
    logistic_problem,
    noise_problem,
)
from nas_evidence.audit.rows import AuditRow, Claim, around, judged, measured
from nas_evidence.audit.sampled import (
    OF_ONE_NOISE,
    SAMPLED,
    STANDARD_ERRORS,
    sampled_rows,
)
from nas_evidence.audit.sum_of_losses import SOTL, sotl_row
from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.likelihoods import LIKELIHOODS
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import CURVATURES, declared
from nas_evidence.spec.study import derive_seed

_ROUNDING = 1e-8  # relative
_N_DRAWS = 8
_CONDITIONAL = "conditional_evidence"
_LAPLACE_OF_NOISE = 0.1  # nats, of the density of 12 data given 12
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
        raise UserError(
            "unknown-audit-problem",
            f"`problems` must be of {', '.join(PROBLEMS)}, but got {unknown}",
        )
    names = [name for name in PROBLEMS if problems is None or name in problems]
    rows: list[AuditRow] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small gain nothing, and threads wait for each other
    try:
        for done, name in enumerate(names, start=1):
            started = time.perf_counter()
            found = PROBLEMS[name](seed)
            missed = sum(not row.holds for row in found)
            say(
                f"{done}/{len(names)} {name}: {len(found) - missed} of {len(found)} rows hold, "
                f"{time.perf_counter() - started:.0f} s"
            )
            rows += found
    finally:
        torch.set_num_threads(threads)
    return rows


def named(name: str) -> tuple[list[str], str | None]:
    """Return the problems to run for the name of a problem or of an estimator, and that estimator.

    Only problems that have a row of the estimator are run.

    Raises:
        ValueError: for a score that is no estimate of an evidence, or any other name.
    """
    if name in PROBLEMS:
        return [name], None
    try:
        declared(name)
    except ValueError as error:
        known = ", ".join(PROBLEMS)
        raise UserError(
            "audit-problem-not-a-study", f"{name} is no problem of the audit ({known}): {error}"
        ) from error
    found = [problem for problem in PROBLEMS if name in estimators_in(problem)]
    if not found:
        raise UserError(
            "audit-without-truth",
            f"{name} is compared with no truth here: it estimates no evidence; the tests of the "
            "project compare it with its definition.",
        )
    return found, name


def estimators_in(problem: str) -> set[str]:
    """Return the names of the rows of a problem, without computing them."""
    found = {*CURVATURES, *SAMPLED}
    if problem.startswith(("linear", "noise")):
        found.add(_CONDITIONAL)
    if problem.startswith("linear"):
        found.add(SOTL)
    if problem.endswith("power"):
        found -= {*SAMPLED, SOTL}
    if problem.startswith("noise"):
        found -= set(OF_ONE_NOISE)
    if problem == "linear-noise":  # few draws from the prior predict too badly
        found.discard("sto_lk")
    return found


def exact_rows(problem: KnownProblem, seed: int) -> list[AuditRow]:
    """Return the rows of all estimators that need no training."""
    found = laplace_rows(problem, seed)
    if problem.power != 1:
        return found
    return found + sampled_rows(problem, seed)


def laplace_rows(problem: KnownProblem, seed: int) -> list[AuditRow]:
    """Return the rows of the Laplace evidences, one for each kind of curvature."""
    rows = {k: measured(problem, k, partial(_laplace, problem, k, seed)) for k in CURVATURES}
    return [judged(row, _laplace_claim(problem, rows, kind)) for kind, row in rows.items()]


def conditional_row(
    problem: KnownProblem, half: KnownProblem, claim: str, error: float
) -> AuditRow:
    """Return the row of `conditional_evidence`: all data given one half.

    Args:
        problem: with all data.
        half: the same with the first half.
        claim: how the truth is known.
        error: of the value that is allowed, nats.
    """
    late = replace(problem, truth=problem.truth - half.truth)
    row = measured(late, _CONDITIONAL, partial(_late_given_early, problem, half))
    return judged(row, around(late.truth, error, claim))


def _late_given_early(problem: KnownProblem, half: KnownProblem) -> EvidenceEstimate:
    layer = last_layer_of(half.model, problem.x, problem.precision)
    found = late_given_early(
        layer, problem.y, len(half.x), problem.likelihood, power=problem.power
    )
    return EvidenceEstimate(estimator=_CONDITIONAL, value=found.value)


def _laplace_claim(problem: KnownProblem, rows: Mapping[str, AuditRow], kind: str) -> Claim:
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


def _laplace(problem: KnownProblem, kind: str, seed: int) -> EvidenceEstimate:
    of = LIKELIHOODS[problem.likelihood.name]
    return estimate_evidence(
        problem.model,
        problem.x,
        problem.y,
        likelihood=problem.likelihood.name,
        curvature=kind,
        prior_precision=problem.precision,
        noise_std=problem.likelihood.scale if of.scale == "noise_std" else None,
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
    half = early_half(problem)
    slack = _ROUNDING * (abs(problem.truth) + abs(half.truth))
    found = [*exact_rows(problem, seed), conditional_row(problem, half, "closed form", slack)]
    return [*found, sotl_row(problem, seed)] if power == 1 else found


def _noise(seed: int) -> list[AuditRow]:
    problem, half = noise_problem("noise-2", seed), noise_problem("noise-2", seed, 12)
    row = conditional_row(problem, half, "Laplace over the noise alone", _LAPLACE_OF_NOISE)
    return [*exact_rows(problem, seed), row]


def _softmax(seed: int) -> list[AuditRow]:
    model = nn.Linear(4, 3).double()
    problem = ladder_problem("softmax-15", seed, model, n_data=40, n_features=4)
    return exact_rows(problem, seed)


def _tanh(seed: int) -> list[AuditRow]:
    """Modes come in 2⁴ 4! copies: units can change signs and places."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    problem = ladder_problem("tanh-22", seed, model, n_data=40, n_features=2, symmetries=384)
    return exact_rows(problem, seed)


PROBLEMS: dict[str, Callable[[int], list[AuditRow]]] = {
    "linear-3": partial(_linear, "linear-3", 12, 2, 1),
    "linear-12": partial(_linear, "linear-12", 40, 5, 2),
    "linear-63": partial(_linear, "linear-63", 60, 20, 3),
    "linear-noise": partial(_linear, "linear-noise", 12, 2, 1, noise=0.01),
    "linear-power": partial(_linear, "linear-power", 40, 5, 2, power=_POWER),
    "logistic-2": lambda seed: exact_rows(logistic_problem("logistic-2", seed), seed),
    "logistic-power": lambda seed: exact_rows(
        logistic_problem("logistic-power", seed, _POWER), seed
    ),
    "noise-2": _noise,
    "softmax-15": _softmax,
    "tanh-22": _tanh,
}
