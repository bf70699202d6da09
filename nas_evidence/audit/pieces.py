"""Rows of what scores are made of, and of formulas beside them: each against another computation.

    effective_parameters  of stochastic quadrature           eigenvalues
    mackay_step           prior and noise, linearised        the maximum of the evidence
    mackay_slope          d log q / d log δ, classes         differences of the evidence
    noise_by_ggn          prior and noise jointly            the maximum of the evidence computed
    noise_by_ef           the same, exponent 2               anew at each noise
    prior_by_newton       prior of each tensor, blocks       the maximum of the evidence
    gain_over_a_constant  noise profiled out                 the noise maximised for each
    products              gradient and curvature of κ ≠ 1    dense matrices
    first_pass            two minibatches, κ ≠ 1             dense matrices
    entropy_of_descent    bound on log|I − A|, first entropy traces, normal densities
    ensemble_members      sampled, then optimised            posterior in closed form
    heavy_ball            descent with momentum              moments of the linear map
    box_normaliser        uniform prior, walls that matter   the error function
    pairwise_mean         probabilities of Gaussian logits   quadrature
    sampled_mean          the same                           quadrature
    finalists             posterior of true scores           sums over a grid of all unknowns
    all_hold_out_sizes    folds of every size and membership log p(D), which they add up to

`NAMES` are the estimators of these rows; they are no scores of a study.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.special
import torch
from torch import Tensor, nn

from nas_evidence.audit.known_problems import (
    NOISE_STD,
    Problem,
    linear_problem,
    tempered_evidence,
)
from nas_evidence.audit.rows import AuditRow, Claim, around, judged
from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.likelihood import Categorical, Gaussian
from nas_evidence.curvature.products import LogJoint
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.exact_linear import log_evidence_of_linear
from nas_evidence.evidence.jacobian import jacobian
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.evidence.last_layer import late_given_early
from nas_evidence.evidence.linearised import Tangent, log_evidence, tangent_of
from nas_evidence.evidence.network_density import flat_log_likelihood
from nas_evidence.evidence.softmax_layer import LastLayer
from nas_evidence.evidence.tangent_fit import fit_by_mackay
from nas_evidence.maths.finalists import FAMILY_SPREAD, N_DRAWS, NOISE_RATIO, posterior_of
from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_mean
from nas_evidence.maths.lanczos import stochastic_lanczos
from nas_evidence.maths.precisions import Precisions
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.scores.first_pass import FirstPass, log_predictive
from nas_evidence.scores.full_ggn_slq import evidence_by_products
from nas_evidence.scores.heavy_ball import heavy_ball_bound
from nas_evidence.scores.protocol import Context
from nas_evidence.scores.sample_then_optimise import _Ensemble as Ensemble
from nas_evidence.scores.sample_then_optimise import _one_member as one_member
from nas_evidence.scores.sampling_plan import EnsemblePlan, MomentumPlan, SweepPlan
from nas_evidence.scores.sgd_entropy import _prior_entropy as prior_entropy
from nas_evidence.scores.sgd_entropy import one_product_bound
from nas_evidence.scores.thermodynamic import thermodynamic_evidence
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    OnlinePlan,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.training.hyperparameters import update_prior_precision
from nas_evidence.training.joint import fit_prior_and_noise, noise_of
from nas_evidence.training.loop import begin
from nas_evidence.training.prior_groups import ties_of
from nas_evidence.training.refit import gain_over_a_constant

Array = npt.NDArray[np.float64]

_POWER = 0.3
_ERRORS = 4.0
_MOMENTUM = MomentumPlan(learning_rate=0.02, momentum=0.8, n_steps=40, n_seeds=64, first_speed=0.3)
_SWEEP = SweepPlan(n_nodes=8, n_burn_in=60, n_settle=5, n_samples=20)


def part_rows(seed: int) -> list[AuditRow]:
    """Return all rows."""
    return [row for name in NAMES for row in rows_of_part(name, seed)]


def rows_of_part(name: str, seed: int) -> list[AuditRow]:
    """Return the rows of one of `NAMES`."""
    return _PARTS[name](name, seed)


def _row(name: str, value: float, claim: Claim, spread: float | None = None) -> AuditRow:
    row = AuditRow(
        problem="parts", estimator=name, n_parameters=0, n_data=0, value=value, spread=spread,
        holds=True,
    )  # fmt: skip
    return judged(row, claim)


def _small(name: str, error: float, limit: float, text: str) -> AuditRow:
    """Return a row whose value is a largest error."""
    return _row(name, error, Claim(text, 0.0, limit))


def _generator(name: str, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "parts", name))


def _regression(name: str, seed: int, power: float = _POWER) -> Problem:
    return linear_problem(name, seed, n_data=20, n_features=8, n_outputs=1, power=power)


def _features(problem: Problem) -> Tensor:
    return torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)


# --- stochastic quadrature


def _effective(name: str, seed: int) -> list[AuditRow]:
    """Of a matrix of which few eigenvalues converge, so that the probes count."""
    generator, size = _generator(name, seed), 200
    random = torch.randn(size, size, dtype=torch.float64, generator=generator)
    vectors = torch.linalg.qr(random)[0]
    values = 1 + torch.logspace(-2, 3, size, dtype=torch.float64)
    matrix = (vectors * values) @ vectors.mT
    found = stochastic_lanczos(
        lambda v: matrix @ v, size, n_probes=12, n_steps=60, generator=generator, tolerance=1e-6
    )
    text = f"{_ERRORS:g} errors of its eigenvalues"
    pairs = (
        (found.effective, found.effective_error, (1 - 1 / values).sum()),
        (found.log_det, found.log_det_error, values.log().sum()),
    )
    rows = [
        _row(name, value, around(float(exact), _ERRORS * error, text), error)
        for value, error, exact in pairs
    ]
    return [*rows, _effective_of_score(name, seed)]


def _effective_of_score(name: str, seed: int) -> AuditRow:
    """Return the row of the term of `full_ggn_slq` on linear regression with κ ≠ 1."""
    problem = _regression(name, seed)
    delta = Precisions(problem.precision, (8, 1)).of_each_parameter()
    joint = LogJoint(
        problem.model, problem.x, problem.y, problem.likelihood, delta, problem.power, 7
    )
    theta = torch.cat([p.detach().flatten() for p in problem.model.parameters()])
    found = evidence_by_products(joint, theta, _generator(name, seed))
    terms = {term.term: term.value for term in found.terms}
    phi, error = _features(problem), terms.get("effective_parameters_error", 0.0)
    hessian = problem.power * phi.mT @ phi / NOISE_STD**2
    exact = float(torch.linalg.solve(hessian + torch.diag(delta), hessian).trace())
    claim = around(exact, _ERRORS * error + 1e-6, f"{_ERRORS:g} errors of dense algebra")
    return _row(name, terms["effective_parameters"], claim, error)


# --- hyperparameters


def _best_of(evidence: Callable[[list[float]], float], start: list[float]) -> float:
    """Return the largest evidence over logarithms of hyperparameters."""
    found = scipy.optimize.minimize(
        lambda log: -evidence([math.exp(v) for v in log]), np.array(start), method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000, "maxfev": 4000},
    )  # fmt: skip
    return -float(found.fun)


def _tangent(problem: Problem) -> Tangent:
    theta = torch.cat([p.detach().flatten() for p in problem.model.parameters()])
    return tangent_of(jacobian(problem.model, problem.x), problem.y, theta)


def _mackay_step(name: str, seed: int) -> list[AuditRow]:
    """From a noise far below: a wrong fixed point is not passed on the way."""
    problem = _regression(name, seed, 0.7)
    phi = _features(problem)

    def evidence(at: list[float]) -> float:
        each = torch.tensor([at[0]] * (phi.shape[1] - 1) + [at[1]], dtype=torch.float64)
        return tempered_evidence(
            phi, problem.y, prior_precision=each, noise_std=at[2], power=problem.power
        )

    best = _best_of(evidence, [0.0, 0.0, -0.7])
    claim = Claim("at most the maximum, and 0.05 nats below it", best - 0.05, best + 1e-6)
    rows = []
    for dual in (True, False):
        fitted = fit_by_mackay(
            _tangent(problem), Gaussian(0.05), problem.precision, power=problem.power,
            n_steps=200, dual=dual,
        )  # fmt: skip
        rows.append(_row(name, fitted.value, claim))
    return rows


def _classifier(name: str, seed: int) -> Problem:
    generator = _generator(name, seed)
    x = torch.randn(15, 3, dtype=torch.float64, generator=generator)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    y = torch.randint(0, 3, (15,), generator=generator)
    precision = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    return Problem(name, model, x, y, Categorical(1.3), precision, 0.0, power=_POWER)


def _mackay_slope(name: str, seed: int) -> list[AuditRow]:
    problem = _classifier(name, seed)
    tangent, rows = _tangent(problem), []

    def at(precision: Tensor, dual: bool, details: bool = False) -> float | Tensor:
        fit = log_evidence(
            tangent, problem.likelihood, precision, power=problem.power, dual=dual, details=details
        )
        return fit.slope(precision) if details else fit.value

    for dual in (True, False):
        slopes, step = at(problem.precision, dual, details=True), 1e-3
        assert isinstance(slopes, Tensor)
        moved = [math.exp(step) ** row for row in torch.eye(len(slopes)).double()]
        exact = [
            (at(problem.precision * one, dual) - at(problem.precision / one, dual)) / (2 * step)
            for one in moved
        ]
        error = float((slopes - torch.tensor(exact).double()).abs().max())
        rows.append(_small(name, error, 1e-4, "differences of the evidence"))
    return rows


def _noise(kind: str, name: str, seed: int) -> list[AuditRow]:
    """At fixed parameters, from a pass at another noise; H ∝ s⁻² or s⁻⁴ in dense algebra."""
    problem, wrong = _regression(name, seed), 0.8
    parameters = dict(problem.model.named_parameters())
    passed = curvature_pass(
        kind, problem.model, problem.x, problem.y, Gaussian(wrong), batch_size=7
    )
    phi, outputs = _features(problem), problem.model(problem.x).detach()
    residual = problem.y - outputs
    weight = residual.square() if kind == "full_ef" else torch.ones_like(residual)
    whole, exponent = (weight * phi).mT @ phi, 4 if kind == "full_ef" else 2
    theta = torch.cat([p.detach().flatten() for p in parameters.values()])

    def evidence(at: list[float]) -> float:
        delta = torch.tensor([at[0]] * (len(theta) - 1) + [at[1]], dtype=torch.float64)
        scaled = problem.power * whole / at[2] ** exponent / delta
        ratio = torch.linalg.slogdet(torch.eye(len(theta)).double() + scaled)[1]
        fit = problem.power * Gaussian(at[2]).log_likelihood(outputs, problem.y)
        return float(fit - 0.5 * ((delta * theta.square()).sum() + ratio))

    precision, noise = fit_prior_and_noise(
        passed.curvature, squared_norms(problem.model), problem.precision,
        ties=ties_of("tensor", tuple(parameters), [p.shape for p in parameters.values()]),
        noise=noise_of(kind, passed, wrong), likelihood_power=problem.power,
    )  # fmt: skip
    found, best = evidence([*precision.tolist(), noise]), _best_of(evidence, [0.0, 0.0, -0.7])
    return [_row(name, found, around(best, 1e-4, "the maximum in dense algebra"))]


def _prior(name: str, seed: int) -> list[AuditRow]:
    """One precision for each tensor at fixed parameters, with blocks of tensors."""
    problem = _regression(name, seed, 1.0)
    passed = curvature_pass(
        "block_ggn", problem.model, problem.x, problem.y, Gaussian(NOISE_STD), batch_size=20
    )
    norms, sizes = squared_norms(problem.model), passed.curvature.sizes
    assert isinstance(passed.curvature, BlockDiagonal)
    found = update_prior_precision(
        passed.curvature.spectra(), norms, sizes, problem.precision, method="newton", steps=1,
        learning_rate=1.0, groups="tensor", names=passed.curvature.names,
    )  # fmt: skip
    parts = [
        part.mT @ part / NOISE_STD**2 for part in torch.split(_features(problem), list(sizes), 1)
    ]

    def evidence(at: list[float]) -> float:
        ratios = [
            torch.linalg.slogdet(torch.eye(len(h)).double() + h / d)[1]
            for h, d in zip(parts, at, strict=True)
        ]
        return -0.5 * float(norms @ torch.tensor(at).double() + torch.stack(ratios).sum())

    best = _best_of(evidence, [0.0, 0.0])
    claim = around(best, 1e-6 * abs(best), "the maximum in dense algebra")
    return [_row(name, evidence(found.tolist()), claim)]


def _gain(name: str, seed: int) -> list[AuditRow]:
    problem = _regression(name, seed, 1.0)
    passed = curvature_pass(
        "diag_ggn", problem.model, problem.x, problem.y, Gaussian(0.7), batch_size=20
    )
    plan = TrainingPlan(likelihood="gaussian", online=OnlinePlan(learn_noise=True))
    outputs = problem.model(problem.x).detach()
    constant = problem.y.mean(0).expand_as(problem.y)

    def profiled(f: Tensor) -> float:
        return _best_of(lambda at: float(Gaussian(at[0]).log_likelihood(f, problem.y)), [0.0])

    found = gain_over_a_constant(passed, problem.y, plan)
    claim = around(profiled(outputs) - profiled(constant), 1e-4, "each at its own best noise")
    return [_row(name, found, claim)]


# --- κ


def _products(name: str, seed: int) -> list[AuditRow]:
    problem, rows = _classifier(name, seed), []
    sizes = [p.numel() for p in problem.model.parameters()]
    delta = Precisions(problem.precision, sizes).of_each_parameter()
    joint = LogJoint(
        problem.model, problem.x, problem.y, problem.likelihood, delta, problem.power, 6
    )
    generator = _generator(name, seed)
    theta = torch.randn(len(delta), dtype=torch.float64, generator=generator)
    vector = torch.randn(len(delta), dtype=torch.float64, generator=generator)
    value, gradient = joint.value_and_gradient(theta)
    product = joint.gauss_newton(theta)(vector)
    again = joint.value(theta)
    dense = jacobian(problem.model, problem.x)
    rows_of_j = torch.cat([part.rows() for part in dense.parts], 1)
    f = problem.model(problem.x).detach().requires_grad_()
    log_p = problem.likelihood.log_likelihood(f, problem.y)
    (residual,) = torch.autograd.grad(log_p, f)
    p = (f.detach() / 1.3).softmax(1)
    blocks = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / 1.3**2
    turned = torch.einsum("ncd,nd->nc", blocks, (rows_of_j @ vector).view_as(p)).flatten()
    exact = problem.power * (rows_of_j.mT @ turned) + delta * vector
    slope = delta * theta - problem.power * rows_of_j.mT @ residual.flatten()
    whole = 0.5 * float((delta * theta.square()).sum()) - problem.power * float(log_p.detach())
    for found, right in ((product, exact), (gradient, slope)):
        error = float((found - right).abs().max())
        rows.append(_small(name, error, 1e-8 * float(right.abs().max()), "dense matrices"))
    for one in (value, again):
        rows.append(_row(name, one, around(whole, 1e-8 * abs(whole), "by definition")))
    return rows


def _first_pass(name: str, seed: int) -> list[AuditRow]:
    """Two minibatches, without a step between them."""
    problem = _regression(name, seed)
    plan = TrainingPlan(
        likelihood="gaussian", noise_std=0.5, prior_precision=0.7, likelihood_power=_POWER
    )
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, architecture=ArchitectureSpec(family="linear"),
        dataset=DatasetSpec(name="digits"), plan=plan, estimators=(), seed=seed,
    )  # fmt: skip
    x, y = problem.x, problem.y
    none = torch.zeros(1, dtype=torch.float64)
    data = TensorData(x, y, x, y, "real", 1, (x.shape[1],), none, none + 1)
    scorer = FirstPass(
        ["prequential_epoch1_laplace"], Context(begin(problem.model, plan), data, given)
    )
    phi, half = _features(problem), len(x) // 2
    for rows in (slice(0, half), slice(half, None)):
        scorer.before_step(x[rows], y[rows])
    seen = torch.full_like(phi[0], 0.7)
    away, exact = (y - problem.model(x).detach())[:, 0], 0.0
    for rows in (slice(0, half), slice(half, None)):
        spread = 0.25 + (phi[rows].square() / seen).sum(1)
        exact -= 0.5 * float((away[rows].square() / spread + (2 * math.pi * spread).log()).sum())
        seen = seen + _POWER * phi[rows].square().sum(0) / 0.25
    plain = _row(name, scorer.value, around(exact, 1e-6 * abs(exact), "dense matrices"))
    return [plain, _of_classes(name)]


def _of_classes(name: str) -> AuditRow:
    """Return the row of two independent logits of the same variance, up to 2."""
    gaps = torch.linspace(-2, 2, 5, dtype=torch.float64)
    variances = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    gap, variance = (one.flatten() for one in torch.meshgrid(gaps, variances, indexing="ij"))
    means = torch.stack([gap, torch.zeros_like(gap)], 1)
    both = variance[:, None].expand(-1, 2)
    first = torch.zeros(len(gap), dtype=torch.int64)
    draws, n = torch.Generator().manual_seed(0), 50
    found = [log_predictive(means, both, first, Categorical(), draws).exp() for _ in range(n)]
    exact = _first_probability(means, torch.diag_embed(both), 1.0)
    worst = float((torch.stack(found).mean(0) - exact).abs().max())
    # Each is a mean of 1,000 draws, with a standard error of at most 0.5 / sqrt(1000).
    return _small(name, worst, 4 * 0.5 / math.sqrt(1000 * n), "four standard errors")


# --- descents and integrals


def _one_product(name: str, seed: int) -> list[AuditRow]:
    """Mean over random signs, of a symmetric matrix with eigenvalues up to 0.6."""
    generator = _generator(name, seed)
    vectors = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator))[0]
    matrix = (vectors * torch.linspace(0.1, 0.6, 6).double()) @ vectors.mT
    signs = 2.0 * torch.randint(0, 2, (2000, 6), generator=generator).double() - 1
    ones = torch.ones(6, dtype=torch.float64)
    found = torch.stack([one_product_bound(lambda u: matrix @ u, r, ones)[0] for r in signs])
    exact, error = -float((matrix + matrix @ matrix).trace()), float(found.std()) / 2000**0.5
    text = f"{_ERRORS:g} errors of minus the traces of A and A²"
    row = _row(name, float(found.mean()), around(exact, _ERRORS * error, text), error)
    delta = torch.tensor([0.5, 4.0], dtype=torch.float64)
    first = float(0.5 * (2 * math.pi * math.e / delta).log().sum())
    start = _row(name, prior_entropy(delta), around(first, 1e-9, "entropies of normal densities"))
    return [row, start]


def _ensemble(name: str, seed: int) -> list[AuditRow]:
    """The second half predicted by members that have learned the first: posterior draws."""
    problem, n_members = linear_problem(name, seed, n_data=12, n_features=1, n_outputs=1), 150
    log_likelihood, x, y = flat_log_likelihood(
        problem.model, problem.x, problem.y, problem.likelihood
    )
    ensemble = Ensemble(log_likelihood, problem.likelihood, problem.precision, EnsemblePlan())
    generator = _generator(name, seed)
    values = torch.stack(
        [one_member(ensemble, x, y, [6, 12], generator)[0][1] for _ in range(n_members)]
    )
    phi, late, s2 = _features(problem)[:6], _features(problem)[6:], NOISE_STD**2
    hessian = phi.mT @ phi / s2 + torch.diag(problem.precision)
    mean = torch.linalg.solve(hessian, phi.mT @ y[:6] / s2)
    spread = (late @ torch.linalg.inv(hessian) * late).sum()
    exact = problem.likelihood.log_likelihood(late @ mean, y[6:]) - 0.5 * spread / s2
    error = float(values.std()) / n_members**0.5
    claim = around(float(exact), _ERRORS * error, f"{_ERRORS:g} errors of posterior draws")
    return [_row(name, float(values.mean()), claim, error)]


def _heavy_ball(name: str, seed: int) -> list[AuditRow]:
    problem = linear_problem(name, seed, n_data=12, n_features=2, n_outputs=1)
    found = heavy_ball_bound(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=problem.precision, generator=_generator(name, seed), plan=_MOMENTUM,
    )  # fmt: skip
    best, slack = _expected_heavy_ball(problem), _ERRORS * (found.standard_error or 0.0)
    claim = Claim(
        "at most the truth; its expectation in closed form",
        best - slack - 0.1, min(best, problem.truth) + slack,
    )  # fmt: skip
    return [_row(name, found.value, claim, found.standard_error)]


def _expected_heavy_ball(problem: Problem) -> float:
    """Return the largest expectation over steps of the bound, nats.

    (θ − m, v) is Gaussian: a step multiplies it by [[I − αK, βI], [−αK, βI]]. The density of v is
    an independent Gaussian fitted to r other draws, whose expected logarithm is in closed form.
    """
    plan, phi = _MOMENTUM, _features(problem)
    assert isinstance(problem.likelihood, Gaussian)
    k = phi.mT @ phi / problem.likelihood.noise_std**2
    minimum = torch.linalg.lstsq(phi, problem.y).solution
    best = float(problem.likelihood.log_likelihood(phi @ minimum, problem.y))
    m, size, r = minimum[:, 0], len(k), plan.n_seeds // 2
    delta = problem.precision[[0] * (size - 1) + [1]]
    pull, kept = plan.learning_rate / len(phi) * k, plan.momentum * torch.eye(size).double()
    step = torch.cat(
        [torch.cat([torch.eye(size).double() - pull, kept], 1), torch.cat([-pull, kept], 1)]
    )
    mean = torch.cat([-m, torch.zeros_like(m)])
    covariance = torch.diag(torch.cat([1 / delta, plan.first_speed**2 / delta]))
    entropy = float((1 + (2 * math.pi / delta).log()).sum()) + size * math.log(plan.first_speed)
    lost = (1 + 1 / r) * (r - 1) / (r - 3) + float(scipy.special.digamma((r - 1) / 2))
    lost -= math.log((r - 1) / 2)
    bounds = []
    for t in range(plan.n_steps + 1):
        theta, v = covariance[:size, :size], covariance[size:, size:].diagonal()
        nll = 0.5 * (mean[:size] @ k @ mean[:size] + (k @ theta).trace())
        moments = (mean[:size] + m).square() + theta.diagonal()
        log_prior = 0.5 * ((delta / (2 * math.pi)).log() - delta * moments).sum()
        log_r = -0.5 * ((2 * math.pi * v).log() + lost).sum()
        here = entropy + t * size * math.log(plan.momentum)
        bounds.append(best + float(log_prior - nll + log_r) + here)
        mean, covariance = step @ mean, step @ covariance @ step.mT
    return max(bounds)


def _box(name: str, seed: int) -> list[AuditRow]:
    """Orthogonal features, so that the integral is a product of error functions."""
    generator, noise, wall = _generator(name, seed), 0.5, 0.6
    x = torch.eye(3, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    y = torch.tensor([[0.5], [-0.2], [0.9]], dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(y.mT.clamp(-0.4, 0.4))
    low, high = ((s * wall - y) / noise / math.sqrt(2) for s in (-1, 1))
    inside = 0.5 * (torch.erf(high) - torch.erf(low))
    exact = float(inside.log().sum()) - 3 * math.log(2 * wall)
    found = thermodynamic_evidence(
        model, x, y, likelihood=Gaussian(noise), generator=generator, half_width=wall, plan=_SWEEP
    )
    slack = _ERRORS * (found.standard_error or 0.0) + 0.02
    claim = around(exact, slack, f"{_ERRORS:g} errors of the error function")
    return [_row(name, found.value, claim, found.standard_error)]


# --- probabilities of classes


def _two_logits() -> tuple[Tensor, Tensor, float]:
    """Return means [n, 2] and correlated covariances [n, 2, 2] of logits, and a temperature."""
    gaps = torch.linspace(-6, 6, 7, dtype=torch.float64)
    spreads = torch.tensor([0.1, 1.0, 4.0, 10.0], dtype=torch.float64)
    gap, spread = (one.flatten() for one in torch.meshgrid(gaps, spreads, indexing="ij"))
    means = torch.stack([gap + 1, torch.ones_like(gap)], 1)
    shape = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    return means, spread[:, None, None] * shape, 1.5


def _first_probability(means: Tensor, covariances: Tensor, temperature: float) -> Tensor:
    """Return the mean probability of the first of two classes [n] by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    gap = means[:, 0] - means[:, 1]
    variance = covariances[:, 0, 0] + covariances[:, 1, 1] - 2 * covariances[:, 0, 1]
    z = gap[:, None] + variance.sqrt()[:, None] * torch.tensor(nodes)
    share = torch.tensor(weights) / math.sqrt(2 * math.pi)
    return ((z / temperature).sigmoid() * share).sum(1)


