"""Code from outside the package, which a study names as `module:NAME` and keeps a copy of.

There is one way in, `code_of`. It reads the files of the modules and of all that they import from
beside them, and imports them from what it has read, never from their folder
(`plumbing/own_modules.py`). So what runs is what is copied, and what would not be copied is missed
before anything runs. A file of data is copied that a module reads from beside itself with
`pkgutil.get_data(__name__, "NAME")`. `admitted` asks first whether the code may run. The copy is
in `code/` of the study folder, goes to the workers with the data, and into exports and jobs.
Installed modules are not copied: every node needs them.
"""

import ast
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from operator import attrgetter
from pathlib import Path, PurePosixPath
from types import FunctionType, ModuleType
from typing import Any

from nas_evidence.plumbing.names import stays_inside
from nas_evidence.plumbing.own_modules import Code, admitted_codes, own_name
from nas_evidence.plumbing.sums import listed, write_sums, wrong_sums
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import Choice, Domain, FloatRange, Frozen, IntRange, type_of
from nas_evidence.spec.families import domains_of, is_family, without_name
from nas_evidence.spec.registry import (
    Score,
    declared,
    has_outside,
    import_outside,
    imported,
    is_outside,
    score_of,
)
from nas_evidence.spec.study import IN_PYTHON, StudySpec

#: Bytes of copied code from which its size is said.
MUCH = 5_000_000
#: A folder that holds one of these is no package: an environment, a study, an export.
_NO_PACKAGE = ("pyvenv.cfg", "conda-meta", "study.toml", "architecture.toml", "ensemble.json")
_INSTALLED = {"site-packages", "dist-packages"}
#: The package itself, the caller, and what Python brings along.
_NEVER = {"nas_evidence", "__main__", *sys.stdlib_module_names, *sys.builtin_module_names}


def outside_names(study: StudySpec) -> tuple[str, ...]:
    """Return the references to code from outside the package, in the order of the study file."""
    names = [*study.estimators, study.objective, *study.family]
    return tuple(filter(is_outside, dict.fromkeys(names)))


def code_names(study: StudySpec, *, asks: bool = True) -> list[str]:
    """Return the references to code without which a study is refused; `asks` as in `admitted`."""
    return [*outside_names(study), *filter(None, [study.sampler.own if asks else ""])]


def only_in_python(study: StudySpec, *, asks: bool = True) -> bool:
    """Return whether only a script or notebook has some code of a study, and so no command."""
    return any(n.startswith(("__main__:", IN_PYTHON)) for n in code_names(study, asks=asks))


def admitted(
    study: StudySpec,
    places: Iterable[Path],
    *,
    allowed: bool,
    kept: Code | None = None,
    here: Code | None = None,
    asks: bool = True,
) -> tuple[StudySpec, Code]:
    """Import what a study names from outside the package, and check the study against it.

    Args:
        study: the study as read, before its outside scores are imported.
        places: folders where modules are looked for, before the import path.
        allowed: whether the user allows that code to run.
        kept: the copy that the study has; its modules count before those of all places.
        here: what was given as objects in this process, which needs no permission.
        asks: whether the study goes on, and needs its sampler.

    Returns:
        The study with the domains of its families, and its code.

    Raises:
        ValueError: if it is not allowed, cannot be imported or copied, or does not fit the study.
    """
    names, sampler = outside_names(study), study.sampler.own if asks else ""
    own = here or Code()
    code = (kept or Code()) | own
    if sampler.startswith(IN_PYTHON):
        if sampler not in code.local:
            raise UserError(
                "sampler-of-python-missing",
                f"the sampler of the study is an object of Python, {sampler.partition(':')[2]}, "
                "which no file holds; give it again: nas_evidence.resume(FOLDER, sampler=...)",
            )
        sampler = ""
    everything = [*names, *filter(None, [sampler])]
    if not everything:
        return study, code
    asked = [one for one in everything if one not in own.local and _top(one) not in own.tops]
    if asked and not allowed:
        raise UserError(
            "code-not-allowed",
            f"the study names {', '.join(asked)}: code from outside nas-evidence, which runs "
            "only with allow_code (--allow-code).",
        )
    code = code_of(names, places, code, sampler=sampler)
    with code.in_use():
        given = study.model_dump(exclude_unset=True) | _families(study, stored=kept is not None)
        return StudySpec.model_validate(given), code


