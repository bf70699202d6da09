"""Forecast of a study's runtime: a few timed pieces of its trials, put together.

    trial  = E e + U (p + h) + V v                   the main training
             + t (E b + U p) + k U h                 the trainings on parts of the data
             + σ E (e + t b)                         settling, those on parts side by side
             + start, test and files
    study  = (trials + those of the race) × trial / workers

    E, U, V  epochs, online updates, evaluations     e, b  an epoch alone, and of parts together
    p, h     a curvature pass, and the search for    v     passes of the other kinds
             the best hyperparameters after it       σ     work of settling, in trainings
    t, k     trainings on parts: their data in multiples of all data, and their number

Epochs and passes are timed on ever more rows until that takes long enough to be measured. What
grows with the rows is told from what does not: the calls of an epoch, the decompositions of a
curvature. The search for the best hyperparameters does not depend on the rows.
"""

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, select, to_tensors
from nas_evidence.driver.race import budget_of
from nas_evidence.models import build, infeasible
from nas_evidence.proposing.startup import startup_points
from nas_evidence.spec.divisions import TRAINED_ON, predicted_folds
from nas_evidence.spec.registry import CURVATURES, declared, draws_of
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec, TrainingPlan
from nas_evidence.training.loop import Member, Training, begin, train_epochs
from nas_evidence.training.online import passes_of, update_hyperparameters
from nas_evidence.workers.trial import device_for

#: Architectures timed per family, and by default the seconds of work after which it is only one.
TIMED_PER_FAMILY, _PATIENCE = 3, 6.0
#: Seconds after which what is timed has taken long enough.
_ENOUGH = 0.03
#: Seconds from which once is enough.
_SLOW = 0.5
#: Settling in multiples of its budget: 2.4 to 3.1 where it is gone through (float64 is slower, and
#: the decrement comes on top), 0.3 where it is given up, as on most noisy targets.
_SETTLED = 1.0
#: Overhead: workers share memory and caches; each trial has a start, a test and files.
_SHARED, _TRIAL_SECONDS = 1.4, 0.4


@dataclass(frozen=True)
class Pieces:
    """Seconds of the pieces of a trial of one architecture, on all of the data but for `pass_`.

    epoch       of the main training
    beside      of trainings on parts, side by side, for as many data as an epoch has
    pass_       of the online curvature, on the data that an update sees
    search      for the hyperparameters that maximise the evidence
    evaluation  of the other curvature kinds that the study asks for, every draw
    """

    epoch: float
    beside: float
    pass_: float
    search: float
    evaluation: float


