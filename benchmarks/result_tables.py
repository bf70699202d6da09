"""Writes the tables of README and of the pages below docs/ from the committed results.

    python benchmarks/result_tables.py

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`, NAME of `TABLES`; all else stays.
"""

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "ranking"))

import claims_folds
import judge
import numpy as np
import tables
from _common import HERE, RESULTS, read_json
from fresh_tables import FRESH
from gallery import of_papers
from judge import markdown, number
from run import stored

ROOT, LOSSES = HERE.parent, RESULTS / tables.LOSSES
Pool = Mapping[str, Any]
Row = Mapping[str, Any]


def results(name: str) -> Any:
    """Return a file of committed results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# --- ranking: README, how-well-it-ranks.md, few-rows-and-real-targets.md, explanation/ranking.md

OVERVIEW = (
    "last_layer_conditional", "two_fold", "heldout_10", "kfac_ggn", "sotl", "n_parameters",
)  # fmt: skip
NAMES = {
    "last_layer_conditional": "`conditional_evidence`, two folds", "mean": "mean of the next two",
    "e5": "`conditional_evidence`", "plain5": "`elpd`",
}  # fmt: skip
#: Pools of the group `folds` that are no table of 300 rows.
FEW = {
    "fashion": "Fashion-MNIST", "kin8nm2000x5": "kin8nm, real",
    "naval2000x5": "naval propulsion, real", "power2000x5": "power plant, real",
}  # fmt: skip
#: Pools of the group `folds` with classes.
CLASSES = ("satellite", "waveform", "australian", "satellite150", "fashion", "cancer", "synth5")
#: Columns of the pools by the name of a score.
COLUMNS = {"conditional_evidence": "e5", "elpd": "plain5", "estimate": "estimate",
           "two_fold": "two_fold", "kfac_ggn": "kfac_ggn", "sotl": "sotl"}  # fmt: skip


def _of(pool: Pool, score: str, what: str) -> float | None:
    value = pool["scores"].get(score, {}).get(what)
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and v == v]
    return sum(known) / len(known) if known else None


def overview() -> str:
    """Return rho by one seed, mean and range over kinds of pools."""
    small = results("ranking_wide")["pools"]
    kinds = {
        "classes, 1,000 to 60,000 rows": results("ranking_large")["pools"],
        "classes, 200 to 300 rows": [p for p in small if p["task"] == "labels"],
        "real targets, 300 rows": [p for p in small if p["task"] == "real"],
    }
    return _rhos(kinds, OVERVIEW, attainable=True)


def alone() -> str:
    """Return rho of fold networks' scores with the loss of the delivered network."""
    pools = results("ranking_alone")["pools"]
    kinds = {
        "classes, 150 to 300 rows": [p for p in pools if p["task"] == "labels"],
        "real targets, 300 rows": [p for p in pools if p["task"] == "real"],
    }
    return _rhos(kinds, judge.ALONE, attainable=False)


def _rhos(kinds: Mapping[str, Sequence[Pool]], scores: Sequence[str], *, attainable: bool) -> str:
    """Return rho of scores, mean and range over the pools of each kind."""
    lines = []
    for name, pools in kinds.items():
        line = [f"{name} ({len(pools)} pools)"]
        if attainable:
            line.append(number(_mean([p["attainable"] for p in pools])))
        for score in scores:
            rhos = [v for p in pools if (v := _of(p, score, "rho")) is not None]
            line.append(f"{number(_mean(rhos))} ({_range(rhos)})")
        lines.append(line)
    names = [NAMES.get(score, f"`{score}`") for score in scores]
    return markdown(["data", *["attainable"] * attainable, *names], lines)


def _range(rhos: Sequence[float]) -> str:
    return f"{min(rhos):.2f} to {max(rhos):.2f}"


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


def _trusted() -> dict[str, list[tuple[float, float]]]:
    """Return rho with the test log loss of other seeds and attainable, pool by pool.

    Few data are drawn anew for each seed; of many the networks share the training rows.
    """
    large = results("ranking_large")["pools"]
    more = [pool for _, name, pool in _of_folds() if name in FEW and pool["n_data"] > 1000]
    found = {
        "classes, 1,000 to 60,000 rows, two folds":
            [found for p in large if (found := by_another_seed(p["pool"]))],
        "real targets, 2,000 rows, five folds":
            [(pool["scores"]["e5"]["rho"], pool["attainable"]) for pool in more],
    }  # fmt: skip
    for name, pools in _by_kind(kept_aside()).items():
        found[f"{name}, five folds"] = [
            (pool["scores"]["estimate"]["rho"], pool["attainable"]) for pool in pools
        ]
    return found


