"""Own code is copied with all that it needs, runs from that copy, and is what was recorded."""

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import ModuleType

import pytest
from commands import environment
from messages import refused

from nas_evidence.jobs.code_package import write_package
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.spec.registry import declared, implementation_of
from nas_evidence.storage.outside_code import (
    code_of,
    keep_code,
    kept_code,
    known_code,
    size_said,
    with_kept,
    with_objects,
    wrong_code,
)
from nas_evidence.workers.apart import called_apart

SCORE = "from nas_evidence import Score\n"
#: How a module reaches a helper, and where the helper lies.
LAYOUTS = {
    "beside": ("sc", {"sc.py": "import helper\n", "helper.py": ""}),
    "in a package beside": (
        "sc", {"sc.py": "import lib.helper as helper\n", "lib/__init__.py": "",
               "lib/helper.py": ""}
    ),
    "by name from a package": (
        "sc", {"sc.py": "from lib import helper\n", "lib/__init__.py": "", "lib/helper.py": ""}
    ),
    "dotted": (
        "sc", {"sc.py": "import lib.helper\nhelper = lib.helper\n", "lib/__init__.py": "",
               "lib/helper.py": ""}
    ),
    "through another": (
        "sc", {"sc.py": "from middle import helper\n", "middle.py": "import helper\n",
               "helper.py": ""}
    ),
    "relative": (
        "pkg.sc", {"pkg/sc.py": "from . import helper\n", "pkg/__init__.py": "",
                   "pkg/helper.py": ""}
    ),
    "relative, one up": (
        "pkg.sub.sc", {"pkg/sub/sc.py": "from ..helper import VALUE\nfrom .. import helper\n",
                       "pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/helper.py": ""}
    ),
    "a folder without __init__.py": (
        "pkg.sc", {"pkg/sc.py": "from pkg import helper\n", "pkg/helper.py": ""}
    ),
    "a package and a module beside it": (
        "pkg.sc", {"pkg/sc.py": "import helper\n", "pkg/__init__.py": "", "helper.py": ""}
    ),
    "only when it runs": (
        "sc", {"sc.py": "class helper:\n    @property\n    def VALUE(self):\n        import real\n"
                        "        return real.VALUE\nhelper = helper()\n", "real.py": ""}
    ),
    "by __import__": ("sc", {"sc.py": "helper = __import__('helper')\n", "helper.py": ""}),
    "by a star": ("sc", {"sc.py": "from helper import *\nclass helper:\n    VALUE = VALUE\n",
                         "helper.py": ""}),
}  # fmt: skip


