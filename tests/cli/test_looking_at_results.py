"""Claims about looking at results: what matters first, nothing cut, and a page for one reader."""

import inspect
import math
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import logged
from faulty import call
from messages import refused
from rich.console import Console
from searched import EPOCHS, folder, load, record

import nas_evidence
from nas_evidence.api.control import status_in
from nas_evidence.cli import terminal
from nas_evidence.cli.page_server import served
from nas_evidence.cli.show import trial_sentence
from nas_evidence.cli.shown import ranking_rows
from nas_evidence.cli.terminal import columns_that_fit, print_rows
from nas_evidence.driver.mirror import working_copy
from nas_evidence.exporting.predictor import Metrics
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.tables import read_table


def got(address: str) -> tuple[int, bytes]:
    """Return status and body of an address."""
    try:
        with urllib.request.urlopen(address) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def tables_of(path: Path, trial_id: int) -> dict[str, list[dict[str, object]]]:
    found = {}
    for name in ("trials", "evidence", "terms", "curves"):
        rows = read_table(path, name)  # type: ignore[arg-type]
        rows = rows[rows["trial_id"] == trial_id].astype(object)
        found[name] = rows.where(rows.notna(), None).to_dict("records")
    return found


@pytest.mark.slow
def test_eighty_columns_cut_no_score_accuracy_or_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(tmp_path, [record(10 * key + i, key) for key in range(8) for i in range(2)])
    header, rows = ranking_rows(study.ranking, study.spec)
    narrow = Console(width=80, force_terminal=True, record=True, color_system=None)
    monkeypatch.setattr(terminal, "out", narrow)
    print_rows("Ranking", header, rows)
    text = narrow.export_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        line = next(one for one in text.splitlines() if one.split()[:2] == row[:2])
        for name in ("family", "width", "kfac_ggn", "test accuracy"):
            assert cells[name] in line.split()
    assert "…" not in text


def test_columns_without_a_value_are_not_shown(tmp_path: Path) -> None:
    study = load(tmp_path, [record(key, key) for key in range(2)])
    untested = [replace(one, test_accuracy=None, test_nll_per_datum=None) for one in study.ranking]
    header, rows = ranking_rows(untested, study.spec)
    assert header == [h for h in ranking_rows(study.ranking, study.spec)[0] if "test" not in h]
    assert [len(row) for row in rows] == [len(header)] * 2
    unscored = [replace(one, objective=None) for one in untested]
    assert study.spec.objective in ranking_rows(unscored, study.spec)[0]


def test_a_heading_breaks_at_a_blank_and_never_inside_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = Console(width=46, force_terminal=True, record=True, color_system=None)
    monkeypatch.setattr(terminal, "out", narrow)
    header = ["rank", "conditional_evidence", "test accuracy", "family"]
    print_rows("Ranking", header, [["1", "-0.098", "0.984", "resnet"]])
    text = narrow.export_text()
    assert {"conditional_evidence", "test", "accuracy"} <= {*text.split()}


def test_metrics_are_named_as_in_the_report_and_each_coverage_once() -> None:
    found = {"rmse": 1.0, "r2": 0.5, "coverage": 0.9, "level": 0.9}
    found |= {"crps": 0.3, "coverage_50": 0.4, "coverage_90": 0.9, "coverage_95": 1.0}
    names = [words for words, _ in Metrics(found, n=9, task="regression").lines()]
    inside = [f"{p} % intervals cover" for p in (90, 50, 95)]
    assert names == ["RMSE", "R²", "CRPS", *inside]
    assert TARGET_KINDS["regression"].metrics["coverage"] in names


def test_columns_go_in_the_order_of_their_weight() -> None:
    header = ["rank", "SOTL", "parameters", "test log loss", "test accuracy"]
    rows = [["1", "0.1234", "123456", "0.123", "0.987"]]
    assert columns_that_fit(header, rows, 100) == [0, 1, 2, 3, 4]
    assert columns_that_fit(header, rows, 36) == [0, 2, 3, 4]
    assert columns_that_fit(header, rows, 24) == [0, 3, 4]
    assert columns_that_fit(header, rows, 5) == [0, 4]


