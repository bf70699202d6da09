"""Slow and obvious definitions of every curvature; never imports the package.

Everything is float64 and goes one datum, one output and one parameter tensor at a time through
ordinary autograd. Parameters are flattened in the order of `model.parameters()`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Of all outputs, or of each; none for labels.
Noise = float | tuple[float, ...] | None


def _variance(noise_std: float | tuple[float, ...]) -> Tensor:
    return torch.tensor(noise_std, dtype=torch.float64).square()


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """[n, C, P]."""
    parameters = list(model.parameters())
    rows = []
    for datum in x:
        outputs = model(datum[None])[0]
        per_output = []
        for output in outputs:
            gradients = torch.autograd.grad(output, parameters, retain_graph=True)
            per_output.append(torch.cat([g.flatten() for g in gradients]))
        rows.append(torch.stack(per_output))
    return torch.stack(rows)


def output_hessian(outputs: Tensor, noise_std: Noise) -> Tensor:
    """[n, C, C]; categorical where there is no noise."""
    if noise_std is not None:
        eye = torch.eye(outputs.shape[1], dtype=outputs.dtype) / _variance(noise_std)
        return eye.expand(len(outputs), -1, -1)
    p = outputs.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def output_residual(outputs: Tensor, y: Tensor, noise_std: Noise) -> Tensor:
    """d log p(y|f) / df [n, C]."""
    if noise_std is not None:
        return (y - outputs) / _variance(noise_std)
    return functional.one_hot(y, outputs.shape[1]).to(outputs) - outputs.softmax(1)


def log_likelihood(outputs: Tensor, y: Tensor, noise_std: Noise) -> float:
    if noise_std is None:
        return -functional.cross_entropy(outputs, y, reduction="sum").item()
    variance = _variance(noise_std)
    each = -0.5 * (y - outputs).square() / variance - 0.5 * (2 * math.pi * variance).log()
    return each.sum().item()


def full_ggn(model: nn.Module, x: Tensor, noise_std: Noise) -> Tensor:
    """Sum over data of J^T Lambda J [P, P]."""
    j = jacobian(model, x)
    with torch.no_grad():
        hessian = output_hessian(model(x), noise_std)
    return torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)


def full_ef(model: nn.Module, x: Tensor, y: Tensor, noise_std: Noise) -> Tensor:
    """Sum over data of g g^T [P, P]."""
    with torch.no_grad():
        residual = output_residual(model(x), y, noise_std)
    g = torch.einsum("ncp,nc->np", jacobian(model, x), residual)
    return g.T @ g


def tensor_blocks(matrix: Tensor, model: nn.Module) -> list[Tensor]:
    """The block of each parameter tensor on the diagonal of [P, P]."""
    blocks, start = [], 0
    for parameter in model.parameters():
        stop = start + parameter.numel()
        blocks.append(matrix[start:stop, start:stop])
        start = stop
    return blocks


def kfac_factors(
    model: nn.Module, x: Tensor, noise_std: Noise, y: Tensor | None = None
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """For each weight one SA [d_in, d_in] / (N |T|) and SB [d_out, d_out] for each group.

    The roots of the output Hessian are its eigenvectors here; with y the residual instead.
    """
    factors: dict[str, list[tuple[Tensor, Tensor]]] = {}
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Callable[..., Tensor]:
        def remember(_: nn.Module, args: tuple, kwargs: dict, z: Tensor) -> Tensor:
            seen[name] = ((*args, *kwargs.values())[0].clone(), z)
            return z.clone()  # the network may go on in place

        return remember

    handles = [m.register_forward_hook(hook(n), with_kwargs=True) for n, m in layers.items()]
    for n, datum in enumerate(x):
        outputs = model(datum[None])
        if y is None:
            values, vectors = torch.linalg.eigh(output_hessian(outputs.detach(), noise_std)[0])
            roots = [v.clamp(min=0).sqrt() * r for v, r in zip(values, vectors.T, strict=True)]
        else:
            roots = [output_residual(outputs.detach(), y[n : n + 1], noise_std)[0]]
        for name, layer in layers.items():
            a, z = seen[name]
            groups = getattr(layer, "groups", 1)
            columns = patches(layer, a).chunk(groups)  # [d_in, T] each
            gradients = [torch.autograd.grad(outputs, z, r[None], retain_graph=True)[0]
                         for r in roots]  # fmt: skip
            before = factors.get(name + ".weight", [(0, 0)] * groups)
            factors[name + ".weight"] = []
            for g, (c, (sa, sb)) in enumerate(zip(columns, before, strict=True)):
                sa = sa + sum(torch.outer(t, t) for t in c.T) / len(x) / c.shape[1]
                for s in gradients:
                    rows = s[0].flatten(1) if isinstance(layer, nn.Conv2d) else rows_of(s).T
                    sb = sb + sum(torch.outer(t, t) for t in rows.chunk(groups)[g].T)
                factors[name + ".weight"].append((sa, sb))
    for handle in handles:
        handle.remove()
    return factors


def patches(layer: nn.Module, a: Tensor) -> Tensor:
    """The inputs of one datum as columns [d_in, T]."""
    if isinstance(layer, nn.Linear):
        return rows_of(a).T
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        a = functional.pad(
            a, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
        )
        padding = (0, 0)
    else:
        padding = (0, 0) if layer.padding == "valid" else layer.padding
    return functional.unfold(a, layer.kernel_size, layer.dilation, padding, layer.stride)[0]


def rows_of(a: Tensor) -> Tensor:
    return a[0].reshape(-1, a.shape[-1])


def kfac_blocks(
    model: nn.Module, x: Tensor, noise_std: Noise, y: Tensor | None = None
) -> list[Tensor]:
    """Kronecker blocks of weights, exact blocks of all other parameters; with y of the EF."""
    full = full_ggn(model, x, noise_std) if y is None else full_ef(model, x, y, noise_std)
    factors = kfac_factors(model, x, noise_std, y)
    blocks = []
    for (name, _), block in zip(model.named_parameters(), tensor_blocks(full, model), strict=True):
        if name in factors:
            block = torch.block_diag(*[torch.kron(b, a) for a, b in factors[name]])
        blocks.append(block)
    return blocks


def ekfac_blocks(model: nn.Module, x: Tensor, noise_std: Noise) -> list[Tensor]:
    """The exact blocks of weights, diagonal parts in the Kronecker eigenbasis; others exact."""
    exact = tensor_blocks(full_ggn(model, x, noise_std), model)
    factors = kfac_factors(model, x, noise_std)
    blocks = []
    for (name, _), block in zip(model.named_parameters(), exact, strict=True):
        if name in factors:
            pairs = [(torch.linalg.eigh(b)[1], torch.linalg.eigh(a)[1]) for a, b in factors[name]]
            q = torch.block_diag(*[torch.kron(b, a) for b, a in pairs])
            block = torch.diag((q.T @ block @ q).diagonal())
        blocks.append(block)
    return blocks


def log_det_ratio(block: Tensor, delta: float | Tensor) -> float:
    """log|H + D| - log|D| [P, P], D = diag(delta)."""
    size = len(block)
    diagonal = torch.as_tensor(delta, dtype=block.dtype).expand(size)
    return (torch.linalg.slogdet(block + torch.diag(diagonal))[1] - diagonal.log().sum()).item()


def log_evidence(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    noise_std: Noise,
    delta: list[float],
    blocks: list[Tensor],
) -> float:
    """Laplace log evidence with one block for each tensor, or with a single [P, P] block."""
    with torch.no_grad():
        value = log_likelihood(model(x), y, noise_std)
    for parameter, d in zip(model.parameters(), delta, strict=True):
        value -= 0.5 * d * parameter.detach().square().sum().item()
    if len(blocks) == len(delta):
        return value - 0.5 * sum(log_det_ratio(b, d) for b, d in zip(blocks, delta, strict=True))
    sizes = torch.tensor([p.numel() for p in model.parameters()])
    spread = torch.tensor(delta, dtype=torch.float64).repeat_interleave(sizes)
    return value - 0.5 * log_det_ratio(blocks[0], spread)
