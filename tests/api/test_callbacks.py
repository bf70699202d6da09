"""What a watcher of your own is told, in which order, and what happens when it raises."""

import enum
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fakes
import numpy as np
import pandas as pd
import pytest
from commands import small_search
from fakes import FakeExecutor
from messages import refused
from records import record_with

import nas_evidence
from nas_evidence.api.callbacks import Callbacks, Called, columns_added_by
from nas_evidence.api.runs import run_of
from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.registry import FREE_SCORES
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.events import Ended
from nas_evidence.storage.tables import (
    COLUMNS,
    check_own_columns,
    own_columns,
    own_values,
    read_table,
    read_tables,
    rows_of,
    write_record,
)
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Executor, StudyStatus, Watcher
from nas_evidence.workers.inline import InlineExecutor

EPOCHS = {"plan.epochs": 4, "plan.online.every": 2}
search = partial(small_search, settings=EPOCHS)


class Diary(nas_evidence.Watcher):
    """Notes what it is told; raises at the event `bad`."""

    def __init__(self, bad: str = "", error: BaseException | None = None) -> None:
        self.told: list[str] = []
        self.status: list[StudyStatus] = []
        self.epochs: list[int] = []
        self._bad, self._error = bad, error or ValueError("no such file")

    def _note(self, event: str, *trial_id: int) -> None:
        self.told.append(" ".join(map(str, (event, *trial_id))))
        if event == self._bad:
            raise self._error

    def study_started(self, study: StudySpec, folder: Path) -> None:
        assert (folder / "study.toml").is_file()
        self._note("study_started")

    def launched(self, assignment: Assignment) -> None:
        self._note("launched", assignment.trial_id)

    def progressed(self, report: SliceReport) -> None:
        if report.trial_id == 0:
            self.epochs += [point.epoch for point in report.curve]
        self._note("progressed", report.trial_id)

    def ended(self, record: TrialRecord) -> None:
        self._note("ended", record.trial_id)

    def study_ended(self, status: StudyStatus) -> None:
        self.status.append(status)
        self._note("study_ended")


@pytest.mark.slow
def test_a_watcher_is_told_of_study_trials_and_epochs_in_their_order(tmp_path: Path) -> None:
    diary = Diary()
    search(tmp_path, callbacks=[diary])
    trials = [
        word for i in (0, 1) for word in (f"launched {i}", *3 * [f"progressed {i}"], f"ended {i}")
    ]
    assert diary.told == ["study_started", *trials, "study_ended"]
    assert diary.epochs == [1, 2, 3, 4]
    assert diary.status == ["complete"]
    again = Diary()
    nas_evidence.resume(tmp_path / "s", n_trials=3, callbacks=[again], progress=False)
    assert again.told[1] == "launched 2"


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["study_started", "launched", "progressed", "ended"])
def test_a_watcher_that_raises_is_one_warning_and_loses_no_trial(tmp_path: Path, bad: str) -> None:
    diary, other = Diary(bad), Diary()
    with pytest.warns(RuntimeWarning, match="has stopped") as warned:
        study = search(tmp_path, callbacks=[diary, other])
    assert [str(one.message) for one in warned] == [
        "callback Diary has stopped, the search goes on: ValueError: no such file"
    ]
    assert diary.told[-1].startswith(bad)
    assert other.told[-1] == "study_ended"
    assert list(study.trials["status"]) == ["complete", "complete"]


@pytest.mark.slow
def test_a_watcher_changes_no_result(tmp_path: Path) -> None:
    values = [
        read_table(search(tmp_path / name, callbacks=told).folder, "evidence")["value"].tolist()
        for name, told in (("with", [Diary()]), ("without", []))
    ]
    assert values[0] == values[1]


