"""One pass over the data that gives each layer's input and output gradients to a collector.

The parameters are frozen during the pass, so autograd computes gradients with respect to
activations only. A hook on each module with parameters passes its input `a` and the gradients `g`
of r·f at its output to a `Collector`, once per vector r of the batch. Nothing is guessed:

- a module that is shared, unused or takes several tensors is refused by name; diagonal and dense
  kinds then process one datum at a time (`per_datum`);
- frozen parameters are constants, which stand among the buffers during a pass (`maths.constants`);
- every gradient that the layer rules give for two data points is first compared with ordinary
  autograd. This catches weights used outside their module, overridden forwards and anything else
  that the hooks cannot see.

The model is left exactly as it was, also after an exception: mode of each module, requires_grad,
.grad, hooks, buffers, and the state of the global random generators.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nas_evidence.curvature.attention import NotSelfAttentionError, unpacked
from nas_evidence.curvature.embedding import EmbeddingLayer
from nas_evidence.curvature.layers import Layer, WeightLayer, layer_of
from nas_evidence.curvature.refusals import UnsupportedLayerError, remedy_for
from nas_evidence.curvature.rows_alone import checked_outputs, is_trusted, tolerance_of
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.at_once import elements_at_once
from nas_evidence.maths.vector_jacobian import vector_jacobian
from nas_evidence.plumbing.user_error import UserError

#: On a CPU, maximum number of elements of the columns of a batch at a time: 64 MiB in float64.
#: All those of 512 data in 1,000 classes would be 4 GiB.
_COLUMN_ELEMENTS = 1 << 23


class Columns:
    """The exact columns [K, n, C] of a batch, of which a few at a time are in memory."""

    def __init__(self, likelihood: Likelihood, outputs: Tensor) -> None:
        self.likelihood, self.outputs = likelihood, outputs
        most = elements_at_once(_COLUMN_ELEMENTS, outputs.device, torch.float64)
        self.step = max(1, most // max(1, outputs.numel()))

    def __len__(self) -> int:
        return self.likelihood.n_roots(self.outputs.shape[1])

    def __iter__(self) -> Iterator[Tensor]:
        for first in range(0, len(self), self.step):
            yield from self.likelihood.hessian_roots(self.outputs, first, first + self.step)

    def of(self, rows: slice) -> "Columns":
        """Return the columns of some rows of the batch."""
        return Columns(self.likelihood, self.outputs[rows])


class Collector:
    """What a curvature kind does with layer inputs and gradients; it stores only sums."""

    def keep(self, layer: Layer, a: Tensor) -> Tensor | None:
        """Take the input of a batch; return it if `receive` needs it, as it does by default."""
        return a

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Take one output gradient of the layer; `last` for the last column of the batch."""
        raise NotImplementedError

    def end_column(self) -> None:
        """End a column, which every layer has received; by default `receive` has added it."""


