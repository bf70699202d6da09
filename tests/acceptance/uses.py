"""How the acceptance tests use the package: by its command line and its public names alone.

They judge rewritings of the package and of the other tests. So nothing here imports a private
module or a helper of another folder of tests, and no shortcut of theirs acts in `command`.
"""

import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import nas_evidence

#: What a table always has; columns of the space and of callbacks come on top.
COLUMNS = {
    "trials": {
        "trial_id", "attempt", "replicate", "architecture_key", "status", "cause", "family",
        "seed", "stage", "n_parameters", "epochs", "test_accuracy", "test_nll_per_datum",
        "versions", "error",
    },
    "evidence": {
        "trial_id", "attempt", "epoch", "estimator", "value", "per_datum", "relation",
        "standard_error", "valid", "note", "seconds",
    },
    "terms": {"trial_id", "attempt", "epoch", "estimator", "term", "group", "value"},
    "curves": {"trial_id", "attempt", "epoch", "train_nll_per_datum", "learning_rate"},
}  # fmt: skip
TABLES = tuple(COLUMNS)
#: Makes a search small: few epochs, two folds, all in one process.
SMALL = ("--executor", "inline", "--set", "plan.epochs=5", "--set", "plan.folds=2")
_PACKAGE = Path(nas_evidence.__file__).parents[1]
_LOADED = (
    "torch", "pandas", "pyarrow.parquet", "sklearn.linear_model", "sklearn.ensemble", "optuna",
    "scipy.stats", "jinja2",
)  # fmt: skip
#: More than any use takes on a machine that is busy with other things.
_PATIENCE = 900


