"""Claims about the notebooks: they run from top to bottom, and their two halves say the same."""

import os
from pathlib import Path

import jupytext
import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = ("quickstart", "reading_a_report", "snelson_and_banana")


def test_every_notebook_is_a_pair_without_outputs_that_says_the_same() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.py")) == sorted(NAMES)
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        script = jupytext.read(NOTEBOOKS / f"{name}.py")
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        assert [(c.cell_type, c.source) for c in script.cells] == [
            (c.cell_type, c.source) for c in notebook.cells
        ], f"run: jupytext --sync notebooks/{name}.py"
        assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_with_a_tiny_plan(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    if name == "snelson_and_banana":
        shared: Path = request.getfixturevalue("shared")
        monkeypatch.setenv("NAS_EVIDENCE_DATA", str(shared / "data"))
    monkeypatch.setenv("NAS_EVIDENCE_NOTEBOOK_QUICK", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS.parent)]))
    notebook = jupytext.read(NOTEBOOKS / f"{name}.py")
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert not [one for one in outputs if one.output_type == "error"]
    if name == "quickstart":
        assert any("True" in one.get("text", "") for one in outputs)  # the report is there
    else:
        assert any("image/png" in one.get("data", {}) for one in outputs)
