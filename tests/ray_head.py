"""A real Ray head with dashboard and token on this machine, to be killed and started again.

All its processes are in the session that it was started in; jobs have sessions of their own, and
their supervisor's death ends them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from commands import SCRIPT, environment
from processes import processes

TOKEN = "a-token-for-tests-0123456789abcdef"


def free_ports(n: int) -> list[int]:
    """Return free ports that Ray does not give to workers, nor the system to anybody.

    Processes that test side by side look in ranges of their own: a port is free until it is used.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    first = 20000 + 3000 * worker
    found: list[int] = []
    for port in range(first + os.getpid() % 2000, first + 3000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == n:
            return found
    raise AssertionError("no free port")


class Head:
    """A head node: `url` of the dashboard, `gcs` for drivers that join."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Its sockets are below; a path to one may have 107 characters.
        self._short = tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True)
        gcs, dashboard, client, agent = free_ports(4)
        self.url, self.gcs = f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        (folder / "home" / ".ray").mkdir(parents=True)
        (folder / "home" / ".ray" / "auth_token").write_text(TOKEN)
        self.environment = environment(
            HOME=str(folder / "home"),
            RAY_AUTH_MODE="token",
            RAY_raylet_start_wait_time_s="120",
            RAY_ADDRESS="http://127.0.0.1:1",  # --address counts, not this
        )
        self._command = [
            str(Path(sys.executable).with_name("ray")),
            *("start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"),
            *(f"--port={gcs}", f"--ray-client-server-port={client}"),
            f"--dashboard-agent-listen-port={agent}",
            *("--include-dashboard=true", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={dashboard}", f"--temp-dir={self._short.name}"),
            f"--object-store-memory={80 * 1024**2}",
        ]

    def start(self) -> None:
        given = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        with (self.folder / "head.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=given, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 150
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "head.log").read_text()
            assert time.monotonic() < end, "the dashboard does not answer"
            time.sleep(0.5)

    def add_node(self) -> None:
        """Start another node on this machine; it shares the head's folder."""
        given = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        command = [self._command[0], "start", f"--address={self.gcs}", "--block", "--num-cpus=1"]
        with (self.folder / "node.log").open("ab") as log:
            self._nodes.append(
                subprocess.Popen(
                    command, env=given, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _answers(self) -> bool:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.url}/api/jobs/", headers=headers), timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def drivers(self, name: str) -> list[int]:
        """Return the processes of the jobs whose store is of this name."""
        return [
            pid
            for pid, (_, _, command) in processes().items()
            if f"/{name} --address auto" in command and "nas_evidence" in command
        ]

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._short.cleanup()

    def kill(self) -> None:
        """End the head and all that it started, as a loss of its machine would."""
        everyone = processes()
        started = {self.process.pid, *(node.pid for node in self._nodes)}
        doomed = set(started)
        for _ in range(5):  # children of children, in whatever session
            doomed |= {
                pid
                for pid, (parent, session, _) in everyone.items()
                if parent in doomed or session in started
            }
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (self.process, *self._nodes):
            process.wait()
        self._nodes.clear()

    def run(self, *arguments: object, code: int = 0, **more: str) -> str:
        """Run `nas-evidence ...` to its end, which must be `code`; return what it printed."""
        done = subprocess.run(
            [str(SCRIPT), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | more,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=400,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"exit code {done.returncode}\n{said}"
        assert "Traceback" not in said
        assert TOKEN not in said
        return said
