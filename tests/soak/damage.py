"""Every kind of file of a study is damaged in every way, and each verb meets it.

Two small studies are made once: one finished in two runs, one stopped half way. A cell is a copy
of one with one file damaged, and one verb called in this process:

    damage    bit flip, truncation, zeroed block, deletion, an older copy of the file
    verb      verify, resume, report, predict, export, repair

    named     the file is named, and nothing is said that is not so
    rebuilt   the file is back, or what it was for is: results as of the sound study
    harmless  the verb's result is that of the sound study
    refused   one sentence with exit code 2 that does not name the file
    silent    another result, and nothing said, or another result of `resume`, also after a
              `repair`, whatever was said: must not occur
    error     an unexpected error or a traceback: must not occur
    touched   a sound file was changed: must not occur

A cell takes a third of a second instead of three, because nothing that is not tested is done again
for each: templates, the command line and baselines are made once, there is no forecast, nothing is
forced to disk, and the page of the report is a short file (the report's Markdown has the page's
content). Cells are in an order of which every beginning is a sample of
all. Counts are by kind of file and outcome.
"""

import contextlib
import functools
import gc
import io
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import shortcuts
import typer.main
from faulty import quiet_call
from soak.harness import Found, Result, Studies, counted, tables_of, write_study

from nas_evidence.driver import driver
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.reporting import page
from nas_evidence.storage.holding import Holder, boot_id

VERBS = ("verify", "resume", "report", "predict", "export", "repair")
DAMAGES = ("bit flip", "truncation", "zeroed block", "deletion", "older copy")
#: What must not occur.
WRONG = ("silent", "error", "touched")
OUTCOMES = ("named", "rebuilt", "harmless", "refused", *WRONG)
#: How often each damage is done to each file, at other places.
_TIMES = {"bit flip": 4, "truncation": 2, "zeroed block": 2, "deletion": 1, "older copy": 1}
#: Files that nothing is decided from.
_COPIES = re.compile(r"study\.db|logs/.*\.log|report/(?!comparison)|(.*/)?\.|requests/")


@dataclass(frozen=True)
class Cell:
    """One file of one study, damaged in one way at one place, and the verb that meets it."""

    study: str
    file: str
    damage: str
    time: int
    verb: str


@dataclass(frozen=True)
class Met:
    """What a verb did: exit code, all that it printed, and its product, to be compared."""

    code: int
    said: str
    product: str


def made_studies(home: Path) -> dict[str, tuple[Path, Path]]:
    """Make the studies in a folder; return each with an older state of it."""
    study = write_study(
        home, rows=90, epochs=2, every=1, n_trials=2, batch=2,
        family={"mlp": {"width": {"low": 4, "high": 16, "log": True}, "depth": 1}, "linear": {}},
    )  # fmt: skip
    made, more = {}, ("--trials", "3", "--executor", "inline")
    called("search", study, "--out", home / "older", "--executor", "inline")
    shutil.copytree(home / "older", home / "finished")
    called("resume", home / "finished", *more)
    made["finished"] = home / "finished", home / "older"
    stopped, before = home / "stopped", home / "stopped-before"
    with stopping(4):
        called("search", study, "--out", stopped, *more)
    shutil.copytree(stopped, before)
    with stopping(2):
        called("resume", stopped, "--executor", "inline")
    holder = Holder(1 << 22, "this-host", boot_id(), time.time() - 160, time.time() - 200)
    (stopped / "lock").write_text(sealed_json(asdict(holder)).ljust(512))
    made["stopped"] = stopped, before
    return made


def cells_of(studies: Mapping[str, tuple[Path, Path]]) -> list[Cell]:
    """Return all cells, in an order in which every prefix is a sample of them."""
    cells = []
    for name, (folder, _) in studies.items():
        for file in _files(folder):
            for damage, times in _TIMES.items():
                if damage == "older copy" and _older(studies, name, file) is None:
                    continue
                cells += [
                    Cell(name, file, damage, k, verb) for k in range(times) for verb in VERBS
                ]
    random.Random(0).shuffle(cells)
    return cells


