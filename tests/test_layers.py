"""The house: imports go down, and each heavy library has one importer."""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "nas_evidence"
LAYERS = {
    "registry": 0, "domains": 0, "estimates": 0, "fixed_keys": 0, "dataset_spec": 0, "spec": 0,
    "record": 0, "retry_spec": 0, "sampling_plan": 0, "families": 0,
    "durations": 0, "files": 0, "retrying": 0,
    "codec": 1, "maths": 1, "best": 1,
    "study_reference": 2, "likelihood": 2, "models": 2, "data": 2, "curvature": 2,
    "evidence": 3,
    "training": 4,
    "scores": 5,
    "judgement": 1, "trial": 6, "store": 6, "table_checksum": 5, "yardsticks": 6, "sealing": 1,
    "storage": 7, "reporting": 7, "exporting": 7, "auditing": 7, "auditing_problems": 7,
    "auditing_rows": 6, "auditing_measured": 7, "auditing_sampled": 7, "auditing_trials": 7,
    "auditing_parts": 7,
    "reproducing": 7,
    "workers": 8, "proposing": 8, "table_reference": 8,
    "driver": 9,
    "jobs": 10,
    "api": 11,
    "cli": 12,
    "__main__": 13,
}  # fmt: skip
#: Between rooms of one layer, these only.
SIDEWAYS = {
    ("curvature", "likelihood"), ("record", "spec"), ("record", "domains"), ("spec", "domains"),
    ("spec", "registry"), ("spec", "fixed_keys"), ("spec", "dataset_spec"),
    ("dataset_spec", "domains"), ("estimates", "domains"), ("families", "domains"),
    ("registry", "families"), ("spec", "families"),
    ("spec", "retry_spec"), ("retry_spec", "domains"),
    ("estimates", "registry"), ("record", "estimates"),
    ("sampling_plan", "domains"), ("auditing", "auditing_problems"),
    ("auditing", "auditing_trials"), ("auditing", "auditing_parts"),
    ("auditing_parts", "auditing_problems"), ("auditing", "auditing_measured"),
    ("auditing", "auditing_sampled"), ("auditing_sampled", "auditing_measured"),
    ("auditing_sampled", "auditing_problems"), ("auditing_measured", "auditing_problems"),
}  # fmt: skip
SOLE_IMPORTERS = {
    "optuna": ["proposing/parzen.py", "proposing/proposer.py", "proposing/rows.py"],
    "ray": ["workers/on_ray.py", "jobs/submit.py"],
    "pyarrow": ["store.py"],
    "fsspec": ["storage/remote.py"],
    "tenacity": ["retrying.py"],
    "sqlalchemy": ["proposing/rows.py", "storage/database.py"],
    "typer": ["cli"],
    "plotly": ["reporting"],
    "matplotlib": ["reporting"],
    "jinja2": ["reporting"],
    "torchvision": ["data"],
    "sklearn": ["data", "yardsticks.py", "api/estimators.py"],
    "PIL": ["data/images.py"],
    "mlflow": ["api/trackers.py"],
    "onnxruntime": ["exporting/onnx_program.py"],
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
    return tuple(found)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    mine = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "nas_evidence" or len(parts) == 1:
            continue
        other = parts[1]
        allowed = other == mine or LAYERS[other] < LAYERS[mine] or (mine, other) in SIDEWAYS
        assert allowed, f"{mine} (layer {LAYERS[mine]}) imports {name} (layer {LAYERS[other]})"


@pytest.mark.parametrize("library", sorted(SOLE_IMPORTERS))
def test_each_heavy_library_has_its_importer(library: str) -> None:
    importers = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if any(name.split(".")[0] == library for name in imports(path))
    ]
    assert importers, f"nobody imports {library}"
    for importer in importers:
        assert any(importer.startswith(place) for place in SOLE_IMPORTERS[library])


def test_only_the_terminal_prints() -> None:
    printers = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    }
    assert printers <= {"cli/terminal.py"}


def test_nobody_takes_a_score_name_apart() -> None:
    """Prefixes, suffixes and splits of what a registry declares are properties there."""
    parts = ("_mc", "conditional_", "heldout", "_accuracy", "diag_", "kfac", "ekfac", "full_")
    methods = ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "split")
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and any(
            isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.startswith(parts)
            for a in node.args
        )
    ]
    assert found == []


def test_no_public_function_has_the_name_of_a_package() -> None:
    """Importing the package would otherwise hide the function, or the function the package."""
    rooms = {path.parent.name for path in PACKAGE.rglob("__init__.py")} - {PACKAGE.name}
    rooms |= {path.stem for path in PACKAGE.glob("*.py")}
    functions = {
        node.name
        for path in FILES
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert functions & rooms == set()
