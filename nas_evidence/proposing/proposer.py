"""The proposer of architectures: a sampler used by one process, seeded by counter.

`order.py` decides what comes first and what is redrawn. A draw is a pure function of the study, a
seed and the results told so far. Nothing is stored here: the driver writes proposals and results
to the journal, and restores a proposer from it (docs/decisions/0015-the-journal-is-the-record.md).

The posterior over architectures (`posterior_sampler.py`), or the tree-structured Parzen estimator
(TPE, Bergstra et al. 2011), sees ordered parameters as quantiles of their domains. A name such as
`width` is one parameter shared by all families, so that they learn from each other;
docs/decisions/0007-shared-names-in-tpe.md compares the alternatives.

Proposal `n` holds the trials `n * replicates + r`.
"""

from collections.abc import Sequence

from nas_evidence.proposing.order import Search
from nas_evidence.proposing.past import Past, Trial
from nas_evidence.proposing.past import ProposalResult as ProposalResult
from nas_evidence.proposing.startup import domains_of, filled, random_point
from nas_evidence.proposing.warm_start import Found
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.study import ArchitectureSpec, StudySpec, derive_seed


class Proposer:
    """Proposes architectures, given what was proposed and told so far.

    Args:
        study: what is searched.
        warm: architectures with their values, for the sampler to learn from.

    Raises:
        ValueError: if a point of `study.first` is not in the space.
    """

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._proposals: list[ArchitectureSpec] = []  # by number
        self._told: set[int] = set()
        self._search = Search(study, [architecture for architecture, _ in warm])
        self._learner = Learner(study, warm)

    def ask(self) -> ArchitectureSpec:
        """Propose the next architecture; its number is the number of earlier proposals."""
        architecture = self._search.next(len(self._proposals), self._learner.draw)
        self.adopt(architecture)
        return architecture

    def adopt(self, architecture: ArchitectureSpec) -> None:
        """Take up the next proposal, given: one that an earlier process made."""
        self._learner.show(len(self._proposals), architecture, None)
        self._proposals.append(architecture)
        self._search.add(architecture)

    def tell(self, number: int, result: ProposalResult) -> None:
        """Report the result of a proposal; a second report is ignored."""
        if number not in self._told:
            self._told.add(number)
            self._learner.show(number, self._proposals[number], result)

    def told(self) -> set[int]:
        """Return the numbers of the proposals that have been told."""
        return set(self._told)

    def proposals(self) -> list[ArchitectureSpec]:
        """Return the architectures proposed so far, by number."""
        return list(self._proposals)


class Learner:
    """The trials that the sampler learns from, and draws given these trials."""

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._study, self._space = study, Space(domains_of(study))
        self._past = Past()
        for number, (architecture, values) in enumerate(warm, start=-len(warm) - 1):  # to -2
            self.show(number, architecture, ProposalResult(values))

    def draw(self, seed: int) -> ArchitectureSpec:
        """Return an architecture, a pure function of the seed and the trials shown."""
        if self._study.sampler.name == "random":
            return random_point(self._study, seed)
        seed, past = derive_seed(seed, "family") % 2**32, self._past.trials()
        # Not above: the posterior needs scipy, the other samplers Optuna, and neither the other.
        if self._study.sampler.name == "posterior":
            from nas_evidence.proposing.posterior_sampler import proposed

            return filled(*proposed(self._space, past, seed))
        from nas_evidence.proposing.optuna_samplers import tpe

        return filled(*tpe(self._study, self._space, past, seed))

    def show(
        self, number: int, architecture: ArchitectureSpec, result: ProposalResult | None
    ) -> None:
        """Add proposal `number`, running (no result) or with its result."""
        if architecture.family in self._space.families and self._space.options:
            self._past.put(Trial.of(number, architecture, result))