def outcome(cell: Cell, studies: Mapping[str, tuple[Path, Path]], sound: Mapping[str, Met]) -> str:
    """Do what a cell says in a copy of its study, and judge what came of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / cell.study
        shutil.copytree(studies[cell.study][0], folder)
        damaged(cell, folder, _older(studies, cell.study, cell.file))
        before = _contents(folder)
        met = meet(cell.verb, folder)
        if met.code not in (0, 1, 2) or re.search(r"unexpected \w+|Traceback", met.said):
            return "error"
        if _touched(before, _contents(folder), cell.file):
            return "touched"
        expected = sound[f"{cell.study} {cell.verb}"]
        if _names(met.said, cell.file):
            return "silent" if _misleads(cell, met, folder, sound) else "named"
        if met.code == 2 and expected.code != 2:
            return "refused"
        if cell.verb in ("verify", "repair"):  # nothing said: then nothing may come of it
            after = meet("resume", folder)
            same = after.product == sound[f"{cell.study} resume"].product
            return "harmless" if same else "silent"
        if met.product != expected.product:
            return "silent"
        back = (folder / cell.file).is_file() and before.get(cell.file) != _read(folder, cell.file)
        return "rebuilt" if back else "harmless"


def _misleads(cell: Cell, met: Met, folder: Path, sound: Mapping[str, Met]) -> bool:
    """Tell whether `resume`, also after `repair`, goes on and finds something else.

    Of a study file that still can be read `resume` takes what may change.
    """
    if cell.verb not in ("resume", "repair") or cell.file == "study.toml":
        return False
    after = met if cell.verb == "resume" else meet("resume", folder)
    return after.code == 0 and after.product != sound[f"{cell.study} resume"].product


def damaged(cell: Cell, folder: Path, older: bytes | None) -> None:
    """Damage the file of a cell, differently each time."""
    path, chance = folder / cell.file, random.Random(str((cell.file, cell.damage, cell.time)))
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    if cell.damage == "deletion":
        path.unlink()
        return
    if cell.damage == "bit flip":
        content[at] ^= 1 << chance.randrange(8)
    elif cell.damage == "truncation":
        content = content[:at]
    elif cell.damage == "zeroed block":
        n = min(len(content) - at, 64)
        content[at : at + n] = bytes(n)
    else:
        assert older is not None
        content = bytearray(older)
    path.write_bytes(content)


def meet(verb: str, folder: Path) -> Met:
    """Call a verb on a study in this process."""
    to, product = folder.parent / f"{verb}-out", lambda: ""
    arguments: dict[str, tuple[object, ...]] = {
        "resume": (folder, "--executor", "inline"),
        "report": (folder, "--to", to),
        "predict": (folder, folder.parent / "new.csv", "--to", folder.parent / "p.csv", "--force"),
        "export": (folder, "--to", to),
    }
    products: dict[str, Callable[[], str]] = {
        "resume": lambda: str({name: t.to_csv() for name, t in tables_of(folder).items()}),
        "report": lambda: _page(to),
        "predict": lambda: (folder.parent / "p.csv").read_text(),
        "export": lambda: _exported(to),
    }
    new = "a,b,c,d\n" + "".join(f"{k / 3},{k / 5},{-k / 7},0.5\n" for k in range(6))
    (folder.parent / "new.csv").write_text(new)
    code, said = called(verb, *arguments.get(verb, (folder,)))
    if code == 0 and verb in products:
        product = products[verb]
    place = str(folder.parent)
    found = product().replace(place, "").replace(place.replace("_", r"\_"), "")  # as Markdown
    return Met(code, said + found * (verb == "report"), found)


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    with short(), tempfile.TemporaryDirectory(dir=home) as folder:
        made = made_studies(Path(folder))
        sound = {f"{name} {verb}": meet(verb, of) for name, verb, of in copies(made)}
        cells = cells_of(made)
        gc.collect()
        gc.freeze()

        def disturb(number: str) -> Found:
            cell = cells[int(number)]
            word = outcome(cell, made, sound)
            counts = Counter([f"{kind_of(cell.file)}: {word}"])
            return Found(counts, [f"{word}: {cell}"] if word in WRONG else [])

        yield map(str, range(len(cells))), disturb
    gc.unfreeze()


def by_kind(result: Result) -> dict[str, Counter[str]]:
    """Return how many cells of each kind of file had which outcome; the last kind is "all"."""
    found: dict[str, Counter[str]] = {}
    for name, n in sorted(counted(result).items()):
        kind, _, word = name.partition(": ")
        found.setdefault(kind, Counter())[word] += n
    return found | {"all": sum(found.values(), Counter[str]())}


def table(result: Result) -> str:
    """Return the counts by kind of file, as Markdown."""
    heads = ("file", "cells", *OUTCOMES)
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for kind, counts in by_kind(result).items():
        cells = " | ".join(str(counts[word]) for word in OUTCOMES)
        lines.append(f"| `{kind}` | {counts.total()} | {cells} |")
    return "\n".join(lines)


# --- the command line, in this process


def copies(studies: Mapping[str, tuple[Path, Path]]) -> Iterator[tuple[str, str, Path]]:
    """Give a copy of each study for each verb."""
    for name, (folder, _) in studies.items():
        for verb in VERBS:
            with tempfile.TemporaryDirectory() as scratch:
                yield name, verb, shutil.copytree(folder, Path(scratch) / name)


def called(*arguments: object) -> tuple[int, str]:
    """Call the command line; return its exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = quiet_call(*arguments)
    return code, printed.getvalue()


