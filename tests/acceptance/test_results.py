"""What a finished study gives: tables, report, predictions, exports, and a training of its best.

Judges from outside: scikit-learn, SciPy, pandas, pyarrow, DuckDB, onnxruntime and torch alone.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from acceptance.uses import (
    COLUMNS,
    SMALL,
    TABLES,
    Arrays,
    Searched,
    check_study,
    command,
    copied,
    files,
    last_values,
    searched,
    tables,
    without_package,
)
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score

import nas_evidence

pytestmark = pytest.mark.slow

CORRELATIONS = {
    "score", "target", "group", "n", "rho", "rho_low", "rho_high", "tau", "regret_1", "regret_3",
}  # fmt: skip
#: Scores that every trial has from its folds, or without any training.
COMPARED = ("conditional_evidence", "elpd", "n_parameters")


def predicted(place: object, data: object, to: Path, *options: object) -> pd.DataFrame:
    """Return what `nas-evidence predict` writes."""
    command("predict", place, data, "--to", to, *options)
    return pd.read_csv(to)


def test_a_search_leaves_trials_scores_weights_report_and_export(classes: Searched) -> None:
    found = check_study(
        classes.folder,
        n_trials=classes.n_trials,
        scores=("conditional_evidence", "elpd", "two_fold", "sotl_e", "sotl_ema"),
    )
    trials = searched(classes.folder)
    assert {*trials["family"]} == {"linear", "mlp"}
    assert not trials["architecture_key"].duplicated().any()
    assert trials["test_accuracy"].between(0.4, 1).all()  # a guess has 1/3
    assert (trials["test_nll_per_datum"] < np.log(3)).any()
    values = last_values(classes.folder)
    assert (values["n_parameters"] == trials["n_parameters"]).all()
    assert (values["train_nll_per_datum"] < 0).all()  # larger is better
    assert (values["sotl"] <= values["train_nll_per_datum"]).all()
    assert (found["curves"]["train_nll_per_datum"] > 0).all()
    assert {*found["evidence"]["relation"]} <= {"EXACT_ON_LINEAR", "LOWER_BOUND", "SCORE"}
    exported = {path.name for path in (classes.folder / "export").iterdir()}
    assert {"README.md", "model.safetensors"} <= exported
    assert [*(classes.folder / "models").glob("*.safetensors")]


def test_pandas_pyarrow_and_duckdb_read_what_read_table_returns(classes: Searched) -> None:
    for name in TABLES:
        expected = nas_evidence.read_table(classes.folder, name)
        place = classes.folder / name
        read = {
            "pandas": pd.read_parquet(place),
            "pyarrow": pyarrow.parquet.read_table(place).to_pandas(),
            "duckdb": duckdb.sql(
                f"SELECT * FROM read_parquet('{place}/**/*.parquet', union_by_name = true)"
            ).df(),
        }
        for reader, frame in read.items():
            assert {*frame.columns} == {*expected.columns} >= COLUMNS[name], (reader, name)
            pd.testing.assert_frame_equal(
                ordered(frame), ordered(expected), check_dtype=False, obj=f"{name} by {reader}"
            )


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows and columns in an order that no reader decides, and one kind of gap."""
    keys = ["trial_id", "attempt", "epoch", "estimator", "term", "group"]
    by = [key for key in keys if key in frame]
    plain = frame.astype(object).where(frame.notna(), None)
    return plain.sort_values(by, ignore_index=True)[sorted(plain)]


def test_metrics_equal_those_of_scikit_learn_on_what_is_predicted(
    classes: Searched, tmp_path: Path
) -> None:
    new = pd.read_csv(classes.new)
    rows = predicted(classes.folder, classes.new, tmp_path / "p.csv")
    assert len(rows) == len(new)
    p = rows[["p(x)", "p(y)", "p(z)"]].to_numpy()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    assert (rows["prediction"] == np.array(["x", "y", "z"])[p.argmax(1)]).all()
    expected = {
        "log_loss": log_loss(new["kind"], p / p.sum(1, keepdims=True)),
        "accuracy": accuracy_score(new["kind"], rows["prediction"]),
    }
    assert expected["accuracy"] > 0.6
    study = nas_evidence.load(classes.folder)
    in_python = study.evaluate(new)
    printed = json.loads(command("predict", classes.folder, classes.new, "--json").out)
    for name, value in expected.items():
        assert in_python[name] == pytest.approx(value, rel=1e-5), name
        assert printed["measures"][name] == pytest.approx(value, rel=1e-5), name
    np.testing.assert_allclose(study.predict_proba(new), p, rtol=1e-5, atol=1e-7)


