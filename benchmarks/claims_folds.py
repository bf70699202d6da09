"""Does "Worth it?" hold where the folds that chose the winner judge it? Simulated, truth known.

    python -m benchmarks.run claims_folds [--only task=real rows=100 architectures=1]

    f(x) = x w + s |x_0| x_1      x and w normal, 5 features, s one of 0, 0.5, 1, 2, 3
    y = f + noise of variance 1, or a class with log odds 1.5 f

K "networks" are ridge or logistic regression on x and 4 to 32 random ReLU features, with a random
penalty; the simple models are a constant, the same regression on x alone, and on x and all
products of two. Five folds; the spread of real targets is fitted to the residuals of the other
folds. The winner is the first by

    mean      the mean log density of the folds
    evidence  the mean joint log density of a fold under the Bayesian last layer (real targets)
    estimate  the posterior of `maths/architecture_posterior.py` given these scores, from 8 on
    race      the four best by the estimate, else the mean, each with two more seeds and divisions

The truth is the difference of expected log densities on fresh rows, of the networks of the folds
or of the network of all rows. Before: the paired interval of the winner beside the best simple
model. After: `maths/bias_corrected.py`. All is seeded by the number of the study.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from run import Case, Given, Row
from scipy.stats import beta

from nas_evidence.maths.architecture_posterior import OF_NOISY_SEEDS, ArchitecturePosterior
from nas_evidence.maths.bias_corrected import (
    chosen,
    draws_of_rows,
    factor_of_folds,
    interval_of,
)
from nas_evidence.maths.metrics import LEAST
from nas_evidence.maths.paired import paired_interval
from nas_evidence.storage.best import FEWEST

Floats = NDArray[np.float64]
N_FOLDS, N_FEATURES = 5, 5
#: Maximum number of rows times models that are fitted together.
MOST_AT_ONCE = 20_000
CURVED = (0.0, 0.5, 1.0, 2.0, 3.0)
#: Kinds of targets, and rankings.
FILE = "claims/folds.csv"
TASKS = ("real", "classes")
RANKINGS = ("mean", "evidence", "estimate", "race")
ROWS, ARCHITECTURES = (100, 200, 500, 1000, 2000), (1, 4, 8, 24, 48)
FINALISTS, SEEDS = 4, 3
FACTOR = factor_of_folds([(1, N_FOLDS - 1)] * N_FOLDS)
#: Promised shares of studies: the truth below the lower end, and a false "Yes".
BELOW, FALSE_YES = 0.05, 0.03


class Judged(NamedTuple):
    """A model on folds: log densities [n], their truth by folds and by all rows, the evidence."""

    own: Floats
    folds: float
    delivered: float
    evidence: float


class Table(NamedTuple):
    """Rows of a study, and fresh ones."""

    x: Floats
    y: Floats
    fresh: Floats
    truth: Floats
    labels: bool


def table_of(rng: np.random.Generator, n: int, *, labels: bool) -> Table:
    """Return a study of n rows."""
    w, curved = 0.6 * rng.normal(size=N_FEATURES), rng.choice(CURVED)
    x = rng.normal(size=(n + n_fresh(n), N_FEATURES))
    f = x @ w + curved * np.abs(x[:, 0]) * x[:, 1]
    noisy = f + rng.normal(size=len(x))
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-1.5 * f))).astype(float) if labels else noisy
    return Table(x[:n], y[:n], x[n:], y[n:], labels)


def relu(rng: np.random.Generator, width: int) -> Callable[[Floats], Floats]:
    """Return random features: 1, x, and `width` rectified linear ones."""
    w, b = rng.normal(size=(N_FEATURES, width)), rng.normal(size=width)
    return lambda x: np.column_stack([np.ones(len(x)), x, np.maximum(x @ w + b, 0)])


def constant(x: Floats) -> Floats:
    """Return the feature 1."""
    return np.ones((len(x), 1))


def linear(x: Floats) -> Floats:
    """Return 1 and x."""
    return np.column_stack([np.ones(len(x)), x])


def products(x: Floats) -> Floats:
    """Return 1, x and all products of two."""
    i, j = np.triu_indices(N_FEATURES)
    return np.column_stack([np.ones(len(x)), x, x[:, i] * x[:, j]])


SIMPLE = ((constant, 1e-3), (linear, 1.0), (products, 5.0))


def _curvature(p: Floats, seen: Floats, penalty: Floats) -> Floats:
    """Return the precision [K, F, Q, Q] given features [K, n, Q], and the rows seen [F, n]."""
    weighted = p.transpose(0, 2, 1)[:, None] * seen[None, :, None]
    found: Floats = weighted @ p[:, None] + penalty[:, None, :, None] * np.eye(p.shape[2])
    return found


def _ridge(p: Floats, y: Floats, seen: Floats, penalty: Floats) -> Floats:
    """Return the weights [K, F, Q]."""
    reached = (seen * y) @ p
    return np.linalg.solve(_curvature(p, seen, penalty), reached[..., None])[..., 0]


def _logistic(p: Floats, y: Floats, seen: Floats, penalty: Floats) -> Floats:
    w = np.zeros((len(p), len(seen), p.shape[2]))
    turned, ridge = p.transpose(0, 2, 1)[:, None], penalty[:, None, :, None] * np.eye(p.shape[2])
    for _ in range(8):
        q = 1 / (1 + np.exp(-np.clip(w @ turned[:, 0], -30, 30)))
        curvature = turned * (seen * np.maximum(q * (1 - q), 1e-6))[:, :, None] @ p[:, None]
        slope = (seen * (y - q)) @ p - penalty[:, None] * w
        step = np.linalg.solve(curvature + ridge, slope[..., None])[..., 0]
        w = w + step
        if np.abs(step).max() < 1e-4:
            break
    return w


def _normal(mean: Floats, spread: float | Floats, y: Floats) -> Floats:
    return -0.5 * ((y - mean) / spread) ** 2 - np.log(spread) - 0.5 * math.log(2 * math.pi)


def _class(f: Floats, y: Floats) -> Floats:
    return -np.minimum(np.logaddexp(0, np.where(y > 0, -f, f)), -math.log(LEAST))


def judged(
    study: Table,
    features: Sequence[Callable[[Floats], Floats]],
    penalties: Sequence[float],
    folds: list[NDArray[np.int64]],
    *,
    simple: bool = False,
) -> list[Judged]:
    """Return models on the folds; simple ones take their noise from their own training rows."""
    at_once = max(1, MOST_AT_ONCE // len(study.y))
    if len(features) > at_once:
        cut = features[:at_once], penalties[:at_once], features[at_once:], penalties[at_once:]
        first = judged(study, cut[0], cut[1], folds, simple=simple)
        return first + judged(study, cut[2], cut[3], folds, simple=simple)
    p, fresh = (
        _padded([of(study.x) for of in features]),
        _padded([of(study.fresh) for of in features]),
    )
    y = study.y
    penalty = np.broadcast_to(np.array(penalties)[:, None], p.shape[::2]).copy()
    penalty[:, 0] = 1e-6
    seen = np.ones((len(folds) + 1, len(y)))  # the last: all rows
    for number, fold in enumerate(folds):
        seen[number, fold] = 0
    of_row = seen[:-1].argmin(0)
    w = (_logistic if study.labels else _ridge)(p, y, seen, penalty)
    turned = p.transpose(0, 2, 1)
    f = np.take_along_axis(w @ turned, of_row[None, None], 1)[:, 0]
    out = w @ fresh.transpose(0, 2, 1)
    if study.labels:
        own, true = _class(f, y), _class(out, study.truth).mean(2)
        return [Judged(own[k], float(true[k, :-1].mean()), float(true[k, -1]), own[k].mean())
                for k in range(len(p))]  # fmt: skip
    away, unseen = y - f, 1 - seen[:-1]
    n_unseen = unseen.sum(1)
    spread = np.sqrt(away**2 @ seen[:-1].T / seen[:-1].sum(1))  # [K, F]
    precision = _curvature(p, seen, penalty)
    if simple:
        for k, number in itertools.product(range(len(p)), range(len(folds))):
            rest = p[k][seen[number] > 0]
            turned_rest = np.linalg.solve(precision[k, number], rest.T)
            leverage = np.einsum("ij,ji->i", rest, turned_rest)
            left = y[seen[number] > 0] - rest @ w[k, number]
            spread[k, number] = _rms(left / (1 - leverage))
    own = _normal(f, spread[:, of_row], y)
    reached = (away[:, None] * unseen) @ p
    explained = reached * np.linalg.solve(precision[:, -1:], reached[..., None])[..., 0]
    square = (away**2 @ unseen.T - explained.sum(2)) / spread**2
    volumes = np.linalg.slogdet(precision)[1]
    size = volumes[:, -1:] - volumes[:, :-1] + n_unseen * np.log(2 * math.pi * spread**2)
    evidence = -0.5 * (square + size).sum(1) / len(y)
    true = _normal(out[:, :-1], spread[:, :, None], study.truth).mean((1, 2))
    delivered = _normal(out[:, -1], np.sqrt((away**2).mean(1))[:, None], study.truth).mean(1)
    return [Judged(own[k], *map(float, of))
            for k, of in enumerate(zip(true, delivered, evidence, strict=True))]  # fmt: skip


def _padded(features: list[Floats]) -> Floats:
    """Return features [K, n, Q], with zeros where a model has fewer than others."""
    found = np.zeros((len(features), len(features[0]), max(one.shape[1] for one in features)))
    for k, one in enumerate(features):
        found[k, :, : one.shape[1]] = one
    return found


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def study(number: int, task: str, n: int, k: int) -> list[dict[str, Any]]:
    """Return what is said of the winner of one study, by each ranking, and the truth."""
    rng = np.random.default_rng([number, n, k, task == "classes"])
    one = table_of(rng, n, labels=task == "classes")
    folds = [np.array_split(rng.permutation(n), N_FOLDS) for _ in range(SEEDS)]
    width = rng.uniform(np.log(4), np.log(32), k)
    penalty = rng.uniform(np.log(0.3), np.log(30), k)

    def trained(these: Sequence[int], replicate: int) -> list[Judged]:
        features = [relu(rng, int(np.exp(width[i]))) for i in these]
        return judged(one, features, [np.exp(penalty[i]) for i in these], folds[replicate])

    networks = [[own] for own in trained(range(k), 0)]
    simple = [judged(one, *zip(*SIMPLE, strict=True), folds[r], simple=True) for r in range(SEEDS)]
    means = np.array([own[0].own.mean() for own in networks])
    evidence = np.array([own[0].evidence for own in networks])
    firsts = {"mean": int(means.argmax())}
    if task == "real":
        firsts["evidence"] = int(evidence.argmax())
    ranks = means
    if k >= FEWEST:
        points = np.column_stack([(width - np.log(4)) / np.log(8),
                                  (penalty - np.log(0.3)) / np.log(100)])  # fmt: skip
        values = [[value] for value in (means + evidence) / 2]
        posterior = ArchitecturePosterior(points, np.ones(2, bool), values, prior=OF_NOISY_SEEDS)
        ranks = posterior.mean()
        firsts["estimate"] = int(ranks.argmax())
    draws = draws_of_rows(n, seed=number)
    found = said(firsts, networks, simple[:1], draws)
    if k > 1:
        finalists = np.argsort(-ranks)[:FINALISTS]
        for r in range(1, SEEDS):
            for i, own in zip(finalists, trained(finalists, r), strict=True):
                networks[i].append(own)
        worth = {i: np.mean([(own.own.mean() + own.evidence) / 2 for own in networks[i]])
                 for i in finalists}  # fmt: skip
        first = max(worth, key=lambda i: worth[i])
        found += said({"race": int(first)}, networks, simple, draws)
    return found


def said(
    firsts: Mapping[str, int],
    networks: list[list[Judged]],
    simple: list[list[Judged]],
    draws: Floats,
) -> list[dict[str, Any]]:
    """Return point and ends before and after, and the truth by folds and of what is delivered."""
    own = np.column_stack([np.mean([s.own for s in seeds], axis=0) for seeds in networks])
    others = np.column_stack(
        [np.mean([m.own for m in of], axis=0) for of in zip(*simple, strict=True)]
    )
    best = int(others.mean(0).argmax())
    rivals = [replicate[best] for replicate in simple]
    found = []
    for by, first in firsts.items():
        winner = networks[first]
        before = paired_interval(own[:, first] - others[:, best])
        corrected = chosen(own, others, draws, winner=first)
        taken = max(winner, key=lambda s: s.own.mean() + s.evidence)
        true = np.mean([s.folds for s in winner]) - np.mean([m.folds for m in rivals])
        found.append(
            {
                "by": by,
                "before": [*before],
                "after": [corrected.gap, *interval_of(corrected, before, FACTOR)],
                "folds": float(true),
                "delivered": taken.delivered - rivals[0].delivered,
            }
        )
    return found


def shares(studies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the sentence errs in a cell, before and after."""
    found: dict[str, Any] = {"n": len(studies)}
    for when in ("before", "after"):
        point, low, high = np.array([one[when] for one in studies]).T
        found[when] = {"said": float(point.mean()), "yes": float((low > 0).mean()),
                       "no": float((high < 0).mean())}  # fmt: skip
        for of in ("folds", "delivered"):
            true = np.array([one[of] for one in studies])
            found[of] = float(true.mean())
            found[when] |= {
                f"below_{of}": float((true < low).mean()),
                f"above_{of}": float((true > high).mean()),
                f"false_yes_{of}": float(((low > 0) & (true <= 0)).mean()),
                f"false_no_{of}": float(((high < 0) & (true >= 0)).mean()),
            }
    return found


