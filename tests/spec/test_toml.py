"""Study files: every mistake once, with place, value, what is allowed and the nearest key."""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import study_reference
from messages import refused

from nas_evidence.spec.domains import Choice, IntRange, keys_of
from nas_evidence.spec.registry import REMOVED, SCORES, declared
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import FAMILY_PARAMETERS, StudySpec
from nas_evidence.spec.toml import (
    TABLES,
    Override,
    StudyError,
    differences,
    dump_study,
    find_study,
    load_study,
    parse_study,
    shipped_studies,
)

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


def test_a_study_folder_of_another_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, dump_study(parse_study(GOOD, "x")).replace("format 4", "format 1", 1))
    says = f"{path}: the format of a study folder must be 4, but it is 1: another version"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        load_study(path)


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_score_that_went_is_refused_with_what_to_write_instead(name: str) -> None:
    with refused("removed-score", REMOVED[name]):
        declared(name)
    assert REMOVED[name].split(",")[0].split(" ")[0] in SCORES


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
    assert [m for m in found if ".toml:" not in m.split()[0]] == found[len(lines) :]
    assert [int(m.split(":")[1]) for m in found[: len(lines)]] == lines
    assert len(found) == len(lines) + 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[family.mlp]\nwidht = 3", "unknown key 'widht' in [family.mlp]; did you mean 'width'?"),
        ("[family.mlpp]", "did you mean 'mlp'? (a family of your own needs the key 'module')"),
        ("[family.mlp]\nwidth = {low = 1, high = 8}", "allows 1, which is outside 4..1024"),
        ("[family.mlp]\nwidth = {lo = 5, high = 8}", "[family.mlp.width]; did you mean 'low'?"),
        ("[family.mlp]\nwidth = {low = 5}", "missing key 'high' in [family.mlp.width]"),
        ("[family.mlp]\nwidth = {low = 9, high = 8}", "`low <= high` must hold, but got low = 9"),
        ("[family.mlp]\nwidth = 'big'", "allows 'big', which is outside 4..1024"),
        ("[family.mlp]\nshape = {options = ['cone']}", "outside {'constant', 'taper'}"),
        ("[family.resnet]\ndepth = {options = [9]}", "outside 8, 14, ..., 110"),
        ("[family.resnet]\ndepth = {low = 8, high = 20}", "needs step = 6, but got step = 1"),
        ("[family.mlp]\n[plan]\nschedule = 'cosin'", "but got 'cosin'; did you mean 'cosine'?"),
        ("[family.mlp]\n[plan]\nschedule = 'steps'", "`milestones` must name at least one epoch"),
        (
            "[family.mlp]\nepochs = 3",
            "known: depth, width, shape; 'epochs' is a key of [plan]",
        ),
        ("[family.mlp]\n[pruning]\nname = 'asha'", "known: rule, "),
        ("[family.mlp]\n[plan]\nname = 'x'", "did you mean 'name' in the head of the file?"),
        ("[family.mlp]\n[plan]\nepochs = 1.5", "epochs in [plan] must be an integer, but got 1.5"),
        ("[family.mlp]\n[plan]\nonline = 3", "online in [plan] must be a table, but got 3"),
        ("[family.mlp]\n[plan]\nmilestones = 3", "milestones in [plan] must be a list, but got"),
        (
            "[family.mlp]\n[plan]\nmilestones = [3, 0.5]",
            "milestones in [plan] must be epochs >= 1, or all of them fractions",
        ),
        ("[family.mlp]\n[plan]\nmilestones = [3, 3]", "must increase, but got [3, 3]"),
        ("[family.mlp]\n[plan]\nmilestones = ['x']", "fractions of the epochs"),
        (
            "[family.mlp]\n[plan.online]\nevery = 'often'",
            'every in [plan.online] must be an integer >= 1, "auto" or "never", but got \'often\'',
        ),
        ("[family.mlp]\n[plan.online]\nevery = true", "but got True"),
        ("[family.mlp]\n[plann]", "unknown key 'plann'; did you mean 'plan'?"),
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


