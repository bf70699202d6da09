"""Nodes that lose one trial after another get no new ones while there are others.

A node is suspect once it has lost `MOST_LOSSES` different trials and finished none in between. One
trial that fails wherever it runs makes no node suspect, and if all nodes are, all are used: too
little memory everywhere is no reason to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nas_evidence.workers.packing import Node, fit

#: Different trials that a node may lose in a row.
MOST_LOSSES = 3


@dataclass
class Suspects:
    """What each node has lost since it last finished a trial."""

    _lost: dict[str, set[int]] = field(default_factory=dict)

    def note_loss(self, node: str, trial_id: int) -> bool:
        """Note that a node has lost a trial; return whether that makes it suspect."""
        lost = self._lost.setdefault(node, set())
        before = len(lost)
        lost.add(trial_id)
        return before < MOST_LOSSES <= len(lost)

    def note_end(self, node: str) -> None:
        """Note that a trial has ended on a node as it should."""
        self._lost.pop(node, None)

    def trusted(self, nodes: Sequence[Node], share: float, cpus: float) -> Sequence[Node]:
        """Return the nodes to use: those that are not suspect if a worker fits on one of them.

        Args:
            nodes: all nodes.
            share: of one GPU that the worker needs.
            cpus: that it needs.
        """
        good = [node for node in nodes if len(self._lost.get(node.name, ())) < MOST_LOSSES]
        return good if fit(share, cpus, nodes=good, held=()) is not None else nodes
