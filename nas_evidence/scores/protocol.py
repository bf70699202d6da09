"""What a score may do during one trial.

    before training    `due` and `advance`, slice by slice: trainings on parts of the data; a
                       function, or a score from outside, that is taken "before": once
    evaluations        `evaluate`: every F epochs after the burn-in, and after the last epoch
    any time           `state_dict` and `load_state_dict`: a trial resumes from its checkpoint

One `Scorer` serves all requested names that share an implementation, so `two_fold` and
`two_fold_accuracy` share one pair of trainings. A score that only reads the network may be a plain
function of the `Context` that returns its value, or estimates.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import TensorData
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import Evaluation, EvidenceEstimate, Of
from nas_evidence.spec.registry import SCORES, Score, declared, implementation_of
from nas_evidence.spec.study import Assignment
from nas_evidence.training.network import Network
from nas_evidence.training.online import Passes


@dataclass
class Context:
    """What a score may read of a trial; a score changes only its own state.

    training    the network in training
    assignment  of the trial: plan, scores and seeds
    passes      curvature at the current parameters, each kind computed once; during evaluations
    """

    training: Network
    assignment: Assignment
    passes: Passes | None = None

    @property
    def data(self) -> TensorData:
        """The data of the trial."""
        return self.training.data

    @property
    def model(self) -> nn.Module:
        """The network in training."""
        return self.training.model

    def generator(self, purpose: str, counter: int = 0) -> torch.Generator:
        """Return an independent random generator for a purpose, on the CPU."""
        return torch.Generator().manual_seed(self.assignment.derived_seed(purpose, counter))


class Scorer:
    """Does nothing; a score overrides the methods it needs.

    Args:
        names: the requested scores.
        context: of the trial; the same object throughout.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        self.names = tuple(names)
        self.context = context

    @property
    def of(self) -> Of:
        """Return which networks it is of."""
        return "folds" if declared(self.names[0]).division else "whole"

    def due(self) -> bool:
        """Tell whether work remains before the first epoch.

        Raises:
            ValueError: if the score is not defined for the data.
        """
        return False

    def advance(self) -> None:
        """Do a slice of that work, about as long as the training takes between evaluations."""

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return the current estimates; `last` after the last epoch.

        Of a score that is taken at the end it is called once. So it is of one from outside the
        package that is taken before training, at the initial weights; that is stored for epoch 0.
        """
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state to checkpoint: tensors, numbers, strings; lists and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""

    def kept(self) -> dict[str, Tensor]:
        """Return what is stored beside the weights of a complete trial, by name."""
        return {}

    def spread_factor(self) -> float | None:
        """Return the factor on the spread of delivered predictions, None if it cannot tell."""
        return None


class _Function(Scorer):
    """A score that is a function of the context."""

    def __init__(self, score: Score, function: Callable[[Context], Any], context: Context) -> None:
        super().__init__((score.name,), context)
        self._score, self._function = score, function

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Call the function."""
        found = self._function(self.context)
        if isinstance(found, EvidenceEstimate):
            return [found.model_copy(update={"estimator": self._score.name})]
        try:
            value, n_data = float(found), len(self.context.data.x_train)
        except (TypeError, ValueError, RuntimeError):  # torch says so of a vector
            raise UserError(
                "score-no-number",
                f"the score {self._score.name!r} must return a number or an EvidenceEstimate, but "
                f"returned {str(found)[:80]!r}",
            ) from None
        return [
            EvidenceEstimate(
                estimator=self._score.name,
                value=value,
                per_datum=value / n_data if self._score.unit == "nats" else None,
                relation=self._score.relation,
            )
        ]


