"""Run one assignment in slices; failures become rows.

The seam of the service: an `Assignment` goes in, a `TrialRecord` comes out. Inside there is no
Ray, no Optuna and no Parquet; outside there are no tensors. `Trial.start`, `advance`, `finish` is
the only path through a trial. It writes into its attempt folder and nowhere else.
"""

import json
import logging
import platform
import time
import traceback
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihood import Categorical
from nas_evidence.models import build, infeasible
from nas_evidence.record import (
    CurvePoint,
    Evaluation,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec import Assignment
from nas_evidence.training.checkpoint import load_checkpoint, save_checkpoint
from nas_evidence.training.loop import (
    CURVATURE_BATCH,
    DivergedError,
    Training,
    begin,
    evaluate,
    train_epoch,
)

_LOG = logging.getLogger(__name__)
CHECKPOINT_VERSION = 1


def device_for(gpu_share: str | float) -> torch.device:
    """Return the training device: a GPU when one is there and a share of it is wanted."""
    wanted = gpu_share == "auto" or float(gpu_share) > 0
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")


class Trial:
    """One attempt at one trial, from `start` to `finish`."""

    def __init__(self, assignment: Assignment, data: TensorData, folder: Path) -> None:
        self.assignment = assignment
        self.data = data
        self.folder = folder
        self.status = TrialStatus.RUNNING
        self.cause = ""
        self.error = ""
        self.earlier_seconds = 0.0
        self.started = time.perf_counter()
        self.training: Training | None = None

    @classmethod
    def start(
        cls,
        assignment: Assignment,
        data: TensorData,
        folder: Path,
        *,
        resume_from: Path | None = None,
    ) -> "Trial":
        """Build the model, or restore it from an earlier attempt's folder; never raises for it."""
        trial = cls(assignment, data, folder)
        with _Failures(trial):
            trial._start(resume_from)
        return trial

    def _start(self, resume_from: Path | None) -> None:
        architecture = self.assignment.architecture
        shape, classes = self.data.input_shape, self.data.n_classes
        reason = infeasible(architecture, shape, classes)
        if reason:
            self.status, self.cause = TrialStatus.INFEASIBLE, reason
            return
        generator = torch.Generator().manual_seed(self.assignment.derived_seed("init"))
        model = build(architecture, shape, classes, generator).to(self.data.x_train.device)
        self.training = begin(model, self.assignment.plan)
        if resume_from is not None:
            self._restore(resume_from)

    def advance(self, until_epoch: int) -> SliceReport:
        """Train up to `until_epoch`, evaluating on the way, and write a checkpoint."""
        with _Failures(self):
            training = self.training
            plan = self.assignment.plan
            if self.status is TrialStatus.RUNNING and training is not None:
                due = plan.evaluation_epochs()
                while training.epoch < min(until_epoch, plan.epochs):
                    train_epoch(training, self.data, self.assignment)
                    if training.epoch in due:
                        evaluate(training, self.data, self.assignment)
                self._checkpoint()
                if training.epoch >= plan.epochs:
                    self.status = TrialStatus.COMPLETE
        return self.report()

    def report(self) -> SliceReport:
        """Return where the trial stands."""
        training = self.training
        scores: dict[str, float] = {}
        if training is not None:
            for evaluation in training.evaluations:
                estimate = evaluation.estimate
                per_datum = estimate.per_datum
                if estimate.valid:
                    scores[estimate.estimator] = estimate.value if per_datum is None else per_datum
        return SliceReport(
            trial_id=self.assignment.trial_id,
            attempt=self.assignment.attempt,
            epoch=training.epoch if training else 0,
            epochs=self.assignment.plan.epochs,
            done=self.status is not TrialStatus.RUNNING,
            status=self.status,
            scores=scores,
            sotl=training.curve[-1].sotl if training and training.curve else None,
        )

    def finish(self) -> TrialRecord:
        """Return the record; of a complete trial, test it and write its weights first."""
        accuracy = nll = None
        with _Failures(self):
            if self.status is TrialStatus.COMPLETE and self.training is not None:
                accuracy, nll = _test(self.training.model, self.data)
                self._save_model(self.training)
        training = self.training
        return TrialRecord(
            trial_id=self.assignment.trial_id,
            attempt=self.assignment.attempt,
            replicate=self.assignment.replicate,
            architecture=self.assignment.architecture,
            status=self.status,
            cause=self.cause,
            seed=self.assignment.seed,
            n_parameters=_count(training.model) if training else None,
            n_data=len(self.data.x_train),
            epochs=training.epoch if training else 0,
            evaluations=tuple(training.evaluations) if training else (),
            curve=tuple(training.curve) if training else (),
            test_accuracy=accuracy,
            test_nll_per_datum=nll,
            train_seconds=training.train_seconds if training else 0.0,
            evidence_seconds=training.evidence_seconds if training else 0.0,
            total_seconds=self.earlier_seconds + time.perf_counter() - self.started,
            versions=json.dumps(versions(self.data.x_train.device)),
            error=self.error,
        )

    def _checkpoint(self) -> None:
        training = self.training
        assert training is not None
        state = {
            "version": CHECKPOINT_VERSION,
            "same_trial": _identity(self.assignment),
            "model": training.model.state_dict(),
            "optimiser": training.optimiser.state_dict(),
            "prior_precision": training.prior_precision,
            "epoch": training.epoch,
            "curve": [point.model_dump_json() for point in training.curve],
            "evaluations": [e.model_dump_json() for e in training.evaluations],
            "train_seconds": training.train_seconds,
            "evidence_seconds": training.evidence_seconds,
            "total_seconds": self.earlier_seconds + time.perf_counter() - self.started,
        }
        save_checkpoint(self.folder, training.epoch, state)

    def _restore(self, folder: Path) -> None:
        state = load_checkpoint(folder)
        training = self.training
        assert training is not None
        if state is None:
            return
        if (state["version"], state["same_trial"]) != (
            CHECKPOINT_VERSION,
            _identity(self.assignment),
        ):
            _LOG.warning("checkpoint_of_another_trial folder=%s", folder)
            return
        training.model.load_state_dict(state["model"])
        training.optimiser.load_state_dict(state["optimiser"])
        training.prior_precision = state["prior_precision"]
        training.epoch = state["epoch"]
        training.curve = [CurvePoint.model_validate_json(t) for t in state["curve"]]
        training.evaluations = [Evaluation.model_validate_json(t) for t in state["evaluations"]]
        training.train_seconds = state["train_seconds"]
        training.evidence_seconds = state["evidence_seconds"]
        self.earlier_seconds = state["total_seconds"]
        # A checkpoint of the last epoch leaves nothing to train, only the finish.
        if training.epoch >= self.assignment.plan.epochs:
            self.status = TrialStatus.COMPLETE

    def _save_model(self, training: Training) -> None:
        names = [name for name, _ in training.model.named_parameters()]
        precision = dict(zip(names, training.prior_precision.tolist(), strict=True))
        state = training.model.state_dict()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        header = {
            "trial_id": str(self.assignment.trial_id),
            "epoch": str(training.epoch),
            "prior_precision": json.dumps(precision),
            "assignment": self.assignment.model_dump_json(),
            "curvature_batch": str(CURVATURE_BATCH),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "model.safetensors").write_bytes(save(tensors, metadata=header))


class _Failures:
    """Turn an exception into the trial's status, so that it becomes a row and not a loss."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        trial = self.trial
        out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if isinstance(error, DivergedError):
            trial.status = TrialStatus.DIVERGED
        elif out_of_memory:
            trial.status = TrialStatus.OUT_OF_MEMORY
        else:
            trial.status = TrialStatus.FAILED
            trial.error = "".join(traceback.format_exception(error))
        trial.cause = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        _LOG.warning(
            "trial_ended trial_id=%d status=%s cause=%s",
            trial.assignment.trial_id,
            trial.status,
            trial.cause,
            exc_info=error,
        )
        return True


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions that a result depends on."""
    packages = ("nas-evidence", "torch", "numpy")
    found = {name: metadata.version(name) for name in packages}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {**found, "python": platform.python_version(), "device": f"{device.type} {name}"}


def _identity(assignment: Assignment) -> str:
    return assignment.model_dump_json(exclude={"attempt"})


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def _test(model: nn.Module, data: TensorData) -> tuple[float, float]:
    """Return accuracy (fraction) and nll per datum (nats) on the test data, for reports only."""
    model.eval()
    correct, nll = 0, 0.0
    for start in range(0, len(data.y_test), CURVATURE_BATCH):
        rows = slice(start, start + CURVATURE_BATCH)
        x, y = data.x_test[rows], data.y_test[rows]
        outputs = model(x)
        correct += int((outputs.argmax(-1) == y).sum())
        nll -= float(Categorical().log_likelihood(outputs, y))
    return correct / len(data.y_test), nll / len(data.y_test)
