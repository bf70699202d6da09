"""A study behind a URI: whatever machine is lost, another goes on to the same table."""

import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import Silent, asked_in, finished, study, told_in
from messages import refused
from toy_worker import Toy

import nas_evidence.driver.mirror as mirror_module
import nas_evidence.storage.remote_lease as lease_module
import nas_evidence.storage.store as remote_module
from nas_evidence.cli.options import opened
from nas_evidence.cli.watch import watch
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.mirror import Mirror, WorkingCopy, working_copy
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.reporting.page import ReportPaths
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import StudyError
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.log import log_path, read_log
from nas_evidence.storage.requests import request_cancel
from nas_evidence.storage.store import Stamp, Store, StoreError
from nas_evidence.storage.study_folder import (
    Lease,
    boot_id,
    is_locked,
    locked,
    open_study,
    read_lease,
    read_study,
)
from nas_evidence.storage.tables import read_table
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
    monkeypatch.setattr(lease_module, "SETTLE", 0.0)
    # A lost machine does not tidy up.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("machine")))


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}/s"


def search(store: Any, spec: StudySpec = STUDY, *, steal: bool = False) -> None:
    """Run a study with its toy in this process, as the command line does."""
    with store.held(steal=steal):
        spec = open_study(store.folder, spec, steal=steal)
        worker: Any = Toy
        if store.make_worker is not None:
            worker = partial(StoredWorker, store.place, make_worker=Toy)
        executor = InlineExecutor(None, spec.resources, make_worker=worker)
        with locked(store.folder, steal=steal):
            Driver(spec, store.folder, store.around(executor), Silent()).run()


def table(folder: Path) -> list[tuple[object, ...]]:
    """Return proposals, results and weights, without what may differ: attempts."""
    trials = read_table(folder, "trials")
    columns = ["trial_id", "replicate", "architecture_key", "status", "cause", "epochs", "seed"]
    weights = sorted((path.name, path.read_text()) for path in (folder / "models").iterdir())
    proposals = [str(architecture) for architecture in asked_in(folder)]
    rows = trials[columns].itertuples(index=False, name=None)
    return [*rows, tuple(weights), tuple(proposals), tuple(sorted(told_in(folder)))]


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
    assert not [name for name in names if name.startswith("checkpoints/") or name == "lock"]
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


def leave_lease(uri: str, *, expires_in: float, host: str = "elsewhere") -> None:
    lease = {"pid": 4321, "host": host, "boot_id": "x", "expires_at": time.time() + expires_in}
    Store(uri).put("lock", sealed_json(lease).encode())


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
        leave_lease(uri, expires_in=-1)
    assert losses > 2
    folder = pulled(uri)
    assert table(folder) == calm
    assert not list((folder / "checkpoints").glob("*"))
    assert read_log(folder).state.rows.keys() == set(range(6))


