"""A search speaks before it imports torch, Ray or any other library that takes seconds."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import Heard

from nas_evidence.api.runs import Run, UnfinishedStudy, begun
from nas_evidence.driver.mirror import working_copy
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.redo import find_done

SLOW = ("torch", "ray", "optuna", "sklearn.datasets")


class Stopped(Exception):
    """Raised by the first line, to see the process as it was then."""


def test_the_first_line_comes_before_the_slow_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}}, "n_trials": 5}
    )
    store = working_copy(str(tmp_path / "s"))
    spec, data = begun(store.folder, spec, None)
    finds = find_done(store.folder)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("torch", "ray", "optuna")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        raise Stopped

    with pytest.raises(Stopped):
        UnfinishedStudy(spec, store, Run("ray"), Heard(say), data, finds).run_trials()
    assert said == [f"s: 5 trials, workers as there is room -> {tmp_path / 's'}"]
    assert not [name for name in SLOW if name in sys.modules]


def forecast_told(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is said of the seconds that a study will take."""
    monkeypatch.setattr("nas_evidence.driver.runtime.forecast_seconds", seconds)
    spec = StudySpec.model_validate(
        {"name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}}}
    )
    lines: list[str] = []
    left: Any = UnfinishedStudy(spec, None, Run("local"), Heard(lines.append), None, None)
    with left.forecast_told(None, 1, 2):
        pass
    return lines


@pytest.mark.usefixtures("no_shortcuts")
def test_the_forecast_is_one_line_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = forecast_told(lambda *_, **__: 30.0, monkeypatch)
    assert re.fullmatch(r"s: less than a minute on the (CPU|GPU)", line)


@pytest.mark.usefixtures("no_shortcuts")
def test_a_forecast_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> float:
        raise MemoryError("the largest network does not fit here")

    assert forecast_told(broken, monkeypatch) == []
