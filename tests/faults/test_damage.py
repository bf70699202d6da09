"""A sample of the cells of `benchmarks/damage.py`, and what its committed run found."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: What must not occur in any cell.
WRONG = ("silent", "error", "touched")


@pytest.fixture(scope="module")
def damage() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("damage", BENCHMARKS / "damage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["damage"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_in_a_sample_of_cells_no_damage_is_silent_and_no_sound_file_is_touched(
    damage: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage.export_folder, "write_program", damage.export_folder.write_program)
    monkeypatch.setattr(damage.page, "write_page", damage.page.write_page)
    damage.shorten()  # and undone at the end
    studies = damage.made_studies(tmp_path)
    sound = damage._sound(studies)
    cells = damage.cells_of(studies)
    assert len(cells) >= 2000
    found = {cell: damage.outcome(cell, studies, sound) for cell in cells[:30]}
    assert {cell: word for cell, word in found.items() if word in WRONG} == {}
    assert "named" in found.values()


def test_the_committed_run_has_two_thousand_cells_and_none_that_is_wrong() -> None:
    stored = json.loads((BENCHMARKS / "results" / "damage.json").read_text())
    counts = stored["counts"]
    assert counts["all"] >= 2000
    assert {word: counts[word] for word in WRONG} == dict.fromkeys(WRONG, 0)
    assert counts["all"] == sum(len(places) for places in stored["cells"].values())