def code_of(
    names: Sequence[str], places: Iterable[Path], kept: Code | None = None, *, sampler: str = ""
) -> Code:
    """Return the code of references with all files that it needs, imported from this copy.

    Args:
        names: references `module:NAME`.
        places: folders where modules are looked for, before the import path.
        kept: a copy whose modules count before those of all places.
        sampler: the reference of a sampler that is needed too.

    Raises:
        ValueError: if it cannot be imported or copied.
    """
    everything = [*names, *filter(None, [sampler])]
    code, places = kept or Code(), [place.resolve() for place in places]
    caller = {name: _of_caller(name) for name in everything if name.startswith("__main__:")}
    code = Code(code.files, code.origins, {**code.local, **caller})
    places_of_scores = [name for name in everything if name not in code.local]
    while found := _gathered(places_of_scores, places, code.tops):
        code = found | code
        before = set(sys.modules)
        with code.in_use():
            import_outside(names)
            if sampler:
                imported(sampler, "a sampler")
            given = [declared(name).implementation for name in names]
        _check_strays(code, before)
        places_of_scores = [place for place in given if isinstance(place, str)]
    with code.in_use():
        import_outside(names)
    return code


def known_code(names: Sequence[str], kept: Code) -> Code | None:
    """Return code that was allowed in this process before and is what a copy holds, if there is.

    Args:
        names: references that it must have.
        kept: the copy of a study or an export.
    """
    found = [
        code
        for code in admitted_codes()
        if code.files == kept.files and all(has_outside(code, name) for name in names)
    ]
    return found[0] if len(found) == 1 else None


def code_of_folder(folder: Path, study: StudySpec, *, allowed: bool) -> Code:
    """Return the code of a study folder, imported; empty unless that is or was allowed here.

    Raises:
        ValueError: if it is damaged, or cannot be imported.
    """
    names = outside_names(study)
    if not names:
        return Code()
    kept = kept_code(folder) if allowed else read_code(folder / "code")
    if (known := known_code(names, kept)) is not None:
        return known
    if not allowed:
        return Code()
    return admitted(study, [Path.cwd()], allowed=True, kept=kept, asks=False)[1]


def reference_of(given: Any) -> str:
    """Return the reference `module:NAME` of a family or a score given as an object.

    That is the name that its module has for it. A family without one has that of its class, and a
    `Score`, whose module is that of its function, the name of the function.

    Raises:
        ValueError: for what has no name at the top level, where another process looks for it.
    """
    kind = _kind(given)
    home, module = own_name(kind.__module__)[0], sys.modules[kind.__module__]
    reference, there = f"{home}:{kind.__qualname__}", _found(kind.__qualname__, module)
    if there is given:
        return reference
    for name, value in vars(module).items():
        if value is given or (isinstance(value, Score) and value == given):  # or a copy
            return f"{home}:{name}"
    if there is not kind:
        raise UserError(
            "own-code-inside-function",
            f"{kind.__qualname__} is not at the top level of {home}, so that neither `resume` nor "
            "`load` would find it again; define it there, outside of functions",
        )
    if not isinstance(given, Score) and not is_family(given):
        raise without_name(reference, "it has no name there")
    return reference


def only_here(given: Iterable[Any]) -> Code:
    """Return those families and scores, given as objects, that no file holds."""
    named = ((reference_of(one), one) for one in given)
    return Code(local={name: _of_caller(name) for name, one in named if _home_of(one) is None})


def with_objects(given: Iterable[Any], code: Code, names: Sequence[str]) -> Code:
    """Return code that has families and scores given as objects, classes or functions, too.

    Those of a module are imported again from a copy of its files: what runs is what is kept. Those
    of a notebook or a script are known to this process alone.

    Args:
        given: classes, functions or objects.
        code: what the study has already.
        names: the references of that.

    Raises:
        ValueError: for what is neither, or is not what its reference leads to.
    """
    named = {reference_of(one): one for one in given}
    code |= only_here(named.values())
    for reference, one in named.items():
        if reference in code.local:
            continue
        if (known := own_name(_kind(one).__module__)[1]) is not None:
            code |= known
        elif (home := _home_of(one)) is not None:
            code = code_of([reference], [home], code)
    with code.in_use():
        import_outside([*names, *named])
        for reference, one in named.items():
            _check_same(reference, one, imported(reference, "a score or a family"))
    return code