def test_a_wrong_key_of_the_head_is_one_mistake(tmp_path: Path) -> None:
    """Others are read together with it: the objective's default is made of the estimators."""
    data = '[dataset]\nname = "digits"\n[family.mlp]\n'
    for head, said in [
        ('name = ""', "name must not be empty"),
        ('name = "x"\nseed = "1"', "seed must be an integer, but got '1'"),
        ('name = "x"\nestimators = "sotl"', "estimators must be a list, but got 'sotl'"),
        ('nam = "x"', "unknown key 'nam'; did you mean 'name'?"),
        (
            'name = "x"\nstop = "auto"',
            "`stop` is no longer a key; remove it: a search runs `n_trials`, and the report says "
            "what more would gain",
        ),
        (
            'name = "x"\ndeliver = "seeds"',
            '`deliver` is no longer a key; leave it out, or write "single": `--top N` predicts by '
            "N networks; nas-evidence of commit 52e6435a resumes and exports a study that has it",
        ),
    ]:
        (found,) = mistakes(tmp_path, f"{head}\n{data}")
        assert found.partition(": ")[2] == said


@pytest.mark.parametrize(
    "numbers", ['["plain", "piecewise"]', '"piecewise"', '{options = ["piecewise"]}']
)
def test_an_encoding_of_numbers_is_refused_by_name(tmp_path: Path, numbers: str) -> None:
    data = f'name = "x"\n[dataset]\nname = "diabetes"\n[family.mlp]\nnumbers = {numbers}\n'
    (found,) = mistakes(tmp_path, data)
    assert ":5: `family.mlp.numbers` is no longer a key; leave it out; " in found
    assert "52e6435a" in found


def test_what_earlier_versions_stored_by_default_is_read_as_it_was(tmp_path: Path) -> None:
    """`numbers = "plain"` where it was listed, since it is in the keys of its architectures."""
    head, data = 'name = "x"\n', '[dataset]\nname = "digits"\n[family.mlp]\n'
    expected = load_study(write(tmp_path, head + data))
    for value in ("auto", "single"):
        assert load_study(write(tmp_path, f'deliver = "{value}"\n{head}{data}')) == expected
        assert load_study(write(tmp_path, head + data), [f"deliver={value}"]) == expected
    for value in ('"plain"', '["plain"]', '{options = ["plain"]}'):
        study = load_study(write(tmp_path, f"{head}{data}numbers = {value}\n"))
        assert study.family["mlp"] == {"numbers": Choice(options=("plain",))}
        assert load_study(write(tmp_path, dump_study(study))) == study


def _misspelt(name: str) -> str:
    return name[0] + name[2:]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_misspelt_key_or_table_is_one_line_that_names_the_right_one(
    tmp_path: Path, table: str
) -> None:
    for key in keys_of(TABLES[table]):
        name = f"{table}.{_misspelt(key)}".strip(".")
        found = mistakes(tmp_path, GOOD, f"{name}=1")
        right = f"unknown key '{_misspelt(key)}'" + (f" in [{table}]" if table else "")
        assert found == [f"{name}=1: {right}; did you mean '{key}'?"]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_misspelt_option_is_one_line_that_names_the_right_one(
    tmp_path: Path, table: str
) -> None:
    for key in keys_of(TABLES[table]):
        field = TABLES[table].model_fields[key]
        options = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        for option in options:
            if isinstance(option, str) and len(option) > 3:
                name = f"{table}.{key}".strip(".")
                (found,) = mistakes(tmp_path, GOOD, f'{name}="{option}x"')
                assert found.endswith(f"but got '{option}x'; did you mean '{option}'?")


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("plan", "noise_std", "0.3"),
        ("pruning", "reduction", "2"),
        ("plan.online", "learn_noise", "false"),
    ],
)
def test_what_is_no_key_stands_only_in_the_study_file_of_a_folder(
    tmp_path: Path, table: str, key: str, value: str
) -> None:
    (found,) = mistakes(tmp_path, GOOD, f"{table}.{key}={value}")
    assert f"unknown key '{key}' in [{table}]; " in found
    path = tmp_path / "kept.toml"
    path.write_text(dump_study(load_study(tmp_path / "study.toml")))
    assert not re.search(rf"^{key} =", path.read_text(), re.M)
    study = load_study(path, [f"{table}.{key}={value}"])
    path.write_text(dump_study(study))
    assert re.search(rf"^{key} = {value}$", path.read_text(), re.M)
    assert load_study(path) == study
    assert parse_study("# a line of its own\n" + path.read_text(), "copy") == study


