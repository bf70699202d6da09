"""A study behind a URI: whatever machine is lost, another goes on to the same table."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import Context
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import finished, results_in, study, told_in
from messages import refused
from toy_worker import Toy, run_at

import nas_evidence.driver.mirror as mirror_module
import nas_evidence.storage.store as remote_module
from nas_evidence.api.control import opened
from nas_evidence.cli.watch import watch
from nas_evidence.driver.mirror import Mirror, WorkingCopy, working_copy
from nas_evidence.driver.plan import assignment_of
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.reporting.page import ReportPaths
from nas_evidence.spec.record import SliceReport
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import StudyError
from nas_evidence.storage.events import Launched
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.holding import Holder, boot_id, holder_in, namespace
from nas_evidence.storage.log import Log, log_files, read_log
from nas_evidence.storage.requests import request_cancel, withdraw
from nas_evidence.storage.state import State
from nas_evidence.storage.store import Stamp, Store
from nas_evidence.storage.study_folder import (
    holder_of,
    is_locked,
    read_study,
)
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.stored import StoredWorker

STUDY = study(
    scheduling="batch",
    batch=3,
    sampler={},
    plan={"epochs": 4, "online": {"every": 2}},
    pruning={"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 2},
)
#: Files that a finished study has at its store, beside the tables.
LEFT = {"study.toml", "logs/events/000000.jsonl"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    # A lost machine does not tidy up.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("machine")))


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}/s"


def search(store: Any, spec: StudySpec = STUDY, *, steal: bool = False) -> None:
    run_at(store, spec, steal=steal)


def table(folder: Path) -> list[tuple[object, ...]]:
    """Return results, weights and proposals, without what may differ: attempts."""
    *rows, proposals = results_in(folder)
    weights = sorted((path.name, path.read_text()) for path in (folder / "models").iterdir())
    return [*rows, tuple(weights), proposals]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The study in a plain folder, undisturbed."""
    folder = tmp_path_factory.mktemp("calm")
    search(WorkingCopy(folder))
    found = table(folder)
    assert {row[3] for row in found[:-3]} == {"complete", "pruned"}
    return found


def pulled(uri: str) -> Path:
    store = Mirror(uri)
    store.pull()
    KEPT.append(store)
    return store.folder


KEPT: list[Mirror] = []  # their folders live as long as they do


def test_a_study_at_a_uri_is_the_same_and_all_of_it_is_there(
    uri: str, calm: list[tuple[object, ...]]
) -> None:
    store = Mirror(uri)
    search(store)
    assert table(store.folder) == calm
    assert table(pulled(uri)) == calm
    names = Store(uri).list()
    tables = {name for name in names if name.split("/")[0] in ("trials", "evidence", "terms")}
    assert len(tables) == 3 * STUDY.n_trials
    assert names.keys() >= LEFT
    assert not [name for name in names if name.startswith("checkpoints/")]
    assert not Store(uri).get("lock")
    weights = {name for name in names if name.startswith("models/")}
    assert len(weights) == sum(row[3] == "complete" for row in calm[:-3])


class MachineLostError(BaseException):
    """Power is gone: nothing of this machine writes from now on."""