def _families(study: StudySpec, *, stored: bool) -> dict[str, Any]:
    """Return the families with the domains that a study file leaves to imported ones.

    Whole numbers in the file of a new study are numbers where the family has numbers: it says
    `rate = {low = 0, high = 1}` and means 0.5, too. A stored study stays as it is.

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
                    "family-without-parameter",
                    f"family {name} has no parameter '{key}'; it has: {known}.",
                )
        real = {key for key, domain in own.items() if type_of(domain) is float and not stored}
        asked = {key: _of_numbers(d) if key in real else d for key, d in given.items()}
        families[name] = {key: d.model_dump() for key, d in {**own, **asked}.items()}
    return {"family": families}


def _of_numbers(domain: Domain) -> Domain:
    """Return a domain of whole numbers as one of numbers."""
    if isinstance(domain, IntRange) and domain.step == 1:
        return FloatRange(low=domain.low, high=domain.high, log=domain.log)
    if isinstance(domain, Choice) and type_of(domain) is int:
        return Choice(options=tuple(map(float, domain.options)))
    return domain


def with_kept(folder: Path, code: Code) -> Code:
    """Return the code of a study folder with what is new in `code`.

    Raises:
        ValueError: if a module has changed since the study began, or a copy is damaged.
    """
    kept = kept_code(folder)
    for name, content in code.files.items():
        if kept.files.get(name, content) != content:
            raise UserError(
                "code-changed",
                f"{name} has changed since {folder} began; a study cannot change its code. "
                f"Give another folder as `out`, or restore the code from {folder}/code.",
            )
    return kept | code


def keep_code(folder: Path, code: Code) -> None:
    """Write the copy of a study's code into its folder."""
    kept = folder / "code"
    for name, content in code.files.items():
        path = kept / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    if code.files:
        write_sums(kept, sorted(code.files))


def kept_code(folder: Path) -> Code:
    """Return the copy of code in a study folder; none if it has none.

    Raises:
        ValueError: one is not as it was written.
    """
    check_code(folder)
    return read_code(folder / "code")


def read_code(home: Path) -> Code:
    """Return the files of a folder as code, whatever its checksums say."""
    paths = {name: home / name for name in _kept_names(home)}
    files = {name: path.read_bytes() for name, path in paths.items()}
    return Code(files, {name: str(path) for name, path in paths.items()})


def wrong_code(folder: Path) -> list[str]:
    """Return the copies of code in a study folder that are not as they were written."""
    kept = folder / "code"
    if not (folder / "study.toml").is_file() or not (names := _kept_names(kept)):
        return []
    return wrong_sums(kept, sorted({*names, *listed(kept)}))


def check_code(folder: Path) -> None:
    """Check the copies of code in a study folder before they are imported.

    Raises:
        ValueError: one is not as it was written.
    """
    if wrong := wrong_code(folder):
        raise UserError(
            "kept-code-damaged",
            f"{folder}/code/{wrong[0]} is damaged or missing: it does not match SHA256SUMS; "
            "restore it from where the study began.",
        )


def size_said(code: Code) -> str:
    """Return what is to be said of a large copy, "" of a small one."""
    sizes = {name: len(content) for name, content in code.files.items()}
    if sum(sizes.values()) < MUCH:
        return ""
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"{len(sizes)} files of code, {sum(sizes.values()) / 1e6:.0f} MB, are copied with the "
        f"study; the largest is {code.origins.get(largest, largest)}"
    )


def _kept_names(home: Path) -> list[str]:
    """Return the Python files, and the files of data that the list of checksums names."""
    sources = {path.relative_to(home).as_posix() for path in home.rglob("*.py")}
    return sorted(sources | {name for name in listed(home) if (home / name).is_file()})


