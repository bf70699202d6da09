"""Studies with code of their own: which runs, what is recorded, and where it is refused."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import environment, forked_script, run
from messages import refused

import nas_evidence
from nas_evidence.plumbing.sums import write_sums
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
def test_a_package_at_the_root_of_a_project_is_copied_without_its_environment_and_studies(
    tmp_path: Path,
) -> None:
    home = tmp_path / "proj"
    study_in(home, A)
    (home / "nets.py").rename(home / "models.py")
    (home / "__init__.py").touch()
    for i in range(50):
        path = home / ".venv" / "lib" / f"m{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    text = (home / "st.toml").read_text().replace("nets:Fam", "proj.models:Fam")
    (home / "st.toml").write_text(text)
    counts = []
    for name in ("r1", "r2"):
        run("search", "proj/st.toml", "--allow-code", "--executor", "inline", "--out",
            f"proj/runs/{name}", folder=tmp_path)  # fmt: skip
        counts.append(len(list((home / "runs" / name / "code").rglob("*.py"))))
    assert counts == [2, 2]


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
