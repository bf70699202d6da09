"""How often sentences of the first screen err: docs/results/intervals-and-calibration.md.

    python -m benchmarks.run claims [--only topic=ties,targets]

A seed is (topic, study). The topics:

    ties        P(best) and "if another is truly best": simulated races of 24 architectures in
                which the estimate ranks, on a smooth surface, with five near-duplicates of the
                best, and at coordinates that tell nothing
    luck        on the 53 committed pools of up to 1,000 rows: is the best score alone, of one
                seed, luck? No cause is named, since which of the two is better is open
    misranked   "does not rank well here", of a score whose true rho is known
    usual-rho   the usual rho of the default ranking, on the pools that chose nothing
    targets     the warning of intervals that are wrong. They are of one normal noise around the
                true mean, of the standard deviation stated:
        right         normal noise; one or five targets, errors of a row equal
        one noise     two standardised targets of noise 0.15 and 1 share the root mean square
        skewed        log y = f + 0.6 e, f ~ N(0, 1): predicted mean and standard deviation of y,
                      of all rows alike
        exponential   exponential noise of one width
        sorted        a constant prediction of a file that is sorted by its target
"""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from claims_folds import limits
from judge import POOLS, Ranked, _points, _signed, read, spearman
from run import Case, Given, Row, cells_of
from scipy.spatial.distance import cdist

from nas_evidence.driver.race import CONFIDENCE
from nas_evidence.maths.architecture_posterior import (
    OF_NOISY_SEEDS,
    ArchitecturePosterior,
)
from nas_evidence.maths.conditional_coverage import by_quartile, failures, n_pit
from nas_evidence.maths.finalists import N_DRAWS, next_replicates, posterior_of
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.ranking import Floats, rank_statistics, resampling_plan
from nas_evidence.reporting.certainty import tied_with_first
from nas_evidence.reporting.headline import _CLEARLY, USUAL_RHO
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import FINALISTS

#: Maximum number of rows of a pool, and the score and prior that rank there.
MOST_ROWS, SCORE = 1000, "mean5"
#: Architectures of a simulated search, and trials of its race.
N, BUDGET = 24, 30


def _seeded(claim: str, study: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(claim.encode()), study])


def _row(claim: str, promise: str, measured: str, n: int, spread: str) -> Row:
    return {"claim": claim, "promise": promise, "measured": measured, "n": n, "spread": spread}


def _share(hits: Sequence[float]) -> str:
    """Return the interval of a share, by Wilson's formula."""
    n, p = len(hits), float(np.mean(hits))
    centre, half = p + 1.92 / n, 1.96 * math.sqrt(p * (1 - p) / n + 0.96 / n**2)
    low, high = ((centre + sign * half) / (1 + 3.84 / n) for sign in (-1, 1))
    return f"{max(low, 0.0):.2f} to {high:.2f}"


# --- the first rank


class Drawn(NamedTuple):
    """True scores of spread 1, the noise of a family before its own factor, and coordinates."""

    mu: Floats
    level: float
    points: Floats


