"""How often sentences of the first screen err: docs/results/intervals-and-calibration.md.

    python benchmarks/claims_sentences.py [CLAIM ...] [--studies 120] [--to FILE]

Each claim is measured as it was said before and as it is said now. What was said before is here,
where the package no longer has it. A seed is (claim, study), so more studies extend fewer. The
file is results/claims/sentences.json; claims that are not named stay as they are in it.

    ties        P(best) and "if another is truly best": simulated races of 24 architectures in
                which the estimate ranks, on a smooth surface, with five near-duplicates of the
                best, and at coordinates that tell nothing
    new-seed    on the 53 committed pools of up to 1,000 rows: the probability that a new seed of
                another finalist is above a new seed of the first, from two seeds of each finalist
    luck        on the same pools: is the best score alone, of one seed, luck?
    gain        "10 further trials": committed repetitions on nine tables (results/posterior.json)
    misranked   "does not rank well here", of a score whose true rho is known
    usual-rho   the usual rho of the default ranking, on the pools that chose nothing
    guessing    "no network predicts better than a guess", of networks that know nothing
    quartiles   the interval warning on files that are sorted by their target
    estimate    "estimate +- error" as mean and standard deviation of its own draws
"""

import argparse
import json
import math
import platform
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtr

sys.path.insert(0, str(Path(__file__).parent / "ranking"))
from judge import POOLS, Ranked, _points, _signed, read, spearman

from nas_evidence.driver.race import CONFIDENCE
from nas_evidence.maths.architecture_posterior import (
    OF_NOISY_SEEDS,
    ArchitecturePosterior,
)
from nas_evidence.maths.conditional_coverage import by_quartile, fails
from nas_evidence.maths.finalists import N_DRAWS, next_replicates, posterior_of
from nas_evidence.maths.guessing import is_guessing
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.ranking import Floats, rank_statistics, resampling_plan
from nas_evidence.plumbing.files import write_whole
from nas_evidence.reporting.certainty import tied_with_first
from nas_evidence.reporting.headline import _CLEARLY, USUAL_RHO
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import FINALISTS

RESULTS = Path(__file__).parent / "results"
#: Maximum number of rows of a pool, and the score and prior that rank there.
MOST_ROWS, SCORE = 1000, "mean5"
#: Architectures of a simulated search, and trials of its race.
N, BUDGET = 24, 30
Row = dict[str, Any]


def _seeded(claim: str, study: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(claim.encode()), study])


def _row(claim: str, place: str, promise: str, before: str, after: str, n: int, spread: str,
         what: str) -> Row:  # fmt: skip
    return {
        "claim": claim, "place": place, "promise": promise, "before": before, "after": after,
        "n": n, "spread": spread, "script": f"benchmarks/claims_sentences.py {what}",
    }  # fmt: skip


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
) -> dict[str, tuple[float, ...]]:
    """Return claim, hit, size of the tie, loss said and lost, before and after."""
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
    is_best, lost = int(np.argmax(mu[places])), float(mu.max() - mu[first])
    said_before = float((own.draws.max(1) - own.draws[:, first]).mean())
    said = float((draws.max(1) - draws[:, 0]).mean())
    return {
        "before": (float(own.best[first]), float(is_best == 0), 1.0, said_before, lost),
        "after": (float(best[tied].sum()), float(is_best in tied), float(len(tied)), said, lost),
    }


