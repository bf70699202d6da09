"""Modules of a study, imported from its own copy under a name of their own.

A `Code` is Python files by path. `nets.py` of one is the module `own_code_<hash>.nets`, where the
hash is that of all its files. So two studies may each have a `nets.py` in one process. What runs
is what was hashed, and nothing is looked up in the folder that the files came from. Inside such a
module, `import helper` finds the file `helper.py` of the same code first.

One process may hold the code of several studies. Code that names what is imported by reference
(`module:NAME`) looks into the code that is in use; see `Code.in_use`.
"""

import atexit
import builtins
import hashlib
import importlib
import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_PREFIX = "own_code_"
#: Every code of this process by the name of its package.
_KNOWN: dict[str, "Code"] = {}
#: The folder of this process for those that it starts, once there is one.
_LEFT: list[Path] = []
#: Every code that something was imported from by reference, by its key.
_ADMITTED: dict[tuple[Any, ...], "Code"] = {}
_IN_USE: ContextVar["Code | None"] = ContextVar("code in use", default=None)


@dataclass(frozen=True)
class Code:
    """Python files with the files of data that they read, and what exists in this process alone.

    files    content by path relative to the folder of the copy, with "/"
    origins  where a file was read; shown in tracebacks
    local    objects of a notebook or a script, by reference: no file holds them
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    local: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def package(self) -> str:
        """The name under which its modules are imported: the hash of its files."""
        found = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            found.update(f"{name}\0{len(content)}\0".encode())
            found.update(content)
        return f"{_PREFIX}{found.hexdigest()[:16]}"

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other code of this process."""
        return (self.package, *((name, id(found)) for name, found in sorted(self.local.items())))

    @cached_property
    def tops(self) -> frozenset[str]:
        """The names of its modules and packages that stand in no other."""
        names = (name for name in self.files if name.endswith(".py"))
        return frozenset(name.partition("/")[0].removesuffix(".py") for name in names)

    def __or__(self, other: "Code") -> "Code":
        """Return both; of files in both the other's count."""
        return Code(
            {**self.files, **other.files},
            {**self.origins, **other.origins},
            {**self.local, **other.local},
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process can have: the files."""
        return {"files": dict(self.files), "origins": dict(self.origins), "local": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the files known, so that what comes later in a pickle finds its classes."""
        self.__dict__.update(state)
        self.know()

    def __deepcopy__(self, memo: object) -> "Code":
        """Return itself: it never changes, and what is local cannot be copied."""
        return self

    def know(self) -> None:
        """Let its modules be found by their names in this process, and in those that it starts."""
        if self.package in _KNOWN:
            return
        _KNOWN[self.package] = self
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        if self.files and not any(Path(place, self.package).is_dir() for place in sys.path):
            _leave_for_others(self)

    def module(self, name: str) -> ModuleType:
        """Import a module of it, or one that is installed, by the name that its files use."""
        if name.partition(".")[0] not in self.tops:
            return importlib.import_module(name)
        self.know()
        return importlib.import_module(f"{self.package}.{name}")

    @contextmanager
    def in_use(self) -> Iterator["Code"]:
        """Look up references in this code."""
        before = _IN_USE.set(self)
        try:
            yield self
        finally:
            _IN_USE.reset(before)

    def use(self) -> None:
        """Look up references in this code from now on: this process has no other."""
        self.know()
        _IN_USE.set(self)


def _leave_for_others(code: Code) -> None:
    """Leave a package that makes the code known to a process which gets this import path.

    Processes of `multiprocessing` and joblib do: they import what is pickled by its name.
    """
    if not _LEFT:
        _LEFT.append(Path(tempfile.mkdtemp(prefix="nas-evidence-code-")))
        atexit.register(_remove, _LEFT[0], os.getpid())
    if str(_LEFT[0]) not in sys.path:  # somebody may have put back an older path
        sys.path.append(str(_LEFT[0]))
    place = _LEFT[0] / code.package
    place.mkdir(exist_ok=True)
    (place / "code").write_bytes(pickle.dumps(code))
    (place / "__init__.py").write_text(
        '"""Code of a study; see nas_evidence/plumbing/own_modules.py."""\n\n'
        "import pickle\nfrom pathlib import Path\n\n"
        'pickle.loads(Path(__file__).with_name("code").read_bytes())\n'
    )


def _remove(place: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not a fork
        shutil.rmtree(place, ignore_errors=True)


def code_in_use() -> Code | None:
    """Return the code in which references are looked up; None if none was chosen."""
    return _IN_USE.get()


def admitted_codes() -> list[Code]:
    """Return every code of which something was imported by reference in this process."""
    return list(_ADMITTED.values())


def own_name(module: str) -> tuple[str, Code | None]:
    """Return the name that files use for a module, and its code if it is of one.

    >>> own_name("collections.abc")
    ('collections.abc', None)
    """
    package, _, name = module.partition(".")
    return (name, _KNOWN[package]) if package in _KNOWN and name else (module, None)


class ByReference(Generic[T]):
    """What was imported by reference, of every code of this process."""

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[Any, ...], str], T] = {}

    def put(self, reference: str, found: T) -> None:
        """Keep what a reference names in the code in use."""
        code = code_in_use() or Code()
        self._found[code.key, reference] = found
        _ADMITTED[code.key] = code

    def has(self, code: "Code", reference: str) -> bool:
        """Tell whether what a reference names in a code was imported."""
        return (code.key, reference) in self._found

    def get(self, reference: str) -> T | None:
        """Return what a reference names in the code in use, None if it was not imported.

        Where no code was chosen (a thread, a lone call) it is that of the only code that has it.

        Raises:
            RuntimeError: if several have it.
        """
        code = code_in_use()
        if code is not None:
            return self._found.get((code.key, reference))
        every = [found for (_, name), found in self._found.items() if name == reference]
        if len(every) > 1:
            raise RuntimeError(
                f"{reference} was imported from the code of {len(every)} studies, and none of "
                "them is in use here"
            )
        return every[0] if every else None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        code = _KNOWN.get(package)
        if code is None:
            return None
        place = name.replace(".", "/")
        inside = f"{place}/" * bool(place)
        if f"{inside}__init__.py" in code.files and place:
            file, is_package = f"{inside}__init__.py", True
        elif f"{place}.py" in code.files:
            file, is_package = f"{place}.py", False
        elif any(one.startswith(inside) for one in code.files):
            file, is_package = "", True  # a folder without __init__.py
        else:
            return None
        loader = _Loader(code, file)
        spec = ModuleSpec(fullname, loader, origin=loader.path, is_package=is_package)
        # No file is there: what a module reads from beside itself is not copied, and is missed at
        # once.
        spec.has_location = bool(file)
        return spec


