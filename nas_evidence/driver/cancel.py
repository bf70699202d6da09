"""Cancel a running study, or one of its trials, from another terminal; wait until it is done."""

import time
from collections.abc import Callable
from pathlib import Path

from nas_evidence.driver.mirror import WorkingCopy
from nas_evidence.driver.status import study_status
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.holding import is_mine
from nas_evidence.storage.log import read_log
from nas_evidence.storage.requests import is_open, request_cancel, request_name, withdraw
from nas_evidence.storage.study_folder import is_locked

#: Seconds between two looks: in a folder, and at a store.
LOOK_EVERY, FETCH_EVERY = 0.5, 5.0


def cancel(
    store: WorkingCopy, trial_id: int | None = None, *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Cancel a trial, or the study if none is given; return one line about the outcome.

    Takes up to one slice; a callback of the study does not wait for it. The study stays intact and
    can be resumed. Of a store it fetches who holds the study and its log; the results only once
    all is over, or to say why there is nothing to cancel.

    Raises:
        ValueError: if the study or the trial is not running.
    """
    folder, store.looking = store.folder, "status"
    of_trial = [] if trial_id is None else ["requests/", "logs/events/"]
    store.check_answers()
    store.look("lock", *of_trial)
    if not is_locked(folder) or not _is_under_way(folder, trial_id):
        store.pull()
        with store.named():
            _check(folder, store.place, trial_id)
    request_cancel(folder, trial_id)
    store.send(request_name(trial_id))
    if is_mine(store.place):
        what = store.place if trial_id is None else f"trial {trial_id}"
        return f"{what}: ends after the current slice"
    while is_locked(folder) and (
        trial_id is None or (is_open(folder, trial_id) and _is_under_way(folder, trial_id))
    ):
        sleep(pause_between_looks(store))
        store.look("lock", *of_trial)
    store.pull()
    withdraw(folder, trial_id)
    if trial_id is None:
        now = study_status(folder)
        return f"{now.name}: {now.state}, {now.n_finished} of {now.n_trials} trials are stored"
    row = read_log(folder).state.rows.get(trial_id)
    if row is None:
        raise UserError(
            "cancel-driver-ended",
            f"the driver of {store.place} ended before it could cancel trial {trial_id}; "
            "resume the study first.",
        )
    return f"trial {trial_id}: {row.status}"


def _is_under_way(folder: Path, trial_id: int | None) -> bool:
    """Return whether a trial has an attempt; the study, which is none, always is."""
    return trial_id is None or trial_id in read_log(folder).state.under_way


def pause_between_looks(store: WorkingCopy) -> float:
    """Return the seconds to wait before looking at a store again."""
    return LOOK_EVERY if store.folder == Path(store.place) else FETCH_EVERY


def _check(folder: Path, place: str, trial_id: int | None) -> None:
    now = study_status(folder)
    if trial_id is not None and (row := read_log(folder).state.rows.get(trial_id)) is not None:
        raise UserError(
            "cancel-trial-ended", f"trial {trial_id} of {place} has already ended ({row.status})."
        )
    if now.state != "running":
        raise UserError(
            "cancel-study-not-running",
            f"{place} is not running ({now.state}), so there is nothing to cancel.",
        )
    if trial_id is not None and trial_id not in now.running:
        running = f"; running: {', '.join(map(str, now.running))}" if now.running else ""
        raise UserError(
            "cancel-trial-not-running", f"trial {trial_id} of {place} is not running{running}."
        )
