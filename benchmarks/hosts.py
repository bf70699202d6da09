"""A study on several hosts of which one is cut off, slowed down, killed or added.

    python benchmarks/hosts.py [--cases "node cut off 10 s" ...] [--to FILE.json]

Hosts are network namespaces of this machine (`ip netns`), each with its own address, host name,
processes and `/tmp`; a bridge in one more namespace joins them. The study folder is on the file
system that all see. `head` has Ray's head and no trials, the nodes one trial each, `desk` the
driver. It needs Linux and root. A case ends when the study has ended; wrong is

    differ   tables that are not those of the undisturbed study, bit by bit, but for attempts,
             durations and versions
    hung     a driver that took longer than `PATIENCE`, or more than `DRIVERS` of them

Cutting off is done at the bridge: packets are lost, and no connection is closed. A slow link is
the kernel's token bucket; delay and random loss need its module netem, and are left out without
it. The results keep cases of earlier calls.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}

import numpy as np
import pandas as pd
import ray
from chaos import differing, stored

from nas_evidence import __version__
from nas_evidence.plumbing.files import write_whole
from nas_evidence.storage.journal import read_journal

NAMES = ("head", "node-1", "node-2", "desk", "desk-2")
#: Longest that one driver may take, seconds, and most drivers of one study.
PATIENCE, DRIVERS = 900.0, 5
PORT = 6379
_QUEUE = ("tc", "qdisc")
STUDY = """\
name = "hosts"
n_trials = 8
objective = "diag_ef"
estimators = ["diag_ef"]
scheduling = "batch"
batch = 4
[dataset]
name = "table"
path = "data.csv"
target = "kind"
test_fraction = 0.2
[family.mlp]
width = {low = 4, high = 16, log = true}
depth = 1
[plan]
epochs = 160
batch_size = 16
[plan.online]
every = 20
curvature = "diag_ef"
[resources]
workers = 2
"""


class Hosts:
    """Network namespaces as hosts, joined by a bridge; a context manager that removes them.

    home  folder that all see; each has a folder of its own in it, which it sees as `/tmp`
    """

    def __init__(self, home: Path) -> None:
        self.home, self._mark = home, f"nas{os.getpid()}"
        self._init: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        """Make the hosts.

        Raises:
            OSError: not here; says why.
        """
        if reason := why_not():
            raise OSError(reason)
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
        init = self._init.get(name) or self._boot(name)
        (first,) = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
        return subprocess.Popen(
            [*map(str, ("nsenter", "--target", first, "--all", f"--wdns={self.home}", *command))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

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
            while self._ip("netns", "pids", self._of(name)):
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
        return self._init[name]

    def cut_off(self, name: str, seconds: float) -> None:
        """Let no packet through to or from a host for some time."""
        self._wire("link", "set", name, "down")
        time.sleep(seconds)
        self._wire("link", "set", name, "up")

    def shape(self, name: str, *how: str) -> None:
        """Send what goes to and from a host through a queue of the kernel (`tc qdisc`)."""
        for where, device in ((name, "wire"), ("wire", name)):
            self._ip("netns", "exec", self._of(where), *_QUEUE, "add", "dev", device, "root", *how)

    def unshape(self, name: str) -> None:
        """Remove that queue."""
        for where, device in ((name, "wire"), ("wire", name)):
            self._ip("netns", "exec", self._of(where), *_QUEUE, "del", "dev", device, "root")

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


def node_killed(hosts: Hosts) -> None:
    """Kill every process of a node."""
    hosts.kill("node-1")


def slow_link(hosts: Hosts) -> None:
    """Slow down a node's link to 1 Mbit/s for 20 s."""
    hosts.shape("node-1", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms")
    time.sleep(20)
    hosts.unshape("node-1")


def lossy_link(hosts: Hosts) -> None:
    """Delay a node's packets by 100 ms each way and lose 5 % of them, for 20 s."""
    hosts.shape("node-1", "netem", "delay", "100ms", "loss", "5%")
    time.sleep(20)
    hosts.unshape("node-1")


def node_added(hosts: Hosts) -> None:
    """Start Ray on a node."""
    hosts.with_ray("node-2")


def driver_lost(hosts: Hosts) -> None:
    """Kill every process of the driver's host, and go on at another."""
    hosts.kill("desk")


def _cut(name: str, seconds: float) -> Callable[[Hosts], None]:
    return lambda hosts: hosts.cut_off(name, seconds)


CASES: dict[str, Callable[[Hosts], None]] = {
    "nothing": lambda hosts: None,
    "node cut off 10 s": _cut("node-1", 10),
    "node cut off 40 s": _cut("node-1", 40),
    "head cut off 10 s": _cut("head", 10),
    "driver cut off 10 s": _cut("desk", 10),
    "driver cut off 40 s": _cut("desk", 40),
    "link of a node at 1 Mbit/s for 20 s": slow_link,
    "100 ms and 5 % loss for 20 s": lossy_link,
    "node killed": node_killed,
    "node added": node_added,
    "driver's host killed": driver_lost,
}


def prepared(home: Path) -> Path:
    """Write data and study into a folder, and run the study undisturbed; return its folder."""
    y = np.arange(150) % 3
    x = np.random.default_rng(0).normal(size=(150, 4)) + 2 * np.eye(4)[y]
    frame = pd.DataFrame(x, columns=list("abcd")).assign(kind=np.array(["r", "g", "b"])[y])
    frame.to_csv(home / "data.csv", index=False)
    (home / "study.toml").write_text(STUDY)
    how = ("search", home / "study.toml", "--out", home / "calm", "--executor", "inline")
    _run(*_evidence(*how))
    return home / "calm"


def disturbed(case: str, hosts: Hosts, calm: Path) -> dict[str, Any]:
    """Run the study with what a case does to it after the third report; return what came of it.

    Returns:
        `seconds` from then to the end, the longest `silence` in the journal meanwhile, how many
        `drivers` it took, why trials were `lost`, and what is `wrong`.
    """
    folder = hosts.home / re.sub(r"\W+", "-", case)
    if case == "node added":
        hosts.kill("node-2")
    hosts.with_ray("head", "node-1", *(() if case == "node added" else ("node-2",)))
    wrong, began, drivers = [], list[float](), 0
    for drivers in range(1, DRIVERS + 1):
        where = "desk-2" if drivers > 1 and case == "driver's host killed" else "desk"
        hosts.with_ray(where)
        code, said = _drive(case, hosts, folder, where, began)
        if code == 0:
            break
        print(f"driver {drivers} ended with {code}: {said[-300:]}", flush=True)
        if code is None:
            wrong.append("hung: a driver did not end")
            break
        time.sleep(5)
    else:
        wrong.append("hung: not finished by the last driver")
    if not wrong and (names := differing(str(folder), str(calm))):
        wrong.append(f"differ: {', '.join(names)}")
    since = began[0] if began else time.time()
    events = [event for event in read_journal(folder) if event["t"] >= since]
    times = np.array([since, *(event["t"] for event in events)])
    return {
        "seconds": round(float(times[-1] - times[0]), 1),
        "silence": round(float(np.diff(times).max(initial=0.0)), 1),
        "drivers": drivers,
        "lost": [event["cause"] for event in events if event["event"] == "lost"],
        "wrong": wrong,
    }


def _drive(
    case: str, hosts: Hosts, folder: Path, where: str, began: list[float]
) -> tuple[int | None, str]:
    """Run a driver to its end, and disturb it if none was; return exit code and what it says.

    Args:
        case: its name.
        hosts: all.
        folder: of the study.
        where: the driver's host.
        began: when it was disturbed; added here.

    Returns:
        None as the exit code of a driver that did not end.
    """
    new = ("search", hosts.home / "study.toml", "--out", folder)
    verb = new if not folder.exists() else ("resume", folder, "--steal")
    address = f"{hosts.address('head')}:{PORT}"
    driver = hosts.start(where, *_evidence(*verb, "--address", address))
    end = time.monotonic() + PATIENCE
    while not began and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        if _n_reports(folder) >= 3:
            began.append(time.time())
            CASES[case](hosts)
    try:
        said, _ = driver.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        hosts.kill(where)
        return None, ""
    return driver.returncode, said


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Hosts, Path]]:
    """Give hosts with a study that has run undisturbed, and its folder."""
    home = Path(tempfile.mkdtemp(prefix="nas-hosts-", dir="/var/tmp"))  # `/tmp` is each host's own
    try:
        with Hosts(home) as hosts:
            yield hosts, prepared(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Run cases and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--to", type=Path, default=Path("benchmarks/results/hosts.json"))
    given, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    results = stored(given.to) or {"cases": {}, "left_out": {}}
    results |= {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, shared with other jobs",
        "versions": {
            "nas-evidence": __version__,
            "python": platform.python_version(),
            "ray": ray.__version__,
        },
    }
    with cluster() as (hosts, calm):
        for case in given.cases:
            try:
                results["cases"][case] = disturbed(case, hosts, calm)
                print(case, results["cases"][case], flush=True)
            except subprocess.CalledProcessError as error:  # the kernel lacks the module
                hosts.kill("desk")
                results["left_out"][case] = str(error.stderr).strip()
                print(f"{case}: left out: {error.stderr}", flush=True)
            write_whole(given.to, json.dumps(results, indent=1) + "\n")


def table(results: dict[str, Any]) -> str:
    """Return the cases as Markdown."""
    lines = ["| case | seconds to the end | longest silence, s | drivers | trials lost | wrong |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for case, found in results["cases"].items():
        facts = (found["seconds"], found["silence"], found["drivers"], len(found["lost"]))
        words = ", ".join(found["wrong"]) or "-"
        lines.append(f"| {case} | {' | '.join(map(str, facts))} | {words} |")
    return "\n".join(lines)


def _n_reports(folder: Path) -> int:
    if not (folder / "logs" / "events.jsonl").exists():
        return 0
    return sum(event["event"] == "report" for event in read_journal(folder))


def _evidence(*words: object) -> tuple[str, ...]:
    return (sys.executable, "-m", "nas_evidence", *map(str, words))


def _run(*command: str) -> str:
    """Run a command to its end; return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
