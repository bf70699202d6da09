"""Whatever ends a process or a study, its last line says the cause and what to do next."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from pathlib import Path

import commands
import pytest
from commands import TINY, environment, start, write_study
from fakes import FakeExecutor, finished
from faulty import Cli, call, run, stopped, study
from processes import processes

from nas_evidence.driver.status import study_status
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.quiet import last_words

pytestmark = pytest.mark.slow
SEARCH = (sys.executable, "-m", "nas_evidence", "search")
SPEC = study(n_trials=3)


def shell(
    line: str, *words: object, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell to its end; its "$@" are the words."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *map(str, words)], cwd=cwd, env=environment(**more),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def python(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return shell('exec "$@"', sys.executable, "-c", code, **more)


@contextmanager
def heard(first: str, *words: object, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python, and go on when it has said a first line."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], env=environment(**more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == f"{first}\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_process_that_a_library_ends_without_a_word_leaves_a_last_line() -> None:
    code = (
        "import os; from nas_evidence.workers.quiet import last_words\n"
        "with last_words('error: it ended; run it again'): os._exit(1)"
    )
    done = python(code)
    time.sleep(0.2)
    assert (done.returncode, done.stderr) == (1, "error: it ended; run it again\n")


def test_a_process_that_goes_on_has_no_last_words(capfd: pytest.CaptureFixture[str]) -> None:
    with last_words("error: it ended"):
        pass
    with pytest.raises(KeyError), last_words("error: it ended"):
        raise KeyError
    assert capfd.readouterr().err == ""


@pytest.mark.long
@pytest.mark.ray
def test_if_ray_dies_the_last_line_says_so_and_its_command_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Path(tempfile.mkdtemp(prefix="r"))  # a socket's path may have 107 characters
    monkeypatch.setenv("RAY_TMPDIR", str(ray))
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    path = write_study(tmp_path, TINY.replace("epochs = 4", "epochs = 400"))
    process = start("search", path, "--out", "s", "--executor", "ray", folder=tmp_path)
    try:
        while not any((tmp_path / "s").glob("checkpoints/*/attempt-*/epoch-*.pt")):
            assert process.poll() is None
            time.sleep(0.1)
        [doomed] = [pid for pid, (parent, _, command) in processes().items()
                    if parent == process.pid and "/gcs/gcs_server" in command]  # fmt: skip
        os.kill(doomed, signal.SIGKILL)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(ray, ignore_errors=True)
    assert process.returncode not in (0, 130), out + err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: this process was ended from outside; Ray does so when it has")
    assert "(raylet)" not in out + err, "the screen is not for Ray"
    again = last.partition("Continue: ")[2].split("resume ")[1].split()
    commands.run("resume", *again, "--executor", "inline", folder=tmp_path)
    assert len(finished(tmp_path / "s")) == 4


def test_a_closed_terminal_ends_a_search_like_ctrl_c_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace("n_trials = 4", "n_trials = 400"))
    process = start("search", path, "--out", tmp_path / "s", "--executor", "inline",
                    folder=tmp_path)  # fmt: skip
    while not list((tmp_path / "s" / "trials").glob("*")):
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "\nContinue: " in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("ImportError('libx.so: cannot open shared object file')", "pip install"),
        ("MemoryError()", "ulimit -v"),
    ],
)
def test_an_import_that_fails_is_one_line_with_the_remedy(error: str, says: str) -> None:
    before = (
        "import importlib.abc\n"
        "class Broken(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'typer': raise {error}\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    code = f"import sys\n{before}from nas_evidence.__main__ import main\nmain()"
    done = python(code)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the command line cannot be loaded")
    assert says in line


def test_little_memory_is_said_in_the_last_line(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    words = (*SEARCH, path, "--out", tmp_path / "s", "--executor", "inline")
    done = shell('ulimit -v 900000; exec "$@"', *words)
    assert done.returncode != 0
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    assert "memory" in last
    assert "ulimit" in last
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.long
def test_without_unicode_the_work_that_is_done_is_not_a_failure(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace('"tiny"', '"größer ± 1"'))
    words = (*SEARCH, path, "--out", tmp_path / "s", "--executor", "inline")
    done = shell('exec "$@"', *words, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfer" in done.stdout


def test_the_status_of_a_held_folder_says_who_since_when_and_what_to_do(
    tmp_path: Path, cli: Cli
) -> None:
    open_study(tmp_path, SPEC)
    with locked(tmp_path):
        text = cli("status", tmp_path)[0]
        held = next(line for line in text.splitlines() if line.startswith("held by"))
        assert f"process {os.getpid()} of host" in held
        assert time.strftime("since %Y-%m-%d") in held
        assert f"cancel {tmp_path}" in held
        resume = partial(cli, "resume", tmp_path, "--executor", "inline", code=2)
        said = Context().run(resume)[1]
        assert f"process {os.getpid()} of host" in said
        assert "{" not in said
    assert study_status(tmp_path).holder is None


def test_a_study_and_its_data_are_for_their_owner_alone(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{k % 7},{k % 2}\n" for k in range(40)))
    folder, before = tmp_path / "s", os.umask(0o022)
    try:
        cli(
            "search", tmp_path / "t.csv", "--target", "y", "--trials", "1", "--out",
            folder, "--executor", "inline", "--set", "plan.epochs=2",
        )  # fmt: skip
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "data").stat().st_mode & 0o777 == 0o700
    for path in (folder / "data").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_no_line_of_the_log_is_printed(tmp_path: Path) -> None:
    open_study(tmp_path / "s", SPEC)
    (tmp_path / "s" / "logs" / "conditions-0.toml").write_text("damaged")
    assert commands.run("status", tmp_path / "s", folder=tmp_path).stderr == ""


@pytest.mark.long
@pytest.mark.parametrize("where", ["| head -n 1", "2>&1 | true", "> /dev/full"])
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_search_whose_output_goes_away_goes_on_and_stores_report_and_export(
    tmp_path: Path, where: str, executor: str
) -> None:
    path = write_study(tmp_path)
    words = (*SEARCH, path, "--out", "s", "--executor", executor, "--workers", "1")
    line = f'set -o pipefail; "$@" {where}; exit ${{PIPESTATUS[0]}}'
    done = shell(line, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert len(finished(tmp_path / "s")) == 4
    assert (tmp_path / "s" / "report" / "index.html").is_file()
    assert (tmp_path / "s" / "export" / "SHA256SUMS").is_file()
    log = (tmp_path / "s" / "logs" / "driver.log").read_text()
    assert log.endswith("\n")
    if "2>&1" not in where:
        said = done.stderr.splitlines()
        assert said[-2].startswith("next:   "), done.stderr
        assert said[-1].startswith("nas-evidence "), done.stderr
        assert any(line.startswith("error: standard output went away (") for line in said)
    assert "Traceback" not in done.stderr


def test_what_only_prints_ends_with_its_reader(tmp_path: Path) -> None:
    open_study(tmp_path / "s", SPEC)
    words = (sys.executable, "-m", "nas_evidence", "status", tmp_path / "s")
    done = shell('"$@" | true; exit ${PIPESTATUS[0]}', *words)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("output", ["None", "open('/dev/full', 'w')", "closed"])
def test_in_python_too_a_line_that_nobody_reads_is_no_error(output: str) -> None:
    code = (
        "import sys\nfrom nas_evidence.api.progress import audience_for\n"
        "closed = open('/dev/null', 'w'); closed.close()\n"
        f"sys.stdout = {output}\n"
        "audience_for(True).say('x'); audience_for(None)\n"
        "sys.stdout = None\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


WRITES = """\
import os
import nas_evidence.cli.main as verbs

