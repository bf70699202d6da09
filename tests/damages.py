"""Files of two small studies are damaged, and the verbs meet them: what must not happen.

damage    bit flip, truncation, zeroed block, deletion, an older copy of the file; the content
          of another trial or study, two files exchanged, lost lines of the log
silent    another result and nothing said, or another result of `resume`
error     an unexpected error or a traceback
touched   a sound file was changed
left      `verify` finds something after `repair` had ended with exit code 0
stuck     what the sentences say to do does not lead to the results of the sound study
"""

import contextlib
import functools
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
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shortcuts
import tomli_w
import typer.main
from commands import found
from faulty import quiet_call

from nas_evidence.driver import driver
from nas_evidence.driver.mirror import working_copy
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.reporting import page
from nas_evidence.spec.toml import FORMAT
from nas_evidence.storage.holding import Holder, boot_id
from nas_evidence.storage.tables import TABLES

VERBS = ("verify", "resume", "report", "predict", "export", "repair")
DAMAGES = ("bit flip", "truncation", "zeroed block", "deletion", "older copy")
MORE = ("another trial's", "another study's", "exchanged")
OF_THE_LOG = ("lost line", "lost lines")
#: What must not occur.
WRONG = ("silent", "error", "touched", "left", "stuck")
#: Files that nothing is decided from.
_COPIES = re.compile(r"study\.db|logs/.*\.log|report/(?!comparison)|(.*/)?\.|requests/")
_NUMBERED = re.compile(r"(trials|evidence|terms|curves)/\d+-a\d+\.parquet|models/\d+\.safetensors")
_HOW = ("--executor", "inline", "--trials", "3")
Studies = Mapping[str, tuple[Path, Path]]


def write_table_study(home: Path, *, rows: int, epochs: int, every: int, **changes: Any) -> Path:
    """Write a table of three classes and a study of small networks on it; return the study."""
    home.mkdir(parents=True, exist_ok=True)
    y = np.arange(rows) % 3
    x = np.random.default_rng(0).normal(size=(rows, 4)) + 2 * np.eye(4)[y]
    frame = pd.DataFrame(x, columns=list("abcd")).assign(kind=np.array(["r", "g", "b"])[y])
    frame.to_csv(home / "data.csv", index=False)
    table = {
        "name": "table",
        "path": str(home / "data.csv"),
        "target": "kind",
        "test_fraction": 0.2,
    }
    online = {"every": every, "curvature": "diag_ef"}
    width = {"low": 4, "high": 16, "log": True}
    study = {
        "name": "damaged",
        "objective": "diag_ef",
        "estimators": ["diag_ef"],
        "scheduling": "batch",
        "dataset": table | {"test_fraction": 0.2},
        "family": {"mlp": {"width": width, "depth": 1}},
        "plan": {"epochs": epochs, "batch_size": 16, "online": online},
    }
    text = tomli_w.dumps(study | changes)  # with what only the file of a folder has
    (home / "study.toml").write_text(f"# nas-evidence study folder, format {FORMAT}\n{text}")
    return home / "study.toml"


def tables_of(place: str | Path) -> dict[str, pd.DataFrame]:
    """Return what a study found, without what may differ."""
    with tempfile.TemporaryDirectory() as scratch:
        store = working_copy(str(place), Path(scratch) / "s")
        store.pull()
        return found(store.folder, without=["attempt"])


