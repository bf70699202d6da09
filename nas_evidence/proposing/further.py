"""What the next trials of a search would gain, by the posterior over the architectures.

The next `FURTHER` proposals are asked of a proposer that has been told the same, so that they are
those that the study's own sampler makes; `ArchitecturePosterior.expected_gain` says what one trial
of each of them would gain. docs/results/how-well-it-ranks.md has how right that is.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Prior
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

if TYPE_CHECKING:
    from nas_evidence.proposing.proposer import ProposalResult, Proposer

#: Trials whose gain is forecast.
FURTHER = 10
#: Minimum number of scores for which a gain is forecast.
FEWEST = 8


def gain_of_further(
    study: StudySpec,
    proposer: "Proposer",
    known: Sequence[tuple[ArchitectureSpec, "ProposalResult"]],
    *,
    prior: Prior,
) -> float | None:
    """Return what further trials would gain, in the unit of the objective.

    None with too few scores or several objectives.

    Args:
        study: what is searched.
        proposer: without any proposal; it is told all that is known, and asked.
        known: the proposals by number, and their results.
        prior: of the posterior that ranks, or else recommends.
    """
    values: dict[str, list[float]] = {}
    tried = {one.key: one for one, _ in known}
    for number, (one, told) in enumerate(known):
        proposer.adopt(one)
        proposer.tell(number, told)
        if told.values is not None and not told.pruned:
            values.setdefault(one.key, []).append(told.values[0])
    if study.minimise or len(values) < FEWEST:
        return None
    asked = [proposer.ask() for _ in range(FURTHER)]
    new = {one.key: one for one in asked if one.key not in tried}
    space = Space(study.family)
    found = ArchitecturePosterior(
        space.points(tried[key] for key in values),
        space.ordered,
        list(values.values()),
        prior=prior,
    )
    return found.expected_gain(space.points(new.values())) if new else 0.0
