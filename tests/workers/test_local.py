"""Workers that are plain processes: which studies have them, and that none outlives its driver."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import lives, wait_for

from nas_evidence.data import ArrayData
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.study import DatasetSpec, ResourceSpec, StudySpec
from nas_evidence.workers import choice
from nas_evidence.workers.choice import chosen_executor


def arrays(n: int, n_inputs: int = 3) -> ArrayData:
    x, y = np.zeros((n, n_inputs), np.float32), np.arange(n) % 2
    return ArrayData(
        "made", x, y, x[:0], y[:0], task="labels", n_outputs=2, input_shape=(n_inputs,),
        mean=np.zeros(n_inputs, np.float32), std=np.ones(n_inputs, np.float32),
        y_mean=np.zeros(2), y_std=np.ones(2),
    )  # fmt: skip


def study(family: str = "mlp", epochs: int = 100, gpus: int | str = "auto") -> StudySpec:
    depth = {"depth": IntRange(low=8, high=14, step=6)} if family == "resnet" else {}
    return StudySpec(
        name="made",
        dataset=DatasetSpec(name="digits"),
        family={family: depth, "linear": {}},
        plan={"epochs": epochs},
        resources=ResourceSpec(workers=2, gpus=gpus),
    )


def test_short_trials_on_this_machine_run_in_plain_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "_has_gpu", lambda: False)

    def chosen(spec: StudySpec, n: int = 300, *, at_home: bool = True) -> str:
        return chosen_executor(spec, arrays(n), at_home=at_home)[0]

    assert chosen(study()) == "local"
    assert chosen(study(), n=5000) == "ray"
    assert chosen(study(family="resnet")) == "ray"
    assert chosen(study(), at_home=False) == "ray"
    monkeypatch.setattr(choice, "_has_gpu", lambda: True)
    assert chosen(study()) == "ray"
    assert chosen(study(gpus=0)) == "local"


_DRIVER = """
import sys, time
from pathlib import Path
import numpy as np
from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers.local import LocalExecutor
arrays = load(DatasetSpec(name="digits", max_train=20, max_test=5), seed=0)
executor = LocalExecutor(arrays, ResourceSpec(workers=2), Path(sys.argv[1]))
print(*(worker.actor.pid for worker in executor._pool.workers), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DRIVER, str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with driver.stdout:
        workers = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not any(map(lives, workers)))
