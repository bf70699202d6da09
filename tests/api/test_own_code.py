"""Studies with code of their own: which runs, what is recorded, and where it is refused."""

import copy
import importlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import environment, forked_script, run
from messages import refused
from sklearn.base import clone

import nas_evidence
from nas_evidence.api.request import as_overrides, named_scores
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.storage.outside_code import reference_of, with_objects
from nas_evidence.storage.tables import read_table

GOLDEN = Path(__file__).parents[1] / "golden" / "own-code"
STUDY = """\
name = "own"
n_trials = {n}
finalists = 0
objective = "diag_ef"
estimators = ["diag_ef"]
[dataset]
name = "table"
path = "t.csv"
target = "label"
[family.mine]
module = "{module}:Fam"
[plan]
epochs = 2
settle = 0
[plan.online]
every = 1
curvature = "diag_ef"
[sampler]
name = "random"
[resources]
gpus = 0
"""
FAMILY = """\
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self, first, width, last):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(first, width), {act}, nn.Linear(width, last)

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Fam:
    domains = {{"width": {{"low": 2, "high": 6}}}}

    def build(self, values, input_shape, n_outputs):
        return Net(input_shape[0], values["width"], n_outputs)
"""
A, B = "nn.ReLU()", "nn.Softplus(beta=0.3)"
#: What the version before predicted for two rows.
PREDICTED = [0.42335457, 0.41618574]
SCORES = """\
from nas_evidence import Score

NPY = Score("npy", "one", lambda context: {value})
"""


def table(rows: int = 60) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": np.where(x.sum(1) > 0, "y", "n")})


def study_in(home: Path, act: str, *, n: int = 1, module: str = "nets", imports: str = "") -> Path:
    """Write a study with a family of its own; return its file."""
    file = home / (module.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FAMILY.format(act=act, imports=imports))
    table().to_csv(home / "t.csv", index=False)
    (home / "st.toml").write_text(STUDY.format(n=n, module=module))
    return home / "st.toml"


def searched(file: Path, out: Path, **options: object) -> nas_evidence.Study:
    return nas_evidence.search(file, out=out, allow_code=True, progress=False, **options)  # type: ignore[arg-type]


def scores(folder: Path) -> list[float]:
    evidence = read_table(folder, "evidence")
    return [float(v) for v in evidence[evidence["estimator"] == "diag_ef"]["value"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float]]]:
    """What each of two studies gives in a process of its own: its file, scores, predictions."""
    found = {}
    for name, act in (("a", A), ("b", B)):
        home = tmp_path_factory.mktemp(name)
        study_in(home, act, n=2)
        run(
            "search",
            "st.toml",
            "--allow-code",
            "--executor",
            "inline",
            "--out",
            "out",
            folder=home,
        )
        run("predict", "out", "t.csv", "--allow-code", "--to", "p.csv", folder=home)
        found[name] = (home, pd.read_csv(home / "p.csv").iloc[:, -1].tolist())
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_studies_with_a_module_of_one_name_each_run_their_own(
    order: str, alone: dict[str, tuple[Path, list[float]]], tmp_path: Path
) -> None:
    studies = {}
    for name in order:
        home, _ = alone[name]
        studies[name] = searched(home / "st.toml", tmp_path / name, n_trials=1)
        assert (tmp_path / name / "code" / "nets.py").read_bytes() == (
            home / "nets.py"
        ).read_bytes()
    loaded = {name: nas_evidence.load(alone[name][0] / "out", allow_code=True) for name in order}
    for name in order[::-1]:
        home, predictions = alone[name]
        nas_evidence.resume(tmp_path / name, n_trials=2, allow_code=True, progress=False)
        assert scores(tmp_path / name) == scores(home / "out")
        again = loaded[name].predict_proba(table())
        sure = np.maximum(predictions, 1 - np.array(predictions))
        np.testing.assert_allclose(again.max(1), sure, atol=1e-5)
        np.testing.assert_array_equal(again, studies[name].predict_proba(table(), trial_id=int(
            loaded[name].best.trial_id)))  # fmt: skip
    for name in order:
        model = nas_evidence.Predictor.load(loaded[name].export(tmp_path / f"export-{name}"))
        np.testing.assert_array_equal(
            model.predict_proba(table()), loaded[name].predict_proba(table())
        )


