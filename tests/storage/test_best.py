"""Which trial is best: one answer for the status, the report, the export and the kept weights."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from fakes import finished, logged
from records import at, laplace, mlp, record_with
from searched import build_report

import nas_evidence.driver.outcomes as results_module
import nas_evidence.storage.best as best_module
from nas_evidence.api.results import Study
from nas_evidence.api.runs import other_first
from nas_evidence.driver.outcomes import KeptModels, result_of
from nas_evidence.driver.status import study_status
from nas_evidence.exporting.folder import trial_to_export
from nas_evidence.maths.architecture_posterior import (
    OF_NOISY_SEEDS,
    ArchitecturePosterior,
    Prior,
)
from nas_evidence.proposing.further import gain_of_further
from nas_evidence.proposing.proposer import Proposer
from nas_evidence.reporting.certainty import certainty_of
from nas_evidence.reporting.headline import certainty_sentence, headline, together_sentence
from nas_evidence.reporting.recommendation import expected_gain
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.record import (
    RACE_IDS,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.tables import read_study_tables, write_record
from nas_evidence.storage.trial_row import TrialRow

STUDY = StudySpec.model_validate(
    {
        "name": "two seeds",
        "objective": "kfac_ggn",
        "n_trials": 500,
        "finalists": 0,
        "replicates": 2,
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 1000}}},
    }
)


def record(
    trial_id: int, width: int, value: float, status: TrialStatus = TrialStatus.COMPLETE
) -> TrialRecord:
    return record_with(
        trial_id,
        replicate=trial_id % 2,
        architecture=mlp(width=width),
        status=status,
        n_parameters=width,
        evaluations=at(1, laplace(value / 100)),
        test_accuracy=0.5,
        test_nll_per_datum=1.0,
    )


#: The luckiest trial is 1, pruned trials are no candidates, and the best mean is that of width 20,
#: for which trial 3 stands.
TWO_SEEDS = (
    record(0, 10, -900.0),
    record(1, 10, -100.0),
    record(2, 20, -310.0),
    record(3, 20, -290.0),
    record(4, 30, -400.0),
    record(5, 30, -1.0, TrialStatus.PRUNED),
)


def rows(*records: TrialRecord) -> list[TrialRow]:
    return [TrialRow.of(one) for one in records]


def test_the_best_mean_wins_and_its_best_replicate_stands_for_it() -> None:
    standings = Standings(STUDY, rows(*TWO_SEEDS))
    assert [one.trial_id for one in standings.first()] == [3, 4, 1]
    assert [one.mean for one in standings.first()] == [-300.0, -400.0, -500.0]


def test_the_order_of_arrival_decides_nothing_and_equals_keep_the_order_of_trials() -> None:
    records = [record(i, i // 2 % 7, float(i % 3)) for i in range(40)]
    expected = Standings(STUDY, rows(*records)).first()
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert Standings(STUDY, rows(*records)).first() == expected


def test_status_report_export_and_kept_weights_agree_on_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.toml").write_text(dump_study(STUDY), encoding="utf-8")
    models = tmp_path / "models"
    models.mkdir()
    for one in TWO_SEEDS:
        write_record(tmp_path, one, STUDY)
        (models / f"{one.trial_id}.safetensors").touch()
    logged(tmp_path)
    done = finished(tmp_path)
    best, winner = study_status(tmp_path).best, load_study_tables(tmp_path).winner
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 5)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 1)
    KeptModels(tmp_path, STUDY, done).limit(len(done))
    kept = [int(path.stem) for path in models.iterdir()]
    exported = trial_to_export(read_study_tables(tmp_path, STUDY))
    assert (best.trial_id, winner.trial_id, exported, kept) == (3, 3, 3, [3])


def test_of_more_than_200_trials_the_weights_of_the_winner_are_always_kept(
    tmp_path: Path,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    rng = random.Random(0)
    standings, kept = Standings(STUDY), KeptModels(tmp_path, STUDY, {})
    # The noise between seeds exceeds the differences: lucky trials are of bad architectures.
    for trial_id in range(300):
        width = trial_id // 2
        row = TrialRow.of(record(trial_id, width, -abs(width - 75) + rng.gauss(0, 40)))
        standings.add(row)
        (models / f"{trial_id}.safetensors").touch()
        kept.add(row, trial_id + 1)
        assert (models / f"{standings.best.trial_id}.safetensors").exists()
    there = {int(path.stem) for path in models.iterdir()}
    best = {one.trial_id for one in standings.first(results_module.KEEP_BEST_MODELS)}
    assert there <= best


def test_whichever_of_many_finalists_wins_the_race_its_weights_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 10)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 2)
    study = STUDY.model_copy(update={"finalists": 6})
    models = tmp_path / "models"
    models.mkdir()

    def end(one: TrialRecord) -> None:
        (models / f"{one.trial_id}.safetensors").touch()
        done.append(TrialRow.of(one))
        kept.add(done[-1], len(done))
        winner = Standings(STUDY, done).best
        assert (models / f"{winner.trial_id}.safetensors").exists()

    done: list[TrialRow] = []
    kept = KeptModels(tmp_path, study, {})
    for first, n_search in ((0, 30), (30, 40)):  # the longer search has other finalists
        for trial_id in range(first, n_search):
            end(record(trial_id, trial_id, float(trial_id)))
        for finalist in range(n_search - 6, n_search):  # all but the first of them fall
            fall = 0.0 if finalist == n_search - 6 else 90.0
            end(record(RACE_IDS + finalist, finalist, finalist - fall))
    assert len(list(models.iterdir())) <= 12 + 6


def test_whichever_wins_the_race_its_weights_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 10)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 2)
    study = STUDY.model_copy(update={"finalists": 3})
    models, done = tmp_path / "models", list[TrialRow]()
    models.mkdir()
    kept = KeptModels(tmp_path, study, {})
    trials = [record(i, i, float(i)) for i in range(20)]
    trials += [record(RACE_IDS + k, 19 - k % 3, 50.0 * (k % 2)) for k in range(9)]
    for one in trials:
        (models / f"{one.trial_id}.safetensors").touch()
        done.append(TrialRow.of(one))
        kept.add(done[-1], len(done))
    winner = Standings(study, done).best
    assert (models / f"{winner.trial_id}.safetensors").exists()


#: As `search` proposes it for few rows: ranked by the estimate.
FEW_ROWS = StudySpec.model_validate(
    {
        "name": "few rows",
        "n_trials": 24,
        "finalists": 4,
        "estimators": ["conditional_evidence", "elpd"],
        "dataset": {"name": "digits"},
        "plan": {"folds": 5},
        "rank_by": "estimate",
        "family": {
            "mlp": {"width": {"low": 4, "high": 64, "log": True}, "depth": {"low": 1, "high": 3}}
        },
    }
)


def few_rows_trial(
    trial_id: int, width: int, depth: int, evidence: float, elpd: float | None = None
) -> TrialRecord:
    scores = {"conditional_evidence": evidence, "elpd": evidence if elpd is None else elpd}
    return record_with(
        trial_id,
        architecture=mlp(width=width, depth=depth),
        evaluations=at(1, *(laplace(v / 100, kind=kind) for kind, v in scores.items())),
    )


def searched(n: int = 24, seed: int = 0) -> list[TrialRecord]:
    """Wider is better; a third of the variance is the luck of a seed."""
    rng = random.Random(seed)
    places = [(width, depth) for width in range(6, 62, 6) for depth in (1, 2, 3)]
    return [
        few_rows_trial(i, width, depth, width + rng.gauss(0, 15), width + rng.gauss(0, 15))
        for i, (width, depth) in enumerate(rng.sample(places, n))
    ]


def written(folder: Path, records: list[TrialRecord]) -> list[TrialRecord]:
    (folder / "study.toml").write_text(dump_study(FEW_ROWS), encoding="utf-8")
    for one in records:
        write_record(folder, one, FEW_ROWS)
    logged(folder)
    return records


def values_of(records: Sequence[TrialRecord]) -> list[float]:
    return [fmean(e.estimate.value for e in one.evaluations) for one in records]


def test_few_rows_are_ranked_by_the_posterior_mean_of_the_mean_of_both_scores() -> None:
    records = searched()
    found = Standings(FEW_ROWS, rows(*records)).first()
    space = Space(FEW_ROWS.family)
    points = space.points(one.architecture for one in records)
    posterior = ArchitecturePosterior(
        points, space.ordered, [[v] for v in values_of(records)], prior=OF_NOISY_SEEDS
    )
    expected, errors = posterior.warp.moments(posterior.mean(), posterior.deviation())
    order = [int(i) for i in np.argsort(-expected)]
    assert [one.trial_id for one in found] == order
    assert [one.estimate for one in found] == pytest.approx(list(expected[order]))
    assert order != [int(i) for i in np.argsort([-v for v in values_of(records)])]
    assert [one.error for one in found] == pytest.approx(list(errors[order]))


def test_the_estimate_and_its_error_are_mean_and_deviation_of_the_draws() -> None:
    """Also where the posterior is skewed: one of eight lies far below the others."""
    values = [*(0.1 * k for k in range(7)), -3.0]
    points = np.linspace(0, 1, 8)[:, None]
    posterior = ArchitecturePosterior(points, [True], [[v] for v in values], prior=OF_NOISY_SEEDS)
    mean, error = posterior.warp.moments(posterior.mean(), posterior.deviation())
    draws = posterior.draws(200_000, seed=0)
    assert mean == pytest.approx(draws.mean(0), abs=5 * draws.std(0).max() / 200_000**0.5)
    assert error == pytest.approx(draws.std(0), rel=0.03)
    assert mean[-1] < posterior.warp.score(posterior.mean())[-1]  # below its median


def test_equal_scores_have_no_error() -> None:
    records = [few_rows_trial(i, 6 + 4 * i, 1, -100.0) for i in range(8)]
    found = Standings(FEW_ROWS, rows(*records)).first()
    assert [one.estimate for one in found] == pytest.approx([-100.0] * 8)
    assert max(one.error for one in found) < 0.001


def near_duplicates(folder: Path) -> None:
    """Write a study of which the race trained five widths three times: all within 0.0001."""
    rng = np.random.default_rng(0)
    records = [few_rows_trial(i, 4 + 2 * i, 1, 4 * i + rng.normal()) for i in range(19)]
    widths = [60, 61, 62, 63, 64] * 3
    ids = [20, 21, 22, 23, 24, *range(RACE_IDS, RACE_IDS + 10)]
    for trial_id, width in zip(ids, widths, strict=True):
        stage = "race" if trial_id >= RACE_IDS else "search"
        one = few_rows_trial(trial_id, width, 1, 100 + rng.normal())
        records.append(one.model_copy(update={"stage": stage}))
    written(folder, records)


@pytest.mark.slow
def test_near_duplicates_are_tied_and_none_of_them_is_likely_to_be_the_best(
    tmp_path: Path,
) -> None:
    near_duplicates(tmp_path)
    study = load_study_tables(tmp_path)
    sure = certainty_of(study)
    assert study.is_estimated
    assert sure.tied == (1, 2, 3, 4)
    assert sure.best[0] < 0.5
    assert sure.together > 0.95
    said = certainty_sentence(study, sure)
    assert said.startswith("The first 5 are tied by estimate: they differ by less than one seed")
    assert "likely to be the best" not in said


def test_three_seeds_of_an_architecture_weigh_more_than_one_in_its_estimate() -> None:
    """Three times the same score: the estimate is nearer to it, and surer."""
    records = searched()
    best = max(range(24), key=lambda i: values_of(records)[i])
    again = [records[best].model_copy(update={"trial_id": RACE_IDS + k}) for k in range(2)]
    key, score = TrialRow.of(records[best]).architecture.key, values_of(records)[best]
    one = Standings(FEW_ROWS, rows(*records))
    three = Standings(FEW_ROWS, rows(*records, *again))
    before, after = (next(a for a in s.first() if a.key == key) for s in (one, three))
    assert after.mean == pytest.approx(before.mean)
    assert before.estimate is not None
    assert before.estimate < after.estimate <= score
    assert after.error < 0.9 * before.error


def test_the_estimate_is_nearer_to_the_truth_than_the_score_of_one_seed() -> None:
    nearer = 0
    for seed in range(10):
        records = searched(seed=seed)
        found = Standings(FEW_ROWS, rows(*records))
        truth = [float(one.architecture.values["width"]) for one in records]
        by_trial = {one.trial_id: one.estimate for one in found.first()}
        estimates = [by_trial[one.trial_id] for one in records]
        errors = [
            fmean((v - t) ** 2 for v, t in zip(values, truth, strict=True))
            for values in (estimates, values_of(records))
        ]
        nearer += errors[0] < errors[1]
    assert nearer >= 9


def test_ranked_by_the_score_its_mean_decides_alone() -> None:
    records = searched()
    found = Standings(FEW_ROWS.model_copy(update={"rank_by": "score"}), rows(*records))
    own = np.array([one.evaluations[0].estimate.value for one in records])
    assert not found.is_estimated
    assert [one.trial_id for one in found.first()] == [int(i) for i in np.argsort(-own)]


@pytest.mark.parametrize(("n", "is_estimated"), [(7, False), (8, True), (24, True)])
def test_too_few_architectures_are_ranked_by_the_mean_of_both_scores(
    n: int, is_estimated: bool
) -> None:
    records = searched(n)
    found = Standings(FEW_ROWS, rows(*records))
    assert found.is_estimated == is_estimated
    if not is_estimated:
        best = max(zip(values_of(records), records, strict=True), key=lambda pair: pair[0])[1]
        assert found.best.trial_id == best.trial_id
        assert found.best.estimate is None


def test_above_two_hundred_architectures_the_mean_ranks_and_its_weights_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_module, "MOST", 20)
    monkeypatch.setattr(results_module, "KEEP_ALL_MODELS", 10)
    monkeypatch.setattr(results_module, "KEEP_BEST_MODELS", 2)
    models = tmp_path / "models"
    models.mkdir()
    kept, done = KeptModels(tmp_path, FEW_ROWS, {}), list[TrialRow]()
    for one in searched(30):
        (models / f"{one.trial_id}.safetensors").touch()
        done.append(TrialRow.of(one))
        kept.add(done[-1], len(done))
        found = Standings(FEW_ROWS, done)
        assert found.is_estimated == (8 <= len(done) <= 20)
        assert (models / f"{found.best.trial_id}.safetensors").exists()
        if found.is_estimated:
            assert len(list(models.iterdir())) == len(done)
    assert len(list(models.iterdir())) <= 2 + FEW_ROWS.finalists


def test_the_race_decides_among_those_that_it_trained_again_by_their_estimates() -> None:
    records = searched()
    first = Standings(FEW_ROWS, rows(*records)).first(4)
    again = [
        few_rows_trial(RACE_IDS + i, *one.architecture.values.values(), value)
        for i, (one, value) in enumerate(zip(first, (20.0, 30.0, 80.0, 40.0), strict=True))
    ]
    found = Standings(FEW_ROWS, rows(*records, *again)).first()
    assert {one.key for one in found[:4]} == {one.key for one in first}
    assert [one.raced for one in found] == [True] * 4 + [False] * 20
    assert found[0].key == first[2].key
    estimates = [one.estimate for one in found[:4]]
    assert estimates == sorted(estimates, reverse=True)


@pytest.mark.slow
def test_the_estimates_do_not_depend_on_the_order_of_arrival() -> None:
    records = searched()
    expected = Standings(FEW_ROWS, rows(*records)).first()
    for seed in range(3):
        random.Random(seed).shuffle(records)
        found = Standings(FEW_ROWS)
        for one in rows(*records):
            found.add(one)
            found.first()  # as the driver asks on the way, and after a resume
        assert found.first() == expected


def test_a_trial_without_one_of_the_two_scores_has_no_rank() -> None:
    one = searched(1)[0]
    one = one.model_copy(update={"evaluations": one.evaluations[:1]})
    assert Standings(FEW_ROWS, rows(one)).best is None


def test_the_sampler_is_told_what_ranks() -> None:
    one = few_rows_trial(0, 8, 1, -100.0, -40.0)
    assert result_of(rows(one), FEW_ROWS).values == (-70.0,)
    by_score = FEW_ROWS.model_copy(update={"rank_by": "score"})
    assert result_of(rows(one), by_score).values == (-100.0,)


@pytest.mark.slow
def test_all_agree_on_the_first_by_the_estimate(tmp_path: Path) -> None:
    records = written(tmp_path, searched())
    values = values_of(records)
    study = load_study_tables(tmp_path)
    first = study.winner.trial_id
    assert first != values.index(max(values))  # the best observed was lucky
    assert study_status(tmp_path).best.trial_id == first
    assert trial_to_export(read_study_tables(tmp_path, FEW_ROWS)) == first
    table = Study(tmp_path).ranking
    assert int(table["trial_id"].iloc[0]) == first
    assert table["estimate"].is_monotonic_decreasing
    assert (table["estimate_error"] > 0).all()
    per_datum = values[first] / 100
    share = study.winner.estimate / Standings(FEW_ROWS, rows(*records)).best.estimate
    assert share == pytest.approx(0.01)
    page = build_report(tmp_path).html.read_text(encoding="utf-8")
    card = page[page.index('<div class="value">' + f"{study.winner.estimate:.4f}") :]
    assert f"± {study.winner.estimate_error:.4f}; " in card[:200]
    assert abs(study.winner.estimate - per_datum) < 3 * study.winner.estimate_error


@pytest.mark.slow
def test_the_best_score_alone_is_named_without_a_cause_that_nobody_knows(
    tmp_path: Path,
) -> None:
    records = written(tmp_path, searched())
    values = values_of(records)
    luckiest = values.index(max(values))
    study = load_study_tables(tmp_path)
    lead = (max(values) - values[study.winner.trial_id]) / 100
    assert together_sentence(study, None) == (
        f"The best score alone is {lead:.3f} nats per datum higher, that of "
        f"{_named(records[luckiest])} (trial {luckiest}). Which of the two is better is open."
    )
    assert "Ranked by `estimate`" in study.order
    assert headline(study, None, None).answer.endswith("the best of 24 architectures by estimate.")


@pytest.mark.slow
def test_the_gain_of_further_trials_is_by_the_posterior_that_ranks(tmp_path: Path) -> None:
    written(tmp_path, searched())
    study = load_study_tables(tmp_path)
    by_estimate = expected_gain(study)
    known = [(one.architecture, result_of(rows(one), FEW_ROWS)) for one in searched()]
    spec = study.spec
    own = gain_of_further(spec, Proposer(spec), known, prior=OF_NOISY_SEEDS)
    assert by_estimate == pytest.approx(own / 100)
    assert by_estimate != pytest.approx(
        gain_of_further(spec, Proposer(spec), known, prior=Prior()) / 100
    )


def test_a_study_that_goes_on_says_that_another_architecture_comes_first() -> None:
    records = searched()
    before = Standings(FEW_ROWS, rows(*records[:12])).best
    now = Standings(FEW_ROWS, rows(*records)).best
    assert before.key != now.key
    said = other_first(before, now)
    assert said.startswith("note:   mlp, ")
    assert f"(trial {now.trial_id}) comes first now; in the last report it was mlp, " in said
    assert said.endswith(f"(trial {before.trial_id})")
    assert other_first(now, now) == other_first(None, now) == other_first(before, None) == ""


def test_without_an_estimate_the_column_has_the_mean_that_ranks(tmp_path: Path) -> None:
    records = written(tmp_path, searched(5))
    found = load_study_tables(tmp_path)
    means = sorted((value / 100 for value in values_of(records)), reverse=True)
    assert [one.estimate for one in found.ranking] == pytest.approx(means)
    assert {one.estimate_error for one in found.ranking} == {None}
    assert found.order == "Ranked by the mean of conditional_evidence and elpd, best first."
    assert "estimate_error" not in Study(tmp_path).ranking


def _named(one: TrialRecord) -> str:
    values = one.architecture.values
    return f"mlp, depth {values['depth']}, width {values['width']}"
