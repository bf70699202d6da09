"""The first epoch predicted, minibatch by minibatch, by a linearised network and its posterior."""

import math
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, mlp_assignment, run
from scipy.stats import norm
from torch import nn
from torch.func import functional_call, jacrev

from nas_evidence.curvature.likelihood import Categorical, Gaussian
from nas_evidence.curvature.output_variance import output_variances
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, batches, to_tensors
from nas_evidence.models import build
from nas_evidence.scores.first_pass import N_DRAWS, FirstPass, log_predictive
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.training.loop import begin, train_epoch

NAME = "prequential_epoch1_laplace"


def draws(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_no_variance_gives_the_likelihood_and_endless_variance_equal_probabilities() -> None:
    outputs = 3 * torch.randn(6, 4, generator=draws(0))
    labels = torch.arange(6) % 4
    sure = log_predictive(outputs, torch.zeros(6, 4), labels, Categorical(2.0), draws())
    truth = Categorical(2.0).log_likelihood(outputs, labels)
    assert float(sure.sum()) == pytest.approx(float(truth), rel=1e-12)
    unsure = log_predictive(outputs, torch.full((6, 4), 1e18), labels, Categorical(2.0), draws())
    # Four standard errors of a share of a quarter.
    torch.testing.assert_close(
        unsure.exp(), torch.full((6,), 1 / 4).double(), rtol=0, atol=4 * (3 / 16 / N_DRAWS) ** 0.5
    )


def test_real_targets_have_the_density_of_the_sum_of_two_normal_numbers() -> None:
    outputs, variances = torch.tensor([[0.5, 2.0]]), torch.tensor([[0.3, 0.0]])
    targets = torch.tensor([[0.0, 2.5]])
    found = log_predictive(outputs, variances, targets, Gaussian(0.4), draws())
    truth = norm(0.5, math.sqrt(0.3 + 0.16)).logpdf(0.0) + norm(2.0, 0.4).logpdf(2.5)
    assert float(found[0]) == pytest.approx(truth, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("largest", [0.1, 1.0, 10.0, 100.0])
def test_classes_have_the_mean_probability_of_sampled_outputs(
    n_classes: int, largest: float
) -> None:
    """Brute force by 100,000 draws of its own, at unequal variances and means far apart.

    Scaling each output by its own variance misses this by up to 0.8.
    """
    random = draws(0)
    outputs = 5 * torch.randn(20, n_classes, generator=random).double()
    variances = largest * torch.rand(20, n_classes, generator=random).double()
    for f, v in zip(outputs, variances, strict=True):
        noise = torch.randn(100_000, n_classes, generator=random).double()
        truth = (f + noise * v.sqrt()).softmax(1).mean(0)
        label = torch.multinomial(truth, 1, generator=random)
        found = log_predictive(f[None], v[None], label, Categorical(), draws()).exp()
        p = truth[label]
        assert float((found - p).abs()) < 5 * float((p * (1 - p) / N_DRAWS).sqrt()) + 1e-6


def test_a_probability_that_underflows_has_a_finite_logarithm() -> None:
    outputs, label = torch.tensor([[2000.0, 0.0]]), torch.tensor([1])
    found = log_predictive(outputs, torch.full((1, 2), 0.01), label, Categorical(), draws())
    assert -2001 < float(found[0]) < -1999


@pytest.mark.parametrize("family", ["linear", "mlp", "cnn", "resnet"])
def test_variances_are_those_of_the_jacobian(family: str) -> None:
    values = {"linear": {}, "mlp": {"depth": 2, "width": 4}, "cnn": {"depth": 1, "width": 2},
              "resnet": {"depth": 8, "width": 4}}[family]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    given = ArchitectureSpec(family=family, values=values)  # type: ignore[arg-type]
    model = build(given, (1, 8, 8), 3, generator).double()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64, generator=generator)
    covariance = {
        name: torch.rand(p.numel(), dtype=torch.float64, generator=generator)
        for name, p in model.named_parameters()
    }
    outputs, variances = output_variances(model, x, covariance)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    jacobian = jacrev(lambda p: functional_call(model, p, (x,)))(parameters)
    truth = sum(
        (part.flatten(2).square() * covariance[name]).sum(2) for name, part in jacobian.items()
    )
    torch.testing.assert_close(variances, truth, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(outputs, model(x).detach())
    assert all(p.requires_grad for p in model.parameters())


class _Times(nn.Module):
    """A product with a weight of its own, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight, self.times = nn.Linear(2, 2, bias=False).double(), times
        self.shift = nn.Parameter(torch.tensor([[0.3, -1.0]], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.weight(x)
        return x * self.shift


def test_a_parameter_without_a_rule_has_its_variance_too() -> None:
    """f = (W a) b: the derivatives are a_j b_i in W_ij, and (W a)_i in b_i."""
    model, x = _Times(1), torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
    covariance = {"shift": torch.tensor([0.5, 2.0]).double(),
                  "weight.weight": torch.tensor([1.0, 3.0, 0.2, 0.7]).double()}  # fmt: skip
    weight, shift = model.weight.weight.detach(), model.shift.detach()
    of_weight = (x.square() @ covariance["weight.weight"].view(2, 2).mT) * shift.square()
    expected = of_weight + (x @ weight.mT).square() * covariance["shift"]
    torch.testing.assert_close(output_variances(model, x, covariance)[1], expected)


def test_a_module_that_is_called_twice_is_refused_by_name() -> None:
    covariance = {"shift": torch.ones(2), "weight.weight": torch.ones(4)}
    with pytest.raises(ValueError, match="`weight` is called more than once"):
        output_variances(_Times(2), torch.ones(1, 2).double(), covariance)


# --- through a trial


def assignment_of(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 2} | plan))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(load(DatasetSpec(name="digits", max_train=60, max_test=50), seed=0), "cpu")


def test_a_trial_sums_the_predictions_of_every_minibatch_before_its_step(
    data: TensorData, tmp_path: Path
) -> None:
    """Brute force: dense Jacobians, the diagonal Gauss-Newton of what was seen, and quadrature.

    Two classes have one root of the output Hessian, so that its random sign changes nothing.
    """
    two = data.y_train.clone().remainder(2)
    few = TensorData(**{**vars(data), "y_train": two, "y_test": data.y_test.remainder(2),
                        "n_outputs": 2})  # fmt: skip
    given = assignment_of(NAME, prior_precision=0.7)
    found = run(given, few, tmp_path).final_estimate(NAME)
    assert found is not None

    model = build(given.architecture, few.input_shape, 2,
                  torch.Generator().manual_seed(given.derived_seed("init")))  # fmt: skip
    state = begin(model, given.plan)
    order = torch.Generator().manual_seed(given.derived_seed("order", 1))
    seen: list[torch.Tensor] = []
    value, variance = 0.0, 0.0
    nodes = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weights = torch.exp(-nodes.square() / 2) / torch.exp(-nodes.square() / 2).sum()

    def by_hand(x: torch.Tensor, y: torch.Tensor) -> float:
        nonlocal value, variance
        parameters = {name: p.detach().double() for name, p in model.named_parameters()}
        parts = jacrev(lambda p: functional_call(model, p, (x.double(),)))(parameters)
        jacobian = torch.cat([part.flatten(2) for part in parts.values()], 2)
        outputs = functional_call(model, parameters, (x.double(),))
        precision = torch.full((jacobian.shape[2],), 0.7, dtype=torch.float64) + sum(seen)
        v = (jacobian.square() / precision).sum(2)
        gap = (outputs[:, 0] - outputs[:, 1]) * (1 - 2 * y)
        each = (gap[:, None] + v.sum(1).sqrt()[:, None] * nodes).sigmoid()
        mean, square = each @ weights, each.square() @ weights
        value += float(mean.log().sum())
        variance += float(((square / mean.square() - 1) / N_DRAWS).sum())  # of the logarithms
        p = outputs.softmax(1)
        slope = (jacobian[:, 0] - jacobian[:, 1]).square()
        seen.append((slope * (p[:, 0] * p[:, 1])[:, None]).sum(0))
        return 0.0

    train_epoch(state, few, given, by_hand)
    assert len(list(batches(60, 16, order))) == len(seen) == 4
    assert 4 * variance**0.5 < 0.05 * abs(value)
    assert found.value == pytest.approx(value, abs=4 * variance**0.5)
    assert found.per_datum == pytest.approx(found.value / 60)


def test_the_training_is_the_same_with_and_without(data: TensorData, tmp_path: Path) -> None:
    plain, watched = (run(assignment_of(*n), data, tmp_path / str(len(n))) for n in ((), (NAME,)))
    assert [p.sotl for p in plain.curve] == [p.sotl for p in watched.curve]
    assert plain.test_nll_per_datum == watched.test_nll_per_datum


def test_an_unsure_network_pays_less_for_its_first_guesses_than_a_point_does(
    data: TensorData, tmp_path: Path
) -> None:
    """Where steps are so long that a point is far off: 154 against 167 nats."""
    record = run(assignment_of(NAME, learning_rate=1.0), data, tmp_path)
    point, spread = (record.final_estimate(n) for n in ("prequential_epoch1", NAME))
    assert point is not None
    assert spread is not None
    assert spread.value > point.value


def test_a_resumed_trial_keeps_what_its_first_epoch_said(data: TensorData, tmp_path: Path) -> None:
    given = assignment_of(NAME, epochs=4)
    report = assert_parking_changes_nothing([NAME], given, data, tmp_path, slices=1)
    assert report.epoch == 2


def test_one_precision_for_each_parameter_is_taken_too(data: TensorData, tmp_path: Path) -> None:
    online = {"every": 2, "curvature": "diag_ef"}
    one, each = (
        run(assignment_of(NAME, online={**online, "prior_groups": groups}), data,
            tmp_path / groups).final_estimate(NAME)
        for groups in ("tensor", "parameter")
    )  # fmt: skip
    assert one is not None
    assert each is not None
    assert one.value == pytest.approx(each.value, rel=1e-12)


def test_curvature_counts_what_was_seen_and_nothing_else(data: TensorData) -> None:
    given = assignment_of(NAME)
    generator = torch.Generator().manual_seed(0)
    model = build(given.architecture, data.input_shape, 10, generator)
    watch = FirstPass([NAME], Context(begin(model, given.plan), data, given))
    before = watch._covariance()
    assert {float(v.max()) for v in before.values()} == {1.0}
    watch.before_step(data.x_train[:16], data.y_train[:16])
    assert watch.n_data == 16
    for name, variance in watch._covariance().items():
        assert bool((variance <= before[name]).all())
