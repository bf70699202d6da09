"""The verbs for a study that runs elsewhere: submit, cancel, and `resume --address URL`."""

from contextlib import nullcontext
from typing import Annotated, Any

import typer

import nas_evidence
from nas_evidence.api.control import cancelled, job_line, there
from nas_evidence.cli.options import Dashboard, JobName, Place, with_parameters_of, words_of_place
from nas_evidence.cli.shown import Printed
from nas_evidence.cli.terminal import err, out, print_foreign, typed
from nas_evidence.jobs.jobs import Submitted
from nas_evidence.storage.kept_submission import FILE, resume_words


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
    _say_submitted(found, address)


def resubmit(address: str, name: str | None, store: str | None, **given: Any) -> None:
    """Resume a study as a job on a cluster: `resume --address URL`."""
    for word in ("steal", "executor"):  # the job takes over what is lost, and joins its cluster
        given.pop(word, None)
    found = nas_evidence.resubmit(store, address=address, name=name, progress=_Told(), **given)
    _say_submitted(found, address)


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
        words = [at.store, *where(folder, address, name)]
        out.print(f"resume: {typed('resume', *(words if at.job else _resume_words(at.store)))}")


def _resume_words(place: str) -> tuple[str, ...]:
    """Return what continues a study that was cancelled by its folder or URI."""
    from nas_evidence.driver.mirror import working_copy

    store = working_copy(place)
    store.look(FILE)
    return resume_words(place, store.folder)


def where(place: object, address: str | None, name: str | None) -> list[str]:
    """Return the arguments that name a study on the command line."""
    return [str(place)] if address is None else ["--address", address, "--name", str(name)]


def _say_submitted(found: Submitted, address: str) -> None:
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
    out.print(f"resume: {typed('resume', job.store, *at)}")
