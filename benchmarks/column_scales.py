"""Numeric columns with their tails tamed before the search: does the ensemble's log loss fall?

    python benchmarks/column_scales.py DATA [--splits 2] [--sets NAME ...]

    quantiles  normal scores by 100 quantiles of the training rows
    clip       (x - median) / spread of the quartiles, then z / sqrt(1 + (z / 3)^2) (RealMLP)

Both for columns of more than ten values, fitted on the training rows; then a default search, as
`rivals.py` runs it. Written down before the run: adopted if the mean over the ten tables of the
fall of the log loss is above 1.7 standard errors of the tables; not if any table is worse by more
than 0.02 on both splits.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rivals
import tables
from numpy.typing import NDArray
from scipy.stats import norm

RESULTS = Path(__file__).resolve().parent / "results" / "column_scales.json"
Floats = NDArray[np.float64]
Scale = Callable[[Floats, Floats], tuple[Floats, Floats]]


def quantiles(train: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return normal scores; equal values share one, and none is beyond the outermost."""
    shares = (np.arange(100) + 0.5) / 100
    knots = np.quantile(train, shares)
    grid = np.unique(knots)
    scores = np.array([norm.ppf(shares[knots == value]).mean() for value in grid])
    return np.interp(train, grid, scores), np.interp(new, grid, scores)


def clip(train: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return values pressed smoothly into -3 to 3 spreads."""
    low, high = np.quantile(train, [0.25, 0.75])
    spread = (high - low) / 1.349 or (train.max() - train.min()) / 2 or 1.0
    z, z_new = ((values - np.median(train)) / spread for values in (train, new))
    return z / np.sqrt(1 + (z / 3) ** 2), z_new / np.sqrt(1 + (z_new / 3) ** 2)


SCALES: dict[str, Scale] = {"quantiles": quantiles, "clip": clip}


def main() -> None:
    """Measure what is missing, and print the fall of the log loss beside `rivals.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--sets", nargs="*", default=[*tables.CLASSES, *tables.REAL])
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    tables.MOST_TRAIN = 300
    runs = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.exists() else []
    done = {(run["data"], run["scale"], run["split"]) for run in runs}
    for split in range(given.splits) if given.data else ():
        for name in given.sets:
            unseen = name in rivals.UNSEEN
            frame = rivals.read_unseen(name) if unseen else tables.read(given.data, name)
            key = "log_loss" if name in (*tables.CLASSES, *rivals.UNSEEN_CLASSES) else "nll"
            for scale, fitted in SCALES.items():
                if (name, scale, split) in done:
                    continue
                train, test = (part.copy() for part in tables.split(frame, split))
                for column in train.columns.drop("target"):
                    if train[column].dtype.kind in "if" and train[column].nunique() > 10:
                        both = (part[column].to_numpy(float) for part in (train, test))
                        train[column], test[column] = fitted(*both)
                found = rivals.ours(train, test, split)
                values = {method: round(found[method][0][key], 6) for method in rivals.OURS}
                runs.append({"data": name, "scale": scale, "split": split, **values})
                text = ",\n  ".join(json.dumps(run) for run in runs)
                RESULTS.write_text(f'{{"runs": [\n  {text}\n]}}\n', encoding="utf-8")
    for scale in SCALES:
        falls = _falls([run for run in runs if run["scale"] == scale])
        means = np.array([np.mean(of) for name, of in falls.items() if name not in rivals.UNSEEN])
        error = means.std(ddof=1) / len(means) ** 0.5
        print(scale, f"{means.mean():+.3f} ± {error:.3f}, median {np.median(means):+.3f}", falls)


def _falls(runs: list[dict[str, float | str]]) -> dict[str, list[float]]:
    """Return by table how much lower the log loss of the ensemble is than without, each split."""
    paths = (rivals.RESULTS, rivals.ON_UNSEEN)
    before = {
        (run["data"], run["split"]): run.get("nll", run["log_loss"])
        for path in paths
        for run in json.loads(path.read_text("utf-8"))["runs"]
        if run["method"] == rivals.OURS[1]
    }
    found: dict[str, list[float]] = {}
    for run in runs:
        fall = before[run["data"], run["split"]] - float(run[rivals.OURS[1]])
        found.setdefault(str(run["data"]), []).append(round(fall, 3))
    return found


if __name__ == "__main__":
    main()
