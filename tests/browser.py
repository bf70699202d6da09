"""A page in headless Chromium, driven through its DevTools protocol.

One browser, one tab. What the page logs, throws and asks of the network is kept;
`evaluate` runs a script in it, `press` and `type_key` are a person's mouse and keyboard.
"""

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 60.0  # seconds for one answer, on a busy machine


class Browser:
    """One tab; `errors` are what the page threw and logged, `requests` the addresses it asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse):
        self._loop, self._socket, self._number = loop, socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send one command and return its answer; events that come before it are kept."""
        return self._loop.run_until_complete(
            asyncio.wait_for(self._call(method, params), PATIENCE)
        )

    async def _call(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            self._keep(message)
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])

    def _keep(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Open a file at this width, in light or dark, and wait until it is drawn."""
        self.errors.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri())
        self.evaluate(
            "new Promise((done) => document.readyState === 'complete' "
            "? done() : addEventListener('load', done))"
        )
        self.evaluate("new Promise((done) => setTimeout(done, 300))")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def type_key(self, key: str, code: int, text: str = "") -> None:
        """Press and release one key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """Save the whole page, however long, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile, and end it."""
    process = subprocess.Popen(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
         "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = iter(process.stderr.readline, "")
        found = next(filter(None, (re.search(r"listening on ws://(\S+?)/", one) for one in lines)))
        loop = asyncio.new_event_loop()
        session, socket = loop.run_until_complete(_connect(found[1]))
        try:
            yield Browser(loop, socket)
        finally:
            loop.run_until_complete(_close(session, socket))
            loop.close()
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stderr.close()


async def _connect(
    host: str,
) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://{host}/json/list") as answer:
        tab = next(one for one in await answer.json() if one["type"] == "page")
    return session, await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=2**28)


async def _close(session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.close()
    await session.close()
