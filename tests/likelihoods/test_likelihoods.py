import math
from typing import get_args

import pytest
import reference
import torch
from largest_tensor import LargestTensor
from torch.distributions import Normal
from torch.testing import assert_close

from nas_evidence.baselines.models import Simple
from nas_evidence.data.targets import reading_of
from nas_evidence.likelihoods import random_signs
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.reporting.words import CALIBRATED, WORDS
from nas_evidence.spec.likelihoods import (
    LIKELIHOODS,
    TARGET_KINDS,
    Confidence,
    LikelihoodName,
    Stored,
    Task,
    default_of,
    imported,
    stored_kind,
)
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.registry import SCORES

CLASSES = (2, 3, 10)


def _outer(roots: torch.Tensor) -> torch.Tensor:
    return torch.einsum("knc,knd->ncd", roots, roots)


@pytest.mark.parametrize("n_classes", CLASSES)
def test_categorical_roots_multiply_to_the_output_hessian(n_classes: int) -> None:
    outputs = 3 * torch.randn(20, n_classes, dtype=torch.float64)
    roots = Categorical().hessian_roots(outputs)
    assert roots.shape == (n_classes - 1, 20, n_classes)
    assert_close(_outer(roots), reference.output_hessian(outputs, None), rtol=0, atol=2e-15)


def test_saturated_roots_keep_relative_accuracy_where_subtraction_loses_all() -> None:
    # p = (1 - tiny, tiny): the Hessian is tiny * [[1, -1], [-1, 1]] to within rounding.
    for gap in (1.0, 40.0, 300.0, 600.0):
        outputs = torch.tensor([[gap, 0.0]], dtype=torch.float64)
        tiny = math.exp(-gap) / (1 + math.exp(-gap)) ** 2
        sign = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)
        found = _outer(Categorical().hessian_roots(outputs))
        assert_close(found, tiny * sign, rtol=1e-12, atol=0)


def test_roots_with_exact_zero_probabilities_are_finite_and_right() -> None:
    inf = float("inf")
    rows = [[0.0, -inf, 1.0, -inf], [-inf, 0.0, -inf, -inf], [-2e3, 0.0, 2e3, 1.0]]
    outputs = torch.tensor(rows, dtype=torch.float64)
    found = _outer(Categorical().hessian_roots(outputs))
    assert_close(found, reference.output_hessian(outputs, None), rtol=0, atol=1e-15)


def test_categorical_log_likelihood_matches_torch_and_is_float64() -> None:
    outputs, labels = torch.randn(7, 3), torch.randint(0, 3, (7,))
    found = Categorical().log_likelihood(outputs, labels)
    assert_close(found.item(), reference.log_likelihood(outputs.double(), labels, None))
    assert found.dtype == torch.float64
    assert_close(Categorical().nll_mean(outputs, labels).item(), -found.item() / 7)


def test_gaussian_log_likelihood_has_every_constant() -> None:
    outputs, targets = torch.randn(5, 2).double(), torch.randn(5, 2).double()
    expected = Normal(outputs, 0.3).log_prob(targets).sum()
    found = Gaussian(0.3).log_likelihood(outputs, targets)
    assert_close(found, expected)
    assert_close(Gaussian(0.3).nll_mean(outputs, targets), -expected / 5)


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature_is_a_divisor_of_the_outputs(temperature: float) -> None:
    outputs, labels = torch.randn(7, 4).double(), torch.randint(0, 4, (7,))
    warm, cold = Categorical(temperature), Categorical()
    divided = outputs / temperature
    assert_close(warm.log_likelihood(outputs, labels), cold.log_likelihood(divided, labels))
    assert_close(warm.nll_mean(outputs, labels), cold.nll_mean(divided, labels))
    assert_close(_outer(warm.hessian_roots(outputs)),
                 _outer(cold.hessian_roots(divided)) / temperature**2)  # fmt: skip
    expected = torch.autograd.functional.jacobian(
        lambda f: warm.log_likelihood(f, labels), outputs
    )
    assert_close(warm.residual(outputs, labels), expected)


def test_residual_of_a_certain_and_right_class_does_not_cancel() -> None:
    outputs = torch.tensor([[100.0, 0.0]], dtype=torch.float64)
    found = Categorical().residual(outputs, torch.tensor([0]))
    tiny = math.exp(-100)
    assert_close(found, torch.tensor([[tiny, -tiny]], dtype=torch.float64), rtol=1e-12, atol=0)


