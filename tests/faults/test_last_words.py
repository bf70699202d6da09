"""Whatever ends a process, its last line says the cause and what to do next."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextvars import Context
from functools import partial
from pathlib import Path

import pytest
from commands import TINY, environment, run, start, write_study
from fakes import finished
from faulty import Cli, study
from processes import processes

from nas_evidence.driver.status import study_status
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.quiet import last_words

pytestmark = pytest.mark.slow


def python(code: str, *, prefix: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'{prefix} exec "$0" -c "$1"', sys.executable, code]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=120
    )


MAIN = "import sys; sys.argv = ['nas-evidence', {arguments}]; {before}; " \
       "from nas_evidence.__main__ import main; main()"  # fmt: skip


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
    path = write_study(tmp_path, TINY.replace("epochs = 4", "epochs = 40"))
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
    run("resume", *again, "--executor", "inline", folder=tmp_path)
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
    arguments = f"'search', '{path}', '--out', '{tmp_path / 's'}', '--executor', 'inline'"
    code = MAIN.format(arguments=arguments, before="pass")
    done = python(code, prefix="ulimit -v 900000;")
    assert done.returncode != 0
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    assert "memory" in last
    assert "ulimit" in last
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.long
def test_without_unicode_the_work_that_is_done_is_not_a_failure(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace('"tiny"', '"größer ± 1"'))
    arguments = f"'search', '{path}', '--out', '{tmp_path / 's'}', '--executor', 'inline'"
    done = python(
        MAIN.format(arguments=arguments, before="pass"), LC_ALL="C", PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfer" in done.stdout


def test_the_status_of_a_held_folder_says_who_since_when_and_what_to_do(
    tmp_path: Path, cli: Cli
) -> None:
    from faulty import study

    open_study(tmp_path, study())
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
    open_study(tmp_path / "s", study())
    (tmp_path / "s" / "logs" / "conditions-0.toml").write_text("damaged")
    assert run("status", tmp_path / "s", folder=tmp_path).stderr == ""


@pytest.mark.long
@pytest.mark.parametrize("shell", ["| head -n 1", "2>&1 | true", "> /dev/full"])
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_search_whose_output_goes_away_goes_on_and_stores_report_and_export(
    tmp_path: Path, shell: str, executor: str
) -> None:
    path = write_study(tmp_path)
    words = [sys.executable, "-m", "nas_evidence", "search", path, "--out", "s",
             "--executor", executor, "--workers", "1"]  # fmt: skip
    line = f'set -o pipefail; "$@" {shell}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *map(str, words)], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(finished(tmp_path / "s")) == 4
    assert (tmp_path / "s" / "report" / "index.html").is_file()
    assert (tmp_path / "s" / "export" / "SHA256SUMS").is_file()
    log = (tmp_path / "s" / "logs" / "driver.log").read_text()
    assert log.endswith("\n")
    if "2>&1" not in shell:
        said = done.stderr.splitlines()
        assert said[-2].startswith("next:   "), done.stderr
        assert said[-1].startswith("nas-evidence "), done.stderr
        assert any(line.startswith("error: standard output went away (") for line in said)
    assert "Traceback" not in done.stderr


def test_what_only_prints_ends_with_its_reader(tmp_path: Path) -> None:
    open_study(tmp_path / "s", study())
    line = '"$@" | true; exit ${PIPESTATUS[0]}'
    words = [sys.executable, "-m", "nas_evidence", "status", str(tmp_path / "s")]
    done = subprocess.run(
        ["bash", "-c", line, "bash", *words], env=environment(), capture_output=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"")


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
    given = {"env": environment(), "capture_output": True, "text": True}
    ended = subprocess.run(["sh", "-c", '"$0" -c "$1" >&- <&-', sys.executable, PUT_BY], **given)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error_and_no_file_gets_their_number(
    tmp_path: Path, closed: str
) -> None:
    given = {"cwd": tmp_path, "env": environment(), "capture_output": True}
    ended = subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, WRITES], **given)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert int((tmp_path / "file").read_text()) > 2
