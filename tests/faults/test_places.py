"""Disks that cannot be written, odd files in a folder, foreign locks: one sentence, no block."""

import errno
import logging
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from commands import write_study
from fakes import FakeExecutor, finished, last_log, leave_holder
from faulty import Cli, call, run, stopped, study
from messages import refused
from torch import nn

from nas_evidence.data import load
from nas_evidence.driver.status import study_status
from nas_evidence.exporting.program import Exported, write_program
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.storage.events import Launched
from nas_evidence.storage.faults import about_disk, disk_stop, is_disk_full
from nas_evidence.storage.holding import holder_in
from nas_evidence.storage.log import Log, piece, read_log
from nas_evidence.storage.study_folder import is_locked, locked, open_study

SPEC = study(n_trials=3)


def test_a_heartbeat_of_a_clock_that_ran_ahead_is_told_and_can_be_stolen(tmp_path: Path) -> None:
    for ahead in (10 * 24 * 3600.0, 1e300):
        leave_holder(tmp_path, seconds_ago=-ahead)
        with refused("holder-silent", "last heard of at"):
            locked(tmp_path).__enter__()
    leave_holder(tmp_path, seconds_ago=-30.0)
    with pytest.raises(ValueError, match="another process works on"):
        locked(tmp_path, steal=True).__enter__()
    leave_holder(tmp_path, seconds_ago=-3600.0)
    with locked(tmp_path, steal=True):
        pass


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00garbage", "{}".encode("utf-16"), b"[1]", b'{"pid": "x"}', b"{" * 10_000],
)
def test_a_lock_of_unknown_content_needs_steal(tmp_path: Path, content: bytes) -> None:
    open_study(tmp_path, SPEC)
    (tmp_path / "lock").write_bytes(content)
    assert not is_locked(tmp_path)
    assert study_status(tmp_path).state == "stopped"
    with pytest.raises(ValueError, match="option `steal`"):
        locked(tmp_path).__enter__()
    with locked(tmp_path, steal=True):
        assert is_locked(tmp_path)
    odd = sealed_json({"pid": 1, "host": 2, "boot_id": 3, "heard_of": "x", "since": 0})
    assert holder_in(odd.encode()) is None


def test_stray_names_among_the_checkpoints_block_nothing(tmp_path: Path) -> None:
    stopped(SPEC, tmp_path, 1)
    for name in (
        "000002.bak/attempt-1",
        "000001/attempt-x",
        "000001/attempt-1.old",
        "0 copy",
        "x",
    ):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "12notes.txt").write_text("mine")
    run(SPEC, tmp_path)
    assert len(finished(tmp_path)) == 3
    assert (tmp_path / "checkpoints" / "12notes.txt").exists()


def test_lines_of_the_log_without_a_key_block_nothing(tmp_path: Path) -> None:
    stopped(SPEC, tmp_path, 1)
    with last_log(tmp_path).open("a") as log:
        log.write('{"t": 1.0, "event": "end"}\n{"event": "ask"}\n{"t": 1, "event": ["x"]}\n')
        log.write('{"t": 1.0, "event": "rung", "trial_id": 1, "epoch": 2}\n[]\n')
        log.write("[" * 100_000 + "\n")
    run(SPEC, tmp_path)
    assert len(finished(tmp_path)) == 3


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("verb", ["report", "search"])
def test_a_disk_that_cannot_be_written_gets_one_sentence_and_no_file_elsewhere(
    tmp_path: Path,
    verb: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    folder = tmp_path / "s"
    open_study(folder, SPEC)
    run(SPEC, folder, FakeExecutor())
    monkeypatch.chdir(here)

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(self))

    if verb == "report":
        monkeypatch.setattr("nas_evidence.reporting.templating.write_whole", full)
        given: tuple[object, ...] = ("report", folder)
    else:
        monkeypatch.setattr("nas_evidence.storage.study_folder.write_whole", full)
        given = ("search", "digits", "--out", tmp_path / "new")
    exit_code, _, said = call(capsys, *given)
    assert exit_code in (1, 2)
    assert os.strerror(code) in said
    assert said.count("\n") == 1
    assert not list(here.iterdir())


def test_the_sentence_about_a_disk_names_place_and_remedy() -> None:
    error = OSError(errno.EROFS, "Read-only file system", "/a/b")
    assert about_disk(error).startswith("cannot write at /a/b: Read-only file system; give this")
    cut = OSError(errno.EFBIG, "File too large")
    assert is_disk_full(cut)
    assert about_disk(cut, Path("/a")).startswith("cannot read or write at /a: File too large;")
    cause = "OSError: [Errno 28] No space left on device: '/a/b'"
    said = "cannot write at /a/b: No space left on device; free space there, then"
    assert str(disk_stop(Path("/a"), cause)).startswith(said)


