"""A study that is asked for again with something else says what differs."""

from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pandas as pd
import pytest
import torch
from commands import assert_same, found, write_study
from messages import refused
from torch.utils.data import TensorDataset

import nas_evidence
from nas_evidence.api.request import (
    as_overrides,
    asked_for,
    check_not_fewer,
    of_memory,
    with_workers,
)
from nas_evidence.api.runs import begun
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.data.as_before import ReadBefore, other_rows, read_as_before
from nas_evidence.data.proposed import epochs_for
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.study import PRESETS, ResourceSpec, preset_keys
from nas_evidence.spec.toml import dump_study, load_study
from nas_evidence.storage.study_folder import read_study
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
    with refused("given-data-changed", "without a table of test rows"):
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


# --- claims about epochs = "auto": a number before the first trial, and the same ever after


STUDY = """\
name = "a"
n_trials = 2
[dataset]
name = "digits"
test_size = 500
[family.linear]
[plan]
batch_size = {batch}
{epochs}
"""


def written(path: Path, epochs: str, batch: int = 128) -> Path:
    path.write_text(STUDY.format(epochs=epochs, batch=batch), encoding="utf-8")
    return path


@pytest.mark.parametrize("line", ["", 'epochs = "auto"'])
def test_what_a_study_does_not_say_is_chosen_from_the_data_and_stored(
    tmp_path: Path, line: str
) -> None:
    spec = load_study(written(tmp_path / "s.toml", line))
    assert spec.plan.automatic
    assert 'epochs = "auto"' in dump_study(spec)
    stored, _ = begun(tmp_path / "run", spec, None)
    assert stored.plan.epochs == epochs_for(1297, 128) == 62
    assert "epochs = 62\n" in (tmp_path / "run" / "study.toml").read_text()
    assert not read_study(tmp_path / "run").plan.automatic


def test_a_study_goes_on_with_the_stored_number_and_a_given_one_stays(tmp_path: Path) -> None:
    given = load_study(written(tmp_path / "s.toml", "epochs = 7"))
    assert begun(tmp_path / "run", given, None)[0].plan.epochs == 7
    silent = load_study(written(tmp_path / "t.toml", ""))
    assert begun(tmp_path / "run", silent, None)[0].plan.epochs == 7
    other = load_study(written(tmp_path / "u.toml", "", 16))
    assert begun(tmp_path / "new", other, None)[0].plan.epochs == 31


def test_the_interval_of_updates_becomes_a_number_and_the_stored_one_stays(tmp_path: Path) -> None:
    given = load_study(written(tmp_path / "s.toml", "epochs = 64"))
    assert given.plan.online.every == "auto"
    assert 'every = "auto"' in dump_study(given)
    assert begun(tmp_path / "run", given, None)[0].plan.online.every == 8
    assert "every = 8\n" in (tmp_path / "run" / "study.toml").read_text()
    told = load_study(tmp_path / "s.toml", ["plan.online.every=9"])
    assert begun(tmp_path / "old", told, None)[0].plan.online.every == 9
    assert begun(tmp_path / "old", given, None)[0].plan.online.every == 9


def test_a_plan_whose_chosen_epochs_never_reach_an_update_is_refused(tmp_path: Path) -> None:
    spec = load_study(written(tmp_path / "s.toml", ""), ["plan.online.every=62"], to_run=True)
    with refused("update-never-reached", "every", 62):
        begun(tmp_path / "run", spec, None)
    assert not (tmp_path / "run").exists()


def test_milestones_as_fractions_go_on_with_those_of_the_folder(tmp_path: Path) -> None:
    path, steps = written(tmp_path / "s.toml", "epochs = 40"), "plan.schedule=steps"
    begun(tmp_path / "run", load_study(path, [steps, "plan.milestones=[20, 30]"]), None)
    fractions = load_study(path, [steps, "plan.milestones=[0.5, 0.75]"])
    again, _ = begun(tmp_path / "run", fractions, None)
    assert again.plan.milestones == (20, 30)


