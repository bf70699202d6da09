"""Augmented images: their moves, and one objective in training and evidence, weighted by kappa."""

import dataclasses
import math
from pathlib import Path

import pytest
import reference
import torch
from messages import refused
from pydantic import ValidationError
from records import asked
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as vision

from nas_evidence.data.arrays import check_task
from nas_evidence.data.augmentation import (
    data_of_evidence,
    drawn_moves,
    moved,
    moves_of_epoch,
    padding,
)
from nas_evidence.data.tensors import TensorData
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.registry import SCORES
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    StudySpec,
    TrainingPlan,
)
from nas_evidence.testing.executor_contract import without_times
from nas_evidence.training.loop import train_epoch, train_epochs
from nas_evidence.training.network import begin
from nas_evidence.training.online import passes_of
from nas_evidence.training.settling import begin_settling
from nas_evidence.workers.trial import Trial

BOTH = ("RandomCrop", "RandomHorizontalFlip")


def images(n: int = 40, *, real: bool = False) -> TensorData:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n + 10, 1, 4, 5, generator=draw)
    y = x.flatten(1) @ torch.randn(20, 2, generator=draw)
    y = y[:, :1] if real else y.argmax(1)
    one = torch.ones(1 if real else 2, dtype=torch.float64)
    return TensorData(
        x[:n], y[:n], x[n:], y[n:], task="real" if real else "labels", n_outputs=len(one),
        input_shape=(1, 4, 5), y_mean=0 * one, y_std=one,
    )  # fmt: skip


def assignment(
    estimators: tuple[str, ...] = (), family: str = "cnn", **plan: object
) -> Assignment:
    values = {"depth": 1, "width": 3} if family == "cnn" else {}
    return asked(
        ArchitectureSpec(family=family, values=values),
        estimators,
        seed=3,
        **({"epochs": 6, "batch_size": 16, "augment": BOTH} | plan),
    )


def by_torchvision(x: Tensor, moves: Tensor) -> Tensor:
    """Each image by itself: padded with its edge, cropped, reflected."""
    height, width = x.shape[2:]
    found = []
    for image, (down, right, flip) in zip(x, moves.tolist(), strict=True):
        pads = [padding(width), padding(height)]
        wide = vision.pad(image, pads, padding_mode="edge")
        image = vision.crop(wide, pads[1] - down, pads[0] - right, height, width)
        found.append(vision.horizontal_flip(image) if flip else image)
    return torch.stack(found)


def test_moves_are_crops_and_reflections_of_torchvision() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, 9, 16, generator=draw)
    moves = drawn_moves(BOTH, 200, (9, 16), draw)
    assert_close(moved(x, moves), by_torchvision(x, moves), rtol=0, atol=0)
    assert set(moves[:, 0].tolist()) == {-1, 0, 1}
    assert set(moves[:, 1].tolist()) == {-2, -1, 0, 1, 2}
    assert 70 < int(moves[:, 2].sum()) < 130


@pytest.mark.parametrize("augment", [BOTH, BOTH[:1], BOTH[1:]])
def test_an_epoch_by_the_book_sees_each_image_after_its_moves(
    augment: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.training.together.GRADIENT_CLIP", 0.0)
    data, kappa = images(), 3.0
    given = assignment(augment=augment, likelihood_power=kappa, momentum=0.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
    state = begin(model, data, given.plan, given.seed)
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]
    train_epoch(state)
    order = torch.Generator().manual_seed(given.derived_seed("order", 1))
    rows = torch.randperm(40, generator=order)
    moves = moves_of_epoch(data, given, 1)
    total = 0.0
    for start in range(0, 40, 16):
        some = rows[start : start + 16]
        x = by_torchvision(data.x_train[some], moves[start : start + 16])
        logits = x.flatten(1) @ theta[0].T + theta[1]
        each = logits.log_softmax(1).gather(1, data.y_train[some, None])
        total -= float(each.detach().sum())
        # Minus the log joint, with the likelihood to the power kappa; over kappa times the data.
        prior = 0.5 * sum(p.square().sum() for p in theta)
        loss = (-kappa * each.mean() * 40 + prior) / (kappa * 40)
        for p, g in zip(theta, torch.autograd.grad(loss, theta), strict=True):
            p.data -= given.plan.learning_rate * g
    for p, q in zip(model.parameters(), theta, strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert_close(state.curve[0].train_nll_per_datum, total / 40, rtol=1e-5, atol=0)


@pytest.mark.parametrize("kappa", [1.0, 5.0])
def test_the_evidence_of_a_linear_model_is_the_integral_on_the_moved_images(kappa: float) -> None:
    data, s, delta = images(real=True), 0.7, 2.0
    given = assignment(
        likelihood="gaussian", noise_std=s, prior_precision=delta, likelihood_power=kappa
    )
    moves = moves_of_epoch(data, given, 0)
    x = by_torchvision(data.x_train, moves).flatten(1).double()
    x, y = torch.cat([x, torch.ones(40, 1).double()], 1), data.y_train.double()
    weights = torch.linalg.solve(x.T @ x + delta * s**2 / kappa * torch.eye(21).double(), x.T @ y)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 1)).double()
    with torch.no_grad():
        model[1].weight.copy_(weights[:20].T)
        model[1].bias.copy_(weights[20])
    double = dataclasses.replace(data, x_train=data.x_train.double(), y_train=y)
    passes = passes_of(begin(model, double, given.plan, given.seed))
    found = passes.estimate("full_ggn", passes.of("full_ggn")[0])
    # N(y | f, s²)^κ is N(y | f, s²/κ) up to a constant.
    spread = s**2 / kappa * torch.eye(40).double() + x @ x.T / delta
    constant = 0.5 * 40 * (math.log(2 * math.pi * s**2 / kappa))
    constant -= 0.5 * 40 * kappa * math.log(2 * math.pi * s**2)
    exact = MultivariateNormal(torch.zeros(40).double(), spread).log_prob(y[:, 0]) + constant
    assert_close(found.value, float(exact), rtol=1e-9, atol=0)


