"""Networks trained side by side end where each would alone, trained by a plain loop."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_trials import ended, linear_assignment, mlp_assignment, trained_part
from records import asked
from torch import Tensor, nn

from nas_evidence.curvature.layers import is_perceptron
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.precisions import of_each_parameter
from nas_evidence.models import FAMILIES, build, infeasible
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import (
    FAMILY_PARAMETERS,
    ArchitectureSpec,
    DatasetSpec,
    TrainingPlan,
)
from nas_evidence.training import loop, together
from nas_evidence.training.loop import (
    DivergedError,
    learning_rate,
    likelihood_of,
    train_epoch,
    train_epochs,
)
from nas_evidence.training.network import Hyper, Network, begin
from nas_evidence.training.optimiser import Optimiser
from nas_evidence.training.parts import part_of
from nas_evidence.training.perceptrons import Perceptrons
from nas_evidence.training.together import (
    GRADIENT_CLIP,
    Batch,
    Program,
    is_stacked,
    n_together,
    totals_of,
)
from nas_evidence.workers.trial import Trial

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
        defaults = {"batch_size": 16, "epochs": 6, "learning_rate": 0.02, "temperature": 1.3}
        given = asked(architecture, seed=1000 * seed + k, **(defaults | plan))
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


# --- trainings on parts of the data, side by side: how far each trains, and what it ends as


def test_every_training_reaches_the_stop_and_none_goes_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of two end with the epoch in which one diverges, each at its own."""
    any_data, plan = SimpleNamespace(x_train=[0]), SimpleNamespace(batch_size=1)
    networks: list[Any] = [
        SimpleNamespace(epoch=0, model=None, data=any_data, plan=plan) for _ in range(6)
    ]
    diverges_at = {0: 3, 2: 5}

    def epochs(group: Sequence[Any], n_epochs: int) -> list[DivergedError | None]:
        ends = [diverges_at.get(_number(networks, one), 99) for one in group]
        last = min([group[0].epoch + n_epochs, *ends])
        found = [DivergedError("far") if end == last else None for end in ends]
        for one, error in zip(group, found, strict=True):
            one.epoch = last - (error is not None)
        return found

    monkeypatch.setattr(loop, "n_together", lambda *_: 2)
    monkeypatch.setattr(loop, "_train_group", epochs)
    found = train_epochs(networks, n_epochs=8)
    assert [k for k, error in enumerate(found) if error is not None] == [0, 2]
    assert [network.epoch for network in networks] == [2, 8, 4, 8, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "likelihood", "settle", "epochs", "n"),
    # In each the last update moves the precisions.
    [
        ("linear", "categorical", 0, 6, 90),
        ("mlp", "categorical", 0, 4, 40),
        ("mlp", "gaussian", 1, 4, 40),
    ],
)
def test_a_network_of_a_fold_is_that_of_the_main_training_on_the_same_rows(
    family: str, likelihood: str, settle: float, epochs: int, n: int, tmp_path: Path
) -> None:
    """To the bit, also where the last epoch updates: it may settle from there."""
    name = "digits" if likelihood == "categorical" else "diabetes"
    spec = DatasetSpec.model_validate({"name": name, "max_train": 100, "max_test": 1})
    given = mlp_assignment(epochs=epochs, likelihood=likelihood, settle=settle)
    if family == "linear":
        given = given.model_copy(update={"architecture": linear_assignment().architecture})
    part = part_of(torch.arange(n), to_tensors(load(spec, seed=0), "cpu"), given, "part")
    trial = Trial.start(part[1], part[0], tmp_path)
    ended(trial)
    fold, main = trained_part(part), trial.network
    assert main is not None
    assert stops(given.plan)[-1].update
    for one, other in zip(fold.model.parameters(), main.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(fold.hyper.precision, main.hyper.precision)
    assert fold.hyper.scale == main.hyper.scale


def _number(networks: Sequence[Any], one: Any) -> int:
    return next(k for k, network in enumerate(networks) if network is one)


# --- the written-out gradient of perceptrons is that of autograd


def a_perceptron(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise(widths):
        parts += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def written_out(
    models: list[nn.Sequential], likelihood: Likelihood | None = None
) -> tuple[Perceptrons, Tensor]:
    parameters = [list(model.parameters()) for model in models]
    theta = torch.stack([torch.cat([p.detach().flatten() for p in row]) for row in parameters])
    likelihood = Categorical() if likelihood is None else likelihood
    return Perceptrons(theta, [p.shape for p in parameters[0]], likelihood), theta


@pytest.mark.slow
@given(
    n=st.integers(1, 4),
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    labels=st.booleans(),
    padded=st.booleans(),
    spread=st.sampled_from([None, 0.3, 2.5]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_it_equals_autograd_for_any_shape_spread_and_padding(
    n: int, widths: list[int], labels: bool, padded: bool, spread: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    models = [a_perceptron(*widths).double() for _ in range(n)]
    x = torch.randn(n, 4, widths[0], dtype=torch.float64)
    y = torch.randint(widths[-1], (n, 4)) if labels else torch.randn(n, 4, widths[-1]).double()
    is_real = torch.tensor([[1.0, 1, 1, k % 2] for k in range(n)]).double() if padded else None
    scale = None if spread is None else torch.full((n, 1), spread, dtype=torch.float64)
    likelihood = Categorical() if labels else Gaussian(1.0)
    batch = Batch(0, x, y, (4,) * n, is_real)
    outputs = torch.stack([model(each) for model, each in zip(models, x, strict=True)])
    expected = likelihood.nll(outputs, y, scale, batch.mean)
    loss = expected if scale is None else scale[:, 0].square() * expected
    parts = torch.autograd.grad(loss.sum(), [p for model in models for p in model.parameters()])
    nll, gradient = written_out(models, likelihood)[0].descent(x, y, is_real, scale)
    torch.testing.assert_close(nll, expected.detach())
    torch.testing.assert_close(gradient.flatten(), torch.cat([part.flatten() for part in parts]))


@pytest.mark.parametrize("padded", [False, True])
def test_it_equals_autograd_for_outputs_of_mean_and_noise(padded: bool) -> None:
    models = [a_perceptron(3, 5, 4).double() for _ in range(2)]
    x, y = torch.randn(2, 6, 3).double(), torch.randn(2, 6, 2).double()
    is_real = torch.ones(2, 6).double() if padded else None
    if is_real is not None:
        is_real[1, 4:] = 0
    batch = Batch(0, x, y, (6, 6), is_real)
    outputs = torch.stack([model(each) for model, each in zip(models, x, strict=True)])
    expected = Heteroscedastic().nll(outputs, y, mean=batch.mean)
    for k, n in enumerate((6, 4 if padded else 6)):
        one = Heteroscedastic().nll_mean(outputs[k, :n], y[k, :n])
        torch.testing.assert_close(expected[k], one)
    parameters = [p for model in models for p in model.parameters()]
    parts = torch.autograd.grad(expected.sum(), parameters)
    written = written_out(models, Heteroscedastic())[0]
    nll, gradient = written.descent(x, y, is_real, None)
    torch.testing.assert_close(nll, expected.detach())
    torch.testing.assert_close(gradient.flatten(), torch.cat([part.flatten() for part in parts]))


def test_one_linear_layer_on_one_datum_has_the_gradient_of_the_closed_form() -> None:
    (model,) = models = [a_perceptron(2, 3)]
    theta = written_out(models)[1]
    assert theta.shape == (1, 9)
    x, y = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[1]])
    nll, gradient = written_out(models)[0].descent(x, y, None, None)
    outputs = model(x[0])[0].detach()
    wrong = outputs.softmax(0) - torch.tensor([0.0, 1.0, 0.0])
    assert math.isclose(float(nll), float(-outputs.log_softmax(0)[1]), rel_tol=1e-6)
    torch.testing.assert_close(gradient[0, :6].view(3, 2), torch.outer(wrong, x[0, 0]))
    torch.testing.assert_close(gradient[0, 6:], wrong)


def test_fewer_networks_than_all_are_the_first_ones() -> None:
    models = [a_perceptron(3, 4, 2) for _ in range(3)]
    together_, _ = written_out(models, Gaussian(1.0))
    x, y = torch.randn(3, 5, 3), torch.randn(3, 5, 2)
    _, all_three = together_.descent(x, y, None, None)
    expected = all_three[:2].clone()
    nll, two = together_.descent(x[:2], y[:2], None, None)
    assert nll.shape == (2,)
    torch.testing.assert_close(two, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_steps_are_those_of_autograd(optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TrainingPlan.model_validate({"likelihood": "categorical", "optimiser": optimiser})
    models = [a_perceptron(6, 8, 3) for _ in range(2)]
    x, y = torch.randn(10, 2, 7, 6), torch.randint(3, (10, 2, 7))

    def trained(writes_out: bool) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(together, "is_perceptron", lambda model: writes_out)
        copies = [copy.deepcopy(model) for model in models]
        optimisers = [Optimiser(list(m.parameters()), [1.0] * 4) for m in copies]
        with Program(copies, optimisers, plan) as program:
            program.set_decay(torch.full((2, 4), 1e-3))
            program.begin_epoch([0.05, 0.02], [10, 10])
            nll = [program.step(Batch(k, x[k], y[k], (7, 7), None), None) for k in range(10)]
            return program.theta.clone(), torch.stack(nll)

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_steps_of_epochs_with_other_rates_decays_and_networks_are_those_of_torch() -> None:
    plan = TrainingPlan.model_validate({"likelihood": "categorical", "optimiser": "adam"})
    models = [a_perceptron(6, 8, 3) for _ in range(2)]
    alone = [copy.deepcopy(model) for model in models]
    theirs = [torch.optim.Adam(model.parameters(), lr=1.0) for model in alone]
    optimisers = [Optimiser(list(model.parameters()), [1.0] * 4) for model in models]
    x, y = torch.randn(3, 2, 2, 7, 6), torch.randint(3, (3, 2, 2, 7))
    with Program(models, optimisers, plan) as program:
        for epoch, (rate, decay) in enumerate([(0.05, 1e-3), (0.02, 0.5), (0.01, 0.5)]):
            program.set_decay(torch.full((2, 4), decay))
            program.begin_epoch([rate, 2 * rate], [2, 1])
            for step, n in enumerate((2, 1)):  # the second network has one step
                batch = Batch(step, x[epoch, step, :n], y[epoch, step, :n], (7,) * n, None)
                program.step(batch, None)
                for k in range(n):
                    theirs[k].param_groups[0]["lr"] = (1 + k) * rate
                    theirs[k].zero_grad()
                    outputs = alone[k](x[epoch, step, k])
                    nn.functional.cross_entropy(outputs, y[epoch, step, k]).backward()
                    for p in alone[k].parameters():
                        assert p.grad is not None
                        p.grad.add_(p.detach(), alpha=decay)
                    nn.utils.clip_grad_norm_(alone[k].parameters(), together.GRADIENT_CLIP)
                    theirs[k].step()
    for model, other in zip(models, alone, strict=True):
        for ours, of_torch in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, of_torch, rtol=1e-4, atol=1e-5)


def test_losses_of_steps_are_summed_over_the_data_in_float64() -> None:
    x, y = torch.zeros(3, 4, 2), torch.zeros(3, 4, dtype=torch.int64)
    padded = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    steps = [
        (Batch(0, x, y, (4, 4, 4), None), torch.tensor([0.1, 0.2, 0.3])),
        (Batch(1, x[:2], y[:2], (4, 2), padded), torch.tensor([0.4, 0.5])),
        (Batch(2, x[:1, :3], y[:1, :3], (3,), None), torch.tensor([0.6])),
    ]
    found = totals_of([batch.sums_of(means) for batch, means in steps], 3)
    of_step = [means.double() for _, means in steps]
    expected = [
        4 * of_step[0][0] + 4 * of_step[1][0] + 3 * of_step[2][0],
        4 * of_step[0][1] + 2 * of_step[1][1],
        4 * of_step[0][2],
    ]
    assert found == [float(one) for one in expected]


def test_only_plain_perceptrons_are_written_out() -> None:
    class Loud(nn.ReLU):
        pass

    shared = nn.Linear(2, 2)
    assert is_perceptron(a_perceptron(3, 4, 2))
    assert is_perceptron(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3, bias=False)))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3), Loud(), nn.Linear(3, 1)))
    assert not is_perceptron(nn.Sequential(shared, nn.ReLU(), shared))
    assert not is_perceptron(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Linear(3, 1)))
    assert not is_perceptron(nn.Linear(2, 3))
    hooked = a_perceptron(3, 4, 2)
    hooked[-1].register_forward_hook(lambda module, given, outputs: 2 * outputs)
    assert not is_perceptron(hooked)
