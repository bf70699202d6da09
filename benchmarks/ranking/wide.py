"""Trains the pools of docs/explanation/ranking-results.md: networks of a grid, with every score.

    python benchmarks/ranking/wide.py --data DIR --cache DIR [--pool NAME ...] [--seeds 0 1 2]
                                      [--what light replay folds tangents plain race]

One row per network is appended to benchmarks/results/ranking/wide/<pool>.csv, or <pool>-folds.csv
and so on, when it is done, so that a run may be stopped and started again: first two thirds of the
networks of every pool, then more seeds, then the others. The same seed gives the same network in
every file. Networks run one after another in this process, without a service.

`ASIDE` was fixed before any pool was trained: these pools are only looked at after the decision.
Data are read from DIR in the layout of the public files (UCI tables as text, IDX, CIFAR as npz).
"""

import argparse
import csv
import gzip
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import torch

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.laplace_scores import laplace_estimates
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.registry import FREE_SCORES, declared
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, derive_seed
from nas_evidence.training.online import passes_of
from nas_evidence.workers.trial import Trial

RESULTS = Path(__file__).resolve().parents[1] / "results" / "ranking" / "wide"
#: Kept aside: looked at once, after docs/decisions/0012 was written.
ASIDE = ("naval", "fashion")
#: By file: `five_fold` takes longer than all others together.
SCORES = {
    "light": ("two_fold", "heldout_10"),
    "folds": ("five_fold",),
    "plain": (),  # the network alone, for the noise between seeds
    "race": ("two_fold",),  # for benchmarks/race_regret.py
    "search": ("two_fold", "heldout_10"),  # for search_replay.py
}
_ALL = tuple(dict.fromkeys(name for names in SCORES.values() for name in names))
#: Taken once, from the network at the end; full_ggn where rows or parameters are few enough.
LAPLACE = ("kfac_ggn", "diag_ef", "full_ggn")
_FULL = 1200
Arrays = dict[str, np.ndarray]
Grid = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Pool:
    """Training and test data, and the networks."""

    read: Callable[[Path, int, int], Arrays]
    n_train: int
    n_test: int
    families: tuple[str, ...] = ("mlp",)
    without: tuple[str, ...] = ()
    epochs: int = 40
    batch_size: int = 32
    small: bool = False
    depths: tuple[int, ...] = (1, 2, 4)  # of tables
    plan: Mapping[str, object] = field(default_factory=dict)  # what differs from the other pools
    grids: Mapping[str, Grid] = field(default_factory=dict)  # instead, depths and widths by family

    def architectures(self) -> Iterator[tuple[ArchitectureSpec, bool]]:
        """Yield the networks of the pool, and whether they are among the first two thirds."""
        tables = self.families == ("mlp",)
        grids: dict[str, Grid] = {
            "mlp": (self.depths, (4, 8, 16, 32, 64, 128)) if tables else ((1, 2, 3), (8, 32, 128)),
            "cnn": ((1, 2, 3), (2, 4, 8)),
        }
        later: dict[str, Grid] = {
            "mlp": ((), (8, 32)) if tables else ((2,), ()),
            "cnn": ((), (4,)),
        }
        if self.small:
            grids = {"mlp": ((1, 2), (16, 64)), "cnn": ((1, 2), (2, 4, 8))}
            later = {"mlp": ((), ()), "cnn": ((), (8,))}
        grids |= self.grids
        for family in self.families:
            for depth, width in product(*grids[family]):
                first = depth not in later[family][0] and width not in later[family][1]
                values = {"depth": depth, "width": width}
                yield ArchitectureSpec(family=family, values=values), first


def _split(x: np.ndarray, y: np.ndarray, n_train: int, n_test: int) -> Arrays:
    rows = np.random.default_rng(0).permutation(len(x))
    train, test = rows[:n_train], rows[n_train : n_train + n_test]
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def _regression(name: str) -> Callable[[Path, int, int], Arrays]:
    def read(data: Path, n_train: int, n_test: int) -> Arrays:
        folder = data / "uci" / name
        table = np.loadtxt(folder / "data.txt")
        columns = [np.loadtxt(folder / f"index_{part}.txt") for part in ("features", "target")]
        x, y = (table[:, c.astype(int).ravel()] for c in columns)
        return _split(x.astype(np.float32), y[:, 0].astype(np.float64), n_train, n_test)

    return read


