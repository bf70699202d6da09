"""Code from outside the package, which a study names as `module:NAME` and keeps a copy of.

The copy is in `code/` of the study folder, so that the study resumes from any directory and on any
machine with the code it began with. It runs only with --allow-code, and is sent to the workers
with the data. Installed modules are not copied: every node needs them.
"""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.sums import write_sums, wrong_sums
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.families import domains_of
from nas_evidence.spec.registry import import_outside, is_outside
from nas_evidence.spec.study import StudySpec

#: Python files by path relative to a folder on the import path.
Code = Mapping[str, bytes]


def outside_names(study: StudySpec) -> tuple[str, ...]:
    """Return the references to code from outside the package, in the order of the study file."""
    names = [*study.estimators, study.objective, *study.family]
    return tuple(filter(is_outside, dict.fromkeys(names)))


def admitted(study: StudySpec, places: Iterable[Path], *, allowed: bool) -> StudySpec:
    """Import what a study names from outside the package, and check the study against it.

    Args:
        study: the study as read, before its outside scores are imported.
        places: folders to search in addition to the import path.
        allowed: whether the user allows that code to run.

    Raises:
        ValueError: if it is not allowed, cannot be imported, or does not fit the study.
    """
    names = outside_names(study)
    if not names:
        return study
    if not allowed:
        raise UserError(
            f"the study names {', '.join(names)}: code from outside nas-evidence, which runs "
            "only with --allow-code."
        ).with_code("code-not-allowed")
    for place in places:
        if place.name == "code":
            check_code(place.parent)
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    import_outside(names)
    return StudySpec.model_validate(study.model_dump(exclude_unset=True) | _families(study))


def _families(study: StudySpec) -> dict[str, Any]:
    """Return the families with the domains that a study file leaves to imported ones.

    Raises:
        ValueError: if the file names a parameter that an imported family does not have.
    """
    families = {}
    for name, given in study.family.items():
        own = domains_of(name) if is_outside(name) else {}
        for key in given if is_outside(name) else ():
            if key not in own:
                known = ", ".join(own) or "none"
                raise UserError(
                    f"family {name} has no parameter '{key}'; it has: {known}."
                ).with_code("family-without-parameter")
        families[name] = {key: d.model_dump() for key, d in {**own, **given}.items()}
    return {"family": families}


def keep_code(folder: Path, study: StudySpec) -> Code:
    """Copy a study's outside modules to its folder, or check the copies already there.

    Returns:
        The copied code, for the workers.

    Raises:
        ValueError: if a module has changed since the study began.
    """
    kept = folder / "code"
    check_code(folder)
    for name, content in code_of(study).items():
        path = kept / name
        if path.is_file() and path.read_bytes() != content:
            raise UserError(
                f"{name} has changed since {folder} began; a study cannot change its code. "
                f"Give another folder with --out, or restore the code from {kept}."
            ).with_code("code-changed")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    names = _kept_names(folder)
    if names:
        write_sums(kept, names)
    return {name: (kept / name).read_bytes() for name in names}


def wrong_code(folder: Path) -> list[str]:
    """Return the copies of code in a study folder that are not as they were written."""
    if not (folder / "study.toml").is_file() or not (names := _kept_names(folder)):
        return []
    return wrong_sums(folder / "code", names)


def check_code(folder: Path) -> None:
    """Check the copies of code in a study folder before they are imported.

    Raises:
        ValueError: one is not as it was written.
    """
    if wrong := wrong_code(folder):
        raise UserError(
            f"{folder}/code/{wrong[0]} is damaged or missing: it does not match SHA256SUMS; "
            "restore it from where the study began."
        ).with_code("kept-code-damaged")


def _kept_names(folder: Path) -> list[str]:
    kept = folder / "code"
    return [path.relative_to(kept).as_posix() for path in sorted(kept.rglob("*.py"))]


def code_of(study: StudySpec) -> Code:
    """Return the outside modules of a study that are not installed."""
    modules = [name.partition(":")[0].partition(".")[0] for name in outside_names(study)]
    files: dict[str, bytes] = {}
    for module in dict.fromkeys(modules):
        files |= _files_of(module)
    return files


def _files_of(module: str) -> dict[str, bytes]:
    """Return the source of a module or package by relative path; nothing if it is installed."""
    if module == "__main__":  # a notebook or script: only this process has it
        return {}
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or "site-packages" in Path(found.origin).parts:
        return {}
    if found.submodule_search_locations:
        home = Path(next(iter(found.submodule_search_locations)))
        return {
            str(path.relative_to(home.parent)): path.read_bytes()
            for path in sorted(home.rglob("*.py"))
        }
    return {Path(found.origin).name: Path(found.origin).read_bytes()}
