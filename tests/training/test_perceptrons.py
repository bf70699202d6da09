"""The written-out gradient of perceptrons is that of autograd."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nas_evidence.curvature.layers import is_perceptron
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training import together
from nas_evidence.training.optimiser import Optimiser
from nas_evidence.training.perceptrons import Perceptrons
from nas_evidence.training.together import Batch, Program, totals_of


def perceptron(*widths: int) -> nn.Sequential:
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
    models = [perceptron(*widths).double() for _ in range(n)]
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
    models = [perceptron(3, 5, 4).double() for _ in range(2)]
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
    (model,) = models = [perceptron(2, 3)]
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
    models = [perceptron(3, 4, 2) for _ in range(3)]
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
    models = [perceptron(6, 8, 3) for _ in range(2)]
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
    models = [perceptron(6, 8, 3) for _ in range(2)]
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
    assert is_perceptron(perceptron(3, 4, 2))
    assert is_perceptron(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3, bias=False)))
    assert not is_perceptron(nn.Sequential(nn.Linear(2, 3), Loud(), nn.Linear(3, 1)))
    assert not is_perceptron(nn.Sequential(shared, nn.ReLU(), shared))
    assert not is_perceptron(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Linear(3, 1)))
    assert not is_perceptron(nn.Linear(2, 3))
    hooked = perceptron(3, 4, 2)
    hooked[-1].register_forward_hook(lambda module, given, outputs: 2 * outputs)
    assert not is_perceptron(hooked)