def _sampled_root(
    likelihood: Categorical | Gaussian, outputs: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    shape = (likelihood.n_roots(outputs.shape[1]), len(outputs))
    return likelihood.signed_root(outputs, random_signs(shape, generator))


def _signed_sum_of_roots(
    likelihood: Categorical | Gaussian, outputs: torch.Tensor, seed: int
) -> torch.Tensor:
    """The definition of a sampled root: all exact roots, each with its own random sign."""
    roots = likelihood.hessian_roots(outputs)
    generator = torch.Generator().manual_seed(seed)
    signs = 2 * torch.randint(0, 2, roots.shape[:2], generator=generator) - 1
    return (signs[:, :, None].to(roots) * roots).sum(0, keepdim=True)


@pytest.mark.parametrize("likelihood", [Categorical(), Categorical(2.5), Gaussian(0.5)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("n_classes", CLASSES)
def test_a_sampled_root_is_the_signed_sum_of_the_exact_roots(
    likelihood: Categorical | Gaussian, scale: float, n_classes: int
) -> None:
    outputs = scale * torch.randn(50, n_classes, dtype=torch.float64)
    found = _sampled_root(likelihood, outputs, torch.Generator().manual_seed(3))
    expected = _signed_sum_of_roots(likelihood, outputs, 3)
    assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_a_sampled_root_has_zeros_where_probabilities_are_exactly_zero() -> None:
    inf = float("inf")
    rows = [[0.0, -inf, 1.0, -inf], [-inf, 0.0, -inf, -inf], [-2e3, 0.0, 2e3, 1.0]]
    outputs = torch.tensor(rows, dtype=torch.float64)
    found = _sampled_root(Categorical(), outputs, torch.Generator().manual_seed(3))
    assert_close(found, _signed_sum_of_roots(Categorical(), outputs, 3), rtol=1e-13, atol=0)
    assert bool((found[0][outputs.softmax(1) == 0] == 0).all())


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(0.5)])
def test_sampled_roots_of_many_outputs_need_no_square_array(
    likelihood: Categorical | Gaussian,
) -> None:
    n_data, n_outputs = 4, 1000
    outputs = torch.randn(n_data, n_outputs)
    outputs[0, 7] = 1e4  # saturated: every other probability is exactly zero
    outputs[1] *= 100
    with LargestTensor() as seen:
        roots = _sampled_root(likelihood, outputs, torch.Generator().manual_seed(3))
    assert roots.shape == (1, n_data, n_outputs)
    assert bool(roots.isfinite().all())
    assert 0 < seen.largest <= n_data * n_outputs


def test_mistakes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="noise_std > 0"):
        Gaussian(0.0)
    with pytest.raises(ValueError, match="temperature > 0"):
        Categorical(-1.0)
    with pytest.raises(ValueError, match=r"shape \[n, C\]"):
        Gaussian(1.0).log_likelihood(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="int64"):
        Categorical().log_likelihood(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="one output, but labels need one for each class"):
        Categorical().nll_mean(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="C >= 2"):
        Categorical().nll_mean(torch.zeros(3, 2, 2), torch.zeros(3, dtype=torch.int64))


def test_names_in_types_are_those_that_are_declared() -> None:
    assert set(get_args(LikelihoodName)) == set(LIKELIHOODS)
    assert set(get_args(Task)) == set(TARGET_KINDS)
    assert set(get_args(Stored)) == {kind.stored for kind in TARGET_KINDS.values()}
    assert set(get_args(Confidence)) == set(CALIBRATED)


def test_declarations_name_what_there_is() -> None:
    for task, kind in TARGET_KINDS.items():
        assert kind.task == task
        assert stored_kind(kind.stored) is kind
        assert default_of(task) in LIKELIHOODS
        assert kind.usual in kind.metrics
        assert set(kind.tests) <= set(TrialRecord.model_fields) & set(WORDS)
        assert not kind.simple or isinstance(imported(kind.simple), Simple)
        for name in ("read", "rows_of", "tested", "outputs", "seen", "leak"):
            assert callable(getattr(reading_of(kind), name))
    for likelihood in LIKELIHOODS.values():
        assert set(likelihood.without) <= set(SCORES)
        assert likelihood.by_row in ("", *LIKELIHOODS)
        assert likelihood.kind.task == likelihood.task
