"""One of several hosts is cut off, slowed down, killed or added, under a study on Ray's cluster.

Hosts are network namespaces of this machine (`ip netns`), each with its own address, host name,
processes and `/tmp`; a bridge in one more namespace joins them. The study folder is on the file
system that all see. `head` has Ray's head and no trials, the nodes one trial each, `desk` the
driver. It needs Linux and root.

Cutting off is done at the bridge: packets are lost, and no connection is closed. A slow link is
the kernel's token bucket; delay and random loss need its module netem, and are left out without
it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from commands import run
from soak.harness import Found, Result, Studies, differing, n_launches, tables_of, write_study

from nas_evidence.storage.events import AttemptLost
from nas_evidence.storage.log import events

NAMES = ("head", "node-1", "node-2", "desk", "desk-2", "desk-3")
#: Longest that one driver may take, seconds, and most drivers of one study.
PATIENCE, DRIVERS = 900.0, 5
PORT = 6379


class Hosts:
    """Network namespaces as hosts, joined by a bridge; a context manager that removes them.

    home    folder that all see; each has a folder of its own in it, which it sees as `/tmp`
    late    seconds after which a host sees in `shared` what others did there; 0 if at once
    shared  folder that the hosts see in `home`; `behind` has its files, seen from here
    """

    def __init__(self, home: Path, late: float = 0.0) -> None:
        self.home, self.late, self._mark = home, late, f"nas{os.getpid()}"
        self.shared, self.behind = home / "shared", home / "behind" if late else home / "shared"
        for folder in (self.shared, self.behind):
            folder.mkdir(exist_ok=True)
        self._init: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        try:
            self._ip("netns", "add", self._of("wire"))
            self._wire("link", "add", "bridge", "type", "bridge")
            self._wire("link", "set", "bridge", "up")
            for name in NAMES:
                self._join(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs on the hosts, and remove them."""
        for name in (*NAMES, "wire"):
            self.kill(name)
            with contextlib.suppress(subprocess.CalledProcessError):  # not made
                self._ip("netns", "del", self._of(name))

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"10.77.0.{1 + NAMES.index(name)}"

    def start(self, name: str, *command: object) -> "subprocess.Popen[str]":
        """Start a command on a host; its standard output has its errors too."""
        if name not in self._init:
            self._boot(name)
        there = ("--target", self._first(name), "--all", f"--wdns={self.home}")
        return subprocess.Popen(
            [*map(str, ("nsenter", *there, *command))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def signal(self, name: str, word: str, number: int) -> None:
        """Send a signal to the processes of a host whose command has a word."""
        for pid in self._ip("netns", "pids", self._of(name)).split():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(int(pid), number)

    def _first(self, name: str) -> str:
        """Return the number of the first process of a host, as it is seen from here."""
        pid = self._init[name].pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]

    def runs(self, name: str, command: str) -> bool:
        """Return whether a process of a name runs on a host."""
        for pid in self._ip("netns", "pids", self._of(name)).split():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text().strip() == command:
                    return True
        return False

    def kill(self, name: str) -> None:
        """End all processes of a host at once: the kernel does, with the first of them."""
        if init := self._init.pop(name, None):
            init.kill()
            init.wait()
            while pids := self._ip("netns", "pids", self._of(name)).split():
                for pid in pids:  # who entered from outside, and may be stopped
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.05)

    def _boot(self, name: str) -> "subprocess.Popen[bytes]":
        """Start the first process of a host, which waits."""
        own = self.home / name
        own.mkdir(exist_ok=True)
        alone = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        wait = 'hostname "$0" && mount --bind "$1" /tmp && while sleep 3600; do :; done'
        command = ("ip", "netns", "exec", self._of(name), *alone, "sh", "-c", wait, name, str(own))
        self._init[name] = subprocess.Popen(command)
        while not self.runs(name, "sleep"):
            time.sleep(0.05)
        if self.late:
            program = ("-m", "soak.late", self.behind, self.shared, self.late)
            self.start(name, sys.executable, *program)
            while str(self.shared) not in Path(f"/proc/{self._first(name)}/mounts").read_text():
                time.sleep(0.05)
        return self._init[name]

    def cut_off(self, name: str, seconds: float) -> None:
        """Let no packet through to or from a host for some time."""
        self._wire("link", "set", name, "down")
        time.sleep(seconds)
        self._wire("link", "set", name, "up")

    def queue(self, where: str, *words: str) -> None:
        """Set the queue of the kernel of a host."""
        self._ip("netns", "exec", self._of(where), "tc", "qdisc", *words)

    def with_ray(self, *names: str) -> None:
        """Start Ray on those of some hosts on which it does not run."""
        for name in names:
            if self.runs(name, "raylet"):
                continue
            self.kill(name)
            head = ("--head", f"--port={PORT}", "--include-dashboard=false")
            joins = (f"--address={self.address('head')}:{PORT}",)
            script = Path(sys.executable).with_name("ray")
            starting = self.start(
                name, script, "start", f"--node-ip-address={self.address(name)}",
                f"--num-cpus={1 if name.startswith('node') else 0}", "--num-gpus=0",
                f"--object-store-memory={80 * 1024**2}", "--disable-usage-stats",
                *(head if name == "head" else joins),
            )  # fmt: skip
            said, _ = starting.communicate(timeout=PATIENCE)
            if starting.returncode:
                raise RuntimeError(f"Ray does not start on {name}: {said[-600:]}")

    def _of(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _ip(self, *words: str) -> str:
        return _run("ip", *words)

    def _wire(self, *words: str) -> str:
        return self._ip("-n", self._of("wire"), *words)

    def _join(self, name: str) -> None:
        there = self._of(name)
        self._ip("netns", "add", there)
        self._wire("link", "add", name, "type", "veth", "peer", "name", "wire", "netns", there)
        self._wire("link", "set", name, "master", "bridge", "up")
        self._ip("-n", there, "addr", "add", f"{self.address(name)}/24", "dev", "wire")
        for device in ("wire", "lo"):
            self._ip("-n", there, "link", "set", device, "up")
        # By it Ray finds out which address is its own.
        self._ip("-n", there, "route", "add", "default", "via", "10.77.0.254")


def why_not() -> str:
    """Return why hosts cannot be made here, "" if they can."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "network namespaces need Linux and root"
    if Path(__file__).resolve().is_relative_to("/tmp"):
        return "hosts have a /tmp of their own each, and the project is in /tmp"
    if lacking := [
        word for word in ("ip", "tc", "unshare", "nsenter") if shutil.which(word) is None
    ]:
        return f"network namespaces need {', '.join(lacking)}"
    try:
        _run("ip", "netns", "add", f"nas{os.getpid()}-try")
        _run("ip", "netns", "del", f"nas{os.getpid()}-try")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {str(error.stderr).strip()}"
    return ""


def shaped(hosts: Hosts, *how: str) -> None:
    """Send what goes to and from a node through a queue of the kernel (`tc qdisc`) for 20 s."""
    ends = (("node-1", "wire"), ("wire", "node-1"))
    for where, device in ends:
        hosts.queue(where, "add", "dev", device, "root", *how)
    time.sleep(20)
    for where, device in ends:
        hosts.queue(where, "del", "dev", device, "root")


CASES: dict[str, Callable[[Hosts], object]] = {
    "nothing": lambda hosts: None,
    "node cut off 10 s": lambda hosts: hosts.cut_off("node-1", 10),
    "node cut off 40 s": lambda hosts: hosts.cut_off("node-1", 40),
    "head cut off 10 s": lambda hosts: hosts.cut_off("head", 10),
    "driver cut off 10 s": lambda hosts: hosts.cut_off("desk", 10),
    "driver cut off 40 s": lambda hosts: hosts.cut_off("desk", 40),
    "link of a node at 1 Mbit/s for 20 s": lambda hosts: shaped(
        hosts, "tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms"
    ),
    "100 ms and 5 % loss for 20 s": lambda hosts: shaped(
        hosts, "netem", "delay", "100ms", "loss", "5%"
    ),
    "node killed": lambda hosts: hosts.kill("node-1"),
    "node added": lambda hosts: hosts.with_ray("node-2"),
    "driver's host killed": lambda hosts: hosts.kill("desk"),
}


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    with cluster(home) as (hosts, study):
        calm = home / "calm"
        run("search", study, "--out", calm, "--executor", "inline", folder=home)
        yield CASES, partial(disturbed, hosts=hosts, study=study, calm=calm)


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[tuple[Hosts, Path]]:
    """Give hosts, and a study of eight small networks for two nodes."""
    study = write_study(
        home, rows=150, epochs=160, every=20, n_trials=8, batch=4, resources={"workers": 2}
    )
    with Hosts(home) as hosts:
        yield hosts, study


def disturbed(case: str, *, hosts: Hosts, study: Path, calm: Path) -> Found:
    """Run the study with what a case does to it after the third report.

    Returns:
        `seconds` from then to the end, the longest `silence` in the log meanwhile, how many
        `drivers` it took, and why trials were `lost`.
    """
    name, wrong, began = re.sub(r"\W+", "-", case), list[str](), list[float]()
    place, folder = hosts.shared / name, hosts.behind / name
    if case == "node added":
        hosts.kill("node-2")
    hosts.with_ray("head", "node-1", *(() if case == "node added" else ("node-2",)))
    for drivers in range(1, DRIVERS + 1):
        where = "desk-2" if drivers > 1 and case == "driver's host killed" else "desk"
        hosts.with_ray(where)
        verb = (
            ("resume", place, "--steal") if folder.exists() else ("search", study, "--out", place)
        )
        command = (sys.executable, "-m", "nas_evidence", *verb, "--address")
        driver = hosts.start(where, *command, f"{hosts.address('head')}:{PORT}")
        end = time.monotonic() + PATIENCE
        while not began and driver.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            if n_launches(folder) >= 3:
                began.append(time.time())
                try:
                    CASES[case](hosts)
                except subprocess.CalledProcessError as error:  # the kernel lacks the module
                    hosts.kill(where)
                    return Found(facts={"left_out": str(error.stderr).strip()})
        try:
            said, _ = driver.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            hosts.kill(where)
            wrong.append("hung: a driver did not end")
        if wrong or driver.returncode == 0:
            break
        print(f"driver {drivers} ended with {driver.returncode}: {said[-300:]}", flush=True)
        time.sleep(5)
    else:
        wrong.append("hung: not finished by the last driver")
    since = began[0] if began else time.time()
    facts = [(t, event) for t, event in events(folder) if t >= since]
    times = np.array([since, *(t for t, _ in facts)])
    found = {
        "seconds": round(float(times[-1] - times[0]), 1),
        "silence": round(float(np.diff(times).max(initial=0.0)), 1),
        "drivers": drivers,
        "lost": [event.cause for _, event in facts if isinstance(event, AttemptLost)],
    }
    wrong = wrong or differing(tables_of(folder), tables_of(calm))
    return Found(wrong=wrong, facts=found)


def table(result: Result) -> str:
    """Return the cases as Markdown."""
    lines = ["| case | seconds to the end | longest silence, s | drivers | trials lost | wrong |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for case, found in result["cases"].items():
        if "left_out" not in found:
            words = ", ".join(result["wrong"].get(case, {}).get("found", [])) or "-"
            facts = (found["seconds"], found["silence"], found["drivers"], len(found["lost"]))
            lines.append(f"| {case} | {' | '.join(map(str, facts))} | {words} |")
    return "\n".join(lines)


def _run(*command: str) -> str:
    """Run a command to its end; return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
