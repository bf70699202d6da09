"""The Laplace posterior of a network, and the variance of its linearised outputs.

    p(θ | y) ≈ N(θ*, Σ),  Σ = (κ H + δ)⁻¹        Var f(x) = J(x) Σ J(x)ᵀ,  J = ∂f / ∂θ  [C, P]

    H  Gauss-Newton curvature of the training data at θ*     κ  likelihood power
    δ  learned prior precisions

The outputs of the network linearised at θ* are Gaussian under this posterior (Immer et al. 2021,
"Improving predictions of Bayesian neural nets via local linearization", equation 5).

Structure, by the number of parameters: all of Σ; else Kronecker factors, one pair per weight; else
Kronecker factors of the last layer alone.
"""

import copy
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.capture import layers_of
from nas_evidence.curvature.layers import WeightLayer, has_hooks
from nas_evidence.curvature.refusals import UnsupportedLayerError
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.blocks import Block, Dense, FewInputs, Kronecker
from nas_evidence.maths.constants import free_parameters
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.functional_call import functional_call
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix
from nas_evidence.maths.vector_jacobian import vector_jacobian
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors

#: Maximum number of parameters for all of Σ.
MOST_FULL = 500
#: Maximum of the numbers stored for Kronecker factors of all layers.
MOST_STORED = 16_000_000
#: Numbers of Jacobians held at once.
_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class RowsPart:
    """The Jacobian of the outputs in one tensor [n, C, size]."""

    values: Tensor


@dataclass(frozen=True)
class OuterPart:
    """That in the weight of a linear layer: s_nc a_nᵀ; s [n, C, d_out], a [n, d_in]."""

    s: Tensor
    a: Tensor


Part = RowsPart | OuterPart


