"""Do encodings of numbers, or what is delivered of what was trained, predict better on tables?

    python benchmarks/better_networks.py run [--rows 300] [--encodings plain] [--tables ..]
    python benchmarks/better_networks.py collect   # the cells as files of results
    python benchmarks/better_networks.py page      # writes docs/experiments/better-networks.md

A cell is a table, a number of training rows, a split and an encoding: a default search (24 trials
and the race). `run` measures the cells that are missing and stores each when it has ended. Of one
search all candidates for what is delivered are judged, since they cost no training.

**Tables.** Candidates are chosen on the fourteen of `tables.UNSEEN`. The fresh ones of
`fresh_tables.FRESH` judge the chosen candidate once (`--tables fresh`).

**Encodings** of the numeric columns, made before the search reads the table; columns of two values
stay as they are:

    plain       as they are: what a search does today
    piecewise   beside each number x its piecewise-linear encoding by `BINS` bins between the
                quantiles of the training rows (Gorishniy et al. 2022, equation 1)
    robust      median and quartiles in the place of mean and standard deviation, then the smooth
                clip x / sqrt(1 + (x / 3)^2) (Holzmueller et al. 2024)
    choice      `numbers = ["plain", "piecewise"]` in the space of both families: the same encoding
                within the network, and the sampler chooses by the scores of the folds
    periodic    beside each number x, standardised by the training rows, sin(2 pi c x) and
                cos(2 pi c x) for four frequencies c: quantiles of |c|, c ~ N(0, 0.1^2), in the
                place of random draws (Gorishniy et al. 2022, section 3.3; the scale is the
                `plr_sigma` of RealMLP-TD, which trains frequencies at a tenth of the rate)
    scaled      no encoding: perceptrons with the scaling layer and learning-rate factors of
                RealMLP (`_scaled_networks.py`). A pool in the place of a search: two sizes, two
                seeds each, beside the same perceptrons without

**Delivered**, mixtures of predictive distributions, each member with its own factor on the spread:

    one         the network that a search delivers today
    stacked     the three best, stacked on out-of-fold rows: `top=3` of today
    equal       the three best with equal weights
    seeds       all whole networks of the winner: the race's seeds and that of the search
    factor      `seeds` with one more factor on the spread, fitted to the mixture out of fold
    normal      `seeds` as one normal distribution of the same mean and variance (real targets)
    three       all whole networks of the three best

**The rule**, written before the first run; by kind of target, against `one` of `plain`. A
candidate is adopted if the mean over the tables of the difference in test log loss is below zero
with its 90 % interval (Student's t over tables, of the means over splits); if no more than a fifth
of the tables is worse by 0.01 nats; if accuracy, calibration error (classes), RMSE and the
coverage of 90 % intervals in each quartile of the predicted mean (real targets) are not worse
beyond their own 90 % interval; and if its CPU seconds are at most 1.3 times. For what is delivered
rho is that of the scores among the finalists of a search. Among several that pass, that with the
lowest mean counts; `seeds` is preferred to others within 0.001 nats, since it is the simplest.
What would change our mind afterwards: the chosen candidate is not lower than `one` on the fresh
tables, where it is judged once.

**A second rule**, written before a result of `choice` on a fresh table was read. On the choosing
tables `choice` gains much on a few tables (0.04 to 0.12 nats) and loses nothing on the others, so
that an interval by Student's t over five to eight tables is wider than its mean. It is adopted,
for both kinds together, if on the twenty fresh tables the mean difference of `choice`, `one` to
`plain`, `one` is below zero with its 90 % interval, if no more than a fifth of them is worse by
0.01 nats, and if accuracy, calibration error, RMSE and coverage are not worse beyond theirs. Else
it stays a key of the space that a study names.

**Three later candidates**: `robust`, `periodic` and `scaled`, written down before a run of them on
a table for choosing or a fresh one; `robust` had run on `concrete` alone, which is left out. The
first rule holds, with `one` of split 0 at 300 rows. A candidate that does not pass on the tables
for choosing is not run on the fresh ones. One that cannot pass any more, since too many tables of
a kind are worse by 0.01 nats, need not run on the rest of that kind. `scaled` is a family of its
own, whose networks train one by one, so that a search costs too much here. Its pools screen it: a
search follows for a kind of target where the mean over its tables of the difference of mean log
losses is below zero and no more than a fifth of the tables is worse by 0.01. `picked` is told
beside, and cannot be adopted, since it costs two searches: of `plain` and another encoding, the
search whose winner has the higher estimate. It says what a choice by the scores could gain.
"""

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import leading_networks as leading
import numpy as np
import optuna
import pandas as pd
import tables
from _common import filled, hardware, versions
from _scaled_networks import Screened
from fresh_tables import FRESH
from leading_networks import SIZES, labelled, read, sizes_of
from scipy import stats

