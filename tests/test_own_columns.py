"""Every file of a table, and every table on a screen, has all parameters of the space."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fakes import compacted, finished
from messages import refused
from records import mlp, record_with
from searched import build_report, estimate_of, folder

import nas_evidence
from nas_evidence.api.progress import Progress
from nas_evidence.api.request import asked_for
from nas_evidence.api.runs import begun
from nas_evidence.api.trackers.tracked import Tracked
from nas_evidence.cli.shown import ranking_rows
from nas_evidence.cli.terminal import columns_that_fit
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.proposing.startup import first_points
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.domains import Choice, FloatRange, domain_of, type_of
from nas_evidence.spec.parameters import check_parameters, columns_of, searched_in, types_of
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.outside_code import admitted
from nas_evidence.storage.store import Store
from nas_evidence.storage.tables import TABLES, write_record

OWN = {
    "heads": [1, 2],
    "rate": {"low": 0.0, "high": 0.5},
    "drop": [0, 0.1],
    "pool": ["max", "mean"],
    "gated": [True, False],
    "score": {"low": 1, "high": 3},
}
FAMILIES = {"nets:Rich": OWN, "mlp": {"width": {"low": 4, "high": 64}}, "linear": {}}
VALUES = {"heads": 2, "rate": 0.25, "drop": 0.0, "pool": "max", "gated": True, "score": 3}
RICH = ArchitectureSpec(family="nets:Rich", values=VALUES)


def space(**families: Any) -> StudySpec:
    given = {"name": "s", "dataset": {"name": "digits"}, "objective": "kfac_ggn"}
    return StudySpec.model_validate({**given, "family": families or FAMILIES})


def record(trial_id: int, architecture: ArchitectureSpec, **facts: Any) -> TrialRecord:
    evaluations = [{"epoch": 1, "estimate": estimate_of(-1.0 - trial_id)}]
    return record_with(
        trial_id, architecture=architecture, evaluations=evaluations, n_parameters=10, **facts
    )


RECORDS = [
    record(0, ArchitectureSpec(family="linear")),
    record(1, RICH),
    record(2, mlp(width=8, depth=2, shape="constant")),
    record(3, RICH.model_copy(update={"values": {**VALUES, "pool": "mean"}}),
           status=TrialStatus.INFEASIBLE),
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return folder(tmp_path / "s", RECORDS, family=space().family)


def test_every_file_of_a_table_has_the_same_columns(home: Path) -> None:
    for joined in (False, True):
        for table in TABLES:
            schemas = [pq.read_schema(path) for path in (home / table).iterdir()]
            assert all(one.equals(schemas[0]) for one in schemas)
            assert len(schemas) == (1 if joined else len(RECORDS))
        compacted(home)


def test_pandas_and_arrow_read_a_folder_of_several_families_whole(home: Path) -> None:
    expected = {f"arch_{name}": value for name, value in VALUES.items()}
    frame = pd.read_parquet(home / "trials").set_index("trial_id")
    assert frame.loc[1, list(expected)].to_dict() == expected
    assert frame.loc[2, ["arch_width", "arch_depth", "arch_shape"]].tolist() == [8, 2, "constant"]
    table = ds.dataset(home / "trials", format="parquet").to_table()
    rows = {row["trial_id"]: row for row in table.to_pylist()}
    assert {name: rows[1][name] for name in expected} == expected
    assert {type(rows[1][name]) for name in expected} == {int, float, str, bool}
    assert {rows[0][name] for name in expected} == {None}


def test_what_was_trained_is_read_back_of_any_type(home: Path) -> None:
    rows = finished(home)
    assert {i: row.architecture for i, row in rows.items()} == {
        one.trial_id: one.architecture for one in RECORDS
    }
    assert {row.architecture_key for row in rows.values()} == {
        one.architecture.key for one in RECORDS
    }


@pytest.mark.parametrize(
    ("domain", "value"),
    [([0.5, 2], 2.0), (["two", "three"], "two"), ([True, False], False), ([1, 2], 1)],
)
@pytest.mark.parametrize("name", ["width", "depth", "shape"])
def test_a_parameter_called_as_a_shipped_one_may_have_another_type(
    tmp_path: Path, name: str, domain: list[Any], value: Any
) -> None:
    spec = space(**{"nets:Own": {name: domain}, "linear": {}})
    own = ArchitectureSpec(family="nets:Own", values={name: value})
    for number, one in enumerate((ArchitectureSpec(family="linear"), own)):
        write_record(tmp_path, record(number, one), spec)
    assert finished(tmp_path)[1].architecture == own
    compacted(tmp_path)
    write_record(tmp_path, record(2, own), spec)
    assert finished(tmp_path)[2].architecture == own


def test_files_of_before_and_of_today_are_read_together(tmp_path: Path) -> None:
    write_record(tmp_path, RECORDS[0], space(linear={}))  # as before: its own columns alone
    for one in RECORDS[1:]:
        write_record(tmp_path, one, space())
    assert "arch_heads" not in pq.read_schema(tmp_path / "trials" / "000000-a1.parquet").names
    found = nas_evidence.read_table(tmp_path, "trials")
    assert found["arch_heads"].tolist() == [pd.NA, 2, pd.NA, 2]
    before = found
    compacted(tmp_path)
    pd.testing.assert_frame_equal(nas_evidence.read_table(tmp_path, "trials"), before)


def test_whole_numbers_beside_others_are_numbers_from_the_study_file_on() -> None:
    spec = space(**{"nets:Rich": OWN})
    assert spec.family["nets:Rich"]["drop"].options == (0.0, 0.1)
    assert types_of(spec) == {
        "heads": int, "rate": float, "drop": float, "pool": str, "gated": bool, "score": int,
    }  # fmt: skip
    point = {"family": "nets:Rich", **VALUES, "rate": 0, "drop": 0}
    (first,) = first_points(spec.model_copy(update={"first": (point,)}))
    assert first == ArchitectureSpec(family="nets:Rich", values={**VALUES, "rate": 0.0})
    assert type(first.values["rate"]) is type(first.values["drop"]) is float


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (np.arange(1, 4), int), ([np.int64(1), np.int64(2)], int),
        (list(np.linspace(0, 1, 3)), float), ([np.bool_(True), np.bool_(False)], bool),
        (np.array(["a", "b"]), str), ({"low": np.int64(1), "high": np.int32(3)}, int),
        ({"low": np.float32(0.25), "high": np.float32(0.5)}, float),
    ],
)  # fmt: skip
def test_domains_of_numpy_keep_their_type(given: Any, kind: type) -> None:
    domain = domain_of(given)
    assert type(domain.at(0.0)) is type_of(domain) is kind


@pytest.mark.parametrize(
    ("code", "families", "names"),
    [
        ("parameter-name", {"nets:A": {"family": [1, 2]}}, ["'family'", "nets:A"]),
        ("parameter-name", {"nets:A": {"a\tb": [1, 2]}}, ["nets:A"]),
        ("option-types-differ", {"nets:A": {"pool": [False, "max"]}}, ["pool", "nets:A"]),
        ("option-types-differ", {"nets:A": {"k": [1, "all"]}}, ["k", "nets:A"]),
        (
            "parameter-types-differ",
            {"nets:A": {"k": [1]}, "nets:B": {"k": ["a"]}},
            ["k", "nets:B"],
        ),
        ("parameter-types-differ", {"nets:A": {"width": [0.5]}, "mlp": {}}, ["width", "mlp"]),
    ],
)
def test_what_no_column_can_hold_is_refused(
    code: str, families: dict[str, Any], names: list[str]
) -> None:
    with refused(code, *names):
        check_parameters(space(**families))


def test_a_study_is_refused_before_its_folder_is_made(tmp_path: Path) -> None:
    spec = space(**{"nets:A": {"width": {"low": 0.5, "high": 2.0}}, "mlp": {}})
    with refused("parameter-types-differ", "width"):
        begun(tmp_path / "s", spec, None)
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_the_leaderboard_has_every_parameter_of_the_space(home: Path) -> None:
    study = nas_evidence.Study(home, spec=load_study_tables(home).spec, code=Code())
    found = study.leaderboard()
    assert list(found) == [
        "rank", "trial_id", "family", "heads", "rate", "drop", "pool", "gated", "arch_score",
        "depth", "width", "shape", "n_parameters", "score", "estimate", "error",
        "test_nll_per_datum", "test_accuracy", "fit_seconds", "predict_seconds", "status",
        "trials",
    ]  # fmt: skip
    assert found["trial_id"].tolist() == [0, 1, 2, 3]
    own = ["heads", "rate", "drop", "pool", "gated", "arch_score"]
    assert found.loc[1, own].tolist() == list(VALUES.values())
    assert found.loc[3, "pool"] == "mean", "an architecture without a complete trial"
    assert found["score"].tolist()[:3] == [-1.0, -2.0, -3.0]
    assert found["heads"].dtype == found["arch_score"].dtype == pd.Int64Dtype()
    ranking = study.ranking
    assert ranking["heads"].tolist() == [pd.NA, 2, pd.NA]
    assert ranking["rank"].tolist() == [1, 2, 3]
    assert list(ranking)[:3] == ["rank", "trial_id", "family"]


@pytest.mark.parametrize("names", [["rank", "arch_rank", "k"], ["k", "arch_rank", "rank"]])
def test_a_parameter_never_takes_the_column_of_another_fact(names: list[str]) -> None:
    """Nor one that is another parameter's in the files, where each is `arch_` and its name."""
    found = columns_of(names, {"rank"})
    assert found == {"rank": "arch_rank", "arch_rank": "arch_arch_rank", "k": "k"}
    assert columns_of(["arch_rank", "k"], {"rank"}) == {"arch_rank": "arch_rank", "k": "k"}


