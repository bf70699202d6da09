"""Families and scores of your own, given as objects: kept by name, or refused before a trial."""

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import forked_script
from messages import refused
from sklearn.base import clone

import nas_evidence
from nas_evidence.api.request import as_overrides, named_scores
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.storage.outside_code import reference_of, with_objects

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
