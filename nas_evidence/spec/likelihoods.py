"""Declarations of the likelihoods; reading them needs no torch.

A declaration says what a likelihood is for, what is learned with it, and what its targets and
metrics are called. Its implementation is named as `module:NAME` and imported on first use
(`likelihoods.likelihood`). Whoever must know what is predicted looks it up here: no other file
compares the name of a likelihood or of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

#: What the targets are, as a study file says it in `[dataset]`.
Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Declared:
    """What a likelihood is.

    task            whose targets it describes
    implementation  `module:NAME` of the class in `likelihoods/`
    outputs         of the network for each class or real target
    scale           the number beside the outputs, a key of the plan and a column of the results;
                    None if the outputs say all
    learned         online updates learn the scale
    settles         a network settles at a mode after its last epoch, unless the plan says
    few             training rows below which the score of folds takes five of them, not two
    targets         what the targets are called
    last_layer      `module:NAME` of the density of late data given early ones by a Bayesian last
                    layer, a `LastLayerFormula`; None if there is none
    judged_far      evidence compares states far from a mode; else only near one
    convex          −log p is convex in the outputs
    """

    task: Task
    implementation: str
    outputs: int = 1
    scale: Literal["temperature", "noise_std"] | None = None
    learned: bool = False
    settles: bool = False
    few: int = 5000
    targets: str = "real targets"
    last_layer: str | None = None
    judged_far: bool = False
    convex: bool = True


LIKELIHOODS: Mapping[str, Declared] = {
    "categorical": Declared(
        task="classification",
        implementation="nas_evidence.likelihoods.categorical:Categorical",
        scale="temperature",
        few=1000,
        targets="classes",
        last_layer="nas_evidence.evidence.softmax_layer:LAST_LAYER",
    ),
    "gaussian": Declared(
        task="regression",
        implementation="nas_evidence.likelihoods.gaussian:Gaussian",
        scale="noise_std",
        learned=True,
        settles=True,
        last_layer="nas_evidence.evidence.regression_layer:LAST_LAYER",
        judged_far=True,
    ),
    "heteroscedastic": Declared(
        task="regression",
        implementation="nas_evidence.likelihoods.heteroscedastic:Heteroscedastic",
        outputs=2,
        settles=True,
        last_layer="nas_evidence.evidence.noise_layer:LAST_LAYER",
        judged_far=True,
        convex=False,
    ),
}


def declared(likelihood: str) -> Declared:
    """Return the declaration of a likelihood.

    >>> declared("heteroscedastic").outputs
    2
    """
    return LIKELIHOODS[likelihood]


def default_of(task: Task) -> str:
    """Return the likelihood of a task if a study names none: the first that is declared for it.

    >>> default_of("regression")
    'gaussian'
    """
    return next(name for name, one in LIKELIHOODS.items() if one.task == task)


def imported(place: str) -> Any:
    """Import and return what a declaration names as `module:NAME`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