def ties(studies: int) -> Iterator[Row]:
    """Yield what is said of the first rank, and what is true."""
    cases = {
        "surface": ("a smooth surface", _surface),
        "near": ("five near-duplicates of the best", _near_duplicates),
        "none": ("coordinates that tell nothing", _no_surface),
    }
    for name, (where, truth) in cases.items():
        found = [_raced(truth, _seeded(f"ties {name}", k)) for k in range(studies)]
        old, new = (np.array([one[when] for one in found]) for when in ("before", "after"))
        yield _row(
            f"P(best) of the first, or of those tied with it ({where})", "first screen",
            "said as often as true",
            f"said {old[:, 0].mean():.2f}, true {old[:, 1].mean():.2f}",
            f"said {new[:, 0].mean():.2f}, true {new[:, 1].mean():.2f}; "
            f"{new[:, 2].mean():.1f} tied",
            studies, _share(list(new[:, 1])), f"ties --studies {studies}",
        )  # fmt: skip
        yield _row(
            f"if another is truly best, you lose about X ({where})", "first screen",
            "as much as is lost, in units of the spread",
            f"said {old[:, 3].mean():.3f}, lost {old[:, 4].mean():.3f}",
            f"said {new[:, 3].mean():.3f}, lost {new[:, 4].mean():.3f}",
            studies, f"standard error {new[:, 4].std() / math.sqrt(studies):.3f}",
            f"ties --studies {studies}",
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


def _above(draws: Floats, noise: float, j: int, first: int) -> float:
    return float(ndtr((draws[:, j] - draws[:, first]) / (math.sqrt(2) * noise)).mean())


def new_seed(studies: int) -> Iterator[Row]:
    """Yield how well the posterior says where a new seed of each finalist lies."""
    said: dict[str, list[float]] = {"before": [], "after": []}
    seen, n_pools = [], 0
    for _, pool in pools():
        points, ordered = _points(pool)
        values = _signed(pool, SCORE)
        known = np.isfinite(values[:, :3]).all(1)
        if values.shape[1] < 3 or known.sum() < 8:
            continue
        n_pools += 1
        v, x = values[known, :3], points[known]
        families = [one[0] for one, is_known in zip(pool.networks, known, strict=True) if is_known]
        for k in range(3):
            a, b = (j for j in range(3) if j != k)
            once = ArchitecturePosterior(x, ordered, [[s] for s in v[:, a]], prior=OF_NOISY_SEEDS)
            finalists = np.argsort(-once.mean())[:FINALISTS]
            tried = [[s] for s in v[:, a]]
            for i in finalists:
                tried[i].append(v[i, b])
            now = ArchitecturePosterior(x, ordered, tried, prior=OF_NOISY_SEEDS)
            first = int(finalists[now.mean()[finalists].argmax()])
            own, draws = posterior_of(tried, families, seed=0), now.draws(2000, seed=0)
            assert own is not None
            noise = now.hyper.noise * now.warp.unit
            for j in (int(i) for i in finalists if i != first):
                said["before"].append(_above(own.draws, float(own.noise[first]), j, first))
                said["after"].append(_above(draws, noise, j, first))
                seen.append(float(v[j, k] > v[first, k]))
    yield _row(
        "probability that a new seed of another finalist is above one of the first",
        "first screen", "said as often as seen",
        f"said {np.mean(said['before']):.3f}, seen {np.mean(seen):.3f}",
        f"said {np.mean(said['after']):.3f}, seen {np.mean(seen):.3f}",
        len(seen), f"{n_pools} pools; {_share(seen)}", "new-seed",
    )  # fmt: skip


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
        "the best score alone is another's, so luck is the likelier cause", "first screen",
        "true in more than half of the cases",
        f"the first has the lower test loss in other seeds in {np.mean(right_loss):.2f}, the "
        f"higher score in {np.mean(right_score):.2f}",
        "no cause is named: which of the two is better is open",
        len(right_loss), f"{_share(right_loss)}; said in {len(right_loss)} of {n} pool-seeds",
        "luck",
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
            f"usually about rho ({kind.targets})", "first screen",
            "the mean on pools that chose nothing", "not said",
            f"said {USUAL_RHO[kind.task]:.2f}, measured {np.mean(rhos):.2f}", len(rhos),
            f"{np.min(rhos):.2f} to {np.max(rhos):.2f}", "usual-rho",
        )  # fmt: skip


def gain(studies: int) -> Iterator[Row]:
    """Yield forecast against true gain of ten further trials, of committed repetitions."""
    stored = json.loads((RESULTS / "posterior.json").read_text(encoding="utf-8"))
    for sampler in ("posterior", "tpe"):
        pairs = [
            (one[sampler]["forecast gain"], one[sampler]["true gain"])
            for name, one in stored["summary, kept aside"].items()
            if name.endswith(", stop")
        ]
        ratios = [true / said for said, true in pairs]
        above = sum(ratio > 1 for ratio in ratios)
        yield _row(
            f"10 further trials would gain about X on average (sampler {sampler})",
            "first screen", "before: at most X; now: a mean",
            f"'up to X': the mean gain is above X on {above} of {len(pairs)} tables",
            f"'about X on average': true over said, median {np.median(ratios):.1f}",
            len(pairs), f"{min(ratios):.1f} to {max(ratios):.1f} times", "gain",
        )  # fmt: skip


# --- advice


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
            best = y[np.arange(n_studies), x.argmax(1)]
            old = best < np.median(y, axis=1)
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
                "first screen", "at most 2.5 % of scores with the usual rho of 0.63",
                f"said in {100 * old.mean():.1f} %", f"said in {100 * np.mean(new):.1f} %",
                len(new), _share([float(one) for one in new]), "misranked",
            )  # fmt: skip


