"""Beside the networks that lead the field on tables: RealMLP-TD and TabM-D, boosting, a stack.

    python benchmarks/leading_networks.py run --rivals-only [--rows 300 1000] [--splits 3]
    python benchmarks/leading_networks.py run --ours-only [--rows 300 1000] [--splits 3]
    python benchmarks/leading_networks.py left     # how many cells are measured, how many are left

A cell is a table, a number of training rows, a split and a model. `run` measures the cells that
are missing and stores each as soon as it has ended, so that the same command goes on where the
last one stopped; `--tables` and `--models` take some of them. Splits are the outer loop, then
rows, then models from cheap to dear, so that each table has a first split before any has a
second. It runs in one thread. LightGBM, CatBoost and pytabkit are in the extra `bench`.

**Tables.** The fourteen of `tables.UNSEEN` are for choosing. The twenty of `fresh_tables.FRESH`
are for judging; nothing is chosen on them. `tables.split` cuts them: so many training rows, at
most 80 % of the table, and at most 2,000 others for the test. A size that a table does not reach
means 80 % of it; two sizes that are then the same are run once.

**Models.** Boosting, the stack and the linear model are those of `tables.py`: 24 trials of TPE on
the log loss of five folds, categories as columns of 0 and 1. RealMLP-TD and TabM-D are pytabkit's,
with its defaults of each (Holzmüller et al. 2024; Gorishniy et al. 2025) but for classes: the log
loss stops the training instead of the error, and RealMLP smooths no labels. Each is the mean of
five networks, trained on four fifths of the training rows and stopped on the last fifth: the
same folds as ours. They see categories as such, and medians with a column of 0 and 1 for missing
cells. pytabkit has TabM within, so that the package `tabm` is not needed. Ours is what a default
search delivers, and the ensemble of its three best.

**Real targets.** A rival's density is normal; its spread is that of the residuals of the folds.
RealMLP and TabM were stopped on the rows of these residuals, so that theirs may be too small.

**Measures.** Log loss in nats a datum, of real targets in their own unit; accuracy and expected
calibration error of classes; RMSE and the coverage of 90 % intervals of real targets; seconds
of the processor, with tuning. Losses of single test rows are stored, for paired differences.

**The rule**, written before the first run. A model is *level* with a rival on a table if the
rival's log loss is not lower by more than 1.96 standard errors of the paired difference over the
test rows; of several splits, of the mean over them, as if their errors were independent. It is
*first* if its mean loss is the lowest of all. The goal is met if ours as delivered is first or
level beside every rival of `RIVALS` on 70 % of the fresh tables (14 of 20), at 300 rows and at
1,000 rows, on the splits that all models have. Candidates are chosen on the fourteen tables alone.
"""

import argparse
import csv
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tables
from _common import hardware, versions
from fresh_tables import FRESH
from fresh_tables import read as fresh
from sklearn.model_selection import KFold, StratifiedKFold

from nas_evidence.maths.metrics import class_metrics, real_metrics
from nas_evidence.maths.normals import Normals

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "leading_networks.csv"
LOSSES = HERE / "results" / "leading_networks"
OURS = tuple(tables.OURS)
NETWORKS = ("RealMLP-TD", "TabM-D")
#: From cheap to dear; the stack needs what the three boostings were tuned to.
RIVALS = (
    "linear", "LightGBM", "HistGradientBoosting", "CatBoost", "stacked", "RealMLP-TD", "TabM-D",
)  # fmt: skip
SIZES = {"300": 300, "1000": 1000, "all": 1_000_000}
MEASURES = ("log_loss", "accuracy", "ece", "rmse", "coverage", "cpu_seconds")
PACKAGES = ("torch", "scikit-learn", "lightgbm", "catboost", "pytabkit", "optuna", "numpy")
FIELDS = ("data", "rows", "split", "model", "n_train", "n_test", *MEASURES,
          "tuned", "commit", "day", "setting")  # fmt: skip


class Cell(NamedTuple):
    """What is measured at once."""

    data: str
    rows: str
    split: int
    model: str


#: Probabilities [n, C], or means [n], of the test rows; spread of the means; what was tuned.
Predicted = tuple[np.ndarray, float, Mapping[str, Any]]


def labelled(name: str) -> bool:
    """Return whether the target of a table has classes."""
    return FRESH[name].labels if name in FRESH else name in tables.UNSEEN_CLASSES


def read(name: str) -> pd.DataFrame:
    """Return a table with the column `target`: floats, or text for classes."""
    return fresh(name) if name in FRESH else tables.read(Path(), name)


def sizes_of(n: int) -> list[str]:
    """Return the sizes that differ for a table of n rows.

    >>> sizes_of(212), sizes_of(1000), sizes_of(4000)
    (['300'], ['300', '1000'], ['300', '1000', 'all'])
    """
    found: dict[int, str] = {}
    for name, most in SIZES.items():
        found.setdefault(min(most, int(0.8 * n)), name)
    return list(found.values())


# --- what is stored


def stored(path: Path) -> list[dict[str, str]]:
    """Return the cells measured so far."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def key(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a row of the results."""
    return Cell(row["data"], row["rows"], int(row["split"]), row["model"])


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


