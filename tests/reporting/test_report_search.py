"""Claims about reports of searches: replicates, costs, pruning, limits, real targets."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from searched import EPOCHS, N_DATA, QUALITY, build_report, estimate_of, folder, load, record

import nas_evidence.reporting.contents as report_module
import nas_evidence.reporting.study_tables as tables_module
from nas_evidence.cli.shown import trust_line
from nas_evidence.reporting.certainty import certainty_of
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.correlations import trust
from nas_evidence.reporting.importance import importance_sentence, importances
from nas_evidence.reporting.page import figures_of, write_report
from nas_evidence.reporting.problems import flags, problems, pruning_sentence, statuses
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.reporting.terms import gap_sentence, term_table
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.record import (
    Evaluation,
    EvidenceEstimate,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import (
    ArchitectureSpec,
    BudgetSpec,
    DatasetSpec,
    PruningSpec,
    TrainingPlan,
)


def test_replicates_are_one_architecture_with_its_mean_and_spread(tmp_path: Path) -> None:
    values = {1: (0.9, 0.6), 2: (0.5, 0.8), 3: (0.1, 0.2)}
    records = [
        record(10 * key + i, key, value=value)
        for key, two in values.items()
        for i, value in enumerate(two)
    ]
    study = load(tmp_path, records)
    assert len(study.architectures) == 3
    first, second, third = study.ranking
    shift = 1 / EPOCHS
    assert_allclose([first.objective, second.objective], [0.75 - shift, 0.65 - shift])
    assert_allclose(
        study.architectures["kfac_ggn"], N_DATA * (np.array([0.75, 0.65, 0.15]) - shift)
    )
    assert_allclose(first.spread, np.std([0.9, 0.6], ddof=1))
    assert first.trial_ids == (10, 11)
    assert (first.trial_id, second.trial_id) == (10, 21)  # the best replicate stands for it
    assert (first.rank_seeds, second.rank_seeds, third.rank_seeds) == ((1, 2), (1, 2), (3, 3))
    sure = certainty_of(study)
    assert sure.best is None  # two seeds are too few


@pytest.mark.slow
def test_replicates_do_not_make_a_correlation_surer(tmp_path: Path) -> None:
    once = [record(key, key) for key in range(8)]
    twice = [record(10 * key + i, key) for key in range(8) for i in range(2)]
    one, two = (load(tmp_path / name, records) for name, records in (("a", once), ("b", twice)))
    rows = [
        trust(
            study.architectures,
            scores=study.scores,
            targets=study.targets,
            rivals=[],
            group="family",
        ).rows
        for study in (one, two)
    ]
    assert rows[0][0].statistics.n == 8
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_the_front_holds_what_no_other_beats_in_score_and_costs(tmp_path: Path) -> None:
    records = [record(key, key) for key in range(8)]
    study = load(tmp_path, records, minimise=("n_parameters",))
    # by parameters: 0.1, 0.9, 0.5, ... : after 0.9 no larger one is better
    assert {one.trial_id for one in study.ranking if one.on_front} == {0, 1}
    paths = build_report(tmp_path)
    page = paths.html.read_text(encoding="utf-8")
    assert 'id="front_n_parameters"' in page
    # the larger the quicker, so that with latency every one is the best of some compromise
    both = load(tmp_path / "b", records, minimise=("n_parameters", "latency_seconds"))
    assert {one.trial_id for one in both.ranking if one.on_front} == set(range(8))
    assert all(one.on_front is None for one in load(tmp_path / "c", records).ranking)


@pytest.mark.slow
def test_real_targets_are_losses_with_their_sign_turned(tmp_path: Path) -> None:
    records = [record(key, key, real=True) for key in range(8)]
    paths = build_report(
        folder(
            tmp_path,
            records,
            plan=TrainingPlan(epochs=EPOCHS, likelihood="gaussian"),
            dataset=DatasetSpec(name="diabetes"),
        )
    )
    with paths.correlations.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["target"] for row in rows} == {"test_nll_per_datum", "test_rmse"}
    own = [r for r in rows if (r["score"], r["group"]) == ("kfac_ggn", "all")]
    assert [float(row["rho"]) for row in own] == pytest.approx([1.0, 1.0])
    assert [float(row["regret_1"]) for row in own] == [0.0, 0.0]
    size = next(r for r in rows if (r["score"], r["group"]) == ("n_parameters", "all"))
    assert_allclose(float(size["rho"]), stats.spearmanr(range(8), QUALITY).statistic)
    for text in (paths.html.read_text("utf-8"), paths.markdown.read_text("utf-8")):
        assert "accuracy" not in re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "9.1000" in text  # the rmse of the winner, in its own sign


def test_pruning_that_was_used_says_what_it_saved_and_its_absence_nothing(
    tmp_path: Path,
) -> None:
    records = [record(key, key) for key in (1, 3, 5)]
    records += [
        record(key, key, status=TrialStatus.PRUNED, epochs=5, cause="kfac_ggn is 4th of 4")
        for key in (0, 2, 4, 6, 7)
    ]
    study = load(tmp_path, records, pruning=PruningSpec(rule="halving"))
    # spent 3 * 20 + 5 * 5 = 85 s, saved 5 * 15 = 75 s
    said = pruning_sentence(study)
    assert said.startswith("Pruning stopped 5 of 8 trials and saved about 47 % of the training")
    assert pruning_sentence(load(tmp_path / "none", records[:3])) == ""
    assert [p.detail for p in problems(study)] == ["stopped at epoch 5"]


@pytest.mark.slow
def test_infeasible_trials_are_counted_by_the_limit_they_break(tmp_path: Path) -> None:
    infeasible = [
        record(
            key, key, status=TrialStatus.INFEASIBLE, epochs=0, cause=f"n_parameters {key}00 > 50"
        )
        for key in (2, 3, 4)
    ]
    study = load(tmp_path, [record(1, 1), *infeasible], budget=BudgetSpec(wall_seconds=210.0))
    only = problems(study)
    assert [(p.kind, p.detail, p.n, p.trials) for p in only] == [
        ("infeasible", "n_parameters > 50", 3, "2, 3, 4")
    ]
    assert [(s.status, s.n) for s in statuses(study)] == [("complete", 1), ("infeasible", 3)]
    page = build_report(tmp_path).html.read_text(encoding="utf-8")
    assert "its wall-time budget is 3.5 min." in page


def test_the_terms_side_by_side_add_up_to_the_evidence(tmp_path: Path) -> None:
    study = load(tmp_path, [record(key, key) for key in range(4)])
    found = term_table(study)
    assert found["trial"].iloc[0] == "rank 1: mlp, width 5 (trial 1)"
    assert found.attrs["n_parts"] == 3
    for (_, row), one in zip(found.iterrows(), study.ranking, strict=True):
        assert_allclose([row.iloc[1:4].sum(), row.iloc[4]], one.objective)
        ends = [row[f"{end} prior precision"] for end in ("smallest", "largest")]
        assert ends == [2.0, 8.0]


@pytest.mark.slow
def test_estimates_away_from_a_mode_are_flagged(tmp_path: Path) -> None:
    def with_signs(one: TrialRecord) -> TrialRecord:
        last = one.evaluations[-1].estimate
        away = [
            term.model_copy(update={"value": 3.0})
            if term.term in ("gradient_norm_squared", "clamped_eigenvalues")
            else term
            for term in last.terms
        ]
        last = last.model_copy(update={"terms": tuple(away)})
        evaluations = (
            *one.evaluations[:-1],
            Evaluation(epoch=EPOCHS, estimate=last),
        )
        return one.model_copy(update={"evaluations": evaluations})

    calm = load(tmp_path / "a", [record(key, key) for key in range(8)])
    assert flags(calm) == []
    study = load(tmp_path / "b", [with_signs(record(key, key)) for key in range(8)])
    found = {flag.kind: flag for flag in flags(study)}
    assert set(found) == {
        "not at a mode, kfac_ggn",
        "clamped eigenvalues in kfac_ggn",
    }
    assert "median of 0.015 nats per datum" in found["not at a mode, kfac_ggn"].detail


@pytest.mark.slow
def test_the_values_of_the_page_are_json_and_three_tables_are_csv(tmp_path: Path) -> None:
    records = [record(10 * key + i, key) for key in range(8) for i in range(2)]
    to = build_report(folder(tmp_path, records)).html.parent
    assert {path.name for path in to.iterdir()} == {
        "index.html", "report.md", "report.json", "SHA256SUMS", "correlations.csv", "ranking.csv",
        "terms.csv",
    }  # fmt: skip
    with (to / "ranking.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["rank"]) for row in rows] == list(range(1, 9))
    assert rows[0]["trial_ids"] == "10 11"
    found = json.loads(
        (to / "report.json").read_text("utf-8"), parse_constant=lambda name: pytest.fail(name)
    )
    assert found["headline"]["answer"].startswith("Take mlp, width 5 (trial 1")
    ranked = found["study"]["ranking"]
    assert [one["rank"] for one in ranked] == list(range(1, 9))
    assert ranked[0]["objective"] == pytest.approx(float(rows[0]["objective"]))
    rho = [one for one in found["early"] if one["score"] == "kfac_ggn"]
    assert [one["epoch"] for one in rho] == [5, 10, 15, 20]
    assert all(one["rho"] == pytest.approx(1.0) for one in rho)
    assert len(found["compared"]) == 2
    assert found["statuses"] == [{"status": "complete", "n": 16, "seconds": pytest.approx(336.0)}]
    assert "place" not in found  # a report is passed on


@pytest.mark.slow
def test_every_trial_can_be_compared_those_that_stand_for_their_architecture_first(
    tmp_path: Path,
) -> None:
    records = [
        record(10 * key + i, key, value=0.1 * key + 0.01 * i) for key in (1, 2) for i in (0, 1)
    ]
    records.append(record(5, 3, status=TrialStatus.PRUNED, epochs=10))
    found = term_table(load(tmp_path, records))
    assert found.index.tolist() == [21, 11, 20, 10, 5]
    assert found["trial"].iloc[-1] == "pruned at epoch 10: mlp, width 7 (trial 5)"
    assert "gains 0.1000 by its fit" in gap_sentence(found, [21, 11])  # 0.21 against 0.11
    assert gap_sentence(found, [21, 999]) == ""  # whose file of terms is damaged
    alone = load(tmp_path / "one", records[:2])
    assert len(term_table(alone)) == 2
    assert "Against the second" not in report_on(alone).why


@pytest.mark.slow
def test_what_sets_the_best_apart_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    widths = {"width": IntRange(low=4, high=64), "depth": IntRange(low=1, high=4)}
    records = [
        record(i, 1).model_copy(
            update={
                "architecture": ArchitectureSpec(
                    family="mlp", values={"width": 4 + 2 * i, "depth": int(rng.integers(1, 5))}
                ),
                "evaluations": (Evaluation(epoch=EPOCHS, estimate=estimate_of(-abs(i - 25))),),
            }
        )
        for i in range(30)
    ]
    study = load(tmp_path, records, family={"mlp": widths})
    found = importances(study)
    assert [(one.group, one.parameter, one.n, one.n_best) for one in found] == [
        ("mlp", "width", 30, 8), ("mlp", "depth", 30, 8),
    ]  # fmt: skip
    width, depth = found
    assert (width.of_best, width.of_all) == ("46 to 60", "4 to 62")
    assert 0 < 3 * depth.divergence < width.divergence
    assert_allclose([width.share, depth.share], [
        one.divergence / (width.divergence + depth.divergence) for one in found
    ])  # fmt: skip
    assert importance_sentence(found) == (
        "The best architectures differ most from all in width of mlp (46 to 60 among the best 8, "
        "4 to 62 among all 30). That may be chance."
    )
    drawn = figures_of(report_on(study))["importance"]
    assert drawn.count('class="box"') == len(found)
    few = load(tmp_path / "few", records[:5], family={"mlp": widths})
    assert importances(few) == []
    assert "unknown" in importance_sentence([])


@pytest.mark.slow
def test_a_held_out_score_is_a_baseline_to_beat_and_an_unknown_one_is_shown(
    tmp_path: Path,
) -> None:
    def with_heldout(one: TrialRecord, value: float) -> TrialRecord:
        more = [
            Evaluation(epoch=EPOCHS, estimate=EvidenceEstimate(estimator=name, value=value))
            for name in ("heldout_10", "of_another_version")
        ]
        return one.model_copy(update={"evaluations": (*one.evaluations, *more)})

    noisy = [record(key, key, value=QUALITY[key - 1]) for key in range(8)]
    records = [with_heldout(one, QUALITY[key]) for key, one in enumerate(noisy)]
    paths = build_report(folder(tmp_path, records))
    text = paths.markdown.read_text(encoding="utf-8")
    assert "no better than baselines over all architectures" in text
    assert "heldout\\_10 1.00" in text
    assert "**heldout\\_10** (baseline)" in text
    assert "of\\_another\\_version" in text


@pytest.mark.slow
def test_a_report_reads_the_tables_once_and_computes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(module: Any, attribute: str, name: str) -> None:
        function = getattr(module, attribute)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(module, attribute, call)

    counted(tables_module, "read_study_tables", "read_study_tables")
    names = ("trust", "early", "pruning", "certainty", "importances", "compared", "problems",
             "flags", "statuses")  # fmt: skip
    for name in names:
        counted(vars(report_module.Report)[name], "func", name)
    report = report_on(load_study_tables(folder(tmp_path, [record(i, i) for i in range(8)])))
    write_report(report, tmp_path / "report")
    trust_line(report)
    assert calls == {"read_study_tables": 1} | dict.fromkeys(names, 1)


@pytest.mark.slow
def test_the_terminal_says_of_the_ranking_what_correlations_csv_says(tmp_path: Path) -> None:
    records = [record(i, i, value=QUALITY[i] + (-1) ** i / 4) for i in range(8)]
    report = report_on(load_study_tables(folder(tmp_path, records)))
    paths = write_report(report, tmp_path / "report")
    with paths.correlations.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["group"] == "all"]
    own = next(r for r in rows if (r["score"], r["target"]) == ("kfac_ggn", "test_accuracy"))
    said = trust_line(report)
    low, high = float(own["rho_low"]), float(own["rho_high"])
    assert f"rho {float(own['rho']):.2f}, 95 % interval {low:.2f} to {high:.2f})" in said
    free = "Scores that need no extra training order as well or better (rho): "
    assert said.startswith("trust:  8 architectures are too few to tell ")
    assert free not in said  # of too few no order is told, so none is called better either
    clear = [record(i, i) for i in range(8)]
    assert free in trust_line(report_on(load_study_tables(folder(tmp_path / "clear", clear))))
    few = report_on(load_study_tables(folder(tmp_path / "few", [record(0, 0)])))
    assert trust_line(few) == (
        "trust:  1 architecture is too few to tell whether kfac_ggn predicts test log loss."
    )
