"""A score from outside the package: the text of docs/how-to/extend.md, run."""

import os
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import SCRIPT, environment, forked, start
from messages import refused
from processes import wait_for

from nas_evidence.scores.protocol import _Function
from nas_evidence.spec.registry import Score, declared
from nas_evidence.storage.tables import read_table

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
NAME = "my_scores:SHORT"
STUDY = """\
name = "toy"
n_trials = 4
estimators = ["diag_ef", "my_scores:SHORT"]
objective = "my_scores:SHORT"
[dataset]
name = "digits"
max_train = 100
max_test = 40
[family.mlp]
depth = 1
width = [4, 6, 8, 12, 16]
[plan]
epochs = 40
[plan.online]
every = 2
curvature = "diag_ef"
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code[1].splitlines()) <= 30
    (tmp_path / "my_scores.py").write_text(code[1])
    (tmp_path / "toy.toml").write_text(STUDY)
    return tmp_path / "toy.toml"


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *map(str, words)]
    return subprocess.CompletedProcess(command, *forked(command, cwd, environment()))


def values(folder: Path) -> dict[tuple[int, int, str], float]:
    evidence = read_table(folder, "evidence")
    return {(r.trial_id, r.epoch, r.estimator): r.value for r in evidence.itertuples()}


@pytest.mark.slow
def test_outside_code_is_refused_by_name_unless_it_is_allowed(study: Path) -> None:
    done = run("search", study, "--executor", "inline", cwd=study.parent)
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert f"{NAME}: code from outside nas-evidence" in done.stderr
    assert "--allow-code" in done.stderr
    assert not (study.parent / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_scores:LONG", "nowhere:SHORT", "my_scores:__name__"])
def test_a_reference_that_leads_nowhere_is_one_error(study: Path, name: str) -> None:
    done = run(
        "search", study, "--executor", "inline", "--allow-code",
        "--set", f'estimators=["{name}"]', "--set", f"objective={name}", cwd=study.parent,
    )  # fmt: skip
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_score_that_no_moment_of_a_trial_takes_is_refused() -> None:
    with refused("score-taken", "'late'", "before, evaluation"):
        Score(name="late", summary="late", implementation=id, taken="first_pass")  # type: ignore[arg-type]


@pytest.mark.parametrize("returned", ["high", None])
def test_a_score_that_returns_no_number_is_named(returned: object) -> None:
    context: Any = SimpleNamespace(data=SimpleNamespace(x_train=[0.0]))
    score = _Function(declared("sotl"), lambda context: returned, context)
    with refused("score-no-number", "sotl", str(returned)):
        score.evaluate(last=True)


def test_an_outside_score_is_unknown_until_it_is_imported() -> None:
    assert declared("elsewhere:THING").name == "elsewhere:THING"
    with pytest.raises(ValueError, match="did you mean 'two_fold'"):
        declared("two_folds")


@pytest.mark.long
@pytest.mark.slow
def test_inline_study_ranks_and_reports_by_it_and_code_changed_later_is_refused(
    study: Path,
) -> None:
    short = ("--executor", "inline", "--allow-code", "--set", "plan.epochs=4")
    done = run("search", study, *short, "--out", "out", cwd=study.parent)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    folder = study.parent / "out"
    assert (folder / "code" / "my_scores.py").is_file()
    assert NAME in (folder / "report" / "index.html").read_text()
    found = values(folder)
    assert all(found[i, 4, NAME] < 0 for i in range(4))
    # Looking at it runs no code: the module may be gone.
    (study.parent / "my_scores.py").unlink()
    assert run("report", folder, cwd=study.parent).returncode == 0
    assert run("status", folder, cwd=study.parent).returncode == 0
    (study.parent / "my_scores.py").write_text("from nas_evidence import Score\nSHORT = Score"
                                               "('s', 's', lambda context: 0.0)\n")  # fmt: skip
    again = run("search", study, *short, "--trials", "5", "--out", "out", cwd=study.parent)
    assert again.returncode == 2
    assert "my_scores.py has changed" in again.stderr


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.soak
def test_on_ray_a_killed_study_resumes_with_the_code_in_its_folder(
    study: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    on_ray = ("--executor", "ray", "--allow-code", "--out")
    whole = run("search", study, *on_ray, tmp_path / "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with start("search", study, *on_ray, folder, folder=tmp_path, **quiet) as process:
        wait_for(lambda: list(folder.glob("checkpoints/*/attempt-1/epoch-*.pt")))
        os.killpg(process.pid, signal.SIGKILL)
    (tmp_path / "my_scores.py").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = run("resume", folder, cwd=elsewhere)
    assert refused.returncode == 2
    assert "--allow-code" in refused.stderr
    done = run("resume", folder, "--allow-code", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert values(folder) == values(tmp_path / "whole")
