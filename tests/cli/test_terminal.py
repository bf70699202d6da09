"""What a person sees of a running study; and every example in a docstring of the package."""

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import record_of
from records import asked
from rich.console import Console

import nas_evidence
from nas_evidence.api.progress import Progress, score_text, size_text
from nas_evidence.api.runs import Run
from nas_evidence.cli.search import _Terminal
from nas_evidence.cli.shown import LiveTable
from nas_evidence.cli.submit import _Told
from nas_evidence.plumbing.durations import duration, rough_duration
from nas_evidence.spec.record import RACE_IDS, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, StudySpec
from nas_evidence.workers.executor import Lost

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(nas_evidence.__path__, "nas_evidence.")
)
STUDY = StudySpec(
    name="small [b]",
    objective="kfac_ggn",
    n_trials=100,
    dataset=DatasetSpec(name="digits"),
    family={"mlp": {}, "linear": {}},
)


def assignment(trial_id: int, family: str = "mlp", **values: int | str) -> Assignment:
    return asked(
        ArchitectureSpec(family=family, values=values),
        STUDY.estimators,
        trial_id=trial_id,
        dataset=STUDY.dataset,
        plan=STUDY.plan,
    )


def ended(progress: Progress, given: Assignment, **changes: object) -> TrialRecord:
    progress.launched(given)
    record = record_of(given).model_copy(update=changes)
    progress.ended(record)
    return record


def shown(progress: Progress, width: int = 110) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(progress)
    return capture.get()


@pytest.mark.parametrize(
    ("n_stored", "others"), [(99, ", the others resume from their last checkpoint"), (100, "")]
)
def test_a_stop_speaks_of_other_trials_only_if_there_are_some(
    n_stored: int, others: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = SimpleNamespace(state=SimpleNamespace(rows=range(n_stored)))
    monkeypatch.setattr("nas_evidence.storage.log.read_log", lambda folder: log)
    store: Any = SimpleNamespace(folder=None, place="runs/small", uri=None)
    with pytest.raises(SystemExit), _Terminal(None).running(STUDY, store, Run()):
        raise KeyboardInterrupt
    said = " ".join(capsys.readouterr().err.split())
    assert f"Nothing is lost: {n_stored} of 100 trials are stored{others}. Continue:" in said


@pytest.mark.long
def test_examples_in_docstrings_are_true() -> None:
    failed = {
        name: doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed
        for name in MODULES
    }
    assert not [name for name, count in failed.items() if count]


@pytest.mark.parametrize(
    ("said", "by_seconds"),
    [
        (duration, {59.4: "59.4 s", 60: "1.0 min", 3599: "60.0 min", 3600: "1.0 h"}),
        (rough_duration, {44: "less than a minute", 46: "about 1 min", 5400: "about 1.5 h"}),
    ],
)
def test_durations_at_the_edges(
    said: Callable[[float], str], by_seconds: dict[float, str]
) -> None:
    assert {seconds: said(seconds) for seconds in by_seconds} == by_seconds


def test_scores_and_sizes_are_short_and_missing_ones_a_dash() -> None:
    assert [score_text(v) for v in (None, -0.12345, 12345.6)] == ["-", "-0.123", "12346"]
    architectures = [
        ArchitectureSpec(family="mlp", values={"depth": 2, "width": 37, "shape": "constant"}),
        ArchitectureSpec(family="mlp", values={"depth": 2, "width": 37, "shape": "taper"}),
        ArchitectureSpec(family="linear"),
        ArchitectureSpec(family="own:net", values={"width": 13}),
    ]
    assert [size_text(a) for a in architectures] == ["37/2", "taper", "-", "13"]


def test_a_hundred_trials_and_as_many_losses_take_at_most_two_hundred_lines() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=0, say=lines.append)
    for trial_id in range(100):
        given = assignment(trial_id, width=20, depth=1)
        progress.launched(given)
        progress.lost(Lost(trial_id, 1, "the worker process crashed"))
        ended(progress, given)
    assert 100 < len(lines) <= 200
    assert not any("\n" in line for line in lines)
    assert lines[0] == "trial 0 attempt 1 lost (the worker process crashed); retrying"
    told = "[100/100] trial 99 (mlp, width 20, depth 1) complete, kfac_ggn=-0.500 (0.0 s, "
    assert lines[-1].startswith(told)
    assert progress.rows == {}


