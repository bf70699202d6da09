"""A sample of the cells of `benchmarks/damage.py`, and what its committed run found."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def damage() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("damage", BENCHMARKS / "damage.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["damage"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_in_a_sample_of_cells_no_damage_is_silent_and_no_sound_file_is_touched(
    damage: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage.shorten(monkeypatch.setattr)
    studies = damage.made_studies(tmp_path)
    sound = damage._sound(studies)
    cells = damage.cells_of(studies)
    assert len(cells) >= 2000
    found = {cell: damage.outcome(cell, studies, sound) for cell in cells[:30]}
    assert {cell: word for cell, word in found.items() if word in damage.WRONG} == {}
    assert "named" in found.values()


@pytest.mark.slow
def test_the_page_has_the_counts_of_the_committed_run(damage: ModuleType) -> None:
    stored = json.loads((BENCHMARKS / "results" / "damage.json").read_text())
    counts = damage.by_kind(stored)["all"]
    assert stored["wrong"] == {}
    assert counts.total() == stored["done"] == stored["of"] > 2000
    assert counts.keys() <= set(damage.OUTCOMES)
    page = BENCHMARKS.parent / "docs" / "explanation" / "faults.md"
    assert damage.table(damage.by_kind(stored)) in page.read_text(encoding="utf-8")
