"""Products with the exact Gauss-Newton matrix, and solutions by them, against dense matrices."""

import copy
import math

import pytest
import reference
import torch
from cases import CASES, Case, case
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.products import LogJoint
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.conjugate_gradients import solve
from nas_evidence.maths.structured import BlockDiagonal

POWER = 1.7


def log_joint(c: Case, rows: int = 4) -> LogJoint:
    sizes = torch.tensor([p.numel() for p in c.model.parameters()])
    precision = c.prior_precision.repeat_interleave(sizes)
    model = copy.deepcopy(c.model)
    return LogJoint(model, c.x, c.y, c.likelihood, precision, POWER, rows)


def theta_of(c: Case) -> Tensor:
    return torch.cat([p.detach().flatten() for p in c.model.parameters()])


def dense(c: Case) -> Tensor:
    model = copy.deepcopy(c.model).eval()
    joint = log_joint(c)
    return POWER * reference.full_ggn(model, c.x, c.noise_std) + torch.diag(joint.precision)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_products_match_the_dense_gauss_newton_matrix(name: str) -> None:
    c = case(name)
    product = log_joint(c).gauss_newton(theta_of(c))
    matrix = dense(c)
    vectors = torch.randn(3, len(matrix), generator=torch.Generator().manual_seed(0)).double()
    for vector in vectors:
        # Sums over few data in float64.
        assert_close(product(vector), matrix @ vector, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    c = case(name)
    joint, theta = log_joint(c), theta_of(c)
    loss, gradient = joint.value_and_gradient(theta)
    assert loss == pytest.approx(joint.value(theta), rel=1e-12)
    model = copy.deepcopy(c.model).eval()
    expected = -POWER * reference.log_likelihood(model(c.x), c.y, c.noise_std)
    expected += 0.5 * float(joint.precision @ theta.square())
    assert loss == pytest.approx(expected, rel=1e-10)
    direction = torch.randn(len(theta), generator=torch.Generator().manual_seed(1)).double()
    step = 1e-5
    ahead, behind = joint.value(theta + step * direction), joint.value(theta - step * direction)
    # Central differences: error of second order in the step; ReLU kinks are not met here.
    assert float(gradient @ direction) == pytest.approx((ahead - behind) / (2 * step), rel=1e-5)


def test_products_do_not_depend_on_the_batch() -> None:
    c = case("pooled")
    vector = torch.ones(len(theta_of(c)), dtype=torch.float64)
    one, other = (log_joint(c, rows).gauss_newton(theta_of(c))(vector) for rows in (1, 8))
    # With one row a batch there are no more than the kept graphs; then again with more.
    few = LogJoint(**{**vars(log_joint(c, 1)), "inputs": c.x.repeat(2, 1, 1, 1)})
    few = LogJoint(**{**vars(few), "targets": c.y.repeat(2)})
    many = few.gauss_newton(theta_of(c))(vector)
    assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert_close(many, 2 * one - few.precision * vector, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["kfac_ggn", "diag_ggn", "block_ggn", "ekfac_ggn"])
@pytest.mark.parametrize("name", ["mlp", "regression", "conv_plain", "residual"])
def test_the_decrement_by_products_matches_the_dense_one(name: str, kind: str) -> None:
    c = case(name)
    joint, theta = log_joint(c), theta_of(c)
    _, gradient = joint.value_and_gradient(theta)
    expected = float(gradient @ torch.linalg.solve(dense(c), gradient))
    curvature = curvature_pass(kind, c.model, c.x, c.y, c.likelihood, batch_size=8).curvature
    assert isinstance(curvature, BlockDiagonal)
    inverse = BlockInverse(curvature, c.prior_precision, POWER)
    product = joint.gauss_newton(theta)
    found = solve(product, gradient, inverse, max_products=300, tolerance=1e-10)
    assert found.complete
    assert found.quadratic == pytest.approx(expected, rel=1e-7)
    rough = solve(product, gradient, inverse, max_products=300)
    assert rough.complete
    assert rough.n_products < found.n_products
    assert 0.97 * expected < rough.quadratic <= expected * (1 + 1e-12)
    enough = solve(product, gradient, inverse, max_products=300, enough=0.1 * expected)
    assert not enough.complete
    assert 0.1 * expected < enough.quadratic <= expected
    assert enough.n_products <= rough.n_products


@pytest.mark.parametrize("kind", ["kfac_ggn", "diag_ggn", "block_ggn", "ekfac_ggn"])
def test_the_block_inverse_solves_with_every_block(kind: str) -> None:
    c = case("mlp")
    curvature = curvature_pass(kind, c.model, c.x, c.y, c.likelihood, batch_size=8).curvature
    assert isinstance(curvature, BlockDiagonal)
    gradient = log_joint(c).value_and_gradient(theta_of(c))[1]
    for precision, scale in ((c.prior_precision, 1.0), (3 * c.prior_precision, 0.2)):
        found = float(gradient @ BlockInverse(curvature, precision, scale)(gradient))
        expected = curvature.inverse_quadratic(gradient, precision / scale) / scale
        assert found == pytest.approx(float(expected), rel=1e-10)


def test_conjugate_gradients_end_where_nothing_is_left() -> None:
    matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    b = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = solve(lambda v: matrix @ v, b, lambda v: v, max_products=9, tolerance=0.0)
    assert found.complete
    assert found.n_products <= 3
    assert_close(found.x, torch.linalg.solve(matrix, b))
    zero = solve(lambda v: matrix @ v, 0 * b, lambda v: v, max_products=9)
    assert zero.complete
    assert zero.quadratic == 0
    assert zero.n_products == 0
    broken = solve(lambda v: math.nan * v, b, lambda v: v, max_products=9)
    assert not broken.complete
    assert torch.equal(broken.x, 0 * b)
