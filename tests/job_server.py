"""A job server of a Ray cluster without Ray, and a proxy that notes what it is asked for."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

JOB = "nas-digits-1"


class JobServer:
    """One job of the study `digits`, which prints two lines and ends when it is stopped."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # method and path
        self.state, self.port = "RUNNING", 0
        self.printed = "first\nsecond\n"
        self.others: list[str] = []  # jobs that were submitted; each has ended

    def answer(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        if path == "/api/version":
            return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "0"}
        if method == "POST" and path.endswith("/stop"):
            self.state = "STOPPED"
            return 200, {"stopped": True}
        if path.endswith("/logs"):
            return 200, {"logs": self.printed}
        if method == "POST" and path.rstrip("/") == "/api/jobs":
            self.others.append(body["submission_id"])
            return 200, {"job_id": body["submission_id"], "submission_id": body["submission_id"]}
        if path.startswith("/api/packages/"):
            return 200, {}
        if path.rstrip("/") == "/api/jobs":
            metadata = {"nas_evidence_study": "digits", "nas_evidence_store": "/nowhere/s"}
            job = {"type": "SUBMISSION", "submission_id": JOB, "status": self.state,
                   "entrypoint": "x", "metadata": metadata}  # fmt: skip
            ended = {"metadata": {}, "status": "SUCCEEDED"}
            return 200, [job, *(job | ended | {"submission_id": name} for name in self.others)]
        return 404, {}


@contextmanager
def job_server() -> Iterator[JobServer]:
    """Give a job server on this machine."""
    from aiohttp import web

    server, ready = JobServer(), threading.Event()
    loop = asyncio.new_event_loop()

    async def any_request(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/logs/tail"):
            server.asked.append(f"GET {request.path}")
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_str(server.printed)
            while server.state == "RUNNING" and JOB in request.path:
                await asyncio.sleep(0.02)
            await socket.close()
            return socket
        given = await request.json() if request.content_type == "application/json" else None
        status, body = server.answer(request.method, request.path, given)
        return web.json_response(body, status=status)

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", any_request)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        return runner

    def run() -> None:
        runner = loop.run_until_complete(begin())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        server.state = "STOPPED"
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class Proxy(http.server.ThreadingHTTPServer):
    """Answers as the cluster behind it would; `refusal` is the status of a proxy that does not."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarded)
        self.cluster, self.refusal = JobServer(), 0
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Forwarded(http.server.BaseHTTPRequestHandler):
    def _any(self) -> None:
        proxy: Proxy = self.server  # type: ignore[assignment]
        proxy.tokens.append(self.headers.get("Authorization"))
        path = "/" + self.path.split("/", 3)[-1]
        status, body = proxy.cluster.answer(self.command, path)
        content = json.dumps(body).encode()
        self.send_response(proxy.refusal or status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_CONNECT = _any

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def proxy_server() -> Iterator[Proxy]:
    """Give a proxy on this machine."""
    with Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
