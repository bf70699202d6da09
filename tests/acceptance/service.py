"""Studies that are disturbed, and the one beside them that is not.

What was found is compared by the public tables alone, so the files of a study may change.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from acceptance.uses import command, environment, tables

import nas_evidence

N_TRIALS = 4
#: One trial after the other, each of most of a second: there is time to stop the study.
STUDY = """\
name = "disturbed"
n_trials = 4
objective = "conditional_evidence"
estimators = ["conditional_evidence", "kfac_ggn"]
[dataset]
name = "npz"
path = "{data}"
[family.mlp]
depth = 1
width = {{low = 4, high = 16, log = true}}
[plan]
epochs = 120
batch_size = 16
folds = 2
[plan.online]
every = 20
curvature = "kfac_ggn"
[sampler]
name = "random"
"""


def write_study(folder: Path) -> Path:
    """Write the study and its data, three classes that are far apart, and return its file."""
    random = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = random.normal(size=(150, 6)) + 2 * np.eye(6)[y]
    data = folder / "data.npz"
    np.savez(data, x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    path = folder / "disturbed.toml"
    path.write_text(STUDY.format(data=data))
    return path


def found(place: Path | str) -> dict[str, pd.DataFrame]:
    """Return all that a study found and that another run of it must find again, bit by bit.

    A trial that was lost has another attempt; seconds and versions may differ.
    """
    return {
        name: frame.drop(
            columns=[c for c in frame if c.endswith("seconds") or c in ("versions", "attempt")]
        )
        for name, frame in tables(place).items()
    }


def assert_same(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    """Check that two studies found the same."""
    for name, frame in one.items():
        assert len(frame), name
        known = ("trial_id", "epoch", "of", "estimator", "term", "group")
        keys = [column for column in known if column in frame]
        pd.testing.assert_frame_equal(
            *(each.sort_values(keys, ignore_index=True) for each in (frame, other[name])),
            check_exact=True,
            obj=name,
        )


def stored(place: Path | str) -> set[int]:
    """Return the trials of the search whose results are stored; none while there is no study."""
    try:
        trials = nas_evidence.read_table(place, "trials")
    except (ValueError, OSError):
        return set()
    return {int(i) for i in trials.loc[trials["stage"] == "search", "trial_id"]}


def wait_for(
    condition: Callable[[], object], what: str, *, every: float = 0.1, seconds: float = 600
) -> None:
    """Return when the condition holds, asked every so many seconds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(every)


def wait_for_a_trial(
    process: "subprocess.Popen[str]", place: Path | str, *, besides: Collection[int] = ()
) -> None:
    """Return when a result is stored that was not there, or when the process has ended."""
    wait_for(
        lambda: process.poll() is not None or stored(place) - {*besides},
        "a stored trial",
        every=0.5 if "://" in str(place) else 0.1,
    )


def family(pid: int) -> set[int]:
    """Return a living process and all that it and those of its session have started."""
    everyone = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] != "Z":
                everyone[int(entry.name)] = int(stat[1]), int(stat[3])
    members, n_before = {pid}, 0
    while len(members) > n_before:
        n_before = len(members)
        members |= {p for p, (up, of) in everyone.items() if up in members or of in members}
    return members & everyone.keys()


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started at once, as a loss of power does; wait for it."""
    doomed = family(process.pid)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(len(family(pid)) for pid in doomed), "the end of all processes")


def searched(folder: Path) -> Path:
    """Write the study into a folder, run it where nothing disturbs it, and return its folder."""
    calm = folder / "calm"
    command("search", write_study(folder), "--out", calm, "--executor", "inline", folder=folder)
    found = tables(calm)
    assert stored(calm) == {*range(N_TRIALS)}
    assert {*found["trials"]["status"]} == {"complete"}
    assert found["trials"]["architecture_key"].nunique() > 1
    assert {*found["evidence"]["trial_id"]} >= stored(calm)
    assert {"conditional_evidence", "kfac_ggn"} <= {*found["evidence"]["estimator"]}
    return calm


# --- an object store and a Ray cluster


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server that answers as S3 does; give the URI of a bucket there."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    known = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in known.items():
            patch.setenv(key, value)
        patch.delenv("AWS_PROFILE", raising=False)
        client = boto3.client("s3")
        client.create_bucket(Bucket="studies")
        client.close()
        try:
            yield "s3://studies"
        finally:
            server.stop()


def free_ports(n: int) -> list[int]:
    """Return free ports that Ray gives to no worker, the system to nobody, other tests to none."""
    found: list[int] = []
    for port in range(32000 + os.getpid() % 600, 32768):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == n:
            return found
    raise AssertionError("no free port")


def jobs(url: str) -> dict[str, str]:
    """Return the state of each job of a cluster, as Ray has it."""
    with urllib.request.urlopen(f"{url}/api/jobs/", timeout=60) as answer:
        return {job["submission_id"]: job["status"] for job in json.load(answer)}


@contextmanager
def ray_head(folder: Path) -> Iterator[str]:
    """Start a node of Ray with two CPUs and a dashboard; give the URL of this, and end all."""
    gcs, dashboard, client, agent = free_ports(4)
    url = f"http://127.0.0.1:{dashboard}"
    programs = Path(sys.executable).parent  # where a job finds its `python`
    given = environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as short:
        command = [
            *(str(programs / "ray"), "start", "--head", "--block"),
            *("--disable-usage-stats", "--num-cpus=2", "--include-dashboard=true"),
            *(f"--port={gcs}", f"--ray-client-server-port={client}", f"--temp-dir={short}"),
            *(f"--dashboard-agent-listen-port={agent}", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={dashboard}", f"--object-store-memory={80 * 1024**2}"),
        ]
        with (folder / "head.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=given, stdout=log, stderr=log, start_new_session=True
            )

        def answers() -> bool:
            assert process.poll() is None, (folder / "head.log").read_text()
            with contextlib.suppress(OSError):
                return jobs(url) == {}
            return False

        try:
            wait_for(answers, "the dashboard of Ray")
            yield url
        finally:
            kill(process)