def test_a_prefix_of_a_push_never_has_a_marker_without_its_tables(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    plain = Store._upload

    def upload(self: Store, name: str, path: Path) -> None:
        there = Store(uri).list()
        if name.startswith("trials/"):
            last = name.split("/")[1]
            assert {f"{t}/{last}" for t in ("evidence", "terms", "curves")} <= there.keys()
            trial = int(last[:6])
            seen.append(name)
            assert any(n.startswith(f"checkpoints/{trial:06d}/attempt-1/") for n in there)
        plain(self, name, path)

    monkeypatch.setattr(Store, "_upload", upload)
    search(Mirror(uri))
    assert len(seen) == STUDY.n_trials


def test_only_what_changed_travels(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Mirror(uri)
    search(store)
    sent: list[str] = []
    monkeypatch.setattr(Store, "upload", lambda self, files: sent.extend(files))
    monkeypatch.setattr(Store, "put", lambda self, name, content: sent.append(name))
    store.push()
    assert sent == []
    (store.folder / "study.toml").write_text("changed")
    store.push()
    assert sent == ["study.toml"]


def test_the_log_is_stored_in_parts_and_read_back_whole(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "PART_BYTES", 10)
    store = Mirror(uri, tmp_path)
    path = log_path(tmp_path)
    path.parent.mkdir()
    written: list[str] = []
    plain = Store.put
    monkeypatch.setattr(Store, "put", lambda self, n, c: (written.append(n), plain(self, n, c))[1])
    for text in (b"0123456", b"789abc", b"", b"defghijklmnopqrstuvw"):
        with path.open("ab") as file:
            file.write(text)
        store.push_log()
    assert [int(name[12:18]) for name in written] == [0, 0, 1, 1, 2, 3]
    assert log_path(pulled(uri)).read_bytes() == path.read_bytes()


def test_two_drivers_on_two_machines_are_refused(uri: str) -> None:
    with Mirror(uri).held():
        with refused("lease-held", "memory:"):
            Mirror(uri).held().__enter__()
        folder = pulled(uri)
        assert is_locked(folder), "status says that it runs"
    assert not is_locked(pulled(uri))
    leave_lease(uri, expires_in=30)
    for steal in (False, True):
        with refused("lease-held", 4321, "elsewhere"):
            Mirror(uri).held(steal=steal).__enter__()


def test_the_lease_of_a_process_that_lives_here_is_not_taken(uri: str) -> None:
    mine = Lease(os.getpid(), socket.gethostname(), boot_id(), time.time() + 60)
    Store(uri).put("lock", sealed_json(asdict(mine)).encode())
    with pytest.raises(ValueError, match="another process works on"):  # another container's
        Mirror(uri).held().__enter__()


def test_the_expired_lease_of_another_host_needs_steal(uri: str) -> None:
    leave_lease(uri, expires_in=-1)
    with pytest.raises(ValueError, match="--steal"):
        Mirror(uri).held().__enter__()
    with Mirror(uri).held(steal=True):
        lease = lease_module.lease_of((Store(uri).get("lock") or b"").decode())
        assert lease.pid == os.getpid()
    assert Store(uri).get("lock") is None


def test_a_driver_whose_lease_was_stolen_writes_nothing_more(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_EVERY", 0.01)
    store = Mirror(uri)

    def stolen() -> None:
        with store.held():
            leave_lease(uri, expires_in=60)
            time.sleep(0.2)
            (store.folder / "study.toml").write_text("late")
            store.push()

    with pytest.raises(StudyStoppedError, match="process 4321 of host elsewhere has taken over"):
        stolen()
    assert Store(uri).list().keys() == {"lock"}
    assert b"4321" in (Store(uri).get("lock") or b"")


def test_a_process_that_slept_through_its_lease_looks_before_it_writes(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_EVERY", 1000.0)  # its thread slept too
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.0)
    store = Mirror(uri)
    with store.held():
        leave_lease(uri, expires_in=60)
        with pytest.raises(StudyStoppedError, match="has taken over"):
            store.push()
        monkeypatch.setattr(Mirror, "push", lambda self, logs: None)


def test_requests_reach_the_driver_through_the_store_and_go_when_done(uri: str) -> None:
    store, other = Mirror(uri), Mirror(uri)
    with store.held():
        other.pull()
        request_cancel(other.folder, 3)
        other.send("requests/cancel-000003")
        store.look_for_requests()
        request = store.folder / "requests" / "cancel-000003"
        assert request.exists()
        request.unlink()
        store.push()
        store.look_for_requests()
        assert not request.exists()
    assert "requests/cancel-000003" not in Store(uri).list()


def test_who_looks_while_the_driver_removes_what_was_just_listed_lists_again(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(Mirror(uri))
    remote, names = Store(uri), Store.list
    for name in ("checkpoints/000009/attempt-1/epoch-000002.pt", "trials/small.parquet"):
        remote.put(name, b"{}")

    def listed_late(self: Store, below: str = "") -> dict[str, Stamp]:
        found = names(self, below)
        remote.delete(name for name in found if "000009" in name or "small" in name)
        return found

    monkeypatch.setattr(Store, "list", listed_late)
    folder = pulled(uri)
    assert not (folder / "trials" / "small.parquet").exists()
    assert len(read_table(folder, "trials")) == STUDY.n_trials


def test_a_store_that_is_silent_for_a_while_is_waited_for(
    uri: str, monkeypatch: pytest.MonkeyPatch, calm: list[tuple[object, ...]]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    n, plain = 0, Store._put

    def flaky(self: Store, name: str, content: bytes, **how: bool) -> bool:
        nonlocal n
        n += 1
        if n % 3 and name != ".probe":
            raise ConnectionResetError("reset by peer")
        return plain(self, name, content, **how)

    monkeypatch.setattr(Store, "_put", flaky)
    search(Mirror(uri))
    assert n > 6
    monkeypatch.setattr(Store, "_put", plain)
    assert table(pulled(uri)) == calm


def test_a_store_that_stays_silent_stops_the_study_and_no_trial_is_to_blame(
    uri: str, monkeypatch: pytest.MonkeyPatch, calm: list[tuple[object, ...]]
) -> None:
    monkeypatch.setattr(remote_module, "PATIENCE", 0.0)
    plain = Store._upload

    def upload(self: Store, name: str, path: Path) -> None:
        if name.startswith("checkpoints/000002") and name.endswith(".pt"):
            raise StoreError("the store is silent")  # on the worker
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
    assert table(place)[:-2] == calm[:-2], "the tables of the store itself can be read"
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
    leave_lease(uri, expires_in=-1)
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


def test_a_lease_fetched_to_look_at_is_read(uri: str) -> None:
    leave_lease(uri, expires_in=60)
    lease = read_lease(pulled(uri))
    assert lease.host == "elsewhere"


def test_a_driver_that_slept_through_its_lease_writes_nothing_though_the_clock_was_set_back(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_EVERY", 1000.0)  # its thread slept too
    store, wall, woke = Mirror(uri), time.time, time.monotonic() + 120.0
    with store.held():
        leave_lease(uri, expires_in=60)
        monkeypatch.setattr(time, "time", lambda: wall() - 3600.0)
        monkeypatch.setattr(time, "monotonic", lambda: woke)
        with pytest.raises(StudyStoppedError, match="has taken over"):
            store.push()
        monkeypatch.setattr(Mirror, "push", lambda self, logs: None)


def test_a_write_that_waited_for_the_store_is_not_made_after_a_takeover(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is silent for longer than the lease; another takes over before the next try."""
    monkeypatch.setattr(lease_module, "RENEW_EVERY", 1000.0)
    store, plain, tries = Mirror(uri), Store._put, list[str]()
    started = time.monotonic()

    def silent(self: Store, name: str, content: bytes, **how: bool) -> bool:
        if name.startswith("logs/events"):
            tries.append(name)
            if len(tries) == 1:
                raise ConnectionResetError("reset by peer")
        return plain(self, name, content, **how)

    def taken(seconds: float) -> None:
        leave_lease(uri, expires_in=60)
        monkeypatch.setattr(time, "monotonic", lambda: started + 100.0)

    with store.held():
        monkeypatch.setattr(Store, "_put", silent)
        monkeypatch.setattr(time, "sleep", taken)
        log_path(store.folder).parent.mkdir()
        log_path(store.folder).write_bytes(b"late")
        with pytest.raises(StudyStoppedError, match="has taken over"):
            store.push_log()
        monkeypatch.setattr(Mirror, "push", lambda self, logs: None)
    assert tries == [tries[0]]
    assert Store(uri).list().keys() == {"lock"}


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


def test_a_lease_whose_writing_was_confirmed_to_nobody_is_taken(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store.put

    def lost(self: Store, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """The first answer is lost on the way; the client of the service asks again."""
        written = put(self, name, content, if_absent=if_absent)
        return written and (not if_absent or put(self, name, content, if_absent=True))

    monkeypatch.setattr(Store, "put", lost)
    with Mirror(uri).held(), pytest.raises(ValueError, match="another process works on"):
        Mirror(uri).held().__enter__()
    assert Store(uri).get("lock") is None