def written(home: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def study(home: Path, layout: str, value: int) -> str:
    """Write a score that returns the value of its helper; return the reference."""
    module, files = LAYOUTS[layout]
    place = module.replace(".", "/") + ".py"
    uses = f"{SCORE}{files[place]}S = Score('s', 's', lambda context: helper.VALUE)\n"
    holds = {
        name: f"VALUE = {value}\n" for name in files if name.endswith(("helper.py", "real.py"))
    }
    written(home, {**files, **holds, place: uses})
    return f"{module}:S"


def value_of(code: Code, reference: str) -> float:
    with code.in_use():
        found: float = implementation_of(declared(reference))(None)
        return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_studies_with_modules_of_one_name_each_run_their_own(
    layout: str, tmp_path: Path
) -> None:
    homes = tmp_path / "a", tmp_path / "b"
    references = [study(home, layout, value) for home, value in zip(homes, (1, 2), strict=True)]
    a, b = (code_of([references[0]], [home]) for home in homes)
    assert [value_of(one, references[0]) for one in (a, b, b, a)] == [1, 2, 2, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_is_all_that_a_fresh_process_needs(layout: str, tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", layout, 3)
    keep_code(tmp_path / "out", code_of([reference], [tmp_path / "mine"]))
    for path in (tmp_path / "mine").rglob("*.py"):
        path.unlink()
    assert value_of(code_of([reference], [], kept_code(tmp_path / "out")), reference) == 3


def test_a_fresh_interpreter_runs_the_copy_without_the_folder_it_came_from(tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", "through another", 4)
    code = code_of([reference], [tmp_path / "mine"])
    (tmp_path / "mine" / "helper.py").write_text("VALUE = 5\n")
    with code.in_use():
        inside = implementation_of(declared(reference)).__globals__["helper"].__dict__
    ask = (
        "import pickle, sys\n"
        "code = pickle.load(sys.stdin.buffer)\n"
        "from nas_evidence.spec.registry import declared, implementation_of, import_outside\n"
        "code.use()\n"
        f"import_outside(['{reference}'])\n"
        f"print(implementation_of(declared('{reference}'))(None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", ask], input=pickle.dumps(code), capture_output=True,
        env=environment(), check=True, timeout=300,
    )  # fmt: skip
    assert (inside["VALUE"], done.stdout.strip()) == (4, b"4")


def test_what_was_read_runs_whatever_happens_to_the_files(tmp_path: Path) -> None:
    reference = study(tmp_path, "only when it runs", 1)
    code = code_of([reference], [tmp_path])
    (tmp_path / "real.py").write_text("VALUE = 9\n")
    assert value_of(code, reference) == 1
    keep_code(tmp_path / "out", code)
    assert (tmp_path / "out" / "code" / "real.py").read_text() == "VALUE = 1\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_edited_helper_is_refused_like_an_edited_module(layout: str, tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", layout, 1)
    written(tmp_path / "out", {"study.toml": ""})
    keep_code(tmp_path / "out", code_of([reference], [tmp_path / "mine"]))
    with_kept(tmp_path / "out", code_of([reference], [tmp_path / "mine"]))
    study(tmp_path / "mine", layout, 2)
    edited = code_of([reference], [tmp_path / "mine"])
    with refused("code-changed", "`out`"):
        with_kept(tmp_path / "out", edited)


def test_a_lost_copy_of_a_helper_is_damage(tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", "beside", 1)
    written(tmp_path / "out", {"study.toml": ""})
    keep_code(tmp_path / "out", code_of([reference], [tmp_path / "mine"]))
    assert wrong_code(tmp_path / "out") == []
    (tmp_path / "out" / "code" / "helper.py").unlink()
    assert wrong_code(tmp_path / "out") == ["helper.py"]
    with refused("kept-code-damaged", "helper.py"):
        kept_code(tmp_path / "out")


def test_environments_hidden_folders_studies_and_exports_are_never_copied(tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", "relative", 1)
    pkg = tmp_path / "mine" / "pkg"
    more = (
        ".venv/lib/x.py", ".hidden/x.py", "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/h",
        "conda/x.py", "runs/r1/study.toml", "runs/r1/code/pkg/sc.py", "final/architecture.toml",
        "final/code/pkg/sc.py", "lib/site-packages/x.py", "__pycache__/x.py", ".x.py", "notes.txt",
    )  # fmt: skip
    written(pkg, dict.fromkeys(more, ""))
    code = code_of([reference], [tmp_path / "mine"])
    assert sorted(code.files) == ["pkg/__init__.py", "pkg/helper.py", "pkg/sc.py"]


def test_a_large_copy_is_said_with_its_largest_file(tmp_path: Path) -> None:
    reference = study(tmp_path, "beside", 1)
    small = code_of([reference], [tmp_path])
    (tmp_path / "helper.py").write_text("VALUE = 1\n#" + "x" * 6_000_000)
    large = code_of([reference], [tmp_path])
    assert size_said(small) == ""
    assert "2 files of code, 6 MB" in size_said(large)
    assert str(tmp_path / "helper.py") in size_said(large)


@pytest.mark.parametrize(
    ("module", "code", "names"),
    [
        ("import json, pathlib\nT = json.loads(pathlib.Path(__file__).with_name('t.json')"
         ".read_text())\n", "own-file-not-copied", "t.json"),
        ("T = open(__file__.replace('sc.py', 't.json')).read()\n", "own-file-not-copied",
         "t.json"),
        ("import pkgutil\nT = pkgutil.get_data(__name__, 't' + '.json')\n", "own-file-not-copied",
         "t.json"),
        ("import pkgutil\nT = pkgutil.get_data(__name__, 'u.json')\n", "own-file-not-copied",
         "u.json"),
        ("import importlib\nT = importlib.import_module('helper')\n", "import-not-followed",
         "helper"),
        ("from importlib import import_module\nT = import_module('helper')\n",
         "import-not-followed", "helper"),
        ("import importlib\nT = importlib.import_module('hel' + 'per')\n",
         "imported-past-the-copy", "helper"),
        ("import fast\n", "own-code-compiled", "fast.so"),
        ("import gone\n", "reference-not-imported", "gone"),
        ("def broken(:\n", "reference-not-imported", "SyntaxError"),
        ("1 / 0\n", "reference-not-imported", "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_not_copied_is_refused_by_name_before_anything_runs(
    module: str, code: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{SCORE}{module}S = Score('s', 's', lambda context: 0.0)\n"
    written(tmp_path, {"sc.py": text, "helper.py": "", "fast.so": "", "t.json": "{}"})
    monkeypatch.syspath_prepend(tmp_path)  # as in a script of this folder
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    with refused(code, names):
        code_of(["sc:S"], [tmp_path])
    sys.modules.pop("helper", None)


@pytest.mark.parametrize(
    ("reference", "module", "words"),
    [("sc:Lost", "", ("sc:Lost", "sc has no 'Lost'", "did you mean 'Loss'?")),
     ("sc:Loss.at", "", ("sc:Loss.at", "sc:Loss has no 'at'")),
     ("sc:Loss", "from helper import Thing\n", ("helper",))],
)  # fmt: skip
def test_a_missing_name_is_said_with_the_module_of_the_user(
    reference: str, module: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    text = f"{SCORE}{module}Loss = Score('s', 's', lambda context: 0.0)\n"
    written(tmp_path, {"sc.py": text, "helper.py": ""})
    with refused("reference-not-imported", *words) as caught:
        code_of([reference], [tmp_path])
    assert "own_code_" not in str(caught.value)


def test_a_file_of_data_travels_with_the_module_that_reads_it(tmp_path: Path) -> None:
    reads = "import pkgutil\nDATA = pkgutil.get_data(__name__, 'weights/w.bin')\n"
    score = "S = Score('s', 's', lambda context: float(inner.DATA[0]))\n"
    written(tmp_path / "from", {
        "sc.py": f"{SCORE}from nets import inner\n{score}",
        "nets/__init__.py": "", "nets/inner.py": reads,
        "nets/weights/w.bin": "\x07", "nets/weights/other.bin": "",
    })  # fmt: skip
    code = code_of(["sc:S"], [tmp_path / "from"])
    names = ["nets/__init__.py", "nets/inner.py", "nets/weights/w.bin", "sc.py"]
    assert (sorted(code.files), value_of(code, "sc:S")) == (names, 7)
    (tmp_path / "study.toml").touch()
    keep_code(tmp_path, code)
    shutil.rmtree(tmp_path / "from")
    kept = kept_code(tmp_path)
    assert dict(kept.files) == dict(code.files)  # and so has the same hash
    (tmp_path / "code/nets/weights/w.bin").write_bytes(b"8")
    with refused("kept-code-damaged", "w.bin"):
        kept_code(tmp_path)
    with refused("code-changed"):
        keep_code(tmp_path, code)
        with_kept(tmp_path, Code({**code.files, "nets/weights/w.bin": b"8"}))


def test_what_is_installed_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "site-packages", {"lib_of_all.py": f"{SCORE}S = Score('s', 's', abs)\n"})
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    code = code_of(["lib_of_all:S"], [tmp_path])
    assert not code.files
    with code.in_use():
        assert implementation_of(declared("lib_of_all:S")) is abs
    sys.modules.pop("lib_of_all")


def test_an_implementation_that_a_score_names_is_copied_too(tmp_path: Path) -> None:
    written(tmp_path, {
        "sc.py": f"{SCORE}S = Score('s', 's', 'impl:f')\n",
        "impl.py": "from deep import VALUE\ndef f(context):\n    return VALUE\n",
        "deep.py": "VALUE = 7\n",
    })  # fmt: skip
    code = code_of(["sc:S"], [tmp_path])
    assert sorted(code.files) == ["deep.py", "impl.py", "sc.py"]
    assert value_of(code, "sc:S") == 7


def test_the_same_bytes_need_to_be_allowed_once_and_others_again(tmp_path: Path) -> None:
    reference = study(tmp_path, "beside", 11)
    code = code_of([reference], [tmp_path])
    assert known_code([reference], Code(code.files)) == code
    assert known_code([reference], Code({**code.files, "helper.py": b"VALUE = 12\n"})) is None


def test_without_a_choice_two_codes_of_one_reference_are_not_guessed(tmp_path: Path) -> None:
    for home, value in ((tmp_path / "a", 21), (tmp_path / "b", 22)):
        written(home, {"both_have_it.py": f"{SCORE}S = Score('{value}', 's', abs)\n"})
        code_of(["both_have_it:S"], [home])
    with pytest.raises(RuntimeError, match="2 studies"):
        declared("both_have_it:S")


def test_each_thread_looks_into_the_code_that_it_uses(tmp_path: Path) -> None:
    codes = {}
    for value in (41, 42):
        reference = study(tmp_path / str(value), "beside", value)
        codes[value] = code_of([reference], [tmp_path / str(value)])
    both = Barrier(2, timeout=60)

    def used(value: int) -> float:
        with codes[value].in_use():
            both.wait()
            found = float(implementation_of(declared(reference))(None))
            both.wait()
            return found

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(used, codes)) == [41, 42]


def test_a_traceback_shows_the_line_of_the_users_file(tmp_path: Path) -> None:
    import traceback

    written(tmp_path, {"sc.py": f"{SCORE}def f(context):\n    return 1 / 0  # here\n"
                                "S = Score('s', 's', f)\n"})  # fmt: skip
    code = code_of(["sc:S"], [tmp_path])
    try:
        value_of(code, "sc:S")
    except ZeroDivisionError as error:
        said = "".join(traceback.format_exception(error))
    assert f'{tmp_path / "sc.py"}", line 3' in said
    assert "return 1 / 0  # here" in said


FAMILY = """
WIDTH = 3
def double(x):
    return 2 * x
class Net:
    def size(self):
        return 1
class Fam:
    domains = {"width": [2, 4]}
    def __init__(self, most=5):
        self.most = most
    def build(self, values, input_shape, n_outputs):
        return Net()
named = Fam(9)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Import the module as a script does, and remove it afterwards."""
    written(tmp_path, {"own_nets_in_memory.py": FAMILY})
    monkeypatch.syspath_prepend(tmp_path)
    import own_nets_in_memory

    yield own_nets_in_memory
    del sys.modules["own_nets_in_memory"]


def test_a_family_given_as_a_class_runs_as_its_file_says(nets: object) -> None:
    code = with_objects([nets.Fam, nets.named], Code(), [])
    assert list(code.files) == ["own_nets_in_memory.py"]
    made = code.module("own_nets_in_memory")
    assert made.Fam is not nets.Fam
    again = with_objects([made.Fam], Code(), [])
    assert again == code


@pytest.mark.parametrize(
    "change",
    [
        lambda nets: setattr(nets.Fam, "build", lambda *given: None),
        lambda nets: setattr(nets.Fam, "domains", {"width": [2, 4, 8]}),
        lambda nets: setattr(nets.Net, "size", lambda self: 2),
        lambda nets: setattr(nets, "double", lambda x: 3 * x),
        lambda nets: setattr(nets, "WIDTH", 4),
        lambda nets: Path(nets.__file__).write_text(FAMILY.replace("return 1", "return 2")),
        lambda nets: Path(nets.__file__).write_text(FAMILY.replace("[2, 4]", "[2, 4, 8]")),
    ],
)  # fmt: skip
def test_a_family_that_is_not_what_its_file_says_is_refused(
    change: Callable[[object], object], nets: object
) -> None:
    change(nets)
    with refused("family-changed-in-memory", "own_nets_in_memory.py"):
        with_objects([nets.Fam], Code(), [])


def test_an_object_that_no_other_process_can_make_is_refused(nets: object) -> None:
    with_objects([nets.Fam(), nets.named], Code(), [])
    with refused("own-object-without-name", "own_nets_in_memory:Fam"):
        with_objects([nets.Fam(7)], Code(), [])
    nets.named.most = 8
    with refused("own-object-without-name", "own_nets_in_memory:named"):
        with_objects([nets.named], Code(), [])


def test_a_family_defined_in_a_cell_keeps_its_study_when_the_cell_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)

    def cell(n: int) -> type:
        exec(FAMILY.replace("[2, 4]", f"[{n}]"), vars(notebook))
        return notebook.Fam

    first, second = (with_objects([cell(n)], Code(), []) for n in (2, 4))
    (reference,) = first.local
    assert list(second.local) == [reference]
    from nas_evidence.spec.families import domains_of

    found = []
    for code in (first, second, first):
        with code.in_use():
            found.append(domains_of(reference)["width"].options)
    assert found == [(2,), (4,), (2,)]


def test_processes_find_own_code_where_the_import_path_was_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(text: str) -> Code:
        code = Code({"nets.py": text.encode()})
        code.know()
        return code

    monkeypatch.setattr(sys, "path", [*sys.path])
    known(f"FIRST = {str(tmp_path)!r}")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "nas-evidence-code-" not in p])
    code = known(f"SECOND = {str(tmp_path)!r}")
    assert any(Path(place, code.package).is_dir() for place in sys.path)


@pytest.mark.slow
def test_processes_that_own_code_starts_find_it(tmp_path: Path) -> None:
    written(tmp_path, {
        "helper.py": "VALUE = 5\n",
        "sc.py": f"{SCORE}from multiprocessing import get_context\nfrom helper import VALUE\n"
                 "def f(i):\n    return i * VALUE\n"
                 "def run(context):\n"
                 "    with get_context('spawn').Pool(1) as pool:\n"
                 "        return sum(pool.map_async(f, [1, 2]).get(60))\n"
                 "S = Score('s', 's', run)\n",
    })  # fmt: skip
    code = code_of(["sc:S"], [tmp_path])
    shutil.rmtree(tmp_path)
    assert value_of(code, "sc:S") == 15


def asked_value(reference: str) -> float:
    return float(implementation_of(declared(reference))(None))


@pytest.mark.slow
def test_a_training_apart_has_the_code_in_use(tmp_path: Path) -> None:
    homes = tmp_path / "a", tmp_path / "b"
    for home, value in zip(homes, (31, 32), strict=True):
        reference = study(home, "beside", value)
    found = []
    for home in homes:
        code = code_of([reference], [home])
        with code.in_use():
            found.append(called_apart(asked_value, reference, logs=tmp_path, outside=[reference]))
    assert found == [31, 32]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_sent_with_a_job_is_found_there(layout: str, tmp_path: Path) -> None:
    reference = study(tmp_path / "mine", layout, 6)
    code = code_of([reference], [tmp_path / "mine"])
    (tmp_path / "job").mkdir()
    write_package(tmp_path / "job", None, package=None, code=code)
    assert code_of([reference], [tmp_path / "job"]) == code
