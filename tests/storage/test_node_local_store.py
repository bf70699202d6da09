"""A store that a node does not see is refused, found out by a token and named by the node."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from messages import refused
from ray_pools import STORE, drive, launch, pool, send_tests_along, where

from nas_evidence.storage.store import Store
from nas_evidence.workers.store_token import refusal, token_in, why_unseen


def test_a_shared_folder_is_seen_and_the_token_goes(tmp_path: Path) -> None:
    with token_in(str(tmp_path)) as token:
        assert why_unseen(str(tmp_path), token) == ""
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_node_without_the_folder_is_told_from_one_with_another_of_the_same_name(
    tmp_path: Path,
) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    with token_in(str(tmp_path / "one")) as token, token_in(str(tmp_path / "two")):
        assert "does not exist" in why_unseen(str(tmp_path / "nowhere"), token)
        assert why_unseen(str(tmp_path / "two"), token) == "it is another folder of the same name"


def test_a_refusal_names_the_node_and_the_remedy() -> None:
    said = refusal("/runs/s", "10.0.0.2", "it is another folder of the same name")
    assert "not seen on the node at 10.0.0.2: it is another folder" in said
    assert "as `out`, or the URI of a store" in said


def test_a_uri_is_looked_at_too(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/s"
    with token_in(uri) as token:
        assert why_unseen(uri, token) == ""
        assert "Protocol not known" in why_unseen("nowhere://bucket", token)
    assert not Store(uri).list()
    assert "URI of a store" not in refusal(uri, "10.0.0.2", "x"), "it is one already"


# --- on a real cluster

#: Of a node, so that the study's folder is another one there.
OTHER_DISK = "NAS_TEST_OTHER_DISK"


def as_on_another_disk(place: str, token: str) -> str:
    """On a node whose environment says so, the same path is another folder."""
    return why_unseen(f"{place}/of-this-node" if os.environ.get(OTHER_DISK) else place, token)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room, and a node with a disk of its own."""
    import ray
    from ray.cluster_utils import Cluster

    from nas_evidence.workers import on_ray

    send_tests_along(__name__)
    ray.cloudpickle.register_pickle_by_value(on_ray)  # and with it what it calls here
    monkeypatch.setattr(on_ray, "why_unseen", as_on_another_disk)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **STORE)
        cluster.blind = cluster.add_node(num_cpus=1, env_vars={OTHER_DISK: "1"}, **STORE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        ray.cloudpickle.unregister_pickle_by_value(on_ray)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_a_node_with_a_disk_of_its_own_is_refused_and_if_it_joins_later_gets_no_worker(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how = {"resources": {"workers": 2, "gpus": 0}}
    with refused("nodes-cannot-see", "not seen on the node at", "the folder does not exist there"):
        pool(cluster.address, tmp_path, **how)
    assert not (tmp_path / "node-token").exists()
    sound = cluster.add_node(num_cpus=1, **STORE)
    cluster.remove_node(cluster.blind)
    executor = pool(cluster.address, tmp_path, **how)
    with closing(executor):
        blind = cluster.add_node(num_cpus=1, env_vars={OTHER_DISK: "1"}, **STORE)
        while not executor._blind:
            executor.poll(timeout=1.0)
        ends = drive(executor, [launch(i) for i in range(3)])
    assert caplog.text.count("node_refused") == 1
    assert {where(end)["node"] for end in ends} == {sound.node_id} != {blind.node_id}
