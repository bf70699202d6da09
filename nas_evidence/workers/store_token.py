"""Does a worker see the study's store? It reads a token there before it gets a trial.

Paths prove nothing: a folder on the driver's local disk may exist under the same path on every
node, but only one holds the token that the driver has written. A worker that cannot see the store
cannot hand over checkpoints, so its trials would be lost.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.store import Store, is_uri

_NAME = "node-token"


@contextmanager
def token_in(place: str) -> Iterator[str]:
    """Leave a token in a folder or at a URI during the block."""
    token, store = uuid.uuid4().hex, Store(place)
    store.put(_NAME, token.encode())
    try:
        yield token
    finally:
        store.delete([_NAME])


def why_unseen(place: str, token: str) -> str:
    """Return why this machine cannot use the store that holds the token, or ""."""
    try:
        there = Store(place).get(_NAME)
    except (OSError, StudyStoppedError, ValueError) as error:
        return str(error)
    if there is None:
        return "the folder does not exist there, or is another one of the same name"
    return "" if there == token.encode() else "it is another folder of the same name"


def refusal(place: str, address: str, why: str) -> str:
    """Return the error message: which node does not see the store, and why."""
    if is_uri(place):
        return (
            f"the store {place} must be usable on every node, but it is not on the node at "
            f"{address}: {why}. Give it the address, credentials and packages that this one has."
        )
    return (
        f"the study must be stored where every node sees it, but {place} is not seen on the node "
        f"at {address}: {why}. Give a folder that all nodes share as `out`, or the URI of a store."
    )
