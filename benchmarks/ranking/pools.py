"""Trains pools of networks, each with every score: what `judge.py` compares.

    python benchmarks/ranking/pools.py GROUP --data DIR [--pools NAME ...] [--seeds 0 1 2]
                                       [--aside] [--networks N] [--out DIR]

One row per network is appended to benchmarks/results/ranking/GROUP/<pool>.csv when it is done, so
a run that was stopped goes on where it was. A new pool is one line of `POOLS`. The groups:

    wide         all seeds share training and test rows; 40 epochs at one rate, or the plan named
    folds        each seed draws its own training rows, all share the test rows; the plan that
                 `search` proposes for so many rows
    folds/other  the same networks and draws with other folds
    folds/fresh  the same networks without folds, on fresh rows
    folds/alone  as a trial has them by default: scores and test figures of fold networks
    rank         as folds; new sets of decision 27
    rank/second  further new sets, for the second look of 0027

Columns, per datum and larger is better, empty where a score is not defined:

    eK, plainK  `conditional_evidence` with K folds, and the log predictive density as trained;
                K that is not the plan's costs trainings of its own
    e5r         with five, each network with a division of its own (Nagler et al. 2024)
    fresh_M     minus the log loss of the network, trained on all rows, on M rows that are neither
                its own nor test rows
    others      by the name of the score; and test_nll, test_accuracy, test_rmse

`aside` was fixed before any pool was trained: those are looked at after the decision.
"""

import argparse
import csv
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from sys import path
from typing import Any, NamedTuple

import numpy as np
import torch

path.insert(0, str(Path(__file__).parents[1]))
import _sets as sets

from nas_evidence.data.proposed import LEARNING_RATE, training_length
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.laplace_scores import laplace_estimates
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.registry import FREE_SCORES, declared
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.training.online import passes_of
from nas_evidence.workers.trial import Trial

RESULTS = Path(__file__).resolve().parents[1] / "results" / "ranking"
KEY = ("seed", "family", "depth", "width")
#: Scores that a trial takes, those taken from its network at the end, and the rows or parameters
#: up to which a full matrix is.
TRAINED = ("conditional_evidence", "five_fold", "two_fold", "heldout_10",
           "five_fold_accuracy", "two_fold_accuracy")  # fmt: skip
LAPLACE, FULL = ("kfac_ggn", "diag_ef", "full_ggn"), 1200
Grid = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # depths and widths by family
MLPS: Grid = {"mlp": ((1, 2, 3), (4, 8, 16, 32, 64, 128))}
DEEP: Grid = {"mlp": ((1, 2, 4), (4, 8, 16, 32, 64, 128))}
FEW: Grid = {"mlp": ((1, 2, 3), (8, 32, 64, 128))}
IMAGES: Grid = {"mlp": ((1, 2, 3), (8, 32, 128)), "cnn": ((1, 2, 3), (2, 4, 8))}
SMALL: Grid = {"mlp": ((1, 2), (16, 64)), "cnn": ((1, 2), (2, 4, 8))}


class Pool(NamedTuple):
    """A data set, its rows, the networks and what is trained.

    data          of `_sets.py`
    plan          what is trained by; empty: what `search` proposes
    scores        of `TRAINED` and `LAPLACE`; further trainings "eK" and "e5r"
    shared_draw   whether all seeds have the same training rows
    fresh         numbers of fresh rows to score each network on
    """

    data: str
    n_train: int
    n_test: int
    networks: Grid = MLPS
    plan: Mapping[str, object] = {}
    scores: tuple[str, ...] = (*TRAINED, *LAPLACE, "e2")
    shared_draw: bool = False
    folds: int | None = None  # not those of `folds = "auto"`
    n_seeds: int = 3
    aside: bool = False
    fresh: tuple[int, ...] = ()
    alone: bool = False  # without the networks of all rows

    def architectures(self) -> Iterator[ArchitectureSpec]:
        """Yield the networks of the pool."""
        for family, (depths, widths) in self.networks.items():
            for depth, width in product(depths, widths):
                yield ArchitectureSpec(family=family, values={"depth": depth, "width": width})


_LIGHT = ("two_fold", "heldout_10", "kfac_ggn", "diag_ef")


