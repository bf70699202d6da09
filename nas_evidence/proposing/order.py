"""Which architecture comes next: the start, then a sequence or draws, each architecture once.

A proposal equal to an earlier architecture is drawn again; after a few such draws in a row a
quasi-random one that is new is taken, because a sampler's mode may be a single architecture. When
the space is used up, a proposal becomes the next replicate of what was drawn, or in a sequence of
the architecture with the fewest.
"""

from collections.abc import Callable, Iterable, Iterator

from nas_evidence.proposing.startup import grid_points, quasi_random_points, startup_points
from nas_evidence.spec import ArchitectureSpec, StudySpec, derive_seed

#: Known architectures drawn in a row before a quasi-random one is taken.
MAX_REPETITIONS = 3


class Search:
    """What was proposed so far, by architecture; `known` ones count as seen, not as proposed."""

    def __init__(self, study: StudySpec, known: Iterable[ArchitectureSpec] = ()) -> None:
        known = list(known)
        self._study = study
        self._counts = {architecture.key: 0 for architecture in known}  # proposals of each
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
        """Take note of a proposal."""
        if not self._counts.get(architecture.key):
            self._different.append(architecture)
        self._counts[architecture.key] = self._count(architecture) + 1

    def _new(self, points: Iterator[ArchitectureSpec]) -> ArchitectureSpec | None:
        return next((point for point in points if point.key not in self._counts), None)

    def _count(self, architecture: ArchitectureSpec) -> int:
        return self._counts.get(architecture.key, 0)