def _of_caller(reference: str) -> Any:
    """Return what a script or a notebook of this process has under a name."""
    module, _, name = reference.partition(":")
    found = _found(name, sys.modules[module])
    if found is None:
        raise UserError(
            "name-of-another-script",
            f"{reference} cannot be imported: only the script or notebook that defines it has it. "
            "Put it into a module.",
        )
    return found


def _found(attribute: str, module: ModuleType) -> Any:
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        return None


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _gathered(names: Iterable[str], places: Sequence[Path], known: Iterable[str]) -> Code | None:
    """Return the files of modules that are not installed and of all that they import from beside.

    Args:
        names: references, or names of modules.
        places: folders where modules are looked for, before the import path.
        known: names of modules that are there already.

    Raises:
        ValueError: for a file that cannot be copied.
    """
    PathFinder.invalidate_caches()
    seen, queue = {*known, *_NEVER}, [_top(name) for name in names]
    files, origins = dict[str, bytes](), dict[str, str]()
    while queue:
        if (top := queue.pop()) in seen:
            continue
        seen.add(top)
        for name, path in _files_of(top, places).items():
            files[name], origins[name] = path.read_bytes(), str(path)
            plain, called, read = _asked_for(files[name])
            for beside in sorted(filter(stays_inside, read)):
                if (found := path.parent / beside).is_file():
                    place = (PurePosixPath(name).parent / beside).as_posix()
                    files[place], origins[place] = found.read_bytes(), str(found)
            for asked in called - seen:
                if _files_of(asked, places):
                    raise UserError(
                        "import-not-followed",
                        f"{path} imports {asked} by importlib.import_module, which is not "
                        f"followed when the code is copied; write `import {asked}`.",
                    )
            queue += sorted(plain)
    return Code(files, origins) if files else None


def _files_of(top: str, places: Sequence[Path]) -> dict[str, Path]:
    """Return the source of a module or package by relative path; nothing if it is installed."""
    spec = PathFinder.find_spec(top, [*map(str, places), *sys.path])
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        path = Path(spec.origin or "")
        if _is_installed(path):
            return {}
        if path.suffix != ".py":
            raise UserError(
                "own-code-compiled",
                f"{path} is no Python source and cannot be copied with the study; install it, so "
                "that every node has it.",
            )
        return {path.name: path}
    if spec.origin is None and _found_by_others(top):
        return {}
    homes = [Path(place) for place in spec.submodule_search_locations]
    found = dict[str, Path]()
    for home in filter(lambda home: not _is_installed(home), homes):
        compiled = False
        for path in _sources(home):
            compiled = compiled or path.suffix != ".py"
            found.setdefault(path.relative_to(home.parent).as_posix(), path)
        if compiled and home.parent not in places:  # a library that is developed elsewhere
            return {}
    return {name: path for name, path in found.items() if path.suffix == ".py"}


def _sources(home: Path) -> Iterator[Path]:
    """Give the modules below a package: no hidden folder, environment, study or export."""
    for folder, inside, names in os.walk(home):
        inside[:] = sorted(
            name
            for name in inside
            if not name.startswith((".", "__pycache__"))
            and name not in _INSTALLED
            and not any(Path(folder, name, mark).exists() for mark in _NO_PACKAGE)
        )
        for name in sorted(names):
            if name.endswith((".py", *EXTENSION_SUFFIXES)) and not name.startswith("."):
                yield Path(folder, name)


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _found_by_others(top: str) -> ModuleSpec | None:
    """Return what an editable installation finds where the import path has a mere folder."""
    for finder in sys.meta_path:
        if finder is not PathFinder and (spec := finder.find_spec(top, None)) is not None:
            return spec
    return None


def _asked_for(content: bytes) -> tuple[set[str], set[str], set[str]]:
    """Return the modules that a file imports by statements, and those by `import_module`.

    And the files beside it that it reads with `pkgutil.get_data(__name__, "NAME")`.
    """
    plain, called, read = set[str](), set[str](), set[str]()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # if it matters, the import says it
        return plain, called, read
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                plain |= {_top(one.name) for one in names}
            case ast.ImportFrom(module=str(module), level=0):
                plain.add(_top(module))
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ) if not module.startswith("."):
                called.add(_top(module))
            case ast.Call(
                func=ast.Name(id="__import__"), args=[ast.Constant(value=str(module)), *_]
            ):
                plain.add(_top(module))
            case ast.Call(
                func=ast.Attribute(attr="get_data") | ast.Name(id="get_data"),
                args=[ast.Name(id="__name__"), ast.Constant(value=str(file))],
            ):
                read.add(file)
    return plain, called, read


