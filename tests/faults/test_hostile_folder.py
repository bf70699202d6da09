"""A study folder that somebody else made: its code is not run, nothing is written elsewhere."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from commands import TINY, write_study
from faulty import Cli, call, quiet_call
from matrix import pairs

from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.storage.holding import Holder, boot_id, namespace

pytestmark = pytest.mark.slow

VERBS = ("report", "export", "predict", "verify", "resume", "repair", "status", "status-trial")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    path = write_study(home, TINY.replace("n_trials = 4", "n_trials = 2"))
    assert quiet_call("search", path, "--out", home / "s", "--executor", "inline") == 0
    return home / "s"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s"))


def arguments(verb: str, folder: Path) -> tuple[object, ...]:
    out = folder.parent / "out"
    more = {
        "report": (),
        "export": ("--to", out),
        "predict": (folder.parent / "new.csv",),
        "resume": ("--trials", 3, "--executor", "inline"),
        "status-trial": (0,),
    }
    (folder.parent / "new.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    return (verb.removesuffix("-trial"), folder, *more.get(verb, ()))


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_the_code_of_a_folder(
    folder: Path, verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = folder.parent / "it-ran"
    code = folder / "code"
    code.mkdir()
    for name in ("evil", "torch_extra", "sitecustomize", "conftest"):
        (code / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        shutil.copy(code / f"{name}.py", folder / f"{name}.py")
    text = (folder / "study.toml").read_text()
    text = text.replace(
        'estimators = [\n    "diag_ef",', 'estimators = [\n    "diag_ef",\n    "evil:score",'
    )
    assert "evil:score" in text
    (folder / "study.toml").write_text(text)
    for path in (folder / "logs").glob("conditions-*"):
        path.unlink()
    monkeypatch.chdir(folder)
    cli(*arguments(verb, folder), code=None)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("verb", "place"), pairs(VERBS, ["lock", "report", "logs/driver.log", "export/evidence.json"])
)
def test_no_verb_writes_through_a_link_out_of_the_folder(
    folder: Path, verb: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = folder.parent / "mine"
    path = folder / place
    if path.is_dir():
        shutil.rmtree(path)
        mine.mkdir()
        (mine / "index.html").write_text("mine")
    else:
        path.unlink(missing_ok=True)
        mine.write_text("mine")
    path.symlink_to(mine)
    code, text, said = call(capsys, *arguments(verb, folder))
    assert code != 0
    assert f"{place} is a link to {mine}" in text + said
    assert (mine / "index.html" if mine.is_dir() else mine).read_text() == "mine"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["mine", "new.csv", "s"]


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_ends_a_process_that_a_folder_names(
    folder: Path, verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    kill, group = os.kill, os.killpg
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:

        def noted(send: Callable[[int, int], None], pid: int, number: int) -> None:
            if number and pid == other.pid:
                ended.append(number)
            send(pid, number)

        monkeypatch.setattr("os.kill", partial(noted, kill))
        monkeypatch.setattr("os.killpg", partial(noted, group))
        try:
            long_ago = time.time() - 600
            here = socket.gethostname(), boot_id()
            holder = Holder(other.pid, *here, long_ago, long_ago, namespace())
            (folder / "lock").write_text(sealed_json(asdict(holder)))
            cli(*arguments(verb, folder), code=None)
            assert not ended
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_connects_to_what_a_folder_names(folder: Path, verb: str, cli: Cli) -> None:
    for path in (folder / "logs").glob("conditions-*"):
        path.unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/data.npz"
        lines = (folder / "study.toml").read_text().splitlines()
        named = [f'path = "{url}"' if line.startswith("path = ") else line for line in lines]
        assert named != lines
        (folder / "study.toml").write_text("\n".join(named) + "\n")
        cli(*arguments(verb, folder), code=None)
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
