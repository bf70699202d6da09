"""The hand-written networks of the reproductions are those of torch; so are their derivatives."""

import math

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nas_evidence_reproduce import _baldock as baldock
from nas_evidence_reproduce import _mnist_descent as mnist_descent
from nas_evidence_reproduce import duvenaud_fig2, duvenaud_fig3

pytestmark = pytest.mark.slow


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("n_hidden", "logistic", "size"), [(1, False, 10690), (3, True, 13970)])
def test_the_networks_of_baldock_are_those_of_torch(
    n_hidden: int, logistic: bool, size: int
) -> None:
    torch.manual_seed(0)
    sizes = (256, *(40,) * n_hidden, 10)
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if logistic or i < len(sizes) - 2:
            layers.append(nn.Sigmoid())
    model, net = nn.Sequential(*layers), baldock.network(n_hidden, logistic=logistic)
    assert net.n_parameters == size
    x, y = torch.randn(7, 256), torch.randint(0, 10, (7,))
    w = torch.stack([flat(model), 2 * flat(model)])
    torch.testing.assert_close(net.outputs(w, x)[0], model(x))
    values, gradients = net.log_likelihood(x, y)(w)
    loss = cross_entropy(model(x), y, reduction="sum")
    loss.backward()
    torch.testing.assert_close(values[0], -loss.detach())
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[0], -expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(net.mean_loss(w, x, y)[0], loss.detach() / 7)
    factor = 1000.0 if logistic else 50.0
    starts = net.starts(3, torch.Generator().manual_seed(0))
    assert bool((starts.abs() <= net.box / factor * 1.0001).all())
    assert float(starts.abs().max()) == pytest.approx(1 / math.sqrt(41), rel=0.01)


def test_products_with_the_hessian_of_the_mnist_network_are_those_of_the_whole_one() -> None:
    torch.manual_seed(0)
    shapes = [(3, 2), (2,), (2, 10), (10,)]
    theta = [torch.randn(s, dtype=torch.float64) for s in shapes]
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 10, (5,))
    gradient, product = mnist_descent._local(theta, x, y, 2.5)

    def loss(together: Tensor) -> Tensor:
        parts = together.split([math.prod(s) for s in shapes])
        given = [p.view(s) for p, s in zip(parts, shapes, strict=True)]
        return 2.5 * cross_entropy(mnist_descent._outputs(given, x), y, reduction="sum")

    at = torch.cat([p.flatten() for p in theta])
    whole = torch.autograd.functional.hessian(loss, at)
    torch.testing.assert_close(torch.cat([g.flatten() for g in gradient]),
                               torch.autograd.functional.jacobian(loss, at))  # fmt: skip
    u = torch.randn(len(at), dtype=torch.float64)
    torch.testing.assert_close(product(u), whole @ u)


def test_a_descent_on_images_ends_below_its_start_with_the_entropy_of_its_prior() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 784, generator=generator), torch.randint(0, 10, (60,))
    images = mnist_descent.Images(x, y, x, y)
    found = mnist_descent.descended(
        images, 4, spreads=(0.1, 0.1), rate=0.02, n_steps=20, batch_size=30
    )
    assert found.n_parameters == 784 * 4 + 4 + 4 * 10 + 10
    assert found.steps[0] == 0
    assert found.steps[-1] == 20
    assert found.train[-1] > found.train[0]
    # At the start entropy and log prior cancel but for the draw: one draw of a chi squared.
    assert 60 * (found.bound[0] - found.train[0]) == pytest.approx(0, abs=4 * 3190**0.5)
    assert 0 < found.largest < 0.6838


def test_the_network_of_boston_is_that_of_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 100), nn.Tanh(), nn.Linear(100, 1)).double()
    x = torch.randn(6, 13, dtype=torch.float64)
    found = duvenaud_fig3.outputs(flat(model)[None], x)
    torch.testing.assert_close(found[0], model(x)[:, 0])


def test_the_steps_on_the_funnel_have_their_jacobian() -> None:
    """log|J| of the entropy-friendly step by finite differences."""
    x, h = torch.tensor([0.7, -0.4], dtype=torch.float64), 1e-6
    columns = [
        (duvenaud_fig2.step(x + h * e, 0.25)[0] - duvenaud_fig2.step(x - h * e, 0.25)[0]) / (2 * h)
        for e in torch.eye(2, dtype=torch.float64)
    ]
    expected = torch.linalg.slogdet(torch.stack(columns, 1))[1]
    torch.testing.assert_close(duvenaud_fig2.step(x, 0.25)[1], expected, atol=1e-8, rtol=0)
