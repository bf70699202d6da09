"""The house: imports go down, and each heavy library has one importer."""

import ast
import functools
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "nas_evidence"
#: The floor of each room, as the page of the architecture has it.
LAYERS = {
    name: int(floor)
    for floor, name in re.findall(
        r"^\| (\d+) \| `(\w+)[/.]",
        (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
}
SOLE_IMPORTERS = {
    "optuna": [
        "proposing/optuna_samplers.py",
        "proposing/optuna_export.py",
    ],
    "ray": ["workers/on_ray.py", "jobs/client.py"],
    "pyarrow": ["storage/tables.py", "data/arrow_tables.py"],
    "fsspec": ["storage/store.py", "storage/store_folder.py"],
    "tenacity": ["plumbing/backoff.py"],
    "typer": ["cli"],
    "jinja2": ["reporting", "exporting/model_card.py"],
    "torchvision": ["data"],
    "sklearn": ["data", "baselines/models.py", "api/estimators.py"],
    "PIL": ["data/images.py"],
    "pytest": ["testing"],
    "mlflow": ["api/trackers/mlflow.py"],
    "onnxruntime": ["exporting/onnx_program.py", "exporting/encode.py"],
    "matplotlib": ["reporting/by_matplotlib.py"],
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
    return tuple(found)


@pytest.mark.slow
def test_imports_go_down() -> None:
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in FILES
        for name in imports(path)
        if name.startswith("nas_evidence.")
        and (other := name.split(".")[1]) != room(path)
        and LAYERS[other] >= LAYERS[room(path)]
    ]
    assert not upwards


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in PACKAGE.rglob("*.py")}


def imported_files(path: Path) -> set[str]:
    """The files of the package that a file imports: at its top, for types, and in functions."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found & MODULES.keys()


def circles(imports: dict[str, set[str]]) -> list[str]:
    """The files in circles of imports, or between two circles.

    A file that imports no file that is left, or that none imports, is in no circle.
    """
    left = dict(imports)
    while True:
        needed = {name for names in left.values() for name in names}
        kept = {
            name: names & left.keys()
            for name, names in left.items()
            if name in needed and names & left.keys()
        }
        if kept == left:
            return sorted(left)
        left = kept


def test_no_file_imports_itself_through_others() -> None:
    """No exceptions: neither for types nor for imports inside functions."""
    graph = {name: imported_files(path) - {name} for name, path in MODULES.items()}
    assert circles(graph) == []


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
        for node in nodes(path)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    }
    assert printers <= {"cli/terminal.py"}


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


def test_nobody_imports_a_private_module_of_optuna_or_ray() -> None:
    """Ray's own modules, which it may rename, are looked up and missed in silence."""
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in FILES
        for name in imports(path)
        if name.split(".")[0] in ("optuna", "ray")
        if any(part.startswith("_") for part in name.split("."))
    ]
    assert found == []
