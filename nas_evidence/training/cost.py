"""The cost of an architecture, known before it is trained.

    flops    of one forward pass of one example: 2 for each multiply-add of a product or a
             convolution; additions, activations and pooling are not counted
    memory   4 P (N (1 + m) + K (4 + m)) + max( K B (s + 2 a),  R (s + 2 a) + F + W )    bytes

    P  parameters; a weight and m numbers of the optimiser each, float32, and in a step once more,
       with weight decay, gradient and a copy of it
    N  networks of cross-validation that are in training, at least 1; K of them as one program
    B  examples of a training batch          R  examples of a curvature batch
    s  bytes kept for the backward pass of one example        a  its largest activation
    F  what the curvature kinds of an evaluation store, float64; Monte-Carlo kinds once per draw
    W  temporaries: sums in float32, roots of the output Hessian, unfolded patches, the work space
       of eigenvalues, and vectors of all parameters; on a GPU patches of a whole batch, and as
       much again for what is formed from them, each up to `at_once.ON_A_GPU`

flops, s and a come from one forward pass: of zeros, for our own families with up to 2^24
parameters; else on the "meta" device, which computes only shapes, but imports torch's compiler on
the way (1.4 s of CPU time in each process). The estimate covers the network, not the data set and
the runtime; the full kinds are assumed to have more rows than parameters. Limits and packing use
it. It is 0.7 to 1.4 times the measured peak of allocations, for mlp, cnn and resnet on 8x8 to
32x32 images.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.curvature.batch_rows import rows_at_once
from nas_evidence.curvature.layers import CHUNK_ELEMENTS
from nas_evidence.curvature.memory import COPIES
from nas_evidence.curvature.wide import keeps_rows, too_large_online, too_wide
from nas_evidence.evidence.softmax_layer import LastLayerFormula
from nas_evidence.likelihoods import likelihood
from nas_evidence.maths.at_once import elements_at_once
from nas_evidence.models import skeleton
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.divisions import predicted_folds
from nas_evidence.spec.likelihoods import declared, imported
from nas_evidence.spec.registry import CURVATURES, curvatures_of, draws_of, is_outside
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.online import n_noise_passes
from nas_evidence.training.together import MOST_TOGETHER, n_together

_FLOAT, _DOUBLE = 4, 8  # bytes
#: Data enough that no layer has fewer inputs than it is wide.
MANY = 1 << 62
#: Parameters and numbers of an input up to which a forward pass computes.
_MOST_PARAMETERS, _MOST_INPUTS = 1 << 24, 1 << 16
#: Forward passes for a latency: warm-up, and timed.
_WARM_UP, _TIMED = 3, 15


@dataclass(frozen=True)
class Cost:
    """The cost of an architecture without training it; see above."""

    n_parameters: int
    flops: int  # of one forward pass of one example
    memory_bytes: int  # in training, estimated


@dataclass(frozen=True)
class Pass:
    """The memory and flops of one forward pass of one example.

    saved_bytes     kept for the backward pass, without the parameters
    largest_bytes   of the largest activation
    patch_elements  of the largest unfolded input, or weight, of a convolution
    """

    flops: int
    saved_bytes: int
    largest_bytes: int
    patch_elements: int


def cost_of(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    n_outputs: int,
    plan: TrainingPlan,
    estimators: Collection[str],
    n_data: int = MANY,
    *,
    device: str = "cpu",
) -> Cost:
    """Return the cost of an architecture; nothing is allocated.

    Args:
        architecture: what to build.
        input_shape: of one example.
        n_outputs: width of the head.
        plan: batch size, optimiser and online curvature are read.
        estimators: those without a curvature cost nothing.
        n_data: training examples; few make the factors of wide layers smaller.
        device: kind of device that the training is on; it need not be there.

    Raises:
        ValueError: if the architecture cannot be built on such inputs.
    """
    model = _to_be_passed(architecture, input_shape, n_outputs)
    n_parameters = sum(p.numel() for p in model.parameters())
    forward = forward_pass(model, input_shape)
    per_example = forward.saved_bytes + 2 * forward.largest_bytes
    evaluated = sorted({plan.online.curvature} | curvatures_of(estimators))
    kept = sum(factor_bytes(kind, model, n_data) * draws_of(kind) for kind in evaluated)
    if n_noise_passes(plan, n_outputs):  # one lies beside that of the update
        kept = max(kept, 2 * factor_bytes(plan.online.curvature, model, n_data))
    rows = rows_at_once(model, _example(model, input_shape))
    work = _work_bytes(evaluated, model, forward, rows, n_outputs, n_data, torch.device(device))
    states = 2 if plan.optimiser == "adam" else int(plan.momentum > 0)
    n_trained = _n_trained(plan, estimators, n_data)
    shapes = torch.empty(1, *input_shape, device="meta")  # as many as on any device
    at_once = n_together(model, shapes, plan.batch_size, n_trained)
    numbers = n_trained * (1 + states) + at_once * (4 + states)
    return Cost(
        n_parameters=n_parameters,
        flops=forward.flops,
        memory_bytes=_FLOAT * n_parameters * numbers
        + sum(b.nbytes for b in model.buffers()) * n_trained
        + max(at_once * plan.batch_size * per_example, rows * per_example + kept + work),
    )


def _to_be_passed(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the network with zeros for parameters, or with none on "meta"."""
    model = skeleton(architecture, input_shape, n_outputs).to("meta")
    n_parameters = sum(p.numel() for p in model.parameters())
    large = n_parameters > _MOST_PARAMETERS or math.prod(input_shape) > _MOST_INPUTS
    if large or is_outside(architecture.family):
        return model
    # Not `to_empty`, which imports sympy.
    zeros = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in model.state_dict().items()}
    model.load_state_dict(zeros, assign=True)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
    return model


