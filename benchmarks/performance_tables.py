"""Write the tables of docs/experiments/cost.md and scale.md from the results of benchmarks.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; everything else on the
page stays as it is. A test compares the pages with what this script writes.

    python benchmarks/performance_tables.py
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs" / "experiments"
PAGES = ("cost.md", "scale.md")
MODELS = {"mlp": "MLP", "small": "small", "3c3d": "3c3d", "resnet20": "ResNet-20"}
KINDS = ("diag_ef", "diag_ggn_mc", "diag_ggn", "kfac_ggn_mc", "kfac_ggn")
#: The operations of an ideal pass over those of an epoch, counted by hand from the layers.
LIMITS: Mapping[str, Sequence[float]] = {
    "diag_ef": (1.00, 1.00, 1.01, 1.00),
    "diag_ggn": (2.50, 6.25, 6.05, 6.36),
    "kfac_ggn_mc": (1.52, 1.85, 2.49, 2.18),
    "kfac_ggn": (6.05, 4.99, 5.67, 5.15),
}
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def load(name: str) -> Any:
    """Return the results in a file, or None if it has not been measured."""
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def span(row: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Return median and range, or that there is none.

    >>> span({"median": 1.0, "min": 0.5, "max": 2.0})
    '1.00 [0.50, 2.00]'
    """
    if row is None or "median" not in row:
        return "none"
    low, median, high = (f"{row[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{median} [{low}, {high}]"


def passes() -> str:
    """Return passes of ours and of every peer, measured in one run, in training epochs."""
    rows = load("passes_cpu.json")["rows"]
    sizes = {r["model"]: r["n_data"] for r in rows if "n_data" in r}
    n_data = {model: sizes[model] for model in MODELS if model in sizes}
    names = {r["candidate"]: r["estimates"] for r in rows if "median" in r}
    lines = []
    for kind in KINDS:
        for name in (kind, *(n for n in names if names[n] == kind and n != kind)):
            found = [next((r for r in rows if r["model"] == m and r["candidate"] == name), None)
                     for m in n_data]  # fmt: skip
            cells = ["refuses" if r is None or "failed" in r else span(r) for r in found]
            lines.append([f"`{kind}`", "ours" if name == kind else name, *cells])
    header = ["", "", *(f"{MODELS[m]}, {n:,} rows" for m, n in n_data.items())]
    return table(header, lines)


def lead() -> str:
    """Return the fastest peer's epochs over ours, by kind and network."""
    rows = load("passes_cpu.json")["rows"]
    models = [m for m in MODELS if any(r["model"] == m for r in rows)]
    lines = []
    for kind in KINDS:
        cells = []
        for model in models:
            mine, other = own(rows, model, kind), peer(rows, model, kind)
            if mine is None or other is None:
                cells.append("no peer runs")
            else:
                cells.append(f"{other['median'] / mine['median']:.2f}, {other['candidate']}")
        lines.append([f"`{kind}`", *cells])
    return table(["fastest peer / ours", *(MODELS[m] for m in models)], lines)


def posteriors() -> str:
    """Return seconds and test log loss of Laplace posteriors of the same networks."""
    lines = [
        [r["network"], r["way"].replace("laplace ", "laplace-torch, "),
         *(span(r[k], digits) if r[k]["median"] else "-" for k, digits in _POSTERIOR.items()),
         r["probit"]["n"]]
        for r in load("posteriors_cpu.json")["rows"]
    ]  # fmt: skip
    header = ["", "", "fit, CPU s", "500 predictions, CPU s", "test log loss, probit",
              "1,000 draws", "n"]  # fmt: skip
    return table(header, lines)


_POSTERIOR = {"fit_seconds": 2, "predict_seconds": 2, "probit": 3, "mc": 3}


def own(rows: Sequence[Mapping[str, Any]], model: str, kind: str) -> Mapping[str, Any] | None:
    """Return our row for a kind."""
    of_kind = (r for r in rows if (r["model"], r["candidate"]) == (model, kind))
    return next((r for r in of_kind if "median" in r), None)


def peer(rows: Sequence[Mapping[str, Any]], model: str, kind: str) -> Mapping[str, Any] | None:
    """Return the row of the fastest peer that returned a result."""
    others = [
        r for r in rows
        if r["model"] == model and r.get("estimates") == kind and r["candidate"] != kind
        and "median" in r
    ]  # fmt: skip
    return min(others, key=lambda r: float(r["median"]), default=None)


def pass_memory() -> str:
    """Return the peak memory of passes over that of training."""
    rows = load("evidence_cost_cpu.json")["rows"]
    lines = []
    for kind in KINDS:
        cells = []
        for model in MODELS:
            row = own(rows, model, kind)
            known = row is not None and "peak_mb" in row and "train_peak_mb" in row
            cells.append(f"{row['peak_mb'] / row['train_peak_mb']:.2f}" if known and row else "-")
        if set(cells) != {"-"}:
            lines.append([f"`{kind}`", *cells])
    return table(["peak memory / training's", *MODELS.values()], lines)


CELLS = "cost_cells_cpu.json"
#: Parts of a trial, in the words of the page.
_OF_TRIAL = {
    "training": "training of the whole network",
    "training of folds": "trainings without a fold",
    "updates": "updates of the prior, whole network",
    "updates of folds": "updates of the prior, without a fold",
    "settling": "settling, whole network",
    "settling of folds": "settling, without a fold",
    "density": "densities of the folds",
    "evaluations": "scores that rank nothing",
    "folds": "predictions of the folds",
    "rest of trials": "weights, files, the rest",
}
#: What grows, against what.
_GROWTH = {
    "rows": ("a trial, MLP 1x32", "rows"),
    "width": ("a trial, MLP of depth 2", "parameters"),
    "trials": ("a search in one process", "trials"),
    "around": ("of it around the trials", "trials"),
    "workers": ("a search of 16 trials, all processes", "workers"),
    "simulated": ("the driver, a trial of the simulation", "workers"),
}
_WAYS_TO_FIND = {
    "ours": "this service, with its race",
    "optuna": "Optuna, bare loop, hold-out",
    "sklearn": "scikit-learn's MLP, random search",
}


def cell_runs() -> Sequence[Mapping[str, Any]]:
    """Return the runs of cells of searches."""
    found: Sequence[Mapping[str, Any]] = (load(CELLS) or {"runs": []})["runs"]
    return found


def grown(kind: str) -> tuple[Sequence[int], Sequence[float]]:
    """Return the sizes of what grows, and the least CPU seconds of the runs of each."""
    pairs: dict[int, float] = {}
    if kind == "simulated":
        rows = load("scale.json")["sweep"]["results"]
        pairs = {
            r["workers"]: r["driver_ms_per_trial"] / 1000
            for r in rows
            if (r["sampler"], r["slice_seconds"]) == ("qmc", 10.0)
        }
    for run in cell_runs():
        begin, _, size = run["cell"].partition("/")
        if begin == {"around": "trials"}.get(kind, kind):
            at = run["n_parameters"] if kind == "width" else int(size)
            seconds = _grown_seconds(kind, run)
            pairs[at] = min(seconds, pairs.get(at, seconds))
    return [*sorted(pairs)], [pairs[at] for at in sorted(pairs)]


def _grown_seconds(kind: str, run: Mapping[str, Any]) -> float:
    trials = sum(run["parts"].values())
    if kind in ("rows", "width"):
        return float(trials / run["trials"])
    return float(run["cpu"] - trials * (kind == "around"))


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of the logarithms by least squares.

    >>> round(slope([1, 10, 100], [2, 20, 200]), 6)
    1.0
    """
    logs = [[math.log(value) for value in each] for each in (sizes, seconds)]
    return statistics.linear_regression(*logs).slope


def demo() -> str:
    """Return where the seconds of the digits study go."""
    return _by_family("demo/")


def images() -> str:
    """Return where the seconds of four networks on 10,000 images go."""
    return _by_family("images/")


def _by_family(begin: str) -> str:
    """Return where the seconds of the trials of a cell go, over the plain trainings, by family."""
    run = next(run for run in cell_runs() if run["cell"].startswith(begin))
    families = {name: dict(parts) for name, parts in run["of_family"].items()}
    numbers = {name: parts.pop("trials") for name, parts in families.items()}
    families = {
        f"{numbers[name]} {_FAMILIES[name][numbers[name] > 1]}": parts
        for name, parts in families.items()
    }
    parts = run["parts"]
    columns = {"all": parts, **families}
    lines: list[list[object]] = []
    for part, words in _OF_TRIAL.items():
        if part in parts:
            cells = [c.get(part, 0.0) / c["training"] for c in columns.values()]
            lines.append([words, f"{parts[part]:.1f}", *(f"{cell:.2f}" for cell in cells)])
    sums = [sum(c.values()) / c["training"] for c in columns.values()]
    whole = f"{sum(parts.values()):.1f}"
    lines.append(["all of the trials", whole, *(f"{cell:.2f}" for cell in sums)])
    outside = run["outside"]
    around = f"{outside / parts['training']:.2f}"
    lines.append(
        [
            "data, proposals, log, tables, report",
            f"{outside:.1f}",
            around,
            *("-" for _ in families),
        ]
    )
    return table(["over the trainings", "CPU s", *columns], lines)


#: A family in the words of the page, one of it and several.
_FAMILIES = {
    "linear": ("linear", "linear"),
    "mlp": ("MLP", "MLPs"),
    "cnn": ("CNN", "CNNs"),
    "resnet": ("ResNet", "ResNets"),
}


def in_short() -> str:
    """Return what trials and searches cost, and their trials over the plain trainings."""
    lines: list[list[object]] = []
    for begin, words in _IN_SHORT.items():
        runs = [run for run in cell_runs() if f"{run['cell']}/".startswith(begin)]
        if not runs:
            continue
        parts = runs[0].get("parts", {})
        trained = parts.get("training", 0.0)
        over = f"{sum(parts.values()) / trained:.2f}" if trained else "-"
        seconds = [run["cpu"] for run in runs]
        if begin.startswith("rows/"):
            seconds = [sum(run["parts"].values()) / run["trials"] for run in runs]
        lines.append([words, span(_ends_of(seconds), 1 if min(seconds) > 3 else 2), over])
    passes_of = [
        row["median"] for row in load("passes_cpu.json")["rows"]
        if row["candidate"] in KINDS and "median" in row
    ]  # fmt: skip
    low, high = min(passes_of), max(passes_of)
    lines.append(["one curvature pass, in training epochs", "-", f"{low:.2f} to {high:.2f}"])
    return table(["", "CPU s", "over the plain trainings"], lines)


_IN_SHORT = {
    "rows/300/": "a trial of 300 rows, MLP 1x32, with its five folds",
    "rows/10000/": "a trial of 10,000 rows, MLP 1x32, with its two folds",
    "cancer/ours/": "a search of 300 rows with classes, 24 trials and the race",
    "diabetes/ours/": "a search of 300 rows with real targets, 12 trials and the race",
    "demo/": "the demo, 24 trials and the race",
    "images/": "four networks on 10,000 images of 28x28",
}


def growth() -> str:
    """Return CPU seconds against rows, parameters, trials and workers, with slopes."""
    lines = []
    for kind, (what, axis) in _GROWTH.items():
        sizes, seconds = grown(kind)
        if len(sizes) < 2:
            continue
        steps = [slope(sizes[i : i + 2], seconds[i : i + 2]) for i in range(len(sizes) - 1)]
        digits = 3 if max(seconds) < 0.1 else 2
        lines.append([
            what, axis, ", ".join(f"{size:,}" for size in sizes),
            ", ".join(f"{s:.{digits}f}" for s in seconds), ", ".join(f"{s:.2f}" for s in steps),
            f"{slope(sizes, seconds):.2f}",
        ])  # fmt: skip
    return table(["", "against", "sizes", "CPU s", "slopes between them", "slope"], lines)


def processes() -> str:
    """Return the CPU seconds of each process of a search of 300 rows, medians over seeds."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in cell_runs():
        data, _, rest = run["cell"].partition("/")
        if rest.startswith("processes/"):
            groups.setdefault(data, []).append(run)
    names = ("driver", "server", "workers", "comparison and export")
    lines = []
    for data, runs in groups.items():
        roles = [_by_role(run["roles"]) for run in runs]
        cells = [span(_ends_of([one.get(name, 0.0) for one in roles]), 1) for name in names]
        every = span(_ends_of([run["cpu"] for run in runs]), 1)
        lines.append([data, *cells, every, len(runs), _commits(runs)])
    return table(["300 rows, CPU s", *names, "all", "seeds", "commit"], lines)


def _by_role(roles: Mapping[str, float]) -> Mapping[str, float]:
    """Return seconds by role; the first two forks of the server are the workers."""
    found = dict.fromkeys(("workers", "comparison and export"), 0.0)
    for role, seconds in roles.items():
        name = role
        if role.startswith("fork "):
            name = "workers" if int(role.split()[1]) <= 2 else "comparison and export"
        found[name] = found.get(name, 0.0) + seconds
    return found


def _ends_of(values: Sequence[float]) -> Mapping[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ways_to_find() -> str:
    """Return seconds and test log loss of ours beside other ways to find a network."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in cell_runs():
        data, _, rest = run["cell"].partition("/")
        if (method := rest.partition("/")[0]) in _WAYS_TO_FIND:
            groups.setdefault((data, method), []).append(run)
    lines = [
        [data, _WAYS_TO_FIND[method], span(_ends_of([r["cpu"] for r in runs]), 1),
         span(_ends_of([r["log_loss"] for r in runs]), 3), len(runs), _commits(runs)]
        for (data, method), runs in sorted(groups.items())
    ]  # fmt: skip
    return table(["300 rows", "", "CPU s", "test log loss", "seeds", "commit"], lines)


def _commits(runs: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"`{run['commit']}`" for run in runs))


def updates() -> str:
    """Return the milliseconds of one update of the prior precisions."""
    rows = [r for r in load("online_cost_cpu.json")["rows"] if r["what"] == "update_ms"]
    found = {row["name"]: row for row in rows}
    lines = [
        [title, f"`{kind}`", *(span(found.get(f"{m} {kind} {way}"), 1) for way in _WAYS)]
        for m, title in MODELS.items()
        for kind in ("diag_ef", "kfac_ggn_mc")
    ]
    return table(["ms", "", *_WAYS.values()], lines)


_WAYS = {"newton": "Newton, to the maximum", "adam": "Adam, 100 steps"}


def online_runs() -> str:
    """Return whole trainings with updates over plain ones."""
    rows = [r for r in load("online_cost_cpu.json")["rows"] if r["what"] == "run"]
    found = {row["name"]: row for row in rows}
    names = [name.partition(" ")[2] for name in found if name.startswith("mlp")]
    lines = [
        [name.replace(" F=", ", F = "), span(found.get(f"mlp {name}")), span(found[f"cnn {name}"])]
        for name in names
        if name != "plain"
    ]
    return table(["over 20 plain epochs", "MLP, 3 x 512", "CNN, depth 3, width 8"], lines)


def kernels() -> str:
    """Return epochs and passes of small image networks, before and after."""
    rows = {(r["network"], r["what"]): r for r in load("kernels_cpu.json")["rows"]}
    kinds = ("diag_ef", "kfac_ggn_mc", "kfac_ggn")
    lines = []
    for network in dict.fromkeys(name for name, _ in rows):
        epoch = rows[network, "epoch"]["after"]
        passes = [
            f"{rows[network, kind]['before']['median']:.2f} → {span(rows[network, kind]['after'])}"
            for kind in kinds
        ]
        lines.append([network, span(epoch), *passes])
    return table(["", "epoch / before", *(f"`{kind}` / epoch" for kind in kinds)], lines)


def driver() -> str:
    """Return the driver's CPU time per trial beside n finished ones."""
    rows = (load("driver_cost_cpu.json") or {"rows": []})["rows"]
    lines = [
        [f"{r['finished']:,}", span(r.get("before"), 1), span(r["after"], 1), r["after"]["n"]]
        for r in rows
    ]
    return table(["finished trials", "before, ms", "after, ms", "runs each"], lines)


def driver_long() -> str:
    """Return the driver's CPU time per trial while one study grows."""
    found = load("driver_cost_cpu.json")
    lines = [
        [f"{size:,}, of each {size // 10:,}", *(f"{ms:.0f}" for ms in found[key]["cpu_ms"]),
         found[key]["load"]]
        for key, size in (("to_1000", 1000), ("to_10000", 10_000))
    ]  # fmt: skip
    tenths = [f"{i}" for i in range(1, 11)]
    return table(["trials, ms per trial", *tenths, "load"], lines)


def tune() -> str:
    """Return our driver beside Ray Tune, no-op trials."""
    found = load("service_overhead_cpu.json")["tune"]["results"]
    names = {
        "ours": "this service",
        "tune_reuse_actors": "Ray Tune, actors reused",
    }
    lines = [
        [title, *(span(found[name][key], 1) for key in _TUNE), found[name]["files"]["median"]]
        for name, title in names.items()
    ]
    header = [f"{NO_OPS} trials, seconds", *_TUNE.values(), "files"]
    return table(header, lines)


#: What `cost_of_service.py` runs.
NO_OPS = 200
_TUNE = {
    "total_wall_seconds": "with the start of Ray",
    "search_wall_seconds": "without it",
    "search_cpu_seconds_of_the_driver": "CPU of the driver",
}


def summary() -> str:
    """Return before, after, best peer and arithmetic limit of all that was measured twice."""
    header = ["", "before", "after", "best peer", "arithmetic limit"]
    lines: list[list[object]] = []
    before = load("evidence_cost_cpu.json")["rows"]
    after = load("passes_cpu.json")["rows"]
    for kind, limits in LIMITS.items():
        for (model, title), limit in zip(MODELS.items(), limits, strict=True):
            again = own(after, model, kind)
            lines.append([
                f"`{kind}`, {title}: pass / epoch", span(own(before, model, kind)),
                "not measured again" if again is None else span(again),
                span(peer(after, model, kind) or peer(before, model, kind)), f"{limit:.2f}",
            ])  # fmt: skip
    parts = (_of_groups, _of_trials, _of_study, _of_driver, _of_service)
    for part in parts:
        lines += part()
    return table(header, lines)


def _of_groups() -> list[list[object]]:
    """Return the gain of K trainings as one program, and an epoch over a bare loop."""
    found = (load("together_cpu.json") or {}).get("groups", {})
    lines: list[list[object]] = []
    for name, measured in found.items():
        bare = _ends(measured["over a bare loop"])
        lines.append([f"{name}: epoch / a bare loop in torch", "-", bare, "-", "1.00"])
        size, gain = list(measured["gain"].items())[-1]
        lines.append([f"{name}: gain of {size} side by side", "1.00", _ends(gain), "-", "-"])
    return lines


def _ends(found: Sequence[float]) -> str:
    median, low, high = found
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def _of_study() -> list[list[object]]:
    """Return all trials of a study over its plain trainings; before by the pages of that state."""
    lines: list[list[object]] = []
    for run in cell_runs():
        if run["cell"].startswith("demo/"):
            over = sum(run["parts"].values()) / run["parts"]["training"]
            lines.append(["the demo / its plain trainings", "3.26", f"{over:.2f}", "-", "1.00"])
    settled = span(load("study_cost_cpu.json")["over_plain"]["settled, with settling"])
    name = "digits with `plan.settle = 1` / plain trainings"
    return [*lines, [name, settled, "not measured again", "-", "1.00"]]


def _of_trials() -> list[list[object]]:
    """Return a default trial of digits over its main training; before by the first release."""
    found = (load("together_cpu.json") or {}).get("trials", {}).get("all", {})
    if "now" not in found:
        return []
    now = f"{found['now']['total']:.2f}"
    return [["a default trial of digits / its plain training", "3.02", now, "-", "1.00"]]


def _of_service() -> list[list[object]]:
    """Return trials per second that do nothing, and the seconds until one starts."""
    found = load("service_overhead_cpu.json")
    speeds = [
        _inverse(found["tune"]["results"][name]["search_wall_seconds"])
        for name in ("ours", "tune_reuse_actors")
    ]
    first = found["first_slice"]["results"]
    return [
        ["trials per second that do nothing", "12.1", speeds[0], speeds[1], "-"],
        *(
            [f"first report, s, {title}", "-", span(first[name]["report"], 1), "-", "-"]
            for name, title in {"inline": "one process", "ray": "Ray"}.items()
        ),
    ]


def _inverse(seconds: Mapping[str, float]) -> str:
    fast, middle, slow = (NO_OPS / seconds[key] for key in ("min", "median", "max"))
    return span({"median": middle, "min": slow, "max": fast}, 1)


def _of_driver() -> list[list[object]]:
    found = load("driver_cost_cpu.json") or {"rows": []}
    return [
        [f"driver, ms per trial beside {r['finished']:,}", span(r.get("before"), 1),
         span(r["after"], 1), "-", "-"]
        for r in found["rows"]
    ]  # fmt: skip


def plans() -> str:
    """Return the published grids on simulated GPUs."""
    rows = load("scale.json")["plans"]["results"]
    chosen = [r for r in rows if r["device"] == "middle" and r["replicates"] == 1]
    found = {(r["grid"], r["workers"], r["order"]): r for r in chosen}
    lines = []
    for name in dict.fromkeys(r["grid"] for r in chosen):
        of_grid = found[name, 8, "of the grid"]
        few, many = (found[name, workers, "longest first"] for workers in (8, 64))
        least = max(few["longest_trial_seconds"], few["device_seconds"] / 8)
        lines.append([
            f"`{name}`", few["trials"], hours(few["device_seconds"]),
            hours(few["longest_trial_seconds"]),
            _took(of_grid), _took(few), hours(least), _took(many),
        ])  # fmt: skip
    header = ["grid", "trials", "GPU hours", "longest trial, h",
              "8 GPUs, order of the grid: h, idle", "8 GPUs, longest first", "least possible, h",
              "64 GPUs, longest first"]  # fmt: skip
    return table(header, lines)


def _took(row: Mapping[str, Any]) -> str:
    return f"{hours(row['wall_seconds'])}, {100 * row['idle_share']:.0f} %"


def hours(seconds: float) -> str:
    """Return hours with two digits.

    >>> hours(36000), hours(1800)
    ('10.0', '0.50')
    """
    value = seconds / 3600
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def epochs() -> str:
    """Return the parts of a simulated trial, in plain epochs."""
    rows = load("scale.json")["plans"]["results"]
    lines = []
    for name in dict.fromkeys(r["grid"] for r in rows):
        parts = next(r for r in rows if r["grid"] == name)["epochs_of_a_trial"]
        lines.append([
            f"`{name}`", parts["plain"], f"{parts['main'] - parts['plain']:.0f}",
            f"{parts['n_folds'] * parts['fold']:.0f} in {parts['n_folds']:.0f} slices",
            f"{parts['settle']:.0f}", f"{parts['whole']:.0f}",
        ])  # fmt: skip
    header = ["grid", "scheduled", "updates and scores", "both halves", "settling", "whole trial"]
    return table(header, lines)


def other_plans() -> str:
    """Return the plans on other devices, or with replicates."""
    rows = load("scale.json")["plans"]["results"]
    chosen = [r for r in rows if r["device"] != "middle" or r["replicates"] > 1]
    return table(
        ["grid", "device", "trials", "GPUs", "wall, h", "idle", "longest slice, s"],
        [
            [f"`{r['grid']}`", r["device"], r["trials"], r["workers"], hours(r["wall_seconds"]),
             f"{100 * r['idle_share']:.0f} %", f"{r['longest_slice_seconds']:.0f}"]
            for r in chosen
        ],
    )  # fmt: skip


def parts() -> str:
    """Return the grids with folds as tasks of their own."""
    rows = load("scale.json")["parts"]["results"]
    chosen = [r for r in rows if r["device"] == "middle"]
    found = {(r["grid"], r["from_flops"], r["workers"]): r for r in chosen}
    lines = []
    for name, least in dict.fromkeys(key[:2] for key in found):
        few, many = (found[name, least, workers] for workers in (8, 64))
        over = few["wall_seconds"] / few["least_seconds"]
        of_whole = many["wall_seconds"] / found[name, None, 64]["wall_seconds"]
        lines.append([
            f"`{name}`", _flops(least),
            few["in_parts"], f"{hours(few['wall_seconds'])} ({over:.2f})",
            f"{hours(many['wall_seconds'])} ({of_whole:.2f})",
        ])  # fmt: skip
    header = ["grid", "divided from, flops", "trials divided",
              "8 GPUs, h (of the least possible)", "64 GPUs, h (of undivided)"]  # fmt: skip
    return table(header, lines)


def divided() -> str:
    """Return the grids with trials divided by the driver, beside undivided ones."""
    stored = load("scale.json")
    plans = [r for r in stored["plans"]["results"] if r["order"] == "longest first"]
    plans = [r for r in plans if r["device"] == "middle" and r["replicates"] == 1]
    whole = {(r["grid"], r["workers"]): r for r in plans}
    found = {(r["grid"], r["workers"]): r for r in stored["divided"]["results"]}
    least = {r["grid"]: r for r in stored["parts"]["results"] if _as_divided(r)}
    lines = []
    for name in dict.fromkeys(grid for grid, _ in found):
        few, many = (found[name, workers] for workers in (8, 64))
        lines.append([
            f"`{name}`", _took(whole[name, 8]), _took(few),
            f"{few['wall_seconds'] / least[name]['least_seconds']:.2f}",
            _took(whole[name, 64]), _took(many),
            f"{many['wall_seconds'] / whole[name, 64]['wall_seconds']:.2f}",
        ])  # fmt: skip
    header = ["grid", "8 GPUs, undivided: h, idle", "divided", "of the least possible",
              "64 GPUs, undivided", "divided", "of undivided"]  # fmt: skip
    return table(header, lines)


def _as_divided(row: Mapping[str, Any]) -> bool:
    return (row["device"], row["from_flops"], row["workers"]) == ("middle", 1e15, 8)


def _flops(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}".replace("e+", "e") if value else "0"


def driver_and_disk() -> str:
    """Return what the simulated grids cost the driver, and what they leave on disk."""
    rows = load("scale.json")["plans"]["results"]
    chosen = [r for r in rows if r["device"] == "middle" and r["workers"] == 64]
    lines = [
        [f"`{r['grid']}`, {r['trials']} trials", r["slices"],
         f"{r['driver_ms_per_trial']:.0f} ({r['of_it_ray_ms']:.0f})",
         f"{100 * r['driver_share_of_a_core']:.2f} %", f"{r['peak_mb']:.0f}", r["files"],
         f"{r['parquet_bytes'] / 1e6:.1f}", f"{r['journal_bytes'] / 1e6:.2f}",
         f"{r['fsyncs_per_trial']:.0f}"]
        for r in chosen
    ]  # fmt: skip
    header = "64 GPUs,slices of main trainings,driver in ms per trial (of it Ray),of a core"
    header += ",memory in MB,files,Parquet in MB,log in MB,fsyncs per trial"
    return table(header.split(","), lines)


def sweep() -> str:
    """Return the driver's share of a core and the idle share of workers, by number of workers."""
    rows = load("scale.json")["sweep"]["results"]
    names = {"qmc": "quasi-random", "tpe": "TPE"}
    lines = sorted({(r["sampler"], -r["slice_seconds"]) for r in rows})
    cells = {(r["workers"], r["sampler"], -r["slice_seconds"]): _load(r) for r in rows}
    trials = {r["workers"]: r["trials"] for r in rows}
    return table(
        ["workers", "trials", *(f"{names[sampler]}, {-s:.0f} s" for sampler, s in lines)],
        [[n, trials[n], *(cells.get((n, *line), "-") for line in lines)] for n in sorted(trials)],
    )


def _load(row: Mapping[str, Any]) -> str:
    driver, idle = (100 * row[key] for key in ("driver_share_of_a_core", "idle_share"))
    return f"{driver:.{0 if driver > 9.5 else 1}f} %, {idle:.0f} %"


def folder() -> str:
    """Return what studies with finished trials take in a folder."""
    found = load("scale.json").get("folder") or {"results": []}
    lines = [
        [f"{r['trials']:,}",
         *(f"{r[f'{name}_seconds']['median']:.1f}" for name in _RESUME),
         f"{r['peak_mb']['median'] - r['imports_mb']['median']:.0f}",
         f"{r['status_seconds']['median']:.1f}",
         *(f"{r[name]['median']:.1f}" if name in r else "-" for name in _REPORT)]
        for r in found["results"]
    ]  # fmt: skip
    header = "finished trials,read the log,read it and check files,to the first launch,"
    header += "then 1 000 idle workers,memory in MB,`status`,report,page in MB"
    return table(header.split(","), lines)


_RESUME = ("read", "check", "resume", "fill")
_REPORT = ("report_seconds", "page_mb")


def redesign() -> str:
    """Return what the redesign of the log has changed."""
    found = {row["what"]: row for row in load("log_redesign.json")["rows"]}
    lines = [[title, *map(_number, (found[key]["before"], found[key]["now"]))]
             for key, title in _REDESIGN.items()]  # fmt: skip
    lines += [
        [f"resuming {row['trials']:,} trials, s of CPU to the first launch",
         _RESUME_BEFORE.get(row["trials"], "-"), f"{row['resume_seconds']['median']:.1f}"]
        for row in (load("scale.json").get("folder") or {"results": []})["results"]
    ]  # fmt: skip
    return table(["", "before", "now"], lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value > 100 else f"{value:.3g}"


_REDESIGN = {
    "log_reads_until_first_launch": "opens of the log until the first launch, one to read all",
    "log_lines_per_trial": "lines of the log per trial, without folds",
    "fsyncs_per_trial": "fsyncs per trial",
    "opening_300_trials_cpu_seconds": "opening a finished study of 300 trials, s of CPU",
    "driver_cpu_ms_per_trial": "driver, ms of CPU per trial of three reports",
    "places_of_a_width": "places that say the width of a network",
    "hops_of_advance": "functions that pass a call `advance` on, Ray with a store",
    "crash_points": "crash points",
    "checksum_formats": "forms of checksum",
    "service_lines": "lines of the service's rooms",
    "service_files": "files of them",
}
#: Continued from a part of the work, on a busy machine.
_RESUME_BEFORE = {100_000: "56, extrapolated"}


def store() -> str:
    """Return what a store of 20 ms a request takes of studies with finished trials."""
    rows = [row for row in load("scale.json")["store"]["results"] if "resume" in row]
    lines = [
        [f"{r['trials']:,}", f"{r['files']:,}", f"{r['mb']:.0f}",
         *(cell for what in ("status", "second_look", "resume") for cell in (
             sum(r[what]["requests"].values()),
             f"{r[what]['fetch_seconds']:.1f}",
         )),
         f"{r['resume']['wall_seconds']:.0f} ({r['resume']['cpu_seconds']:.0f})"]
        for r in rows
    ]  # fmt: skip
    header = "finished trials,files,MB,status: requests,fetching in s,a second look: requests,s"
    header += ",resume: requests,fetching in s,to the first launch in s (CPU)"
    return table(header.split(","), lines)


def store_trial() -> str:
    """Return the requests of one trial."""
    (row,) = [row for row in load("scale.json")["store"]["results"] if "per_trial" in row]
    lines = [[kind, f"{n:.1f}"] for kind, n in row["per_trial"].items()]
    lines.append(["all", f"{sum(row['per_trial'].values()):.1f}"])
    return table(["requests", f"of a trial of {row['slices']} slices"], lines)


def small_trials() -> str:
    """Return the seconds of CPU and the checkpoints of a trial of 300 rows, before and now."""
    rows = load("small_trials_cpu.json")["rows"]
    lines = [
        [row["study"], row["network"], f"{row['before']['seconds']:.2f}",
         f"{row['now']['seconds']:.2f}", row["before"]["checkpoints"], row["now"]["checkpoints"]]
        for row in rows
    ]  # fmt: skip
    header = "300 rows,network,CPU s before,now,checkpoints before,now"
    return table(header.split(","), lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": summary,
    "in-short": in_short,
    "demo": demo,
    "images": images,
    "growth": growth,
    "ways-to-find": ways_to_find,
    "processes": processes,
    "passes": passes,
    "lead": lead,
    "posteriors": posteriors,
    "pass-memory": pass_memory,
    "updates": updates,
    "online-runs": online_runs,
    "kernels": kernels,
    "small-trials": small_trials,
    "driver": driver,
    "driver-long": driver_long,
    "tune": tune,
    "epochs": epochs,
    "plans": plans,
    "other-plans": other_plans,
    "parts": parts,
    "divided": divided,
    "driver-and-disk": driver_and_disk,
    "sweep": sweep,
    "folder": folder,
    "redesign": redesign,
    "store": store,
    "store-trial": store_trial,
}


def written(page: str) -> str:
    """Return a page with its tables made anew.

    Raises:
        KeyError: for a table that there is not.
    """
    return _TABLE.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], page)


def main() -> None:
    """Rewrite the pages."""
    for name in PAGES:
        path = DOCS / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
