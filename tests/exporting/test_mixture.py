"""All seeds of the best architecture, as a study delivers them: predictions, files and folds."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from messages import refused

import nas_evidence
from nas_evidence.baselines.permutation import column_importance
from nas_evidence.baselines.stored_comparison import is_compared
from nas_evidence.cli.report import say_cost, say_export
from nas_evidence.data.given import Given
from nas_evidence.driver.verification import verify
from nas_evidence.exporting.mixture import held_out_together, load_delivered
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import wrong_export_files

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "plan.epochs": 4,
    "plan.settle": 0,
    "plan.folds": 2,
    "estimators": ["diag_ef", "elpd"],
    "objective": "elpd",
    "plan.online.curvature": "diag_ef",
    "family.mlp.depth.high": 1,
    "family.mlp.width.high": 8,
    "deliver": "seeds",
    "finalists": 2,
    "race.trials": 4,
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
        table(), target=target, drop=sorted(others), n_trials=2, settings=settings, out=folder,
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
    """A real target whose noise each network predicts; three architectures."""
    folder = tmp_path_factory.mktemp("noisy") / "s"
    settings = {"plan.likelihood": "heteroscedastic", "deliver": "three", "race.trials": 2}
    return search(folder, "girth", settings=settings)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """A real target whose scale each fold fits anew, without test rows."""
    folder = tmp_path_factory.mktemp("scaled") / "s"
    return search(folder, "size", target_scale="shifted_log")


def test_a_table_delivers_all_seeds_of_the_best_and_single_one_of_them(
    classes: nas_evidence.Study,
) -> None:
    first, *others = classes.delivered
    key = classes.trials.set_index("trial_id")["architecture_key"]
    assert first == classes.best.trial_id
    assert {first, *others} == {*key.index[key == key[first]]}
    assert len(others) == 2
    assert len(classes.predictor().members) == 3
    assert classes.predictor(single=True).members == ()
    alone = classes.predict_proba(table(9, 1), single=True)
    np.testing.assert_array_equal(alone, classes.predict_proba(table(9, 1), trial_id=first))
    with refused("option-single-and-other"):
        classes.predict(table(9, 1), single=True, top=2)
    assert classes.evaluate(table(9, 1), single=True) != classes.evaluate(table(9, 1))


@pytest.mark.long
def test_the_mixture_is_the_mean_of_its_networks_in_every_form(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    rows = table(9, 1)
    each = [classes.predict_proba(rows, trial_id=i) for i in classes.delivered]
    np.testing.assert_allclose(classes.predict_proba(rows), np.mean(each, 0), atol=1e-7)
    folder = classes.export(tmp_path / "e")
    assert wrong_export_files(folder) == []
    written = json.loads((folder / "ensemble.json").read_text())
    assert (written["kind"], written["chosen"]) == ("mixture", classes.delivered)
    assert [one["weight"] for one in written["members"]] == [1 / 3] * 3
    loaded = Predictor.load(folder)
    np.testing.assert_allclose(loaded.predict_proba(rows), np.mean(each, 0), atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classes", "sizes", "scaled", "noisy"])
def test_programs_of_torch_and_onnx_predict_as_the_study(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Classes by their probabilities; real targets by the mean of the networks on their scale."""
    onnxruntime, _ = map(pytest.importorskip, ("onnxruntime", "onnxscript"))
    study: nas_evidence.Study = request.getfixturevalue(kind)
    rows = table(9, 1)
    folder = study.export(tmp_path / "e", pt2=True, onnx=True)
    loaded, said = Predictor.load(folder), study.predict(rows)
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


@pytest.mark.long
def test_the_evidence_of_each_network_is_recomputed_in_the_export(
    sizes: nas_evidence.Study,
) -> None:
    assert sizes.predictor() is not None
    each = []
    for member in sorted((sizes.folder / "export" / "members").iterdir()):
        written = json.loads((member / "evidence.json").read_text())
        stored = written["scores"]["diag_ef"]["sum"]
        assert written["rescored_sum"] == pytest.approx(stored, rel=1e-6)
        each.append((written["trial_id"], written["rescored_sum"]))
    whole = json.loads((sizes.folder / "export" / "ensemble.json").read_text())
    assert [(one["trial_id"], one["rescored_sum"]) for one in whole["members"]] == each


