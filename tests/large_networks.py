"""A worker for which every network is large, so that its folds may be tasks of their own."""

from typing import Any

from nas_evidence.spec import divisions
from nas_evidence.workers.worker import Worker


class LargeWorker(Worker):
    """It changes a process that is its own."""

    def __init__(self, *given: Any, **how: Any) -> None:
        divisions.APART_FLOPS = divisions.APART_DATA = 0.0
        super().__init__(*given, **how)