def _check_strays(code: Code, before: set[str]) -> None:
    """Check that the code has imported nothing from beside itself but its copy.

    Raises:
        ValueError: for a module that is not copied.
    """
    homes = {Path(path).parents[name.count("/")] for name, path in code.origins.items()}
    for name in sorted(set(sys.modules) - before):
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or not os.path.isfile(file) or _top(name) in _NEVER:
            continue
        path = Path(file).resolve()
        if _home(name, path) in homes and not _is_installed(path):
            raise UserError(
                "imported-past-the-copy",
                f"{path} is imported in a way that is not followed when the code is copied; write "
                f"`import {name}` in the module that needs it.",
            )


def _kind(given: Any) -> Any:
    """Return the class or the function that stands for an object in its module."""
    found = given.implementation if isinstance(given, Score) else given
    return found if isinstance(found, type | FunctionType) else type(found)


def _home_of(given: Any) -> Path | None:
    """Return the folder that the module of an object is imported from, None without a file."""
    name, code = own_name(_kind(given).__module__)
    file = getattr(sys.modules[_kind(given).__module__], "__file__", None)
    if code is not None:
        return Path(str(file)).parent  # of a copy
    return None if name == "__main__" or file is None else _home(name, Path(file))


def _home(module: str, path: Path) -> Path | None:
    """Return the folder below which a file has the name of its module; None if there is none."""
    inside = Path(*module.split("."))
    inside = inside / "__init__.py" if path.name == "__init__.py" else inside.with_suffix(".py")
    home = path.parents[min(len(inside.parts), len(path.parts) - 1) - 1]
    return home if home / inside == path else None


def _check_same(reference: str, given: Any, copied: Any) -> None:
    """Check that an object in memory is what its reference leads to, which is what runs.

    Raises:
        ValueError: if not: an object without a name, or a module changed since its import.
    """
    module = sys.modules[_kind(given).__module__]
    if not isinstance(given, type | FunctionType):
        one, again = given, copied
        if isinstance(given, Score):
            one, again = (replace(score_of("", each), summary="") for each in (given, copied))
        elif isinstance(copied, type):
            again = copied()
        if not _same(vars(one), vars(again)):
            raise without_name(reference)
    if own_name(module.__name__)[1] is not None or (
        type(getattr(module, "__loader__", None)) is not SourceFileLoader
    ):
        return
    if name := _difference(module, sys.modules[_kind(copied).__module__]):
        raise UserError(
            "family-changed-in-memory",
            f"{name} of {module.__file__} is not in this process what the file says, so what runs "
            "would not be what is kept; save the change there and start Python again.",
        )


def _difference(loaded: ModuleType, copied: ModuleType) -> str:
    """Return the first name of a module that is another thing in its copy; "" if there is none."""
    for name, value in vars(loaded).items():
        other = vars(copied).get(name)
        own = any(
            getattr(found, "__module__", "") == module.__name__
            for found, module in ((value, loaded), (other, copied))
        )
        if own and isinstance(value, type) and isinstance(other, type):
            for key, part in vars(value).items():
                special = key.startswith("__") and not isinstance(part, FunctionType)
                if not special and not _same(part, vars(other).get(key)):
                    return f"{name}.{key}"
        elif (own or (name.isupper() and isinstance(value, int | float))) and not _same(
            value, other
        ):
            return name
    return ""


def _same(one: Any, other: Any) -> bool:
    """Tell whether numbers, texts, domains, functions and what holds them are the same."""
    one, other = (inspect.unwrap(getattr(it, "__func__", it)) for it in (one, other))
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        case (list(), list()) | (tuple(), tuple()):
            return len(one) == len(other) and all(map(_same, one, other))
        case FunctionType(), _:
            return getattr(other, "__code__", None) == one.__code__
        case (bool() | int() | float() | str() | Frozen(), _):
            return bool(one == other) or one != one
    return True
