"""How the forward pass of a training step runs: as it is, in bfloat16, or as a CUDA graph.

    precision = "bf16"    products and convolutions in bfloat16, by autocast; parameters, their
                          gradients, the loss and the step stay float32
    compile = true        `torch.compile` with CUDA graphs ("reduce-overhead"), forward and back,
                          of networks that have a stacked form; wide ones do not wait for launches

With "bf16" a step has a launch more for each weight, and for each activation and gradient between
a product and another operator: 177 for 121 of a ResNet-8, 417 for 277 of a ResNet-20. Keeping the
casts of weights would save none of them, because a forward pass uses each weight once. So it pays
where products take longer than casts, in wide networks, and loses on networks that wait for
launches. With "float32" a GPU computes the convolutions of a step in TF32, as is torch's default.

Both are for training steps alone: curvature, evidence and test metrics never use this module. The
eager path is the reference: compiled outputs and gradients equal its own up to rounding. On a CPU
`compile` changes nothing: compiling a small network takes longer than it saves there (0.90 times
the speed of the eager path, after 22 s).
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nas_evidence.spec.study import TrainingPlan

Forward = Callable[[list[Tensor], Tensor], Tensor]

#: Networks whose compiled form is kept, and shapes of each for which it is compiled.
_NETWORKS, _SHAPES = 4, 16
_kept: dict[int, tuple[nn.Module, Forward]] = {}  # by id, which the network keeps while it is here


def planned(
    forward: Forward, model: nn.Module, plan: TrainingPlan, device: torch.device
) -> Forward:
    """Return the forward pass as a plan wants it on a device.

    Args:
        forward: outputs from parameters and inputs, a function of nothing else that changes.
        model: what it is compiled for, once.
        plan: `precision` and `compile` are read.
        device: of the parameters.
    """
    run = compiled(forward, model) if plan.compile and device.type == "cuda" else forward
    return in_precision(run, plan, device)


def in_precision(forward: Forward, plan: TrainingPlan, device: torch.device) -> Forward:
    """Return the forward pass in the precision of the plan, with outputs in float32."""
    if plan.precision == "float32":
        return forward

    def run(parameters: list[Tensor], x: Tensor) -> Tensor:
        # A cache would save no cast, see above, and would not see that parameters change in place.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            return forward(parameters, x).float()

    return run


def compiled(forward: Forward, model: nn.Module, backend: str = "inductor") -> Forward:
    """Return the forward pass compiled at the first call for this model.

    Args:
        forward: what to compile.
        model: the network that it belongs to.
        backend: of torch.compile; "aot_eager" traces and differentiates without a compiler.
    """
    if id(model) not in _kept:
        if len(_kept) == _NETWORKS:
            _kept.clear()
            torch.compiler.reset()  # also frees the memory of the graphs
        mode = "reduce-overhead" if backend == "inductor" else None
        traced = torch.compile(forward, backend=backend, mode=mode, fullgraph=True, dynamic=False)
        _kept[id(model)] = (model, _many_shapes(traced))
    return _kept[id(model)][1]


def _many_shapes(traced: Forward) -> Forward:
    """Return a compiled function that may be compiled for more shapes than torch's default."""

    def run(parameters: list[Tensor], x: Tensor) -> Tensor:
        limits = torch._dynamo.config.patch(recompile_limit=_NETWORKS * _SHAPES)
        with limits, warnings.catch_warnings():
            # Dynamo warns of cached functions; those of a forward pass depend on shapes alone.
            warnings.filterwarnings("ignore", message="Dynamo detected a call to")
            return traced(parameters, x)

    return run
