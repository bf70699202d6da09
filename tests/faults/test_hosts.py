"""Two cases of `benchmarks/hosts.py` on hosts made here, and what its committed run found."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("hosts")


@pytest.fixture(scope="module")
def cluster(hosts: ModuleType) -> Iterator[Any]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with hosts.cluster() as made:
        yield made


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("case", ["node cut off 10 s", "node killed"])
def test_a_study_on_several_hosts_ends_with_the_tables_of_the_undisturbed_one(
    hosts: ModuleType, cluster: Any, case: str
) -> None:
    assert hosts.disturbed(case, *cluster)["wrong"] == []


def test_the_committed_run_on_hosts_found_nothing_wrong(hosts: ModuleType) -> None:
    stored = json.loads((BENCHMARKS / "results" / "hosts.json").read_text())
    assert {
        case: found["wrong"] for case, found in stored["cases"].items() if found["wrong"]
    } == {}
    assert {"node cut off 10 s", "node killed"} <= stored["cases"].keys() <= hosts.CASES.keys()
    page = BENCHMARKS.parent / "docs" / "explanation" / "faults.md"
    assert hosts.table(stored) in page.read_text(encoding="utf-8")
