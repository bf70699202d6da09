"""Quantiles and intervals as delivered: of the mapped density, of ensembles, never below 0."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run
from matrix import REST
from messages import refused
from scipy import stats

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.exporting import winner
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.exporting.predictor import Predictor, mixed
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale
from nas_evidence.storage.tables import read_study_tables

pytestmark = pytest.mark.slow

#: The rest is in test_target_scale_delivered.py.
REST_OF_SCALES = pytest.param("yeo_johnson", marks=REST)
_SETTINGS = {
    "plan.epochs": 20,
    "finalists": 0,
    "estimators": ["conditional_evidence", "kfac_ggn"],
    "plan.settle": 0,
}


def prices(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = np.exp(4 + x @ [1.0, -0.6, 0.3] + 0.5 * rng.normal(size=n))
    return pd.DataFrame(x, columns=list("abc")).assign(price=y.round(2) + 0.01)


@pytest.fixture(scope="module", params=["identity", "log", REST_OF_SCALES])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and its study on each scale."""
    folder = tmp_path_factory.mktemp(request.param)
    prices(200).to_csv(folder / "mine.csv", index=False)
    prices(60, seed=1).drop(columns="price").to_csv(folder / "new.csv", index=False)
    study = nas_evidence.search(
        folder / "mine.csv", target="price", target_scale=request.param, n_trials=2,
        out=folder / "study", progress=False, test_fraction=0.3, settings=_SETTINGS,
    )  # fmt: skip
    study.report()
    return folder


@pytest.mark.parametrize("members", [1, 2])
def test_quantiles_are_of_the_mapped_density_also_of_an_ensemble(home: Path, members: int) -> None:
    study, new = nas_evidence.load(home / "study"), pd.read_csv(home / "new.csv")
    asked = (0.05, 0.5, 0.95)
    each = [study.predict(new, quantiles=asked, trial_id=i) for i in range(members)]
    found = each[0]
    if members > 1:
        found = replace(mixed(each, np.array([0.4, 0.6])), quantiles=asked)
        alone = study.predict(new, quantiles=asked, top=1).to_frame()
        assert list(alone) == list(study.predict(new, quantiles=asked, top=2).to_frame())
    table = found.to_frame()
    assert list(table)[-3:] == ["q5", "q50", "q95"]
    np.testing.assert_allclose(table[["q5", "q95"]], table[["low", "high"]], rtol=1e-12)
    normals = found.density.normals if isinstance(found.density, OnScale) else found.density
    assert len(normals.weights) == members
    for p in (0.05, 0.5, 0.95):
        value = table[f"q{100 * p:g}"].to_numpy()[:, None]
        above = value[:, 0] > 0  # at 0 a quantile is cut off
        assert above.sum() > 5
        np.testing.assert_allclose(found.density.cdf(value)[above], p, atol=1e-9)


def test_nothing_is_below_0_where_no_training_target_is_and_it_is_said(home: Path) -> None:
    study, new = nas_evidence.load(home / "study"), pd.read_csv(home / "new.csv")
    for found in (study.predict(new), study.predict(new, top=2), study.predict(new, level=0.999)):
        n = int((found.low == 0).any(1).sum())
        assert found.low.min() >= 0
        assert found.mean.min() >= 0
        assert found.quantile(0.001).min() >= 0
        says = (
            f"the lower end was set to 0 in {n} of 60 rows, since no training target is negative"
        )
        assert found.cut == (says if n else "")
        assert (says in repr(found)) == (n > 0)
        assert (says in found._repr_html_()) == (n > 0)
    scale = study.spec.dataset.target_scale
    assert (scale, n > 0) in [("identity", True), ("log", False), ("yeo_johnson", n > 0)]


def test_an_export_has_the_least_possible_value(home: Path) -> None:
    folder = nas_evidence.load(home / "study").export(home / "exported")
    assert json.loads((folder / "meaning.json").read_text())["target_least"] == [0.0]
    card = (folder / "README.md").read_text()
    assert "Means, ends of intervals and quantiles are not below 0" in card
    assert Predictor.load(folder).predict(pd.read_csv(home / "new.csv")).low.min() >= 0


