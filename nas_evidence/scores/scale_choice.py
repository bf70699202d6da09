"""Which scale of a real target has the most evidence: `target_scale = "auto"`.

One network decides, before the study and for all its trials: an MLP of two hidden layers of
`WIDTH` units, trained by the plan of the study, with two folds and its seed, on at most
`MOST_ROWS` training rows drawn at random. Every scale whose support holds all training targets is
fitted to these rows without each fold; the largest `conditional_evidence` per datum is taken. It
is "identity" unless another has `LEAST_LEAD` nats more, and where none is valid. No test row is
looked at: one outside the support of the scale is refused afterwards.

A network of few units underfits, and by luck of its seed more on one scale than on another: with 8
units in one layer `naval-propulsion-plant` had 0.5 nats more on a scale that loses (decision 28).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nas_evidence.data import ArrayData
from nas_evidence.data.mapped import MappedRows, random_rows
from nas_evidence.data.proposed import with_numbers
from nas_evidence.data.tensors import to_tensors
from nas_evidence.maths.target_scale import CURVES, fit
from nas_evidence.scores.folds import Folds
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec, derive_seed
from nas_evidence.training.parts import new_network, part_of

#: Maximum number of training rows that the choice sees.
MOST_ROWS = 1000
#: Units of a hidden layer.
WIDTH = 64
#: Smallest lead over "identity" with which a scale is chosen, nats per datum.
LEAST_LEAD = 0.01
_SCORE = "conditional_evidence"


@dataclass(frozen=True)
class ChosenScale:
    """A scale, and the conditional evidence of each that was tried, nats per datum."""

    name: str
    values: Mapping[str, float]

    @property
    def sentence(self) -> str:
        """What was decided, how, and how to change it."""
        listed = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        return (
            f"scale of the target: {self.name}, by {_SCORE} of one network ({listed}); "
            "change it with target_scale (--target-scale)"
        )


def chosen_scale(spec: StudySpec, arrays: ArrayData) -> ChosenScale:
    """Return the scale of most evidence for the real targets of a study.

    Args:
        spec: of the study.
        arrays: its data.
    """
    some, values = _some_rows(arrays, spec.seed), {}
    for name in CURVES:
        if name == "log" and not (arrays.y_train > 0).all():
            continue
        fitted = None if name == "identity" else fit(name, some.y_train)
        value = _evidence(spec, replace(some, fitted_scale=fitted))
        if value is not None:
            values[name] = value
    return ChosenScale(best_of(values), values)


def best_of(values: Mapping[str, float]) -> str:
    """Return the scale of most evidence, "identity" if it is not behind by `LEAST_LEAD`.

    Args:
        values: conditional evidence per datum of each valid scale, nats.

    >>> best_of({"identity": -1.0, "log": -0.995}), best_of({"identity": -1.0, "log": -0.5})
    ('identity', 'log')
    """
    best = max(values, key=lambda name: values[name], default="identity")
    near = values.get("identity", -math.inf) > values.get(best, 0.0) - LEAST_LEAD
    return "identity" if near else best


def _some_rows(arrays: ArrayData, seed: int) -> ArrayData:
    generator = np.random.default_rng(derive_seed(seed, "rows of the scale"))
    rows = random_rows(arrays.n_train, min(MOST_ROWS, arrays.n_train), generator)
    x, y = arrays.x_train, arrays.y_train[rows]
    return replace(
        arrays,
        x_train=x.subset(rows) if isinstance(x, MappedRows) else x[rows],
        y_train=y,
        x_test=arrays.x_test[:0],
        y_test=arrays.y_test[:0],
        units=None if arrays.units is None else arrays.units.at(rows),
    )


def _evidence(spec: StudySpec, arrays: ArrayData) -> float | None:
    """Return the conditional evidence per datum of the network; None if it is not valid."""
    plan = spec.plan.model_copy(update={"folds": 2})
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=derive_seed(spec.seed, "network of the scale"),
        architecture=ArchitectureSpec(family="mlp", values={"depth": 2, "width": WIDTH}),
        dataset=spec.dataset, plan=with_numbers(plan, arrays.n_train), estimators=(_SCORE,),
    )  # fmt: skip
    data = to_tensors(arrays, "cpu")
    whole = new_network(*part_of(None, data, given, "whole"))  # is not trained
    folds = Folds([_SCORE], Context(whole, given))
    while folds.due():
        folds.advance()
    found = next(one for one in folds.evaluate(last=False) if one.estimator == _SCORE)
    return found.per_datum if found.valid else None