def test_a_network_that_never_learned_says_so_and_why(tmp_path: Path) -> None:
    one = record(7, 1, test_accuracy=0.1)
    flat = tuple(p.model_copy(update={"train_nll_per_datum": 2.303}) for p in one.curve)
    folder(tmp_path, [one.model_copy(update={"curve": flat}), record(1, 2)])
    said = trial_sentence(tables_of(tmp_path, 7), "kfac_ggn", 1, 2)
    assert said.startswith("7 (mlp) never learned: its training loss was 2.303 nats")
    assert "test accuracy 10.0 %" in said
    assert "learning_rate" in said
    held = tables_of(tmp_path, 7)
    held["terms"].append({"term": "effective_parameters", "epoch": EPOCHS, "value": 0.01})
    assert "holds its weights at zero (0.0 of 200" in trial_sentence(held, "kfac_ggn", 1, 2)


def test_other_trials_say_their_rank_or_their_cause(tmp_path: Path) -> None:
    learned = record(1, 2)
    falling = tuple(
        p.model_copy(update={"train_nll_per_datum": 2 / p.epoch}) for p in learned.curve
    )
    failed = record(2, 3, status=TrialStatus.FAILED, epochs=5, cause="loss became nan")
    folder(tmp_path, [learned.model_copy(update={"curve": falling}), failed])
    said = trial_sentence(tables_of(tmp_path, 1), "kfac_ggn", 1, 1)
    assert "ranked 1 of 1 by kfac_ggn: 0.450 nats per datum, test accuracy 50.0 %" in said
    assert trial_sentence(tables_of(tmp_path, 2), "kfac_ggn", None, 1) == (
        "2 (mlp) failed after epoch 5: loss became nan"
    )


@pytest.mark.slow
def test_status_and_ranking_show_one_number(tmp_path: Path) -> None:
    values = {1: (0.9, 0.6), 2: (0.5, 0.8)}
    records = [
        record(10 * key + i, key, value=value)
        for key, two in values.items()
        for i, value in enumerate(two)
    ]
    study = load(tmp_path, records)
    logged(tmp_path)
    best = status_in(working_copy(str(tmp_path)))["best"]
    assert list(best) == ["trial_id", "kfac_ggn", "unit", "ranked_by", "architecture"]
    value = study.winner.objective
    assert list(best.values()) == [
        study.winner.trial_id, value, "nats per datum", "kfac_ggn", study.winner.architecture,
    ]  # fmt: skip
    nothing = folder(tmp_path / "failed", [record(1, 1, status=TrialStatus.FAILED)])
    logged(nothing)
    assert status_in(working_copy(str(nothing)))["best"] is None


@pytest.mark.slow
def test_the_report_is_served_to_who_knows_the_token_and_nothing_else_is(tmp_path: Path) -> None:
    folder(tmp_path, [])
    report = tmp_path / "report"
    with served(report, 0) as (address, idle_seconds):
        assert address.startswith("http://127.0.0.1:")
        assert idle_seconds() == math.inf
        assert got(address)[0] == 404  # nothing is built yet
        report.mkdir()
        (report / "ranking.csv").write_text("rank")
        assert got(address)[0] == 404  # no list of files
        (report / "index.html").write_text("the report")
        root = address.rsplit("/", 2)[0]
        for wrong in (f"{root}/", f"{root}/guessed/", f"{root}/guessed/index.html"):
            assert got(wrong)[0] == 404
        assert got(address) == (200, b"the report")
        assert idle_seconds() < math.inf
        assert got(f"{address}ranking.csv") == (200, b"rank")
        for outside in ("../study.toml", "%2e%2e/study.toml", "/../study.toml"):
            assert got(address + outside)[0] == 404
        taken = int(address.split(":")[2].split("/")[0])
        with (
            refused("port-not-usable", taken),
            served(tmp_path, taken),
        ):
            pass


def test_studies_side_by_side_say_what_cannot_be_compared(tmp_path: Path) -> None:
    one = folder(tmp_path / "synthetic", [record(1, 1), record(2, 2)])
    two = folder(tmp_path / "other", [record(1, 3)], name="other", objective="sotl")
    found = nas_evidence.compare([one, two])
    assert list(found.index) == ["synthetic", "other"]
    assert found["value"]["synthetic"] == 0.85
    assert found.attrs["notes"] == [
        "They are ranked by different scores: compare the test columns only."
    ]
    with refused("number-of-studies", 2, 10, 1):
        nas_evidence.compare([one])