def keep(folder: Path, cell: Cell, losses: np.ndarray) -> None:
    """Store the losses of one cell, in thousandths of a nat, beside those of its model."""
    found = losses_of(folder, cell.rows, cell.model) | {(cell.data, cell.split): losses}
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "data": [data for data, _ in found],
            "split": [split for _, split in found],
            "thousandths": [np.rint(1000 * own).astype(np.int32) for own in found.values()],
        }
    )
    path = _file_of(folder, cell.rows, cell.model)
    pq.write_table(table, path.with_suffix(".new"), compression="zstd")
    path.with_suffix(".new").replace(path)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a cell to the results."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            out.writeheader()
        out.writerow(row)


# --- the models


def measured(found: Predicted, truth: np.ndarray, *, labels: bool) -> tables.Found:
    """Return the measures of predictions, and the loss of each test row in nats."""
    at, spread, _ = found
    if labels:
        return class_metrics(at, truth), tables.row_losses(at, truth)
    density = Normals.single(at[:, None], np.full((len(at), 1), spread))
    measures = real_metrics(density, truth[:, None], unit=np.ones(1), level=tables.LEVEL,
                            with_crps=False)  # fmt: skip
    return measures, -density.log_density(truth[:, None]).reshape(-1)


def settings_of(model: Any, space: tables.Space) -> dict[str, Any]:
    """Return what was tuned of an estimator."""
    names = space(optuna.create_study().ask())
    return {name: value for name, value in model.get_params().items() if name in names}


