"""What curvature and evidence cost beside the training, in CPU time of one thread.

passes   A pass over a plain training epoch of the same data (forward, backward, step of SGD, 128
         rows), in turns, beside BackPACK, laplace-torch and curvlinops where they are installed
         (`pip install -e '.[bench]'`). A pass takes as many rows at a time as ours chooses; peers
         128 or 512, whichever is faster. A peer that refuses a model gives a line that says so.
         Peak memory is that of a process of its own, above everything imported and built.
posteriors
         Laplace posteriors of the same trained networks by us and by laplace-torch: seconds, and
         log loss of test rows.
small    Epochs and passes on small images; with `--before FOLDER` also of another checkout, in
         turns. Epochs over those of the earlier version, passes over epochs of their own.
updates  One maximisation of the evidence over all prior precisions, milliseconds.
runs     20 epochs with updates of the prior and the last evaluation, over 20 plain epochs.
density  The conditional evidence of a last layer, a fifth of the data given the others, over the
         training that it needs, extrapolated from some of its epochs. Labels of a random network.

    python benchmarks/cost_of_curvature.py passes updates [--repeats 5] [--models mlp 3c3d]
    python benchmarks/cost_of_curvature.py density [--cells 300,64,10 3000,256,0]

Random data; medians and ranges of ratios of the same turn. Candidates are compared only where they
estimate the same thing: `kfac_ggn` with KFLR, `_mc` with one sample. `--to FOLDER` stores the
files; those of `benchmarks/results` are committed. `--small` runs the least of each mode.
`gpu/probe.py` measures the like on a GPU.
"""

import argparse
import copy
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import torch
from _common import (
    checkouts,
    conditions,
    in_turn,
    ratios,
    read_json,
    seconds_of,
    show,
    spread,
    with_version,
    write_json,
)
from _networks import (
    COLOUR,
    GREY,
    Network,
    assignment,
    network,
    pass_over,
    plain_epoch,
    random_data,
)
from torch import Tensor, nn

import nas_evidence
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.data.proposed import training_length
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.joint import fit_prior, members_of
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.workers.trial import Trial

Row = dict[str, Any]

# --- passes

#: Name -> network, shape and number of the data.
MODELS: dict[str, tuple[Network | str, tuple[int, int, int], int]] = {
    "mlp": ("mlp", GREY, 2048),
    "small": ("small", GREY, 2048),
    "3c3d": ("3c3d", COLOUR, 512),
    "resnet20": (("resnet", {"depth": 20, "width": 16}), COLOUR, 256),
}
OURS = ("diag_ef", "diag_ggn", "diag_ggn_mc", "kfac_ggn", "kfac_ggn_mc")
#: Candidate -> what it estimates.
CANDIDATES = {kind: kind for kind in OURS} | {
    "backpack SumGradSquared": "diag_ef",
    "backpack DiagGGNExact": "diag_ggn",
    "backpack DiagGGNMC": "diag_ggn_mc",
    "backpack KFLR": "kfac_ggn",
    "backpack KFAC": "kfac_ggn_mc",
    "laplace BackPackEF": "diag_ef",
    "laplace AsdlEF": "diag_ef",
    "laplace CurvlinopsEF": "diag_ef",
    "laplace BackPackGGN": "kfac_ggn",
    "laplace AsdlGGN": "kfac_ggn",
    "laplace CurvlinopsGGN": "kfac_ggn",
    "laplace AsdlGGN mc": "kfac_ggn_mc",
    "laplace CurvlinopsGGN mc": "kfac_ggn_mc",
}
PEER_ROWS = (128, 512)
#: A candidate that takes more epochs than this is measured once.
SLOW = 25.0


