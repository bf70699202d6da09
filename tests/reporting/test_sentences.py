"""Claims about sentences that a user acts on: guessing, advice, ranges, studies that run."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from searched import QUALITY, load, record

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.maths.guessing import is_guessing, least_gain
from nas_evidence.reporting.certainty import Certainty
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.headline import USUAL_RHO, advice, headline
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.spec.domains import FloatRange, IntRange
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.record import RACE_IDS, Evaluation, EvidenceEstimate, TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan

QUICK = TrainingPlan.model_validate({"likelihood": "categorical", "epochs": 20, "folds": 2})


def held_out(trial_id: int, architecture: int, per_datum: float) -> TrialRecord:
    one = record(trial_id, architecture)
    estimate = EvidenceEstimate(
        estimator="two_fold", value=100 * per_datum, per_datum=per_datum, valid=True
    )
    return one.model_copy(update={"evaluations": (Evaluation(epoch=20, estimate=estimate),)})


def of_classes(guess: float, behind: float = 0.3) -> Comparison:
    loss = {"log_loss": guess}
    plain = Baseline(name="majority class", metrics=loss, behind=behind)
    return Comparison(
        trial_id=1, task="labels", on="test", n=60, metrics={"log_loss": 0.8}, baselines=(plain,)
    )


def guessing(folder: Path, lead: float, **changes: object) -> list[TrialRecord]:
    return load(
        folder,
        [held_out(k, k, -1.1 + lead - 0.01 * (k - 1)) for k in range(1, 7)],
        objective="two_fold", estimators=("two_fold",), n_trials=6, plan=QUICK, **changes,
    )  # fmt: skip


@pytest.mark.slow
def test_where_no_network_beats_a_guess_it_is_said_first_and_none_is_taken(tmp_path: Path) -> None:
    study = guessing(tmp_path, 0.01)
    said = headline(study, None, of_classes(1.1, behind=0.01))
    assert said.answer.startswith("Choose none yet: no network predicts the 100 rows")
    assert "The best two_fold is -1.090 nats per datum, a guess has -1.100." in said.answer
    assert "So this ranking is arbitrary" in said.answer
    assert said.code == ""  # nobody takes the majority class
    both = of_classes(1.1)
    trees = Baseline(name="trees", metrics={"log_loss": 1.0}, behind=0.01, code="lines")
    both = both.model_copy(update={"baselines": (*both.baselines, trees)})
    found = headline(study, None, both)
    assert found.answer.startswith("Take trees: no network predicts the 100 rows")
    assert found.code == "lines"
    assert (said.sure, said.cost, said.together) == ("", "", "")


@pytest.mark.slow
def test_networks_that_beat_a_guess_or_whose_guess_is_unknown_are_taken(tmp_path: Path) -> None:
    study = guessing(tmp_path, 0.3)
    for comparison in (of_classes(1.1), None):
        assert headline(study, None, comparison).answer.startswith("Take mlp, width 5 (trial 1): ")


def test_the_best_of_guesses_is_rarely_taken_for_more(tmp_path: Path) -> None:
    """Calibrated predictions that know next to nothing, in 400 studies of 8 scores."""
    rng, n, k = np.random.default_rng(0), 240, 8
    wrong = 0
    for _ in range(400):
        p = np.clip(0.5 + 0.02 * rng.normal(size=(n, k)), 0.01, 0.99)
        y = rng.random(n) < 0.5
        score = np.log(np.where(y[:, None], p, 1 - p)).mean(0).max()
        wrong += not is_guessing(float(score), float(np.log(0.5)), n=n, k=k)
    assert wrong <= 0.05 * 400
    assert not is_guessing(-0.5, float(np.log(0.5)), n=n, k=k)
    assert least_gain(1000, 1) < least_gain(1000, 24) < least_gain(100, 24)


@pytest.mark.slow
def test_a_study_that_has_not_tried_all_says_so_far(tmp_path: Path) -> None:
    study = load(tmp_path, [record(1, 1), record(2, 2)], n_trials=6)
    said = headline(study, None, None).answer
    assert said == (
        "Take mlp, width 5 (trial 1) so far: the best of 2 architectures by kfac_ggn, with 2 of 6 "
        "trials done."
    )


def test_a_study_without_a_finite_score_says_so_and_names_none(tmp_path: Path) -> None:
    estimate = EvidenceEstimate(estimator="kfac_ggn", value=float("nan"), valid=False, note="NaN")
    one = record(1, 1).model_copy(
        update={"evaluations": (Evaluation(epoch=20, estimate=estimate),)}
    )
    said = report_on(load(tmp_path, [one])).headline.answer
    assert said.startswith(
        "Nothing can be ranked: none of the 1 complete trials has a finite kfac"
    )
    assert "most often because: NaN" in said
    assert "and another `out`" in said


def at(folder: Path, domain: IntRange | FloatRange, low: int, name: str = "width") -> list[str]:
    family = {"mlp": {name: domain}, "linear": {}}
    return advice(load(folder, [record(1, 1), record(2, 2)], family=family), None)


def test_a_winner_at_the_lower_end_is_advice_unless_there_is_nothing_below(tmp_path: Path) -> None:
    [said] = at(tmp_path / "a", IntRange(low=5, high=64), 5)
    assert "has the smallest width that was allowed, 5" in said
    assert (
        "Set family.mlp.width.low=4 and search again with another `out`" in said
    )  # no mlp is narrower
    narrow = load(
        tmp_path / "b",
        [record(1, 1).model_copy(update={"architecture": record(1, 1).architecture})],
        family={"mlp": {"width": IntRange(low=4, high=64)}, "linear": {}},
    )
    assert advice(narrow, None) == []


def test_no_convolutional_network_is_advised_that_the_images_do_not_carry(tmp_path: Path) -> None:
    deep = ArchitectureSpec(family="cnn", values={"depth": 3, "width": 16})
    family = {
        "cnn": {"depth": IntRange(low=1, high=3), "width": IntRange(low=2, high=16, log=True)},
        "linear": {},
    }
    records = [record(1, 1).model_copy(update={"architecture": deep}), record(0, 0)]
    study = load(tmp_path, records, family=family)
    [said] = advice(study, None, shape=(1, 8, 8))
    assert "family.cnn.width.high=32 " in said
    for shape in ((1, 32, 32), ()):  # of images that are large enough, and of unknown ones
        depth, width = advice(study, None, shape=shape)
        assert "family.cnn.depth.high=5 " in depth
        assert "family.cnn.width.high=32 " in width
    how_read = HowRead((), shape=(1, 8, 8))
    assert report_on(study, how_read=how_read).headline.advice == (said,)


def test_a_winner_at_an_edge_that_is_tied_with_one_inside_asks_for_no_wider_range(
    tmp_path: Path,
) -> None:
    family = {"mlp": {"width": IntRange(low=4, high=5)}, "linear": {}}
    study = load(tmp_path, [record(1, 1), record(2, 0), record(3, 2)], family=family)
    assert [one.values.get("width") for one in study.ranking] == [5, 6, None]
    for tied, n in (((), 1), ((1,), 1), ((2,), 1)):  # the second is at the same end
        sure = Certainty(3, (3, 3, 3), tied=tied)
        assert len(advice(study, None, sure=sure)) == n
    wider = study.spec.model_copy(
        update={"family": {"mlp": {"width": IntRange(low=5, high=64)}, "linear": {}}}
    )
    inside = replace(study, spec=wider)  # 5 is at its lower end now, 6 is inside
    assert len(advice(inside, None)) == 1
    assert advice(inside, None, sure=Certainty(3, (3, 3, 3), tied=(1,))) == []


def test_each_sentence_of_the_first_screen_has_one_idea(tmp_path: Path) -> None:
    """In at most 25 words; what stands in brackets is beside it."""
    narrow = {"mlp": {"width": IntRange(low=4, high=11)}, "linear": {}}
    once = [record(key, key, value=QUALITY[key]) for key in range(8)]
    again = [
        record(RACE_IDS + 3 * key + i, key, value=QUALITY[key] + 0.1 * i, stage="race")
        for key in (1, 5)
        for i in range(3)
    ]
    simple = Baseline(
        name="gradient boosting", metrics={"log_loss": 1.03, "accuracy": 0.9}, behind=0.03,
        interval=(-0.01, 0.07),
    )  # fmt: skip
    judged = Comparison(
        trial_id=RACE_IDS + 5, task="labels", on="test", n=500, baselines=(simple,),
        metrics={"log_loss": 1.0, "accuracy": 0.91}, errors={"accuracy": 0.01},
    )  # fmt: skip
    for records in (once, [*once, *again]):
        study = load(tmp_path / str(len(records)), records, family=narrow)
        report = report_on(study, judged)
        said = report.headline
        told = [said.answer, said.sure, said.cost, said.worth, said.together, said.measured,
                *said.advice, study.order, report.verdict]  # fmt: skip
        for text in told:
            for sentence in re.split(r"(?<=[.:;!?]) ", re.sub(r" ?\([^()]*\)", "", text)):
                assert len(sentence.split()) <= 25, sentence


def scored(folder: Path, quality: list[float], losses: list[float]) -> list[str]:
    records = [
        record(i, 1, value=value, test_nll_per_datum=loss).model_copy(
            update={"architecture": record(1, 1).architecture.model_copy(
                update={"values": {"width": 4 + i}})}
        )
        for i, (value, loss) in enumerate(zip(quality, losses, strict=True))
    ]  # fmt: skip
    return said_of(load(folder, [_both(one) for one in records], **ESTIMATED))


ESTIMATED = {
    "objective": "conditional_evidence", "rank_by": "estimate",
    "estimators": ("conditional_evidence", "elpd"),
}  # fmt: skip


def _both(one: TrialRecord) -> TrialRecord:
    """Return a trial whose evidence is that of both scores of the default ranking."""
    estimate = one.evaluations[-1].estimate
    renamed = (estimate.model_copy(update={"estimator": n, "terms": ()})
               for n in ESTIMATED["estimators"])  # fmt: skip
    return one.model_copy(
        update={"evaluations": tuple(Evaluation(epoch=20, estimate=e) for e in renamed)}
    )


def said_of(study: RankedStudy) -> list[str]:
    return [one for one in report_on(study).headline.advice if "ranks these" in one]


def beside(folder: Path, n: int, *, asked: bool = True) -> RankedStudy:
    """A study that ranks by kfac_ggn, in reverse, and has five_fold, which ranks better."""
    rng = np.random.default_rng(0)
    losses, records = rng.normal(size=n), []
    for i, loss in enumerate(losses):
        one = record(i, 1, value=loss + 0.1 * rng.normal(), test_nll_per_datum=loss)
        own = -loss + 0.1 * rng.normal()
        other = EvidenceEstimate(estimator="five_fold", value=100 * own, per_datum=own)
        records.append(
            one.model_copy(
                update={
                    "architecture": ArchitectureSpec(family="mlp", values={"width": 4 + i}),
                    "evaluations": (*one.evaluations, Evaluation(epoch=20, estimate=other)),
                }
            )
        )
    names = ("kfac_ggn", "five_fold")
    return load(folder, records, n_trials=n, estimators=names if asked else names[:1])


@pytest.mark.slow
def test_another_score_is_advised_only_of_ten_architectures_that_tell_them_apart(
    tmp_path: Path,
) -> None:
    few, unasked = beside(tmp_path / "9", 9), beside(tmp_path / "by-product", 12, asked=False)
    study = beside(tmp_path / "12", 12)
    [said] = said_of(study)
    rho = {row.score: row.statistics.rho for row in report_on(study).trust.rows
           if (row.target, row.group) == ("test_nll_per_datum", "all")}  # fmt: skip
    assert said.startswith("On the test data kfac_ggn ranks these architectures worse than chance")
    assert said.endswith(
        "five_fold ranks these architectures better than kfac_ggn on the test data: rho "
        f"{rho['five_fold']:.2f} beside {rho['kfac_ggn']:.2f}, ahead in more than 99 % of "
        "resamples. Set objective=five_fold, search again with another `out`, and judge it on "
        "other test rows."
    )
    step = report_on(study).next_step().command
    assert "study.toml --set objective=five_fold --out" in step
    # One whose lead may be chance (rho 0.58 beside 0.08), and one that is better but bad.
    frame, rng = study.architectures, np.random.default_rng(1)
    lucky = frame.assign(kfac_ggn=rng.normal(size=12), five_fold=rng.normal(size=12))
    bad = frame.assign(five_fold=frame["kfac_ggn"] + 0.9 * frame["five_fold"])  # rho -0.45
    assert said_of(replace(study, architectures=lucky)) == []
    for one in (few, unasked, replace(study, architectures=bad)):
        assert "No other score of the study is clearly better." in said_of(one)[0]


@pytest.mark.slow
def test_only_the_ranking_whose_usual_rho_was_measured_is_compared_with_it(
    tmp_path: Path,
) -> None:
    study = beside(tmp_path, 12, asked=False)  # by kfac_ggn, of which none was
    assert study.architectures["kfac_ggn"].corr(study.architectures["test_nll_per_datum"]) < -0.9
    assert "usually" not in " ".join(report_on(study).headline.advice)


@pytest.mark.slow
def test_a_score_is_not_accused_of_what_chance_does_to_a_usual_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    quality = list(rng.normal(size=24))
    few = sorted(quality[:12], reverse=True)
    chance = [
        0.8,
        0.1,
        0.2,
        0.0,
        0.5,
        0.3,
        0.7,
        0.9,
        1.2,
        0.6,
        1.1,
        1.0,
    ]  # rho 0.66 with the score
    assert scored(tmp_path / "a", few, chance) == []  # though the first is in the worse half
    [said] = scored(tmp_path / "b", quality, [q + 0.1 * rng.normal() for q in quality])
    assert "estimate ranks these architectures worse than it usually does: rho -0." in said
    assert f"usually about {USUAL_RHO['classification']:.2f}" in said
    assert "No other score of the study is clearly better." in said
    assert "set objective" not in said