def _example(model: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(1, *input_shape, device=next(model.parameters()).device)


def _n_trained(plan: TrainingPlan, estimators: Collection[str], n_data: int) -> int:
    n_folds = sum(predicted_folds(plan, estimators, n_data).values())
    return max(1, min(MOST_TOGETHER, n_folds))


def forward_pass(model: nn.Module, input_shape: tuple[int, ...]) -> Pass:
    """Return the needs of a forward pass of one example through a model, on its device."""
    own = {_storage(t) for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}  # references, so that no storage is reused
    outputs: list[int] = []
    patches = [0]

    def keep(tensor: Tensor) -> None:  # there is no backward pass
        saved[_storage(tensor)] = tensor

    def measure(module: nn.Module, inputs: object, output: object) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        outputs.append(sum(t.nbytes for t in tensors if isinstance(t, Tensor)))
        if isinstance(module, nn.Conv1d | nn.Conv2d) and isinstance(output, Tensor):
            unfolded = module.weight[0].numel() * output[0, 0].numel()
            patches.append(max(unfolded, module.weight.numel()))

    handles = [module.register_forward_hook(measure) for module in model.modules()]
    with (
        _Flops() as counter,  # type: ignore[no-untyped-call]
        torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing),
    ):
        model(_example(model, input_shape))
    for handle in handles:
        handle.remove()
    sizes = {key: t.untyped_storage().nbytes() for key, t in saved.items() if key not in own}
    saved.clear()  # the graph of its tensors keeps the hook, and with it the tensors, for ever
    return Pass(counter.total, sum(sizes.values()), max(outputs), max(patches))


