"""Check that every node sees the study's store, by reading a token there.

The driver writes a token and a tiny task on each node reads it. Paths prove nothing: a folder on
the driver's local disk may exist under the same path on every node, but only one holds the token.
A worker that cannot see the store cannot hand over checkpoints, so its trials would be lost.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.store import Store, is_uri

_LOG = logging.getLogger(__name__)
_NAME = "node-token"
#: Runs on a node; returns why it cannot use the store, or "".
Look = Callable[[], str]
#: The answer for a node that died in the meantime: it gets no worker, but the study goes on.
NODE_LOST = "the node was lost"
#: Waits up to the given number of seconds for the answer; None if it has not arrived.
Answered = Callable[[float], str | None]


class NodeCheck:
    """Finds out which nodes see the store.

    Args:
        place: folder or URI.
        ask: starts a check on the named node.
    """

    def __init__(self, place: str, ask: Callable[[str, Look], Answered]) -> None:
        self._place, self._ask = place, ask
        self._answers: dict[str, Answered] = {}
        self._seeing: set[str] = set()
        token = uuid.uuid4().hex
        self._look = partial(why_unseen, place, token)
        Store(place).put(_NAME, token.encode())

    def require(self, nodes: Mapping[str, str], *, timeout: float) -> None:
        """Raise unless all nodes, name -> address, see the store.

        Raises:
            ValueError: if one does not; the message gives its address.
        """
        answers = {name: self._ask(name, self._look) for name in nodes}
        why = {name: answer(timeout) for name, answer in answers.items()}
        if blind := {
            nodes[n]: w or "no answer" for n, w in why.items() if w not in ("", NODE_LOST)
        }:
            raise UserError(refusal(self._place, blind)).with_code("nodes-cannot-see")
        self._seeing = {name for name in nodes if why[name] == ""}

    def sees(self, name: str, address: str) -> bool:
        """Return whether a node sees the store; False for a new node until it has answered."""
        if name in self._seeing:
            return True
        if name not in self._answers:
            self._answers[name] = self._ask(name, self._look)
        why = self._answers[name](0.0)
        if why == NODE_LOST:
            del self._answers[name]  # if it comes back, it is asked again
        elif why:
            _LOG.warning("node_refused %s", refusal(self._place, {address: why}))
            self._answers[name] = lambda timeout: None  # log it once
        elif why is not None:
            self._seeing.add(name)
        return why == ""

    def close(self) -> None:
        """Remove the token."""
        Store(self._place).delete([_NAME])


def why_unseen(place: str, token: str) -> str:
    """Return why this machine cannot use the store that holds the token, or ""."""
    try:
        there = Store(place).get(_NAME)
    except (StudyStoppedError, ValueError) as error:
        return str(error)
    if there is None:
        return "the folder does not exist there, or is another one of the same name"
    return "" if there == token.encode() else "it is another folder of the same name"


def refusal(place: str, blind: Mapping[str, str]) -> str:
    """Return the error message: which nodes, by address, do not see the store, and why."""
    nodes = "; ".join(f"node {address}: {why}" for address, why in sorted(blind.items()))
    if is_uri(place):
        return (
            f"the store {place} must be usable on every node, but it is not on {len(blind)}: "
            f"{nodes}. Give those nodes the address, credentials and packages that this one has."
        )
    return (
        f"the study must be stored where every node sees it, but {place} is not seen on "
        f"{len(blind)}: {nodes}. Give a folder that all nodes share with --out, or --store URI."
    )
