"""Parts of a network that stay in evaluation mode while the rest is trained.

A family of your own returns them so: a pretrained part whose normalisation is fixed, or whose
dropout is off.
"""

from torch import nn

_KEPT = "_modules_in_evaluation"


def kept_in_evaluation(model: nn.Module) -> nn.Module:
    """Return the model, whose modules that are in evaluation mode now stay in it."""
    paths = tuple(path for path, module in model.named_modules() if not module.training)
    if paths:
        vars(model)[_KEPT] = paths
    return model


def in_training_mode(model: nn.Module) -> nn.Module:
    """Return the model in training mode, but for the modules that stay in evaluation mode.

    >>> model = kept_in_evaluation(nn.Sequential(nn.Dropout().eval(), nn.Dropout()))
    >>> [module.training for module in in_training_mode(model.eval())]
    [False, True]
    """
    model.train()
    for path in vars(model).get(_KEPT, ()):
        model.get_submodule(path).training = False
    return model
