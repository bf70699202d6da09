"""The verbs for a study that runs elsewhere: submit and cancel, and what `status` says of it.

Each takes a study folder or the URI of a store, or `--address` of a cluster's dashboard and
`--name`. If a store cannot be seen from here, a small job on the cluster reads it.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

import nas_evidence
from nas_evidence.api import submission
from nas_evidence.api.python_words import speaking_commands
from nas_evidence.api.request import DataOptions
from nas_evidence.api.runs import Audience
from nas_evidence.cli.options import (
    AllowCode,
    Dashboard,
    DataRoot,
    Download,
    JobName,
    Metric,
    Override,
    StudyFile,
    Track,
    Trials,
    Workers,
    opened,
    with_data_options,
)
from nas_evidence.cli.terminal import err, out, print_foreign, score_text, typed
from nas_evidence.jobs.code_package import package_to_send, write_package
from nas_evidence.jobs.jobs import (
    Job,
    Submitted,
    ask_there,
    follow,
    latest_job,
)
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:  # ray and the stores are imported where needed
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.jobs.client import RayClient

Place = Annotated[
    list[str] | None, typer.Argument(metavar="[DIR] [TRIAL]", help="A study folder; a trial id.")
]


@with_data_options
def submit(
    study: StudyFile,
    address: Annotated[
        str,
        typer.Option(
            "--address", metavar="URL", help="URL of the Ray dashboard: http://HOST:8265."
        ),
    ],
    store: Annotated[
        str, typer.Option("--store", metavar="DIR|URI", help="Study folder that all nodes see.")
    ],
    name: JobName = None,
    trials: Trials = None,
    workers: Workers = None,
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    allow_code: AllowCode = False,
    metric: Metric = None,
    track: Track = None,
    **data: Unpack[DataOptions],
) -> None:
    """Search on a cluster: start the study as a job there, or resume it.

    Example: nas-evidence submit digits --address URL --store /nfs/digits
    """
    with speaking_commands():
        found = nas_evidence.submit(
            study,
            address=address,
            store=store,
            name=name,
            n_trials=trials,
            workers=workers,
            metric=metric,
            settings=overrides,
            data_root=data_root,
            download=download,
            allow_code=allow_code,
            progress=Audience(say=out.print, warn=_warn),
            track=track or (),
            **data,
        )
    _say_submitted(found, address)


def resubmit(
    address: str,
    name: str | None,
    store: str | None,
    options: Sequence[str],
    *,
    track: Sequence[str] | None = None,
) -> None:
    """Resume a study as a job on a cluster: `resume --address URL`; `track` is in `options`."""
    if store is None:
        if name is None:
            raise UserError(
                "resume needs a study folder, or --name of a study on the cluster."
            ).with_code("resume-on-cluster-without-name")
        store = latest_job(connect(address), name).store
    submission.check_store(store)
    submission.check_track_there(track, store)
    if name is None:
        from nas_evidence.storage.study_folder import read_study

        if not seen_from_here(store):
            raise UserError(
                f"{store} cannot be seen from here; give the study's --name."
            ).with_code("store-out-of-sight")
        name = read_study(opened(store, looking="logs").folder).name
    arguments = ["resume", store, "--address", "auto", *options]
    arguments += ["--steal"] * ("--steal" not in options)
    _say_submitted(submission.send(connect(address), name, store, arguments=arguments), address)


def status(
    folder: str | None = None,
    address: str | None = None,
    name: str | None = None,
    as_json: bool = False,
) -> None:
    """Print the status of a study."""
    place, _ = place_and_trial([folder] if folder else None, address, name)
    job: Job | None = None
    if address is None:
        facts = _facts(opened(place, looking="status"))
    else:
        client = connect(address)
        job = latest_job(client, place)
        if seen_from_here(job.store):
            facts = _facts(opened(job.store, looking="status"))
        else:
            try:
                facts = facts_in(asked_there(client, ["status", "--json", "--", job.store]))
            except ValueError:
                if as_json:
                    raise
                _print_job(job)
                if not job.alive:
                    raise
                out.print("nothing is stored yet; ask again in a minute")
                return
        facts |= {"job": job.id, "job_state": job.state.lower(), "store": job.store}
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _print_status(facts, _where(place, address), job)


def attach(
    folder: list[str] | None = None, address: str | None = None, name: str | None = None
) -> None:
    """Follow a study to its end; it keeps running after Ctrl-C."""
    place, trial_id = place_and_trial(folder, address, name)
    if trial_id is not None:
        raise UserError(
            f"--follow is for a whole study, but got the trial {trial_id}; use --log."
        ).with_code("follow-a-trial")
    again = typed("status", "--follow", *_where(place, address))
    try:
        if address is None:
            _follow_folder(place)
            return
        client = connect(address)
        job = latest_job(client, place)
        for said in follow(client, job):
            if isinstance(said, Job):
                job = said
            else:
                print_foreign(said)
    except KeyboardInterrupt:
        err.print(f"\nThe study keeps running. To follow it again: {again}")
        raise SystemExit(130) from None
    _print_job(job)
    if job.state != "SUCCEEDED":
        out.print(f"resume: {typed('resume', job.store, *_where(place, address))}")
        raise SystemExit(130 if job.state == "STOPPED" else 1)


def logs(
    folder: list[str] | None = None, address: str | None = None, name: str | None = None
) -> None:
    """Print the log of a study, or of one trial."""
    from nas_evidence.storage.log_lines import log_lines

    place, trial_id = place_and_trial(folder, address, name)
    if address is None:
        lines = log_lines(opened(place, looking="logs").folder, trial_id)
        if not lines and trial_id is not None:
            raise UserError(
                f"the logs of {place} have no line about trial {trial_id}; see its status."
            ).with_code("no-log-line-of-trial")
        print_foreign("\n".join([*lines, ""]))
        return
    client = connect(address)
    job = latest_job(client, place)
    if trial_id is None:
        print_foreign(client.logs(job.id))
    elif seen_from_here(job.store):
        lines = log_lines(opened(job.store, looking="logs").folder, trial_id)
        print_foreign("\n".join([*lines, ""]))
    else:
        print_foreign(asked_there(client, ["status", "--log", "--", job.store, str(trial_id)]))


def cancel(folder: Place = None, address: Dashboard = None, name: JobName = None) -> None:
    """Stop a running study after the current slice, to be resumed later; or end one trial.

    Example: nas-evidence cancel runs/digits 7
    """
    place, trial_id = place_and_trial(folder, address, name)
    if address is None:
        _cancel_in(place, trial_id)
        return
    client = connect(address)
    job = latest_job(client, place)
    if not job.alive:
        raise UserError(f"the job {job.id} has already ended ({job.state.lower()}).").with_code(
            "job-already-ended"
        )
    if trial_id is None:
        client.stop(job.id)
        *_, now = follow(client, job)
        assert isinstance(now, Job)
        _print_job(now)
        out.print(f"resume: {typed('resume', job.store, *_where(place, address))}")
    elif seen_from_here(job.store):
        _cancel_in(job.store, trial_id)
    else:
        print_foreign(asked_there(client, ["cancel", "--", job.store, str(trial_id)]))


# ---------------------------------------------------------------------------------------------


def _warn(line: str) -> None:
    err.print(f"warning: {line}")


def connect(address: str) -> "RayClient":
    """Return the client of a cluster; warn if a token is sent unencrypted."""
    return submission.connect(address, _warn)


def _say_submitted(found: Submitted, address: str) -> None:
    job = found.job
    if found.before is not None and found.before.state == "FAILED":
        _print_job(found.before)
    state = "submitted" if found.is_new else f"{job.state.lower()} already; nothing was submitted"
    out.print(f"job:    {job.id} {state}, store {job.store}")
    where = _where(job.study, address)
    out.print(f"follow: {typed('status', '--follow', *where)}")
    out.print(f"log:    {typed('status', '--log', *where)}")
    out.print(f"status: {typed('status', *where)}")
    out.print(f"cancel: {typed('cancel', *where)}")
    out.print(f"resume: {typed('resume', job.store, *where)}")


def asked_there(client: "RayClient", arguments: Sequence[str]) -> str:
    """Return what a small job on the cluster prints when it is asked with these words."""
    with tempfile.TemporaryDirectory(prefix="nas-evidence-") as folder:
        size = write_package(Path(folder), None, package=package_to_send())
        text, job = ask_there(client, arguments, folder=folder if size else None)
    if job.state != "SUCCEEDED":
        lines = text.strip().splitlines()
        raise UserError(
            lines[-1].removeprefix("error: ")
            if lines
            else f"the job {job.id} failed: {job.message}"
        ).with_code("job-failed")
    return text


def facts_in(printed: str) -> dict[str, Any]:
    r"""Return the JSON in what a job has printed; lines of Ray's log may precede and follow it.

    >>> facts_in('2026-11-22 INFO connecting\n{\n "name": "digits"\n}\nINFO done\n')
    {'name': 'digits'}

    Raises:
        ValueError: if there is none; quotes the last line.
    """
    lines = printed.splitlines(keepends=True)
    for start in (i for i, line in enumerate(lines) if line.startswith("{")):
        with contextlib.suppress(json.JSONDecodeError):
            found, _ = json.JSONDecoder().raw_decode("".join(lines[start:]))
            return dict(found)
    last = printed.strip().splitlines()[-1:] or ["nothing"]
    raise UserError(
        f"the cluster did not tell the status of the study; it said: {last[0]}"
    ).with_code("cluster-status-unknown")


def place_and_trial(
    words: Sequence[str] | None, address: str | None, name: str | None
) -> tuple[str, int | None]:
    """Return the study, by folder or by name on the cluster, and the trial if given."""
    left = list(words or ())
    if (address is None) != (name is None):
        raise UserError("--address URL and --name NAME must be given together.").with_code(
            "address-without-name"
        )
    if address is None and not left:
        raise UserError("give a study folder, or --address URL and --name NAME.").with_code(
            "no-folder-and-no-name"
        )
    place = left.pop(0) if name is None else name
    if not left:
        return place, None
    if len(left) > 1 or not left[0].isdecimal():
        raise UserError(f"TRIAL must be one number, but got {' '.join(left)}.").with_code(
            "trial-not-one-number"
        )
    return place, int(left[0])


def _where(place: str, address: str | None) -> list[str]:
    """Return the arguments that name a study on the command line."""
    return [place] if address is None else ["--address", address, "--name", place]


def seen_from_here(place: str) -> bool:
    """Return whether the study of a job can be read here too."""
    from nas_evidence.driver.mirror import working_copy

    try:
        store = working_copy(place)
        store.check_answers()
        store.look("study.toml")
    except ValueError:
        return False
    return (store.folder / "study.toml").is_file()


def _cancel_in(place: str, trial_id: int | None) -> None:
    from nas_evidence.driver.cancel import cancel as cancel_and_wait
    from nas_evidence.driver.mirror import working_copy

    store = working_copy(place)
    if out.is_terminal:
        with out.status("waiting for the slice to end"):
            told = cancel_and_wait(store, trial_id)
    else:
        told = cancel_and_wait(store, trial_id)
    out.print(told)
    if trial_id is None:
        out.print(f"resume: {typed('resume', store.place)}")


def _follow_folder(place: str) -> None:
    """Print the log of a study as it grows, until no driver holds it."""
    from nas_evidence.driver.cancel import pause_between_looks
    from nas_evidence.storage.log_lines import fact_lines
    from nas_evidence.storage.study_folder import is_locked

    store, n_seen = opened(place, looking="status"), 0
    while True:
        alive = is_locked(store.folder)
        lines = fact_lines(store.folder)
        print_foreign("".join(f"{line}\n" for line in lines[n_seen:]))
        n_seen = len(lines)
        if not alive:
            break
        time.sleep(pause_between_looks(store))
        store.pull()
    facts = _facts(store)
    _print_status(facts, [place], None)
    if facts["state"] == "stopped":
        raise SystemExit(130)


def _facts(store: "WorkingCopy") -> dict[str, Any]:
    from nas_evidence.driver.status import study_status
    from nas_evidence.reporting.study_tables import first_as_shown

    now = study_status(store.folder)
    best = None
    if now.best is not None and (first := first_as_shown(store.folder)):
        best = {"trial_id": first.trial_id, now.objective: first.value, "unit": first.unit}
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
    }


def _print_job(job: Job) -> None:
    why = f" ({job.cause})" if job.cause else ""
    out.print(f"job:    {job.id} {job.state.lower()}{why}, store {job.store}")


def _print_status(now: dict[str, Any], where: Sequence[str], job: Job | None) -> None:
    if job is not None:
        _print_job(job)
    name = now["name"] if job is None else job.study
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now["by_status"].items()))
    raced = sum(now["by_status"].values()) - now["n_finished"]
    race = f" and {raced} of the race" * (raced > 0)
    out.print(
        f"{name}: {now['state']}, {now['n_finished']} of {now['n_trials']} trials{race} "
        f"({counts or 'none yet'})"
    )
    lost = job is not None and not job.alive and now["state"] == "running"
    if lost:  # it was heard of a minute ago
        out.print(f"held by {now.get('held_by')}, for a minute at most: its job has ended")
    elif now.get("held_by"):
        out.print(f"held by {now['held_by']}; stop it: {typed('cancel', *where)}")
    for trial_id, architecture in now["architectures"].items():
        out.print(f"running: trial {trial_id} {architecture}")
    if now["best"] is not None:
        (_, trial_id), (objective, value), *more = now["best"].items()
        unit = "".join(f" {name}" for _, name in more if name == "nats per datum")
        out.print(f"best: trial {trial_id} with {objective} = {score_text(value)}{unit}")
    again = typed("resume", *([] if job is None else [job.store]), *where)
    if now["state"] == "stopped" or lost:
        out.print(f"continue: {again}")
    if now["state"] == "budget spent":
        out.print(f"continue: {again} --set budget.KEY=SECONDS")
