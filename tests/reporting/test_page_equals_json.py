"""Each number of the page is the one in report.json, over several kinds of study."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_numbers import not_in_json
from searched import EPOCHS, QUALITY, folder, record

from nas_evidence.baselines.comparison import (
    Baseline,
    CalibrationPoint,
    ColumnImportance,
    Comparison,
    Importance,
    OneTarget,
)
from nas_evidence.maths.conditional_coverage import Quarter
from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.page import write_report
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.study import TrainingPlan

pytestmark = pytest.mark.slow

REAL = ("log_loss", "rmse", "mae", "r2", "crps", "coverage")
CLASSES = ("log_loss", "accuracy", "balanced_accuracy", "f1", "ece")
KINDS = ("classes", "real", "two targets", "folds")


def study_of(kind: str, home: Path) -> Report:
    """A study with every number of a comparison drawn at random, so that no two are alike."""
    rng = np.random.default_rng(KINDS.index(kind))
    real = kind != "classes"
    names = REAL if real else CLASSES

    def metrics() -> dict[str, float]:
        return dict(zip(names, rng.random(len(names)).tolist(), strict=True))

    def quarters() -> tuple[Quarter, ...]:
        return tuple(Quarter(20, *rng.random(4).tolist()) for _ in range(4))

    def points() -> tuple[CalibrationPoint, ...]:
        found = rng.random((5, 2)).tolist()
        return tuple(CalibrationPoint(n=40, confidence=p, accuracy=q) for p, q in found)

    def simple(name: str, behind: float) -> Baseline:
        behind += 0.01 * rng.random()
        ends = behind - 0.11 * rng.random(), behind + 0.11 * rng.random()
        each = (metrics(), metrics()) if kind == "two targets" else ()
        return Baseline(name=name, metrics=metrics(), behind=behind, interval=ends,
                        errors=metrics(), by_target=each)  # fmt: skip

    given: dict[str, Any] = {}
    if kind == "two targets":
        given["by_target"] = tuple(
            OneTarget(
                name=name,
                metrics=metrics() | {f"coverage_{p}": rng.random() for p in (50, 90, 95)},
                calibration=points(),
                quarters=quarters(),
                pit=tuple(rng.integers(1, 30, 10).tolist()),
            )
            for name in ("rent", "cost")
        )
    elif real:
        given = {"quarters": quarters(), "pit": tuple(rng.integers(1, 30, 10).tolist()),
                 "calibration": points()}  # fmt: skip
    else:
        given = {"calibration": points(), "recall": {"0": rng.random(), "1": rng.random()},
                 "confusion": ((31, 4), (5, 40)), "classes": ("no", "yes")}  # fmt: skip
    if real:
        given["pairs"] = tuple(map(tuple, rng.normal(size=(9, 2)).tolist()))
    if kind == "folds":
        given |= {"on": "folds", "corrected": True, "chosen_among": 8, "against": "boosting"}
    noise = rng.normal(size=(8, 3))
    records = [
        record(10 * key + i, key, value=QUALITY[key] + 0.1 * noise[key, i], real=real,
               test_nll_per_datum=2 - QUALITY[key] + 0.1 * noise[key, (i + 1) % 3])
        for key in range(8)
        for i in range(3)
    ]  # fmt: skip
    plan = TrainingPlan.model_validate(
        {"likelihood": "gaussian" if real else "categorical", "epochs": EPOCHS}
    )
    study = load_study_tables(folder(home, records, plan=plan, n_trials=24))
    assert study.winner is not None
    judged = Comparison(
        trial_id=study.winner.trial_id, task="real" if real else "labels", n=80,
        **{"on": "test", **given}, metrics=metrics(), errors=metrics(),
        baselines=(simple("mean", 0.3), simple("ridge regression", 0.02), simple("boosting", 0.1)),
        importance=Importance(
            metric="log_loss", on="test", n=80, repeats=5,
            columns=tuple(ColumnImportance(column=c, mean=rng.random(), std=rng.random())
                          for c in "abc"),
        ),
    )  # fmt: skip
    return report_on(study, judged, place=home)


@pytest.mark.parametrize("kind", KINDS)
def test_each_number_of_the_page_is_that_of_report_json(kind: str, tmp_path: Path) -> None:
    report = study_of(kind, tmp_path)
    write_report(report, tmp_path / "report")
    assert not_in_json(report, tmp_path / "report") == []
    # The walk finds a number that is another one, of a simple model as of a score.
    path = tmp_path / "report" / "report.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    for one in held["comparison"]["baselines"]:
        one["interval"] = [end + 0.013 for end in one["interval"]]
    for one in held["study"]["ranking"]:
        one["objective"] += 0.0130003
    path.write_text(json.dumps(held), encoding="utf-8")
    found = not_in_json(report, tmp_path / "report")
    for place in ("figure measured: low", "said of measured", "figure scatter: score", "cell ",
                  "data-value", "| mlp | 1 |"):  # fmt: skip
        assert any(one.startswith(place) for one in found), place
