"""What a service's own client sends unencrypted to a store, from the variables that it reads."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.proxies import is_loopback, proxy_of

#: By protocol: where a client finds its endpoint, and what it sends as it is with each request.
#: A secret key only signs requests of S3 and of Azure, and is never sent.
_ENDPOINTS = {
    "s3": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_SESSION_TOKEN",)),
    "gs": (("STORAGE_EMULATOR_HOST",), ("GOOGLE_APPLICATION_CREDENTIALS",)),
}
_ALIASES = {"s3a": "s3", "gcs": "gs"}
_AZURE = ("abfs", "abfss", "az", "adl")
_CONNECTION, _SAS = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"


def sent_in_clear(place: str, given: Mapping[str, str] = os.environ) -> str:
    """Return what is to be said if requests to a store carry a secret unencrypted, else "".

    Args:
        place: URI of the store.
        given: the environment.
    """
    protocol = place.partition("://")[0]
    if protocol in _AZURE:
        url, used = _of_azure(given)
    else:
        names, secrets = _ENDPOINTS.get(_ALIASES.get(protocol, protocol), ((), ()))
        url = next((given[name] for name in names if given.get(name)), "")
        used = next((name for name in secrets if given.get(name)), "")
    parts = urlsplit(url)
    if parts.scheme != "http" or is_loopback(parts.hostname or "") or not used:
        return ""
    through = f" through the proxy {proxy}" if (proxy := proxy_of(url)) else ""
    return f"{used} is sent unencrypted to {masked(url)}{through}; use https or an SSH tunnel"


def _of_azure(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the endpoint that a connection string names, and what holds a signature."""
    parts = (part.partition("=") for part in given.get(_CONNECTION, "").split(";"))
    facts = {name.strip().lower(): value.strip() for name, _, value in parts}
    url = facts.get("blobendpoint", "")
    if not url and facts.get("defaultendpointsprotocol", "").lower() == "http":
        url = f"http://{facts.get('accountname', '')}.blob.core.windows.net"
    if facts.get("sharedaccesssignature"):
        return url, f"the signature in {_CONNECTION}"
    return url, _SAS if given.get(_SAS) else ""
