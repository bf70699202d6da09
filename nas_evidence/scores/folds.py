"""Cross-validation: each fold is predicted by a network trained on the others, as planned.

Three scores are made from these networks, which are trained once for all scores of a division.

    two_fold, ...         log (1/M) Σ_m Π_{n in fold} p(y_n | f_n, T_m)
    elpd                  Σ_{n in fold} log p(y_n | f_n, T)
    conditional_evidence  log q(y_k | y_-k) = log q(y) − log q(y_-k)

    f_n  outputs for datum n of the network trained without its fold   [C]
    T_m  M softmax temperatures, or factors on the learned noise, evenly spaced in log T
    q    evidence of the Bayesian last layer at its own optimum (evidence/last_layer.py)

    two_fold     two folds: each half predicts the other (`plan.folds = 1`: only one does)
    five_fold    five folds
    ten_fold     ten folds
    heldout_10   one fold, a tenth of the data: the usual validation split

The first are log predictive densities of K-fold cross-validation, with the scale of the outputs
marginalised over a uniform prior in log T; no evidence of all data (docs/reference/estimators.md).
`value` is the mean over folds of the sum over the data of a fold; `..._accuracy` is the fraction
of the same data that is classified correctly. `elpd` leaves the scale as it was learned: it is the
expected log pointwise predictive density of K-fold cross-validation with K = `plan.folds`
(Vehtari, Gelman & Gabry 2017, section 2.4).

For `conditional_evidence` features, prior mean, precisions, noise or temperature have seen y_-k
alone and are the same in both terms. So nothing is plugged in: the density is joint over the fold,
averaged over the posterior of the linear model given the other folds, and exact for linear
networks with Gaussian noise.

    E_K = (1/N) Σ_k log q(y_k | y_-k) with K = `plan.folds` folds

`value` is the mean over the folds predicted, `per_datum` their sum by their number of data. It is
the conditional marginal likelihood of Lotfi et al. (2022), averaged over folds. For an exact p and
by Fong & Holmes (2020, Proposition 2),

    log p(y) = Σ_{p=1..N} (mean over data and hold-out sets of p of the log score of one of them)

and the mean of log p(y_k | y_-k) over folds of N/K data estimates the terms p <= N/K: those
in which most has been learned; the terms with fewer data, where priors of networks mislead, are
left out. Here q is a Laplace approximation over the last layer, so this holds exactly only where
features and hyperparameters are fixed. The folds' densities estimate different numbers, which
agree in expectation over random divisions.

Where a trial trains its folds alone (`plan.whole = false`) their networks f_k, each of its own N_k
rows, have the scores and test figures that the network of all rows would have. Stored are means
over k: of a Laplace evidence log Z_k of N_k rows, and of log Z_k / N_k. They are no evidence of
all rows: only the log likelihood grows like N.

With `groups` in [dataset] a fold holds whole groups. With `time_column` the folds are blocks in
time: each is predicted by a network trained on the earlier ones alone, the first one is only
learned from, and `value` is the sum: a prequential log evidence of the data after the first block
given that block; of `two_fold` and the like each block's density is a mixture over the scales.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.data.units import Units
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.predictive import Predictive
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.target_scale import TargetScale, by_row
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.scores.protocol import Context, Scorer, evaluate, scorers_of
from nas_evidence.spec.divisions import (
    division_of,
    kept_division,
    predicted_folds,
    reported_division,
)
from nas_evidence.spec.domains import Frozen
from nas_evidence.spec.record import CurvePoint, EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES, declared
from nas_evidence.spec.study import Assignment, TrainingPlan
from nas_evidence.training.checkpoint import restore, state_of
from nas_evidence.training.life import advance
from nas_evidence.training.loop import DivergedError, likelihood_of
from nas_evidence.training.network import Network
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import (
    cuts_of,
    new_network,
    order_of_data,
    part_of,
    seconds_of,
    stop_of_part,
)
from nas_evidence.training.predict_rows import on_test_rows, outputs_of, predict_rows
from nas_evidence.training.together import MOST_TOGETHER

#: Maximum of the numbers stored of a trial's out-of-fold predictions, in float32: 4 MB.
#: Predictions of more data are computed again when they are needed.
MOST_KEPT = 1_000_000
#: Names of these predictions in a file of weights, by any division of the data: the names are
#: those of the first one, so that files of earlier versions stay readable.
OUTPUTS, SPREAD = "two_fold/outputs", "two_fold/spread"
#: Why a fold has no density although the network without it is trained.
OUTSIDE_SUPPORT = (
    "a held-out target is outside the support of the scale fitted to the other folds; give "
    "target_scale = yeo_johnson"
)
#: The M ratios T_m / T, from 1/8 to 8, evenly spaced in the logarithm.
SCALES = tuple(2.0 ** (m / 4) for m in range(-12, 13))
CONDITIONAL, ELPD = "conditional_evidence", "elpd"
#: Networks that all have evidences where they stand for their trial; of more the first alone.
_FEW = 2
#: Folds of each division of the data.
_N_FOLDS = {"two_fold": 2, "five_fold": 5, "ten_fold": 10, "heldout_10": 10}


@dataclass(frozen=True)
class FoldTask:
    """A fold to predict.

    score               its division
    trained, predicted  rows [n]
    purpose             of the seed of its training
    """

    score: str
    number: int
    trained: Tensor
    predicted: Tensor
    purpose: str


class Fold(Frozen):
    """How well one fold was predicted by the network trained on the others.

    number          of the fold, from 1
    n_data          number of data predicted
    log_predictive  of the fold in nats, with the scale marginalised; None if there is no value
    as_trained      the same with the scale of the training, 1
    scale           the likeliest of `SCALES`
    hits            number of correctly classified data; None for real targets
    note            why there is no value, if not because the training diverged
    log_density     log q of the fold given the others, nats; None if not asked for, or if
                    `density_note` says why there is none
    density_error   standard error where log determinants are estimated
    estimates, tested, curve, learned  where a trial trains its folds alone: scores, test figures
                    and losses of the network trained on the others, and its noise or temperature
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    number: int
    n_data: int
    n_trained: int
    log_predictive: float | None = None
    as_trained: float | None = None
    scale: float = 1.0
    hits: int | None = None
    seconds: float = 0.0
    note: str = ""
    log_density: float | None = None
    density_error: float | None = None
    density_seconds: float = 0.0
    density_note: str = ""
    estimates: tuple[EvidenceEstimate, ...] = ()
    tested: Mapping[str, float] = {}
    curve: tuple[CurvePoint, ...] = ()
    learned: float = 1.0

    @property
    def diverged(self) -> bool:
        """Return whether the training diverged."""
        return self.log_predictive is None and not self.note

    @property
    def failure(self) -> str:
        """Return why there is no value, or no density."""
        if self.log_predictive is not None:
            return self.density_note
        return self.note or f"the training on {self.n_trained} data diverged"