def test_the_evidence_of_labels_is_that_of_kappa_times_the_sum_over_moved_images() -> None:
    data, kappa = images(), 5.0
    given = assignment(likelihood_power=kappa)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    double = dataclasses.replace(data, x_train=data.x_train.double())
    passes = passes_of(begin(model, double, given.plan, given.seed))
    found = passes.estimate("full_ggn", passes.of("full_ggn")[0])
    moves = moves_of_epoch(data, given, 0)
    x = by_torchvision(double.x_train, moves)
    with torch.no_grad():
        pairs = zip(x, data.y_train, strict=True)
        likelihood = sum(float(model(one[None]).log_softmax(1)[0, label]) for one, label in pairs)
    matrix = kappa * reference.full_ggn(model, x, None)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    expected = kappa * likelihood - 0.5 * float(theta.square().sum())
    expected -= reference.log_det_ratio(matrix, 1.0) / 2
    assert_close(found.value, expected, rtol=1e-10, atol=0)


def test_the_draw_of_the_evidence_is_one_for_a_trial_and_rows_are_moved_alike() -> None:
    data, given = images(), assignment()
    one, other = (data_of_evidence(data, given).x_train for _ in range(2))
    whole = one[:]
    assert torch.equal(whole, other[torch.arange(40)])
    assert torch.equal(whole[8:24], other[8:24])
    assert not torch.equal(whole, data.x_train)
    epochs = [moves_of_epoch(data, given, epoch) for epoch in range(3)]
    assert len({str(moves.tolist()) for moves in epochs}) == 3


def test_without_augmentation_nothing_is_drawn_and_the_data_are_the_same_object() -> None:
    data, given = images(), assignment(augment=())
    state = begin(nn.Linear(2, 2), data, given.plan, given.seed)
    before = torch.get_rng_state()
    assert moves_of_epoch(data, given, 1) is None
    assert data_of_evidence(data, given) is data
    assert passes_of(state).data is data
    assert torch.equal(before, torch.get_rng_state())


def test_a_group_with_its_own_moves_ends_where_each_would_alone() -> None:
    data = images()
    halves = [dataclasses.replace(data, x_train=data.x_train[k:], y_train=data.y_train[k:])
              for k in (0, 7)]  # fmt: skip
    ends = []
    for groups in ([[0, 1]], [[0], [1]]):
        members = []
        for seed, part in enumerate(halves):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Flatten(), nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 2))
            given = assignment().model_copy(update={"seed": seed})
            double = dataclasses.replace(part, x_train=part.x_train.double())
            members.append(begin(model.double(), double, given.plan, given.seed))
        for _ in range(3):
            for group in groups:
                assert not any(train_epochs([members[k] for k in group]))
        ends.append([p for m in members for p in m.model.parameters()])
    assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_resumed_trial_with_its_folds_is_bit_identical(tmp_path: Path) -> None:
    data = images()
    given = assignment(
        ("diag_ef", "two_fold"), likelihood_power=2.0, online={"every": 2, "curvature": "diag_ef"}
    )

    def run(folder: Path, resume_from: Path | None = None, n_slices: int = 99) -> Trial:
        trial = Trial.start(given, data, folder, resume_from=resume_from)
        for _ in range(n_slices):
            if trial.status is not TrialStatus.RUNNING:
                break
            trial.advance(trial.network.epoch + 2 if trial.network else 0)
        return trial

    whole = run(tmp_path / "whole").finish()
    assert whole.status is TrialStatus.COMPLETE, whole.error
    assert whole.final_estimate("two_fold") is not None
    for cut in (1, 5):
        run(tmp_path / f"{cut}", n_slices=cut)
        torch.manual_seed(cut)
        again = run(tmp_path / f"{cut}-2", tmp_path / f"{cut}").finish()
        assert without_times(again) == without_times(whole)


def test_nothing_settles_on_one_draw() -> None:
    plan = TrainingPlan(likelihood="gaussian", augment=BOTH)
    assert plan.settle == 0
    given, model = assignment(family="linear"), nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
    network = begin(model, images(), given.plan, given.seed, family="linear")
    assert begin_settling(network, 0.0).budget == 0
    with pytest.raises(ValidationError, match="`settle` must be 0 with `augment`, but got 1"):
        TrainingPlan(settle=1, augment=BOTH)


def test_what_augmentation_does_not_fit_is_refused_by_name() -> None:
    plan = TrainingPlan(augment=BOTH)
    check_task(plan, images())
    rows = dataclasses.replace(images(), input_shape=(13,))
    with refused("augment-without-images", "[13]"):
        check_task(plan, rows)
    with pytest.raises(ValidationError, match="must name an operation once"):
        TrainingPlan(augment=("RandomCrop", "RandomCrop"))
    study = {"name": "x", "dataset": {"name": "digits"}, "family": {"linear": {}},
             "plan": {"augment": BOTH}}  # fmt: skip
    allowed = [name for name, score in SCORES.items() if not score.plain_only]
    assert {"diag_ef", "two_fold", "five_fold", "sotl"} <= set(allowed)
    StudySpec.model_validate(study | {"estimators": allowed})
    said = (
        "must be defined for augmented images .* got .'thermodynamic'.; remove them, or `augment`"
    )
    with pytest.raises(ValidationError, match=said):
        StudySpec.model_validate(study | {"estimators": ["two_fold", "thermodynamic"]})
