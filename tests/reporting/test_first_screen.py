"""Claims about the first screen: no probability without three seeds, one
sentence on simple models, advice only with a remedy, and one score in every place."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
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
from nas_evidence.reporting.study_tables import load_study_tables, ranked_study
from nas_evidence.reporting.terms import explanation, term_table
from nas_evidence.reporting.words import chance
from nas_evidence.spec.likelihoods import TARGET_KINDS, declared
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.record import RACE_IDS, Evaluation, EvidenceEstimate, Term, TrialRecord
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.storage.tables import read_study_tables

ON = "ridge regression on these 500 test rows"
NOT = "No clear gain over ridge regression"


def seeds(n: int, noise: float, **changes: object) -> list[TrialRecord]:
    rng = np.random.default_rng(0)
    return [
        record(10 * key + i, key, value=QUALITY[key] + noise * rng.normal(), **changes)
        for key in range(1, 8)
        for i in range(n)
    ]


@pytest.mark.slow
def test_two_seeds_give_no_probability_and_three_do(tmp_path: Path) -> None:
    two, three = load(tmp_path / "2", seeds(2, 0.01)), load(tmp_path / "3", seeds(3, 0.01))
    said = certainty_sentence(two, certainty_of(two))
    assert said.startswith("Unknown. Each architecture was trained twice; set final")
    assert "%" not in said
    sure = certainty_of(three)
    assert sure.best[0] > 0.95
    assert sum(sure.best) == pytest.approx(1.0)
    said = certainty_sentence(three, sure)
    assert "from 3 seeds of each of the first 5" in said


@pytest.mark.slow
def test_what_is_lost_is_said_for_the_case_that_another_one_is_the_best(tmp_path: Path) -> None:
    study = load(tmp_path, seeds(3, 0.3))
    sure = certainty_of(study)
    lost = sure.expected_loss / (1 - sure.best[0])  # nothing is lost in the other cases
    said = cost_sentence(study, sure)
    assert f"If another is truly best, you lose about {lost:.3f} nats" in said


@pytest.mark.slow
def test_noise_makes_the_first_unsure_and_ties_it_with_the_next(tmp_path: Path) -> None:
    study = load(tmp_path, seeds(3, 0.3))
    sure = certainty_of(study)
    assert sure.best[0] < 0.8
    assert 0 < sure.expected_loss < 0.5
    assert sure.tied == (1, 2)
    said = certainty_sentence(study, sure)
    assert said.startswith("The first 3 are tied by kfac_ggn: they differ by less than one seed")
    assert f"with a probability of {chance(sure.together)}, from 3 seeds of each" in said


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_leader_that_stopped_before_a_mode_has_its_probability(tmp_path: Path) -> None:
    near = {"converged": False, "kept": "settled", "decrement_per_datum": 0.01}
    records = seeds(3, 0.01)
    unsettled = [one.model_copy(update=near) if one.trial_id == 10 else one for one in records]
    found = certainty_of(load(tmp_path / "a", unsettled))  # trial 10 is a seed of the best
    assert found == certainty_of(load(tmp_path / "b", records))
    assert found.best is not None


@pytest.mark.slow
def test_seeds_that_all_agree_are_no_reason_to_train_again(tmp_path: Path) -> None:
    study = load(tmp_path, seeds(3, 0.0))
    said = certainty_sentence(study, certainty_of(study))
    assert said == (
        "Unknown: kfac_ggn does not differ between seeds, so its noise cannot be measured."
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behind", "interval", "said"),
    [
        (0.1, (0.06, 0.2), f"Yes: clearly better than {ON} (LOSS 1.000 and 1.100; "),
        (0.03, (-0.01, 0.07), f"{NOT}. The winner is ahead by 0.030 (LOSS 1.000 and 1.030), "),
        (-0.03, (-0.07, 0.01), f"{NOT}. The winner is behind by 0.030 (LOSS 1.000 and 0.970), "),
        (-0.1, (-0.2, -0.06), f"No: clearly worse than {ON} (LOSS 1.000 and 0.900; "),
        (0.05, None, f"Yes: clearly better than {ON} (LOSS 1.000 and 1.050; "),
        (-0.045, None, f"{NOT}. The winner is behind by 0.045 (LOSS 1.000 and 0.955), "),
        (-0.06, None, f"No: clearly worse than {ON} (LOSS 1.000 and 0.940; "),
    ],
)
def test_a_network_is_worth_it_only_if_the_interval_leaves_out_no_difference(
    tmp_path: Path, behind: float, interval: tuple[float, float] | None, said: str
) -> None:
    study = load(tmp_path, [record(key, key) for key in range(3)])
    sticks = (
        Baseline(name="mean", metrics={}, behind=0.9, interval=(0.8, 1.0)),
        Baseline(
            name="ridge regression",
            metrics={"log_loss": 1 + behind},
            behind=behind,
            interval=interval,
        ),
    )
    judged = Comparison(
        trial_id=1, task="real", on="test", n=500, metrics={"log_loss": 1.0}, baselines=sticks
    )  # fmt: skip
    sentence = worth_sentence(study, judged)
    assert said.replace("LOSS", "log loss of the standardised target") in sentence
    usual = 1.96 * 0.5 / 500**0.5
    low, high = interval or (behind - usual, behind + usual)
    if said.startswith(NOT):  # no advice that these data do not bear out
        lucky = ", since the best of 2 simple models is partly lucky" * (high < 0)
        assert sentence.endswith(
            f", but 500 test rows cannot rule out chance{lucky}. The simple model is cheaper."
        )
        return
    if said.startswith("No:"):  # the interval of the best of two
        low, high = (behind + 2.2479 / 1.9647 * (end - behind) for end in (low, high))
        assert ", corrected for 2 simple models). Take the simple model." in sentence
    ends = sorted((abs(low), abs(high)))
    assert f"95 % interval of the difference {ends[0]:.3f} to {ends[1]:.3f}" in sentence
    assert "Unknown" in worth_sentence(study, None)
    short = judged.model_copy(update={"lacks": ("gradient boosting", IMPORTANCE)})
    if said.startswith("Yes"):  # the best of the simple models may be the one that is missing
        assert worth_sentence(study, short).startswith("Unknown: clearly better than ridge")
        assert "no time for gradient boosting." in worth_sentence(study, short)
    else:
        assert worth_sentence(study, short) == sentence
    only = judged.model_copy(update={"lacks": (IMPORTANCE,)})
    assert worth_sentence(study, only) == sentence


def test_without_simple_models_of_a_kind_of_target_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(tmp_path, [record(key, key) for key in range(3)])
    kind = study.spec.plan.declared.kind
    assert "`nas-evidence report` does so" in worth_sentence(study, None)
    monkeypatch.setitem(TARGET_KINDS, kind.task, replace(kind, simple=""))
    assert worth_sentence(study, None) == (
        f"Unknown: there are no simple models of {kind.targets} to compare with."
    )


def test_a_linear_winner_is_never_said_to_be_worth_its_weights(tmp_path: Path) -> None:
    """It is what ridge regression is: ahead of it, it says nothing for a network."""
    study = load(tmp_path, [record(0, 0, value=0.0), record(1, 1, value=-5.0)])
    assert study.winner.family == "linear"
    ridge = Baseline(name="ridge regression", metrics={"log_loss": 1.3}, behind=0.3,
                     interval=(0.2, 0.4))  # fmt: skip
    judged = Comparison(
        trial_id=0, task="real", on="test", n=500, metrics={"log_loss": 1.0}, baselines=(ridge,)
    )
    for lacks in ((), ("gradient boosting",)):
        said = worth_sentence(study, judged.model_copy(update={"lacks": lacks}))
        assert said.startswith("No: the linear model itself comes first by ")
        assert "beside ridge regression on these 500 test rows: log loss" in said
    bent = replace(study.ranking[0], values={"numbers": "piecewise"})  # no straight line
    said = worth_sentence(replace(study, ranking=(bent, *study.ranking[1:])), judged)
    assert said.startswith("Yes: clearly better than ridge regression")


@pytest.mark.slow
@pytest.mark.parametrize("rivals", [2, 3, 5])
def test_no_is_said_of_equal_models_as_seldom_as_its_interval_states(
    tmp_path: Path, rivals: int
) -> None:
    study = load(tmp_path, [record(key, key) for key in range(3)])
    rng, n, n_studies, noes = np.random.default_rng(rivals), 200, 2000, 0
    for _ in range(n_studies):
        losses = rng.normal(size=(rivals + 1, n))
        found = [paired_interval(other - losses[0]) for other in losses[1:]]
        judged = Comparison(
            trial_id=1, task="real", on="test", n=n, metrics={},
            baselines=tuple(
                Baseline(name=str(i), metrics={}, behind=one.mean, interval=(one.low, one.high))
                for i, one in enumerate(found)
            ),
        )  # fmt: skip
        noes += worth_sentence(study, judged).startswith("No:")
    assert noes / n_studies < 0.03  # 0.025 and a standard error; 0.04 to 0.09 uncorrected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "metric", "values", "best"),
    [
        ("categorical", "balanced_accuracy", (0.7, 0.9), "ridge"),
        ("categorical", "ece", (0.1, 0.2), "mean"),
        ("gaussian", "rmse", (2.0, 1.0), "ridge"),
        ("gaussian", "coverage", (0.88, 0.97), "mean"),
    ],
)
def test_a_named_metric_is_said_beside_the_simple_model_that_is_best_by_it(
    tmp_path: Path, likelihood: str, metric: str, values: tuple[float, float], best: str
) -> None:
    plan = TrainingPlan.model_validate({"likelihood": likelihood, "epochs": EPOCHS})
    study = load(tmp_path, [record(key, key) for key in range(3)], plan=plan)
    sticks = tuple(
        Baseline(name=name, metrics={metric: value}, behind=0.1)
        for name, value in zip(("mean", "ridge"), values, strict=True)
    )
    judged = Comparison(
        trial_id=1, task="real", on="test", n=1500, metrics={metric: 0.5}, baselines=sticks
    )
    words, own = (
        declared(likelihood).kind.metrics[metric],
        dict(zip(("mean", "ridge"), values, strict=True))[best],
    )
    said = metric_sentence(judged, metric, study)
    assert said.startswith(f"On 1,500 test rows, {words} 0.500; {best}, ")
    assert f", the best simple model by it, {own:.3f}" in said
    assert ("; the mean alone" in said) == (best != "mean")
    assert "unknown" in metric_sentence(None, metric, study)
    bare = judged.model_copy(update={"metrics": {}, "on": "folds"})
    assert "there is no test split" in metric_sentence(bare, metric, study)


def test_an_accuracy_is_said_with_its_error_and_the_seeds_it_is_a_mean_of(tmp_path: Path) -> None:
    plan = TrainingPlan.model_validate({"likelihood": "categorical", "epochs": EPOCHS})
    study = load(tmp_path, [record(key, key) for key in range(3)], plan=plan)
    one = Comparison(
        trial_id=1, task="labels", on="test", n=400, metrics={"accuracy": 0.8},
        errors={"accuracy": 0.02},
    )  # fmt: skip
    assert metric_sentence(one, "accuracy", study) == "On 400 test rows, accuracy 0.800 ± 0.020."
    three = one.model_copy(update={"on": "folds", "seeds": 3, "corrected": True})
    said = metric_sentence(three, "accuracy", study)
    assert said == "On rows not trained on, accuracy 0.800 ± 0.020 (mean of 3 seeds)."
    chosen = three.model_copy(update={"chosen_among": 24})
    assert metric_sentence(chosen, "accuracy", study).endswith(
        "(mean of 3 seeds; corrected for the choice among 24 architectures)."
    )
    lucky = chosen.model_copy(update={"seeds": 1, "corrected": False})
    assert metric_sentence(lucky, "accuracy", study).endswith(
        "± 0.020 (chosen on these rows among 24 architectures, so optimistic)."
    )


def test_on_folds_yes_is_said_only_where_the_numbers_are_free_of_the_choice(
    tmp_path: Path,
) -> None:
    study = load(tmp_path, [record(key, key) for key in range(3)])
    simple = [
        Baseline(name=name, metrics={"log_loss": 1.1}, behind=0.1, interval=(0.06, 0.2))
        for name in ("ridge regression", "gradient boosting")
    ]
    judged = Comparison(
        trial_id=1, task="real", on="folds", n=500, metrics={"log_loss": 1.0}, corrected=True,
        chosen_among=24, baselines=tuple(simple), against=simple[0].name,
    )  # fmt: skip
    assert worth_sentence(study, judged).startswith("Yes: clearly better than ridge regression")
    assert "; corrected for the choice among 24 architectures; 95 %" in worth_sentence(
        study, judged
    )
    for update in ({"corrected": False}, {"corrected": None, "chosen_among": 1}):
        lucky = judged.model_copy(update={**update, "against": None})
        said = worth_sentence(study, lucky)
        assert said.startswith("Unknown: ahead of ridge regression by 0.100 on these 500 rows")
        assert "chosen on these rows" in said
        assert "test_fraction=0.2 (--test-fraction)" in said
    # The simple model that each draw chooses is the one that counts, without Bonferroni.
    near = simple[0].model_copy(update={"behind": -0.03, "interval": (-0.06, -0.001)})
    worse = worth_sentence(study, judged.model_copy(update={"baselines": (near, simple[1])}))
    assert worse.startswith("No: clearly worse than ridge regression")
    assert "simple models)" not in worse


def test_the_majority_class_is_said_without_being_asked_for(tmp_path: Path) -> None:
    plan = TrainingPlan.model_validate({"likelihood": "categorical", "epochs": EPOCHS})
    study = load(tmp_path, [record(key, key) for key in range(3)], plan=plan)
    judged = Comparison(
        trial_id=report_on(study).study.ranking[0].trial_id,
        task="labels", on="test", n=100, metrics={"accuracy": 0.71, "log_loss": 0.5},
        baselines=tuple(
            Baseline(name=name, metrics={"accuracy": accuracy}, behind=0.1)
            for name, accuracy in (("majority class", 0.69), ("gradient boosting", 0.74))
        ),
        thresholds={"accuracy": 0.4},
    )  # fmt: skip
    assert report_on(study, judged).headline.measured == (
        "On 100 test rows, accuracy 0.710; gradient boosting, the best simple model by it, 0.740; "
        "the majority class alone 0.690."
    )
    assert report_on(study).headline.measured == ""


def test_the_metrics_that_can_be_named_are_those_that_are_measured() -> None:
    p = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3]])
    labels, two = class_metrics(p, np.array([0, 1, 1])), np.array([[0.0], [1.0]])
    assert set(TARGET_KINDS["classification"].metrics) == set(labels)
    real = real_metrics(Normals.single(two, np.ones(1)), two, unit=np.ones(1))
    assert set(TARGET_KINDS["regression"].metrics) == set(real)
    check_metric("rmse", "gaussian")
    check_metric(None, "gaussian")
    with refused("unknown-metric", "log_loss, rmse, mae, r2, crps, coverage", "'f1'"):
        check_metric("f1", "gaussian")
    with refused("unknown-metric", "'rmse'", "real targets"):
        check_metric("rmse", "categorical")


@pytest.mark.parametrize(
    ("likelihood", "name", "meant"),
    [
        ("categorical", "auc", "roc_auc"),
        ("categorical", "AUC", "roc_auc"),
        ("categorical", "acc", "accuracy"),
        ("categorical", "logloss", "log_loss"),
        ("categorical", "ap", "average_precision"),
        ("categorical", "f1_score", "f1"),
        ("categorical", "balanced-accuracy", "balanced_accuracy"),
        ("gaussian", "mse", "rmse"),
        ("gaussian", "MAE", "mae"),
        ("gaussian", "neg_mean_squared_error", "rmse"),
        ("gaussian", "r2_score", "r2"),
        ("gaussian", "r_squared", "r2"),
        ("gaussian", "mape", "mae"),
    ],
)
def test_another_name_of_a_metric_gets_the_one_that_can_be_typed(
    likelihood: str, name: str, meant: str
) -> None:
    with refused("unknown-metric", name, f"did you mean metric={meant}"):
        check_metric(name, likelihood)


@pytest.mark.slow
def test_a_named_metric_comes_right_after_the_log_loss_on_the_page(tmp_path: Path) -> None:
    folder(tmp_path, [record(key, key) for key in range(3)])
    winner = load_study_tables(tmp_path).winner
    metrics = {"accuracy": 0.9, "balanced_accuracy": 0.8, "log_loss": 0.3, "ece": 0.1}
    stick = Baseline(name="majority class", metrics=metrics, behind=0.5, interval=(0.4, 0.6))
    write_comparison(
        tmp_path,
        Comparison(
            trial_id=winner.trial_id, task="labels", on="test", n=500, metrics=metrics,
            baselines=(stick,),
        ),
    )  # fmt: skip
    asked = build_report(tmp_path, metric="balanced_accuracy").markdown.read_text("utf-8")
    told = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["comparison"]
    (simple,) = told["baselines"]
    assert (simple["name"], simple["behind"]) == ("majority class", 0.5)
    assert simple["interval"] == [0.4, 0.6]
    assert "| log loss | balanced accuracy | accuracy | calibration error |" in asked
    assert "On 500 test rows, balanced accuracy 0.800" in asked
    plain = build_report(tmp_path).markdown.read_text("utf-8")
    assert "| log loss | accuracy | balanced accuracy | calibration error |" in plain
    assert "On 500 test rows, balanced" not in plain


def test_a_winner_at_the_end_of_a_range_is_advice_and_in_the_middle_is_none(
    tmp_path: Path,
) -> None:
    from nas_evidence.spec.domains import IntRange

    study = load(tmp_path / "a", [record(1, 1), record(2, 2)])
    assert advice(study, None) == []
    narrow = {"mlp": {"width": IntRange(low=4, high=5)}, "linear": {}}
    [said] = advice(load(tmp_path / "b", [record(1, 1), record(2, 2)], family=narrow), None)
    assert "has the largest width that was allowed, 5" in said
    assert "Set family.mlp.width.high=10 and search again with another `out`" in said


def test_cross_validation_that_ranked_is_what_is_explained(tmp_path: Path) -> None:
    def folds(one: TrialRecord, first: float, second: float) -> TrialRecord:
        terms = [
            Term(term=term, group=f"fold {k + 1}", value=value)
            for k, own in enumerate((first, second))
            for term, value in (("log_predictive", 50 * own), ("output_scale", 1.0))
        ]
        estimate = EvidenceEstimate(
            estimator="two_fold",
            value=25 * (first + second),
            per_datum=(first + second) / 2,
            terms=tuple(terms),
        )
        more = Evaluation(epoch=one.epochs, estimate=estimate)
        return one.model_copy(update={"evaluations": (*one.evaluations, more)})

    records = [folds(record(1, 1), -0.2, -0.4), folds(record(2, 2), -0.5, -0.6)]
    names = ("kfac_ggn", "two_fold")
    folder(tmp_path, records, objective="two_fold", estimators=names)
    study = load_study_tables(tmp_path)
    found = term_table(study)
    parts, total = found.iloc[0, 1:3].tolist(), found.iloc[0, 3]
    assert found.attrs["n_parts"] == 2
    assert parts == pytest.approx([-0.1, -0.2])  # of all data, half in each fold
    assert total == pytest.approx(sum(parts))
    said = explanation(study, found)
    assert "probability of 74.1 %, the second 57.7 %" in said


def test_outliers_move_to_the_edge_and_the_others_stay() -> None:
    known = [float(i) for i in range(8)]
    moved, beyond = within([*known, -500.0])
    assert moved[:-1] == known
    assert beyond == [False] * 8 + [True]
    assert -2 < moved[-1] < 0
    assert within([*known, 8.0]) == ([*known, 8.0], [False] * 9)


@pytest.mark.slow
def test_the_ranking_says_by_what_it_ranks_where_a_race_trained_some_again(
    tmp_path: Path,
) -> None:
    once = [record(key, key, value=QUALITY[key]) for key in range(1, 8)]
    plain = load(tmp_path / "a", once)
    assert plain.order == "Ranked by kfac_ggn, best first."
    raced = [record(RACE_IDS + i, 1, value=-5.0 - i, stage="race") for i in range(2)]
    study = load(tmp_path / "b", [*once, *raced])
    assert (study.winner.objective or 0) < (study.ranking[1].objective or 0)
    assert "The first 1 were trained" not in study.order
    assert study.order.startswith("The first one was trained several times")
    page = build_report(tmp_path / "b")
    for path in (page.html, page.markdown):
        assert "whose score may be higher by luck" in path.read_text("utf-8")


@pytest.mark.slow
def test_a_study_without_test_rows_says_what_is_known_of_its_score_instead(
    tmp_path: Path,
) -> None:
    blind = [record(key, key, test_accuracy=None, test_nll_per_datum=None) for key in range(8)]
    said = report_on(load(tmp_path / "a", blind)).verdict
    assert said.startswith("There are no test rows to check kfac_ggn against.")
    assert "docs/explanation/ranking.md" in said
    assert "undefined" not in said
    few = report_on(load(tmp_path / "b", [record(key, key) for key in range(3)])).verdict
    assert few == "3 architectures are too few to tell whether kfac_ggn predicts test log loss."


def test_tables_that_contradict_each_other_are_one_sentence(tmp_path: Path) -> None:
    folder(tmp_path, [record(key, key) for key in range(3)])
    tables = read_study_tables(tmp_path)
    other = tables.trials.assign(architecture_key="d1302c77be74")
    with pytest.raises(ValueError, match=r"contradict each other.*`nas-evidence verify`"):
        ranked_study(replace(tables, trials=other))


@pytest.mark.slow
def test_a_study_is_called_by_its_folder_too_where_that_has_another_name(tmp_path: Path) -> None:
    folder(tmp_path / "b<i>", [record(key, key) for key in range(3)])
    page = build_report(tmp_path / "b<i>").html.read_text(encoding="utf-8")
    assert "<h1>synthetic (b&lt;i&gt;)</h1>" in page
