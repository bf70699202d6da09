"""The proposer of architectures: a sampler used by one process, seeded by counter.

`order.py` decides what comes first and what is redrawn. A draw is a pure function of the study, a
seed and the results told so far. Nothing is stored here: the driver writes proposals and results
to the log, and restores a proposer from it (docs/decisions/0015-the-log-is-the-record.md).

The posterior over architectures (`posterior_sampler.py`), or a sampler of Optuna or of the user
(`optuna_samplers.py`), sees ordered parameters as quantiles of their domains. A name such as
`width` is one parameter shared by all families, so that they learn from each other;
docs/decisions/0007-shared-names-in-tpe.md compares the alternatives.

Proposal `n` holds the trials `n * replicates + r`.
"""

from collections.abc import Sequence
from functools import cache

from threadpoolctl import ThreadpoolController

from nas_evidence.proposing.order import Search
from nas_evidence.proposing.past import Past, Proposal
from nas_evidence.proposing.past import ProposalResult as ProposalResult
from nas_evidence.proposing.posterior_sampler import PosteriorSampler
from nas_evidence.proposing.startup import filled, random_point, searched_domains
from nas_evidence.proposing.warm_start import Found
from nas_evidence.spec.coordinates import Candidate, Space
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
        """Report the result of a proposal, once."""
        self._learner.show(number, self._proposals[number], result)

    def proposals(self) -> list[ArchitectureSpec]:
        """Return the architectures proposed so far, by number."""
        return list(self._proposals)


class Learner:
    """The trials that the sampler learns from, and draws given these trials."""

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._study, self._space = study, Space(searched_domains(study))
        self._past, self._all = Past(), dict[int, Proposal]()
        is_posterior = study.sampler.name == "posterior"
        self._posterior = PosteriorSampler(self._space) if is_posterior else None
        self._is_named = bool(study.sampler.of_optuna or study.sampler.own)
        if self._is_named:
            from nas_evidence.proposing.optuna_samplers import check_sampler

            check_sampler(study)
        for number, (architecture, values) in enumerate(warm, start=-len(warm) - 1):  # to -2
            self.show(number, architecture, ProposalResult(values))

    def draw(self, seed: int) -> ArchitectureSpec:
        """Return an architecture, a pure function of the seed and the trials shown."""
        if self._study.sampler.name == "random":
            return random_point(self._study, seed)
        seed = derive_seed(seed, "family") % 2**32
        with _threads().limit(limits=1, user_api="blas"):
            return filled(*self._drawn(seed))

    def _drawn(self, seed: int) -> Candidate:
        if self._posterior is not None:
            return self._posterior.propose(self._past.trials(), seed)
        from nas_evidence.proposing.optuna_samplers import named, tpe

        if self._is_named:
            past = [trial for _, trial in sorted(self._all.items())]
            return named(self._study, self._space, past, seed)
        return tpe(self._study, self._space, self._past.trials(), seed)

    def show(
        self, number: int, architecture: ArchitectureSpec, result: ProposalResult | None
    ) -> None:
        """Add proposal `number`, running (no result) or with its result."""
        if architecture.family in self._space.families and self._space.options:
            self._all[number] = trial = Proposal.of(number, architecture, result)
            self._past.put(trial)


@cache
def _threads() -> ThreadpoolController:
    """Return a handle of the threads of the linear algebra, which takes milliseconds to find.

    Draws are computed in one thread: sums in several may end in other digits, and a proposal is
    to be the same however many threads a process has.
    """
    return ThreadpoolController()
