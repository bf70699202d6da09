"""Fixtures for all tests; one thread, so that sums have one order."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A killed trial then goes on from its last slice, however short that was.
os.environ.setdefault("NAS_EVIDENCE_SAVE_EVERY", "0")
# Ray makes its workers nice; beside tests that are not, those would starve.
os.environ.setdefault("RAY_worker_niceness", "0")

import matrix
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
#: No test times, and the same examples everywhere: a machine under load finds what others find.
settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
#: No test cuts the power, which alone would tell; some would wait for the disk most of the time.
os.fsync = lambda descriptor: None

#: Files that take longest: first, so that two workers end at the same time.
_LONG = (
    "test_submit_cluster", "test_kill", "test_audit", "test_cluster_files",
    "test_ray_cluster", "test_shared_cluster", "test_autoscaling", "test_scale",
    "test_on_a_gpu", "test_cli", "test_intervals_delivered", "test_target_scale_delivered",
    "test_settling", "test_other_names", "test_crash_points", "test_service_machine",
    "test_executors_contract", "test_thermodynamic", "test_mirror", "test_proposer",
    "test_notebooks", "test_export", "test_code_from_outside", "test_searches", "test_results",
)  # fmt: skip

# Whoever starts the tests in the background makes them deaf, and with them what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through the libraries again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the collector free what the libraries hold; else triton reports leaks at exit."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before marks are chosen by
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of crossed parameters to `make matrices`, and put the long files first."""
    matrix.leave_out(items)
    rank = {name: i for i, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(_LONG)))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data that lie beside some checkouts."""
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


@pytest.fixture(scope="session", autouse=True)
def take_shortcuts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Take those of `shortcuts.py`."""
    import commands
    import shortcuts

    folder = tmp_path_factory.mktemp("kept")
    shortcuts.take(folder)
    commands.KEPT.append(folder)


@pytest.fixture(scope="module")
def no_shortcuts() -> Iterator[None]:
    """Take no shortcuts in the tests of a module."""
    import shortcuts

    with shortcuts.none_taken():
        yield


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """See `faulty.Cli`."""
    from faulty import call

    def called(*arguments: object, code: int | None = 0) -> tuple[str, str]:
        ended, out, err = call(capsys, *arguments)
        assert code in (None, ended), (ended, out, err)
        return out, err

    return called
