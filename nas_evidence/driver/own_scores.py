"""Whether scores of your own return numbers, found before a study begins.

Each is taken as in a trial, of a network that has seen a few rows for one epoch.
"""

import torch
from pydantic import ValidationError

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.plan import assignment_of
from nas_evidence.models import infeasible
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.startup import startup_points
from nas_evidence.scores.protocol import Context, evaluate, scorers_of
from nas_evidence.spec.registry import is_outside
from nas_evidence.spec.study import StudySpec
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.online import passes_of
from nas_evidence.training.parts import new_network, part_of

_ROWS = 64
#: Mistakes of code, whatever network and rows are.
_MISTAKES = (AttributeError, ImportError, NameError, TypeError, ValidationError)


def check_own_scores(study: StudySpec, arrays: ArrayData) -> None:
    """Check that the scores from outside the package return what a score is.

    An error that may come from the few rows is left to the trials.

    Raises:
        ValueError: if one returns no number, or its code has a mistake; names the score.
    """
    data = to_tensors(arrays, "cpu")
    shape, width = data.input_shape, study.plan.head_width(data.n_outputs)
    fitting = (one for one in startup_points(study) if not infeasible(one, shape, width))
    if (first := next(fitting, None)) is None:  # each trial says why
        return
    own = tuple(filter(is_outside, study.estimators))
    given = assignment_of(first, 0, 0, study.model_copy(update={"estimators": own}))
    few, _ = part_of(torch.arange(min(_ROWS, len(data.x_train))), data, given, "own scores")
    network = new_network(few, given)
    train_epochs([network], n_epochs=1)
    for name in own:
        context = Context(network, given.model_copy(update={"estimators": (name,)}))
        try:
            scorer = next(one for one in scorers_of(context).values() if name in one.names)
            while scorer.due():
                scorer.advance()
            evaluate(context, [scorer], passes_of(network), last=True)
        except _MISTAKES as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                "score-fails",
                f"the score {name!r} fails on a network of one epoch: {why}; correct it",
            ) from error
        except Exception as error:
            if getattr(error, "code", "") == "score-no-number":
                raise
