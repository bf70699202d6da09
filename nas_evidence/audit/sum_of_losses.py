"""The row of `sotl`: on linear regression a sum of training losses bounds the log evidence.

    L = sum_i E log p(y_i | theta_i) = log p(y) - sum_i KL_i <= log p(y)     theta_i ~ p(. | y_<i)

    KL_i  of p(theta | y_<i) to p(theta | y_<=i), nats
    E log p(y_i | theta_i) = log N(y_i; m_i, s^2) - C v_i / (2 s^2)

    m_i, v_i  mean [C] and variance of the outputs for datum i given those before it, without noise
    s         noise

(Lyle et al. 2020, "A Bayesian perspective on training speed and model selection", section 3: the
loss of each datum is taken before it is learned, and the model is a draw from the posterior.) A
network's `sotl` is not this bound: it meets each datum in every epoch, at weights that are no
draw. So the row tests the sum only where the theorem applies.
"""

import math
from functools import partial

import torch

from nas_evidence.audit.known_problems import KnownProblem
from nas_evidence.audit.rows import AuditRow, Claim, judged, measured
from nas_evidence.evidence.exact_linear import mode_of_linear
from nas_evidence.scores.sotl import sotl
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import derive_seed

SOTL = "sotl"
_N_RUNS = 400
#: Of the mean over the runs.
_STANDARD_ERRORS = 4.0


def sotl_row(problem: KnownProblem, seed: int) -> AuditRow:
    """Return the row of `sotl` on linear regression: one pass, one datum at a time."""
    generator = torch.Generator().manual_seed(derive_seed(seed, problem.name, SOTL))
    losses, expected = _pass(problem, generator)
    sums = torch.tensor([-sotl(one) for one in losses.T.tolist()], dtype=torch.float64)
    error = float(sums.std()) / _N_RUNS**0.5
    found = EvidenceEstimate(estimator=SOTL, value=float(sums.mean()), standard_error=error)
    row = measured(problem, SOTL, partial(lambda given: given, found))
    slack = _STANDARD_ERRORS * error
    return judged(
        row,
        Claim(
            f"at most the truth, in the mean; {_STANDARD_ERRORS:g} errors of its closed form",
            expected - slack,
            min(expected, problem.truth) + slack,
        ),
    )


def _pass(problem: KnownProblem, generator: torch.Generator) -> tuple[torch.Tensor, float]:
    """Return the loss of each datum in each run [n, runs], nats, and the expected minus sum."""
    noise = problem.likelihood.scale
    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    each = problem.precision[[0] * problem.x.shape[1] + [1]]
    losses, expected = [], 0.0
    for i, (x, y) in enumerate(zip(phi, problem.y, strict=True)):
        seen = phi[:i]
        mean = mode_of_linear(seen, problem.y[:i], prior_precision=each, noise_std=noise)
        root = torch.linalg.cholesky(seen.mT @ seen / noise**2 + torch.diag(each))
        normal = torch.randn((_N_RUNS, *mean.shape), dtype=torch.float64, generator=generator)
        weights = mean + torch.linalg.solve_triangular(root.mT, normal, upper=True)
        outputs = torch.einsum("p,rpc->rc", x, weights)
        constant = 0.5 * math.log(2 * math.pi * noise**2) * len(y)
        losses.append((outputs - y).square().sum(1) / (2 * noise**2) + constant)
        variance = float(
            torch.linalg.solve_triangular(root, x[:, None], upper=False).square().sum()
        )
        away = float((x @ mean - y).square().sum())
        expected -= (away + len(y) * variance) / (2 * noise**2) + constant
    return torch.stack(losses), expected
