"""The verb watch: the report of a running study, rebuilt as results arrive and served here.

The folder of the report is served on the loopback interface only, under a token in its address,
so that other users of the machine cannot read it. Its page loads itself again while trials run.
"""

import time
from typing import Annotated

import typer

from nas_evidence.api.control import opened
from nas_evidence.cli.options import StudyPlace
from nas_evidence.cli.report import as_named
from nas_evidence.cli.terminal import out

#: Seconds that a page may take to be loaded.
_GRACE = 2.0


def watch(
    place: StudyPlace,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Least time between two reports.")
    ] = 30.0,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Serve the report here, on 127.0.0.1; 0: any."),
    ] = 0,
) -> None:
    """Keep the report of a running study up to date, and serve it, until the study ends.

    Example: nas-evidence watch runs/digits
    """
    from nas_evidence.cli.page_server import served
    from nas_evidence.driver.status import study_status
    from nas_evidence.reporting.live import watch as reports
    from nas_evidence.storage.study_folder import holder_of, is_locked

    store = opened(place, looking="results")
    folder, was_running, waited_for = store.folder, False, ""

    def over() -> bool:
        nonlocal was_running, waited_for
        store.pull()
        running, before = is_locked(folder), was_running
        was_running = running
        holder = holder_of(folder) if running else None
        waits_for = "" if holder is None else holder.waits_for
        if waits_for and waits_for != waited_for:
            out.print(f"waits for {waits_for}")
        waited_for = waits_for
        # Not running any more: parked, cancelled or killed.
        return not running and (before or study_status(folder).state == "finished")

    with served(folder / "report", port) as (address, idle_seconds):
        out.print(f"live: {address}")
        n = 0
        for paths in reports(
            folder, is_over=over, every_seconds=every, losses=store.losses_so_far
        ):
            n += 1
            # The driver, which holds the store, writes the last one there.
            out.print(f"report: {as_named(store, paths.html) if store.uri is None else address}")
        # An open page loads the last report within `every` seconds.
        while n > 1 and idle_seconds() < every + _GRACE:
            time.sleep(_GRACE)