class Before(Scorer):
    """A function, or a score from outside the package, taken once before the first epoch.

    Taking it is its last slice.

    found  what it returned, None until then; a checkpoint keeps it, so that a resumed trial does
           not take it again at other weights
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer.names, scorer.context)
        self.scorer = scorer
        self.found: list[EvidenceEstimate] | None = None

    def due(self) -> bool:
        """Tell whether it was not taken yet."""
        return self.found is None

    def advance(self) -> None:
        """Do a slice of its work before training, or take it.

        Raises:
            ValueError: if it changes the network.
        """
        with _unchanged(self.context.model, self.names[0]):
            if self.scorer.due():
                self.scorer.advance()
            else:
                self.found = self.scorer.evaluate(last=False)

    def state_dict(self) -> dict[str, Any]:
        """Return what was found, and the state of the score."""
        found = None if self.found is None else [one.model_dump_json() for one in self.found]
        return {"found": found, "scorer": self.scorer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        found = state["found"]
        if found is not None:
            self.found = [EvidenceEstimate.model_validate_json(text) for text in found]
        self.scorer.load_state_dict(state["scorer"])

    def kept(self) -> dict[str, Tensor]:
        """Return what the score keeps."""
        return self.scorer.kept()

    def spread_factor(self) -> float | None:
        """Return the factor of the score."""
        return self.scorer.spread_factor()


@contextmanager
def _unchanged(model: nn.Module, name: str) -> Iterator[None]:
    """Take away what a score leaves behind in a network, and refuse one that changes its values.

    Raises:
        ValueError: if a parameter or a buffer has other values afterwards.
    """
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    needed = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    is_training = model.training
    yield
    for key, parameter in model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(needed[key])
    model.train(is_training)
    for key, tensor in model.state_dict().items():
        if not torch.equal(tensor.nan_to_num(), before[key].nan_to_num()):
            raise UserError(
                "score-changed-network",
                f"the score {name!r} has changed {key} of the network before its training; let it "
                "work on copy.deepcopy(context.model)",
            )


def scorers_of(context: Context) -> dict[str, Scorer]:
    """Return the scorers of the requested scores and of the free ones.

    The keys name the implementations; checkpoints use the same keys.
    """
    asked = [declared(name) for name in context.assignment.estimators]
    free = [score for score in SCORES.values() if not score.on_request]
    groups: dict[str, list[Score]] = {}
    for score in sorted({s.name: s for s in (*asked, *free)}.values(), key=_place):
        by_name = score.implementation
        key = by_name if isinstance(by_name, str) else score.name
        groups.setdefault(key, []).append(score)
    return {key: _scorer(group, context) for key, group in groups.items()}


def evaluate(
    context: Context, scorers: Iterable[Scorer], passes: Passes, *, last: bool
) -> list[Evaluation]:
    """Return every score at this epoch.

    Args:
        context: of the trial.
        scorers: what computes them.
        passes: curvature at the current parameters.
        last: whether the training is over.

    Raises:
        DivergedError: if the log likelihood or a curvature is not finite.
    """
    network, context.passes = context.training, passes
    started = time.perf_counter()
    found = [
        Evaluation(epoch=network.epoch, estimate=estimate, of=scorer.of)
        for scorer in scorers
        if last or declared(scorer.names[0]).taken != "end"
        for estimate in scorer.evaluate(last=last)
    ]
    context.passes = None
    network.evidence_seconds += time.perf_counter() - started
    return found


def _place(score: Score) -> int:
    """Return the position among the scores of the package; those from outside come last.

    But first those that are taken before training: they are cheap, and may decide at the first
    rung whether a trial goes on to the trainings of others.
    """
    if score.name in SCORES:
        return list(SCORES).index(score.name)
    return -1 if score.taken == "before" else len(SCORES)


def _scorer(scores: Sequence[Score], context: Context) -> Scorer:
    first, made = scores[0], implementation_of(scores[0])
    is_class = isinstance(made, type) and issubclass(made, Scorer)
    names = [score.name for score in scores]
    found = made(names, context) if is_class else _Function(first, made, context)
    # A scorer of the package does its own work before training, and knows what it has found.
    own = is_class and first.name in SCORES
    return Before(found) if first.taken == "before" and not own else found
