"""The published study of architectures on Fashion-MNIST (Immer 2021, Table C11).

SGD 0.01, batches of 128, 250 epochs with steps at 1/2, 3/4 and 11/12, online diagonal EF every
five epochs with a hundred steps of Adam at rate 1. The quick version trains four of the smallest
networks on 1,000 images, the full one as many of the cheapest as six hours carry on all 60,000,
60 of the 250 epochs. `run` with `keep` goes on where it was stopped, `epochs` and `minutes` are
another budget. All 37 networks for 250 epochs take about 21 hours of two cores.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import spearmanr

from nas_evidence.data.tensors import TensorData
from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.cost import cost_of
from nas_evidence.workers.trial import Trial

from ._immer import adam, tensors
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run
from ._shared_data import subset

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


@dataclass(frozen=True)
class Trained:
    """One network after its epochs; evidence in nats per datum."""

    accuracy: float
    evidence: float
    parameters: int


def cells(numbers: Numbers) -> Cells:
    """Yield the correlations, and accuracy and evidence of each network that was trained."""
    group, same_sign = "rank correlation", numbers["rho"] * numbers["rho_published"] > 0
    yield Cell(group, "evidence with accuracy", same_sign, PICTURES)
    for what, key in (("evidence", "rho_of_evidences"), ("accuracy", "rho_of_accuracies")):
        yield Cell(group, f"our {what} with theirs", numbers[key] > 0.5, PICTURES)
    for row in numbers["ours"]:
        name, (accuracy, evidence, _, ours, own) = _name(row), row[3:8]
        yield Cell("accuracy", name, abs(100 * ours - accuracy) <= 1, ("Table C11",))
        yield Cell("evidence", name, abs(own / evidence - 1) <= 0.05, ("Table C11",))


def run(
    at: Run, *, epochs: int | None = None, minutes: float = 360.0, keep: Path | None = None
) -> Reproduction:
    """Train the cheapest architectures within the budget.

    Args:
        at: four networks on 1,000 images if it is quick.
        epochs: of each network, 12 or 60 if None.
        minutes: wall time after which no further epochs begin, except in the quick version.
        keep: checkpoints and finished networks, from which a later call goes on.
    """
    n_train, n_test, n_epochs = at.sized((1000, 3000, 12), (60_000, 10_000, 60))
    n_epochs = epochs or n_epochs
    data = tensors(*subset(at.data, "FMNIST", n_train, n_test))
    end = float("inf") if at.quick else time.monotonic() + 60 * minutes
    chosen = [one for one in ARCHITECTURES if not at.quick or one[:3] in QUICK]
    found = {}
    with TemporaryDirectory() as scratch:
        for one in sorted(chosen, key=_flops):
            at.say(f"{_name(one)}: {n_train} images, {n_epochs} epochs")
            done = trained(one, data, n_epochs, keep or Path(scratch), end)
            if done is not None:
                found[one] = done
    return _reproduction(found, chosen, n_train, n_epochs)


def trained(
    one: Published, data: TensorData, epochs: int, keep: Path, end: float
) -> Trained | None:
    """Train one network as published, from where an earlier call stopped; None if time is up."""
    folder = keep / f"{_name(one).replace(' ', '-')}-{epochs}-of-{len(data.x_train)}"
    finished = folder / "done.json"
    if finished.is_file():
        return Trained(**json.loads(finished.read_text("utf-8")))
    if time.monotonic() > end:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    trial = Trial.start(assignment(one, epochs), data, folder, resume_from=folder)
    while trial.status is TrialStatus.RUNNING:
        if time.monotonic() > end:
            return None
        assert trial.network is not None
        trial.advance(trial.network.epoch + 1)
    record = trial.finish()
    estimate = record.final_estimate("diag_ef")
    if record.test_accuracy is None or estimate is None or estimate.per_datum is None:
        raise RuntimeError(f"{_name(one)} ended as {record.status}: {record.cause}")
    assert record.n_parameters is not None
    result = Trained(record.test_accuracy, estimate.per_datum, record.n_parameters)
    write_whole(finished, json.dumps(asdict(result)))
    return result


def assignment(one: Published, epochs: int) -> Assignment:
    """Return a published network and the published recipe, shortened to some epochs."""
    family, depth, width, *_ = one
    milestones = sorted({epochs // 2, 3 * epochs // 4, 11 * epochs // 12} - {0})
    plan = {
        "epochs": epochs, "batch_size": 128, "learning_rate": 0.01, "schedule": "steps",
        "milestones": milestones, "online": adam("diag_ef", 5, 100, 1.0),
    }  # fmt: skip
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, plan=TrainingPlan.model_validate(plan),
        estimators=("diag_ef",), dataset=DatasetSpec(name="fashion_mnist"),
        architecture=ArchitectureSpec(family=family, values={"depth": depth, "width": width}),
    )  # fmt: skip


def _flops(one: Published) -> int:
    given = assignment(one, EPOCHS)
    return cost_of(given.architecture, (1, 28, 28), 10, given.plan, ("diag_ef",)).flops


def _name(one: Any) -> str:
    return f"{one[0]} {one[1]}x{one[2]}"


def _rho(x: list[float], y: list[float]) -> float:
    return float(spearmanr(x, y)[0]) if len(x) > 2 else float("nan")


def _reproduction(
    found: dict[Published, Trained], chosen: list[Published], n_train: int, epochs: int
) -> Reproduction:
    rows, gaps = [], {}
    for one in [*found, *(one for one in chosen if one not in found)]:
        ours, result = found.get(one), "not trained"
        if ours is not None:
            result = f"{100 * ours.accuracy:.2f}, {ours.evidence:.3f}, {ours.parameters}"
            gaps.setdefault(one[0], []).append(100 * ours.accuracy - one[3])
        rows.append(
            Row(
                f"{_name(one)}: accuracy (%), evidence (nats per datum), parameters",
                f"{one[3]:.2f}, {one[4]:.3f}, {one[5]}",
                result,
                "" if ours is None else "one seed",
            )
        )
    accuracy, evidence = ([one[i] for one in found] for i in (3, 4))
    own = [ours.accuracy for ours in found.values()], [ours.evidence for ours in found.values()]
    rho = {
        "rho": _rho(*own),
        "rho_published": _rho(accuracy, evidence),
        "rho_of_evidences": _rho(evidence, own[1]),
        "rho_of_accuracies": _rho(accuracy, own[0]),
    }
    said = {name: f"{value:+.2f}" for name, value in rho.items()}
    n = f"n = {len(found)} networks"
    beside = "rank correlation of our {0} and the published one"
    rows += [
        Row("rank correlation of evidence and accuracy", said["rho_published"], said["rho"], n),
        Row(beside.format("evidence"), "", said["rho_of_evidences"], n),
        Row(beside.format("accuracy"), "", said["rho_of_accuracies"], n),
    ]
    figure, axis = panels(5, 3.4)
    axis.plot(evidence, accuracy, "o", label="published")
    points = own[1], [100 * value for value in own[0]]
    axis.plot(*points, "^", label=f"ours, {epochs} of {EPOCHS} epochs")
    for one, x, y in zip(found, *points, strict=True):
        axis.annotate(_name(one), (x, y), fontsize=6)
    axis.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    axis.legend(fontsize=7)
    apart = [f"{name} {min(gap):+.1f} to {max(gap):+.1f}" for name, gap in gaps.items()]
    return Reproduction(
        rows,
        figure,
        {
            "n_train": n_train,
            "epochs": epochs,
            "ours": [[*one, *asdict(ours).values()] for one, ours in found.items()],
            **rho,
        },
        f"{len(found)} of 37 architectures, {n_train} images, {epochs} of {EPOCHS} epochs: rank "
        f"correlation of evidence and accuracy {said['rho']}, of the published values of the same "
        f"networks {said['rho_published']}; of our evidence and theirs "
        f"{said['rho_of_evidences']}. Accuracy minus the published one, points: "
        + ", ".join(apart),
    )
