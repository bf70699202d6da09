"""How much of its budget a study has used, over all its runs: the file `logs/budget.json`.

    wall_seconds     while a driver was running
    device_seconds   summed over workers with a trial, including lost and parked attempts

Both use the executor's clock, which is virtual in a simulation. If the driver is killed, at most
the last `WRITE_EVERY` seconds are not counted.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import BudgetSpec

#: Seconds of real time between two writes of the file.
WRITE_EVERY = 5.0


@dataclass(frozen=True)
class Spent:
    """Seconds used so far."""

    wall_seconds: float = 0.0
    device_seconds: float = 0.0

    def exceeds(self, budget: BudgetSpec) -> bool:
        """Return whether the limit has been reached."""
        limit = budget.wall_seconds
        return limit is not None and self.wall_seconds >= limit


class Ledger:
    """Adds up the seconds used, and writes them to the file now and then."""

    def __init__(self, folder: Path, *, now: float) -> None:
        self._folder, self._last, self._written = folder, now, time.monotonic()
        self.spent = read_spent(folder)

    def account(self, now: float, busy: int, *, write: bool = False) -> None:
        """Charge the time since the last call, during which `busy` workers held a trial."""
        seconds, self._last = max(0.0, now - self._last), now
        self.spent = Spent(
            self.spent.wall_seconds + seconds, self.spent.device_seconds + busy * seconds
        )
        if write or time.monotonic() - self._written > WRITE_EVERY:
            (self._folder / "logs").mkdir(exist_ok=True)
            write_whole(self._folder / "logs" / "budget.json", json.dumps(asdict(self.spent)))
            self._written = time.monotonic()


def read_spent(folder: Path) -> Spent:
    """Return what the study in `folder` has used; zero if not known."""
    try:
        facts = json.loads((folder / "logs" / "budget.json").read_text())
        return Spent(float(facts["wall_seconds"]), float(facts["device_seconds"]))
    except (OSError, ValueError, LookupError, TypeError):
        return Spent()