import nas_evidence
from nas_evidence.exporting.ensemble import densities_at_scales
from nas_evidence.exporting.predicted import Prediction, mixed
from nas_evidence.exporting.winner import delivered_unseen, load_winner
from nas_evidence.maths.normals import Normals
from nas_evidence.scores.folds import SCALES, restored, targets_of_folds

HERE = Path(__file__).resolve().parent
#: Cells with the loss of each test row; they are not committed.
CELLS = HERE / "results" / "better_networks"
ENCODINGS = ("plain", "piecewise", "robust", "choice", "periodic", "scaled")
#: Encodings of which `one` alone is judged.
LATER = ("robust", "periodic")
RESULTS = CELLS.with_suffix(".csv")
FINALISTS = CELLS.with_name("better_networks_finalists.csv")
PAGE = HERE.parent / "docs" / "experiments" / "better-networks.md"
MEASURES = ("log_loss", "accuracy", "ece", "rmse", "coverage", "factor")
SCORES = ("elpd", "conditional_evidence")
PACKAGES = ("torch", "scikit-learn", "optuna", "numpy")
DELIVERED = ("one", "stacked", "equal", "seeds", "factor", "normal", "three")
BINS = 8
#: Of the frequencies of `periodic`, in cycles for each standard deviation of a number.
SCALE, WAVES = 0.1, 4
QUARTILES = 4


# --- encodings


def edges_of(values: np.ndarray) -> np.ndarray:
    """Return the edges of at most `BINS` bins between quantiles of some numbers.

    >>> edges_of(np.array([0.0, 1.0])), edges_of(np.arange(9.0))[:3]
    (array([0., 1.]), array([0., 1., 2.]))
    """
    return np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))


