"""The connection to the job server of a Ray cluster, through Ray's own client.

The given address is used: Ray's client by itself would prefer RAY_ADDRESS.
"""

import ipaddress
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from nas_evidence.jobs.auth_token import read_token
from nas_evidence.jobs.jobs import IdTakenError, NotReadyError, UnreachableError
from nas_evidence.plumbing.user_error import UserError

#: Timeout of an answer from the job server, seconds.
TIMEOUT = 30.0
#: Ray logs this on every upload.
_CHATTY = ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")
_PREFERRED = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


class _Jobs(JobSubmissionClient):
    """Ray's client with a timeout; without it, it waits for ever."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": TIMEOUT, **options})


class RayClient:
    """A `jobs.Client` for a real cluster.

    Raises:
        ValueError: the address is not that of a dashboard, or the token is wrong or missing.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        _check_address(self.address)
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        token = read_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._has_token = bool(token)
        with self._one_line(), _without(_PREFERRED):
            self._jobs = _Jobs(self.address, headers=headers)

    @property
    def sends_token_in_clear(self) -> bool:
        """Return whether a token is sent unencrypted over a network."""
        return self._has_token and urlsplit(self.address).scheme == "http" and not self._loopback

    @property
    def _loopback(self) -> bool:
        host = urlsplit(self.address).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def jobs(self) -> list[tuple[str, Mapping[str, str], str, str]]:
        """Return id, metadata, state and message of every submitted job."""
        with self._one_line():
            return [
                (job.submission_id, job.metadata or {}, str(job.status.value), job.message or "")
                for job in self._jobs.list_jobs()
                if job.submission_id
            ]

    def submit(
        self,
        command: str,
        *,
        job_id: str,
        folder: str | None,
        environment: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job in a copy of `folder`.

        Raises:
            IdTakenError: the cluster has seen this id.
            NotReadyError: the cluster has just started.
        """
        runtime: dict[str, Any] = {"env_vars": dict(environment)}
        if folder is not None:
            runtime["working_dir"] = folder
        with self._one_line():
            try:
                self._jobs.submit_job(
                    entrypoint=command,
                    submission_id=job_id,
                    runtime_env=runtime,
                    metadata=dict(metadata),
                )
            except RuntimeError as error:
                if "already" in str(error):
                    raise IdTakenError(job_id).with_code("job-id-taken") from None
                if "No available agent" in str(error):
                    raise NotReadyError(
                        f"{self.address} accepts no jobs: the agent of its head has not started; "
                        "if that lasts, see dashboard_agent.log there (another Ray on that "
                        "machine may use its port, 52365)."
                    ).with_code("cluster-not-ready") from None
                raise

    def stop(self, job_id: str) -> None:
        """Send a job SIGTERM, and SIGKILL if it does not end in time."""
        with self._one_line():
            self._jobs.stop_job(job_id)

    def logs(self, job_id: str) -> str:
        """Return what a job has printed so far."""
        with self._one_line():
            return str(self._jobs.get_job_logs(job_id))

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn connection errors into one line."""
        try:
            yield
        except AuthenticationError:
            raise _about_token(self.address, self._has_token) from None
        except (OSError, RuntimeError, ValueError, LookupError) as error:
            if isinstance(error, UnreachableError | IdTakenError):
                raise
            raise _about_connection(self.address, error) from None


def _check_address(address: str) -> None:
    if "@" in address:
        raise UserError(
            "--address must hold no password; the token comes from RAY_AUTH_TOKEN."
        ).with_code("address-with-password")
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # the port is not a number
        right = False
    if not right:
        raise UserError(
            f"--address must be the URL of the cluster's dashboard, such as "
            f"http://127.0.0.1:8265, but got {address!r}."
        ).with_code("address-not-a-url")


def _about_token(address: str, has_token: bool) -> UserError:
    if has_token:
        return UserError(
            f"{address} refuses the token; give the cluster's own in RAY_AUTH_TOKEN, or in the "
            "file named by RAY_AUTH_TOKEN_PATH, else in ~/.ray/auth_token."
        ).with_code("token-refused")
    off = " With RAY_AUTH_MODE=disabled none is sent."
    return UserError(
        f"{address} asks for a token, and none was found; set RAY_AUTH_TOKEN, or "
        "RAY_AUTH_TOKEN_PATH to a file that holds it, or write it to ~/.ray/auth_token."
        + (off if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled" else "")
    ).with_code("cluster-wants-token")


def _about_connection(address: str, error: Exception) -> UnreachableError:
    cause: BaseException | None = error
    chain = []
    while cause is not None:  # Ray's error hides the connection error
        chain.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    text = " ".join(chain)
    if "SSL" in text or "certificate" in text:
        return UnreachableError(
            f"{address} has no certificate that is trusted here; give the authority's file in "
            "REQUESTS_CA_BUNDLE."
        ).with_code("certificate-not-trusted")
    if "ConnectionError" in text or "Timeout" in text or "timed out" in text:
        return UnreachableError(
            f"{address} does not answer; check that the cluster runs and that this is the port of "
            "its dashboard, such as http://127.0.0.1:8265 through an SSH tunnel."
        ).with_code("cluster-silent")
    if "status code" in text and "Request failed" in text:
        first = str(error).strip().splitlines()[0][:300]
        return UnreachableError(f"{address} refused: {first}").with_code("cluster-refused")
    return UnreachableError(
        f"{address} answers, but is not the dashboard of a Ray cluster; check the port (8265 by "
        "default) and that Ray was installed there as ray[default]."
    ).with_code("not-a-dashboard")


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Hide environment variables during the block."""
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
