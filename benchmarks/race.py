"""Does the race of the finalists claim as much as it keeps, and is it worth its trials?

    python benchmarks/race.py calibration [--studies 12000] [--minutes 5] [--cases NAME ...]
    python benchmarks/race.py regret --pools DIR [--orders 1000]

`--to FILE` goes with both; the files are results/race_calibration.json and race_regret.json.

**calibration.** Simulated studies with the rule of `driver/race.py`: 24 architectures of three
families with true scores of spread 1, tried once with noise; the first five race: three seeds of
each, then rounds by top-two Thompson sampling until the first is best with probability 0.9 or the
budget is spent. The claim is the probability that the first is the best of all 24, and a hit is
that it is. The same command goes on where the last one stopped. True scores are

    model    half of the studies normal, half exponential below a ceiling; noise 0.3 exp(z): as
             the model of `maths/finalists.py` says
    normal   all of them normal; noise 0.1, 0.3 or 1
    ceiling  all of them exponential below a ceiling; noise 0.1, 0.3 or 1
    groups   a mixture of three groups, which the model does not know; noise 0.1, 0.3 or 1

The noise differs between families by a factor exp(0.5 z); z is standard normal. With a budget of
10 all of it goes to the first seeds; with 30 the race can stop early. Three more cases are as
`model`, but for one thing that the model does not assume:

    heavy tails    the noise is Student's t with 3 degrees of freedom, scaled to the same variance
    unequal noise  one family has a fifth of the noise of the second, and one five times as much
    two equal      the best two have the same true score; only one of them, drawn in advance,
                   counts as a hit

In two more cases finalists and first are those of the estimate, as in studies with five folds (see
`storage/best.py`); the claim is made of the seeds of each architecture alone, as in the report:

    surface     true scores are a smooth function of two coordinates; noise 0.1, 0.3 or 1
    no surface  as `model`, at coordinates that tell nothing

**regret.** Eight real pools of 21 to 24 architectures, three seeds of each, with the score
`two_fold` and test results. Six are studies in DIR, made by
`nas-evidence search benchmarks/ranking/NAME.toml --out DIR/NAME`; two, of tables, were trained for
this question alone, after the race was written (`ranking/pools.py wide --pools power24-race
australian24-race`). An order draws which architectures a search meets, and which seed of each
comes first. With n trials for the search and 10 for the race:

    race   n architectures, one seed each; the first five get their two other seeds; the best mean
    wider  n + 10 architectures, one seed each; the best score
    short  n architectures, one seed each; the best score

Regret is the test result of the choice, as the mean of its three seeds, minus that of the best of
the pool. Differences between `race` and `wider` are within orders. `claim` is P(best by the score)
after the race, `best_on_test` how often the choice has the lowest test log loss of those met.
"""

import argparse
import json
import platform
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from nas_evidence.driver.race import CONFIDENCE
from nas_evidence.maths.architecture_posterior import OF_NOISY_SEEDS, ArchitecturePosterior
from nas_evidence.maths.finalists import MIN_REPEATS, next_replicates, posterior_of
from nas_evidence.maths.ranking import Floats
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import FINALISTS
from nas_evidence.storage.tables import read_table

RESULTS = Path(__file__).parent / "results"
N, N_FAMILIES = 24, 3
#: Bins of the claims.
EDGES = (0.0, 0.2, 0.35, 0.5, 0.7, 0.9, 1.0)
#: Studies at a time, and the share of studies of the cases that the model does not know.
_CHUNK, _SHARE = 20, 0.25


class Drawn(NamedTuple):
    """True scores, the noise of a family before its own factor, and coordinates to rank by."""

    mu: Floats
    level: float
    points: Floats | None = None


Truth = Callable[[np.random.Generator], Drawn]

# --- calibration


def _levels(rng: np.random.Generator) -> float:
    return float(rng.choice([0.1, 0.3, 1.0]))


def _model(rng: np.random.Generator) -> Drawn:
    noise = 0.3 * float(np.exp(rng.normal()))
    return Drawn(rng.normal(size=N) if rng.random() < 0.5 else -rng.exponential(size=N), noise)


def _groups(rng: np.random.Generator) -> Drawn:
    return Drawn(rng.choice([-3.0, -0.5, 0.0], size=N) + 0.3 * rng.normal(size=N), _levels(rng))


