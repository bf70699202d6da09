"""Model families: from an architecture to a network, seeded.

A family builds its modules (`construct`), says by arithmetic alone why an input does not fit them
(`obstacle`) and scales the initialisation of a weight (`gain`). Weights are drawn from
N(0, (gain * sqrt(2 / fan_in))^2) (He et al., 2015), biases are 0, Fixup scales 1.

No family normalises over the batch: its output for one example would depend on the others, and
the likelihood would no longer be a product over the data. In the families of the package every
module with parameters is an `nn.Linear`, an `nn.Conv2d` or one of `models.fixup`, and is used once
in a forward pass. Families from outside draw their own weights.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nas_evidence.maths.constants import as_constants
from nas_evidence.models import cnn, linear, mlp, resnet
from nas_evidence.models.layout import laid_out
from nas_evidence.models.modes import kept_in_evaluation
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.families import outside_family
from nas_evidence.spec.registry import is_outside
from nas_evidence.spec.study import (
    FAMILY_DEFAULTS,
    FAMILY_PARAMETERS,
    ArchitectureSpec,
    domains_of_family,
    is_plain,
)

Values = Mapping[str, ParameterValue]


@dataclass(frozen=True)
class Family:
    """The functions of a family; their `values` include parameters left at their defaults."""

    #: From values, shape of an input, and outputs; no initial weights.
    construct: Callable[..., nn.Module]
    obstacle: Callable[[Values, tuple[int, ...]], str | None] = lambda values, input_shape: None
    gain: Callable[[str, Values], float] = lambda name, values: 1.0  # by parameter name
    channels_last: Callable[[Values], bool] = lambda values: False  # is faster, see `layout`


FAMILIES: dict[str, Family] = {
    "mlp": Family(mlp.construct),
    "cnn": Family(cnn.construct, cnn.obstacle, cnn.gain, channels_last=lambda values: True),
    "resnet": Family(
        resnet.construct,
        resnet.obstacle,
        resnet.gain,
        channels_last=lambda values: int(values["width"]) >= 8,
    ),
    "linear": Family(linear.construct),
}


def infeasible(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> str | None:
    """Return the reason why the network cannot be built, or None; nothing is built.

    >>> infeasible(ArchitectureSpec(family="resnet"), (13,), 2)
    'resnet needs images [channels, height, width], but an input is [13]'
    """
    family = architecture.family
    if is_outside(family):
        return _outside_obstacle(architecture, input_shape, n_outputs)
    if family not in FAMILIES:
        return f"family '{family}' is unknown; choose one of {', '.join(FAMILIES)}"
    for name, value in architecture.values.items():
        domain = FAMILY_PARAMETERS[family].get(name)
        if is_plain(family, name, value):
            continue
        if domain is None:
            known = ", ".join(FAMILY_PARAMETERS[family]) or "none"
            return f"{family} has no parameter '{name}'; its parameters: {known}"
        if not domain.contains(value):
            return f"{family} accepts {name} from ({domain}), but got {value!r}"
    if len(input_shape) not in (1, 3) or min(input_shape) < 1 or n_outputs < 1:
        return (
            "an input must be a vector [d] or an image [channels, height, width] with at least "
            f"one output, but got {list(input_shape)} and {n_outputs} outputs"
        )
    return FAMILIES[family].obstacle(_complete(architecture), input_shape)


def build(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    n_outputs: int,
    generator: torch.Generator,  # on the CPU; the only source of randomness
) -> nn.Module:
    """Return the initialised network: float32, on the CPU, a function of the arguments alone.

    Where that is faster, its convolutions keep the channels last in memory; see `layout`.

    Raises:
        ValueError: Where `infeasible` gives a reason.
    """
    if is_outside(architecture.family):
        return _built_outside(architecture, input_shape, n_outputs, generator)
    model = skeleton(architecture, input_shape, n_outputs)
    family, values = FAMILIES[architecture.family], _complete(architecture)
    state = {
        name: _initial(name, parameter.shape, family.gain(name, values), generator)
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(state, assign=True)
    return laid_out(model, channels_last=family.channels_last(values))


def count_parameters(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> int:
    """Return the number of trainable parameters, without allocating them.

    >>> count_parameters(ArchitectureSpec(family="linear"), (1, 28, 28), 10)
    7850

    Raises:
        ValueError: Where `infeasible` gives a reason.
    """
    model = skeleton(architecture, input_shape, n_outputs)
    return sum(parameter.numel() for parameter in model.parameters())


def skeleton(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the network with parameters on "meta": no memory, no global random numbers.

    Raises:
        ValueError: Where `infeasible` gives a reason.
    """
    reason = infeasible(architecture, input_shape, n_outputs)
    if reason is not None:
        raise UserError("build-failed", reason)
    with torch.device("meta"):
        if is_outside(architecture.family):
            return _called(architecture, input_shape, n_outputs)
        family = FAMILIES[architecture.family]
        return family.construct(_complete(architecture), input_shape, n_outputs)


def _outside_obstacle(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> str | None:
    """Return why a family from outside the package cannot build the network, or None."""
    domains = domains_of_family(architecture.family)
    for name in architecture.values:
        if name not in domains:
            return f"{architecture.family} has no parameter '{name}'"
    try:
        with torch.device("meta"):
            _called(architecture, input_shape, n_outputs)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return f"{architecture} does not fit inputs {list(input_shape)}: {why}"
    return None


def _called(
    architecture: ArchitectureSpec, input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    found = outside_family(architecture.family)
    with warnings.catch_warnings():  # a file of weights, loaded into a network on "meta"
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
        model = found.build(dict(architecture.values), tuple(input_shape), n_outputs)
    if not isinstance(model, nn.Module):
        raise UserError(
            "build-gave-no-module",
            f"build must return a torch.nn.Module, but gave {type(model).__name__}",
        )
    return as_constants(kept_in_evaluation(model))


def _built_outside(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    n_outputs: int,
    generator: torch.Generator,
) -> nn.Module:
    """Return the network with its own initialisation, a function of the arguments alone."""
    if reason := infeasible(architecture, input_shape, n_outputs):
        raise UserError("build-failed", reason)
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _called(architecture, input_shape, n_outputs).float()


def _complete(architecture: ArchitectureSpec) -> Values:
    return {**FAMILY_DEFAULTS[architecture.family], **architecture.values}


def _initial(name: str, shape: torch.Size, gain: float, generator: torch.Generator) -> Tensor:
    kind = name.rpartition(".")[2]
    if kind == "scale":
        return torch.ones(shape, dtype=torch.float32)
    if kind == "bias" or gain == 0:
        return torch.zeros(shape, dtype=torch.float32)
    assert kind == "weight", name
    std = gain * math.sqrt(2 / math.prod(shape[1:]))
    return std * torch.randn(shape, generator=generator, dtype=torch.float32)
