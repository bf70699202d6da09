"""Which parameter tensors share one prior precision: δ_l = scale_l · δ_g(l), group g of tensor l.

    tensor   one per tensor
    module   one per module
    kind     one for weights of Linear, of Conv2d, biases of both, and all others, such as Fixup
             scalars and the gains of normalisation layers
    scalar   one for all
    width    one for all, times the fan-in of a weight

With "width" the prior expects θ² of order 1 / fan-in for every weight, so that the prior over
functions keeps its scale as nets get wider.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

PriorGroups = Literal["tensor", "module", "kind", "scalar", "width"]


@dataclass(frozen=True)
class Ties:
    """The group of each tensor, numbered from 0, and its factor on the group's precision [G]."""

    member: tuple[int, ...]
    scale: tuple[float, ...]


def ties_of(
    groups: PriorGroups, names: Sequence[str], shapes: Sequence[Sequence[int]] = ()
) -> Ties:
    """Return which tensors share a precision.

    Args:
        groups: see above.
        names: of the tensors; the part before the last dot is the module.
        shapes: of the tensors; "kind" and "width" need them.

    Raises:
        ValueError: for an unknown value of `groups`, or missing shapes.

    >>> ties_of("module", ("0.weight", "0.bias", "1.weight")).member
    (0, 0, 1)
    >>> ties_of("width", ("0.weight", "0.bias"), ((3, 5), (3,))).scale
    (5.0, 1.0)
    """
    if groups in ("kind", "width") and len(shapes) != len(names):
        raise ValueError(
            f'`shapes` must hold the shapes of {len(names)} tensors for groups = "{groups}", '
            f"but holds {len(shapes)}"
        )
    ones = (1.0,) * len(names)
    match groups:
        case "tensor":
            return Ties(tuple(range(len(names))), ones)
        case "module":
            return Ties(_numbered([_module(name) for name in names]), ones)
        case "kind":
            return Ties(_numbered(_kinds(names, shapes)), ones)
        case "scalar":
            return Ties((0,) * len(names), ones)
        case "width":
            return Ties((0,) * len(names), tuple(float(prod(s[1:])) for s in shapes))
    raise ValueError(f"`groups` must be tensor, module, kind, scalar or width, but got {groups!r}")


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _kinds(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[str]:
    pairs = list(zip(names, shapes, strict=True))
    layers = {_module(name) for name, shape in pairs if len(shape) > 1}
    return [
        f"weight {len(shape)}"
        if len(shape) > 1
        else ("bias" if _module(name) in layers else "other")
        for name, shape in pairs
    ]


def _numbered(words: Sequence[str]) -> tuple[int, ...]:
    """Return the index of each word among the distinct ones, in order of appearance."""
    places = {word: i for i, word in enumerate(dict.fromkeys(words))}
    return tuple(places[word] for word in words)