@pytest.mark.slow
def test_the_end_of_a_study_says_how_it_ended(tmp_path: Path) -> None:
    stopped, broken, spent, complete = Diary(), Diary(), Diary(), Diary()
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, callbacks=[stopped, Diary("ended", KeyboardInterrupt())])

    def no_workers(*given: Any, **more: Any) -> Executor:
        executor = InlineExecutor(*given[:2])
        executor.poll = lambda timeout: 1 / 0  # type: ignore[assignment]
        return executor

    with pytest.raises(ZeroDivisionError):
        search(tmp_path, callbacks=[broken], executor=no_workers)
    settings = {"budget.wall_seconds": 1e-9}
    nas_evidence.resume(tmp_path / "s", settings=settings, callbacks=[spent], progress=False)
    settings = {"budget.wall_seconds": 1e9}
    nas_evidence.resume(tmp_path / "s", settings=settings, callbacks=[complete], progress=False)
    ends = [diary.status for diary in (stopped, broken, spent, complete)]
    assert ends == [["cancelled"], ["failed"], ["incomplete"], ["complete"]]


@pytest.mark.slow
def test_an_executor_of_your_own_runs_the_trials(tmp_path: Path) -> None:
    made: list[InlineExecutor] = []

    def mine(*given: Any, **more: Any) -> Executor:
        arrays, resources, logs = given
        assert (tmp_path / "s") in logs.parents
        made.append(InlineExecutor(arrays, resources, **more))
        return made[-1]

    own = search(tmp_path, executor=mine)
    assert len(made) == 1
    usual = search(tmp_path / "usual")
    assert own.ranking.equals(usual.ranking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "widths"),
    [
        ({"workers": 2}, [32, 16, 8, 4]),
        ({"workers": 1}, [4, 16, 8, 32]),
        ({"workers": 2, "time_limit": "1h"}, [4, 16, 8, 32]),
        ({"workers": 2, "overrides": {"budget.wall_seconds": 1e9}}, [4, 16, 8, 32]),
    ],
)
def test_a_grid_runs_longest_first_without_a_limit(
    tmp_path: Path, given: dict[str, Any], widths: list[int]
) -> None:
    family = {"mlp": {"width": {"options": [4, 16, 8, 32]}}}
    spec = fakes.study(n_trials=4, family=family, sampler={"name": "grid"}, finalists=0)
    (tmp_path / "study.toml").write_text(dump_study(spec))
    made = FakeExecutor(workers=given["workers"])
    settings = {"dataset.max_train": 60, **given.pop("overrides", {})}
    nas_evidence.search(
        tmp_path / "study.toml", out=tmp_path / "s", executor=lambda *_, **__: made,
        settings=settings, progress=False, **given,
    )  # fmt: skip
    assert [one.assignment.architecture.values["width"] for one in made.launches] == widths