def piecewise(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the piecewise-linear encoding [n, bins]; outside all bins it stays at 0 and 1."""
    low, high = edges[:-1], edges[1:]
    return np.clip((values[:, None] - low) / (high - low), 0.0, 1.0)


def periodic(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return sines and cosines [n, 2 * WAVES] of numbers; of a missing one those of the mean.

    Args:
        values: the numbers [n], which may be missing.
        seen: those of the training rows, none missing.
    """
    places = (1 + (np.arange(WAVES) + 0.5) / WAVES) / 2
    x = np.nan_to_num((values - seen.mean()) / seen.std())
    angles = 2 * np.pi * x[:, None] * (SCALE * stats.norm.ppf(places))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


def encoded(
    encoding: str, train: pd.DataFrame, test: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with their numeric columns encoded by the training rows."""
    if encoding in ("plain", "choice"):
        return train, test
    found: list[dict[str, Any]] = [{}, {}]
    for name in train:
        own = train[name]
        seen = own.dropna().to_numpy(float) if own.dtype.kind in "iuf" else np.zeros(0)
        for columns, part in zip(found, (train, test), strict=True):
            if name == "target" or len(np.unique(seen)) < 3:
                columns[name] = part[name]
            elif encoding == "robust":
                quarter, middle, other = np.quantile(seen, [0.25, 0.5, 0.75])
                spread = (other - quarter) or (np.ptp(seen) / 2)
                x = (part[name].astype(float) - middle) / spread
                columns[name] = x / np.sqrt(1 + (x / 3) ** 2)
            else:
                values = part[name].astype(float)
                columns[name] = values
                if encoding == "periodic":
                    more = periodic(values.to_numpy(), seen)
                else:
                    more = piecewise(values.to_numpy(), edges_of(seen))
                columns |= {f"{name} bin {k}": one for k, one in enumerate(more.T)}
    return pd.DataFrame(found[0], index=train.index), pd.DataFrame(found[1], index=test.index)


# --- what is delivered


def members_of(study: nas_evidence.Study) -> list[list[int]]:
    """Return the trials of each architecture of the race, best first; at least of three."""
    first = study._tables().standings.first()
    return [list(own.values) for i, own in enumerate(first) if own.raced or i < 3]


def factor_of(study: nas_evidence.Study, trials: list[int], arrays: Any) -> float:
    """Return the factor on the spread of all members that their mixture asks for, out of fold."""
    each = []
    for trial in trials:
        winner = load_winner(study._tables(), arrays, trial)
        table = delivered_unseen(winner)
        if table is None or not (table[:, -1] > 0).all():
            return 1.0
        own = targets_of_folds(winner.data, winner.assignment)
        rows = restored(table, winner.assignment.plan)
        each.append(densities_at_scales(rows, own.seen, own.log_jacobian))
    return float(SCALES[int(np.logaddexp.reduce(np.stack(each), axis=0).mean(1).argmax())])


def predicted_by(
    study: nas_evidence.Study, trial: int, x: pd.DataFrame, factor: float
) -> Prediction:
    """Return what one whole network predicts, with a further factor on its spread."""
    predictor = study.predictor(trial)
    before = float(predictor.meaning.get("spread_factor", 1.0))
    predictor.meaning["spread_factor"] = before * factor
    try:
        return predictor.predict(x, level=tables.LEVEL)
    finally:
        predictor.meaning["spread_factor"] = before


def together(each: Iterable[Prediction]) -> Prediction:
    """Return the mixture with equal weights."""
    found = list(each)
    return mixed(found, np.full(len(found), 1 / len(found)))


def judged(predicted: Prediction, truth: pd.Series, *, normal: bool = False) -> dict[str, Any]:
    """Return measures of predictions: log loss of each row, accuracy, RMSE, coverage, ..."""
    measures = dict(predicted.measures(truth))
    if predicted.density is None:
        places = {str(name): i for i, name in enumerate(predicted.classes)}
        y = np.array([places[str(label)] for label in truth])
        losses = tables.row_losses(np.asarray(predicted.probabilities), y)
        return measures | {"log_loss": float(losses.mean()), "losses": losses.tolist()}
    y = truth.to_numpy(float)[:, None]
    density = predicted.density
    mean, std = np.asarray(predicted.mean), np.asarray(predicted.std)
    if normal:
        density = Normals.single(mean.reshape(-1, 1), std.reshape(-1, 1))
    losses = -density.log_density(y).reshape(-1)
    low, high = np.asarray(predicted.low).reshape(-1), np.asarray(predicted.high).reshape(-1)
    if normal:
        low, high = density.interval(tables.LEVEL)
        low, high = low.reshape(-1), high.reshape(-1)
    inside = (low <= y[:, 0]) & (y[:, 0] <= high)
    order = np.array_split(np.argsort(mean.reshape(-1)), QUARTILES)
    return measures | {
        "log_loss": float(losses.mean()),
        "losses": losses.tolist(),
        "rmse": float(np.sqrt(np.mean((mean.reshape(-1) - y[:, 0]) ** 2))),
        "covered": [float(inside[rows].mean()) for rows in order],
    }


def mixtures(
    study: nas_evidence.Study,
    test: pd.DataFrame,
    raced: Sequence[list[int]],
    each: Mapping[int, Prediction],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the measures of each mixture; CPU seconds of the stack are added to `seconds`."""
    x, truth = test.drop(columns="target"), test["target"]
    found = {}
    best = [own.trial_id for own in study._tables().standings.first(3)]
    started = time.process_time()
    found["stacked"] = judged(study.predict(x, level=tables.LEVEL, top=3), truth)
    seconds["stacked"] = time.process_time() - started
    found["equal"] = judged(together(each[t] for t in best), truth)
    seeds = together(each[t] for t in raced[0])
    found["seeds"] = judged(seeds, truth)
    if seeds.density is not None and isinstance(seeds.density, Normals):
        found["normal"] = judged(seeds, truth, normal=True)
    factor = factor_of(study, raced[0], study.arrays())
    if factor == 1.0:
        found["factor"] = found["seeds"]
    else:
        wider = together(predicted_by(study, t, x, factor) for t in raced[0])
        found["factor"] = judged(wider, truth)
    found["factor"] = found["factor"] | {"factor": factor}
    found["three"] = judged(together(each[t] for group in raced[:3] for t in group), truth)
    return found


def candidates(
    study: nas_evidence.Study, test: pd.DataFrame, *, alone: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, float]]:
    """Return the measures of each candidate, scores and losses of the finalists, CPU seconds.

    Args:
        study: that has ended.
        test: the test rows.
        alone: whether to judge `one` alone, and the winner alone of the finalists.
    """
    x, truth = test.drop(columns="target"), test["target"]
    started = time.process_time()
    found = {"one": judged(study.predict(x, level=tables.LEVEL), truth)}
    seconds = {"one": time.process_time() - started}
    raced = members_of(study)[: 1 if alone else None]
    each = {t: predicted_by(study, t, x, 1.0) for group in raced for t in group}
    if not alone:
        found |= mixtures(study, test, raced, each, seconds)
    values = study._tables().evidence
    values = values[values["estimator"].isin(["elpd", "conditional_evidence"])]
    rows = values.pivot_table(
        index="trial_id", columns="estimator", values="value", aggfunc="last"
    )
    finalists = [
        {
            "trials": group,
            "estimate": own.estimate,
            **{name: rows.loc[group, name].tolist() for name in rows},
            "each": [judged(each[t], truth)["log_loss"] for t in group],
            "seeds": judged(together(each[t] for t in group), truth)["log_loss"],
        }
        for group, own in zip(raced, study._tables().standings.first(), strict=False)
    ]
    return found, finalists, seconds


# --- the run


def path_of(name: str, rows: str, split: int, encoding: str) -> Path:
    """Return the file of a cell."""
    return CELLS / f"{name}-{rows}-{split}-{encoding}.json"


def screened(
    name: str, rows: str, split: int, train: pd.DataFrame, test: pd.DataFrame
) -> dict[str, Any]:
    """Return the pool of `scaled`: the measures of each network on the test rows."""
    x, truth = test.drop(columns="target"), test["target"]
    settings = {"seed": split, "replicates": 2, "finalists": 0, "sampler": {"name": "grid"}}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        study = nas_evidence.search(
            train, target="target", n_trials=8, settings=settings, families=[Screened],
            task="classification" if labelled(name) else "regression",
            out=Path(folder) / "study", progress=False,
        )  # fmt: skip
        seconds = time.process_time() - started
        found = []
        for trial in study.trials.to_dict("records"):
            measures = judged(predicted_by(study, trial["trial_id"], x, 1.0), truth)
            del measures["losses"]
            found.append({"kind": trial["arch_kind"], "size": trial["arch_size"]} | measures)
    return {
        "data": name, "rows": rows, "split": split, "encoding": "scaled",
        "n_train": len(train), "n_test": len(test), "classes": labelled(name),
        "search_cpu_seconds": seconds, "commit": tables.commit(),
        "day": time.strftime("%Y-%m-%d"), "pool": found,
    }  # fmt: skip


def measure(name: str, rows: str, split: int, encoding: str) -> dict[str, Any]:
    """Return a default search of a cell with all candidates, or the pool of `scaled`."""
    train, test = tables.split(read(name), split, SIZES[rows])
    if encoding == "scaled":
        return screened(name, rows, split, train, test)
    train, test = encoded(encoding, train, test)
    with tempfile.TemporaryDirectory() as folder:
        started, children = time.process_time(), os.times()
        study = nas_evidence.search(
            train, target="target", n_trials=tables.N_TRIALS, settings={"seed": split},
            task="classification" if labelled(name) else "regression",
            out=Path(folder) / "study", progress=False,
        )  # fmt: skip
        now = os.times()
        seconds = time.process_time() - started
        seconds += now.children_user + now.children_system
        seconds -= children.children_user + children.children_system
        found, finalists, said = candidates(study, test, alone=encoding in LATER)
    return {
        "data": name, "rows": rows, "split": split, "encoding": encoding,
        "n_train": len(train), "n_test": len(test), "classes": labelled(name),
        "search_cpu_seconds": seconds, "predict_cpu_seconds": said,
        "commit": tables.commit(), "day": time.strftime("%Y-%m-%d"),
        "delivered": found, "finalists": finalists,
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Return the same with numbers of five digits after the point."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, Mapping):
        return {key: rounded(own) for key, own in value.items()}
    return [rounded(own) for own in value] if isinstance(value, list) else value


def cells(
    names: Iterable[str], rows: Iterable[str], splits: Iterable[int], encodings: Iterable[str]
) -> Iterator[tuple[str, str, int, str]]:
    """Yield the cells in the order in which they are measured."""
    names = list(names)
    encodings = list(encodings)
    for split in splits:
        for size in rows:
            for name in names:
                if size in sizes_of(len(read(name))):
                    yield from ((name, size, split, encoding) for encoding in encodings)


# --- what it says


def stored(path: Path) -> pd.DataFrame:
    """Return the rows of a file of the results."""
    return pd.read_csv(path, dtype={"rows": str})


def collected(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row of each candidate of each cell, and one of each finalist, from the cells."""
    rows, finalists = [], []
    for path in sorted(folder.glob("*.json")):
        if not path.stat().st_size:
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        place = {name: found[name] for name in ("data", "rows", "split", "encoding")}
        seconds = found["search_cpu_seconds"]
        told = {name: found[name] for name in ("classes", "n_train", "n_test", "day")}
        told["cpu_seconds"] = seconds
        for own in found.get("pool", ()):
            kept = {name: own[name] for name in MEASURES if name in own}
            place["encoding"] = f"pool, {own['kind']}"
            rows.append(place | {"delivered": own["size"]} | told | kept)
        alone = found["encoding"] in LATER
        for delivered, measures in found.get("delivered", {}).items():
            if alone and delivered != "one":
                continue
            kept = {name: measures[name] for name in MEASURES if name in measures}
            kept |= {f"covered_{k + 1}": own for k, own in enumerate(measures.get("covered", ()))}
            rows.append(place | {"delivered": delivered} | told | kept)
        winners = found.get("finalists", [])[: 1 if alone else None]
        for number, own in enumerate(winners, start=1):
            means = {name: float(np.mean(own[name])) for name in SCORES if name in own}
            means |= {"estimate": own["estimate"], "networks": len(own["trials"]),
                      "one": float(np.mean(own["each"])), "seeds": own["seeds"]}  # fmt: skip
            finalists.append(place | {"place": number} | means)
    return rows, finalists


def lent(folder: Path) -> None:
    """Add today's network and stack of each plain cell to the results of `leading_networks`."""
    done = {leading.key(row) for row in leading.stored(leading.RESULTS)}
    installed = (f"{name} {version}" for name, version in versions(*leading.PACKAGES).items())
    setting = "; ".join((hardware(), *installed))
    for path in sorted(folder.glob("*-plain.json")):
        if not path.stat().st_size:
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        for model, delivered in zip(leading.OURS, ("one", "stacked"), strict=True):
            cell = leading.Cell(found["data"], found["rows"], found["split"], model)
            own = found["delivered"][delivered]
            if cell in done:
                continue
            seconds = found["search_cpu_seconds"] + found["predict_cpu_seconds"][delivered]
            measures = own | {"cpu_seconds": seconds}
            leading.keep(leading.LOSSES, cell, np.array(own["losses"]))
            leading.append(leading.RESULTS, {
                **cell._asdict(), "n_train": found["n_train"], "n_test": found["n_test"],
                **{k: f"{measures[k]:.6g}" for k in leading.MEASURES if k in measures},
                "tuned": "", "commit": found["commit"], "day": found["day"], "setting": setting,
            })  # fmt: skip


def differences(
    found: pd.DataFrame, encoding: str, delivered: str, measure: str, *, sizes: Iterable[str]
) -> pd.Series:
    """Return by table the mean over sizes and splits of the difference to today's network."""
    places = ["data", "rows", "split"]
    some = found[found["rows"].isin([*sizes])].set_index(places)
    own = some[(some["encoding"] == encoding) & (some["delivered"] == delivered)][measure]
    base = some[(some["encoding"] == "plain") & (some["delivered"] == "one")][measure]
    return (own - base).dropna().groupby("data").mean()


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the mean over tables and half of its 90 % interval by Student's t.

    >>> [round(x, 3) for x in interval(pd.Series([0.0, 2.0, 4.0]))]
    [2.0, 3.372]
    """
    half = stats.t.ppf(0.95, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean()), float(half)


def of_candidates(found: pd.DataFrame, encodings: Sequence[str], *, classes: bool) -> str:
    """Return the table of all candidates of a kind of target against today's network."""
    found = found[found["classes"] == classes]
    others = ("accuracy", "ece") if classes else ("coverage",)
    lines = []
    for encoding in encodings:
        for delivered in DELIVERED:
            if (encoding, delivered) == ("plain", "one"):
                continue
            away = differences(found, encoding, delivered, "log_loss", sizes=SIZES)
            if len(away) < 2:
                continue
            cells = []
            for measure in others:
                cells.append(signed(*interval(differences(
                    found, encoding, delivered, measure, sizes=SIZES))))  # fmt: skip
            lines.append([encoding, delivered, str(len(away)), signed(*interval(away)),
                          f"{away.median():+.4f}", str(int((away > 0.01).sum())),
                          str(int((away < -0.01).sum())), *cells])  # fmt: skip
    head = ["encoding", "delivered", "tables", "log loss, nats", "its median",
            "worse by 0.01", "better by 0.01", *others]  # fmt: skip
    return tables.table(head, lines)


def signed(mean: float, half: float) -> str:
    """Return a difference with half of its interval."""
    return f"{mean:+.4f} ± {half:.4f}"


def of_tables(found: pd.DataFrame, encodings: Sequence[str], delivered: Sequence[str]) -> str:
    """Return the mean log loss of each table over the splits that all its encodings have."""
    pairs = [(e, d) for e in encodings for d in (delivered[:1] if e in LATER else delivered)]
    lines = []
    for (name, rows), some in found.groupby(["data", "rows"], sort=False):
        shared = set.intersection(*(set(own) for _, own in some.groupby("encoding")["split"]))
        some = some[some["split"].isin(shared)]
        means = some.groupby(["encoding", "delivered"])["log_loss"].mean()
        values = [float(means[pair]) if pair in means.index else None for pair in pairs]
        known = [value for value in values if value is not None]
        cells = ["" if v is None else f"**{v:.3f}**" if v == min(known) else f"{v:.3f}"
                 for v in values]  # fmt: skip
        lines.append([str(name), str(rows), str(some["split"].nunique()), *cells])
    head = ["data", "rows", "splits", *(f"{e}, {d}" for e, d in pairs)]
    return tables.table(head, lines)


def of_seconds(found: pd.DataFrame, encodings: Sequence[str]) -> str:
    """Return the CPU seconds of a search by encoding, and their ratio to those of `plain`."""
    places = ["data", "rows", "split"]
    one = found[found["delivered"] == "one"].set_index(places)
    base = one[one["encoding"] == "plain"]["cpu_seconds"]
    lines = []
    for encoding in encodings:
        own = one[one["encoding"] == encoding]["cpu_seconds"]
        ratio = (own / base).dropna()
        times = f"{float(np.exp(np.log(ratio).mean())):.2f}" if len(ratio) else ""
        lines.append([encoding, str(len(own)), f"{own.median():.0f}", times])
    return tables.table(["encoding", "searches", "CPU seconds, median", "ratio to plain"], lines)


def of_second_rule(found: pd.DataFrame) -> str:
    """Return the differences of `choice` on the fresh tables, both kinds of target together."""
    away = differences(found, "choice", "one", "log_loss", sizes=SIZES)
    beyond = f"{int((away > 0.01).sum())} worse, {int((away < -0.01).sum())} better"
    lines = [["log loss, nats", str(len(away)), signed(*interval(away)), beyond]]
    for measure in ("accuracy", "ece", "coverage"):
        own = differences(found, "choice", "one", measure, sizes=SIZES)
        lines.append([measure, str(len(own)), signed(*interval(own)), ""])
    base = found.assign(log_rmse=np.log(found["rmse"]))
    own = differences(base, "choice", "one", "log_rmse", sizes=SIZES)
    lines.append(["log of RMSE", str(len(own)), signed(*interval(own)), ""])
    return tables.table(["measure", "tables", "difference", "tables beyond 0.01"], lines)


def of_pools(found: pd.DataFrame) -> str:
    """Return the differences of scaled perceptrons to plain ones by table, means over the pool."""
    pools = found[found["encoding"].str.startswith("pool")]
    means = pools.groupby(["classes", "data", "encoding"])["log_loss"].mean().unstack()
    lines = []
    for classes, kind in ((True, "classes"), (False, "real targets")):
        own = means.loc[means.index.get_level_values("classes") == classes]
        if len(own) < 2:
            continue
        away = (own["pool, scaled"] - own["pool, plain"]).droplevel("classes")
        lines += [[kind, str(name), f"{value:+.4f}"] for name, value in away.items()]
        lines.append([kind, f"all {len(away)}", signed(*interval(away))])
    return tables.table(["target", "data", "log loss, nats"], lines)


def of_picked(found: pd.DataFrame, finalists: pd.DataFrame, encodings: Sequence[str]) -> str:
    """Return the differences to `plain` of the search with the higher estimate of two."""
    places = ["data", "rows", "split"]
    best = finalists[finalists["place"] == 1].set_index(places)
    loss = found[found["delivered"] == "one"].set_index(places)
    of_plain = best[best["encoding"] == "plain"]["estimate"]
    lines = []
    for encoding in encodings:
        own = best[best["encoding"] == encoding]["estimate"]
        taken = (own - of_plain).dropna() > 0
        away = loss[loss["encoding"] == encoding]["log_loss"] - loss[
            loss["encoding"] == "plain"]["log_loss"]  # fmt: skip
        away = away.dropna().where(taken, 0.0)
        for classes, kind in ((True, "classes"), (False, "real targets")):
            some = loss[(loss["encoding"] == encoding) & (loss["classes"] == classes)].index
            each = away.loc[some.intersection(away.index)]
            if len(each) > 1:
                lines.append([encoding, kind, str(len(each)), str(int(taken[each.index].sum())),
                              signed(*interval(each))])  # fmt: skip
    head = ["encoding", "target", "tables", "picked", "log loss, nats"]
    return tables.table(head, lines)


def of_ranking(finalists: pd.DataFrame) -> str:
    """Return how well scores order the finalists of a search, against both losses."""
    lines = []
    for score in (*SCORES, "estimate"):
        cells = []
        for loss in ("one", "seeds"):
            found = []
            for _, some in finalists.groupby(["data", "rows", "split", "encoding"]):
                own = some.dropna(subset=[score]) if score in some else some[:0]
                if len(own) > 2 and own[score].nunique() > 1 and own[loss].nunique() > 1:
                    found.append(stats.spearmanr(own[score], -own[loss]).statistic)
            cells.append(signed(*interval(pd.Series(found))) if len(found) > 1 else "")
        lines.append([score, str(len(found)), *cells])
    return tables.table(["score", "searches", "rho, one network", "rho, all its seeds"], lines)


def written(page: str, found: pd.DataFrame, finalists: pd.DataFrame) -> str:
    """Return the page with its tables as the stored rows give them."""
    more = found[(found["rows"] == "1000") & found["data"].isin([*FRESH])]
    found, finalists = (own[own["rows"] == "300"] for own in (found, finalists))
    fresh = found["data"].isin([*FRESH])
    known = [e for e in ENCODINGS if (found["encoding"] == e).any()]
    made = {}
    for part, some in (("choosing", found[~fresh]), ("fresh", found[fresh])):
        had = [e for e in known if (some["encoding"] == e).any()]
        for kind, classes in (("classes", True), ("real", False)):
            made[f"{part}, {kind}"] = of_candidates(some, had, classes=classes)
            own = some[some["classes"] == classes]
            made[f"{part}, {kind}, each"] = of_tables(
                own, had, ("one", "stacked", "seeds", "three")
            )
    for kind, classes in (("classes", True), ("real", False)):
        made[f"1000, {kind}"] = of_candidates(more, ["plain"], classes=classes)
    made["fresh, all"] = of_second_rule(found[fresh])
    made["pools"] = of_pools(found)
    made["picked"] = of_picked(found[~fresh], finalists, ("piecewise", *LATER))
    made["seconds"] = of_seconds(found, known)
    made["ranking"] = of_ranking(finalists)
    days = sorted(found["day"].unique())
    installed = (f"{name} {version}" for name, version in versions(*PACKAGES).items())
    period = " to ".join(dict.fromkeys((days[0], days[-1])))
    made["setting"] = f"Measured {period}: {'; '.join((hardware(), *installed))}.\n"
    return filled(page, made)


def main() -> None:
    """Measure and store, bring the cells into two tables, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "collect", "page"))
    parser.add_argument("--tables", nargs="*", default=[*tables.UNSEEN])
    parser.add_argument("--rows", nargs="*", choices=[*SIZES], default=["300"])
    parser.add_argument("--splits", nargs="*", type=int, default=[0])
    parser.add_argument("--encodings", nargs="*", choices=ENCODINGS, default=["plain"])
    given = parser.parse_args()
    if given.what == "collect":
        lent(CELLS)
        rows, finalists = collected(CELLS)
        for own, to in ((rows, RESULTS), (finalists, FINALISTS)):
            pd.DataFrame(own).to_csv(to, index=False, float_format="%.6g", lineterminator="\n")
        return
    if given.what == "page":
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(written(text, stored(RESULTS), stored(FINALISTS)), "utf-8")
        return
    names = [*FRESH] if given.tables == ["fresh"] else given.tables
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    for cell in cells(names, given.rows, given.splits, given.encodings):
        path = path_of(*cell)
        if path.exists():
            continue
        try:
            found = measure(*cell)
        except Exception as error:  # the cell stays empty, and the others run
            print(f"{cell}: {type(error).__name__}: {error}", flush=True)
            continue
        CELLS.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(rounded(found)) + "\n", encoding="utf-8")
        new.replace(path)
        losses = {name: one["log_loss"] for name, one in found.get("delivered", {}).items()}
        print(*cell, round(found["search_cpu_seconds"], 1), losses, flush=True)


if __name__ == "__main__":
    main()
