"""How well zero-cost proxies rank, beside SOTL and evidence: those of docs/examples on the pools.

    python benchmarks/proxies.py measure --data DIR    # results/proxies.csv, a row per network
    python benchmarks/proxies.py judge                 # results/proxies.json
    python benchmarks/proxies.py page                  # the table in docs/how-to/add-a-score.md

The networks are those of the pools `wide` that were trained with two seeds or more, at the initial
weights from which they were trained. As in ranking/judge.py a score of one seed is judged by the
mean test log loss of the other seeds, and rho is the mean over seeds and pools. Its interval of
90 % is of a bootstrap that draws pools, then networks.
"""

import argparse
import csv
import runpy
from collections.abc import Mapping
from pathlib import Path
from sys import path
from typing import Any

import numpy as np
import pandas as pd
import torch

path.insert(0, str(Path(__file__).parent / "ranking"))
from _common import conditions, filled, read_json, write_json
from judge import _by_score, between_seeds, markdown, ranked
from judge import attainable as attainable_of
from pools import KEY, POOLS, drawn, planned

from nas_evidence.models import build
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, derive_seed
from nas_evidence.training.network import begin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXAMPLE = ROOT / "docs" / "examples" / "zero_cost_proxies.py"
PAGE = ROOT / "docs" / "how-to" / "add-a-score.md"
TRAINED, MEASURED = HERE / "results" / "ranking" / "wide", HERE / "results" / "proxies.csv"
JUDGED = HERE / "results" / "proxies.json"
PROXIES = ("synflow", "snip")
#: What is judged: before training, during it, and after it.
SCORES = (*PROXIES, "n_parameters", "sotl", "kfac_ggn", "last_layer_conditional")
NAMES = {"last_layer_conditional": "`conditional_evidence`, two folds"}
IMAGES = ("mnist", "fashion", "cifar", "fmnist", "digits")
_DRAWS = 400


def names() -> list[str]:
    """Return the pools that were trained with two seeds or more, without those of searches."""
    own = [name for name in POOLS["wide"] if not name.endswith(("-race", "-search"))]
    there = [name for name in own if (TRAINED / f"{name}.csv").exists()]
    return [n for n in there if pd.read_csv(TRAINED / f"{n}.csv")["seed"].nunique() > 1]


def measure(root: Path) -> None:
    """Compute the proxies of each network at its initial weights."""
    example = runpy.run_path(str(EXAMPLE))
    torch.set_num_threads(1)
    with MEASURED.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["pool", *KEY, *PROXIES])
        for name in names():
            table = pd.read_csv(TRAINED / f"{name}.csv")
            for seed, own in table.groupby("seed"):
                pool, seed = POOLS["wide"][name], int(seed)
                data, _ = drawn(pool, root, seed)
                for row in own[list(KEY)].to_dict("records"):
                    values = {key: int(row[key]) for key in ("depth", "width")}
                    one = ArchitectureSpec(family=row["family"], values=values)
                    given = Assignment(
                        trial_id=0, attempt=1, replicate=seed, architecture=one, estimators=(),
                        dataset=DatasetSpec(name="digits"), plan=planned(pool, data, None),
                        seed=derive_seed(seed, "wide", one.key),
                    )  # fmt: skip
                    random = torch.Generator().manual_seed(given.derived_seed("init"))
                    width = given.plan.head_width(data.n_outputs)
                    model = build(one, data.input_shape, width, random)
                    context = Context(begin(model, data, given.plan, given.seed), given)
                    found = [f"{example[proxy](context):.6g}" for proxy in PROXIES]
                    writer.writerow([name, *(row[key] for key in KEY), *found])
            print(name, flush=True)


def kind_of(name: str, *, real: bool) -> str:
    """Return the kind of data of a pool."""
    if name.startswith(IMAGES):
        return "images"
    return "tables, real targets" if real else "tables, classes"


def judge() -> None:
    """Judge the scores, and store what the table says."""
    measured = pd.read_csv(MEASURED)
    pools: dict[str, list[Any]] = {}
    for name in names():
        table = pd.read_csv(TRAINED / f"{name}.csv")
        own = measured[measured["pool"] == name].drop(columns="pool")
        table = table[table["status"] == "complete"].merge(own, on=list(KEY), how="inner")
        found = ranked(table)
        found.scores["n_parameters"] = -found.scores["n_parameters"]  # `judge` prefers few
        pools.setdefault(kind_of(name, real=found.real), []).append(found)
    pools["all"] = [pool for own in pools.values() for pool in own]
    kinds = {
        kind: {
            "pools": len(own),
            "networks": sum(len(pool.loss) for pool in own),
            "trainings": sum(int(np.isfinite(pool.loss).sum()) for pool in own),
            "attainable": round(float(np.mean([_top(pool) for pool in own])), 3),
            "rho": _rhos(own),
        }
        for kind, own in pools.items()
    }
    head = conditions("rho of scores with the test log loss of other seeds", "torch", "numpy")
    write_json(JUDGED, {**head, "kinds": kinds})


def _top(pool: Any) -> float:
    return float(attainable_of(between_seeds(pool.loss), pool.loss.shape[1] - 1))


def _rhos(pools: list[Any]) -> dict[str, list[float]]:
    """Return rho of each score, mean over pools, with the ends of its interval."""
    random, draws = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        of = []
        for k in random.integers(0, len(pools), len(pools)):
            n = len(pools[k].loss)
            rows = np.unique(random.integers(0, n, n))
            of.append(_by_score(pools[k].some(rows), SCORES))
        draws.append(of)
    exact = [_by_score(pool, SCORES) for pool in pools]
    found = {}
    for score in SCORES:
        low, high = np.nanquantile([_mean(of, score) for of in draws], [0.05, 0.95])
        found[score] = [round(float(v), 3) for v in (_mean(exact, score), low, high)]
    return found


def _mean(of: list[dict[str, dict[str, float]]], score: str) -> float:
    values = [one[score]["rho"] for one in of if score in one]
    return float(np.nanmean(values)) if values else float("nan")


def table(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    lines = [
        [
            f"{kind} ({own['pools']} pools, {own['trainings']:,} trainings)",
            f"{own['attainable']:.2f}",
            *("{:.2f} ({:.2f} to {:.2f})".format(*own["rho"][score]) for score in SCORES),
        ]
        for kind, own in found["kinds"].items()
    ]
    header = ["data", "attainable", *(NAMES.get(score, f"`{score}`") for score in SCORES)]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    made = markdown(header, lines).rstrip()
    return f"{made}\n\nProxies computed on {found['hardware']}; {versions}."


def written(text: str) -> str:
    """Return the page with its table made anew."""
    return filled(text, {"proxies": table(read_json(JUDGED))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["measure", "judge", "page"])
    parser.add_argument("--data", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.data)
    elif given.what == "judge":
        judge()
    else:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