def cells() -> list[Row]:
    """Return a cell for each ranking; small studies come first."""
    return [
        {"task": task, "rows": n, "architectures": k, "by": by}
        for k, n, task, by in itertools.product(ARCHITECTURES, ROWS, TASKS, RANKINGS)
        if (by, task) != ("evidence", "classes")
        and (by != "estimate" or k >= FEWEST) and (by != "race" or k > 1)
    ]  # fmt: skip


def cell(task: str, n: int, k: int, n_studies: int) -> list[Row]:
    """Return the shares of the studies of a cell, by each ranking."""
    each = [one for number in range(n_studies) for one in study(number, task, n, k)]
    names = dict.fromkeys(one["by"] for one in each)
    return [{"task": task, "rows": n, "architectures": k, "by": by}
            | shares([one for one in each if one["by"] == by]) for by in names]  # fmt: skip


def measure(asked: Row, given: Given) -> list[Row]:
    """Return the same of an asked cell."""
    n = asked["rows"]
    n_studies = 4 if given.quick else number_of_studies(n)
    return cell(asked["task"], n, asked["architectures"], n_studies)


def limits(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % Clopper-Pearson interval of a share of n."""
    hits = round(share * n)
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)


def n_fresh(n: int) -> int:
    """Return how many fresh rows tell the truth: its error is small beside that of n rows."""
    return 1000 if n <= 500 else 10 * n


def number_of_studies(n: int) -> int:
    """Return how many studies a cell of n rows has."""
    return {100: 150, 200: 150, 500: 80, 1000: 40, 2000: 24}[n]


def claims_of(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the promises, with the worst cell and all studies together, before and after.

    Args:
        cells: rows of the file of results, `before` and `after` as dictionaries.
    """
    return [
        _claim(
            cells,
            "95 % interval of the difference",
            f"truth below the lower end in at most {BELOW:.0%}",
            "below",
        ),
        _claim(
            cells, "Yes: clearly better than", f"false in at most {FALSE_YES:.0%}", "false_yes"
        ),
        _claim(cells, "No: clearly worse than", "false in at most 5%", "false_no"),
    ]


def _claim(cells: list[dict[str, Any]], claim: str, promise: str, error: str) -> dict[str, Any]:
    found = {}
    for when in ("before", "after"):
        each = [one[when][f"{error}_folds"] for one in cells]
        total = sum(share * one["n"] for share, one in zip(each, cells, strict=True))
        mean = total / sum(one["n"] for one in cells)
        found[when] = f"{100 * mean:.1f} %; worst cell {100 * max(each):.1f} %"
    worst = max(cells, key=lambda one: one["after"][f"{error}_folds"])
    low, high = limits(worst["after"][f"{error}_folds"], worst["n"])
    return {
        "claim": claim,
        "promise": promise,
        "before": found["before"],
        "measured": found["after"],
        "n": sum(one["n"] for one in cells),
        "spread": f"95 % of the worst cell: {100 * low:.1f} to {100 * high:.1f} %",
    }


CASES = {
    "claims_folds": Case(
        ("task", "rows", "architectures", "by"), cells, measure, lambda cell: FILE,
        packages=("numpy", "scipy"),
    )
}  # fmt: skip
