"""Published figures and tables: every one has an answer, and the gallery shows what is stored."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import reproduced as _before_the_scripts  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from nas_evidence.cli import reproduce
from nas_evidence.cli.reproduce import scripts_folder
from nas_evidence_reproduce._immer import agreement as in_order
from nas_evidence_reproduce._immer import must_have_moved, within
from nas_evidence_reproduce._published import (
    PAPERS,
    Cell,
    agreement,
    body,
    judged,
    kept_cells,
    listed,
    names,
    reproduced,
    script,
    share_of,
    status_of,
    stored_results,
    table_page,
)

ROOT = Path(__file__).parents[2]
CONSTANTS = """
FIGURE = "Fig. 2, Fig. 3"
TITLE, CLAIM, RULE = "t", "c", "it is 2"
"""
RUN = """
from nas_evidence_reproduce._published import Cell, Reproduction, Row
from nas_evidence_reproduce._shared import OURS

def run(at):
    at.say("running")
    row = Row("a | b", "1", OURS, "± 1, n = 2", "because")
    return Reproduction((row,), None, {"n": 2, "values": {3: (2, 1)}}, "why not")

def cells(numbers):
    first, second = numbers["values"]["3"]
    return [Cell("g", "first", first == 2, ("Fig. 2",)), Cell("g", "second", second == 2)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "_shared.py").write_text('OURS = "2"\n')
    (tmp_path / "duvenaud_1.py").write_text(CONSTANTS + "NEEDS = ()\n" + RUN)
    (tmp_path / "duvenaud_2.py").write_text(CONSTANTS + 'NEEDS = ("MNIST",)\n' + RUN)
    return tmp_path


