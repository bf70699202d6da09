"""What lies between the machines fails at random, under studies of simulated trials at a URI.

All in one process: hosts are names, the clock moves when this file moves it, and the store is one
in memory that answers as badly as it is told to:

    head lost            all trials under way are lost at once, and nobody answers for minutes
    head cut off         the same, but the trials go on there; their messages arrive later
    node lost            so are those of half of the workers (also of the race: "node lost, race")
    host lost            the driver's host: no write of it arrives any more; another host goes on
    host lost, repair    the same while it repairs a damaged log
    host lost, export    the same at any change of a file while an export is written
    store: 500           one to twelve answers in a row are errors
    store: slow          an answer takes up to 90 s
    store: cut off       half of a file arrives, then the connection breaks
    store: short         half of a file arrives, and the store says that all of it is there
    clock back           the clock of the wall is set back by an hour
    stopped              SIGSTOP for longer than any holder may be silent
    taken over           the same, and another driver goes on meanwhile; then the first wakes up

A fault counts when it has happened. Wrong is

    lost       a study that could not be brought to its end
    differ     tables that are not those of the undisturbed study
    changed    a store that a driver changed after it was taken over
    exported   half an export, or one that predicts something else
    traceback  an error other than the sentences that the command line prints
"""

import contextlib
import functools
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from learning_curves import synthetic
from simulated import SimulatedExecutor
from soak import damage
from soak.harness import Found, Result, Studies, Tables, counted, differing, drive, tables_of
from soak.kills import KINDS, simulated_study

from nas_evidence.driver import mirror
from nas_evidence.driver.mirror import Mirror
from nas_evidence.driver.restoration import repair
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.soundness import wrong_export_files
from nas_evidence.plumbing import backoff
from nas_evidence.spec.record import LossKind, is_race
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage import holding, log
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_folder import locked
from nas_evidence.workers.executor import Event, Lost

#: Faults of a driver while it runs trials, and those of the store.
RUNNING = ("head lost", "head cut off", "node lost", "clock back", "stopped", "taken over")
STORE = ("store: 500", "store: slow", "store: cut off", "store: short", "host lost")
#: Maximum number of disturbed drivers of one study, and of undisturbed ones after them.
MOST, LAST = 5, 6


class HostLostError(BaseException):
    """Power is gone: nothing of this host writes from now on."""


