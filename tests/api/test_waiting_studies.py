"""A study that waits for room on a full cluster says so, and can be cancelled meanwhile."""

import json
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fakes import study
from faulty import Cli
from records import mlp

import nas_evidence
from nas_evidence.api.runs import Audience, Run, UnfinishedStudy
from nas_evidence.driver.mirror import WorkingCopy, working_copy
from nas_evidence.reporting.live import LiveReport
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.storage import holding
from nas_evidence.storage.events import Asked, Launched
from nas_evidence.storage.holding import Holder, holder_in
from nas_evidence.storage.log import Log
from nas_evidence.storage.requests import is_open, request_cancel
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.pool import Limits

WAITS = "2 workers, 0 of 2 CPUs free"


def waiting(store: WorkingCopy) -> UnfinishedStudy:
    given: Any = {"data": None, "finds": None}
    left = UnfinishedStudy(study(n_trials=4), store, Run("ray"), Audience(), **given)
    left._starting = True
    return left


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of a study that this process holds, with a heartbeat that has just come."""
    monkeypatch.setattr(holding, "BEAT_EVERY", 0.01)
    open_study(tmp_path / "s", study(n_trials=4, name="s"))
    with locked(tmp_path / "s"):
        yield tmp_path / "s"
    holder = holder_in((tmp_path / "s" / "lock").read_bytes())
    assert holder is None


def beaten(folder: Path, waits_for: str) -> None:
    """Wait for the heartbeat that says it."""
    while True:
        holder = holder_in((folder / "lock").read_bytes())
        if holder is not None and holder.waits_for == waits_for:
            return


def test_status_says_what_a_study_waits_for(held: Path, cli: Cli) -> None:
    waiting(working_copy(str(held)))._waits(WAITS)
    beaten(held, WAITS)
    now = nas_evidence.status(held)
    assert (now.state, now.waits_for) == ("running", WAITS)
    with closing(Log(held)) as log:  # asked of the executor, which has no worker for it
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Launched(trial_id=0, attempt=1))
    shown = cli("status", held)[0].splitlines()
    assert shown[:2] == ["s: waiting, 0 of 4 trials (none yet)", f"waits for {WAITS}"]
    assert shown[2].startswith("held by ")
    assert len(shown) == 3
    assert json.loads(cli("status", held, "--json")[0])["waits_for"] == WAITS
    (listed,) = nas_evidence.list_studies(held.parent)
    assert (listed.state, listed.waits_for) == ("waiting", WAITS)
    assert f"waiting: {held}: waits for {WAITS}\n" in cli("list", held.parent)[0]
    waiting(working_copy(str(held)))._waits("")
    beaten(held, "")
    assert cli("status", held)[0].startswith("s: running, ")
    assert "waits for" not in cli("list", held.parent)[0]


def test_the_live_page_says_what_a_study_waits_for(held: Path) -> None:
    waiting(working_copy(str(held)))._waits(WAITS)
    beaten(held, WAITS)
    with closing(Log(held)) as log:
        log.write(Asked(number=0, architecture=mlp()))
        log.write(Launched(trial_id=0, attempt=1))
        live = LiveReport(held)
        page = live.write(10).html.read_text("utf-8")
        assert f"<strong>Waits for {WAITS}.</strong> 0 of 4 trials are finished. As of" in page
        assert 'id="live"' not in page
        assert live.write(10) is None
        waiting(working_copy(str(held)))._waits("")
        beaten(held, "")
        assert "<strong>Running.</strong>" in live.write(10).html.read_text("utf-8")


def test_watch_says_what_a_study_waits_for(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_study(tmp_path / "s", study(n_trials=4, name="s"))
    running = iter([True, True, False])
    folder = sys.modules["nas_evidence.storage.study_folder"]
    monkeypatch.setattr(folder, "is_locked", lambda _: next(running, False))
    holder = Holder(1, "h", "b", 0.0, 0.0, waits_for=WAITS)
    monkeypatch.setattr(folder, "holder_of", lambda _: holder)

    def looks(folder: Path, *, is_over: Any, **_: Any) -> Any:
        while not is_over():
            pass
        return iter(())

    monkeypatch.setattr("nas_evidence.reporting.live.watch", looks)
    assert cli("watch", tmp_path / "s")[0].splitlines()[1:] == [f"waits for {WAITS}"]


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_study_that_waits_for_its_first_worker_is_cancelled(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    place = str(folder) if kind == "folder" else f"file://{folder}"
    open_study(folder, study(n_trials=4, name="s"))
    store = working_copy(place)
    store.pull()
    left = waiting(store)
    left._waits(WAITS)
    request_cancel(folder)  # from another terminal
    with pytest.raises(KeyboardInterrupt):
        left._waits(WAITS)
    assert not is_open(store.folder)
    left._starting = False  # then the driver looks
    request_cancel(folder)
    left._waits(WAITS)


def test_a_lock_with_all_that_it_may_say_fits_into_its_file(held: Path) -> None:
    waiting(working_copy(str(held)))._waits("9" * 500)
    beaten(held, "9" * 120)
    assert len((held / "lock").read_bytes()) == 1024


@pytest.mark.slow
def test_on_a_cluster_a_study_waits_without_limit_and_says_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nas_evidence.workers import on_ray

    pool = object.__new__(on_ray.RayExecutor)  # connected to nothing
    pool.resources, pool.limits = ResourceSpec(), Limits()
    pool._nodes = [{"Resources": {"CPU": 1.0, "GPU": 1.0}}, {"Resources": {"CPU": 1.0}}]
    monkeypatch.setattr(on_ray.ray, "available_resources", lambda: {"GPU": 0.5})
    assert pool._waits_for(0.0, 2) == WAITS
    of_gpu = "1 worker with 1 CPU and 0.5 GPU, 0 of 2 CPUs and 0.5 of 1 GPU free"
    assert pool._waits_for(0.5, 1) == of_gpu
    pool.resources = ResourceSpec(cpus=3)
    assert pool._waits_for(0.0, 2) == "2 workers with 3 CPUs each, 0 of 2 CPUs free"
    for joined, patience in ((True, math.inf), (False, 900.0)):
        pool._joined = joined
        assert pool.patience == patience
    pool._joined = True
    assert "until there is room" in pool._for_how_long()
    pool.resources = ResourceSpec(wait_seconds=60.0)
    assert (pool.patience, pool._for_how_long()) == (60.0, "waiting for up to 1.0 min")
