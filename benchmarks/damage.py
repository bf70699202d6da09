"""Damage every kind of file of a study in every way, and see what each verb makes of it.

    python benchmarks/damage.py [--minutes 5] [--cells 2400] [--out benchmarks/results/damage.json]

Two small studies are made once: one finished in two runs, one stopped half way. A cell is a copy
of one with one file damaged, and one verb called in this process:

    damage    bit flip, truncation, zeroed block, deletion, an older copy of the file
    verb      verify, resume, report, predict, export, repair

    named     the file is named, and nothing is said that is not so
    rebuilt   the file is back, or what it was for is: results as of the sound study
    harmless  the verb's result is that of the sound study
    refused   one sentence with exit code 2 that does not name the file
    silent    another result, and nothing said: must not occur
    error     an unexpected error or a traceback: must not occur
    touched   a sound file was changed: must not occur

The run goes on where the last one stopped, and first tries again what was wrong. A cell takes a
third of a second instead of three, because nothing that is not tested is done again for each:
templates, the command line and baselines are made once, there is no forecast, nothing is forced
to disk, and the program of torch.export and the page of the report are short files (the report's
Markdown has the page's content). Cells are in an order of which every beginning is a sample of
all.
"""

import argparse
import contextlib
import functools
import gc
import io
import json
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer.main

sys.path.insert(0, str(Path(__file__).parents[1]))

from nas_evidence import __version__
from nas_evidence.api import runs
from nas_evidence.baselines import on_test_rows
from nas_evidence.exporting import folder as export_folder
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.reporting import page, templating
from nas_evidence.storage.study_folder import Lease, boot_id, text_of
from nas_evidence.storage.tables import read_tables

VERBS = ("verify", "resume", "report", "predict", "export", "repair")
DAMAGES = ("bit flip", "truncation", "zeroed block", "deletion", "older copy")
#: What must not occur.
WRONG = ("silent", "error", "touched")
OUTCOMES = ("named", "rebuilt", "harmless", "refused", *WRONG)
#: How often each damage is done to each file, at other places.
_TIMES = {"bit flip": 4, "truncation": 2, "zeroed block": 2, "deletion": 1, "older copy": 1}
#: Files that nothing is decided from.
_COPIES = re.compile(r"study\.db|logs/.*\.log|report/(?!comparison)|(.*/)?\.|requests/")
_STUDY = """\
name = "damaged"
n_trials = 2
objective = "diag_ef"
estimators = ["diag_ef"]
scheduling = "batch"
batch = 2
[dataset]
name = "table"
path = "data.csv"
target = "kind"
test_fraction = 0.2
[family.mlp]
width = {low = 4, high = 16, log = true}
depth = 1
[family.linear]
[plan]
epochs = 2
batch_size = 32
[plan.online]
every = 1
curvature = "diag_ef"
"""


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
    generator = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = generator.normal(size=(90, 4)) + 2 * np.eye(4)[y]
    frame = pd.DataFrame(x, columns=list("abcd")).assign(kind=np.array(["r", "g", "b"])[y])
    frame.to_csv(home / "data.csv", index=False)
    (home / "study.toml").write_text(_STUDY)
    made = {}
    _call("search", home / "study.toml", "--out", home / "older", "--executor", "inline")
    shutil.copytree(home / "older", home / "finished")
    _call("resume", home / "finished", "--trials", "3", "--executor", "inline")
    made["finished"] = home / "finished", home / "older"
    stopped, before = home / "stopped", home / "stopped-before"
    with _stopping(4):
        more = ("--trials", "3", "--executor", "inline")
        _call("search", home / "study.toml", "--out", stopped, *more)
    shutil.copytree(stopped, before)
    with _stopping(2):
        _call("resume", stopped, "--executor", "inline")
    lease = Lease(1 << 22, "this-host", boot_id(), time.time() - 100)
    (stopped / "lock").write_text(text_of(lease).ljust(512))
    (stopped / "logs" / "retry.json").write_text(sealed_json({"attempts": {"0": 1}}))
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
            return "named"
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
        "predict": (folder, folder.parent / "new.csv", "--to", folder.parent / "p.csv"),
        "export": (folder, "--to", to),
    }
    products: dict[str, Callable[[], str]] = {
        "resume": lambda: _tables(folder),
        "report": lambda: _page(to),
        "predict": lambda: (folder.parent / "p.csv").read_text(),
        "export": lambda: _exported(to),
    }
    new = "a,b,c,d\n" + "".join(f"{k / 3},{k / 5},{-k / 7},0.5\n" for k in range(6))
    (folder.parent / "new.csv").write_text(new)
    code, said = _call(verb, *arguments.get(verb, (folder,)))
    if code == 0 and verb in products:
        product = products[verb]
    found = product().replace(str(folder.parent), "")
    return Met(code, said + found * (verb == "report"), found)


