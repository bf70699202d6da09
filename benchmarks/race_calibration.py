"""Does the race of the finalists claim as much as it keeps? Simulated studies with its own rule.

    python benchmarks/race_calibration.py [--studies 12000] [--minutes 5] [--to FILE.json]

Each study has 24 architectures of three families with true scores mu of spread 1, tried once with
noise; the first five race as in `driver/race.py`: three seeds of each, then rounds by top-two
Thompson sampling until the first is best with probability 0.9 or the budget is spent. The claim is
the probability that the first is the best of all 24, and a hit is that it is. True scores are

    model    half of the studies normal, half exponential below a ceiling; noise 0.3 exp(z): as
             the model of `maths/finalists.py` says
    normal   all of them normal; noise 0.1, 0.3 or 1
    ceiling  all of them exponential below a ceiling; noise 0.1, 0.3 or 1
    groups   a mixture of three groups, which the model does not know; noise 0.1, 0.3 or 1

The noise differs between families by a factor exp(0.5 z); z is standard normal. With a budget of
10 all of it goes to the first seeds; with 30 the race can stop early.

Three more cases are as `model`, but for one thing that the model does not assume:

    heavy tails    the noise is Student's t with 3 degrees of freedom, scaled to the same variance
    unequal noise  one family has a fifth of the noise of the second, and one five times as much
    two equal      the best two have the same true score; only one of them, drawn in advance,
                   counts as a hit

The same command goes on where the last one stopped: study k is the same in any piece.
"""

import argparse
import json
import platform
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nas_evidence.driver.race import CONFIDENCE
from nas_evidence.maths.finalists import MIN_REPEATS, next_replicates, posterior_of
from nas_evidence.maths.ranking import Floats
from nas_evidence.plumbing.files import write_whole

N, FINALISTS, N_FAMILIES = 24, 5, 3
#: Bins of the claims.
EDGES = (0.0, 0.2, 0.35, 0.5, 0.7, 0.9, 1.0)
#: Studies at a time, and the share of studies that those cases get that the model does not know.
_CHUNK, _SHARE = 20, 0.25
#: Returns true scores and the noise of a family before its own factor.
Truth = Callable[[np.random.Generator], tuple[Floats, float]]


def _levels(rng: np.random.Generator) -> float:
    return float(rng.choice([0.1, 0.3, 1.0]))


def _model(rng: np.random.Generator) -> tuple[Floats, float]:
    noise = 0.3 * float(np.exp(rng.normal()))
    return (rng.normal(size=N) if rng.random() < 0.5 else -rng.exponential(size=N)), noise


def _groups(rng: np.random.Generator) -> tuple[Floats, float]:
    return rng.choice([-3.0, -0.5, 0.0], size=N) + 0.3 * rng.normal(size=N), _levels(rng)


def _two_equal(rng: np.random.Generator) -> tuple[Floats, float]:
    mu, level = _model(rng)
    second, best = mu.argsort()[-2:]
    mu[second] = mu[best]
    return mu, level


TRUTHS: dict[str, Truth] = {
    "model": _model,
    "normal": lambda rng: (rng.normal(size=N), _levels(rng)),
    "ceiling": lambda rng: (-rng.exponential(size=N), _levels(rng)),
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
}


def race(case: Case, rng: np.random.Generator) -> tuple[float, bool, int]:
    """Return claim, hit and number of race trials of one study."""
    budget = case.budget
    mu, level = case.truth(rng)
    family = rng.integers(N_FAMILIES, size=N)
    noise = level * case.factors(rng)[family]
    names = [str(one) for one in family]
    values = [[mu[i] + noise[i] * case.error(rng)] for i in range(N)]
    finalists = list(np.argsort([-one[0] for one in values])[:FINALISTS])
    chosen, used = [i for i in finalists for _ in range(MIN_REPEATS - 1)], 0
    while True:
        for i in chosen[: budget - used]:
            values[i].append(mu[i] + noise[i] * case.error(rng))
        used = min(budget, used + len(chosen))
        posterior = posterior_of(values, names, seed=int(rng.integers(2**31)))
        assert posterior is not None
        first = max(finalists, key=lambda i: float(np.mean(values[i])))
        claim = float(posterior.best[first])
        if claim >= CONFIDENCE or used >= budget:
            return claim, bool(first == mu.argmax()), used
        chosen = next_replicates(posterior, finalists, FINALISTS, seed=int(rng.integers(2**31)))


def add(case: str, so_far: dict[str, Any]) -> None:
    """Run the next studies of a case and add them to its sums."""
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


def row(one: dict[str, Any]) -> dict[str, float]:
    """Return means of a bin in percent, and the standard error of the hits if the claims hold."""
    n = max(one["n"], 1)
    error = float(np.sqrt(one["variance"])) / n
    found = {"claim": one["claims"] / n, "hits": one["hits"] / n, "standard_error": error}
    return {"n": one["n"]} | {key: round(100 * value, 1) for key, value in found.items()}


def total(bins: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of bins."""
    return {key: sum(one[key] for one in bins) for key in bins[0]}


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=12_000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--to", type=Path, default=Path("benchmarks/results/race_calibration.json")
    )
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    found: dict[str, Any] = {
        "hardware": f"{platform.machine()}, one thread",
        "numpy": np.__version__,
        "edges": EDGES,
        "cases": {},
    }
    if given.to.exists():
        found = json.loads(given.to.read_text(encoding="utf-8"))
    for case in given.cases:
        n = given.studies * (1.0 if case == next(iter(CASES)) else _SHARE)
        empty = {"n": 0, "hits": 0, "claims": 0.0, "variance": 0.0}
        nothing = {"studies": 0, "race_trials": 0, "bins": [dict(empty) for _ in EDGES[1:]]}
        so_far = found["cases"].setdefault(case, nothing)
        while so_far["studies"] < n and time.monotonic() < end:
            add(case, so_far)
            write_whole(given.to, json.dumps(found, indent=1) + "\n")
        if so_far["studies"]:
            print(case, row(total(so_far["bins"])))
            for one in so_far["bins"]:
                print("   ", row(one))


if __name__ == "__main__":
    main()
