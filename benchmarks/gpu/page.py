"""Writes the tables of docs/experiments/gpu.md from the committed results of runs on a GPU.

python benchmarks/gpu/page.py

first_*    before the bounds of curvature passes followed the device
second_*   after it
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _common import filled, read_json

PAGE = ROOT / "docs" / "experiments" / "gpu.md"
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
RUNS = ("first", "second")
#: Group of values: what its keys begin with, and contain.
GROUPS = {
    "golden values, float64": ("golden/", ""),
    "every kind on every case, float64": ("case/", "/float64/"),
    "every kind on every case, float32": ("case/", "/float32/"),
    "scores of whole trials, float32": ("trial/", ""),
    "of these, bf16": ("trial/bf16", ""),
}
Row = Mapping[str, Any]


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def findings(run: str, section: str) -> list[Row]:
    """Return the findings of a section of a run; none where it was not run."""
    path = RESULTS / f"{run}_probe.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["section"] == section]


def latest(section: str) -> list[Row]:
    """Return the findings of the last run that has the section."""
    return next((rows for run in reversed(RUNS) if (rows := findings(run, section))), [])


def values() -> str:
    """Return the number of values of each group and run, and their largest difference."""
    lines = []
    for run in RUNS:
        cpu, gpu = (read_json(RESULTS / f"{run}_{name}.json") for name in ("cpu", "gpu"))
        if gpu is None:
            continue
        for group, (begin, part) in GROUPS.items():
            keys = [k for k in gpu["values"] if k.startswith(begin) and part in k]
            pairs = [(gpu["values"][k], gpu["truths"].get(k, cpu["values"].get(k))) for k in keys]
            numbers = [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
            if not numbers:
                continue
            same = [a == b for a, b in pairs if not isinstance(a, float)]
            largest = max(abs(a - b) / max(1e-6, abs(b)) for a, b in numbers)
            n_other = "" if all(same) else f", {same.count(False)} without a value"
            lines.append([run, group, f"{len(pairs)}{n_other}", f"{largest:.0e}"])
        bits = [all(both) for both in gpu["same_bits"].values()]
        lines.append([run, "trials with the same weights again and after parking",
                      f"{bits.count(True)} of {len(bits)}", ""])  # fmt: skip
    return markdown(["run", "values", "n", "largest relative difference"], lines)


def machines() -> str:
    """Return the hardware and versions of each run."""
    lines = []
    for run in RUNS:
        gpu = read_json(RESULTS / f"{run}_gpu.json")
        if gpu is not None:
            about = gpu["about"]
            of = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
            lines.append([run, about["gpu"], f"CUDA {about['cuda']}, {of}"])
    return markdown(["run", "GPU", "versions"], lines)


def steps() -> str:
    """Return milliseconds of a step by network and way, its launches and busy share."""
    rows = latest("steps")
    ways = list(dict.fromkeys(row["how"] for row in rows))
    lines = []
    for network in dict.fromkeys(row["network"] for row in rows):
        of = {row["how"]: row for row in rows if row["network"] == network}
        plain = of.get("plain", {})
        times = [f"{of[way]['ms_per_128']:.1f}" if way in of else "" for way in ways]
        busy = f"{100 * plain['busy']:.0f} %" if "busy" in plain else ""
        lines.append([network, *times, f"{plain.get('kernels', 0):.0f}", busy])
    return markdown(["ms for 128 rows", *ways, "launches", "GPU busy"], lines)


def memory() -> str:
    """Return peaks beside estimates."""
    lines = [
        [row["network"], row["batch"], f"{row['peak_mb']:.0f}", f"{row['estimate_mb']:.0f}",
         f"{row['estimate_mb'] / row['peak_mb']:.2f}"]
        for row in latest("memory")
    ]  # fmt: skip
    return markdown(["network", "batch", "peak, MB", "estimate, MB", "estimate / peak"], lines)


def passes() -> str:
    """Return seconds of passes over 50,000 rows and of updates, by run."""
    lines = []
    for section, key in (("passes", "seconds_per_50000"), ("updates", "seconds")):
        found: dict[tuple[str, str], dict[str, Row]] = {}
        for run in RUNS:
            for row in findings(run, section):
                if row.get("elements", 1 << 20) == 1 << 20:
                    found.setdefault((row["network"], row["kind"]), {})[run] = row
        what = "pass over 50,000 rows" if section == "passes" else "update of 2,048 rows"
        for (network, kind), by_run in found.items():
            cells = [f"{by_run[run][key]:.1f}" if run in by_run else "" for run in RUNS]
            peaks = [f"{by_run[run]['peak_mb']:.0f}" if "peak_mb" in by_run.get(run, {}) else ""
                     for run in RUNS]  # fmt: skip
            lines.append([what, network, f"`{kind}`", *cells, *peaks])
    header = ["seconds of a", "network", "kind", *RUNS, *(f"{run}: peak, MB" for run in RUNS)]
    return markdown(header, lines)


def sharing() -> str:
    """Return what networks gain as one program, and as processes on one GPU."""
    lines = [
        ["K networks as one program / K alone", row["network"], row["k"], f"{row['ratio']:.2f}"]
        for row in latest("together")
    ]
    rows = latest("packed")
    alone = {row["mps"]: row["steps_per_second"] for row in rows if row["k"] == 1}
    for row in rows:
        how = "processes, with MPS" if row["mps"] else "processes"
        per = row["steps_per_second"]
        gain = f" ({per / alone[False]:.1f} times one)" if False in alone else ""
        lines.append([f"steps per second of K {how}", "resnet-20 w16", row["k"],
                      f"{per:.0f}{gain}"])  # fmt: skip
    return markdown(["what", "network", "K", "measured"], lines)


def others() -> str:
    """Return the density of a fold, and our passes beside BackPACK's."""
    lines = [
        [f"log density of a fold, {row['rows']:,} rows, {row['width']} features",
         f"{row['seconds']:.2f} s"]
        for row in latest("density")
    ] + [
        [f"`{row['kind']}` over {row['rows']:,} rows of 3c3d, ours / BackPACK",
         f"{row['ours_over_backpack']:.2f}"]
        for row in latest("peers")
    ]  # fmt: skip
    return markdown(["what", "measured"], lines)


def ranking() -> str:
    """Return rho of each pair, over all networks and within families."""
    found = read_json(RESULTS / "second_rank.json")
    if found is None:
        return "Not run."
    rows = found["correlations"]
    groups = list(dict.fromkeys(row["group"] for row in rows))

    def cell(score: str, target: str, group: str) -> str:
        of = [r for r in rows if (r["score"], r["target"], r["group"]) == (score, target, group)]
        if not of:
            return ""
        r = of[0]
        return f"{r['rho']:.2f} ({r['rho_low']:.2f} to {r['rho_high']:.2f}), n = {r['n']}"

    pairs = dict.fromkeys((row["score"], row["target"]) for row in rows)
    lines = [[f"`{a}`", f"`{b}`", *(cell(a, b, group) for group in groups)] for a, b in pairs]
    return markdown(["score", "with", *groups], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "machines": machines, "values": values, "steps": steps, "memory": memory, "passes": passes,
    "sharing": sharing, "others": others, "ranking": ranking,
}  # fmt: skip


def written(text: str) -> str:
    """Return the page with its tables."""
    return filled(text, {name: f"{table()}\n" for name, table in TABLES.items()})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