@dataclass
class World:
    """The clock of all hosts, the host that runs now, and what is about to fail.

    n_hosts  how many there were before it
    due     faults by kind: how many changes of the store, or polls, are left until they happen
    happened  how often each kind did
    dead    whether the host that runs has lost its power
    """

    chance: random.Random
    wall: float = 1.7e9
    steady: float = 1e5
    host: str = "host-0"
    n_hosts: int = 0
    dead: bool = False
    due: dict[str, int] = field(default_factory=dict)
    bad_answers: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += seconds
        self.steady += seconds

    def is_due(self, kind: str) -> bool:
        """Count down to a fault; return whether it happens now."""
        if kind not in self.due:
            return False
        self.due[kind] -= 1
        if self.due[kind] > 0:
            return False
        del self.due[kind]
        self.happened[kind] += 1
        return True

    def answer(self) -> None:
        """Let the store answer, well or badly."""
        if self.dead:
            raise HostLostError
        if self.is_due("store: 500"):
            self.bad_answers = self.chance.randrange(1, 13)
        if self.bad_answers:
            self.bad_answers -= 1
            raise OSError("500 Internal Server Error")
        if self.is_due("store: slow"):
            self.pass_seconds(self.chance.uniform(5, 90))

    def change(self) -> None:
        """Let a change of the store arrive, or lose the host first."""
        if self.is_due("host lost") or self.dead:
            self.dead = True
            raise HostLostError

    def next_host(self) -> None:
        """Go on elsewhere, once the last host has been silent for long."""
        self.dead, self.bad_answers, self.due = False, 0, {}
        self.n_hosts += 1
        self.host = f"host-{self.n_hosts}"
        self.pass_seconds(61.0)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Give the package this clock, these host names and this store."""
        clock: Any = types.SimpleNamespace(
            time=lambda: self.wall,
            monotonic=lambda: self.steady,
            sleep=self.pass_seconds,
            strftime=time.strftime,
            localtime=time.localtime,
        )
        socket: Any = types.SimpleNamespace(gethostname=lambda: self.host)
        tried, piped, removed = Store._try, MemoryFileSystem.pipe_file, MemoryFileSystem.rm_file

        def try_(remote: Store, action: Callable[[], Any], **how: Any) -> Any:
            def answered() -> Any:
                self.answer()
                return action()

            return tried(remote, answered, **how)

        def pipe(fs: Any, path: str, value: bytes, **how: Any) -> None:
            self.change()
            if path.endswith("/lock") or len(value) < 2:
                piped(fs, path, value, **how)
                return
            cut = self.is_due("store: cut off")
            half = cut or self.is_due("store: short")
            piped(fs, path, value[: len(value) // 2] if half else value, **how)
            if cut:
                raise ConnectionResetError("connection reset by peer")

        def put(fs: Any, here: str, there: str, **how: Any) -> None:
            fs.pipe_file(there, Path(here).read_bytes())

        def remove(fs: Any, path: str) -> None:
            self.change()
            removed(fs, path)

        with pytest.MonkeyPatch.context() as patch:
            for module in (holding, mirror, backoff):
                patch.setattr(module, "time", clock)
            for module in (holding, log):
                patch.setattr(module, "socket", socket)
            patch.setattr(holding, "BEAT_EVERY", 1e9)
            patch.setattr(Store, "_try", try_)
            for name, change in (("pipe_file", pipe), ("put_file", put), ("rm_file", remove)):
                patch.setattr(MemoryFileSystem, name, change)
            yield


class Cluster(SimulatedExecutor):
    """Simulated workers whose head and nodes are lost, and a driver that is stopped."""

    def __init__(self, world: World, taken_over: Callable[[], None]) -> None:
        """Start three workers."""
        super().__init__(
            synthetic, workers=3, seed=world.chance.randrange(1000), writes_files=False
        )
        self._world, self._taken_over = world, taken_over
        self._late: list[Event] = []

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened, faults first."""
        world = self._world
        if world.is_due("clock back"):
            world.wall -= 3600.0
        if world.is_due("stopped"):
            world.pass_seconds(world.chance.uniform(61, 600))
        if world.is_due("taken over"):
            world.pass_seconds(world.chance.uniform(61, 600))
            self._taken_over()
        if self._running and world.is_due("head lost"):
            world.pass_seconds(world.chance.uniform(60, 300))
            return self._lose(list(self._running), "no answer for 600 s")
        if self._running and world.is_due("head cut off"):
            world.pass_seconds(world.chance.uniform(60, 300))
            return self._cut_off()
        if self._late and world.chance.random() < 0.3:
            return [self._late.pop(0)]
        if self._running and world.is_due("node lost"):
            ids = sorted(self._running)[:: 2 if len(self._running) > 1 else 1]
            if any(map(is_race, ids)):
                world.happened["node lost"] -= 1
                world.happened["node lost, race"] += 1
            return self._lose(ids, "its node was lost")
        return super().poll(timeout)

    def _cut_off(self) -> list[Event]:
        """Lose all trials; keep what they send meanwhile for later."""
        attempts = {i: one.launch.assignment.attempt for i, one in self._running.items()}
        self._late += [happen() for *_, happen in sorted(self._events, key=lambda one: one[:2])]
        self._events.clear()
        for trial_id in list(self._running):
            self.park(trial_id)
        return [
            Lost(i, attempt, "it could not be reached", LossKind.MACHINE)
            for i, attempt in attempts.items()
        ]

    def _lose(self, ids: list[int], cause: str) -> list[Event]:
        lost = [
            Lost(i, self._running[i].launch.assignment.attempt, cause, LossKind.MACHINE)
            for i in ids
        ]
        self._events = [event for event in self._events if event[2] not in ids]
        for trial_id in ids:
            self.park(trial_id)
        return list(lost)


