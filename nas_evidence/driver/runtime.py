"""Forecast of a study's runtime: a few timed pieces of its trials, put together.

    trial  = (1 + σ) E (e + t b) + (1 + t) U u + V v + start, test and files
    study  = (trials + those of the race) × trial / workers

E, U and V are the numbers of epochs, online updates and evaluations. An epoch takes e alone, and b
for trainings on parts of the data, side by side; t is the data of these in multiples of all data.
An update takes u, the curvatures of the scores v. σ is the work of settling, in trainings.
"""

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, select, to_tensors
from nas_evidence.driver.plan import plan_trials
from nas_evidence.driver.race import after_search
from nas_evidence.models import build, infeasible
from nas_evidence.proposing.startup import startup_points
from nas_evidence.spec.divisions import TRAINED_ON, predicted_folds
from nas_evidence.spec.registry import CURVATURES, declared, draws_of
from nas_evidence.spec.schedule import interval, stops
from nas_evidence.spec.study import ArchitectureSpec, StudySpec, TrainingPlan
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import passes_of, update_hyperparameters
from nas_evidence.workers.choice import FEW_WORKERS
from nas_evidence.workers.trial import device_for

#: Architectures timed per family.
TIMED_PER_FAMILY = 3
#: Seconds of work, by default, after which one architecture of each further family is timed.
_PATIENCE = 6.0
#: Maximum number of epochs timed in a row: a trial runs as many as its stops are apart.
_EPOCHS = 4
#: Seconds after which what is timed has taken long enough.
_ENOUGH = 0.03
#: Seconds from which something is timed once, not twice.
_SLOW = 0.5
#: Factor for workers that share memory and caches.
_SHARED = 1.4
#: Seconds of the start, the test and the files of a trial.
_TRIAL_SECONDS = 0.4


@dataclass(frozen=True)
class Pieces:
    """Seconds of the pieces of a trial of one architecture, on all of the data.

    epoch       of the main training
    beside      of trainings on parts, side by side, for as many data as an epoch has
    update      of the hyperparameters, on the data that an update sees
    evaluation  of the curvature kinds that the study asks for, every draw
    """

    epoch: float
    beside: float
    update: float
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
        workers: that run them; by default those of the study. For "auto" one is counted for each
            GPU, since those of one GPU share it, or as many as plain processes would be.
        patience: seconds of work after which one architecture of each further family is timed,
            not three.
    """
    torch.set_num_threads(study.resources.cpus)
    started, seconds = time.thread_time(), 0.0
    data, points = to_tensors(arrays, device_for(study.resources.gpus)), startup_points(study)
    for family in study.family:
        own = [point for point in points if point.family == family]
        found: list[float] = []
        for point in own[:: max(1, len(own) // TIMED_PER_FAMILY)][:TIMED_PER_FAMILY]:
            if not found or time.thread_time() - started < patience:
                found.append(_of_architecture(point, study, data))
        seconds += statistics.mean(found or [0.0]) * len(own) / len(points)
    if data.x_train.is_cuda:  # the workers share out all of the GPU
        del data
        torch.cuda.empty_cache()
    later = sum(after_search(study).values())
    left = study.n_trials + later if n_trials is None else n_trials
    asked = study.resources.workers if workers is None else workers
    if asked == "auto":
        asked = torch.cuda.device_count() if data.x_train.is_cuda else FEW_WORKERS
    at_once = max(1, min(asked, left))
    each = seconds * (_SHARED if at_once > 1 else 1.0) + _TRIAL_SECONDS
    return each * left / at_once


def trial_seconds(
    pieces: Pieces, plan: TrainingPlan, estimators: Collection[str], n_data: int
) -> float:
    """Return the seconds of a trial with these pieces on `n_data` training rows; see the top."""
    planned = stops(plan)
    parts, _ = _parts(plan, estimators, n_data)
    whole = plan.whole is not False  # else the networks of folds alone
    epochs = plan.epochs * (1 + plan.settle) * (whole * pieces.epoch + parts * pieces.beside)
    updates = sum(stop.update for stop in planned) * (whole + parts)
    evaluations = whole * sum(stop.evaluate for stop in planned)
    return epochs + updates * pieces.update + evaluations * pieces.evaluation


def _parts(plan: TrainingPlan, estimators: Collection[str], n_data: int) -> tuple[float, int]:
    """Return the data of trainings on parts, in multiples of all data, and how many there are."""
    folds = predicted_folds(plan, estimators, n_data)
    data = sum(n * TRAINED_ON[division] for division, n in folds.items())
    # Scores without a division share the trainings of their kinds.
    others = [score for score in map(declared, estimators) if not score.division]
    data += sum(n for _, n in {(score.implementation, score.trainings) for score in others})
    return data, max(1, sum(folds.values()))


def _of_architecture(point: ArchitectureSpec, study: StudySpec, data: TensorData) -> float:
    if infeasible(point, data.input_shape, study.plan.head_width(data.n_outputs)):
        return 0.0
    pieces = pieces_of(point, study, data)
    return trial_seconds(pieces, study.plan, study.estimators, len(data.x_train))


def pieces_of(point: ArchitectureSpec, study: StudySpec, data: TensorData) -> Pieces:
    """Time the pieces of a trial on some of its data, each for about `_ENOUGH` seconds."""
    plan, n = study.plan, len(data.x_train)
    (given,) = plan_trials([point], (), study.model_copy(update={"n_trials": 1, "replicates": 1}))
    n_epochs = min(_EPOCHS, interval(plan))

    def new() -> Network:
        generator = torch.Generator().manual_seed(0)
        width = plan.head_width(data.n_outputs)
        model = build(point, data.input_shape, width, generator)
        return begin(model.to(data.x_train.device), data, plan, given.seed)

    alone, (_, n_parts) = new(), _parts(plan, study.estimators, n)
    together = [new() for _ in range(n_parts)]

    def train(networks: Sequence[Network], rows: TensorData) -> None:
        for network in networks:
            network.epoch = 0  # the plan may have a single one
            network.data = rows
        train_epochs(networks, n_epochs=n_epochs)

    # The pass of the last update, where that reads all rows.
    done = {plan.online.curvature} if plan.update_rows(n) >= n else set()

    def evaluate(rows: TensorData) -> None:
        alone.data = rows
        passes = passes_of(alone)
        for kind in sorted({*study.estimators} & {*CURVATURES} - done):
            for draw in passes.of(kind, draws_of(kind)):
                passes.estimate(kind, draw)

    def move(rows: TensorData) -> None:
        alone.data = rows
        update_hyperparameters([passes_of(alone)])

    def timed(work: Callable[[TensorData], object], most: int) -> float:
        def seconds(n_rows: int) -> float:
            rows = _first(data, n_rows)
            started = _now(data)
            work(rows)
            return _now(data) - started

        return grown(seconds, first=min(plan.batch_size, n), n=most)

    return Pieces(
        epoch=timed(lambda rows: train([alone], rows), n) / n_epochs,
        beside=timed(lambda rows: train(together, rows), n // n_parts) / n_epochs,
        update=timed(move, min(n, plan.update_rows(n))),
        evaluation=timed(evaluate, n),
    )


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
