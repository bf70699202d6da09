"""A process that is connected to Ray keeps it, its actors and its objects; trials run in it."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.ray]

HEAD = """\
import sys
import numpy as np, ray
import nas_evidence
x = np.array([[k % 7, k % 3] for k in range(60)], np.float32)
y = np.arange(60) % 2
OWN = {"settings": {"plan.epochs": 2, "finalists": 0}, "workers": 1, "n_trials": 2}
"""
KEEPS = """
# "local": without an address Ray joins a cluster that another test runs on this machine.
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)

@ray.remote
class Mine:
    def says(self):
        return "alive"

actor, kept = Mine.remote(), ray.put("kept")

def all_there():
    assert ray.is_initialized()
    assert (ray.get(actor.says.remote()), ray.get(kept)) == ("alive", "kept")
    assert ray.cluster_resources()["CPU"] == 3

here = ray.get_runtime_context().gcs_address
for k, address in enumerate((None, "auto", here)):
    study = nas_evidence.search(x, y, out=f"s{k}", executor="ray", address=address, **OWN)
    assert len(study.trials) == 2
    all_there()
nas_evidence.resume("s0", n_trials=3, executor="ray", workers=1)
all_there()
try:
    nas_evidence.search(x, y, out="t", executor="ray", address="127.0.0.1:1", **OWN)
except ValueError as error:
    assert "ray.shutdown()" in str(error), error
else:
    raise AssertionError("joined another Ray")
all_there()
many = OWN | {"settings": OWN["settings"] | {"resources.cpus": 2}}
study = nas_evidence.search(x, y, out="u", executor="ray", **many)
all_there()
import time
for _ in range(100):  # nothing of ours is left; the actor of the caller holds none while it waits
    if ray.available_resources().get("CPU") == 3:
        break
    time.sleep(0.1)
else:
    raise AssertionError(ray.available_resources())
"""
TWO = """
from concurrent.futures import ThreadPoolExecutor

def one(k):
    return len(nas_evidence.search(x, y, out=f"w{k}", executor="ray", **OWN).trials)

with ThreadPoolExecutor(2) as threads:
    assert list(threads.map(one, range(2))) == [2, 2]
assert not ray.is_initialized()
"""


@pytest.mark.parametrize("work", [KEEPS, TWO], ids=["the caller's", "two studies at once"])
def test_ray_stays_as_long_as_somebody_of_this_process_uses_it(tmp_path: Path, work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + work], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
