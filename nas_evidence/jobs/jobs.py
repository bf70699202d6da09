"""A study as a job on a Ray cluster: submit it once, follow it, stop it, submit it again.

A study of the name `demo` runs as the jobs `nas-demo-1`, `nas-demo-2`, ... of which at most one is
alive: Ray refuses an id that it has seen. Ray never starts a job again, and forgets all jobs with
the head node. Both do no harm: the job's command creates the study or goes on with it, and the
truth is in the store. Knows Ray's jobs by the protocol `Client` alone; `submit.py` connects.
"""

import hashlib
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nas_evidence.retrying import try_again

T = TypeVar("T")
#: Seconds that Ray lets a stopped job tidy up before it is killed; Ray's own patience is 3 s.
STOP_SECONDS = 120
#: Seconds between two looks at a job, and that an answer may fail to come while one is followed.
LOOK_EVERY, PATIENCE = 1.0, 60.0
_ALIVE = ("PENDING", "RUNNING")
_STUDY, _STORE = "nas_evidence_study", "nas_evidence_store"


class UnreachableError(ValueError):
    """The cluster gives no answer, or none that makes sense."""


class IdTakenError(ValueError):
    """A job of this id is there already."""


@dataclass(frozen=True)
class Job:
    """A job of a study, as the cluster describes it; `state` is Ray's word."""

    id: str
    study: str
    store: str
    state: str
    message: str = ""

    @property
    def alive(self) -> bool:
        """Tell whether the job waits or runs."""
        return self.state in _ALIVE


class NotReadyError(UnreachableError):
    """The cluster has just started, and takes no job yet."""


class Client(Protocol):
    """What is used of a cluster's job server. Each call raises `UnreachableError`."""

    def jobs(self) -> list[tuple[str, Mapping[str, str], str, str]]:
        """Return id, metadata, state and message of every job, in no order."""

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


def slug(name: str) -> str:
    """Return a name reduced to letters, digits, dot, dash and underscore.

    >>> slug("my study / 2")
    'my-study-2'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "study"


def namespace_of(name: str, store: str) -> str:
    """Return the namespace of a study's actors, for no two studies the same."""
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
        ValueError: the cluster knows no such study.
    """
    if jobs := jobs_of(client, name):
        return jobs[-1]
    known = sorted({m[_STUDY] for _, m, _, _ in client.jobs() if _STUDY in m})
    raise ValueError(
        f"the cluster knows no study of the name '{name}' (known: {', '.join(known) or 'none'}). "
        "A cluster whose head was started anew knows none: submit the study again with its store, "
        "and it goes on."
    )


def submit_study(
    client: Client,
    name: str,
    store: str,
    *,
    arguments: Sequence[str],
    folder: str | None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Job, bool]:
    """Start the job of a study unless it lives, and tell whether it is new.

    Args:
        client: Of the cluster.
        name: Of the study on the cluster.
        store: Study folder or URI, as the nodes see it.
        arguments: Of `nas-evidence`: they create or resume.
        folder: With the files that travel, or None.
        sleep: Called between two tries.

    Raises:
        ValueError: a study of this name lives with another store.
    """

    def start() -> tuple[Job, bool]:
        jobs = jobs_of(client, name)
        if jobs and jobs[-1].alive:
            if jobs[-1].store != store:
                raise ValueError(
                    f"a study of the name '{name}' runs on the cluster with the store "
                    f"{jobs[-1].store}, not {store}; give this one another --name."
                )
            return jobs[-1], False
        number = int(jobs[-1].id.rpartition("-")[2]) + 1 if jobs else 1
        job = Job(f"nas-{slug(name)}-{number}", name, store, "PENDING")
        client.submit(
            command(arguments),
            job_id=job.id,
            folder=folder,
            environment={"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
            metadata={_STUDY: name, _STORE: store},
        )
        return job, True

    # Where the id is taken somebody was faster: the next look finds that job.
    return _asked_again(start, (IdTakenError, NotReadyError), sleep)


def command(arguments: Sequence[str]) -> str:
    """Return a shell command that runs `nas-evidence` in place of its shell."""
    return "exec " + shlex.join(["python", "-m", "nas_evidence", *arguments])


def follow(
    client: Client, job: Job, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | Job]:
    """Yield what a job prints, as it comes, and at last the job as it ended.

    Raises:
        UnreachableError: there was no answer for a minute.
    """

    def look() -> tuple[Job | None, str]:
        now = next((j for j in jobs_of(client, job.study) if j.id == job.id), None)
        return now, client.logs(job.id) if now else ""

    n_seen = 0
    while True:
        now, text = _asked_again(look, (UnreachableError,), sleep)
        if now is None:
            raise UnreachableError(
                f"the cluster no longer knows the job {job.id}: its head was started anew. "
                "Submit the study again with its store, and it goes on."
            )
        # A line that is half printed waits for its end, but not for that of the job.
        end = len(text) if not now.alive else text.rfind("\n") + 1
        if end > n_seen:
            yield text[n_seen:end]
            n_seen = end
        if not now.alive:
            yield now
            return
        sleep(LOOK_EVERY)


def _asked_again(
    action: Callable[[], T], errors: tuple[type[Exception], ...], sleep: Callable[[float], None]
) -> T:
    return try_again(
        action,
        when=lambda error: isinstance(error, errors),
        patience=PATIENCE,
        pause=LOOK_EVERY,
        longest_pause=LOOK_EVERY,
        sleep=sleep,
    )


def wait_until_over(
    client: Client, job: Job, *, sleep: Callable[[float], None] = time.sleep
) -> Job:
    """Wait for the end of a job, and return it as it ended."""
    for said in follow(client, job, sleep=sleep):
        if isinstance(said, Job):
            return said
    raise AssertionError


def ask_there(client: Client, arguments: Sequence[str], *, folder: str | None) -> tuple[str, Job]:
    """Run `nas-evidence` on the cluster, where the store can be seen; return what it printed."""
    name = f"ask-{uuid.uuid4().hex[:12]}"
    job = Job(f"nas-{name}-1", name, "", "PENDING")
    client.submit(command(arguments), job_id=job.id, folder=folder, environment={}, metadata={})
    over = wait_until_over(client, job)
    return client.logs(job.id), over