def _pairwise(name: str, seed: int) -> list[AuditRow]:
    means, covariances, temperature = _two_logits()
    found = pairwise_mean(means, covariances, temperature)[:, 0]
    error = float((found - _first_probability(means, covariances, temperature)).abs().max())
    return [_small(name, error, 0.02, "MacKay's error is below 0.02")]


def _sampled(name: str, seed: int) -> list[AuditRow]:
    """The largest of 28 standardised errors of normal numbers is below 5, but for 1 in 60,000."""
    means, covariances, temperature = _two_logits()
    n_draws = 4000
    found = log_sampled_mean(
        means, covariances, temperature, n_draws=n_draws, generator=_generator(name, seed)
    )[:, 0].exp()
    exact = _first_probability(means, covariances, temperature)
    square = _second_moment(means, covariances, temperature)
    error = ((square - exact.square()) / n_draws).sqrt()
    largest = float(((found - exact).abs() / error).max())
    return [_small(name, largest, 5.0, "5 standard errors, the largest of 28")]


def _second_moment(means: Tensor, covariances: Tensor, temperature: float) -> Tensor:
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    gap = means[:, 0] - means[:, 1]
    variance = covariances[:, 0, 0] + covariances[:, 1, 1] - 2 * covariances[:, 0, 1]
    z = gap[:, None] + variance.sqrt()[:, None] * torch.tensor(nodes)
    share = torch.tensor(weights) / math.sqrt(2 * math.pi)
    return ((z / temperature).sigmoid().square() * share).sum(1)


