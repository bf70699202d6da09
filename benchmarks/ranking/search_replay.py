"""Does TPE find better architectures than random search? Replays of pools, for each score.

    python benchmarks/ranking/wide.py --data DIR --cache DIR --what search --seeds 0
                                      --pool waveform72 kin8nm72 mnist72
    python benchmarks/ranking/search_replay.py [--orders 200] [--to FILE.json]
                                      [--scores NAME ...] [--samplers NAME ...] [--pareto]

Each pool has every one of 72 architectures of a search space, trained once. A search of n trials
meets n of them, by the service's own order of proposals and samplers, and chooses the one with the
best score. Regret is the test log loss of the choice minus the least of the pool, nats per datum;
`score regret` is the best score of the pool minus that of the choice, in the score's own unit per
datum: what the sampler is responsible for. `minus random` is the mean paired difference from
random search of the same seed, with a bootstrap interval of 95 %.

`--pareto` replays instead searches that minimise the number of parameters too, and prints the
volume that their front dominates (score by log of the parameters, both as shares of the pool's
range) as a share of that of the pool's front.

As written before the first run: TPE earns its place as the default if its score regret after 24
trials is below that of random search, beyond the interval, for `two_fold` on two pools of three.
"""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna
import pandas as pd
from wide import LONG, RESULTS

from nas_evidence.plumbing.files import write_whole
from nas_evidence.proposing.order import Search
from nas_evidence.proposing.proposer import Learner, Told
from nas_evidence.spec.study import StudySpec

POOLS = ("waveform72", "kin8nm72", "mnist72")
SCORES = ("two_fold", "last_layer_conditional", "heldout_10", "kfac_ggn", "sotl", "n_parameters")
SAMPLERS = ("tpe", "random", "qmc")
TRIALS = (12, 24, 36)
_RESAMPLES = 2000


def study_of(pool: str, sampler: str, seed: int, **keys: object) -> StudySpec:
    """Return the study that searches the architectures of a pool; `keys` are further ones."""
    space: dict[str, dict[str, Any]] = {
        family: {"depth": {"options": list(depths)}, "width": {"options": list(widths)}}
        for family, (depths, widths) in LONG[pool].grids.items()
    }
    space["mlp"]["shape"] = {"options": ["constant"]}
    return StudySpec.model_validate(
        {"name": pool, "seed": seed, "dataset": {"name": "digits"}, "family": space,
         "sampler": {"name": sampler}, **keys}
    )  # fmt: skip


def met(study: StudySpec, values: Mapping[str, tuple[float, ...]], n_trials: int) -> list[str]:
    """Return the names of the architectures that a search meets, in their order.

    Args:
        study: its space, sampler and seed.
        values: the score of each architecture, and its costs; without one a trial fails.
        n_trials: the length of the search.
    """
    search, learner, found = Search(study), Learner(study), []
    for number in range(n_trials):
        architecture = search.next(number, learner.draw)
        search.add(architecture)
        name = _name(architecture.family, architecture.values)
        learner.show(number, architecture, Told(values.get(name)))
        found.append(name)
    return found


def _name(family: str, values: Mapping[str, object]) -> str:
    """Return what a pool calls an architecture; all MLPs have the same shape."""
    return f"{family} {values['depth']}x{values['width']}"


def table_of(pool: str, folder: Path) -> pd.DataFrame:
    """Return a row per architecture, by its name: `loss` and the scores."""
    table = pd.read_csv(folder / f"{pool}-search.csv")
    table = table[table["status"] == "complete"]
    table.index = pd.Index([_name(row["family"], row) for row in table.to_dict("records")])
    return table.rename(columns={"test_nll": "loss"})


def regrets(table: pd.DataFrame, names: Sequence[str], score: str) -> list[tuple[float, float]]:
    """Return regret in nats per datum and in the score after each length in `TRIALS`."""
    found = []
    for n in TRIALS:
        own = table.loc[[name for name in names[:n] if name in table.index]]
        first = own[score].idxmax()
        found.append((
            float(table["loss"][first] - table["loss"].min()),
            float(table[score].max() - table[score][first]),
        ))  # fmt: skip
    return found


