"""What is delivered of a study whose target has a scale: one density everywhere."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matrix import REST

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.exporting.predictor import Predictor, mixed
from nas_evidence.maths.target_scale import OnScale
from nas_evidence.storage.tables import read_study_tables

pytestmark = pytest.mark.slow

_SETTINGS = {
    "plan.epochs": 25,
    "finalists": 0,
    "estimators": ["conditional_evidence", "kfac_ggn"],
    "plan.settle": 0,
}


def prices(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    f = x @ [1.0, -0.6, 0.3]
    return pd.DataFrame(x, columns=list("abc")).assign(
        price=np.exp(6 + f + 0.3 * rng.normal(size=n)).round(2),
        hours=np.exp(f / 3 + 0.2 * rng.normal(size=n)) - 0.2,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("log", marks=REST),  # in test_intervals_delivered.py
        "yeo_johnson",
        pytest.param("sinh_arcsinh", marks=REST),
        "log heteroscedastic",
    ],
)
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nas_evidence.Study:
    scale, _, likelihood = request.param.partition(" ")
    settings = {**_SETTINGS, "plan.likelihood": likelihood or "gaussian"}
    folder = tmp_path_factory.mktemp(scale)
    prices(240).drop(columns="hours").to_csv(folder / "mine.csv", index=False)
    study = nas_evidence.search(
        folder / "mine.csv", target="price", target_scale=scale, n_trials=2,
        out=folder / "study", progress=False, test_fraction=0.3, settings=settings,
    )  # fmt: skip
    study.report()
    return study


def test_the_scale_is_a_decision_that_is_said(searched: nas_evidence.Study) -> None:
    scale = searched.spec.dataset.target_scale
    assert (
        f"scale of the target: {scale}; change it with target_scale (--target-scale)"
        in searched.arrays().meaning.said
    )


def test_trial_report_and_export_have_one_log_loss_and_one_rmse(
    searched: nas_evidence.Study, tmp_path: Path
) -> None:
    tables, arrays = read_study_tables(searched.folder), searched.arrays()
    shown = read_comparison(searched.folder)
    trial = tables.row_of_network(shown.trial_id)
    assert shown.metrics["log_loss"] == pytest.approx(trial["test_nll_per_datum"], rel=1e-4)
    assert shown.metrics["rmse"] == pytest.approx(trial["test_rmse"], rel=1e-4)
    found = Predictor.load(searched.export(tmp_path / "e")).predict(arrays.x_test)
    measures = found.measures(arrays.y_test)
    assert measures["log_loss"] == pytest.approx(trial["test_nll_per_datum"], rel=1e-4)
    assert measures["rmse"] == pytest.approx(trial["test_rmse"], rel=1e-4)


def test_the_exported_program_predicts_the_median(
    searched: nas_evidence.Study, tmp_path: Path
) -> None:
    folder, arrays = searched.export(tmp_path / "e", pt2=True), searched.arrays()
    median = Predictor.load(folder).predict(arrays.x_test).density.quantile(0.5)
    program = torch.export.load(folder / "model.pt2").module()
    with torch.no_grad():
        outputs = program(torch.from_numpy(np.array(arrays.x_test)))
    np.testing.assert_allclose(outputs.numpy(), median, rtol=1e-4, atol=1e-2)
    meaning = json.loads((folder / "meaning.json").read_text())
    assert meaning["target_scale"] == arrays.scale.to_json()
    assert "noise_std_in_own_unit" not in json.loads((folder / "evidence.json").read_text())
    card = (folder / "README.md").read_text()
    assert f"normal on the scale `{arrays.scale.name}`" in card
    by_row = searched.spec.plan.likelihood == "heteroscedastic"
    assert ("a standard deviation for each row" in card) == by_row
    assert ("noise_std" in json.loads((folder / "evidence.json").read_text())) != by_row


def test_onnx_carries_the_scale(searched: nas_evidence.Study, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder, arrays = searched.export(tmp_path / "e", onnx=True), searched.arrays()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = np.array(arrays.x_test, np.float32)
    median = Predictor.load(folder).predict(arrays.x_test).density.quantile(0.5)
    np.testing.assert_allclose(
        session.run(None, {"inputs": rows})[0], median, rtol=1e-4, atol=0.01
    )


def test_intervals_are_positive_and_cover_the_cheap_and_the_dear(
    searched: nas_evidence.Study,
) -> None:
    """By quartile of the prediction; 90 % of 500 rows have a standard error of 1.3 %."""
    new = prices(2000, seed=1)
    found = searched.predict(new.drop(columns=["price", "hours"]))
    assert found.low.min() >= 0
    assert isinstance(found.density, OnScale)
    inside = ((found.low <= new[["price"]]) & (new[["price"]] <= found.high)).to_numpy()[:, 0]
    if found.density.scale.name == "sinh_arcsinh":
        return  # not the scale of these prices
    quartile = pd.qcut(found.mean[:, 0], 4, labels=False)
    for k in range(4):
        assert 0.8 < inside[quartile == k].mean() < 0.97
    assert (found.std_model < found.std).all()


def test_far_inputs_have_predictions_of_the_order_of_the_targets(
    searched: nas_evidence.Study,
) -> None:
    arrays = searched.arrays()
    with pytest.warns(UserWarning, match="far outside"):
        found = searched.predict(1e5 * np.array(arrays.x_test))
    assert isinstance(found.density, OnScale)
    scale, normals = found.density.scale, found.density.normals
    assert (normals.means >= scale.lowest).all()
    assert (normals.means <= scale.highest).all()
    shown = read_comparison(searched.folder)
    row = read_study_tables(searched.folder).row_of_network(shown.trial_id)
    if searched.spec.plan.likelihood == "heteroscedastic":  # its noise has no such bound
        return
    widest = row["spread_factor"] * np.hypot(1, row["noise_std"]) * scale.spread
    np.testing.assert_allclose(normals.stds.max(), widest, rtol=1e-6)
    assert found.mean.max() < 100 * arrays.y_train.max()


def test_the_factor_on_the_spread_acts_before_the_inverse(searched: nas_evidence.Study) -> None:
    new = searched.arrays().x_test
    factor = read_study_tables(searched.folder).row(
        read_comparison(searched.folder).trial_id)["spread_factor"]  # fmt: skip
    raw, whole = searched.predict(new, raw=True).density, searched.predict(new).density
    np.testing.assert_allclose(whole.normals.stds, factor * raw.normals.stds)
    np.testing.assert_array_equal(whole.normals.means, raw.normals.means)


def test_an_ensemble_mixes_densities_on_the_scale(
    searched: nas_evidence.Study, tmp_path: Path
) -> None:
    folder, arrays = searched.export(tmp_path / "e", top=2, pt2=True), searched.arrays()
    predictor = Predictor.load(folder)
    found = predictor.predict(arrays.x_test)
    each = [one.predict(arrays.x_test) for _, one in predictor.members]
    weights = np.array([weight for weight, _ in predictor.members])
    logs = np.stack([one.density.log_density(arrays.y_test) for one in each])
    np.testing.assert_allclose(
        found.density.log_density(arrays.y_test), np.log(weights @ np.exp(logs)), rtol=1e-9
    )
    scale = replace(each[0].density.scale, least=np.array([-np.inf]))
    uncut = [replace(one.density, scale=scale).mean for one in each]
    expected = np.tensordot(weights, uncut, 1).clip(each[0].density.least)
    np.testing.assert_allclose(found.mean, expected)
    assert mixed(each, weights).low.min() >= 0
    one = mixed(each[:1], np.ones(1))
    np.testing.assert_allclose(one.std_model, each[0].std_model, rtol=1e-9)
    np.testing.assert_allclose(one.std, each[0].std, rtol=1e-12)


def test_without_test_rows_the_folds_are_judged_on_their_own_scales(tmp_path: Path) -> None:
    """Log losses of networks and of simple models are of the same targets, so they compare."""
    frame = prices(150).drop(columns="hours")
    losses, studies = {}, {}
    for scale in ("identity", "log"):
        studies[scale] = nas_evidence.search(
            frame, target="price", target_scale=scale, n_trials=1, out=tmp_path / scale,
            progress=False, settings=_SETTINGS,
        )  # fmt: skip
        studies[scale].report()
        shown = read_comparison(tmp_path / scale)
        assert shown.on == "folds"
        losses[scale] = shown.metrics["log_loss"]
        assert shown.metrics["rmse"] < frame["price"].std()
        rivals = {one.name: one.metrics["log_loss"] for one in shown.baselines}
        losses[scale, "mean"] = rivals["mean"]
    # On the scale "log" the mean is that of the logarithms, if its folds are better there.
    assert losses["log", "mean"] < losses["identity", "mean"]
    assert losses["log"] < losses["identity"]


def test_several_targets_have_a_scale_each_in_predictions(tmp_path: Path) -> None:
    frame = prices(150)
    x, y = frame[["a", "b", "c"]].to_numpy(np.float32), frame[["price", "hours"]].to_numpy()
    study = nas_evidence.search(
        x, y, target_scale="shifted_log", n_trials=1, out=tmp_path / "study", progress=False,
        settings=_SETTINGS,
    )  # fmt: skip
    found = study.predict(x)
    again = Predictor.load(study.export(tmp_path / "e")).predict(x)
    np.testing.assert_allclose(again.to_frame(), found.to_frame(), rtol=1e-6)
    assert found.low[:, 0].min() >= 0
    for column in range(2):
        assert np.corrcoef(found.mean[:, column], y[:, column])[0, 1] > 0.5


def test_means_that_are_not_finite_are_medians_and_said(
    searched: nas_evidence.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnScale, "n_medians", 3)
    with pytest.warns(UserWarning, match="3 predictions are medians"):
        searched.predict(searched.arrays().x_test)