_FINDER = _Finder()


class _Loader(InspectLoader):
    def __init__(self, code: Code, file: str) -> None:
        self._code, self._file = code, file
        self.path = f"<{code.package}>/{file}"

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Python looks up `__import__` here, for every import statement of the module.
        names = {**vars(builtins), "__import__": _import_of(self._code)}
        module.__dict__["__builtins__"] = names
        if self._file:
            exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, fullname: str) -> CodeType:
        shown = self._code.origins.get(self._file, self.path)
        found = compile(self._code.files[self._file], shown, "exec", dont_inherit=True)
        assert isinstance(found, CodeType)
        return found

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._code.files.get(self._file, b""))

    def is_package(self, fullname: str) -> bool:
        return not self._file or self._file.endswith("__init__.py")

    def get_data(self, path: str) -> bytes:
        """Return a file of data; `pkgutil.get_data` asks for it beside the module."""
        name = path.removeprefix(f"<{self._code.package}>").replace(os.sep, "/").lstrip("/")
        if name not in self._code.files:
            raise FileNotFoundError(2, "not copied with the code", path)
        return self._code.files[name]


def _import_of(code: Code) -> Any:
    def import_(
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in code.tops:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        full = f"{code.package}.{name}"
        if fromlist:
            return builtins.__import__(full, globals, locals, fromlist)
        importlib.import_module(full)
        return sys.modules[f"{code.package}.{top}"]

    return import_
