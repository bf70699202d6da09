"""What the README and the page of a study folder show is executed, so that it stays true."""

import re
from pathlib import Path

import duckdb
import pytest
from fakes import FakeExecutor, Silent

from nas_evidence.cli.verbs import VERBS
from nas_evidence.driver.driver import Driver
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import shipped_studies

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDER = (ROOT / "docs" / "reference" / "study-folder.md").read_text(encoding="utf-8")


def snippets(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a finished study in runs/digits."""
    study = StudySpec.model_validate(
        {
            "name": "digits",
            "n_trials": 6,
            "dataset": {"name": "digits"},
            "family": {"mlp": {"width": {"low": 4, "high": 64}}},
            "sampler": {"name": "random"},
            "plan": {"epochs": 4},
        }
    )
    Driver(study, tmp_path / "runs" / "digits", FakeExecutor(), Silent()).run()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_pandas_snippet_reads_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(s for s in snippets("python", FOLDER) if "read_parquet" in s)
    exec(code, {})
    assert "kfac_ggn" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_the_duckdb_snippet_reads_the_results() -> None:
    (query,) = snippets("sql", FOLDER)
    rows = duckdb.sql(query).fetchall()
    assert len(rows) == 6
    assert all(row[0] == "mlp" for row in rows)


def test_every_verb_and_option_of_the_readme_exists() -> None:
    lines = [line for block in snippets("console", README) for line in block.splitlines()]
    used = [line for line in lines if line.startswith("nas-evidence ")]
    assert 4 <= len(used) <= 6
    assert len(lines) <= 6  # with `make demo` and `make test`
    for line in used:
        assert line.split()[1] in VERBS, line
    makefile = (ROOT / "Makefile").read_text()
    for line in lines:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE), line


def test_the_demo_ends_with_where_its_page_is_and_how_to_search_a_table() -> None:
    makefile = (ROOT / "Makefile").read_text()
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)[1]
    assert demo.count("search search_spaces/digits.toml") == 1
    said = re.findall(r"@echo '(.*)'", demo)
    assert "runs/digits/report/index.html" in said[0]
    assert said[-2:] == [
        "  source $(VENV)/bin/activate",
        "  nas-evidence search YOUR.csv --target COLUMN",
    ]


def test_every_shipped_study_and_every_link_of_the_readme_exists() -> None:
    for name in shipped_studies():
        assert f"`{name}`" in README
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
