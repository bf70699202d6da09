"""What the documentation shows is run: every command and every block of Python, TOML and SQL.

A page is one session: its blocks run in their order in one folder and one namespace. They run as
they stand, but shorter: few trials of few epochs on few data, in this process instead of on Ray.
Blocks that need what is not here say so in their title.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tutorial_output
from blocks import ELSEWHERE, LANGUAGES, Block, blocks
from fakes import FakeExecutor, Silent
from matrix import REST
from records import plain_study

import nas_evidence
from nas_evidence.driver.driver import Driver
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.study_folder import open_study

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if blocks(p))
RUN = [page for page in PAGES if any(not block.is_elsewhere for block in blocks(page))]
#: What a newcomer reads first; of the other pages `make test` runs a third.
SAMPLE = ("first-study", "your-table", "own-data")
MOST_TRIALS = 3
SHORTER = ["plan.epochs=2", "plan.settle=0", "finalists=0", "plan.batch_size=32"]


# --- the blocks themselves


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_language_and_title_of_every_block_are_known(page: Path) -> None:
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, where
        assert not block.title or block.file or block.is_elsewhere, where
        if block.language in ("", "text") and not block.is_commands:
            assert "nas-evidence search " not in block.text.splitlines()[:1], where


def test_a_tutorial_quotes_no_output_but_that_of_its_own_commands() -> None:
    for tutorial, pages in tutorial_output.PAGES.items():
        run = tutorial_output.commands(tutorial.read_text(encoding="utf-8"))
        assert len(run) >= 2
        for page in pages:
            quoted = tutorial_output.shown(page.read_text(encoding="utf-8"))
            assert quoted
            assert set(quoted) <= set(run)


# --- what a page finds when it begins


def pets(n: int, seed: int = 0) -> pd.DataFrame:
    """A table with numbers, a category, missing values, a class and a price."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(10, 4, n)
    frame = pd.DataFrame({"weight": weight, "length": generator.normal(40, 9, n)})
    frame["town"] = generator.choice(["rome", "oslo"], n)
    frame.loc[::17, "length"] = np.nan
    pet = np.select([weight > 12, weight > 8], ["dog", "cat"], "fish")
    return frame.assign(price=weight**2 + generator.normal(size=n), pet=pet)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a study file, as a reader has them."""
    pets(96).drop(columns="pet").to_csv(tmp_path / "mine.csv", index=False)
    for name, seed in (("new.csv", 1), ("other.csv", 2)):
        pets(20, seed).drop(columns="pet").to_csv(tmp_path / name, index=False)
    scores = {"evidence": range(9), "accuracy": [0, 2, 1, 4, 3, 6, 5, 8, 7], "family": ["a"] * 9}
    pd.DataFrame(scores).to_csv(tmp_path / "any.csv", index=False)
    (tmp_path / "my_study.toml").write_text(
        'name = "mine"\n[dataset]\nname = "table"\npath = "mine.csv"\ntarget = "price"\n'
        'task = "regression"\n[plan]\nlikelihood = "gaussian"\n'
        '[family.mine]\nmodule = "my_nets:TabularResNet"\n'
    )
    (tmp_path / "search_spaces").symlink_to(ROOT / "search_spaces")
    study = plain_study(name="older", n_trials=6, sampler={"name": "random"})
    folder = tmp_path / "runs" / "older"
    Driver(open_study(folder, study), folder, FakeExecutor(), Silent()).run()
    shutil.rmtree(folder / "models")  # its weights are stand-ins
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def names() -> dict[str, Any]:
    """The names that a page uses without making them."""
    frame, labelled = pets(96).drop(columns="price"), pets(20, 1).drop(columns="price")
    new = labelled.drop(columns="pet")
    generator = np.random.default_rng(0)
    x = generator.normal(size=(96, 12)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    given = {
        "X": x[:80],
        "y": y[:80],
        "X_new": x[80:],
        "frame": frame,
        "new": new,
        "labelled": labelled,
    }
    return {"__name__": "page", "nas_evidence": nas_evidence, "np": np, "pd": pd, **given}


# --- running them


def shorter(verb: str, words: list[str]) -> list[str]:
    """Return the arguments of a command with fewer trials, epochs and data, in this process."""
    words = list(words)
    if "--trials" in words:
        at = words.index("--trials") + 1
        words[at] = str(min(int(words[at]), MOST_TRIALS + (verb == "resume")))
    if verb == "search":
        if "--trials" not in words:
            words += ["--trials", "3"]
        sets = [*SHORTER, "dataset.max_train=96", "dataset.max_test=50"]
        words += [word for one in sets for word in ("--set", one)]
    if verb in ("search", "resume"):
        words += ["--executor", "inline"]
    return words


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one line of a console."""
    if "--track" in words and find_spec(words[words.index("--track") + 1]) is None:
        at = words.index("--track")  # an extra that is not installed here
        words = [*words[:at], *words[at + 2 :]]
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), words
        return
    assert words[0] == "nas-evidence", f"{words}: give the block a title of {ELSEWHERE}"
    from nas_evidence.cli.main import main

    given = shorter(words[1], words[2:])
    monkeypatch.setattr(sys, "argv", ["nas-evidence", words[1], *given])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, words


