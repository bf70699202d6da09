"""Which sampler finds good architectures soonest, and what a proposal costs.

Search: each sampler looks for the highest log evidence in the published tables of Immer et al.
(2021, C.9-C.11), whose spaces have two families of 15 to 25 members (a combination without a row
fails), and in two larger conditional spaces: table C.10 interpolated over all widths and depths,
and three families with an optimum each, at different places. All samplers of one seed start from
the same quasi-random points. Reported is the simple regret, best in the space minus best found,
after 20, 30 and 40 trials: median, quartiles and mean over seeds, the first trial that finds the
best, and the mean paired difference of regrets from "tpe" with a bootstrap interval of 95 %.

The stored results also hold three other ways to give TPE a conditional space, which lost and are
no longer in the code (docs/decisions/0007-shared-names-in-tpe.md); "shared" there is "tpe" here,
and the differences there are from "joint".

Cost: milliseconds of CPU of `ask` and `tell` beside 100, 1,000 and 10,000 finished trials in an
SQLite file, and of opening it.

    python benchmarks/samplers.py --tables FOLDER --out benchmarks/results/samplers_cpu.json
"""

import argparse
import csv
import functools
import json
import math
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from nas_evidence.proposing.order import Search
from nas_evidence.proposing.proposer import Learner, Proposer, Told
from nas_evidence.proposing.startup import grid_points
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

SAMPLERS = {name: {"name": name} for name in ("tpe", "random", "qmc")}
CHECKPOINTS = (20, 30, 40)
HISTORIES = (100, 1_000, 10_000)
#: An architecture and its value.
Scored = tuple[ArchitectureSpec, float]


@dataclass(frozen=True)
class Landscape:
    """A search space, its value at each architecture (None: no such row), and the best one."""

    name: str
    space: dict[str, dict[str, dict[str, object]]]
    value: Callable[[ArchitectureSpec], float | None]
    best: float

    def study(self, sampler: str, seed: int) -> StudySpec:
        """Return the study that searches it."""
        return StudySpec.model_validate(
            {
                "name": self.name,
                "seed": seed,
                "dataset": {"name": "digits"},
                "family": self.space,
                "sampler": SAMPLERS[sampler],
            }
        )


def table_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of one published table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def tabular(path: Path) -> Landscape:
    """Return a published table as it is."""
    table = {
        (row["family"].lower(), int(row["depth"]), int(row["width"])): float(
            row["log_evidence_per_datum_nats"]
        )
        for row in table_rows(path)
    }
    space = {
        family: {
            name: {"options": sorted({key[i] for key in table if key[0] == family})}
            for i, name in ((1, "depth"), (2, "width"))
        }
        for family in sorted({key[0] for key in table})
    }
    return Landscape(
        path.stem,
        space,
        lambda a: table.get((a.family, int(a.values["depth"]), int(a.values["width"]))),
        max(table.values()),
    )


def interpolated(path: Path) -> Landscape:
    """Return a published table, linear in depth and log width between its rows."""
    rows = table_rows(path)
    parts, space = {}, {}
    for family in sorted({row["family"] for row in rows}):
        mine = [row for row in rows if row["family"] == family]
        points = [(float(row["depth"]), math.log(float(row["width"]))) for row in mine]
        values = [float(row["log_evidence_per_datum_nats"]) for row in mine]
        parts[family.lower()] = (
            LinearNDInterpolator(points, values, rescale=True),
            NearestNDInterpolator(points, values, rescale=True),
        )
        depths, widths = ({int(row[name]) for row in mine} for name in ("depth", "width"))
        space[family.lower()] = {
            "depth": {
                "low": min(depths),
                "high": max(depths),
                "step": 6 if min(depths) > 5 else 1,
            },
            "width": {"low": min(widths), "high": max(widths), "log": True},
        }

    def value(a: ArchitectureSpec) -> float:
        inside, nearest = parts[a.family]
        at = (float(a.values["depth"]), math.log(float(a.values["width"])))
        found = float(inside(*at))
        return found if math.isfinite(found) else float(nearest(*at))

    return with_best(f"{path.stem}_interpolated", space, value)


def synthetic() -> Landscape:
    """Return three families with an optimum each, elsewhere in depth and width."""
    optima = {"mlp": (-0.5, 2, 300), "cnn": (0.0, 4, 24), "resnet": (-0.2, 62, 12)}
    spread = {"mlp": 1.0, "cnn": 1.0, "resnet": 20.0}
    space = {
        "mlp": {"depth": {"low": 1, "high": 5}, "width": {"low": 4, "high": 1024, "log": True}},
        "cnn": {"depth": {"low": 1, "high": 5}, "width": {"low": 1, "high": 256, "log": True}},
        "resnet": {
            "depth": {"low": 8, "high": 110, "step": 6},
            "width": {"low": 4, "high": 64, "log": True},
        },
    }

    def value(a: ArchitectureSpec) -> float:
        best, depth, width = optima[a.family]
        x = math.log2(float(a.values["width"]) / width)
        y = (float(a.values["depth"]) - depth) / spread[a.family]
        # Capacity can come from depth or from width: the two matter jointly.
        return best - 0.1 * (x + y) ** 2 - 0.02 * (x - y) ** 2

    return with_best("synthetic", space, value)