def forecast_seconds(
    study: StudySpec,
    arrays: ArrayData,
    *,
    n_trials: int | None = None,
    workers: int | None = None,
    patience: float = _PATIENCE,
) -> float:
    """Return the expected wall time of a study on idle cores, s, good to a factor of about two.

    Work is timed, not the clock (unless torch has several threads), so that what else runs on the
    machine does not count.

    Args:
        study: what is searched.
        arrays: its data.
        n_trials: still to be run; by default all of the search and of the race of the finalists.
        workers: that run them; by default those of the study.
        patience: seconds of work after which one architecture of each further family is timed,
            not three.
    """
    torch.set_num_threads(study.resources.cpus)
    started = time.thread_time()
    by_family: dict[str, list[ArchitectureSpec]] = {}
    for point in startup_points(study):
        by_family.setdefault(point.family, []).append(point)
    data = to_tensors(arrays, device_for(study.resources.gpus))
    seconds, planned = 0.0, 0
    for points in by_family.values():
        sample = points[:: max(1, len(points) // TIMED_PER_FAMILY)][:TIMED_PER_FAMILY]
        found: list[float] = []
        for point in sample:
            if not found or time.thread_time() - started < patience:
                found.append(_trial_seconds(point, study, data))
        seconds += statistics.mean(found) * len(points)
        planned += len(points)
    return study_seconds(seconds / planned, study, n_trials=n_trials, workers=workers)


def study_seconds(
    trial: float, study: StudySpec, *, n_trials: int | None = None, workers: int | None = None
) -> float:
    """Return the wall time of trials of so many seconds on average, by the workers of a study."""
    race = budget_of(study) if study.n_finalists else 0
    left = study.n_trials + race if n_trials is None else n_trials
    at_once = max(1, min(study.resources.workers if workers is None else workers, left))
    each = trial * (_SHARED if at_once > 1 else 1.0) + _TRIAL_SECONDS
    return each * left / at_once


def trial_seconds(
    pieces: Pieces, plan: TrainingPlan, estimators: Collection[str], n_data: int
) -> float:
    """Return the seconds of a trial with these pieces on `n_data` training rows; see the top."""
    evaluations = plan.evaluation_epochs()
    updates = sum(map(plan.updates_after, evaluations))
    # Scores of one division share its trainings; so do the kinds of one score.
    others = [s for s in map(declared, estimators) if not s.division]
    parts = sum(data for _, data in {(s.implementation, s.trainings) for s in others})
    for division, n_folds in predicted_folds(plan, estimators, n_data).items():
        parts += n_folds * TRAINED_ON[division]
    n_parts = _n_parts(plan, estimators, n_data) if parts else 0
    main = plan.epochs * pieces.epoch + updates * (pieces.pass_ + pieces.search)
    aside = parts * (plan.epochs * pieces.beside + updates * pieces.pass_)
    aside += n_parts * updates * pieces.search
    settled = _SETTLED * plan.settle * plan.epochs * (pieces.epoch + parts * pieces.beside)
    return main + len(evaluations) * pieces.evaluation + aside + settled


def _n_parts(plan: TrainingPlan, estimators: Collection[str], n_data: int) -> int:
    """Return how many networks are trained on parts of the data."""
    return max(1, sum(predicted_folds(plan, estimators, n_data).values()))


def _trial_seconds(point: ArchitectureSpec, study: StudySpec, data: TensorData) -> float:
    if infeasible(point, data.input_shape, data.n_outputs):
        return 0.0
    pieces = pieces_of(point, study, data)
    return trial_seconds(pieces, study.plan, study.estimators, len(data.x_train))


def pieces_of(point: ArchitectureSpec, study: StudySpec, data: TensorData) -> Pieces:
    """Time the pieces of a trial on some of its data, each for about `_ENOUGH` seconds."""
    plan, n = study.plan, len(data.x_train)
    n_parts = _n_parts(plan, study.estimators, n)
    given = Assignment(
        trial_id=0,
        attempt=1,
        replicate=0,
        architecture=point,
        dataset=study.dataset,
        plan=plan,
        estimators=(),
        seed=0,
    )

    def new() -> Training:
        generator = torch.Generator().manual_seed(0)
        model = build(point, data.input_shape, data.n_outputs, generator)
        return begin(model.to(data.x_train.device), plan)

    def epoch(networks: Sequence[Training], n_rows: int) -> float:
        for network in networks:
            network.epoch = 0  # the plan may have a single one
        rows = _first(data, n_rows)
        started = _now(data)
        train_epochs([Member(network, rows, given) for network in networks])
        return _now(data) - started

    state, online = new(), plan.online.curvature

    def passed(kind: str, n_rows: int, n_draws: int = 1) -> float:
        passes = passes_of(state, _first(data, n_rows), given)
        started = _now(data)
        for draw in passes.of(kind, n_draws):
            passes.estimate(kind, draw)
        return _now(data) - started

    def on_all(seconds: Callable[[int], float], per_network: int = 1) -> float:
        return grown(seconds, first=min(plan.batch_size, n), n=n // per_network)

    alone, together = [new()], [new() for _ in range(n_parts)]
    kinds = {kind for kind in study.estimators if kind in CURVATURES} - {online}
    pieces = Pieces(
        epoch=on_all(lambda rows: epoch(alone, rows)),
        beside=on_all(lambda rows: epoch(together, rows), n_parts),
        pass_=grown(
            lambda rows: passed(online, rows),
            first=min(plan.batch_size, n),
            n=min(n, plan.online.rows),
        ),
        search=0.0,
        evaluation=sum(
            on_all(lambda rows, kind=kind: passed(kind, rows, draws_of(kind)))  # type: ignore[misc]
            for kind in sorted(kinds)
        ),
    )

    def searched(network: Training) -> float:
        updated = passes_of(network, _first(data, min(2 * plan.batch_size, n)), given)
        updated.of(online)  # timed above
        started = _now(data)
        update_hyperparameters(network, updated)
        return _now(data) - started

    return replace(pieces, search=min(searched(state), searched(new())))


def _first(data: TensorData, n_rows: int) -> TensorData:
    """Return the first training rows of the data."""
    y = data.y_train[:n_rows]
    return replace(data, x_train=select(data.x_train, torch.arange(n_rows)), y_train=y)


def _now(data: TensorData) -> float:
    """Return seconds: of work where one thread does it all, since Ray starts beside it."""
    if data.x_train.is_cuda:
        torch.cuda.synchronize()  # the work given to it so far is done
    elif torch.get_num_threads() == 1:
        return time.thread_time()
    return time.perf_counter()


def grown(seconds: Callable[[int], float], *, first: int, n: int) -> float:
    """Return the seconds for `n` rows of what costs so much per row, and so much besides.

    The rows are doubled until they take `_ENOUGH` seconds, and the last two times are continued in
    a straight line; if the first rows take as long, half of them are the other point. Each is the
    faster of two unless it is slow. A first one, of an eighth of the rows, may load code, which
    takes a second of work or more, and is not counted.

    Args:
        seconds: of a number of rows.
        first: rows to begin with.
        n: of which the time is wanted.
    """
    few, least, many = 0, 0.0, min(first, n)
    seconds(max(1, many // 8))
    most = seconds(many)
    if most < _SLOW:
        most = min(most, seconds(many))
    while most < _ENOUGH and many < n:
        few, least, many = many, most, min(2 * many, n)
        most = max(least, min(seconds(many), seconds(many)))
    if not few and 1 < many < n:
        few = many // 2
        least = min(most, seconds(few))
    return most + (most - least) / (many - few) * (n - many)
