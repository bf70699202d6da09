"""Outputs of a module as a function of its parameters."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call as of_places


def functional_call(module: nn.Module, values: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs with other values of some parameters, named as in `named_parameters`.

    The same as `torch.func.functional_call`, which after a call leaves plain tensors in a module
    that is registered under two names (torch 2.15). Here each place of a parameter is set once.
    """
    given = {id(p): values[name] for name, p in module.named_parameters() if name in values}
    places = {
        f"{path}.{name}" if path else name: given[id(p)]
        for path, part in module.named_modules()
        for name, p in part.named_parameters(recurse=False, remove_duplicate=False)
        if id(p) in given
    }
    outputs: Tensor = of_places(module, places, (inputs,), tie_weights=False)
    return outputs