def _two_equal(rng: np.random.Generator) -> Drawn:
    mu, level, _ = _model(rng)
    second, best = mu.argsort()[-2:]
    mu[second] = mu[best]
    return Drawn(mu, level)


def _surface(rng: np.random.Generator) -> Drawn:
    points = rng.random((N, 2))
    covariance = np.exp(-cdist(points, points, "sqeuclidean") / (2 * 0.5**2))
    mu = rng.multivariate_normal(np.zeros(N), covariance + 1e-9 * np.eye(N))
    return Drawn((mu - mu.mean()) / mu.std(), _levels(rng), points)


def _no_surface(rng: np.random.Generator) -> Drawn:
    return _model(rng)._replace(points=rng.random((N, 2)))


TRUTHS: dict[str, Truth] = {
    "model": _model,
    "normal": lambda rng: Drawn(rng.normal(size=N), _levels(rng)),
    "ceiling": lambda rng: Drawn(-rng.exponential(size=N), _levels(rng)),
    "groups": _groups,
}


class Case(NamedTuple):
    """How studies are drawn.

    truth    of the architectures
    budget   of race trials
    factors  returns the noise of each family, relative to the level [N_FAMILIES]
    error    returns one error of a seed, of variance 1
    """

    truth: Truth
    budget: int = 30
    factors: Callable[[np.random.Generator], Floats] = lambda rng: np.exp(
        0.5 * rng.normal(size=N_FAMILIES)
    )
    error: Callable[[np.random.Generator], float] = lambda rng: float(rng.normal())


#: By name; the first is what the criterion asks for.
CASES = {
    f"{name}, budget {budget}": Case(truth, budget)
    for budget in (30, 10)
    for name, truth in TRUTHS.items()
} | {
    "heavy tails": Case(_model, error=lambda rng: float(rng.standard_t(3)) / 3**0.5),
    "unequal noise": Case(_model, factors=lambda rng: rng.permutation([0.2, 1.0, 5.0])),
    "two equal": Case(_two_equal),
    "surface": Case(_surface),
    "no surface": Case(_no_surface),
}


def ordered_by(values: Sequence[Sequence[float]], points: Floats | None) -> Floats:
    """Return what orders architectures: the means of their values, or the estimates."""
    if points is None:
        return np.array([np.mean(own) for own in values])
    return ArchitecturePosterior(points, [True, True], values, prior=OF_NOISY_SEEDS).mean()


def race(case: Case, rng: np.random.Generator) -> tuple[float, bool, int]:
    """Return claim, hit and number of race trials of one study."""
    budget = case.budget
    mu, level, points = case.truth(rng)
    family = rng.integers(N_FAMILIES, size=N)
    noise = level * case.factors(rng)[family]
    names = [str(one) for one in family]
    values = [[mu[i] + noise[i] * case.error(rng)] for i in range(N)]
    finalists = list(np.argsort(-ordered_by(values, points))[:FINALISTS])
    chosen, used = [i for i in finalists for _ in range(MIN_REPEATS - 1)], 0
    while True:
        for i in chosen[: budget - used]:
            values[i].append(mu[i] + noise[i] * case.error(rng))
        used = min(budget, used + len(chosen))
        posterior = posterior_of(values, names, seed=int(rng.integers(2**31)))
        assert posterior is not None
        order = ordered_by(values, points)
        first = max(finalists, key=lambda i: float(order[i]))
        claim = float(posterior.best[first])
        if claim >= CONFIDENCE or used >= budget:
            return claim, bool(first == mu.argmax()), used
        chosen = next_replicates(posterior, finalists, FINALISTS, seed=int(rng.integers(2**31)))


def add(case: str, so_far: dict[str, Any]) -> None:
    """Run the next studies of a case, study k the same in any piece, and add them to its sums."""
    for k in range(so_far["studies"], so_far["studies"] + _CHUNK):
        rng = np.random.default_rng([zlib.crc32(case.encode()), k])
        claim, hit, used = race(CASES[case], rng)
        one = so_far["bins"][int(np.searchsorted(EDGES, claim, side="right").clip(1, 6)) - 1]
        one["n"] += 1
        one["hits"] += hit
        for key, value in (("claims", claim), ("variance", claim * (1 - claim))):
            one[key] = round(one[key] + value, 6)
        so_far["race_trials"] += used
    so_far["studies"] += _CHUNK


