"""Does the race of the finalists claim as much as it keeps? Simulated studies with its own rule.

    python benchmarks/race_calibration.py [--studies 2000] [--to FILE]

Each study has 24 architectures of three families with true scores mu, tried once with noise; the
first five race as in `driver/race.py`: three seeds of each, then rounds by top-two Thompson
sampling until the first is best with probability 0.9 or the budget is spent. The claim is the
probability that the first is the best of all 24, and a hit is that it is. True scores are

    model      half of the studies normal, half exponential below a ceiling: as the model says
    normal     all of them normal
    ceiling    all of them exponential below a ceiling
    gaussian3  a mixture of three groups, which the model does not know

The noise of the seeds is 0.1, 0.3 or 1 of the spread of the scores, and differs between families
by a factor exp(0.5 z). Bins hold a sixth of the studies each.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nas_evidence.driver.race import CONFIDENCE
from nas_evidence.maths.finalists import MIN_REPEATS, next_replicates, posterior_of
from nas_evidence.maths.ranking import Floats

N, FINALISTS, N_FAMILIES, N_BINS = 24, 5, 3, 6
BUDGETS = (10, 30)
Truth = Callable[[np.random.Generator], Floats]


def _normal(rng: np.random.Generator) -> Floats:
    return rng.normal(size=N)


def _ceiling(rng: np.random.Generator) -> Floats:
    return -rng.exponential(size=N)


def _groups(rng: np.random.Generator) -> Floats:
    return rng.choice([-3.0, -0.5, 0.0], size=N) + 0.3 * rng.normal(size=N)


def _model(rng: np.random.Generator) -> Floats:
    return _normal(rng) if rng.random() < 0.5 else _ceiling(rng)


TRUTHS: dict[str, Truth] = {
    "model": _model,
    "normal": _normal,
    "ceiling": _ceiling,
    "gaussian3": _groups,
}


def race(truth: Truth, budget: int, rng: np.random.Generator) -> tuple[float, bool, int]:
    """Return claim, hit and number of race trials of one study."""
    mu, family = truth(rng), rng.integers(N_FAMILIES, size=N)
    noise = rng.choice([0.1, 0.3, 1.0]) * np.exp(0.5 * rng.normal(size=N_FAMILIES))[family]
    names = [str(one) for one in family]
    values = [[mu[i] + noise[i] * rng.normal()] for i in range(N)]
    finalists = list(np.argsort([-one[0] for one in values])[:FINALISTS])
    chosen, used = [i for i in finalists for _ in range(MIN_REPEATS - 1)], 0
    while True:
        for i in chosen[: budget - used]:
            values[i].append(mu[i] + noise[i] * rng.normal())
        used = min(budget, used + len(chosen))
        posterior = posterior_of(values, names, seed=int(rng.integers(2**31)))
        assert posterior is not None
        first = max(finalists, key=lambda i: float(np.mean(values[i])))
        claim = float(posterior.best[first])
        if claim >= CONFIDENCE or used >= budget:
            return claim, bool(first == mu.argmax()), used
        chosen = next_replicates(posterior, finalists, FINALISTS, seed=int(rng.integers(2**31)))


def summary(runs: list[tuple[float, bool, int]]) -> dict[str, object]:
    """Return the bins of claims, and the means."""
    claims, hits = (np.array([float(run[k]) for run in runs]) for k in (0, 1))
    bins = [
        {
            "n": len(rows),
            "claim": round(float(claims[rows].mean()), 4),
            "hits": round(float(hits[rows].mean()), 4),
            "standard_error": round(
                float(np.sqrt(np.mean(claims[rows] * (1 - claims[rows])) / len(rows))), 4
            ),
        }
        for rows in np.array_split(np.argsort(claims, kind="stable"), N_BINS)
    ]
    return {
        "studies": len(runs),
        "claim": round(float(claims.mean()), 4),
        "hits": round(float(hits.mean()), 4),
        "race_trials": round(float(np.mean([run[2] for run in runs])), 2),
        "bins": bins,
    }


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--to", type=Path, default=None)
    given = parser.parse_args()
    found: dict[str, object] = {
        "hardware": f"{platform.machine()}, one thread",
        "numpy": np.__version__,
        "results": {},
    }
    for name, truth in TRUTHS.items():
        for budget in BUDGETS:
            n = given.studies if name == "model" else given.studies // 4
            start = time.process_time()
            rng = np.random.default_rng(0)
            found["results"][f"{name}, budget {budget}"] = summary(  # type: ignore[index]
                [race(truth, budget, rng) for _ in range(n)]
            )
            seconds = time.process_time() - start
            print(name, budget, found["results"][f"{name}, budget {budget}"], f"{seconds:.0f} s")  # type: ignore[index]
            if given.to is not None:
                given.to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
