"""The networks of the best architectures together: predictions, files, what is judged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fakes import Silent
from messages import refused

import nas_evidence
from nas_evidence.data import ArrayData, load
from nas_evidence.data.given import Given
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.driver import Driver
from nas_evidence.exporting.folder import (
    export_ensemble,
    export_winner,
    held_out_of,
    measures_of,
)
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import wrong_export_files
from nas_evidence.exporting.winner import Winner, load_winner, stored_unseen
from nas_evidence.plumbing.sums import listed, write_sums
from nas_evidence.scores.folds import SCALES, restored
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import read_study_tables, read_table
from nas_evidence.training.parts import order_of_data
from nas_evidence.workers.inline import InlineExecutor

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "plan.epochs": 4,
    "plan.settle": 0,
    "plan.folds": 2,
    "estimators": ["diag_ef", "elpd"],
    "objective": "elpd",
    "plan.online.curvature": "diag_ef",
    "family": {"mlp": {"depth": 1, "width": [4, 6, 8]}},
    "finalists": 0,
}


def table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(2, n))
    noise = 0.3 * generator.normal(size=n)
    return pd.DataFrame(
        {
            "a": a, "b": b, "kind": np.where(a + noise > 0, "yes", "no"),
            "size": np.exp(a - b + noise), "girth": a * b + noise,
        }
    )  # fmt: skip


def search(folder: Path, target: Any, **options: Any) -> nas_evidence.Study:
    others = {"kind", "size", "girth"} - {*np.atleast_1d(target)}
    settings = {**QUICK, **options.pop("settings", {})}
    return nas_evidence.search(
        table(), target=target, drop=sorted(others), n_trials=3, settings=settings, out=folder,
        progress=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    weights = {"yes": 2, "no": 1}
    folder = tmp_path_factory.mktemp("classes") / "s"
    return search(folder, "kind", metric="f1", class_weight=weights)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """Two real targets, with test rows."""
    folder = tmp_path_factory.mktemp("sizes") / "s"
    return search(folder, ["size", "girth"], test_fraction=0.2)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """A real target whose noise each network predicts."""
    folder = tmp_path_factory.mktemp("noisy") / "s"
    return search(folder, "girth", settings={"plan.likelihood": "heteroscedastic"})


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """A real target whose scale each fold fits anew, without test rows."""
    folder = tmp_path_factory.mktemp("scaled") / "s"
    return search(folder, "size", target_scale="shifted_log")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArrayData]:
    study = StudySpec.model_validate(
        {
            "name": "several",
            "n_trials": 3,
            "family": {"mlp": {"depth": {"options": [1]}, "width": {"low": 4, "high": 40}}},
            "objective": "two_fold",
            "estimators": ["two_fold", "diag_ef"],
            "sampler": {"name": "random"},
            "dataset": {"name": "digits", "max_train": 160, "max_test": 60},
            "plan": {"epochs": 4, "learning_rate": 0.05, "online": {"every": 2}},
        }
    )
    folder = tmp_path_factory.mktemp("digits") / "s"
    arrays = load(study.dataset, seed=study.seed)
    open_study(folder, study)
    Driver(study, folder, InlineExecutor(arrays, study.resources), Silent()).run()
    return folder, arrays


def best(study: nas_evidence.Study, top: int) -> list[int]:
    """The trials that represent the best architectures."""
    found: list[int] = study.ranking["trial_id"].tolist()[:top]
    return found


def winners(study: nas_evidence.Study, top: int) -> list[Winner]:
    return [load_winner(study._tables(), study.arrays(), i) for i in best(study, top)]


def written(study: nas_evidence.Study, top: int) -> dict[str, Any]:
    study.predictor(top=top)
    path = study.folder / f"export-top-{top}" / "ensemble.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize("top", [1, 3])
def test_the_mixture_is_the_mean_of_its_networks_in_every_form(
    top: int, classes: nas_evidence.Study, tmp_path: Path
) -> None:
    rows = table(9, 1)
    each = [classes.predict_proba(rows, trial_id=i) for i in best(classes, top)]
    np.testing.assert_allclose(classes.predict_proba(rows, top=top), np.mean(each, 0), atol=1e-7)
    folder = classes.export(tmp_path / "e", top=top)
    assert wrong_export_files(folder) == []
    told = json.loads((folder / "ensemble.json").read_text())
    assert told["chosen"] == best(classes, top)
    assert [one["weight"] for one in told["members"]] == [1 / top] * top
    loaded = Predictor.load(folder)
    np.testing.assert_allclose(loaded.predict_proba(rows), np.mean(each, 0), atol=1e-7)
    assert f"# Model card: {top} networks together" in (folder / "README.md").read_text()


def test_each_method_is_that_of_every_member(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = digits
    done = export_ensemble(read_study_tables(folder), tmp_path / "e", arrays, top=3, pt2=True)
    assert list((tmp_path / "e").rglob("*.pt2")) == [tmp_path / "e" / "model.pt2"]
    assert json.loads((tmp_path / "e" / "ensemble.json").read_text()) == done
    predictor = Predictor.load(tmp_path / "e")
    for method in ("probit", "map", "mc"):
        found = predictor.predict(arrays.x_test, method=method).probabilities
        each = [
            Predictor.load(tmp_path / "e" / one["folder"]).predict(arrays.x_test, method=method)
            for one in done["members"]
        ]
        expected = np.mean([one.probabilities for one in each], 0)
        np.testing.assert_allclose(found, expected, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classes", "sizes", "scaled", "noisy"])
def test_programs_of_torch_and_onnx_predict_as_the_study(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Classes by their probabilities; real targets by the mean of the networks on their scale."""
    onnxruntime, _ = map(pytest.importorskip, ("onnxruntime", "onnxscript"))
    study: nas_evidence.Study = request.getfixturevalue(kind)
    rows = table(9, 1)
    folder = study.export(tmp_path / "e", top=3, pt2=True, onnx=True)
    loaded, said = Predictor.load(folder), study.predict(rows, top=3)
    inputs = loaded.given(rows).inputs
    with torch.no_grad():
        by_torch = torch.export.load(folder / "model.pt2").module()(torch.from_numpy(inputs))
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    by_onnx = session.run(None, {"inputs": inputs.astype(np.float32)})[0]
    found = loaded.predict(rows)
    if kind == "classes":
        np.testing.assert_array_equal(found.probabilities, said.probabilities)  # type: ignore[arg-type]
        expected, by_torch, by_onnx = said.probabilities, by_torch.exp(), np.exp(by_onnx)
    else:
        for name in ("mean", "std", "std_model", "low", "high"):
            np.testing.assert_array_equal(getattr(found, name), getattr(said, name), name)
        expected = np.array([one.predict(rows).quantile(0.5) for _, one in loaded.members])
        if kind == "scaled":
            scale = found.real.scale  # type: ignore[attr-defined]
            expected = scale.inverse(scale.forward(expected).mean(0))
        else:
            expected = expected.mean(0)
        if kind == "sizes":  # quantiles are held above 0, outputs of a program are not
            expected, by_torch, by_onnx = (one[:, 1] for one in (expected, by_torch, by_onnx))
    np.testing.assert_allclose(by_torch, expected, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    np.testing.assert_allclose(by_onnx, expected, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def test_the_evidence_of_each_network_is_recomputed_and_test_rows_are_told(
    sizes: nas_evidence.Study,
) -> None:
    told, home = written(sizes, 2), sizes.folder / "export-top-2"
    for one in told["members"]:
        own = json.loads((home / one["folder"] / "evidence.json").read_text())
        assert own["rescored_sum"] == one["rescored_sum"]
        assert own["rescored_sum"] == pytest.approx(own["scores"]["diag_ef"]["sum"], rel=1e-6)
    arrays, rows = sizes.arrays(), sizes.trials.set_index("trial_id")
    found = sizes.predictor(top=2).predict(Given(np.array(arrays.x_test)))
    assert told["test"]["rmse"] == pytest.approx(found.metrics(arrays.y_test)["rmse"])
    card = (home / "README.md").read_text()
    assert f"RMSE {told['test']['rmse']:.4g}" in card
    assert f"{rows.loc[best(sizes, 2), 'n_parameters'].sum():,} parameters in all" in card


def test_an_export_that_is_there_is_used_again_and_one_of_fitted_weights_is_not(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    """As versions before this one wrote it."""
    expected = classes.predict_proba(table(9, 1), top=2)
    shutil.copytree(classes.folder, tmp_path / "s")
    study, path = nas_evidence.load(tmp_path / "s"), tmp_path / "s/export-top-2/ensemble.json"
    before = path.stat().st_mtime_ns
    study.predict(table(9, 1), top=2)
    assert path.stat().st_mtime_ns == before
    told = json.loads(path.read_text())
    told["kind"], told["members"][0]["weight"], told["members"][1]["weight"] = "stacked", 0.9, 0.1
    path.write_text(json.dumps(told))
    write_sums(path.parent, sorted(listed(path.parent)))
    assert not np.allclose(Predictor.load(path.parent).predict_proba(table(9, 1)), expected)
    np.testing.assert_array_equal(study.predict_proba(table(9, 1), top=2), expected)


def test_out_of_fold_predictions_are_those_of_networks_that_have_not_seen_the_row(
    classes: nas_evidence.Study,
) -> None:
    own = winners(classes, 2)
    found, rows = held_out_of(own)  # type: ignore[misc]
    each = [winner.held_out[0].probabilities for winner in own]  # type: ignore[index]
    np.testing.assert_allclose(found.probabilities, np.mean(each, 0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(rows, np.arange(60))
    unseen = written(classes, 2)["unseen"]
    assert (unseen["n_data"], unseen["chosen_among"], unseen["corrected"]) == (60, 3, True)
    # Corrected for the choice, it is at least the loss on all rows.
    y = classes.arrays().y_train
    assert unseen["log_loss"] >= found.metrics(y)["log_loss"] - 1e-9
    assert measures_of(own)["log_loss"] == pytest.approx(found.metrics(y)["log_loss"])  # type: ignore[index]


def test_intervals_and_quantiles_of_several_targets_are_of_the_mixture(
    sizes: nas_evidence.Study,
) -> None:
    rows = table(9, 1)
    found = sizes.predict(rows, quantiles=(0.1,), top=3)
    each = [member.predict(rows) for _, member in sizes.predictor(top=3).members]
    assert len(each) == 3
    mean = np.mean([one.real.mean for one in each], 0)
    np.testing.assert_allclose(found.real.mean[:, 1], mean[:, 1])  # sizes are held above 0
    for end, p in ((found.low, 0.05), (found.high, 0.95)):
        below = np.mean([one.real.cdf(end) for one in each], 0)
        free = end > found.real.least
        np.testing.assert_allclose(below[free], p, atol=1e-6)
    between = np.mean([(one.real.mean - mean) ** 2 for one in each], 0)
    within = np.mean([np.asarray(one.std_model) ** 2 for one in each], 0)
    expected = np.sqrt(between + within)[:, 1]
    np.testing.assert_allclose(np.asarray(found.std_model)[:, 1], expected, rtol=1e-6)
    np.testing.assert_array_equal(found.to_frame()["q10 of girth"], found.quantile(0.1)[:, 1])
    assert {"rmse of size", "rmse of girth"} <= set(sizes.evaluate(rows, top=3))


@pytest.mark.long
def test_a_scale_of_each_fold_is_kept_in_what_is_judged(scaled: nas_evidence.Study) -> None:
    own = winners(scaled, 3)
    found, rows = held_out_of(own)  # type: ignore[misc]
    y = scaled.arrays().y_train[rows]
    each = [np.exp(one.held_out[0].real.log_density(y)) for one in own]  # type: ignore[index]
    np.testing.assert_allclose(np.exp(found.real.log_density(y)), np.mean(each, 0))
    unseen = written(scaled, 3)["unseen"]
    assert 0 <= unseen["coverage_50"] <= unseen["coverage_90"] <= 1
    each_new = [scaled.predict(table(9, 1), trial_id=i).real for i in best(scaled, 3)]
    low = scaled.predict(table(9, 1), top=3).low
    np.testing.assert_allclose(np.mean([one.cdf(low) for one in each_new], 0), 0.05, atol=1e-6)


def test_class_weights_and_the_threshold_decide_on_the_mixture(
    classes: nas_evidence.Study,
) -> None:
    found = classes.predict(table(9, 1), top=2)
    assert found.class_weight == {"yes": 2, "no": 1}
    threshold = written(classes, 2)["thresholds"]["f1"]
    assert found.threshold == threshold
    assert found.probabilities is not None
    second = found.probabilities[:, 1] >= threshold
    np.testing.assert_array_equal(found.labels == found.classes[1], second)


def test_what_it_costs_is_told_of_all_networks(classes: nas_evidence.Study) -> None:
    written(classes, 3)
    home = classes.folder / "export-top-3"
    whole, one = classes.cost(home), classes.cost(home / "members" / "1")
    assert whole["bytes"] > 2.5 * one["bytes"]
    assert whole["milliseconds_per_row"] > 0


def test_the_command_line_predicts_by_several_and_says_what_went(
    classes: nas_evidence.Study, tmp_path: Path, cli: Callable[..., tuple[str, str]]
) -> None:
    new, place = tmp_path / "new.csv", classes.folder
    table(9, 1)[["a", "b"]].to_csv(new, index=False)
    cli("predict", place, new, "--top", 2, "--to", tmp_path / "two.csv")
    found = pd.read_csv(tmp_path / "two.csv")["p(yes)"]
    np.testing.assert_allclose(found, classes.predict_proba(table(9, 1), top=2)[:, 1], atol=1e-6)
    _, error = cli("predict", place, new, "--single", code=2)
    assert "`--single` is no longer an option" in error


def test_the_other_kind_of_export_is_not_replaced_and_too_many_are_refused(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = digits
    tables = read_study_tables(folder)
    with refused("top-out-of-range", 3, 4):
        export_ensemble(tables, tmp_path / "e", arrays, top=4)
    export_winner(tables, tmp_path / "one", arrays)
    with refused("folder-of-another-export", "one network"):
        export_ensemble(tables, tmp_path / "one", arrays, top=2)
    export_ensemble(tables, tmp_path / "two", arrays, top=2)
    with refused("folder-of-another-export", "several networks"):
        export_winner(tables, tmp_path / "two", arrays)
    study = nas_evidence.load(folder)
    with refused("option-trial-and-top"):
        study.export(trial_id=0, top=2)
    shutil.copytree(tmp_path / "two", folder / "export")  # as an earlier version left it
    assert len(study.predictor().members) == 0
    assert not (folder / "export" / "members").exists()


def test_a_study_that_delivered_several_is_refused_by_one_sentence_or_taken_as_one_network(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    expected = classes.predict_proba(table(9, 1))
    shutil.copytree(classes.folder, tmp_path / "s")
    file = tmp_path / "s" / "study.toml"
    text = file.read_text()
    file.write_text(text.replace("[dataset]", 'deliver = "three"\n\n[dataset]', 1))
    with refused("removed-key", "deliver", "52e6435a") as caught:
        nas_evidence.load(tmp_path / "s")
    assert len(str(caught.value).splitlines()) == 1
    file.write_text(text.replace("[dataset]", 'deliver = "single"\n\n[dataset]', 1))
    study = nas_evidence.load(tmp_path / "s")
    np.testing.assert_array_equal(study.predict_proba(table(9, 1)), expected)
    assert len(nas_evidence.resume(tmp_path / "s", n_trials=3).trials) == 3


def test_what_a_trial_keeps_is_what_two_fold_scored(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    """The fold's log predictive density is the mean over scales of the kept ones; hits agree."""
    folder, arrays = digits
    data = to_tensors(arrays, torch.device("cpu"))
    row = read_table(folder, "trials").iloc[0]
    winner = load_winner(read_study_tables(folder), arrays, int(row["trial_id"]))
    kept = stored_unseen(winner)
    assert kept is not None
    unseen = restored(kept, winner.assignment.plan)
    logs = torch.stack([unseen.at(scale).log_density(data.y_train) for scale in SCALES])
    terms = read_table(folder, "terms")
    terms = terms[(terms["trial_id"] == row["trial_id"]) & (terms["estimator"] == "two_fold")]
    terms = terms[terms["term"] == "log_predictive"].drop_duplicates("group", keep="last")
    stored = terms.set_index("group")["value"]
    order = order_of_data(arrays.n_train, winner.assignment)
    for name, rows in (("fold 1", order[80:]), ("fold 2", order[:80])):
        expected = float(logs[:, rows].sum(1).logsumexp(0)) - np.log(len(SCALES))
        assert stored[name] == pytest.approx(expected, rel=1e-5)
    accuracy = (kept[:, :-1].argmax(1) == data.y_train).double().mean()
    measured = measures_of([winner])
    assert measured is not None
    assert measured["accuracy"] == pytest.approx(float(accuracy))
    assert measured["n_data"] == 160
    tables = read_study_tables(folder)
    export_winner(tables, tmp_path / "one", arrays, trial_id=int(row["trial_id"]))
    card = (tmp_path / "one" / "README.md").read_text()
    assert f"expected calibration error {measured['ece']:.4f} (15 bins)" in card
