"""Pages and tables that are made: each is what the code or the committed results give."""

import doctest
import json
import re
from collections.abc import Callable
from pathlib import Path

import api_reference
import campaigns
import claims
import cli_reference
import first_hour_reference
import gallery
import glossary_reference
import mutants
import page as ranking
import performance_tables
import positive_targets
import proxies
import pytest
import spread
import study_reference
import table_readers
import table_reference
import tables
import training_speed
from gpu import page as gpu_page

ROOT = Path(__file__).resolve().parents[1]
#: Each page, the command that makes it, and what it gives of the page as it stands.
PAGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "docs/reference/columns.md": ("docs/table_reference.py", lambda _: table_reference.page()),
    "docs/reference/cli.md": ("docs/cli_reference.py", lambda _: cli_reference.page()),
    "docs/reference/api.md": ("docs/api_reference.py", api_reference.written),
    "docs/reference/glossary.md": (
        "docs/glossary_reference.py",
        lambda _: glossary_reference.page(),
    ),
    "docs/reference/study-file.md": ("docs/study_reference.py", lambda _: study_reference.page()),
    "docs/reference/mutants.md": ("benchmarks/mutants.py page", lambda _: mutants.page()),
    "docs/experiments/papers.md": ("benchmarks/gallery.py", lambda _: gallery.written()),
    "docs/experiments/cost.md": (
        "benchmarks/performance_tables.py",
        performance_tables.written,
    ),
    "docs/experiments/scale.md": ("benchmarks/performance_tables.py", performance_tables.written),
    "docs/decisions/0029-our-own-table-reader.md": (
        "benchmarks/table_readers.py page",
        lambda _: table_readers.written(),
    ),
    "docs/experiments/spread.md": ("benchmarks/spread.py page", spread.written),
    "docs/experiments/positive-targets.md": (
        "benchmarks/positive_targets.py page",
        positive_targets.written,
    ),
    "docs/experiments/tables.md": (
        "benchmarks/tables.py page",
        tables.written,
    ),
    "docs/experiments/claims.md": ("benchmarks/claims.py page", claims.written),
    "docs/how-to/add-a-score.md": ("benchmarks/proxies.py page", proxies.written),
    "docs/experiments/fault-campaigns.md": ("benchmarks/campaigns.py", campaigns.written),
    "docs/experiments/gpu.md": ("benchmarks/gpu/page.py", gpu_page.written),
    "docs/experiments/training-speed.md": (
        "benchmarks/training_speed.py",
        lambda text: training_speed.written(text, json.loads(training_speed.RESULTS.read_text())),
    ),
    **{
        file.relative_to(ROOT).as_posix(): (
            "benchmarks/ranking/page.py",
            lambda text, names=names: ranking.written(text, names),
        )
        for file, names in ranking.PAGES.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_or_the_committed_results_give(name: str) -> None:
    command, made = PAGES[name]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == made(text), f"run make pages, or python {command}"


@pytest.mark.slow
def test_the_page_of_small_files_is_what_a_search_says_of_them(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "first-hour.md").read_text(encoding="utf-8")
    assert text == first_hour_reference.page(tmp_path), (
        "run python docs/first_hour_reference.py > docs/reference/first-hour.md"
    )
    assert len(list(first_hour_reference.cases())) >= 40


def test_make_pages_runs_every_script_that_makes_a_page() -> None:
    target = re.search(
        r"^pages:.*?\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL
    )
    assert target is not None
    scripts = {command.split("/", 1)[1].removesuffix(".py") for command, _ in PAGES.values()}
    for script in scripts | {"first_hour_reference"}:
        assert script in target[0], script


def test_an_entry_of_the_python_interface_is_read_without_the_site() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    search = text.partition("### search\n")[2].partition("<!-- /::: -->")[0]
    assert "search(\n    data: Any,\n    y: Any = None," in search
    assert "- `y`: labels or targets, if `data` does not hold them." in search
    assert "| `test_fraction` | " in text.partition("### SearchOptions\n")[2]
    assert doctest.testmod(api_reference).failed == 0


@pytest.mark.slow
def test_every_table_stands_on_a_page_and_is_closed() -> None:
    pages = [(performance_tables.DOCS / p).read_text("utf-8") for p in performance_tables.PAGES]
    used = [performance_tables._TABLE.findall(text) for text in pages]
    assert [text.count("<!-- table: ") for text in pages] == [*map(len, used)]
    assert {name for each in used for _, name, _ in each} == set(performance_tables.TABLES)
    names = {name for names in ranking.PAGES.values() for name in names}
    assert names == set(ranking.tables())
    with pytest.raises(ValueError, match="no place for the table 'small'"):
        ranking.written("# Ranking\n", ["small"])


@pytest.mark.slow
def test_a_gallery_without_results_is_another_page() -> None:
    other = gallery.gallery_page([], gallery.listed())
    assert other != gallery.written()
    assert "## " not in other


def test_the_page_in_full_has_every_value_of_every_kept_result() -> None:
    text = gallery.written_in_full()
    for result in gallery.stored_results().values():
        assert f"### {result['figure']}: {result['title']}" in text
        for row in result["rows"]:
            assert f"| {' '.join(row['what'].split())} |" in text


def test_the_peer_is_the_fastest_that_returned_a_result() -> None:
    rows = [
        {"model": "mlp", "candidate": "diag_ef", "estimates": "diag_ef", "median": 0.5},
        {"model": "mlp", "candidate": "slow", "estimates": "diag_ef", "median": 3.0},
        {"model": "mlp", "candidate": "fast", "estimates": "diag_ef", "median": 2.0},
        {"model": "mlp", "candidate": "failed", "estimates": "diag_ef", "error": "no such layer"},
        {"model": "mlp", "candidate": "other", "estimates": "diag_ggn", "median": 1.0},
    ]
    assert performance_tables.peer(rows, "mlp", "diag_ef")["candidate"] == "fast"
    assert performance_tables.peer(rows, "mlp", "kfac_ggn") is None
    assert performance_tables.own(rows, "mlp", "diag_ef")["median"] == 0.5


def test_seconds_of_processes_are_booked_by_role() -> None:
    roles = {"driver": 4.0, "server": 2.0, "fork 1": 5.0, "fork 2": 6.0, "fork 3": 1.0}
    found = performance_tables._by_role(roles)
    assert found["workers"] == 11.0
    assert found["comparison and export"] == 1.0
    assert sum(found.values()) == sum(roles.values())


def test_what_grows_is_the_least_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        {"cell": "trials/4", "cpu": 7.0, "parts": {"training": 2.0}, "trials": 4},
        {"cell": "trials/4", "cpu": 6.0, "parts": {"training": 1.5}, "trials": 4},
        {"cell": "trials/16", "cpu": 9.0, "parts": {"training": 4.0}, "trials": 16},
        {"cell": "rows/300", "cpu": 9.0, "parts": {"training": 4.0, "density": 2.0}, "trials": 3},
    ]
    monkeypatch.setattr(performance_tables, "cell_runs", lambda: runs)
    assert performance_tables.grown("trials") == ([4, 16], [6.0, 9.0])
    assert performance_tables.grown("around") == ([4, 16], [4.5, 5.0])
    assert performance_tables.grown("rows") == ([300], [2.0])


def test_the_digits_of_a_spread_fit_its_size() -> None:
    assert doctest.testmod(tables).failed == 0
