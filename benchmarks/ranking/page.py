"""Writes the tables of the pages on ranking and of the README from committed results.

    python benchmarks/ranking/judge.py --results    # the numbers, from the trained pools
    python benchmarks/ranking/page.py

Each table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import judge
import numpy as np
from _common import filled
from judge import markdown, number
from worth import said as judged_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "experiments" / "ranking-pools.md"
#: Which tables each page has.
PAGES = {
    PAGE: ("small", "large", "own", "new-pools"),
    ROOT / "docs" / "explanation" / "ranking.md": ("overview", "folds"),
    ROOT / "README.md": ("trust",),
}  # fmt: skip
RESULTS = ROOT / "benchmarks" / "results"
POOLS = {
    "boston": "Boston housing, real", "kin8nm": "kin8nm, real", "wine": "wine, real",
    "naval": "naval, real", "power": "power plant, real", "satellite": "Satellite, 6 classes",
    "waveform": "Waveform, 3 classes", "australian": "Australian credit, 2 classes",
    "mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar": "CIFAR-10",
    "satellite1000": "Satellite", "digits1297": "digits 8x8", "mnist1000": "MNIST",
    "fmnist1000": "Fashion-MNIST", "cifar5000": "CIFAR-10", "fmnist10000": "Fashion-MNIST",
    "fmnist60000": "Fashion-MNIST", "satellite_own": "Satellite, 6 classes",
    "waveform_own": "Waveform, 3 classes", "australian_own": "Australian credit, 2 classes",
    "ionosphere_own": "ionosphere, 2 classes", "kin8nm_own": "kin8nm, real",
    "boston_own": "Boston housing, real",
}  # fmt: skip
SMALL = (
    "two_fold", "last_layer_conditional", "five_fold", "heldout_10", "kfac_ggn", "sotl",
    "n_parameters",
)  # fmt: skip
LARGE = tuple(score for score in SMALL if score != "five_fold")
OVERVIEW = (
    "last_layer_conditional", "two_fold", "heldout_10", "kfac_ggn", "sotl", "n_parameters",
)  # fmt: skip
NAMES = {"last_layer_conditional": "`conditional_evidence`, two folds"}
#: Pools of the group `folds` that are no table of 300 rows.
FEW = {
    "fashion": "Fashion-MNIST", "kin8nm2000x5": "kin8nm, real",
    "naval2000x5": "naval propulsion, real", "power2000x5": "power plant, real",
}  # fmt: skip
#: Pools of the group `folds` with classes.
CLASSES = ("satellite", "waveform", "australian", "satellite150", "fashion", "cancer", "synth5")
COST = {"two_fold": "1", "last_layer_conditional": "1", "five_fold": "4", "heldout_10": "0.9"}
Pool = Mapping[str, Any]


def _of(pool: Pool, score: str, what: str) -> float | None:
    value = pool["scores"].get(score, {}).get(what)
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and v == v]
    return sum(known) / len(known) if known else None


def _lead(pool: Pool) -> list[str]:
    """Return the first cells of a pool: name, data, networks and seeds, attainable rho."""
    networks = "+".join(map(str, pool["networks"]))
    if len(set(pool["networks"])) == 1:
        networks = f"{pool['networks'][0]} x {len(pool['networks'])}"
    return [POOLS[pool["pool"]], f"{pool['n_data']:,}", networks, number(pool["attainable"])]


def by_one_seed(pools: Sequence[Pool], scores: Sequence[str]) -> str:
    """Return rho with test log loss by one seed, and means of the other measures."""
    header = ["pool", "data", "networks x seeds", "attainable", *(f"`{s}`" for s in scores)]
    lines = [_lead(pool) + [number(_of(pool, s, "rho")) for s in scores] for pool in pools]
    for name, what, digits in (
        ("mean", "rho", 2),
        ("rho with accuracy or RMSE, mean", "rho_second", 2),
        ("first choice loses, nats per datum, mean", "regret_nats", 3),
        ("and points of accuracy, or % of RMSE, mean", "regret_points", 1),
    ):
        top = number(_mean([pool["attainable"] for pool in pools])) if what == "rho" else ""
        cells = [number(_mean([_of(pool, s, what) for pool in pools]), digits) for s in scores]
        lines.append([name, "", "", top, *cells])
    lines.append(["cost in trainings", "", "", "", *(COST.get(s, "0") for s in scores)])
    return markdown(header, lines)


def _kinds(small: Sequence[Pool], large: Sequence[Pool]) -> Mapping[str, Sequence[Pool]]:
    """Return the pools by kind of data."""
    return {
        "classes, 1,000 to 60,000 rows": large,
        "classes, 200 to 300 rows": [p for p in small if p["task"] == "labels"],
        "real targets, 300 rows": [p for p in small if p["task"] == "real"],
    }


def _rhos(pools: Sequence[Pool], score: str) -> tuple[str, str]:
    """Return rho with test log loss by one seed, its mean and range over pools."""
    values = [v for p in pools if (v := _of(p, score, "rho")) is not None]
    return number(_mean(values)), f"{min(values):.2f} to {max(values):.2f}"


def overview(small: Sequence[Pool], large: Sequence[Pool]) -> str:
    """Return rho by one seed, mean and range over kinds of pools."""
    lines = []
    for name, pools in _kinds(small, large).items():
        line = [f"{name} ({len(pools)} pools)", number(_mean([p["attainable"] for p in pools]))]
        lines.append([*line, *("{} ({})".format(*_rhos(pools, score)) for score in OVERVIEW)])
    names = [NAMES.get(score, f"`{score}`") for score in OVERVIEW]
    return markdown(["data", "attainable", *names], lines)


def by_another_seed(pool: str) -> tuple[float, float] | None:
    """Return rho of one seed's score with the test log loss of the others, and attainable.

    None for a pool that was trained with one seed.
    """
    score, trained = "last_layer_conditional", judge.read("wide", pool)
    both = np.isfinite(trained.loss).all(1) & np.isfinite(trained.scores[score]).all(1)
    if trained.loss.shape[1] < 2:
        return None
    found = judge.judged(trained.some(both), [score])
    return found["scores"][score]["rho"], found["attainable"]


def trust(folds: Mapping[str, Any], large: Sequence[Pool], worth: Mapping[str, Any]) -> str:
    """Return how far what ranks by default is to be trusted, by kind of data.

    Always rho with the test log loss of other seeds. Few data are drawn anew for each seed; of
    many the networks share the training rows.
    """
    parts = [part for part in folds.values() if isinstance(part, Mapping)]
    more = [pool for part in parts for name, pool in part.get("pools", {}).items()
            if name in FEW and pool["n_data"] > 1000]  # fmt: skip
    lines = [
        _line("classes, 1,000 to 60,000 rows, two folds",
              [found for p in large if (found := by_another_seed(p["pool"]))]),
        _line("real targets, 2,000 rows, five folds",
              [(pool["scores"]["e5"]["rho"], pool["attainable"]) for pool in more]),
    ]  # fmt: skip
    for name, pools in _by_kind(kept_aside(worth)).items():
        column = COLUMNS["estimate"]
        rhos = [(pool["scores"][column]["rho"], pool["attainable"]) for pool in pools]
        line = _line(f"{name}, five folds", rhos)
        lines.append([*line[:-1], _median_rows(pools, column)])
    header = ["your data", "pools", "rho, mean", "range over pools", "attainable",
              "worth as many extra labelled rows"]  # fmt: skip
    return markdown(header, lines)


def kept_aside(worth: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pools that did not tune the estimate, by group.

    These are the pools of `rank` that were kept aside, and those of the second look.
    """
    return {
        group: {"pools": {name: pool for name, pool in worth[group]["pools"].items()
                          if judge.POOLS[group][name].aside}}
        for group in ("rank", "rank/second")
    }  # fmt: skip


