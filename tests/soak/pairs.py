"""Two or three damages at once, drawn at random: `repair` once, then `verify` and `resume`.

The two small studies of `damage.py` are used: one finished, one stopped half way. Each number
draws a study and its damages. Beside those of `damage.py` a damage is

    another trial's  the content of the same file of another trial or attempt
    another study's  the content of the same file of a study with another seed
    exchanged        the files of two trials change places
    lost line        one line of the log
    lost lines       the last lines of the log

    same     `repair` ends with exit code 0, `verify` finds nothing, `resume` gives the results of
             the sound study
    named    `repair` says what is left, with exit code 1 or 2, and `verify` finds it; `resume`
             gives the results of the sound study, or refuses in a sentence. After what the
             sentences say to do, `verify` finds nothing, and `resume` gives these results
    stuck    as named, but without such an end: must not occur
    silent   other results with exit code 0: must not occur
    left     `verify` finds something after `repair` had ended with exit code 0: must not occur
    error    an unexpected error or a traceback: must not occur
"""

import contextlib
import gc
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from soak import damage
from soak.damage import Cell, called, damaged, made_studies, meet, short
from soak.harness import Found, Result, Studies, counted

from nas_evidence.cli import search

N = 500
MORE = ("another trial's", "another study's", "exchanged")
OF_THE_LOG = ("lost line", "lost lines")
#: What must not occur.
WRONG = ("silent", "left", "stuck", "error")
OUTCOMES = ("same", "named", *WRONG)
_HOW = ("--executor", "inline", "--trials", "3")
_NUMBERED = re.compile(r"(trials|evidence|terms|curves)/\d+-a\d+\.parquet|models/\d+\.safetensors")


def drawn(number: int, studies: Mapping[str, tuple[Path, Path]]) -> list[Cell]:
    """Return the damages of a number: the study and each file, how, and at which place."""
    chance = random.Random(number)
    name = chance.choice(sorted(studies))
    files = damage._files(studies[name][0])
    cells = []
    for file in chance.sample(files, chance.choice((2, 3))):
        ways = [way for way in damage.DAMAGES if way != "older copy"]
        if damage._older(studies, name, file) is not None:
            ways.append("older copy")
        if _NUMBERED.fullmatch(file):
            ways += MORE
        if file.startswith("logs/events/"):
            ways += OF_THE_LOG
        cells.append(Cell(name, file, chance.choice(ways), chance.randrange(1000), "repair"))
    return cells


def outcome(
    cells: list[Cell], studies: Mapping[str, tuple[Path, Path]], other: Path, sound: str
) -> tuple[str, str]:
    """Do the damages in a copy of their study; return what came of it, and what was said."""
    name = cells[0].study
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        shutil.copytree(studies[name][0], folder)
        for cell in cells:
            _do(cell, folder, studies, other)
        code, said = called("repair", folder)
        left, found = called("verify", folder)
        met = meet("resume", folder)
        whole = "\n".join([said, found, met.said])
        if {code, left, met.code} - {0, 1, 2} or re.search(r"unexpected \w+|Traceback", whole):
            return "error", whole
        if met.code == 0 and met.product != sound:
            return "silent", whole
        if code == 0 and left:
            return "left", whole
        if code == 0 and met.code == 0:
            return "same", whole
        after = followed(whole, folder, studies[name][0], other.parent / "study.toml")
        left, found = called("verify", folder)
        met = meet("resume", folder)
        is_healed = not left and met.code == 0 and met.product == sound
        return "named" if is_healed else "stuck", "\n".join([whole, *after, found, met.said])


def followed(said: str, folder: Path, sound: Path, study: Path) -> list[str]:
    """Do what sentences of `repair` and `resume` say to do; return what was said then."""
    done = []
    if "take it over with the option `steal`" in said:
        done.append(called("repair", folder, "--steal")[1])
        said += done[-1]
    if "put a copy of the file there" in said:
        shutil.copyfile(sound / "study.toml", folder / "study.toml")  # as from a backup
        done.append(called("repair", folder)[1])
        said += done[-1]
    if "with the same data and settings" in said:
        done.append(called("search", study, "--out", folder, *_HOW)[1])
    if done:
        done.append(called("repair", folder)[1])
    return done


def _do(cell: Cell, folder: Path, studies: Mapping[str, tuple[Path, Path]], other: Path) -> None:
    path = folder / cell.file
    if not path.exists() or not path.stat().st_size:  # by a damage before
        return
    chance = random.Random(str((cell.file, cell.damage, cell.time)))
    others = sorted(p for p in path.parent.iterdir() if p != path and p.suffix == path.suffix)
    if cell.damage in ("another trial's", "exchanged") and others:
        twin = chance.choice(others)
        content = path.read_bytes()
        path.write_bytes(twin.read_bytes())
        if cell.damage == "exchanged":
            twin.write_bytes(content)
    elif cell.damage == "another study's":
        source = other / cell.file
        if source.exists():
            shutil.copyfile(source, path)
    elif cell.damage in OF_THE_LOG:
        lines = path.read_bytes().splitlines(keepends=True)
        at = chance.randrange(len(lines))
        rest = lines[at + 1 :] if cell.damage == "lost line" else []
        path.write_bytes(b"".join(lines[:at] + rest))
    elif cell.damage not in MORE:
        damaged(cell, folder, damage._older(studies, cell.study, cell.file))


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    """Make the studies; give the numbers, and what disturbs one."""
    with (
        short(),
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir=home) as folder,
    ):
        made = made_studies(Path(folder))
        # `damage.py` looks at reports.
        patch.setattr(search, "_conclude", lambda *_, **__: None)
        patch.setattr(search, "exit_if_unranked", lambda *_: None)
        patch.setattr(search, "say_next", lambda *_, **__: None)
        other = Path(folder) / "other"
        called("search", Path(folder) / "study.toml", "--out", other, *_HOW, "--seed", "5")
        sound = dict[str, str]()
        for name, (whole, _) in made.items():
            with tempfile.TemporaryDirectory() as scratch:
                sound[name] = meet("resume", shutil.copytree(whole, Path(scratch) / name)).product
        gc.collect()
        gc.freeze()

        def disturb(number: str) -> Found:
            cells = drawn(1000 * seed + int(number), made)
            word, said = outcome(cells, made, other, sound[cells[0].study])
            counts = Counter([f"{len(cells)} damages: {word}"])
            what = [f"{cell.damage} of {cell.file}" for cell in cells]
            wrong = [f"{word}: {cells[0].study}: {what}\n{said}"] if word in WRONG else []
            return Found(counts, wrong)

        yield map(str, range(N)), disturb
    gc.unfreeze()


def table(result: Result) -> str:
    """Return the counts by number of damages, as Markdown."""
    found: dict[str, Counter[str]] = {}
    for name, n in sorted(counted(result).items()):
        kind, _, word = name.partition(": ")
        found.setdefault(kind, Counter())[word] += n
    found["all"] = sum(found.values(), Counter[str]())
    lines = [f"| | folders | {' | '.join(OUTCOMES)} |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    for kind, counts in found.items():
        cells = " | ".join(str(counts[word]) for word in OUTCOMES)
        lines.append(f"| {kind} | {counts.total()} | {cells} |")
    return "\n".join(lines)