def fold_tasks(
    score: str, order: Tensor, plan: TrainingPlan, units: Units | None = None
) -> list[FoldTask]:
    """Return the folds to predict: of `two_fold` one half if `plan.folds` is 1, else all."""
    last = 1 if score == "two_fold" and plan.folds == 1 else None
    return all_folds(score, order, units)[:last]


def all_folds(score: str, order: Tensor, units: Units | None = None) -> list[FoldTask]:
    """Return the folds of a division; no unit is divided.

    Blocks in time are predicted from all earlier ones, and the first one is not predicted.

    Args:
        score: the division, by the name of its cross-validation.
        order: of the data [n].
        units: groups or times, as in `order`.

    Raises:
        ValueError: if there are too few data or units to have one in each fold.
    """
    n, n_folds = len(order), _N_FOLDS[score]
    in_time = units is not None and units.in_time
    if n < n_folds:
        raise UserError(
            "too-few-data-for-folds",
            f"{score} needs at least {n_folds} data, one in each fold, but got {n}; "
            "give more data, or leave the score out of `estimators`",
        )
    if score == "heldout_10":
        (cut,) = cuts_of(order, [int(0.9 * n)], units)
        return [FoldTask(score, 1, order[:cut], order[cut:], f"{score}:{cut}")]
    if score == "two_fold":
        (half,) = cuts_of(order, [n // 2], units)
        # These purposes keep an earlier name of the score, because seeds depend on them.
        halves = [
            FoldTask(score, 1, order[:half], order[half:], f"prequential:{half}"),
            FoldTask(
                score, 2, order[half:].flip(0), order[:half], f"prequential:{n - half}:reversed"
            ),
        ]
        return halves[:1] if in_time else halves
    cuts = cuts_of(order, [n * k // n_folds for k in range(1, n_folds)], units)
    parts = [order[start:end] for start, end in zip([0, *cuts], [*cuts, n], strict=True)]
    return [
        FoldTask(
            score,
            k + 1,
            torch.cat(parts[:k] if in_time else parts[:k] + parts[k + 1 :]),
            parts[k],
            f"{score}:{k + 1}",
        )
        for k in range(in_time, n_folds)
    ]


@dataclass(frozen=True)
class LogPredictive:
    """The log predictive density of a fold in nats, the likeliest scale, and the correct data.

    as_trained  the log predictive density at scale 1
    """

    log_predictive: float
    as_trained: float
    scale: float
    hits: int | None


def log_predictive(
    outputs: Tensor, targets: Tensor, likelihood: Likelihood, log_jacobian: float = 0.0
) -> LogPredictive:
    """Return how well outputs [n, C] predict targets, under a uniform prior on `SCALES`.

    The log Jacobian of the targets is added, see `TargetScale.log_jacobian`.

    >>> from nas_evidence.likelihoods import likelihood
    >>> even = log_predictive(
    ...     torch.zeros(3, 2), torch.tensor([0, 1, 1]), likelihood("categorical")
    ... )
    >>> round(even.log_predictive, 6) == round(3 * math.log(0.5), 6)
    True
    """
    scaled = [float(likelihood.at(s).log_likelihood(outputs, targets)) for s in SCALES]
    values = torch.tensor(scaled, dtype=torch.float64)
    return LogPredictive(
        log_predictive=float(values.logsumexp(0)) - math.log(len(SCALES)) + log_jacobian,
        as_trained=float(values[SCALES.index(1.0)]) + log_jacobian,
        scale=SCALES[int(values.argmax())],
        hits=likelihood.hits(outputs, targets),
    )


def density_of(task: FoldTask, trained: Network, of: Network) -> dict[str, Any]:
    """Return log q of a fold given the others, or why there is none: fields of a `Fold`.

    Args:
        task: the fold.
        trained: the network trained without it.
        of: that of the trial, on all data.
    """
    started = time.perf_counter()
    try:
        fields = _density(task, trained, of)
    except (ValueError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        fields = {"density_note": str(error)}
    return fields | {"density_seconds": time.perf_counter() - started}


def _density(task: FoldTask, trained: Network, of: Network) -> dict[str, Any]:
    data, plan = of.data, of.plan
    rows = torch.cat([task.trained, task.predicted])
    seen, log_jacobian = data.seen_from(task.trained, rows)
    layer = last_layer_of(trained.model, data.x_train, trained.hyper.precision, rows)
    with full_precision():
        found = late_given_early(
            layer,
            seen,
            len(task.trained),
            trained.likelihood,
            power=plan.likelihood_power,
            seed=of.derived_seed(f"probes:{task.purpose}"),
        )
    late = float(log_jacobian[len(task.trained) :].sum())
    value, error = found.value + plan.likelihood_power * late, found.standard_error
    if not math.isfinite(value):
        return {"density_note": f"the log density of {len(task.predicted)} data is {value}"}
    if plan.declared.kind.chance_of and value > 3 * (error or 0.0):
        return {"density_note": f"{value:.6g} nats is above 0, impossible for labels"}
    return {"log_density": value, "density_error": error}


def estimates_of(
    score: str, folds: Sequence[Fold], *, with_accuracy: bool, in_time: bool
) -> list[EvidenceEstimate]:
    """Return the estimate named `score` and, where there is one, `score`_accuracy.

    The first `value` is in nats, its `per_datum` over all predicted data; the second is a
    fraction. Both are invalid if a training diverged.
    """
    seconds = sum(fold.seconds for fold in folds)
    terms = {"log_predictive": "log_predictive", "output_scale": "scale"}
    found = _estimate(score, folds, "log_predictive", terms, in_time=in_time, seconds=seconds)
    if not with_accuracy:
        return [found]
    accuracy: dict[str, Any] = {"value": -math.inf, "valid": False}
    if found.valid:
        hits = _terms(folds, {"hits": "hits"})
        rate = sum(term.value for term in hits) / sum(fold.n_data for fold in folds)
        accuracy = {"value": rate, "terms": hits}
    return [found, EvidenceEstimate(estimator=f"{score}_accuracy", note=found.note, **accuracy)]


def density_estimate(folds: Sequence[Fold], *, in_time: bool) -> EvidenceEstimate:
    """Return `conditional_evidence` from the folds so far."""
    errors = [fold.density_error for fold in folds if fold.density_error is not None]
    return _estimate(
        CONDITIONAL,
        folds,
        "log_density",
        {
            "log_density": "log_density",
            "log_density_error": "density_error",
            "log_predictive_as_trained": "as_trained",
        },
        in_time=in_time,
        said=f"given the {'earlier ones' if in_time else 'others'},",
        error=math.hypot(*errors) / (1 if in_time else len(folds)) if errors else None,
        seconds=sum(fold.density_seconds for fold in folds),
    )


def _estimate(
    name: str,
    folds: Sequence[Fold],
    field: str,
    terms: Mapping[str, str],
    *,
    in_time: bool,
    said: str = "predicted",
    error: float | None = None,
    seconds: float = 0.0,
) -> EvidenceEstimate:
    """Return the mean over folds of a field in nats, the sum over blocks in time."""
    relation = SCORES[name].relation
    if failed := [fold for fold in folds if getattr(fold, field) is None]:
        first = min(failed, key=lambda fold: fold.log_predictive is not None)
        return EvidenceEstimate(
            estimator=name, value=-math.inf, relation=relation, seconds=seconds, valid=False,
            note=first.failure,
        )  # fmt: skip
    total = sum(getattr(fold, field) for fold in folds)
    n = sum(fold.n_data for fold in folds)
    blocks = f"{len(folds)} {'block' if in_time else 'fold'}{'s' * (len(folds) > 1)}"
    return EvidenceEstimate(
        estimator=name,
        value=total if in_time else total / len(folds),
        per_datum=total / n,
        standard_error=error,
        relation=relation,
        terms=_terms(folds, terms),
        seconds=seconds,
        note=f"{n} data {said} in {blocks}{' in time' * in_time}",
    )


def means_of(folds: Sequence[Fold]) -> list[EvidenceEstimate]:
    """Return the means over fold networks of their own scores, of those networks that have one."""
    by_name: dict[str, list[EvidenceEstimate]] = defaultdict(list)
    for one in (estimate for fold in folds for estimate in fold.estimates):
        by_name[one.estimator].append(one)
    rows = " and ".join(str(n) for n in dict.fromkeys(fold.n_trained for fold in folds))
    return [_mean_of(each, rows) for each in by_name.values()]


def _mean_of(each: Sequence[EvidenceEstimate], rows: str) -> EvidenceEstimate:
    first, n = each[0], len(each)
    if wrong := [one for one in each if not one.valid]:
        return wrong[0]
    values, known = [one.value for one in each], [one.per_datum for one in each]
    per_datum = [value for value in known if value is not None]
    terms: dict[tuple[str, str], float] = defaultdict(float)
    for term in (term for one in each for term in one.terms):
        terms[term.term, term.group] += term.value / n
    is_loss = declared(first.estimator).unit != "none"
    said = f"mean of {n} networks of {rows} rows" if n > 1 else f"of one network of {rows} rows"
    return first.model_copy(
        update={
            "value": fmean(values),
            "per_datum": fmean(per_datum) if per_datum else None,
            "standard_error": stdev(values) / math.sqrt(n) if is_loss and n > 1 else None,
            "terms": tuple(Term(term=t, group=g, value=value) for (t, g), value in terms.items()),
            "note": "; ".join(filter(None, (first.note, said))) if is_loss else "",
            "seconds": sum(one.seconds for one in each),
        }
    )


def _terms(folds: Sequence[Fold], fields: Mapping[str, str]) -> tuple[Term, ...]:
    """Return the fields of each fold that are known as terms, by fold."""
    return tuple(
        Term(term=term, group=f"fold {fold.number}", value=value)
        for fold in folds
        for term, field in fields.items()
        if (value := getattr(fold, field)) is not None
    )


class Folds(Scorer):
    """Trains without each fold, several folds side by side, and predicts it; before the training.

    A group is the next `MOST_TOGETHER` folds of all requested scores, in order; the first fold is
    a group of its own where trials are compared after it. A fold leaves its group when it is
    predicted.

    given     the division whose folds have a density given the others, if any
    done      the predicted folds of each score
    runs      the trainings of the current group, by score and number of the fold
    unseen    of `conditional_evidence` if it is requested, else of `two_fold`: the table of
              `Predictive.stored` [n, C + S], float32, in which the network trained without a datum
              predicts it; 0 for data not predicted (yet)
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(names, context)
        plan, n = context.assignment.plan, len(context.data.x_train)
        self.units = context.data.units
        self.in_time = self.units is not None and self.units.in_time
        self.n_folds = predicted_folds(plan, names, n, in_time=self.in_time)
        self.kept_of = kept_division(plan, names, n)
        self.given = division_of(CONDITIONAL, plan, n) if CONDITIONAL in names else None
        if self.given:  # refuses networks whose outputs are not those of the last linear layer
            x, precision = context.data.x_train[:1], context.training.hyper.precision
            last_layer_of(context.model, x, precision)
        self.done: dict[str, list[Fold]] = {score: [] for score in self.n_folds}
        self.runs: dict[tuple[str, int], Network] = {}
        self.unseen: Tensor | None = None
        #: The division whose networks stand for the trial, where it trains its folds alone.
        self.reported = reported_division(plan, names, n)

    @property
    def alone(self) -> bool:
        """Return whether the trial trains no network of all rows."""
        return self.context.assignment.plan.whole is False

    @property
    def n_trained(self) -> int:
        """Return the rows of a network that stands for the trial; of several the mean, rounded."""
        return round(fmean(len(one.trained) for one in self._tasks_of(self.reported)))

    @property
    def epochs(self) -> int:
        """Return how many epochs have been done, as the mean over all networks, rounded down."""
        n = len(self._tasks())
        epochs = (n - len(self._left())) * self.context.assignment.plan.epochs
        return (epochs + sum(run.epoch for run in self.runs.values())) // n

    @property
    def of_trial(self) -> list[Fold]:
        """Return the predicted folds whose networks stand for the trial."""
        return self.done[self.reported]

    def due(self) -> bool:
        """Tell whether a fold still has to be predicted."""
        return bool(self._left())

    def advance(self) -> None:
        """Train without the next folds for a slice; predict those whose training is over."""
        tasks = self._left()
        if not self.runs:
            first = self.context.assignment.first_fold_alone and not any(self.done.values())
            group = islice(tasks.items(), 1 if first else MOST_TOGETHER)
            self.runs = {key: self._new_run(task) for key, task in group}
        runs = [*self.runs.values()]
        ends = advance(runs, stop_of_part(runs[0]))
        for (key, run), end in zip([*self.runs.items()], ends, strict=True):
            diverged = isinstance(end, DivergedError)
            if diverged or run.is_over:
                self._end(tasks[key], run, diverged=diverged)

    def _end(self, task: FoldTask, run: Network, *, diverged: bool) -> None:
        found = {} if diverged else self._predict(run, self.context.data, task)
        found["seconds"] = found.get("seconds", 0.0) + seconds_of(run)
        if self.alone and task.score == self.reported:
            found |= self._of_network(task, run, diverged=diverged)
        if task.score == self.given and found.get("log_predictive") is not None:
            found |= density_of(task, run, self.context.training)
        n_data, n_trained = len(task.predicted), len(task.trained)
        fold = Fold(number=task.number, n_data=n_data, n_trained=n_trained, **found)
        self.done[task.score] = sorted([*self.done[task.score], fold], key=lambda one: one.number)
        scored = fold.density_seconds + sum(one.seconds for one in fold.estimates)
        if self.alone:
            self.context.training.train_seconds += fold.seconds
        else:
            scored += fold.seconds
        self.context.training.evidence_seconds += scored
        del self.runs[task.score, task.number]

    def _of_network(self, task: FoldTask, run: Network, *, diverged: bool) -> dict[str, Any]:
        """Return what a network reports that stands for the trial: fields of a `Fold`.

        Of more than two networks the first alone has evidences: they take passes over its rows.
        """
        found: dict[str, Any] = {"curve": tuple(run.curve), "learned": run.hyper.scale}
        if diverged:
            return found
        given, first = self.context.assignment, self._tasks_of(self.reported)[0]
        asked = [name for name in given.estimators if declared(name).is_laplace]
        passed = self.n_folds[self.reported] <= _FEW or task.number == first.number
        update = {"estimators": tuple(asked) if passed else ()}
        context = Context(run, given.model_copy(update=update))
        try:
            scores = evaluate(context, scorers_of(context).values(), passes_of(run), last=True)
            estimates = [one.estimate for one in scores]
        except DivergedError as error:
            estimates = [
                EvidenceEstimate(estimator=name, value=-math.inf, valid=False, note=str(error))
                for name in asked
            ]
        kept = tuple(one for one in estimates if declared(one.estimator).of_folds)
        return found | {"estimates": kept}

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the estimates of the scores whose folds are all predicted.

        Where trials are compared after the first fold, those of any fold.
        """
        given, in_time = self.context.assignment, self.in_time
        with_accuracy = "accuracy" in given.plan.declared.kind.metrics
        known = {
            score: folds
            for score, folds in self.done.items()
            if len(folds) == self.n_folds[score] or (folds and given.first_fold_alone)
        }
        found = [
            estimate
            for score, folds in known.items()
            for estimate in estimates_of(
                score, folds, with_accuracy=with_accuracy, in_time=in_time
            )
        ]
        if ELPD in self.names and (folds := known.get(self.kept_of)):
            terms = {ELPD: "as_trained"}
            found.append(_estimate(ELPD, folds, "as_trained", terms, in_time=in_time))
        if self.given and (folds := self.done[self.given]):
            found.append(density_estimate(folds, in_time=in_time))
        return found + (means_of(self.of_trial) if self.alone else [])

    def state_dict(self) -> dict[str, Any]:
        """Return the predicted folds, and the current trainings."""
        return {
            "done": {s: [f.model_dump_json() for f in folds] for s, folds in self.done.items()},
            "runs": [[score, number, state_of(r)] for (score, number), r in self.runs.items()],
            "unseen": self.unseen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        self.done = {
            score: [Fold.model_validate_json(text) for text in texts]
            for score, texts in state["done"].items()
        }
        self.unseen = state["unseen"]
        self.runs, tasks = {}, self._left()
        for score, number, kept in state["runs"]:
            self.runs[score, number] = run = self._new_run(tasks[score, number])
            restore(run, kept)

    def kept(self) -> dict[str, Tensor]:
        """Return outputs and spreads [n, S] of `unseen`, if they are few enough."""
        if self.unseen is None or self.unseen.numel() > MOST_KEPT:
            return {}
        at = self.context.data.n_outputs
        return {
            OUTPUTS: self.unseen[:, :at].contiguous(),
            SPREAD: self.unseen[:, at:].contiguous(),
        }

    def spread_factor(self) -> float | None:
        """Return the factor fitted on all data predicted, None without any."""
        if self.unseen is None:
            return None
        data, given = self.context.data, self.context.assignment
        return _fitted(self.unseen, targets_of_folds(data, given).seen, given.plan)

    def _new_run(self, task: FoldTask) -> Network:
        data, given = self.context.data, self.context.assignment
        return new_network(*part_of(task.trained, data, given, task.purpose))

    def _tasks(self) -> list[FoldTask]:
        given = self.context.assignment
        order = order_of_data(len(self.context.data.x_train), given, self.units)
        return [
            task
            for score in self.n_folds
            for task in fold_tasks(score, order, given.plan, self.units)
        ]

    def _tasks_of(self, score: str) -> list[FoldTask]:
        return [task for task in self._tasks() if task.score == score]

    def _left(self) -> dict[tuple[str, int], FoldTask]:
        """Return the folds that are not predicted, by score and number."""
        tasks = {(task.score, task.number): task for task in self._tasks()}
        done = {(score, fold.number) for score, folds in self.done.items() for fold in folds}
        return {key: task for key, task in tasks.items() if key not in done}

    def _predict(self, run: Network, data: TensorData, task: FoldTask) -> dict[str, Any]:
        """Return how well the network predicts the rows of a fold: fields of a `Fold`."""
        started, rows = time.perf_counter(), task.predicted
        x, (y, log_jacobian) = select(data.x_train, rows), data.seen_from(task.trained, rows)
        if not np.isfinite(log_jacobian).all():
            return {"note": OUTSIDE_SUPPORT, "seconds": time.perf_counter() - started}
        likelihood, own = run.likelihood, data.fitted_to(task.trained)
        outputs = outputs_of(run.model, x)
        if own is not None:
            outputs = likelihood.held(outputs, own.held)
        figures = dict[str, float]()
        if task.score == self.kept_of or (self.alone and task.score == self.reported):
            # No second copy of these rows.
            predict = predict_rows(run, run.data.x_train, run.data.y_train, own)
            if task.score == self.kept_of:
                table = predict(x).stored()
                if self.unseen is None:
                    self.unseen = table.new_zeros(len(data.x_train), table.shape[1])
                self.unseen[rows.to("cpu")] = table
            if self.alone:
                figures = on_test_rows(predict, run.data, run.plan, 1.0)
        found = log_predictive(outputs, y, likelihood, float(log_jacobian.sum()))
        return {**vars(found), "tested": figures, "seconds": time.perf_counter() - started}


class FoldTargets(NamedTuple):
    """Training targets as the networks of a division see them that have not seen them.

    seen          like `y_train`, on the CPU
    log_jacobian  log |dz/du| of each datum [n], nats; 0 for labels and the scale "identity"
    scale         of each datum; None for these
    """

    seen: Tensor
    log_jacobian: np.ndarray
    scale: TargetScale | None = None


def targets_of_folds(data: TensorData, assignment: Assignment) -> FoldTargets:
    """Return all targets on the scales of the folds whose predictions a trial keeps.

    Those that no fold predicts are on the scale of the first fold.
    """
    n = len(data.y_train)
    if data.own is None:
        return FoldTargets(data.y_train.cpu(), np.zeros(n))
    division = kept_division(assignment.plan, assignment.estimators, n)
    scales = []
    for task in all_folds(division, order_of_data(n, assignment, data.units), data.units):
        fitted = data.fitted_to(task.trained)
        assert fitted is not None
        scales.append((task.predicted.numpy(), fitted.scale))
    scale = by_row(scales, n)
    return FoldTargets(*data.own.seen_on(scale), scale)


def cross_fitted(table: Tensor, data: TensorData, assignment: Assignment) -> Tensor:
    """Return `Folds.unseen` with each fold's spread times the factor fitted on the other folds.

    Args:
        table: outputs and spread of each datum, 0 where it was not predicted.
        data: that it is of.
        assignment: of the trial.
    """
    n, found, units = len(table), table.clone(), data.units
    targets = targets_of_folds(data, assignment).seen
    division = kept_division(assignment.plan, assignment.estimators, n)
    for task in all_folds(division, order_of_data(n, assignment, units), units):
        others, rows = task.trained, task.predicted
        factor = _fitted(table[others], targets[others], assignment.plan)
        found[rows] = restored(table[rows], assignment.plan).at(factor).stored()
    return found


def _fitted(table: Tensor, targets: Tensor, plan: TrainingPlan) -> float:
    known = table[:, -1] > 0
    if not known.any():
        return 1.0
    return restored(table[known], plan).factor(targets[known])


def restored(table: Tensor, plan: TrainingPlan) -> Predictive:
    """Return the predictions of rows of `Folds.unseen`."""
    return likelihood_of(plan, 1.0).says.restored(table)
