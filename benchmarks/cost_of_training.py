"""What the trainings of a study cost beside plain ones, and where the seconds of a search go.

    python -m benchmarks.run cost_cells [--only cell=rows/300 repeat=0] [--data DIR]
    python -m benchmarks.run together [--only network=MLP-16]

cost_cells   CPU seconds of all processes of a cell with their imports, by part and family, and the
             log loss of test rows. Each is measured in a process of its own:
    rows/N         three trainings of an MLP 1x32 on N rows of 20 columns, two classes
    width/N        two of an MLP of depth 2 on 300 rows, ten classes
    trials/N       N trainings of MLPs of depth 1 and widths 24 to 40 on 300 such rows
    workers/N      sixteen of them, by N workers
    SET/WAY/SEED   a search with its race, Optuna with a bare loop and a hold-out, scikit-learn's
                   MLP; "processes" is the command `search`, which has two workers
    demo/24        the digits study as shipped with its race, in one process; "demo/settled" with
                   `plan.settle = 1` and no race
    images/10000   four networks of Fashion-MNIST, quasi-random, no race; needs --data
together     K epochs one after another over an epoch of K trainings as one program, and an epoch
             of one training over a bare loop in torch, without prior, clipping and kept losses:
             digits, batches of 128. Networks that `n_together` would not put into one program are
             put into one here. Median and range of the ratios of the same turn.

One thread, CPU seconds.
"""

import ctypes
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import HERE, in_turn, ratios, show, spread
from _networks import Network, assignment, plain_epoch
from run import Case, Given, Row, cells_of
from torch import Tensor, nn

import nas_evidence
import nas_evidence.scores.folds
import nas_evidence.training.life
import nas_evidence.workers.trial
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.models import build
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.tables import read_table
from nas_evidence.training import loop, together
from nas_evidence.training.network import Network as TrainedNetwork
from nas_evidence.training.network import begin
from nas_evidence.workers.trial import Trial

# --- together

SIZES = (2, 3, 5, 8)
NETWORKS: dict[str, Network] = {
    "MLP-16": ("mlp", {"depth": 2, "width": 16}),
    "MLP-64": ("mlp", {"depth": 2, "width": 64}),
    "MLP-256": ("mlp", {"depth": 2, "width": 256}),
    "CNN-4": ("cnn", {"depth": 2, "width": 4}),
    "CNN-8": ("cnn", {"depth": 2, "width": 8}),
    "CNN-16": ("cnn", {"depth": 2, "width": 16}),
    "ResNet-8": ("resnet", {"depth": 8, "width": 8}),
}


def side_by_side(cell: Row, given: Given) -> Row:
    """Return the gain by K, and the overhead of one training over a bare loop."""
    together._WIDE = together._LARGEST = sys.maxsize
    torch.set_num_threads(1)
    study = load_study(HERE.parent / "search_spaces" / "digits.toml")
    data = to_tensors(load(study.dataset, seed=0), "cpu")
    members, sizes = [], SIZES[: 1 if given.quick else None]
    for seed in range(max(sizes)):
        one = assignment(NETWORKS[cell["network"]], study.plan, seed, study.estimators)
        generator = torch.Generator().manual_seed(seed)
        model = build(one.architecture, data.input_shape, data.n_outputs, generator)
        members.append(begin(model, data, one.plan, one.seed))
    bare = partial(plain_epoch, members[-1].model, data.x_train, data.y_train, 0.01)
    runs = {str(k): partial(_epoch, members[:k]) for k in (1, *sizes)}
    repeats, least = (1, 0.0) if given.quick else (5, 0.1)
    seconds = in_turn({"bare": bare, **runs}, repeats, least)
    gain = {str(k): _ends([k * s for s in seconds["1"]], seconds[str(k)]) for k in sizes}
    return {"over_a_bare_loop": _ends(seconds["1"], seconds["bare"]), "gain": gain}


def _epoch(members: list[TrainedNetwork]) -> None:
    for member in members:
        member.epoch = 0  # at the first learning rate for ever
    loop.train_epochs(members)


def _ends(above: list[float], below: list[float]) -> list[float]:
    """Return the median and the range of ratios of the same turn."""
    found = spread(ratios(above, below), 2)
    return [found["median"], found["min"], found["max"]]


# --- where the seconds go

