"""Claims about the notebooks: they hold no outputs, and run from top to bottom."""

import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_no_outputs(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
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
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert not [one for one in outputs if one.output_type == "error"]
    if name == "quickstart":
        assert any("True" in one.get("text", "") for one in outputs)  # the report is there
    else:
        assert any("image/png" in one.get("data", {}) for one in outputs)