def test_an_override_that_makes_its_table_is_where_the_mistake_is(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, GOOD, "plan.onlin.every=3")
    assert found.startswith("plan.onlin.every=3: unknown key 'onlin' in [plan]")


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


@pytest.mark.parametrize(
    ("overrides", "place", "value"),
    [
        (["plan.epochs=3"], "study.toml:{every}", "`every` must leave .* got 5 with epochs = 3"),
        (["plan.online.every=9"], "plan.online.every=9", "got 9 with epochs = 7"),
        (["plan.online.burn_in=7"], "plan.online.burn_in=7", "`burn_in` .* got 7 with"),
        (["plan.evaluate_every=8"], "plan.evaluate_every=8", "from 1 to 7 .* but got 8"),
        (
            ["plan.evaluate_every=7", "pruning.rule=halving"],
            "plan.evaluate_every=7",
            r'from 1 to 6 .* and rule = "halving" in \[pruning\], but got 7',
        ),
        (
            ["plan.schedule=steps", "plan.milestones=[3, 90]"],
            "plan.milestones=",
            r"must be below epochs = 7, but got \[3, 90\]; give fractions",
        ),
    ],
)
def test_what_a_shortened_plan_never_reaches_is_refused_where_it_is_said(
    tmp_path: Path, overrides: list[str], place: str, value: str
) -> None:
    text = GOOD + "\n[plan.online]\nevery = 5\n"
    path = write(tmp_path, text)
    with pytest.raises(StudyError, match=value) as refused:
        load_study(path, overrides, to_run=True)
    (message,) = refused.value.messages
    line = text.splitlines().index("every = 5") + 1
    assert place.format(every=line) in message
    load_study(path, overrides)  # a folder of an older version is still read


@pytest.mark.parametrize("name", sorted(shipped_studies()))
@pytest.mark.parametrize("epochs", [6, 10, 20, 50])
def test_a_shipped_study_with_fewer_epochs_still_learns(name: str, epochs: int) -> None:
    study = load_study(find_study(name), [f"plan.epochs={epochs}"], to_run=True)
    fewest = 5 if study.plan.online.every == "auto" else 1
    assert sum(stop.update for stop in stops(study.plan) if not stop.last) >= fewest
    assert all(m <= epochs for m in study.plan.milestone_epochs)


def test_an_unknown_study_names_the_nearest_shipped_one() -> None:
    with pytest.raises(StudyError, match="did you mean 'digits'"):
        find_study("digts")