class Ran(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class Searched(NamedTuple):
    """A finished study, and rows that it has not seen, with their targets."""

    folder: Path
    n_trials: int
    data: Path
    new: Path


class Arrays(NamedTuple):
    """A finished study of arrays, those that it was trained on, and new ones."""

    study: nas_evidence.Study
    x: np.ndarray
    y: np.ndarray
    new_x: np.ndarray
    new_y: np.ndarray


def command(
    *argv: object,
    folder: Path | None = None,
    code: int | None = 0,
    fresh: bool = False,
    **env: str,
) -> Ran:
    """Run `nas-evidence ...` in a process of its own to its end, which must have the exit code.

    The process is a fork of one that has loaded the libraries; `fresh` takes a new interpreter.

    Args:
        argv: what follows `nas-evidence`.
        folder: the current one of the process; by default an empty temporary one.
        code: the expected exit code, None for any.
        fresh: for what loading does, or for Ray, which reads the environment as it is loaded.
        env: environment variables on top of those that every use has.
    """
    with tempfile.TemporaryDirectory() as own:
        place = Path(folder or own)
        arguments = [str(argument) for argument in argv]
        if fresh:
            with start(*arguments, folder=place, **env) as process:
                out, err = process.communicate(timeout=_PATIENCE)
            ran = Ran(process.returncode, out, err)
        else:
            ran = _forked(arguments, place, environment(**env), Path(own))
    assert code in (None, ran.code), ran
    assert "Traceback (most recent call last)" not in ran.out + ran.err, ran
    return ran


def start(*argv: object, folder: Path, **env: str) -> "subprocess.Popen[str]":
    """Start `nas-evidence ...` in a new interpreter, in a session of its own; for signals."""
    return python(
        "-c", "from nas_evidence.__main__ import run; run()", *argv, folder=folder, **env
    )


def python(*argv: object, folder: Path, **env: str) -> "subprocess.Popen[str]":
    """Start a Python interpreter with these arguments, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", *map(str, argv)],
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def without_package(program: str, *argv: object, folder: Path) -> Any:
    """Run a program in a new interpreter that cannot import `nas_evidence`; return its JSON."""
    blocked = "import sys; sys.modules['nas_evidence'] = None\n"
    env = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    with python("-c", blocked + program, *argv, folder=folder, **env) as process:
        out, err = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, (out, err)
    return json.loads(out)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of every use: nothing of the terminal or of other tests in it."""
    without = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"}
    found = {key: value for key, value in os.environ.items() if key not in without}
    given = {"PYTHONPATH": str(_PACKAGE), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    return found | given | {"RAY_USAGE_STATS_ENABLED": "0"} | more


def tables(folder: Path | str) -> dict[str, pd.DataFrame]:
    """Return the four tables of a study."""
    return {name: nas_evidence.read_table(folder, name) for name in TABLES}


def searched(folder: Path | str) -> pd.DataFrame:
    """Return the table `trials` without further trainings of the best, in the order of ids."""
    trials = nas_evidence.read_table(folder, "trials")
    return trials[trials["stage"] == "search"].set_index("trial_id").sort_index()


def last_values(folder: Path | str) -> pd.DataFrame:
    """Return the value of each score that ranks: one row a trial, one column a score.

    Values of fold networks and of whole networks are never mixed: those of folds come first.
    """
    evidence = nas_evidence.read_table(folder, "evidence")
    if "of" in evidence:
        evidence = evidence.sort_values("of", kind="stable")  # "folds" before "whole"
        first = evidence.groupby(["trial_id", "estimator"])["of"].transform("first")
        evidence = evidence[evidence["of"].isna() | (evidence["of"] == first)]
    last = evidence.sort_values("epoch", kind="stable").groupby(["trial_id", "estimator"]).tail(1)
    return last.pivot(index="trial_id", columns="estimator", values="value")


def check_study(
    folder: Path, *, n_trials: int, scores: Sequence[str] = ()
) -> dict[str, pd.DataFrame]:
    """Check the shape of what a finished study holds, and return its tables.

    Every trial of the search is complete and has every score that the study asks for, the free
    ones, and those given; no table has rows of other trials.
    """
    found = tables(folder)
    for name, frame in found.items():
        assert COLUMNS[name] <= {*frame.columns}, (name, COLUMNS[name] - {*frame.columns})
        assert len(frame) or name == "terms", name  # some scores have no parts
        assert {*frame["trial_id"]} <= {*found["trials"]["trial_id"]}, name
        assert (frame["attempt"] >= 1).all(), name
    assert not found["trials"]["trial_id"].duplicated().any()
    assert found["trials"].columns.str.endswith("_seconds").any()
    trials = searched(folder)
    assert trials.index.tolist() == [*range(n_trials)]
    assert {*trials["status"]} == {"complete"}, trials[["status", "cause", "error"]]
    assert (trials["n_parameters"] > 0).all()
    asked = tomllib.loads((folder / "study.toml").read_text())["estimators"]
    for score in {*asked, *scores, "sotl", "n_parameters", "train_nll_per_datum"}:
        assert last_values(folder).loc[trials.index, score].notna().all(), score
    return found


def copied(study: Path, to: Path) -> Path:
    """Return a copy of a study folder, for what changes it."""
    return Path(shutil.copytree(study, to))


def files(folder: Path) -> dict[str, bytes]:
    """Return what each file below a folder holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _forked(arguments: list[str], folder: Path, env: dict[str, str], own: Path) -> Ran:
    out, err = own / ".out", own / ".err"
    process = _server().Process(
        target=_run, args=(arguments, str(folder), env, str(out), str(err))
    )
    process.start()
    process.join(_PATIENCE)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return Ran(process.exitcode or 0, out.read_text(), err.read_text())


@functools.cache
def _server() -> ForkServerContext:
    """Return what forks for each command; its process ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_LOADED, "acceptance.loaded"])
    with pytest.MonkeyPatch.context() as patch:  # it looks for modules there
        patch.setenv("PYTHONPATH", f"{_PACKAGE}{os.pathsep}{Path(__file__).parents[1]}")
        forkserver.ensure_running()
    return context


def _run(arguments: list[str], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """Be the process of a command; this runs in the fork."""
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    for number, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["nas-evidence", *arguments]
    from nas_evidence.__main__ import run

    run()
