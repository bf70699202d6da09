"""Studies whose trials cost nothing, for `cost_of_service.py`: workers, a watcher, a study."""

# the methods are those of a worker and of a watcher

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"

from nas_evidence.spec.families import add_family
from nas_evidence.spec.record import (
    Evaluation,
    EvidenceEstimate,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import DatasetSpec, ResourceSpec, StudySpec
from nas_evidence.workers.executor import Launch, Verdict, Watcher

#: About 11,900 architectures, evenly, so that 10,000 of them are found without much searching.
SPACE: dict[str, dict[str, dict[str, Any]]] = {
    "mlp": {
        "depth": {"low": 1, "high": 5},
        "width": {"low": 4, "high": 1024},
        "shape": {"options": ["constant", "taper"]},
    },
    "cnn": {"depth": {"low": 1, "high": 5}, "width": {"low": 4, "high": 256}},
    "resnet": {"depth": {"low": 8, "high": 44, "step": 6}, "width": {"low": 4, "high": 64}},
}


class Stop(Exception):
    """Ends a driver as a kill would: trials under way stay under way."""


class Stamps(Watcher):
    """A watcher that notes when each slice and each trial ended, wall and CPU."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.slices: list[tuple[float, float]] = []
        self.ends = [clocks()]

    def progressed(self, report: SliceReport) -> None:
        if report.epoch:
            self.slices.append(clocks())

    def lost(self, loss: object) -> None:
        raise RuntimeError(f"nothing should be lost here, but: {loss}")

    def ended(self, record: TrialRecord) -> None:
        self.ends.append(clocks())
        if len(self.ends) - 1 == self.stop_after:
            raise Stop


class NoOp:
    """A worker that trains nothing; stands for `worker.Worker` and needs no torch."""

    must_go = ""

    def __init__(self, arrays: object, resources: ResourceSpec, *, gpu_share: float) -> None:
        self.launch: Launch | None = None

    def start(self, launch: Launch) -> SliceReport:
        self.launch = launch
        return self.advance(0)

    def advance(self, until_epoch: int) -> SliceReport:
        assert self.launch is not None
        given = self.launch.assignment
        return SliceReport(
            trial_id=given.trial_id,
            attempt=given.attempt,
            epoch=until_epoch,
            epochs=given.plan.epochs,
            done=until_epoch >= given.plan.epochs,
            scores={"kfac_ggn": -float(until_epoch)},
        )

    def finish(self, verdict: Verdict | None = None) -> TrialRecord:
        assert self.launch is not None
        given = self.launch.assignment
        value = -float(given.architecture.values["width"])
        return TrialRecord(
            trial_id=given.trial_id,
            attempt=given.attempt,
            replicate=given.replicate,
            architecture=given.architecture,
            status=TrialStatus.COMPLETE,
            seed=given.seed,
            evaluations=tuple(
                Evaluation(
                    epoch=epoch, estimate=EvidenceEstimate(estimator="kfac_ggn", value=value)
                )
                for epoch in (stop.epoch for stop in stops(given.plan))
            ),
        )

    def park(self) -> None:
        self.launch = None


class Wide:
    """A family of 120,000 architectures; those of the package are about 12,600."""

    domains = {  # noqa: RUF012
        "depth": {"low": 1, "high": 10},
        "width": {"low": 4, "high": 6003},
        "shape": {"options": ["constant", "taper"]},
    }

    def build(self, values: object, input_shape: object, n_outputs: int) -> Any:
        raise NotImplementedError


def wide_study(n_trials: int, workers: int = 8) -> StudySpec:
    """Return a study of a large space."""
    add_family("_no_op:Wide", Wide)
    small = study(n_trials, "posterior", workers=workers)
    return StudySpec.model_validate(small.model_dump() | {"family": {"_no_op:Wide": Wide.domains}})


def study(n_trials: int, sampler: str, *, epochs: int = 3, workers: int = 8) -> StudySpec:
    """Return a study with a report after every epoch."""
    return StudySpec.model_validate(
        {
            "name": "overhead",
            "n_trials": n_trials,
            "finalists": 0,
            "dataset": {"name": "digits", "max_train": 50, "max_test": 20},
            "family": SPACE,
            "plan": {"epochs": epochs, "online": {"every": 1}},
            "sampler": {"name": sampler},
            "resources": {"workers": workers, "gpus": 0},
        }
    )


def tune_space(trial: Any) -> dict[str, Any]:
    """Ask an Optuna trial for a point of the same space, as Ray Tune wants it."""
    family = trial.suggest_categorical("family", list(SPACE))
    for name, domain in SPACE[family].items():
        if "options" in domain:
            trial.suggest_categorical(name, domain["options"])
        else:
            step, log = domain.get("step", 1), bool(domain.get("log"))
            low, high = domain["low"], domain["high"]
            trial.suggest_int(f"{family}.{name}", low, high, step=step, log=log)
    return {"family": family, "width": trial.params[f"{family}.width"]}


def ray_workers(workers: int, folder: Path) -> Any:
    """Return a pool of no-op workers on a cluster of their own."""
    import ray

    from nas_evidence.data import load
    from nas_evidence.workers.on_ray import RayExecutor

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    arrays = load(DatasetSpec(name="digits", max_train=50, max_test=20), seed=0)
    resources = ResourceSpec(workers=workers, gpus=0)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    return RayExecutor(arrays, resources, folder / "logs", make_worker=NoOp)


def clocks() -> tuple[float, float]:
    """Return wall and CPU time in seconds."""
    return time.perf_counter(), time.process_time()
