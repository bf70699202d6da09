"""The Laplace posterior of a network, and the variance of its linearised outputs.

    p(θ | y) ≈ N(θ*, Σ),  Σ = (κ H + δ)⁻¹        Var f(x) = J(x) Σ J(x)ᵀ,  J = ∂f / ∂θ  [C, P]

    H  Gauss-Newton curvature of the training data at θ*     κ  likelihood power
    δ  learned prior precisions

The outputs of the network linearised at θ* are Gaussian under this posterior (Immer et al. 2021,
"Improving predictions of Bayesian neural nets via local linearization", equation 5).

Structure, by the number of parameters: all of Σ; else Kronecker factors, one pair per weight; else
Kronecker factors of the last layer alone. With one prior precision per parameter, its diagonal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.evidence.jacobian import OuterPart, Part, RowsPart, jacobian
from nas_evidence.maths.blocks import Block, Diagonal, FewInputs, Kronecker, LowRank, Rotated
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors

#: Most parameters for all of Σ, and most stored numbers for Kronecker factors of all layers.
MOST_FULL, MOST_STORED = 500, 16_000_000
#: Numbers of Jacobians held at once.
_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class Posterior:
    """A posterior covariance of some parameters, the others fixed.

    structure  "full", "kronecker", "last_layer" or "diagonal"
    names      of the parameter tensors, in the order of the model
    tensors    by name and part: "weight/variances" with "/left" and "/right", or "/covariance";
               "/outside" is the variance of what these leave out;
               "covariance" of all parameters for "full"
    """

    structure: str
    names: tuple[str, ...]
    tensors: Mapping[str, Tensor]

    def output_covariance(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the covariance of the linearised outputs, float64 [n, C, C].

        Args:
            model: the network that the posterior is of.
            inputs: preprocessed, as the network takes them [n, ...].
        """
        with torch.no_grad():
            n_outputs = model(inputs[:1]).shape[1]
        outer = inputs.ndim == 2 and _only_linear(model)
        held = sum(
            sum(p.shape) if outer else p.numel()
            for name, p in model.named_parameters()
            if name in self.names
        )
        step = max(1, _AT_ONCE // max(1, held * n_outputs))
        parts = [
            self._covariance(_parts_of(model, inputs[i : i + step], self.names, outer))
            for i in range(0, len(inputs), step)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, n_outputs, n_outputs).double()

    def _covariance(self, parts: Mapping[str, Part]) -> Tensor:
        if self.structure == "full":
            each = [_rows(parts[name]) for name in self.names]
            whole = torch.cat(each, dim=2)
            return whole @ self.tensors["covariance"] @ whole.mT
        found = [self._of_tensor(name, parts[name]) for name in self.names]
        return torch.stack(found).sum(0)

    def _of_tensor(self, name: str, part: Part) -> Tensor:
        """Return the part of one parameter tensor [n, C, C]."""
        if f"{name}/covariance" in self.tensors:
            flat = _rows(part)
            return flat @ self.tensors[f"{name}/covariance"] @ flat.mT
        variances = self.tensors[f"{name}/variances"]
        left, right = (self.tensors.get(f"{name}/{side}") for side in ("left", "right"))
        outside = self.tensors.get(f"{name}/outside")
        if isinstance(part, OuterPart):
            turned = part.s if left is None else part.s @ left[0]
            inside = part.a if right is None else part.a @ right[0]
            weights = inside.square() @ variances.reshape(turned.shape[2], -1).mT  # [n, out]
            if outside is not None:
                beyond = part.a.square().sum(1) - inside.square().sum(1)
                weights += outside * beyond.clamp(min=0)[:, None]
            return (turned * weights[:, None]) @ turned.mT
        flat = part.values
        if left is None or right is None:
            return (flat * variances.flatten()) @ flat.mT
        groups, n_out, _ = variances.shape
        turned = left.mT @ flat.reshape(*flat.shape[:2], groups, n_out, -1)
        inside = turned @ right  # [n, C, groups, out, m]
        covariance = (inside.flatten(2) * variances.flatten()) @ inside.flatten(2).mT
        if outside is not None:
            rest = (turned - inside @ right.mT).flatten(2)
            covariance += outside * (rest @ rest.mT)
        return covariance

    def save(self, path: Path) -> None:
        """Write it as safetensors, in float32 where that loses nothing that matters."""
        header = {"structure": self.structure, "names": "\n".join(self.names)}
        tensors = {name: t.float().contiguous() for name, t in self.tensors.items()}
        write_whole(path, sealed_tensors(tensors, header))

    @classmethod
    def load(cls, path: Path) -> "Posterior":
        """Return what `save` wrote.

        Raises:
            DamagedError: it does not match its checksum.
        """
        stored, header = read_tensors(path)
        tensors = {name: tensor.double() for name, tensor in stored.items()}
        return cls(header["structure"], tuple(header["names"].split("\n")), tensors)


def _only_linear(model: nn.Module) -> bool:
    return all(isinstance(m, nn.Linear) for m in model.modules() if [*m.parameters(recurse=False)])


def _parts_of(
    model: nn.Module, inputs: Tensor, names: tuple[str, ...], outer: bool
) -> dict[str, Part]:
    """Return the Jacobian by tensor; of linear layers as outer products."""
    if outer:
        found = jacobian(model, inputs, only=names)
        return dict(zip(found.names, found.parts, strict=True))
    return {name: RowsPart(j.flatten(2)) for name, j in jacobians(model, inputs, names).items()}


def _rows(part: Part) -> Tensor:
    """Return the rows of one tensor [n, C, size]."""
    if isinstance(part, RowsPart):
        return part.values
    return torch.einsum("nco,ni->ncoi", part.s, part.a).flatten(2)


def jacobians(model: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return ∂f_n / ∂θ of each named parameter tensor, float64 [n, C, *shape]."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    moving = {name: parameters.pop(name) for name in names}
    rest = {**parameters, **dict(model.named_buffers())}

    def outputs(values: dict[str, Tensor], x: Tensor) -> Tensor:
        called: Tensor = torch.func.functional_call(model, {**rest, **values}, (x[None],))
        return called[0]

    each = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel of attention has no batching rule
        found = each(moving, inputs)
    return {name: part.double() for name, part in found.items()}


def fit_posterior(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    precisions: Mapping[str, Tensor],
    *,
    likelihood_power: float = 1.0,
    most_full: int = MOST_FULL,
    most_stored: int = MOST_STORED,
) -> Posterior:
    """Return the Laplace posterior of a trained network at its training data.

    Args:
        model: the network; its parameters are taken as the mode.
        inputs: preprocessed training inputs [n, ...].
        targets: labels int64 [n], or standardised real targets [n, C].
        likelihood: with the learned noise or temperature.
        precisions: of each parameter tensor by name, [1] or [size].
        likelihood_power: κ.
        most_full: most parameters for all of Σ.
        most_stored: most stored numbers for Kronecker factors of all layers.
    """
    parameters = dict(model.named_parameters())
    n_parameters = sum(p.numel() for p in parameters.values())
    each = any(len(precision) > 1 for precision in precisions.values())
    if n_parameters <= most_full and len(inputs) <= 100_000:
        kind = "full_ggn"
    else:
        kind = "diag_ggn" if each else "kfac_ggn"
    curvature = curvature_pass(
        kind,
        model,
        inputs,
        targets,
        likelihood,
        batch_size=rows_at_once(model, inputs),
        generator=torch.Generator().manual_seed(0),
    ).curvature
    names = tuple(parameters)
    if isinstance(curvature, FullMatrix | FullKernel):
        matrix = curvature.as_matrix() if isinstance(curvature, FullKernel) else curvature
        delta = [p.double().expand(parameters[n].numel()) for n, p in precisions.items()]
        covariance = _inverse(likelihood_power * matrix.matrix + torch.cat(delta).diag())
        return Posterior("full", names, {"covariance": covariance})
    assert isinstance(curvature, BlockDiagonal)
    structure = "diagonal" if each else "kronecker"
    if not each and _stored(parameters) > most_stored:
        structure, names = "last_layer", _last_layer(parameters)
    tensors: dict[str, Tensor] = {}
    for name, block in zip(parameters, curvature.blocks, strict=True):
        if name in names:
            parts = _parts(block, precisions[name].double(), likelihood_power)
            tensors |= {f"{name}/{part}": value for part, value in parts.items()}
    return Posterior(structure, names, tensors)


def _parts(block: Block, precision: Tensor, power: float) -> dict[str, Tensor]:
    """Return (κ H + δ)⁻¹ of one block, factored if H is."""
    match block:
        case Kronecker() | FewInputs():
            rotated = block.decomposed()
        case Rotated():
            rotated = block
        case Diagonal():
            return {"variances": 1 / (power * block.values.flatten().clamp(min=0) + precision)}
        case _:
            dense = block.as_dense() if isinstance(block, LowRank) else block
            eye = torch.eye(dense.size, dtype=torch.float64)
            return {"covariance": _inverse(power * dense.matrix + precision * eye)}
    variances = 1 / (power * rotated.values.clamp(min=0) + precision)
    parts = {"variances": variances, "left": rotated.left, "right": rotated.right}
    if rotated.right.shape[2] < rotated.right.shape[1]:
        parts["outside"] = 1 / precision.reshape(1)
    return parts


def _inverse(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    least = values[-1] * torch.finfo(torch.float64).eps
    inverse: Tensor = (vectors / values.clamp(min=float(least))) @ vectors.mT
    return inverse


def _stored(parameters: Mapping[str, Tensor]) -> int:
    """Return how many numbers Kronecker factors of all tensors have."""
    total = 0
    for parameter in parameters.values():
        shape = parameter.shape
        n_out, n_in = shape[0] if shape else 1, math.prod(shape[1:])
        total += n_out**2 + n_in**2 + n_out * n_in if len(shape) > 1 else n_out**2
    return total


def _last_layer(parameters: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of the parameters of the last module that has any."""
    last = list(parameters)[-1].rpartition(".")[0]
    return tuple(name for name in parameters if name.rpartition(".")[0] == last)
