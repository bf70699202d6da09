"""The verb watch: the report of a running study, rebuilt as results arrive and served here.

The page is served on the loopback interface only, under a token in its address, so that other
users of the machine cannot read it.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nas_evidence.cli.options import opened, shown
from nas_evidence.cli.show import StudyPlace
from nas_evidence.cli.terminal import out
from nas_evidence.plumbing.durations import duration

if TYPE_CHECKING:  # imports the stores
    from nas_evidence.storage.study_folder import StudyStatus

#: Seconds between two looks of an open page at the progress.
_RELOAD = 5


def watch(
    place: StudyPlace,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Least time between two reports.")
    ] = 30.0,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Serve the live page here, on 127.0.0.1; 0: any."),
    ] = 0,
) -> None:
    """Keep the report of a running study up to date, and serve it, until the study ends.

    Example: nas-evidence watch runs/digits
    """
    from nas_evidence.driver.race import race_left
    from nas_evidence.reporting.live import all_finished
    from nas_evidence.reporting.live import watch as reports
    from nas_evidence.storage.study_folder import is_locked, read_study
    from nas_evidence.storage.tables import finished

    store = opened(place, looking=True)
    was_running = False

    def racing() -> int:
        return race_left(read_study(store.folder), store.folder, finished(store.folder))

    def over() -> bool:
        nonlocal was_running
        store.pull()
        running, before = is_locked(store.folder), was_running
        was_running = running
        # Not running any more: parked, cancelled or killed.
        return (before and not running) or (all_finished(store.folder) and not racing())

    with served(lambda: progress_page(store.folder), store.folder / "report", port) as address:
        out.print(f"live: {address}")
        for paths in reports(store.folder, is_over=over, every_seconds=every):
            # The driver, which holds the store, writes the last one there.
            here = store.uri is None
            out.print(f"report: {shown(paths.html, store) if here else f'{address}report.html'}")


@contextmanager
def served(progress: Callable[[], str], report: Path, port: int) -> Iterator[str]:
    """Serve the progress and the report while the block runs; yield the address with its token.

    Args:
        progress: returns the live page as HTML.
        report: folder of the report.
        port: to listen on; 0 for any that is free.

    Raises:
        ValueError: if the port is taken.
    """
    token = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(token, progress, report))
    except OSError as error:
        raise ValueError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); give another --port."
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{token}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(
    token: str, progress: Callable[[], str], report: Path
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers with the live page and the report, to those who know the token."""

        def do_GET(self) -> None:
            """Send the page that the path names."""
            _, given, *rest = (*self.path.partition("?")[0].split("/", 2), "")
            if not secrets.compare_digest(given.encode(), token.encode()):
                self.send_error(404)
            elif rest[0] == "":
                self._send(progress().encode())
            elif rest[0] == "report.html" and (report / "index.html").is_file():
                self._send((report / "index.html").read_bytes())
            else:
                self.send_error(404)

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no log: addresses hold the token."""

    return Handler


def progress_page(folder: Path) -> str:
    """Return the live page of a study: progress, running trials, time left, and the report."""
    from nas_evidence.storage.study_folder import study_status

    now = study_status(folder)
    epochs = _epochs(folder)
    rows = "".join(
        f"<tr><td>{a.trial_id}</td><td>{escape(str(a.architecture))}</td>"
        f"<td>{epochs.get(a.trial_id, 0)} of {a.plan.epochs}</td></tr>"
        for a in now.running
    )
    running = (
        f"<table><tr><th>trial</th><th>architecture</th><th>epoch</th></tr>{rows}</table>"
        if rows
        else "<p>No trial is running.</p>"
    )
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items())) or "none yet"
    left = seconds_left(folder, now)
    time_left = "" if left is None else f", about {duration(left)} left"
    has_report = (folder / "report" / "index.html").is_file()
    report = '<p><a href="report.html" target="_blank">The report so far</a></p>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(now.name)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{_RELOAD}">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto; }}
body {{ max-width: 50rem; padding: 0 1rem; }}
progress {{ width: 100%; }} table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: 0.2rem 0.6rem 0.2rem 0; white-space: nowrap; }}
td:nth-child(2) {{ white-space: normal; overflow-wrap: anywhere; }}
</style></head><body>
<h1>{escape(now.name)}</h1>
<p>{escape(now.state)}: {now.n_finished} of {now.n_trials} trials ({escape(counts)}){time_left}</p>
<progress max="{now.n_trials}" value="{now.n_finished}"></progress>
<h2>Running</h2>
{running}
{report if has_report else "<p>The first report appears with the first results.</p>"}
</body></html>
"""


def seconds_left(folder: Path, now: "StudyStatus") -> float | None:
    """Return the seconds left at the mean time of a finished trial; None before the first.

    As many trials run at a time as do now: a study on one process has fewer than its workers.
    """
    from nas_evidence.storage.study_folder import read_study
    from nas_evidence.storage.tables import finished

    seconds = [row.total_seconds for row in finished(folder).values()]
    if not seconds or now.n_finished >= now.n_trials:
        return None
    at_a_time = len(now.running) or read_study(folder).resources.workers
    return sum(seconds) / len(seconds) * (now.n_trials - now.n_finished) / at_a_time


def _epochs(folder: Path) -> dict[int, int]:
    """Return the last epoch that each trial has reported, from the journal."""
    from nas_evidence.storage.journal import read_journal

    return {
        int(event["trial_id"]): int(event["epoch"])
        for event in read_journal(folder)
        if event["event"] == "report"
    }
