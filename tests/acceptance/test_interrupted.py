"""Studies that are cancelled, interrupted, killed or damaged end as one that nothing disturbed."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from acceptance.service import (
    N_TRIALS,
    assert_same,
    found,
    kill,
    s3_server,
    searched,
    stored,
    wait_for_a_trial,
)
from acceptance.uses import command, copied, start, tables
from numpy.typing import NDArray

import nas_evidence

pytestmark = pytest.mark.slow

#: Searches that are begun until one is stopped in time.
_TRIES = 10


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study file, and `calm`: the study as it ends undisturbed."""
    home = tmp_path_factory.mktemp("interrupted")
    searched(home)
    return home


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as uri:
        yield uri


def computed(place: Path | str) -> pd.DataFrame:
    """Return the scores of folds with the seconds that each took, which no other run repeats."""
    evidence = tables(place)["evidence"]
    of_folds = evidence[evidence["estimator"] == "conditional_evidence"]
    return of_folds[["trial_id", "epoch", "value", "seconds"]].reset_index(drop=True)


def stop(way: str, process: "subprocess.Popen[str]", place: Path | str) -> None:
    """Stop a search in one of three ways, if it has not ended, and wait for its end."""
    if way == "cancel":
        with suppress(ValueError):  # it has ended
            nas_evidence.cancel(place)
    elif way == "interrupt":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    else:
        kill(process)
    _, said = process.communicate(timeout=600)
    assert "Traceback" not in said


def stopped(home: Path, way: str, place: Path | str, *options: object) -> Path | str:
    """Search at a place until some trials are stored and others are not; return the place.

    A loaded machine may finish a study before it is stopped. Then another one is begun beside it.
    """
    for n in range(_TRIES):
        here = f"{place}-{n}"
        process = start("search", home / "disturbed.toml", "--out", here, *options, folder=home)
        wait_for_a_trial(process, here)
        stop(way, process, here)
        if len(stored(here)) < N_TRIALS:
            assert stored(here)
            assert process.returncode == (-signal.SIGKILL if way == "kill" else 130)
            return here
        assert process.returncode in (0, -signal.SIGKILL, 130)
    raise AssertionError("every search ended before it was stopped")


@pytest.mark.parametrize("ways", [["cancel"], ["kill", "interrupt"]], ids=" and ".join)
def test_a_stopped_study_is_resumed_to_the_tables_of_an_undisturbed_one(
    home: Path, tmp_path: Path, ways: list[str]
) -> None:
    place = stopped(home, ways[0], tmp_path / "s", "--executor", "local", "--workers", 1)
    kept = computed(place)
    for way in ways[1:]:
        process = start("resume", place, "--executor", "inline", folder=home)
        wait_for_a_trial(process, place, besides=stored(place))
        stop(way, process, place)
        assert process.returncode in ((130,) if len(stored(place)) < N_TRIALS else (0, 130))
    command("resume", place, "--executor", "inline", folder=home)
    assert_same(found(home / "calm"), found(place))
    now = computed(place)
    assert_same({"kept": kept}, {"kept": now[now["trial_id"].isin(kept["trial_id"])]})
    command("verify", place)


def test_a_study_at_a_store_survives_the_loss_of_its_machine(
    home: Path, tmp_path: Path, bucket: str
) -> None:
    place = stopped(home, "kill", f"{bucket}/s", "--executor", "inline")
    command("resume", place, "--executor", "inline", folder=tmp_path)
    assert_same(found(home / "calm"), found(place))
    assert predicted(place) == pytest.approx(predicted(home / "calm"), rel=1e-6, abs=1e-9)


def predicted(place: Path | str, trial_id: int | None = None) -> NDArray[np.float64]:
    """Return class probabilities of fixed rows, by a trial or by what the study delivers."""
    rows = np.random.default_rng(1).normal(size=(20, 6))
    return nas_evidence.predict(place, rows, trial_id=trial_id).rows.probabilities


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def mended(place: Path) -> None:
    """Do what restores a damaged study: `resume`, and before it `repair` where there is that."""
    if re.search(r"^\W*repair\s", command("--help").out, re.MULTILINE):
        command("repair", place)
    command("resume", place, "--executor", "inline")


def results(place: Path) -> list[Path]:
    """Return the files that hold results."""
    kind = "records" if (place / "records").is_dir() else "evidence"
    return sorted((place / kind).rglob("*.parquet"))


def test_damaged_and_lost_results_are_seen_and_computed_again(home: Path, tmp_path: Path) -> None:
    place = copied(home / "calm", tmp_path / "s")
    first, second, *_ = results(place)
    flipped(first)
    command("verify", place, code=1)
    second.unlink()
    mended(place)
    command("verify", place)
    assert_same(found(home / "calm"), found(place))


def test_damaged_weights_are_seen_and_the_network_predicts_as_before(
    home: Path, tmp_path: Path
) -> None:
    place = copied(home / "calm", tmp_path / "s")
    weights = min((place / "models").glob("*.safetensors"))
    flipped(weights)
    command("verify", place, code=1)
    mended(place)
    command("verify", place)
    assert_same(found(home / "calm"), found(place))
    before, after = (predicted(study, int(weights.stem)) for study in (home / "calm", place))
    assert after == pytest.approx(before, rel=1e-6, abs=1e-9)


def test_resuming_a_finished_study_changes_no_result(home: Path, tmp_path: Path) -> None:
    place = copied(home / "calm", tmp_path / "s")
    command("resume", place, "--executor", "inline")
    assert_same(tables(home / "calm"), tables(place))
