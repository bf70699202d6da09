"""The tables of the pages on performance are those that the committed results give."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "performance_tables.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["performance.md", "scale.md"])
def test_the_tables_of_a_page_are_what_the_results_give(script: ModuleType, page: str) -> None:
    text = (script.DOCS / page).read_text(encoding="utf-8")
    assert text == script.written(text), "run python benchmarks/performance_tables.py"
    used = script._TABLE.findall(text)
    assert used
    assert text.count("<!-- table: ") == len(used)  # each one is closed


def test_every_table_stands_on_a_page(script: ModuleType) -> None:
    pages = "".join((script.DOCS / page).read_text(encoding="utf-8") for page in script.PAGES)
    assert {name for _, name, _ in script._TABLE.findall(pages)} == set(script.TABLES)


def test_the_peer_is_the_fastest_that_returned_a_result(script: ModuleType) -> None:
    rows = [
        {"model": "mlp", "candidate": "diag_ef", "estimates": "diag_ef", "median": 0.5},
        {"model": "mlp", "candidate": "slow", "estimates": "diag_ef", "median": 3.0},
        {"model": "mlp", "candidate": "fast", "estimates": "diag_ef", "median": 2.0},
        {"model": "mlp", "candidate": "failed", "estimates": "diag_ef", "error": "no such layer"},
        {"model": "mlp", "candidate": "other", "estimates": "diag_ggn", "median": 1.0},
    ]
    assert script.peer(rows, "mlp", "diag_ef")["candidate"] == "fast"
    assert script.peer(rows, "mlp", "kfac_ggn") is None
    assert script.own(rows, "mlp", "diag_ef")["median"] == 0.5
