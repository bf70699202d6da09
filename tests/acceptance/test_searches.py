"""Searches of each kind of data and target, from the command line and from Python.

Each is judged by predictions of rows that it has not seen, beside a constant fitted to the
training rows.
"""

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from acceptance.uses import SMALL, TABLES, check_study, command, searched
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss
from torch.utils.data import TensorDataset

import nas_evidence

pytestmark = pytest.mark.slow

SETTINGS = {"plan.epochs": 5, "plan.folds": 2}
SHIPPED = Path(__file__).parents[2] / "search_spaces" / "digits.toml"
#: Probabilities of quantiles that a density is judged by.
GRID = np.arange(1, 20) / 20


def rmse(mean: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((np.asarray(mean) - np.asarray(y)) ** 2)))


def of_table(
    folder: Path, train: pd.DataFrame, new: pd.DataFrame, *options: object, target: str
) -> pd.DataFrame:
    """Search a table by the command line; return its predictions of new rows, without targets."""
    train.to_csv(folder / "train.csv", index=False)
    new.drop(columns=target.split(",")).to_csv(folder / "new.csv", index=False)
    small = (*SMALL, "--trials", 2, "--out", "study")
    command("search", "train.csv", "--target", target, *small, *options, folder=folder)
    check_study(folder / "study", n_trials=2)
    quantiles = ",".join(str(p) for p in GRID)
    command(
        "predict", "study", "new.csv", "--to", "p.csv", "--quantiles", quantiles, folder=folder
    )
    rows = pd.read_csv(folder / "p.csv")
    assert len(rows) == len(new)
    assert np.isfinite(rows.select_dtypes("number")).all(axis=None)
    return rows


def test_the_shipped_digits_are_searched_by_name_in_processes_of_this_machine(
    tmp_path: Path,
) -> None:
    small = ("--set", "plan.epochs=4", "--set", "plan.folds=2", "--set", "dataset.max_train=300")
    command("search", "digits", "--trials", 3, *small, folder=tmp_path, fresh=True)
    folder = tmp_path / "runs" / "digits"
    shipped = tomllib.loads(SHIPPED.read_text())
    check_study(folder, n_trials=3, scores=shipped["estimators"])
    kept = tomllib.loads((folder / "study.toml").read_text())
    assert kept["objective"] == shipped["objective"]
    trials = searched(folder)
    assert {*trials["family"]} <= {*shipped["family"]}
    assert trials["test_accuracy"].between(0, 1).all()
    digits = load_digits()
    study = nas_evidence.load(folder)
    prediction = study.predict(digits.images[:, None])
    assert accuracy_score(digits.target, prediction.labels) > 0.5  # a guess has 0.1
    assert log_loss(digits.target, prediction.probabilities) < np.log(10)
    assert (folder / "report" / "index.html").stat().st_size > 1000


def test_a_real_target_with_test_rows_in_another_file(tmp_path: Path) -> None:
    def table(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(2, n))
        return pd.DataFrame({"a": a, "b": b, "y": 10 * a - 5 * b + 2 * rng.normal(size=n)})

    train, new = table(1, 120), table(2, 60)
    table(3, 50).to_csv(tmp_path / "test.csv", index=False)
    rows = of_table(tmp_path, train, new, "--test", "test.csv", target="y")
    assert rmse(rows["prediction"], new["y"]) < 0.5 * rmse(train["y"].mean(), new["y"])
    assert ((rows["low"] < rows["prediction"]) & (rows["prediction"] < rows["high"])).all()
    inside = ((rows["low"] < new["y"]) & (new["y"] < rows["high"])).mean()
    assert inside > 0.6  # 54 of 60 are expected; this is 8 deviations away
    trials = searched(tmp_path / "study")
    assert trials["test_nll_per_datum"].notna().all()
    assert trials["test_accuracy"].isna().all()


def test_two_real_targets_are_predicted_together(tmp_path: Path) -> None:
    def table(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(2, n))
        noise = rng.normal(size=(2, n))
        return pd.DataFrame(
            {"a": a, "b": b, "u": 3 * a + 0.3 * noise[0], "v": 100 * b - 50 * a + 40 * noise[1]}
        )

    train, new = table(1, 120), table(2, 60)
    rows = of_table(tmp_path, train, new, target="u,v")
    for name in ("u", "v"):
        predicted = rows[f"prediction of {name}"]
        constant = rmse(train[name].mean(), new[name])
        assert rmse(predicted, new[name]) < 0.6 * constant
        width = rows[f"high of {name}"] - rows[f"low of {name}"]
        assert (width > 0).all()
        assert width.mean() < 3.29 * constant  # that of the constant's own interval