@dataclass(frozen=True)
class Posterior:
    """A posterior covariance of some parameters, the others fixed.

    structure  "full", "kronecker" or "last_layer"
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

        All three must be on one device, where the result is, too.
        """
        with torch.no_grad():
            n_outputs = model(inputs[:1]).shape[1]
        outer = len(inputs.shape) == 2 and _linear_layers(model, self.names) is not None
        shapes = [p.shape for name, p in model.named_parameters() if name in self.names]
        found, start = [], 0
        with full_precision():
            while start < len(inputs):
                held = sum(sum(shape) if outer else math.prod(shape) for shape in shapes)
                rows = inputs[start : start + max(1, _AT_ONCE // max(1, held * n_outputs))]
                parts = _outer_parts(model, rows, self.names) if outer else None
                if outer and parts is None:
                    outer = False  # again, with fewer rows at once
                    continue
                found.append(self._covariance(parts or _row_parts(model, rows, self.names)))
                start += len(rows)
        return torch.cat(found) if found else torch.zeros(0, n_outputs, n_outputs).double()

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
        left, right = (self.tensors[f"{name}/{side}"] for side in ("left", "right"))
        outside = self.tensors.get(f"{name}/outside")
        if isinstance(part, OuterPart):
            turned, inside = part.s @ left[0], part.a @ right[0]
            weights = inside.square() @ variances.reshape(turned.shape[2], -1).mT  # [n, out]
            if outside is not None:
                beyond = part.a.square().sum(1) - inside.square().sum(1)
                weights += outside * beyond.clamp(min=0)[:, None]
            return (turned * weights[:, None]) @ turned.mT
        flat = part.values
        groups, n_out, _ = variances.shape
        turned = left.mT @ flat.reshape(*flat.shape[:2], groups, n_out, -1)
        inside = turned @ right  # [n, C, groups, out, m]
        covariance = (inside.flatten(2) * variances.flatten()) @ inside.flatten(2).mT
        if outside is not None:
            rest = (turned - inside @ right.mT).flatten(2)
            covariance += outside * (rest @ rest.mT)
        return covariance

    def to(self, device: torch.device | str) -> "Posterior":
        """Return the same on a device."""
        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return Posterior(self.structure, self.names, tensors)

    def draws(self, n: int, sizes: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        """Return deviations of the parameters from their mode [n, size], by name, float64.

        Args:
            n: how many.
            sizes: of the named parameter tensors.
            generator: of the draws, on the CPU, so that they are the same for every device.
        """

        def noise(like: Tensor, *shape: int) -> Tensor:
            drawn = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
            return drawn.to(like.device)

        if self.structure == "full":
            root = _root(self.tensors["covariance"])
            whole = noise(root, len(root)) @ root.mT
            return dict(zip(self.names, torch.split(whole, [*sizes], 1), strict=True))
        found = {}
        for name in self.names:
            if (covariance := self.tensors.get(f"{name}/covariance")) is not None:
                root = _root(covariance)
                found[name] = noise(root, len(root)) @ root.mT
                continue
            variances = self.tensors[f"{name}/variances"]
            left, right = (self.tensors[f"{name}/{side}"] for side in ("left", "right"))
            inside = noise(variances, *variances.shape) * variances.sqrt()
            turned = inside @ right.mT
            if (outside := self.tensors.get(f"{name}/outside")) is not None:
                beyond = noise(variances, *variances.shape[:2], right.shape[1])
                turned += outside.sqrt() * (beyond - beyond @ right @ right.mT)
            found[name] = (left @ turned).flatten(1)
        return found

    def save(
        self,
        path: Path,
        *,
        dtype: torch.dtype = torch.float32,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write it as safetensors, in float32 unless all bits are wanted.

        Args:
            path: of the file.
            dtype: of the stored numbers.
            more: what else is to stand in its header.
        """
        header = {**more, "structure": self.structure, "names": "\n".join(self.names)}
        tensors = {name: t.cpu().to(dtype).contiguous() for name, t in self.tensors.items()}
        write_whole(path, sealed_tensors(tensors, header))

    @classmethod
    def load(cls, path: Path) -> "Posterior":
        """Return what `save` wrote.

        Raises:
            DamagedError: it does not match its checksum.
        """
        return cls.of_file(path)[0]

    @classmethod
    def of_file(cls, path: Path) -> tuple["Posterior", dict[str, str]]:
        """Return what `save` wrote, with the header of the file.

        Raises:
            DamagedError: it does not match its checksum.
        """
        stored, header = read_tensors(path)
        tensors = {name: tensor.double() for name, tensor in stored.items()}
        return cls(header["structure"], tuple(header["names"].split("\n")), tensors), header


def _linear_layers(model: nn.Module, names: Collection[str]) -> list[WeightLayer] | None:
    """Return the linear layers of the named parameters; None if one is in anything else.

    A subclass of nn.Linear, or one with hooks, may do more than z = W a + b.
    """
    try:
        layers = layers_of(model)
    except UnsupportedLayerError:  # shared parameters
        return None
    wanted, found = set(names), []
    for layer in layers:
        if wanted.isdisjoint(layer.names):
            continue
        plain = isinstance(layer, WeightLayer) and type(layer.module) is nn.Linear
        if not plain or has_hooks(layer.module) or not wanted.issuperset(layer.names):
            return None
        assert isinstance(layer, WeightLayer)
        found.append(layer)
    return found


def _row_parts(model: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Part]:
    """Return the Jacobian by tensor, for any network."""
    return {name: RowsPart(j.flatten(2)) for name, j in jacobians(model, inputs, names).items()}


def _outer_parts(model: nn.Module, inputs: Tensor, of: tuple[str, ...]) -> dict[str, Part] | None:
    """Return the Jacobian of linear layers as outer products.

    None if a layer is not called once with [n, d], or if the gradients of all rows differ from
    those of autograd, as those of a weight that is used elsewhere, too.
    """
    model, inputs = copy.deepcopy(model).double().eval(), inputs[:].detach().double()
    model.requires_grad_()
    layers = _linear_layers(model, of)
    if layers is None:
        return None
    by_module = {id(layer.module): layer for layer in layers}
    seen: list[tuple[WeightLayer, Tensor, Tensor]] = []

    def keep(
        module: nn.Module, given: tuple[Tensor, ...], more: dict[str, Tensor], z: Tensor
    ) -> Tensor:
        a = (*given, *more.values())[0]
        seen.append((by_module[id(module)], a.detach(), z))
        return z.clone()  # which the next layer may change in place

    for layer in layers:
        layer.module.register_forward_hook(keep, with_kwargs=True)
    rows, batches = rows_at_once(model, inputs), []
    for start in range(0, len(inputs), rows):
        seen.clear()
        with torch.enable_grad():
            outputs = model(inputs[start : start + rows])
        once = len({layer.path for layer, _, _ in seen}) == len(seen) == len(layers)
        if not once or any(a.ndim != 2 or not z.requires_grad for _, a, z in seen):
            return None
        columns = [
            torch.autograd.grad(
                f.sum(), [z for _, _, z in seen], retain_graph=True, materialize_grads=True
            )
            for f in outputs.unbind(1)
        ]
        s = [torch.stack(of_layer, 1) for of_layer in zip(*columns, strict=True)]
        batches.append([(g, a) for g, (_, a, _) in zip(s, seen, strict=True)])
        if not _agrees_with_autograd(outputs, [layer for layer, _, _ in seen], batches[-1]):
            return None
    found: dict[str, Part] = {}
    for (layer, _, _), parts in zip(seen, zip(*batches, strict=True), strict=True):
        s_, a = (torch.cat(each) for each in zip(*parts, strict=True))
        for name, own in _by_name(layer).items():
            found[name] = OuterPart(s_, a) if own is layer.module.weight else RowsPart(s_)
    return found


def _by_name(layer: WeightLayer) -> dict[str, Tensor]:
    """Return the weight and the bias of a linear layer by their names in the model."""
    own = dict(layer.module.named_parameters(recurse=False))
    return {name: own[name.rpartition(".")[2]] for name in layer.names}


def _agrees_with_autograd(
    outputs: Tensor, layers: Sequence[WeightLayer], parts: Sequence[tuple[Tensor, Tensor]]
) -> bool:
    """Tell whether s and a of each layer give the gradient of the outputs in its parameters."""
    direction = torch.arange(outputs.numel(), device=outputs.device).add(1.0).cos()
    direction = direction.reshape(outputs.shape).to(outputs.dtype)
    wanted = [p for layer in layers for p in _by_name(layer).values()]
    expected = torch.autograd.grad((outputs * direction).sum(), wanted, materialize_grads=True)
    found = []
    for layer, (s, a) in zip(layers, parts, strict=True):
        total = torch.einsum("nco,nc->no", s, direction)
        found += [
            total.mT @ a if p is layer.module.weight else total.sum(0)
            for p in _by_name(layer).values()
        ]
    norms = torch.stack(torch._foreach_norm(expected))
    gaps = torch.stack(torch._foreach_norm(torch._foreach_sub(found, expected)))
    # Above rounding in float64, and below any error that is worth a faster rule.
    return bool((gaps <= 1e-6 * norms + 1e-9 * norms.max()).all())


def _rows(part: Part) -> Tensor:
    """Return the rows of one tensor [n, C, size]."""
    if isinstance(part, RowsPart):
        return part.values
    return torch.einsum("nco,ni->ncoi", part.s, part.a).flatten(2)


def jacobians(model: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return ∂f_n / ∂θ of each named parameter tensor, float64 [n, C, *shape].

    Row by row where vmap cannot batch the network's operations.
    """
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    moving = {name: parameters.pop(name) for name in names}

    def outputs(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, {**parameters, **values}, x[None])[0]

    each = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():  # fused attention has no rule
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            found = each(moving, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            if is_memory_full(error):
                raise
            found = _one_by_one(outputs, moving, inputs)
    return {name: part.double() for name, part in found.items()}


def _one_by_one(
    outputs: Callable[[dict[str, Tensor], Tensor], Tensor],
    moving: Mapping[str, Tensor],
    inputs: Tensor,
) -> dict[str, Tensor]:
    """Return the Jacobians [n, C, *shape] by one backward pass for each row and output."""
    values = {name: p.clone().requires_grad_() for name, p in moving.items()}
    wanted, rows = list(values.values()), []
    for x in inputs:
        with torch.enable_grad():
            f = outputs(values, x)
        rows.append(
            [
                vector_jacobian(f, wanted, e, retain_graph=True, materialize_grads=True)
                for e in torch.eye(len(f)).to(f)
            ]
        )
    return {
        name: torch.stack([torch.stack([column[k] for column in row]) for row in rows])
        for k, name in enumerate(moving)
    }


def posterior_pass(
    kind: str, model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood
) -> CurvaturePass:
    """Return the curvature that a posterior is made of; kind is full_ggn or kfac_ggn."""
    return curvature_pass(
        kind, model, inputs, targets, likelihood, batch_size=rows_at_once(model, inputs),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def fit_posterior(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    precisions: Mapping[str, Tensor],
    *,
    likelihood_power: float = 1.0,
    most_full: int = MOST_FULL,
    most_stored: float = MOST_STORED,
    passed: CurvaturePass | None = None,
) -> Posterior:
    """Return the Laplace posterior of a trained network at its training data, on its device.

    Args:
        model: the network; its free parameters are taken as the mode.
        inputs: preprocessed training inputs [n, ...], on the device of the network.
        targets: labels int64 [n], or standardised real targets [n, C].
        likelihood: with the learned noise or temperature.
        precisions: of each parameter tensor by name [1], on any device.
        likelihood_power: κ.
        most_full: most parameters for all of Σ.
        most_stored: most stored numbers for Kronecker factors of all layers.
        passed: the pass of `posterior_pass`, if it is there already; then its kind decides in
            place of `most_full`.
    """
    parameters = free_parameters(model)
    n_parameters = sum(p.numel() for p in parameters.values())
    delta = {n: p.to(parameters[n].device, torch.float64) for n, p in precisions.items()}
    few = n_parameters <= most_full and len(inputs) <= 100_000
    kind = "full_ggn" if few else "kfac_ggn"
    found = passed or posterior_pass(kind, model, inputs, targets, likelihood)
    curvature, names = found.curvature, tuple(parameters)
    if isinstance(curvature, FullMatrix | FullKernel):
        matrix = curvature.as_matrix() if isinstance(curvature, FullKernel) else curvature
        diagonal = torch.cat([d.expand(parameters[n].numel()) for n, d in delta.items()]).diag()
        covariance = _inverse(likelihood_power * matrix.matrix + diagonal)
        return Posterior("full", names, {"covariance": covariance})
    assert isinstance(curvature, BlockDiagonal)
    structure = "kronecker"
    if _stored(parameters) > most_stored:
        structure, names = "last_layer", _last_layer(parameters)
    tensors: dict[str, Tensor] = {}
    for name, block in zip(parameters, curvature.blocks, strict=True):
        if name in names:
            parts = _parts(block, delta[name], likelihood_power)
            tensors |= {f"{name}/{part}": value for part, value in parts.items()}
    return Posterior(structure, names, tensors)


def _parts(block: Block, precision: Tensor, power: float) -> dict[str, Tensor]:
    """Return (κ H + δ)⁻¹ of one block, factored if H is."""
    if isinstance(block, Dense):
        eye = torch.eye(block.size, dtype=torch.float64, device=precision.device)
        return {"covariance": _inverse(power * block.matrix + precision * eye)}
    assert isinstance(block, Kronecker | FewInputs)
    rotated = block.decomposed()
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


def _root(covariance: Tensor) -> Tensor:
    """Return R with R Rᵀ = the covariance."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp(min=0).sqrt()
    return root


def _stored(parameters: Mapping[str, Tensor]) -> int:
    """Return how many numbers Kronecker factors of all tensors have."""
    total = 0
    for parameter in parameters.values():
        shape = parameter.shape
        n_out, n_in = shape[0] if shape else 1, math.prod(shape[1:])
        total += n_out**2 + n_in**2 + n_out * n_in if len(shape) > 1 else n_out**2
    return total


def _last_layer(parameters: Mapping[str, Tensor]) -> tuple[str, ...]:
    last = list(parameters)[-1].rpartition(".")[0]
    return tuple(name for name in parameters if name.rpartition(".")[0] == last)