def problem(name: str, n_data: int | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network near its initialisation and random data."""
    given, shape, n = MODELS[name]
    data = random_data(shape, n_data or n)
    return network(given, shape), data.x_train, data.y_train


def runner(name: str, model: nn.Module, x: Tensor, y: Tensor, rows: int) -> Callable[[], object]:
    """Return one pass of a candidate over all data, `rows` at a time."""
    if name in OURS:
        return pass_over(name, model, x, y, rows)
    library, _, extension = name.partition(" ")
    make = backpack_pass if library == "backpack" else laplace_pass
    batch = make(extension, model.eval(), len(x))

    def run() -> None:
        total: Any = None
        for chosen in torch.arange(len(x)).split(rows):
            found = batch(x[chosen], y[chosen])
            total = found if total is None else total + found

    return run


class Sums(list[Tensor]):
    """Tensors of the parameters; adding adds each."""

    def __add__(self, other: Any) -> "Sums":
        return Sums(a + b for a, b in zip(self, other, strict=True))


def backpack_pass(extension: str, model: nn.Module, n_data: int) -> Callable[..., Sums]:
    """Return what a BackPACK extension computes of a batch."""
    import backpack
    from backpack import extensions

    extended = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    made = getattr(extensions, extension)()

    def batch(x: Tensor, y: Tensor) -> Sums:
        with backpack.backpack(made):
            loss(extended(x), y).backward()
        found = Sums()
        for parameter in extended.parameters():
            got = getattr(parameter, made.savefield)
            found += got if isinstance(got, list) else [got]
            delattr(parameter, made.savefield)
            parameter.grad = None
        return found

    return batch


def laplace_pass(extension: str, model: nn.Module, n_data: int) -> Callable[..., Any]:
    """Return what a curvature back end of laplace-torch computes of a batch."""
    import laplace.curvature as backends

    name, _, sampled = extension.partition(" ")
    options = {"stochastic": bool(sampled)} if name.endswith("GGN") else {}
    backend = getattr(backends, name)(model, "classification", **options)
    if name.endswith("EF"):
        return lambda x, y: backend.diag(x, y)[1]
    return lambda x, y: backend.kron(x, y, N=n_data)[1]


def faster_rows(name: str, model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the rows at a time with which a candidate is faster; raises where it refuses."""
    if name in OURS:
        return rows_at_once(model, x)
    most, seconds = max(PEER_ROWS), {}
    for rows in PEER_ROWS:
        runner(name, copy.deepcopy(model), x[:rows], y[:rows], rows)()  # warm-up, and refusals
        seconds[rows] = seconds_of(runner(name, copy.deepcopy(model), x[:most], y[:most], rows))
    return min(seconds, key=lambda rows: seconds[rows])


def measure_passes(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Return a row for each model and candidate; candidates take turns in every repeat."""
    rows: list[Row] = []
    for name in options.models:
        model, x, y = problem(name, options.n_data)
        runs: dict[str, Callable[[], object]] = {}
        sizes: dict[str, int] = {}
        for candidate in CANDIDATES:
            try:
                sizes[candidate] = faster_rows(candidate, model, x, y)
                runs[candidate] = runner(candidate, copy.deepcopy(model), x, y, sizes[candidate])
            except Exception as error:  # a peer may fail in any way; the table says how
                why = f"{type(error).__name__}: {f'{error} '.splitlines()[0][:90]}"
                rows.append(show({"model": name, "candidate": candidate, "failed": why}))
        found: dict[str, list[float]] = {candidate: [] for candidate in runs}
        plain_epoch(model, x, y)
        epochs: list[float] = []
        for _ in range(options.repeats):
            for candidate, run in runs.items():
                if not found[candidate] or found[candidate][0] <= SLOW:
                    epochs.append(seconds_of(partial(plain_epoch, model, x, y)))
                    found[candidate].append(seconds_of(run) / epochs[-1])
        epoch_ms = round(1000 * min(epochs), 1)
        training = None if options.seconds_only else peak_megabytes(name, "train", len(x), 128)
        for candidate, values in found.items():
            row = {
                "model": name, "candidate": candidate, "estimates": CANDIDATES[candidate],
                "rows": sizes[candidate], "n_data": len(x), **spread(values),
                "epoch_ms": epoch_ms, "load": round(os.getloadavg()[0], 1),
            }  # fmt: skip
            if not options.seconds_only:
                peak = peak_megabytes(name, candidate, len(x), sizes[candidate])
                row |= {"peak_mb": peak, "train_peak_mb": training}
            rows.append(show(row))
    return {"rows": rows}


def peak_megabytes(name: str, candidate: str, n_data: int, rows: int) -> float | None:
    """Return the peak memory of one pass above everything built, from a process of its own."""
    command = [sys.executable, __file__, "peak", "--peak", name, candidate, str(n_data), str(rows)]
    done = run_process(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def measure_peak(options: argparse.Namespace) -> None:
    """Print the rise of this process's peak memory over one pass, in MB (Linux)."""
    name, candidate, n_data, rows = options.peak
    model, x, y = problem(name, int(n_data))
    plain_epoch(model, x[:1], y[:1])
    run: Callable[[], object] = partial(plain_epoch, model, x, y)
    if candidate != "train":
        run = runner(candidate, model, x, y, int(rows))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of importing is forgotten
    before = _kilobytes("VmRSS")
    run()
    print((_kilobytes("VmHWM") - before) / 1024)


def _kilobytes(name: str) -> int:
    """Return a line of this process's status (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


# --- small

#: Family, values, shape of an image, number of images.
SMALL = (
    ("resnet", {"depth": 14, "width": 16}, (1, 8, 8), 512),
    ("resnet", {"depth": 14, "width": 8}, (1, 8, 8), 512),
    ("resnet", {"depth": 8, "width": 4}, (1, 8, 8), 512),
    ("cnn", {"depth": 3, "width": 16}, (1, 8, 8), 512),
    ("cnn", {"depth": 2, "width": 8}, (1, 8, 8), 512),
    ("cnn", {"depth": 1, "width": 4}, (1, 8, 8), 1024),
    ("cnn", {"depth": 3, "width": 8}, (1, 28, 28), 256),
    ("resnet", {"depth": 20, "width": 16}, (3, 32, 32), 64),
)
KINDS = ("diag_ef", "kfac_ggn_mc", "kfac_ggn")


def one_process(options: argparse.Namespace) -> None:
    """Print the seconds of an epoch, and of passes in epochs, for each network."""
    found = {}
    for family, values, shape, n_data in SMALL[-3:-2] if options.small else SMALL:
        data = random_data(shape, n_data)
        x, y, model = data.x_train, data.y_train, network((family, values), shape)
        runs: dict[str, Callable[[], object]] = {}
        for kind in KINDS:  # an epoch before each pass
            runs[f"before {kind}"] = partial(plain_epoch, model, x, y)
            runs[kind] = pass_over(kind, model, x, y)
        seconds = {name: turns[0] for name, turns in in_turn(runs, 1).items()}
        epochs = {kind: seconds[f"before {kind}"] for kind in KINDS}
        name = f"{family} {values['depth']}/{values['width']} on {shape[1]}x{shape[2]}"
        found[name] = {kind: seconds[kind] / epochs[kind] for kind in KINDS}
        found[name]["epoch"] = spread([*epochs.values()], 9)["median"]
    show(found)


def measure_small(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Return epochs and passes of each version, which take turns in processes of their own."""
    folders = checkouts(options.before)
    first = next(iter(folders))
    flags = ["one", *(["--small"] if options.small else [])]
    runs: dict[str, list[dict[str, dict[str, float]]]] = {version: [] for version in folders}
    for _ in range(options.repeats):
        for version, folder in folders.items():
            runs[version].append(with_version(folder, __file__, *flags))
    rows: list[Row] = []
    for name in runs[first][0]:
        for what in ("epoch", *KINDS):
            found = {version: [run[name][what] for run in each] for version, each in runs.items()}
            if what == "epoch":
                found = {version: ratios(each, found[first]) for version, each in found.items()}
            spreads = {version: spread(each) for version, each in found.items()}
            rows.append(show({"network": name, "what": what, **spreads}))
    return {"rows": rows}


# --- updates and runs


def row(what: str, name: str, values: list[float]) -> Row:
    """Return a row of `online_cost_cpu.json`, shown."""
    return dict(show({"what": what, "name": name, **spread(values)}))


def measure_updates(options: argparse.Namespace) -> list[Row]:
    """Return a row for each model and way to the maximum, in milliseconds."""
    rows = []
    for name in options.models:
        model, x, y = problem(name, 64)
        for kind in ("diag_ef", "kfac_ggn_mc"):
            curvature: Any = pass_over(kind, model, x, y, 64)().curvature
            curvature.spectra()  # once for all ways
            norms = squared_norms(model)
            ones, members = torch.ones(len(norms)).double(), members_of("tensor", len(norms))
            for method in ("newton", "adam"):
                fit = partial(fit_prior, curvature, norms, ones, members=members, method=method)
                times = [1000 * seconds_of(fit) for _ in range(options.repeats)]
                rows.append(row("update_ms", f"{name} {kind} {method}", times))
    return rows


TRAINED: dict[str, Network] = {
    "mlp": ("mlp", {"depth": 3, "width": 512, "shape": "constant"}),
    "cnn": ("cnn", {"depth": 3, "width": 8}),
    "resnet": ("resnet", {"depth": 8, "width": 16}),
}
#: Variant -> (epochs between updates, curvature of the updates); the first is the baseline.
VARIANTS = {
    "plain": (1000, "diag_ef"),
    "diag_ef F=5": (5, "diag_ef"),
    "diag_ef F=10": (10, "diag_ef"),
    "kfac_ggn_mc F=5": (5, "kfac_ggn_mc"),
    "kfac_ggn_mc F=10": (10, "kfac_ggn_mc"),
}


def whole_run(name: str, variant: str, data: TensorData, epochs: int) -> float:
    """Return the seconds of one whole training."""
    every, curvature = VARIANTS[variant]
    online = {"every": every, "curvature": curvature}
    plan = TrainingPlan.model_validate({"epochs": epochs, "online": online})
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment(TRAINED[name], plan), data, Path(folder))
        seconds = seconds_of(lambda: trial.advance(epochs))
    assert trial.status is TrialStatus.COMPLETE, trial.error
    return seconds


def measure_runs(options: argparse.Namespace) -> list[Row]:
    """Return a row for each architecture and variant."""
    data, epochs = random_data(GREY, options.n_data or 1024), 5 if options.small else 20
    rows = []
    for name in [*TRAINED][: 1 if options.small else None]:
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(options.repeats):
            for variant in VARIANTS:
                seconds[variant].append(whole_run(name, variant, data, epochs))
        for variant, values in seconds.items():
            rows.append(row("run", f"{name} {variant}", ratios(values, seconds["plain"])))
    return rows


# --- density

#: Rows, units and classes (0 for one real target).
CELLS = (
    (300, 64, 10), (300, 1024, 10), (300, 1024, 2), (300, 256, 0), (3000, 64, 10),
    (3000, 256, 10), (3000, 1024, 0), (60_000, 64, 10), (60_000, 256, 10),
)  # fmt: skip
N_INPUTS, PRECISION = 64, 1.0


def noisy(n: int, n_classes: int) -> TensorData:
    """Return inputs, and labels or targets of a random network with noise."""
    generator = torch.Generator().manual_seed(n)
    x, n_outputs = torch.randn(n, N_INPUTS, generator=generator), n_classes or 1
    hidden = torch.tanh(x @ torch.randn(N_INPUTS, 30, generator=generator) / 4)
    outputs = hidden @ torch.randn(30, n_outputs, generator=generator)
    outputs += 0.5 * torch.randn(n, n_outputs, generator=generator)
    y = outputs.argmax(1) if n_classes else outputs / outputs.std()
    task, zero = "labels" if n_classes else "real", torch.zeros(n_outputs)
    return TensorData(x, y, x[:1], y[:1], task, n_outputs, (N_INPUTS,), zero, zero + 1)


def density(n: int, width: int, n_classes: int) -> Row:
    """Return the costs of one cell."""
    data, n_early = noisy(n, n_classes), n * 4 // 5
    batch, epochs = training_length(n)
    plan = TrainingPlan(
        likelihood="categorical" if n_classes else "gaussian", batch_size=batch, epochs=epochs,
        optimiser="adam", learning_rate=0.005, prior_precision=PRECISION,
    )  # fmt: skip
    values = {"depth": 1, "width": width, "shape": "constant"}
    given = assignment(("mlp", values), plan)
    run = new_network(*part_of(torch.arange(n_early), data, given, "fold"))
    member = [run]
    each = [
        seconds_of(lambda: train_epochs(member), time.thread_time)
        for _ in range(max(3, min(epochs, 2000 * 128 // n)))
    ]
    training = epochs * sum(each[1:]) / (len(each) - 1)
    model = run.model.eval()
    precision = torch.full((len(list(model.parameters())),), PRECISION)
    likelihood: Likelihood = Categorical() if n_classes else Gaussian(0.5)
    started = time.thread_time()
    layer = last_layer_of(model, data.x_train, precision)
    found = late_given_early(layer, data.y_train, n_early, likelihood)
    seconds = time.thread_time() - started
    cell: Row = {
        "rows": n, "units": width, "classes": n_classes, "epochs": epochs,
        "training_seconds": round(training, 2), "density_seconds": round(seconds, 3),
        "ratio": round(seconds / training, 3), "per_datum": round(found.value / (n - n_early), 5),
    }  # fmt: skip
    if found.standard_error is not None:
        cell["standard_error_per_datum"] = round(found.standard_error / (n - n_early), 6)
    return cell


def measure_density(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Return the cells."""
    return {"cells": [show(density(*map(int, cell.split(",")))) for cell in options.cells]}


# --- posteriors


def digits_mlp() -> nn.Module:
    """Return 64-64-64-10 on 8x8."""
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def digits_cnn() -> nn.Module:
    """Return two convolutions of 8 and 16 channels on 8x8, then a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


POSTERIORS = {"MLP 64-64-64-10": digits_mlp, "CNN 8-16": digits_cnn}
LAPLACE = ("AsdlGGN", "BackPackGGN", "CurvlinopsGGN")
#: Of 500 test rows by a way, "probit" or "mc".
Predict = Callable[[Tensor, str], Tensor]


def digits_tensors(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training rows of digits, 1,297 images of 8x8 with labels, and 500 to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8)[order] / 16
    y = torch.from_numpy(labels)[order]
    return x[:-500], y[:-500], x[-500:], y[-500:]


def trained(make: Callable[[], nn.Module], x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """Return a network at a mode of its log joint density with prior precision 1, by Adam."""
    model = make()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = 0.005 * (1 - epoch / epochs)
        for part in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            squares = torch.stack([parameter.square().sum() for parameter in model.parameters()])
            nll = nn.functional.cross_entropy(model(x[part]), y[part])
            (nll + squares.sum() / (2 * len(x))).backward()
            optimiser.step()
    return model.eval()


def by_own_posterior(model: nn.Module, x: Tensor, y: Tensor) -> Predict:
    """Return the predictions of our posterior, a prior precision for each tensor."""
    found = nas_evidence.posterior(model, (x, y), likelihood="categorical", structure="kronecker")
    return lambda rows, way: torch.as_tensor(found.predict(rows, method=way).probabilities)  # type: ignore[arg-type]


def by_laplace(backend: str, model: nn.Module, x: Tensor, y: Tensor) -> Predict:
    """Return the predictions of laplace-torch, a prior precision for each tensor."""
    import laplace
    import laplace.curvature as backends

    data = torch.utils.data.TensorDataset(x, y)
    found = laplace.Laplace(
        model, "classification", subset_of_weights="all", hessian_structure="kron",
        backend=getattr(backends, backend),
    )  # fmt: skip
    found.fit(torch.utils.data.DataLoader(data, batch_size=512))
    found.optimize_prior_precision(method="marglik", prior_structure="layerwise")

    def predict(rows: Tensor, way: str) -> Tensor:
        parts = [found(part, link_approx=way, n_samples=1000) for part in rows.split(128)]
        return torch.cat(parts).detach()

    return predict


def measure_posteriors(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Return seconds and test log loss of Laplace posteriors of the same trained networks.

    A posterior has Kronecker factors of all weights, the exact GGN, and a prior precision for each
    tensor by the evidence; the linearised network predicts by "probit" or with draws.
    """
    ways: dict[str, Callable[..., Predict]] = {"ours": by_own_posterior}
    ways |= {f"laplace {name}": partial(by_laplace, name) for name in LAPLACE}
    rows: list[Row] = []
    for name, make in POSTERIORS.items():
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(options.repeats):
            x, y, x_test, y_test = digits_tensors(seed)
            torch.manual_seed(seed)
            trained(make, x[:64], y[:64], 1)  # what a process does once is not counted
            began = time.process_time()
            model = trained(make, x, y, 2 if options.small else 60)
            seconds = time.process_time() - began
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(model(x_test), y_test))
            values = {"fit_seconds": seconds, "predict_seconds": 0.0, "probit": loss, "mc": loss}
            found.setdefault("the network alone, its training", []).append(values)
            for way, fit in ways.items():
                began = time.process_time()
                predict = fit(copy.deepcopy(model), x, y)
                fitted = time.process_time()
                given = {"probit": predict(x_test, "probit")}
                done = time.process_time()
                given["mc"] = predict(x_test, "mc")
                losses = {
                    how: float(nn.functional.nll_loss(p.float().clamp_min(1e-30).log(), y_test))
                    for how, p in given.items()
                }
                values = {"fit_seconds": fitted - began, "predict_seconds": done - fitted}
                found.setdefault(way, []).append(values | losses)
        for way, each in found.items():
            spreads = {key: spread([one[key] for one in each], 4) for key in each[0]}
            rows.append(show({"network": name, "way": way, **spreads}))
    return {"rows": rows}


#: Mode -> what it measures, its file and its words.
MODES: dict[str, tuple[Callable[[argparse.Namespace], Any], str, str]] = {
    "passes": (measure_passes, "passes_cpu.json", "curvature pass / a plain epoch"),
    "posteriors": (
        measure_posteriors, "posteriors_cpu.json",
        "CPU seconds of a Laplace posterior, and log loss of 500 test rows of digits",
    ),
    "small": (
        measure_small, "kernels_cpu.json",
        "passes / a plain epoch; epochs / an epoch of the earlier version",
    ),
    "updates": (lambda o: {"rows": measure_updates(o)}, "online_cost_cpu.json", "milliseconds"),
    "runs": (lambda o: {"rows": measure_runs(o)}, "online_cost_cpu.json", "runs / plain runs"),
    "density": (measure_density, "conditional_evidence_cpu.json", "density / its training"),
}  # fmt: skip
INNER = {"one": one_process, "peak": measure_peak}


def main() -> None:
    """Measure, print a line for each row, and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modes", nargs="+", choices=[*MODES, *INNER], metavar="|".join(MODES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--n-data", type=int, help="rows, if not those of each model")
    parser.add_argument("--before", type=Path, help="a checkout that `small` is compared with")
    parser.add_argument("--cells", nargs="+", default=[",".join(map(str, c)) for c in CELLS])
    parser.add_argument("--seconds-only", action="store_true", help="no peak memory of `passes`")
    parser.add_argument("--small", action="store_true", help="the least of each mode")
    parser.add_argument("--to", type=Path, help="a folder")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.small:
        options.repeats, options.models, options.n_data = 1, ["small"], 32
        options.cells = options.cells[:1]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    stored: dict[str, Row] = {}
    for mode in options.modes:
        if mode in INNER:
            INNER[mode](options)
            continue
        measure, file, what = MODES[mode]
        packages = "backpack-for-pytorch", "laplace-torch", "curvlinops-for-pytorch", "asdfghjkl"
        found = measure(options)
        head = stored.setdefault(file, conditions(what, "torch", *packages))
        for key, rows in found.items():
            head[key] = head.get(key, []) + rows
        if options.to:
            path = options.to / file
            if mode == "passes":  # of networks that were measured in another call
                others = read_json(path, {"rows": []})["rows"]
                head["rows"] += [r for r in others if r["model"] not in options.models]
            write_json(path, head, rows="rows" if mode in ("passes", "posteriors") else None)


if __name__ == "__main__":
    main()