def run_toml(block: Block, home: Path) -> None:
    """Check a part of a study file, with what it needs to be a whole one."""
    text = block.text
    head = "" if "\nname = " in f"\n{text.partition('[')[0]}" else 'name = "mine"\n'
    data = "" if "[dataset]" in text else '[dataset]\nname = "digits"\n'
    family = "" if "[family." in text else "[family.linear]\n[family.mlp]\nwidth = [16, 64]\n"
    path = home / (block.file or "part.toml")
    path.write_text(f"{head}{text}{data}{family}", encoding="utf-8")
    assert load_study(path).name


def module_of(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Write a block as the file that it is, and import it for the rest of the page."""
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def run_sql(block: Block) -> None:
    assert duckdb.sql(block.text).fetchall()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Searches in Python of few trials and epochs; those of commands have them already."""
    from nas_evidence.api import estimators
    from nas_evidence.api import studies as study
    from nas_evidence.api.runs import Audience
    from nas_evidence.cli.verbs import VERBS, function_of

    for verb in VERBS:
        function_of(verb)  # takes its options from the functions before these are replaced
    search, resume = study.search, study.resume
    settings = {key: int(value) for key, value in (one.split("=") for one in SHORTER)}

    def few(data: Any, y: Any = None, **more: Any) -> Any:
        if isinstance(more.get("progress"), Audience):
            return search(data, y, **more)
        more["n_trials"] = min(more.get("n_trials") or 3, 3)
        more["settings"] = {**(more.get("settings") or {}), **settings}
        return search(data, y, **{**more, "workers": 1, "progress": False})

    def one_more(folder: Any, **more: Any) -> Any:
        if isinstance(more.get("progress"), Audience):
            return resume(folder, **more)
        more["n_trials"] = min(more.get("n_trials") or 3, 4)
        return resume(folder, **{**more, "workers": 1, "progress": False})

    for module in (study, estimators):
        monkeypatch.setattr(module, "search", few)
    monkeypatch.setattr(study, "resume", one_more)
    yield
    plt.close("all")


def marks(page: Path, index: int) -> list[pytest.MarkDecorator]:
    """The README runs in `make test`; with a sample of the pages, in `make long`."""
    if page.stem == "README":
        return []
    return [pytest.mark.long] if page.stem in SAMPLE or index % 3 == 0 else [REST]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks(page, i)) for i, page in enumerate(RUN)],
    ids=lambda page: page.stem,
)
def test_what_a_page_shows_runs_and_prints_the_words_that_it_quotes(
    page: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = tutorial_output.shown(page.read_text(encoding="utf-8"))
    quoted = {tuple(shlex.split(command)): text for command, text in shown.items()}
    run = [words[:3] for block in blocks(page) if block.is_commands for words in block.commands()]
    if ["nas-evidence", "search", "digits"] not in run:
        (home / "runs" / "older").rename(home / "runs" / "digits")
    space = names()
    runners: dict[str, Callable[[Block], object]] = {
        "toml": lambda block: run_toml(block, home),
        "sql": run_sql,
    }
    for block in blocks(page):
        if block.is_elsewhere:
            continue
        if block.is_commands:
            for words in block.commands():
                run_command(words, monkeypatch)
                said = capsys.readouterr().out
                quote = tutorial_output.fixed(quoted.get(tuple(words), ""))
                assert quote <= tutorial_output.fixed(said), words
        elif block.language == "python":
            if block.file:
                made = vars(module_of(home / block.file, block.text, monkeypatch))
                space |= {name: value for name, value in made.items() if name[:2] != "__"}
            else:
                exec(compile(block.text, f"{page.name}:{block.line}", "exec"), space)
        elif block.language in runners:
            runners[block.language](block)