@pytest.mark.long
@pytest.mark.slow
def test_networks_of_both_studies_travel_to_a_process_that_has_imported_nothing(
    alone: dict[str, tuple[Path, list[float]]],
) -> None:
    studies = [nas_evidence.load(home / "out", allow_code=True) for home, _ in alone.values()]
    predictors = [study.predictor() for study in studies]
    ask = (
        "import pickle, sys, pandas\n"
        "given, frame = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(pickle.dumps([one.predict_proba(frame) for one in given]))\n"
    )
    here = [one.predict_proba(table()) for one in predictors]
    assert not np.array_equal(*here)
    for given in (predictors, studies):
        found = subprocess.run(
            [sys.executable, "-P", "-c", ask], input=pickle.dumps((given, table())),
            capture_output=True, env=environment(), check=True, timeout=600,
        )  # fmt: skip
        np.testing.assert_array_equal(pickle.loads(found.stdout), here)


HELPERS = {
    "beside": ("nets", "from blocks_lib import act", "blocks_lib.py"),
    "a folder without __init__.py": ("nsp.fam", "from nsp.blocks import act", "nsp/blocks.py"),
    "a dotted package": ("pkg.sub.nets", "from ..blocks import act", "pkg/blocks.py"),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("layout", HELPERS)
def test_a_study_goes_on_anywhere_without_the_folder_it_began_in(
    layout: str, tmp_path: Path
) -> None:
    module, imports, helper = HELPERS[layout]
    home, empty = tmp_path / "home", tmp_path / "empty"
    empty.mkdir()
    study_in(home, "act()", module=module, imports=imports)
    (home / helper).write_text("from torch import nn\n\n\ndef act():\n    return nn.Tanh()\n")
    run("search", "st.toml", "--allow-code", "--executor", "local", "--out", tmp_path / "out",
        folder=home)  # fmt: skip
    (home / helper).write_text("from torch import nn\n\n\ndef act():\n    return nn.ReLU()\n")
    again = run("search", "st.toml", "--allow-code", "--trials", "2", "--out", tmp_path / "out",
                folder=home, code=2)  # fmt: skip
    assert f"{helper} has changed" in again.stderr
    shutil.move(home / "t.csv", empty)
    shutil.rmtree(home)
    out = ("--allow-code", "--executor", "inline")
    run("resume", tmp_path / "out", "--trials", "2", *out, folder=empty)
    run("predict", tmp_path / "out", "t.csv", "--allow-code", folder=empty)
    run("export", tmp_path / "out", "--to", "model", "--allow-code", folder=empty)
    run("predict", "model", "t.csv", "--allow-code", "--to", "p.csv", folder=empty)
    asked = run("predict", "model", "t.csv", "--to", "q.csv", folder=empty, code=2).stderr
    assert "only with allow_code" in asked


@pytest.mark.long
@pytest.mark.slow
def test_a_sound_export_with_own_code_names_the_option_that_it_needs(
    alone: dict[str, tuple[Path, list[float]]],
) -> None:
    home, _ = alone["a"]
    ask = (
        "import nas_evidence, sys\n"
        "from nas_evidence.plumbing.user_error import UserError\n"
        "for load in (nas_evidence.load_exported, nas_evidence.Predictor.load):\n"
        "    try:\n        load('out/export')\n"
        "    except UserError as error:\n        print(error.code, error)\n"
        "    load('out/export', allow_code=True)\n"
        "    load('out/export')\n"
        "    break\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", ask], cwd=home, capture_output=True,
                          text=True, env=environment(), check=True, timeout=600)  # fmt: skip
    assert done.stdout.startswith("export-code-not-allowed")
    assert "allow_code=True" in done.stdout
    assert "not a sound export" not in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sc:NPY", "nets:Fam"])
