"""Networks trained side by side end where each would alone, trained by a plain loop."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from fake_gpu import FakeGpu
from torch import Tensor, nn

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.maths.precisions import of_each_parameter
from nas_evidence.models import FAMILIES, build, infeasible
from nas_evidence.spec.study import (
    FAMILY_PARAMETERS,
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    TrainingPlan,
)
from nas_evidence.training.loop import (
    DivergedError,
    learning_rate,
    likelihood_of,
    train_epoch,
    train_epochs,
)
from nas_evidence.training.network import Hyper, Network, begin
from nas_evidence.training.together import GRADIENT_CLIP, is_stacked, n_together

EPOCHS = 3


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(load(DatasetSpec(name="digits", max_train=64, max_test=10), seed=0), "cpu")


def members_of(
    data: TensorData, dtype: torch.dtype, sizes: tuple[int, ...], seed: int = 0, **plan: object
) -> list[Network]:
    """Trainings of a random architecture with different data, hyperparameters and seeds."""
    draw = torch.Generator().manual_seed(seed)
    members = []
    architecture = random_architecture(draw, data)
    for k, size in enumerate(sizes):
        given = Assignment(
            trial_id=0, attempt=1, replicate=0, seed=1000 * seed + k, estimators=(),
            architecture=architecture, dataset=DatasetSpec(name="digits"),
            plan={
                "batch_size": 16, "epochs": 6, "learning_rate": 0.02, "temperature": 1.3, **plan,
            },
        )  # fmt: skip
        rows = torch.randperm(len(data.x_train), generator=draw)[:size]
        x, y = data.x_train[rows].to(dtype), data.y_train[rows]
        if given.plan.likelihood == "gaussian":
            y = torch.nn.functional.one_hot(y, data.n_outputs).to(dtype)
        generator = torch.Generator().manual_seed(given.derived_seed("init"))
        model = build(architecture, data.input_shape, data.n_outputs, generator).to(dtype)
        with torch.no_grad():  # heads that start at zero would hide the layers below
            for p in model.parameters():
                p += 0.1 * torch.randn(p.shape, generator=draw).to(dtype)
        seen = replace(data, x_train=x, y_train=y)
        state = begin(model, seen, given.plan, given.seed)
        precision = state.hyper.precision
        precision *= 0.1 + 20 * torch.rand(precision.shape, generator=draw, dtype=torch.float64)
        real = given.plan.likelihood == "gaussian"
        state.hyper = Hyper(precision, 0.5 + 0.3 * k if real else state.hyper.scale)
        members.append(state)
    return members


def random_architecture(draw: torch.Generator, data: TensorData) -> ArchitectureSpec:
    """Return a small one of any family."""
    while True:
        family = [*FAMILIES][int(torch.randint(len(FAMILIES), (), generator=draw))]
        values: dict[str, int] = {}
        if family != "linear":
            sizes = ("depth", "width")
            names = [name for name in FAMILY_PARAMETERS[family] if name in sizes]
            values = {n: int(torch.randint(1, 15, (), generator=draw)) for n in names}
        if family == "resnet":
            values["depth"] = 8
        found = ArchitectureSpec(family=family, values=values)
        if infeasible(found, data.input_shape, data.n_outputs) is None:
            return found


def naive_epoch(state: Network) -> float:
    """One epoch by the book: a loop over tensors, and torch's own clipping and optimiser."""
    plan, epoch = state.plan, state.epoch + 1
    x, y, model = state.data.x_train, state.data.y_train, state.model
    gaussian = plan.likelihood == "gaussian"
    scale = (state.noise_std if gaussian else plan.temperature) ** 2
    rate, parameters = learning_rate(plan, epoch), list(model.parameters())
    optimiser = torch_optimiser(state, plan, rate)
    sizes = [p.numel() for p in parameters]
    precisions = of_each_parameter(state.prior_precision, sizes)
    decay = (precisions * scale / (plan.likelihood_power * len(x))).clamp(max=0.5 / rate)
    order = torch.Generator().manual_seed(state.derived_seed("order", epoch))
    likelihood = likelihood_of(plan, state.noise_std)
    total = 0.0
    for rows in torch.randperm(len(x), generator=order).split(plan.batch_size):
        loss = likelihood.nll_mean(model(x[rows]), y[rows])
        total += loss.item() * len(rows)
        optimiser.zero_grad()
        (scale * loss).backward()
        for p, strength in zip(parameters, decay.split(sizes), strict=True):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad += strength.view_as(p).to(p) * p.detach()
        if GRADIENT_CLIP:
            nn.utils.clip_grad_norm_(parameters, GRADIENT_CLIP)
        optimiser.step()
    state.optimiser.steps += math.ceil(len(x) / plan.batch_size)
    for name in optimiser.state[parameters[0]].keys() - {"step"}:
        state.optimiser.moments[name] = [optimiser.state[p][name] for p in parameters]
    state.epoch = epoch
    return total / len(x)


def torch_optimiser(state: Network, plan: TrainingPlan, rate: float) -> torch.optim.Optimizer:
    """Torch's own optimiser, that goes on from the state of ours."""
    own = state.optimiser
    groups = [
        {"params": [p], "lr": rate * factor}
        for p, factor in zip(state.model.parameters(), own.relative, strict=True)
    ]
    optimiser: torch.optim.Optimizer = torch.optim.Adam(groups)
    if plan.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, momentum=plan.momentum)
    for name, moments in own.moments.items():
        for p, moment in zip(state.model.parameters(), moments, strict=True):
            optimiser.state[p][name] = moment.clone()
            if plan.optimiser == "adam":
                optimiser.state[p]["step"] = torch.tensor(float(own.steps))
    return optimiser


