"""A store that a node does not see is refused, found out by a token and named by the node."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from messages import refused

from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.storage.store import Store
from nas_evidence.workers.node_check import NODE_LOST, Look, NodeCheck, refusal, why_unseen

NODES = {"a": "10.0.0.1", "b": "10.0.0.2"}


def on_nodes(blind: dict[str, str]) -> Callable[[str, Look], Callable[[float], str | None]]:
    """Stand for the cluster: nodes in `blind` look elsewhere, all others here."""

    def ask(node: str, look: Look) -> Callable[[float], str | None]:
        if node in blind:
            look = partial(why_unseen, blind[node], look.args[1])  # type: ignore[attr-defined]
        return lambda timeout: look()

    return ask


def test_a_shared_folder_is_seen_and_the_token_goes(tmp_path: Path) -> None:
    check = NodeCheck(str(tmp_path), on_nodes({}))
    check.require(NODES, timeout=1.0)
    assert check.sees("a", NODES["a"])
    assert check.sees("new", "10.0.0.3")
    assert list(tmp_path.iterdir())
    check.close()
    assert not list(tmp_path.iterdir())


def test_a_node_without_the_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    check = NodeCheck(str(tmp_path), on_nodes({"b": str(tmp_path / "nowhere")}))
    with refused("nodes-cannot-see", "on 1: node 10.0.0.2:", "--out, or --store URI"):
        check.require(NODES, timeout=1.0)


def test_another_folder_of_the_same_name_is_not_the_store(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    other = NodeCheck(str(tmp_path / "two"), on_nodes({}))  # an old token of another study
    check = NodeCheck(str(tmp_path / "one"), on_nodes({"b": str(tmp_path / "two")}))
    with refused("nodes-cannot-see", "10.0.0.2: it is another folder of the same name"):
        check.require(NODES, timeout=1.0)
    other.close()


def test_a_node_that_joins_later_and_does_not_see_it_gets_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = NodeCheck(str(tmp_path), on_nodes({"late": str(tmp_path / "nowhere")}))
    check.require(NODES, timeout=1.0)
    for _ in range(3):
        assert not check.sees("late", "10.0.0.3")
    assert caplog.text.count("node_refused") == 1
    assert "10.0.0.3" in caplog.text


def test_a_node_that_gives_no_answer_is_not_taken_for_one_that_sees(tmp_path: Path) -> None:
    check = NodeCheck(str(tmp_path), lambda node, look: lambda timeout: None)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1: no answer"):
        check.require(NODES, timeout=1.0)
    assert not check.sees("late", "10.0.0.3")


def test_a_node_that_dies_meanwhile_is_no_reason_to_stop_and_is_asked_again(
    tmp_path: Path,
) -> None:
    said = iter([NODE_LOST, NODE_LOST, ""])
    there = {"a": lambda timeout: ""}
    check = NodeCheck(str(tmp_path), lambda node, look: there.get(node, lambda _: next(said)))
    check.require({"a": "10.0.0.1", "b": "10.0.0.2"}, timeout=1.0)
    assert check.sees("a", "10.0.0.1")
    assert not check.sees("b", "10.0.0.2")
    assert check.sees("b", "10.0.0.2"), "it came back"


def test_a_uri_is_looked_at_from_every_node_too(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/s"
    check = NodeCheck(uri, on_nodes({"b": "nowhere://bucket"}))
    with pytest.raises(ValueError, match=r"10\.0\.0\.2: .*Protocol not known.*credentials"):
        check.require(NODES, timeout=1.0)
    check.close()
    assert not Store(uri).list()
    assert "--store" not in refusal(uri, {"10.0.0.2": "x"}), "it is one already"


# --- on a real cluster


def as_on_another_disk(look: Look) -> str:
    """On a node whose environment says so, the same path is another folder."""
    if os.environ.get("NAS_TEST_OTHER_DISK"):
        place, token = look.args  # type: ignore[attr-defined]
        return str(look.func(f"{place}/of-this-node", token))  # type: ignore[attr-defined]
    return look()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes of which one has a disk of its own."""
    import ray
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    store = {"object_store_memory": 80 * 1024**2, "include_log_monitor": False}
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **store)
        cluster.add_node(num_cpus=1, **store)
        cluster.add_node(num_cpus=1, env_vars={"NAS_TEST_OTHER_DISK": "1"}, **store)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Nobody:
    """A worker that is never given a trial."""

    must_go = ""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_on_a_real_cluster_the_node_with_a_disk_of_its_own_is_named(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas_evidence.workers import on_ray

    arrays = load(DatasetSpec(name="digits", max_train=50, max_test=20), seed=0)

    def start() -> Any:
        resources = ResourceSpec(workers=2, gpus=0)
        return on_ray.RayExecutor(
            arrays, resources, tmp_path, address=cluster.address, make_worker=Nobody
        )

    start().close()  # all see it
    monkeypatch.setattr(on_ray, "look_there", as_on_another_disk)
    with pytest.raises(ValueError, match=r"not seen on 1: node [\d.]+: the folder does not exist"):
        start()
    assert not (tmp_path / "node-token").exists()
