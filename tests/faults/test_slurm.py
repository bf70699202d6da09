"""The script for Slurm on a real one of two nodes, and what its committed run found."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def slurm() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("slurm")


@pytest.mark.soak
@pytest.mark.ray
def test_a_job_whose_node_is_killed_is_requeued_and_ends_with_the_undisturbed_tables(
    slurm: ModuleType,
) -> None:
    if reason := slurm.why_not():
        pytest.skip(reason)
    with slurm.several.cluster() as (hosts, _), slurm.Slurm(hosts).running() as made:
        found = slurm.undisturbed_and_killed(made, hosts.home / "study.toml")
    assert is_sound(found)


@pytest.mark.slow
def test_the_committed_run_was_requeued_once_and_differs_in_nothing() -> None:
    stored = json.loads((BENCHMARKS / "results" / "slurm.json").read_text())
    assert is_sound(stored)
    page = (BENCHMARKS.parent / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
    for job in ("undisturbed", "killed"):
        assert f"{stored[job][-1][0]:.0f} s" in page


def is_sound(found: dict[str, object]) -> bool:
    """Whether both jobs were completed, the second after one restart, with the same tables."""
    states = {job: found[job][-1][1:] for job in ("undisturbed", "killed")}  # type: ignore[index]
    ends = {"undisturbed": ["COMPLETED", 0], "killed": ["COMPLETED", 1]}
    return {job: list(state) for job, state in states.items()} == ends and not found["differ"]
