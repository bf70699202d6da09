"""No request for this machine goes to a proxy; whoever sends a token knows which proxy sees it.

HTTP clients take proxies from the environment: http_proxy, https_proxy and all_proxy, in small or
in capital letters. They all know `no_proxy` too, so loopback addresses are added to it.
"""

import ipaddress
import os
import socket
from urllib.parse import urlsplit

_KINDS = ("http_proxy", "https_proxy", "all_proxy")
#: What every client's reading of `no_proxy` understands; it compares the ends of names.
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine, however it is written.

    >>> [is_loopback(host) for host in ("localhost", "127.1", "::ffff:127.0.0.1", "0.0.0.0")]
    [True, True, True, True]
    >>> [is_loopback(host) for host in ("ray.example.org", "10.0.0.1", "localhost.example.org")]
    [False, False, False]
    """
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:  # the short forms that a connection takes, such as 127.1 and 2130706433
            address = ipaddress.ip_address(socket.inet_aton(host))
        except (OSError, UnicodeError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified  # a connection to 0.0.0.0 stays here


def is_of_this_machine(host: str) -> bool:
    """Return whether an IP address is one of this machine's own."""
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))  # sends nothing
    except (OSError, UnicodeError):
        return False
    return True


def pass_proxies_by(*places: str) -> None:
    """Add loopback addresses to `no_proxy` of this process, if its environment names a proxy.

    Args:
        places: URLs. The hosts of those on this machine are added as they are written, and so are
            those of the environment, such as AWS_ENDPOINT_URL.
    """
    if not any(os.environ.get(name) for kind in _KINDS for name in (kind, kind.upper())):
        return
    given = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    known = [name.strip() for name in given.split(",") if name.strip()]
    if "*" in known:
        return
    named = [*places, *(value for value in os.environ.values() if "//" in value)]
    hosts = [host for place in named if (host := _host(place)) and is_loopback(host)]
    more = dict.fromkeys([*_HERE, *hosts])
    wanted = ",".join([*known, *(name for name in more if name not in known)])
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = wanted  # some clients read only one of both


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def proxy_of(url: str) -> str | None:
    """Return the variable and the proxy through which a request to a URL goes; None without.

    The proxy is written without its user and password.
    """
    from urllib.request import getproxies_environment, proxy_bypass  # late: each command

    parts, proxies = urlsplit(url), getproxies_environment()
    host = parts.hostname or ""
    kind = parts.scheme if parts.scheme in proxies else "all"
    if kind not in proxies or is_loopback(host) or proxy_bypass(host):
        return None
    name = f"{kind}_proxy"
    return f"{proxies[kind].rpartition('@')[2]} ({name if name in os.environ else name.upper()})"
