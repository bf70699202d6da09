"""Requests to a running study from another terminal: empty files in `requests/` of its folder.

    requests/cancel           the study: every trial parks after its slice, and the driver ends
    requests/cancel-000007    one trial: it ends after its slice, with the status `cancelled`

The driver looks before each poll, and removes a file once the request is done. A request for a
trial survives a crash of the driver; one for the study does not, since the study has stopped.
"""

from pathlib import Path

from nas_evidence.plumbing.removal import remove

_STUDY = "cancel"


class Requests:
    """The open requests to the driver of a study.

    study   whether to stop the study
    trials  ids of the trials to end
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.study = False
        self.trials: frozenset[int] = frozenset()

    def look(self) -> None:
        """Read the current requests."""
        names = {path.name for path in (self._folder / "requests").glob(f"{_STUDY}*")}
        numbers = (name.removeprefix(f"{_STUDY}-") for name in names)
        self.study = _STUDY in names
        self.trials = frozenset(int(number) for number in numbers if number.isdecimal())

    def done(self, trial_id: int | None = None) -> None:
        """Remove the request for a trial that has ended, or for the stopped study."""
        withdraw(self._folder, trial_id)


def request_cancel(folder: Path, trial_id: int | None = None) -> None:
    """Ask the driver of a study to end one trial, or to stop."""
    path = folder / request_name(trial_id)
    path.parent.mkdir(exist_ok=True)
    path.touch()


def is_open(folder: Path, trial_id: int | None = None) -> bool:
    """Return whether a request is still waiting for the driver."""
    return (folder / request_name(trial_id)).exists()


def withdraw(folder: Path, trial_id: int | None = None) -> None:
    """Withdraw a request."""
    remove(folder / request_name(trial_id))


def request_name(trial_id: int | None = None) -> str:
    """Return the name of a request, relative to the folder of its study."""
    return "requests/" + (_STUDY if trial_id is None else f"{_STUDY}-{trial_id:06d}")