def test_a_proposal_is_made_for_the_rows_and_the_batch_that_are_asked_for(tmp_path: Path) -> None:
    rows = "\n".join(f"{i * 37 % 101}.5,{i * i % 997}.5" for i in range(3000))
    (tmp_path / "d.csv").write_text(f"x,y\n{rows}\n")
    few, options = ["dataset.max_train=200"], DataOptions(target="y")
    whole = asked_for(str(tmp_path / "d.csv"), [], options)
    less = asked_for(str(tmp_path / "d.csv"), few, options)
    assert (whole.spec.plan.batch_size, less.spec.plan.batch_size) == (64, 32)
    assert not less.spec.family["mlp"]["width"].contains(128)
    assert whole.spec.family["mlp"]["width"].contains(128)
    small = asked_for(str(tmp_path / "d.csv"), [*few, "plan.batch_size=8"], options)
    stored = [
        begun(tmp_path / name, one.spec, one.source)[0].plan
        for name, one in (("w", whole), ("l", less), ("s", small))
    ]
    assert [plan.epochs for plan in stored] == [20, 200, 200]
    assert [plan.online.every for plan in stored] == [3, 25, 25]


def test_another_word_is_refused(tmp_path: Path) -> None:
    with refused("wrong-type", "an integer", "'many'"):
        load_study(written(tmp_path / "s.toml", 'epochs = "many"'))


def test_the_rule_keeps_its_bounds() -> None:
    assert [epochs_for(n, 128) for n in (10, 480, 3200, 10**6)] == [300, 167, 25, 20]
    assert [epochs_for(n, 16) for n in (10, 480, 3200, 10**6)] == [300, 83, 20, 20]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), "score"),  # two folds
        (("dataset.test_size=1200",), "estimate"),
        (("dataset.test_size=1200", "rank_by=score"), "score"),
        (("dataset.test_size=1200", "objective=two_fold", 'estimators=["two_fold"]'), "score"),
        (("dataset.test_size=1200", 'minimise=["n_parameters"]'), "score"),
        (("plan.folds=5",), "score"),  # too many rows
        (("plan.folds=5", "rank_by=estimate"), "estimate"),
    ],
)
def test_few_rows_in_five_folds_are_ranked_by_the_estimate(
    tmp_path: Path, changes: tuple[str, ...], expected: str
) -> None:
    asked = asked_for(str(written(tmp_path / "s.toml", "")), changes)
    assert begun(tmp_path / "run", asked.spec, None)[0].rank_by == expected


def test_what_orders_the_architectures_stays_when_a_study_goes_on(tmp_path: Path) -> None:
    few = ("dataset.test_size=1200",)
    silent = load_study(written(tmp_path / "s.toml", ""), few)
    given = load_study(tmp_path / "s.toml", [*few, "rank_by=score"])
    assert begun(tmp_path / "given", given, None)[0].rank_by == "score"
    assert begun(tmp_path / "given", silent, None)[0].rank_by == "score"
    begun(tmp_path / "silent", silent, None)
    with refused("folder-of-another-study"):
        begun(tmp_path / "silent", given, None)


def test_an_estimate_of_scores_that_are_not_there_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "s.toml", "")
    for change in ("objective=kfac_ggn", 'minimise=["flops"]', 'estimators=["kfac_ggn"]'):
        with refused("rank-by-estimate"):
            load_study(tmp_path / "s.toml", ["rank_by=estimate", change])


# --- data in memory have no name: what they are is said in its place


X, Y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y})


@pytest.mark.parametrize(
    ("data", "y", "options", "called"),
    [
        (FRAME, None, {"target": "y"}, "a DataFrame"),
        (X, Y, {}, "an array"),
        (torch.tensor(X), Y, {}, "a tensor"),
        (X.tolist(), Y, {}, "a list"),
        (TensorDataset(torch.tensor(X), torch.tensor(Y)), None, {}, "a TensorDataset"),
    ],
)
def test_a_study_of_data_in_memory_is_called_what_they_are(
    data: Any, y: Any, options: Any, called: str
) -> None:
    asked = of_memory(data, y, options, [])
    assert asked.given == called
    assert asked.spec.name == called.split()[1].lower()
    assert HowRead((), n_train=40, given=asked.given).size == f"{called} of 40 rows"


def test_other_rows_in_memory_are_called_what_they_are() -> None:
    asked = of_memory(FRAME, None, {"target": "y"}, [])
    assert asked.arrays is not None
    before = ReadBefore.of(asked.arrays, asked.spec.dataset, "runs/a")
    assert read_as_before(before, other_rows(before, FRAME), seed=0).name == "a DataFrame"


@pytest.mark.slow
def test_no_line_of_a_search_calls_data_in_memory_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = nas_evidence.search(
        FRAME, target="y", families="linear", n_trials=1, progress=True,
        settings={"plan.epochs": 2, "estimators": ["diag_ef"], "objective": "diag_ef"},
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "dataframe: 1 trial, 1 worker -> runs/dataframe-" in said
    shown = said + repr(study) + study.report().read_text() + str(study.summary())
    assert "memory" not in shown.lower().replace("memory_bytes", "")
