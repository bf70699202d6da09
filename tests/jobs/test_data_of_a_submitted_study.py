"""Data of a study that a cluster runs: in its store, for nobody else; never sent with the job."""

from pathlib import Path
from stat import S_IMODE
from typing import Any

import pandas as pd
import pytest
from faulty import call
from messages import refused

import nas_evidence
from nas_evidence.api import submission
from nas_evidence.jobs.job import Job


class Cluster:
    """A job server in memory that notes the command, the files and the state of each job."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.sent: list[set[str]] = []
        self.state, self.store = "RUNNING", ""

    def jobs(self) -> list[Job]:
        return [Job("nas-mine-1", "mine", self.store, self.state)] * bool(self.commands)

    def submit(self, command: str, *, folder: str, metadata: dict[str, str], **_: Any) -> None:
        names = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*")}
        self.sent.append({name for name in names if not name.startswith("nas_evidence")})
        self.commands.append(command)
        self.store = metadata["nas_evidence_store"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    there = Cluster()
    monkeypatch.setattr(submission, "connect", lambda address, warn: there)
    return there


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    pd.DataFrame({"x": range(60), "z": [5, 1, 2] * 20, "y": ["a", "b"] * 30}).to_csv(path)
    return path


def submit(capsys: pytest.CaptureFixture[str], table: Path, store: object) -> tuple[int, str, str]:
    where = ("--address", "http://127.0.0.1:1", "--store", store, "--trials", "2",
             "--set", "plan.epochs=4", "--set", "plan.settle=0")  # fmt: skip
    return call(capsys, "submit", table, "--target", "y", *where)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "file://"], ids=["folder", "URI"])
def test_a_table_lies_in_the_store_where_no_other_user_reads_it_and_does_not_travel(
    scheme: str, cluster: Cluster, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s p"
    code, out, _ = submit(capsys, table, f"{scheme}{store}")
    assert code == 0
    assert cluster.sent == [set()]
    assert cluster.commands == [
        f"exec python -m nas_evidence resume '{scheme}{store}' --address auto --steal"
    ]
    assert f"data:   {scheme}{store}/data, for no other user" in out
    assert S_IMODE(store.stat().st_mode) == 0o700
    assert S_IMODE((store / "data").stat().st_mode) == 0o700
    assert S_IMODE((store / "data" / "train.parquet").stat().st_mode) == 0o600
    assert call(capsys, "resume", f"{scheme}{store}", "--executor", "inline")[0] == 0
    # Its job is alive: the same command changes nothing, and says how to follow it.
    assert "already; nothing was submitted" in submit(capsys, table, f"{scheme}{store}")[1]


@pytest.mark.parametrize("store", ["/nowhere/s", "file:///proc/s"])
def test_data_for_a_store_that_is_not_seen_from_here_are_refused_and_nothing_is_sent(
    store: str, cluster: Cluster, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = submit(capsys, table, store)
    assert code == 2
    assert "the data must be put into" in err
    assert "Give a `store` that this machine and the nodes see" in err
    assert err.count("\n") == 1
    assert not cluster.commands


def test_changed_data_are_refused_before_a_job_is_submitted(
    cluster: Cluster, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(capsys, table, tmp_path / "s")[0] == 0
    cluster.state = "SUCCEEDED"
    table.write_text(table.read_text().replace("5", "7"))
    code, _, err = submit(capsys, table, tmp_path / "s")
    assert code == 2
    assert "belongs to other data (mine.csv, " in err
    assert len(cluster.commands) == 1


@pytest.mark.slow
def test_python_submits_what_the_command_line_does(
    cluster: Cluster, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"address": "http://127.0.0.1:1", "progress": False}
    quick = {"plan.epochs": 4, "plan.settle": 0}
    found = nas_evidence.submit(
        table, target="y", n_trials=2, store=tmp_path / "s", settings=quick, **there
    )
    assert (found.is_new, found.job.id, found.job.store) == (True, "nas-mine-1", f"{tmp_path}/s")
    command = cluster.commands.pop()
    assert capsys.readouterr().out == ""
    assert submit(capsys, table, tmp_path / "s")[0] == 0  # the same study in the same store
    assert cluster.commands == [command]
    with refused("store-not-absolute", "`store`"):
        nas_evidence.submit("digits", store="s", **there)
    with refused("submit-data-in-memory", "DataFrame"):
        nas_evidence.submit(pd.read_csv(table), store="/s", **there)
    with pytest.raises(TypeError, match=r"submit\(\) got .*'traget'; did you mean 'target'"):
        nas_evidence.submit(table, traget="y", store="/s", **there)