def differing(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> list[str]:
    """Return the tables that differ in any bit, as one sentence or none."""
    names = [name for name in TABLES if not one[name].equals(other[name])]
    return [f"differ: {', '.join(names)}"] if names else []


@dataclass(frozen=True)
class Cell:
    """One file of one study, damaged in one way at one place, and the verb that meets it."""

    study: str
    file: str
    damage: str
    verb: str
    time: int = 0


@dataclass(frozen=True)
class Met:
    """What a verb did: exit code, all that it printed, and its product, to be compared."""

    code: int
    said: str
    product: str


def made_studies(home: Path) -> dict[str, tuple[Path, Path]]:
    """Make the studies in a folder; return each with an older state of it."""
    study = write_table_study(
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


class Made:
    """The studies, each with an older state, and what each verb makes of them undamaged.

    other  a finished study of the same data with another seed
    """

    def __init__(self, home: Path) -> None:
        self.studies, self.other = made_studies(home), home / "other"
        called("search", home / "study.toml", "--out", self.other, *_HOW, "--seed", "5")
        self.sound = dict[str, Met]()
        for name, (folder, _) in self.studies.items():
            for verb in VERBS:
                with tempfile.TemporaryDirectory() as scratch:
                    copy = shutil.copytree(folder, Path(scratch) / name)
                    self.sound[f"{name} {verb}"] = meet(verb, copy)

    def older(self, study: str, file: str) -> bytes | None:
        """Return the content of a file in the older state, if it was another."""
        now, before = (folder / file for folder in self.studies[study])
        if not before.is_file() or before.read_bytes() == now.read_bytes():
            return None
        return before.read_bytes()


def kinds_of(studies: Studies) -> dict[str, tuple[str, str]]:
    """Return a study and a file of each kind."""
    return {
        kind_of(file): (name, file)
        for name, (folder, _) in studies.items()
        for file in _files(folder)
    }


def outcome(cell: Cell, made: Made) -> str:
    """Do what a cell says in a copy of its study, and judge what came of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / cell.study
        shutil.copytree(made.studies[cell.study][0], folder)
        damaged(cell, folder, made.older(cell.study, cell.file))
        before = _contents(folder)
        met = meet(cell.verb, folder)
        if met.code not in (0, 1, 2) or re.search(r"unexpected \w+|Traceback", met.said):
            return "error"
        if _touched(before, _contents(folder), cell.file):
            return "touched"
        expected = made.sound[f"{cell.study} {cell.verb}"]
        if _names(met.said, cell.file):
            return "silent" if _misleads(cell, met, folder, made) else "named"
        if met.code == 2 and expected.code != 2:
            return "refused"
        if cell.verb in ("verify", "repair"):  # nothing said: then nothing may come of it
            after = meet("resume", folder)
            same = after.product == made.sound[f"{cell.study} resume"].product
            return "harmless" if same else "silent"
        if met.product != expected.product:
            return "silent"
        back = (folder / cell.file).is_file() and before.get(cell.file) != _read(folder, cell.file)
        return "rebuilt" if back else "harmless"


def _misleads(cell: Cell, met: Met, folder: Path, made: Made) -> bool:
    """Tell whether `resume`, also after `repair`, goes on and finds something else.

    Of a study file that still can be read `resume` takes what may change.
    """
    if cell.verb not in ("resume", "repair") or cell.file == "study.toml":
        return False
    after = met if cell.verb == "resume" else meet("resume", folder)
    return after.code == 0 and after.product != made.sound[f"{cell.study} resume"].product


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


def drawn(number: int, made: Made) -> list[Cell]:
    """Return the damages of a number: the study and each file, how, and at which place."""
    chance = random.Random(number)
    name = chance.choice(sorted(made.studies))
    cells = []
    for file in chance.sample(_files(made.studies[name][0]), 2):
        ways = [way for way in DAMAGES if way != "older copy" or made.older(name, file)]
        ways += MORE if _NUMBERED.fullmatch(file) else ()
        ways += OF_THE_LOG if file.startswith("logs/events/") else ()
        cells.append(Cell(name, file, chance.choice(ways), "repair", chance.randrange(1000)))
    return cells


def outcome_of_pair(number: int, made: Made) -> tuple[str, str]:
    """Do two damages in a copy of a study; return what came of them, and what was said."""
    cells = drawn(number, made)
    name = cells[0].study
    whole, sound = made.studies[name][0], made.sound[f"{name} resume"].product
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(whole, Path(scratch) / name))
        for cell in cells:
            _do(cell, folder, made)
        code, said = called("repair", folder)
        left, found = called("verify", folder)
        met = meet("resume", folder)
        said = "\n".join([*map(str, cells), said, found, met.said])
        if {code, left, met.code} - {0, 1, 2} or re.search(r"unexpected \w+|Traceback", said):
            return "error", said
        if met.code == 0 and met.product != sound:
            return "silent", said
        if code == 0 and left:
            return "left", said
        if code == 0 and met.code == 0:
            return "same", said
        after = followed(said, folder, whole, made.other.parent / "study.toml")
        left, found = called("verify", folder)
        met = meet("resume", folder)
        is_healed = not left and met.code == 0 and met.product == sound
        return "named" if is_healed else "stuck", "\n".join([said, *after, found, met.said])


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


def _do(cell: Cell, folder: Path, made: Made) -> None:
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
        source = made.other / cell.file
        if source.exists():
            shutil.copyfile(source, path)
    elif cell.damage in OF_THE_LOG:
        lines = path.read_bytes().splitlines(keepends=True)
        at = chance.randrange(len(lines))
        rest = lines[at + 1 :] if cell.damage == "lost line" else []
        path.write_bytes(b"".join(lines[:at] + rest))
    elif cell.damage not in MORE:
        damaged(cell, folder, made.older(cell.study, cell.file))


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
