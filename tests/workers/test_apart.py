"""A function called in a process of its own, and that no process with a GPU is forked."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from messages import refused

import nas_evidence
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.workers.apart import called_apart

PACKAGE = Path(nas_evidence.__file__).parent
#: What forks a Python process; `subprocess` starts another program, which has no GPU yet.
FORKING = (
    "fork",
    "forkpty",
    "Process",
    "Pool",
    "ProcessPoolExecutor",
    "get_context",
    "preexec_fn",
)


def whereabouts(given: int) -> tuple[int, int, bool]:
    import torch

    return given, os.getpid(), torch.cuda.is_initialized()


def failing(kind: str) -> None:
    if kind == "user":
        raise UserError("blue", "it is blue; paint it red")
    if kind == "library":
        raise ArithmeticError("too large")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long
def test_a_function_answers_from_a_process_of_its_own_that_has_no_gpu_yet(tmp_path: Path) -> None:
    answer, pid, has_gpu = called_apart(whereabouts, 7, logs=tmp_path)
    assert (answer, has_gpu) == (7, False)
    assert pid != os.getpid()


@pytest.mark.slow
@pytest.mark.long
def test_its_errors_are_raised_here_and_its_death_is_an_error(tmp_path: Path) -> None:
    with refused("blue", "paint it red"):
        called_apart(failing, "user", logs=tmp_path)
    with pytest.raises(ArithmeticError, match="too large"):
        called_apart(failing, "library", logs=tmp_path)
    with pytest.raises(RuntimeError, match=r"ended early; .*workers\.log"):
        called_apart(failing, "killed", logs=tmp_path)


def forks(path: Path) -> set[str]:
    """What a file calls, or gives by name, that forks a Python process."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func).rpartition(".")[2])
            found.update(keyword.arg for keyword in node.keywords if keyword.arg)
    return found & {*FORKING}


@pytest.mark.slow
def test_only_the_server_of_forks_forks() -> None:
    found = {str(p.relative_to(PACKAGE)): f for p in PACKAGE.rglob("*.py") if (f := forks(p))}
    assert found == {"workers/fork_server.py": {"fork"}}


@pytest.mark.slow
@pytest.mark.long
def test_the_server_of_forks_has_no_gpu() -> None:
    code = (
        "import torch\n"
        "torch.cuda.is_available = torch.cuda.init = lambda *_: exit('a GPU is touched')\n"
        "from nas_evidence.workers import worker\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