def trust() -> str:
    """Return how far what ranks by default is to be trusted, by kind of data."""
    rows = {f"{name}, five folds": _median_rows(pools, "estimate")
             for name, pools in _by_kind(kept_aside()).items()}  # fmt: skip
    lines = [
        [name, str(len(pairs)), number(_mean([rho for rho, _ in pairs])),
         _range([rho for rho, _ in pairs]), number(_mean([top for _, top in pairs])),
         rows.get(name, "not measured")]
        for name, pairs in _trusted().items()
    ]  # fmt: skip
    header = ["your data", "pools", "rho, mean", "range over pools", "attainable",
              "worth as many extra labelled rows"]  # fmt: skip
    return markdown(header, lines)


def trust_in_short() -> str:
    """Return the same in two rows: classes of many rows, and all else."""
    many, *few = _trusted().values()
    rows = {
        "classes, 1,000 rows or more": ("trust the order by log loss", many),
        "fewer rows, or real targets": (
            "check it with `--test-fraction 0.2`", [pair for pairs in few for pair in pairs],
        ),
    }  # fmt: skip
    lines = [
        [name, what, f"{number(_mean([rho for rho, _ in pairs]))} "
         f"({_range([rho for rho, _ in pairs])}), {len(pairs)} pools"]
        for name, (what, pairs) in rows.items()
    ]  # fmt: skip
    return markdown(["your data", "what to do", "rho with test log loss"], lines)


def worth() -> list[dict[str, Any]]:
    """Return what the scores of each pool of up to 1,000 rows are worth, numbers as such."""
    names = ("n_data", "real", "attainable", "fresh", "scores")
    rows = stored(RESULTS / "ranking" / "worth.csv")
    return [{**row, **{name: json.loads(row[name]) for name in names}} for row in rows]


def kept_aside() -> list[dict[str, Any]]:
    """Return the pools that did not tune the estimate.

    These are the pools of `rank` that were kept aside, and those of the second look.
    """
    return [pool for pool in worth() if pool["group"] != "folds"
            and judge.POOLS[pool["group"]][pool["pool"]].aside]  # fmt: skip


def _by_kind(pools: Sequence[Pool]) -> Mapping[str, Sequence[Pool]]:
    """Return the pools of up to 1,000 rows by kind of target."""
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