def test_a_table_shows_what_is_searched_with_depth_and_width_first() -> None:
    assert searched_in(space()) == ["depth", "width", *OWN]
    assert searched_in(space(**{"nets:A": {"k": [3], "width": [1, 2]}})) == ["width"]
    assert searched_in(space(linear={})) == []


@pytest.mark.slow
def test_a_table_is_read_from_a_store(home: Path) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}/s")
    files = {p.relative_to(home).as_posix(): p for p in home.rglob("*") if p.is_file()}
    store.upload(files)
    for table in TABLES:
        pd.testing.assert_frame_equal(
            nas_evidence.read_table(store.place, table), nas_evidence.read_table(home, table)
        )
    whole = pd.read_parquet(f"{store.place}/trials").set_index("trial_id")
    assert whole.loc[1, "arch_pool"] == "max"
    for place in (f"memory://{uuid.uuid4().hex}", str(home / "gone")):
        with refused("no-study-folder", place):
            nas_evidence.read_table(place, "trials")
    with refused("unknown-table", "'trails'", "did you mean 'trials'?"):
        nas_evidence.read_table(home, "trails")  # type: ignore[arg-type]


def test_the_ranking_on_the_terminal_has_every_parameter(home: Path) -> None:
    shown = load_study_tables(home)
    header, rows = ranking_rows(shown.ranking, shown.spec)
    assert header == [
        "rank", "trial", "family", "width", "depth", "heads", "rate", "drop", "pool", "gated",
        "score", "parameters", "kfac_ggn",
    ]  # fmt: skip
    assert rows[1][5:11] == ["2", "0.25", "0", "max", "True", "3"]


