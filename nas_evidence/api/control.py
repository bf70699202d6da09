"""A study that somebody runs, here or as a job on a cluster: its status, and how to stop it.

If a store cannot be seen from here, a small job on the cluster reads it.
"""

import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas_evidence.jobs.code_package import package_to_send, write_package
from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import ask_there, follow, latest_job
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import architecture_text

if TYPE_CHECKING:  # ray and the stores are imported where needed
    from nas_evidence.driver.mirror import Looking, WorkingCopy
    from nas_evidence.jobs.client import RayClient


@dataclass(frozen=True)
class Status:
    """The status of a study.

    name           of the study
    state          "running", "stopped", "budget spent" or "finished"
    n_trials       of the search
    n_finished     of these
    by_status      finished trials, those of the race too, by how they ended
    running        ids of the trials under way
    architectures  of these, by id as text
    best           its `trial_id`, the value that ranks it by its column (the objective or
                   `estimate`), the `unit`, `ranked_by`, and its `architecture` in words; None
                   while none ranks
    held_by        the process that works on it
    waits_for      what a running study waits for before a trial can run, such as
                   "2 workers, 0 of 2 CPUs free"
    submitted      where its last run was submitted: `address`, `name` and `store`; None if it ran
                   from a command line or from Python
    resume         the command that continues it, or the call in Python where only a script has
                   its code
    job            the job on the cluster, with `job_state` and `store`; None of a folder
    """

    name: str
    state: str
    n_trials: int
    n_finished: int
    by_status: dict[str, int]
    running: list[int]
    architectures: dict[str, str]
    best: dict[str, Any] | None
    held_by: str | None = None
    waits_for: str | None = None
    submitted: dict[str, str] | None = None
    resume: str = ""
    job: str | None = None
    job_state: str | None = None
    store: str | None = None

    def to_json(self) -> str:
        """Return it as JSON; without a job nothing is said of one."""
        of_job = ("job", "job_state", "store")
        shown = {k: v for k, v in vars(self).items() if self.job or k not in of_job}
        return json.dumps(shown, indent=1)


@dataclass(frozen=True)
class There:
    """Where a study is: its folder or the URI of its store, and the job that a cluster has of it.

    named   as it was named
    """

    named: str
    store: str
    client: "RayClient | None" = None
    job: Job | None = None

    @cached_property
    def is_seen(self) -> bool:
        """Whether it can be read here."""
        return self.job is None or is_seen(self.store)

    def asked(self, verb: str, *words: str, trial_id: int | None = None) -> str:
        """Return what a small job on the cluster prints when it is asked with these words."""
        assert self.client is not None
        words = (verb, *words, "--", self.store, *([] if trial_id is None else [str(trial_id)]))
        with tempfile.TemporaryDirectory(prefix="nas-evidence-") as folder:
            size = write_package(Path(folder), None, package=package_to_send())
            text, job = ask_there(self.client, words, folder=folder if size else None)
        if job.state != "SUCCEEDED":
            lines = text.strip().splitlines()
            raise UserError(
                "job-failed",
                lines[-1].removeprefix("error: ")
                if lines
                else f"the job {job.id} failed: {job.message}",
            )
        return text


def warn_user(line: str) -> None:
    """Warn with a sentence."""
    warnings.warn(line, UserWarning, stacklevel=3)


def there(
    place: str | Path | None,
    address: str | None,
    name: str | None,
    warn: Callable[[str], None] = warn_user,
) -> There:
    """Return where a study is, by its folder or URI, or by its name on a cluster.

    Raises:
        ValueError: for neither, or if the cluster does not know it.
    """
    if (address is None) != (name is None):
        raise UserError("address-without-name", "`address` and `name` must be given together.")
    if address is None:
        if place is None:
            raise UserError(
                "no-folder-and-no-name",
                "give a study folder, or `address` and `name` of a study on a cluster.",
            )
        return There(str(place), str(place))
    assert name is not None
    client = connect(address, warn)
    job = latest_job(client, name)
    return There(name, job.store, client, job)


def is_seen(place: str) -> bool:
    """Return whether the study of a job can be read here too."""
    from nas_evidence.driver.mirror import working_copy

    with suppress(ValueError):
        store = working_copy(place)
        store.check_answers()
        store.look("study.toml")
        return (store.folder / "study.toml").is_file()
    return False


def connect(address: str, warn: Callable[[str], None]) -> "RayClient":
    """Return the client of a cluster; warn if a token is sent unencrypted."""
    from nas_evidence.jobs.client import RayClient

    client = RayClient(address)
    if client.sends_token_in_clear:
        through = f" through the proxy {client.proxy}" if client.proxy else ""
        warn(f"the token is sent unencrypted to {address}{through}; use https or an SSH tunnel")
    return client


def opened(place: str, *, looking: "Looking | None" = None) -> "WorkingCopy":
    """Return a study after fetching it, or only what somebody looks at."""
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.study_folder import read_study

    store = working_copy(place)
    store.looking = looking
    store.check_answers()
    store.pull()
    if store.uri is not None and not (store.folder / "study.toml").is_file():
        raise UserError(
            "no-study-in-store", f"there is no study at {store.uri}: it has no study.toml."
        )
    with store.named():
        read_study(store.folder)
    return store


