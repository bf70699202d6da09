"""Whether every node sees the store of a study: found out by a token, not guessed from paths.

The driver writes a token; a tiny task on each node reads it. A folder on the driver's own disk has
the same path everywhere and the token on one machine only. Workers that cannot see the store could
not hand over a checkpoint, and their trials would be lost with their node, or at once.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.remote import Remote, is_uri

_LOG = logging.getLogger(__name__)
_NAME = "node-token"
#: Called on a node; returns why it cannot use the store, or "".
Look = Callable[[], str]
#: What a look has found at a node that died meanwhile: no worker for it, and no reason to stop.
GONE = "the node was lost"
#: Waits so many seconds for what a look has found; None if it is not there yet.
Answered = Callable[[float], str | None]


class NodeCheck:
    """Knows which nodes see the store.

    Args:
        place: folder or URI.
        ask: starts a look on a node, given by its name.
    """

    def __init__(self, place: str, ask: Callable[[str, Look], Answered]) -> None:
        self._place, self._ask = place, ask
        self._answers: dict[str, Answered] = {}
        self._seeing: set[str] = set()
        token = uuid.uuid4().hex
        self._look = partial(why_blind, place, token)
        if is_uri(place):
            Remote(place).write(_NAME, token.encode())
        else:
            (Path(place) / _NAME).write_text(token)

    def require(self, nodes: Mapping[str, str], *, timeout: float) -> None:
        """Make sure that all nodes, name -> address, see the store.

        Raises:
            ValueError: if one does not; names it by its address.
        """
        answers = {name: self._ask(name, self._look) for name in nodes}
        why = {name: answer(timeout) for name, answer in answers.items()}
        if blind := {nodes[n]: w or "no answer" for n, w in why.items() if w not in ("", GONE)}:
            raise ValueError(refusal(self._place, blind))
        self._seeing = {name for name in nodes if why[name] == ""}

    def sees(self, name: str, address: str) -> bool:
        """Tell whether a node sees the store; of a new one that is known a little later."""
        if name in self._seeing:
            return True
        if name not in self._answers:
            self._answers[name] = self._ask(name, self._look)
        why = self._answers[name](0.0)
        if why == GONE:
            del self._answers[name]  # should it come back, it is asked again
        elif why:
            _LOG.warning("node_refused %s", refusal(self._place, {address: why}))
            self._answers[name] = lambda timeout: None  # said once
        elif why is not None:
            self._seeing.add(name)
        return why == ""

    def close(self) -> None:
        """Remove the token."""
        if is_uri(self._place):
            Remote(self._place).remove([_NAME])
        else:
            (Path(self._place) / _NAME).unlink(missing_ok=True)


def why_blind(place: str, token: str) -> str:
    """Return why this machine cannot use the store that holds the token, or ""."""
    try:
        if is_uri(place):
            read = Remote(place).read(_NAME)
            there = None if read is None else read.decode()
        else:
            path = Path(place) / _NAME
            there = path.read_text() if path.is_file() else None
    except (OSError, StudyStoppedError, ValueError) as error:
        return str(error)
    if there is None:
        return "the folder is not there, or is another one of the same name"
    return "" if there == token else "it is another folder of the same name"


def refusal(place: str, blind: Mapping[str, str]) -> str:
    """Return the message that names the nodes that do not see the store, by address, and why."""
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
