"""A worker that the kernel ended for want of memory: the loss says so, and is one of memory."""

from pathlib import Path

import pytest

from nas_evidence.spec.record import LossKind
from nas_evidence.workers import local, out_of_memory
from nas_evidence.workers.local import LocalExecutor
from nas_evidence.workers.out_of_memory import n_killed
from nas_evidence.workers.pool import Failed


class Dead:
    """A pipe whose other end is gone."""

    def recv(self) -> object:
        raise EOFError


def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, **counts: str) -> None:
    """Let the kernel tell this of groups, and of processes ended in them and on the machine."""
    places = {"group": tmp_path / "cgroup", "machine": tmp_path / "vmstat"}
    places["group"].write_text(groups)
    places["machine"].write_text(counts.pop("machine", ""))
    monkeypatch.setattr(out_of_memory, "_GROUP", places["group"])
    monkeypatch.setattr(out_of_memory, "_MACHINE", places["machine"])
    found = tuple(
        (pattern, str(tmp_path / f"version{n}"), name)
        for n, (pattern, _, name) in zip((2, 1), out_of_memory._COUNTS, strict=True)
    )
    monkeypatch.setattr(out_of_memory, "_COUNTS", found)
    for place, text in counts.items():
        path = tmp_path / place.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "counts", "n"),
    [
        ("0::/job\n", {"version2__job__memory_dot_events": "oom 9\noom_kill 2\n"}, 2),
        ("0::/job\n", {"version2__memory_dot_events": "oom_kill 3\n"}, 3),  # of a container
        ("4:memory:/job\n0::/\n", {"version1__job__memory_dot_oom_control": "oom_kill 4\n"}, 4),
        ("0::/\n", {"machine": "oom_kill_other 7\noom_kill 5\n"}, 5),
        ("", {}, 0),
    ],
)
def test_ended_processes_are_those_of_the_own_group_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, counts: dict[str, str], n: int
) -> None:
    placed(tmp_path, monkeypatch, groups, **counts)
    assert n_killed() == n


def test_each_ended_process_explains_one_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LocalExecutor.__new__(LocalExecutor)
    executor._n_killed = 1
    monkeypatch.setattr(local, "n_killed", lambda: 2)
    first, second = (executor._received(Dead()) for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(first, Failed)
    assert first.kind is LossKind.MEMORY
    assert "for want of memory" in first.why
    assert "fewer workers" in first.why
    assert second == Failed("the worker process crashed")
