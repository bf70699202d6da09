"""Requests to a study at work, from another terminal: empty files in `requests/` of its folder.

    requests/cancel           the study: every trial parks after its slice, and the driver ends
    requests/cancel-000007    one trial: it ends after its slice, with the status `cancelled`

The driver looks before each poll, and removes a file when what it asks for is done. A request for
a trial outlives a crash of the driver; one for the study does not, for it has stopped.
"""

from pathlib import Path

_STUDY = "cancel"


class Requests:
    """What the driver of a study is asked for.

    study   whether the study is to stop
    trials  ids of the trials that are to end
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.study = False
        self.trials: frozenset[int] = frozenset()

    def look(self) -> None:
        """Take note of the requests that are there now."""
        names = {path.name for path in (self._folder / "requests").glob(f"{_STUDY}*")}
        numbers = (name.removeprefix(f"{_STUDY}-") for name in names)
        self.study = _STUDY in names
        self.trials = frozenset(int(number) for number in numbers if number.isdecimal())

    def done(self, trial_id: int | None = None) -> None:
        """Remove the request for a trial that is over, or for the study that has stopped."""
        withdraw(self._folder, trial_id)


def request_cancel(folder: Path, trial_id: int | None = None) -> None:
    """Ask the driver of a study to end one trial, or to stop."""
    path = _path(folder, trial_id)
    path.parent.mkdir(exist_ok=True)
    path.touch()


def is_open(folder: Path, trial_id: int | None = None) -> bool:
    """Tell whether a request still waits for its driver."""
    return _path(folder, trial_id).exists()


def withdraw(folder: Path, trial_id: int | None = None) -> None:
    """Take a request back."""
    _path(folder, trial_id).unlink(missing_ok=True)


def request_name(trial_id: int | None = None) -> str:
    """Return the name of a request, relative to the folder of its study."""
    return "requests/" + (_STUDY if trial_id is None else f"{_STUDY}-{trial_id:06d}")


def _path(folder: Path, trial_id: int | None) -> Path:
    return folder / request_name(trial_id)
