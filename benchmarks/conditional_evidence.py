"""What the conditional evidence of a last layer costs beside the training that it needs.

One fold of `conditional_evidence`, a fifth of the data given the others, of an MLP with one hidden
layer: seconds of the density, and of the training as `search` proposes it (Adam, batch and epochs
by the number of rows, without updates of the prior), extrapolated from some of its epochs. CPU
seconds of one thread. Labels are drawn from a random network with noise.

    python benchmarks/conditional_evidence.py [--cells 300,64,10 ...] [--out F]
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from nas_evidence.curvature.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.data.proposed import training_length
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.loop import Member, train_epochs
from nas_evidence.training.parts import new_run, part_of

#: Rows, units and classes (0 for one real target).
CELLS = (
    (300, 64, 10), (300, 1024, 10), (300, 1024, 2), (300, 256, 0), (3000, 64, 10),
    (3000, 256, 10), (3000, 1024, 0), (60_000, 64, 10), (60_000, 256, 10),
)  # fmt: skip
N_INPUTS, PRECISION = 64, 1.0


def data_of(n: int, n_classes: int) -> TensorData:
    """Return inputs, and labels or targets of a random network with noise."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, N_INPUTS, generator=generator)
    n_outputs = n_classes or 1
    hidden = torch.tanh(x @ torch.randn(N_INPUTS, 30, generator=generator) / 4)
    outputs = hidden @ torch.randn(30, n_outputs, generator=generator)
    outputs += 0.5 * torch.randn(n, n_outputs, generator=generator)
    y = outputs.argmax(1) if n_classes else outputs / outputs.std()
    return TensorData(
        x_train=x, y_train=y, x_test=x[:1], y_test=y[:1], n_outputs=n_outputs,
        task="labels" if n_classes else "real", input_shape=(N_INPUTS,),
        y_mean=torch.zeros(n_outputs), y_std=torch.ones(n_outputs),
    )  # fmt: skip


def measured(n: int, width: int, n_classes: int) -> dict[str, object]:
    """Return the costs of one cell."""
    data, n_early = data_of(n, n_classes), n * 4 // 5
    batch, epochs = training_length(n)
    plan = TrainingPlan(
        likelihood="categorical" if n_classes else "gaussian", batch_size=batch, epochs=epochs,
        optimiser="adam", learning_rate=0.005, prior_precision=PRECISION,
    )  # fmt: skip
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, dataset=DatasetSpec(name="npz", path="x"), plan=plan,
        architecture=ArchitectureSpec(
            family="mlp", values={"depth": 1, "width": width, "shape": "constant"}
        ),
        estimators=(), seed=0,
    )  # fmt: skip
    part = part_of(torch.arange(n_early), data, given, "fold")
    run = new_run(part)
    each = []
    for _ in range(max(3, min(epochs, 2000 * 128 // n))):
        started = time.thread_time()
        train_epochs([Member(run.training, part.data, part.assignment)])
        each.append(time.thread_time() - started)
    training = epochs * sum(each[1:]) / (len(each) - 1)
    model = run.training.model.eval()
    precision = torch.full((len(list(model.parameters())),), PRECISION)
    likelihood: Likelihood = Categorical() if n_classes else Gaussian(0.5)
    started = time.thread_time()
    layer = last_layer_of(model, data.x_train, precision)
    found = late_given_early(layer, data.y_train, n_early, likelihood)
    seconds = time.thread_time() - started
    row: dict[str, object] = {
        "rows": n, "units": width, "classes": n_classes, "epochs": epochs,
        "training_seconds": round(training, 2), "density_seconds": round(seconds, 3),
        "ratio": round(seconds / training, 3), "per_datum": round(found.value / (n - n_early), 5),
    }  # fmt: skip
    if found.standard_error is not None:
        row["standard_error_per_datum"] = round(found.standard_error / (n - n_early), 6)
    return row


def main() -> None:
    """Measure the cells; print a line for each and write all to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="*")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells = [tuple(map(int, c.split(","))) for c in asked.cells] if asked.cells else CELLS
    rows = []
    for cell in cells:
        rows.append(measured(*cell))
        print(rows[-1], flush=True)
        if asked.out:
            found = {"torch": torch.__version__, "machine": platform.machine(), "cells": rows}
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