def mend(uri: str) -> None:
    """Repair a study at a URI."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Mirror(uri, Path(scratch) / "s")
        with store.held(steal=True), locked(store.folder, steal=True):
            repair(store.folder, no_data, with_checkpoints=False)


def no_data(study: StudySpec) -> Any:
    """Refuse: simulated trials have no data, so `repair` leaves their rows to `resume`."""
    raise ValueError("simulated trials have no data")


def contents(uri: str) -> dict[str, bytes]:
    """Return every file of a store but the one that only says who works on the study."""
    fs, root = MemoryFileSystem(), uri.removeprefix("memory:/")
    return {str(name): fs.cat_file(name) for name in fs.find(root) if not name.endswith("/lock")}


def log_at(uri: str) -> list[str]:
    """Return the objects of the log at a store."""
    return [name for name in contents(uri) if "/logs/events/" in name]


def rotten(uri: str, chance: random.Random) -> None:
    """Flip a bit of the log at a store."""
    name = chance.choice(sorted(log_at(uri)))
    content = bytearray(contents(uri)[name])
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    MemoryFileSystem().pipe_file(name, bytes(content))


def attempt(action: Callable[[], object], world: World, told: list[str]) -> bool:
    """Do something on a host that may be lost; return whether it ended by itself."""
    try:
        action()
    except HostLostError:
        return False
    except ValueError as error:  # what the command line prints as one sentence
        told.append(str(error))
        return False
    finally:
        world.next_host()
    return True


def disturbed(study: StudySpec, uri: str, calm: Tables, world: World, raced: bool) -> list[str]:
    """Disturb one study until it ends; return what went wrong."""
    chance, told, wrong = world.chance, list[str](), list[str]()
    there, mended = list[dict[str, bytes]](), list[bool]()

    def driven(taken_over: Callable[[], None] = lambda: None) -> None:
        mended.append(drive(study, uri, lambda: Cluster(world, taken_over)))

    def another() -> None:
        """Let another host go on, in part or to the end; then return to the first."""
        first, due, log_before = world.host, world.due, log_at(uri)
        world.next_host()
        world.due = {"host lost": chance.randrange(2, 60)}
        before = world.happened["host lost"]
        attempt(driven, world, told)
        world.happened["host lost"] = before  # part of this fault
        world.host, world.due = first, due
        if log_at(uri) != log_before:
            there.append(contents(uri))
        else:  # lost before it had taken over
            world.happened["taken over"] -= 1
            world.happened["stopped"] += 1

    for _ in range(MOST):
        there.clear()
        for name in chance.sample(RUNNING, chance.randrange(3)):
            world.due[name] = chance.randrange(1, 150 if raced else 25)
        for name in chance.sample(STORE, chance.randrange(1, 4)):
            world.due[name] = chance.randrange(1, 80)
        ended = attempt(lambda: driven(another), world, told)
        if there and contents(uri) != there[-1]:
            wrong.append("changed: by a driver after it had been taken over")
        if chance.random() < 0.3 and log_at(uri):
            rotten(uri, chance)
            world.due["host lost"] = chance.randrange(1, 8)
            before = world.happened["host lost"]
            attempt(lambda: mend(uri), world, told)
            world.happened["host lost, repair"] += world.happened["host lost"] - before
            world.happened["host lost"] = before
        elif ended:
            break
    for _ in range(LAST):  # undisturbed, as often as there is something to mend
        mended.clear()
        if attempt(driven, world, told):
            if mended == [False]:
                break
        else:
            attempt(lambda: mend(uri), world, told)
    else:
        wrong.append(f"lost: {told[-1:]}")
    try:
        return wrong + differing(tables_of(uri), calm)
    except AssertionError as error:  # a table that cannot be read
        return [*wrong, f"differ: {error}"]


@contextlib.contextmanager
def losing_power(folder: Path, at: int) -> Iterator[list[int]]:
    """Lose this host at the n-th change of a file below a folder; give the count so far."""
    _LOSING.append((str(folder), at))
    _CHANGES[:] = [0]
    try:
        yield _CHANGES
    finally:
        _LOSING.clear()


_LOSING: list[tuple[str, int]] = []
_CHANGES = [0]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@functools.cache
def _watched() -> None:
    sys.addaudithook(_watch)  # which cannot be removed


def _watch(event: str, facts: tuple[Any, ...]) -> None:
    """Count the changes of files; raise from the n-th on."""
    changes = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
    if not _LOSING or not (event in changes or (event == "open" and facts[2] & _WRITES)):
        return
    folder, at = _LOSING[0]
    if str(facts[0]).startswith(folder):
        _CHANGES[0] += 1
        if _CHANGES[0] >= at:
            raise HostLostError


def export_lost(finished: Path, sound: str, chance: random.Random) -> Found:
    """Lose the host in an export, then export again."""
    happened = Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(finished, Path(scratch) / "finished")
        to = Path(scratch) / "export"
        if chance.random() < 0.5:  # in the place of an older export
            shutil.copytree(folder / "export", to)
        with losing_power(to.parent, chance.randrange(1, 25)), contextlib.suppress(HostLostError):
            try:
                damage.called("export", folder, "--to", to)
            finally:
                happened["host lost, export"] += _CHANGES[0] >= _LOSING[0][1]
        if to.exists() and wrong_export_files(to):
            return Found(happened, ["exported: half of it is in its place"])
        code, said = damage.called("export", folder, "--to", to)
        if code or "Traceback" in said:
            return Found(happened, [f"traceback: {said[-300:]}"])
        same = predicted(to) == sound
        return Found(happened, [] if same else ["exported: it predicts something else"])


def predicted(export: Path) -> str:
    """Return what an export predicts of some rows."""
    rows = pd.DataFrame(np.arange(24).reshape(6, 4) / 7, columns=list("abcd"))
    return Predictor.load(export).predict(rows).to_frame().to_csv()


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    calm = dict[str, Tables]()
    _watched()
    with damage.short(), tempfile.TemporaryDirectory(dir=home) as folder:
        finished, _ = damage.made_studies(Path(folder))["finished"]
        sound = predicted(finished / "export")

        def disturb(number: str) -> Found:
            one = between_machines(int(number), seed, calm)
            other = export_lost(finished, sound, random.Random(f"export-{seed}-{number}"))
            return Found(one.counts + other.counts, one.wrong + other.wrong)

        yield map(str, count()), disturb


def between_machines(number: int, seed: int, calm: dict[str, Tables]) -> Found:
    """Disturb one study.

    Args:
        number: of the study; decides its kind and, with the seed, its random numbers.
        seed: of the run.
        calm: tables of the undisturbed studies so far, by kind; one is added where it is lacking.
    """
    kind, uri = KINDS[number % len(KINDS)], f"memory://faults-{seed}-{number}/s"
    study = simulated_study(kind, n_trials=12)
    if kind not in calm:
        world, still = World(random.Random(0)), f"memory://calm-{seed}-{number}/s"
        with world.here():
            drive(study, still, lambda: Cluster(world, lambda: None))
            calm[kind] = tables_of(still)
    world = World(random.Random(f"{seed}-{number}"))
    with world.here():
        try:
            wrong = disturbed(study, uri, calm[kind], world, raced=kind == "raced")
        except Exception:
            wrong = [f"traceback: {traceback.format_exc()[-1500:]}"]
    for name in contents(uri):
        MemoryFileSystem.store.pop(name, None)
    return Found(+world.happened, wrong)


def table(result: Result) -> str:
    """Return the counts of faults, as Markdown."""
    counts, words = counted(result), ("lost", "silent", "traceback")
    rows = [f"| {name} | {n:,} |" for name, n in sorted(counts.items())]
    of = Counter(
        what.partition(":")[0] for one in result["wrong"].values() for what in one["found"]
    )
    n_wrong = {"lost": of["lost"], "traceback": of["traceback"]}
    n_wrong["silent"] = of.total() - sum(n_wrong.values())
    wrong = ", ".join(f"{n_wrong[word]} {word}" for word in words)
    last = f"| all, in {result['done']} studies: {wrong} | {counts.total():,} |"
    return "\n".join(["| fault | times |", "|---|---:|", *rows, last])