#: Changes of a study of a table, with the keys that decide rows or split, and what is said then.
ROWS = "of different data or splits"
CHANGES = {
    "target_scale": ({"target_scale": "log"}, {}, ""),
    "features": ({"drop": ("a",), "categorical": ("b",)}, {}, ""),
    "place": ({"path": "elsewhere/t.csv"}, {}, ""),
    "trials": ({}, {"n_trials": 99}, ""),
    "class_weight": (
        {"class_weight": "balanced", "task": "classification"},
        {"plan": {"likelihood": "categorical"}},
        "test accuracy are not compared: `class_weight` is none (one), balanced (other).",
    ),
    "cell": ({"content": "1f"}, {}, ROWS),
    "max_train": ({"max_train": 50}, {}, ROWS),
    "test_fraction": ({"test_fraction": 0.3}, {}, ROWS),
    "seed": ({}, {"seed": 1}, ROWS),
    "weights": ({"weights": "w"}, {}, ROWS),
    "groups": ({"groups": "g"}, {}, ROWS),
    "target": ({"target": "z"}, {}, ROWS),
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_and_split_decide_whether_studies_are_of_the_same_data(
    name: str, tmp_path: Path
) -> None:
    dataset, changes, says = CHANGES[name]
    task = dataset.get("task", "regression")
    given = {"name": "table", "path": "t.csv", "target": "y", "content": "0e", "task": task}
    given["test_fraction"] = 0.2
    plan = {"likelihood": "categorical" if task == "classification" else "gaussian"}
    folders = [
        folder(
            tmp_path / one,
            [record(1, 1)],
            **{"name": one, "plan": plan, "dataset": DatasetSpec(**given | more), **own},
        )
        for one, more, own in (("one", {}, {}), ("other", dataset, changes))
    ]
    found = nas_evidence.compare(folders)
    notes = found.attrs["notes"]
    assert len(notes) == bool(says)
    assert says in "".join(notes)
    assert (found["value"] == 0.85).all()
    assert found["test_accuracy"].isna().all() == (name == "class_weight")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_that_draws_no_rows_makes_no_other_data(seed: int) -> None:
    whole = DatasetSpec(name="table", path="t.csv", target="y", content="0e")
    assert whole.rows(0) == whole.rows(seed)
    assert (DatasetSpec(name="digits").rows(0) == DatasetSpec(name="digits").rows(seed)) != seed
    assert DatasetSpec(name="digits").rows(0) == DatasetSpec(name="digits", test_size=500).rows(0)
    assert DatasetSpec(name="digits").rows(0) != DatasetSpec(name="digits", test_size=9).rows(0)


def test_each_key_of_a_data_set_decides_rows_or_how_they_are_read() -> None:
    read = {"drop", "categorical", "numeric", "class_weight", "target_scale", "image_size"}
    rows = inspect.getsource(DatasetSpec.rows)
    decide = {key for key in DatasetSpec.model_fields if f"self.{key}" in rows}
    assert decide | read == {*DatasetSpec.model_fields}
    assert not decide & read


@pytest.mark.slow
def test_compare_prints_a_row_for_each_study_and_the_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = folder(tmp_path / "synthetic", [record(1, 1)])
    two = folder(tmp_path / "other", [], name="other", objective="sotl")
    code, text, said = call(capsys, "compare", one, two)
    header, first, second, note = (line.split("\t") for line in text.splitlines())
    rows = [dict(zip(header, row, strict=True)) for row in (first, second)]
    assert (code, said) == (0, "")
    assert [row["study"] for row in rows] == ["synthetic", "other"]
    assert (rows[0]["value"], rows[1]["value"]) == ("0.8500", "-")
    assert note[0].startswith("note:   They are ranked by different scores")


@pytest.mark.slow
def test_scores_at_different_powers_of_the_likelihood_are_not_compared(tmp_path: Path) -> None:
    one = folder(tmp_path / "synthetic", [record(1, 1)])
    two = folder(
        tmp_path / "tempered", [record(1, 3)], name="tempered", plan={"likelihood_power": 5}
    )
    found = nas_evidence.compare([one, two])
    assert found["value"].isna().all()
    refused = "Their scores are not compared: `likelihood_power` is 1 (synthetic), 5 (tempered)."
    assert refused in found.attrs["notes"]
    moved = {"augment": ["RandomHorizontalFlip", "RandomCrop"]}
    three = folder(tmp_path / "moved", [record(1, 3)], name="moved", plan=moved)
    refused = (
        "Their scores are not compared: `augment` is none (synthetic), "
        "RandomCrop + RandomHorizontalFlip (moved)."
    )
    assert refused in nas_evidence.compare([one, three]).attrs["notes"]
