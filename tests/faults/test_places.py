"""Disks, locks, names, URLs, clocks, locales: one sentence, no block, no file elsewhere."""

import errno
import logging
import os
import resource
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import commands
import pandas as pd
import pytest
import torch
from commands import write_study
from fakes import FakeExecutor, finished, last_log, leave_holder
from faulty import Cli, call, run, stopped, study
from messages import refused
from torch import nn

import nas_evidence
from nas_evidence.data import load
from nas_evidence.data.reading import read_frame
from nas_evidence.driver.mirror import Mirror, working_copy
from nas_evidence.exporting.program import Exported, write_program
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.storage.events import Launched
from nas_evidence.storage.faults import about_disk, disk_stop, is_disk_full
from nas_evidence.storage.log import Log, piece, read_log
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_folder import locked, open_study

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


# --- places that mean something to a shell or in a URL


@pytest.mark.slow
def test_a_question_mark_in_the_path_of_a_study_puts_no_file_outside_of_it(tmp_path: Path) -> None:
    file = write_study(tmp_path / "in")
    place = tmp_path / "q?mode=memory#100%25 {a}"
    given = ["--executor", "inline", "--trials", "1", "--track", "optuna", "--out", place]
    commands.run("search", file, *given, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", place.name]
    assert (place / "study.db").is_file()


@pytest.mark.slow
def test_a_study_at_a_uri_names_its_export_and_the_next_command_as_they_can_be_used(
    tmp_path: Path,
) -> None:
    file, place = write_study(tmp_path / "in"), f"file://{tmp_path}/my study"
    said = commands.run(
        "search", file, "--executor", "inline", "--out", place, folder=tmp_path
    ).stdout
    assert f"export: {place}/export (trial " in said
    assert said.splitlines()[-1].startswith(f"nas-evidence resume '{place}' --set finalists=")
    assert (tmp_path / "my study" / "export" / "README.md").is_file()


def test_a_tilde_that_no_shell_has_expanded_is_the_home_for_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = working_copy("~/x")
    assert (store.folder, store.place) == (tmp_path / "x", str(tmp_path / "x"))
    open_study(tmp_path / "x", study(n_trials=3))
    assert nas_evidence.load("~/x").folder == tmp_path / "x"


# --- names that are not UTF-8, or as long as a name can be

NOT_UTF_8 = os.fsdecode(b"n\xff\xfe")
LONG = "n" * 255


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"a": [i % 7 for i in range(60)], "y": ["p", "q"] * 30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("name", [NOT_UTF_8, "my study", "it's", "a\nb", "a\x1b[2J", "$(x)`y`"])
def test_a_printed_command_names_the_folder_that_is_meant(name: str) -> None:
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(name)}"], capture_output=True, check=True
    )
    assert printed.stdout == os.fsencode(name)
    assert shell_word(name).isprintable()


@pytest.mark.parametrize("ending", ["parquet", "feather", "csv", "json"])
def test_a_table_is_read_where_its_path_is_not_utf_8(tmp_path: Path, ending: str) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3.5, 4.5]})
    plain, odd = tmp_path / f"t.{ending}", tmp_path / NOT_UTF_8 / f"t.{ending}"
    write = {"csv": lambda path: frame.to_csv(path, index=False), "json": frame.to_json}
    write.get(ending, getattr(frame, f"to_{ending}"))(plain)
    odd.parent.mkdir()
    odd.write_bytes(plain.read_bytes())
    if ending == "json":
        odd.write_text('[{"a": 1, "b": 3.5}, {"a": 2, "b": 4.5}]')
    pd.testing.assert_frame_equal(read_frame(odd, stored=True), frame)