def _wide(data: str, n_train: int, n_test: int, networks: Grid = DEEP, epochs: int = 40,
          batch: int = 32, scores: tuple[str, ...] = _LIGHT, **more: Any) -> Pool:  # fmt: skip
    plan = {"epochs": epochs, "batch_size": batch, "learning_rate": 0.03}
    return Pool(data, n_train, n_test, networks, plan, scores, shared_draw=True, **more)


def _small(
    data: str, n_train: int, n_test: int, networks: Grid = DEEP, *, aside: bool = False
) -> Pool:
    scores = (*_LIGHT, "full_ggn", "five_fold", "e2")
    return _wide(data, n_train, n_test, networks, scores=scores, aside=aside)


_FRESH = (15, 30, 60, 150, 300)


def _rank(data: str, n_train: int, n_test: int, *, aside: bool = False) -> Pool:
    """Return a pool with as many fresh rows as there are, up to 300."""
    scores = (*TRAINED, *LAPLACE)
    return Pool(data, n_train, n_test, scores=scores, fresh=_FRESH, aside=aside)


#: Fixed before any of them was trained.
_RANK = {
    "segment": _rank("keel:segment", 300, 1400), "texture": _rank("keel:texture", 300, 3000),
    "vowel": _rank("keel:vowel", 300, 390), "optdigits": _rank("keel:optdigits", 300, 3000),
    "contraceptive": _rank("keel:contraceptive", 300, 800), "ring": _rank("keel:ring", 150, 3000),
    "synth4": _rank("synth4", 300, 3000), "laser": _rank("common:laser", 300, 390),
    "wizmir": _rank("common:wizmir", 200, 900), "treasury": _rank("common:treasury", 150, 590),
    "aquatic": _rank("common:qsar_aquatic_toxicity", 150, 240),
    "excitation": _rank("common:excitation_current", 150, 250),
    "penbased": _rank("keel:penbased", 300, 3000, aside=True),
    "spambase": _rank("keel:spambase", 300, 3000, aside=True),
    "twonorm": _rank("keel:twonorm", 150, 3000, aside=True),
    "phoneme": _rank("keel:phoneme", 500, 3000, aside=True),
    "marketing": _rank("keel:marketing", 500, 3000, aside=True),
    "splice": _rank("keel:splice", 300, 2400, aside=True),
    "airfoil": _rank("common:airfoil", 300, 900, aside=True),
    "compactiv": _rank("common:compactiv", 300, 3000, aside=True),
    "puma32h": _rank("common:puma32h", 1000, 3000, aside=True),
    "plastic": _rank("common:plastic", 300, 1000, aside=True),
    "fish": _rank("common:qsar_fish_toxicity", 300, 300, aside=True),
}  # fmt: skip


def _second(data: str, n_train: int, n_test: int) -> Pool:
    """Return a pool of the second look, fixed before any of them was trained."""
    scores = ("conditional_evidence", "five_fold", *LAPLACE)
    return Pool(data, n_train, n_test, scores=scores, fresh=_FRESH, aside=True)