def test_code_named_beside_data_is_asked_for_and_found_in_this_folder(
    name: str, tmp_path: Path
) -> None:
    study_in(tmp_path, A)
    (tmp_path / "sc.py").write_text(SCORES.format(value="1.0"))
    keys = {
        "sc:NPY": ["--set", 'estimators=["diag_ef","sc:NPY"]', "--set", "objective=sc:NPY"],
        "nets:Fam": ["--set", "family.mine.module=nets:Fam", "--set", 'estimators=["diag_ef"]',
                     "--set", "objective=diag_ef"],
    }[name]  # fmt: skip
    words = ["search", "t.csv", "--target", "label", "--trials", "1", "--set", "finalists=0",
             "--set", "plan.epochs=2", "--executor", "inline", *keys]  # fmt: skip
    refusal = run(*words, "--out", "no", folder=tmp_path, code=2).stderr
    assert name in refusal
    assert "--allow-code" in refusal
    assert not (tmp_path / "no").exists()
    missing = [word.replace(name, f"nowhere_{name}") for word in words]
    assert (
        "nowhere_" in run(*missing, "--out", "no", "--allow-code", folder=tmp_path, code=2).stderr
    )
    assert not (tmp_path / "no").exists()
    run(*words, "--out", "yes", "--allow-code", folder=tmp_path)
    assert list((tmp_path / "yes" / "code").glob("*.py"))


