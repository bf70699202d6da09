"""Run one assignment in slices; failures become rows.

The interface to the service: an `Assignment` goes in, a `TrialRecord` comes out. Inside there is
no Ray, no Optuna and no Parquet; outside there are no tensors. `Trial.start`, `advance`, `finish`
is the only path through a trial. It writes only into its attempt folder.

Failures of the network become a status of the trial. Failures of the machine do not: an `OSError`,
such as a full disk, propagates from `advance` and `finish`, and the attempt is lost.
"""

import json
import logging
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
import torch

from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.arrays import check_task
from nas_evidence.data.tensors import TensorData
from nas_evidence.models import infeasible
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.tensor_seals import KEPT_PREFIX, on_cpu, sealed_tensors
from nas_evidence.scores.folds import Fold, Folds
from nas_evidence.scores.protocol import Before, Context, Scorer, evaluate, scorers_of
from nas_evidence.scores.sotl import sotl, with_sums
from nas_evidence.spec.record import (
    CurvePoint,
    Evaluation,
    EvidenceEstimate,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.registry import declared
from nas_evidence.spec.schedule import Stop, next_stop
from nas_evidence.spec.study import COSTS, Assignment
from nas_evidence.storage.faults import seconds_between_checkpoints
from nas_evidence.training.checkpoint import (
    load_checkpoint,
    restore,
    save_checkpoint,
    state_of,
)
from nas_evidence.training.cost import Cost, cost_of, measured_latency, too_costly
from nas_evidence.training.life import advance
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.network import Network
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import new_network
from nas_evidence.training.predict_rows import on_test_rows, predict_rows

_LOG = logging.getLogger(__name__)
CHECKPOINT_VERSION = 15
#: Of the folds, in `Trial.scorers`.
_FOLDS = str(declared("two_fold").implementation)


def device_for(gpu_share: str | float) -> torch.device:
    """Return the training device: a GPU if there is one and a share of it is requested."""
    wanted = gpu_share == "auto" or float(gpu_share) > 0
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")


class Trial:
    """One attempt at one trial, from `start` to `finish`."""

    def __init__(
        self,
        assignment: Assignment,
        data: TensorData,
        folder: Path,
        *,
        gpu_share: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.assignment = assignment
        self.data = data
        self.folder = folder
        self.gpu_share = gpu_share
        self.status = TrialStatus.RUNNING
        self.cause = ""
        self.error = ""
        self.earlier_seconds = 0.0
        self.slice_seconds = 0.0
        self.clock = clock
        self.started = clock()
        self._unsaved: float | None = None  # seconds of work that no checkpoint has
        self.cost: Cost | None = None
        self.latency_seconds: float | None = None
        self.context: Context | None = None
        self.scorers: dict[str, Scorer] = {}
        self.evaluations: list[Evaluation] = []
        self.trains = assignment.plan.whole is not False  # a network of all rows, too

    @property
    def network(self) -> Network | None:
        """The network in training; None where it cannot be built."""
        return None if self.context is None else self.context.training

    @classmethod
    def start(
        cls,
        assignment: Assignment,
        data: TensorData,
        folder: Path,
        *,
        resume_from: Path | None = None,
        gpu_share: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "Trial":
        """Build the model, or restore it from an earlier attempt; failures become the status.

        Args:
            assignment: what to run.
            data: on the training device.
            folder: for checkpoints and weights.
            resume_from: the folder of an earlier attempt.
            gpu_share: share of one GPU that this trial has; recorded.
            clock: returns seconds.
        """
        trial = cls(assignment, data, folder, gpu_share=gpu_share, clock=clock)
        with _Failures(trial):
            trial._start(resume_from)
        return trial

    def _start(self, resume_from: Path | None) -> None:
        given, data = self.assignment, self.data
        plan, architecture = given.plan, given.architecture
        check_task(plan, data)
        shape, width = data.input_shape, plan.head_width(data.n_outputs)
        reason = infeasible(architecture, shape, width)
        if not reason:
            n_data, scores = len(data.x_train), given.estimators
            device = data.x_train.device.type
            given_to = architecture, shape, width, plan, scores
            self.cost = cost_of(*given_to, n_data, device=device)
            reason = self._exceeded_limit() or too_costly(*given_to, n_data=n_data)
        if reason:
            self.status, self.cause = TrialStatus.INFEASIBLE, reason
            return
        self.context = Context(new_network(data, given), given)
        self.scorers = scorers_of(self.context)
        if not self.trains:
            self.scorers = {_FOLDS: self.scorers[_FOLDS]}  # which score their networks
        if resume_from is not None and self._restore(resume_from):
            return  # the first attempt already measured the latency
        self.latency_seconds = measured_latency(self.context.model, data.x_train[:1])

    @property
    def _folds(self) -> Folds | None:
        found = self.scorers.get(_FOLDS)
        return found if isinstance(found, Folds) else None

    def _exceeded_limit(self) -> str:
        """Return the first limit that the known costs exceed, or an empty string."""
        for name, limit in self.assignment.limits.model_dump(exclude_none=True).items():
            found = getattr(self.cost, name)
            if found > limit:
                return f"{name} {found:.6g} > {limit:.6g} allowed"
        return ""

    def advance(self, until_epoch: int) -> SliceReport:
        """Train up to `until_epoch`, evaluating on the way; write a checkpoint if one is due.

        It is due after two seconds of work since the last one, of any number of slices. Scores
        taken before training run their slices first, one per call, and the report says epoch 0.
        After the last epoch the network settles, one round per call.

        Raises:
            OSError: if the checkpoint cannot be written.
        """
        started, unsaved = self.clock(), self._unsaved or 0.0
        self._unsaved = None  # what a slice leaves half done is never saved
        network = self.network
        known = len(network.curve) if network else 0, len(self.evaluations)
        with _Failures(self):
            if self.status is TrialStatus.RUNNING and network is not None:
                last = max(network.epoch, min(until_epoch, self.assignment.plan.epochs))
                due = [scorer for scorer in self.scorers.values() if scorer.due()]
                if due:
                    self._advance_first(due[0])
                settles = network.settling is not None
                while not due and self.trains and (network.epoch < last or settles):
                    stop = next_stop(network.plan, network.epoch)
                    if stop.epoch > last:
                        stop = Stop(last, update=False, evaluate=False, last=False)
                    self._train(network, stop)
                    settles = False
                self._unsaved = unsaved + self.clock() - started
                if self._unsaved >= seconds_between_checkpoints():
                    self.save()
                self._complete_if_done(network)
        self.slice_seconds = self.clock() - started
        return self.report(known)

    def save(self) -> None:
        """Write a checkpoint, unless the last one has it all.

        Raises:
            OSError: if it cannot be written.
        """
        if self._unsaved is not None and self.network is not None:
            self._unsaved = None
            self._checkpoint(self.network)

    def _advance_first(self, first: Scorer) -> None:
        """Do a slice of a score's work."""
        first.advance()
        if isinstance(first, Before) and not first.due():
            self.evaluations += _at_start(first.found or [], first)

    def _train(self, network: Network, stop: Stop) -> None:
        """Take the network to a stop, and evaluate it where the stop does, unless it settles on.

        Raises:
            DivergedError: if it diverges.
        """
        assert self.context is not None
        follow = any(declared(name).is_laplace for name in self.assignment.estimators)
        (end,) = advance([network], stop, follow=follow)
        if isinstance(end, DivergedError):
            raise end
        if stop.evaluate and (network.is_over or not stop.last):
            scorers, passes = self.scorers.values(), end or passes_of(network)
            self.evaluations += evaluate(self.context, scorers, passes, last=stop.last)

    def _known(self) -> list[Evaluation]:
        """Return every evaluation so far; before those of epochs, the folds known by then."""
        if self.network is None or any(one.epoch for one in self.evaluations):
            return self.evaluations
        return self.evaluations + [
            one
            for scorer in self.scorers.values()
            if declared(scorer.names[0]).taken == "before"
            for one in _at_start(scorer.evaluate(last=False), scorer)
        ]

    def report(self, known: tuple[int, int] = (0, 0)) -> SliceReport:
        """Return the current state of the trial.

        Args:
            known: numbers of points of the curve and of evaluations that earlier reports had.
        """
        n_points, n_evaluations = known
        scores: dict[str, float] = {}
        for evaluation in self._known():
            estimate = evaluation.estimate
            per_datum = estimate.per_datum
            if estimate.valid:
                scores[estimate.estimator] = estimate.value if per_datum is None else per_datum
        curve = self._curve()
        found = {"latency_seconds": self.latency_seconds, **_known(self.cost)}
        costs = {name: found.get(name) for name in COSTS}
        return SliceReport(
            trial_id=self.assignment.trial_id,
            attempt=self.assignment.attempt,
            epoch=self._epochs_done(),
            epochs=self.assignment.plan.epochs,
            done=self.status is not TrialStatus.RUNNING,
            status=self.status,
            scores=scores,
            costs={name: cost for name, cost in costs.items() if cost is not None},
            sotl=sotl([point.train_nll_per_datum for point in curve]) if curve else None,
            seconds=self.slice_seconds,
            saved=self._unsaved is None,
            curve=tuple(curve[n_points:]),
            evaluations=tuple(self.evaluations[n_evaluations:]),
        )

    def finish(self, status: TrialStatus | None = None, cause: str = "") -> TrialRecord:
        """Return the record; first test a complete trial and write its weights.

        Args:
            status: of a trial that is still running, to end it early.
            cause: the reason for that.

        Raises:
            OSError: if the weights cannot be written.
        """
        if status is not None and self.status is TrialStatus.RUNNING:
            self.status, self.cause = status, cause
        figures: dict[str, float] = {}
        network, given = self.network, self.assignment
        with _Failures(self):
            if self.status is TrialStatus.COMPLETE and network is not None:
                factors = [scorer.spread_factor() for scorer in self.scorers.values()]
                factor = next(
                    (one for one in factors if one is not None), given.spread_factor or 1.0
                )
                figures = {"spread_factor": factor}
                if self.trains:
                    data = self.data
                    predict = predict_rows(network, data.x_train, data.y_train, data.own)
                    figures |= on_test_rows(predict, data, given.plan, factor)
                self._save_model(network)
        found: dict[str, object] = {}
        if network is not None and not self.trains and self._folds is not None:
            found = self._of_folds(network, self._folds)
        elif network is not None:
            plan, hyper, settling = given.plan, network.hyper, network.settling
            if settling is not None and not settling.done:
                hyper = settling.scheduled.hyper  # that of a settling that ends early is nowhere
            found = {
                "epochs": network.epoch,
                "best_epoch": network.best_epoch,
                "best_evidence": network.best_evidence,
                **({key: hyper.scale} if (key := plan.declared.scale) else {}),
                "evaluations": tuple(self._known()),
                "curve": with_sums(network.curve, len(self.data.x_train)),
                "train_seconds": network.train_seconds,
                "evidence_seconds": network.evidence_seconds,
            }
            if self.status is TrialStatus.COMPLETE:
                found |= {"converged": False, "kept": "scheduled"}
            if settling is not None:
                found |= {
                    "converged": settling.converged,
                    "kept": settling.kept,
                    "decrement_per_datum": settling.decrement_per_datum,
                    "settle_seconds": settling.seconds,
                }
        return TrialRecord.model_validate(
            {
                "trial_id": given.trial_id,
                "attempt": given.attempt,
                "replicate": given.replicate,
                "architecture": given.architecture,
                "status": self.status,
                "cause": self.cause,
                "seed": given.seed,
                "of": "whole" if self.trains else "folds",
                "n_data": len(self.data.x_train),
                **_known(self.cost),
                "latency_seconds": self.latency_seconds,
                "gpu_share": self.gpu_share,
                **found,
                **figures,
                "total_seconds": self._total_seconds(),
                "versions": json.dumps(versions(self.data.x_train.device)),
                "error": self.error,
            }
        )

    def _of_folds(self, network: Network, folds: Folds) -> dict[str, object]:
        """Return what the record has of the networks without a fold, in place of that of all."""
        own, n_data = folds.of_trial, folds.n_trained
        names = {name for fold in own for name in fold.tested}
        return {
            "of": "folds",
            "n_data": n_data,
            "epochs": self._epochs_done(),
            "evaluations": tuple(self._known()),
            "curve": with_sums(_mean_curve(own), n_data),
            "train_seconds": network.train_seconds,
            "evidence_seconds": network.evidence_seconds,
            **(
                {key: geometric_mean([fold.learned for fold in own])}
                if own and (key := self.assignment.plan.declared.scale)
                else {}
            ),
            **{
                name: fmean(fold.tested[name] for fold in own)
                for name in names
                if all(name in fold.tested for fold in own)
            },
        }

    def _curve(self) -> Sequence[CurvePoint]:
        """Return the losses so far; of folds alone their mean once all are over."""
        if self.network is None or self.trains:
            return [] if self.network is None else self.network.curve
        over = self._folds is not None and self.status is TrialStatus.COMPLETE
        return _mean_curve(self._folds.of_trial) if over and self._folds else []

    def _epochs_done(self) -> int:
        if self.trains or self._folds is None:
            return 0 if self.network is None else self.network.epoch
        return self._folds.epochs

    def _complete_if_done(self, network: Network) -> None:
        if self.trains and not network.is_over:
            return
        if any(scorer.due() for scorer in self.scorers.values()):
            return
        folds = None if self.trains else self._folds
        if folds is not None:
            epochs, found = self.assignment.plan.epochs, folds.evaluate(last=True)
            self.evaluations = [Evaluation(epoch=epochs, estimate=e, of="folds") for e in found]
            if wrong := next((fold for fold in folds.of_trial if fold.diverged), None):
                raise DivergedError(f"fold {wrong.number}: {wrong.failure}")
        most = self.assignment.largest_loss
        if most is not None and not (loss := network.curve[-1].train_nll_per_datum) <= most:
            raise DivergedError(
                f"the training loss is {loss:.6g} nats per datum, above {most:.6g}, that of the "
                "trial's folds and of the rows held out of them"
            )
        self.status = TrialStatus.COMPLETE

    def _total_seconds(self) -> float:
        return self.earlier_seconds + self.clock() - self.started

    def _checkpoint(self, network: Network) -> None:
        state = {
            "version": CHECKPOINT_VERSION,
            "same_trial": _identity(self.assignment),
            "network": state_of(network),
            "scores": {name: scorer.state_dict() for name, scorer in self.scorers.items()},
            "evaluations": [evaluation.model_dump_json() for evaluation in self.evaluations],
            "latency_seconds": self.latency_seconds,
            "total_seconds": self._total_seconds(),
        }
        save_checkpoint(self.folder, network.epoch, state)

    def _restore(self, folder: Path) -> bool:
        """Restore the newest checkpoint in `folder`; tell whether there was one of this trial."""
        state = load_checkpoint(folder)
        network = self.network
        assert network is not None
        if state is None:
            return False
        scores = state["scores"]
        # Written before scores were taken once: this network is no longer the initial one.
        late = any(isinstance(s, Before) and not scores.get(n) for n, s in self.scorers.items())
        is_current = state["version"] == CHECKPOINT_VERSION
        if late or not is_current or state["same_trial"] != _identity(self.assignment):
            _LOG.warning("checkpoint_of_another_trial folder=%s", folder)
            return False
        restore(network, state["network"])
        for name, scorer in self.scorers.items():
            scorer.load_state_dict(scores[name])
        self.evaluations = [Evaluation.model_validate_json(t) for t in state["evaluations"]]
        self.latency_seconds = state["latency_seconds"]
        self.earlier_seconds = state["total_seconds"]
        # After a checkpoint of the last epoch there is nothing to train, only `finish`.
        self._complete_if_done(network)
        return True

    def _save_model(self, network: Network) -> None:
        plan, hyper = network.plan, network.hyper
        tensors = on_cpu(network.model.state_dict()) if self.trains else {}
        is_noise = plan.declared.scale == "noise_std"
        noise = network.likelihood.each_scale if is_noise else (plan.noise_std,)
        header = {
            "trial_id": str(self.assignment.trial_id),
            "epoch": str(network.epoch),
            "noise_std": json.dumps(noise[0] if len(noise) == 1 else noise),
            "temperature": repr(plan.temperature),
            "assignment": self.assignment.model_dump_json(),
            "curvature_batch": str(rows_at_once(network.model, self.data.x_train)),
        }
        names = [name for name, _ in network.model.named_parameters()]
        by_name = dict(zip(names, hyper.precision.tolist(), strict=True))
        header["prior_precision"] = json.dumps(by_name)
        for scorer in self.scorers.values():
            kept = scorer.kept()
            tensors |= {KEPT_PREFIX + name: tensor for name, tensor in kept.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "model.safetensors", sealed_tensors(tensors, header))


class _Failures:
    """Turn an exception into the trial's status, so that it becomes a row."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> bool:
        # An OSError comes from the machine, not the network; another machine may succeed.
        if not isinstance(error, Exception) or isinstance(error, OSError):
            return False
        trial = self.trial
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or is_memory_full(error)
        if isinstance(error, DivergedError):
            trial.status = TrialStatus.DIVERGED
        elif out_of_memory:
            trial.status = TrialStatus.OUT_OF_MEMORY
        else:
            trial.status = TrialStatus.FAILED
            trial.error = masked(cut("".join(traceback.format_exception(error))))
        first = (cut(str(error).strip(), 2_000).splitlines() or [""])[0]
        trial.cause = masked(f"{type(error).__name__}: {first}")
        _LOG.warning(
            "trial_ended trial_id=%d status=%s cause=%s",
            trial.assignment.trial_id,
            trial.status,
            trial.cause,
            exc_info=error,
        )
        return True


def _mean_curve(folds: Sequence[Fold]) -> tuple[CurvePoint, ...]:
    """Return the means over fold networks of their losses; of noises the geometric ones."""
    found = []
    for points in zip(*(fold.curve for fold in folds if fold.curve), strict=False):
        update: dict[str, float] = {
            "train_nll_per_datum": fmean(one.train_nll_per_datum for one in points),
            "seconds": sum(one.seconds for one in points),
        }
        for key in ("noise_std", "temperature"):
            if (known := [getattr(one, key) for one in points]) and None not in known:
                update[key] = geometric_mean(known)
        found.append(points[0].model_copy(update=update))
    return tuple(found)


def _at_start(estimates: Iterable[EvidenceEstimate], of: Scorer) -> list[Evaluation]:
    return [Evaluation(epoch=0, estimate=estimate, of=of.of) for estimate in estimates]


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions of the packages and hardware that a result depends on."""
    try:
        own = metadata.version("nas-evidence")
    except metadata.PackageNotFoundError:  # a source tree that is only on the path
        own = "source"
    found = {"nas-evidence": own, "torch": str(torch.__version__), "numpy": np.__version__}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {**found, "python": platform.python_version(), "device": f"{device.type} {name}"}


def _identity(assignment: Assignment) -> str:
    # What is followed changes no training.
    return assignment.model_dump_json(exclude={"attempt", "followed"})


def _known(cost: Cost | None) -> dict[str, int]:
    if cost is None:
        return {}
    names = ("n_parameters", "flops", "memory_bytes")
    return {name: getattr(cost, name) for name in names}
