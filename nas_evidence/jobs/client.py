"""The connection to the job server of a Ray cluster, through Ray's own client.

The given address is used: Ray's client by itself would prefer RAY_ADDRESS.
"""

import asyncio
import logging
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from nas_evidence.jobs.auth_token import read_token
from nas_evidence.jobs.job import STORE, STUDY, IdTakenError, Job, NotReadyError, UnreachableError
from nas_evidence.plumbing.proxies import is_loopback, pass_proxies_by, proxy_of
from nas_evidence.plumbing.user_error import UserError

#: Timeout of an answer from the job server, seconds.
TIMEOUT = 30.0
#: Seconds without a word of a job after which whoever follows it looks whether it lives.
SILENT = 10.0
#: Seconds between two looks at the log of a job behind a proxy, which need not pass a stream on.
LOOK_EVERY = 2.0
_PREFERRED = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


class _Jobs(JobSubmissionClient):
    """Ray's client with a timeout, without which it waits for ever."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": TIMEOUT, **options})


class RayClient:
    """The job server of a cluster; each call may raise `UnreachableError`.

    Raises:
        ValueError: the address is not that of a dashboard, or the token is wrong or missing.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        _check_address(self.address)
        pass_proxies_by(self.address)
        _quieten()
        token = read_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._has_token, self._is_one = bool(token), False
        with self._one_line(), _without(_PREFERRED):
            self._jobs = _Jobs(self.address, headers=headers)
            self._is_one = True

    @property
    def sends_token_in_clear(self) -> bool:
        """Return whether a token is sent unencrypted over a network."""
        parts = urlsplit(self.address)
        return self._has_token and parts.scheme == "http" and not is_loopback(parts.hostname or "")

    @property
    def _way(self) -> str:
        return f"{self.address} by the proxy {self.proxy}" if self.proxy else self.address

    @property
    def proxy(self) -> str | None:
        """Return the proxy of the environment that requests go through, and its variable."""
        return proxy_of(self.address)

    def jobs(self) -> list[Job]:
        """Return every submitted job, in no particular order."""
        with self._one_line():
            return [
                Job(
                    job.submission_id,
                    (job.metadata or {}).get(STUDY, ""),
                    (job.metadata or {}).get(STORE, ""),
                    str(job.status.value),
                    job.message or "",
                    job.driver_exit_code,
                )
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
            except RuntimeError as error:  # its text is a traceback of the server
                if any(job.id == job_id for job in self.jobs()):
                    raise IdTakenError("job-id-taken", job_id) from None
                if "status code 4" in str(error):  # another try gets the same answer
                    raise _refused(self._way, str(error)) from None
                raise NotReadyError(
                    "cluster-not-ready",
                    f"{self._way} accepts no jobs: the agent of its head has not started; "
                    "if that lasts, see dashboard_agent.log there (another Ray on that "
                    "machine may use its port, 52365).",
                ) from None

    def stop(self, job_id: str) -> None:
        """Send a job SIGTERM, and SIGKILL if it does not end in time."""
        with self._one_line():
            self._jobs.stop_job(job_id)

    def logs(self, job_id: str) -> str:
        """Return what a job has printed so far."""
        with self._one_line():
            return str(self._jobs.get_job_logs(job_id))

    def tail(self, job_id: str) -> Iterator[str]:
        """Yield what a job prints from its first word on; "" when it is silent for a while."""
        if self.proxy is not None:
            yield from self._polled(job_id)
            return
        # In a thread of its own, for the caller may have a running loop, as a notebook has.
        loop, lines = asyncio.new_event_loop(), self._jobs.tail_job_logs(job_id)
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        next_one: Future[str] | None = None
        try:
            while True:
                next_one = next_one or asyncio.run_coroutine_threadsafe(_next(lines), loop)
                with self._one_line():
                    if not wait({next_one}, timeout=SILENT).done:
                        text = ""
                    elif isinstance(next_one.exception(), StopAsyncIteration):
                        return
                    else:
                        text, next_one = next_one.result(), None
                yield text
        finally:
            asyncio.run_coroutine_threadsafe(_ended(lines), loop).result(timeout=SILENT)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _polled(self, job_id: str) -> Iterator[str]:
        n_seen, over = 0, False
        while not over:
            over = not any(job.id == job_id and job.alive for job in self.jobs())
            text = self.logs(job_id)
            yield text[n_seen:]
            n_seen = len(text)
            time.sleep(0 if over else LOOK_EVERY)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn connection errors into one line."""
        try:
            yield
        except AuthenticationError:
            raise _about_token(self.address, self._has_token, self.proxy) from None
        except UserError:
            raise
        except Exception as error:  # also of the libraries that Ray calls
            raise _about_connection(
                self.address, error, is_one=self._is_one, proxy=self.proxy
            ) from None


def _quieten() -> None:
    """Keep off the screen what Ray's client logs of each upload and of the end of each stream.

    Its modules set levels of their own, so that of `ray` alone changes nothing.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if name.startswith("ray.dashboard") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.ERROR)