def interval(values: Sequence[float], draws: int = 20_000) -> tuple[float, float, float]:
    """Return the mean of one value for each pool, and its 90 % interval over draws of pools."""
    own = np.array(values)
    drawn = own[np.random.default_rng(0).integers(len(own), size=(draws, len(own)))].mean(1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    return float(own.mean()), float(low), float(high)


def order() -> str:
    """Return rho of three scores of five folds, and what two of them are ahead of the third.

    All pools of up to 1,000 rows, and those that did not tune the estimate.
    """
    lines = []
    for part, every in (("all", worth()), ("kept aside", kept_aside())):
        for kind, pools in _by_kind(every).items():
            rho = {name: [pool["scores"][COLUMNS[name]]["rho"] for pool in pools]
                   for name in ("conditional_evidence", "elpd", "estimate")}  # fmt: skip
            gaps = [
                "{:+.3f} ({:.3f} to {:.3f})".format(
                    *interval(np.subtract(rho[name], rho["elpd"]).tolist())
                )
                for name in ("conditional_evidence", "estimate")
            ]
            lines.append([
                f"{kind.partition(',')[0]}, {part}", str(len(pools)),
                number(_mean([pool["attainable"] for pool in pools])),
                *(number(_mean(values)) for values in rho.values()), *gaps,
            ])  # fmt: skip
    header = ["pools", "number", "attainable", "`conditional_evidence` (E)", "`elpd`", "estimate",
              "E - `elpd`", "estimate - `elpd`"]  # fmt: skip
    return markdown(header, lines)


def _of_folds() -> list[tuple[str, str, Pool]]:
    """Return the pools of the group `folds`, each with its part and name."""
    parts = {name: part for name, part in results("ranking_folds").items()
             if isinstance(part, Mapping)}  # fmt: skip
    return [(part, name, pool) for part, of in parts.items()
            for name, pool in of.get("pools", {}).items()]  # fmt: skip


# --- beside-other-methods.md


def beside() -> str:
    """Return each model on the fresh tables by size: first or level, mean rank and seconds.

    The rank is by log loss among the models that have every table of the size.
    """
    runs, names = stored(RESULTS / tables.FILE), [*FRESH]
    lines = [[model] for model in ("nas-evidence", *tables.RIVALS)]
    for rows in ("300", "1000"):
        own = [run for run in runs if run["rows"] == rows and run["data"] in names]
        rank = tables.ranks(own, names, rows)
        rivals = [one for one in tables.RIVALS if tables.losses_of(LOSSES, rows, one)]
        for line in lines:
            seconds = tables.of(own, "cpu_seconds", model=line[0])
            level = ""
            if line[0] in tables.OURS:
                good = tables.first_or_level(names, rows, line[0], rivals)
                level = f"{sum(good.values())} of {len(good)}"
            line += [level, f"{rank[line[0]]:.2f}", f"{np.median(seconds):.1f}"] if seconds else [
                "", "", ""]  # fmt: skip
    header = ["", *(f"{rows} rows: {what}" for rows in ("300", "1,000")
                    for what in ("first or level", "mean rank", "CPU s"))]  # fmt: skip
    return markdown(header, lines)


def three() -> str:
    """Return how much higher the log loss of three networks is than that of one, of 300 rows."""
    one, more = (tables.losses_of(LOSSES, "300", model) for model in tables.OURS)
    lines = []
    for kind, labels in (("classes", True), ("real targets", False)):
        names = [name for name, own in FRESH.items() if own.labels is labels]
        found = [pair[0] for name in names if (pair := tables.difference(more, one, name))]
        if len(found) > 1:
            mean, spread, lower = np.mean(found), np.std(found, ddof=1), np.less(found, 0).sum()
            lines.append([kind, str(len(found)), f"{mean:+.4f}", f"{spread:.4f}", str(lower)])
    return markdown(["targets", "tables", "nats", "standard deviation", "three lower"], lines)


# --- cost.md

#: Beginnings of cells of the case `cost_cells`, in the words of the page.
CELLS = {
    "rows/300/": "a trial of 300 rows, MLP 1x32, with its five folds",
    "rows/10000/": "a trial of 10,000 rows, MLP 1x32, with its two folds",
    "cancer/ours/": "a search of 300 rows with classes, 24 trials and the race",
    "diabetes/ours/": "a search of 300 rows with real targets, 12 trials and the race",
    "demo/": "the demo, 24 trials and the race",
    "images/": "four networks on 10,000 images of 28x28",
}


def cost() -> str:
    """Return what trials and searches cost, and their trials over the plain trainings."""
    lines, every = [], stored(RESULTS / "cost" / "cells.csv")
    for begin, words in CELLS.items():
        runs = [run for run in every if f"{run['cell']}/".startswith(begin)]
        parts = [json.loads(run["parts"] or "{}") for run in runs]
        trained = parts[0].get("training", 0.0)
        seconds = [float(run["cpu"]) for run in runs]
        if begin.startswith("rows/"):
            seconds = [sum(own.values()) / int(run["trials"])
                       for run, own in zip(runs, parts, strict=True)]  # fmt: skip
        digits = 1 if min(seconds) > 3 else 2
        ends = (statistics.median(seconds), min(seconds), max(seconds))
        over = f"{sum(parts[0].values()) / trained:.2f}" if trained else "-"
        lines.append([words, "{0:.{3}f} [{1:.{3}f}, {2:.{3}f}]".format(*ends, digits), over])
    passes = [float(row["median"]) for row in stored(RESULTS / "cost" / "passes.csv")
              if row["candidate"] == row["estimates"] and row["median"]]  # fmt: skip
    lines.append(["one curvature pass, in training epochs", "-",
                  f"{min(passes):.2f} to {max(passes):.2f}"])  # fmt: skip
    return markdown(["", "CPU s", "over the plain trainings"], lines)


# --- intervals-and-calibration.md

#: Sentences that stand on the page.
SENTENCES = (
    "95 % interval of the difference",
    "Yes: clearly better than",
    "P(best) of the first, or of those tied with it (a smooth surface)",
    "P(best) of the first, or of those tied with it (coordinates that tell nothing)",
    "does not rank well here (true rho 0.63, 24 architectures)",
    "the 90 % intervals cover ... of each target (one noise makes them wrong, 300 rows)",
    "a warning of right intervals (one target, 400 rows)",
)


def sentences() -> str:
    """Return some sentences of the first screen, what each promises, and how often it errs."""
    cells = [{**row, **{name: json.loads(row[name]) for name in ("n", "before", "after")}}
             for row in stored(RESULTS / claims_folds.FILE)]  # fmt: skip
    rows = claims_folds.claims_of(cells) + stored(RESULTS / "claims" / "sentences.csv")
    by_claim = {row["claim"]: row for row in rows}
    lines = [[claim, *(str(by_claim[claim][name]) for name in ("promise", "measured", "n"))]
             for claim in SENTENCES]  # fmt: skip
    return markdown(["sentence", "promise", "measured", "studies"], lines)


# --- gpu-and-scale.md

#: Values of a GPU beside a CPU: what the keys of a group begin with, and contain.
VALUES = {
    "golden values, float64": ("golden/", ""),
    "every kind on every case, float64": ("case/", "/float64/"),
    "every kind on every case, float32": ("case/", "/float32/"),
    "scores of whole trials, float32": ("trial/", ""),
}


def probed(section: str) -> Sequence[Row]:
    """Return what the later of the two runs on a GPU that had a section found in it."""
    for run in ("second", "first"):
        lines = (RESULTS / "gpu" / f"{run}_probe.jsonl").read_text(encoding="utf-8").splitlines()
        if rows := [row for row in map(json.loads, lines) if row["section"] == section]:
            return rows
    raise ValueError(f"No run on a GPU had the section {section!r}.")


def gpu() -> str:
    """Return values and bits beside a CPU, and what steps, passes and memory cost."""
    on_cpu, found = (read_json(RESULTS / "gpu" / f"second_{name}.json") for name in ("cpu", "gpu"))
    lines = []
    for what, (begin, part) in VALUES.items():
        keys = [key for key in found["values"] if key.startswith(begin) and part in key]
        pairs = [(found["values"][k], found["truths"].get(k, on_cpu["values"].get(k)))
                 for k in keys]  # fmt: skip
        both = [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
        largest = max(abs(a - b) / max(1e-6, abs(b)) for a, b in both)
        lines.append([what, str(len(pairs)), f"differ by {largest:.0e} at most"])
    bits = [all(same) for same in found["same_bits"].values()]
    lines.append(["trials with the same weights again, and after parking", str(len(bits)),
                  f"{sum(bits)} of {len(bits)}"])  # fmt: skip
    ranges = {
        "share of a step that the GPU is busy": (
            "{:.0f} to {:.0f} %",
            [100 * row["busy"] for row in probed("steps") if row["how"] == "plain"],
        ),
        "five networks as one program / five alone": (
            "{:.2f} to {:.2f}", [row["ratio"] for row in probed("together") if row["k"] == 5],
        ),
        "steps per second, one process and eight": (
            "{:.0f} and {:.0f}",
            [row["steps_per_second"] for row in probed("packed") if not row["mps"]],
        ),
        "memory, estimate / peak": (
            "{:.2f} to {:.2f}", [row["estimate_mb"] / row["peak_mb"] for row in probed("memory")],
        ),
        "seconds of a pass over 50,000 rows, ResNets": (
            "{:.0f} to {:.0f}",
            [row["seconds_per_50000"] for row in probed("passes")
             if row.get("elements", 1 << 20) == 1 << 20],
        ),
    }  # fmt: skip
    lines += [[what, str(len(values)), form.format(min(values), max(values))]
              for what, (form, values) in ranges.items()]  # fmt: skip
    return markdown(["on one H200", "n", "measured"], lines)


# --- pages

TABLES: Mapping[str, Callable[[], str]] = {
    "trust": trust, "trust-in-short": trust_in_short, "order": order, "overview": overview,
    "alone": alone,
    "beside": beside, "three": three, "cost": cost, "sentences": sentences,
    "gpu": gpu, "papers": of_papers,
}  # fmt: skip
_PLACE = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def pages() -> Iterable[Path]:
    """Return the pages with a place for a table."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if placed(page.read_text(encoding="utf-8"))]


def placed(text: str) -> list[str]:
    """Return the names of the tables that a page has a place for."""
    return [match[2] for match in _PLACE.finditer(text) if match[2] in TABLES]


def written(text: str) -> str:
    """Return a page with its tables made anew."""
    return _PLACE.sub(
        lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n{m[3]}" if m[2] in TABLES else m[0], text
    )


if __name__ == "__main__":
    for file in pages():
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