def parameters_of(state: Network) -> Tensor:
    return torch.cat([p.detach().flatten() for p in state.model.parameters()])


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize(
    ("plan", "sizes"),
    [
        ({}, (64, 32, 31)),
        ({"optimiser": "adam", "learning_rate": 0.003}, (40, 20, 20)),
        ({"likelihood": "gaussian", "momentum": 0.0}, (33, 50)),
        ({"online": {"prior_groups": "scalar", "curvature": "diag_ef"}}, (20, 20)),
        ({"likelihood_power": 0.3, "learning_rate": 0.003}, (17,)),
    ],
    ids=["halves", "adam", "real", "one prior", "alone"],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_group_ends_where_each_would_alone(
    plan: dict[str, object], sizes: tuple[int, ...], seed: int, data: TensorData
) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        together = members_of(data, dtype, sizes, seed, **plan)
        alone = [copy.deepcopy(member) for member in together]
        for _ in range(EPOCHS):
            assert train_epochs(together) == [None] * len(sizes)
        for one, other in zip(together, alone, strict=True):
            losses = [naive_epoch(other) for _ in range(EPOCHS)]
            found, expected = parameters_of(one), parameters_of(other)
            norm = expected.norm()
            torch.testing.assert_close(found / norm, expected / norm, rtol=0, atol=tolerance)
            curve = [point.train_nll_per_datum for point in one.curve]
            assert curve == pytest.approx(losses, rel=tolerance)


@pytest.mark.slow
def test_members_may_be_at_different_epochs(data: TensorData) -> None:
    members = members_of(data, torch.float64, (30, 30), seed=3)
    ahead = copy.deepcopy(members[0])
    train_epoch(members[0])
    train_epochs(members)
    for _ in range(2):
        naive_epoch(ahead)
    assert [member.epoch for member in members] == [2, 1]
    torch.testing.assert_close(
        parameters_of(members[0]), parameters_of(ahead), rtol=1e-9, atol=1e-11
    )


@pytest.mark.slow
def test_a_training_goes_on_from_the_state_of_its_optimiser(data: TensorData) -> None:
    """What an epoch leaves behind is what torch's own optimiser would continue from."""
    for optimiser in ("sgd", "adam"):
        (one,) = members_of(data, torch.float64, (40,), seed=1, optimiser=optimiser)
        other = copy.deepcopy(one)
        train_epochs([one])
        naive_epoch(one)
        naive_epoch(other)
        train_epochs([other])
        torch.testing.assert_close(parameters_of(one), parameters_of(other), rtol=1e-9, atol=1e-11)


def test_one_that_diverges_does_not_disturb_the_others(data: TensorData) -> None:
    calm = members_of(data, torch.float32, (40, 40, 20))
    wild = [copy.deepcopy(member) for member in calm]
    wild[1].data.x_train[0] = torch.inf
    assert train_epochs(calm) == [None, None, None]
    errors = train_epochs(wild)
    assert isinstance(errors[1], DivergedError)
    assert errors[0] is errors[2] is None
    assert wild[1].epoch == 0
    for k in (0, 2):
        states = (wild[k], calm[k])
        assert torch.equal(*(parameters_of(state) for state in states))


@pytest.mark.parametrize("gathered", [1, 1 << 10, 1 << 13])  # steps; an epoch; some epochs
def test_how_many_rows_are_gathered_at_once_changes_no_bit(
    gathered: int, data: TensorData, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_of(data, torch.float32, (40, 13, 37), optimiser="adam")
    others = copy.deepcopy(members)
    assert train_epochs(members, n_epochs=5) == [None] * 3
    monkeypatch.setattr("nas_evidence.training.together._GATHERED", gathered)
    assert train_epochs(others, n_epochs=5) == [None] * 3
    for one, other in zip(members, others, strict=True):
        assert torch.equal(parameters_of(one), parameters_of(other))
        losses = [[point.train_nll_per_datum for point in each.curve] for each in (one, other)]
        assert losses[0] == losses[1]


def test_parameters_own_their_memory_after_an_epoch(data: TensorData) -> None:
    members = members_of(data, torch.float32, (20, 20))
    train_epochs(members)
    tensors = [p for member in members for p in member.model.parameters()]
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in tensors)


def test_a_network_with_an_unknown_layer_trains_alone(data: TensorData) -> None:
    members = members_of(data, torch.float32, (20, 20), seed=3)
    x = data.x_train[:1]
    unknown = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
    assert n_together(members[0].model, x, 128, 2) == 2
    assert n_together(unknown, x, 128, 2) == 1
    assert not is_stacked(unknown, 1)
    own = [copy.deepcopy(members[0]), copy.deepcopy(members[0])]
    for member in own:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
        vars(member).update(vars(begin(model, member.data, member.plan, member.seed)))
    assert train_epochs(own) == [None, None]
    assert [member.epoch for member in own] == [1, 1]


@pytest.mark.parametrize(
    ("channels", "n", "size"), [(2, 8, 8), (48, 2, 2), (48, 5, 2), (500, 3, 1)]
)
def test_networks_train_together_as_far_as_they_gain(
    channels: int, n: int, size: int, data: TensorData
) -> None:
    """On a CPU; on an accelerator as many as there are."""
    model = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1))
    assert n_together(model, data.x_train[:1], 128, n) == size
    with FakeGpu():
        assert n_together(model.to("cuda"), data.x_train[:1].to("cuda"), 128, n) == n
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 2048))
    assert n_together(wide, data.x_train[:1], 128, n) == 1