def test_a_narrow_terminal_leaves_out_parameters_of_ones_own_last() -> None:
    names = ["rank", "trial", "family", "width", "a_long_name_of_a_parameter", "kfac_ggn", "SOTL"]
    cells = [["1", "0", "nets:Rich", "8", "0.25", "-1.234", "2.345"]]
    assert columns_that_fit(names, cells, 200, names[4:5]) == [*range(7)]
    assert columns_that_fit(names, cells, 75, names[4:5]) == [0, 1, 2, 3, 4, 5]
    assert columns_that_fit(names, cells, 50, names[4:5]) == [0, 1, 2, 3, 5]


def test_a_line_of_progress_names_every_parameter() -> None:
    lines: list[str] = []
    progress = Progress(space(), n_done=0, say=lines.append)
    for one in RECORDS[:3]:
        progress.ended(one)
    assert " (linear) complete" in lines[0]
    own = "(nets:Rich, heads 2, rate 0.25, drop 0, pool max, gated True, score 3) complete"
    assert own in lines[1]
    assert " (mlp, width 8, depth 2) complete" in lines[2]


@pytest.mark.slow
def test_the_page_has_a_column_for_every_parameter(home: Path) -> None:
    paths = build_report(home)
    table = paths.html.read_text(encoding="utf-8")
    for name in ("heads", "rate", "pool", "gated", "score"):
        assert f'<th class="wide">{name}</th>' in table
    line = next(one for one in paths.markdown.read_text().splitlines() if "nets:Rich" in one)
    assert " 2 | 0.25 | 0 | max | True | 3 " in line
    ranking = pd.read_csv(paths.html.with_name("ranking.csv"), dtype=str)
    assert ranking.loc[1, ["arch_heads", "arch_score", "arch_pool"]].tolist() == ["2", "3", "max"]


