"""The log joints of K networks of one architecture, with their gradients, as one program.

    loss_k(θ) = −κ log p(y_k|θ) + ½ θᵀ Δ_k θ

Each has its own data, noise or temperature, and prior. On few data a pass of one network is mostly
the calls of its operators, which all share here. Networks with convolutions, without a stacked
form, or with many data are taken one after another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nas_evidence.curvature.products import LogJoint
from nas_evidence.likelihoods import Likelihood, as_double, scales_of
from nas_evidence.maths.vector_jacobian import vector_jacobian
from nas_evidence.training.stacked import Stack, can_stack, stacked_outputs
from nas_evidence.training.together import has_convolutions

#: Numbers of the inputs of all networks up to which they are taken side by side: on more data a
#: pass is arithmetic, and the data would be copied.
_FEW = 1 << 22


class LogJoints:
    """Some log joints and their gradients, each at its own θ [P], float64.

    Args:
        joints: of one architecture, dtype, device and kind of likelihood, by any number.
    """

    def __init__(self, joints: Mapping[int, LogJoint]) -> None:
        self._joints = joints
        self._all: _SideBySide | None = None
        if _can_stack(list(joints.values())):
            self._all = _SideBySide.of(list(joints.values()))
        self._some: tuple[tuple[int, ...], _SideBySide | None] = (tuple(joints), self._all)

    def values(self, at: Mapping[int, Tensor]) -> dict[int, float]:
        """Return the losses in nats."""
        if (some := self._of(tuple(at))) is None:
            return {k: self._joints[k].value(theta) for k, theta in at.items()}
        values = some.values(torch.stack(list(at.values())))
        return dict(zip(at, values.tolist(), strict=True))

    def gradients(self, at: Mapping[int, Tensor]) -> dict[int, tuple[float, Tensor]]:
        """Return the losses in nats, and their gradients [P]."""
        if (some := self._of(tuple(at))) is None:
            return {k: self._joints[k].value_and_gradient(theta) for k, theta in at.items()}
        values, gradients = some.gradients(torch.stack(list(at.values())))
        return dict(zip(at, zip(values.tolist(), gradients, strict=True), strict=True))

    def _of(self, members: tuple[int, ...]) -> "_SideBySide | None":
        """Return some members side by side; None if they have no stacked form."""
        if self._all is not None and members != self._some[0]:
            places = [list(self._joints).index(k) for k in members]
            self._some = (members, self._all.some(places))
        return self._some[1]


def _can_stack(joints: Sequence[LogJoint]) -> bool:
    if not joints or not can_stack(joints[0].model) or has_convolutions(joints[0].model):
        return False
    return sum(math.prod(joint.inputs.shape) for joint in joints) <= _FEW


@dataclass(frozen=True)
class _SideBySide:
    """K log joints with their data side by side; rows are padded to those of the largest.

    model      any of them; its structure alone is read
    inputs     [K, N, ...]
    targets    int64 [K, N], or float64 [K, N, C]
    is_real    1, and 0 for padding [K, N, 1]
    likelihood of any of them; its scale is not read
    scale      of each [K, 1], or of each output [K, C]
    precision  the diagonals of Δ [K, P]
    power      κ
    rows       of a batch
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    is_real: Tensor
    likelihood: Likelihood
    scale: Tensor
    precision: Tensor
    power: float
    rows: int

    @classmethod
    def of(cls, joints: Sequence[LogJoint]) -> "_SideBySide":
        """Return them for some log joints."""
        first, most = joints[0], max(len(joint.inputs) for joint in joints)
        each = torch.arange(most, device=first.inputs.device)
        is_real = torch.stack([each < len(joint.inputs) for joint in joints])[..., None].double()
        targets = torch.stack([_padded(joint.targets, most) for joint in joints])
        inputs = torch.stack([_padded(joint.inputs[:], most) for joint in joints])
        return cls(
            first.model,
            inputs.to(next(first.model.parameters()).dtype),
            as_double(targets),
            is_real,
            first.likelihood,
            scales_of([joint.likelihood for joint in joints], is_real),
            torch.stack([joint.precision for joint in joints]),
            first.power,
            first.rows,
        )

    def some(self, places: Sequence[int]) -> "_SideBySide":
        """Return the log joints at some places."""
        return replace(
            self,
            inputs=self.inputs[places],
            targets=self.targets[places],
            is_real=self.is_real[places],
            scale=self.scale[places],
            precision=self.precision[places],
        )

    def values(self, theta: Tensor) -> Tensor:
        """Return the losses [K] at θ [K, P], float64."""
        found = 0.5 * (self.precision * theta.square()).sum(1)
        leaves = self._leaves(theta)
        for rows in self._batches():
            with torch.no_grad():
                outputs = self._outputs(leaves, rows)
            found = found - self.power * self._of_outputs(outputs.double(), rows)[0]
        return found

    def gradients(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses [K] and their gradients [K, P] at θ [K, P], float64."""
        found = 0.5 * (self.precision * theta.square()).sum(1)
        slopes = self.precision * theta
        leaves = [leaf.requires_grad_() for leaf in self._leaves(theta)]
        for rows in self._batches():
            with torch.enable_grad():
                outputs = self._outputs(leaves, rows)
            values, columns = self._of_outputs(outputs.detach().double(), rows)
            parts = vector_jacobian(outputs, leaves, columns.to(outputs), materialize_grads=True)
            flat = torch.cat([part.reshape(len(theta), -1) for part in parts], 1)
            found, slopes = found - self.power * values, slopes - self.power * flat.double()
        return found, slopes

    def _batches(self) -> list[slice]:
        starts = range(0, self.inputs.shape[1], self.rows)
        return [slice(start, start + self.rows) for start in starts]

    def _leaves(self, theta: Tensor) -> list[Tensor]:
        """Return the parameters [K, *shape] of θ [K, P] in the dtype of the networks."""
        shapes = [p.shape for p in self.model.parameters()]
        sizes = [shape.numel() for shape in shapes]
        parts = torch.split(theta.to(self.inputs.dtype), sizes, 1)
        return [part.view(len(theta), *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _outputs(self, leaves: list[Tensor], rows: slice) -> Tensor:
        ids = [id(p) for p in self.model.parameters()]
        stack = Stack(len(leaves[0]), dict(zip(ids, leaves, strict=True)))
        return stacked_outputs(self.model, stack, self.inputs[:, rows])

    def _of_outputs(self, outputs: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return log likelihoods [K] of outputs [K, n, C], and the gradients in them."""
        targets, real = self.targets[:, rows], self.is_real[:, rows]
        nll, slopes = self.likelihood.nll_and_slope(outputs, targets, self.scale)
        return -(nll[..., None] * real).sum((1, 2)), slopes * real


def _padded(values: Tensor, n: int) -> Tensor:
    if len(values) == n:
        return values
    return torch.cat([values, values[:1].expand(n - len(values), *values.shape[1:])])
