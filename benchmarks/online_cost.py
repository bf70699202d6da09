"""What evidence adds to a whole training run, and what a second worker gives.

    runs     20 epochs with online updates, and the final diagnosis, over 20 plain epochs
    updates  one maximisation of the evidence over all prior precisions, milliseconds
    workers  trials an hour of two one-thread processes over those of one

Variants take turns in one process on one thread, on random data of the shape of Fashion-MNIST;
medians and ranges over the repeats, in seconds of processor time, which neighbours on the machine
add little to; two workers are compared by the wall clock and want a free machine.

    python benchmarks/online_cost.py [--repeats 5] [--n-data 1024] [--only runs] [--out F]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from evidence_cost import problem

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.training.joint import fit_prior, members_of
from nas_evidence.workers.trial import Trial

EPOCHS = 20
ARCHITECTURES = {
    "mlp": ArchitectureSpec(family="mlp", values={"depth": 3, "width": 512, "shape": "constant"}),
    "cnn": ArchitectureSpec(family="cnn", values={"depth": 3, "width": 8}),
    "resnet": ArchitectureSpec(family="resnet", values={"depth": 8, "width": 16}),
}
#: Variant -> (epochs between updates, curvature of the updates); the first is the baseline.
VARIANTS = {
    "plain": (10 * EPOCHS, "diag_ef"),
    "diag_ef F=5": (5, "diag_ef"),
    "diag_ef F=10": (10, "diag_ef"),
    "kfac_ggn_mc F=5": (5, "kfac_ggn_mc"),
    "kfac_ggn_mc F=10": (10, "kfac_ggn_mc"),
}


def random_data(n: int, folder: Path) -> ArrayData:
    """Return `n` random grey images of ten classes."""
    path = folder / "random.npz"
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (n, 1, 28, 28), np.uint8), np.arange(n) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return load(DatasetSpec(name="npz", path=str(path)), seed=0)


def run_seconds(name: str, variant: str, arrays: ArrayData, folder: Path) -> float:
    """Return the seconds of processor time of one whole run."""
    every, curvature = VARIANTS[variant]
    assignment = Assignment(
        trial_id=0,
        attempt=1,
        replicate=0,
        architecture=ARCHITECTURES[name],
        dataset=DatasetSpec(name="digits"),
        plan={"epochs": EPOCHS, "online": {"every": every, "curvature": curvature}},
        estimators=(),
        seed=0,
    )
    trial = Trial.start(assignment, to_tensors(arrays, "cpu"), folder)
    started = time.process_time()
    trial.advance(EPOCHS)
    seconds = time.process_time() - started
    assert trial.status is TrialStatus.COMPLETE, trial.error
    return seconds


def measure_runs(
    arrays: ArrayData, repeats: int, architectures: list[str]
) -> list[dict[str, object]]:
    """Return a row for each architecture and variant."""
    rows: list[dict[str, object]] = []
    for name in architectures:
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(repeats):
            for variant in VARIANTS:
                with tempfile.TemporaryDirectory() as folder:
                    seconds[variant].append(run_seconds(name, variant, arrays, Path(folder)))
        plain = seconds["plain"]
        for variant, values in seconds.items():
            ratios = [value / base for value, base in zip(values, plain, strict=True)]
            rows.append(row("run", f"{name} {variant}", ratios))
    return rows


def measure_updates(repeats: int) -> list[dict[str, object]]:
    """Return a row for each model and way to the maximum, in milliseconds."""
    rows = []
    for name in ("mlp", "small", "3c3d", "resnet20"):
        model, x, y = problem(name, 64)
        for kind in ("diag_ef", "kfac_ggn_mc"):
            generator = torch.Generator().manual_seed(0)
            done = curvature_pass(
                kind, model, x, y, Categorical(), batch_size=64, generator=generator
            )
            curvature = done.curvature
            assert isinstance(curvature, BlockDiagonal)
            curvature.spectra()  # once for all ways
            norms = squared_norms(model)
            for method in ("newton", "adam"):
                times = []
                for _ in range(repeats):
                    started = time.process_time()
                    fit_prior(
                        curvature, norms, torch.ones(len(norms), dtype=torch.float64),
                        members=members_of("tensor", len(norms)), method=method,
                    )  # fmt: skip
                    times.append(1000 * (time.process_time() - started))
                rows.append(row("update_ms", f"{name} {kind} {method}", times))
    return rows


def measure_workers(repeats: int) -> list[dict[str, object]]:
    """Return trials an hour of two one-thread processes over those of one."""
    rows = []
    for name in ARCHITECTURES:
        ratios = []
        for _ in range(repeats):
            alone = _seconds_of_processes(name, 1)
            together = _seconds_of_processes(name, 2)
            ratios.append(2 * alone / together)
        rows.append(row("two_workers", name, ratios))
    return rows


def _seconds_of_processes(name: str, count: int) -> float:
    """Return the mean over `count` processes side by side of the seconds of one run."""
    command = [sys.executable, __file__, "--one-run", name]
    options = {"stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **options) for _ in range(count)]  # type: ignore[call-overload]
    return statistics.fmean(float(p.communicate()[0].split()[-1]) for p in processes)


def row(what: str, name: str, values: list[float]) -> dict[str, object]:
    """Return median and range, and print them."""
    median, low, high = statistics.median(values), min(values), max(values)
    print(f"{what:12} {name:32} {median:7.2f} [{low:.2f} {high:.2f}]", flush=True)
    return {
        "what": what, "name": name, "n": len(values),
        "median": round(median, 3), "min": round(low, 3), "max": round(high, 3),
    }  # fmt: skip


def main() -> None:
    """Measure and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--n-data", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=["updates", "workers", "runs"])
    parser.add_argument(
        "--models", nargs="+", choices=list(ARCHITECTURES), default=[*ARCHITECTURES]
    )
    parser.add_argument("--one-run", choices=list(ARCHITECTURES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arrays = random_data(options.n_data, Path(folder))
        if options.one_run:
            started = time.perf_counter()
            run_seconds(options.one_run, "plain", arrays, Path(folder))
            print(time.perf_counter() - started)
            return
        measures = {
            "updates": lambda: measure_updates(options.repeats),
            "workers": lambda: measure_workers(options.repeats),
            "runs": lambda: measure_runs(arrays, options.repeats, options.models),
        }
        chosen = [options.only] if options.only else list(measures)
        rows = [row for name in chosen for row in measures[name]()]
    result = {
        "what": "whole runs over plain training; milliseconds an update; two workers over one",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "versions": {name: metadata.version(name) for name in ("torch", "numpy")},
        "epochs": EPOCHS,
        "n_data": options.n_data,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
