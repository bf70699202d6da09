"""A study as a job on a Ray cluster: submit, follow, stop and resubmit it.

A study named `demo` runs as the jobs `nas-demo-1`, `nas-demo-2`, ..., at most one of them alive:
Ray refuses an id it has seen. Ray never restarts a job, and loses all jobs with the head node.
Neither does harm: the job's command creates or resumes the study, and its state is in the store.
Uses Ray's jobs only through the protocol `Client`; `submit.py` connects.
"""

import hashlib
import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nas_evidence.plumbing.user_error import UserError

#: Seconds between SIGTERM and SIGKILL for a stopped job; Ray's default is 3 s.
STOP_SECONDS = 120
#: Seconds between two looks at a job, and seconds without an answer before following gives up.
LOOK_EVERY, PATIENCE = 1.0, 60.0
_ALIVE = ("PENDING", "RUNNING")
_STUDY, _STORE = "nas_evidence_study", "nas_evidence_store"


class UnreachableError(UserError):
    """The cluster does not answer, or its answer makes no sense."""


class IdTakenError(UserError):
    """A job with this id already exists."""


@dataclass(frozen=True)
class Job:
    """A job of a study, as the cluster describes it; `state` is Ray's."""

    id: str
    study: str
    store: str
    state: str
    message: str = ""

    @property
    def alive(self) -> bool:
        """Return whether the job is waiting or running."""
        return self.state in _ALIVE

    @property
    def cause(self) -> str:
        """Return why it failed as one line; "" while it runs, or if nobody knows."""
        lines = self.message.strip().splitlines() if self.state == "FAILED" else []
        if lines and (ended := re.search(r"failed with exit code -(\d+)", lines[0])):
            # What it had printed last says nothing of its end.
            return f"its driver was killed by signal {ended[1]}, without a last word"
        return lines[-1] if lines else ""


class Submitted(NamedTuple):
    """The job of a study; whether it is new, and the one before it, None for the first."""

    job: Job
    is_new: bool
    before: Job | None


class NotReadyError(UnreachableError):
    """The cluster has just started and accepts no jobs yet."""


