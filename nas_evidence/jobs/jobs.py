"""A study as a job on a Ray cluster: submit, follow, stop and resubmit it.

A study named `demo` runs as the jobs `nas-demo-1`, `nas-demo-2`, ..., at most one of them alive:
Ray refuses an id it has seen. Ray never restarts a job, and loses all jobs with the head node.
Neither does harm: the job's command creates or resumes the study, and its state is in the store.
`client.py` connects.
"""

import hashlib
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nas_evidence.jobs.job import (
    ADDRESS,
    STORE,
    STUDY,
    IdTakenError,
    Job,
    NotReadyError,
    UnreachableError,
)
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.kept_submission import Submission

if TYPE_CHECKING:
    from nas_evidence.jobs.client import RayClient

#: Seconds between SIGTERM and SIGKILL for a stopped job; Ray's default is 3 s.
STOP_SECONDS = 120
#: Seconds between two looks at a job, and seconds without an answer before following gives up.
LOOK_EVERY, PATIENCE = 1.0, 60.0
#: What Ray itself prints into the log of a job; warnings and errors are for whoever follows it.
_OF_RAY = re.compile(
    r"^(?:[\d-]+ [\d:,]+\t(?:INFO|DEBUG) \w+\.py:\d+ -- |Running entrypoint for job ).*\n", re.M
)


class Submitted(NamedTuple):
    """The job of a study; whether it is new, and the one before it, None for the first."""

    job: Job
    is_new: bool
    before: Job | None


def slug(name: str) -> str:
    """Return a name reduced to letters, digits, dot, dash and underscore.

    >>> slug("my study / 2")
    'my-study-2'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "study"


def namespace_of(name: str, store: str) -> str:
    """Return the namespace of a study's actors, unique to the study."""
    return f"nas-{slug(name)}-{hashlib.sha256(store.encode()).hexdigest()[:8]}"


def jobs_of(client: "RayClient", name: str) -> list[Job]:
    """Return the jobs of a study, the latest last."""
    pattern = re.compile(rf"nas-{re.escape(slug(name))}-(\d+)")
    found = [(int(n[1]), job) for job in client.jobs() if (n := pattern.fullmatch(job.id))]
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def latest_job(client: "RayClient", name: str) -> Job:
    """Return the latest job of a study.

    Raises:
        ValueError: the cluster has no such study.
    """
    if jobs := jobs_of(client, name):
        return jobs[-1]
    known = sorted({job.study for job in client.jobs() if job.study})
    raise UserError(
        "cluster-knows-no-study",
        f"the cluster knows no study named '{name}' (known: {', '.join(known) or 'none'}). "
        "A cluster forgets its studies when its head restarts: submit the study again with its "
        "store to resume it.",
    )


def submit_study(
    client: "RayClient",
    name: str,
    store: str,
    *,
    arguments: Sequence[str],
    folder: str | None,
    address: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> Submitted:
    """Start the job of a study unless one is alive.

    Args:
        client: Client of the cluster.
        name: Name of the study on the cluster.
        store: Study folder or URI, as the nodes see it.
        arguments: Arguments of `nas-evidence`, which create or resume the study.
        folder: Folder with the files to send, or None.
        address: Of the dashboard, for the hints of the job.
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
            raise UserError("name-in-use", _about_name(jobs[-1], store))
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
                metadata={STUDY: name, STORE: store, ADDRESS: address},
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
    return f"a study named '{job.study}' {does}, not {store}; give this one another name."


def submission_of_this_job() -> Submission | None:
    """Return how the study whose job this process is was submitted; None elsewhere.

    Its address is "" if an older version submitted it.
    """
    try:
        job = parsed_json(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        facts = job["metadata"]
        return Submission(str(facts.get(ADDRESS, "")), str(facts[STUDY]), str(facts[STORE]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def command(arguments: Sequence[str]) -> str:
    """Return a shell command that replaces its shell with `nas-evidence`."""
    return "exec " + shlex.join(["python", "-m", "nas_evidence", *arguments])


def follow(
    client: "RayClient", job: Job, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | Job]:
    """Yield what a job prints, whole lines as they arrive, and finally the ended job.

    The cluster streams it. If the connection breaks, it is opened again, and what was yielded
    before is skipped. What Ray itself prints there is left out; `RayClient.logs` has it.

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
                    if said := _OF_RAY.sub("", lines + newline):
                        yield said
            now = _now(client, job)
        except UnreachableError:
            n_failed += 1
            if n_failed * LOOK_EVERY > PATIENCE:
                raise
            sleep(LOOK_EVERY)
            continue
        if now is None:
            raise UnreachableError(
                "job-forgotten",
                f"the cluster no longer knows the job {job.id}: its head was restarted. "
                "Submit the study again with its store to resume it.",
            )
        if not now.alive:
            if rest:
                yield rest
            yield now
            return
        sleep(LOOK_EVERY)


def _now(client: "RayClient", job: Job) -> Job | None:
    return next((one for one in client.jobs() if one.id == job.id), None)


def ask_there(
    client: "RayClient", arguments: Sequence[str], *, folder: str | None
) -> tuple[str, Job]:
    """Run `nas-evidence` on the cluster, which can see the store; return what it printed."""
    name = f"ask-{uuid.uuid4().hex[:12]}"
    job = Job(f"nas-{name}-1", name, "", "PENDING")
    client.submit(command(arguments), job_id=job.id, folder=folder, environment={}, metadata={})
    *said, over = follow(client, job)
    assert isinstance(over, Job)
    return "".join(map(str, said)), over
