"""What the benchmarks share: facts of the machine, clocks, stored results, versions beside it.

Imports nothing but the standard library, so that any script may use it anywhere.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def hardware(how: str = "one thread") -> str:
    """Return the machine in words, and how it was used."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {how}"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of packages; "absent" for what is not installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def commit() -> str:
    """Return the commit of the code measured."""
    shown = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True
    )
    return shown.stdout.strip() or "unknown"


def conditions(what: str, *packages: str, how: str = "one thread") -> dict[str, Any]:
    """Return the head of a file of results: what was measured, where, beside which load."""
    return {
        "what": what,
        "hardware": hardware(how),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions(*packages),
    }


def read_json(path: Path, empty: Any = None) -> Any:
    """Return what is stored, or `empty` if nothing is yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty


def write_json(path: Path | None, found: Mapping[str, Any], rows: str | None = None) -> None:
    """Store results; does nothing without a path.

    Args:
        path: of the file.
        found: the results.
        rows: the last key, a list of which each entry takes one line.
    """
    if path is None:
        return
    if rows is None:
        text = json.dumps(found, indent=1)
    else:
        lines = ",\n  ".join(json.dumps(row) for row in found[rows])
        text = json.dumps({**found, rows: []}, indent=1).removesuffix("[]\n}")
        text += f"[\n  {lines}\n ]\n}}"
    path.write_text(text + "\n", encoding="utf-8")


def show(row: Any) -> Any:
    """Print a row at once and return it."""
    print(json.dumps(row), flush=True)
    return row


def seconds_of(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return what one call takes, in seconds of the processor unless another clock is given."""
    started = clock()
    run()
    return clock() - started


def in_turn(
    runs: Mapping[str, Callable[[], object]], repeats: int, least: float = 0.0
) -> dict[str, list[float]]:
    """Return the seconds of each run, which take turns; the first call of each is not counted.

    Args:
        runs: by name.
        repeats: number of turns.
        least: seconds; a shorter run is repeated within a turn for as long, and averaged.
    """
    times = {}
    for name, run in runs.items():
        run()
        times[name] = max(1, int(least / max(seconds_of(run), 1e-9))) if least else 1
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            total = sum(seconds_of(run) for _ in range(times[name]))
            found[name].append(total / times[name])
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratios of the same turn."""
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return the median, the range and the number.

    >>> spread([1.0, 4.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 4.0, 'n': 3}
    """
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()} | {"n": len(values)}