def status(
    place: str | Path | None = None,
    *,
    address: str | None = None,
    name: str | None = None,
    warn: Callable[[str], None] = warn_user,
) -> Status:
    """Return the status of a study: its state, its trials, and the best so far.

    Args:
        place: a study folder, or the URI of a store.
        address: URL of the dashboard of a Ray cluster, with the `name` of the study there.
        name: of the study on the cluster.
        warn: called with a sentence if a token is sent unencrypted; by default it warns.

    Raises:
        ValueError: if it is no study, or if the cluster does not know it.

    Example:
        nas_evidence.status("runs/digits").n_finished  # 12
    """
    return status_of(there(place, address, name, warn))


def status_of(at: There) -> Status:
    """Return the status of a study by where it is."""
    if at.is_seen:
        facts = status_in(opened(at.store, looking="status"))
    else:
        facts = facts_in(at.asked("status", "--json"))
    if at.job is not None:
        facts |= {"job": at.job.id, "job_state": at.job.state.lower(), "store": at.job.store}
    known = Status.__dataclass_fields__  # a cluster may run a later version
    return Status(**{name: value for name, value in facts.items() if name in known})


def status_in(store: "WorkingCopy") -> dict[str, Any]:
    """Return the values of `Status` that a folder has."""
    from nas_evidence.driver.status import study_status
    from nas_evidence.storage.kept_submission import read_submission, resume_command
    from nas_evidence.storage.study_folder import read_study

    now, submitted = study_status(store.folder), read_submission(store.folder)
    spec = read_study(store.folder)
    more = f"budget.wall_seconds={2 * (spec.budget.wall_seconds or 0):g}"
    more_of_it = [more] * (now.state == "budget spent")
    best = None
    if now.best is not None:
        words = architecture_text(now.best.family, now.best.architecture.values)
        best = {"trial_id": now.best.trial_id, now.column: now.value, "unit": now.unit,
                "ranked_by": now.ranks_by, "architecture": words}  # fmt: skip
    return {
        "name": now.name,
        "state": now.state,
        "n_trials": now.n_trials,
        "n_finished": now.n_finished,
        "by_status": now.by_status,
        "running": list(now.running),
        "architectures": {str(i): str(architecture) for i, architecture in now.running.items()},
        "best": best,
        "held_by": None if now.holder is None else str(now.holder),
        "waits_for": now.waits_for or None,
        "submitted": None if submitted is None else asdict(submitted),
        "resume": resume_command(store.place, store.folder, spec, *more_of_it),
    }


def facts_in(printed: str) -> dict[str, Any]:
    r"""Return the JSON in what a job has printed; lines of Ray's log may precede and follow it.

    >>> facts_in('2026-11-22 INFO connecting\n{\n "name": "digits"\n}\nINFO done\n')
    {'name': 'digits'}

    Raises:
        ValueError: if there is none; quotes the last line.
    """
    lines = printed.splitlines(keepends=True)
    for start in (i for i, line in enumerate(lines) if line.startswith("{")):
        with suppress(json.JSONDecodeError):
            found, _ = json.JSONDecoder().raw_decode("".join(lines[start:]))
            return dict(found)
    last = printed.strip().splitlines()[-1:] or ["nothing"]
    raise UserError(
        "cluster-status-unknown",
        f"the cluster did not tell the status of the study; it said: {last[0]}",
    )


def cancel(
    place: str | Path | None = None,
    trial_id: int | None = None,
    *,
    address: str | None = None,
    name: str | None = None,
    warn: Callable[[str], None] = warn_user,
) -> str:
    """Stop a running study after the current slice, or end one trial; return how it ended.

    Nothing is lost: `resume` continues the study. In a callback of the study it returns at once;
    the study or the trial ends after the current slice.

    Args:
        place: a study folder, or the URI of a store.
        trial_id: of the only trial to end.
        address: URL of the dashboard of a Ray cluster, with the `name` of the study there.
        name: of the study on the cluster.
        warn: called with a sentence if a token is sent unencrypted; by default it warns.

    Raises:
        ValueError: if the study or the trial does not run.

    Example:
        nas_evidence.cancel("runs/digits")  # "digits: stopped, 3 of 12 trials are stored"
    """
    return cancelled(there(place, address, name, warn), trial_id)


def cancelled(at: There, trial_id: int | None) -> str:
    """Stop a study, or one of its trials, by where it is; return how it ended."""
    from nas_evidence.driver.cancel import cancel as cancel_and_wait
    from nas_evidence.driver.mirror import working_copy

    if at.job is None:
        return cancel_and_wait(working_copy(at.store), trial_id)
    assert at.client is not None
    if not at.job.alive:
        raise UserError(
            "job-already-ended", f"the job {at.job.id} has already ended ({at.job.state.lower()})."
        )
    if trial_id is None:
        at.client.stop(at.job.id)
        *_, now = follow(at.client, at.job)
        assert isinstance(now, Job)
        return job_line(now)
    if at.is_seen:
        return cancel_and_wait(working_copy(at.store), trial_id)
    return at.asked("cancel", trial_id=trial_id).rstrip("\n")


def job_line(job: Job) -> str:
    """Return a line about a job: its id, its state and its store."""
    why = f" ({job.cause})" if job.cause else ""
    return f"job:    {job.id} {job.state.lower()}{why}, store {job.store}"
