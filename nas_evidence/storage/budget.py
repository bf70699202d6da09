"""How much of its budget a study has used, over all its runs: `logs/budget.json`, sealed.

    wall_seconds     while a driver was running
    device_seconds   summed over workers with a trial, including lost and parked attempts

Both use the executor's clock, which is virtual in a simulation. If the driver is killed, at most
the last `WRITE_EVERY` seconds are not counted. The journal has what had been used at the end of
each trial: that counts where the file is damaged, lost, or older.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.spec.study import BudgetSpec
from nas_evidence.storage.journal import read_journal

#: The file in a study folder.
BUDGET = "logs/budget.json"
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
            write_whole(self._folder / BUDGET, sealed_json(asdict(self.spent)))
            self._written = time.monotonic()


def read_spent(folder: Path) -> Spent:
    """Return what the study in `folder` has used; zero if not known."""
    known = [_in_file(folder) or Spent()]
    for event in read_journal(folder):
        wall, device = event.get("wall_seconds"), event.get("device_seconds")
        if isinstance(wall, int | float) and isinstance(device, int | float):
            known.append(Spent(wall, device))
    return Spent(max(s.wall_seconds for s in known), max(s.device_seconds for s in known))


def _in_file(folder: Path) -> Spent | None:
    path = folder / BUDGET
    try:
        facts = read_sealed_json(path.read_bytes(), path)
        return Spent(float(facts["wall_seconds"]), float(facts["device_seconds"]))
    except (OSError, DamagedError, LookupError, TypeError, ValueError):
        return None
