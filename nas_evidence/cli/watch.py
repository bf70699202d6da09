"""The verb watch: the report of a running study, rebuilt as results arrive and served here.

The folder of the report is served on the loopback interface only, under a token in its address,
so that other users of the machine cannot read it. Its page loads itself again while trials run.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from nas_evidence.api.control import opened
from nas_evidence.cli.options import StudyPlace
from nas_evidence.cli.report import as_named
from nas_evidence.cli.terminal import out
from nas_evidence.plumbing.user_error import UserError

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
        for paths in reports(folder, is_over=over, every_seconds=every):
            n += 1
            # The driver, which holds the store, writes the last one there.
            out.print(f"report: {as_named(store, paths.html) if store.uri is None else address}")
        # An open page loads the last report within `every` seconds.
        while n > 1 and idle_seconds() < every + _GRACE:
            time.sleep(_GRACE)


@contextmanager
def served(report: Path, port: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """Serve the folder of the report while the block runs.

    Yields the address with its token, and what returns the seconds since the page of a running
    study was last asked for.

    Args:
        report: may not be there yet.
        port: to listen on; 0 for any that is free.
    """
    token, asked = secrets.token_urlsafe(16), [-math.inf]

    def handler(*given: Any) -> "_Handler":
        return _Handler(*given, token=token, report=report, asked=asked)

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise UserError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); give another --port."
        ).with_code("port-not-usable") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/{token}/"
        yield address, lambda: time.monotonic() - asked[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    """Answers with the files of the report, to those who know the token."""

    def __init__(self, *given: Any, token: str, report: Path, asked: list[float]) -> None:
        self._token, self._asked = token, asked
        super().__init__(*given, directory=str(report))

    def send_head(self) -> Any:
        """Send what precedes the file that the path names; 404 to who has another token."""
        _, given, *rest = (*self.path.partition("?")[0].split("/", 2), "")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            self.send_error(404)
            return None
        self.path = f"/{rest[0]}"
        if not rest[0]:
            self._asked[0] = time.monotonic()
        return super().send_head()

    def list_directory(self, path: object) -> None:
        """List nothing: the first report is not there yet."""
        self.send_error(404)

    def end_headers(self) -> None:
        """Keep the page out of caches, and the token out of other servers' logs."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: addresses hold the token."""
