"""A Ray that has renamed what saves us a second still runs studies."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers import on_ray
from nas_evidence.workers.on_ray import RayExecutor, _only_what_trials_need, _prints_to
from nas_evidence.workers.own_cluster import all_run, named


@pytest.fixture(params=["module", "Node", "start_api_server", "start_monitor"])
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Ray's module of nodes without something; the module, or None if that is what it lacks."""
    methods = {"start_api_server": print, "start_monitor": print}
    methods.pop(request.param, None)
    node = type("Node", (), methods)
    module = SimpleNamespace() if request.param == "Node" else SimpleNamespace(Node=node)
    found = None if request.param == "module" else module
    monkeypatch.setattr(on_ray, "_internal", lambda name: found)
    return found


def test_what_is_not_there_is_left_alone(without: object) -> None:
    node = getattr(without, "Node", None)
    before = dict(vars(node)) if node else {}
    with _only_what_trials_need():
        if node:
            changed = {k for k, v in vars(node).items() if before.get(k) is not v}
            assert changed == {"start_api_server", "start_monitor"} & before.keys()
    assert node is None or dict(vars(node)) == before


def test_a_ray_that_prints_otherwise_goes_on_printing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(print_to_stdstream=print)
    monkeypatch.setattr(on_ray, "_internal", lambda name: worker)
    with _prints_to(tmp_path / "log"):
        worker.print_to_stdstream({"lines": ["a", "b"]}, ignore_prefix=True)
        worker.print_to_stdstream({"text": "c"})
    assert (tmp_path / "log").read_text() == "a\nb\n"
    assert worker.print_to_stdstream is print
    del worker.print_to_stdstream
    with _prints_to(tmp_path / "log"):
        assert not hasattr(worker, "print_to_stdstream")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_a_cluster_starts_and_is_watched_without_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "_internal", lambda name: None)
    arrays = load(DatasetSpec(name="digits", max_train=20, test_size=10), seed=0)
    logs = tmp_path / "logs"
    logs.mkdir()
    executor = RayExecutor(arrays, ResourceSpec(workers=1, gpus=0), logs)
    try:
        assert executor._is_alive()
        session = Path(ray.nodes()[0]["RayletSocketName"]).parents[1]
        processes = json.loads((session / "nas-evidence.json").read_text())["processes"]
        raylets = named(processes, "raylet")
        assert len(raylets) == 1
        assert all_run(raylets)
    finally:
        executor.close()
    assert not all_run(raylets)
