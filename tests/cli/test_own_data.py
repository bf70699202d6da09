"""From your data to a ranking by one command; wrong input is one sentence."""

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from commands import run
from messages import refused

import nas_evidence
from nas_evidence.api.request import asked_for
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.cli.predict import predict
from nas_evidence.cli.report import export
from nas_evidence.cli.search import search
from nas_evidence.cli.submit import submit
from nas_evidence.cli.validate import init
from nas_evidence.spec.toml import load_study

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
    assert re.search(
        r"export: both \(trials \d+ and \d+, which predict together with equal weights, "
        r"evidence of each recomputed: identical\)",
        text,
    )
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
    lines = text.splitlines()
    assert lines[:4] == [
        "classification, 2 classes: cat, dog",
        "features: 1 numeric column and 1 of categories, missing values in 1 filled with the "
        "median",
        "column 'id' is left out: it looks like a row number; --numeric id to keep",
        "rows: 60, all for training; --test-fraction 0.2 splits off a test for the report",
    ]
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
    assert (
        "predictions.csv exists; name another file with --to, or replace it by --force"
        in run("predict", "runs/pets/export", "new.csv", folder=home, code=2).stderr
    )
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
    assert refused.stderr == (
        "error: moved/pets belongs to other data (pets.csv, 60 rows); give another study folder "
        "as `out`, or train its best architecture on these: "
        "`nas-evidence refit moved/pets pets.csv`\n"
    )


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
        ("pets.arff", {}, "not read; write it as CSV"),
        ("digits", {"target": "x"}, "`target` is used only with name = .table"),
        ("pets.csv", {"target": "pet", "drop": ["age"]}, "the column 'age', which"),
        ("pets.csv", {"target": "pet", "test_fraction": 2.0}, "must be less than 1, but got 2.0"),
        ("pets.csv", {"target": "town"}, "rows have no value, the first at row 4"),
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