_SECOND = {
    "banana": _second("keel:banana", 300, 3000), "magic": _second("keel:magic", 300, 3000),
    "pima": _second("keel:pima", 300, 390), "german": _second("keel:german", 300, 600),
    "chess": _second("keel:chess", 300, 2500), "mushroom": _second("keel:mushroom", 150, 3000),
    "tictactoe": _second("keel:tic-tac-toe", 300, 500),
    "letter": _second("keel:letter", 500, 3000), "synth6": _second("synth6", 300, 3000),
    "synth3": _second("synth3", 150, 3000), "synth8": _second("synth8", 500, 3000),
    "whitewine": _second("common:winequality_white", 300, 3000),
    "bikes": _second("common:boom_bikes", 300, 390), "friedman3": _second("friedman3", 300, 2000),
    "friedman2": _second("friedman2", 150, 2000), "linear": _second("linnoise", 300, 2000),
}  # fmt: skip
_OTHER: dict[str, Any] = {"scores": ("e10", "e5r"), "n_seeds": 2}
_ALONE = ("conditional_evidence", "five_fold", "two_fold", "kfac_ggn", "diag_ef")
_FOLDS = {
    "satellite": Pool("satellite", 300, 3000), "waveform": Pool("waveform", 300, 500),
    "australian": Pool("australian", 300, 250), "boston": Pool("bostonHousing", 300, 120),
    "kin8nm": Pool("kin8nm", 300, 3000), "wine": Pool("wine-quality-red", 300, 1000),
    "power": Pool("power-plant", 300, 3000), "naval": Pool("naval-propulsion-plant", 300, 3000),
    "satellite150": Pool("satellite", 150, 3000),
    "fashion": Pool("fashion_mnist", 200, 3000, IMAGES),
    "kin8nm2000": Pool("kin8nm", 2000, 3000, FEW, n_seeds=2),
    "power2000": Pool("power-plant", 2000, 3000, FEW, n_seeds=2),
    "naval2000": Pool("naval-propulsion-plant", 2000, 3000, FEW, n_seeds=2),
    "kin8nm2000x5": Pool("kin8nm", 2000, 3000, FEW, n_seeds=2, folds=5),
    "power2000x5": Pool("power-plant", 2000, 3000, FEW, n_seeds=2, folds=5),
    "naval2000x5": Pool("naval-propulsion-plant", 2000, 3000, FEW, n_seeds=2, folds=5),
    "cancer": Pool("cancer", 300, 250, aside=True),
    "synth5": Pool("synth5", 300, 2000, aside=True),
    "friedman": Pool("friedman", 300, 2000, aside=True),
    "diabetes": Pool("diabetes", 300, 120, aside=True),
}  # fmt: skip
#: By group and name; in the order in which they run.
POOLS: Mapping[str, Mapping[str, Pool]] = {
    "wide": {
        "boston": _small("bostonHousing", 300, 206),
        "satellite": _small("satellite", 300, 3000),
        "kin8nm": _small("kin8nm", 300, 3000),
        "mnist": _small("mnist", 200, 3000, IMAGES),
        "wine": _small("wine-quality-red", 300, 1200),
        "waveform": _small("waveform", 300, 700),
        "naval": _small("naval-propulsion-plant", 300, 3000, aside=True),
        "fashion": _small("fashion_mnist", 200, 3000, IMAGES, aside=True),
        "power": _small("power-plant", 300, 3000),
        "australian": _small("australian", 300, 390),
        "cifar": _small("cifar10", 200, 3000, IMAGES),
        "cifar5000": _wide("cifar10", 5000, 10000, SMALL, 20, 64),
        "fmnist10000": _wide("fashion_mnist", 10000, 10000, SMALL, 20, 64),
        "fmnist60000": _wide("fashion_mnist", 60000, 10000, SMALL, 10, 128),
        "satellite1000": _wide("satellite", 1000, 3000),
        "digits1297": _wide("digits", 1297, 500, IMAGES),
        "mnist1000": _wide("mnist", 1000, 3000, IMAGES),
        "fmnist1000": _wide("fashion_mnist", 1000, 3000, IMAGES),
    },
    "folds": _FOLDS,
    "folds/other": {
        name: pool._replace(**_OTHER)
        for name, pool in _FOLDS.items()
        if pool.n_train < 2000 and name not in ("power", "fashion")
    },
    "folds/fresh": {
        name: pool._replace(scores=(), fresh=_FRESH)
        for name, pool in _FOLDS.items()
        if pool.n_train < 2000
    },
    "folds/alone": {
        name: pool._replace(scores=_ALONE, n_seeds=1, alone=True, aside=False)
        for name, pool in _FOLDS.items()
        if pool.n_train < 2000
    },
    "rank": _RANK,
    "rank/second": _SECOND,
}


def drawn(pool: Pool, root: Path, seed: int) -> tuple[TensorData, TensorData | None]:
    """Return the data of a pool with the training rows of a seed; fresh rows instead of test ones.

    Args:
        pool: of `POOLS`.
        root: the folder of the data.
        seed: of the networks; it draws the training rows unless all seeds share them.
    """
    random = np.random.default_rng
    if pool.shared_draw and pool.data in ("cifar10", *sets.IDX):
        parts = []
        for part, n in (("train", pool.n_train), ("test", pool.n_test)):
            total = {"train": 50_000 if pool.data == "cifar10" else 60_000, "test": 10_000}[part]
            rows = random(0).permutation(total)[:n]
            parts.append(sets.images(pool.data, root, part, rows))
        x, y = (np.concatenate(both) for both in zip(*parts, strict=True))
        cut = slice(pool.n_train), slice(pool.n_train, None)
        return to_tensors(sets.split(pool.data, x, y, *cut), "cpu"), None
    x, y = sets.raw(pool.data, root)
    train, test, fresh = rows_of(pool, len(y), seed)
    both = [
        to_tensors(sets.split(pool.data, x, y, train, of), "cpu")
        for of in (test, fresh)[: 1 + bool(pool.fresh)]
    ]
    return both[0], both[-1] if pool.fresh else None


