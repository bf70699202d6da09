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
from safetensors.numpy import load_file

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


@pytest.mark.parametrize("way", ["cancel", "interrupt", "kill"])
def test_a_stopped_study_is_resumed_to_the_tables_of_an_undisturbed_one(
    home: Path, tmp_path: Path, way: str
) -> None:
    apart = ("--executor", "local", "--workers", 1) if way == "kill" else ("--executor", "inline")
    place = stopped(home, way, tmp_path / "s", *apart)
    kept = computed(place)
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
    study = nas_evidence.load(place)
    winner = nas_evidence.Predictor.load(study.export(tmp_path / "winner"))
    rows = np.load(home / "data.npz")["x_test"]
    calm = nas_evidence.load(home / "calm").predict_proba(rows)
    assert (study.predict_proba(rows) == calm).all()
    assert (winner.predict(rows).probabilities == calm).all()


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


def test_damaged_weights_are_seen_and_trained_again_to_the_same_bits(
    home: Path, tmp_path: Path
) -> None:
    place = copied(home / "calm", tmp_path / "s")
    path = min((place / "models").glob("*.safetensors"))
    before = load_file(path)
    flipped(path)
    command("verify", place, code=1)
    mended(place)
    command("verify", place)
    assert_same(found(home / "calm"), found(place))
    after = load_file(path)
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_resuming_a_finished_study_changes_no_result(home: Path, tmp_path: Path) -> None:
    place = copied(home / "calm", tmp_path / "s")
    command("resume", place, "--executor", "inline")
    assert_same(tables(home / "calm"), tables(place))
