"""Published figures and tables: every one has an answer, and the gallery shows what is stored."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from nas_evidence.reproducing import (
    PAPERS,
    gallery_page,
    listed,
    reproduced,
    scripts,
    scripts_folder,
    stored_results,
    table_page,
)

ROOT = Path(__file__).parents[1]
CONSTANTS = 'PAPER = "P000"\nFIGURE = "Fig. 2"\nTITLE = "t"\nCLAIM = "c"\nFULL_HOURS = 1\n'
RUN = """
from nas_evidence.reproducing import Reproduction, Row
from nas_evidence_reproduce._shared import OURS

def run(*, quick, data, say):
    say("running")
    row = Row("a | b", "1", OURS, "± 1, n = 2", "because")
    return Reproduction((row,), None, {"n": 2}, "differs", "why not")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "_shared.py").write_text('OURS = "2"\n')
    (tmp_path / "one.py").write_text(CONSTANTS + "NEEDS = ()\n" + RUN)
    (tmp_path / "two.py").write_text(CONSTANTS + 'NEEDS = ("MNIST",)\n' + RUN)
    (tmp_path / "three.py").write_text(CONSTANTS + "NEEDS = ()\nGPU_HOURS = 2.5\n")
    return tmp_path


def test_a_script_is_run_and_its_table_written(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    to = tmp_path / "to"
    result = reproduced("one", quick=True, data=None, to=to, say=said.append, folder=folder)
    assert said == ["running"]
    assert json.loads((to / "one.json").read_text()) == result
    assert {"hardware", "versions", "seconds", "date"} <= set(result)
    assert result["rows"][0]["published"] == "1"
    page = (to / "one.md").read_text()
    assert page == table_page(result)
    assert "| a \\| b | 1 | 2 | ± 1, n = 2 | because |" in page
    assert "![" not in page  # it has no figure


def test_missing_data_is_one_sentence_that_names_the_folder(folder: Path, tmp_path: Path) -> None:
    ask = {"quick": True, "to": tmp_path / "to", "say": print, "folder": folder}
    with pytest.raises(ValueError, match=r"two needs the data folder MNIST; say with --data DIR"):
        reproduced("two", data=None, **ask)
    with pytest.raises(ValueError, match=r"needs the data folder MNIST, but .* has none"):
        reproduced("two", data=folder, **ask)
    with pytest.raises(ValueError, match=r"about 2\.5 hours of one GPU"):
        reproduced("three", data=None, **ask)
    with pytest.raises(ValueError, match=r"no reproduction 'four'; the names are one, "):
        reproduced("four", data=None, **ask)
    assert not (tmp_path / "to").exists()


def test_every_figure_is_listed_with_what_came_out(folder: Path) -> None:
    stored = {"verdict": "differs", "why": "w"}
    (folder / "results" / "one.json").write_text(json.dumps(stored))
    rows = listed(folder)
    assert {(r.paper, r.figure) for r in rows} == {
        (p, f) for p, (_, fs) in PAPERS.items() for f in fs
    }
    status = {row.name: row.status for row in rows}
    assert status["one"] == "differs: w"
    assert status["two"] == "not yet run"
    assert status["three"] == "needs a GPU: 2.5 hours"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PAPER = 1\n", r"bad\.py must have PAPER, but has 1"),
        (CONSTANTS, r"bad\.py must have NEEDS, but has None"),
        (CONSTANTS + "NEEDS = ()\n", "must have a function `run`, or GPU_HOURS"),
        (CONSTANTS.replace("Fig. 2", "Fig. 9") + "NEEDS = ()\n", "P000 has no figure.*'Fig. 9'"),
    ],
)
def test_a_script_without_its_constants_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        scripts(tmp_path)


# --- what is shipped


def test_results_belong_to_scripts_and_figures_are_small() -> None:
    assert set(stored_results()) <= set(scripts())
    images = ROOT / "docs" / "images" / "reproduce"
    drawn = {name for name, one in stored_results().items() if one["has_figure"]}
    assert {path.stem for path in images.glob("*.png")} == drawn
    assert all(path.stat().st_size < 150_000 for path in images.glob("*.png"))
    assert all(one["size"] in ("quick", "shortened") for one in stored_results().values())


def test_scripts_are_shipped_and_found_in_a_checkout() -> None:
    assert scripts_folder() == ROOT / "benchmarks" / "reproduce"
    assert (
        '"benchmarks/reproduce" = "nas_evidence/reproduce"'
        in (ROOT / "pyproject.toml").read_text()
    )


def test_the_gallery_is_what_the_kept_results_give() -> None:
    page = (ROOT / "docs" / "explanation" / "gallery.md").read_text(encoding="utf-8")
    assert page == _gallery().written(), "run python benchmarks/gallery.py"
    other = gallery_page([], listed())
    assert other != page
    assert "###" not in other


def _gallery() -> ModuleType:
    path = ROOT / "benchmarks" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
