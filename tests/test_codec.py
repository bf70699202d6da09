"""Study files: every mistake once, with place, value, what is allowed and the nearest key."""

from pathlib import Path

import pytest

from nas_evidence.codec import (
    StudyError,
    differences,
    dump_study,
    find_study,
    load_study,
    shipped_studies,
)
from nas_evidence.domains import IntRange

GOOD = """\
name = "small"
seed = 3
[dataset]
name = "digits"
test_size = 500
[family.mlp]
depth = {low = 1, high = 4}
width = {low = 4, high = 256, log = true}
[family.resnet]
depth = {options = [8, 14]}
[plan]
epochs = 7
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        load_study(write(folder, text), overrides)
    return list(caught.value.messages)


def test_reading_back_a_dumped_study_changes_nothing(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    assert study.family["mlp"]["width"] == IntRange(low=4, high=256, log=True)
    assert load_study(write(tmp_path, dump_study(study))) == study


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_every_shipped_study_is_valid(name: str) -> None:
    study = load_study(find_study(name))
    assert study.name == name
    assert find_study(f"{name}.toml") == find_study(name)


def test_all_mistakes_are_reported_at_once_and_each_once(tmp_path: Path) -> None:
    text = """\
nme = "x"
seed = -1
objective = "kfac_gg"
estimators = ["diag_ef", "kfac"]
[dataset]
name = "digit"
[family.mlp]
widht = {low = 4, high = 8}
depth = {low = 0, high = 9}
[family.rnn]
[plan]
epochs = "ten"
batch_size = "12"
[plan.onlin]
every = 5
[plan.online]
every = 0
[resources]
gpus = "all"
"""
    found = mistakes(tmp_path, text, "plan.epochz=3", "n_trials", "sampler.name=bayes")
    lines = [1, 2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 17, 19]
    assert [m for m in found if m.startswith("--set")] == found[len(lines) :]
    assert [int(m.split(":")[1]) for m in found[: len(lines)]] == lines
    assert len(found) == len(lines) + 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[family.mlp]\nwidht = 3", "unknown key 'widht' in [family.mlp]; did you mean 'width'?"),
        ("[family.mlpp]", "unknown family 'mlpp'; did you mean 'mlp'?"),
        ("[family.mlp]\nwidth = {low = 1, high = 8}", "allows 1, which is outside 4..1024"),
        ("[family.mlp]\nwidth = {lo = 5, high = 8}", "unknown key 'lo'; did you mean 'low'?"),
        ("[family.mlp]\nwidth = {low = 9, high = 8}", "`low <= high` must hold, but got low = 9"),
        ("[family.mlp]\nwidth = 'big'", "allows 'big', which is outside 4..1024"),
        ("[family.mlp]\nshape = {options = ['cone']}", "outside {'constant', 'taper'}"),
        ("[family.resnet]\ndepth = {options = [9]}", "outside 8, 14, ..., 110"),
        ("[family.resnet]\ndepth = {low = 8, high = 20}", "needs step = 6, but got step = 1"),
        ("[family.mlp]\n[plan]\nschedule = 'cosin'", "but got 'cosin'; did you mean 'cosine'?"),
        ("[family.mlp]\n[plan]\nschedule = 'steps'", "`milestones` must name at least one epoch"),
        ("[family.mlp]\n[dataset.x]", "unknown key 'x' in [dataset]"),
        ("[family.mlp]\n[sampler]\nname = 'random'\nsede = 1", "unknown key 'sede' in [sampler]"),
    ],
)
def test_one_mistake_gives_one_message(tmp_path: Path, line: str, expected: str) -> None:
    text = f'name = "x"\n[dataset]\nname = "digits"\n{line}\n'
    found = mistakes(tmp_path, text)
    assert len(found) == 1
    assert expected in found[0]


def test_objective_outside_the_estimators_is_reported_beside_other_mistakes(
    tmp_path: Path,
) -> None:
    text = 'name = "x"\nobjective = "kfac_ggn"\nestimators = ["diag_ef"]\n'
    found = mistakes(tmp_path, text + '[dataset]\nname = "digits"\n[family.mlp]\nwith = 3\n')
    assert len(found) == 2
    assert found[0].startswith(f"{tmp_path}/study.toml:2: `objective` must be one of")


@pytest.mark.parametrize("text", ["name = ", "name = 3\nname = 4", "[plan\n"])
def test_a_file_that_is_no_toml_gives_one_message(tmp_path: Path, text: str) -> None:
    assert len(mistakes(tmp_path, text)) == 1


def test_no_family_is_one_mistake(tmp_path: Path) -> None:
    found = mistakes(tmp_path, 'name = "x"\n[dataset]\nname = "digits"\n')
    assert len(found) == 1
    assert "[family.mlp]" in found[0]


def test_overrides_reach_every_table(tmp_path: Path) -> None:
    overrides = ["plan.online.every=2", "sampler.name=random", "family.mlp.depth=2", "seed=9"]
    study = load_study(write(tmp_path, GOOD), overrides)
    assert study.plan.online.every == 2
    assert study.sampler.name == "random"
    assert study.family["mlp"]["depth"].contains(2)
    assert study.seed == 9


def test_an_unknown_study_names_the_nearest_shipped_one() -> None:
    with pytest.raises(StudyError, match="did you mean 'digits'"):
        find_study("digts")


def test_only_trials_and_resources_may_differ(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    same = load_study(write(tmp_path, GOOD), ["n_trials=99", "resources.workers=7"])
    other = load_study(write(tmp_path, GOOD), ["plan.epochs=8"])
    assert differences(study, same) == []
    assert differences(study, other) == ["plan.epochs: 7 in the folder, 8 asked"]
