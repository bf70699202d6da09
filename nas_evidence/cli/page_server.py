"""A server of the report of a running study, for this machine and whoever has its token."""

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.user_error import UserError


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
            "port-not-usable",
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); give another --port.",
        ) from None
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