async def _next(lines: AsyncIterator[str]) -> str:
    return await anext(lines)


async def _ended(lines: Any) -> None:
    """End a stream and whatever waits for its next line."""
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
    await lines.aclose()


def _check_address(address: str) -> None:
    if "@" in address:
        raise UserError(
            "address-with-password",
            "`address` must hold no password; the token comes from RAY_AUTH_TOKEN.",
        )
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # the port is not a number
        right = False
    if not right:
        raise UserError(
            "address-not-a-url",
            f"`address` must be the URL of the cluster's dashboard, such as "
            f"http://127.0.0.1:8265, but got {address!r}.",
        )


def _about_token(address: str, has_token: bool, proxy: str | None) -> UserError:
    if proxy is not None:  # either may have refused
        return UserError(
            "refused-behind-proxy",
            f"{address} or the proxy {proxy} on the way refuses the request for want of a valid "
            f"token or password; check RAY_AUTH_TOKEN, or add {urlsplit(address).hostname} to "
            "no_proxy if the cluster can be reached without the proxy.",
        )
    if has_token:
        return UserError(
            "token-refused",
            f"{address} refuses the token; give the cluster's own in RAY_AUTH_TOKEN, or in the "
            "file named by RAY_AUTH_TOKEN_PATH, else in ~/.ray/auth_token.",
        )
    off = " With RAY_AUTH_MODE=disabled none is sent."
    return UserError(
        "cluster-wants-token",
        f"{address} asks for a token, and none was found; set RAY_AUTH_TOKEN, or "
        "RAY_AUTH_TOKEN_PATH to a file that holds it, or write it to ~/.ray/auth_token."
        + (off if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled" else ""),
    )


def _about_connection(
    address: str, error: Exception, *, is_one: bool, proxy: str | None
) -> UnreachableError:
    chain = list[BaseException]()
    cause: BaseException | None = error
    while cause is not None:  # Ray's error hides the connection error
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(one, ssl.SSLError) for one in chain):
        return UnreachableError(
            "certificate-not-trusted",
            f"{address} has no certificate that is trusted here; give the authority's file in "
            "REQUESTS_CA_BUNDLE.",
        )
    if proxy is not None and (not is_one or any(isinstance(one, OSError) for one in chain)):
        return UnreachableError(
            "silent-behind-proxy",
            f"no dashboard of a Ray cluster answers at {address} through the proxy {proxy}; check "
            f"both, or add {urlsplit(address).hostname} to no_proxy if the cluster can be reached "
            "without the proxy.",
        )
    answers = any(isinstance(e, ValueError) or _has_answer(e) for e in chain)
    if not answers and any(isinstance(one, OSError) for one in chain):
        return UnreachableError(
            "cluster-silent",
            f"{address} does not answer; check that the cluster runs and that this is the port of "
            "its dashboard, such as http://127.0.0.1:8265 through an SSH tunnel.",
        )
    if is_one:
        way = f"{address} by the proxy {proxy}" if proxy else address
        return _refused(way, str(error).partition("\n")[0])
    return UnreachableError(
        "not-a-dashboard",
        f"{address} answers, but is not the dashboard of a Ray cluster; check the port (8265 by "
        "default) and that Ray was installed there as ray[default].",
    )


def _refused(address: str, why: str) -> UnreachableError:
    """Return the error whose cause is the last line of a text, as of a traceback."""
    last = why.strip(" .\n").rpartition("\n")[2][:300]
    return UnreachableError("cluster-refused", f"{address} refused: {last}")


def _has_answer(error: BaseException) -> bool:
    return getattr(error, "response", None) is not None


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Hide environment variables during the block."""
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
