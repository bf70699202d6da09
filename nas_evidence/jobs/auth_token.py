"""The token of a cluster, found where Ray looks for it; never printed, never written.

RAY_AUTH_TOKEN, else the file named by RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token; none with
RAY_AUTH_MODE=disabled. Does not import ray, which reads the mode once, at import.
"""

import os
from pathlib import Path

from nas_evidence.plumbing.proxies import is_loopback, is_of_this_machine
from nas_evidence.plumbing.user_error import UserError


def read_token() -> str | None:
    """Return the token of the cluster, or None.

    Raises:
        ValueError: RAY_AUTH_TOKEN_PATH names a file that cannot be read, or is empty.
    """
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    if given := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        try:
            token = Path(given).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError):
            token = ""
        if not token:
            raise UserError(
                "token-file-unreadable",
                f"RAY_AUTH_TOKEN_PATH must name a file with a token, but {given} cannot be read "
                "or is empty.",
            )
        return token
    try:
        return (Path.home() / ".ray" / "auth_token").read_text().strip() or None
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None


def use_token_if_there_is_one() -> None:
    """Make Ray, not yet imported, send its token to the cluster it joins, as `ray start` does.

    Raises:
        ValueError: as `read_token`.
    """
    if read_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def sent_in_clear_to(address: str) -> str:
    """Return where joining the cluster at HOST:PORT sends its token unencrypted; "" if nowhere.

    `auto` is the cluster that Ray finds: $RAY_ADDRESS, else the one that `ray start` joined last.
    """
    is_auto = address == "auto"
    found = _of_auto() if is_auto else address
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")  # as Ray reads it
    host = found.rpartition("://")[2].rpartition(":")[0]
    stays_here = is_loopback(host) or (is_auto and is_of_this_machine(host))
    return found if host and not encrypted and not stays_here and read_token() else ""


def _of_auto() -> str:
    """Return the address that Ray takes for `auto`; "" if it would look at processes."""
    if named := os.environ.get("RAY_ADDRESS", ""):
        return "" if named in ("auto", "local") else named
    place = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        return place.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
