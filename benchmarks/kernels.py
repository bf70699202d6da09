"""Training epochs and curvature passes on small images, beside an earlier version of ours.

Each version runs in processes of its own, in turns. In each, every network trains for a plain
epoch (forward, backward, SGD step) before each pass, and the pass is quoted as a ratio to it;
epochs are quoted as a ratio to those of the earlier version. CPU time of one thread; median and
range over the processes. The first round of each process is a warm-up.

    python benchmarks/kernels.py [--before FOLDER] [--repeats 5] [--out F]

FOLDER is a checkout of the earlier version, for instance a worktree of its commit.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

#: Family, values, shape of an image, number of images.
NETWORKS: tuple[tuple[str, Mapping[str, int], tuple[int, int, int], int], ...] = (
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


def measure() -> dict[str, dict[str, float]]:
    """Return the CPU seconds of an epoch and of each pass, for each network, in this process."""
    return {
        f"{family} {values['depth']}/{values['width']} on {shape[1]}x{shape[2]}": _seconds(
            family, values, shape, n_data
        )
        for family, values, shape, n_data in NETWORKS
    }


def _seconds(
    family: str, values: Mapping[str, int], shape: tuple[int, int, int], n_data: int
) -> dict[str, float]:
    import torch
    from torch import nn

    from nas_evidence.curvature import curvature_pass
    from nas_evidence.curvature.batch_rows import rows_at_once
    from nas_evidence.curvature.likelihood import Categorical
    from nas_evidence.models import build
    from nas_evidence.spec.study import ArchitectureSpec

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = build(ArchitectureSpec(family=family, values=dict(values)), shape, 10, generator)
    with torch.no_grad():  # no weight stays at Fixup's zeros
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    x = torch.randn(n_data, *shape, generator=generator)
    y = torch.randint(0, 10, (n_data,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    size = rows_at_once(model, x)

    def epoch() -> None:
        model.train()
        for rows in torch.randperm(n_data, generator=generator).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()

    found: dict[str, float] = {}
    epochs = []
    for _ in range(2):  # warm-up, then the figures
        epochs = []
        for kind in KINDS:
            epochs.append(_timed(epoch))
            found[kind] = (
                _timed(
                    lambda kind=kind: curvature_pass(
                        kind, model, x, y, Categorical(), batch_size=size, generator=generator
                    )
                )
                / epochs[-1]
            )
    return {"epoch": statistics.median(epochs), **found}


def _timed(run: object) -> float:
    started = time.process_time()
    run()  # type: ignore[operator]
    return time.process_time() - started


def in_process(folder: Path) -> dict[str, dict[str, float]]:
    """Return `measure` with the package of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the range."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help="one process of one version")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    folders = {"after": Path(__file__).resolve().parents[1]}
    if options.before:
        folders = {"before": options.before.resolve(), **folders}
    runs: dict[str, list[dict[str, dict[str, float]]]] = {version: [] for version in folders}
    load = []
    for _ in range(options.repeats):
        for version, folder in folders.items():
            load.append(os.getloadavg()[0])
            runs[version].append(in_process(folder))
    rows = []
    for name in runs["after"][0]:
        for what in ("epoch", *KINDS):
            row: dict[str, object] = {"network": name, "what": what}
            for version, found in runs.items():
                values = [run[name][what] for run in found]
                if what == "epoch":
                    base = [run[name]["epoch"] for run in runs[next(iter(folders))]]
                    values = [a / b for a, b in zip(values, base, strict=True)]
                row[version] = spread(values)
            rows.append(row)
            print(json.dumps(row), flush=True)
    result = {
        "what": "CPU time of passes / a plain epoch; of epochs / an epoch of the earlier version",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread, no GPU",
        "load": spread(load),
        "n": options.repeats,
        "python": platform.python_version(),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
