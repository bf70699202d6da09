"""The published study of architectures on Fashion-MNIST (Immer 2021, Table C11).

SGD 0.01, batches of 128, 250 epochs with steps at 1/2, 3/4 and 11/12, online diagonal EF every
five epochs with a hundred steps of Adam at rate 1. The quick version trains four of the smallest
networks on 1,000 images, the full one as many of the cheapest as six hours carry on all 60,000,
60 of the 250 epochs. `run` with `keep` goes on where it was stopped, `epochs` and `minutes` are
another budget; networks that are left get an estimate from the seconds of their steps.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor

from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.cost import cost_of
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import begin
from nas_evidence.workers.trial import Trial
from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._shared_data import subset

PAPER = "Immer et al. 2021"
FIGURE = "Fig. 2, Fig. C.3, Fig. C.4, Table C11"
TITLE = "Evidence and accuracy of the published architectures on Fashion-MNIST"
CLAIM = "Networks of larger evidence have the higher test accuracy (rank correlation 0.69)."
RULE = (
    "our rank correlation of evidence and accuracy has the sign of the published one over the "
    "same networks, and that of ours with the published values is above 0.5; a network is "
    "within one point of the published accuracy, and within a twentieth of the published "
    "evidence (Table C11)"
)
NEEDS = ("FashionMNIST",)
FULL_HOURS = 6.0

PICTURES = ("Fig. 2", "Fig. C.3", "Fig. C.4")

#: Family, depth, width, published accuracy (%), evidence (nats per datum), parameters.
ARCHITECTURES = (
    ("mlp", 1, 800, 85.01, -0.598, 636034), ("mlp", 3, 800, 85.23, -0.670, 1917650),
    ("mlp", 1, 200, 85.24, -0.581, 159034), ("cnn", 2, 2, 85.25, -0.417, 566),
    ("mlp", 5, 800, 85.35, -0.740, 3199266), ("mlp", 2, 800, 85.44, -0.637, 1276842),
    ("mlp", 4, 800, 85.51, -0.703, 2558458), ("mlp", 3, 200, 85.56, -0.633, 239450),
    ("mlp", 4, 200, 85.59, -0.664, 279658), ("mlp", 2, 200, 85.69, -0.610, 199242),
    ("mlp", 5, 200, 85.78, -0.677, 319866), ("cnn", 1, 4, 85.94, -0.421, 748),
    ("mlp", 1, 50, 86.27, -0.537, 39784), ("mlp", 5, 50, 86.43, -0.624, 50016),
    ("mlp", 3, 50, 86.45, -0.597, 44900), ("mlp", 4, 50, 86.55, -0.608, 47458),
    ("mlp", 2, 50, 86.81, -0.570, 42342), ("cnn", 3, 2, 87.70, -0.361, 864),
    ("cnn", 1, 8, 88.05, -0.390, 1428), ("cnn", 4, 2, 88.24, -0.360, 2074),
    ("cnn", 2, 4, 88.28, -0.369, 1166), ("cnn", 1, 16, 89.05, -0.395, 2788),
    ("cnn", 1, 32, 89.42, -0.429, 5508), ("cnn", 3, 4, 89.78, -0.341, 2296),
    ("cnn", 5, 2, 89.81, -0.354, 6756), ("cnn", 2, 8, 90.71, -0.354, 2798),
    ("cnn", 2, 16, 91.10, -0.384, 7790), ("cnn", 4, 4, 91.15, -0.342, 6978),
    ("cnn", 3, 8, 91.15, -0.357, 7320), ("cnn", 2, 32, 91.54, -0.416, 24686),
    ("cnn", 5, 4, 92.17, -0.344, 25516), ("cnn", 3, 32, 92.32, -0.471, 97944),
    ("cnn", 4, 8, 92.50, -0.376, 25858), ("cnn", 3, 16, 92.55, -0.417, 26008),
    ("cnn", 4, 32, 92.65, -0.466, 393154), ("cnn", 4, 16, 93.33, -0.434, 99906),
    ("cnn", 5, 32, 93.40, -0.436, 1573356),
)  # fmt: skip
Published = tuple[str, int, int, float, float, int]
QUICK = (("cnn", 2, 2), ("cnn", 3, 2), ("mlp", 1, 50), ("mlp", 3, 50))
EPOCHS = 250
#: For estimates of a GPU, which are not measured: seconds of the launches of a step, and
#: operations per second of small convolutions.
GPU_STEP, GPU_RATE = 1.5e-3, 4e12


@dataclass(frozen=True)
class Trained:
    """One network after its epochs; evidence in nats per datum, processor seconds."""

    accuracy: float
    evidence: float
    parameters: int
    seconds: float


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return the correlations, and accuracy and evidence of each network that was trained."""
    found = [
        Cell(
            "rank correlation", "evidence with accuracy",
            numbers["rho"] * numbers["rho_published"] > 0, PICTURES,
        ),
        *(
            Cell("rank correlation", f"our {what} with theirs", numbers[key] > 0.5, PICTURES)
            for what, key in (("evidence", "rho_of_evidences"), ("accuracy", "rho_of_accuracies"))
        ),
    ]  # fmt: skip
    for row in numbers["ours"]:
        name = f"{row[0]} {row[1]}x{row[2]}"
        accuracy, evidence, ours, own = row[3], row[4], 100 * row[6], row[7]
        near = abs(own / evidence - 1) <= 0.05
        found += [
            Cell("accuracy", name, abs(ours - accuracy) <= 1, ("Table C11",)),
            Cell("evidence", name, near, ("Table C11",)),
        ]
    return found


