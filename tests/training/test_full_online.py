"""Updates of hyperparameters by the full curvature, which couples the tensors."""

import math

import pytest
import reference
import torch
from lone_trials import tensors_of
from messages import refused
from records import asked, mlp
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from nas_evidence import online_laplace
from nas_evidence.curvature.wide import too_large_online
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.joint import fit_prior, members_of
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.spec.study import ArchitectureSpec, Assignment, TrainingPlan
from nas_evidence.training.cost import too_costly
from nas_evidence.training.network import begin
from nas_evidence.training.online import passes_of, update_hyperparameters


def data_of(x: Tensor, y: Tensor) -> TensorData:
    return tensors_of(x, y, n_outputs=y.shape[1] if y.is_floating_point() else 3)


def assignment(**plan: object) -> Assignment:
    return asked(mlp(), seed=3, **plan)


def network(n: int, kind: str = "tanh", seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A small classifier with large weights, and `n` data."""
    torch.manual_seed(seed)
    x, y = torch.randn(n, 2).double(), torch.randint(0, 3, (n,))
    layers = [nn.Linear(2, 3)] if kind == "linear" else [nn.Linear(2, 4), nn.Tanh()]
    model = nn.Sequential(*layers, *([] if kind == "linear" else [nn.Linear(4, 3)])).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.7)
    return model, x, y


def evidence(matrix: Tensor, norms: Tensor, sizes: list[int], delta: Tensor) -> float:
    """The terms of the log evidence that depend on the precisions, by dense algebra."""
    each = torch.cat([d.expand(n) for d, n in zip(delta, sizes, strict=True)])
    log_det = torch.linalg.slogdet(matrix + each.diag())[1] - each.log().sum()
    return -0.5 * float((delta * norms).sum() + log_det)


def best_by_search(matrix: Tensor, norms: Tensor, sizes: list[int], member: Tensor) -> float:
    found = minimize(
        lambda z: -evidence(matrix, norms, sizes, torch.tensor(z).exp()[member]),
        [0.0] * (int(member.max()) + 1), method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-11, "maxiter": 4000},
    )  # fmt: skip
    return -float(found.fun)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "method"),
    [("full_ggn", 6, "newton"), ("full_ggn", 60, "newton"),
     ("full_ef", 40, "newton"), ("full_ggn", 60, "adam")],
)  # fmt: skip
def test_the_precisions_are_the_maximum_that_a_search_finds(
    kind: str, n: int, method: str
) -> None:
    model, x, y = network(n)
    kappa, sizes, norms = 2.0, [8, 4, 12, 3], squared_norms(model)
    matrix = kappa * (
        reference.full_ggn(model, x, None) if kind == "full_ggn"
        else reference.full_ef(model, x, y, None)
    )  # fmt: skip
    given = assignment(likelihood_power=kappa, online={"curvature": kind})
    curvature = (
        passes_of(begin(model, data_of(x, y), given.plan, given.seed)).of(kind)[0].curvature
    )
    members = members_of("tensor", len(curvature.names))
    found = fit_prior(
        curvature, norms, torch.ones(4), members=members, curvature_scale=kappa, method=method,
        steps=400, learning_rate=0.1,
    )  # fmt: skip
    best = best_by_search(matrix, norms, sizes, torch.arange(4))
    assert_close(evidence(matrix, norms, sizes, found), best, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_linear_classifier_is_updated_by_its_brute_force_hessian() -> None:
    model, x, _ = network(50, "linear")
    y = (3 * x @ torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]).double()).argmax(1)
    plan = {"online": {"curvature": "full_ggn", "prior_groups": "scalar"}}
    given = assignment(**plan)
    state = begin(model, data_of(x, y), given.plan, given.seed)

    def nll(theta: Tensor) -> Tensor:
        logits = x @ theta[:6].view(3, 2).T + theta[6:]
        return nn.functional.cross_entropy(logits, y, reduction="sum")

    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    matrix = hessian(nll, theta)
    with torch.no_grad():  # a fit that beats the best constant, so that no bound holds the prior
        pulled = torch.zeros(9).double()
        for _ in range(30):
            pulled -= torch.linalg.solve(
                hessian(nll, pulled) + 0.1 * torch.eye(9).double(),
                torch.func.grad(nll)(pulled) + 0.1 * pulled,
            )
        for p, part in zip(model.parameters(), torch.split(pulled, [6, 3]), strict=True):
            p.copy_(part.view_as(p))
    matrix = hessian(nll, pulled)
    update_hyperparameters([passes_of(state)])
    norms = squared_norms(model)
    member = torch.zeros(2, dtype=torch.int64)
    highest = evidence(matrix, norms, [6, 3], torch.ones(2))
    best = best_by_search(matrix, norms, [6, 3], member)
    found = evidence(matrix, norms, [6, 3], state.prior_precision)
    assert found >= highest
    assert_close(found, best, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full_ggn", "block_ggn"])
def test_on_a_linear_model_alternating_ends_at_the_largest_exact_evidence(kind: str) -> None:
    """Weights and bias are coupled by inputs whose mean is not 0: blocks end elsewhere."""
    draw = torch.Generator().manual_seed(0)
    x = 2 + torch.randn(12, 2, generator=draw).double()
    y = x @ torch.tensor([[1.0], [-0.5]]).double() + 2 + 0.9 * torch.randn(12, 1, generator=draw)
    features = torch.cat([x, torch.ones(12, 1).double()], 1)

    def minus_exact(z: list[float]) -> float:
        weight, bias, noise = (math.exp(float(v)) for v in z)
        prior = torch.tensor([1 / weight, 1 / weight, 1 / bias]).double()
        cover = features @ prior.diag() @ features.T + noise**2 * torch.eye(12).double()
        return -float(MultivariateNormal(torch.zeros(12).double(), cover).log_prob(y[:, 0]))

    searched = minimize(minus_exact, [0.0, 0.0, 0.0], method="Nelder-Mead",
                        options={"xatol": 1e-8, "fatol": 1e-11, "maxiter": 4000})  # fmt: skip
    model = nn.Linear(2, 1).double()
    given = assignment(likelihood="gaussian", online={"curvature": kind})
    data = data_of(x, y)
    state = begin(model, data, given.plan, given.seed)
    for _ in range(120):
        w, b = state.prior_precision.tolist()
        ridge = features.T @ features + state.noise_std**2 * torch.tensor([w, w, b]).diag()
        mode = torch.linalg.solve(ridge, features.T @ y)
        with torch.no_grad():
            model.weight.copy_(mode[:2].T)
            model.bias.copy_(mode[2])
        update_hyperparameters([passes_of(state)])
    ended = [*state.prior_precision.log().tolist(), math.log(state.noise_std)]
    lost = minus_exact(ended) - float(searched.fun)
    assert abs(lost) < 1e-6 if kind == "full_ggn" else lost > 1e-3


def test_bounds_hold_and_the_rest_is_the_maximum_within_them() -> None:
    model, x, y = network(60)
    given = assignment(online={"curvature": "full_ggn"})
    passed = passes_of(begin(model, data_of(x, y), given.plan, given.seed)).of("full_ggn")[0]
    norms, sizes = squared_norms(model), [8, 4, 12, 3]
    members = members_of("tensor", len(passed.curvature.names))
    free = fit_prior(passed.curvature, norms, torch.ones(4), members=members)
    highest = free * torch.tensor([0.5, 2.0, 2.0, 2.0])
    matrix = reference.full_ggn(model, x, None)
    for start in (1.0, 1e-3):
        found = fit_prior(
            passed.curvature, norms, start * torch.ones(4), members=members, highest=highest
        )
        assert bool((found <= highest * (1 + 1e-12)).all())
        value = evidence(matrix, norms, sizes, found)
        assert value > evidence(matrix, norms, sizes, torch.minimum(free, highest))
        for k in range(1, 4):
            for factor in (0.9, 1.1):
                other = found.clone()
                other[k] = min(float(found[k]) * factor, float(highest[k]))
                assert evidence(matrix, norms, sizes, other) <= value


@pytest.mark.parametrize("kind", ["full_ggn", "full_ef"])
def test_large_networks_are_refused_by_name_and_few_data_are_not(kind: str) -> None:
    plan = TrainingPlan(online={"curvature": kind})
    wide = ArchitectureSpec(family="mlp", values={"depth": 1, "width": 300})

    def why(n_data: int) -> str:
        return too_costly(wide, (8,), 3, plan, ("full_ggn",), n_data=n_data)

    # 1,100 rows of the empirical Fisher, 2,200 of the Gauss-Newton matrix of three classes.
    assert why(1100) == "" if kind == "full_ef" else f"`plan.online.curvature` {kind}" in why(1100)
    assert f"`plan.online.curvature` {kind} of 3,603 parameters and" in why(10**5)
    assert "sides of up to 2,000 are supported: use kfac_ggn" in why(10**5)
    assert why(900) == ""
    assert too_large_online("kfac_ggn", 10**6, 10**6) == ""
    model = nn.Linear(700, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(2001, 700), torch.randint(0, 3, (2001,))
    with refused("own-loop-curvature-too-large", kind, "`curvature`", "of 2,103 parameters"):
        online_laplace(model, optimiser, (x, y), likelihood="categorical", curvature=kind)
