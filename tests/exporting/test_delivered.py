"""The delivered model is the scored one: every log loss uses the same factor on the spread."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from unseen import delivered_unseen

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.folder import measures_of
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import load_winner, stored_unseen
from nas_evidence.scores.folds import all_folds, cross_fitted, restored
from nas_evidence.storage.tables import read_study_tables
from nas_evidence.training.parts import order_of_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["classes", "real", "heteroscedastic"])
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[nas_evidence.Study, pd.DataFrame]:
    """A study of one CSV, whose networks have the wrong spread, and new rows."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(260, 5))
    y = x[:, 0] * x[:, 1] + rng.logistic(size=260)
    target = np.where(y > 0, "yes", "no") if request.param == "classes" else y
    frame = pd.DataFrame(x, columns=list("abcde")).assign(target=target)
    folder = tmp_path_factory.mktemp(request.param)
    frame[:160].to_csv(folder / "mine.csv", index=False)
    study = nas_evidence.search(
        folder / "mine.csv", target="target", n_trials=1, out=folder / "study", progress=False,
        settings={"plan.epochs": 20, "finalists": 0, "dataset.test_fraction": 0.3} | (
            {"plan.likelihood": "heteroscedastic"} if request.param == "heteroscedastic" else {}
        ),
    )  # fmt: skip
    study.report()
    return study, frame[160:]


def test_first_screen_trial_predict_and_export_show_one_log_loss_on_one_csv(
    searched: tuple[nas_evidence.Study, pd.DataFrame], tmp_path: Path
) -> None:
    study, _ = searched
    tables, arrays = read_study_tables(study.folder), study.arrays()
    trial = tables.row_of_network(0)
    assert abs(trial["spread_factor"] - 1) > 1e-3
    shown = read_comparison(study.folder)
    assert shown.metrics["log_loss"] == pytest.approx(trial["test_nll_per_datum"], rel=1e-4)
    study.export(tmp_path / "e", pt2=True)
    predictor = Predictor.load(tmp_path / "e")
    if arrays.task == "labels":
        p = predictor.predict(arrays.x_test).probabilities
        loss = -np.log(p[np.arange(len(p)), arrays.y_test]).mean()
        program = torch.export.load(tmp_path / "e" / "model.pt2").module()
        with torch.no_grad():
            logits = program(torch.from_numpy(np.array(arrays.x_test)))
        np.testing.assert_allclose(logits.softmax(1).numpy(), p, atol=1e-5)
    else:
        found = predictor.predict(arrays.x_test)
        program = torch.export.load(tmp_path / "e" / "model.pt2").module()
        with torch.no_grad():
            means = program(torch.from_numpy(np.array(arrays.x_test)))
        np.testing.assert_allclose(means.numpy(), found.mean, rtol=1e-5, atol=1e-5)
        loss = -found.density.log_density(arrays.y_test).mean() - np.log(arrays.y_std).sum()
    assert loss == pytest.approx(trial["test_nll_per_datum"], rel=1e-4)


def test_the_raw_predictor_is_one_option_away_and_differs_by_the_factor_alone(
    searched: tuple[nas_evidence.Study, pd.DataFrame], tmp_path: Path
) -> None:
    study, new = searched
    factor = read_study_tables(study.folder).row(0)["spread_factor"]
    delivered, raw = study.predict(new), study.predict(new, raw=True)
    if delivered.probabilities is not None:
        ratio = (np.log(p[:, 1] / p[:, 0]) for p in (raw.probabilities, delivered.probabilities))
    else:
        ratio = (raw.std, delivered.std)
        np.testing.assert_allclose(raw.std_model * factor, delivered.std_model)
        np.testing.assert_allclose(raw.mean, delivered.mean)
    one, other = ratio
    np.testing.assert_allclose(one if raw.std is None else one * factor**2, factor * other)
    exported = Predictor.load(study.export(tmp_path / "raw", raw=True))
    again = exported.predict(new)
    for name in ("probabilities", "std"):
        if getattr(raw, name) is not None:
            np.testing.assert_allclose(getattr(again, name), getattr(raw, name), atol=1e-7)


def test_out_of_fold_figures_have_the_factor_of_the_other_folds(
    searched: tuple[nas_evidence.Study, pd.DataFrame],
) -> None:
    study, _ = searched
    arrays = study.arrays()
    data = to_tensors(arrays, torch.device("cpu"))
    winner = load_winner(read_study_tables(study.folder), arrays, 0)
    raw, delivered = stored_unseen(winner), delivered_unseen(winner)
    c, losses = arrays.n_outputs, []
    unseen = restored(raw, winner.assignment.plan)
    whole = unseen.factor(data.y_train)
    assert whole == pytest.approx(winner.spread_factor, rel=1e-6)
    for task in all_folds("five_fold", order_of_data(len(raw), winner.assignment)):
        seen, rows = task.trained, task.predicted
        factor = unseen.rows(seen).factor(data.y_train[seen])
        assert factor != whole
        torch.testing.assert_close(delivered[rows, c:], factor * raw[rows, c:])
        logs = unseen.rows(rows).at(factor).log_density(data.y_train[rows])
        losses.append(-logs)
    measured = measures_of([winner])
    if arrays.task == "labels":
        assert measured["log_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
        card = json.loads((study.folder / "export" / "evidence.json").read_text())["unseen"]
        assert card["log_loss"] == pytest.approx(measured["log_loss"])
    else:
        assert (raw[:, 1] > 0).all()
        assert (
            raw[:, 1].unique().numel() > 5
        )  # with the uncertainty of the weights, datum by datum


def test_a_folds_factor_does_not_see_its_own_targets(
    searched: tuple[nas_evidence.Study, pd.DataFrame],
) -> None:
    study, _ = searched
    arrays = study.arrays()
    data = to_tensors(arrays, torch.device("cpu"))
    y = data.y_train
    winner = load_winner(read_study_tables(study.folder), arrays, 0)
    raw = stored_unseen(winner)
    assert raw is not None
    [first, *_] = all_folds("five_fold", order_of_data(len(y), winner.assignment))
    changed = y.clone()
    changed[first.predicted] = 1 - changed[first.predicted]
    one, other = (
        cross_fitted(raw, replace(data, y_train=t), winner.assignment) for t in (y, changed)
    )
    assert (one[first.predicted] == other[first.predicted]).all()
    assert (one[first.trained] != other[first.trained]).any()