class _Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the flops of the operations below it, by the formulas of torch.

    `FlopCounterMode` does, too, but imports torch's compiler: 1.4 s of CPU time in each process.
    """

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        operation = func._overloadpacket
        if operation in _LENGTHS and (length := _LENGTHS[operation](*args)):
            self.total += 2 * found.numel() * length
        elif func.namespace != "aten" or _PRODUCTS.search(operation.__name__):
            from torch.utils.flop_counter import flop_registry  # it imports Triton: 0.1 s

            if formula := flop_registry.get(operation):
                self.total += formula(*args, **(kwargs or {}), out_val=found)
        return found


#: Terms of each sum in the products of most networks, by their arguments: half the flops of a
#: number of the result. 0 of a transposed convolution.
_LENGTHS: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mm: lambda a, b, *_: a.shape[-1],
    torch.ops.aten.addmm: lambda c, a, b, *_: a.shape[-1],
    torch.ops.aten.bmm: lambda a, b, *_: a.shape[-1],
    torch.ops.aten.baddbmm: lambda c, a, b, *_: a.shape[-1],
    torch.ops.aten.convolution: lambda x, weight, *how: 0 if how[4] else weight[0].numel(),
}
#: Names of all operations for which torch has a formula.
_PRODUCTS = re.compile("mm|conv|attention")


def too_costly(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    n_outputs: int,
    plan: TrainingPlan,
    estimators: Collection[str],
    *,
    n_data: int,
) -> str:
    """Return why curvatures or the last layer take too long for an architecture, or "".

    Args:
        architecture: what to build.
        input_shape: of one example.
        n_outputs: width of the head.
        plan: the online curvature is read.
        estimators: those without a curvature or a last layer are never in the way.
        n_data: training examples.
    """
    kinds = sorted({plan.online.curvature} | curvatures_of(estimators))
    model = skeleton(architecture, input_shape, n_outputs)
    online = plan.online.curvature
    exact = max(1, likelihood(plan.likelihood).n_roots(n_outputs))
    each = 1 if CURVATURES[online].columns == "residual" else exact
    n_parameters = sum(p.numel() for p in model.parameters())
    return (
        too_wide(model, kinds, n_data)
        or too_large_online(online, n_parameters, each * n_data)
        or _too_large_a_last_layer(model, plan, estimators, n_data)
    )


def _too_large_a_last_layer(
    model: nn.Module, plan: TrainingPlan, estimators: Collection[str], n_data: int
) -> str:
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    place = declared(plan.likelihood).last_layer
    if place is None or not heads or "conditional_evidence" not in estimators:
        return ""
    formula: LastLayerFormula = imported(place)
    try:
        if formula.refuse is not None:
            formula.refuse(n_data, heads[-1].in_features + (heads[-1].bias is not None))
    except UserError as error:
        return str(error)
    return ""


def factor_bytes(kind: str, model: nn.Module, n_data: int = MANY) -> int:
    """Return the bytes that a curvature kind stores for a model, in float64.

    The dense kinds store less where rows are fewer than parameters; this is their matrix form,
    the most for any number of data.
    """
    elements = sum(side**2 for side in _sides(kind, model, n_data))
    if CURVATURES[kind].is_diagonal:
        elements = sum(p.numel() for p in model.parameters())
    if CURVATURES[kind].form.corrected:
        elements += sum(p.numel() for p in model.parameters() if p.ndim > 1)
    return _DOUBLE * elements + _row_bytes(kind, model, n_data)


def _work_bytes(
    kinds: Collection[str],
    model: nn.Module,
    forward: Pass,
    rows: int,
    n_outputs: int,
    n_data: int,
    device: torch.device,
) -> int:
    """Return the bytes of temporaries in curvature passes and in processing their results."""
    partial = max(factor_bytes(kind, model, n_data) for kind in kinds) // 2
    roots = 3 * _DOUBLE * rows * n_outputs**2
    # What is formed from patches stays in the cache of a CPU.
    arrays = 1 if device.type == "cpu" else 2
    most = elements_at_once(CHUNK_ELEMENTS, device)
    patches = arrays * _FLOAT * min(most, rows * forward.patch_elements)
    side = max((side for kind in kinds for side in _sides(kind, model, n_data)), default=0)
    vectors = 4 * _DOUBLE * sum(p.numel() for p in model.parameters())
    return partial + roots + patches + COPIES * _DOUBLE * side**2 + vectors


def _sides(kind: str, model: nn.Module, n_data: int) -> list[int]:
    """Return the sides of the square matrices that a curvature kind stores."""
    sizes = [p.numel() for p in model.parameters()]
    curvature, sides = CURVATURES[kind], list[int]()
    if curvature.is_diagonal:
        return []
    if curvature.is_dense:
        return [sum(sizes)] if curvature.is_full else sizes
    shares = curvature.form.shares_bias
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 1:
                few = keeps_rows(module, n_data)
                sides += [n_data if few else parameter[0].numel(), len(parameter)]
            elif not (shares and isinstance(module, nn.Linear)):
                sides.append(parameter.numel())
    return sides


def _row_bytes(kind: str, model: nn.Module, n_data: int) -> int:
    """Return the bytes of the input factors that a kind keeps as rows."""
    if not CURVATURES[kind].is_factored:
        return 0
    wide = (m for m in model.modules() if isinstance(m, nn.Linear) and keeps_rows(m, n_data))
    # The rows, and the basis of their span.
    return sum((_FLOAT + _DOUBLE) * n_data * module.in_features for module in wide)


def _storage(tensor: Tensor) -> int:
    """Return a number that identifies the storage of a tensor; on "meta" there is no address."""
    return int(tensor.untyped_storage()._cdata)


def measured_latency(model: nn.Module, example: Tensor) -> float:
    """Return the seconds of one forward pass in evaluation mode: the median of a few.

    Args:
        model: left in the mode it was in.
        example: [1, ...], on the device of the model.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            seconds = [_seconds(model, example) for _ in range(_WARM_UP + _TIMED)]
    finally:
        for module, mode in modes:
            module.training = mode
    return statistics.median(seconds[_WARM_UP:])


def _seconds(model: nn.Module, example: Tensor) -> float:
    _synchronise(example.device)
    started = time.perf_counter()
    model(example)
    _synchronise(example.device)
    return time.perf_counter() - started


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
