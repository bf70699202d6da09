"""In a running event loop, as in a notebook, and in a thread of one, functions give the same."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_server import JOB, JobServer, job_server

import nas_evidence

pytestmark = [
    pytest.mark.slow,
    # Ray's client follows a job with `ssl=None`, as aiohttp no longer likes it.
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated"),
]


def plainly(work: Callable[[], Any]) -> Any:
    return work()


def in_a_loop(work: Callable[[], Any]) -> Any:
    async def cell() -> Any:
        return work()

    return asyncio.run(cell())


def in_a_thread_of_a_loop(work: Callable[[], Any]) -> Any:
    async def cell() -> Any:
        return await asyncio.to_thread(work)

    return asyncio.run(cell())


HOW = pytest.mark.parametrize("how", [plainly, in_a_loop, in_a_thread_of_a_loop])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobServer]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with job_server() as server:
        yield server


@HOW
def test_a_job_is_stopped_and_followed_to_its_end(how: Any, cluster: JobServer) -> None:
    address = f"http://127.0.0.1:{cluster.port}"
    said = how(lambda: nas_evidence.cancel(address=address, name="digits"))
    assert said == f"job:    {JOB} stopped, store /nowhere/s"
    assert f"POST /api/jobs/{JOB}/stop" in cluster.asked


@HOW
def test_the_status_is_asked_of_the_cluster_if_the_store_is_not_seen(
    how: Any, cluster: JobServer
) -> None:
    address = f"http://127.0.0.1:{cluster.port}"
    facts = {"name": "digits", "state": "running", "n_trials": 3, "n_finished": 1, "by_status": {},
             "running": [], "architectures": {}, "best": None, "held_by": None}  # fmt: skip
    cluster.printed = json.dumps(facts) + "\n"
    found = how(lambda: nas_evidence.status(address=address, name="digits"))
    assert (found.n_finished, found.job, found.job_state) == (1, JOB, "running")


@pytest.mark.long
@HOW
def test_a_search_and_its_results(how: Any, tmp_path: Path) -> None:
    x = np.array([[k % 7, k % 3] for k in range(60)], np.float32)
    y = np.arange(60) % 2

    def work() -> tuple[int, bool, int]:
        study = nas_evidence.search(
            x, y, n_trials=2, out=tmp_path / "s", executor="local", workers=2,
            settings={"plan.epochs": 2, "finalists": 0}, time_limit="5m",
        )  # fmt: skip
        page, export = study.report(tmp_path / "r"), study.export(tmp_path / "e")
        predicted = study.predict(x).to_frame()
        nas_evidence.resume(tmp_path / "s", n_trials=3, executor="inline")
        n_finished = nas_evidence.status(tmp_path / "s").n_finished
        return n_finished, page.is_file() and export.is_dir(), len(predicted)

    assert how(work) == (3, True, 60)