def by_columns(
    name: str, train: pd.DataFrame, test: pd.DataFrame, tuned: Mapping[str, Mapping[str, Any]]
) -> Predicted:
    """Return the predictions of boosting, of the stack or of the linear model.

    Args:
        name: of the model.
        train: the training rows.
        test: the test rows.
        tuned: what the boostings were tuned to, by name, for the stack.
    """
    labels = train["target"].dtype.kind != "f"
    x, new = tables.encoded(train.drop(columns="target"), test.drop(columns="target"))
    y, _ = tables.numbered(train, test)
    settings: Mapping[str, Any] = {}
    boosting = tables.rivals(labels=labels)
    if name == "linear":
        model = tables.penalised(labels=labels)
    elif name == "stacked":
        parts = {own: make(**tuned[own]) for own, (make, _) in boosting.items()}
        parts["linear"] = tables.penalised(labels=labels)
        model = tables.blend(parts, labels=labels)
    else:
        make, space = boosting[name]
        model = tables.tuned(make, space, x, y, labels=labels)
        settings = settings_of(model, space)
    model.fit(x, y)
    if labels:
        return np.asarray(model.predict_proba(new)), 0.0, settings
    held_out = tables.out_of_fold(model, x, y, labels=False)
    return np.asarray(model.predict(new)), float(np.mean((held_out - y) ** 2)) ** 0.5, settings


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
    folds = kind(tables.N_FOLDS, shuffle=True, random_state=tables.SEED).split(y, y)
    return np.stack([rows[: len(y) // tables.N_FOLDS] for _, rows in folds])


def estimator(name: str, seed: int, *, labels: bool) -> Any:
    """Return five networks of pytabkit, one for each fold, not trained."""
    import pytabkit

    stem = {"RealMLP-TD": "RealMLP_TD", "TabM-D": "TabM_D"}[name]
    given: dict[str, Any] = {
        "device": "cpu", "n_threads": 1, "verbosity": 0, "random_state": seed,
        "n_cv": tables.N_FOLDS,
    }  # fmt: skip
    if labels:
        given["val_metric_name"] = "cross_entropy"
        if name == "RealMLP-TD":
            given["use_ls"] = False
    return getattr(pytabkit, f"{stem}_{'Classifier' if labels else 'Regressor'}")(**given)


def by_networks(name: str, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> Predicted:
    """Return the mean prediction of five networks, each stopped on one fold."""
    labels = train["target"].dtype.kind != "f"
    x, new = mixed(train.drop(columns="target"), test.drop(columns="target"))
    y, _ = tables.numbered(train, test)
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


def of_rival(
    cell: Cell, train: pd.DataFrame, test: pd.DataFrame, tuned: Mapping[str, Mapping[str, Any]]
) -> tuple[tables.Found, Mapping[str, Any]]:
    """Return measures and losses of a rival, and what was tuned."""
    started = time.process_time()
    if cell.model in NETWORKS:
        found = by_networks(cell.model, train, test, cell.split)
    else:
        found = by_columns(cell.model, train, test, tuned)
    seconds = time.process_time() - started
    _, truth = tables.numbered(train, test)
    measures, losses = measured(found, truth, labels=labelled(cell.data))
    return (measures | {"cpu_seconds": seconds}, losses), found[2]


# --- the run


def cells(
    names: Iterable[str], models: Sequence[str], rows: Sequence[str], n_splits: int
) -> Iterator[Cell]:
    """Yield the cells in the order in which they are measured."""
    n_of = {name: len(read(name)) for name in names}
    for split in range(n_splits):
        for size in rows:
            for model in models:
                for name, n in n_of.items():
                    if size in sizes_of(n):
                        yield Cell(name, size, split, model)


def run(
    wanted: Iterable[Cell],
    to: Path = RESULTS,
    folder: Path = LOSSES,
    search: Callable[..., Mapping[str, tables.Found]] = tables.searched,
) -> None:
    """Measure the cells that are missing and store each when it has ended.

    Args:
        wanted: cells in order. Those of ours that one search gives are stored together.
        to: the file of the measures.
        folder: of the losses of test rows.
        search: trains ours.
    """
    done = {key(row): row for row in stored(to)}
    installed = (f"{name} {version}" for name, version in versions(*PACKAGES).items())
    setting, commit = "; ".join((hardware(), *installed)), tables.commit()
    for cell in wanted:
        if cell in done:
            continue
        frame = read(cell.data)
        train, test = tables.split(frame, cell.split, SIZES[cell.rows])
        tuned: Mapping[str, Any] = {}
        if cell.model in OURS:
            found = search(train, test, cell.split, tables.N_TRIALS, tables.OURS)
        else:
            parts = {own: done.get(cell._replace(model=own)) for own in tables.TREES}
            if cell.model == "stacked" and not all(parts.values()):
                print(f"{cell}: waits for {', '.join(tables.TREES)}", flush=True)
                continue
            known = {own: json.loads(row["tuned"]) for own, row in parts.items() if row}
            try:
                own, tuned = of_rival(cell, train, test, known)
            except Exception as error:  # the cell stays empty, and the others run
                print(f"{cell}: {type(error).__name__}: {error}", flush=True)
                continue
            found = {cell.model: own}
        for model in sorted(found, key=cell.model.__eq__):  # that of the cell last: all are stored
            measures, losses = found[model]
            place = cell._replace(model=model)
            measures = {**measures, "log_loss": float(losses.mean())}
            row = {
                **place._asdict(), "n_train": len(train), "n_test": len(test),
                **{name: f"{measures[name]:.6g}" for name in MEASURES if name in measures},
                "tuned": json.dumps(tuned) if tuned else "",
                "commit": commit, "day": time.strftime("%Y-%m-%d"), "setting": setting,
            }  # fmt: skip
            keep(folder, place, losses)
            append(to, row)
            done[place] = {name: str(value) for name, value in row.items()}
            print(*place, row["log_loss"], row["cpu_seconds"], flush=True)


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
    folder: Path, names: Iterable[str], rows: str, own: str, rivals: Sequence[str] = RIVALS
) -> dict[str, bool]:
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
            for model in (*OURS, *RIVALS)
        }
    ).dropna(axis=1, how="all").dropna()  # fmt: skip
    return means.rank(axis=1).mean().to_dict() if len(means) else {}


def of_left(runs: Sequence[Mapping[str, str]], wanted: Iterable[Cell]) -> str:
    """Return the table of what is measured: cells of each model, of those planned."""
    done, planned = {key(run) for run in runs}, list(wanted)
    lines = []
    for model in (*OURS, *RIVALS):
        counts = []
        for rows in SIZES:
            of_size = [cell for cell in planned if (cell.rows, cell.model) == (rows, model)]
            counts.append(f"{sum(cell in done for cell in of_size)} of {len(of_size)}")
        lines.append([model, *counts])
    return tables.table(["model", *(f"rows: {rows}" for rows in SIZES)], lines)


#: Rows of the fourteen tables; those of the fresh ones are in their list.
ROWS_OF_CHOSEN = {
    "attrition": 1470, "credit_data": 4454, "mlc_churn": 5000, "cells": 2019, "hpc_data": 4331,
    "OJ": 1070, "Default": 10000, "spam7": 4601, "concrete": 1030, "ames": 2930,
    "car_prices": 804, "Sacramento": 932, "SaratogaHouses": 1728, "Wage": 3000,
}  # fmt: skip


def planned(n_splits: int = 3) -> Iterator[Cell]:
    """Yield every cell of the comparison, from the rows that the tables are said to have."""
    n_of = ROWS_OF_CHOSEN | {name: own.rows for name, own in FRESH.items()}
    for split in range(n_splits):
        for name, n in n_of.items():
            for rows in sizes_of(n):
                for model in (*RIVALS, *OURS):
                    yield Cell(name, rows, split, model)


def main() -> None:
    """Measure and store, or count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "left"))
    parser.add_argument("--tables", nargs="*", choices=[*tables.UNSEEN, *FRESH])
    parser.add_argument("--models", nargs="*", choices=RIVALS, default=RIVALS, help="rivals")
    parser.add_argument("--rows", nargs="*", choices=[*SIZES], default=["300", "1000"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rivals-only", action="store_true")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    losses = given.to.with_suffix("")
    if given.what == "left":
        print(of_left(stored(given.to), planned(given.splits)), end="")
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    models = () if given.ours_only else [model for model in RIVALS if model in given.models]
    ours = () if given.rivals_only else OURS[:1]
    names = given.tables or [*tables.UNSEEN, *FRESH]
    run(cells(names, (*models, *ours), given.rows, given.splits), given.to, losses)


if __name__ == "__main__":
    main()