def writes():
    number = os.open("file", os.O_CREAT | os.O_WRONLY)
    os.write(number, str(number).encode())

verbs.main = writes
from nas_evidence.__main__ import run
run()
"""
PUT_BY = """\
import sys
import nas_evidence.cli.main as verbs
sys.argv[1:] = ["report"]
verbs._main = lambda: (print("x"), sys.stdout.flush(), sys.stdout.reconfigure(errors="replace"))
from nas_evidence.__main__ import run
run()
"""


def test_a_verb_that_goes_on_without_its_output_does_so_where_it_is_closed() -> None:
    ended = shell('"$@" >&- <&-', sys.executable, "-c", PUT_BY)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error_and_no_file_gets_their_number(
    tmp_path: Path, closed: str
) -> None:
    ended = shell(f'"$@" {closed}', sys.executable, "-c", WRITES, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int((tmp_path / "file").read_text()) > 2


# --- Ctrl-C ends a computation that Python itself could not interrupt

LONG_CALL = """
import hashlib
import os
import signal
from nas_evidence.cli.interrupt import interruptible

def late(say):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # as while a cluster starts
    say("late")
    return True

signal.signal(signal.SIGINT, lambda *_: None)  # also if it comes before the long call
with interruptible(late):
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)  # one call of many minutes
"""


def test_ctrl_c_while_the_modules_load_ends_without_a_traceback(tmp_path: Path) -> None:
    # Not one long sleep: a signal between Python's last look and the sleep would wait for its end.
    slow = "import time\nprint('loading', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    (tmp_path / "typer.py").write_text(slow)
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    with heard("loading", "-m", "nas_evidence", "--version", PYTHONPATH=path) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "interrupted\n")


def test_little_is_imported_before_ctrl_c_ends_without_a_traceback() -> None:
    code = "import sys\nbefore = {*sys.modules}\nimport nas_evidence.__main__\n"
    done = python(f"{code}print(*({{*sys.modules}} - before))")
    slow = {"logging", "pathlib", "shutil", "tempfile", "threading"}
    assert done.returncode == 0
    assert not slow & {*done.stdout.split()}


def test_ctrl_c_inside_a_long_call_ends_the_process() -> None:
    with heard("started", "-c", LONG_CALL) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, "late\n")


INSIDE = """
import sys
import weakref
import nas_evidence.cli.main

