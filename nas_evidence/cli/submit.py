"""The verbs for a study that runs elsewhere: submit, cancel, and `resume --address URL`."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer

import nas_evidence
from nas_evidence.api.control import There, cancelled, job_line, status_of, there
from nas_evidence.cli.options import Dashboard, JobName, Place, with_parameters_of, words_of_place
from nas_evidence.cli.shown import Printed
from nas_evidence.cli.terminal import err, here, out, print_foreign, typed
from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import Submitted


class _Told(Printed):
    def warn(self, line: str) -> None:
        warn(line)


def warn(line: str) -> None:
    """Print a warning."""
    err.print(f"warning: {line}")


@with_parameters_of(nas_evidence.submit)
def submit(
    address: Annotated[
        str, typer.Option(metavar="URL", help="URL of the Ray dashboard: http://HOST:8265.")
    ],
    **given: Any,
) -> None:
    """Search on a cluster: start the study as a job there, or resume it.

    Example: nas-evidence submit digits --address URL --store /nfs/digits
    """
    found = nas_evidence.submit(**given, address=address, progress=_Told())
    _say_submitted(found, address, allow_code=given.get("allow_code", False))


def resubmit(address: str, name: str | None, store: str | None, **given: Any) -> None:
    """Resume a study as a job on a cluster: `resume --address URL`."""
    for word in ("steal", "executor"):  # the job takes over what is lost, and joins its cluster
        given.pop(word, None)
    found = nas_evidence.resubmit(store, address=address, name=name, progress=_Told(), **given)
    _say_submitted(found, address, allow_code=given.get("allow_code", False))


def cancel(place: Place = None, address: Dashboard = None, name: JobName = None) -> None:
    """Stop a running study after the current slice, to be resumed later; or end one trial.

    Example: nas-evidence cancel runs/digits 7
    """
    folder, trial_id = words_of_place(place, name)
    waiting = out.status("waiting for the slice to end") if out.is_terminal else nullcontext()
    at = there(folder, address, name, warn)
    with waiting:
        told = cancelled(at, trial_id)
    print_foreign(f"{told}\n")
    if trial_id is None:
        out.print(f"resume: {resuming(at, where(folder, address, name))}")


def resuming(at: There, named: Sequence[str]) -> str:
    """Return what continues a study, as it is typed here; `named` names it on the command line."""
    said = status_of(at).resume if at.is_seen else ""
    return here(said) if at.job is None else resuming_job(at.job, named, said)


def resuming_job(job: Job, named: Sequence[str], said: str) -> str:
    """Return the same of a job; `said` is what continues its store."""
    return typed("resume", job.store, *named, *["--allow-code"] * ("--allow-code" in said))


def where(place: object, address: str | None, name: str | None) -> list[str]:
    """Return the arguments that name a study on the command line."""
    return [str(place)] if address is None else ["--address", address, "--name", str(name)]


def _say_submitted(found: Submitted, address: str, *, allow_code: bool) -> None:
    job = found.job
    if found.before is not None and found.before.state == "FAILED":
        out.print(job_line(found.before))
    state = "submitted" if found.is_new else f"{job.state.lower()} already; nothing was submitted"
    out.print(f"job:    {job.id} {state}, store {job.store}")
    at = where(None, address, job.study)
    out.print(f"follow: {typed('status', '--follow', *at)}")
    out.print(f"log:    {typed('status', '--log', *at)}")
    out.print(f"status: {typed('status', *at)}")
    out.print(f"cancel: {typed('cancel', *at)}")
    out.print(f"resume: {resuming_job(job, at, '--allow-code' * allow_code)}")
