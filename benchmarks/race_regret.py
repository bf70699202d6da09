"""Is a race of the finalists worth its trials? Replays of eight real pools at equal cost.

    python benchmarks/race_regret.py --pools DIR [--orders 1000] [--to FILE.json]

The pools have 21 to 24 architectures, three seeds of each, with the score `two_fold`, and test
log loss and accuracy (RMSE where targets are real). Six are studies in DIR, each made by
`nas-evidence search benchmarks/ranking/NAME.toml --out DIR/NAME`; two, of tables, were trained
for this question alone, after the race was written:

    python benchmarks/ranking/wide.py --pool power24 australian24 --what race ...

An order draws which architectures a search meets, and which seed of each comes first. Then, with n
trials for the search and 10 for the race (the default up to 30 trials):

    race   n architectures, one seed each; the first five get their two other seeds; the best mean
    wider  n + 10 architectures, one seed each; the best score
    short  n architectures, one seed each; the best score

Regret is the test result of the choice, as the mean of its three seeds, minus that of the best
architecture of the whole pool. All differences between `race` and `wider` are within orders.
`claim` is P(best by the score) after the race, and `best_on_test` how often the choice has the
lowest test log loss of the architectures that the search met: another question.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.driver.race import MIN_REPEATS
from nas_evidence.maths.finalists import posterior_of
from nas_evidence.maths.ranking import Floats
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import FINALISTS
from nas_evidence.storage.tables import read_table

#: Not looked at before: `results/ranking/wide/<name>-race.csv`.
NEW = ("power24", "australian24")
POOLS = ("digits", "mnist", "fashion_mnist", "fashion_mnist_3000", "satellite", "cifar10")
SCORE, N_RACE = "two_fold", 10
#: Trials of the search; None: as many as leave room for `wider` to see the whole pool.
SEARCHES = (8, None)
#: Orders for which P(best) is computed, which takes longest.
N_CLAIMS = 100


def trained(name: str, studies: Path) -> pd.DataFrame:
    """Return a pool, one row per network: architecture_key, family, score and test results."""
    if name in NEW:
        wide = Path(__file__).parent / "results" / "ranking" / "wide"
        found = pd.read_csv(wide / f"{name}-race.csv")
        found["architecture_key"] = found["depth"].astype(str) + "x" + found["width"].astype(str)
        names = {SCORE: "score", "test_nll": "test_nll_per_datum"}
        return found.rename(columns=names).sort_values("seed")
    evidence = read_table(studies / name, "evidence")
    scores = evidence[evidence["estimator"] == SCORE].groupby("trial_id")["value"].last()
    trials = read_table(studies / name, "trials")
    return trials.join(scores.rename("score"), on="trial_id").sort_values("trial_id")


def pool(name: str, studies: Path) -> tuple[list[str], Floats, dict[str, Floats]]:
    """Return families, scores [n, 3], and means over seeds of the test results, less is better."""
    trials = trained(name, studies)
    trials = trials[trials["status"] == "complete"]
    groups = [own for _, own in trials.groupby("architecture_key") if len(own) == MIN_REPEATS]

    def of(column: str) -> Floats:
        return np.stack([own[column].to_numpy(float) for own in groups])

    results = {"loss": of("test_nll_per_datum").mean(1)}
    if trials["test_accuracy"].notna().any():
        results["accuracy"] = -of("test_accuracy").mean(1)
    else:
        results["rmse"] = of("test_rmse").mean(1)
    return [own["family"].iloc[0] for own in groups], of("score"), results


def replay(name: str, studies: Path, n_orders: int, n_search: int | None) -> dict[str, Any]:
    """Return mean regrets over random orders of a pool."""
    families, scores, results = pool(name, studies)
    loss = results["loss"]
    n = n_search or len(scores) - N_RACE
    rng = np.random.default_rng(0)
    chosen: dict[str, list[int]] = {"race": [], "wider": [], "short": []}
    claims, best = [], []
    for k in range(n_orders):
        order = rng.permutation(len(scores))
        seeds = rng.permuted(scores, axis=1)
        met = order[:n]
        finalists = met[np.argsort(-seeds[met, 0], kind="stable")[:FINALISTS]]
        chosen["short"].append(int(finalists[0]))
        chosen["wider"].append(int(order[: n + N_RACE][seeds[order[: n + N_RACE], 0].argmax()]))
        means = np.where(np.isin(met, finalists), seeds[met].mean(1), seeds[met, 0])
        first = int(means.argmax())
        chosen["race"].append(int(met[first]))
        best.append(bool(loss[met].argmin() == first))
        if k < N_CLAIMS:
            tried = [seeds[i] if i in finalists else seeds[i, :1] for i in met]
            posterior = posterior_of(tried, [families[i] for i in met], seed=k)
            assert posterior is not None
            claims.append(float(posterior.best[first]))
    found: dict[str, Any] = {"pool": name, "architectures": len(scores), "search": n}
    for measure, values in results.items():
        regret = {how: values[i] - values.min() for how, i in chosen.items()}
        gain = regret["wider"] - regret["race"]
        found[measure] = {how: round(float(own.mean()), 5) for how, own in regret.items()} | {
            "race_better": round(float((gain > 0).mean()), 3),
            "race_worse": round(float((gain < 0).mean()), 3),
        }
    claim = round(float(np.mean(claims)), 3)
    return found | {"claim": claim, "best_on_test": round(float(np.mean(best)), 3)}


def main() -> None:
    """Replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pools", type=Path, required=True, help="the six studies")
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--to", type=Path, default=Path("benchmarks/results/race_regret.json"))
    given = parser.parse_args()
    rows = [
        replay(name, given.pools, given.orders, n) for n in SEARCHES for name in (*POOLS, *NEW)
    ]
    pd.set_option("display.width", 200)
    print(pd.json_normalize(rows).to_string())
    result = {"hardware": f"{platform.machine()}, one thread", "numpy": np.__version__}
    result |= {"orders": given.orders, "rows": rows}
    write_whole(given.to, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
