"""Default searches beside scikit-learn's defaults on ten small public tables.

    python benchmarks/tables.py DATA [--sets NAME ...] [--splits 3] [--trials 4]
    python benchmarks/tables.py --page    # writes the tables of docs/explanation/tables.md

DATA is the folder that holds `uci/` and `uci-classification/`. Each split trains on a seeded,
stratified share of the rows and tests on others; nothing is tuned on the test rows. Seconds are
CPU seconds of this process, one thread. The study has its own defaults but for the number of
trials, told whether it is a regression, and predicts by the mode (classes) or closed-form (real
targets) Laplace predictive.

Every run is stored as soon as it has ended, with the commit it was measured at; runs that are
stored already are not repeated, so an interrupted measurement is continued by the same command.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import nas_evidence
from nas_evidence.maths.metrics import class_metrics, real_metrics
from nas_evidence.maths.normals import Normals

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "tables.json"
PAGE = HERE.parent / "docs" / "explanation" / "tables.md"
CLASSES = ("australian", "cancer", "ionosphere", "satellite", "waveform")
REAL = ("bostonHousing", "kin8nm", "naval-propulsion-plant", "power-plant", "wine-quality-red")
#: Most training and test rows, so that the table takes minutes and not hours.
MOST_TRAIN, MOST_TEST = 1000, 2000
LEVEL = 0.9
MEASURES = {
    "classes": ("accuracy", "log_loss", "ece"),
    "real": ("rmse", "nll", "coverage"),
}
WORDS = {"ece": "calibration error"}
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


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
    """Return training rows, 80 % but at most MOST_TRAIN, and at most MOST_TEST of the others."""
    from sklearn.model_selection import train_test_split

    labels = frame["target"] if frame["target"].dtype.kind not in "iuf" else None
    n_train = min(MOST_TRAIN, int(0.8 * len(frame)))
    train, test = train_test_split(
        frame,
        train_size=n_train,
        test_size=min(MOST_TEST, len(frame) - n_train),
        random_state=seed,
        stratify=labels,
    )
    return train, test


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, n_trials: int) -> dict[str, float]:
    """Return the measures of a default search."""
    with tempfile.TemporaryDirectory() as folder:
        study = nas_evidence.search(
            train,
            target="target",
            task="regression" if train["target"].dtype.kind == "f" else "classification",
            n_trials=n_trials,
            settings={"seed": seed},
            out=Path(folder) / "study",
            progress=False,
        )
        found = study.predict(test.drop(columns="target"), level=LEVEL)
        measures = found.measures(test["target"])
        if found.density is not None:  # in the unit of the target
            truth = test["target"].to_numpy()[:, None]
            measures["nll"] = float(-found.density.log_density(truth).mean())
        return measures


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
            return class_metrics(model.predict_proba(new), labels)
        mean = model.predict(new)[:, None]
        # Without a spread of its own: that of its residuals on the training rows.
        std = np.full_like(mean, np.std(y - model.predict(x)))
        truth = test["target"].to_numpy()[:, None]
        measures = real_metrics(Normals.single(mean, std), truth, unit=np.ones(1), level=LEVEL)
        return measures | {"nll": measures["log_loss"]}

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


def commit() -> str:
    """Return the commit of the code measured."""
    shown = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True
    )
    return shown.stdout.strip() or "unknown"


def conditions(n_trials: int) -> dict[str, Any]:
    """Return what the results depend on beside the code."""
    names = ("torch", "scikit-learn", "numpy")
    return {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, one thread used",
        "versions": {name: metadata.version(name) for name in names},
        "n_trials": n_trials,
        "most_train": MOST_TRAIN,
        "most_test": MOST_TEST,
    }


def measure(folder: Path, names: Sequence[str], n_splits: int, n_trials: int, to: Path) -> None:
    """Measure every method on every split of the sets and store each run when it has ended.

    Raises:
        SystemExit: if what is stored was measured under other conditions.
    """
    asked = conditions(n_trials)
    stored = json.loads(to.read_text(encoding="utf-8")) if to.exists() else {**asked, "runs": []}
    if differs := [key for key in asked if stored.get(key) != asked[key]]:
        raise SystemExit(f"{to} has other {', '.join(differs)}; give another file with --to")
    done = {(run["data"], run["method"], run["split"]) for run in stored["runs"]}
    for name in names:
        frame = read(folder, name)
        for seed in range(n_splits):
            train, test = split(frame, seed)
            for method, of in methods(labels=name in CLASSES).items():
                if (name, method, seed) in done:
                    continue
                started = time.process_time()
                found = of(train, test, seed, n_trials)
                run = {
                    "data": name,
                    "method": method,
                    "split": seed,
                    "commit": commit(),
                    "n_train": len(train),
                    "n_test": len(test),
                    "cpu_seconds": round(time.process_time() - started, 2),
                    **{key: round(value, 6) for key, value in found.items()},
                }
                print(json.dumps(run), flush=True)
                stored["runs"].append(run)
                stored["runs"].sort(key=_place)
                store(stored, to)


def store(stored: Mapping[str, Any], to: Path) -> None:
    """Write the conditions and the runs of a measurement, a line for each run."""
    lines = ",\n  ".join(json.dumps(one) for one in stored["runs"])
    text = json.dumps({**stored, "runs": []}, indent=1)[: -len("[]\n}")]
    to.write_text(f"{text}[\n  {lines}\n ]\n}}\n", encoding="utf-8")


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *lines))


def _place(run: Mapping[str, Any]) -> tuple[int, int, int]:
    methods = ("nas-evidence", "HistGradientBoosting", "LogisticRegression", "Ridge")
    return (CLASSES + REAL).index(run["data"]), methods.index(run["method"]), run["split"]


def rows(kind: str, runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row per data set and method: mean ± standard deviation over the splits.

    Args:
        kind: "classes" or "real".
        runs: of all sets.
    """
    first, *_ = MEASURES[kind]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        if first in run:
            groups.setdefault((run["data"], run["method"]), []).append(run)
    lines = []
    for (data, method), group in groups.items():
        cells = [spread([run[key] for run in group]) for key in MEASURES[kind]]
        seconds = statistics.mean(run["cpu_seconds"] for run in group)
        sizes = f"{group[0]['n_train']:,} / {group[0]['n_test']:,}"
        lines.append([data, sizes, str(len(group)), method, *cells, f"{seconds:.1f}"])
    return lines


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation with digits that fit the size of the mean.

    >>> spread([0.8, 0.9]), spread([0.00123, 0.00125]), spread([0.5])
    ('0.850 ± 0.071', '0.00124 ± 0.00001', '0.500')
    """
    mean = statistics.mean(values)
    digits = 3 if abs(mean) >= 0.01 else 5
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{deviation}"


def written(page: str) -> str:
    """Return the page with its tables as the stored results give them."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]

    def table(kind: str) -> str:
        names = [WORDS.get(key, key.replace("_", " ")) for key in MEASURES[kind]]
        header = ["data", "rows trained / tested", "n", "method", *names, "CPU seconds"]
        lines = [header, ["---"] * len(header), *rows(kind, runs)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    return _TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


def main() -> None:
    """Measure and store, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="*", choices=CLASSES + REAL, default=CLASSES + REAL)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.data is not None:
        measure(given.data, given.sets, given.splits, given.trials, given.to)
    if given.page:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
