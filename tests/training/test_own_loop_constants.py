"""A loop of one's own with a part of the parameters: the frozen ones are constants."""

import copy

import numpy as np
import pytest
import torch
from messages import refused
from torch import Tensor, nn
from torch.testing import assert_close

import nas_evidence
from nas_evidence.training.own_loop import OnlineLaplace


def problem(labels: bool) -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=random).double()
    y = torch.sin(x @ torch.randn(4, 2, generator=random).double())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    model.double()[1].running_mean.normal_(generator=random)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model.eval(), x, y.argmax(1) if labels else y


def trained(
    model: nn.Module, given: object, x: Tensor, y: Tensor, **more: object
) -> OnlineLaplace:
    optimiser = torch.optim.SGD(given, lr=0.05, momentum=0.9)
    likelihood = "gaussian" if y.is_floating_point() else "categorical"
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood=likelihood, every=2, **more
    )
    for _ in range(6):
        for rows in torch.arange(len(x)).split(10):
            optimiser.zero_grad()
            laplace.loss(model(x[rows]), y[rows]).backward()
            optimiser.step()
        laplace.after_epoch()
    return laplace


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("kind", ["kfac_ggn_mc", "full_ggn", "diag_ef"])
def test_a_frozen_trunk_is_as_if_its_features_were_the_data(kind: str, labels: bool) -> None:
    model, x, y = problem(labels)
    before, head = copy.deepcopy(model.state_dict()), copy.deepcopy(model[3])
    with torch.no_grad():
        features = model[:3](x)
    found = trained(model, model.parameters(), x, y, curvature=kind)
    expected = trained(head, head.parameters(), features, y, curvature=kind)
    assert [*found.prior_precision] == ["3.weight", "3.bias"]
    one, other = (
        [*it.prior_precision.values(), *np.atleast_1d(it.noise_std)] for it in (found, expected)
    )
    assert one == pytest.approx(other, rel=1e-7)
    assert dict(found.history) == pytest.approx(dict(expected.history), rel=1e-9)
    assert found.log_evidence() == pytest.approx(expected.log_evidence(), rel=1e-9)
    assert_close(model[3].state_dict(), head.state_dict(), rtol=1e-8, atol=1e-10)
    assert not torch.equal(model[3].weight, before["3.weight"])
    for name in list(before)[:-2]:  # the trunk with its statistics
        assert_close(model.state_dict()[name], before[name], rtol=0, atol=0)
    again = trained(model, model[3].parameters(), x, y, curvature=kind)  # an optimiser of the head
    again.load_state_dict(found.state_dict())
    assert again.prior_precision == found.prior_precision


def test_a_free_parameter_that_no_optimiser_steps_is_refused() -> None:
    model, x, y = problem(labels=True)
    with refused("own-loop-parameter-missing", "3.bias"):
        trained(model, [model[3].weight], x, y)


def test_normalisation_put_into_training_mode_is_refused_at_the_step() -> None:
    model, x, y = problem(labels=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="categorical")
    model.train()
    laplace.loss(model(x), y).backward()
    with refused("batch-statistics", "BatchNorm1d", "training"):
        optimiser.step()


@pytest.mark.parametrize("name", ["3.bias", "0.bias"])
def test_freezing_or_freeing_on_the_way_is_refused_by_name(name: str) -> None:
    model, x, y = problem(labels=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="categorical", every=1, curvature="diag_ggn"
    )
    laplace.after_epoch()
    parameter = model.get_parameter(name)
    parameter.requires_grad_(not parameter.requires_grad)
    laplace.loss(model(x), y).backward()
    optimiser.step()
    with refused("own-loop-free-changed", name):
        laplace.after_epoch()