def lost_at(patch: pytest.MonkeyPatch, n: int) -> Callable[[], int]:
    """Lose this machine at the n-th change of the store; return how many there were so far."""
    done, upload, put, delete = 0, Store._upload, Store._put, Store._delete

    def change() -> None:
        nonlocal done
        done += 1
        if done >= n:
            raise MachineLostError

    def uploading(self: Store, name: str, path: Path) -> None:
        change()
        upload(self, name, path)

    def putting(self: Store, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        change()
        return put(self, name, content, if_absent=if_absent)

    def deleting(self: Store, paths: list[str]) -> None:
        for path in paths:  # any of those of one request may be left
            change()
            delete(self, [path])

    patch.setattr(Store, "_upload", uploading)
    patch.setattr(Store, "_put", putting)
    patch.setattr(Store, "_delete", deleting)
    return lambda: done


def leave_holder(uri: str, *, seconds_ago: float, host: str = "elsewhere") -> None:
    heard_of = time.time() - seconds_ago
    holder = Holder(4321, host, "another", heard_of, heard_of)
    Store(uri).put("lock", sealed_json(asdict(holder)).encode())


@pytest.mark.slow
@pytest.mark.parametrize("start", range(6))
def test_a_machine_lost_at_any_write_costs_nothing(
    uri: str, calm: list[tuple[object, ...]], start: int
) -> None:
    # Lost again and again, each time a few writes later, until a machine lives long enough.
    losses, n = 0, 1 + start
    while True:
        with pytest.MonkeyPatch.context() as patch:
            lost_at(patch, n)
            try:
                search(Mirror(uri), steal=True)
                break
            except MachineLostError:
                losses += 1
        n += 11
        leave_holder(uri, seconds_ago=61)
    assert losses > 2
    folder = pulled(uri)
    assert table(folder) == calm
    assert not list((folder / "checkpoints").glob("*"))
    assert read_log(folder).state.rows.keys() == set(range(6))


def cleaned(folder: Path) -> None:
    """Remove all but the file that a driver has open, as a cleaner of temporary files may."""
    kept = {folder / "lock", log_files(folder)[-1]}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):  # not empty
                path.rmdir()
        elif path not in kept:
            path.unlink()