def main() -> None:
    """Run cells for some minutes, and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--cells", type=int, default=1 << 30)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    path = given.out or Path(__file__).parent / "results" / "damage.json"
    results = json.loads(path.read_text()) if path.exists() else empty()
    before, end = results["cpu_seconds"], time.monotonic() + 60 * given.minutes
    shorten()
    with tempfile.TemporaryDirectory() as home:
        studies = made_studies(Path(home))
        sound = _sound(studies)
        gc.collect()
        gc.freeze()
        cells = cells_of(studies)
        results["of"] = len(cells)
        for number in [*map(int, results["wrong"]), *range(results["done"], len(cells))]:
            if time.monotonic() > end or number >= given.cells:
                break
            word = outcome(cells[number], studies, sound)
            note(results, number, cells[number], word)
            results["cpu_seconds"] = before + round(time.process_time())
            if word in WRONG:
                print(f"{word}: {cells[number]}", flush=True)
            if number % 100 == 0:
                path.write_text(json.dumps(results, indent=1) + "\n")
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(table(by_kind(results)))


def empty() -> dict[str, Any]:
    """Return the results of no cell."""
    versions = {"nas-evidence": __version__, "python": platform.python_version()}
    hardware = f"{os.cpu_count()} {platform.machine()} cores, shared with other jobs"
    empty: dict[str, Any] = {"hardware": hardware, "versions": versions, "cpu_seconds": 0}
    return empty | {"of": 0, "done": 0, "wrong": {}, "cells": {}}


def note(results: dict[str, Any], number: int, cell: Cell, word: str) -> None:
    """Add the outcome of a cell: to the counts, or to what is wrong."""
    results["done"] = max(results["done"], number + 1)
    results["wrong"].pop(str(number), None)
    if word in WRONG:
        results["wrong"][str(number)] = [word, cell.study, cell.file, cell.damage, cell.verb]
        return
    kinds = results["cells"].setdefault(kind_of(cell.file), {})
    counts = kinds.setdefault(cell.damage, {}).setdefault(cell.verb, {})
    counts[word] = counts.get(word, 0) + 1


def by_kind(results: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return how many cells of each kind of file had which outcome; the last kind is "all"."""
    found: dict[str, Counter[str]] = {}
    for kind, damages in sorted(results["cells"].items()):
        found[kind] = Counter()
        for counts in (counts for verbs in damages.values() for counts in verbs.values()):
            found[kind].update(counts)
    for word, _, file, *_ in results["wrong"].values():
        found.setdefault(kind_of(file), Counter())[word] += 1
    return found | {"all": sum(found.values(), Counter[str]())}


