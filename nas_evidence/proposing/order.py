"""The order of proposals: start-up points, then a sequence or draws, each architecture once.

A draw that repeats an earlier architecture is redrawn; after a few repeats in a row a new
quasi-random architecture is taken, because a sampler's mode may be a single architecture. When the
space is exhausted, a proposal becomes the next replicate of the architecture drawn or, in a
sequence, of the architecture with the fewest replicates.
"""

from collections.abc import Callable, Iterable, Iterator

from nas_evidence.proposing.startup import grid_points, quasi_random_points, startup_points
from nas_evidence.spec.study import ArchitectureSpec, StudySpec, derive_seed

#: Repeated draws in a row before a quasi-random architecture is taken.
MAX_REPETITIONS = 3


class Search:
    """Counts proposals by architecture; `known` ones count as seen, not as proposed."""

    def __init__(self, study: StudySpec, known: Iterable[ArchitectureSpec] = ()) -> None:
        known = list(known)
        self._study = study
        self._counts = {
            architecture.key: 0 for architecture in known
        }  # number of proposals of each
        self._different: list[ArchitectureSpec] = []  # proposals without repetition
        self._start = iter(startup_points(study, known))
        self._in_order = study.sampler.name in ("qmc", "grid")
        grid = study.sampler.name == "grid"
        self._sequence = grid_points(study) if grid else quasi_random_points(study)

    def next(self, number: int, draw: Callable[[int], ArchitectureSpec]) -> ArchitectureSpec:
        """Return the architecture of proposal `number`; `draw` is the sampler, given a seed."""
        if point := self._new(self._start):
            return point
        if self._in_order:
            return self._new(self._sequence) or min(self._different, key=self._count)
        for repetition in range(MAX_REPETITIONS):
            drawn = draw(derive_seed(self._study.seed, "sampler", number, repetition))
            if drawn.key not in self._counts:
                return drawn
        return self._new(self._sequence) or drawn

    def add(self, architecture: ArchitectureSpec) -> None:
        """Add a proposal."""
        if not self._counts.get(architecture.key):
            self._different.append(architecture)
        self._counts[architecture.key] = self._count(architecture) + 1

    def _new(self, points: Iterator[ArchitectureSpec]) -> ArchitectureSpec | None:
        return next((point for point in points if point.key not in self._counts), None)

    def _count(self, architecture: ArchitectureSpec) -> int:
        return self._counts.get(architecture.key, 0)