def test_what_vanishes_here_stays_at_the_store_and_is_fetched_again(
    uri: str, calm: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, deleted, pushes = Mirror(uri), list[str](), 0
    others = {"data/train.parquet": b"the only copy", "logs/conditions-0.toml": b"seal"}
    plain_push, plain_delete = Mirror.push, Store._delete

    def push(self: Mirror, *, logs: bool = False) -> None:
        nonlocal pushes
        pushes += 1
        for name, content in others.items():
            if pushes == 1:
                (self.folder / name).parent.mkdir(exist_ok=True)
                write_whole(self.folder / name, content)
        plain_push(self, logs=logs)
        cleaned(self.folder)

    def delete(self: Store, paths: Sequence[str]) -> None:
        deleted.extend(path.partition("/s/")[2] for path in paths)
        plain_delete(self, paths)

    monkeypatch.setattr(Mirror, "push", push)
    monkeypatch.setattr(Store, "_delete", delete)
    search(store)
    assert pushes > STUDY.n_trials
    assert {name for name in deleted if not name.startswith("checkpoints/")} <= {"lock", ".probe"}
    assert {name: Store(uri).get(name) for name in others} == others
    assert table(pulled(uri)) == calm
    assert not [name for name in Store(uri).list() if name.startswith("checkpoints/")]


def test_a_checkpoint_that_vanishes_from_a_worker_stays_stored(uri: str, tmp_path: Path) -> None:
    worker = StoredWorker(uri, [], STUDY.resources, make_worker=Toy)
    assignment = assignment_of(ArchitectureSpec(family="linear", values={}), 0, 0, STUDY)
    worker.start(Launch(assignment, tmp_path / "checkpoints" / "000000" / "attempt-1", None))
    worker.advance(2)
    assert worker._folder is not None
    for path in worker._folder.rglob("*.pt"):
        path.unlink()
    worker.advance(4)
    names = ["checkpoints/000000/attempt-1/epoch-000002.pt"]
    names += ["checkpoints/000000/attempt-1/epoch-000004.pt"]
    assert [*Store(uri).list()] == names
    worker.advance(6)  # which removes the one before
    assert [*Store(uri).list()] == [names[0], names[1].replace("4", "6")]
    worker.park()


def test_a_parked_trial_is_stored_and_a_slice_that_is_not_saved_is_no_checkpoint(
    uri: str, tmp_path: Path
) -> None:
    class Seldom(Toy):
        def advance(self, until_epoch: int) -> SliceReport:
            self.epoch = until_epoch
            return self.report().model_copy(update={"saved": False})

        def park(self) -> None:
            super().advance(self.epoch)

    name = "checkpoints/000000/attempt-1/epoch-000002.pt"
    assignment = assignment_of(ArchitectureSpec(family="linear", values={}), 0, 0, STUDY)
    keeper = Mirror(uri)
    keeper.folder.mkdir()
    worker = partial(StoredWorker, uri, make_worker=Seldom)
    executor = keeper.around(InlineExecutor([], STUDY.resources, make_worker=worker))
    executor.launch(Launch(assignment, keeper.folder / Path(name).parent, None))
    assert len(executor.poll(0.0)) == 1
    executor.advance(0, 2)
    assert len(executor.poll(0.0)) == 1
    assert name not in Store(uri).list()
    assert not (keeper.folder / name).exists()
    executor.park(0)
    assert name in Store(uri).list()


def test_files_here_stay_young_without_being_stored_again(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Mirror(uri)
    search(store)
    file, old = store.folder / "study.toml", 1_000_000_000
    os.utime(file, (old, old))
    store.push()
    os.utime(file, (old, old))
    store._keep_young()
    assert file.stat().st_atime == old  # an hour has not passed
    monkeypatch.setattr(mirror_module, "YOUNG_EVERY", 0.0)
    monkeypatch.setattr(Store, "upload", lambda self, files: pytest.fail(f"stored {[*files]}"))
    store._keep_young()
    assert file.stat().st_atime > old + 1e8
    assert file.stat().st_mtime == old
    store.push()


def test_only_what_changed_travels(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Mirror(uri)
    search(store)
    sent: list[str] = []
    monkeypatch.setattr(Store, "upload", lambda self, files: sent.extend(files))
    monkeypatch.setattr(Store, "put", lambda self, name, content, **_: sent.append(name))
    store.push()
    assert sent == []
    (store.folder / "study.toml").write_text("changed")
    store.push()
    assert sent == ["study.toml"]


def test_two_drivers_on_two_machines_are_refused(uri: str) -> None:
    with Mirror(uri).held():
        with refused("study-held-here", "memory:"):
            Mirror(uri).held().__enter__()
        with refused("study-held", "memory:"):
            Context().run(Mirror(uri).held().__enter__)
        folder = pulled(uri)
        assert is_locked(folder), "status says that it runs"
    assert not is_locked(pulled(uri))
    leave_holder(uri, seconds_ago=30)
    for steal in (False, True):
        with refused("study-held", 4321, "elsewhere"):
            Mirror(uri).held(steal=steal).__enter__()


def test_the_study_of_a_process_that_lives_here_is_not_taken(uri: str) -> None:
    mine = Holder(os.getpid(), socket.gethostname(), boot_id(), time.time(), time.time() - 9)
    Store(uri).put("lock", sealed_json(asdict(mine)).encode())
    with pytest.raises(ValueError, match="another process works on"):  # another container's
        Mirror(uri).held().__enter__()


OTHER = "pid:[1]"


@pytest.mark.parametrize("pid", [1 << 22, os.getpid()], ids=["unknown here", "a process here"])
def test_a_driver_in_another_container_of_this_host_is_refused_then_needs_steal(
    uri: str, pid: int
) -> None:
    host, now = socket.gethostname(), time.time()
    for silent, code in ((0.0, "study-held"), (61.0, "holder-silent")):
        there = Holder(pid, host, boot_id(), now - silent, now - 99, OTHER)
        assert not there.is_me
        Store(uri).put("lock", sealed_json(asdict(there)).encode())
        with refused(code, pid, host):
            Mirror(uri).held().__enter__()
    with Mirror(uri).held(steal=True):
        assert (holder_in(Store(uri).get("lock") or b"") or there).is_me


def test_a_dead_process_of_this_container_is_followed_at_once(uri: str) -> None:
    host, now = socket.gethostname(), time.time()
    for known in (namespace(), ""):  # releases before this one noted none
        dead = Holder(1 << 22, host, boot_id(), now, now - 9, known)
        Store(uri).put("lock", sealed_json(asdict(dead)).encode())
        with Mirror(uri).held():
            pass


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True).returncode
    != 0,
    reason="this user may make no namespace of processes",
)
def test_a_second_driver_in_a_namespace_of_its_own_is_refused(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/st"
    code = (
        "import sys; from nas_evidence.driver.mirror import Mirror\n"
        "with Mirror(sys.argv[1]).held(): pass"
    )
    with Mirror(place).held():
        inside = ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", code, place]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"another process works on {place} (process {os.getpid()} of" in done.stderr


def test_the_study_of_a_silent_host_needs_steal(uri: str) -> None:
    leave_holder(uri, seconds_ago=61)
    with pytest.raises(ValueError, match="option `steal`"):
        Mirror(uri).held().__enter__()
    with Mirror(uri).held(steal=True):
        holder = holder_in(Store(uri).get("lock") or b"")
        assert holder.pid == os.getpid()
    assert not Store(uri).get("lock")


@contextmanager
def asleep(uri: str) -> Iterator[Mirror]:
    """A driver at a store whose machine sleeps, while another one takes the study over."""
    store, other = Mirror(uri), Mirror(uri)
    who = rf"process {os.getpid()} of host .* {uri}"
    with pytest.raises(StudyStoppedError, match=who), store.held():  # noqa: PT012
        with closing(Log(store.folder)) as log:
            log.write(Launched(trial_id=0, attempt=1))
        store.push()
        leave_holder(uri, seconds_ago=61)
        with other.held(steal=True), closing(Log(other.folder)) as log:
            log.write(Launched(trial_id=0, attempt=2))
        before = contents(uri)
        yield store
        assert contents(uri) == before


def contents(uri: str) -> dict[str, bytes | None]:
    return {name: Store(uri).get(name) for name in Store(uri).list() if name != "lock"}


@pytest.mark.parametrize("later", [0.0, 3600.0])
def test_the_next_flush_of_a_superseded_driver_fails_however_long_it_slept(
    uri: str, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "FENCE_EVERY", 1e9)  # it has just looked
    wall = time.time
    with asleep(uri) as store:
        monkeypatch.setattr(time, "time", lambda: wall() + later)
        with closing(Log(store.folder)) as log:
            log.write(Launched(trial_id=0, attempt=3))
        store.push_log()
    assert read_log(pulled(uri)).state.under_way == {0: 2}
    assert read_log(pulled(uri)).problems == []


@pytest.mark.parametrize(("wall", "steady"), [(0.0, 60.0), (60.0, 0.0), (-3600.0, 60.0)])
def test_a_superseded_driver_looks_before_it_stores_or_removes_anything(
    uri: str, wall: float, steady: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clock stands still while a machine sleeps, and the other may be set back."""
    clocks = time.time, time.monotonic
    with asleep(uri) as store:
        monkeypatch.setattr(time, "time", lambda: clocks[0]() + wall)
        monkeypatch.setattr(time, "monotonic", lambda: clocks[1]() + steady)
        with pytest.raises(StudyStoppedError, match="has taken over"):
            store.store.delete(["logs/events/000000.jsonl"])
        (store.folder / "study.toml").write_text("late")
        store.push()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_a_machine_that_loses_its_lease_at_any_write_changes_nothing_more(
    calm: list[tuple[object, ...]], start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another study loses it some writes later, until one has ended before.
    check, steady, lose_at = Mirror._check_fence, time.monotonic, range(1 + 3 * start, 999, 17)

    def loses(uri: str, at: int) -> dict[str, bytes | None] | None:
        """Return what the next machine had stored when this one woke up, if it slept."""
        n, stored = 0, None

        def sleeps(self: Mirror) -> None:
            nonlocal n, stored
            n += 1
            if n == at:
                leave_holder(uri, seconds_ago=61)
                search(Mirror(uri), steal=True)
                stored = contents(uri)
                patch.setattr(time, "monotonic", lambda: steady() + 100.0)
            check(self)

        with monkeypatch.context() as patch, suppress(StudyStoppedError):
            patch.setattr(Mirror, "_check_fence", sleeps)
            search(Mirror(uri))
        return stored

    for losses, at in enumerate(lose_at):  # noqa: B007
        uri = f"memory://{uuid.uuid4().hex}/s"
        stored = loses(uri, at)
        assert table(pulled(uri)) == calm
        if stored is None:
            break
        assert contents(uri) == stored
    assert losses > 2


def test_of_two_drivers_that_take_a_study_up_the_first_flush_decides(uri: str) -> None:
    search(Mirror(uri))
    one, other = Mirror(uri), Mirror(uri)
    with pytest.raises(StudyStoppedError, match="taken over"), one.held():  # noqa: PT012
        Store(uri).put("lock", b"")
        with other.held(), closing(Log(other.folder)) as log:
            log.write(Launched(trial_id=0, attempt=8))
        with closing(Log(one.folder)) as log:
            log.write(Launched(trial_id=0, attempt=9))
    assert read_log(pulled(uri)).state.under_way == {0: 8}


def test_an_object_of_the_log_whose_answer_was_lost_or_of_which_half_arrived_is_ours(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, halves = Store._put, iter((1, 2))

    def lost(self: Store, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        half = next(halves, 0) if if_absent and name.startswith("logs/events/") else 0
        if half and put(self, name, content[: len(content) // half]):
            raise ConnectionResetError("reset by peer")
        return put(self, name, content, if_absent=if_absent)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Store, "_put", lost)
    store = Mirror(uri)
    with store.held():
        for attempt in (1, 2):
            with closing(Log(store.folder)) as log:
                log.write(Launched(trial_id=0, attempt=attempt))
            store.push()
    assert read_log(pulled(uri)).state.under_way == {0: 2}
    assert read_log(pulled(uri)).problems == []


def flushed(uri: str, n: int) -> State:
    """Store the log of a driver in so many objects; return its state."""
    store = Mirror(uri)
    with store.held(), closing(Log(store.folder)) as log:
        for attempt in range(n):
            log.write(Launched(trial_id=attempt % 9, attempt=attempt))
            store.push_log()
    return log.state


def objects(uri: str) -> tuple[list[str], list[str]]:
    """Return the joined objects of the log at a store, and the others."""
    names = sorted(Store(uri).list("logs/events"))
    return [n for n in names if "-" in n], [n for n in names if "-" not in n]


@pytest.mark.slow
def test_every_256_objects_are_fetched_as_one_and_stay(uri: str) -> None:
    state = flushed(uri, 3 * 256 + 5)
    joined, pieces = objects(uri)
    assert joined == [
        f"logs/events/000{a}-000{b}.jsonl" for a, b in (("000", 255), (256, 511), (512, 767))
    ]
    assert len(pieces) == 3 * 256 + 5
    folder = pulled(uri)
    assert len(log_files(folder)) == 3 + 5 == len(list((folder / "logs" / "events").iterdir()))
    assert read_log(folder).problems == []
    assert replace(read_log(folder).state, in_order=False) == state
    flushed(uri, 256)  # another driver goes on in the midst of a block
    assert objects(uri)[0][3:] == ["logs/events/000768-001023.jsonl"]
    folder = pulled(uri)
    assert read_log(folder).problems == []
    assert read_log(folder).n_lines == 1 + 773 + 1 + 256
    Store(uri).delete(objects(uri)[0])
    assert read_log(pulled(uri)).n_lines == 1 + 773 + 1 + 256


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 100, -1])
def test_instead_of_a_damaged_joined_object_its_pieces_are_read(
    uri: str, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mirror_module, "JOINED", 4)
    for place in (uri, f"file://{tmp_path}/s"):
        state = flushed(place, 10)
        name = objects(place)[0][1]
        Store(place).put(name, (Store(place).get(name) or b"")[:size])
        folders = [pulled(place), *([tmp_path / "s"] if place != uri else [])]
        for folder in folders:
            assert (read_log(folder).problems, read_log(folder).state) == ([], state)


def test_a_lost_object_of_the_log_is_named_and_the_next_driver_goes_on(uri: str) -> None:
    search(Mirror(uri))
    flushed(uri, 3)
    pieces = objects(uri)[1]
    Store(uri).delete([pieces[-2]])
    assert read_log(pulled(uri)).problems == [
        f"lines are missing before line 1 of {Path(pieces[-1]).name}"
    ]
    store = Mirror(uri)
    search(store)
    assert read_log(pulled(uri)).problems == []
    assert len(objects(uri)[1]) < 3, "it was mended"
    assert read_log(pulled(uri)).state.rows.keys() == set(range(6))


def test_requests_reach_the_driver_through_the_store_and_go_when_done(uri: str) -> None:
    store, other = Mirror(uri), Mirror(uri)
    with store.held():
        other.pull()
        request_cancel(other.folder, 3)
        other.send("requests/cancel-000003")
        store.look_for_requests()
        request = store.folder / "requests" / "cancel-000003"
        assert request.exists()
        withdraw(store.folder, 3)
        store.push()
        store.look_for_requests()
        assert not request.exists()
    assert "requests/cancel-000003" not in Store(uri).list()


def test_who_looks_while_the_driver_removes_what_was_just_listed_lists_again(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(Mirror(uri))
    remote, names = Store(uri), Store.list
    for name in ("checkpoints/000009/attempt-1/epoch-000002.pt", "trials/000009-a1.parquet"):
        remote.put(name, b"{}")

    def listed_late(self: Store, below: str = "") -> dict[str, Stamp]:
        found = names(self, below)
        remote.delete(name for name in found if "000009" in name)
        return found

    monkeypatch.setattr(Store, "list", listed_late)
    folder = pulled(uri)
    assert not (folder / "trials" / "000009-a1.parquet").exists()
    assert len(read_table(folder, "trials")) == STUDY.n_trials


def test_a_store_that_stays_silent_stops_the_study_and_no_trial_is_to_blame(
    uri: str, monkeypatch: pytest.MonkeyPatch, calm: list[tuple[object, ...]]
) -> None:
    monkeypatch.setattr(remote_module, "PATIENCE", 0.0)
    plain = Store._upload

    def upload(self: Store, name: str, path: Path) -> None:
        if name.startswith("checkpoints/000002") and name.endswith(".pt"):
            raise StoreError("x", "the store is silent")  # on the worker
        plain(self, name, path)

    monkeypatch.setattr(Store, "_upload", upload)
    with pytest.raises(StudyStoppedError, match=r"^the store is silent$"):
        search(Mirror(uri))
    assert 2 not in finished(pulled(uri))
    monkeypatch.setattr(Store, "_upload", plain)
    search(Mirror(uri))
    assert table(pulled(uri)) == calm


def test_a_file_uri_is_a_store_and_leaves_no_half_written_file(
    tmp_path: Path, calm: list[tuple[object, ...]]
) -> None:
    place = tmp_path / "nfs" / "s"
    search(working_copy(f"file://{place}"))
    assert table(place)[:-1] == calm[:-1], "the tables of the store itself can be read"
    assert table(pulled(f"file://{place}")) == calm
    assert not list(place.rglob(".*"))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere://bucket/s", "Protocol not known: nowhere"),
        ("gs://bucket/s", "cannot be opened: install"),
    ],
)
def test_what_is_missing_for_a_uri_is_said_in_one_line(place: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        working_copy(place)
    assert "\n" not in str(caught.value)


def test_a_path_is_a_folder_store(tmp_path: Path) -> None:
    store = working_copy(str(tmp_path))
    assert (store.folder, store.make_worker) == (tmp_path, None)


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Mirror(f"file://{tmp_path}/file/s")
    with pytest.raises(StoreError, match=r"the store file://.* cannot be used: .*Not a directory"):
        store.held().__enter__()


# --- an S3-like service, over HTTP


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Return the address of an S3-like server with the bucket `nas`."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    values = (f"http://{host}:{port}", "test", "test", "us-east-1")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in zip(keys, values, strict=True):
            patch.setenv(key, value)
        Store("s3://nas")._fs.mkdir("nas")
        yield values[0]
        server.stop()


@pytest.mark.long
@pytest.mark.slow
def test_a_study_at_s3_survives_the_loss_of_its_machine(
    s3: str, calm: list[tuple[object, ...]]
) -> None:
    uri = f"s3://nas/{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        lost_at(patch, 30)
        with pytest.raises(MachineLostError):
            search(Mirror(uri))
    assert finished(pulled(uri))
    leave_holder(uri, seconds_ago=61)
    search(Mirror(uri), steal=True)
    assert table(pulled(uri)) == calm


@pytest.mark.long
@pytest.mark.slow
def test_at_s3_what_is_wrong_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"s3://nobody/s cannot be used: .*bucket") as caught:
        Mirror("s3://nobody/s").held().__enter__()
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(StoreError, match=r"[Cc]redentials"):
        Mirror("s3://nas/s").held().__enter__()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        Mirror("s3://nas/s").held().__enter__()


def test_a_holder_fetched_to_look_at_is_read(uri: str) -> None:
    leave_holder(uri, seconds_ago=0)
    assert holder_of(pulled(uri)).host == "elsewhere"


def test_a_write_that_waited_for_the_store_is_not_made_after_a_takeover(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is silent for a minute; another takes over before the next try."""
    steady, tries = time.monotonic, list[str]()

    def silent(_: object, path: str, name: str, **__: object) -> None:
        tries.append(name)
        raise ConnectionResetError("reset by peer")

    def taken(seconds: float) -> None:
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        with other.held(steal=True), closing(Log(other.folder)) as log:
            log.write(Launched(trial_id=0, attempt=2))
        monkeypatch.setattr(time, "monotonic", lambda: steady() + 100.0)

    store, other = Mirror(uri), Mirror(uri)
    with pytest.raises(StudyStoppedError, match="taken over"), store.held():  # noqa: PT012
        leave_holder(uri, seconds_ago=61)
        monkeypatch.setattr(type(store.store._fs), "put_file", silent)
        monkeypatch.setattr(time, "sleep", taken)
        (store.folder / "study.toml").write_text("late")
        store.push()
    assert [name.rpartition("/")[2] for name in tries] == ["study.toml"]
    assert Store(uri).get("study.toml") is None


def test_who_only_looks_fetches_no_models_no_data_and_no_report(
    uri: str, calm: list[tuple[object, ...]]
) -> None:
    search(Mirror(uri))
    for name in (
        "data/train.parquet",
        "report/index.html",
        "export/model.safetensors",
        "study.db",
    ):
        Store(uri).put(name, b"large")
    looking, whole = Mirror(uri), Mirror(uri)
    looking.looking = "results"
    for store in (looking, whole):
        store.pull()
    files = [path for path in looking.folder.rglob("*") if path.is_file()]
    names = {path.relative_to(looking.folder).parts[0] for path in files}
    assert names.isdisjoint({"data", "models", "report", "export", "study.db"})
    assert told_in(looking.folder) == told_in(whole.folder)
    assert finished(looking.folder) == finished(whole.folder)
    assert table(whole.folder) == calm
    (looking.folder / "report").mkdir()
    (looking.folder / "report" / "index.html").write_text("made here")
    looking.pull()
    assert (looking.folder / "report" / "index.html").read_text() == "made here"


def test_watching_changes_nothing_at_the_store(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search(Mirror(uri))

    def once(folder: Path, **_: object) -> Iterator[ReportPaths]:
        (folder / "report").mkdir()
        (folder / "report" / "index.html").write_text("a report")
        yield ReportPaths(folder / "report" / "index.html", folder, folder)

    monkeypatch.setattr("nas_evidence.reporting.live.watch", once)
    monkeypatch.setattr(Store, "_change", lambda *_: pytest.fail("the store was changed"))
    watch(uri)
    live, report = (line.split(": ")[1] for line in capsys.readouterr().out.splitlines())
    assert report == live


def test_a_store_that_does_not_answer_is_said_soon_to_who_looks_and_no_log_is_printed(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_module, "LOOKING", 0.2)
    never = threading.Event()
    monkeypatch.setattr(Store, "get", lambda self, name: never.wait())
    with pytest.raises(StoreError, match="it has not answered for 0 seconds"):
        opened(uri)
    never.set()
    monkeypatch.undo()
    monkeypatch.setattr(remote_module, "LOOKING", 0.2)

    def refused(self: object, path: str) -> bytes:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(type(Store(uri)._fs), "cat_file", refused)
    with pytest.raises(StoreError, match="cannot be used: nobody listens"):
        opened(uri)
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_an_error_names_the_store_and_not_the_folder_that_it_is_in_here(uri: str) -> None:
    store = Mirror(uri)
    with refused("not-a-study-folder", uri), store.held():
        read_study(store.folder)
    Store(uri).put("study.toml", b"name = 1")
    with pytest.raises(StudyError, match=rf"^{uri}/study\.toml:1: name must be text") as caught:
        opened(uri)
    assert "nas-evidence-" not in str(caught.value)


def test_a_study_whose_taking_was_confirmed_to_nobody_is_held(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store.put

    def lost(self: Store, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """The first answer is lost on the way; the client of the service asks again."""
        written = put(self, name, content, if_absent=if_absent)
        return written and (not if_absent or put(self, name, content, if_absent=True))

    monkeypatch.setattr(Store, "put", lost)
    with Mirror(uri).held(), refused("study-held", "memory:"):
        Context().run(Mirror(uri).held().__enter__)
    assert not Store(uri).get("lock")
