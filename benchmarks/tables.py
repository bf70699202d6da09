"""Default searches beside scikit-learn's defaults on small public tables.

    python benchmarks/tables.py DATA [--splits 2] [--trials 4] [--to FILE.json]

DATA is the folder that holds `uci/` and `uci-classification/`. Each split trains on a seeded,
stratified share of the rows and tests on the rest; nothing is tuned on the test rows. Seconds are
CPU seconds of this process, one thread. The study runs with its own defaults but for the number of
trials, and predicts with the probit (classes) or closed-form (real targets) Laplace predictive.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import nas_evidence
from nas_evidence.maths.calibration import classification_measures, regression_measures
from nas_evidence.maths.normals import Normals

CLASSES = ("australian", "ionosphere", "waveform")
REAL = ("bostonHousing", "wine-quality-red", "power-plant")
#: Most training rows, so that the table takes minutes and not hours.
MOST_ROWS = 600
LEVEL = 0.9


def read(folder: Path, name: str) -> pd.DataFrame:
    """Return a data set with the column `target`."""
    if name in REAL:
        home = folder / "uci" / name
        values = np.loadtxt(home / "data.txt")
        columns = np.loadtxt(home / "index_features.txt").astype(int)
        target = values[:, int(np.loadtxt(home / "index_target.txt"))]
        return _frame(values[:, columns], target)
    home = folder / "uci-classification" / name
    if name == "ionosphere":
        frame = pd.read_csv(home / "ionosphere.data", header=None)
        return _frame(frame.iloc[:, :-1].to_numpy(), frame.iloc[:, -1].to_numpy())
    parts = ("X.txt", "Y.txt") if (home / "X.txt").is_file() else None
    if parts:
        x, y = (_numbers(home / part) for part in parts)
    else:
        x, y = (
            np.concatenate([_numbers(home / f"{kind}_{part}.txt") for part in ("train", "test")])
            for kind in ("X", "y")
        )
    return _frame(x, np.array([f"c{int(v)}" for v in y.ravel()]))


def _numbers(path: Path) -> np.ndarray:
    text = path.read_text().replace(",", " ")
    return np.array([[float(v) for v in line.split()] for line in text.splitlines() if line])


def _frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    return frame.assign(target=y)


def split(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training and test rows: 80 % but at most MOST_ROWS, and the others."""
    from sklearn.model_selection import train_test_split

    labels = frame["target"] if frame["target"].dtype.kind not in "iuf" else None
    n_train = min(MOST_ROWS, int(0.8 * len(frame)))
    train, test = train_test_split(frame, train_size=n_train, random_state=seed, stratify=labels)
    return train, test


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int) -> dict[str, float]:
    """Return the measures of a default search."""
    with tempfile.TemporaryDirectory() as folder:
        study = nas_evidence.search(
            train,
            target="target",
            n_trials=n_trials,
            settings={"seed": seed},
            out=Path(folder) / "study",
            progress=False,
        )
        return study.predict(test.drop(columns="target"), level=LEVEL).measures(test["target"])


def theirs(make: Callable[[], Any]) -> Callable[..., dict[str, float]]:
    """Return a function that measures an estimator of scikit-learn."""

    def measured(
        train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int
    ) -> dict[str, float]:
        x, y = train.drop(columns="target"), train["target"]
        model = make().fit(x, y)
        new = test.drop(columns="target")
        if hasattr(model, "classes_"):
            labels = np.searchsorted(model.classes_, test["target"])
            return classification_measures(model.predict_proba(new), labels)
        mean = model.predict(new)[:, None]
        # Without a spread of its own: that of its residuals on the training rows.
        std = np.full_like(mean, np.std(y - model.predict(x)))
        truth = test["target"].to_numpy()[:, None]
        return regression_measures(Normals.single(mean, std), truth, level=LEVEL)

    return measured


def methods(*, labels: bool) -> dict[str, Callable[..., dict[str, float]]]:
    """Return what is compared, by name."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if labels:
        return {
            "nas-evidence": ours,
            "HistGradientBoosting": theirs(HistGradientBoostingClassifier),
            "LogisticRegression": theirs(
                lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
            ),
        }
    return {
        "nas-evidence": ours,
        "HistGradientBoosting": theirs(HistGradientBoostingRegressor),
        "Ridge": theirs(lambda: make_pipeline(StandardScaler(), RidgeCV())),
    }


def rows(folder: Path, n_splits: int, n_trials: int) -> Iterator[dict[str, Any]]:
    """Yield one row per data set and method: means and standard deviations over the splits."""
    for name in [name for pair in zip(CLASSES, REAL, strict=True) for name in pair]:
        frame = read(folder, name)
        for method, measure in methods(labels=name in CLASSES).items():
            found, seconds = [], []
            for seed in range(n_splits):
                train, test = split(frame, seed)
                started = time.process_time()
                found.append(measure(train, test, seed, n_trials))
                seconds.append(time.process_time() - started)
            row: dict[str, Any] = {"data": name, "method": method, "n_splits": n_splits}
            row |= {"n_train": len(train), "n_test": len(test)}
            row["seconds"] = statistics.mean(seconds)
            for key in found[0]:
                values = [one[key] for one in found]
                spread = statistics.stdev(values) if n_splits > 1 else None
                row[key], row[f"{key}_sd"] = statistics.mean(values), spread
            yield row


def markdown(table: list[dict[str, Any]]) -> str:
    """Return the rows as two Markdown tables."""
    lines = []
    for keys in (
        ("accuracy", "log_loss", "calibration_error"),
        ("rmse", "nll", "coverage"),
    ):
        lines += ["| data | n | method | " + " | ".join(keys) + " | seconds |"]
        lines += ["|---|---|---|" + "---|" * (len(keys) + 1)]
        for row in table:
            if keys[0] in row:
                cells = [f"{row[k]:.3g} ± {row[f'{k}_sd'] or 0:.2g}" for k in keys]
                lines.append(
                    f"| {row['data']} | {row['n_train']} | {row['method']} | "
                    + " | ".join(cells)
                    + f" | {row['seconds']:.1f} |"
                )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--to", type=Path)
    given = parser.parse_args()
    names = ("torch", "scikit-learn", "numpy")
    result: dict[str, Any] = {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, one thread used",
        "versions": {name: metadata.version(name) for name in names},
        "n_trials": given.trials,
        "rows": [],
    }
    for row in rows(given.data, given.splits, given.trials):
        result["rows"].append(row)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        if given.to:
            given.to.parent.mkdir(parents=True, exist_ok=True)
            given.to.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(markdown(result["rows"]))


if __name__ == "__main__":
    main()
