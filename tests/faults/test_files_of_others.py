"""Folders, stores, names and files of others: nothing of theirs runs, is read or is replaced.

Each file with names that lead elsewhere has a right checksum: nobody needs a secret to write one.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import contents, write_study
from faulty import Cli, call, study
from matrix import pairs
from messages import refused
from toy_worker import run_at

import nas_evidence
from nas_evidence.api.trackers import tracker_of
from nas_evidence.api.trackers.init_log_finish import InitLogFinish
from nas_evidence.driver.mirror import Mirror, WorkingCopy, working_copy
from nas_evidence.driver.verification import verify
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import written_by_export, written_whole
from nas_evidence.plumbing.seals import seal_object, sealed_json
from nas_evidence.plumbing.sums import write_sums, wrong_sums
from nas_evidence.plumbing.table_checksum import sealed
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.holding import Holder, boot_id, namespace
from nas_evidence.storage.log import LOG, log_files, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.requests import Requests
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_names import is_removable, remove, remove_attempts
from nas_evidence.workers.stored import StoredWorker

VERBS = ("report", "export", "predict", "verify", "resume", "repair", "status", "status-trial")


def arguments(verb: str, place: object, home: Path) -> tuple[object, ...]:
    """Return how a verb is called on a study; what else it reads is in `home`."""
    (home / "new.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    if verb == "search":
        return ("search", write_study(home / "asked"), "--store", place, "--executor", "inline")
    more: dict[str, tuple[object, ...]] = {
        "resume": ("--trials", 6, "--executor", "inline"),
        "export": ("--to", home / "out"),
        "status-trial": (0,),
        "predict": (home / "new.csv",),
        "compare": (place,),
    }
    return (verb.removesuffix("-trial"), place, *more.get(verb, ()))


# --- a study folder that somebody else made


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_the_code_of_a_folder(
    folder: Path, verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = folder.parent / "it-ran"
    code = folder / "code"
    code.mkdir()
    for name in ("evil", "torch_extra", "sitecustomize", "conftest"):
        (code / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        shutil.copy(code / f"{name}.py", folder / f"{name}.py")
    text = (folder / "study.toml").read_text()
    text = text.replace(
        'estimators = [\n    "diag_ef",', 'estimators = [\n    "diag_ef",\n    "evil:score",'
    )
    assert "evil:score" in text
    (folder / "study.toml").write_text(text)
    for path in (folder / "logs").glob("conditions-*"):
        path.unlink()
    monkeypatch.chdir(folder)
    cli(*arguments(verb, folder, folder.parent), code=None)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("verb", "place"), pairs(VERBS, ["lock", "report", "logs/driver.log", "export/evidence.json"])
)
def test_no_verb_writes_through_a_link_out_of_the_folder(
    folder: Path, verb: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = folder.parent / "mine"
    path = folder / place
    if path.is_dir():
        shutil.rmtree(path)
        mine.mkdir()
        (mine / "index.html").write_text("mine")
    else:
        path.unlink(missing_ok=True)
        mine.write_text("mine")
    path.symlink_to(mine)
    code, text, said = call(capsys, *arguments(verb, folder, folder.parent))
    assert code != 0
    assert f"{place} is a link to {mine}" in text + said
    assert (mine / "index.html" if mine.is_dir() else mine).read_text() == "mine"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["mine", "new.csv", "s"]


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_ends_a_process_that_a_folder_names(
    folder: Path, verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    kill, group = os.kill, os.killpg
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:

        def noted(send: Callable[[int, int], None], pid: int, number: int) -> None:
            if number and pid == other.pid:
                ended.append(number)
            send(pid, number)

        monkeypatch.setattr("os.kill", partial(noted, kill))
        monkeypatch.setattr("os.killpg", partial(noted, group))
        try:
            long_ago = time.time() - 600
            here = socket.gethostname(), boot_id()
            holder = Holder(other.pid, *here, long_ago, long_ago, namespace())
            (folder / "lock").write_text(sealed_json(asdict(holder)))
            cli(*arguments(verb, folder, folder.parent), code=None)
            assert not ended
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_connects_to_what_a_folder_names(folder: Path, verb: str, cli: Cli) -> None:
    for path in (folder / "logs").glob("conditions-*"):
        path.unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/data.npz"
        lines = (folder / "study.toml").read_text().splitlines()
        named = [f'path = "{url}"' if line.startswith("path = ") else line for line in lines]
        assert named != lines
        (folder / "study.toml").write_text("\n".join(named) + "\n")
        cli(*arguments(verb, folder, folder.parent), code=None)
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


# --- names that a study reads from its files

OUTSIDE = ("../../precious/ledger", "{home}/precious/ledger", "part-\0", "part-" + "a" * 300, "")
ROW = {
    "trial_id": 1, "attempt": 1, "replicate": 0, "status": "complete",
    "architecture": {"family": "mlp", "values": {}}, "values": {}, "costs": {},
}  # fmt: skip
HEX, LATE = "0" * 32, 10**300
#: Lines that name a file with a value of `OUTSIDE`, by kind of event and field.
NAMED: dict[str, Any] = {
    "merge part": lambda v: {"event": "merge", "part": v, "files": {"trials": "00"},
                             "attempts": []},
    "merge table": lambda v: {"event": "merge", "part": f"part-{HEX}", "files": {v: "00"},
                              "attempts": []},
    "merge digest": lambda v: {"event": "merge", "part": f"part-{HEX}",
                               "files": {"trials": v}, "attempts": []},
    "end table": lambda v: {"event": "end", "row": ROW, "files": {v: "00"}},
    "end digest": lambda v: {"event": "end", "row": ROW, "files": {"trials": v}},
    "end hash": lambda v: {"event": "end", "row": {**ROW, "content_hash": v}, "files": {}},
    "kind": lambda v: {"event": v},
}  # fmt: skip
#: Lines with numbers that are in the names of files.
NUMBERED: dict[str, Any] = {
    "merge": lambda n: {"event": "merge", "part": f"part-{HEX}", "files": {},
                        "attempts": [[n, 1]]},
    "end": lambda n: {"event": "end", "row": {**ROW, "trial_id": n}, "files": {"trials": "00"}},
    "end attempt": lambda n: {"event": "end", "row": {**ROW, "attempt": n},
                              "files": {"trials": "00"}},
    "launch": lambda n: {"event": "launch", "trial_id": n, "attempt": 1},
    "launch attempt": lambda n: {"event": "launch", "trial_id": 1, "attempt": n},
    "park": lambda n: {"event": "park", "trial_id": n, "attempt": 1},
    "retry": lambda n: {"event": "retry", "trial_id": n, "attempt": 1},
    "lost": lambda n: {"event": "lost", "trial_id": n, "attempt": 1, "cause": "", "epoch": 0,
                       "progress": False},
    "rung": lambda n: {"event": "rung", "trial_id": n, "epoch": 1, "point": None},
    "judged": lambda n: {"event": "judged", "trial_id": n, "epoch": 1, "reason": None},
    "ask": lambda n: {"event": "ask", "number": n,
                      "architecture": {"family": "mlp", "values": {"width": 4}}},
    "race": lambda n: {"event": "race", "trial_ids": [n],
                       "architectures": [{"family": "mlp", "values": {}}]},
    "race of more": lambda n: {"event": "race", "trial_ids": [1_000_000, 1_000_001],
                               "architectures": [{"family": "mlp", "values": {}}]},
}  # fmt: skip


SPEC = study(sampler={"name": "random"}, n_trials=6)


@pytest.fixture(scope="module")
def stored_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stored")
    run_at(Mirror(f"file://{home}/s"), SPEC)
    return home / "s"


@pytest.fixture
def stored(stored_once: Path, tmp_path: Path) -> Path:
    """A finished study in a folder that a store is; beside it, a file of somebody."""
    precious = tmp_path / "precious"
    precious.mkdir()
    pq.write_table(pa.table({"mine": [1]}), precious / "ledger.parquet")
    return Path(shutil.copytree(stored_once, tmp_path / "s"))


def injected(folder: Path, event: dict[str, Any]) -> None:
    """Append a line with the next number and a right checksum to the log."""
    past = read_log(folder)
    text = json.dumps({"line": past.n_lines, "t": 1764000000.0, **event})
    with log_files(folder)[-1].open("a") as lines:
        lines.write(seal_object(text) + "\n")


@contextmanager
def nothing_outside(home: Path, folder: Path) -> Iterator[None]:
    """Assert that nothing below `home` and outside of the folder is opened, moved or removed."""
    found: list[tuple[str, str]] = []
    watching = True
    kinds = {"open", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.mkdir", "os.link"}

    def hook(kind: str, values: tuple[object, ...]) -> None:
        if not watching or kind not in kinds:
            return
        for value in values[:2]:
            if isinstance(value, str | bytes | os.PathLike):
                path = os.path.normpath(os.fsdecode(value))
                if path.startswith(f"{home}/") and not path.startswith(str(folder)):
                    found.append((kind, path))

    sys.addaudithook(hook)
    try:
        yield
    finally:
        watching = False
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), pairs(NAMED, OUTSIDE))
def test_a_line_of_the_log_whose_names_are_none_is_damaged_and_leads_nowhere(
    stored: Path, field: str, value: str, cli: Cli
) -> None:
    injected(stored, NAMED[field](value.format(home=stored.parent)))
    with nothing_outside(stored.parent, stored):
        assert read_log(stored).problems
        places = {problem.place for problem in verify(stored, with_checkpoints=False)}
        assert LOG in places
        said = cli("repair", stored)[0]
    assert f"{LOG}: line" in said
    assert read_log(stored).problems == []
    assert (stored.parent / "precious" / "ledger.parquet").is_file()
    assert not [path for path in (stored / "damaged").iterdir() if "ledger" in path.name]


@pytest.mark.parametrize(("field", "number"), pairs(NUMBERED, [-1, LATE]))
def test_a_line_of_the_log_whose_numbers_are_in_no_name_is_damaged(
    stored: Path, field: str, number: int
) -> None:
    before = read_log(stored).state
    injected(stored, NUMBERED[field](number))
    past = read_log(stored)
    assert past.problems
    assert past.state == before


@pytest.mark.parametrize("number", [0, 999_999, 1_000_000, 10**9])
def test_the_numbers_of_a_study_are_read(stored: Path, number: int) -> None:
    injected(stored, NUMBERED["launch"](number))
    past = read_log(stored)
    assert past.problems == []
    assert past.state.under_way == {number: 1}


def test_a_list_of_checksums_that_names_a_file_elsewhere_is_damaged(
    stored: Path, cli: Cli
) -> None:
    report = stored / "report"
    report.mkdir()
    (report / "index.html").write_text("page")
    write_sums(report, ["index.html", "../../precious/ledger.parquet"])
    assert wrong_sums(report) == ["SHA256SUMS"]
    before = contents(stored.parent / "precious")
    cli("repair", stored)
    assert contents(stored.parent / "precious") == before
    assert not [path for path in (stored / "damaged").iterdir() if "ledger" in path.name]


@pytest.mark.parametrize("place", ["../precious", "trials/../../precious", "{home}/precious", "",
                                   "x/precious"])  # fmt: skip
def test_nothing_outside_of_a_study_is_set_aside(stored: Path, place: str) -> None:
    (stored / "x").symlink_to(stored.parent)
    before = contents(stored.parent)
    with refused("place-outside"):
        set_aside(stored, place.format(home=stored.parent))
    assert contents(stored.parent) == before


def test_a_file_with_a_long_name_is_set_aside(stored: Path) -> None:
    name = "ä" * 123 + ".parquet"
    (stored / "trials" / name).write_text("1")
    set_aside(stored, f"trials/{name}")
    assert [path.read_text() for path in (stored / "damaged").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("trial_id", -7), ("attempt", -1), ("trial_id", 10**18), ("content_hash", "../x"),
     ("status", "../x"), ("family", None)],
)  # fmt: skip
def test_a_table_whose_rows_no_line_of_the_log_can_hold_is_damaged(
    stored: Path, column: str, value: Any
) -> None:
    for table in ("trials", "evidence", "terms", "curves"):
        path = stored / table / "000002-a1.parquet"
        rows = pq.read_table(path)
        new = {"trial_id": 9} | ({column: value} if table == "trials" else {})
        for name, one in new.items():
            field = rows.schema.field(name)
            cells = pa.array([one] * len(rows), field.type)
            rows = rows.set_column(rows.schema.get_field_index(name), field, cells)
        rows = rows.replace_schema_metadata(sealed(rows))
        pq.write_table(rows, stored / table / "000009-a1.parquet")
    finds = find_done(stored)
    assert {path.name for path in finds.wrong} == {"000009-a1.parquet"}
    assert not finds.found


@pytest.mark.parametrize("name", ["..", ".", "../..", "2", "1/../../..", ""])
def test_a_member_of_an_ensemble_is_a_folder_of_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "members" / "1").mkdir(parents=True)
    whole = {"members": [{"folder": name, "weight": 1.0, "trial_id": 0}], "thresholds": {}}
    (tmp_path / "ensemble.json").write_text(json.dumps(whole))
    write_sums(tmp_path, ["ensemble.json"])
    with refused("export-member-missing"):
        Predictor.load(tmp_path)


@pytest.mark.parametrize("name", ["a/b", "../../x", "/x"])
def test_the_name_of_a_project_is_not_a_path(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tool:
        pass

    monkeypatch.setitem(sys.modules, "trackio", Tool)
    (tmp_path / "logs").mkdir()
    tracker = InitLogFinish("trackio", study(name=name), tmp_path)
    tracker._keep_note()
    assert len([*(tmp_path / "logs").iterdir()]) == 1


def test_requests_of_other_names_end_no_trial(stored: Path) -> None:
    (stored / "requests").mkdir()
    for name in ("cancel--1", "cancel-1e3", "cancel-", "cancelled", "cancel-" + "9" * 200):
        (stored / "requests" / name).touch()
    requests = Requests(stored)
    requests.look()
    assert not requests.study
    assert not requests.trials


def test_a_driver_takes_no_request_from_a_name_that_is_none(tmp_path: Path) -> None:
    store = Mirror(f"file://{tmp_path}/s")
    with store.held():
        store.store.put("requests/a/b", b"")
        store.store.put("requests/cancel-000001", b"")
        store.look_for_requests()
        assert [path.name for path in (store.folder / "requests").iterdir()] == ["cancel-000001"]


# --- links out of a store: what is behind one stays as it is, unread


#: One of each place of docs/reference/study-folder.md, and one that nobody lists.
PLACES = (
    "study.toml", "lock", "warm_start.json", "data", "trials", "evidence/000000-a1.parquet",
    "models", "models/0.safetensors", "checkpoints", "checkpoints/000000",
    "checkpoints/000009/attempt-1", "logs", "logs/events", "logs/events/000009.jsonl",
    "logs/driver.log", "logs/conditions-0123456789abcdef.toml", "report", "report/index.html",
    "export", "requests", "requests/cancel", "code", "damaged", "study.db", ".hidden",
)  # fmt: skip
OF_A_STORE = (*VERBS, "search", "watch", "cancel", "compare")
CALLS: dict[str, Callable[[str], object]] = {
    "load": nas_evidence.load,
    "resume": lambda place: nas_evidence.resume(place, n_trials=5, executor="inline"),
    "status": nas_evidence.status,
    "verify": nas_evidence.verify,
    "repair": nas_evidence.repair,
    "cancel": nas_evidence.cancel,
}


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


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("verb", OF_A_STORE)
def test_every_verb_refuses_a_store_with_a_link_out_of_it_before_it_reads_it(
    stored: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, place in enumerate(PLACES):
        folder = stored.with_name(f"s{n}")
        shutil.copytree(stored, folder / "s")
        victim = folder / "victim"
        linked(folder / "s", place, victim)
        before = contents(folder)
        uri = f"file://{folder}/s"
        code, text, said = call(capsys, *arguments(verb, uri, stored.parent))
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


# --- the outputs of verbs beside files of others


@pytest.fixture
def ours(folder: Path) -> nas_evidence.Study:
    return nas_evidence.load(folder)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "to").mkdir()
    return tmp_path / "to"


OF_AN_EXPORT = (
    "code/main.py", "members/me/notes.txt", "model.safetensors", "README.md", "evidence.json",
    "architecture.toml", "meaning.json", "posterior.safetensors", "model.pt2", "model.onnx",
    "SHA256SUMS", "ensemble.json", "thesis.tex",
)  # fmt: skip
OF_A_REPORT = (
    "index.html", "report.md", "report.json", "correlations.csv", "ranking.csv", "terms.csv",
    "SHA256SUMS", "style.css",
)  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("name", OF_AN_EXPORT)
@pytest.mark.parametrize("with_sums", [False, True])
def test_an_export_never_replaces_what_is_none(
    ours: nas_evidence.Study, empty: Path, name: str, with_sums: bool
) -> None:
    (empty / name).parent.mkdir(parents=True, exist_ok=True)
    (empty / name).write_text("mine")
    if with_sums and name != "SHA256SUMS":  # as `sha256sum * > SHA256SUMS` writes them
        write_sums(empty, [name])
    before = contents(empty)
    code = "output-held-for-good" if "/" in name else "output-held"
    with refused(code, empty):
        ours.export(empty)
    assert contents(empty) == before


@pytest.mark.parametrize("name", OF_A_REPORT)
def test_a_report_never_replaces_what_is_none(
    ours: nas_evidence.Study, empty: Path, name: str, cli: Cli
) -> None:
    (empty / name).write_text("mine")
    with refused("output-held", "`force`"):
        ours.report(empty)
    said = cli("report", ours.folder, "--to", empty, code=2)[1]
    assert "`force`" in said
    assert contents(empty) == {name: b"mine"}


def test_force_replaces_files_of_the_same_names_alone(
    ours: nas_evidence.Study, empty: Path, cli: Cli
) -> None:
    for name in ("README.md", "model.pt2", "index.html", "mine/thesis.tex"):
        (empty / name).parent.mkdir(parents=True, exist_ok=True)
        (empty / name).write_text("mine")
    cli("export", ours.folder, "--to", empty, "--force")
    assert written_by_export(empty) >= {"README.md", "evidence.json", "SHA256SUMS"}
    assert not (empty / "model.pt2").exists(), "the export would not be sound with it"
    ours.report(empty, force=True)
    assert (empty / "index.html").read_text() != "mine"
    assert (empty / "mine" / "thesis.tex").read_text() == "mine"


def test_code_of_others_is_not_mixed_with_an_export_even_by_force(
    ours: nas_evidence.Study, empty: Path
) -> None:
    (empty / "code").mkdir()
    (empty / "code" / "main.py").write_text("mine")
    with refused("output-held-for-good", "code/main.py"):
        ours.export(empty, force=True)


def test_force_follows_no_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "mine")
    with (
        refused("output-through-link", "sub"),
        written_whole(tmp_path / "to", force=True) as made,
    ):
        (made / "sub").mkdir()
        (made / "sub" / "file").write_text("new")
    assert contents(tmp_path / "mine") == {}


def test_what_the_verb_wrote_is_replaced_until_somebody_changes_it(
    ours: nas_evidence.Study, tmp_path: Path
) -> None:
    for _ in range(2):
        ours.export(tmp_path / "e")
        ours.report(tmp_path / "r")
        ours.report(ours.folder / "report")  # its own, beside the comparison
    (tmp_path / "e" / "README.md").write_text("my own card")
    (tmp_path / "r" / "report.md").write_text("my own words")
    with refused("output-held", "README.md"):
        ours.export(tmp_path / "e")
    with refused("output-held", "report.md"):
        ours.report(tmp_path / "r")
    with refused("output-held", "r holds"):
        ours.export(tmp_path / "r")


def test_files_that_came_while_an_export_was_made_are_seen(tmp_path: Path) -> None:
    with refused("output-held", "late.txt"), written_whole(tmp_path / "to") as made:
        (made / "README.md").write_text("new")
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "late.txt").write_text("mine")
    assert contents(tmp_path) == {"to/late.txt": b"mine"}


def test_files_in_the_export_of_a_study_are_kept_in_damaged(
    folder: Path, ours: nas_evidence.Study
) -> None:
    (folder / "export" / "notes.txt").write_text("mine")
    ours.export()
    assert (folder / "damaged" / "export" / "notes.txt").read_text() == "mine"
    assert not (folder / "export" / "notes.txt").exists()


@pytest.mark.slow
def test_the_statistics_of_a_table_replace_nothing_else(tmp_path: Path, cli: Cli) -> None:
    rows = "".join(f"{k},{k * k}\n" for k in range(20))
    (tmp_path / "t.csv").write_text("s,t\n" + rows)
    asked = ("report", "--table", tmp_path / "t.csv", "--score", "s", "--target", "t", "--to")
    cli(*asked, tmp_path / "new")
    cli(*asked, tmp_path / "new")
    (tmp_path / "new" / "correlations.csv").write_text("mine")
    assert "`force`" in cli(*asked, tmp_path / "new", code=2)[1]
    cli(*asked, tmp_path / "new", "--force")
    assert (tmp_path / "new" / "correlations.csv").read_text() != "mine"


def test_predictions_never_replace_a_file_of_a_study_or_an_export(folder: Path, cli: Cli) -> None:
    (folder / "export" / "p.csv").write_text("mine")
    before = contents(folder)
    for file in (min((folder / "trials").glob("*.parquet")), folder / "export" / "p.csv"):
        asked = (*arguments("predict", folder, folder.parent), "--to", file, "--force")
        assert f"would replace a file of {folder}" in cli(*asked, code=2)[1]
    assert contents(folder) == before


def test_a_tracker_removes_no_files_of_others(ours: nas_evidence.Study, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    home = tmp_path / "board" / "trial-000000"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (tmp_path / "mine.prom").write_text("my_own_metric 1\n")
    board = tracker_of(f"tensorboard:{tmp_path / 'board'}", ours.spec, ours.folder)
    with refused("track-folder-held", "notes.txt"):
        board.log(0, {}, {1: {"loss": 1.0}})
    with refused("track-file-held", "mine.prom"):
        tracker_of(f"prometheus:{tmp_path / 'mine.prom'}", ours.spec, ours.folder)
    assert (home / "notes.txt").read_text() == "mine"
