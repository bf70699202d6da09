"""Two hosts work on one study whose folder shows late what the other one did, as NFS does.

Hosts are those of `hosts.py`. The study is a folder that both see, or the same folder as a store
at `file://`; each host mounts it with a cache of its own (`late.py`). A driver on `desk` is
disturbed after its third launch. Then `desk-2` looks at the study, cancels it, or takes it over.
The cases on Ray are those of `hosts.py` with the study in such a folder.

    wrong  another result than that of the undisturbed study; two drivers that both finish; a
           sentence without the name of the other host; a problem for `verify` other than lines
           of a driver that was superseded; a study that cannot be gone on with
"""

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from commands import run
from soak import hosts as on_ray
from soak import late
from soak.harness import Found, Result, Studies, differing, n_launches, tables_of, write_study
from soak.hosts import PATIENCE, Hosts

#: Seconds after which one host sees what another did.
LATE = 8.0
#: Seconds after which a driver that is not heard of may be taken over.
SILENT = 75.0
_SUPERSEDED = re.compile(r"lines? .* of a process that was superseded|\d+ problems? found.*")


def why_not() -> str:
    """Return why the hosts or the folder cannot be made here, "" if they can."""
    return late.why_not() or on_ray.why_not()


@dataclass
class Scene:
    """A study, its hosts, and what drivers said: exit code and text, in the order of their end."""

    hosts: Hosts
    place: str  # as the hosts name the study
    folder: Path  # as it is stored
    study: Path
    said: list[tuple[str, int, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def start(self, host: str, *words: object) -> "subprocess.Popen[str]":
        """Start nas-evidence on a host."""
        return self.hosts.start(host, sys.executable, "-m", "nas_evidence", *words)

    def drive(self, host: str, *words: object) -> "subprocess.Popen[str]":
        """Start a driver of the study on a host, with its trials in its own process."""
        verb = ("resume", self.place) if words else ("search", self.study, "--out", self.place)
        if not words and self.place.startswith("file:"):
            verb = ("search", self.study, "--store", self.place)
        given = (word for word in words if word != "resume")
        return self.start(host, *verb, *given, "--executor", "inline")

    def ended(self, host: str, process: "subprocess.Popen[str]") -> tuple[int, str]:
        """Wait until a command has ended; return its exit code and what it said."""
        try:
            text, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.hosts.kill(host)
            text, _ = process.communicate()
            self.wrong.append(f"hung: {text[-300:]}")
        if "Traceback" in text or "unexpected" in text:
            self.wrong.append(f"unexpected: {text[-600:]}")
        self.said.append((host, process.returncode, text))
        return process.returncode, text

    def begun(self) -> "subprocess.Popen[str]":
        """Start the study on `desk`; return its driver, once it has launched three trials."""
        driver, end = self.drive("desk"), time.monotonic() + PATIENCE
        while n_launches(self.folder) < 3 and driver.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        return driver

    def expect(self, what: tuple[int, str], code: int, *words: str) -> None:
        """Note as wrong another exit code, or a text without these words."""
        ended, text = what
        for word in [word for word in words if word not in text] if ended == code else [f"{code}"]:
            self.wrong.append(f"said: without {word!r}, exit code {ended}: {text[-400:]}")

    def finish(self, host: str) -> None:
        """Go on with the study until it is finished."""
        for _ in range(20):
            if self.ended(host, self.drive(host, "resume"))[0] == 0:
                return
            time.sleep(6)
        self.wrong.append(f"not finished: {self.said[-1][2][-300:]}")

    def taken_over(self, host: str) -> "subprocess.Popen[str]":
        """Take the study over on a host; return the driver, once it has written to the log."""
        before, driver = n_files(self.folder), self.drive(host, "--steal")
        while n_files(self.folder) == before and driver.poll() is None:
            time.sleep(0.1)
        return driver


def n_files(folder: Path) -> int:
    """Return how many files the log of a study has."""
    return sum(1 for _ in (folder / "logs" / "events").glob("*.jsonl"))


def undisturbed(scene: Scene) -> None:
    scene.expect(scene.ended("desk", scene.drive("desk")), 0)


def cancelled(scene: Scene) -> None:
    """Look at it from another host, try to go on with it there, and cancel it from there."""
    driver = scene.begun()
    status = scene.ended("desk-2", scene.start("desk-2", "status", scene.place))
    scene.expect(status, 0, "host desk")
    refused = scene.ended("desk-2", scene.drive("desk-2", "--steal"))
    scene.expect(refused, 2, "of host desk", "another process works on")
    scene.expect(scene.ended("desk-2", scene.start("desk-2", "cancel", scene.place)), 0)
    scene.expect(scene.ended("desk", driver), 130)
    scene.finish("desk-2")


def killed(scene: Scene) -> None:
    """Its host dies: it is refused while it was heard of, then without --steal."""
    driver = scene.begun()
    scene.hosts.kill("desk")
    driver.wait()
    scene.expect(scene.ended("desk-2", scene.drive("desk-2", "resume")), 2, "of host desk")
    time.sleep(SILENT)
    refused = scene.ended("desk-2", scene.drive("desk-2", "resume"))
    scene.expect(refused, 2, "of host desk", "--steal")
    scene.expect(scene.ended("desk-2", scene.drive("desk-2", "--steal")), 0)


def superseded(scene: Scene, word: str) -> None:
    """Processes of its host are stopped, it is taken over, and they go on."""
    driver = scene.begun()
    scene.hosts.signal("desk", word, signal.SIGSTOP)
    time.sleep(SILENT)
    other = scene.taken_over("desk-2")
    scene.hosts.signal("desk", word, signal.SIGCONT)
    scene.expect(scene.ended("desk", driver), 1, "of host desk-2")
    scene.ended("desk-2", other)
    scene.finish("desk-2")


def two_at_once(scene: Scene) -> None:
    """Its host dies, and two others take it over at the same time."""
    driver = scene.begun()
    scene.hosts.kill("desk")
    driver.wait()
    time.sleep(SILENT)
    others = {host: scene.drive(host, "--steal") for host in ("desk-2", "desk-3")}
    codes = {host: scene.ended(host, other) for host, other in others.items()}
    if [code for code, _ in codes.values()].count(0) > 1:
        scene.wrong.append("two drivers finished the study")
    for host, other in (("desk-2", "desk-3"), ("desk-3", "desk-2")):
        if codes[host][0]:
            scene.expect(codes[host], codes[host][0], f"of host {other}")
    scene.finish("desk-2")


ACTS: dict[str, Callable[[Scene], None]] = {
    "nothing": undisturbed,
    "status, resume and cancel from another host": cancelled,
    "host killed": killed,
    "driver stopped 75 s and taken over": partial(superseded, word="nas_evidence"),
    "folder silent 75 s and taken over": partial(superseded, word="soak.late"),
    "taken over by two hosts at once": two_at_once,
}
#: Cases of `hosts.py`.
ON_RAY = ("node killed", "node cut off 40 s", "driver's host killed")
CASES = (
    *(f"folder: {act}" for act in ACTS),
    *(f"file://: {act}" for act in ACTS),
    *(f"on Ray: {case}" for case in ON_RAY),
)


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    size = {"rows": 150, "epochs": 480, "every": 40, "n_trials": 8, "batch": 4}
    study = write_study(home, resources={"workers": 2}, **size)
    calm = home / "calm"
    run("search", study, "--out", calm, "--executor", "inline", folder=home)
    with Hosts(home, late=LATE) as hosts:
        yield CASES, partial(disturbed, hosts=hosts, study=study, calm=calm)


def disturbed(case: str, *, hosts: Hosts, study: Path, calm: Path) -> Found:
    """Run the study with what a case does to it.

    Returns:
        `seconds` of the case, how many `drivers` there were, and the `lines` that `verify` says
        are of a superseded driver.
    """
    where, act = case.split(": ", 1)
    if where == "on Ray":
        return on_ray.disturbed(act, hosts=hosts, study=study, calm=calm)
    name, began = re.sub(r"\W+", "-", case), time.monotonic()
    at = f"file://{hosts.shared}/{name}" if where == "file://" else f"{hosts.shared}/{name}"
    scene = Scene(hosts, at, hosts.behind / name, study)
    ACTS[act](scene)
    for host in ("desk", "desk-2", "desk-3"):
        hosts.kill(host)
    checked = subprocess.run(
        (sys.executable, "-m", "nas_evidence", "verify", scene.folder),
        capture_output=True, text=True, cwd=hosts.home,
    )  # fmt: skip
    problems = checked.stdout.splitlines() if checked.returncode else []
    left = [line for line in problems if not _SUPERSEDED.search(line)]
    wrong = scene.wrong + [f"verify: {line}" for line in left]
    wrong += differing(tables_of(scene.folder), tables_of(calm))
    for host, code, text in scene.said:
        print(f"{case}: {host} {code}: {text.strip().splitlines()[-1:]}", flush=True)
    facts = {
        "seconds": round(time.monotonic() - began, 1),
        "commands": len(scene.said),
        "superseded": sum("superseded" in line for line in problems),
    }
    return Found(wrong=wrong, facts=facts)


def table(result: Result) -> str:
    """Return the cases as Markdown."""
    lines = [
        "| case | seconds | commands | superseded files | wrong |",
        "|---|---:|---:|---:|---|",
    ]
    for case, found in result["cases"].items():
        words = ", ".join(result["wrong"].get(case, {}).get("found", [])) or "-"
        facts = [found["seconds"], found.get("commands", found.get("drivers"))]
        facts.append(found.get("superseded", "-"))
        lines.append(f"| {case} | {' | '.join(map(str, facts))} | {words} |")
    return "\n".join(lines)