def test_only_trials_and_resources_may_differ(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    same = load_study(write(tmp_path, GOOD), ["n_trials=99", "resources.workers=7"])
    other = load_study(write(tmp_path, GOOD), ["plan.epochs=8"])
    assert differences(study, same) == []
    assert differences(study, other) == ["plan.epochs: 7 in the folder, 8 asked"]


# --- keys that became constants -----------------------------------------------------------------

# --- the reference page -------------------------------------------------------------------------


def _flat(value: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat


def every_key() -> set[str]:
    """Every key of a study file by its dotted name, those of families included."""
    of_tables = {
        f"{table}.{key}".strip(".")
        for table, kind in TABLES.items()
        for key in study_reference.keys(kind)
    }
    of_families = {f"family.{f}.{key}" for f, keys in FAMILY_PARAMETERS.items() for key in keys}
    return of_tables | of_families


def loaded_example(folder: Path, text: str) -> StudySpec:
    """A piece of a study file, loaded with what it leaves out."""
    raw = tomllib.loads(text)
    head = "" if "name" in raw else 'name = "x"\n'
    tail = "" if "dataset" in raw else '[dataset]\nname = "digits"\n'
    family = "" if "family" in raw else "[family.mlp]\n"
    return load_study(write(folder, head + text + tail + family))


@pytest.mark.slow
def test_every_key_has_a_meaning_and_a_row() -> None:
    for table, kind in TABLES.items():
        meanings = study_reference.meanings(kind)
        assert set(study_reference.keys(kind)) <= meanings.keys(), table
        assert all(text[0].isupper() and text.endswith(".") for text in meanings.values())
    page = study_reference.page()
    assert all(f"| `{name.rpartition('.')[2]}` |" in page for name in every_key())


def test_every_key_is_set_by_an_example_that_loads(tmp_path: Path) -> None:
    used: set[str] = set()
    for text in study_reference.examples():
        loaded_example(tmp_path, text)
        used |= _flat(tomllib.loads(text)).keys()
    # A domain is a table: family.mlp.width.low sets family.mlp.width; arguments are one too.
    parts = {"family": 3, "sampler": 2}
    used = {".".join(n.split(".")[: parts.get(n.partition(".")[0], 9)]) for n in used}
    assert every_key() - used == set()


def test_a_sampler_without_arguments_has_no_table_of_them() -> None:
    text = 'name = "own"\n[dataset]\nname = "digits"\n[family.linear]\n'
    given = ['sampler.name="optuna:GPSampler"', "sampler.arguments.n_startup_trials=5"]
    for overrides, has_table in (([], False), (given[:1], False), (given, True)):
        study = parse_study(text, "own.toml", overrides)
        stored = dump_study(study)
        assert ("[sampler.arguments]" in stored) == has_table
        assert parse_study(stored, "study.toml") == study


def test_a_task_that_follows_from_the_likelihood_is_no_difference() -> None:
    text = 'name = "own"\n[dataset]\nname = "npz"\npath = "own.npz"\n[family.linear]\n'
    asked = parse_study(text, "own.toml")
    stored = parse_study(dump_study(asked), "study.toml")
    assert (asked.dataset.task, stored.dataset.task) == (None, "classification")
    assert differences(stored, asked) == []


@pytest.mark.parametrize("value", ["0", "-5", "2.5", "true", '"all"'])
def test_the_rows_of_an_update_are_a_whole_number_above_0(tmp_path: Path, value: str) -> None:
    (found,) = mistakes(tmp_path, GOOD, f"plan.online.rows={value}")
    assert "rows in [plan.online] must be " in found
    assert found.lower().endswith(f"but got {tomllib.loads(f'v = {value}')['v']!r}".lower())


def test_the_rows_of_an_update_are_a_key_that_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(GOOD)
    usual, study = load_study(path), load_study(path, ["plan.online.rows=100"])
    assert (usual.plan.online.rows, study.plan.online.rows) == ("auto", 100)
    path.write_text(dump_study(study))
    assert re.search(r"^rows = 100$", path.read_text(), re.M)
    assert load_study(path) == study


@pytest.mark.parametrize(
    "value",
    [3, 0.5, True, "a,b", "", 'é "quoted"\t', [1, [2]], {"a b": {"c": [True, "x"]}}, 10**30],
)
def test_what_is_typed_and_what_python_gives_are_one_value(value: Any) -> None:
    given = Override.given("plan.key", value)
    assert (given.key, given.value) == ("plan.key", value)
    assert Override.typed(given.said) == given


@pytest.mark.parametrize("value", [None, {"a": None}, [object()], 1j])
def test_a_value_that_no_study_file_holds_is_no_override(value: Any) -> None:
    with pytest.raises(TypeError):
        Override.given("plan.key", value)


def test_a_table_given_by_python_stays_as_it_was() -> None:
    online = {"burn_in": 1}
    overrides = [Override.given("plan.online", online), "plan.online.every=2"]
    study = parse_study(GOOD, "own.toml", overrides)
    assert (study.plan.online.burn_in, study.plan.online.every) == (1, 2)
    assert online == {"burn_in": 1}