def test_metrics_of_a_real_target_equal_those_of_scikit_learn(arrays: Arrays) -> None:
    prediction = arrays.study.predict(arrays.new_x, level=0.8)
    mean = prediction.mean[:, 0]
    found = arrays.study.evaluate(arrays.new_x, arrays.new_y)
    assert found["rmse"] == pytest.approx(mean_squared_error(arrays.new_y, mean) ** 0.5, rel=1e-5)
    assert found["r2"] == pytest.approx(r2_score(arrays.new_y, mean), rel=1e-4)
    assert found["r2"] > 0.7
    inside = (prediction.low[:, 0] <= arrays.new_y) & (arrays.new_y <= prediction.high[:, 0])
    assert 0.5 < inside.mean() < 0.99  # 48 of 60 are expected; these are 5 and 4 deviations away
    assert (prediction.std[:, 0] > 0).all()


def test_predictions_carry_ids_and_do_not_depend_on_other_rows(
    classes: Searched, tmp_path: Path
) -> None:
    new = pd.read_csv(classes.new).drop(columns="kind")
    shuffled = new.sample(frac=1, random_state=0)
    shuffled.to_csv(tmp_path / "shuffled.csv", index=False)
    new.iloc[[5]].to_csv(tmp_path / "alone.csv", index=False)
    ids = ("--id", "name")
    whole = predicted(classes.folder, classes.new, tmp_path / "p.csv", *ids)
    again = predicted(classes.folder, tmp_path / "shuffled.csv", tmp_path / "s.csv", *ids)
    assert whole["name"].tolist() == new["name"].tolist()
    assert again["name"].tolist() == shuffled["name"].tolist()
    by_name = again.set_index("name").loc[whole["name"]].reset_index()
    pd.testing.assert_frame_equal(by_name[[*whole]], whole, rtol=1e-5)
    alone = predicted(classes.folder, tmp_path / "alone.csv", tmp_path / "a.csv", *ids)
    expected = whole.iloc[[5]].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone[[*whole]], expected, rtol=1e-5)


def test_an_export_predicts_as_its_study(classes: Searched, tmp_path: Path) -> None:
    command("export", classes.folder, "--to", tmp_path / "e")
    one = predicted(classes.folder, classes.new, tmp_path / "1.csv")
    two = predicted(tmp_path / "e", classes.new, tmp_path / "2.csv")
    pd.testing.assert_frame_equal(one, two, rtol=1e-6)
    shutil.move(tmp_path / "e", tmp_path / "moved")
    loaded = nas_evidence.Predictor.load(tmp_path / "moved")
    new = pd.read_csv(classes.new)
    np.testing.assert_allclose(
        loaded.predict_proba(new), one[["p(x)", "p(y)", "p(z)"]], rtol=1e-5, atol=1e-7
    )