@pytest.mark.parametrize("given", ["frame", "file", "study"])
def test_python_asks_for_code_named_in_settings(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_in(tmp_path, A)
    (tmp_path / "sc.py").write_text(SCORES.format(value="1.0"))
    monkeypatch.chdir(tmp_path)
    data = {"frame": table(), "file": "t.csv", "study": "st.toml"}[given]
    target = {} if given == "study" else {"target": "label"}
    settings = {"estimators": ["diag_ef", "sc:NPY"], "objective": "sc:NPY"}
    with refused("code-not-allowed", "sc:NPY", "allow_code"):
        nas_evidence.search(data, settings=settings, out="no", **target)  # type: ignore[arg-type]
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["workers=2", "executor='local'", "executor='ray'"])
def test_a_family_of_the_script_with_several_processes_is_refused_before_a_folder_is_made(
    options: str, tmp_path: Path
) -> None:
    text = (
        "import pandas, nas_evidence\n"
        + FAMILY.format(act=A, imports="")
        + "\nnas_evidence.search(pandas.read_csv('t.csv'), target='label', "
        + f"families=[Fam, 'linear'], n_trials=2, out='out', {options})\n"
    )
    study_in(tmp_path, A)
    _, _, err = forked_script(text, tmp_path)
    last = err.splitlines()[-1]
    assert last.startswith("nas_evidence.plumbing.user_error.UserError: ")
    assert "__main__:Fam" in last
    assert "put it into a module" in last
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_study_and_an_export_of_before_still_load_and_go_on(tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(GOLDEN, old)
    frame = pd.DataFrame({"a": [0.5, -1.0], "b": [0.25, 1.5]})
    study = nas_evidence.load(old, allow_code=True)
    first = study.predict_proba(frame, trial_id=0)
    # As nas-evidence predicted before modules had a name of their own.
    np.testing.assert_allclose(first[:, 1], PREDICTED, atol=1e-5)
    exported = nas_evidence.Predictor.load(old / "export", allow_code=True)
    np.testing.assert_array_equal(exported.predict_proba(frame), first)
    resumed = nas_evidence.resume(old, n_trials=3, allow_code=True, progress=False)
    assert len(resumed.trials) == 3


@pytest.mark.long
@pytest.mark.slow
def test_a_study_of_before_without_its_helper_takes_it_when_it_is_searched_again(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    study_in(home, "act()", imports="from blocks_lib import act")
    (home / "blocks_lib.py").write_text("from torch import nn\nact = nn.Tanh\n")
    search = ("search", "st.toml", "--allow-code", "--executor", "inline", "--out", "out")
    run(*search, folder=home)
    (home / "out" / "code" / "blocks_lib.py").unlink()  # as an earlier version left it
    write_sums(home / "out" / "code", ["nets.py"])
    run(*search, "--trials", "2", folder=home)
    assert (home / "out" / "code" / "blocks_lib.py").is_file()
    run("predict", home / "out", home / "t.csv", "--allow-code", folder=tmp_path)


# --- families and scores of your own, given as objects: kept by name, or refused before a trial


MODULE = """
from torch import nn

from nas_evidence import EvidenceEstimate, Score, Scorer


def norm(context):
    return -sum(float(p.detach().square().sum()) for p in context.model.parameters())


SHORT = Score("short", "minus the squared length", norm, taken="end")


class Early(Scorer):
    def evaluate(self, *, last):
        return [EvidenceEstimate(estimator=self.names[0], value=float(last))]


class Called:
    def __init__(self, value=3.0):
        self.value = value

    def __call__(self, context):
        return self.value


called = Called(4.0)


class Fam:
    domains = {}

    def __init__(self, most=4):
        self.domains = {"width": {"low": 2, "high": most}}

    def build(self, values, input_shape, n_outputs):
        width = values["width"]
        return nn.Sequential(
            nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, n_outputs)
        )


class Wide(Fam):
    def __init__(self, most):
        super().__init__(most)


wide = Wide(6)


def made():
    class Inside(Fam):
        pass

    def inside(context):
        return 1.0

    return Inside, inside


Outside, outside = made()
none = lambda context: None
vector = lambda context: next(context.model.parameters()).detach().flatten()
typo = lambda context: context.modle
nan = lambda context: float("nan")
LATE = Score("late", "late", lambda context: context.training.curve[9].epoch, taken="end")
"""
QUICK = {"plan.epochs": 2, "plan.settle": 0, "finalists": 0}
N = 40
ROWS = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 2)), columns=["a", "b"])
LABELS = np.where(ROWS["a"] > 0, "y", "n")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported as by a script from its folder."""
    (tmp_path / "own_objects.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_objects")
    del sys.modules["own_objects"]


def search(out: Path, estimators: list[Any], **more: Any) -> nas_evidence.Study:
    settings = QUICK | {"estimators": estimators} | more.pop("settings", {})
    given = {"n_trials": 2, "progress": False, "out": out / "s", **more}
    return nas_evidence.search(ROWS, LABELS, settings=settings, **given)


def last(study: nas_evidence.Study, column: str = "value") -> dict[tuple[int, str], float]:
    evidence = nas_evidence.read_table(study.folder, "evidence")
    evidence = evidence.drop_duplicates(["trial_id", "estimator"], keep="last")
    cells = zip(evidence["trial_id"], evidence["estimator"], evidence[column], strict=True)
    return {(trial_id, name): value for trial_id, name, value in cells}


# --- scores


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_scores_given_as_objects_and_functions_are_those_named_by_text(
    executor: str, own: Any, tmp_path: Path
) -> None:
    given = [own.SHORT, own.norm, own.Early, own.called, own.outside]
    names = [f"own_objects:{n}" for n in ("SHORT", "norm", "Early", "called", "outside")]
    asked: dict[str, Any] = {"executor": executor, "workers": 1 + (executor == "local")}
    study = search(
        tmp_path, ["diag_ef", *given], settings={"objective": own.SHORT}, families=[own.wide],
        **asked,
    )  # fmt: skip
    assert study.spec.estimators == ("diag_ef", *names)
    assert study.spec.objective == names[0]
    assert [*study.spec.family] == ["own_objects:wide"]
    assert (study.folder / "code" / "own_objects.py").read_text() == MODULE
    found = last(study)
    assert all(found[i, name] < 0 for i in range(2) for name in names[:2])
    assert [found[0, name] for name in names[2:]] == [1.0, 4.0, 1.0]
    by_text = search(
        tmp_path / "text", ["diag_ef", *names], settings={"objective": names[0]},
        families=[own.wide], allow_code=True,
    )  # fmt: skip
    assert last(by_text) == found
    assert nas_evidence.load(study.folder).scores()[names].notna().all(axis=None)
    resumed = nas_evidence.resume(study.folder, n_trials=3, allow_code=True, progress=False)
    assert len(resumed.scores()) == 3
    assert names[0] in resumed.report().read_text()


@pytest.mark.slow
def test_a_score_of_a_script_runs_there_and_is_found_again_by_the_next_run(
    tmp_path: Path,
) -> None:
    ROWS.assign(label=LABELS).to_csv(tmp_path / "t.csv", index=False)
    text = (
        "import sys, nas_evidence\nfrom nas_evidence import Score\n"
        "def one(context):\n    return 1.0\n"
        "TWO = Score('two', 'two', lambda context: 2.0, taken='before')\n"
        "def search(n, **more):\n"
        "    return nas_evidence.search('t.csv', target='label', n_trials=n, out='s', "
        f"settings={QUICK} | {{'estimators': ['diag_ef', one, TWO]}}, **more)\n"
        "found = search(1)\nfound = search(2)\n"
        "found = nas_evidence.resume('s', n_trials=3, allow_code=True)\n"
        "print(found.scores().iloc[:, 1:3].to_numpy().tolist())\n"
        "search(2, workers=2)\n"
    )
    _, printed, err = forked_script(text, tmp_path)
    assert "[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]" in printed, err
    assert "__main__:one is defined in the script" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("none", "score-no-number", "None"),
        ("vector", "score-no-number", "own_objects:vector"),
        ("typo", "score-fails", "AttributeError"),
        ("Called", "score-no-number", "own_objects:Called"),
    ],
)
def test_a_score_with_a_mistake_is_refused_before_a_trial_is_trained(
    name: str, code: str, says: str, own: Any, tmp_path: Path
) -> None:
    with refused(code, says):
        search(tmp_path, ["diag_ef", getattr(own, name)])
    assert not [*(tmp_path / "s" / "checkpoints").iterdir()]
    assert not [*(tmp_path / "s" / "trials").iterdir()]


@pytest.mark.slow
def test_a_score_that_is_no_number_does_not_rank_and_one_that_needs_epochs_is_left_to_the_trials(
    own: Any, tmp_path: Path
) -> None:
    study = search(tmp_path, ["diag_ef", own.nan], n_trials=1)
    assert not last(study, "valid")[0, "own_objects:nan"]
    assert "nan" in last(study, "note")[0, "own_objects:nan"]
    assert study.scores()["own_objects:nan"].isna().all()
    long = {"plan.epochs": 10, "objective": "diag_ef"}
    found = search(tmp_path / "late", ["diag_ef", own.LATE], n_trials=1, settings=long)
    assert found.scores()["own_objects:LATE"].tolist() == [10]


@pytest.mark.parametrize("key", ["plan.epochs", "seed"])
def test_a_function_in_another_setting_is_no_score(key: str, own: Any) -> None:
    assert named_scores({key: own.norm, "estimators": ["diag_ef", own.norm]})[1] == [own.norm]
    with refused("setting-of-no-type", key):
        as_overrides({key: own.norm})


# --- names


def test_an_object_has_the_name_that_its_module_gives_it(own: Any) -> None:
    names = ("norm", "SHORT", "Fam", "wide", "called", "Outside", "outside", "none", "Early")
    named = [(getattr(own, name), name) for name in names]
    named += [(copy.deepcopy(own.SHORT), "SHORT"), (own.Fam(), "Fam")]
    named += [(nas_evidence.Score("n", "n", one), one.__name__) for one in (own.norm, own.Early)]
    for given, name in named:
        assert reference_of(given) == f"own_objects:{name}"
    code = with_objects([given for given, _ in named], Code(), [])
    assert [*code.files] == ["own_objects.py"]


def test_what_a_function_defines_is_refused_by_its_name(own: Any, tmp_path: Path) -> None:
    family, function = own.made()
    for given in (family, family(), function, nas_evidence.Score("i", "i", function)):
        with refused("own-code-inside-function", "own_objects"):
            reference_of(given)
    with refused("own-code-inside-function", "own_objects"):
        search(tmp_path, ["diag_ef", function])
    for families in ([family], ["mlp", family()]):
        with refused("own-code-inside-function", "own_objects"):
            search(tmp_path, ["diag_ef"], families=families)
    estimator = nas_evidence.EvidenceClassifier(families=[family], out=str(tmp_path / "s"))
    with refused("own-code-inside-function", "own_objects"):
        clone(estimator).fit(ROWS, LABELS)
    assert not (tmp_path / "s").exists()


def test_an_object_that_its_class_does_not_make_again_is_refused(own: Any, tmp_path: Path) -> None:
    score = nas_evidence.Score("late", "late", own.norm, taken="end", unit="nats")
    for given in (own.Called(5.0), score):
        with refused("own-object-without-name", "own_objects"):
            search(tmp_path, ["diag_ef", given])
    for family in (own.Fam(5), own.Wide(5), own.Wide):
        with refused("own-object-without-name", "own_objects"):
            search(tmp_path, ["diag_ef"], families=[family])
    assert not (tmp_path / "s").exists()


def test_an_object_of_a_notebook_that_its_class_does_not_make_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)
    exec(MODULE, vars(notebook))
    for family in (notebook.Fam(5), notebook.Wide(5)):
        with refused("own-object-without-name", "a_notebook"):
            search(tmp_path, ["diag_ef"], families=[family])
    assert not (tmp_path / "s").exists()
    for given in (notebook.Fam(), notebook.wide, notebook.Outside, notebook.SHORT):
        reference = reference_of(given)
        code = with_objects([given], Code(), [])
        assert [*code.local] == [reference]


@pytest.mark.slow
def test_two_versions_of_a_score_run_in_one_process(own: Any, tmp_path: Path) -> None:
    found = {}
    for value in (1.0, 22.0, 1.0):  # of another length: compiled files are told apart by it
        (tmp_path / "own_objects.py").write_text(MODULE.replace("return 1.0", f"return {value}"))
        importlib.reload(own)
        study = search(
            tmp_path / str(value), ["diag_ef", own.outside], n_trials=1,
            settings={"objective": own.outside},
        )  # fmt: skip
        found[value] = study.scores().loc[0, "own_objects:outside"]
    assert found == {1.0: 1.0, 22.0: 22.0}
    again = nas_evidence.load(tmp_path / "22.0" / "s", allow_code=True)
    assert again.spec.objective == "own_objects:outside"


# --- trials x scores


@pytest.mark.slow
def test_the_table_of_scores_is_the_evidence_after_the_last_epoch_of_each_trial(
    own: Any, tmp_path: Path
) -> None:
    class Stops(nas_evidence.Watcher):
        def ended(self, record: Any) -> None:
            table = nas_evidence.load(tmp_path / "s").scores()
            seen.append(table.index.tolist())

    seen: list[list[int]] = []
    study = search(
        tmp_path, ["diag_ef", "two_fold", own.norm], n_trials=3, callbacks=[Stops()],
        settings={"curves": True, "plan.online.every": 1, "objective": "diag_ef"},
    )  # fmt: skip
    table, per_datum = study.scores(), study.scores(per_datum=True)
    assert [len(ids) for ids in seen] == [1, 2, 3]
    assert table.index.tolist() == study.trials["trial_id"].tolist()
    assert (table.index.name, table.columns.name) == ("trial_id", "estimator")
    assert [*table][:3] == ["diag_ef", "two_fold", "own_objects:norm"]
    assert [*table][-1] == "train_nll_per_datum"
    values, means = last(study), last(study, "per_datum")
    assert table.notna().sum().sum() == len(values)
    for (trial_id, name), value in values.items():
        assert table.loc[trial_id, name] == value
        mean = means[trial_id, name]
        assert per_datum.loc[trial_id, name] == (value if np.isnan(mean) else mean)
    assert (table["train_nll_per_datum"] < 0).all()
    shown = study.ranking.set_index("trial_id")["diag_ef"]
    np.testing.assert_allclose(per_datum.loc[shown.index, "diag_ef"], shown)


def test_the_table_of_scores_of_a_study_without_trials_has_its_columns(tmp_path: Path) -> None:
    from nas_evidence.spec.toml import parse_study
    from nas_evidence.storage.study_folder import open_study

    text = 'name = "none"\nestimators = ["diag_ef"]\n[dataset]\nname = "digits"\n[family.linear]\n'
    open_study(tmp_path / "s", parse_study(text, "none.toml"))
    table = nas_evidence.load(tmp_path / "s").scores()
    assert table.shape == (0, 7)
    assert next(iter(table)) == "diag_ef"