# --- the finalists


def _finalists(name: str, seed: int) -> list[AuditRow]:
    """Five architectures, and nine of which the worse ones are censored; half of it is noise."""
    rows = []
    for n, draw in ((5, 0), (5, 1), (9, 0), (9, 1)):
        random = np.random.default_rng(derive_seed(seed, name, n, draw))
        true = random.normal(size=n)
        replicates = [list(m + 0.8 * random.normal(size=3 if n < 6 else 2)) for m in true]
        found = posterior_of(replicates, ["one"] * n, seed=seed)
        assert found is not None
        best, centre = brute_force(replicates, n_exact=6)
        text = "sums over a grid of all unknowns: 4 errors of the draws, 0.01 of grids"
        pairs = (
            (found.best - best, 4 * 0.5 / N_DRAWS**0.5 + 0.01),
            (found.draws.mean(0) - centre, 4 * found.draws.std(0).max() / N_DRAWS**0.5 + 0.01),
        )
        for errors, limit in pairs:
            rows.append(_small(name, float(np.abs(errors).max()), float(limit), text))
    return rows


def brute_force(replicates: list[list[float]], n_exact: int) -> tuple[Array, Array]:
    """Return the probability of each architecture of one family to be the best, and means [n].

    The true scores are summed over a grid, for each cell of a grid of the model's other unknowns.
    The common noise is integrated out by hand: log s_f given t is N(log q t, 1 + w²). All but the
    best `n_exact` enter as below the worst of these.
    """
    means = np.array([np.mean(one) for one in replicates])
    within = np.array([len(one) * np.var(one) for one in replicates])[:, None]
    r = np.array([[len(one)] for one in replicates])
    exact = means[:, None] >= np.sort(means)[-n_exact:][0]
    cut, spread = means[exact[:, 0]].min(), means[exact[:, 0]].std() + 0.3
    low, high = means.min() - 4 * spread, means.max() + 4 * spread
    mu, m = np.linspace(low - spread, high + spread, 400), np.linspace(low, high, 41)
    away = mu[:, None] - m  # [mu, M]
    cells: list[tuple[Array, Array, Array]] = []
    for t in spread * np.geomspace(0.05, 12, 19):
        for s in np.geomspace(0.1, 1.6, 17):
            log_s = -0.5 * np.log(s / t / NOISE_RATIO) ** 2 / (1 + FAMILY_SPREAD**2)
            likely = -0.5 * (r * (means[:, None] - mu) ** 2 + within) / s**2 - r * np.log(s)
            left = scipy.special.log_ndtr((cut - mu) / (s / np.sqrt(r)))
            given = np.exp(np.where(exact, likely, left))  # [n, mu]
            for prior in (
                np.exp(-0.5 * (away / t) ** 2) / (t * math.sqrt(2 * math.pi)),
                np.where(away < 0, np.exp(np.minimum(away, 0) / t) / t, 0.0),
            ):
                weight = log_s + np.log(np.maximum(given @ prior, 1e-300)).sum(0)  # [M]
                cells.append((weight, np.exp(likely), prior))
    top = max(float(weight.max()) for weight, _, _ in cells)
    best, centre, total = np.zeros(len(means)), np.zeros(len(means)), 0.0
    for weight, likely_, prior in cells:
        for k in np.flatnonzero(weight > top - 7):
            posterior = likely_ * prior[:, k]
            posterior /= posterior.sum(1, keepdims=True)
            below = np.maximum(np.cumsum(posterior, 1) - 0.5 * posterior, 1e-300)
            others = np.exp(np.log(below).sum(0) - np.log(below))
            share = math.exp(weight[k] - top)
            best += share * (posterior * others).sum(1)
            centre, total = centre + share * posterior @ mu, total + share
    return np.asarray(best / best.sum()), np.asarray(centre / total)