@pytest.mark.parametrize("exported_first", [True, False])
def test_report_and_export_share_one_posterior_and_one_rmse(
    exported_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means below 0 are cut off in the trial, the report and `predict`."""
    fitted = []

    def counted(*given: object, **named: object) -> object:
        fitted.append(fit_posterior(*given, **named))
        return fitted[-1]

    monkeypatch.setattr(winner, "fit_posterior", counted)
    study = nas_evidence.search(
        prices(120).assign(price=lambda t: (t["price"] - 40).clip(0)), target="price", n_trials=1,
        target_scale="identity", out=tmp_path / "s", progress=False, test_fraction=0.5,
        settings=_SETTINGS,
    )  # fmt: skip
    if exported_first:
        study.export()
    study.report()
    arrays = study.arrays()
    found = study.predict(arrays.x_test)
    assert len(fitted) == 1
    rmse = np.sqrt(np.mean((found.mean - arrays.y_test) ** 2))
    assert (found.mean == 0).any()
    assert rmse == pytest.approx(found.measures(arrays.y_test)["rmse"])
    assert rmse == pytest.approx(read_comparison(study.folder).metrics["rmse"])
    of_network = read_study_tables(study.folder).row_of_network(0)
    assert rmse == pytest.approx(of_network["test_rmse"], rel=1e-4)


def test_targets_that_may_be_negative_are_not_cut_off(tmp_path: Path) -> None:
    frame = prices(80).assign(price=lambda t: t["price"] - 100)
    study = nas_evidence.search(
        frame, target="price", n_trials=1, out=tmp_path / "s", progress=False, settings=_SETTINGS
    )
    found = study.predict(frame)
    assert found.low.min() < -100
    assert found.cut == ""
    meaning = json.loads((study.export(tmp_path / "e") / "meaning.json").read_text())
    assert meaning["target_least"] == [None]


def test_predict_has_a_column_for_each_quantile_and_notes_intervals_that_begin_at_0(
    home: Path,
) -> None:
    said = run(
        "predict", "study", "new.csv", "--quantiles", "0.025, 0.5,0.5", "--to", "p.csv",
        folder=home,
    )  # fmt: skip
    table = pd.read_csv(home / "p.csv")
    assert list(table)[-2:] == ["q2.5", "q50"]
    n = int((table["low"] == 0).sum())
    assert (f"note: the lower end was set to 0 in {n} of 60 rows" in said.stderr) == (n > 0)


def test_report_and_predict_say_one_crps_and_the_quartiles_add_up(home: Path) -> None:
    study = nas_evidence.load(home / "study")
    arrays, shown = study.arrays(), read_comparison(home / "study")
    assert shown is not None
    found = study.predict(arrays.x_test).measures(arrays.y_test)
    assert shown.metrics["crps"] == pytest.approx(found["crps"], rel=1e-5)
    assert 0 < shown.errors["crps"] < shown.metrics["crps"]
    assert all(one.metrics["crps"] > 0 for one in shown.baselines)
    assert sum(one.n for one in shown.quarters) == sum(shown.pit) == shown.n == 60
    inside = sum(one.n * one.inside_90 for one in shown.quarters)
    assert inside == pytest.approx(60 * shown.metrics["coverage"])


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 90.0, float("nan")])
def test_quantiles_outside_0_and_1_are_refused(home: Path, wrong: float) -> None:
    study = nas_evidence.load(home / "study")
    with refused("quantile-out-of-range", f"{wrong:g}".lstrip("-")):
        study.predict(pd.read_csv(home / "new.csv"), quantiles=(0.5, wrong))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.1;0.9", "--quantiles takes probabilities with commas between, such as 0.1,0.5,0.9"),
        ("10,90", "quantiles must lie between 0 and 1, but got 10"),
    ],
)
def test_quantiles_that_are_no_probabilities_end_predict_with_one_sentence(
    home: Path, text: str, says: str
) -> None:
    given = ("study", "new.csv", "--quantiles", text, "--to", "q.csv")
    assert says in run("predict", *given, folder=home, code=2).stderr
    assert not (home / "q.csv").exists()


def test_classes_have_no_quantiles(tmp_path: Path) -> None:
    frame = prices(60).assign(price=lambda t: np.where(t["price"] > 50, "dear", "cheap"))
    study = nas_evidence.search(
        frame, target="price", n_trials=1, out=tmp_path / "s", progress=False,
        settings={"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"},
    )  # fmt: skip
    with refused("quantiles-of-classes"):
        study.predict(frame, quantiles=(0.5,))
    assert "q50" not in study.predict(frame).to_frame()
    with refused("quantiles-of-classes"):
        study.predict(frame).quantile(0.5)
    assert study.predict(frame).cut == ""


# --- intervals of several targets hold for each, from search to export


@pytest.mark.long
@pytest.mark.slow
def test_intervals_of_a_quiet_and_of_a_noisy_target_cover_what_they_say(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(n, 4))
        means = np.stack([np.sin(x[:, 0]) + 0.5 * x[:, 1], np.cos(x[:, 2]) + 0.5 * x[:, 0]], 1)
        return x, means + draw.normal(size=(n, 2)) * [0.15, 0.9]

    (x, y), (unseen, truth) = rows(400), rows(3000)
    study = nas_evidence.search(x, y, out=tmp_path / "study", n_trials=2, workers=1)
    study.export(tmp_path / "export")
    exported = nas_evidence.Predictor.load(tmp_path / "export").predict(unseen)
    for found in (study.predict(unseen), exported):
        covered = ((truth >= found.low) & (truth <= found.high)).mean(0)
        assert ((covered > 0.84) & (covered < 0.96)).all(), covered


# --- `Prediction.losses`: log losses of rows in the units that a person compares


def test_losses_of_real_targets_are_in_units_of_the_training_targets() -> None:
    """-log p(y / u): a target in cents has the loss of the same target in euros."""
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 7, 2))
    std = rng.uniform(0.5, 2.0, size=(7, 2))
    for unit in (np.ones(2), np.array([100.0, 0.5])):
        density = Normals(np.ones(1), (mean * unit)[None], (std * unit)[None])
        found = Prediction(("a", "b"), density=density, unit=unit).losses(y * unit)
        expected = -stats.norm.logpdf(y, mean, std).sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_losses_of_classes_are_minus_the_logarithms_of_their_probabilities() -> None:
    p = np.array([[0.2, 0.8], [0.5, 0.5]])
    found = Prediction((0, 1), probabilities=p).losses(np.array([1, 0]))
    np.testing.assert_allclose(found, -np.log([0.8, 0.5]))