def run(
    *,
    quick: bool,
    data: Path | None,
    say: Callable[[str], None],
    epochs: int | None = None,
    minutes: float = 360.0,
    keep: Path | None = None,
) -> Reproduction:
    """Train the cheapest architectures within the budget.

    Args:
        quick: four networks on 1,000 images.
        data: the folder of data sets.
        say: told about progress.
        epochs: of each network, 12 or 60 if None.
        minutes: wall time after which no further epochs begin, except in the quick version.
        keep: checkpoints and finished networks, from which a later call goes on.
    """
    assert data is not None
    n_train, n_test, n_epochs = (1000, 3000, 12) if quick else (60_000, 10_000, 60)
    n_epochs = epochs or n_epochs
    train, test = subset(data, "FMNIST", n_train, n_test)
    tensors = _tensors(train, test)
    end = float("inf") if quick else time.monotonic() + 60 * minutes
    chosen: list[Published] = [one for one in ARCHITECTURES if not quick or one[:3] in QUICK]
    steps = {one: step_seconds(one, tensors) for one in chosen}
    found: dict[Published, Trained] = {}
    with TemporaryDirectory() as scratch:
        for one in sorted(chosen, key=lambda one: steps[one]):
            if time.monotonic() < end:
                say(f"{_name(one)}: {n_train} images, {n_epochs} epochs")
            done = trained(one, tensors, n_epochs, keep or Path(scratch), end)
            if done is not None:
                found[one] = done
    return _reproduction(found, steps, tensors, n_epochs)


