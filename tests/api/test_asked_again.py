"""A study that is asked for again with something else says what differs."""

from pathlib import Path

import fakes
import numpy as np
import pandas as pd
import pytest
from commands import assert_same, found, write_study
from messages import refused

import nas_evidence
from nas_evidence.api.request import as_overrides, asked_for, check_not_fewer, with_workers
from nas_evidence.api.runs import begun
from nas_evidence.spec.study import PRESETS, ResourceSpec, preset_keys
from nas_evidence.storage.tables import read_table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(30, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0])
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame[:12].to_csv(tmp_path / "test.csv", index=False)
    return tmp_path / "t.csv"


def test_another_option_is_named_and_the_file_is_not_said_to_have_changed(table: Path) -> None:
    out = table.parent / "s"

    def begin(overrides: tuple[str, ...] = (), **options: object) -> None:
        asked = asked_for(str(table), overrides, {"target": "y", **options})  # type: ignore[typeddict-item]
        begun(out, asked.spec, asked.source)

    begin()
    begin()
    with refused("test-table-differs", "without"):
        begin(test=table.parent / "test.csv")
    with pytest.raises(ValueError, match=r"differs: .*drop"):
        begin(drop=["b"])
    with pytest.raises(ValueError, match=r"differs: .*test_fraction"):
        begin(test_fraction=0.3)
    with pytest.raises(ValueError, match=r"differs: .*seed"):
        begin(("seed=3",))
    pd.read_csv(table).assign(a=0.5).to_csv(table, index=False)
    with refused("given-data-changed", "t.csv"):
        begin()


def test_a_study_is_not_resumed_with_fewer_trials(table: Path) -> None:
    spec = asked_for(str(table), ("n_trials=12",), {"target": "y"}).spec
    check_not_fewer(spec, None)
    check_not_fewer(spec, 12)
    with refused("fewer-trials-than-before", 12, 2):
        check_not_fewer(spec, 2)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study file, its data, and the finished study `done`."""
    home = tmp_path_factory.mktemp("home")
    nas_evidence.search(write_study(home), out=home / "done")
    return home


@pytest.mark.slow
def test_a_preset_is_keys_and_what_is_given_besides_wins(home: Path) -> None:
    asked = asked_for(
        str(home / "tiny.toml"), [*as_overrides(preset_keys("quick")), "plan.folds=5"]
    )
    assert (asked.spec.n_trials, asked.spec.plan.folds, asked.spec.finalists) == (8, 5, 0)
    for name in PRESETS:
        asked_for(str(home / "tiny.toml"), as_overrides(preset_keys(name)))


@pytest.mark.slow
def test_another_study_is_refused_with_the_difference(home: Path) -> None:
    path, out = home / "tiny.toml", home / "done"
    before = (out / "study.toml").read_bytes()
    with refused("folder-of-another-study", "plan.epochs: 4 in the folder, 5 asked", "seed: 0"):
        nas_evidence.search(path, out=out, seed=3, settings={"plan.epochs": 5})
    assert (out / "study.toml").read_bytes() == before
    again = nas_evidence.search(path, out=out, workers=7)  # free to change
    assert len(again.trials) == 4


@pytest.mark.slow
def test_permuting_the_test_labels_changes_test_columns_alone(home: Path, tmp_path: Path) -> None:
    nas_evidence.search(write_study(tmp_path, mix_test_labels=True), out=tmp_path / "mixed")
    one, two = read_table(home / "done", "trials"), read_table(tmp_path / "mixed", "trials")
    assert one["test_accuracy"].mean() > two["test_accuracy"].mean()
    tests = ["test_accuracy", "test_nll_per_datum", "content_hash"]
    assert_same(found(home / "done", without=tests), found(tmp_path / "mixed", without=tests))


@pytest.mark.slow
def test_class_weights_decide_the_class_and_change_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = np.random.default_rng(0).normal(10, 4, 60)
    pets = pd.DataFrame({"weight": weight, "pet": np.where(weight > 10, "dog", "cat")})
    fast = {"n_trials": 2, "settings": {"plan.epochs": 2}, "out": tmp_path / "s"}
    costs = {"class_weight": {"dog": 2.5}, "progress": True}
    study = nas_evidence.search(pets, target="pet", **costs, **fast)  # type: ignore[arg-type]
    assert "class weights: cat 1, dog 2.5; the class with the largest" in capsys.readouterr().out
    assert study.spec.objective == "conditional_evidence"
    assert study.spec.dataset.class_weight == {"dog": 2.5}
    assert read_table(tmp_path / "s", "evidence")["valid"].all()
    assert study.predict(pets).class_weight == {"cat": 1.0, "dog": 2.5}
    with pytest.raises(ValueError, match="class_weight"):
        nas_evidence.search(pets, target="pet", **fast)  # type: ignore[arg-type]


def test_workers_of_python_are_a_number_auto_or_what_the_study_says() -> None:
    spec = fakes.study(resources={"workers": 5, "cpus": 2})
    assert with_workers(spec, None) is spec
    assert with_workers(spec, 3).resources == ResourceSpec(workers=3, cpus=2)
    assert with_workers(spec, "auto").resources == ResourceSpec(workers="auto", cpus=2)
    for wrong in (0, "many"):
        with refused("workers-form", repr(wrong)):
            with_workers(spec, wrong)
