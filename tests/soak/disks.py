"""Studies on file systems with times in whole seconds, and with names that differ only in case.

The file systems are real ones, see `mounts`. A study is searched, resumed with one more trial,
reported, exported, used and verified there; so are its temporary files. Besides, times go
backwards: before each verb each file gets a time a day older than the one before.

    same      the tables and predictions are those of a plain disk, and `verify` finds nothing
    named     refused with a sentence that has the remedy; nothing else is changed
    lost      a verb failed, or what was asked for is not stored: must not occur
    silent    tables or predictions that differ: must not occur
    outside   another study was changed: must not occur
"""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from commands import hashes
from soak import mounts
from soak.damage import called, short
from soak.harness import (
    Found,
    Result,
    Studies,
    Tables,
    differing,
    outcomes_by_kind,
    tables_of,
    write_study,
)

OUTCOMES = ("same", "named", "lost", "silent", "outside")
SECONDS, EXFAT = mounts.KINDS
INLINE = ("--executor", "inline")


def why_not() -> str:
    """Return why the file systems cannot be mounted here; "" if they can."""
    return next(filter(None, map(mounts.why_not, mounts.KINDS)), "")


class WrongError(Exception):
    """What must not be; begins with a word for it."""


def ok(*arguments: object) -> str:
    """Call the command line; return what it says."""
    code, said = called(*arguments)
    if code or "Traceback" in said:
        raise WrongError(f"lost: {arguments[0]}, exit code {code}: {said[-300:]}")
    return said


def refused(words: str, *arguments: object) -> None:
    """Call the command line, which must refuse with these words."""
    code, said = called(*arguments)
    if code not in (1, 2) or words not in said or "Traceback" in said:
        raise WrongError(f"lost: {arguments[0]} said with exit code {code}: {said[-300:]}")


def lived(study: Path, place: str, folder: Path, age: Callable[[], None]) -> bytes:
    """Let a study live at a place; return what its export predicts."""
    new, x = study.with_name("data.csv"), folder.with_name(f"{folder.name}-export")
    ok("search", study, "--out", place, *INLINE, "--trials", "2")
    age()
    ok("resume", place, *INLINE, "--trials", "3")
    if "n_trials = 3\n" not in (folder / "study.toml").read_text():
        raise WrongError("lost: study.toml has another number of trials than was asked for")
    age()
    ok("report", place)
    ok("export", place, "--to", x)
    age()
    ok("predict", x, new, "--to", x.with_suffix(".csv"))
    ok("verify", place)
    ok("repair", place)
    return x.with_suffix(".csv").read_bytes()


def in_case(study: Path, home: Path, calm: Tables) -> None:
    """Use names that differ only in case: of studies, exports, and files of a study."""
    first = home / "Study"
    ok("search", study, "--out", first, *INLINE, "--trials", "3", "--set", "name=A")
    before = hashes(first)
    refused("holds a study that differs: name", "search", study, "--out", home / "STUDY", *INLINE,
            "--trials", "3", "--set", "name=a")  # fmt: skip
    if hashes(first) != before:
        raise WrongError("outside: the study A was changed by the study a")
    ok("verify", home / "sTUDY")
    ok("export", first, "--to", home / "Export")
    ok("export", first, "--to", home / "EXPORT")
    target = home / "STUDY" / "TRIALS" / "000000-A1.PARQUET"
    refused("", "predict", home / "Export", study.with_name("data.csv"), "--to", target, "--force")
    if differing(tables_of(first), calm):
        raise WrongError("silent: tables differ")


def backwards(folder: Path) -> Callable[[], None]:
    """Return what gives each file below a folder a time a day before the last one."""
    day = [0]

    def age() -> None:
        day[0] += 1
        for n, path in enumerate(sorted(folder.rglob("*"), reverse=True)):
            os.utime(path, (1.7e9 - 86_400 * day[0] - n, 1.7e9 - 86_400 * day[0] - n))

    return age


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    study = write_study(
        home, rows=90, epochs=4, every=2, n_trials=3, batch=3, finalists=0, seed=seed
    )
    shutil.rmtree(home / "calm", ignore_errors=True)
    with short():
        predictions = lived(study, str(home / "calm"), home / "calm", lambda: None)
        calm = tables_of(home / "calm")

        def plain(folder: Path, place: str, age: Callable[[], None] = lambda: None) -> None:
            if lived(study, place, folder, age) != predictions:
                raise WrongError("silent: predictions differ")
            if differing(tables_of(place), calm):
                raise WrongError("silent: tables differ")

        def on(kind: str, do: Callable[[Path], None]) -> None:
            before = tempfile.tempdir
            with mounts.mounted(kind, home) as place:
                tempfile.tempdir = str(place)
                try:
                    do(place)
                finally:
                    tempfile.tempdir = before

        def aged(store: bool) -> None:
            folder = home / "aged"
            shutil.rmtree(folder, ignore_errors=True)
            plain(folder, f"file://{folder}" if store else str(folder), backwards(folder))

        cases: dict[str, tuple[str, Callable[[], None]]] = {
            "times in seconds, a folder": (
                "same", lambda: on(SECONDS, lambda at: plain(at / "s", str(at / "s"))),
            ),
            "times in seconds, a store": (
                "same", lambda: on(SECONDS, lambda at: plain(at / "s", f"file://{at}/s")),
            ),
            "times that go backwards, a folder": ("same", lambda: aged(store=False)),
            "times that go backwards, a store": ("same", lambda: aged(store=True)),
            "exFAT, a folder": (
                "same", lambda: on(EXFAT, lambda at: plain(at / "s", str(at / "s"))),
            ),
            "exFAT, a store": (
                "named",
                lambda: on(
                    EXFAT,
                    lambda at: refused(
                        "without hard links", "search", study, "--out", f"file://{at}/s", *INLINE
                    ),
                ),
            ),
            "exFAT, names that differ in case": (
                "named", lambda: on(EXFAT, lambda at: in_case(study, at, calm)),
            ),
        }  # fmt: skip

        def disturb(name: str) -> Found:
            word, do = cases[name]
            try:
                do()
            except WrongError as error:
                return Found(Counter(), [str(error)])
            return Found(Counter({f"{name}: {word}": 1}))

        yield iter(cases), disturb


def table(result: Result) -> str:
    """Return the outcomes by file system, as Markdown."""
    return outcomes_by_kind(result, "file system", OUTCOMES)
