"""Fixtures for all tests; one thread, so that sums have one order."""

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import pytest
import torch

torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data, golden values and published tables that lie beside some checkouts."""
    if not SHARED.is_dir():
        pytest.skip("the folder of reference data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def require_service() -> Callable[[str, bool], None]:
    """Called with a service's name and whether it is there; without it the test skips, or fails.

    It fails where NAS_REQUIRE_SERVICES=1: `.ci/run` sets that once it has installed them.
    """

    def require(name: str, present: bool) -> None:
        if not present and os.environ.get("NAS_REQUIRE_SERVICES") == "1":
            pytest.fail(f"{name} must be installed with NAS_REQUIRE_SERVICES=1")
        if not present:
            pytest.skip(f"{name} is not installed here")

    return require


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
