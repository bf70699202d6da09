"""How much of its budget a study has used, over all its runs, on the clock of the executor."""

import time
from dataclasses import asdict

from nas_evidence.storage.events import Used
from nas_evidence.storage.log import Log
from nas_evidence.storage.state import Spent

#: Seconds of real time between two lines; a killed driver loses at most so much of the count.
WRITE_EVERY = 10.0


class Ledger:
    """Adds up the seconds used, and writes them to the log now and then."""

    def __init__(self, log: Log, *, now: float) -> None:
        self._log, self._last, self._written = log, now, time.monotonic()
        self.spent = log.state.spent

    def account(self, now: float, busy: int) -> None:
        """Charge the time since the last call, during which `busy` workers held a trial."""
        seconds, self._last = max(0.0, now - self._last), now
        self.spent = Spent(
            self.spent.wall_seconds + seconds, self.spent.device_seconds + busy * seconds
        )
        if time.monotonic() - self._written > WRITE_EVERY:
            self._log.write(Used(**asdict(self.spent)))
            self._written = time.monotonic()