def test_every_failure_has_a_line_with_its_cause() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=0, say=lines.append)
    for trial_id in range(7):
        ended(progress, assignment(trial_id), status=TrialStatus.DIVERGED, cause="a nan")
    assert len(lines) == 7
    assert "trial 0 (mlp) diverged, a nan (" in lines[0]


def test_a_retraining_of_the_best_is_called_so_with_its_number() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=100, say=lines.append)
    ended(progress, assignment(RACE_IDS + 5, "linear"))
    assert lines[0].startswith(f"[retraining the best, 6 of at most 34] trial {RACE_IDS + 5} (")
    table = LiveTable(STUDY, n_done=100)
    table.launched(assignment(RACE_IDS + 6))
    assert "100 of 100 trials, retraining the best, 7 of at most 34, " in shown(table, 160)


def test_the_end_is_expected_from_the_pace_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(STUDY.model_copy(update={"finalists": 0}), n_done=90, started=1000.0)
    assert progress.expected_seconds() is None
    assert progress.left() == ""
    monkeypatch.setattr("nas_evidence.api.progress.time.monotonic", lambda: 1030.0)
    ended(progress, assignment(90))
    ended(progress, assignment(91))
    # Two trials in 30 s; those of earlier runs say nothing of the pace; 8 are left.
    assert progress.expected_seconds() == pytest.approx(120)
    assert progress.left() == "2.0 min left"
    progress.limit = lambda: 20.0
    assert progress.left() == "20.0 s left"
    progress.limit = lambda: -1.0  # the time is over
    assert progress.expected_seconds() == 0


def test_the_race_of_the_finalists_is_part_of_what_is_left_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = Progress(STUDY, n_done=99, started=1000.0)
    monkeypatch.setattr("nas_evidence.api.progress.time.monotonic", lambda: 1015.0)
    ended(progress, assignment(99))
    assert progress.expected_seconds() == pytest.approx(15 * 34)  # a third of 100 trials
    assert progress.left() == "at most 8.5 min left"
    ended(progress, assignment(RACE_IDS))
    assert progress.expected_seconds() == pytest.approx(7.5 * 33)


def test_the_live_table_shows_every_running_trial_and_the_last_finished() -> None:
    progress = LiveTable(STUDY, n_done=0)
    assert "estimating the end" in shown(progress)
    for trial_id in range(12):
        ended(progress, assignment(trial_id, width=4, depth=1))
    progress.launched(assignment(12, "cnn", width=37, depth=3))
    progress.progressed(
        SliceReport(trial_id=12, attempt=1, epoch=5, epochs=40, done=False,
                    scores={"kfac_ggn": -1.25}, sotl=6.5)
    )  # fmt: skip
    rows = [line.split() for line in shown(progress).splitlines()]
    running = next(row for row in rows if row[:1] == ["12"])
    assert running == ["12", "cnn", "37/3", "5/40", "-1.250", "6.500", "0.0", "s", "running"]
    assert [row[0] for row in rows if row[1:2] == ["mlp"]] == [str(i) for i in range(4, 12)]
    assert shown(progress).startswith("small [b]: 12 of 100 trials, 0.")


def test_what_is_printed_of_a_reading_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    sentences = (
        "column 'it''s' is left out; categorical='it'\"'\"'s' to keep the most frequent",
        "column 'a' has 'A' and 'a'; write them alike, or drop=a to leave it out",
        "'b' determines the target: is it known when a prediction is made? If not, drop=b",
        "column 'drop=c' is read as numbers: 'task=d' is 4",
        "price is skewed: target_scale=auto (--target-scale) and plan.likelihood=x gained 0.5",
    )
    for audience in (_Terminal(None), _Told()):
        audience.read(sentences)
        assert capsys.readouterr().out.splitlines() == [
            "column 'it''s' is left out; --categorical 'it'\"'\"'s' to keep the most frequent",
            "column 'a' has 'A' and 'a'; write them alike, or --drop a to leave it out",
            "'b' determines the target: is it known when a prediction is made? If not, --drop b",
            "column 'drop=c' is read as numbers: 'task=d' is 4",
            "price is skewed: --target-scale auto and --set plan.likelihood=x gained 0.5",
        ]
