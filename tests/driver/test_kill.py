"""Really killed processes: nothing finished is lost, changed or run twice, and nothing stays.

Every search here runs Ray in a session of its own; only processes of that session are ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from commands import assert_same, found, hashes, run, start, study_text
from processes import members, wait_for

from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.log import read_log
from nas_evidence.storage.tables import read_table

pytestmark = [pytest.mark.slow, pytest.mark.ray]

N_TRIALS = 12
STUDY = study_text("killed", 40, n_trials=N_TRIALS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study file, and `calm`: the study as it ends undisturbed."""
    home = tmp_path_factory.mktemp("killed")
    (home / "killed.toml").write_text(STUDY)
    run("search", "killed.toml", "--out", "calm", "--executor", "inline", folder=home)
    return home


@pytest.fixture
def folder(home: Path, request: pytest.FixtureRequest) -> Path:
    return home / request.node.name


# --- processes


@dataclass
class Search:
    """A running search and its folder."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def stored(self) -> set[int]:
        return {int(p.name[:6]) for p in self.folder.glob("trials/[0-9]*.parquet")}

    @property
    def under_way(self) -> dict[int, int]:
        """Return the attempt of each trial that was under way and has a checkpoint."""
        try:
            paths = list(self.folder.glob("checkpoints/*/attempt-*/epoch-*.pt"))
        except FileNotFoundError:  # a folder went while it was read
            return self.under_way
        attempts = sorted((int(p.parts[-3]), int(p.parts[-2][8:])) for p in paths)
        return {i: attempt for i, attempt in attempts if i not in self.stored}

    def wait_for_trials(self, n_more: int) -> bool:
        """Wait until so many more trials are stored, and one that is not has a checkpoint.

        False: the search ended before that was seen, as it may on a loaded machine.
        """
        wanted = len(self.stored) + n_more

        def reached() -> bool:
            ended = self.process.poll() is not None
            return ended or (len(self.stored) >= wanted and bool(self.under_way))

        wait_for(reached, f"{wanted} trials and a checkpoint")
        return self.process.poll() is None

    def hold(self) -> bool:
        """Stop the driver with a trial under way; False: none was, and the search has ended."""
        os.kill(self.process.pid, signal.SIGSTOP)
        wait_for(self._stands, "the driver to stop")
        if self.process.poll() is None and self.under_way:
            return True
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.wait(timeout=600)
        return False

    def _stands(self) -> bool:
        """Tell whether the driver is stopped, or has ended and waits to be reaped."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] in "TZ"

    def all_gone(self) -> bool:
        # Ray's two agents notice within a minute that a raylet was killed; they know no results.
        return all("Agent" in command for command in members(self.process.pid).values())


@contextlib.contextmanager
def searching(folder: Path, *arguments: object) -> Iterator[Search]:
    process = start(*arguments, folder=folder.parent)
    try:
        yield Search(process, folder)
    finally:
        for pid in members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def first_of_calm(home: Path, n: int) -> dict[str, pd.DataFrame]:
    """Return the tables of the first trials of the undisturbed study."""
    calm = found(home / "calm", without=["attempt"])
    return {name: frame[frame["trial_id"] < n] for name, frame in calm.items()}


# --- the promises


def assert_says_that_nothing_is_lost(search: Search) -> None:
    text, errors = search.process.communicate(timeout=600)
    assert search.process.returncode == 130
    n_stored = len(search.stored)
    late = "Stopping: waiting for the workers to store what they have.\n"  # after a second
    assert errors.removeprefix(late) == (
        f"\nStopped. Nothing is lost: {n_stored} of {N_TRIALS} trials are stored, the others "
        f"resume from their last checkpoint.\nContinue: nas-evidence resume {search.folder}\n"
        + (f"Ranking:  nas-evidence report {search.folder}\n" if n_stored else "")
    )
    assert "Traceback" not in text
    wait_for(lambda: not members(search.process.pid), "every process to be gone")