def rows_of(pool: Pool, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of training rows, test rows and fresh rows among n rows."""
    order = np.random.default_rng(0).permutation(n)
    if pool.shared_draw:
        train, others = order[: pool.n_train], order[pool.n_train :]
        return train, others[: pool.n_test], others[pool.n_test :]
    test, others = order[: pool.n_test], order[pool.n_test :]
    own = np.random.default_rng([seed, 17]).permutation(others)
    return own[: pool.n_train], test, own[pool.n_train :]


def planned(pool: Pool, data: TensorData, folds: int | None) -> TrainingPlan:
    """Return the plan of a pool, or what `search` proposes; with so many folds."""
    n, real = len(data.x_train), data.task == "real"
    batch, epochs = training_length(n)
    proposed = {
        "epochs": epochs, "batch_size": batch, "optimiser": "adam", "learning_rate": LEARNING_RATE,
        "settle": float(real), "online": {"every": max(1, epochs // 8)},
    }  # fmt: skip
    plan = {"likelihood": "gaussian" if real else "categorical", **(pool.plan or proposed)}
    plan |= {"whole": False} if pool.alone else {}
    return TrainingPlan.model_validate(plan if folds is None else plan | {"folds": folds})


def trained(
    pool: Pool, data: TensorData, architecture: ArchitectureSpec, seed: int,
    names: tuple[str, ...], *, folds: int | None = None, division: int | None = None,
    folds_alone: bool = False,
) -> tuple[Trial, TrialRecord]:  # fmt: skip
    """Train one network with some scores.

    Args:
        pool: it belongs to.
        data: of the pool.
        architecture: of the network.
        seed: of the network.
        names: of scores.
        folds: instead of those of the plan.
        division: seed of the division into folds; None for one that all networks share.
        folds_alone: leave out the training on all rows.
    """
    label = "wide" if pool.shared_draw else "folds"
    given = Assignment(
        trial_id=0, attempt=1, replicate=seed if division is None else division,
        architecture=architecture, dataset=DatasetSpec(name="digits"), estimators=names,
        plan=planned(pool, data, folds), seed=derive_seed(seed, label, architecture.key),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING and not (folds_alone and not _due(trial)):
            trial.advance(given.plan.epochs)
        return trial, trial.finish(TrialStatus.PRUNED, "the folds are enough")


def _due(trial: Trial) -> bool:
    return any(scorer.due() for scorer in trial.scorers.values())


def row_of(
    pool: Pool,
    data: TensorData,
    fresh: TensorData | None,
    architecture: ArchitectureSpec,
    seed: int,
) -> dict[str, Any]:
    """Train one network and return its row."""
    started, row = time.process_time(), dict[str, Any]()
    names = tuple(name for name in pool.scores if pool.alone or name in TRAINED)
    if names or pool.fresh:
        trial, record = trained(pool, data, architecture, seed, names, folds=pool.folds)
        row |= of_record(pool, trial, record)
        if fresh is not None and record.status is TrialStatus.COMPLETE:
            row |= {
                f"fresh_{m}": -_loss(trial, fresh, m) for m in pool.fresh if m <= len(fresh.y_test)
            }
    for name in pool.scores:
        if name[0] == "e" and name[1:].rstrip("r").isdigit() and name not in row:
            own = 1000 + zlib.crc32(architecture.key.encode()) % 10**6 if name[-1] == "r" else None
            _, record = trained(
                pool, data, architecture, seed, ("conditional_evidence",), division=own,
                folds=int(name[1:].rstrip("r")), folds_alone=True,
            )  # fmt: skip
            row |= conditional(record, len(data.x_train), name[1:])
    return row | {"cpu_seconds": time.process_time() - started}


def of_record(pool: Pool, trial: Trial, record: TrialRecord) -> dict[str, Any]:
    """Return test results and scores of a trial, and of its network at the end."""
    n, found = (
        len(trial.data.x_train),
        {e.estimate.estimator: e.estimate for e in record.evaluations},
    )
    row: dict[str, Any] = {
        "status": record.status.value, "n_data": n, "n_parameters": record.n_parameters,
        "test_nll": record.test_nll_per_datum, "test_accuracy": record.test_accuracy,
        "test_rmse": record.test_rmse, "converged": record.converged,
        "train_seconds": record.train_seconds, "settle_seconds": record.settle_seconds,
        "evidence_seconds": record.evidence_seconds,
    }  # fmt: skip
    if "conditional_evidence" in pool.scores:
        row |= conditional(record, n, str(trial.assignment.plan.n_folds(n)))
    if not pool.alone and trial.network is not None and record.status is TrialStatus.COMPLETE:
        rows = n * (trial.data.n_outputs - (trial.data.task == "labels"))
        small = min(rows, record.n_parameters or 0) <= FULL
        kinds = [k for k in LAPLACE if k in pool.scores and (small or k != "full_ggn")]
        passes = passes_of(trial.network)
        found |= {e.estimator: e for e in laplace_estimates(kinds, passes)}
    for name in (*TRAINED[1:], *LAPLACE, *(s for s in FREE_SCORES if s != "n_parameters")):
        one = found.get(name)
        if one is None or not one.valid:
            row[name] = None
        else:
            row[name] = one.per_datum if declared(name).unit == "nats" else one.value
        if name in pool.scores:
            row[f"{name}_seconds"] = one.seconds if one is not None else None
    return row


def conditional(record: TrialRecord, n_data: int, label: str) -> dict[str, Any]:
    """Return `conditional_evidence` and the log predictive density as trained, per datum."""
    found = {e.estimate.estimator: e.estimate for e in record.evaluations}
    if (one := found.get("conditional_evidence")) is None:
        return {f"e{label}": None, f"plain{label}": None}
    plain = [t.value for t in one.terms if t.term == "log_predictive_as_trained"]
    return {
        f"e{label}": one.per_datum if one.valid else None,
        f"plain{label}": sum(plain) / n_data if plain else None,
    }


def _loss(trial: Trial, fresh: TensorData, m: int) -> float:
    """Return the log loss of a trained network on the first fresh rows, nats per datum."""
    trial.data = replace(trial.data, x_test=fresh.x_test[:m], y_test=fresh.y_test[:m])
    with tempfile.TemporaryDirectory() as folder:
        trial.folder = Path(folder)
        return trial.finish().test_nll_per_datum or float("nan")


def append(file: Path, row: Mapping[str, object]) -> None:
    """Add a row to a CSV file, in the columns that the file already has."""
    columns = list(row)
    if file.exists():
        with file.open() as lines:
            columns = next(csv.reader(lines))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, extrasaction="ignore")
        if lines.tell() == 0:
            writer.writeheader()
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def run(pool: Pool, seed: int, root: Path, file: Path, n_networks: int | None = None) -> None:
    """Train what is missing of one seed of a pool, or of its first networks."""
    done: set[tuple[str | None, ...]] = set()
    if file.exists():
        with file.open() as lines:
            done = {tuple(r.get(k, "mlp") for k in KEY) for r in csv.DictReader(lines)}
    data, fresh = drawn(pool, root, seed)
    for architecture in list(pool.architectures())[:n_networks]:
        key = {"seed": seed, "family": architecture.family, **architecture.values}
        if tuple(map(str, key.values())) not in done:
            row = key | row_of(pool, data, fresh, architecture, seed)
            append(file, row)
            print(f"{file.stem} {seed} {architecture} {row['cpu_seconds']:.1f} s", flush=True)


def main() -> None:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=list(POOLS))
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--pools", nargs="+", help="by default all that are not kept aside")
    parser.add_argument("--aside", action="store_true", help="those that are kept aside")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", type=int, help="only the first of each pool")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    group = POOLS[given.group]
    names = given.pools or [name for name, pool in group.items() if pool.aside == given.aside]
    for seed, name in product(given.seeds, names):
        if seed < group[name].n_seeds:
            file = given.out / given.group / f"{name}.csv"
            run(group[name], seed, given.data, file, given.networks)


if __name__ == "__main__":
    main()
