"""Does a Ray cluster answer at an address? Asked before Ray, which would wait for minutes.

The control service of a cluster speaks gRPC, hence HTTP/2: whoever opens a connection sends a
preface, and the server answers at once with its settings (RFC 9113, section 3.4).
"""

import socket

from nas_evidence.plumbing.user_error import UserError

#: Seconds to wait for the connection, and again for the answer.
PATIENCE = 5.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 4  # the type of a frame: the fourth byte


def check_reachable(address: str) -> None:
    """Check that something answers like a Ray cluster at HOST:PORT.

    Raises:
        ValueError: if not; says what was found instead.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError("address-form", f"`address` must be auto or HOST:PORT, but got {address}.")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(_PREFACE + _EMPTY_SETTINGS)
            answer = connection.recv(9)
    except TimeoutError:
        why = f"nothing answers within {PATIENCE:.0f} s"
    except OSError as error:  # refused, or no such host
        why = (error.strerror or str(error)).lower()
    else:
        if len(answer) > 3 and answer[3] == _SETTINGS:
            return
        why = "something else than a Ray cluster answers"
    raise UserError(
        "address-unreachable",
        f"no Ray cluster can be joined at {address}: {why}. Give the address that `ray start "
        "--head` printed (port 6379 by default), and check that the cluster runs.",
    )