@pytest.mark.soak
def test_killed_and_stopped_again_and_again_it_ends_as_if_nothing_had_happened(
    home: Path, folder: Path
) -> None:
    first = ("search", "killed.toml", "--out", folder, "--executor", "ray")
    again = ("resume", folder, "--workers", 1, "--executor", "ray")  # quicker to start
    stored: dict[str, str] = {}
    last_words: dict[int, int] = {}
    asked: dict[int, ArchitectureSpec] = {}
    # Ctrl-C in a terminal is a SIGINT to every process of the foreground group.
    for command, kill, number, n_more in (
        (first, os.killpg, signal.SIGKILL, 0),
        (again, os.kill, signal.SIGKILL, 1),
        (again, os.kill, signal.SIGTERM, 1),
        (again, os.killpg, signal.SIGINT, 1),
    ):
        with searching(folder, *command) as search:
            if not (search.wait_for_trials(n_more) and search.hold()):
                assert n_more, "the first search ended before it was killed"
                stored = hashes(folder)
                break
            kill(search.process.pid, number)
            os.kill(search.process.pid, signal.SIGCONT)
            if number == signal.SIGKILL:
                assert search.process.wait(timeout=600) == -signal.SIGKILL
                wait_for(search.all_gone, "every worker to be gone")
            else:
                assert_says_that_nothing_is_lost(search)
            under_way = search.under_way
        now = hashes(folder)
        assert {name: now[name] for name in stored} == stored, "a finished trial changed"
        stored = now
        proposals = read_log(folder).state.proposals
        assert asked.items() <= proposals.items(), "a proposal changed"
        asked = proposals
        last_words |= under_way

    said = run("status", folder, folder=home).stdout
    assert said.startswith(
        "killed: finished, " if len(stored) == 4 * N_TRIALS else "killed: stopped, "
    )
    done = set(read_table(folder, "trials")["trial_id"])
    text = run("resume", folder, "--executor", "inline", folder=home).stdout
    assert not any(f" trial {i} mlp" in text for i in done), "a finished trial ran again"
    now = hashes(folder)
    assert {name: now[name] for name in stored} == stored, "a finished trial changed"
    assert len(now) == 4 * N_TRIALS
    trials = read_table(folder, "trials").set_index("trial_id")
    for trial_id, attempt in last_words.items():
        assert trials.loc[trial_id, "architecture_key"] == asked[trial_id].key
        assert trials.loc[trial_id, "attempt"] > attempt
    assert_same(found(home / "calm", without=["attempt"]), found(folder, without=["attempt"]))
    assert not list((folder / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_worker_costs_an_attempt_a_second_driver_is_refused_and_the_bits_are_the_same(
    home: Path, folder: Path
) -> None:
    more = ("--workers", 2, "--trials", 4, "--executor", "ray")
    with searching(folder, "search", "killed.toml", "--out", folder, *more) as search:
        search.wait_for_trials(0)
        # Both workers have begun a trial: one that still starts would cost no attempt.
        wait_for(lambda: len(search.under_way) == 2 or search.process.poll() is not None, "both")
        while not (
            workers := [
                pid for pid, name in members(search.process.pid).items() if "_Actor.call" in name
            ]
        ):
            assert search.process.poll() is None
            time.sleep(0.02)
        os.kill(workers[0], signal.SIGKILL)
        refused = run("resume", folder, "--trials", 9, folder=home, code=2).stderr
        assert (
            f"another process works on {folder} (process {search.process.pid} of host " in refused
        )
        assert "n_trials = 4\n" in (folder / "study.toml").read_text()
        assert run("status", folder, folder=home).stdout.startswith("killed: running, ")
        text, errors = search.process.communicate(timeout=600)
        assert search.process.returncode == 0
        assert errors == ""
    assert "2 workers" in text.splitlines()[0]
    lost = [line for line in text.splitlines() if " lost " in line]
    assert len(lost) == 1
    assert lost[0].endswith("attempt 1 lost (the worker process crashed); retrying")
    attempts = read_table(folder, "trials").set_index("trial_id")["attempt"]
    assert sorted(attempts) == [1, 1, 1, 2]
    assert attempts[int(lost[0].split()[1])] == 2
    assert_same(first_of_calm(home, 4), found(folder, without=["attempt"]))
