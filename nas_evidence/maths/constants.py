"""Parameters with `requires_grad=False` are constants of a network, as its buffers are.

    f(x; θ, c)     θ  the free parameters, which have a prior and are learned      c  constants

A prior, a curvature, an evidence and a posterior are of θ alone. Here a frozen parameter becomes a
buffer of its module: what goes through the parameters of a network then sees θ, and nothing else
changes. The names in `state_dict()` stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from nas_evidence.plumbing.user_error import UserError


def as_constants(model: nn.Module) -> nn.Module:
    """Return the model, whose frozen parameters are buffers from now on.

    >>> model = as_constants(nn.Linear(2, 1).requires_grad_(False))
    >>> len([*model.parameters()]), [*model.state_dict()]
    (0, ['weight', 'bias'])
    """
    for module in model.modules():
        for name, parameter in _frozen(module):
            del module._parameters[name]
            module.register_buffer(name, parameter.detach())
    return model


@contextmanager
def constants_aside(model: nn.Module) -> Iterator[None]:
    """Let the frozen parameters be buffers for a while; the same parameters are back afterwards.

    It must not be entered inside of `undisturbed`, where all parameters are frozen.
    """
    kept = [(module, [*module._parameters.items()], _frozen(module)) for module in model.modules()]
    kept = [one for one in kept if one[2]]
    try:
        for module, _, frozen in kept:
            for name, parameter in frozen:
                del module._parameters[name]
                module._buffers[name] = parameter
        yield
    finally:
        for module, parameters, frozen in kept:
            for name, _ in frozen:
                module._buffers.pop(name, None)
            module._parameters.clear()  # in their order
            module._parameters.update(parameters)


def _frozen(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    own = module._parameters.items()
    return [(name, p) for name, p in own if p is not None and not p.requires_grad]


def free_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are no constants, by name.

    Raises:
        ValueError: if there is none.
    """
    found: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise UserError(
            "model-without-parameters",
            "the model has no free parameter, so that its evidence is just its likelihood: all "
            "have requires_grad=False, or there is none. Leave those that are to be learned free, "
            "such as the last layer",
        )
    return found