def test_a_parameter_called_as_a_column_of_the_page_has_a_heading_of_its_own(
    tmp_path: Path,
) -> None:
    own = ArchitectureSpec(family="nets:A", values={"rank": 2})
    spec = space(**{"nets:A": {"rank": [1, 2]}})
    shown = load_study_tables(folder(tmp_path, [record(0, own)], family=spec.family))
    assert (shown.parameters, shown.headings) == (["rank"], ["arch_rank"])


def test_a_tracker_keeps_a_parameter_called_as_a_fact_of_its_own(
    tmp_path: Path,
) -> None:
    own = ArchitectureSpec(family="nets:A", values={"replicate": 7, "k": 0.5})
    write_record(tmp_path, record(0, own), space(**{"nets:A": {"replicate": [7], "k": [0.5]}}))
    (tracked,) = Tracked.all_in(tmp_path)
    assert tracked.about == {
        "family": "nets:A", "arch_replicate": "7", "k": "0.5", "replicate": "0",
    }  # fmt: skip


def test_a_study_file_narrows_a_parameter_of_numbers_to_numbers(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_rates.py").write_text(
        "class Net:\n"
        "    domains = {'rate': {'low': 0.0, 'high': 9.0}, 'drop': [0.5, 1.0], 'k': [1, 2]}\n"
        "    def build(self, values, input_shape, n_outputs): ...\n"
    )
    spec = space(**{"own_rates:Net": {"rate": {"low": 0, "high": 1}, "drop": [1], "k": [2]}})
    found, _ = admitted(spec, [tmp_path], allowed=True)
    assert found.family["own_rates:Net"] == {
        "rate": FloatRange(low=0.0, high=1.0), "drop": Choice(options=(1.0,)),
        "k": Choice(options=(2,)),
    }  # fmt: skip
    assert types_of(found) == {"rate": float, "drop": float, "k": int}
    (tmp_path / "own.toml").write_text(
        'name = "s"\n[dataset]\nname = "digits"\n[family.net]\nmodule = "own_rates:Net"\n'
        "rate = {low = 0, high = 1}\ndrop = [1]\nk = [2]\n"
    )
    asked = asked_for(str(tmp_path / "own.toml"), allow_code=True, given=Code())
    assert asked.spec.family == found.family
    stored, _ = admitted(spec, [tmp_path], allowed=True, kept=Code())
    assert stored.family == spec.family, "a study of before goes on as it is"
