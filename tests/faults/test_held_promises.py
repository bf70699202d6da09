"""Sentences of SECURITY.md and of the page on faults that no other test holds."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from commands import SCRIPT, environment, forked, write_study
from faulty import quiet_call, run, study

import nas_evidence
from nas_evidence.cli.main import app
from nas_evidence.driver.verification import verify

PACKAGE = Path(nas_evidence.__file__).parent
TOKEN = "never-shown-0123456789abcdef"
_HOOK = """
import sys
def hook(event, arguments):
    if event == "socket.bind" and isinstance(arguments[1], tuple):
        raise RuntimeError(f"binds {arguments[1]}")
sys.addaudithook(hook)
from nas_evidence.__main__ import main
main()
"""


def keywords(call: ast.Call) -> dict[str, object]:
    return {
        one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)
    }


@pytest.mark.slow
def test_nothing_that_is_stored_is_unpickled() -> None:
    safe = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
    seen, wrong = set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            named = [ast.unparse(one) for one in (call.func, *call.args[:1])]
            if (name := next((one for one in named if one in safe), None)) is not None:
                key, value = safe[name]
                seen.add(name)
                wrong += [] if keywords(call).get(key, "") is value else [f"{path}: {name}"]
            if named[0].startswith(("pickle.load", "cloudpickle.load", "joblib.load", "dill.")):
                wrong.append(f"{path}: {named[0]}")
    assert wrong == []
    assert seen == {*safe}


def test_no_option_takes_a_token_or_skips_the_check_of_a_certificate() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    names = {name for one in commands.values() for option in one.params for name in option.opts}
    assert "--allow-code" in names
    words = ("token", "password", "insecure", "cert", "tls", "ssl")
    assert [name for name in names if any(word in name for word in words)] == []


@pytest.mark.slow
def test_the_token_of_a_cluster_is_in_no_file_and_no_output(tmp_path: Path) -> None:
    path, given = write_study(tmp_path), environment(RAY_AUTH_TOKEN=TOKEN, RAY_AUTH_MODE="token")
    asked = ("search", path, "--out", "s", "--executor", "inline")
    verbs = (asked, ("status", "s"), ("verify", "s"))
    for verb in verbs:
        code, out, err = forked([str(SCRIPT), *map(str, verb)], tmp_path, given)
        assert code == 0, err
        assert TOKEN not in out + err
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 20
    assert [one for one in files if TOKEN.encode() in one.read_bytes()] == []


@pytest.mark.slow
def test_a_search_on_one_machine_opens_no_port(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    for verb in (("search", path, "--out", "s", "--executor", "inline"), ("report", "s")):
        done = subprocess.run(
            [sys.executable, "-c", _HOOK, *map(str, verb)],
            cwd=tmp_path, env=os.environ | environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    binding = "import socket; socket.socket().bind(('127.0.0.1', 0))"
    hooked = [sys.executable, "-c", _HOOK.replace("from", f"{binding}\nfrom")]
    found = subprocess.run(hooked, env=environment(), capture_output=True, text=True)
    assert "binds ('127.0.0.1', 0)" in found.stderr


def test_the_copy_for_optuna_is_no_part_of_what_is_verified(tmp_path: Path) -> None:
    run(study(n_trials=2), tmp_path)
    before = verify(tmp_path)
    (tmp_path / "study.db").write_bytes(b"no database")
    assert verify(tmp_path) == before


@pytest.mark.parametrize("asked_for", [False, True])
def test_details_of_an_unexpected_error_are_shown_if_asked_for(
    asked_for: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("nas_evidence.api.request.load_study", wrong)
    monkeypatch.setenv("NAS_EVIDENCE_DEBUG", "1" if asked_for else "")
    if asked_for:
        with pytest.raises(RuntimeError, match="no such luck"):
            quiet_call("search", "digits", "--dry-run")
    else:
        assert quiet_call("search", "digits", "--dry-run") == 1
        assert "Traceback" not in capsys.readouterr().err