@dataclass
class EachColumn(Collector):
    """Passes column d of every batch to collector d, which sees no other column.

    Only the first collector keeps the inputs of the layers; the others share them.
    """

    collectors: Sequence[Collector]
    current: int = 0

    def keep(self, layer: Layer, a: Tensor) -> Tensor | None:
        """Let the first collector take the input."""
        return self.collectors[0].keep(layer, a)

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Pass the gradient of the current column on."""
        self.collectors[self.current].receive(layer, a, g, True)

    def end_column(self) -> None:
        """Go on to the next collector, after the last one to the first."""
        self.collectors[self.current].end_column()
        self.current = (self.current + 1) % len(self.collectors)


def layers_of(model: nn.Module) -> tuple[Layer, ...]:
    """Return the layers of a model in the order of its parameters.

    Raises:
        UnsupportedLayerError: for a shared parameter or batch normalisation; names it.
    """
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            raise UnsupportedLayerError(
                "parameter-shared",
                f"parameter `{name}` is shared with `{seen[id(parameter)]}`, but must be in one "
                "module that is called once",
            )
        seen[id(parameter)] = name
    layers = []
    for path, module in model.named_modules():
        names = tuple(n for n, _ in module.named_parameters(prefix=path, recurse=False))
        if not names:
            continue
        layers.append(layer_of(path or "(model)", module, names))
    return tuple(layers)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode with frozen parameters; restore everything afterwards.

    Attention takes its plain form, which can be differentiated twice and in batches.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    modes = [(module, module.training) for module in model.modules()]
    parameters = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.clone(), buffer._version)
        for module, _ in modes
        for name, buffer in module._buffers.items()
        if buffer is not None and not isinstance(buffer, nn.Parameter)
    ]
    devices = sorted({p.device.index for p, _ in parameters if p.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_checkpoints())
        try:
            for module, _ in modes:
                module.training = False
            for parameter, _ in parameters:
                parameter.requires_grad_(False)
            yield
        finally:
            for module, kept in attributes:  # what forward may have put there
                vars(module).clear()
                vars(module).update(kept)
            for module, mode in modes:
                module.training = mode
            for parameter, needs_grad in parameters:
                parameter.requires_grad_(needs_grad)
            for module, name, buffer, content, version in buffers:
                module._buffers[name] = buffer
                if buffer._version != version:
                    buffer.copy_(content)


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Let `torch.utils.checkpoint` call its function as it is, and keep what it computes.

    The recomputation calls each module again, and its reentrant form cannot be differentiated
    with respect to given tensors.
    """
    module = torch.utils.checkpoint
    generator = "_checkpoint_without_reentrant_generator"
    standing_in = {
        "CheckpointFunction": _Direct, generator: _one_pause, f"{generator}_impl": _one_pause
    }  # fmt: skip
    stored = {name: getattr(module, name) for name in standing_in if hasattr(module, name)}
    try:
        for name in stored:
            setattr(module, name, standing_in[name])
        yield
    finally:
        for name, value in stored.items():
            setattr(module, name, value)


