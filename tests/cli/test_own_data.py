"""From your data to a ranking by one command; wrong input is one sentence."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from approved import approve
from commands import run
from messages import refused

import nas_evidence
from nas_evidence.api.request import asked_for
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.cli.predict import predict
from nas_evidence.cli.report import export, report
from nas_evidence.cli.search import search
from nas_evidence.cli.submit import submit
from nas_evidence.cli.validate import init
from nas_evidence.data import assembly, digest, reading, source
from nas_evidence.spec import toml as codec
from nas_evidence.spec.toml import load_study
from nas_evidence.storage import tables as store
from nas_evidence.storage.tables import TABLES

SMALL = ("--executor", "inline", "--trials", 2, "--set", "plan.epochs=2", "--set",
         'estimators=["diag_ef"]', "--set", "objective=diag_ef")  # fmt: skip


def pets(n: int = 60) -> pd.DataFrame:
    """A table with categories, missing values, an index and text labels."""
    generator = np.random.default_rng(0)
    weight = generator.normal(10, 4, n)
    table = pd.DataFrame(
        {
            "id": range(n),
            "weight": weight,
            "town": generator.choice(["rome", "oslo"], n),
            "pet": np.where(weight > 10, "dog", "cat"),
        }
    )
    table.loc[3, "weight"] = np.nan
    table.loc[4, "town"] = None
    return table


@pytest.fixture
def home(tmp_path: Path) -> Path:
    pets().to_csv(tmp_path / "pets.csv", index=False)
    return tmp_path


@pytest.mark.long
@pytest.mark.slow
def test_networks_together_are_exported_and_predict_with_a_reliability_plot(
    home: Path,
) -> None:
    folds = ("--set", 'estimators=["two_fold"]', "--set", "objective=two_fold")
    run("search", "pets.csv", "--target", "pet", *SMALL, *folds, folder=home)
    text = run("export", "runs/pets", "--to", "both", "--top", 2, folder=home).stdout
    said = r"export: both \(trials \d+ and \d+, which predict together with equal weights\)"
    assert re.search(said, text)
    assert "ms a row here" in text
    options = ("--reliability", "r.svg", "--ood", "pets.csv")
    said = run(
        "predict", "both", "pets.csv", *options, "--to", "p.csv", "--force", folder=home
    ).stdout
    assert "ood auroc\t0.5000" in said
    assert "calibration error\t" in said
    assert (home / "r.svg").read_text().startswith("<svg xmlns=")
    card = (home / "both" / "members" / "1" / "README.md").read_text()
    assert "expected calibration error" in card
    bare = pets(9).drop(columns="pet")
    bare.to_csv(home / "bare.csv", index=False)
    study, both = str(home / "runs" / "pets"), str(home / "both")
    for wrong, says in (
        (lambda: predict(both, home / "pets.csv", top=2), "both is an export"),
        (
            lambda: predict(both, home / "bare.csv", reliability=home / "q.svg"),
            "not hold the targ",
        ),
        (lambda: export(study, home / "x", top=3), "top must be from 1 to 2"),
    ):
        with pytest.raises(ValueError, match=says):
            wrong()
    assert not (home / "q.svg").exists()


def test_options_that_contradict_each_other_are_refused_before_anything_runs(home: Path) -> None:
    data = home / "pets.csv"
    with refused("option-trial-and-top", 0, 2):
        predict("nowhere", data, top=2, trial_id=0)
    with refused("option-trial-and-top", 0, 2):
        export("nowhere", home / "x", top=2, trial_id=0)
    with refused("output-ending", "--reliability", ".svg", "r.txt"):
        predict("nowhere", data, reliability=home / "r.txt")
    with pytest.raises(ValueError, match="but got 'comet'"):
        search(str(data), track=["comet"])


@pytest.mark.long
@pytest.mark.slow
def test_a_table_is_searched_by_one_command_and_found_again_without_the_file(home: Path) -> None:
    text = run("search", "pets.csv", "--target", "pet", *SMALL, folder=home).stdout
    said = text.splitlines()[:4]
    assert "trust:  There are no test rows" in text
    study = load_study(home / "runs" / "pets" / "study.toml")
    assert (study.dataset.path, study.dataset.task) == ("data/train.parquet", "classification")
    assert "Not tested" in (home / "runs" / "pets" / "export" / "README.md").read_text()

    new = pets(20).assign(town="lima")
    new.to_csv(home / "new.csv", index=False)
    predicted = run(
        "predict", "runs/pets/export", "new.csv", "--to", "p.csv", "--force", folder=home
    ).stdout
    assert "accuracy\t" in predicted
    assert "predictions: p.csv (20 rows)" in predicted
    lines = run("predict", "runs/pets/export", "new.csv", folder=home).stdout.splitlines()
    assert lines[6] == "predictions: predictions.csv (20 rows)"  # after five of them
    assert len(pd.read_csv(home / "predictions.csv")) == 20
    held = run("predict", "runs/pets/export", "new.csv", folder=home, code=2).stderr
    said += [text for text in held.splitlines() if "exists" in text]
    assert lines[7:] == predicted.splitlines()[7:]  # the metrics
    assert list(pd.read_csv(home / "p.csv")) == ["prediction", "p(cat)", "p(dog)"]

    (home / "pets.csv").unlink()
    (home / "moved").mkdir()
    (home / "runs" / "pets").rename(home / "moved" / "pets")
    again = ("--trials", 3, "--executor", "inline")
    assert "trials: 3 complete" in run("resume", "moved/pets", *again, folder=home).stdout
    assert (
        "evidence recomputed: identical"
        in run("export", "moved/pets", "--to", "winner", folder=home).stdout
    )

    pets(90).to_csv(home / "pets.csv", index=False)
    refused = run(
        "search", "pets.csv", "--target", "pet", "--out", "moved/pets", folder=home, code=2
    )
    approve("search_of_a_table", [*said, *refused.stderr.splitlines()])


def untimed(text: str) -> list[str]:
    """The lines without the forecast, which depends on the machine's load."""
    return [line for line in text.splitlines() if not line.startswith(("time: ", "ranked by: "))]