def test_an_export_that_is_there_is_used_again(sizes: nas_evidence.Study) -> None:
    sizes.predictor()
    assert sizes.is_exported()
    before = (sizes.folder / "export" / "ensemble.json").stat().st_mtime_ns
    nas_evidence.load(sizes.folder).predict(table(9, 1))
    assert (sizes.folder / "export" / "ensemble.json").stat().st_mtime_ns == before


def test_a_study_without_the_key_delivers_one_network(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    """A study of an older version: its file has no such key."""
    shutil.copytree(classes.folder, tmp_path / "old")
    file = tmp_path / "old" / "study.toml"
    file.write_text(
        "\n".join(line for line in file.read_text().splitlines() if "deliver" not in line)
    )
    old = nas_evidence.load(tmp_path / "old")
    assert old.delivered == [classes.best.trial_id]
    assert old.predictor().members == ()
    assert nas_evidence.resume(tmp_path / "old", n_trials=2).delivered == old.delivered


def test_held_out_predictions_are_the_mixture_of_what_each_network_has_not_seen(
    classes: nas_evidence.Study,
) -> None:
    winners = load_delivered(classes._tables(), classes.arrays())
    found, rows = held_out_together(winners)  # type: ignore[misc]
    each = [winner.held_out[0].probabilities for winner in winners]  # type: ignore[index]
    np.testing.assert_allclose(found.probabilities, np.mean(each, 0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(rows, np.arange(60))
    written = json.loads((classes.folder / "export" / "ensemble.json").read_text())
    assert written["unseen"]["n_data"] == 60


@pytest.mark.long
def test_three_are_all_networks_of_the_best_architectures(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    """There are only two architectures, so that no other choice is possible."""
    shutil.copytree(classes.folder, tmp_path / "three", ignore=shutil.ignore_patterns("export*"))
    file = tmp_path / "three" / "study.toml"
    file.write_text(file.read_text().replace('deliver = "seeds"', 'deliver = "three"'))
    study = nas_evidence.load(tmp_path / "three")
    assert sorted(study.delivered) == sorted(study.trials["trial_id"])
    assert study.delivered[:3] == classes.delivered
    each = [classes.predict_proba(table(9, 1), trial_id=i) for i in study.delivered]
    np.testing.assert_allclose(study.predict_proba(table(9, 1)), np.mean(each, 0), atol=1e-7)
    report = study.summary()
    assert report.comparison is not None
    assert list(report.comparison.trials) == study.delivered
    assert report.comparison.corrected
    winners = load_delivered(study._tables(), study.arrays())
    held, rows = held_out_together(winners)  # type: ignore[misc]
    own = held.metrics(study.arrays().y_train[rows])["log_loss"]
    assert report.comparison.metrics["log_loss"] == pytest.approx(own)
    assert "6 networks together, those of the best" in report.headline.answer
    n = study.trials["n_parameters"].sum()
    assert f"architectures. They have {n:,} parameters in all, " in report.headline.answer
    assert "6 networks of 2 architectures" in (study.folder / "export" / "README.md").read_text()


def test_the_report_judges_the_mixture_out_of_fold(classes: nas_evidence.Study) -> None:
    report = classes.summary()
    judged = report.comparison
    assert judged is not None
    assert list(judged.trials) == classes.delivered
    winners = load_delivered(classes._tables(), classes.arrays())
    found, rows = held_out_together(winners)  # type: ignore[misc]
    y = classes.arrays().y_train[rows]
    # Corrected for the choice, it is at least the loss of the mixture on all rows.
    assert judged.metrics["log_loss"] >= found.metrics(y)["log_loss"] - 1e-9
    assert judged.confusion == tuple(
        tuple(int(n) for n in row) for row in np.array(pd.crosstab(y, found.chosen))
    )
    assert "winner, 3 networks together" in report.metrics
    assert "use its 3 networks together" in report.headline.answer
    assert "3 networks together" in report.headline.measured
    written = json.loads((classes.folder / "export" / "ensemble.json").read_text())
    assert written["unseen"]["log_loss"] == pytest.approx(judged.metrics["log_loss"])
    assert written["thresholds"] == pytest.approx(judged.thresholds)


def test_the_report_judges_the_mixture_on_test_rows_like_predict(
    sizes: nas_evidence.Study,
) -> None:
    judged = sizes.summary().comparison
    assert judged is not None
    arrays = sizes.arrays()
    found = sizes.predictor().predict(Given(np.array(arrays.x_test)))
    assert judged.metrics["log_loss"] == pytest.approx(found.metrics(arrays.y_test)["log_loss"])
    written = json.loads((sizes.folder / "export" / "ensemble.json").read_text())
    assert written["test"]["rmse"] == pytest.approx(judged.metrics["rmse"])
    card = (sizes.folder / "export" / "README.md").read_text()
    assert f"RMSE {written['test']['rmse']:.4g}" in card


def test_intervals_and_quantiles_of_several_targets_are_of_the_mixture(
    sizes: nas_evidence.Study,
) -> None:
    rows = table(9, 1)
    found = sizes.predict(rows, quantiles=(0.1,))
    each = [member.predict(rows) for _, member in sizes.predictor().members]
    assert found.target_names == ("size", "girth")
    mean = np.mean([one.real.mean for one in each], 0)
    np.testing.assert_allclose(found.real.mean[:, 1], mean[:, 1])  # sizes are held above 0
    for end, p in ((found.low, 0.05), (found.high, 0.95)):
        below = np.mean([one.real.cdf(end) for one in each], 0)
        free = end > found.real.least
        np.testing.assert_allclose(below[free], p, atol=1e-6)
    frame = found.to_frame()
    np.testing.assert_array_equal(frame["q10 of girth"], found.quantile(0.1)[:, 1])
    assert {"rmse of size", "rmse of girth"} <= set(sizes.evaluate(rows))


@pytest.mark.long
def test_a_scale_of_each_fold_is_kept_in_what_is_judged(scaled: nas_evidence.Study) -> None:
    winners = load_delivered(scaled._tables(), scaled.arrays())
    found, rows = held_out_together(winners)  # type: ignore[misc]
    y = scaled.arrays().y_train[rows]
    each = [np.exp(one.held_out[0].real.log_density(y)) for one in winners]  # type: ignore[index]
    np.testing.assert_allclose(np.exp(found.real.log_density(y)), np.mean(each, 0))
    judged = scaled.summary().comparison
    assert judged is not None
    assert len(judged.trials) == 3
    assert np.isfinite(judged.metrics["crps"])
    assert judged.quarters or judged.pit
    each_new = [scaled.predict(table(9, 1), trial_id=i).real for i in scaled.delivered]
    low = scaled.predict(table(9, 1)).low
    np.testing.assert_allclose(np.mean([one.cdf(low) for one in each_new], 0), 0.05, atol=1e-6)


def test_class_weights_and_the_threshold_decide_on_the_mixture(
    classes: nas_evidence.Study,
) -> None:
    found = classes.predict(table(9, 1))
    assert found.class_weight == {"yes": 2, "no": 1}
    threshold = classes.predictor().meaning["thresholds"]["f1"]
    assert found.threshold == threshold
    assert found.probabilities is not None
    second = found.probabilities[:, 1] >= threshold
    np.testing.assert_array_equal(found.labels == found.classes[1], second)


def test_importance_is_that_of_the_mixture(classes: nas_evidence.Study) -> None:
    expected = column_importance(classes.predictor(), classes.arrays())
    assert expected is not None
    assert classes.importance().to_dict("records") == [
        one.model_dump() for one in expected.columns
    ]
    judged = classes.summary().comparison
    assert judged is not None
    assert judged.importance == expected
    alone = column_importance(classes.predictor(single=True), classes.arrays())
    assert alone != expected


@pytest.mark.long
def test_refit_says_that_its_seeds_predict_together(
    classes: nas_evidence.Study, capsys: pytest.CaptureFixture[str]
) -> None:
    again = classes.refit(seeds=2, progress=True)
    assert "deliver: all networks of the best architecture" in "".join(capsys.readouterr())
    assert len(again.predictor().members) == 2


def test_what_it_costs_is_told_of_all_networks(classes: nas_evidence.Study) -> None:
    whole, one = classes.cost(), classes.cost(classes.folder / "export" / "members" / "1")
    assert whole["bytes"] > 2.5 * one["bytes"]
    assert whole["milliseconds_per_row"] > 0


def test_another_seed_makes_comparison_and_export_anew(classes: nas_evidence.Study) -> None:
    """What is stored is of the three networks, and not of two of them."""
    tables = classes._tables()
    classes.summary()
    assert is_compared(tables)
    fewer = tables.trials[tables.trials["trial_id"] != classes.delivered[-1]]
    assert not is_compared(replace(tables, trials=fewer))


def test_the_command_line_says_what_is_exported_and_what_it_costs(
    classes: nas_evidence.Study, capsys: pytest.CaptureFixture[str]
) -> None:
    classes.predictor()
    say_export(classes.folder / "export", "there")
    say_cost(classes, classes.folder / "export")
    said = capsys.readouterr().out
    *others, last = classes.delivered
    assert f"{', '.join(map(str, others))} and {last}, which predict together" in said
    assert "evidence of each recomputed: identical" in said
    assert "ms a row here" in said


def test_first_screen_report_and_card_say_the_size_and_the_time_of_all_networks(
    classes: nas_evidence.Study,
) -> None:
    own = classes.trials.set_index("trial_id").loc[classes.delivered]
    assert own["n_parameters"].nunique() == 1
    n, ms = own["n_parameters"].sum(), 1000 * own["latency_seconds"].sum()
    cost = f"{n:,} parameters in all, and a forward pass of one row takes {ms:.2g} ms"
    assert cost in classes.summary().headline.answer
    page = classes.report()
    assert cost in (page.parent / "report.md").read_text()
    assert cost in page.read_text()
    classes.predictor()
    assert cost in (classes.folder / "export" / "README.md").read_text()


def test_the_command_line_predicts_and_exports_one_network_with_single(
    classes: nas_evidence.Study, tmp_path: Path, cli: Callable[..., tuple[str, str]]
) -> None:
    new, place = tmp_path / "new.csv", classes.folder
    table(9, 1)[["a", "b"]].to_csv(new, index=False)
    alone, together = tmp_path / "alone.csv", tmp_path / "together.csv"
    cli("predict", place, new, "--single", "--to", alone)
    cli("predict", place, new, "--to", together)
    found, mixed = (pd.read_csv(one)["p(yes)"] for one in (alone, together))
    expected = classes.predict_proba(table(9, 1), trial_id=classes.best.trial_id)[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not np.allclose(found, mixed, atol=1e-3)
    said, _ = cli("export", place, "--single", "--to", tmp_path / "one")
    assert f"(trial {classes.best.trial_id}: " in said
    assert Predictor.load(tmp_path / "one").members == ()
    assert classes.is_exported()
    _, error = cli("predict", place, new, "--single", "--top", 2, code=2)
    assert "give single=True (--single) or top=2, not both." in error
    _, error = cli("predict", place / "export", new, "--single", code=2)
    assert f"Predict by {place / 'export' / 'members' / '1'}, one of its networks." in error


@pytest.mark.long
def test_a_search_and_its_resumption_keep_one_network_with_single(
    classes: nas_evidence.Study, tmp_path: Path, cli: Callable[..., tuple[str, str]]
) -> None:
    shutil.copytree(classes.folder, tmp_path / "s")
    cli("resume", tmp_path / "s", "--single", "--executor", "inline")
    again = nas_evidence.load(tmp_path / "s")
    assert again.spec.deliver == "single"
    assert again.delivered == [classes.best.trial_id]
    assert again.is_exported()
    assert Predictor.load(tmp_path / "s" / "export").members == ()
    table()[["a", "b", "kind"]].to_csv(tmp_path / "d.csv", index=False)
    asked = ("search", tmp_path / "d.csv", "--target", "kind", "--set", "deliver=three")
    quick = ("--trials", 1, "--set", "plan.epochs=1", "--set", "plan.settle=0", "--set")
    more = ('estimators=["diag_ef"]', "--set", "objective=diag_ef", "--executor", "inline")
    cli(*asked, "--single", *quick, *more, "--out", tmp_path / "new")
    assert nas_evidence.load(tmp_path / "new").spec.deliver == "single"


def test_an_estimator_predicts_by_one_network_with_single(classes: nas_evidence.Study) -> None:
    rows = table()
    settings = {**QUICK, "race.trials": 1}
    one = nas_evidence.EvidenceClassifier(1, settings=settings, single=True, families=["linear"])
    one.fit(rows[["a", "b"]], rows["kind"])
    assert one.study_.spec.deliver == "single"
    assert one.predictor_.members == ()
    assert one.get_params()["single"] is True


def test_a_stacked_ensemble_leaves_the_mixture_as_it_is(classes: nas_evidence.Study) -> None:
    before = classes.predict_proba(table(9, 1))
    stacked = classes.predictor(top=2)
    written = json.loads((classes.folder / "export-top-2" / "ensemble.json").read_text())
    assert written["kind"] == "stacked"
    assert len({*written["chosen"]} & {*classes.delivered}) == 1
    assert len(stacked.members) <= 2
    assert classes.is_exported()
    np.testing.assert_array_equal(
        nas_evidence.load(classes.folder).predict_proba(table(9, 1)), before
    )


def test_one_network_may_take_the_place_of_the_mixture_and_the_mixture_its_place(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    shutil.copytree(classes.folder, tmp_path / "s")
    study = nas_evidence.load(tmp_path / "s")
    assert study.export(single=True) == study.folder / "export"
    assert Predictor.load(study.folder / "export").members == ()
    assert not (study.folder / "export" / "members").exists()
    assert not study.is_exported()
    expected = classes.predict_proba(table(9, 1))
    np.testing.assert_array_equal(study.predict_proba(table(9, 1)), expected)
    assert study.is_exported()


@pytest.mark.long
def test_lost_weights_are_named_and_trained_again_with_their_folds(
    classes: nas_evidence.Study, tmp_path: Path
) -> None:
    """One file is gone, and one is damaged: the export is what it was."""
    classes.predictor()
    shutil.copytree(classes.folder, tmp_path / "s")
    folder, (_, gone, torn) = tmp_path / "s", classes.delivered
    files = [folder / "models" / f"{i}.safetensors" for i in (gone, torn)]
    kept = [safetensors.numpy.load_file(file) for file in files]
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-9])
    shutil.rmtree(folder / "export")
    found = {one.place: one.problem for one in verify(folder)}
    assert [*found] == sorted(file.relative_to(folder).as_posix() for file in files)
    assert "missing" in found[f"models/{gone}.safetensors"]
    study = nas_evidence.load(folder)
    expected = classes.predict_proba(table(9, 1))
    np.testing.assert_array_equal(study.predict_proba(table(9, 1)), expected)
    whole, before = (
        json.loads((one.folder / "export" / "ensemble.json").read_text())
        for one in (study, classes)
    )
    assert whole["unseen"] == before["unseen"]
    assert whole["thresholds"] == before["thresholds"] != {}
    done = nas_evidence.repair(folder)
    assert any(f"models/{gone}.safetensors: trained again from its seed" in one for one in done)
    assert verify(folder) == []
    for file, tensors in zip(files, kept, strict=True):
        again = safetensors.numpy.load_file(file)
        assert {name: one.tobytes() for name, one in again.items()} == {
            name: one.tobytes() for name, one in tensors.items()
        }


def test_networks_that_cannot_be_had_here_are_named(
    classes: nas_evidence.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were trained on a GPU, and their weights are lost; another trial is offered."""
    monkeypatch.setattr("nas_evidence.exporting.device.trained_on", lambda row: "cuda H100")
    shutil.copytree(classes.folder, tmp_path / "s")
    (tmp_path / "s" / "models" / f"{classes.delivered[-1]}.safetensors").unlink()
    shutil.rmtree(tmp_path / "s" / "export", ignore_errors=True)
    study = nas_evidence.load(tmp_path / "s")
    with refused("retraining-device", f"trial {classes.delivered[-1]}", "--trial"):
        study.predict(table(9, 1))
    assert study.predict(table(9, 1), single=True).probabilities is not None