def trained(
    one: Published, data: TensorData, epochs: int, keep: Path, end: float
) -> Trained | None:
    """Train one network as published, from where an earlier call stopped; None if time is up."""
    given = assignment(one, epochs)
    folder = keep / f"{_name(one).replace(' ', '-')}-{epochs}-of-{len(data.x_train)}"
    finished, used = folder / "done.json", folder / "seconds"
    if finished.is_file():
        return Trained(**json.loads(finished.read_text("utf-8")))
    if time.monotonic() > end:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    before = float(used.read_text("utf-8")) if used.is_file() else 0.0
    begun = time.process_time()
    trial = Trial.start(given, data, folder, resume_from=folder)
    while trial.status is TrialStatus.RUNNING:
        if time.monotonic() > end:
            return None
        assert trial.network is not None
        trial.advance(trial.network.epoch + 1)
        write_whole(used, f"{before + time.process_time() - begun}")
    record = trial.finish()
    estimate = record.final_estimate("diag_ef")
    if record.test_accuracy is None or estimate is None or estimate.per_datum is None:
        raise RuntimeError(f"{_name(one)} ended as {record.status}: {record.cause}")
    assert record.n_parameters is not None
    seconds = before + time.process_time() - begun
    result = Trained(record.test_accuracy, estimate.per_datum, record.n_parameters, seconds)
    write_whole(finished, json.dumps(asdict(result)))
    return result