@pytest.mark.slow
def test_an_executor_is_named_by_module_on_the_command_line_and_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[str, str]]
) -> None:
    (tmp_path / "slots.py").write_text(
        "from nas_evidence.workers.inline import InlineExecutor\n"
        "made = []\n"
        "def mine(*given, **more):\n"
        "    made.append(InlineExecutor(*given[:2], **more))\n"
        "    return made[-1]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])
    search(tmp_path, n_trials=1, executor="slots:mine", allow_code=True)
    cli("resume", "s", "--trials", "2", "--executor", "slots:mine", "--allow-code")
    made = sys.modules.pop("slots").made
    assert len(made) == 2


# --- columns that callbacks add to trials: typed, shown, refused where they collide, kept


SPEC = StudySpec.model_validate(
    {"name": "s", "dataset": {"name": "digits"}, "family": {"mlp": {"depth": 1, "width": [4, 8]}},
     "estimators": ["diag_ef"], "objective": "diag_ef"}
)  # fmt: skip
KINDS = {"watts": float, "layers": int, "host": str, "warm": bool}


class Own(Watcher):
    """Adds a column of each type, with what it was given for it."""

    def __init__(self, **values: Any) -> None:
        self.given: dict[str, Any] = {
            "watts": 2.5,
            "layers": 3,
            "host": "a",
            "warm": True,
        } | values
        self.columns = dict(KINDS)

    def values(self, record: TrialRecord) -> Mapping[str, Any]:
        return self.given | ({"layers": record.trial_id} if "layers" in self.given else {})


def same(watcher: Watcher) -> Watcher:
    return watcher


class Quiet(Watcher):
    """Shows nothing."""


def told(*watchers: Watcher) -> tuple[Callbacks, list[str]]:
    said: list[str] = []
    makes = [partial(same, one) for one in watchers]
    called = [
        Called(make, "callback Own", columns_added_by([one]))
        for make, one in zip(makes, watchers, strict=True)
    ]
    return Callbacks(Quiet(), called, SPEC, Path(), said.append), said


def record_of(trial_id: int = 0, **own: Any) -> TrialRecord:
    return record_with(trial_id, own=own)


def test_values_come_as_their_types_and_without_those_that_are_missing() -> None:
    watcher, said = told(Own(watts=np.float32(1.5), warm=np.bool_(False), host=None))
    assert watcher.columns == KINDS
    assert watcher.values(record_of(7)) == {"watts": 1.5, "layers": 7, "warm": False}
    assert told(Own(watts=float("nan")))[0].values(record_of()).keys() == {*KINDS} - {"watts"}
    assert type(told(Own(watts=2))[0].values(record_of())["watts"]) is float
    assert told(Own(host=TrialStatus.COMPLETE))[0].values(record_of())["host"] == "complete"
    assert said == []


@pytest.mark.parametrize(
    "wrong",
    [{"watts": "two"}, {"host": 3}, {"warm": 1}, {"volts": 1.0}, {"watts": True}, {"host": [1]},
     {"host": np.zeros(2)}],
)  # fmt: skip
def test_a_wrong_value_is_one_warning_and_stops_the_callback_alone(wrong: dict[str, Any]) -> None:
    class Other(Watcher):
        columns = {"volts2": float}  # noqa: RUF012

        def values(self, record: TrialRecord) -> Mapping[str, Any]:
            return {"volts2": 230.0}

    watcher, said = told(Own(**wrong), Other())
    assert watcher.values(record_of()) == {"volts2": 230.0}
    assert watcher.values(record_of()) == {"volts2": 230.0}
    (line,) = said
    assert next(iter(wrong)) in line or "array" in line


class Named(enum.StrEnum):
    """Texts that are no plain texts."""

    A = "host"


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


class Returns(Watcher):
    """Returns whatever it was given."""

    columns = KINDS

    def __init__(self, given: Any) -> None:
        self.given = given

    def values(self, record: TrialRecord) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    "wrong",
    [np.array([1.0, 2.0]), np.array([]), [("watts", 1.0)], "abc", "", 5, False, {"watts"},
     {3: 1.0}, {None: 1.0}, {"host": "a\ud800b"}, {"host": "a\0b"}, {"host": b"a"},
     {"layers": 2**63}, {"layers": -(2**63) - 1}, {"watts": 10**400},
     {"watts": 1j}, {"layers": 1.5}, {"layers": enum.IntEnum("I", "A").A}, {"warm": "\ud800"},
     {"watts": np.array([1.0, 2.0])}, pd.Series({"watts": 1.0, "volts": 2.0}), Unspeakable()],
    ids=repr,
)  # fmt: skip
def test_whatever_values_returns_is_one_warning_and_every_trial_is_stored(
    wrong: Any, tmp_path: Path
) -> None:
    watcher, said = told(Returns(wrong))
    for trial_id in (0, 1):
        record = record_of(trial_id, **watcher.values(record_of(trial_id)))
        write_record(tmp_path, record, SPEC, watcher.columns)
        Ended(row=TrialRow.of(record), files={}).model_dump_json()
    assert len(read_table(tmp_path, "trials")) == 2
    (line,) = said
    assert "callback Own has stopped, the search goes on" in line
    assert "\\\\" not in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("given", "stored"),
    [(None, {}), ({}, {}), (pd.Series({"watts": 1.5}), {"watts": 1.5}),
     (MappingProxyType({"layers": -(2**63)}), {"layers": -(2**63)}),
     ({Named.A: "a"}, {"host": "a"}),
     ({"watts": float("-inf"), "layers": float("nan"), "host": pd.NA, "warm": pd.NaT}, {}),
     ({"host": np.str_("é\n,"), "watts": np.array(2.0)}, {"host": "é\n,", "watts": 2.0})],
    ids=repr,
)  # fmt: skip
def test_values_are_any_mapping_and_are_stored_as_plain_values(
    given: Any, stored: dict[str, Any], tmp_path: Path
) -> None:
    watcher, said = told(Returns(given))
    found = watcher.values(record_of())
    assert found == stored
    assert {type(name) for name in found} <= {str}
    write_record(tmp_path, record_of(**found), SPEC, watcher.columns)
    (row,) = read_table(tmp_path, "trials").to_dict("records")
    assert own_values(row) == stored
    assert said == []