def guessing(studies: int) -> Iterator[Row]:
    """Yield how often networks that know nothing, or something, are told from a guess."""
    for n, k in ((100, 8), (240, 8), (1000, 24)):
        for strength in (0.0, 1.0):
            missed = []
            for study in range(5 * studies):
                rng = _seeded(f"guessing {n} {k} {strength}", study)
                x = strength * rng.normal(size=n)
                y = rng.random(n) < 1 / (1 + np.exp(-x))
                logits = x[:, None] * rng.uniform(0.5, 1.0, k) + 0.2 * rng.normal(size=(n, k))
                p = 1 / (1 + np.exp(-logits))
                best = float(np.log(np.where(y[:, None], p, 1 - p)).mean(0).max())
                missed.append(float(is_guessing(best, math.log(0.5), n=n, k=k)))
            what = "know nothing" if strength == 0 else "explain 14 % of the log loss"
            yield _row(
                f"no network predicts better than a guess ({k} networks, {n} rows, that {what})",
                "first screen", "at least 95 % if none does; rarely else", "never said",
                f"said in {100 * np.mean(missed):.1f} %", len(missed), _share(missed), "guessing",
            )  # fmt: skip


# --- numbers


def quartiles(studies: int) -> Iterator[Row]:
    """Yield how often right intervals are warned of, if a file is sorted by its target."""
    for distinct in (1, 2, 3, 6):
        old, new = [], []
        for study in range(5 * studies):
            rng = _seeded(f"quartiles {distinct}", study)
            f = rng.integers(distinct, size=(200, 1)).astype(float)
            y = f + rng.normal(size=(200, 1))
            order = y[:, 0].argsort()
            density = Normals.single(f[order], np.ones(1))
            new.append(any(fails(one.inside_90, one.n) for one in by_quartile(density, y[order])))
            low, high = density.interval(0.9)
            inside = ((low <= y[order]) & (y[order] <= high))[:, 0]
            parts = np.array_split(np.argsort(f[order][:, 0], kind="stable"), 4)
            old.append(any(fails(float(inside[rows].mean()), len(rows)) for rows in parts))
        yield _row(
            f"the intervals fail in a quartile ({distinct} distinct predictions, sorted file)",
            "first screen", "at most 5 % of right intervals",
            f"said in {100 * np.mean(old):.1f} %", f"said in {100 * np.mean(new):.1f} %", len(new),
            _share([float(one) for one in new]), "quartiles",
        )  # fmt: skip


def estimate(studies: int) -> Iterator[Row]:
    """Yield how far what is shown is from mean and deviation of the draws, where z is below 0."""
    old, new = [], []
    for study in range(studies):
        rng = _seeded("estimate", study)
        points = rng.random((12, 2))
        values = -np.abs(rng.standard_t(3, size=12))
        one = ArchitecturePosterior(
            points, [True, True], [[v] for v in values], prior=OF_NOISY_SEEDS
        )
        z, sd, draws = one.mean(), one.deviation(), one.draws(20_000, seed=0)
        slope = one.warp.unit * np.exp(np.maximum(-z, 0))
        low, error = np.argsort(z)[:3], draws.std(0)
        old.append(np.c_[abs(one.warp.score(z) - draws.mean(0)) / error,
                         abs(slope * sd / error - 1)][low].mean(0))  # fmt: skip
        mean, own = one.warp.moments(z, sd)
        new.append(np.c_[abs(mean - draws.mean(0)) / error, abs(own / error - 1)][low].mean(0))
    (a, b), (c, d) = np.mean(old, 0), np.mean(new, 0)
    yield _row(
        "estimate ± error (the last three of twelve)", "first screen",
        "mean and standard deviation of its draws",
        f"mean off by {a:.2f} errors, error by {100 * b:.0f} %",
        f"mean off by {c:.2f} errors, error by {100 * d:.0f} %", studies,
        f"20,000 draws: {1 / math.sqrt(20_000):.3f} errors", f"estimate --studies {studies}",
    )  # fmt: skip


CLAIMS: dict[str, Callable[[int], Iterator[Row]]] = {
    "ties": ties, "new-seed": new_seed, "luck": luck, "gain": gain, "misranked": misranked,
    "usual-rho": usual_rho, "guessing": guessing, "quartiles": quartiles,
    "estimate": estimate,
}  # fmt: skip


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--studies", type=int, default=120)
    parser.add_argument("--to", type=Path, default=RESULTS / "claims" / "sentences.json")
    given = parser.parse_args()
    unknown = sorted(set(given.claims) - set(CLAIMS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: not of {', '.join(CLAIMS)}")
    found: dict[str, Any] = {"rows": [], "tables": []}
    if given.to.exists():
        found = json.loads(given.to.read_text(encoding="utf-8"))
    for name in given.claims or CLAIMS:
        rows = list(CLAIMS[name](given.studies))
        for row in rows:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        scripts = [one["script"].split()[1] for one in found["rows"]]
        kept = [one for one, own in zip(found["rows"], scripts, strict=True) if own != name]
        order = list(CLAIMS)
        found["rows"] = sorted(
            [*kept, *rows], key=lambda one: order.index(one["script"].split()[1])
        )
        found |= {
            "hardware": f"{platform.machine()}, one thread",
            "versions": {"numpy": np.__version__, "python": platform.python_version()},
            "date": time.strftime("%Y-%m-%d"),
        }
        given.to.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.to, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
