"""A few studies of `benchmarks/faults.py`, and what its committed run found."""

import importlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("faults")


@pytest.mark.slow
def test_random_faults_between_machines_change_no_table(faults: ModuleType) -> None:
    calm, happened = dict[str, object](), Counter[str]()
    for number in (0, 5, 10):
        wrong, found = faults.one(number, 0, calm)
        assert wrong == []
        happened += found
    assert happened.total() >= 10


@pytest.mark.long
@pytest.mark.slow
def test_a_driver_that_does_not_ask_for_its_lease_is_found_out(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.remote_lease.RemoteLease, "check", lambda self: None)
    wrong, happened = faults.one(13, 7, {})
    assert happened["taken over"]
    assert "silent: changed by a driver after it had been taken over" in wrong


@pytest.mark.slow
def test_the_committed_run_of_random_faults_found_nothing_wrong(faults: ModuleType) -> None:
    stored = json.loads((BENCHMARKS / "results" / "faults.json").read_text())
    assert {word: stored[word] for word in ("lost", "silent", "traceback")} == {
        "lost": [],
        "silent": [],
        "traceback": [],
    }
    assert sum(stored["faults"].values()) > 1000
    assert stored["faults"].keys() >= {"head cut off", "node lost, race", "host lost, export"}
    page = BENCHMARKS.parent / "docs" / "explanation" / "faults.md"
    assert faults.table(stored) in page.read_text(encoding="utf-8")
