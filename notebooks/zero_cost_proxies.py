"""Two zero-cost proxies as scores of your own, taken once before the first step of training.

    synflow  log Σ θ ∂R/∂θ    R = 1ᵀ f(1; |θ|), without data   (Tanaka et al. 2020)
    snip     log Σ |θ ∂L/∂θ|  L the mean loss of one minibatch  (Lee, Ajanthan & Torr 2019)

Both were made to prune weights. Summed over all weights of a network they rank architectures
(Abdelfattah et al. 2021); biases and other vectors are left out of the sums. The logarithm keeps
the order of the sums.

Run it: python notebooks/zero_cost_proxies.py
"""

import copy
import math

import torch
from torch import Tensor, nn

from nas_evidence import EvidenceEstimate, Score


def network_of(context) -> nn.Module:  # type: ignore[no-untyped-def]
    """Return the initial network in float64, with He's rule for weights that start at zero.

    Heads and last convolutions of Fixup networks start at zero: both sums would be 0 for all.
    """
    model = copy.deepcopy(context.model).double().eval()
    random = context.generator("weights that start at zero")
    for p in weights_of(model):
        if not p.any():
            drawn = torch.randn(p.shape, generator=random, dtype=p.dtype)
            p.data = drawn.to(p.device) * math.sqrt(2 / p[0].numel())
    return model


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are summed over."""
    return [p for p in model.parameters() if p.dim() > 1]


def log_of(total: Tensor) -> float | EvidenceEstimate:
    """Return the logarithm of a sum; no value where there is none."""
    if 0 < total < math.inf:
        return math.log(total)
    note = f"the sum over the weights is {total:g}"
    return EvidenceEstimate(estimator="", value=-math.inf, valid=False, note=note)


def log_synflow(model: nn.Module, ones: Tensor) -> float | EvidenceEstimate:
    """Return log synflow of a network, which this changes; `ones` is an input of ones [1, ...]."""
    for p in model.parameters():
        p.data = p.data.abs()
    weights = weights_of(model)
    flow = torch.autograd.grad(model(ones).sum(), weights)
    return log_of(sum((p * g).sum() for p, g in zip(weights, flow, strict=True)).detach())


def log_snip(model: nn.Module, loss: Tensor) -> float | EvidenceEstimate:
    """Return log SNIP of a network from the mean loss of a minibatch."""
    weights = weights_of(model)
    gradient = torch.autograd.grad(loss, weights)
    return log_of(
        sum((p * g).abs().sum() for p, g in zip(weights, gradient, strict=True)).detach()
    )


def synflow(context) -> float | EvidenceEstimate:  # type: ignore[no-untyped-def]
    """Return log synflow; it reads no data, only their shape."""
    x = context.data.x_train[:1]
    return log_synflow(network_of(context), torch.ones_like(x, dtype=torch.float64))


def snip(context) -> float | EvidenceEstimate:  # type: ignore[no-untyped-def]
    """Return log SNIP on a random minibatch of the plan's size."""
    data, plan = context.data, context.assignment.plan
    rows = torch.randperm(len(data.x_train), generator=context.generator("snip"))
    rows = rows[: plan.batch_size]
    x, y = data.x_train[rows].double(), data.y_train[rows.to(data.y_train.device)]
    y = y.double() if y.is_floating_point() else y
    model, likelihood = network_of(context), context.training.likelihood
    return log_snip(model, -likelihood.log_likelihood(model(x), y) / len(x))


SYNFLOW = Score(
    name="synflow",
    summary="synaptic flow of the initial network, without data",
    implementation=synflow,
    taken="before",
)
SNIP = Score(
    name="snip",
    summary="sensitivity of the first loss to the weights",
    implementation=snip,
    taken="before",
)

if __name__ == "__main__":
    from sklearn.datasets import load_digits

    import nas_evidence

    X, y = load_digits(return_X_y=True)
    proxies = ["zero_cost_proxies:SYNFLOW", "zero_cost_proxies:SNIP"]
    study = nas_evidence.search(
        X.reshape(-1, 1, 8, 8),
        y,
        test_fraction=0.3,
        settings={"estimators": ["kfac_ggn", *proxies], "objective": proxies[0]},
        allow_code=True,
    )
    print(study.correlations.query("group == 'all'")[["score", "target", "rho"]])  # noqa: T201
