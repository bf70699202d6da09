"""What every store must do, whatever keeps the files: a folder, memory, an S3-like service."""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from counted_store import CountedStore
from fsspec.implementations.memory import MemoryFileSystem
from messages import refused

from nas_evidence.storage import store as store_module
from nas_evidence.storage.faults import StoreError
from nas_evidence.storage.store import Store

PLACES = ("folder", "file", "memory", "counted")


@pytest.fixture(params=PLACES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return what opens one and the same store, anew each time."""
    own = uuid.uuid4().hex
    place = {
        "folder": str(tmp_path / "study"),
        "file": f"file://{tmp_path}/study",
        "memory": f"memory://{own}/study",
        "counted": f"counted://{own}/study",
    }[request.param]
    return lambda: Store(place)


@pytest.fixture
def store(make: Callable[[], Store]) -> Store:
    return make()


def test_what_is_put_is_got_and_listed_by_every_other_process(
    store: Store, make: Callable[[], Store]
) -> None:
    assert store.get("logs/a") is None
    assert store.list() == {}
    assert store.put("logs/a", b"first")
    assert store.put("logs/a", b"second one")
    store.put("study.toml", b"")
    other = make()
    assert other.get("logs/a") == b"second one"
    assert other.get("study.toml") == b""
    assert {name: stamp.size for name, stamp in other.list().items()} == {
        "logs/a": 10,
        "study.toml": 0,
    }
    assert list(other.list("logs")) == ["logs/a"]
    assert other.list("nothing/below") == {}


def test_a_file_is_created_only_if_absent(store: Store) -> None:
    assert store.put("lock", b"mine", if_absent=True)
    assert not store.put("lock", b"yours", if_absent=True)
    assert store.get("lock") == b"mine"
    store.delete(["lock"])
    assert store.put("lock", b"yours", if_absent=True)


def test_of_many_who_create_the_same_file_at_once_one_succeeds(
    make: Callable[[], Store],
) -> None:
    stores, ready, won = [make() for _ in range(8)], threading.Barrier(8), list[int]()

    def create(number: int) -> None:
        ready.wait()
        if stores[number].put("lock", b"%d" % number, if_absent=True):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 or isinstance(stores[0]._fs, MemoryFileSystem)  # it has no locks
    assert stores[0].get("lock") in [b"%d" % number for number in won]


def test_a_file_that_was_written_again_has_another_stamp(store: Store) -> None:
    store.put("a", b"same")
    store.put("b", b"same")
    before = store.list()
    assert all(stamp.equals(store.list()[name]) for name, stamp in before.items())
    store.put("a", b"size")
    now = store.list()
    assert not now["a"].equals(before["a"])
    assert now["b"].equals(before["b"])


def test_many_files_go_up_and_come_down_and_are_removed(store: Store, tmp_path: Path) -> None:
    files = {}
    for number in range(40):
        path = files[f"trials/{number:06d}-a1.parquet"] = tmp_path / "from" / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d" % number)
    store.upload(files)
    assert store.list().keys() == files.keys()
    here = {name: tmp_path / "to" / name for name in files}
    assert store.download(here)
    assert all(here[name].read_bytes() == files[name].read_bytes() for name in files)
    store.delete([*files, "trials/never-there"])
    assert store.list() == {}
    store.delete(files)
    store.delete([])


def test_of_files_that_are_not_all_there_none_comes_down(store: Store, tmp_path: Path) -> None:
    store.put("a", b"1")
    here = {name: tmp_path / "to" / name for name in ("a", "b")}
    assert not store.download(here)
    assert not any(path.exists() for path in here.values())
    assert store.download({})


def test_the_guard_is_asked_before_each_file_that_changes(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    store.put("models/1.safetensors", b"")

    class TakenOverError(BaseException):
        pass

    def guard() -> None:
        raise TakenOverError

    store.guard = guard
    changes: list[Callable[[], object]] = [
        lambda: store.put("new", b""),
        lambda: store.upload({f"{i}": tmp_path / "x" for i in range(30)}),
        lambda: store.delete(["models/1.safetensors", "models/2.safetensors"]),
    ]
    for change in changes:
        with pytest.raises(TakenOverError):
            change()
    assert list(store.list()) == ["models/1.safetensors"]
    assert store.get("models/1.safetensors") == b""


def test_hidden_files_are_not_listed_and_a_check_leaves_nothing(store: Store) -> None:
    store.check()
    store.put(".hidden", b"")
    store.put("logs/.half-written", b"")
    assert store.list() == {}


def test_a_store_that_overwrites_what_it_should_only_create_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Store._put
    monkeypatch.setattr(
        Store, "_put", lambda self, name, content, if_absent=False: plain(self, name, content)
    )
    with refused("store-without-create", store.place):
        store.check()


def test_what_goes_wrong_is_one_line_that_names_the_place(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError("first line\nno permission")

    for name in ("pipe_file", "put_file", "cat_file", "find", "get", "rm", "rm_file"):
        monkeypatch.setattr(store._fs, name, fails)
    for call in (
        lambda: store.put("a", b""),
        lambda: store.get("a"),
        lambda: store.list(),
        lambda: store.delete(["models/1.safetensors", "models/2.safetensors"]),
        lambda: store.upload({"a": tmp_path, "b": tmp_path}),
        lambda: store.download({"a": tmp_path / "a"}),
    ):
        with pytest.raises(StoreError, match=r"cannot be used: no permission\.") as error:
            call()
        assert store.place in str(error.value)
        assert "\n" not in str(error.value)


def test_a_silent_store_is_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    plain, n_tries = store._fs.pipe_file, 0

    def flaky(*given: object, **how: object) -> object:
        nonlocal n_tries
        n_tries += 1
        if n_tries < 4:
            raise ConnectionResetError("reset by peer")
        return plain(*given, **how)

    monkeypatch.setattr(store._fs, "pipe_file", flaky)
    assert store.put("a", b"")
    assert n_tries == 4


# --- a service that takes 20 ms a request


@pytest.mark.slow
def test_a_thousand_files_are_removed_by_one_request() -> None:
    store = Store(f"counted://{uuid.uuid4().hex}/study")
    for number in range(1024):
        store.put(f"trials/{number:06d}-a1.parquet", b"")
    CountedStore.reset()
    store.delete(store.list("trials"))
    assert CountedStore.requests == {"list": 2, "delete": 2}
    assert store.list() == {}


def test_a_study_whose_address_has_a_star_removes_no_other() -> None:
    own = uuid.uuid4().hex
    other, store = Store(f"memory://{own}/study"), Store(f"memory://{own}/s*")
    names = ["models/1.safetensors", "models/2.safetensors"]
    for one in (other, store):
        for name in names:
            one.put(name, b"")
    store.delete(names)
    assert store.list() == {}
    assert other.list().keys() == {*names}


def test_files_come_and_go_at_a_time(tmp_path: Path) -> None:
    store = Store(f"counted://{uuid.uuid4().hex}/study")
    (tmp_path / "x").write_bytes(b"x")
    names = [str(number) for number in range(64)]
    CountedStore.reset(delay=0.02)
    store.upload(dict.fromkeys(names, tmp_path / "x"))
    assert 1 < CountedStore.most_at_a_time <= store_module.UPLOADED_AT_ONCE
    CountedStore.reset()
    assert store.download({name: tmp_path / "to" / name for name in names})
    assert CountedStore.most_at_a_time > 16