@pytest.mark.slow
def test_a_search_on_a_full_disk_ends_with_one_sentence_and_the_code_of_a_failed_job(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_study(tmp_path)

    def full(self: Path, *_: object) -> None:
        with open("/dev/full", "w", buffering=1) as log:  # the log is on the same disk
            logging.StreamHandler(log).handle(logging.makeLogRecord({"msg": "x"}))
        shutil.rmtree(self / "logs")  # nor can it be opened
        logging.getLogger("nas_evidence").warning("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr("nas_evidence.driver.driver.write_record", full)
    said = cli("search", place, "--out", tmp_path / "s", "--executor", "inline", code=1)[1]
    assert said.startswith(
        f"error: cannot write at {tmp_path}/s: No space left on device; free space"
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_without_locks_a_search_is_refused_with_the_remedy_and_a_status_reads_the_holder(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    open_study(tmp_path / "s", SPEC)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    cli("status", tmp_path / "s")
    said = cli("search", "digits", "--out", tmp_path / "new", code=1)[1]
    assert said.startswith(f"error: cannot read or write at {tmp_path}/new/lock: ")
    assert "file:///" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("place", ["lock", "trials/000009-a1.parquet", "logs/events/000000.jsonl"])
def test_a_pipe_in_the_folder_is_named_and_nobody_waits_for_it(
    tmp_path: Path, cli: Cli, place: str
) -> None:
    open_study(tmp_path, SPEC)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).unlink(missing_ok=True)
    os.mkfifo(tmp_path / place)
    for verb in ("verify", "report", "status", "resume", "repair"):
        said = cli(verb, tmp_path, code=2)[1]
        assert f"{tmp_path}/{place} is neither a file nor a folder" in said


@pytest.mark.parametrize("place", ["lock", piece(0)])
@pytest.mark.parametrize("leads_to", ["nowhere", "itself"])
def test_a_link_to_nothing_is_refused_by_name(
    tmp_path: Path, cli: Cli, place: str, leads_to: str
) -> None:
    open_study(tmp_path, SPEC)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(path.name if leads_to == "itself" else leads_to)
    for verb in ("status", "verify", "resume", "repair"):
        said = "".join(cli(verb, tmp_path, code=None))
        assert f"{path} is a link to " in said
        assert "where nothing is; put what it leads to in its place, or remove it." in said


@pytest.mark.parametrize("place", ["lock", piece(0)])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(
    tmp_path: Path, cli: Cli, place: str
) -> None:
    open_study(tmp_path, SPEC)
    (tmp_path / place).unlink(missing_ok=True)
    (tmp_path / place).mkdir(parents=True)
    for verb in ("resume", "repair"):
        said = cli(verb, tmp_path, code=1)[1]
        assert said.startswith(f"error: cannot read or write at {tmp_path}/{place}: ")
        assert said.count("\n") == 1


def test_a_file_in_the_place_of_a_folder_is_one_sentence(tmp_path: Path, cli: Cli) -> None:
    open_study(tmp_path, SPEC)
    (tmp_path / "models").rmdir()
    (tmp_path / "models").touch()
    said = cli("resume", tmp_path, code=1)[1]
    assert said.startswith(f"error: cannot read or write at {tmp_path}/models: File exists; move")
    assert said.count("\n") == 1


def test_a_program_on_a_full_disk_is_an_error_and_no_abort() -> None:
    arrays = load(DatasetSpec(name="digits", max_train=60, max_test=10), seed=0)
    network = Exported(nn.Flatten(), torch.zeros(()), torch.ones(()))
    with pytest.raises(OSError, match="No space left"):
        write_program(network, Path("/dev/full"), arrays)


def test_a_line_of_the_log_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    log, limits = Log(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.write(Launched(trial_id=0, attempt=1))
    size = last_log(tmp_path).stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        with pytest.raises(OSError, match="File too large") as error:
            log.write(Launched(trial_id=1, attempt=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(last_log(tmp_path))
    assert last_log(tmp_path).stat().st_size == size
    log.write(Launched(trial_id=2, attempt=1))
    log.close()
    assert read_log(tmp_path).problems == []
    assert read_log(tmp_path).state == log.state


def test_an_unexpected_error_leaves_no_file_in_the_working_folder(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def wrong(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck\nsecond line")

    monkeypatch.setattr("nas_evidence.api.request.load_study", wrong)
    said = cli("search", "digits", "--dry-run", code=1)[1]
    assert said.startswith("unexpected RuntimeError: no such luck; ")
    assert not list(tmp_path.iterdir())
