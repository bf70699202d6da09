"""Declarations of the likelihoods and of the kinds of target; reading them needs no torch.

The declaration of a likelihood says what a network puts out for it and what is learned with it.
That of a kind of target says what holds for all its likelihoods: what targets, predictions and
metrics are called. Implementations are named as `module:NAME` and imported on first use
(`likelihoods.likelihood`). Whoever must know what is predicted looks it up here: no other file
compares the name of a likelihood or of a kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

#: What the targets are, as a study file says it in `[dataset]`.
Task = Literal["classification", "regression"]
#: The same in arrays, digests of data and stored comparisons.
Stored = Literal["labels", "real"]
#: What describes the targets, as a study file says it in `[plan]`.
LikelihoodName = Literal["categorical", "gaussian", "heteroscedastic"]
#: By what a prediction says how sure it is.
Confidence = Literal["probabilities", "intervals"]


@dataclass(frozen=True)
class TargetKind:
    """A kind of target, whatever its likelihood.

    task         its name in study files
    stored       its name in arrays, in digests of data and in stored comparisons
    reading      the module of how such targets are read, a `Reading` of `data/targets.py`
    targets      what the targets are called
    values       what they are as values of an array
    predicted    what is predicted of a row, besides a value
    guess        what a prediction without inputs knows
    constant     the simple model that predicts so
    chance_of    what has a probability and no density, in words; empty for densities
    metrics      that `metric` can name, as shown
    usual        the metric that is shown first where none is asked for
    tests        columns of results on test rows that scores are compared with, the main one first
    confidence   by what a prediction says how sure it is
    few          training rows below which the score of folds takes five of them, not two
    scaled       networks see the targets on a scale, standardised at least
    classes      they are classes: with names, and with weights where an error costs more on some
    simple       `module:NAME` of the models to compare with, a `Simple` of `baselines/models.py`;
                 empty if there are none
    """

    task: Task
    stored: Stored
    reading: str
    targets: str
    values: str
    predicted: str
    guess: str
    constant: str
    metrics: Mapping[str, str]
    usual: str
    tests: tuple[str, ...]
    confidence: Confidence = "intervals"
    chance_of: str = ""
    few: int = 5000
    scaled: bool = False
    classes: bool = False
    simple: str = ""


TARGET_KINDS: Mapping[str, TargetKind] = {
    "classification": TargetKind(
        task="classification",
        stored="labels",
        reading="nas_evidence.data.labels",
        targets="classes",
        values="labels",
        predicted="its class probabilities",
        guess="the shares of the classes",
        constant="majority class",
        metrics={
            "log_loss": "log loss",
            "accuracy": "accuracy",
            "balanced_accuracy": "balanced accuracy",
            "f1": "F1",
            "roc_auc": "ROC AUC",
            "average_precision": "average precision",
            "ece": "calibration error",
        },
        usual="accuracy",
        tests=("test_nll_per_datum", "test_accuracy"),
        confidence="probabilities",
        chance_of="the true class",
        few=1000,
        classes=True,
        simple="nas_evidence.baselines.models:OF_CLASSES",
    ),
    "regression": TargetKind(
        task="regression",
        stored="real",
        reading="nas_evidence.data.real_targets",
        targets="real targets",
        values="real numbers",
        predicted="its 90 % intervals",
        guess="the mean",
        constant="mean",
        metrics={
            "log_loss": "log loss of the standardised target",
            "rmse": "RMSE",
            "mae": "MAE",
            "r2": "R²",
            "crps": "CRPS",
            "coverage": "90 % intervals cover",
        },
        usual="rmse",
        tests=("test_nll_per_datum", "test_rmse"),
        scaled=True,
        simple="nas_evidence.baselines.models:OF_REALS",
    ),
}


@dataclass(frozen=True)
class Declared:
    """What a likelihood is.

    task            whose targets it describes
    summary         what it is for
    implementation  `module:NAME` of the class in `likelihoods/`
    outputs         of the network for each class or real target
    scale           the number beside the outputs, a key of the plan and a column of the results;
                    None if the outputs say all
    learned         online updates learn the scale
    settles         a network settles at a mode after its last epoch, unless the plan says
    averaged        predictions are means over the posterior of the weights, unless asked
    by_row          the likelihood of such targets that has a noise of each row; empty if this has
    last_layer      `module:NAME` of the density of late data given early ones by a Bayesian last
                    layer, a `LastLayerFormula`; None if there is none
    judged_far      evidence compares states far from a mode; else only near one
    convex          −log p is convex in the outputs
    without         scores that are not defined for it, and why
    """

    task: Task
    summary: str
    implementation: str
    outputs: int = 1
    scale: Literal["temperature", "noise_std"] | None = None
    learned: bool = False
    settles: bool = False
    averaged: bool = True
    by_row: str = ""
    last_layer: str | None = None
    judged_far: bool = False
    convex: bool = True
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> TargetKind:
        """The kind of target that it describes."""
        return TARGET_KINDS[self.task]


LIKELIHOODS: Mapping[str, Declared] = {
    "categorical": Declared(
        task="classification",
        summary="class labels",
        implementation="nas_evidence.likelihoods.categorical:Categorical",
        scale="temperature",
        averaged=False,
        last_layer="nas_evidence.evidence.softmax_layer:LAST_LAYER",
    ),
    "gaussian": Declared(
        task="regression",
        summary="real numbers with one noise for all rows",
        implementation="nas_evidence.likelihoods.gaussian:Gaussian",
        scale="noise_std",
        learned=True,
        settles=True,
        by_row="heteroscedastic",
        last_layer="nas_evidence.evidence.regression_layer:LAST_LAYER",
        judged_far=True,
    ),
    "heteroscedastic": Declared(
        task="regression",
        summary="real numbers with a noise of each row, another output for each target",
        implementation="nas_evidence.likelihoods.heteroscedastic:Heteroscedastic",
        outputs=2,
        settles=True,
        last_layer="nas_evidence.evidence.noise_layer:LAST_LAYER",
        judged_far=True,
        convex=False,
        without={"sto_lk": "it draws noise of one size for all rows"},
    ),
}


def declared(likelihood: str) -> Declared:
    """Return the declaration of a likelihood.

    >>> declared("heteroscedastic").outputs
    2
    """
    return LIKELIHOODS[likelihood]


def stored_kind(stored: str) -> TargetKind:
    """Return the kind of target that arrays or a stored comparison name.

    >>> stored_kind("labels").targets
    'classes'
    """
    return next(kind for kind in TARGET_KINDS.values() if kind.stored == stored)


def default_of(task: str) -> str:
    """Return the likelihood of a task if a study names none: the first that is declared for it.

    >>> default_of("regression")
    'gaussian'
    """
    return next(name for name, one in LIKELIHOODS.items() if one.task == task)


def imported(place: str) -> Any:
    """Import and return what a declaration names as `module:NAME`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