def test_a_file_of_the_longest_name_is_written_whole(tmp_path: Path) -> None:
    for name in (LONG, "é" * 127, "n" * 200):
        write_whole(tmp_path / name, b"x")
        assert Store(f"file://{tmp_path}").put(f"s/{name}", b"y")
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.long
@pytest.mark.parametrize("name", [NOT_UTF_8, LONG], ids=["not UTF-8", "long"])
def test_a_study_of_such_a_name_lives_as_any_other(tmp_path: Path, table: Path, name: str) -> None:
    folder = tmp_path / name
    few = ["--set", "finalists=0", "--set", "plan.epochs=2", "--executor", "inline"]
    commands.run(
        "search", table, "--target", "y", "--trials", 1, "--out", folder, *few, folder=tmp_path
    )
    assert "no problems" in commands.run("verify", folder, folder=tmp_path).stderr
    commands.run("resume", folder, "--trials", 2, "--executor", "inline", folder=tmp_path)
    done = commands.run("repair", folder, folder=tmp_path)
    assert "nothing to repair" in done.stdout + done.stderr
    assert not (folder / "damaged").exists()
    to = tmp_path / f"{name[:240]}.parquet"
    commands.run("predict", folder, table, "--to", to, folder=tmp_path)
    assert len(read_frame(to, stored=True)) == 60
    commands.run("export", folder, "--to", tmp_path / "e" / name, folder=tmp_path)
    commands.run("export", folder, "--to", tmp_path / "e" / name, folder=tmp_path)
    assert os.listdir(tmp_path / "e") == [name]


@pytest.mark.slow
def test_a_name_that_is_too_long_is_refused_in_a_sentence(tmp_path: Path, table: Path) -> None:
    where = tmp_path / (LONG + "n")
    given = ("--target", "y", "--trials", 1, "--out", where, "--executor", "inline")
    said = commands.run("search", table, *given, folder=tmp_path, code=1).stderr
    assert "give it a shorter name" in said
    assert "unexpected" not in said


# --- file systems whose times are whole seconds, or without hard links


def coarse(folder: Path) -> None:
    """Give all files of a folder one time, as if all were written in the same second."""
    for path in folder.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))


def test_a_study_file_of_the_same_size_and_second_reaches_the_store(tmp_path: Path) -> None:
    spec, uri = study(n_trials=4), f"memory://{uuid.uuid4().hex}/s"
    for n_trials in (4, 5):
        mirror = Mirror(uri, tmp_path / str(n_trials))
        with mirror.held():
            coarse(mirror.folder)
            mirror._sent = mirror._stamps()  # as after a fetch in this second
            open_study(mirror.folder, spec.model_copy(update={"n_trials": n_trials}))
            coarse(mirror.folder)
    assert b"n_trials = 5\n" in (Store(uri).get("study.toml") or b"")


def test_whoever_looks_at_a_folder_sees_a_file_that_was_replaced_in_the_same_second(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    write_whole_in(there, b"n_trials = 4\n")
    reader = Mirror(f"file://{there}", tmp_path / "s")
    reader.pull()
    write_whole_in(there, b"n_trials = 5\n")
    reader.pull()
    assert (reader.folder / "study.toml").read_bytes() == b"n_trials = 5\n"


def write_whole_in(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    write_whole(folder / "study.toml", content)
    coarse(folder)


# --- locales


@pytest.mark.slow
def test_an_unexpected_error_is_told_in_a_locale_without_its_letters(tmp_path: Path) -> None:
    code = (
        "import logging, sys; from nas_evidence.cli.main import _unexpected\n"
        "log = logging.FileHandler(sys.argv[1], encoding='utf-8')\n"
        "logging.getLogger('nas_evidence').addHandler(log)\n"
        r"_unexpected(RuntimeError('Stra\xdfe \u6771\u4eac \udcff'))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "driver.log"],
        env=commands.environment(**ascii_only), capture_output=True,
    )  # fmt: skip
    assert b"Traceback" not in ended.stderr
    assert b"; details in " in ended.stderr
    (details,) = tmp_path.glob("error-*.txt")
    assert "Straße 東京" in details.read_text(encoding="utf-8")
