"""The verb status: a study or one trial, now, as a log, or as it goes on."""

from typing import Annotated

import typer

from nas_evidence.cli import submit
from nas_evidence.cli.options import AsJson, Dashboard, JobName
from nas_evidence.cli.show import show
from nas_evidence.cli.terminal import print_foreign
from nas_evidence.jobs.jobs import latest_job
from nas_evidence.plumbing.user_error import UserError


def status(
    folder: submit.Place = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of a trial every column, and the terms of its evidence.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Print the log of the study, or of the trial.")
    ] = False,
    follow: Annotated[
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
    place, trial_id = submit.place_and_trial(folder, address, name)
    if as_json and (log or follow):
        raise UserError("--json is of a status; leave out --log and --follow.").with_code(
            "status-json-of-log"
        )
    if every and (trial_id is None or log):
        raise UserError("--all shows every column of a trial; name its id.").with_code(
            "status-all-without-trial"
        )
    if follow:
        submit.attach(folder, address, name)
    elif log:
        submit.logs(folder, address, name)
    elif trial_id is None:
        submit.status(place if address is None else None, address, name, as_json)
    elif address is None:
        show(place, trial_id, every, as_json)
    else:
        client = submit.connect(address)
        job = latest_job(client, place)
        if submit.seen_from_here(job.store) is not None:
            show(job.store, trial_id, every, as_json)
        else:
            more = ["--all"] * every + ["--json"] * as_json
            words = ["status", *more, "--", job.store, str(trial_id)]
            print_foreign(submit.asked_there(client, words))