#: Part -> where it is called. What one part calls of another is booked there.
PARTS = {
    "training": [(nas_evidence.training.life, "train_epochs")],
    "updates": [(nas_evidence.training.life, "updated")],
    "settling": [
        (nas_evidence.training.life, "begin_settling"),
        (nas_evidence.training.life, "settle_slices"),
    ],
    "density": [(nas_evidence.scores.folds, "density_of")],
    "evaluations": [(nas_evidence.workers.trial, "evaluate")],
    "folds": [(nas_evidence.scores.folds.Folds, name) for name in ("advance", "went_on")],
    "rest of trials": [(Trial, name) for name in ("start", "advance", "finish")],
}
#: Parts of networks, whose seconds are shared out by rows: those of the trial's own network, and
#: "... of folds".
SHARED = ("training", "updates", "settling")


class Clock:
    """Books the CPU time of this process to the part that runs, and to the family of the trial."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.of_family: dict[str, Counter[str]] = {}
        self._running: list[dict[str, float]] = []  # shares of parts
        self._since, self._own, self._family = 0.0, None, ""

    def watch(self) -> None:
        """Time all `PARTS` from now on."""
        for part, places in PARTS.items():
            for owner, name in places:
                found = owner.__dict__[name]
                inner = getattr(found, "__func__", found)
                timed = self._timed(inner, part)
                setattr(owner, name, classmethod(timed) if inner is not found else timed)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> object:
            self._turn()
            if args[0] is Trial:  # it is about to start
                self._own, self._family = None, args[1].architecture.family
            elif isinstance(args[0], Trial):
                self._own, self._family = args[0].network, args[0].assignment.architecture.family
            self._running.append(self._shares(part, args[0]))
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._running.pop()

        return timed

    def _shares(self, part: str, given: Any) -> dict[str, float]:
        if part not in SHARED:
            return {part: 1.0}
        networks = [given] if isinstance(given, TrainedNetwork) else given
        rows = [len(one.data.x_train) for one in networks]
        own = sum(n for n, one in zip(rows, networks, strict=True) if one is self._own)
        share = own / max(1, sum(rows))
        return {name: s for name, s in ((part, share), (f"{part} of folds", 1 - share)) if s}

    def _turn(self) -> None:
        now = time.process_time()
        for part, share in self._running[-1].items() if self._running else ():
            self.seconds[part] += share * (now - self._since)
            parts = self.of_family.setdefault(self._family, Counter())
            parts[part] += share * (now - self._since)
        self._since = now


# --- cells

SETS = {"cancer": ("load_breast_cancer", 24), "diabetes": ("load_diabetes", 12)}
#: Kinds of cells, their sizes, and how often each is measured.
SIZED = {"rows": ((300, 1000, 3000, 10_000), 3), "width": ((16, 64, 256, 512), 2),
         "trials": ((4, 16, 64), 2), "workers": ((1, 2, 4), 2), "demo": ((24, "settled"), 1),
         "images": ((10_000,), 1)}  # fmt: skip


def cells() -> list[Row]:
    """Return the cells; repeats are the outer loop."""
    found = [
        {"cell": f"{kind}/{size}", "repeat": repeat}
        for repeat in range(3)
        for kind, (sizes, n) in SIZED.items() if repeat < n
        for size in sizes
    ]  # fmt: skip
    ways = itertools.product(range(3), SETS, (*WAYS, "processes"))
    return found + [{"cell": f"{name}/{way}/{seed}", "repeat": 0} for seed, name, way in ways]


def of_all_processes(cell: Row, given: Given) -> Row:
    """Return what a cell measures in a process of its own, and the seconds of all processes."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # processes that outlive their parents are ours
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    name, quick = cell["cell"], "quick" if given.quick else ""
    command = [sys.executable, "-W", "ignore", __file__, name, str(given.data), quick]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    kind, _, rest = name.partition("/")
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile("w+") as printed:
        if rest.startswith("processes/"):
            csv, n, seed = Path(place) / "train.csv", SETS[kind][1], rest.partition("/")[2]
            table_of(kind)[0].to_csv(csv, index=False)
            command = [sys.executable, "-m", "nas_evidence", "search", str(csv)]
            command += ["--target", "target", "--out", f"{place}/s"]
            command += ["--trials", str(2 if given.quick else n), "--set", f"seed={seed}"]
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=printed)
        tree = Tree(process.pid)
        code = process.wait()
        wall = time.perf_counter() - began
        tree.stop()
        printed.seek(0)
        lines = ["{}", *(line for line in printed.read().splitlines() if line.startswith("{"))]
    if code:
        raise subprocess.CalledProcessError(code, command)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {"wall": round(wall, 2), "cpu": round(cpu, 2), "roles": tree.roles(),
            "most_mb": tree.most_mb, **json.loads(lines[-1])}  # fmt: skip