def assignment(one: Published, epochs: int) -> Assignment:
    """Return a published network and the published recipe, shortened to some epochs."""
    family, depth, width, *_ = one
    milestones = sorted({epochs // 2, 3 * epochs // 4, 11 * epochs // 12} - {0})
    plan = {
        "epochs": epochs, "batch_size": 128, "learning_rate": 0.01, "schedule": "steps",
        "milestones": milestones,
        "online": {"every": 5, "curvature": "diag_ef", "hyper_step": "adam",
                   "hyper_steps": 100, "hyper_learning_rate": 1.0},
    }  # fmt: skip
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, plan=TrainingPlan.model_validate(plan),
        estimators=("diag_ef",), dataset=DatasetSpec(name="fashion_mnist"),
        architecture=ArchitectureSpec(family=family, values={"depth": depth, "width": width}),
    )  # fmt: skip


def step_seconds(one: Published, data: TensorData, n_steps: int = 3) -> float:
    """Return the processor seconds of a step of training, the least of some."""
    given = assignment(one, 60)
    generator = torch.Generator().manual_seed(0)
    model = build(given.architecture, data.input_shape, data.n_outputs, generator)
    batch = TensorData(
        data.x_train[:128], data.y_train[:128], data.x_test[:0], data.y_test[:0], "labels",
        data.n_outputs, data.input_shape, data.y_mean, data.y_std,
    )  # fmt: skip
    state, found = begin(model, batch, given.plan, given.seed), []
    for _ in range(n_steps):
        begun = time.process_time()
        train_epoch(state)
        found.append(time.process_time() - begun)
    return min(found)


def _tensors(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> TensorData:
    none = torch.zeros(10, dtype=torch.float64)
    shape = tuple(train[0].shape[1:])
    return TensorData(
        *train, *test, task="labels", n_outputs=10, input_shape=shape, y_mean=none, y_std=none + 1
    )


def _name(one: Published) -> str:
    return f"{one[0]} {one[1]}x{one[2]}"


def _hours(one: Published, step: float, ratio: float, data: TensorData) -> tuple[float, float]:
    """Return hours of two cores and of a GPU for the published epochs on 60,000 images.

    Args:
        one: the network; two train at a time, one on each core.
        step: its seconds of a step.
        ratio: of the seconds of epochs, with updates, to those of their steps alone.
        data: provides the shape of an image.
    """
    given = assignment(one, EPOCHS)
    cost = cost_of(given.architecture, data.input_shape, 10, given.plan, ("diag_ef",), 60_000)
    n_steps = ratio * EPOCHS * 60_000 / 128
    on_gpu = max(GPU_STEP, 3 * 128 * cost.flops / GPU_RATE)
    return n_steps * step / 2 / 3600, n_steps * on_gpu / 3600


def _reproduction(
    found: dict[Published, Trained], steps: dict[Published, float], data: TensorData, epochs: int
) -> Reproduction:
    n_train, rows = len(data.x_train), []
    for one, ours in found.items():
        accuracy, evidence, parameters = one[3:]
        rows.append(
            Row(
                f"{_name(one)}: accuracy (%), evidence (nats per datum), parameters",
                f"{accuracy:.2f}, {evidence:.3f}, {parameters}",
                f"{100 * ours.accuracy:.2f}, {ours.evidence:.3f}, {ours.parameters}",
                "one seed",
                f"{ours.seconds / epochs:.1f} s of one core per epoch",
            )
        )

    def rho(x: list[float], y: list[float]) -> float:
        return float(spearmanr(x, y)[0]) if len(x) > 2 else float("nan")

    own = rho([f.accuracy for f in found.values()], [f.evidence for f in found.values()])
    theirs = rho([one[3] for one in found], [one[4] for one in found])
    accuracies = rho([one[3] for one in found], [f.accuracy for f in found.values()])
    evidences = rho([one[4] for one in found], [f.evidence for f in found.values()])
    n = f"n = {len(found)} networks"
    rows += [
        Row("rank correlation of evidence and accuracy", f"{theirs:+.2f}", f"{own:+.2f}", n),
        Row("rank correlation of our evidence and the published one", "", f"{evidences:+.2f}", n),
        Row("rank correlation of our accuracy and the published one", "", f"{accuracies:+.2f}", n),
    ]
    n_steps = epochs * -(-n_train // 128)
    ratio = sum(f.seconds for f in found.values()) / sum(n_steps * steps[one] for one in found)
    left = [one for one in ARCHITECTURES if one in steps and one not in found]
    for one in left:
        cores, gpu = _hours(one, steps[one], ratio, data)
        rows.append(
            Row(
                f"{_name(one)}: not trained",
                f"{one[3]:.2f}, {one[4]:.3f}, {one[5]}",
                f"{cores:.1f} hours of two cores, {gpu:.2f} of a GPU",
                "",
                f"epochs of {469 * ratio * steps[one]:.1f} s of one core",
            )
        )
    everything = [_hours(one, step, ratio, data) for one, step in steps.items()]
    rows.append(
        Row(
            f"all {len(steps)} networks, {EPOCHS} epochs",
            "",
            f"{sum(h[0] for h in everything):.0f} hours of two cores, "
            f"{sum(h[1] for h in everything):.1f} of a GPU",
            "estimated: cores from measured steps, the GPU from launches and operations",
        )
    )
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.plot([one[4] for one in found], [one[3] for one in found], "o", label="published")
    ours_xy = [f.evidence for f in found.values()], [100 * f.accuracy for f in found.values()]
    axis.plot(*ours_xy, "^", label=f"ours, {epochs} of {EPOCHS} epochs")
    for one, x, y in zip(found, *ours_xy, strict=True):
        axis.annotate(_name(one), (x, y), fontsize=6)
    axis.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    axis.legend(fontsize=7)
    numbers = {
        "n_train": n_train,
        "epochs": epochs,
        "ours": [[*one, *asdict(f).values()] for one, f in found.items()],
        "epoch_over_steps": ratio,
        "step_seconds": {_name(one): step for one, step in steps.items()},
        "rho": own,
        "rho_published": theirs,
        "rho_of_evidences": evidences,
        "rho_of_accuracies": accuracies,
    }
    return Reproduction(
        tuple(rows),
        figure,
        numbers,
        f"{len(found)} of 37 architectures, {n_train} images, {epochs} of {EPOCHS} epochs: rank "
        f"correlation of evidence and accuracy {own:+.2f}, of the published values of the same "
        f"networks {theirs:+.2f}; of our evidence and theirs {evidences:+.2f}. {_gaps(found)}",
    )


def _gaps(found: dict[Published, Trained]) -> str:
    """Say how far accuracies are from the published ones, by family."""
    gaps: dict[str, list[float]] = {}
    for one, ours in found.items():
        gaps.setdefault(one[0], []).append(100 * ours.accuracy - one[3])
    said = [f"{name} {min(g):+.1f} to {max(g):+.1f}" for name, g in gaps.items()]
    return f"Accuracy minus the published one, points: {', '.join(said)}"
