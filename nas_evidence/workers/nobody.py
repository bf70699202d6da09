"""An executor without workers, for a driver that only takes up what is stored."""

from nas_evidence.workers.executor import Event, Launch, Verdict


class Nobody:
    """Runs nothing; time passes only while the driver waits."""

    free = 0

    def __init__(self) -> None:
        self._seconds = 0.0

    def poll(self, timeout: float) -> list[Event]:
        """Let `timeout` seconds pass."""
        self._seconds += timeout
        return []

    def now(self) -> float:
        """Return the seconds that have passed."""
        return self._seconds

    def idle_share(self) -> float:
        """Return 0: nobody waits."""
        return 0.0

    def close(self) -> None:
        """Return at once."""

    def launch(self, launch: Launch) -> None:
        """Refuse: no worker is free."""
        raise AssertionError(f"no worker is free for trial {launch.assignment.trial_id}")

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Refuse: no trial runs."""
        raise AssertionError(f"trial {trial_id} does not run")

    def park(self, trial_id: int) -> None:
        """Refuse: no trial runs."""
        raise AssertionError(f"trial {trial_id} does not run")

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Refuse: no trial runs."""
        raise AssertionError(f"trial {trial_id} does not run")