def verb():
    global kept
    if sys.argv[1] == "callback":
        thing = type("Thing", (), {})()
        kept = weakref.ref(thing, lambda _: wait())
        del thing
    else:
        sys.path.insert(0, sys.argv[2])
        import slow
        print("imported", flush=True)
    wait()

def wait():
    print("waiting", flush=True)
    while True:
        pass

nas_evidence.cli.main.app = lambda *_, **__: verb()
from nas_evidence.__main__ import run
run()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("place", "then"), [("callback", "waiting"), ("import", "imported")])
def test_a_stop_is_neither_lost_in_a_callback_nor_raised_in_an_import(
    tmp_path: Path, place: str, then: str, sent: signal.Signals
) -> None:
    slow = "import time\nprint('waiting', flush=True)\nend = time.monotonic() + 0.5\n"
    slow += "while time.monotonic() < end:\n    pass\n"
    (tmp_path / "slow.py").write_text(slow)
    with heard("waiting", "-c", INSIDE, place, tmp_path) as process:
        process.send_signal(sent)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert err == "interrupted; nothing is lost: run the same command again to go on\n"
        assert out.startswith(then)


# --- a study without a single score

OUTCOMES = [
    TrialStatus.INFEASIBLE, TrialStatus.DIVERGED, TrialStatus.CANCELLED, TrialStatus.FAILED,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("status", OUTCOMES)
def test_all_trials_ended_without_a_score(
    tmp_path: Path, status: TrialStatus, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    run(SPEC, tmp_path, FakeExecutor(misbehave=lambda assignment: status))
    for verb in (("report", tmp_path), ("watch", tmp_path), ("status", tmp_path)):
        code, text, said = call(capsys, *verb)
        assert (code, said) == (0, ""), (verb, said)
        assert text
    text, said = cli("resume", tmp_path, code=1)
    assert "no trial is complete" in said
    assert f"trials: 3 {status}" in text
    said = cli("export", tmp_path, "--to", tmp_path / "out", code=2)[1]
    assert said.count("\n") == 1


def test_a_report_of_a_study_without_any_trial(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    code, text, said = call(capsys, "report", tmp_path)
    assert (code, said) == (0, "")
    assert "report: " in text
    said = cli("status", tmp_path, 0, code=2)[1]
    assert "no finished trial 0" in said


@pytest.mark.long
def test_a_report_while_only_one_trial_has_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path, SPEC)
    stopped(SPEC, tmp_path, 1)
    code, text, said = call(capsys, "report", tmp_path)
    assert (code, said) == (0, "")
    assert "report: " in text


def test_a_ranking_by_the_estimate_is_empty_if_all_trials_failed(tmp_path: Path) -> None:
    spec = study(n_trials=2, objective="conditional_evidence", rank_by="estimate")
    open_study(tmp_path, spec)
    run(spec, tmp_path, FakeExecutor(misbehave=lambda assignment: TrialStatus.FAILED))
    found = load_study_tables(tmp_path)
    assert found.trials["status"].tolist() == ["failed", "failed"]
    assert found.ranking == ()


# --- errors that nobody expects


@pytest.mark.parametrize("asked_for", [False, True])
def test_an_unexpected_error_leaves_no_file_and_shows_its_details_if_asked_for(
    tmp_path: Path, cli: Cli, asked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck\nsecond line")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nas_evidence.api.request.load_study", wrong)
    monkeypatch.setenv("NAS_EVIDENCE_DEBUG", "1" if asked_for else "")
    if asked_for:
        with pytest.raises(RuntimeError, match="no such luck"):
            cli("search", "digits", "--dry-run")
    else:
        said = cli("search", "digits", "--dry-run", code=1)[1]
        assert said.startswith("unexpected RuntimeError: no such luck; ")
    assert not list(tmp_path.iterdir())