def replay(
    pool: str, score: str, samplers: Sequence[str], orders: int, folder: Path
) -> list[dict[str, Any]]:
    """Return a row for each sampler and length of search."""
    table = table_of(pool, folder).dropna(subset=[score])
    value = {str(key): (float(own),) for key, own in table[score].items()}
    courses = {
        sampler: np.array([
            regrets(table, met(study_of(pool, sampler, seed), value, TRIALS[-1]), score)
            for seed in range(orders)
        ])
        for sampler in samplers
    }  # fmt: skip
    rng, rows = np.random.default_rng(0), []
    picks = rng.integers(orders, size=(_RESAMPLES, orders))
    for i, n in enumerate(TRIALS):
        for sampler, course in courses.items():
            row: dict[str, Any] = {"pool": pool, "score": score, "trials": n, "sampler": sampler}
            for j, what in enumerate(("regret_nats", "score_regret")):
                row[what] = float(course[:, i, j].mean())
                for other in ("random", "tpe"):
                    gap = course[:, i, j] - courses[other][:, i, j]
                    low, high = np.quantile(gap[picks].mean(axis=1), [0.025, 0.975])
                    row |= {
                        f"{what}_minus_{other}": float(gap.mean()),
                        f"{what}_minus_{other}_95": [float(low), float(high)],
                    }
            row["found_best_score"] = float((course[:, i, 1] <= 0).mean())
            rows.append(row)
    return rows


def dominated(points: np.ndarray) -> float:
    """Return the area of the unit square below points [n, 2] of which larger is better."""
    area, height = 0.0, 0.0
    for x, y in points[np.argsort(-points[:, 0], kind="stable")]:
        area += x * max(0.0, y - height)
        height = max(height, y)
    return area


def pareto(pool: str, score: str, samplers: Sequence[str], orders: int, folder: Path) -> None:
    """Print the share of the pool's dominated volume after each length in `TRIALS`."""
    table = table_of(pool, folder).dropna(subset=[score])
    sizes = -np.log(table["n_parameters"])
    plane = np.stack([(v - v.min()) / np.ptp(v) for v in (table[score], sizes)], axis=1)
    at = {str(name): k for k, name in enumerate(table.index)}
    values = {
        str(name): (float(row[score]), float(row["n_parameters"]))
        for name, row in table.iterrows()
    }
    courses = {}
    for sampler in samplers:
        rows = []
        for seed in range(orders):
            study = study_of(pool, sampler, seed, minimise=["n_parameters"])
            names = met(study, values, TRIALS[-1])
            rows.append([dominated(plane[[at[n] for n in names[:k] if n in at]]) for k in TRIALS])
        courses[sampler] = np.array(rows) / dominated(plane)
    for i, n in enumerate(TRIALS):
        gap = courses["posterior"][:, i] - courses["tpe"][:, i]
        error = 1.96 * gap.std(ddof=1) / orders**0.5
        means = {sampler: round(float(own[:, i].mean()), 3) for sampler, own in courses.items()}
        print(
            pool, score, n, means, f"posterior - tpe {gap.mean():+.4f} ± {error:.4f}", flush=True
        )


def main() -> None:
    """Replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument(
        "--samplers", nargs="+", default=list(SAMPLERS), help="at least tpe and random"
    )
    parser.add_argument("--pareto", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--to", type=Path, default=RESULTS.parent.parent / "search_replay.json")
    given = parser.parse_args()
    rows = []
    if given.pareto:
        for pool in POOLS:
            pareto(pool, "two_fold", given.samplers, given.orders, given.results)
        return
    for pool in POOLS:
        for score in given.scores:
            own = replay(pool, score, given.samplers, given.orders, given.results)
            print(pd.json_normalize(own).drop(columns="pool").to_string(), flush=True)
            rows += own
    result = {
        "hardware": f"{platform.machine()}, one thread", "optuna": optuna.__version__,
        "orders": given.orders, "rows": [
            {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in rows
        ],
    }  # fmt: skip
    write_whole(given.to, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
