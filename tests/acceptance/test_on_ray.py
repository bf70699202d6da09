"""A study as a job on a cluster of Ray: submitted, cancelled, resumed, followed and exported."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from acceptance.service import (
    N_TRIALS,
    assert_same,
    found,
    jobs,
    ray_head,
    searched,
    stored,
    wait_for,
)
from acceptance.uses import command

import nas_evidence

pytestmark = [pytest.mark.slow, pytest.mark.ray]

#: Studies that are submitted until one is cancelled in time.
_TRIES = 10


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study file, and `calm`: the study as it ends in one process."""
    home = tmp_path_factory.mktemp("ray")
    searched(home)
    return home


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with ray_head(home) as url:
        yield url


def cancelled(home: Path, address: str) -> Path:
    """Submit the study and cancel it when some trials are stored; return its folder."""
    for n in range(_TRIES):
        store, name = home / f"far-{n}", f"far-{n}"
        there = ("--address", address, "--name", name)
        study = home / "disturbed.toml"
        command("submit", study, "--store", store, *there, "--workers", 1, folder=home)
        wait_for(partial(begun, address, store), "the first stored trial")
        with suppress(ValueError):  # it has ended
            nas_evidence.cancel(address=address, name=name)
        if len(stored(store)) < N_TRIALS:
            assert stored(store)
            assert [*jobs(address).values()].count("STOPPED") == 1
            command("status", "--follow", *there, code=130)
            return store
    raise AssertionError("every study ended before it was cancelled")


def begun(address: str, store: Path) -> bool:
    """Tell whether a trial is stored; fail where a job has failed."""
    assert "FAILED" not in jobs(address).values()
    return bool(stored(store))


def test_a_job_is_cancelled_resumed_followed_and_exported_with_the_tables_of_one_process(
    home: Path, address: str, tmp_path: Path
) -> None:
    store = cancelled(home, address)
    there = ("--address", address, "--name", store.name)
    command("resume", store, *there, folder=home)
    command("status", "--follow", *there)
    assert "FAILED" not in jobs(address).values()
    assert_same(found(home / "calm"), found(store))
    command("verify", store)

    command("export", store, "--to", tmp_path / "winner")
    rows = np.load(home / "data.npz")["x_test"]
    exported = nas_evidence.Predictor.load(tmp_path / "winner").predict(rows)
    calm = nas_evidence.load(home / "calm").predict(rows)
    assert exported.probabilities == pytest.approx(calm.probabilities, rel=1e-6, abs=1e-9)