@contextlib.contextmanager
def stopping(reports: int) -> Iterator[None]:
    """Interrupt the driver after so many reports of trials."""
    plain, seen = driver.crash_point, Counter[str]()

    def crash_point(name: str) -> None:
        seen[name] += 1
        if seen["reported"] >= reports:
            raise KeyboardInterrupt
        plain(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "crash_point", crash_point)
        yield


@contextlib.contextmanager
def short() -> Iterator[None]:
    """Replace what takes long and is not tested here."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as kept,
        shortcuts.none_taken(),
    ):
        patch.setattr(page, "write_page", lambda path, *_, **__: path.write_text("a page"))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        shortcuts.take(Path(kept))
        yield


def _files(folder: Path) -> list[str]:
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    wanted = [name for name in sorted(every) if not _COPIES.match(name)]
    return [name for name in wanted if (folder / name).stat().st_size]


def kind_of(file: str) -> str:
    """Return the kind of a file: its name without what numbers it."""
    numbered = re.sub(r"\b(a|attempt-|epoch-)?(\d+)(?=\.|-|/)", r"\1N", file)
    return re.sub(r"conditions-\w+", "conditions-HASH", numbered)


def _older(studies: Mapping[str, tuple[Path, Path]], study: str, file: str) -> bytes | None:
    now, before = (folder / file for folder in studies[study])
    if not before.is_file() or before.read_bytes() == now.read_bytes():
        return None
    return before.read_bytes()


def _read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _contents(folder: Path) -> dict[str, bytes]:
    return {name: _read(folder, name) for name in _files(folder)}


def _touched(before: Mapping[str, bytes], after: Mapping[str, bytes], damaged: str) -> list[str]:
    """Return the sound results, weights, data and study file that were changed or removed."""
    kept = re.compile(r"(trials|evidence|terms|curves|models|data)/|study\.toml")
    again = {damaged}  # and what the trial that runs again writes again
    if match := re.match(r"(trials|evidence|terms|curves)/(\d+)", damaged):
        again.add(f"models/{int(match[2])}.safetensors")
        if match[1] == "trials":  # the others do not count without the row, which is written last
            again |= {damaged.replace("trials/", f"{t}/") for t in ("evidence", "terms", "curves")}
    return [
        name
        for name, content in before.items()
        if kept.match(name) and name not in again and after.get(name) != content
    ]


def _names(said: str, file: str) -> bool:
    """Return whether a file is named, or the folder of an export or a trial that it is part of."""
    parts = file.split("/")
    wanted = [file, f"{parts[-2]}/{parts[-1]}"] if len(parts) > 1 else [rf"{file}\b"]
    if parts[0] in ("trials", "evidence", "terms", "curves"):
        wanted += ["damaged files were moved", f"{parts[0]}:", "trained again", "rows of evidence"]
    if file == "study.toml":
        wanted += ["was edited"]
    if file.startswith("logs/events/"):
        wanted += [rf"logs/events: .*{parts[-1]}"]
    if parts[0] == "data":
        wanted += [r"data set", r"is not the data", r"(?m)^data: "]
    if file == "lock":
        wanted += [r"the file .*/lock"]
    return any(re.search(one, said) for one in wanted)


def _page(to: Path) -> str:
    text = "\n".join(path.read_text() for path in sorted(to.glob("*.md")))
    return re.sub(r"[\d.]+ (s|min|h|ms)\b|\d{4}-\d\d-\d\d.*", "", text)


def _exported(to: Path) -> str:
    found = Predictor.load(to).predict(to.parent / "new.csv").to_frame()
    return str(found.to_csv()) + (to / "meaning.json").read_text()
