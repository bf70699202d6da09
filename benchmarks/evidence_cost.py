"""What a curvature pass costs, in training epochs, beside BackPACK, laplace-torch and curvlinops.

Every pass is timed right after one plain training epoch (forward, backward, SGD step) over the
same data, all candidates in turn in one process, and quoted as the ratio of the two: median and
range over the repeats, in seconds of CPU time, which neighbours on the machine do not add to.
Training takes 128 rows at a time. A pass takes 128 or 512: ours chooses by itself, the peers are
tried with both and measured with the faster. Peak memory is measured in a process for each
candidate, above the process that has imported and built everything, and quoted as a ratio to
training's.

    pip install -e '.[bench]'
    python benchmarks/evidence_cost.py [--repeats 5] [--models mlp small 3c3d resnet20] [--out F]

A peer that is not installed, or that refuses a model, gives a line that says so. Candidates are
compared only where they estimate the same thing: `kfac_ggn` with KFLR, `_mc` with one sample.
"""

import argparse
import copy
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec

BATCH = 128
PEER_ROWS = (128, 512)
#: A candidate that takes more epochs than this is measured once.
SLOW = 25.0
OURS = ("diag_ef", "diag_ggn", "diag_ggn_mc", "kfac_ggn", "kfac_ggn_mc")
#: Candidate -> what it estimates.
PEERS = {
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
CANDIDATES = {**{kind: kind for kind in OURS}, **PEERS}


def three_conv_three_dense() -> nn.Module:
    """Return the network called 3c3d: 895,210 parameters on 3 x 32 x 32."""
    pool = {"kernel_size": 3, "stride": 2, "ceil_mode": True}
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(**pool),
        nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    """Return three convolutions of 8, 16 and 32 channels on 1 x 28 x 28, then a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


def taper_mlp() -> nn.Module:
    """Return 784-1024-512-256-128-10."""
    sizes = (784, 1024, 512, 256, 128)
    layers = [
        layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10))


def problem(name: str, n_data: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network near its initialisation and random data."""
    torch.manual_seed(0)
    if name == "resnet20":
        spec = ArchitectureSpec(family="resnet", values={"depth": 20, "width": 16})
        model = build(spec, (3, 32, 32), 10, torch.Generator().manual_seed(0))
    else:
        model = {"mlp": taper_mlp, "small": small_cnn, "3c3d": three_conv_three_dense}[name]()
    shape = (1, 28, 28) if name in ("mlp", "small") else (3, 32, 32)
    with torch.no_grad():  # no weight stays at Fixup's zeros
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model, torch.randn(n_data, *shape), torch.randint(0, 10, (n_data,))


def train_epoch(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Run one plain epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    model.train()
    for rows in torch.arange(len(x)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()


def runner(name: str, model: nn.Module, x: Tensor, y: Tensor, rows: int) -> Callable[[], None]:
    """Return one pass of a candidate over all data, `rows` at a time."""
    if name in OURS:
        generator = torch.Generator().manual_seed(0)
        return lambda: void(
            curvature_pass(name, model, x, y, Categorical(), batch_size=rows, generator=generator)
        )
    library, _, extension = name.partition(" ")
    run = backpack_runner if library == "backpack" else laplace_runner
    return run(extension, model, x, y, rows)


def faster_rows(name: str, model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the rows at a time with which a candidate is faster; raises where it refuses."""
    if name in OURS:
        return rows_at_once(model, x)
    seconds = {}
    for rows in PEER_ROWS:
        runner(name, copy.deepcopy(model), x[:rows], y[:rows], rows)()  # warm-up, and refusals
        run = runner(name, copy.deepcopy(model), x[: max(PEER_ROWS)], y[: max(PEER_ROWS)], rows)
        started = time.process_time()
        run()
        seconds[rows] = time.process_time() - started
    return min(seconds, key=lambda rows: seconds[rows])


def void(result: object) -> None:
    """Drop a result."""
    del result


def backpack_runner(
    extension: str, model: nn.Module, x: Tensor, y: Tensor, size: int
) -> Callable[[], None]:
    """Return a pass with a BackPACK extension; results are added up over batches."""
    import backpack
    from backpack import extensions

    extended = backpack.extend(model.eval())
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    made = getattr(extensions, extension)()

    def run() -> None:
        totals: list[object] = [None for _ in extended.parameters()]
        for rows in torch.arange(len(x)).split(size):
            with backpack.backpack(made):
                loss(extended(x[rows]), y[rows]).backward()
            for i, parameter in enumerate(extended.parameters()):
                got = getattr(parameter, made.savefield)
                factors = got if isinstance(got, list) else [got]
                old = totals[i] or [torch.zeros_like(f) for f in factors]
                totals[i] = [a + b for a, b in zip(old, factors, strict=True)]
                delattr(parameter, made.savefield)
        extended.zero_grad()

    return run


def laplace_runner(
    extension: str, model: nn.Module, x: Tensor, y: Tensor, size: int
) -> Callable[[], None]:
    """Return a pass with a curvature back end of laplace-torch; batches are added up."""
    import laplace.curvature as backends

    name, _, sampled = extension.partition(" ")
    options = {"stochastic": bool(sampled)} if name.endswith("GGN") else {}
    backend = getattr(backends, name)(model.eval(), "classification", **options)

    def run() -> None:
        total = None
        for rows in torch.arange(len(x)).split(size):
            batch = x[rows], y[rows]
            if name.endswith("EF"):
                found = backend.diag(*batch)[1]
            else:
                found = backend.kron(*batch, N=len(x))[1]
            total = found if total is None else total + found

    return run


def measure(
    name: str, n_data: int, repeats: int, without: Collection[str] = ()
) -> list[dict[str, object]]:
    """Return a row for each candidate on one model; candidates take turns in every repeat."""
    model, x, y = problem(name, n_data)
    runs: dict[str, Callable[[], None]] = {}
    sizes: dict[str, int] = {}
    rows: list[dict[str, object]] = []
    for candidate in CANDIDATES:
        if candidate in without:
            continue
        try:
            sizes[candidate] = faster_rows(candidate, model, x, y)
            runs[candidate] = runner(candidate, copy.deepcopy(model), x, y, sizes[candidate])
        except Exception as error:  # a peer may fail in any way; the table says how
            why = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
            )
            rows.append({"model": name, "candidate": candidate, "failed": why})
            print(f"{name:9} {candidate:26} {why}", flush=True)
    ratios: dict[str, list[float]] = {candidate: [] for candidate in runs}
    for repeat in range(repeats):
        for candidate, run in runs.items():
            if repeat and ratios[candidate][0] > SLOW:
                continue
            started = time.process_time()
            train_epoch(model, x, y)
            epoch = time.process_time() - started
            started = time.process_time()
            run()
            ratios[candidate].append((time.process_time() - started) / epoch)
    for candidate, values in ratios.items():
        row = {
            "model": name, "candidate": candidate, "estimates": CANDIDATES[candidate],
            "rows": sizes[candidate], "n_data": n_data, "n": len(values),
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3), "max": round(max(values), 3),
        }  # fmt: skip
        rows.append(row)
        print(
            f"{name:9} {candidate:26} {row['median']:6.2f} [{row['min']:.2f} {row['max']:.2f}]",
            flush=True,
        )
    return rows


def peak_megabytes(name: str, candidate: str, n_data: int, rows: int) -> float | None:
    """Return the peak memory of one pass above everything built, from a process of its own."""
    command = [sys.executable, __file__, "--peak", name, candidate, "--n-data", str(n_data)]
    command += ["--rows", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def print_peak(name: str, candidate: str, n_data: int, rows: int) -> None:
    """Print the rise of this process's peak memory over one pass, in MB."""
    model, x, y = problem(name, n_data)
    run = (lambda: train_epoch(model, x, y)) if candidate == "train" else None
    run = run or runner(candidate, model, x, y, rows)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of importing is forgotten
    before = _kilobytes("VmRSS")
    run()
    print((_kilobytes("VmHWM") - before) / 1024)


def _kilobytes(name: str) -> int:
    """Return a line of this process's status (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Measure and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--n-data", type=int)
    parser.add_argument("--models", nargs="+", default=["mlp", "small", "3c3d", "resnet20"])
    parser.add_argument("--without", nargs="+", default=[], help="candidates to leave out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=BATCH)
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "CANDIDATE"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    sizes = {"mlp": 2048, "small": 2048, "3c3d": 512, "resnet20": 256}
    if options.peak:
        print_peak(
            *options.peak, n_data=options.n_data or sizes[options.peak[0]], rows=options.rows
        )
        return
    rows = []
    for name in options.models:
        n_data = options.n_data or sizes[name]
        measured = measure(name, n_data, options.repeats, options.without)
        training = peak_megabytes(name, "train", n_data, BATCH)
        for row in measured:
            if "median" in row:
                row["peak_mb"] = peak_megabytes(
                    name, str(row["candidate"]), n_data, int(str(row["rows"]))
                )
                row["train_peak_mb"] = training
        rows += measured
    packages = ("torch", "backpack-for-pytorch", "laplace-torch", "curvlinops-for-pytorch")
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    result = {
        "what": "curvature pass / one training epoch, float32, batch 128, random data",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} thread",
        "versions": found,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