class Client(Protocol):
    """The calls used of a cluster's job server. Each may raise `UnreachableError`."""

    def jobs(self) -> list[tuple[str, Mapping[str, str], str, str]]:
        """Return id, metadata, state and message of every job, in no particular order."""

    def submit(
        self,
        command: str,
        *,
        job_id: str,
        folder: str | None,
        environment: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job in a copy of `folder`; raises `IdTakenError`, `NotReadyError`."""

    def stop(self, job_id: str) -> None:
        """Send a job SIGTERM, and SIGKILL if it does not end in time."""

    def logs(self, job_id: str) -> str:
        """Return what a job has printed so far."""

    def tail(self, job_id: str) -> Iterator[str]:
        """Yield what a job prints, from its first word on and as it arrives, to its end.

        Yields "" when nothing arrived for a while; may end early.
        """


def slug(name: str) -> str:
    """Return a name reduced to letters, digits, dot, dash and underscore.

    >>> slug("my study / 2")
    'my-study-2'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "study"


def namespace_of(name: str, store: str) -> str:
    """Return the namespace of a study's actors, unique to the study."""
    return f"nas-{slug(name)}-{hashlib.sha256(store.encode()).hexdigest()[:8]}"


def jobs_of(client: Client, name: str) -> list[Job]:
    """Return the jobs of a study, the latest last."""
    found = []
    for job_id, metadata, state, message in client.jobs():
        if number := re.fullmatch(rf"nas-{re.escape(slug(name))}-(\d+)", job_id):
            store = metadata.get(_STORE, "")
            found.append((int(number[1]), Job(job_id, name, store, state, message)))
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def latest_job(client: Client, name: str) -> Job:
    """Return the latest job of a study.

    Raises:
        ValueError: the cluster has no such study.
    """
    if jobs := jobs_of(client, name):
        return jobs[-1]
    known = sorted({m[_STUDY] for _, m, _, _ in client.jobs() if _STUDY in m})
    raise UserError(
        f"the cluster knows no study named '{name}' (known: {', '.join(known) or 'none'}). "
        "A cluster forgets its studies when its head restarts: submit the study again with its "
        "store to resume it."
    ).with_code("cluster-knows-no-study")


def submit_study(
    client: Client,
    name: str,
    store: str,
    *,
    arguments: Sequence[str],
    folder: str | None,
    sleep: Callable[[float], None] = time.sleep,
) -> Submitted:
    """Start the job of a study unless one is alive.

    Args:
        client: Client of the cluster.
        name: Name of the study on the cluster.
        store: Study folder or URI, as the nodes see it.
        arguments: Arguments of `nas-evidence`, which create or resume the study.
        folder: Folder with the files to send, or None.
        sleep: Called between two tries.

    Raises:
        ValueError: the cluster knows a study of this name with another store, alive or not: a
            job may have died before its driver could say a word.
    """
    n_tries = 0
    while True:
        jobs = jobs_of(client, name)
        before = jobs[-1] if jobs else None
        if jobs and jobs[-1].store != store:
            raise UserError(_about_name(jobs[-1], store)).with_code("name-in-use")
        if jobs and jobs[-1].alive:
            return Submitted(jobs[-1], False, None)
        number = int(jobs[-1].id.rpartition("-")[2]) + 1 if jobs else 1
        job = Job(f"nas-{slug(name)}-{number}", name, store, "PENDING")
        try:
            client.submit(
                command(arguments),
                job_id=job.id,
                folder=folder,
                environment={"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
                metadata={_STUDY: name, _STORE: store},
            )
        except (IdTakenError, NotReadyError):  # somebody was faster: the next try finds that job
            n_tries += 1
            if n_tries * LOOK_EVERY > PATIENCE:
                raise
            sleep(LOOK_EVERY)
        else:
            return Submitted(job, True, before)


def _about_name(job: Job, store: str) -> str:
    if job.alive:
        does = f"runs on the cluster with the store {job.store}"
    else:
        why = f": {job.cause}" if job.cause else ""
        does = f"is known to the cluster with the store {job.store} ({job.id} {job.state}{why})"
    return f"a study named '{job.study}' {does}, not {store}; give this one another --name."


def study_of_this_job() -> str | None:
    """Return the name on the cluster of the study whose job this process is; None elsewhere."""
    try:
        job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        return str(job["metadata"][_STUDY])
    except (ValueError, LookupError, TypeError):
        return None


def command(arguments: Sequence[str]) -> str:
    """Return a shell command that replaces its shell with `nas-evidence`."""
    return "exec " + shlex.join(["python", "-m", "nas_evidence", *arguments])


def follow(
    client: Client, job: Job, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | Job]:
    """Yield what a job prints, whole lines as they arrive, and finally the ended job.

    The cluster streams it. If the connection breaks, it is opened again, and what was yielded
    before is skipped.

    Raises:
        UnreachableError: no answer for a minute.
    """
    n_seen = n_failed = 0  # characters that were yielded, and tries without an answer since
    while True:
        rest, skipped = "", n_seen
        try:
            now = _now(client, job)
            for new in client.tail(job.id) if now else ():
                if not new and ((now := _now(client, job)) is None or not now.alive):
                    break
                skipped, new = max(0, skipped - len(new)), new[skipped:]
                lines, newline, rest = (rest + new).rpartition("\n")
                if newline:
                    n_seen, n_failed = n_seen + len(lines) + 1, 0
                    yield lines + newline
            now = _now(client, job)
        except UnreachableError:
            n_failed += 1
            if n_failed * LOOK_EVERY > PATIENCE:
                raise
            sleep(LOOK_EVERY)
            continue
        if now is None:
            raise UnreachableError(
                f"the cluster no longer knows the job {job.id}: its head was restarted. "
                "Submit the study again with its store to resume it."
            ).with_code("job-forgotten")
        if not now.alive:
            if rest:
                yield rest
            yield now
            return
        sleep(LOOK_EVERY)


def _now(client: Client, job: Job) -> Job | None:
    return next((one for one in jobs_of(client, job.study) if one.id == job.id), None)


def ask_there(client: Client, arguments: Sequence[str], *, folder: str | None) -> tuple[str, Job]:
    """Run `nas-evidence` on the cluster, which can see the store; return what it printed."""
    name = f"ask-{uuid.uuid4().hex[:12]}"
    job = Job(f"nas-{name}-1", name, "", "PENDING")
    client.submit(command(arguments), job_id=job.id, folder=folder, environment={}, metadata={})
    *said, over = follow(client, job)
    assert isinstance(over, Job)
    return "".join(map(str, said)), over
