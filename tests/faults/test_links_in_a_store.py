"""A store is never followed out of itself: what is behind a link in it stays as it is, unread."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import TINY, contents, write_study
from fakes import study
from faulty import call
from matrix import pairs
from messages import refused
from toy_worker import run_at

import nas_evidence
from nas_evidence.driver.mirror import Mirror, WorkingCopy, working_copy
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_names import is_removable, remove, remove_attempts
from nas_evidence.workers.stored import StoredWorker

SPEC = study(sampler={}, plan={"epochs": 4, "online": {"every": 2}})
#: One of each place of docs/reference/study-folder.md, and one that nobody lists.
PLACES = (
    "study.toml", "lock", "warm_start.json", "data", "trials", "evidence/000000-a1.parquet",
    "models", "models/0.safetensors", "checkpoints", "checkpoints/000000",
    "checkpoints/000009/attempt-1", "logs", "logs/events", "logs/events/000009.jsonl",
    "logs/driver.log", "logs/conditions-0123456789abcdef.toml", "report", "report/index.html",
    "export", "requests", "requests/cancel", "code", "damaged", "study.db", ".hidden",
)  # fmt: skip
VERBS = (
    "search", "resume", "report", "export", "verify", "repair", "status", "status-trial", "watch",
    "cancel", "predict", "compare",
)  # fmt: skip
CALLS: dict[str, Callable[[str], object]] = {
    "load": nas_evidence.load,
    "resume": lambda place: nas_evidence.resume(place, n_trials=5, executor="inline"),
    "status": nas_evidence.status,
    "verify": nas_evidence.verify,
    "repair": nas_evidence.repair,
    "cancel": nas_evidence.cancel,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    run_at(Mirror(f"file://{home}/s"), SPEC)
    return home / "s"


@pytest.fixture
def stored(made: Path, tmp_path: Path) -> Path:
    """A finished study in a folder that a store is."""
    return Path(shutil.copytree(made, tmp_path / "s"))


def linked(folder: Path, place: str, victim: Path) -> None:
    """Put a link at a place of a study, to a folder of somebody, or to a file."""
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(folder.parent / "before")
    path.unlink(missing_ok=True)
    victim.mkdir()
    (victim / "attempt-1").mkdir()
    (victim / "attempt-1" / "model.safetensors").write_text("mine")
    (victim / "thesis.tex").write_text("mine")
    path.symlink_to(victim / "thesis.tex" if path.suffix else victim)


def arguments(verb: str, place: str, home: Path) -> tuple[object, ...]:
    (home / "new.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    if verb == "search":
        spec = write_study(home / "asked", TINY)
        return ("search", spec, "--store", place, "--executor", "inline")
    more: dict[str, tuple[object, ...]] = {
        "resume": ("--trials", 15, "--executor", "inline"),
        "export": ("--to", home / "out"),
        "status-trial": (0,),
        "predict": (home / "new.csv",),
        "compare": (place,),
    }
    return (verb.removesuffix("-trial"), place, *more.get(verb, ()))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_store_with_a_link_out_of_it_before_it_reads_it(
    stored: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(verb, f"file://{stored}", stored.parent)
    for n, place in enumerate(PLACES):
        folder = stored.with_name(f"s{n}")
        shutil.copytree(stored, folder / "s")
        victim = folder / "victim"
        linked(folder / "s", place, victim)
        before = contents(folder)
        uri = f"file://{folder}/s"
        code, text, said = call(capsys, *(uri if g == f"file://{stored}" else g for g in given))
        assert (code, place) == (2, place)
        assert f"{uri}/{place} is a link to {victim}" in text + said
        assert contents(folder) == before


@pytest.mark.parametrize("uri", ["local://", "file:", ""])
def test_a_folder_is_guarded_however_it_is_named(stored: Path, uri: str) -> None:
    linked(stored, "checkpoints/000000", stored.parent / "victim")
    place = f"//{stored}" if uri == "file:" else str(stored)
    with refused("link-outside"):
        nas_evidence.resume(f"{uri}{place}", n_trials=15, executor="inline")


@pytest.mark.parametrize(("name", "where"), pairs(CALLS, ["file://", ""]))
def test_python_refuses_a_study_with_a_link_out_of_it(stored: Path, name: str, where: str) -> None:
    linked(stored, "models", stored.parent / "victim")
    before = contents(stored.parent)
    with refused("link-outside"):
        CALLS[name](f"{where}{stored}")
    assert contents(stored.parent) == before


def test_a_link_that_appears_in_a_store_while_it_is_used_is_not_followed(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/s")
    store.put("models/0.safetensors", b"1")
    linked(tmp_path / "s", "models", tmp_path / "victim")
    linked(tmp_path / "s", "logs/driver.log", tmp_path / "other")
    before = contents(tmp_path)
    name = "models/attempt-1/model.safetensors"
    tries: list[Callable[[], object]] = [
        lambda: store.put(name, b"2"),
        lambda: store.put("models/0.safetensors", b"2", if_absent=True),
        lambda: store.get("models/thesis.tex"),
        lambda: store.get("logs/driver.log"),
        lambda: store.list("models"),
        lambda: store.delete(["models/0.safetensors"]),
        lambda: store.upload({"models/0.safetensors": tmp_path / "other" / "thesis.tex"}),
        lambda: store.download({"logs/driver.log": tmp_path / "fetched"}),
    ]
    for attempt in tries:
        with pytest.raises(StoreError, match="is a link, and a store is never followed"):
            attempt()
    assert not store.list("checkpoints")
    assert contents(tmp_path) == before


def test_a_listing_of_a_store_has_nothing_behind_a_link_inside_of_it(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    store.put("data/train.parquet", b"1")
    (tmp_path / "checkpoints").symlink_to(tmp_path / "data")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").symlink_to(tmp_path / "data" / "train.parquet")
    assert set(store.list()) == {"data/train.parquet"}


@pytest.mark.parametrize("there", ["notes.txt", "models/mine.safetensors", "models/[0-9]*",
                                   "checkpoints/000000/thesis.tex"])  # fmt: skip
def test_what_no_study_writes_is_never_removed_in_a_store(tmp_path: Path, there: str) -> None:
    for place in (f"file://{tmp_path}/s", f"memory://{tmp_path.name}/{abs(hash(there))}"):
        store = Store(place)
        for name in (there, "models/0.safetensors"):
            store.put(name, b"mine")
        store.delete([there, "lock", "checkpoints/000001/attempt-1/epoch-000001.pt"])
        assert set(store.list()) == {there, "models/0.safetensors"}


@pytest.mark.parametrize("uri", [True, False])
def test_a_driver_leaves_what_others_have_put_among_its_checkpoints(
    tmp_path: Path, *, uri: bool
) -> None:
    place = f"file://{tmp_path}/s" if uri else f"{tmp_path}/s"
    run_at(working_copy(place), SPEC)
    mine = [tmp_path / "s" / name for name in (
        "checkpoints/000000/thesis.tex", "checkpoints/000003/attempt-1/photo.jpg",
        "trials/.mine", "models/mine.safetensors",
    )]  # fmt: skip
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    ours = tmp_path / "s" / "checkpoints" / "000000" / "attempt-1" / "epoch-000002.pt"
    ours.parent.mkdir(exist_ok=True)
    ours.touch()
    run_at(working_copy(place), SPEC)
    assert [path.read_text() for path in mine] == ["mine"] * len(mine)
    assert not ours.exists()


def test_names_in_a_listing_lead_nowhere_else(tmp_path: Path) -> None:
    store, here = Store("memory://x"), tmp_path / "here"
    fs = store._fs
    for name in ("models/../../../escaped", "a//b", "models/x\0y", "n" * 300, "ok"):
        fs.store[f"/x/{name}"] = fs.store.get("/x/ok") or _memory_file(store)
    assert set(store.list()) == {"ok"}
    assert not here.exists()


def _memory_file(store: Store) -> object:
    store.put("ok", b"1")
    return store._fs.store["/x/ok"]


@pytest.mark.parametrize("name", ["../x", "/x", "models/../../x", "models/0.safetensors/../../x",
                                  "", ".", "models", "models/\0.safetensors"])  # fmt: skip
def test_no_name_but_that_of_a_file_of_a_study_is_removed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "s"
    (folder / "models").mkdir(parents=True)
    (tmp_path / "x").touch()
    (folder / "models" / "0.safetensors").touch()
    assert not is_removable(name)
    remove(folder, name)
    assert len(contents(tmp_path)) == 2


def test_the_checkpoints_of_a_trial_are_removed_without_what_is_behind_a_link(
    tmp_path: Path,
) -> None:
    linked(tmp_path / "s", "checkpoints/000000", tmp_path / "victim")
    linked(tmp_path / "s", "checkpoints/000001/attempt-1", tmp_path / "other")
    (tmp_path / "victim" / "empty").mkdir()
    (tmp_path / "victim" / f".mine.{'0' * 32}").touch()
    before = contents(tmp_path)
    for trial_id in range(2):
        remove_attempts(tmp_path / "s", f"checkpoints/{trial_id:06d}")
    assert contents(tmp_path) == before
    assert (tmp_path / "victim" / "empty").is_dir()
    assert os.path.islink(tmp_path / "s" / "checkpoints" / "000000")


def test_a_working_copy_stores_nothing_that_is_behind_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("mine")
    store = Mirror(f"file://{tmp_path}/s")
    with store.held():
        (store.folder / "logs").mkdir(exist_ok=True)
        (store.folder / "logs" / "core.txt").symlink_to(secret)
    assert not (tmp_path / "s" / "logs" / "core.txt").exists()


def test_a_folder_is_refused_by_the_name_that_the_user_gave(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.toml").touch()
    (tmp_path / "s" / "models").symlink_to(tmp_path)
    (tmp_path / "named").symlink_to(tmp_path / "s")
    with pytest.raises(UserError, match=f"^{tmp_path}/named/models is a link to {tmp_path}, out"):
        WorkingCopy(tmp_path / "named").check_answers()


def test_a_link_that_appears_before_a_worker_stores_stops_the_study_and_blames_no_trial(
    tmp_path: Path,
) -> None:
    store = Mirror(f"file://{tmp_path}/s")
    victim = tmp_path / "victim"
    before: dict[str, bytes | str] = {}

    class Linked(StoredWorker):
        def start(self, launch: Any) -> Any:
            if launch.assignment.trial_id == 1:
                linked(tmp_path / "s", "checkpoints/000001", victim)
                before.update(contents(victim))
            return super().start(launch)

    with pytest.raises(StudyStoppedError, match="checkpoints/000001 is a link"):
        run_at(store, SPEC, stored=Linked)
    assert contents(victim) == before
    (tmp_path / "s" / "checkpoints" / "000001").unlink()
    run_at(Mirror(f"file://{tmp_path}/s"), SPEC)
    store = Mirror(f"file://{tmp_path}/s")
    store.pull()
    table = nas_evidence.read_table(store.folder, "trials")
    assert set(table["status"]) == {"complete"}