def _table(name: str) -> Callable[[Path, int, int], Arrays]:
    def read(data: Path, n_train: int, n_test: int) -> Arrays:
        folder = data / "uci-classification" / name
        if name == "ionosphere":
            rows = [line.split(",") for line in (folder / "ionosphere.data").read_text().split()]
            x = np.array([row[:-1] for row in rows], dtype=np.float32)
            y = np.array([row[-1] in ("g", "1") for row in rows], dtype=np.int64)
        elif name == "australian":
            parts = [np.loadtxt(folder / f"{v}_{p}.txt") for v in "Xy" for p in ("train", "test")]
            x, y = np.concatenate(parts[:2]), np.concatenate(parts[2:])
        else:
            x, y = (np.loadtxt(folder / f"{v}.txt") for v in "XY")
        labels = np.unique(y, return_inverse=True)[1].astype(np.int64)
        return _split(x.astype(np.float32), labels, n_train, n_test)

    return read


def _idx(name: str) -> Callable[[Path, int, int], Arrays]:
    def read(data: Path, n_train: int, n_test: int) -> Arrays:
        raw = data / name / "raw"
        found: Arrays = {}
        for part, file in (("train", "train"), ("test", "t10k")):
            images = gzip.decompress((raw / f"{file}-images-idx3-ubyte.gz").read_bytes())
            labels = gzip.decompress((raw / f"{file}-labels-idx1-ubyte.gz").read_bytes())
            x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
            y = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
            n = n_train if part == "train" else n_test
            rows = np.random.default_rng(0).permutation(len(x))[:n]
            found |= {f"x_{part}": x[rows], f"y_{part}": y[rows]}
        return found

    return read


def _digits(data: Path, n_train: int, n_test: int) -> Arrays:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _split(x.reshape(-1, 1, 8, 8).astype(np.float32), y, n_train, n_test)


def _cifar(data: Path, n_train: int, n_test: int) -> Arrays:
    from PIL import Image

    file = np.load(data / "cifar10" / "cifar10_jpeg.npz")
    found: Arrays = {}
    for part, n in (("train", n_train), ("test", n_test)):
        streams, offsets = file[f"{part}_jpeg"].tobytes(), file[f"{part}_offsets"]
        rows = np.random.default_rng(0).permutation(len(offsets) - 1)[:n]
        images = [Image.open(io.BytesIO(streams[offsets[i] : offsets[i + 1]])) for i in rows]
        found[f"x_{part}"] = np.stack([np.asarray(i) for i in images]).transpose(0, 3, 1, 2)
        found[f"y_{part}"] = file[f"y_{part}"][rows].astype(np.int64)
    return found


_IMAGES = ("mlp", "cnn")
_LARGE = ("full_ggn",)
#: In the order in which they run.
POOLS = {
    "boston": Pool(_regression("bostonHousing"), 300, 206),
    "satellite": Pool(_table("satellite"), 300, 3000),
    "kin8nm": Pool(_regression("kin8nm"), 300, 3000),
    "mnist": Pool(_idx("MNIST"), 200, 3000, _IMAGES),
    "wine": Pool(_regression("wine-quality-red"), 300, 1200),
    "waveform": Pool(_table("waveform"), 300, 700),
    "naval": Pool(_regression("naval-propulsion-plant"), 300, 3000),
    "fashion": Pool(_idx("FashionMNIST"), 200, 3000, _IMAGES),
    "power": Pool(_regression("power-plant"), 300, 3000),
    "australian": Pool(_table("australian"), 300, 390),
    "cifar": Pool(_cifar, 200, 3000, _IMAGES),
}