class Raising(Watcher):
    """Its columns cannot be read."""

    @property
    def columns(self) -> dict[str, type]:  # type: ignore[override]
        raise RuntimeError("boo")


@pytest.mark.parametrize("columns", [{3: int}, ["joules"], None, "abc", {"joules"}])
def test_columns_that_are_no_dict_of_names_are_refused(columns: Any) -> None:
    watcher = Watcher()
    watcher.columns = columns
    with refused("own-columns-type", "Watcher", str(columns)):
        columns_added_by([watcher])


def test_columns_that_cannot_be_read_are_refused_with_what_they_raise() -> None:
    with refused("own-columns-fail", "Raising", "RuntimeError: boo"):
        columns_added_by([Raising()])


@pytest.mark.parametrize("given", [Own(), None, "abc", 3])
def test_callbacks_that_are_no_list_are_refused(given: Any) -> None:
    with refused("callbacks-no-list"):
        run_of({"callbacks": given})


@pytest.mark.parametrize("given", [[Own], ["abc"], [None], {"a": Own()}])
def test_a_callback_that_is_no_watcher_is_refused(given: Any) -> None:
    with refused("callback-no-watcher"):
        run_of({"callbacks": given})


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        *((name, int, "own-column-taken") for name in COLUMNS["trials"]),
        ("arch_heads", int, "own-column-taken"), ("width", int, "own-column-taken"),
        ("diag_ef", float, "own-column-taken"), ("rank", int, "own-column-taken"),
        *((name, float, "own-column-taken") for name in FREE_SCORES),
        ("a b", int, "own-column-name"), ("x" * 61, int, "own-column-name"),
        ("", int, "own-column-name"), ("watts", list, "own-column-type"),
        ("watts", "float", "own-column-type"), ("watts", ["x"], "own-column-type"),
        ("watts", None, "own-column-type"), ("watts", list[int], "own-column-type"),
    ],
)  # fmt: skip
def test_a_column_that_means_something_else_is_refused(
    name: str, kind: Any, code: str, tmp_path: Path
) -> None:
    with refused(code):
        check_own_columns({name: kind}, SPEC, ("rank",), tmp_path)


def test_a_column_keeps_its_type_and_two_callbacks_have_no_name_in_common(tmp_path: Path) -> None:
    write_record(tmp_path, record_of(), SPEC, {"watts": float})
    check_own_columns({"watts": float, "volts": int}, SPEC, (), tmp_path)
    with refused("own-column-other-type", "watts", "int", "double"):
        check_own_columns({"watts": int}, SPEC, (), tmp_path)
    with refused("own-column-twice", "watts"):
        columns_added_by([Own(), Own()])