# --- hold-out sets of every size


def _all_sizes(name: str, seed: int) -> list[AuditRow]:
    """Return the rows of Fong & Holmes (2020), Proposition 2, for `conditional_evidence`.

    With S_p the mean over all hold-out sets of p data of the mean log score of one of them, the
    S_p of all sizes add up to log p(D), and those up to m to the mean of log q of a fold of m data
    given the others. Every term is the score's own function, on features that are fixed.
    """
    n, noise = 7, 0.4
    random = _generator(name, seed)
    phi = torch.randn(n, 2, dtype=torch.float64, generator=random)
    y = phi.sum(1, keepdim=True) + noise * torch.randn(n, 1, dtype=phi.dtype, generator=random)
    delta = torch.tensor([[0.5, 2.0]], dtype=torch.float64)

    def log_q(late: tuple[int, ...], early: list[int]) -> float:
        rows = [*early, *late]
        layer = LastLayer(phi[rows], torch.zeros_like(delta), delta)
        return late_given_early(layer, y[rows], len(early), Gaussian(noise)).value

    def log_p(rows: list[int]) -> float:
        return log_evidence_of_linear(
            phi[rows], y[rows], prior_precision=delta[0], noise_std=noise
        )

    def left(out: tuple[int, ...]) -> list[int]:
        return [i for i in range(n) if i not in out]

    scores = [
        float(np.mean([log_q((j,), left(out)) for out in combinations(range(n), p) for j in out]))
        for p in range(1, n)
    ]
    scores.append(float(np.mean([log_p([j]) for j in range(n)])))  # nothing is given
    rows = [_row(name, sum(scores), around(log_p(list(range(n))), 1e-9, "log p(D)"))]
    for m in (1, 2, 3):
        folds = [log_q(out, left(out)) for out in combinations(range(n), m)]
        claim = around(sum(scores[:m]), 1e-9, f"the sum of the scores of sizes up to {m}")
        rows.append(_row(name, float(np.mean(folds)), claim))
    return rows


_PARTS: dict[str, Callable[[str, int], list[AuditRow]]] = {
    "effective_parameters": _effective,
    "mackay_step": _mackay_step,
    "mackay_slope": _mackay_slope,
    "noise_by_ggn": partial(_noise, "full_ggn"),
    "noise_by_ef": partial(_noise, "full_ef"),
    "prior_by_newton": _prior,
    "gain_over_a_constant": _gain,
    "products": _products,
    "first_pass": _first_pass,
    "entropy_of_descent": _one_product,
    "ensemble_members": _ensemble,
    "heavy_ball": _heavy_ball,
    "box_normaliser": _box,
    "all_hold_out_sizes": _all_sizes,
    "pairwise_mean": _pairwise,
    "sampled_mean": _sampled,
    "finalists": _finalists,
}
NAMES = tuple(_PARTS)