def _own(
    read: Callable[[Path, int, int], Arrays], n_test: int, *, n_train: int = 300, epochs: int = 133
) -> Pool:
    """Return a pool of a table with the plan that `nas-evidence search TABLE` proposes for it."""
    plan = {
        "optimiser": "adam", "learning_rate": 0.005,
        "online": {"every": max(5, epochs // 8), "curvature": "kfac_ggn_mc"},
    }  # fmt: skip
    return Pool(read, n_train, n_test, ("mlp",), _LARGE, epochs, 16, plan=plan)


_MANY = ((1, 2, 3, 4, 5, 6), (4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181))
#: Too long for the default run, or for benchmarks/race_regret.py; by name only.
LONG = {
    "cifar5000": Pool(_cifar, 5000, 10000, _IMAGES, _LARGE, 20, 64, small=True),
    "fmnist10000": Pool(_idx("FashionMNIST"), 10000, 10000, _IMAGES, _LARGE, 20, 64, small=True),
    "fmnist60000": Pool(
        _idx("FashionMNIST"), 60000, 10000, _IMAGES, (*_LARGE, "five_fold"), 10, 128, small=True
    ),
    "satellite1000": Pool(_table("satellite"), 1000, 3000, ("mlp",), _LARGE),
    "digits1297": Pool(_digits, 1297, 500, _IMAGES, _LARGE),
    "mnist1000": Pool(_idx("MNIST"), 1000, 3000, _IMAGES, _LARGE),
    "fmnist1000": Pool(_idx("FashionMNIST"), 1000, 3000, _IMAGES, _LARGE),
    "power24": Pool(_regression("power-plant"), 300, 3000, depths=(1, 2, 3, 4)),
    "australian24": Pool(_table("australian"), 300, 390, depths=(1, 2, 3, 4)),
    "satellite_own": _own(_table("satellite"), 3000),
    "waveform_own": _own(_table("waveform"), 700),
    "australian_own": _own(_table("australian"), 390),
    "ionosphere_own": _own(_table("ionosphere"), 175, n_train=176, epochs=227),
    "kin8nm_own": _own(_regression("kin8nm"), 3000),
    "boston_own": _own(_regression("bostonHousing"), 206),
    "waveform72": Pool(_table("waveform"), 300, 700, grids={"mlp": _MANY}),
    "kin8nm72": Pool(_regression("kin8nm"), 300, 3000, grids={"mlp": _MANY}),
    "mnist72": Pool(
        _idx("MNIST"), 200, 3000, _IMAGES,
        grids={
            "mlp": ((1, 2, 3, 4, 5), (8, 12, 16, 24, 32, 64, 96, 128)),
            "cnn": ((1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 8, 11)),
        },
    ),
}  # fmt: skip


def tensors_of(name: str, pool: Pool, data: Path, cache: Path) -> tuple[TensorData, DatasetSpec]:
    """Return the data of a pool, from the cache if they are there."""
    file = cache / f"{name}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, **pool.read(data, pool.n_train, pool.n_test))
    real = np.load(file)["y_train"].dtype.kind == "f"  # whole numbers, as of wine, may be real too
    spec = DatasetSpec(name="npz", path=str(file), task="regression" if real else "classification")
    return to_tensors(load(spec, seed=0), "cpu"), spec


def assignment_of(
    pool: Pool,
    architecture: ArchitectureSpec,
    seed: int,
    data: TensorData,
    spec: DatasetSpec,
    names: Iterable[str],
) -> Assignment:
    """Return the trial of one network with some scores."""
    likelihood = "categorical" if data.task == "labels" else "gaussian"
    return Assignment(
        trial_id=0,
        attempt=1,
        replicate=seed,
        architecture=architecture,
        dataset=spec,
        plan={
            "likelihood": likelihood, "epochs": pool.epochs, "batch_size": pool.batch_size,
            "learning_rate": 0.03, **pool.plan,
        },
        estimators=tuple(name for name in names if name not in pool.without),
        seed=derive_seed(seed, "wide", architecture.key),
    )  # fmt: skip


def row_of(pool: Pool, assignment: Assignment, data: TensorData) -> dict[str, object]:
    """Train one network and return its row; without its main training if no score needs it."""
    started = time.process_time()
    names = assignment.estimators
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment, data, Path(folder))
        alone = bool(names) and set(names) <= {*SCORES["folds"], *SCORES["replay"]}
        while trial.status is TrialStatus.RUNNING and not (alone and not _due(trial)):
            trial.advance(pool.epochs)
        record = trial.finish(TrialStatus.PRUNED, "the folds are enough")
    row: dict[str, object] = {
        "status": record.status.value, "n_data": len(data.x_train),
        "n_parameters": record.n_parameters, "test_nll": record.test_nll_per_datum,
        "test_accuracy": record.test_accuracy, "test_rmse": record.test_rmse,
        "converged": record.converged, "train_seconds": record.train_seconds,
        "settle_seconds": record.settle_seconds,
    }  # fmt: skip
    found = {e.estimate.estimator: e.estimate for e in record.evaluations}
    if trial.training is not None and record.status is TrialStatus.COMPLETE:
        passes = passes_of(trial.training, data, assignment)
        rows = len(data.x_train) * (data.n_outputs - (data.task == "labels"))
        few = min(rows, record.n_parameters or 0) <= _FULL
        kinds = [k for k in LAPLACE if k not in pool.without and (few or k != "full_ggn")]
        found |= {e.estimator: e for e in laplace_estimates(kinds, passes)}
    for name in (*_ALL, *LAPLACE, *FREE_SCORES):
        estimate = found.get(name)
        value = None
        if estimate is not None and estimate.valid:
            value = estimate.per_datum if declared(name).unit == "nats" else estimate.value
        row[name] = value
        if name not in FREE_SCORES:
            row[f"{name}_seconds"] = estimate.seconds if estimate is not None else None
    row["cpu_seconds"] = time.process_time() - started
    return row


def _due(trial: Trial) -> bool:
    return any(scorer.due() for scorer in trial.scorers.values())


def _done(file: Path) -> set[tuple[str, ...]]:
    if not file.exists():
        return set()
    with file.open() as lines:
        return {(r["seed"], r["family"], r["depth"], r["width"]) for r in csv.DictReader(lines)}


@dataclass(frozen=True)
class Places:
    """Where data are read, kept as arrays, and results written."""

    data: Path
    cache: Path
    out: Path


def run(name: str, what: str, seed: int, places: Places, *, first: bool) -> None:
    """Train what is missing of one seed of a pool: the first two thirds, or all."""
    pool = {**POOLS, **LONG}[name]
    file = places.out / f"{name}{'' if what == 'light' else '-' + what}.csv"
    places.out.mkdir(parents=True, exist_ok=True)
    done = _done(file)
    tensors, spec = tensors_of(name, pool, places.data, places.cache)
    names = SCORES[what]
    if what == "light" and tensors.n_outputs == 1:
        names += SCORES["tangents"]
    for architecture, early in pool.architectures():
        key = {"seed": seed, "family": architecture.family, **architecture.values}
        if tuple(map(str, key.values())) in done or (first and not early):
            continue
        assignment = assignment_of(pool, architecture, seed, tensors, spec, names)
        row = key | {k: _short(v) for k, v in row_of(pool, assignment, tensors).items()}
        append(file, row)
        print(f"{name} {what} {seed} {architecture} {row['cpu_seconds']} s", flush=True)


def append(file: Path, row: dict[str, object]) -> None:
    """Add a row to a CSV file, in the columns that the file already has."""
    columns = list(row)
    if file.exists():
        with file.open() as lines:
            columns = next(csv.reader(lines))
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, extrasaction="ignore")
        if lines.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def main() -> None:
    """Run the pools, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--pool", nargs="+", choices=[*POOLS, *LONG], default=list(POOLS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--what", nargs="+", choices=list(SCORES), default=["light", "replay", "folds", "tangents"]
    )
    parser.add_argument("--first-only", action="store_true", help="two thirds of the networks")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    places = Places(options.data, options.cache, options.out)
    rounds = (True,) if options.first_only else (True, False)
    for first, seed, what in product(rounds, options.seeds, options.what):
        for name in options.pool:
            run(name, what, seed, places, first=first)


if __name__ == "__main__":
    main()