def _line(name: str, rhos: Sequence[tuple[float, float]]) -> list[str]:
    """Return a line of `trust` from rho and attainable of each pool, its worth not measured."""
    own = [rho for rho, _ in rhos]
    top = number(_mean([top for _, top in rhos]))
    span = f"{min(own):.2f} to {max(own):.2f}"
    return [name, str(len(own)), number(_mean(own)), span, top, "not measured"]


#: Columns of the pools by the name of a score.
COLUMNS = {"conditional_evidence": "e5", "elpd": "plain5", "estimate": "estimate",
           "two_fold": "two_fold", "kfac_ggn": "kfac_ggn", "sotl": "sotl"}  # fmt: skip


def _by_kind(worth: Mapping[str, Any]) -> Mapping[str, Sequence[Pool]]:
    """Return the pools of up to 1,000 rows by kind of target."""
    pools = [pool for group in worth.values() for pool in group["pools"].values()]
    classes, real = ([p for p in pools if p["real"] == kind] for kind in (False, True))
    return {
        f"{name}, {min(p['n_data'] for p in own):,} to {max(p['n_data'] for p in own):,} rows": own
        for name, own in (("classes", classes), ("real targets", real))
    }


def _median_rows(pools: Sequence[Pool], column: str) -> str:
    """Return the median of the rows that a score is worth, and how often half of the data."""
    known = [p for p in pools if column in p["scores"] and p["fresh"]]
    rows = [p["scores"][column]["rows"] for p in known]
    values = sorted(math.inf if v is None else v for v in rows)
    middle, most = values[len(values) // 2], max(int(m) for p in known for m in p["fresh"])
    half = sum(v is None or v >= p["n_data"] / 2 for v, p in zip(rows, known, strict=True))
    text = f"> {most}" if math.isinf(middle) else "< 15" if middle == 0 else f"{middle:.0f}"
    return f"{text}; half of the rows or more on {half} of {len(known)}"


def worth_of(worth: Mapping[str, Any]) -> str:
    """Return rho and the rows that each score is worth, by kind of target."""
    lines = [
        [f"{name} ({len(pools)} pools)", f"`{score}`",
         number(_mean([_of(pool, column, "rho") for pool in pools])),
         number(_mean([pool["attainable"] for pool in pools])), _median_rows(pools, column)]
        for name, pools in _by_kind(worth).items()
        for score, column in COLUMNS.items()
    ]  # fmt: skip
    return markdown(["data", "score", "rho, mean", "attainable", "rows: median"], lines)


def held_out(worth: Mapping[str, Any]) -> str:
    """Return what ours and a hold-out of a fifth lose, medians and means over pools."""
    names = {"ours": "five folds, 18 networks", "ours_equal": "five folds, 3 of them",
             "hold_out": "a fifth held out, 18 networks",
             "hold_out_again": "the same, trained again on all rows"}  # fmt: skip
    lines = []
    for kind, pools in _by_kind(worth).items():
        of = [pool["hold_out"] for pool in pools if pool["hold_out"]]
        for key, name in names.items():
            values = [one[key] for one in of]
            gap = [one["ours"] - one[key] for one in of]
            lines.append([
                kind.split(",")[0], name, "6" if key == "ours" else "1",
                number(float(np.median(values)), 3), number(_mean(values), 3),
                "" if key == "ours" else f"{sum(v < 0 for v in gap)} of {len(gap)}",
            ])  # fmt: skip
    header = [
        "data",
        "who",
        "trainings a network",
        "loss, median",
        "mean",
        "five folds lose less on",
    ]
    return markdown(header, lines)


def new_pools(worth: Mapping[str, Any]) -> str:
    """Return rho with the loss of other seeds, pool by pool, and what the default is worth."""
    lines = []
    for group, found in worth.items():
        for name, pool in found["pools"].items() if group != "folds" else ():
            one = pool["scores"]["e5"]
            low, high = (judged_rows(v, pool["fresh"]) for v in one["rows_90"])
            lines.append([
                name, "real" if pool["real"] else "classes", f"{pool['n_data']:,}",
                number(pool["attainable"]),
                *(number(_of(pool, s, "rho")) for s in ("e5", "plain5", "estimate")),
                f"{judged_rows(one['rows'], pool['fresh'])} ({low} to {high})",
            ])  # fmt: skip
    header = ["pool", "target", "rows", "attainable", "`conditional_evidence`", "`elpd`",
              "estimate of their mean", "rows that the first is worth (90 %)"]  # fmt: skip
    return markdown(header, lines)


def few_rows(folds: Mapping[str, Any]) -> str:
    """Return rho with the test log loss of other seeds, of the plan that `search` proposes."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for part, found in folds.items():
        for name, pool in found.get("pools", {}).items() if isinstance(found, Mapping) else ():
            if part in ("open", "aside"):
                what = "classes" if name in CLASSES else "real targets"
                rows = "150 to 300" if name in CLASSES and part == "open" else "300"
                kept = ", kept aside" if part == "aside" else ""
                group = f"{what}, {rows} rows{kept}"
            else:
                group = f"{FEW[name]}, {pool['n_data']:,} rows"
            groups.setdefault(group, []).append(pool)
    scores = {"e5": "`conditional_evidence`, five folds", "e2": "two folds",
              "five_fold": "`five_fold`", "two_fold": "`two_fold`"}  # fmt: skip
    lines = [
        [f"{name} ({len(pools)} pools)" if len(pools) > 1 else name,
         number(_mean([p["attainable"] for p in pools])),
         *(number(_mean([_of(p, score, "rho") for p in pools])) for score in scores)]
        for name, pools in groups.items()
    ]  # fmt: skip
    return markdown(["data", "attainable", *scores.values()], lines)


def density(measured: Mapping[str, Any]) -> str:
    """Return the seconds of a fold's density over those of its training, by rows."""
    ratios: dict[int, list[float]] = {}
    for cell in measured["cells"]:
        ratios.setdefault(cell["rows"], []).append(cell["ratio"])
    lines = [
        [f"{n:,}", f"{min(some):.2f} to {max(some):.2f}" if len(some) > 1 else f"{some[0]:.2f}",
         str(len(some))]
        for n, some in ratios.items()
    ]  # fmt: skip
    return markdown(["rows", "density / training of a fold", "networks"], lines)


def tables() -> Mapping[str, str]:
    """Return every table by its name, made from the committed results."""
    wide, large, own, folds, cost, worth = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in (
            "ranking_wide", "ranking_large", "ranking_own", "ranking_folds",
            "conditional_evidence_cpu", "ranking_worth",
        )
    )  # fmt: skip
    return {
        "small": by_one_seed(wide["pools"], SMALL),
        "large": by_one_seed(large["pools"], LARGE),
        "own": by_one_seed(own["pools"], LARGE),
        "overview": overview(wide["pools"], large["pools"]),
        "trust": trust(folds, large["pools"], worth),
        "worth": worth_of(worth),
        "hold-out": held_out(worth),
        "new-pools": new_pools(worth),
        "folds": few_rows(folds),
        "density": density(cost),
    }


def written(page: str, names: Sequence[str]) -> str:
    """Return a page with the named tables made anew.

    Raises:
        ValueError: if the page has no place for one.
    """
    made = tables()
    return filled(page, {name: made[name] for name in names})


if __name__ == "__main__":
    for file, names in PAGES.items():
        file.write_text(written(file.read_text(encoding="utf-8"), names), encoding="utf-8")
