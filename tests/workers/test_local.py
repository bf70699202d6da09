"""Workers that are plain processes: who has them, what they print, and that none outlives."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import lives, wait_for

from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers import choice
from nas_evidence.workers.choice import chosen_executor, n_workers
from nas_evidence.workers.quiet import stderr_to


def test_one_machine_without_a_gpu_runs_trials_in_plain_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(gpus: float | str = "auto", *, joins: bool = False) -> str:
        return chosen_executor(ResourceSpec(gpus=gpus), joins=joins)[0]

    monkeypatch.setattr(choice, "gpu_device", lambda: "")
    assert chosen() == chosen(0.5) == "local"
    assert chosen(joins=True) == "ray"
    monkeypatch.setattr(choice, "gpu_device", lambda: "/dev/nvidiactl")
    assert chosen() == chosen(0.5) == "ray"
    assert chosen(0) == "local"


def test_as_many_trials_run_at_once_as_ray_has_room_for_and_two_in_plain_processes() -> None:
    auto, five = ResourceSpec(), ResourceSpec(workers=5)
    assert n_workers(auto, "ray", 100) is None
    assert n_workers(auto, "local", 100) == n_workers(auto, object(), 100) == 2
    assert n_workers(auto, "local", 1) == 1
    assert n_workers(five, "ray", 100) == n_workers(five, "local", 100) == 5
    assert n_workers(five, "ray", 3) == 3
    assert n_workers(five, "inline", 100) == n_workers(auto, "inline", 100) == 1


_DRIVER = """
import sys, time
from pathlib import Path
from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers.local import LocalExecutor
arrays = load(DatasetSpec(name="digits", max_train=20, max_test=5), seed=0)
executor = LocalExecutor(arrays, ResourceSpec(workers=2), Path(sys.argv[1]))
print(*(worker.actor.pid for worker in executor.workers), flush=True)
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


# --- where the lines on standard error go while Ray starts or stops


@pytest.mark.parametrize("ends_first", [0, 1])
def test_two_overlapping_studies_give_standard_error_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ends_first: int
) -> None:
    log, blocks = tmp_path / "logs" / "ray.log", [ExitStack(), ExitStack()]
    for block in blocks:
        block.enter_context(stderr_to(log))
        os.write(2, b"of Ray\n")
    blocks[ends_first].close()
    os.write(2, b"of Ray\n")
    blocks[1 - ends_first].close()
    os.write(2, b"for the user\n")
    assert log.read_text() == "of Ray\n" * 3
    assert capfd.readouterr().err == "for the user\n"
