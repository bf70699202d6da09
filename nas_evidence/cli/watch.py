"""The verb watch: the report of a running study, rebuilt as results arrive and served here.

The folder of the report is served on the loopback interface only, under a token in its address,
so that other users of the machine cannot read it. Its page loads itself again while trials run.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from nas_evidence.cli.options import StudyPlace, opened, shown
from nas_evidence.cli.terminal import out
from nas_evidence.plumbing.user_error import UserError


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
    from nas_evidence.driver.status import study_status
    from nas_evidence.reporting.live import watch as reports

    store = opened(place, looking="results")
    was_running = False

    def over() -> bool:
        nonlocal was_running
        store.pull()
        state, before = study_status(store.folder).state, was_running
        was_running = state == "running"
        # Not running any more: parked, cancelled or killed.
        return (before and not was_running) or state == "finished"

    with served(store.folder / "report", port) as address:
        out.print(f"live: {address}")
        for paths in reports(store.folder, is_over=over, every_seconds=every):
            # The driver, which holds the store, writes the last one there.
            out.print(f"report: {shown(paths.html, store) if store.uri is None else address}")


@contextmanager
def served(report: Path, port: int) -> Iterator[str]:
    """Serve the folder of the report while the block runs; yield the address with its token.

    Args:
        report: may not be there yet.
        port: to listen on; 0 for any that is free.

    Raises:
        ValueError: if the port is taken.
    """
    token = secrets.token_urlsafe(16)

    def handler(*given: Any) -> "_Handler":
        return _Handler(*given, token=token, report=report)

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise UserError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); give another --port."
        ).with_code("port-not-usable") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{token}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    """Answers with the files of the report, to those who know the token."""

    def __init__(self, *given: Any, token: str, report: Path) -> None:
        self._token = token
        super().__init__(*given, directory=str(report))

    def send_head(self) -> Any:
        """Send what precedes the file that the path names; 404 to who has another token."""
        _, given, *rest = (*self.path.partition("?")[0].split("/", 2), "")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            self.send_error(404)
            return None
        self.path = f"/{rest[0]}"
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
