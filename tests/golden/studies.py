"""Studies as this version writes them: a finished, a half-finished and a damaged one.

`python tests/golden/studies.py` writes them anew below `format-<n>/`, with the state to which the
log of each folds, a log with a line of every kind, and what they were made with. A folder of a
format that was released is never written again: a new format gets a folder of its own.
"""

# ruff: noqa: E402

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import get_args
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import numpy as np
import torch
from fakes import Silent, compacted, last_log
from faulty import flipped
from processes import in_a_process
from pydantic import TypeAdapter

from nas_evidence.data import load
from nas_evidence.data.digest import data_digest
from nas_evidence.driver.driver import Driver
from nas_evidence.spec.record import RACE_IDS, LossKind, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import FORMAT
from nas_evidence.storage import events as facts
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.log import Log, read_log
from nas_evidence.storage.state import State
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.inline import InlineExecutor

HOME = Path(__file__).with_name(f"format-{FORMAT}")
FOLDERS = ("finished", "half", "damaged")
STUDY = StudySpec.model_validate(
    {
        "name": "golden",
        "objective": "diag_ef",
        "estimators": ["diag_ef"],
        "n_trials": 3,
        "scheduling": "batch",
        "batch": 3,
        "dataset": {"name": "npz", "path": "data.npz"},
        "family": {"mlp": {"width": {"low": 4, "high": 12}, "depth": {"low": 1, "high": 2}}},
        "plan": {"epochs": 4, "batch_size": 16, "online": {"every": 2, "curvature": "diag_ef"}},
        "pruning": {"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 2},
        "sampler": {"name": "random"},
        "resources": {"gpus": 0},
    }
)


def made_with() -> dict[str, str]:
    """Return what decides the last bits of a result on a CPU."""
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def folded(folder: Path) -> str:
    """Return the state to which the log of a study folds, as JSON."""
    state = TypeAdapter(State).dump_python(read_log(folder).state, mode="json")
    return json.dumps(state, indent=1, sort_keys=True) + "\n"


def search(folder: Path) -> None:
    """Run the study in a folder, or what is left of it; its data are in the current folder."""
    study = open_study(folder, STUDY)
    with locked(folder):
        arrays = load(study.dataset, seed=study.seed)
        note_conditions(folder, study, data_digest(arrays))
        Driver(study, folder, InlineExecutor(arrays, study.resources), Silent()).run()


def data() -> None:
    """Write three separated classes of 16 training and 8 test points into the current folder."""
    y = np.arange(72) % 3
    x = np.random.default_rng(0).normal(size=(72, 3)).astype("float32") + 2 * np.eye(3)[y]
    np.savez("data.npz", x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])


def every_event() -> list[facts.Event]:
    """Return an event of every kind, each with all of its values."""
    one = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1, "act": "relu", "p": 0.5})
    values, costs = {"diag_ef": -31.25}, {"n_parameters": 59.0, "latency_seconds": 1e-3}
    row = TrialRow(
        0, 2, 0, TrialStatus.PRUNED, one, values, costs, "rung 2", 1.5, 2, 0.25, "0123456789abcdef"
    )
    lost = {"cause": "the worker process crashed", "epoch": 2, "progress": False, "share": 0.5}
    return [
        facts.Asked(number=0, architecture=one, recovered=True),
        facts.Launched(trial_id=0, attempt=1),
        facts.Parked(trial_id=0, attempt=1),
        facts.AtRung(trial_id=0, epoch=2, point=(-0.5, float("-inf"))),
        facts.Judged(trial_id=0, epoch=2, reason="worse than half"),
        facts.AttemptLost(trial_id=0, attempt=1, kind=LossKind.MACHINE, **lost),
        facts.Again(trial_id=0, attempt=1),
        facts.Ended(row=row, files={"trials": "9c2e"}, wall_seconds=2.5, device_seconds=1.5),
        facts.Merged(part="part-" + "0" * 32, files={"trials": "77ab"}, attempts=((0, 2),)),
        facts.Told(number=0, values=(-0.5,), pruned=True, constraints={"flops": 0.1}),
        facts.RaceRound(trial_ids=(RACE_IDS,), architectures=(one,)),
        facts.Used(wall_seconds=3.0, device_seconds=2.0),
        facts.Stopped(idle_share=0.25, wall_seconds=4.0, device_seconds=3.0),
    ]


def main() -> None:
    """Write all anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    os.chdir(HOME)
    torch.set_num_threads(1)
    data()
    finished, half, damaged, every = map(Path, (*FOLDERS, "every"))
    search(finished)
    killed = in_a_process(lambda: search(half), crash_at="reported:9")
    assert killed == -signal.SIGKILL
    shutil.copytree(finished, damaged)
    (torn,) = damaged.glob("evidence/000001-*.parquet")
    torn.write_bytes(torn.read_bytes()[:-40])
    flipped(last_log(damaged), last_log(damaged).read_bytes().index(b'"end"'))  # of trial 2
    compacted(finished)
    search(finished)  # a session that ends in order
    with contextlib.closing(Log(every)) as log:
        written = every_event()
        assert {type(one) for one in written} | {facts.Began} == set(get_args(facts.Event))
        for one in written:
            log.write(one)
    for folder in (finished, half, damaged, every):
        (folder / "lock").unlink(missing_ok=True)  # holds the name of this machine
        Path(f"{folder}.json").write_text(folded(folder))
    Path("made_with.json").write_text(json.dumps(made_with()) + "\n")


if __name__ == "__main__":
    with mock.patch.object(socket, "gethostname", return_value="golden"):
        main()