def test_a_script_is_run_and_its_table_written(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    to = tmp_path / "to"
    result = reproduced("duvenaud_1", quick=True, data=None, to=to, say=said.append, folder=folder)
    assert said == ["running"]
    assert json.loads((to / "duvenaud_1.json").read_text()) == result
    assert {"hardware", "versions", "seconds", "date"} <= set(result)
    assert result["rows"][0]["published"] == "1"
    page = (to / "duvenaud_1.md").read_text()
    assert page == table_page(result)
    assert "| a \\| b | 1 | 2 | ± 1, n = 2 | because |" in page
    assert "![" not in page  # it has no figure
    assert "**in part, 1 of 2**: why not." in page
    assert "| g | 1 of 2 | second |" in page


def test_missing_data_is_one_sentence_that_names_the_folder(folder: Path, tmp_path: Path) -> None:
    ask = {"quick": True, "to": tmp_path / "to", "say": print, "folder": folder}
    with pytest.raises(ValueError, match="duvenaud_2 needs the data folder MNIST; say with"):
        reproduced("duvenaud_2", data=None, **ask)
    with pytest.raises(ValueError, match=r"needs the data folder MNIST, but .* has none"):
        reproduced("duvenaud_2", data=folder, **ask)
    with pytest.raises(ValueError, match="no reproduction 'four'; the names are duvenaud_1, duv"):
        reproduced("four", data=None, **ask)
    del ask["folder"]
    with pytest.raises(ValueError, match=r"hours of one GPU; how is in immer_resnets\.py"):
        reproduced("immer_resnets", data=None, **ask)
    assert not (tmp_path / "to").exists()


def test_every_figure_is_listed_with_what_came_out(folder: Path) -> None:
    cells = [["g", "first", True, ["Fig. 2"]], ["g", "second", False, []]]
    stored = {
        "paper": "Duvenaud et al. 2016", "figure": "Fig. 2, Fig. 3", "title": "t",
        "status": "in part", "cells": cells,
        "rows": [{"published": "0.5"}, {"published": "picture only"}],
    }  # fmt: skip
    (folder / "results" / "duvenaud_1.json").write_text(json.dumps(stored))
    rows = listed(folder)
    assert {(r.paper, r.figure) for r in rows} == {
        (p, f) for p, _, fs in PAPERS.values() for f in fs
    }
    found = {(row.name, row.figure): (row.status, row.agree) for row in rows}
    assert found["duvenaud_1", "Fig. 2"] == ("in part", "1 of 2")
    assert found["duvenaud_1", "Fig. 3"] == ("differs", "0 of 1")
    assert found["duvenaud_2", "Fig. 2"] == ("not yet run", "")
    shipped = {(row.name, row.figure): row.status for row in listed()}
    assert shipped["immer_resnets", "Table C8"] == "needs a GPU: 80 hours"


def test_checks_of_a_picture_are_not_counted_as_published_numbers() -> None:
    drawn = stored_results()["duvenaud_fig1"]
    agree = "7 of 7 checks of a picture"
    assert agreement(drawn, kept_cells(drawn)) == agree
    assert f"**reproduced, {agree}**" in "\n".join(body(drawn, "one.png"))
    shipped = {(row.name, row.figure): row.agree for row in listed()}
    assert shipped["duvenaud_fig1", "Fig. 1"] == agree
    assert [name for (name, _), said in shipped.items() if "picture" in said] == ["duvenaud_fig1"]


def test_a_cell_of_a_figure_that_the_script_does_not_show_is_refused(folder: Path) -> None:
    text = (folder / "duvenaud_1.py").read_text().replace('("Fig. 2",)', '("Fig. 5",)')
    (folder / "duvenaud_1.py").write_text(text)
    with pytest.raises(ValueError, match=r"duvenaud_1 has no figure of \('Fig\. 5',\) in 'first'"):
        reproduced("duvenaud_1", quick=True, data=None, to=folder, say=print, folder=folder)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_one_cell_that_disagrees_is_enough_not_to_be_reproduced(agree: list[bool]) -> None:
    cells = [Cell("g", str(i), value) for i, value in enumerate(agree)]
    assert (status_of(cells) == "reproduced") == all(agree)
    assert (status_of(cells) == "differs") == (not any(agree))
    assert share_of(cells) == f"{sum(agree)} of {len(agree)}"


def test_no_cells_have_no_status() -> None:
    with pytest.raises(ValueError, match="at least one cell"):
        status_of([])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lyle_1", CONSTANTS, r"lyle_1\.py must have NEEDS"),
        ("lyle_1", CONSTANTS.replace("RULE", "RULES"), r"lyle_1\.py must have RULE"),
        ("lyle_1", CONSTANTS + "NEEDS = ()", r"lyle_1\.py must have run"),
        ("ru_1", CONSTANTS + "NEEDS = ()" + RUN, r"ru_1\.py must begin with one of duvenaud"),
        ("duvenaud_3", CONSTANTS.replace("2", "9") + "NEEDS = ()" + RUN, "2016 has no .*'Fig. 9'"),
    ],
)
def test_a_script_without_its_constants_is_refused(
    folder: Path, name: str, text: str, message: str
) -> None:
    (folder / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        script(name, folder)


# --- what is shipped


def test_results_belong_to_scripts_and_figures_are_small() -> None:
    assert {*stored_results(), "immer_resnets"} == set(names())
    images = ROOT / "docs" / "images" / "reproduce"
    drawn = {name for name, one in stored_results().items() if one["has_figure"]}
    assert {path.stem for path in images.glob("*.png")} == drawn
    assert all(path.stat().st_size < 150_000 for path in images.glob("*.png"))
    assert all(one["size"] in ("quick", "shortened") for one in stored_results().values())


def test_scripts_are_found_in_a_clone_and_missed_in_one_sentence_outside_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert scripts_folder() == ROOT / "benchmarks" / "reproduce"
    monkeypatch.setattr(reproduce, "__file__", str(tmp_path / "a" / "b" / "reproduce.py"))
    with pytest.raises(ValueError, match="reproduce needs a clone of the project"):
        scripts_folder()


@pytest.mark.parametrize("name", sorted(stored_results()))
def test_a_kept_result_is_a_recount_from_its_numbers_by_the_constants_of_its_script(
    name: str,
) -> None:
    result = stored_results()[name]
    assert json.loads(json.dumps(judged(result, script(name)))) == result


def test_learned_precisions_were_compared_with_fixed_ones() -> None:
    """No two trainings gave the same numbers, as they do where no update changed a precision."""
    results = stored_results()
    table = results["immer_table2"]["numbers"]["table"]
    for name, row in table.items():
        network, how = name.rsplit(" ", 1)
        assert how == "fixed" or row[1] != table[f"{network} fixed"][1], name
    measured = results["immer_fig5"]["numbers"]["measured"]
    for how, values in measured.items():
        fixed = measured["fixed + DA" if how.endswith("DA") else "fixed"]
        assert how.startswith("fixed") or values != fixed, how


def test_rules_of_splits_and_orders() -> None:
    # One split of ten: 2 · 0.05 · √11 and half a digit are 0.337.
    assert within(-6.55, -6.88, 0.05, 1)
    assert not within(-6.54, -6.88, 0.05, 1)
    assert not within(-7.22, -6.88, 0.05, 1)  # better than published is another number too
    assert not within(-6.55, -6.88, 0.05, 10)
    assert in_order(2.0, 1.0, (0.4, 0.3))
    assert not in_order(1.0, 2.0, (0.4, 0.3))
    assert not in_order(1.0, 1.0, (0.4, 0.3))


@pytest.mark.parametrize(("moved_at", "refused"), [(None, True), (31, True), (30, False)])
def test_a_prior_that_was_not_learned_in_time_is_not_compared(
    moved_at: int | None, refused: bool
) -> None:
    one = SimpleNamespace(moved_at=moved_at, plan=SimpleNamespace(epochs=60))
    if not refused:
        must_have_moved(one, "MNIST CNN")
        return
    with pytest.raises(RuntimeError, match=f"MNIST CNN: .* at epoch {moved_at} of 60"):
        must_have_moved(one, "MNIST CNN")


@pytest.mark.slow
def test_papers_are_named_by_authors_and_year() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a checkout of git")
    code = re.compile(r"\bP00\d\b|\bpapers? 00\d\b")
    kinds = (".py", ".md", ".toml", ".json", ".ipynb")
    paths = [ROOT / name for name in listing.stdout.splitlines() if name.endswith(kinds)]
    coded = [str(p) for p in paths if p.is_file() and code.search(p.read_text("utf-8"))]
    assert not coded
