"""Fixtures for all tests; one thread, so that sums have one order."""

import gc
import os
import signal
from collections import Counter
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


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Leave most cases of crossed parameters to `make matrices`, and order the files.

    Those with most slow tests are first: then several workers end at the same time.
    """
    matrix.leave_out(items)
    yield  # here tests are chosen by marks
    n_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -n_slow[item.path])


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
