"""The verb status: a study or one trial, now, as a log, or as it goes on."""

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from nas_evidence.api.control import Status, There, job_line, opened, status_of, there
from nas_evidence.api.progress import score_text
from nas_evidence.cli.options import AsJson, Dashboard, JobName, Place, words_of_place
from nas_evidence.cli.show import show
from nas_evidence.cli.submit import resuming, resuming_job, warn, where
from nas_evidence.cli.terminal import err, here, out, print_foreign, typed
from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import follow
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.kept_submission import Submission


def status(
    place: Place = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of a trial every column, and the terms of its evidence.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Print the log of the study, or of the trial.")
    ] = False,
    following: Annotated[
        bool, typer.Option("--follow", help="Print what happens until the study ends.")
    ] = False,
    as_json: AsJson = False,
    address: Dashboard = None,
    name: JobName = None,
) -> None:
    """Show the status of a study, or how one trial ended and its scores.

    A trial is shown whole with --all or through a pipe. After Ctrl-C a followed study keeps
    running.

    Example: nas-evidence status runs/digits
    Example: nas-evidence status runs/digits 7
    Example: nas-evidence status --follow --address URL --name digits
    """
    folder, trial_id = words_of_place(place, name)
    if as_json and (log or following):
        raise UserError(
            "status-json-of-log", "--json is of a status; leave out --log and --follow."
        )
    if every and (trial_id is None or log):
        raise UserError(
            "status-all-without-trial", "--all shows every column of a trial; name its id."
        )
    if following and trial_id is not None:
        raise UserError(
            "follow-a-trial",
            f"--follow is for a whole study, but got the trial {trial_id}; use --log.",
        )
    at, named = there(folder, address, name, warn), where(folder, address, name)
    if following:
        _follow(at, named)
    elif log:
        _print_log(at, trial_id)
    elif trial_id is None:
        _print_now(at, named, as_json)
    elif at.is_seen:
        show(at.store, trial_id, every, as_json)
    else:
        more = ["--all"] * every + ["--json"] * as_json
        print_foreign(at.asked("status", *more, trial_id=trial_id))


def _print_now(at: There, named: Sequence[str], as_json: bool) -> None:
    try:
        now = status_of(at)
    except ValueError:
        if as_json or at.job is None or at.is_seen:
            raise
        out.print(job_line(at.job))
        if not at.job.alive:
            raise
        out.print("nothing is stored yet; ask again in a minute")
        return
    if as_json:
        typer.echo(now.to_json())
    else:
        _print_status(now, named, at.job)


def _follow(at: There, named: Sequence[str]) -> None:
    """Print what happens in a study to its end; it keeps running after Ctrl-C."""
    try:
        if at.client is None or at.job is None:
            _follow_folder(at)
            return
        job = at.job
        for said in follow(at.client, job):
            if isinstance(said, Job):
                job = said
            else:
                print_foreign(said)
    except KeyboardInterrupt:
        again = typed("status", "--follow", *named)
        err.print(f"\nThe study keeps running. To follow it again: {again}")
        raise SystemExit(130) from None
    out.print(job_line(job))
    if job.state != "SUCCEEDED":
        out.print(f"resume: {resuming(at, named)}")
        raise SystemExit(130 if job.state == "STOPPED" else 1)


def _follow_folder(at: There) -> None:
    """Print the log of a study as it grows, until no driver holds it."""
    from nas_evidence.driver.cancel import pause_between_looks
    from nas_evidence.storage.log_lines import fact_lines
    from nas_evidence.storage.study_folder import is_locked

    store, n_seen = opened(at.store, looking="status"), 0
    while True:
        alive = is_locked(store.folder)
        lines = fact_lines(store.folder)
        print_foreign("".join(f"{line}\n" for line in lines[n_seen:]))
        n_seen = len(lines)
        if not alive:
            break
        time.sleep(pause_between_looks(store))
        store.pull()
    now = status_of(at)
    _print_status(now, [at.named], None)
    if now.state == "stopped":
        raise SystemExit(130)


def _print_log(at: There, trial_id: int | None) -> None:
    """Print the log of a study, or of one trial."""
    from nas_evidence.storage.log_lines import log_lines

    if at.client is not None and at.job is not None and trial_id is None:
        print_foreign(at.client.logs(at.job.id))
        return
    if not at.is_seen:
        print_foreign(at.asked("status", "--log", trial_id=trial_id))
        return
    lines = log_lines(opened(at.store, looking="logs").folder, trial_id)
    if not lines and trial_id is not None:
        raise UserError(
            "no-log-line-of-trial",
            f"the logs of {at.named} have no line about trial {trial_id}; see its status.",
        )
    print_foreign("\n".join([*lines, ""]))


def _print_status(now: Status, named: Sequence[str], job: Job | None) -> None:
    if job is not None:
        out.print(job_line(job))
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items()))
    raced = sum(now.by_status.values()) - now.n_finished
    race = f" and {raced} retrainings of the best" * (raced > 0)
    again = here(now.resume)
    if job is not None:
        again = resuming_job(job, named, now.resume)
    elif now.submitted is not None:
        named = Submission(**now.submitted).words
    state = "waiting" if now.waits_for else now.state
    out.print(
        f"{now.name if job is None else job.study}: {state}, {now.n_finished} of "
        f"{now.n_trials} trials{race} ({counts or 'none yet'})"
    )
    if now.waits_for:
        out.print(f"waits for {now.waits_for}")
    lost = job is not None and not job.alive and now.state == "running"
    if lost:  # it was heard of a minute ago
        out.print(f"held by {now.held_by}, for a minute at most: its job has ended")
    elif now.held_by:
        out.print(f"held by {now.held_by}; stop it: {typed('cancel', *named)}")
    for trial_id, architecture in () if now.waits_for else now.architectures.items():
        out.print(f"running: trial {trial_id} {architecture}")
    if now.best is not None:
        (_, best), (column, value), *_ = now.best.items()
        unit = " nats per datum" if now.best.get("unit") == "nats per datum" else ""
        by = now.best.get("ranked_by", column)  # a cluster may run an older version
        what = f"trial {best}"
        if words := now.best.get("architecture"):
            what = f"{words} ({what})"
        out.print(f"best: {what} with {by} = {score_text(value)}{unit}")
    if now.state in ("stopped", "budget spent") or lost:
        out.print(f"continue: {again}")
