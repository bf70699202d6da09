"""A report or an export of more than a minute is forecast: what takes long, where, how to stop."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_gpu import FakeGpu

import nas_evidence
from nas_evidence.cli.predict import predict
from nas_evidence.cli.report import export, report
from nas_evidence.cli.search import search
from nas_evidence.exporting import forecast

pytestmark = pytest.mark.slow
QUICK = ["plan.epochs=2", 'estimators=["diag_ef"]', "objective=diag_ef"]


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """Let all passes of an export take so long; return the devices that they are timed on."""
    timed: list[str] = []

    def rate(given: Any, arrays: Any, device: Any) -> float:
        timed.append(device.type)
        flops = forecast._flops(given, arrays, ["diag_ef"], ["export"])
        return sum(flops.values()) / seconds

    monkeypatch.setattr(forecast, "_FEW_FLOPS", 0.0)
    monkeypatch.setattr(forecast, "flops_per_second", rate)
    return timed


@pytest.fixture
def wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    x = np.random.default_rng(0).normal(size=(60, 2))
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0])})
    table.to_csv(tmp_path / "wave.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return "wave.csv"


def searched(data: str) -> str:
    search(data, target="y", test_fraction=0.2, n_trials=1, executor="inline", settings=QUICK)
    return "runs/wave"


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    return [line.removeprefix("time:   ") for line in lines if line.startswith("time:   ")]


@pytest.mark.long
def test_every_door_that_prints_says_how_long_it_takes_and_how_to_stop(
    wave: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slowed(monkeypatch, 1800.0)
    place = searched(wave)
    (line,) = said(capsys)
    assert line.startswith("report and export take about 3")
    assert " min on the CPU, mostly the posterior of 48 rows. Ctrl-C stops here" in line
    assert f"export {place} --to OUT`" in line
    report(place)
    assert said(capsys) == []  # the comparison is stored
    Path(place, "report", "comparison.json").unlink()
    report(place)
    (line,) = said(capsys)
    assert line.startswith("report takes about ")
    assert f"report {place}`" in line
    export(place, to=Path("e"), trial_id=0)
    (line,) = said(capsys)
    assert line.startswith("export takes about 30 min on the CPU")
    assert f"export {place} --trial 0 --to OUT`" in line
    predict(place, Path(wave), to=Path("p.csv"))
    assert said(capsys) == []  # by the export that is there
    shutil.rmtree(Path(place, "export"))
    predict(place, Path(wave), to=Path("p.csv"), force=True)
    (line,) = said(capsys)
    assert line.startswith("predict takes about 30 min")


@pytest.mark.long
def test_what_takes_no_more_than_a_minute_is_not_forecast(
    wave: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = forecast._FEW_FLOPS
    timed = slowed(monkeypatch, 20.0)
    searched(wave)
    assert timed == ["cpu"]
    monkeypatch.setattr(forecast, "_FEW_FLOPS", few)
    monkeypatch.setattr(forecast, "flops_per_second", lambda *_: pytest.fail("it was timed"))
    export("runs/wave", to=Path("e"))
    assert said(capsys) == []


@pytest.mark.long
def test_a_trial_of_a_gpu_is_timed_there_or_the_forecast_says_which_gpu_is_missing(
    wave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = slowed(monkeypatch, 900.0)
    with FakeGpu():
        study = nas_evidence.load(searched(wave))
        assert study.forecast(["export"]).startswith("about 15 min on the GPU, mostly ")
    here = study.forecast(["export"])
    assert here.startswith("about 15 min on the CPU, mostly the posterior of 48 rows (trained on ")
    assert "a GPU that does not exist" in here
    assert timed == ["cuda", "cuda", "cpu"]


@pytest.mark.long
def test_the_rate_is_that_of_passes_on_the_device(
    wave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    def rate(given: Any, arrays: Any, device: Any) -> float:
        rates.append(timed(given, arrays, device))
        return rates[-1]

    timed = forecast.flops_per_second
    monkeypatch.setattr(forecast, "_FEW_FLOPS", 0.0)
    monkeypatch.setattr(forecast, "flops_per_second", rate)
    with FakeGpu() as gpu:
        study = nas_evidence.load(searched(wave))
        before = gpu.launches.copy()
        assert study.forecast(["export"]) == ""
        assert gpu.launches != before
    assert all(one > 1 for one in rates)
    assert len(rates) == 2


@pytest.mark.long
def test_training_again_takes_what_it_took(wave: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = nas_evidence.load(searched(wave))
    assert study.forecast(["export"], top=1) == ""
    monkeypatch.setattr(forecast, "_spent", lambda *_: 600.0)
    assert study.forecast(["export"], top=1) == study.forecast(["export"]) == ""
    (study.folder / "models" / "0.safetensors").unlink()
    lost = study.forecast(["export"])
    assert lost == "about 10 min on the CPU, mostly training trial 0 on all rows"