@pytest.mark.slow
def test_init_writes_the_study_that_search_would_run(home: Path) -> None:
    run("init", "pets.csv", "--target", "pet", "--test-fraction", 0.25, folder=home)
    text = (home / "pets.toml").read_text()
    assert 'path = "pets.csv"' in text
    assert "# classification, 2 classes: cat, dog" in text
    looked = run("search", "pets.toml", "--dry-run", folder=home).stdout
    assert "data: 45 training rows, 15 test rows, inputs 6, 2 classes" in looked
    asked = ("--target", "pet", "--test-fraction", 0.25, "--dry-run")
    given = run("search", "pets.csv", *asked, folder=home)
    assert untimed(looked) == untimed(given.stdout)
    assert (
        "pets.toml exists"
        in run("init", "pets.csv", "--target", "pet", folder=home, code=2).stderr
    )


@pytest.mark.parametrize(
    ("study", "options", "said"),
    [
        ("pets.csv", {}, "name the column to predict with `target` .columns: id, weight,"),
        ("pets.csv", {"target": "pets"}, "no column 'pets'; did you mean 'pet'"),
        ("gone.csv", {"target": "pet"}, "there is no file gone.csv"),
        ("pets.arff", {}, "neither a study file .*; write it as CSV"),
        ("digits", {"target": "x"}, "`target` is used only with name = .table"),
        ("pets.csv", {"target": "pet", "drop": ["age"]}, "the column 'age', which"),
        ("pets.csv", {"target": "pet", "test_fraction": 2.0}, "must be less than 1, but got 2.0"),
        ("a.npz", {"target": "pet"}, "a.npz is none"),
        ("table.toml", {}, "pets.csv holds data of the kind .table., but .* set name = .table"),
        ("both.toml", {}, "likelihood. in .plan. must be .gaussian. with task"),
        ("folder", {}, "without folders of images; name a study file"),
    ],
)
def test_wrong_input_is_one_sentence(
    study: str,
    options: dict[str, Any],
    said: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    (home / "folder").mkdir()
    (home / "pets.arff").touch()
    np.savez(home / "a.npz", x=np.ones((20, 2)), y=np.arange(20) % 2)
    npz = 'name = "t"\n[dataset]\nname = "npz"\npath = "pets.csv"\n'
    (home / "table.toml").write_text(f"{npz}[family.linear]\n")
    (home / "both.toml").write_text(
        f'{npz}task = "regression"\n[family.linear]\n[plan]\nlikelihood = "categorical"\n'
    )
    with pytest.raises(ValueError, match=said) as caught:
        asked_for(study, (), DataOptions(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("verb", [search, submit, init, nas_evidence.search])
def test_the_options_about_data_are_the_same_everywhere(verb: Callable[..., object]) -> None:
    taken = [name for name in signature(verb).parameters if name in DataOptions.__annotations__]
    assert taken == [*DataOptions.__annotations__]
    assert signature(verb).parameters["drop"].default is None


@pytest.mark.slow
def test_the_command_line_says_what_the_options_about_data_mean() -> None:
    said = run("search", "--help", folder=Path.cwd()).stdout
    for name, hint in get_type_hints(DataOptions, include_extras=True).items():
        meant = get_args(hint)[1]
        assert f"--{name.replace('_', '-')} " in said
        assert meant.word is None or f" {meant.word} " in said
        assert meant.text.partition(" ")[0] in said


def test_an_option_that_python_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'traget'; did you mean 'target'"):
        nas_evidence.search(pets(), traget="pet")  # type: ignore[call-arg]


# --- data are read once and tables are read once: one value goes from the first step to the last


#: From the file to the arrays: what is done to a table of the user's own.
STEPS = {
    "read_frame": reading.read_frame,
    "content_of": source.content_of,
    "targets_of": assembly.targets_of,
    "test_rows": assembly.test_rows,
    "prepare": assembly.prepare,
    "assembled": assembly.assembled,
    "data_digest": digest.data_digest,
    "parse_study": codec.parse_study,
}
QUICK = ["plan.epochs=2", 'estimators=["diag_ef"]', "objective=diag_ef"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each step was taken, wherever it was imported to."""
    counted: Counter[str] = Counter()

    def counting(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            counted[name] += 1
            return step(*given, **options)

        return call

    for name, step in STEPS.items():
        replaced = counting(name, step)
        for module in [m for n, m in sys.modules.items() if n.startswith("nas_evidence")]:
            if vars(module).get(name) is step:
                monkeypatch.setattr(module, name, replaced)
    load = store._load
    monkeypatch.setattr(
        store, "_load", lambda path: counted.update([path.parent.name]) or load(path)
    )
    return counted


@pytest.fixture
def wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0])})
    table.to_csv(tmp_path / "wave.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return "wave.csv"


@pytest.mark.slow
def test_a_search_takes_each_step_from_the_file_to_the_arrays_once(
    wave: str, calls: Counter[str]
) -> None:
    search(wave, target="y", test_fraction=0.2, n_trials=1, executor="inline", settings=QUICK)
    assert {name: calls[name] for name in STEPS} == dict.fromkeys(STEPS, 1)
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 1)
    assert Path("runs/wave/export/README.md").is_file()


@pytest.mark.long
@pytest.mark.slow
def test_report_and_export_read_each_table_and_the_data_once(
    wave: str, calls: Counter[str]
) -> None:
    search(wave, target="y", test_fraction=0.2, n_trials=2, executor="inline", settings=QUICK)
    Path("runs/wave/report/comparison.json").unlink()
    calls.clear()
    report("runs/wave")
    assert calls["read_frame"] == calls["prepare"] == 1
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 2)  # a file per trial
    calls.clear()
    export("runs/wave", to=Path("e"))
    assert calls["read_frame"] == calls["prepare"] == 1
    assert {name: calls[name] for name in TABLES} == dict.fromkeys(TABLES, 2)


@pytest.mark.slow
def test_a_study_in_python_sees_trials_that_come_later(wave: str) -> None:
    settings = {"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"}
    study = nas_evidence.search(wave, target="y", n_trials=1, settings=settings, progress=False)
    assert len(study.trials) == 1
    nas_evidence.resume(study.folder, n_trials=2, progress=False)
    assert len(study.trials) == len(study.ranking) == 2


@pytest.mark.slow
def test_data_of_a_study_that_goes_on_are_those_of_its_folder_and_checked(wave: str) -> None:
    options = {"target": "y", "executor": "inline", "settings": QUICK}
    search(wave, n_trials=1, **options)
    kept = Path("runs/wave/data/train.parquet")
    pd.read_parquet(kept).assign(a=0.0).to_parquet(kept)
    with refused("kept-data-lost"):
        nas_evidence.resume("runs/wave", n_trials=2, progress=False)
    search(wave, n_trials=2, **options)  # has the right ones
    assert [path.name for path in Path("runs/wave/damaged").iterdir()] == ["data-train.parquet"]


@pytest.mark.slow
def test_arrays_that_the_caller_changes_later_do_not_change_the_study(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    held = x.copy()
    study = nas_evidence.search(
        x, (x[:, 0] > 0).astype(int), n_trials=1, out=tmp_path / "s", progress=False,
        settings={"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"},
    )  # fmt: skip
    x *= 2
    np.testing.assert_array_equal(study.arrays().x_train, held)