def test_a_positive_skewed_target_has_a_better_density_than_a_constant(tmp_path: Path) -> None:
    def table(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        a, b, c = rng.normal(size=(3, n))
        price = (2.2 + a + 0.5 * b) ** 2 + 0.5 + 0.2 * rng.random(n)
        return pd.DataFrame({"a": a, "b": b, "c": c, "price": price})

    train, new = table(5, 150), table(6, 120)
    y = new["price"].to_numpy()
    rows = of_table(tmp_path, train, new, "--set", "plan.epochs=30", target="price")
    assert rmse(rows["prediction"], y) < 0.25 * rmse(train["price"].mean(), y)
    names = [f"q{100 * p:g}" for p in GRID]
    constant = np.tile(np.quantile(train["price"], GRID), (len(new), 1))
    assert (np.diff(rows[names], axis=1) >= 0).all()
    assert pinball(rows[names].to_numpy(), y) < 0.2 * pinball(constant, y)
    inside = (rows["q25"] <= y) & (y <= rows["q75"])
    assert 0.15 < inside.mean() < 0.95  # a half is expected
    mean, std = train["price"].mean(), train["price"].std(ddof=0)
    of_constant = 0.5 * np.log(2 * np.pi) + 0.5 * np.mean(((y - mean) / std) ** 2)
    assert nas_evidence.load(tmp_path / "study").evaluate(new)["log_loss"] < of_constant
    assert (rows[names] >= 0).all(axis=None)


def pinball(quantiles: np.ndarray, y: np.ndarray) -> float:
    """Return the mean quantile loss of predicted quantiles [n, GRID]."""
    miss = y[:, None] - quantiles
    return float(np.maximum(GRID * miss, (GRID - 1) * miss).mean())


def test_dates_and_categories_of_a_table_are_features(tmp_path: Path) -> None:
    """The target depends on weekday, place and trend; new rows have a new place, and gaps."""

    def table(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        day = pd.Timestamp("2023-01-02") + pd.to_timedelta(rng.integers(500, size=n), unit="D")
        place = rng.choice(["north", "south", "east"], size=n)
        shift = pd.Series(place).map({"north": 0.0, "south": 3.0, "east": -3.0}).to_numpy()
        trend = (day - day.min()).days.to_numpy() / 100
        cold = rng.normal(size=n)
        y = shift + trend + cold + 0.3 * rng.normal(size=n)
        return pd.DataFrame(
            {"day": day.strftime("%Y-%m-%d"), "place": place, "cold": cold, "y": y}
        )

    train, new = table(1, 160), table(2, 80)
    new.loc[0, "place"] = "west"
    new.loc[1, ["day", "place", "cold"]] = None
    rows = of_table(tmp_path, train, new, target="y")
    known = new.index >= 2
    found = rmse(rows["prediction"][known], new["y"][known])
    # Without dates it is 0.49, without places 0.94.
    assert found < 0.3 * rmse(train["y"].mean(), new["y"][known])
    assert rows["prediction"][[0, 1]].between(train["y"].min() - 5, train["y"].max() + 5).all()


def test_a_folder_of_images_by_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder, n in (("train", 30), ("new", 10)):
        for name, left in (("bright", 1), ("dark", 0)):
            place = tmp_path / folder / name
            place.mkdir(parents=True)
            for i in range(n):
                grey = rng.integers(0, 120, size=(8, 8), dtype=np.uint8)
                grey[:, :4] += np.uint8(90 * left)
                Image.fromarray(grey).save(place / f"{i}.png")
    command(
        "search", "train", "--test-fraction", 0.25, "--trials", 2, *SMALL, "--out", "study",
        folder=tmp_path,
    )  # fmt: skip
    check_study(tmp_path / "study", n_trials=2)
    command("predict", "study", "new", "--to", "p.csv", folder=tmp_path)
    rows = pd.read_csv(tmp_path / "p.csv")
    assert len(rows) == 20
    truth = ["bright" if "bright" in path else "dark" for path in rows.iloc[:, 0]]
    assert sorted(truth) == ["bright"] * 10 + ["dark"] * 10
    assert accuracy_score(truth, rows["prediction"]) > 0.8
    alone = nas_evidence.load(tmp_path / "study").predict(Image.open(tmp_path / "new/dark/3.png"))
    row = [i for i, path in enumerate(rows.iloc[:, 0]) if path.endswith("dark/3.png")]
    np.testing.assert_allclose(alone.probabilities, rows.loc[row, ["p(bright)", "p(dark)"]], 1e-4)


def test_arrays_with_labels_of_text_give_the_same_results_on_any_number_of_workers(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    number = rng.integers(3, size=150)
    x = rng.normal(size=(150, 4)) + 2.5 * np.eye(4)[number]
    labels = np.array(["one", "two", "three"])[number]
    settings = {**SETTINGS, "sampler.name": "random", "scheduling": "batch"}
    studies = [
        nas_evidence.search(
            x[:100],
            labels[:100],
            n_trials=3,
            workers=workers,
            settings=settings,
            out=tmp_path / str(workers),
            progress=False,
        )
        for workers in (1, 2)
    ]
    check_study(studies[0].folder, n_trials=3)
    for name in TABLES:
        one, two = (
            nas_evidence.read_table(study.folder, name).pipe(without_times) for study in studies
        )
        pd.testing.assert_frame_equal(one, two, check_exact=True, obj=name)
    prediction = studies[0].predict(x[100:])
    assert {*prediction.labels} <= {"one", "two", "three"}
    assert accuracy_score(labels[100:], prediction.labels) > 0.7
    assert {*prediction.classes} == {"one", "two", "three"}


def without_times(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[c for c in frame if c.endswith("seconds") or c == "versions"])


def test_a_dataset_of_torch_is_searched(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = torch.randn(120, 3, generator=generator) + 2.0 * y[:, None]
    study = nas_evidence.search(
        TensorDataset(x[:80], y[:80]),
        n_trials=2,
        families=["linear", "mlp"],
        settings=SETTINGS,
        out=tmp_path / "study",
        progress=False,
    )
    check_study(study.folder, n_trials=2)
    probabilities = study.predict_proba(x[80:])
    assert probabilities.shape == (40, 2)
    assert accuracy_score(y[80:], study.predict(x[80:]).labels) > 0.8
    found = study.evaluate(TensorDataset(x[80:], y[80:]))
    assert found["log_loss"] == pytest.approx(log_loss(y[80:], probabilities), rel=1e-5)
