"""Claims about epochs = "auto": a number before the first trial, and the same ever after."""

from pathlib import Path

import pytest
from messages import refused

from nas_evidence.api.request import asked_for
from nas_evidence.api.runs import begun
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.data.proposed import epochs_for
from nas_evidence.spec.toml import dump_study, load_study
from nas_evidence.storage.study_folder import read_study

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
