"""Names that a study reads from its files are names: none is a path that leads out of it.

Each file here has a right checksum: nobody needs a secret to write one.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import contents
from faulty import Cli, run, study
from matrix import pairs
from messages import refused

from nas_evidence.api.trackers.init_log_finish import InitLogFinish
from nas_evidence.driver.mirror import Mirror
from nas_evidence.driver.verification import verify
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.plumbing.seals import seal_object
from nas_evidence.plumbing.sums import write_sums, wrong_sums
from nas_evidence.plumbing.table_checksum import sealed
from nas_evidence.storage.log import LOG, log_files, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.requests import Requests
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.study_folder import open_study

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    spec = study(n_trials=3)
    open_study(home / "s", spec)
    run(spec, home / "s")
    return home / "s"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    precious = tmp_path / "precious"
    precious.mkdir()
    pq.write_table(pa.table({"mine": [1]}), precious / "ledger.parquet")
    return Path(shutil.copytree(made, tmp_path / "s"))


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
    folder: Path, field: str, value: str, cli: Cli
) -> None:
    injected(folder, NAMED[field](value.format(home=folder.parent)))
    with nothing_outside(folder.parent, folder):
        assert read_log(folder).problems
        places = {problem.place for problem in verify(folder, with_checkpoints=False)}
        assert LOG in places
        said = cli("repair", folder)[0]
    assert f"{LOG}: line" in said
    assert read_log(folder).problems == []
    assert (folder.parent / "precious" / "ledger.parquet").is_file()
    assert not [path for path in (folder / "damaged").iterdir() if "ledger" in path.name]


@pytest.mark.parametrize(("field", "number"), pairs(NUMBERED, [-1, LATE]))
def test_a_line_of_the_log_whose_numbers_are_in_no_name_is_damaged(
    folder: Path, field: str, number: int
) -> None:
    before = read_log(folder).state
    injected(folder, NUMBERED[field](number))
    past = read_log(folder)
    assert past.problems
    assert past.state == before


@pytest.mark.parametrize("number", [0, 999_999, 1_000_000, 10**9])
def test_the_numbers_of_a_study_are_read(folder: Path, number: int) -> None:
    injected(folder, NUMBERED["launch"](number))
    past = read_log(folder)
    assert past.problems == []
    assert past.state.under_way == {number: 1}


def test_a_list_of_checksums_that_names_a_file_elsewhere_is_damaged(
    folder: Path, cli: Cli
) -> None:
    report = folder / "report"
    report.mkdir()
    (report / "index.html").write_text("page")
    write_sums(report, ["index.html", "../../precious/ledger.parquet"])
    assert wrong_sums(report) == ["SHA256SUMS"]
    before = contents(folder.parent / "precious")
    cli("repair", folder)
    assert contents(folder.parent / "precious") == before
    assert not [path for path in (folder / "damaged").iterdir() if "ledger" in path.name]


@pytest.mark.parametrize("place", ["../precious", "trials/../../precious", "{home}/precious", "",
                                   "x/precious"])  # fmt: skip
def test_nothing_outside_of_a_study_is_set_aside(folder: Path, place: str) -> None:
    (folder / "x").symlink_to(folder.parent)
    before = contents(folder.parent)
    with refused("place-outside"):
        set_aside(folder, place.format(home=folder.parent))
    assert contents(folder.parent) == before


def test_a_file_with_a_long_name_is_set_aside(folder: Path) -> None:
    name = "ä" * 123 + ".parquet"
    (folder / "trials" / name).write_text("1")
    set_aside(folder, f"trials/{name}")
    assert [path.read_text() for path in (folder / "damaged").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("trial_id", -7), ("attempt", -1), ("trial_id", 10**18), ("content_hash", "../x"),
     ("status", "../x"), ("family", None)],
)  # fmt: skip
def test_a_table_whose_rows_no_line_of_the_log_can_hold_is_damaged(
    folder: Path, column: str, value: Any
) -> None:
    for table in ("trials", "evidence", "terms", "curves"):
        path = folder / table / "000002-a1.parquet"
        rows = pq.read_table(path)
        new = {"trial_id": 9} | ({column: value} if table == "trials" else {})
        for name, one in new.items():
            field = rows.schema.field(name)
            cells = pa.array([one] * len(rows), field.type)
            rows = rows.set_column(rows.schema.get_field_index(name), field, cells)
        rows = rows.replace_schema_metadata(sealed(rows))
        pq.write_table(rows, folder / table / "000009-a1.parquet")
    finds = find_done(folder)
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


def test_requests_of_other_names_end_no_trial(folder: Path) -> None:
    (folder / "requests").mkdir()
    for name in ("cancel--1", "cancel-1e3", "cancel-", "cancelled", "cancel-" + "9" * 200):
        (folder / "requests" / name).touch()
    requests = Requests(folder)
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
