"""Claims about intervals in the report: a warning with a remedy that works, else one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from searched import EPOCHS, build_report, folder, load, record

from nas_evidence.baselines.comparison import (
    Baseline,
    CalibrationPoint,
    Comparison,
    OneTarget,
    write_comparison,
)
from nas_evidence.maths.conditional_coverage import Quarter
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.intervals import coverage_warning, intervals_sentence
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import TrainingPlan

PLAN = TrainingPlan.model_validate({"likelihood": "gaussian", "epochs": EPOCHS, "settle": 0})
GOOD, SKEWED = (0.9, 0.89, 0.91, 0.92), (1.0, 1.0, 0.97, 0.76)
MINE = DatasetSpec(name="table", path="mine.csv", target="price", task="regression")


def compared(inside: tuple[float, ...], n: int = 5000, **changes: Any) -> Comparison:
    quarters = tuple(
        Quarter(n=n // 4, low=100.0 * i, high=100.0 * i + 99, inside_50=0.5, inside_90=one)
        for i, one in enumerate(inside)
    )
    given: dict[str, Any] = {
        "trial_id": 1, "task": "real", "on": "test", "n": n,
        "metrics": {"rmse": 2.0, "crps": 1.25}, "quarters": quarters,
        "pit": (n // 10,) * 10,
    }  # fmt: skip
    return Comparison(**(given | changes))


def studied(tmp_path: Path, dataset: DatasetSpec = MINE) -> RankedStudy:
    return load(tmp_path, [record(1, 1, real=True)], plan=PLAN, dataset=dataset)


def test_intervals_that_fail_in_a_quartile_are_a_warning_and_others_one_sentence(
    tmp_path: Path,
) -> None:
    study = studied(tmp_path)
    assert coverage_warning(study, compared(GOOD)) == ""
    assert intervals_sentence(compared(GOOD)) == (
        "On 5,000 test rows, the 90 % intervals cover 0.90, 0.89, 0.91 and 0.92 of the targets by "
        "quartile of the prediction."
    )
    assert intervals_sentence(compared(SKEWED)) == ""
    said = coverage_warning(study, compared(SKEWED, on="folds"))
    assert said.startswith(
        "On 5,000 rows not trained on, the 90 % intervals cover 1.00, 1.00, 0.97 and 0.76 of the "
        "targets by quartile of the prediction. They are too wide in the first, second and third "
        "quartile, and too narrow in the fourth quartile. Search again with "
    )
    few = compared(SKEWED, n=100)  # 0.76 of 25 rows may be chance
    assert coverage_warning(study, few) == ""
    assert "0.76" in intervals_sentence(few)
    for nothing in (None, compared(()), compared((), task="labels")):
        assert coverage_warning(study, nothing) == intervals_sentence(nothing) == ""


def test_intervals_of_targets_without_a_density_warn_only_where_they_are_too_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, wide = studied(tmp_path), compared((1.0,) * 4, pit=(5000,) + (0,) * 9)
    assert "They are too wide. " in coverage_warning(study, wide)
    counts = replace(TARGET_KINDS["regression"], chance_of="the true count", scaled=False)
    monkeypatch.setitem(TARGET_KINDS, "regression", counts)
    assert coverage_warning(study, wide) == ""
    assert "cover 1.00, 1.00, 1.00 and 1.00" in intervals_sentence(wide)
    said = coverage_warning(study, compared(SKEWED))
    assert "They are too narrow in the fourth quartile. Search again with plan.likelihood=" in said
    assert "target_scale" not in said


def test_quartiles_of_the_50_percent_intervals_warn_and_both_remedies_are_named(
    tmp_path: Path,
) -> None:
    """Skewed prices: 36 of 40 in every quarter, but 31, 22, 21 and 13 of 40 at 50 %."""
    halves = (31, 22, 21, 13)
    quarters = tuple(Quarter(n=40, low=0.0, high=1.0, inside_50=k / 40, inside_90=0.9)
                     for k in halves)  # fmt: skip
    study, judged = studied(tmp_path), compared(GOOD, n=160, quarters=quarters)
    assert intervals_sentence(judged) == ""
    said = coverage_warning(study, judged)
    assert "the 50 % intervals 0.78, 0.55, 0.53 and 0.33. They are too wide in the first" in said
    assert "target_scale=auto and plan.likelihood=heteroscedastic (--set), and another" in said


def test_another_distribution_is_a_warning_where_all_intervals_hold(tmp_path: Path) -> None:
    pit = (110, 100, 90, 80, 20, 20, 20, 20, 20, 20)
    said = coverage_warning(studied(tmp_path), compared(GOOD, n=500, pit=pit))
    assert "The targets have another distribution than predicted: 110 of 500 lie in " in said
    assert "between the quantiles 0 and 0.1. Search again with " in said
    assert "They are" not in said


def of_two(first: tuple[float, ...], second: tuple[float, ...], n: int = 5000) -> Comparison:
    """Two targets of one network, by the coverage of their quarters."""
    both = [
        OneTarget(
            name=name,
            metrics={"rmse": 1.0, "coverage_90": sum(inside) / 4},
            calibration=(CalibrationPoint(n=n, confidence=0.9, accuracy=sum(inside) / 4),),
            quarters=compared(inside, n).quarters,
            pit=(n // 10,) * 10,
        )
        for name, inside in (("width", first), ("height", second))
    ]
    ridge = Baseline(name="ridge regression", metrics={}, behind=0.1,
                     by_target=({"rmse": 2.0}, {"rmse": 3.0}))  # fmt: skip
    return compared((), n, pit=(), by_target=tuple(both), baselines=(ridge,))


def test_each_of_several_targets_has_its_coverage_in_the_sentence(tmp_path: Path) -> None:
    judged = of_two(GOOD, (0.89, 0.9, 0.9, 0.9))
    assert intervals_sentence(judged) == (
        "On 5,000 test rows, the 90 % intervals cover 0.91 of 'width' and 0.90 of 'height'."
    )
    assert coverage_warning(studied(tmp_path), judged) == ""


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_what_is_wrong_of_one_of_several_targets_is_said_with_its_remedy(
    tmp_path: Path, likelihood: str
) -> None:
    """Too wide for one and too narrow for the other was right on average, and not said."""
    judged = of_two((1.0, 1.0, 1.0, 1.0), (0.9, 0.79, 0.9, 0.78))
    plan = PLAN.model_copy(update={"likelihood": likelihood})
    study = load(tmp_path, [record(1, 1, real=True)], plan=plan, dataset=MINE)
    assert intervals_sentence(judged) == ""
    said = coverage_warning(study, judged)
    assert "cover 1.00 of 'width' and 0.84 of 'height'. They are too wide for 'width'; " in said
    assert "too narrow for 'height' in the second and fourth quartile." in said
    remedy = "Search again with plan.likelihood=heteroscedastic (--set), and another `out`."
    assert (remedy in said) == (likelihood == "gaussian")


def test_many_targets_are_cut_and_the_failing_ones_come_first(tmp_path: Path) -> None:
    one, other = of_two(GOOD, (0.7,) * 4).by_target
    many = tuple(one.model_copy(update={"name": f"y{k}"}) for k in range(9))
    said = coverage_warning(studied(tmp_path), compared((), pit=(), by_target=(*many, other)))
    assert "cover 0.70 of 'height', 0.91 of 'y0', 0.91 of 'y1'" in said
    assert "0.91 of 'y4' and 0.91 to 0.91 of 4 others. They are too narrow for 'height'." in said


@pytest.mark.slow
def test_the_page_has_the_pictures_and_metrics_of_each_target(tmp_path: Path) -> None:
    place = folder(tmp_path, [record(1, 1, real=True)], plan=PLAN, dataset=MINE)
    write_comparison(place, of_two(GOOD, (0.7,) * 4))
    paths = build_report(place)
    page, text = (path.read_text(encoding="utf-8") for path in (paths.html, paths.markdown))
    for name in ("quarters", "pit", "calibration"):
        assert f'<div id="{name}" class="figure">' in page
    for name in ("width", "height"):
        assert f"{name}, lowest: 0 to 99" in page
        assert f"PIT of {name}" in page
        assert f"| {name} | 1 | 0 | 99 | 1250 | 0.500 | " in text
        assert f"| target {name} | RMSE |" in text
    assert '<details id="by-target">' in page
    assert "too narrow for 'height'" in text


def test_shipped_data_are_advised_no_scale_that_only_own_data_can_have(tmp_path: Path) -> None:
    study = studied(tmp_path, DatasetSpec(name="diabetes"))
    said = coverage_warning(study, compared(SKEWED))
    assert said.endswith("again with plan.likelihood=heteroscedastic (--set), and another `out`.")
    assert "target_scale" not in said


@pytest.mark.parametrize(
    ("likelihood", "end"),
    [
        ("gaussian", "again with plan.likelihood=heteroscedastic (--set), and another `out`."),
        ("heteroscedastic", "No option mends that."),
    ],
)
def test_on_a_scale_only_a_noise_of_each_row_is_left(
    tmp_path: Path, likelihood: str, end: str
) -> None:
    dataset = DatasetSpec.model_validate(
        MINE.model_dump(exclude_none=True) | {"target_scale": "log"}
    )
    plan = PLAN.model_copy(update={"likelihood": likelihood})
    study = load(tmp_path, [record(1, 1, real=True)], plan=plan, dataset=dataset)
    assert coverage_warning(study, compared(SKEWED)).endswith(end)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [GOOD, SKEWED])
def test_page_text_and_first_screen_have_quartiles_pit_and_crps(
    tmp_path: Path, inside: tuple[float, ...]
) -> None:
    place = folder(tmp_path, [record(1, 1, real=True)], plan=PLAN, dataset=MINE)
    judged = compared(inside)
    write_comparison(place, judged)
    paths = build_report(place)
    page, text = (path.read_text(encoding="utf-8") for path in (paths.html, paths.markdown))
    warned = inside is SKEWED
    assert ('<div class="warning"' in page) == warned
    assert ("<dt>Intervals</dt>" in page) == (not warned)
    for name in ("quarters", "pit"):
        assert f'<div id="{name}" class="figure">' in page
    assert "lowest: 0 to 99" in page
    assert "| 1 | 0 | 99 | 1250 | 0.500 | " in text
    assert "Here, from 0 to 1: 500, 500, 500" in text
    assert "CRPS" in page
    assert "CRPS" in text
    found = report_on(studied(tmp_path / "b"), judged).headline
    assert (bool(found.intervals), len(found.advice)) == (not warned, int(warned))


@pytest.mark.slow
def test_classes_and_few_rows_have_no_such_pictures(tmp_path: Path) -> None:
    place = folder(tmp_path, [record(1, 1)])
    write_comparison(place, compared((), task="labels", pit=(), metrics={}))
    page = build_report(place).html.read_text(encoding="utf-8")
    assert 'id="pit"' not in page
    assert 'id="quarters"' not in page