def with_best(
    name: str,
    space: dict[str, dict[str, dict[str, object]]],
    value: Callable[[ArchitectureSpec], float | None],
) -> Landscape:
    """Return the landscape with the best value of all its members."""
    study = Landscape(name, space, value, 0.0).study("random", 0)
    found = (value(point) for point in grid_points(study))
    return Landscape(name, space, value, max(v for v in found if v is not None))


def regrets(landscape: Landscape, sampler: str, seed: int) -> list[float]:
    """Return the simple regret after each of the trials of one search."""
    study = landscape.study(sampler, seed)
    search, learner = Search(study), Learner(study)
    best, course = -math.inf, []
    for number in range(CHECKPOINTS[-1]):
        architecture = search.next(number, learner.draw)
        search.add(architecture)
        value = landscape.value(architecture)
        learner.show(number, architecture, Told(None if value is None else (value,)))
        best = max(best, -math.inf if value is None else value)
        course.append(landscape.best - best)
    return course


def summary(courses: np.ndarray, baseline: np.ndarray) -> dict[str, object]:
    """Summarise [n_seeds, n_trials] regrets, also as paired differences from `baseline`."""
    generator = np.random.default_rng(0)
    found = [int(np.argmax(c <= 1e-12)) + 1 if c[-1] <= 1e-12 else None for c in courses]
    result: dict[str, object] = {
        "found_best_share": sum(f is not None for f in found) / len(found),
        "median_trial_of_best": statistics.median(f or math.inf for f in found),
    }
    if result["median_trial_of_best"] == math.inf:
        result["median_trial_of_best"] = None
    for count in CHECKPOINTS:
        at, other = courses[:, count - 1], baseline[:, count - 1]
        picks = generator.integers(len(at), size=(2000, len(at)))
        means = (at - other)[picks].mean(axis=1)
        quartiles = np.quantile(at, [0.25, 0.5, 0.75]).tolist()
        result[f"after_{count}"] = {
            "median": quartiles[1],
            "quartiles": [quartiles[0], quartiles[2]],
            "mean": float(at.mean()),
            "minus_tpe": float((at - other).mean()),
            "minus_tpe_95": np.quantile(means, [0.025, 0.975]).tolist(),
        }
    return result


def compare(landscapes: list[Landscape], n_seeds: int) -> dict[str, object]:
    """Search every landscape with every sampler."""
    table: dict[str, object] = {}
    for landscape in landscapes:
        courses = {
            sampler: np.array([regrets(landscape, sampler, seed) for seed in range(n_seeds)])
            for sampler in SAMPLERS
        }
        table[landscape.name] = {s: summary(c, courses["tpe"]) for s, c in courses.items()}
        for sampler, course in courses.items():
            means = "  ".join(f"{course[:, n - 1].mean():.4f}" for n in CHECKPOINTS)
            print(f"{landscape.name:40s} {sampler:9s} {means}", flush=True)
    return table


def timed(work: Callable[[], object]) -> float:
    """Return the CPU time of one call in milliseconds."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


def cost(
    landscape: Landscape, sampler: str, past: Sequence[Scored], *, repeats: int
) -> dict[str, object]:
    """Return what restoring, asking and telling cost beside finished trials."""
    study, history = landscape.study(sampler, 0), len(past)
    started = time.process_time()
    proposer = Proposer(study)
    for number, (architecture, value) in enumerate(past):
        proposer.adopt(architecture)
        proposer.tell(number, Told((value,)))
    open_seconds = time.process_time() - started
    ask = [timed(proposer.ask) for _ in range(repeats)]
    numbers = range(history, history + repeats)
    tell = [timed(functools.partial(proposer.tell, n, Told((0.0,)))) for n in numbers]
    return {
        "sampler": sampler,
        "finished_trials": history,
        "ask_ms": {"median": statistics.median(ask), "min": min(ask), "max": max(ask)},
        "tell_ms": {"median": statistics.median(tell), "min": min(tell), "max": max(tell)},
        "open_seconds": open_seconds,
        "n": repeats,
    }


def costs(landscape: Landscape, repeats: int) -> Iterator[dict[str, object]]:
    """Yield the cost of each sampler beside a growing number of finished trials."""
    filler = Proposer(landscape.study("qmc", 0))
    past: list[Scored] = []
    for history in HISTORIES[:2]:
        while len(past) < history:
            architecture = filler.ask()
            value = landscape.value(architecture)
            assert value is not None
            past.append((architecture, value))
        for times in (1, 10) if history == HISTORIES[1] else (1,):
            for sampler in SAMPLERS:
                row = cost(landscape, sampler, past * times, repeats=repeats)
                print(json.dumps(row), flush=True)
                yield row


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    paths = sorted(arguments.tables.glob("*.csv"))
    started = time.process_time()
    landscapes = [*map(tabular, paths), interpolated(paths[0]), synthetic()]
    results = {
        "regret": compare(landscapes, arguments.seeds),
        "cost": list(costs(landscapes[-1], arguments.repeats)),
    }
    results |= {
        "unit": {"regret": "nats per datum; of the landscape for synthetic", "cost": "CPU"},
        "n_seeds": arguments.seeds,
        "samplers": SAMPLERS,
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "threads": 1},
        "versions": {p: version(p) for p in ("optuna", "numpy", "scipy")}
        | {"python": platform.python_version()},
        "cpu_seconds": time.process_time() - started,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