@pytest.fixture(scope="module")
def programs(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with programs for torch alone and for ONNX."""
    return arrays.study.export(tmp_path_factory.mktemp("programs") / "e", pt2=True, onnx=True)


PROGRAM = """
import json, sys
import numpy as np, torch
x = np.load(sys.argv[2])
outputs = torch.export.load(sys.argv[1]).module()(torch.from_numpy(x))
assert not [name for name in sys.modules if name.startswith("nas_evidence.")]
print(json.dumps(outputs.tolist()))
"""


def test_model_pt2_predicts_where_the_package_cannot_be_imported(
    arrays: Arrays, programs: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", arrays.new_x.astype(np.float32))
    found = without_package(PROGRAM, programs / "model.pt2", tmp_path / "x.npy", folder=tmp_path)
    expected = arrays.study.predict(arrays.new_x).mean
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_onnxruntime_predicts_as_the_study(arrays: Arrays, programs: Path) -> None:
    session = pytest.importorskip("onnxruntime").InferenceSession(programs / "model.onnx")
    (given,) = session.get_inputs()
    for rows in (arrays.new_x, arrays.new_x[:1]):
        found = session.run(None, {given.name: rows.astype(np.float32)})[0]
        expected = arrays.study.predict(rows).mean
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_a_linear_network_predicts_what_is_linear_in_its_inputs(arrays: Arrays) -> None:
    """Whatever its weights are called: 80 predictions lie on one plane, those of an mlp do not."""
    trials = searched(arrays.study.folder)
    design = np.column_stack([np.ones(len(arrays.new_x)), arrays.new_x])
    residuals = {}
    for family, rows in trials.groupby("family"):
        mean = arrays.study.predict(arrays.new_x, trial_id=int(rows.index[0])).mean[:, 0]
        fitted = design @ np.linalg.lstsq(design, mean, rcond=None)[0]
        residuals[family] = np.abs(mean - fitted).max()
    assert residuals["linear"] < 1e-4 < 1e-3 < residuals["mlp"]


def test_numbers_of_parameters_are_those_of_the_layers(arrays: Arrays) -> None:
    trials = searched(arrays.study.folder)
    for _, trial in trials.iterrows():
        sizes = [3]
        if trial["family"] == "mlp":
            sizes += [int(trial["arch_width"])] * int(trial["arch_depth"])
        sizes += [1]
        expected = sum((a + 1) * b for a, b in pairwise(sizes))
        assert trial["n_parameters"] == expected


def test_the_best_two_together_predict_between_single_networks(
    arrays: Arrays, tmp_path: Path
) -> None:
    folder = arrays.study.export(tmp_path / "two", top=2)
    together = nas_evidence.Predictor.load(folder).predict(arrays.new_x).mean
    ids = arrays.study.leaderboard()["trial_id"].tolist()
    each = np.stack([arrays.study.predict(arrays.new_x, trial_id=one).mean for one in ids])
    assert (together >= each.min(0) - 1e-5).all()
    assert (together <= each.max(0) + 1e-5).all()
    np.testing.assert_allclose(together, arrays.study.predict(arrays.new_x, top=2).mean, rtol=1e-5)


def test_list_status_and_python_tell_of_the_same_study(classes: Searched) -> None:
    study = nas_evidence.load(classes.folder)
    status = json.loads(command("status", classes.folder, "--json").out)
    assert (status["state"], status["n_trials"]) == ("finished", classes.n_trials)
    assert status["n_finished"] == classes.n_trials <= status["by_status"]["complete"]
    (listed,) = json.loads(command("list", classes.folder.parent, "--json").out)
    assert Path(listed["place"]).name == classes.folder.name
    assert (listed["state"], listed["n_finished"]) == ("finished", classes.n_trials)
    best = {listed["trial_id"], status["best"]["trial_id"], study.best.trial_id}
    assert len(best) == 1
    assert best <= {*study.trials["trial_id"]}
    one = json.loads(command("status", classes.folder, 2, "--json").out)
    expected = searched(classes.folder).loc[2]
    for name in ("status", "family", "n_parameters", "architecture_key"):
        assert one["trial"][name] == expected[name], name
    assert one["trial"]["test_accuracy"] == pytest.approx(expected["test_accuracy"])


def test_the_ranking_has_each_architecture_once_the_best_score_first(classes: Searched) -> None:
    study = nas_evidence.load(classes.folder)
    board, keys = study.leaderboard(), study.trials.set_index("trial_id")["architecture_key"]
    shown = keys.loc[board["trial_id"]]
    assert sorted(shown) == sorted(keys.unique())
    assert board["rank"].tolist() == [*range(1, len(board) + 1)]
    assert board["score"].is_monotonic_decreasing
    values = last_values(classes.folder)["conditional_evidence"].groupby(keys).mean()
    assert spearmanr(board["score"], values.loc[shown]).statistic > 0.5  # further seeds may count


def test_compare_has_a_row_for_each_study_in_the_order_given(
    classes: Searched, arrays: Arrays
) -> None:
    folders = [arrays.study.folder, classes.folder]
    found = nas_evidence.compare(folders)
    assert len(found) == 2
    assert found["n_trials"].tolist() == [3, 6]
    same = nas_evidence.compare([classes.folder, classes.folder])
    assert same["value"].nunique() == 1
    ran = command("compare", *folders)
    assert len([line for line in ran.out.splitlines() if line.count("\t") > 2]) == 3
    command("compare", classes.folder, code=2)


def test_correlations_of_the_report_are_those_of_scipy(classes: Searched, tmp_path: Path) -> None:
    command("report", classes.folder, "--to", tmp_path / "r")
    for folder in (classes.folder / "report", tmp_path / "r"):
        names = {path.name for path in folder.iterdir()}
        assert {"index.html", "report.md", "report.json", "correlations.csv"} <= names
        assert json.loads((folder / "report.json").read_text())
    found = pd.read_csv(tmp_path / "r" / "correlations.csv")
    assert {*found.columns} >= CORRELATIONS
    trials, values = searched(classes.folder), last_values(classes.folder)
    truths = {
        "test_nll_per_datum": -trials["test_nll_per_datum"],
        "test_accuracy": trials["test_accuracy"],
    }
    rows = found[found["group"] == "all"].set_index(["score", "target"])
    assert not rows.index.duplicated().any()
    for target, truth in truths.items():
        for score in COMPARED:
            row, value = rows.loc[(score, target)], values[score].loc[trials.index]
            assert row["n"] == len(trials)
            assert row["rho"] == pytest.approx(spearmanr(value, truth).statistic, abs=1e-9)
            assert row["tau"] == pytest.approx(kendalltau(value, truth).statistic, abs=1e-9)
            assert -1 <= row["rho_low"] <= row["rho"] <= row["rho_high"] <= 1
            regret = truth.max() - truth.loc[value == value.max()].mean()
            assert row["regret_1"] == pytest.approx(regret, abs=1e-9)
            assert 0 <= row["regret_3"] <= row["regret_1"]


def test_the_report_of_any_table_ranks_its_rows_as_scipy_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"guess": rng.normal(size=30), "family": ["u", "v"] * 15})
    table["truth"] = table["guess"] + rng.normal(size=30)
    table.to_csv(tmp_path / "t.csv", index=False)
    command(
        "report", "--table", tmp_path / "t.csv", "--score", "guess", "--target", "truth",
        "--group", "family", "--to", tmp_path / "r",
    )  # fmt: skip
    found = pd.read_csv(tmp_path / "r" / "correlations.csv")
    rows = found[found["score"] == "guess"].set_index("group")
    for group, part in [("all", table), *table.groupby("family")]:
        assert rows.loc[group, "n"] == len(part)
        rho = spearmanr(part["guess"], part["truth"]).statistic
        assert rows.loc[group, "rho"] == pytest.approx(rho, abs=1e-9)


def test_refit_trains_the_best_again_on_all_rows_and_leaves_its_study_alone(
    classes: Searched, tmp_path: Path
) -> None:
    before = files(classes.folder / "trials") | files(classes.folder / "export")
    command("refit", classes.folder, "--seeds", 2, "--executor", "inline", "--out", tmp_path / "f")
    assert files(classes.folder / "trials") | files(classes.folder / "export") == before
    trials, old = (
        nas_evidence.read_table(tmp_path / "f", "trials"),
        nas_evidence.load(classes.folder),
    )
    key = old.trials.set_index("trial_id").loc[old.best.trial_id, "architecture_key"]
    assert {*trials["architecture_key"]} == {key}
    assert trials["replicate"].nunique() == trials["seed"].nunique() == 2
    (new,) = json.loads(command("list", tmp_path / "f", "--json").out)
    assert new["refit_of"]
    assert new["n_rows"] == 160
    rows = predicted(tmp_path / "f", classes.new, tmp_path / "p.csv")
    truth = pd.read_csv(classes.new)["kind"]
    assert (rows["prediction"] == truth).mean() > 0.6


def test_refit_on_other_rows_learns_from_them(arrays: Arrays, tmp_path: Path) -> None:
    """The targets of the other rows are shifted by 50, and so are predictions."""
    again = arrays.study.refit(
        arrays.x, arrays.y + 50, seeds=1, out=tmp_path / "f", progress=False
    )
    mean = again.predict(arrays.new_x).mean[:, 0]
    assert r2_score(arrays.new_y + 50, mean) > 0.7


def test_what_cannot_be_done_ends_with_code_2_and_writes_nothing(
    classes: Searched, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "bad.toml").write_text('name = "bad"\n[dataset]\nname = "digits"\n[plam]\n')
    pd.read_csv(classes.new).drop(columns="wide").to_csv(tmp_path / "narrow.csv", index=False)
    before = files(tmp_path), files(classes.folder)
    for argv in (
        ("search", classes.data, "--target", "kinds"),
        ("search", "nothing.csv", "--target", "kind"),
        ("search", "bad.toml"),
        ("search", classes.data, "--target", "kind", "--set", "plan.epoch=3"),
        ("search", classes.data, "--target", "kind", "--set", "objective=best"),
        ("search", classes.data, "--target", "kind", "--trials", "0"),
        ("serach", classes.data),
        ("status", "mine"),
        ("report", "mine"),
        ("resume", "mine"),
        ("predict", classes.folder, "narrow.csv", "--to", "p.csv"),
        ("export", classes.folder, "--to", "mine"),
        ("report", classes.folder, "--to", "mine"),
        ("compare", classes.folder, "mine"),
    ):
        assert command(*argv, folder=tmp_path, code=2).err, argv
        assert (files(tmp_path), files(classes.folder)) == before, argv


def test_a_finished_study_is_resumed_with_code_0_and_stays_as_it_is(
    classes: Searched, tmp_path: Path
) -> None:
    folder = copied(classes.folder, tmp_path / "study")
    command("resume", folder, "--executor", "inline")
    for name, frame in tables(folder).items():
        pd.testing.assert_frame_equal(frame, nas_evidence.read_table(classes.folder, name))


def test_a_search_of_which_every_trial_fails_ends_with_code_1(
    classes: Searched, tmp_path: Path
) -> None:
    command(
        "search", classes.data, "--target", "kind", "--trials", 2, *SMALL,
        "--set", "plan.learning_rate=1e15", "--out", tmp_path / "s", code=1,
    )  # fmt: skip
    trials = nas_evidence.read_table(tmp_path / "s", "trials")
    assert {*trials["status"]} <= {"diverged", "failed"}
