"""Problems whose log evidence is known, for the audit and the tests.

    linear regression       in closed form
    two-parameter softmax   by a sum over a grid
    small classifiers       by a long temperature ladder, with its error

Models are at a mode of the log joint, in float64. `definition` computes the Laplace evidences that
they must have.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
from nas_evidence.evidence.network_density import network_density
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.functional_call import functional_call
from nas_evidence.scores.sample_then_optimise import chunk_ends
from nas_evidence.scores.sampling_plan import EnsemblePlan, EntropyPlan, LadderPlan
from nas_evidence.scores.temperature_ladder import temperature_ladder_evidence
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import derive_seed

NOISE_STD = 0.5
_TRUTH = LadderPlan(n_ladders=8, n_nodes=20, n_burn_in=150, n_samples=200)


@dataclass(frozen=True)
class KnownProblem:
    """A model at its mode, with data, likelihood, precision of each tensor, and the truth.

    power  κ, on the likelihood; with another than 1 the truth is log ∫ p(y|θ)^κ p(θ) dθ
    """

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    precision: Tensor
    truth: float
    truth_error: float = 0.0
    symmetries: int = 1  # copies of each mode
    power: float = 1.0

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def linear_problem(
    name: str,
    seed: int,
    *,
    n_data: int,
    n_features: int,
    n_outputs: int,
    noise_std: float = NOISE_STD,
    power: float = 1.0,
) -> KnownProblem:
    """Return linear regression at its mode with the exact evidence."""
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    x = torch.randn(n_data, n_features, dtype=torch.float64, generator=generator)
    phi = torch.cat([x, torch.ones(n_data, 1, dtype=torch.float64)], 1)
    spread = torch.tensor([1.0] * n_features + [4.0], dtype=torch.float64)
    shape = (n_features + 1, n_outputs)
    w = torch.randn(shape, dtype=torch.float64, generator=generator) / spread.sqrt()[:, None]
    noise = torch.randn(n_data, n_outputs, dtype=torch.float64, generator=generator)
    return _regression(name, x, phi @ w + noise_std * noise, noise_std, power)


def early_half(problem: KnownProblem) -> KnownProblem:
    """Return the linear regression on the first half of the data, at its own mode."""
    n, scale = len(problem.x) // 2, problem.likelihood.scale
    return _regression(problem.name, problem.x[:n], problem.y[:n], scale, problem.power)


def _regression(name: str, x: Tensor, y: Tensor, noise_std: float, power: float) -> KnownProblem:
    """Return the problem of a linear map."""
    precision = torch.tensor([1.0, 4.0], dtype=torch.float64)  # of weight and bias
    phi = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    each = precision[[0] * x.shape[1] + [1]]
    mode = mode_of_linear(phi, y, prior_precision=each, noise_std=noise_std / power**0.5)
    model = nn.Linear(x.shape[1], y.shape[1]).double()
    with torch.no_grad():
        model.weight.copy_(mode[:-1].T)
        model.bias.copy_(mode[-1])
    truth = tempered_evidence(phi, y, prior_precision=each, noise_std=noise_std, power=power)
    return KnownProblem(name, model, x, y, Gaussian(noise_std), precision, truth, power=power)


def tempered_evidence(
    phi: Tensor, y: Tensor, *, prior_precision: Tensor, noise_std: float, power: float
) -> float:
    """Return log ∫ p(y|θ)^κ p(θ) dθ of linear regression in nats.

    p(y|θ)^κ is a Gaussian of variance σ² / κ, times (2π σ²)^(-κ/2) (2π σ² / κ)^(1/2) per target.
    """
    plain = log_evidence_of_linear(
        phi, y, prior_precision=prior_precision, noise_std=noise_std / power**0.5
    )
    each = 0.5 * ((1 - power) * math.log(2 * math.pi * noise_std**2) - math.log(power))
    return plain + y.numel() * each


def exact_ensembles(
    problem: KnownProblem, plan: EnsemblePlan, generator: torch.Generator, *, n_runs: int = 200
) -> tuple[float, float]:
    """Return the mean of L_k on linear regression and its standard error, by exact draws.

    Members are drawn from the posteriors in closed form, in the chunks that `sto_lk` has.
    """
    noise = problem.likelihood.scale
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    each = problem.precision[[0] * problem.x.shape[1] + [1]]
    ends, values = chunk_ends(len(phi), plan.n_chunks), []
    for _ in range(n_runs):
        order = torch.randperm(len(phi), generator=generator)
        x, y, start, total = phi[order], problem.y[order], 0, 0.0
        for end in ends:
            seen, new, targets = x[:start], x[start:end], y[start:end]
            mean = mode_of_linear(seen, y[:start], prior_precision=each, noise_std=noise)
            root = torch.linalg.cholesky(seen.mT @ seen / noise**2 + torch.diag(each))
            shape = (plan.n_draws, *mean.shape)
            normal = torch.randn(shape, dtype=torch.float64, generator=generator)
            weights = mean + torch.linalg.solve_triangular(root.mT, normal, upper=True)
            logs = [problem.likelihood.log_likelihood(new @ w, targets) for w in weights]
            total += float(torch.stack(logs).logsumexp(0)) - math.log(plan.n_draws)
            start = end
        values.append(total)
    found = torch.tensor(values, dtype=torch.float64)
    return float(found.mean()), float(found.std()) / n_runs**0.5


def definition(problem: KnownProblem, kind: str) -> float | None:
    """Return the Laplace evidence in nats by dense algebra, None if that needs other layer rules.

    Jacobians, gradients and Hessians of the outputs come from autograd, without
    `nas_evidence.curvature`. Kronecker kinds are supported for linear layers only.
    """
    model, x, y = problem.model, problem.x, problem.y
    sizes = [p.numel() for p in model.parameters()]
    jacobian, outputs = _jacobian(model, x)  # [n, C, P], [n, C]

    def log_p(f: Tensor, target: Tensor) -> Tensor:
        return problem.likelihood.log_likelihood(f[None], target[None])

    residual = vmap(grad(log_p))(outputs, y)
    output_hessian = -vmap(jacrev(jacrev(log_p)))(outputs, y)
    if isinstance(problem.likelihood, Heteroscedastic):
        # Its mean over the target that the model draws, exact from two: it is quadratic in it.
        mean = problem.likelihood.mean(outputs)
        std = problem.likelihood.variance(outputs).sqrt()
        each = [-vmap(jacrev(jacrev(log_p)))(outputs, drawn) for drawn in (mean - std, mean + std)]
        output_hessian = torch.stack(each).mean(0)
    curvature = CURVATURES[kind]
    if curvature.columns == "residual":
        g = torch.einsum("ncp,nc->np", jacobian, residual)
        matrix, outer = g.mT @ g, residual.mT @ residual
    else:
        matrix = torch.einsum("ncp,ncd,ndq->pq", jacobian, output_hessian, jacobian)
        outer = output_hessian.sum(0)
    tensor = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    if curvature.is_diagonal:
        matrix = torch.diag(matrix.diagonal())
    elif not curvature.is_full:
        matrix = matrix * (tensor[:, None] == tensor)
    if curvature.is_factored:
        inner = _inputs_of_layers(model, x)
        if inner is None:
            return None
        start = 0
        for a, with_bias in inner:
            weight = slice(start, start + a.shape[1] * a.shape[2])
            units = slice(weight.stop, weight.stop + a.shape[2] * with_bias)
            # The block of a bias is that of the layer's outputs, which is B.
            b = matrix[units, units].clone() if with_bias else outer
            moment = a[:, :, 0].mT @ a[:, :, 0] / len(x)
            matrix[weight, weight] = _kronecker(kind, b, moment, matrix[weight, weight])
            start = units.stop
    delta = problem.precision[tensor]
    matrix = problem.power * matrix
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    ratio = torch.linalg.slogdet(torch.eye(len(delta)).double() + matrix / delta)[1]
    log_likelihood = problem.power * problem.likelihood.log_likelihood(outputs, y)
    return float(log_likelihood - 0.5 * ((delta * theta.square()).sum() + ratio))


def _jacobian(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    parts = jacrev(lambda p: functional_call(model, p, x))(parameters)
    return torch.cat([part.flatten(2) for part in parts.values()], 2), model(x).detach()


def _inputs_of_layers(model: nn.Module, x: Tensor) -> list[tuple[Tensor, bool]] | None:
    """Return inputs, repeated for each unit [n, d, units], and whether there is a bias.

    None if there is any layer with parameters but linear ones in a row.
    """
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    found, here = [], x
    for layer in layers:
        if isinstance(layer, nn.Linear):
            repeated = here.detach()[:, :, None].expand(-1, -1, layer.out_features)
            found.append((repeated, layer.bias is not None))
        elif any(True for _ in layer.parameters()):
            return None
        here = layer(here)
    return found


def entropy_bound_of_linear(problem: KnownProblem, plan: EntropyPlan) -> float:
    """Return the largest expectation over steps of the one-product entropy bound, nats.

    θ_t is Gaussian: mean m − A^t m and covariance A^t diag(δ)⁻¹ A^t with A = I − α K, for the
    minimum m and Hessian K of the negative log likelihood; S_t = S_0 − t tr(α K + α² K²).
    """
    noise, n = problem.likelihood.scale, len(problem.x)
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    delta = problem.precision[[0] * problem.x.shape[1] + [1]]
    k = phi.mT @ phi / noise**2
    minimum = torch.linalg.lstsq(phi, problem.y).solution  # [d + 1, C]
    best = problem.likelihood.log_likelihood(phi @ minimum, problem.y)
    scaled = plan.learning_rate / n * k
    a = torch.eye(len(k)).to(k) - scaled
    outputs = problem.y.shape[1]
    entropy = outputs * 0.5 * (1 + (2 * math.pi / delta).log()).sum()
    lost = outputs * (scaled.trace() + (scaled @ scaled).trace())
    power, bounds = torch.eye(len(k)).to(k), []
    for t in range(plan.n_steps + 1):
        covariance = power @ torch.diag(1 / delta) @ power.mT
        gap, mean = power @ minimum, minimum - power @ minimum
        nll = 0.5 * ((gap * (k @ gap)).sum() + outputs * (k @ covariance).trace())
        moments = mean.square().sum(1) + outputs * covariance.diagonal()
        log_prior = 0.5 * (outputs * (delta / (2 * math.pi)).log() - delta * moments).sum()
        bounds.append(float(best - nll + log_prior + entropy - t * lost))
        power = a @ power
    return max(bounds)


def _kronecker(kind: str, outer: Tensor, inner: Tensor, block: Tensor) -> Tensor:
    """Return B ⊗ A, or for EKFAC the diagonal part of the block in its eigenbasis."""
    if not CURVATURES[kind].form.corrected:
        return torch.kron(outer, inner)
    basis = torch.kron(torch.linalg.eigh(outer)[1], torch.linalg.eigh(inner)[1])
    return (basis * (basis.mT @ block @ basis).diagonal()) @ basis.mT


def logistic_problem(name: str, seed: int, power: float = 1.0) -> KnownProblem:
    """Return a classifier with two parameters."""
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    x = torch.randn(12, 1, dtype=torch.float64, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(12, generator=generator) > 0).long()
    return _on_grid(name, x, y, Categorical(), 14, 401, power)


def noise_problem(name: str, seed: int, n_data: int = 24) -> KnownProblem:
    """Return real targets whose two natural outputs are proportional to one input."""
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    x = torch.randn(24, 1, dtype=torch.float64, generator=generator)
    noise = torch.randn(24, 1, dtype=torch.float64, generator=generator)
    y = 0.8 * x + (-0.5 * x).exp() * noise
    return _on_grid(name, x[:n_data], y[:n_data], Heteroscedastic(), 12, 601)


def _on_grid(
    name: str, x: Tensor, y: Tensor, likelihood: Likelihood, half: int, n: int, power: float = 1.0
) -> KnownProblem:
    """Return a model with two weights, whose evidence is a sum over a grid of n by n."""
    model = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    precision = torch.tensor([0.5], dtype=torch.float64)
    density = network_density(model, x, y, likelihood)
    axis = torch.linspace(-half, half, n, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    log_prior = (precision / (2 * math.pi)).log() - 0.5 * precision * grid.square().sum(1)
    cell = 2 * math.log(float(axis[1] - axis[0]))
    truth = float((power * density(grid)[0] + log_prior).logsumexp(0)) + cell
    problem = KnownProblem(name, model, x, y, likelihood, precision, truth, power=power)
    put_at_mode(problem)
    return problem


def ladder_problem(
    name: str, seed: int, model: nn.Module, *, n_data: int, n_features: int, symmetries: int = 1
) -> KnownProblem:
    """Return a classifier at a mode, with its truth from a long ladder."""
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    x = torch.randn(n_data, n_features, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        y = torch.multinomial((2 * model(x)).softmax(1), 1, generator=generator)[:, 0]
    precision = torch.ones(sum(1 for _ in model.parameters()), dtype=torch.float64)
    long = temperature_ladder_evidence(
        model, x, y, likelihood=Categorical(), prior_precision=precision, plan=_TRUTH,
        generator=generator,
    )  # fmt: skip
    error = long.standard_error or 0.0
    problem = KnownProblem(
        name, model, x, y, Categorical(), precision, long.value, error, symmetries
    )
    put_at_mode(problem)
    return problem


def put_at_mode(problem: KnownProblem) -> None:
    """Move the parameters of the model to a maximum of the log joint."""
    parameters = list(problem.model.parameters())
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimiser.zero_grad()
        pairs = zip(problem.precision, parameters, strict=True)
        penalty = torch.stack([0.5 * d * p.square().sum() for d, p in pairs]).sum()
        fit = problem.likelihood.log_likelihood(problem.model(problem.x), problem.y)
        value = penalty - problem.power * fit
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