def _on_a_surface(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return coordinates, and scores that are a smooth function of them."""
    points = rng.random((N, 2))
    covariance = np.exp(-cdist(points, points, "sqeuclidean") / (2 * 0.5**2))
    mu = rng.multivariate_normal(np.zeros(N), covariance + 1e-9 * np.eye(N))
    return points, (mu - mu.mean()) / mu.std()


def _surface(rng: np.random.Generator) -> Drawn:
    points, mu = _on_a_surface(rng)
    return Drawn(mu, float(rng.choice([0.1, 0.3, 1.0])), points)


def _near_duplicates(rng: np.random.Generator) -> Drawn:
    """Return a smooth surface with five near-duplicates of its best architecture."""
    points, mu = _on_a_surface(rng)
    best, worst = mu.argmax(), np.argsort(mu)[:5]
    points[worst] = np.clip(points[best] + 0.01 * rng.normal(size=(5, 2)), 0, 1)
    mu[worst] = mu[best] + 0.01 * rng.normal(size=5)
    return Drawn(mu, float(rng.choice([0.1, 0.3, 1.0])), points)


def _no_surface(rng: np.random.Generator) -> Drawn:
    """Return scores as the model of `maths/finalists.py` says, at coordinates of no meaning."""
    noise = 0.3 * float(np.exp(rng.normal()))
    mu = rng.normal(size=N) if rng.random() < 0.5 else -rng.exponential(size=N)
    return Drawn(mu, noise, rng.random((N, 2)))


def ordered_by(values: Sequence[Sequence[float]], points: Floats) -> Floats:
    """Return the estimates, which order the architectures."""
    return ArchitecturePosterior(points, [True, True], values, prior=OF_NOISY_SEEDS).mean()


def _raced(
    truth: Callable[[np.random.Generator], Drawn], rng: np.random.Generator
) -> tuple[float, ...]:
    """Return claim, hit, size of the tie, loss said and lost."""
    mu, level, points = truth(rng)
    family = rng.integers(3, size=N)
    noise = level * np.exp(0.5 * rng.normal(size=3))[family]
    names = [str(one) for one in family]
    values = [[mu[i] + noise[i] * float(rng.normal())] for i in range(N)]
    finalists = list(np.argsort(-ordered_by(values, points))[:FINALISTS])
    chosen, used = [i for i in finalists for _ in range(2)], 0
    while True:
        for i in chosen[: BUDGET - used]:
            values[i].append(mu[i] + noise[i] * float(rng.normal()))
        used = min(BUDGET, used + len(chosen))
        own = posterior_of(values, names, seed=int(rng.integers(2**31)))
        assert own is not None
        order = ordered_by(values, points)
        first = max(finalists, key=lambda i: float(order[i]))
        if own.best[first] >= CONFIDENCE or used >= BUDGET:
            break
        chosen = next_replicates(own, finalists, FINALISTS, seed=int(rng.integers(2**31)))
    posterior = ArchitecturePosterior(points, [True, True], values, prior=OF_NOISY_SEEDS)
    places = [first, *(i for i in range(N) if i != first)]
    draws = posterior.draws(N_DRAWS, seed=0)[:, places]
    value, _ = posterior.warp.moments(posterior.mean(), posterior.deviation())
    seed_noise = posterior.hyper.noise * posterior.warp.unit
    tied = [0, *tied_with_first(draws, value[places], seed_noise)]
    best = np.bincount(draws.argmax(1), minlength=N) / N_DRAWS
    hit, lost = float(np.argmax(mu[places]) in tied), float(mu.max() - mu[first])
    return (
        float(best[tied].sum()),
        hit,
        float(len(tied)),
        float((draws.max(1) - draws[:, 0]).mean()),
        lost,
    )


def ties(studies: int) -> Iterator[Row]:
    """Yield what is said of the first rank, and what is true."""
    cases = {
        "surface": ("a smooth surface", _surface),
        "near": ("five near-duplicates of the best", _near_duplicates),
        "none": ("coordinates that tell nothing", _no_surface),
    }
    for name, (where, truth) in cases.items():
        found = np.array([_raced(truth, _seeded(f"ties {name}", k)) for k in range(studies)])
        claim, hit, tied, said, lost = found.mean(0)
        yield _row(
            f"P(best) of the first, or of those tied with it ({where})", "said as often as true",
            f"said {claim:.2f}, true {hit:.2f}; {tied:.1f} tied", studies,
            _share(list(found[:, 1])),
        )  # fmt: skip
        error = found[:, 4].std() / math.sqrt(studies)
        yield _row(
            f"if another is truly best, you lose about X ({where})",
            "as much as is lost, in units of the spread",
            f"said {said:.3f}, lost {lost:.3f}", studies, f"standard error {error:.3f}",
        )  # fmt: skip


# --- committed pools


def pools(
    groups: Sequence[str] = ("folds", "rank", "rank/second"),
) -> Iterator[tuple[str, Ranked]]:
    """Yield the committed pools of up to `MOST_ROWS` rows."""
    for group in groups:
        for name, pool in POOLS[group].items():
            if pool.n_train <= MOST_ROWS:
                yield f"{group}/{name}", read(group, name, complete=True)


def luck(studies: int) -> Iterator[Row]:
    """Yield whether the best score alone, of another architecture than the first, is luck."""
    right_loss, right_score, n = [], [], 0
    for _, pool in pools():
        points, ordered = _points(pool)
        values = _signed(pool, SCORE)
        for k in range(values.shape[1]):
            known = np.isfinite(values[:, k])
            if known.sum() < 8:
                continue
            n += 1
            own = [[v] for v in values[known, k]]
            order = ArchitecturePosterior(points[known], ordered, own, prior=OF_NOISY_SEEDS).mean()
            first, lucky = int(order.argmax()), int(values[known, k].argmax())
            if first != lucky:
                loss = np.delete(pool.loss, k, 1).mean(1)[known]
                score = np.nanmean(np.delete(values, k, 1), 1)[known]
                right_loss.append(float(loss[first] < loss[lucky]))
                right_score.append(float(score[first] > score[lucky]))
    yield _row(
        "the best score alone is another's, so luck is the likelier cause",
        "true in more than half of the cases",
        f"the first has the lower test loss in other seeds in {np.mean(right_loss):.2f}, the "
        f"higher score in {np.mean(right_score):.2f}",
        len(right_loss), f"{_share(right_loss)}; said in {len(right_loss)} of {n} pool-seeds",
    )  # fmt: skip


def usual_rho(studies: int) -> Iterator[Row]:
    """Yield the mean rho of the default ranking on pools that chose neither score nor prior."""
    found: dict[str, list[float]] = {task: [] for task in TARGET_KINDS}
    chose = {name for name, pool in POOLS["rank"].items() if not pool.aside}
    for name, pool in pools(("rank", "rank/second")):
        if name.startswith("rank/") and name.removeprefix("rank/") in chose:
            continue
        points, ordered = _points(pool)
        values = _signed(pool, SCORE)
        for k in range(values.shape[1]):
            known = np.isfinite(values[:, k])
            if known.sum() > 2:
                own = [[v] for v in values[known, k]]
                order = ArchitecturePosterior(
                    points[known], ordered, own, prior=OF_NOISY_SEEDS
                ).mean()
                truth = -np.delete(pool.loss, k, 1).mean(1)[known]
                found["regression" if pool.real else "classification"].append(
                    float(spearman(order, truth))
                )
    for kind in TARGET_KINDS.values():
        rhos = found[kind.task]
        yield _row(
            f"usually about rho ({kind.targets})", "the mean on pools that chose nothing",
            f"said {USUAL_RHO[kind.task]:.2f}, measured {np.mean(rhos):.2f}", len(rhos),
            f"{np.min(rhos):.2f} to {np.max(rhos):.2f}",
        )  # fmt: skip


# --- advice and numbers


def misranked(studies: int) -> Iterator[Row]:
    """Yield how often a score is accused that has a known rho in the population."""
    n_studies = 20 * studies
    for n in (10, 24):
        for rho in (0.63, 0.5, 0.0):
            rng = _seeded(f"misranked {n} {rho}", 0)
            # Of normal pairs the rank correlation is 6 / pi arcsin(r / 2).
            r = 2 * math.sin(math.pi * rho / 6)
            x = rng.normal(size=(n_studies, n))
            y = r * x + math.sqrt(1 - r**2) * rng.normal(size=(n_studies, n))
            some = range(0, n_studies, 4)
            plan = resampling_plan(n, seed=0, n_resamples=10)
            new = []
            for i in some:
                interval = rank_statistics(x[i], y[i], plan=plan, regret_at=(1,)).rho_interval
                new.append(
                    interval is not None and interval.high < USUAL_RHO["classification"] - _CLEARLY
                )
            yield _row(
                f"does not rank well here (true rho {rho:.2f}, {n} architectures)",
                "at most 2.5 % of scores with the usual rho of 0.63",
                f"said in {100 * np.mean(new):.1f} %", len(new), _share([*map(float, new)]),
            )  # fmt: skip


# --- intervals

Draw = Callable[[np.random.Generator, int], tuple[Normals, Floats]]


def _warned(density: Normals, y: Floats) -> bool:
    """Return whether the first screen warns of the intervals."""
    count = y.shape[1]
    parts = [(density.column(k), y[:, [k]]) for k in range(count)]
    return any(failures(by_quartile(*part), n_pit(*part), n_targets=count) for part in parts)


def _right(count: int) -> Draw:
    def draw(random: np.random.Generator, n: int) -> tuple[Normals, Floats]:
        f = random.normal(size=(n, count))
        return Normals.single(f, np.ones(count)), f + random.normal(size=(n, 1))

    return draw


def _one_noise(random: np.random.Generator, n: int) -> tuple[Normals, Floats]:
    signal, noise = np.array([1.0, 0.2]), np.array([0.15, 1.0])
    f = signal * random.normal(size=(n, 2))
    y, unit = f + noise * random.normal(size=(n, 2)), np.hypot(signal, noise)
    common = math.sqrt(np.mean(np.square(noise / unit)))
    return Normals.single(f / unit, np.full(2, common)), y / unit


def _skewed(random: np.random.Generator, n: int) -> tuple[Normals, Floats]:
    f = random.normal(size=(n, 1))
    mean, y = np.exp(f + 0.18), np.exp(f + 0.6 * random.normal(size=(n, 1)))
    std = math.exp(1 + 0.18) * math.sqrt(math.exp(0.36) - 1)  # root mean square over f
    return Normals.single(mean, np.full(1, std)), y


def _exponential(random: np.random.Generator, n: int) -> tuple[Normals, Floats]:
    f = random.normal(size=(n, 1))
    return Normals.single(f, np.ones(1)), f - 1 + random.exponential(size=(n, 1))


def _sorted(random: np.random.Generator, n: int) -> tuple[Normals, Floats]:
    return Normals.single(np.zeros((n, 1)), np.ones(1)), np.sort(random.normal(size=(n, 1)), 0)


def targets(studies: int) -> Iterator[Row]:
    """Yield how often intervals are warned of that are right, and that are wrong."""
    wrong, right = "warns of intervals that are wrong", "false in at most 5 %"
    each, warning = "the 90 % intervals cover ... of each target", "a warning of right intervals"
    other = "... have another distribution than predicted"
    kinds: tuple[tuple[str, str, int, Draw], ...] = (
        (f"{each} (one noise makes them wrong, 300 rows)", wrong, 300, _one_noise),
        ("the intervals are too wide ... and too narrow (skewed prices, 160 rows)", wrong, 160,
         _skewed),
        (f"{other} (exponential noise, 400 rows)", wrong, 400, _exponential),
        (f"{warning} (one target, 400 rows)", right, 400, _right(1)),
        (f"{warning} (five targets, errors of a row equal, 400 rows)", right, 400, _right(5)),
        (f"{warning} (constant prediction of a sorted file)", right, 400, _sorted),
    )  # fmt: skip
    for claim, promise, n, draw in kinds:
        drawn = (draw(np.random.default_rng((n, seed)), n) for seed in range(studies))
        share = sum(_warned(*one) for one in drawn) / studies
        low, high = limits(share, studies)
        yield _row(
            claim, promise, f"warned {100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
            studies, "95 % Clopper-Pearson interval in brackets",
        )  # fmt: skip


#: By topic, with the number of studies.
CLAIMS: dict[str, tuple[Callable[[int], Iterator[Row]], int]] = {
    "ties": (ties, 60), "luck": (luck, 0), "misranked": (misranked, 60),
    "usual-rho": (usual_rho, 0), "targets": (targets, 200),
}  # fmt: skip


def measure(cell: Row, given: Given) -> list[Row]:
    """Return the claims of a topic."""
    claims, studies = CLAIMS[cell["topic"]]
    return [{**cell, **row} for row in claims(min(studies, 4) if given.quick else studies)]


CASES = {
    "claims": Case(
        ("topic",), cells_of(("topic",), CLAIMS), measure, lambda cell: "claims/sentences.csv",
        packages=("numpy", "scipy"),
    )
}  # fmt: skip
