"""A study as a job on a real Ray head with dashboard and token: submitted, killed, cancelled."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import assert_same, found, run, study_text
from fakes import finished
from processes import wait_for
from ray_head import TOKEN, Head

from nas_evidence.spec.record import TrialStatus

pytestmark = [pytest.mark.slow, pytest.mark.ray]

STUDY = study_text(
    "far", 360, n_trials=8, scheduling="batch", batch=2, resources={"workers": 1},
    dataset={"name": "digits", "max_train": 200, "max_test": 50},
    plan={"epochs": 360, "batch_size": 16, "online": {"every": 90, "curvature": "diag_ef"}},
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study file, and `calm`: the study as it ends undisturbed."""
    home = tmp_path_factory.mktemp("s")
    (home / "far.toml").write_text(STUDY)
    run("search", "far.toml", "--out", "calm", "--executor", "inline", folder=home)
    return home


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[Head]:
    head = Head(home)
    head.start()
    try:
        yield head
    finally:
        head.close()


def submit(head: Head, name: str, *more: str) -> str:
    where = ("--address", head.url, "--store", head.folder / name, "--name", name)
    return head.run("submit", "far.toml", *where, *more)


def of(head: Head, name: str) -> tuple[str, ...]:
    return ("--address", head.url, "--name", name)


def n_stored(store: Path) -> int:
    return len(list(store.glob("trials/[0-9]*.parquet")))


@contextmanager
def held(head: Head, name: str) -> Iterator[None]:
    """Hold the driver of a study during the block, so that it cannot end in the meantime."""
    wait_for(lambda: head.drivers(name), f"the driver of {name}")
    pids = head.drivers(name)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def under_way(store: Path) -> list[int]:
    """Return the trials that have a checkpoint and are not over."""
    with_checkpoint = {int(p.parts[-3]) for p in store.glob("checkpoints/*/attempt-*/epoch-*.pt")}
    return sorted(with_checkpoint - {int(p.name[:6]) for p in store.glob("trials/[0-9]*.parquet")})


def assert_undisturbed(head: Head, store: Path) -> None:
    calm, here = (found(f, without=["attempt"]) for f in (head.folder / "calm", store))
    assert_same(calm, here)


@pytest.mark.soak
def test_cancelled_and_resumed_a_job_ends_with_the_undisturbed_table(head: Head) -> None:
    store = head.folder / "first"
    assert "nas-first-1 submitted" in submit(head, "first")
    with held(head, "first"):
        # The same name again: nothing is started, and the way to follow is told.
        again = submit(head, "first")
        assert "already; nothing was submitted" in again
        assert f"status --follow --address {head.url} --name first" in again
        other = ("--address", head.url, "--store", "/elsewhere", "--name", "first")
        assert "another name" in head.run("submit", "far.toml", *other, code=2)

    wait_for(lambda: n_stored(store) >= 1 and under_way(store), "a trial and a checkpoint")
    assert "nas-first-1 stopped" in head.run("cancel", *of(head, "first"))
    assert 1 <= len(finished(store)) < 8
    assert "first-1 stopped" in head.run("status", *of(head, "first"))
    assert "has already ended" in head.run("cancel", *of(head, "first"), code=2)

    assert "nas-first-2 submitted" in head.run("resume", store, *of(head, "first"))
    followed = head.run("status", "--follow", *of(head, "first"))
    assert "nas-first-2 succeeded" in followed
    assert "[8/8]" in followed
    assert_undisturbed(head, store)
    secret = [p for p in store.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert not secret


@pytest.mark.long
def test_killed_driver_and_killed_head_change_nothing(head: Head) -> None:
    store = head.folder / "killed"
    submit(head, "killed")
    wait_for(lambda: n_stored(store) >= 1 and under_way(store), "a trial and a checkpoint")
    for pid in head.drivers("killed"):
        os.kill(pid, signal.SIGKILL)
    told = head.run("status", "--follow", *of(head, "killed"), code=1)
    assert "nas-killed-1 failed" in told
    assert f"resume {store} --address" in told

    # The first job has ended, and its name is still taken.
    other = ("--address", head.url, "--store", "/elsewhere", "--name", "killed")
    refused = head.run("submit", "far.toml", *other, code=2)
    assert f"with the store {store} (nas-killed-1 FAILED: " in refused
    again = submit(head, "killed")
    assert "nas-killed-2 submitted" in again
    assert "nas-killed-1 failed (" in again
    n_before = n_stored(store)
    wait_for(lambda: n_stored(store) > n_before and under_way(store), "another trial")
    head.kill()
    wait_for(lambda: not head.drivers("killed"), "the end of the orphaned driver")
    n_before = n_stored(store)
    assert n_before < 8
    assert "does not answer" in head.run("status", *of(head, "killed"), code=2)
    head.start()
    assert "knows no study named" in head.run("status", "--follow", *of(head, "killed"), code=2)

    assert "nas-killed-1 submitted" in head.run("resume", store, *of(head, "killed"))
    assert "nas-killed-1 succeeded" in head.run("status", "--follow", *of(head, "killed"))
    assert_undisturbed(head, store)


@pytest.mark.soak
def test_two_studies_at_once_and_one_trial_cancelled_in_one_of_them(head: Head) -> None:
    one, other = head.folder / "one", head.folder / "other"
    # Trials that take longer than the command that cancels one of them.
    submit(
        head, "one", "--trials", "2", "--set", "plan.epochs=6000", "--set", "plan.online.every=150"
    )
    submit(head, "other")
    wait_for(lambda: under_way(one) and under_way(other), "a checkpoint of both")
    trial = under_way(one)[0]
    assert f"trial {trial}: cancelled" in head.run("cancel", trial, *of(head, "one"))
    assert "status=cancelled" in head.run("status", "--log", trial, *of(head, "one"))
    for name in ("one", "other"):
        assert f"nas-{name}-1 succeeded" in head.run("status", "--follow", *of(head, name))
    statuses = {row.trial_id: row.status for row in finished(one).values()}
    assert statuses.pop(trial) is TrialStatus.CANCELLED
    assert set(statuses.values()) == {TrialStatus.COMPLETE}
    assert_undisturbed(head, other)


def test_a_wrong_or_missing_token_is_one_line(head: Head, tmp_path: Path) -> None:
    wrong = head.run("status", "--log", *of(head, "far"), code=2, RAY_AUTH_TOKEN="wrong")
    assert wrong.count("\n") == 1
    assert "refuses the token" in wrong
    assert "wrong" not in wrong
    missing = head.run(
        "status", "--log", *of(head, "far"), code=2, HOME=str(tmp_path), RAY_AUTH_MODE=""
    )
    assert missing.count("\n") == 1
    assert "none was found" in missing


@pytest.mark.long
def test_a_driver_that_runs_here_joins_the_cluster(head: Head) -> None:
    options = ("--out", "joined", "--address", head.gcs, "--trials", "2")
    assert "2 complete" in head.run("search", "far.toml", *options)


@pytest.mark.long
def test_nodes_on_one_host_do_not_take_the_working_directory_from_each_other(head: Head) -> None:
    head.add_node()
    wait_for(lambda: "Ray runtime started" in (head.folder / "node.log").read_text(), "the node")
    short = ("--set", "plan.epochs=4", "--set", "plan.online.every=2")
    submit(head, "hosted", "--trials", "4", "--workers", "3", *short)
    assert "nas-hosted-1 succeeded" in head.run("status", "--follow", *of(head, "hosted"))