class Tree:
    """Watches the CPU seconds and the memory of a process and of all that it starts (Linux)."""

    def __init__(self, pid: int) -> None:
        self._parent = {pid: 0}
        self._ticks: dict[int, int] = {}
        self._words: dict[int, str] = {}
        self.most_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            pages = 0
            for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
                pid = int(folder.name)
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    parent = int(fields[1])
                    if pid not in self._parent and parent not in self._parent:
                        continue
                    self._words[pid] = (folder / "cmdline").read_text() or self._words.get(pid, "")
                except OSError:  # it has ended
                    continue
                self._parent.setdefault(pid, parent)
                self._ticks[pid] = int(fields[11]) + int(fields[12])
                pages += int(fields[21])
            self.most_mb = max(self.most_mb, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    def roles(self) -> dict[str, float]:
        """Return the seconds of the driver, of the server that forks, and of each fork."""
        found: Counter[str] = Counter()
        forks = 0
        for pid, ticks in self._ticks.items():
            parent = self._parent[pid]
            role = "others"
            if parent == 0:
                role = "driver"
            elif "fork_server" in self._words[pid]:
                is_fork = "fork_server" in self._words.get(parent, "")
                forks += is_fork
                role = f"fork {forks}" if is_fork else "server"
            found[role] += ticks
        return {role: round(n / os.sysconf("SC_CLK_TCK"), 2) for role, n in found.items()}


def one_cell(name: str, data: str, *, quick: bool) -> Row:
    """Measure a cell in this process."""
    kind, value, *seed = name.split("/")
    if kind in SETS:
        n_trials = 2 if quick else SETS[kind][1]
        return {"log_loss": WAYS[value](*table_of(kind), n_trials, int(seed[0]))}
    settings: dict[str, object] = {"plan.settle": 1.0, "finalists": 0}
    if kind == "demo":
        n = 2 if quick else 24
        return parts_of_search("digits", n_trials=n, settings=settings if value != "24" else {})
    if kind == "images":
        settings = {"dataset.max_train": int(value), "sampler.name": "qmc", "finalists": 0}
        given: dict[str, Any] = {"n_trials": 4, "data_root": data, "settings": settings}
        return parts_of_search("fashion_mnist_quick", **given)
    n = int(value) if kind == "rows" else 300
    settings = {"family.mlp.depth": [2], "family.mlp.width": [int(value)], "finalists": 0}
    if kind != "width":
        settings |= {"family.mlp.depth": [1], "family.mlp.width": [32]}
    if kind in ("trials", "workers"):
        settings["family.mlp.width"] = [*range(24, 41)]
    x, y = drawn(n, *((64, 10) if kind == "width" else (20, 2)))
    number = {"rows": 3, "width": 2, "trials": int(value), "workers": 16}[kind]
    return parts_of_search(
        x, y, families=["mlp"], n_trials=2 if quick else number, settings=settings,
        workers=int(value) if kind == "workers" else 1,
    )  # fmt: skip


def drawn(n: int, columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [n, columns], and labels [n] of a random network with noise."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, columns)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(size=(columns, 30)) / columns**0.5)
    outputs = hidden @ rng.normal(size=(30, classes))
    return x, (outputs + rng.normal(size=outputs.shape)).argmax(1)


def parts_of_search(*data: Any, workers: int = 1, **options: Any) -> dict[str, Any]:
    """Return the CPU seconds of a search in this process, by part and family."""
    (clock := Clock()).watch()
    with tempfile.TemporaryDirectory() as place:
        out, began = Path(place) / "s", time.process_time()
        nas_evidence.search(*data, out=out, workers=workers, progress=False, **options)
        total = time.process_time() - began
        rows = read_table(out, "trials")
    found: dict[str, Any] = {
        "parts": _rounded(clock.seconds),
        "outside": round(total - clock.seconds.total(), 3),
        "n_parameters": int(rows["n_parameters"].iloc[0]),
        "trials": len(rows),
    }
    if len(clock.of_family) > 1:
        found["of_family"] = {
            family: {"trials": number, **_rounded(clock.of_family[family])}
            for family, number in Counter(rows["family"]).items()
        }
    return found


def _rounded(seconds: Counter[str]) -> dict[str, float]:
    return {part: round(value, 3) for part, value in seconds.items()}


def table_of(name: str) -> tuple[Any, Any, str]:
    """Return 300 rows to train on and the others as DataFrames, and the target."""
    from sklearn import datasets

    frame = getattr(datasets, SETS[name][0])(as_frame=True).frame.sample(frac=1, random_state=0)
    return frame[:300], frame[300:], "target"


def by_ours(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of what a search as shipped delivers."""
    with tempfile.TemporaryDirectory() as place:
        study = nas_evidence.search(
            train, target=target, n_trials=n, seed=seed, out=Path(place) / "s", progress=False,
        )  # fmt: skip
        density = study.predict(test.drop(columns=target)).density
        if density is None:
            return float(study.evaluate(test)["log_loss"])
        truth = test[target].to_numpy(np.float64)[:, None]
        return float(-density.log_density(truth).mean())  # in the unit of the target


def _standardised(train: Any, test: Any, target: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs of mean 0 and deviation 1 by the training rows, and targets."""
    x, mean, std = (train.drop(columns=target), *(0, 0))
    mean, std = x.mean(), x.std()
    given = [(each.drop(columns=target) - mean) / std for each in (train, test)]
    as_float = [torch.from_numpy(each.to_numpy(np.float32)) for each in given]
    return as_float[0], as_float[1], *(torch.tensor(e[target].to_numpy()) for e in (train, test))


def by_optuna(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of TPE with a bare loop: a hold-out of a fifth, then a refit."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    x, x_test, y, y_test = _standardised(train, test, target)
    classes = int(y.max()) + 1 if y.dtype == torch.int64 else 0
    centre, unit = (0.0, 1.0) if classes else (y.mean(), y.std())
    y = y if classes else ((y - centre) / unit).float()[:, None]
    loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    held = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    kept, held = held[len(x) // 5 :], held[: len(x) // 5]

    def trained(values: dict[str, Any], rows: Tensor) -> nn.Module:
        torch.manual_seed(seed)
        sizes = [x.shape[1], *[values["width"]] * values["depth"]]
        layers = [
            layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], classes or 1))
        how = {"lr": values["rate"], "weight_decay": values["decay"]}
        optimiser = torch.optim.Adam(model.parameters(), **how)
        for _ in range(EPOCHS):
            for part in rows[torch.randperm(len(rows))].split(64):
                optimiser.zero_grad()
                loss(model(x[part]), y[part]).backward()
                optimiser.step()
        return model

    def objective(trial: Any) -> float:
        values = {
            "depth": trial.suggest_int("depth", 1, 3),
            "width": trial.suggest_int("width", 8, 64, log=True),
            "rate": trial.suggest_float("rate", 1e-3, 1e-2, log=True),
            "decay": trial.suggest_float("decay", 1e-6, 1e-1, log=True),
        }
        model = trained(values, kept)
        with torch.no_grad():
            return float(loss(model(x[held]), y[held]))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=n)
    best = trained(study.best_params, torch.arange(len(x)))
    with torch.no_grad():
        found = best(x_test)
        if classes:
            return float(loss(found, y_test))
        # The noise is that of the rows held out.
        variance = study.best_value * float(unit) ** 2
        error = ((found[:, 0] * unit + centre - y_test) ** 2).mean()
        return float(error / variance + math.log(2 * math.pi * variance)) / 2


#: Of the bare loop: those of ours for 300 rows.
EPOCHS = 133


def by_sklearn(train: Any, test: Any, target: str, n: int, seed: int) -> float:
    """Return the test log loss of scikit-learn's MLP: random search, five folds, refit."""
    from scipy import stats
    from sklearn.metrics import log_loss
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    x, x_test, y, y_test = (one.numpy() for one in _standardised(train, test, target))
    sizes = [(w,) * d for d in (1, 2, 3) for w in (8, 16, 32, 64)]
    space = {"hidden_layer_sizes": sizes, "alpha": stats.loguniform(1e-6, 1e1)}
    labels = y.dtype.kind == "i"
    model = (MLPClassifier if labels else MLPRegressor)(max_iter=500, random_state=seed)
    scoring = "neg_log_loss" if labels else "neg_mean_squared_error"
    unit = 1.0 if labels else y.std()
    search = RandomizedSearchCV(model, space, n_iter=n, cv=5, scoring=scoring, random_state=seed)
    search.fit(x, y if labels else (y - y.mean()) / unit)
    if labels:
        return float(log_loss(y_test, search.predict_proba(x_test)))
    variance = -search.best_score_ * unit**2
    error = ((search.predict(x_test) * unit + y.mean() - y_test) ** 2).mean()
    return float(error / variance + math.log(2 * math.pi * variance)) / 2


#: Ways to find a network, by their names in cells.
WAYS = {"ours": by_ours, "optuna": by_optuna, "sklearn": by_sklearn}


CASES = {
    "cost_cells": Case(
        ("cell", "repeat"), cells, of_all_processes, lambda cell: "cost/cells.csv",
        packages=("torch", "optuna", "scikit-learn", "ray"),
    ),
    "together": Case(
        ("network",), cells_of(("network",), NETWORKS), side_by_side,
        lambda cell: "cost/together.csv", alone=True, packages=("torch",),
    ),
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    show(one_cell(sys.argv[1], sys.argv[2], quick=sys.argv[3] == "quick"))