def table(kinds: Mapping[str, Mapping[str, int]]) -> str:
    """Return the counts by kind of file, as Markdown."""
    heads = ("file", "cells", *OUTCOMES)
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for kind, counts in kinds.items():
        cells = " | ".join(str(counts.get(word, 0)) for word in OUTCOMES)
        lines.append(f"| `{kind}` | {sum(counts.values())} | {cells} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------


def _sound(studies: Mapping[str, tuple[Path, Path]]) -> dict[str, Met]:
    found = {}
    for name, (folder, _) in studies.items():
        for verb in VERBS:
            with tempfile.TemporaryDirectory() as scratch:
                copy = shutil.copytree(folder, Path(scratch) / name)
                found[f"{name} {verb}"] = meet(verb, copy)
    return found


def _call(*arguments: object) -> tuple[int, str]:
    """Call the command line; return its exit code and what it printed."""
    import logging

    from nas_evidence.cli.main import main as command_line

    printed, before = io.StringIO(), sys.argv
    sys.argv = ["nas-evidence", *map(str, arguments)]
    code: object = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            command_line()
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv = before
            logger = logging.getLogger("nas_evidence")
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
                handler.close()
    return int(code or 0), printed.getvalue()  # type: ignore[call-overload]


@contextlib.contextmanager
def _stopping(reports: int) -> Iterator[None]:
    """Interrupt the driver after so many reports of trials."""
    from nas_evidence.driver import driver

    plain, seen = driver.arrow, Counter[str]()

    def arrow(name: str) -> None:
        seen[name] += 1
        if seen["reported"] >= reports:
            raise KeyboardInterrupt
        plain(name)

    driver.arrow = arrow
    try:
        yield
    finally:
        driver.arrow = plain


def shorten(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Replace what takes long and is not tested here."""
    patch(export_folder, "write_program", _short_program)
    patch(page, "write_page", lambda path, *_, **__: path.write_text("a page"))
    patch(templating, "_environment", functools.cache(templating._environment))
    patch(typer.main, "get_command", functools.cache(typer.main.get_command))
    patch(runs, "_forecast_told", lambda *_, **__: contextlib.nullcontext())
    patch(os, "fsync", lambda descriptor: None)
    patch(on_test_rows, "predict_test", _fitted_once(on_test_rows.predict_test))


def _fitted_once(predict: Callable[[Any], Iterable[object]]) -> Callable[[Any], list[object]]:
    """Fit the baselines once for each content of the data."""
    found: dict[bytes, list[object]] = {}

    def of(arrays: Any) -> list[object]:
        key = b"".join(part.tobytes() for part in (arrays.x_train, arrays.y_train, arrays.x_test))
        return found[key] if key in found else found.setdefault(key, list(predict(arrays)))

    return of


def _short_program(exported: object, path: Path, arrays: object) -> float:
    path.write_bytes(b"a program of torch.export")
    return 0.0


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
    """Return the sound results and weights that were changed or removed."""
    kept = re.compile(r"(trials|evidence|terms|curves|models|data)/")
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
    if parts[0] == "data":
        wanted += [r"data set", r"is not the data", r"(?m)^data: "]
    if file == "lock":
        wanted += ["the lease"]
    return any(re.search(one, said) for one in wanted)


def _tables(folder: Path) -> str:
    found = []
    for name, frame in read_tables(folder)[0].items():
        free = [c for c in frame if c.endswith("seconds") or c in ("versions", "attempt")]
        frame = frame.drop(columns=free).sort_index(axis=1)
        lines = frame.to_csv(index=False).splitlines()
        found.append("\n".join([name, lines[0], *sorted(lines[1:])]))
    return "\n".join(found)


def _page(to: Path) -> str:
    text = "\n".join(path.read_text() for path in sorted(to.glob("*.md")))
    return re.sub(r"[\d.]+ (s|min|h|ms)\b|\d{4}-\d\d-\d\d.*", "", text)


def _exported(to: Path) -> str:
    from nas_evidence.exporting.predictor import Predictor

    new = to.parent / "new.csv"
    return (
        str(Predictor.load(to).predict(new).to_frame().to_csv())
        + (to / "meaning.json").read_text()
    )


if __name__ == "__main__":
    main()
