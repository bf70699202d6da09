"""The first screen: what is said in each situation is approved text; what must hold is below."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from approved import approve
from messages import refused
from searched import EPOCHS, QUALITY, build_report, folder, load, record

from nas_evidence.baselines.comparison import (
    IMPORTANCE,
    Baseline,
    CalibrationPoint,
    Comparison,
    write_comparison,
)
from nas_evidence.maths.metrics import class_metrics, real_metrics
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.paired import paired_interval
from nas_evidence.reporting.certainty import certainty_of
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.figures import within
from nas_evidence.reporting.headline import (
    advice,
    certainty_sentence,
    cost_sentence,
    metric_sentence,
    worth_sentence,
)
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables, ranked_study
from nas_evidence.reporting.terms import explanation, term_table
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.record import RACE_IDS, Evaluation, EvidenceEstimate, Term, TrialRecord
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.storage.tables import read_study_tables

pytestmark = pytest.mark.slow
THREE = [record(key, key) for key in range(3)]
CLASSES, REAL = (
    TrainingPlan.model_validate({"likelihood": likelihood, "epochs": EPOCHS})
    for likelihood in ("categorical", "gaussian")
)


def seeds(n: int, noise: float) -> list[TrialRecord]:
    rng = np.random.default_rng(0)
    return [
        record(10 * key + i, key, value=QUALITY[key] + noise * rng.normal())
        for key in range(1, 8)
        for i in range(n)
    ]


def rival(behind: float, interval: Any = None, name: str = "ridge regression") -> Baseline:
    loss = {"log_loss": 1 + behind}
    return Baseline(name=name, metrics=loss, behind=behind, interval=interval)


def judged(*rivals: Baseline, **more: Any) -> Comparison:
    usual = {"trial_id": 1, "task": "real", "on": "test", "n": 500, "metrics": {"log_loss": 1.0}}
    return Comparison(**{**usual, "baselines": rivals, **more})


# --- what is said


def of_seeds(home: Path) -> Iterator[str]:
    for n, noise in ((2, 0.01), (3, 0.01), (3, 0.3), (3, 0.0)):
        study = load(home / f"{n} {noise}", seeds(n, noise))
        sure = certainty_of(study)
        yield f"{n} seeds, noise {noise}: {certainty_sentence(study, sure)}"
        yield f"    {cost_sentence(study, sure)}"
    once = [record(key, key, value=QUALITY[key]) for key in range(1, 8)]
    raced = [record(RACE_IDS + i, 1, value=-5.0 - i, stage="race") for i in range(2)]
    yield f"no race: {load(home / 'once', once).order}"
    yield f"a race of one: {load(home / 'race', [*once, *raced]).order}"
    blind = [record(key, key, test_accuracy=None, test_nll_per_datum=None) for key in range(8)]
    yield f"no test rows: {report_on(load(home / 'blind', blind)).verdict}"
    yield f"three networks: {report_on(load(home / 'few', THREE)).verdict}"
    two, narrow = THREE[1:], {"mlp": {"width": IntRange(low=4, high=5)}, "linear": {}}
    yield f"in the middle of its range: {advice(load(home / 'wide', two), None)}"
    yield f"at its end: {advice(load(home / 'narrow', two, family=narrow), None)}"


INTERVALS = [(0.1, (0.06, 0.2)), (0.03, (-0.01, 0.07)), (-0.03, (-0.07, 0.01)), (0.05, None),
             (-0.1, (-0.2, -0.06)), (-0.045, None), (-0.06, None)]  # fmt: skip


def of_simple_models(home: Path) -> Iterator[str]:
    study = load(home / "a", THREE)
    mean = Baseline(name="mean", metrics={}, behind=0.9, interval=(0.8, 1.0))
    yield f"none yet: {worth_sentence(study, None)}"
    for behind, interval in INTERVALS:
        for lacks in ((), ("gradient boosting", IMPORTANCE), (IMPORTANCE,)):
            found = judged(mean, rival(behind, interval), lacks=lacks)
            yield f"{behind} {interval} without {lacks}: {worth_sentence(study, found)}"
    rivals = [rival(0.1, (0.06, 0.2), name) for name in ("ridge regression", "gradient boosting")]
    folds = judged(*rivals, on="folds", corrected=True, chosen_among=24, against=rivals[0].name)
    near = rivals[0].model_copy(update={"behind": -0.03, "interval": (-0.06, -0.001)})
    for name, update in {
        "corrected": {}, "not corrected": {"corrected": False, "against": None},
        "unknown, one": {"corrected": None, "chosen_among": 1, "against": None},
        "behind": {"baselines": (near, rivals[1])},  # chosen by each draw, without Bonferroni
    }.items():  # fmt: skip
        yield f"folds, {name}: {worth_sentence(study, folds.model_copy(update=update))}"
    linear = load(home / "b", [record(0, 0, value=0.0), record(1, 1, value=-5.0)])
    ahead = judged(rival(0.3, (0.2, 0.4)), trial_id=0)
    for lacks in ((), ("gradient boosting",)):
        found = ahead.model_copy(update={"lacks": lacks})
        yield f"a linear winner without {lacks}: {worth_sentence(linear, found)}"


def of_metrics(home: Path) -> Iterator[str]:
    study, real = load(home / "c", THREE, plan=CLASSES), load(home / "r", THREE, plan=REAL)
    for metric, task, values in (
        ("balanced_accuracy", "labels", (0.7, 0.9)), ("ece", "labels", (0.1, 0.2)),
        ("rmse", "real", (2.0, 1.0)), ("coverage", "real", (0.88, 0.97)),
    ):  # fmt: skip
        of = study if task == "labels" else real
        sticks = [Baseline(name=name, metrics={metric: value}, behind=0.1)
                  for name, value in zip(("mean", "ridge"), values, strict=True)]  # fmt: skip
        found = judged(*sticks, task=task, n=1500, metrics={metric: 0.5})
        yield f"{metric} {values}: {metric_sentence(found, metric, of)}"
        bare = found.model_copy(update={"metrics": {}, "on": "folds"})
        yield f"    no test: {metric_sentence(bare, metric, of)}"
        yield f"    no comparison: {metric_sentence(None, metric, of)}"
    one = judged(task="labels", n=400, metrics={"accuracy": 0.8}, errors={"accuracy": 0.02})
    more: dict[str, Any] = {}
    for update in ({}, {"on": "folds", "seeds": 3, "corrected": True}, {"chosen_among": 24},
                   {"seeds": 1, "corrected": False}):  # fmt: skip
        more |= update
        found = one.model_copy(update=more)
        yield f"accuracy {more}: {metric_sentence(found, 'accuracy', study)}"
    sticks = [
        Baseline(name=name, metrics={"accuracy": accuracy}, behind=0.1)
        for name, accuracy in (("majority class", 0.69), ("gradient boosting", 0.74))
    ]
    asked = judged(*sticks, task="labels", n=100, metrics={"accuracy": 0.71, "log_loss": 0.5},
                   trial_id=report_on(study).study.ranking[0].trial_id,
                   thresholds={"accuracy": 0.4})  # fmt: skip
    yield f"not asked for: {report_on(study, asked).headline.measured}"
    yield f"nothing measured: {report_on(study).headline.measured!r}"


@pytest.mark.parametrize("said", [of_seeds, of_simple_models, of_metrics])
def test_what_the_first_screen_says_is_what_was_approved(said: Any, tmp_path: Path) -> None:
    approve(f"first_screen_{said.__name__}", said(tmp_path))


# --- what must hold, whatever the words


def test_noise_and_seeds_decide_what_is_claimed(tmp_path: Path) -> None:
    calm, noisy = (load(tmp_path / str(noise), seeds(3, noise)) for noise in (0.01, 0.3))
    assert certainty_of(calm).best[0] > 0.95
    assert sum(certainty_of(calm).best) == pytest.approx(1.0)
    assert (certainty_of(noisy).best[0] < 0.8, certainty_of(noisy).tied) == (True, (1, 2))
    near = {"converged": False, "kept": "settled", "decrement_per_datum": 0.01}
    rows = [r.model_copy(update=near) if r.trial_id == 10 else r for r in seeds(3, 0.01)]
    assert certainty_of(load(tmp_path / "unsettled", rows)) == certainty_of(calm)


def test_no_probability_is_said_to_be_0_or_100_percent(tmp_path: Path) -> None:
    folder(tmp_path, seeds(3, 1e-4))
    sure = [CalibrationPoint(n=40, confidence=c, accuracy=0.97) for c in (0.001, 0.9999)]
    judged = Comparison(
        trial_id=load_study_tables(tmp_path).winner.trial_id, task="labels", on="test", n=80,
        metrics={"log_loss": 0.3}, calibration=tuple(sure),
    )  # fmt: skip
    write_comparison(tmp_path, judged)
    paths = build_report(tmp_path)
    told = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    first, *_, last = told["certainty"]["best"]
    assert first > 0.999  # as it is
    assert last < 0.001
    assert told["headline"]["sure"].startswith("More than 99 % likely to be the best of all tried")
    page = re.sub(r"<(style|script)>.*?</\1>", "", paths.html.read_text("utf-8"), flags=re.DOTALL)
    for said in (">more than 99 %<", ">less than 1 %<", "stated more than 99 %: 97 %"):
        assert said in page
    for text in (page, paths.markdown.read_text("utf-8")):
        assert not re.search(r"(?<![\d.])(100|0)(\.0+)? ?%", text)


@pytest.mark.parametrize("rivals", [2, 3, 5])
def test_no_is_said_of_equal_models_as_seldom_as_its_interval_states(
    tmp_path: Path, rivals: int
) -> None:
    study, rng, noes = load(tmp_path, THREE), np.random.default_rng(rivals), 0
    for _ in range(2000):
        losses = rng.normal(size=(rivals + 1, 200))
        found = [paired_interval(other - losses[0]) for other in losses[1:]]
        sticks = [rival(one.mean, (one.low, one.high), str(i)) for i, one in enumerate(found)]
        noes += worth_sentence(study, judged(*sticks, n=200, metrics={})).startswith("No:")
    assert noes / 2000 < 0.03  # 0.025 and a standard error; 0.04 to 0.09 uncorrected


def test_without_simple_models_of_a_kind_of_target_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(tmp_path, THREE)
    kind = study.spec.plan.declared.kind
    monkeypatch.setitem(TARGET_KINDS, kind.task, replace(kind, simple=""))
    assert "there are no simple models of" in worth_sentence(study, None)


def test_the_metrics_that_can_be_named_are_those_that_are_measured() -> None:
    p = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3]])
    two = np.array([[0.0], [1.0]])
    labels = class_metrics(p, np.array([0, 1, 1]))
    real = real_metrics(Normals.single(two, np.ones(1)), two, unit=np.ones(1))
    assert set(TARGET_KINDS["classification"].metrics) == set(labels)
    assert set(TARGET_KINDS["regression"].metrics) == set(real)
    for metric in ("rmse", None):
        check_metric(metric, "gaussian")
    for likelihood, pairs in {
        "categorical": "auc roc_auc, AUC roc_auc, acc accuracy, logloss log_loss, "
                       "ap average_precision, f1_score f1, balanced-accuracy balanced_accuracy",
        "gaussian": "mse rmse, MAE mae, neg_mean_squared_error rmse, r2_score r2, r_squared r2, "
                    "mape mae",
    }.items():  # fmt: skip
        for name, meant in map(str.split, pairs.split(", ")):
            with refused("unknown-metric", name, f"did you mean metric={meant}"):
                check_metric(name, likelihood)
    for metric, likelihood in (("f1", "gaussian"), ("rmse", "categorical")):
        with refused("unknown-metric", repr(metric)):
            check_metric(metric, likelihood)


def test_a_named_metric_comes_right_after_the_log_loss_on_the_page(tmp_path: Path) -> None:
    folder(tmp_path, THREE)
    metrics = {"accuracy": 0.9, "balanced_accuracy": 0.8, "log_loss": 0.3, "ece": 0.1}
    stick = Baseline(name="majority class", metrics=metrics, behind=0.5, interval=(0.4, 0.6))
    winner = load_study_tables(tmp_path).winner
    write_comparison(
        tmp_path, judged(stick, task="labels", metrics=metrics, trial_id=winner.trial_id)
    )
    for metric, names in (("balanced_accuracy", "balanced accuracy | accuracy"),
                          (None, "accuracy | balanced accuracy")):  # fmt: skip
        page = build_report(tmp_path, metric=metric).markdown.read_text("utf-8")
        assert f"| log loss | {names} | calibration error |" in page
        assert ("On 500 test rows, balanced" in page) == (metric is not None)
    told = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["comparison"]
    (simple,) = told["baselines"]
    assert (simple["name"], simple["behind"]) == ("majority class", 0.5)
    assert simple["interval"] == [0.4, 0.6]


def test_cross_validation_that_ranked_is_what_is_explained(tmp_path: Path) -> None:
    def folds(one: TrialRecord, *values: float) -> TrialRecord:
        terms = [
            Term(term=term, group=f"fold {k + 1}", value=value)
            for k, own in enumerate(values)
            for term, value in (("log_predictive", 50 * own), ("output_scale", 1.0))
        ]
        mean = sum(values) / 2
        estimate = EvidenceEstimate(
            estimator="two_fold", value=50 * mean, per_datum=mean, terms=tuple(terms)
        )
        more = Evaluation(epoch=one.epochs, estimate=estimate)
        return one.model_copy(update={"evaluations": (*one.evaluations, more)})

    rows = [folds(record(1, 1), -0.2, -0.4), folds(record(2, 2), -0.5, -0.6)]
    folder(tmp_path, rows, objective="two_fold", estimators=("kfac_ggn", "two_fold"))
    study: RankedStudy = load_study_tables(tmp_path)
    found = term_table(study)
    assert found.attrs["n_parts"] == 2
    assert found.iloc[0, 1:4].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert "probability of 74.1 %, the second 57.7 %" in explanation(study, found)


def test_outliers_move_to_the_edge_and_the_others_stay() -> None:
    known = [float(i) for i in range(8)]
    moved, beyond = within([*known, -500.0])
    assert (moved[:-1], beyond) == (known, [False] * 8 + [True])
    assert -2 < moved[-1] < 0
    assert within([*known, 8.0]) == ([*known, 8.0], [False] * 9)


def test_tables_that_contradict_each_other_are_one_sentence(tmp_path: Path) -> None:
    folder(tmp_path, THREE)
    tables = read_study_tables(tmp_path)
    other = tables.trials.assign(architecture_key="d1302c77be74")
    with pytest.raises(ValueError, match=r"contradict each other.*`nas-evidence verify`"):
        ranked_study(replace(tables, trials=other))


def test_a_study_is_called_by_its_folder_too_where_that_has_another_name(tmp_path: Path) -> None:
    folder(tmp_path / "b<i>", THREE)
    page = build_report(tmp_path / "b<i>").html.read_text(encoding="utf-8")
    assert "<h1>synthetic (b&lt;i&gt;)</h1>" in page