class _Direct:
    """Stands in for the function of a reentrant checkpoint."""

    @staticmethod
    def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _one_pause(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stand in for what runs before and after the function of another checkpoint."""
    yield


@dataclass
class Capture:
    """Hooks on the layers of one model, for the length of one pass."""

    model: nn.Module
    layers: tuple[Layer, ...]
    collector: Collector
    kept: dict[int, tuple[Tensor | None, int]] = field(default_factory=dict)  # a, its version
    received: set[int] = field(default_factory=set)
    n_rows: int = 0
    last: bool = True
    anchor: Tensor = field(default_factory=lambda: torch.zeros(()))
    replaying: bool = False  # a collector calls modules again

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep forward hooks on the layers."""
        handles = [
            layer.module.register_forward_hook(self._forward_hook(index), with_kwargs=True)
            for index, layer in enumerate(self.layers)
        ]
        attentions = [
            (layer.path, layer.attention, layer.module)
            for layer in self.layers
            if isinstance(layer, WeightLayer) and layer.attention is not None
        ]
        kept = [(attention, vars(attention).get("forward")) for _, attention, _ in attentions]
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            # The fast path of a transformer layer calls none of its modules.
            torch.backends.mha.set_fastpath_enabled(False)
            for path, attention, projection in attentions:
                assert isinstance(projection, nn.Linear)
                vars(attention)["forward"] = unpacked(path, attention, projection)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for attention, forward in kept:
                vars(attention).pop("forward", None)
                if forward is not None:
                    vars(attention)["forward"] = forward
            for handle in handles:
                handle.remove()
            self.kept.clear()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [n, C] for a batch, and let the collector keep the inputs."""
        self.kept.clear()
        self.n_rows = len(inputs)
        self.anchor = torch.zeros((), device=inputs.device, requires_grad=True)
        free = _free(self.model)
        try:
            outputs = self.model(inputs)
        except NotSelfAttentionError as error:
            raise UnsupportedLayerError("layer-unsupported", str(error)) from None
        constants = {n for n, b in self.model.named_buffers() if isinstance(b, nn.Parameter)}
        now = _free(self.model)
        if changed := sorted((now ^ free) | (now & constants)):
            raise UserError(
                "forward-frees-parameters",
                f"the model's forward changes requires_grad of `{changed[0]}`, so that it is no "
                "fixed function of its free parameters; set requires_grad before the "
                "model is used",
            )
        for index, layer in enumerate(self.layers):
            if index not in self.kept:
                raise UnsupportedLayerError(
                    "module-not-called",
                    f"module `{layer.path}` is not called by the model's forward; remove it, or "
                    "call the module instead of using its parameters directly",
                )
        return checked_outputs(outputs, len(inputs))

    def backward(self, outputs: Tensor, columns: "Tensor | Columns") -> None:
        """Send each of the columns [K, n, C] back through the batch."""
        for k, column in enumerate(columns):
            self.received.clear()
            self.last = k == len(columns) - 1
            # Gradients with respect to the anchor are zero; requesting them runs the hooks.
            vector_jacobian(outputs, self.anchor, column, retain_graph=not self.last)
            self.check_received()
            self.collector.end_column()

    def check_received(self) -> None:
        """Refuse a layer that the outputs do not depend on."""
        for index, layer in enumerate(self.layers):
            if index not in self.received:
                raise UserError(
                    "outputs-independent-of-module",
                    f"the outputs do not depend on the parameters of `{layer.path}`; remove the "
                    "module, or do not detach its output",
                )

    def _forward_hook(self, index: int) -> Any:
        layer = self.layers[index]

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
        ) -> None:
            if self.replaying:
                return
            if index in self.kept:
                raise UnsupportedLayerError(
                    "module-called-twice",
                    f"module `{layer.path}` is called more than once, but must be called once; "
                    "make a module for each call",
                )
            given = (*args, *kwargs.values())
            if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(out, Tensor):
                raise UnsupportedLayerError(
                    "module-not-one-tensor",
                    f"module `{layer.path}` of type {type(module).__name__} must take one tensor "
                    f"and return one; {remedy_for(module)}",
                )
            a = given[0]
            self._check_rows(layer, a)
            kept = _as_parameters(layer, a.detach())
            self.kept[index] = (self.collector.keep(layer, kept), kept._version)
            if not out.requires_grad:
                _Anchor.apply(out, self.anchor)
            out.register_hook(lambda g: self._receive(index, g))  # type: ignore[no-untyped-call]

        return hook

    def _receive(self, index: int, g: Tensor) -> None:
        layer = self.layers[index]
        a, version = self.kept[index]
        if a is not None and a._version != version:
            raise UserError(
                "input-modified-in-place",
                f"the input of `{layer.path}` is modified in place after the module has read it; "
                "use the out-of-place operation",
            )
        if index in self.received:
            raise UnsupportedLayerError(
                "two-gradients-for-one-output",
                f"module `{layer.path}` received two gradients for one output",
            )
        self.received.add(index)
        self.replaying = True
        try:
            self.collector.receive(layer, a, _as_parameters(layer, g.detach()), self.last)
        finally:
            self.replaying = False
        if self.last:
            self.kept[index] = (None, version)  # frees the input

    def _check_rows(self, layer: Layer, a: Tensor) -> None:
        if isinstance(layer, WeightLayer) and not isinstance(layer.module, nn.Linear):
            fits = a.ndim == layer.module.weight.ndim
        else:
            fits = a.ndim >= (1 if isinstance(layer, EmbeddingLayer) else 2)
        if not fits or len(a) != self.n_rows:
            raise UnsupportedLayerError(
                "first-axis-not-the-data",
                f"module `{layer.path}` sees an input of shape {list(a.shape)} for "
                f"{self.n_rows} data points; the first axis must be the data. Expand what is the "
                "same for all data, like positions, to that axis",
            )


def _free(model: nn.Module) -> set[str]:
    """Return the names of parameters and constants that require a gradient at present."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name for name, tensor in named if tensor.requires_grad}


def _as_parameters(layer: Layer, values: Tensor) -> Tensor:
    """Return activations or gradients in the dtype of a layer's parameters.

    With `torch.autocast` in `forward` they are coarser.
    """
    if not values.is_floating_point():
        return values
    return values.to(next(layer.module.parameters()).dtype)


class _Anchor(torch.autograd.Function):
    """In-place identity that makes an activation part of a graph without a copy.

    It works in place because the next layer, say an in-place ReLU, may modify neither a leaf that
    requires grad nor a view of it.
    """

    @staticmethod
    def forward(ctx: Any, activation: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(activation)
        return activation

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient.new_zeros(())


@dataclass
class _GradientSums(Collector):
    """Sums of the gradients over the data, to be compared with autograd's."""

    sums: dict[str, Tensor] = field(default_factory=dict)

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        assert a is not None
        for name, gradients in zip(layer.names, layer.gradients(a, g), strict=True):
            self.sums[name] = gradients.sum(0)


def check_gradients(model: nn.Module, layers: tuple[Layer, ...], inputs: Tensor) -> Tensor:
    """Compare the gradients of the layer rules with autograd on a few data points.

    Returns the outputs [n, C] at these points.

    Raises:
        UnsupportedLayerError: if the hooks miss part of a gradient; names the first parameter.
    """
    collector = _GradientSums()
    capture = Capture(model, layers, collector)
    own = {name for layer in layers for name in layer.names}
    named = [(name, p) for name, p in model.named_parameters() if name in own]
    original = _outputs_of_attention(model, layers, inputs)
    with capture.hooks():
        for _, parameter in named:
            parameter.requires_grad_(True)
        outputs = capture.forward(inputs)
        # Any fixed direction without special structure will do.
        column = torch.arange(outputs.numel(), device=outputs.device).add(1.0).cos()
        column = column.reshape(outputs.shape).to(outputs.dtype)
        expected = vector_jacobian(outputs, [p for _, p in named], column, allow_unused=True)
        for _, parameter in named:
            parameter.requires_grad_(False)
        capture.check_received()
        if not is_trusted(model):  # an axis as long as the rows is not that of the data
            capture.forward(torch.cat([inputs, inputs[:1]]))
    same = original is None or torch.allclose(outputs.detach(), original, rtol=1e-2, atol=1e-4)
    if not same:
        raise UnsupportedLayerError(
            "attention-forward-overridden",
            "the outputs change when each nn.MultiheadAttention is computed from its weights; is "
            "its forward overridden, or the network random in evaluation mode?",
        )
    # Far above rounding errors, far below any real disagreement.
    coarse = 0.0 if is_trusted(model) else tolerance_of(model, inputs)
    tolerance = max(1e-2 if outputs.dtype in (torch.float32, torch.float64) else 1e-1, coarse)
    norms = torch.stack(torch._foreach_norm(expected))
    found = [collector.sums[name].view_as(p) for name, p in named]
    gaps = torch.stack(torch._foreach_norm(torch._foreach_sub(found, expected)))
    wrong = (gaps > tolerance * norms + 1e-6 * norms.max()).tolist()
    for (name, _), is_wrong in zip(named, wrong, strict=True):
        if is_wrong:
            raise UnsupportedLayerError(
                "gradient-past-the-module",
                f"the gradient of `{name}` does not pass through one call of its module; is the "
                "parameter also used elsewhere, or the module's forward overridden?",
            )
    return outputs.detach()


def _outputs_of_attention(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Tensor
) -> Tensor | None:
    """Return the outputs [n, C] of a model before its attention is replaced; None without any."""
    if not any(isinstance(layer, WeightLayer) and layer.attention for layer in layers):
        return None
    with torch.no_grad():
        return checked_outputs(model(inputs), len(inputs))