def in_percent(bins: list[dict[str, Any]]) -> dict[str, float]:
    """Return means of some bins, and the standard error of the hits if the claims hold."""
    one = {key: sum(own[key] for own in bins) for key in bins[0]}
    n = max(one["n"], 1)
    error = float(np.sqrt(one["variance"])) / n
    found = {"claim": one["claims"] / n, "hits": one["hits"] / n, "standard_error": error}
    return {"n": one["n"]} | {key: round(100 * value, 1) for key, value in found.items()}


def calibration(given: argparse.Namespace, found: dict[str, Any]) -> None:
    """Simulate, print, and store after each piece."""
    end = time.monotonic() + 60 * given.minutes
    if given.to.exists():
        found = json.loads(given.to.read_text(encoding="utf-8"))
    of_cases = found.setdefault("cases", {})
    found["edges"] = EDGES
    for case in given.cases:
        n = given.studies * (1.0 if case == next(iter(CASES)) else _SHARE)
        empty = {"n": 0, "hits": 0, "claims": 0.0, "variance": 0.0}
        nothing = {"studies": 0, "race_trials": 0, "bins": [dict(empty) for _ in EDGES[1:]]}
        so_far = of_cases.setdefault(case, nothing)
        while so_far["studies"] < n and time.monotonic() < end:
            add(case, so_far)
            write_whole(given.to, json.dumps(found, indent=1) + "\n")
        print(case, in_percent(so_far["bins"]))
        print(*(f"    {in_percent([one])}" for one in so_far["bins"]), sep="\n")


# --- regret

#: Not looked at before; and studies.
NEW, STUDIES = ("power24", "australian24"), (
    "digits", "mnist", "fashion_mnist", "fashion_mnist_3000", "satellite", "cifar10",
)  # fmt: skip
SCORE, N_RACE = "two_fold", 10
#: Trials of the search; None: as many as leave room for `wider` to see the whole pool.
SEARCHES = (8, None)
#: Orders for which P(best) is computed, which takes longest.
N_CLAIMS = 100


def trained(name: str, studies: Path) -> pd.DataFrame:
    """Return a pool, one row per network: architecture_key, family, score and test results."""
    if name in NEW:
        found = pd.read_csv(RESULTS / "ranking" / "wide" / f"{name}-race.csv")
        found["architecture_key"] = found["depth"].astype(str) + "x" + found["width"].astype(str)
        names = {SCORE: "score", "test_nll": "test_nll_per_datum"}
        return found.rename(columns=names).sort_values("seed")
    evidence = read_table(studies / name, "evidence")
    scores = evidence[evidence["estimator"] == SCORE].groupby("trial_id")["value"].last()
    trials = read_table(studies / name, "trials")
    return trials.join(scores.rename("score"), on="trial_id").sort_values("trial_id")


def replay(name: str, studies: Path, n_orders: int, n_search: int | None) -> dict[str, Any]:
    """Return mean regrets over random orders of a pool."""
    trials = trained(name, studies)
    trials = trials[trials["status"] == "complete"]
    groups = [own for _, own in trials.groupby("architecture_key") if len(own) == MIN_REPEATS]

    def of(column: str) -> Floats:
        return np.stack([own[column].to_numpy(float) for own in groups])

    families, scores = [own["family"].iloc[0] for own in groups], of("score")
    results = {"loss": of("test_nll_per_datum").mean(1)}  # less is better
    real = trials["test_accuracy"].isna().all()
    results |= (
        {"rmse": of("test_rmse").mean(1)} if real else {"accuracy": -of("test_accuracy").mean(1)}
    )
    loss, n = results["loss"], n_search or len(scores) - N_RACE
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


def regret(given: argparse.Namespace, found: dict[str, Any]) -> None:
    """Replay, print and store."""
    names = [name for name in STUDIES if given.pools and (given.pools / name).is_dir()] + [*NEW]
    rows = [replay(name, given.pools, given.orders, n) for n in SEARCHES for name in names]
    print(pd.json_normalize(rows).to_string())
    found |= {"orders": given.orders, "rows": rows}
    write_whole(given.to, json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("calibration", "regret"))
    parser.add_argument("--studies", type=int, default=12_000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--pools", type=Path, help="the six studies; without them the two tables")
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--to", type=Path)
    given = parser.parse_args()
    given.to = given.to or RESULTS / f"race_{given.what}.json"
    found = {"hardware": f"{platform.machine()}, one thread", "numpy": np.__version__}
    {"calibration": calibration, "regret": regret}[given.what](given, found)


if __name__ == "__main__":
    main()