def test_a_stored_trial_has_its_columns_and_the_log_the_same(tmp_path: Path) -> None:
    """With the callback, with some values, without it, and merged into one file."""
    records = [record_of(0, **Own().given), record_of(1, watts=1.0), record_of(2)]
    for record, columns in zip(records, (KINDS, KINDS, None), strict=True):
        write_record(tmp_path, record, SPEC, columns)
        write_record(tmp_path, record, SPEC, columns)  # the same again
    trials = read_table(tmp_path, "trials")
    assert own_columns(trials.columns) == [*KINDS]
    assert trials["watts"].tolist()[:2] == [2.5, 1.0]
    assert trials["watts"].isna().tolist() == [False, False, True]
    assert trials["layers"].dtype == pd.Int64Dtype()
    assert trials["warm"].dtype == pd.BooleanDtype()
    tables, _ = read_tables(tmp_path)
    assert rows_of(tables["trials"], tables["evidence"]) == [*map(TrialRow.of, records)]


@pytest.mark.parametrize("first", [0, 1])
def test_columns_that_come_or_go_with_a_run_are_read_as_the_reference_says(
    first: int, tmp_path: Path
) -> None:
    for trial_id in (0, 1):
        runs = trial_id == first
        own = Own().given if runs else {}
        write_record(tmp_path, record_of(trial_id, **own), SPEC, KINDS if runs else None)
    trials = read_table(tmp_path, "trials")
    assert trials["watts"].notna().tolist() == [first == 0, first == 1]
    files = sorted((tmp_path / "trials").glob("*.parquet"))
    whole = pd.concat([pd.read_parquet(file, dtype_backend="pyarrow") for file in files])
    assert {*whole.columns} == {*trials.columns}
    assert whole["layers"].tolist() == trials["layers"].tolist()
    assert {"watts"} <= {*pd.read_parquet(files[first])} - {*pd.read_parquet(files[1 - first])}


@pytest.mark.long
@pytest.mark.slow
def test_a_search_shows_them_everywhere_and_a_resumed_one_goes_on_with_them(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    settings = {"plan.epochs": 1, "plan.settle": 0.0, "estimators": ["diag_ef"],
                "objective": "diag_ef", "finalists": 0}  # fmt: skip
    given: dict[str, Any] = {"families": ["mlp"], "out": tmp_path / "s", "settings": settings}
    with refused("own-column-taken", "width"):
        nas_evidence.search(x, x[:, 0], callbacks=[_named("width")], n_trials=2, **given)
    assert not (tmp_path / "s").exists()
    study = nas_evidence.search(x, x[:, 0], callbacks=[Own()], n_trials=2, **given)
    board = study.leaderboard()
    assert board["layers"].tolist() == board["trial_id"].tolist()
    assert board["host"].tolist() == ["a", "a"]
    report = study.report().parent
    assert pd.read_csv(report / "ranking.csv")["watts"].tolist() == [2.5, 2.5]
    ranking = json.loads((report / "report.json").read_text())["study"]["ranking"]
    assert [one["own"]["host"] for one in ranking] == ["a", "a"]
    with refused("own-column-other-type", "watts"):
        nas_evidence.resume(study.folder, n_trials=3, callbacks=[_named("watts", str)])
    study = nas_evidence.resume(study.folder, n_trials=3)
    study = nas_evidence.resume(study.folder, n_trials=4, callbacks=[Own(host="b")])
    trials = read_table(study.folder, "trials")
    assert trials["host"].fillna("").tolist() == ["a", "a", "", "b"]
    assert study.leaderboard().set_index("trial_id")["watts"].isna().sum() == 1
    assert nas_evidence.verify(study.folder).problems == ()
    _damage(study.folder / "trials" / "000003-a1.parquet")
    nas_evidence.repair(study.folder)
    repaired = read_table(study.folder, "trials").set_index("trial_id")
    assert repaired.loc[3, "host"] == "b"


def _named(name: str, kind: type = int) -> Watcher:
    watcher = Watcher()
    watcher.columns = {name: kind}
    return watcher


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
