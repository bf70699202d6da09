"""Searches as a user runs them, on the rows of pools.

    python benchmarks/ranking/studies.py run GROUP --data DIR --pools NAME ... [--seeds 0 1 2]
                                             [--by estimate | score]
    python benchmarks/ranking/studies.py judge

`run` searches the training rows of a seed with everything left at its default: 24 trials, then the
race of the finalists. With `--by score` the observed `conditional_evidence` ranks, as it did
before. Every architecture that was tried is trained once more on the draw of each other seed, for
its test log loss there. One row a trial goes to
benchmarks/results/ranking/rank/studies_{estimate,score}/<pool>.csv: the score, plain five folds,
the coordinates of the architecture in its space, and the mean loss of the other seeds. `judge`
compares the first architectures of both by that loss, and rho of each search's own trials.
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from judge import markdown, spearman
from pools import POOLS, RESULTS, Pool, append, drawn, rows_of, sets, trained

import nas_evidence
from nas_evidence.maths.architecture_posterior import OF_NOISY_SEEDS, ArchitecturePosterior
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.record import TrialStatus, is_race
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.tables import read_study_tables, read_table

SCORE, PLAIN = "conditional_evidence", "log_predictive_as_trained"
_DRAWS = 2000


def searched(pool: Pool, root: Path, seed: int, folder: Path, by: str) -> list[dict[str, Any]]:
    """Search as a user does; return one row a complete trial, scores per datum."""
    x, y = sets.raw(pool.data, root)
    train, _, _ = rows_of(pool, len(y), seed)
    targets = y[train].ravel()
    nas_evidence.search(
        x[train], targets, seed=seed, out=folder, progress=False, settings={"rank_by": by}
    )
    tables = read_study_tables(folder)
    evidence, terms = (read_table(folder, name) for name in ("evidence", "terms"))
    score = evidence[evidence["estimator"] == SCORE].groupby("trial_id")["per_datum"].last()
    terms = terms[terms["term"] == PLAIN].drop_duplicates(["trial_id", "group"], keep="last")
    plain = terms.groupby("trial_id")["value"].sum() / pool.n_train
    space, found = Space(tables.spec.family), list[dict[str, Any]]()
    for row in tables.rows:
        if row.status is not TrialStatus.COMPLETE or SCORE not in row.values:
            continue
        one = row.architecture
        at = space.points([one])[0]
        found.append(
            {
                "trial_id": row.trial_id, "key": row.architecture_key, "family": one.family,
                **{k: v for k, v in one.values.items() if k in ("depth", "width")},
                "score": float(score[row.trial_id]), "plain": float(plain[row.trial_id]),
                **{f"at_{k}": float(v) for k, v in enumerate(at)},
                "ordered": "".join("01"[o] for o in space.ordered),
            }
        )  # fmt: skip
    return found


def loss_elsewhere(pool: Pool, root: Path, seed: int, row: dict[str, Any]) -> float:
    """Return the mean test log loss of an architecture on the draws of the other seeds."""
    values = {k: row[k] for k in ("depth", "width") if k in row}
    architecture, losses = ArchitectureSpec(family=row["family"], values=values), []
    for other in range(3):
        if other != seed:
            data, _ = drawn(pool, root, other)
            _, record = trained(pool, data, architecture, other, ())
            losses.append(record.test_nll_per_datum)
    return float(np.mean([np.nan if loss is None else loss for loss in losses]))


def run(name: str, pool: Pool, root: Path, seed: int, by: str, out: Path) -> None:
    """Run one study and add its rows, unless they are there."""
    file = out / f"studies_{by}" / f"{name}.csv"
    if file.exists() and (pd.read_csv(file)["seed"] == seed).any():
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = searched(pool, root, seed, Path(folder) / "study", by)
    real = bool(np.issubdtype(sets.raw(pool.data, root)[1].dtype, np.floating))
    losses: dict[str, float] = {}
    for row in rows:
        if row["key"] not in losses:
            losses[row["key"]] = loss_elsewhere(pool, root, seed, row)
        known = {"seed": seed, "real": real, "depth": None, "width": None, **row}
        append(file, known | {"test_nll": losses[row["key"]]})
    print(name, seed, by, len(rows), flush=True)


def first(study: pd.DataFrame, by: str) -> tuple[float, float]:
    """Return the loss of the first architecture, and rho of the search before the race."""
    study = study.assign(mean=(study["score"] + study["plain"]) / 2)
    found = []
    for some in (study[~study["trial_id"].map(is_race)], study):
        groups = some.groupby("key", sort=False)
        values = [own["mean" if by == "estimate" else "score"].to_numpy() for _, own in groups]
        loss = groups["test_nll"].first().to_numpy()
        order = np.array([v.mean() for v in values])
        if by == "estimate":
            points = groups[[c for c in study if c.startswith("at_")]].first().to_numpy(float)
            ordered = [c == "1" for c in str(study["ordered"].iloc[0])]
            order = ArchitecturePosterior(points, ordered, values, prior=OF_NOISY_SEEDS).mean()
        raced = np.array([len(v) for v in values])
        found.append((order, loss, raced))
    order, loss, raced = found[1]
    chosen = np.where(raced > 1, order, -np.inf) if (raced > 1).any() else order
    return float(loss[chosen.argmax()]), float(spearman(found[0][0], -found[0][1]))


def judge(folder: Path) -> str:
    """Return a table of both, with differences and their intervals over pools."""
    each: dict[tuple[str, int], dict[str, Any]] = {}
    for by in ("score", "estimate"):
        for file in sorted((folder / f"studies_{by}").glob("*.csv")):
            for seed, study in pd.read_csv(file, dtype={"ordered": str}).groupby("seed"):
                known = each.setdefault((file.stem, int(seed)), {})
                known["real"] = bool(study["real"].iloc[0])
                known[f"loss, {by}"], known[f"rho, {by}"] = first(study, by)
                known[f"random, {by}"] = study.groupby("key")["test_nll"].first().mean()
    found = pd.DataFrame(each).T.dropna()
    text, random = "", np.random.default_rng(0)
    for real, own in found.groupby("real"):
        own = own.drop(columns="real").astype(float)
        pools = own.groupby(level=0).mean()
        lines = [[name, *(f"{v:.4f}" for v in row)] for name, row in pools.iterrows()]
        lines.append(["mean", *(f"{v:.4f}" for v in pools.mean())])
        text += f"\n{'real targets' if real else 'classes'}, {len(own)} studies\n\n"
        text += markdown(["pool", *pools.columns], lines)
        for name in ("loss", "rho", "random"):
            gap = (pools[f"{name}, estimate"] - pools[f"{name}, score"]).to_numpy()
            drawn_gaps = gap[random.integers(0, len(gap), (_DRAWS, len(gap)))].mean(1)
            low, high = np.quantile(drawn_gaps, [0.05, 0.95])
            text += f"\n{name}, estimate - score: {gap.mean():+.4f} ({low:+.4f} to {high:+.4f})"
        text += "\n"
    return text


def main() -> None:
    """Run studies, or judge those that ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "judge"))
    parser.add_argument("group", nargs="?", default="rank", choices=list(POOLS))
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--pools", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--by", choices=("estimate", "score"), default="estimate")
    parser.add_argument("--out", type=Path, default=RESULTS / "rank")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "judge":
        print(judge(given.out))
        return
    for seed, name in product(given.seeds, given.pools):
        run(name, POOLS[given.group][name], given.data, seed, given.by, given.out)


if __name__ == "__main__":
    main()
