"""Memory runs out, and the kernel ends a worker or the driver.

A family of its own takes more memory than there is, the first time that one width is trained, or
each time. The command line runs in a control group of 3 GB, so that the kernel's out-of-memory
killer ends the largest process (SIGKILL).

    worker killed once      the trial runs again, with the same result
    worker killed always    the trial is given up with a sentence about memory
    driver killed           with the trial in its own process; `resume` goes on

    same     the tables are those of the undisturbed study
    named    one trial ended with a sentence that names memory; the others are the same
    lost     a study that could not be brought to its end: must not occur
    silent   tables that differ, or an end without a word about memory: must not occur
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from commands import SCRIPT, environment
from soak.harness import (
    Found,
    Result,
    Studies,
    Tables,
    differing,
    outcomes_by_kind,
    tables_of,
    write_study,
)

from nas_evidence.storage.log import read_log
from nas_evidence.storage.state import State

OUTCOMES = ("same", "named", "lost", "silent")
#: Bytes: of the control group, and what the family takes.
GROUP, TAKEN = 3 << 30, 16 << 30
#: Longest that a driver may take, seconds.
PATIENCE = 300.0
_HUNGRY = '''
    """A family whose member of width 7 takes more memory than there is."""

    import os
    import sys
    from pathlib import Path

    import torch
    from torch import nn


    class Eating(nn.Module):
        def forward(self, x):
            # A driver with workers runs such a network, too, to count its operations.
            if x.requires_grad and (sys.argv[0] == "-c") == (os.environ["HUNGRY_IN"] == "local"):
                x.register_hook(self.eat)
            return x

        def eat(self, gradient):
            mark = Path(os.environ["HUNGRY"])
            if mark.suffix == ".always" or not mark.exists():
                mark.touch()
                if mark.suffix != ".never":
                    taken = [torch.ones(2**26) for _ in range({taken} >> 28)]
            return gradient


    class Hungry:
        domains = {{"width": [5, 6, 7]}}

        def build(self, values, input_shape, n_outputs):
            width = values["width"]
            eats = [Eating()] if width == 7 else []
            return nn.Sequential(nn.Linear(input_shape[0], width), *eats, nn.ReLU(),
                                 nn.Linear(width, n_outputs))
'''
#: Of each case: where trials run, and how often memory runs out.
CASES = {
    "worker killed once": ("local", "once"),
    "worker killed always": ("local", "always"),
    "driver killed": ("inline", "once"),
}


def why_not() -> str:
    """Return why no control group with a limit of memory can be made; "" if one can."""
    try:
        with control_group(GROUP):
            return ""
    except (OSError, StopIteration) as error:
        return f"no control group for memory can be made here: {error}"


@contextlib.contextmanager
def control_group(n_bytes: int) -> Iterator[Callable[[], None]]:
    """Make a control group (version 1) below this process's own; give what enters it."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line for line in lines if ":memory:" in line).partition(":memory:")[2]
    group = Path(f"/sys/fs/cgroup/memory{own}/nas-soak-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(n_bytes))
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            subprocess.run(["sleep", "0.1"], check=False)  # the last process is still ending


def disturbed(case: str, home: Path, calm: Tables) -> Found:
    """Let memory run out in one study, then resume it until it ends."""
    where, often = CASES[case]
    folder, mark = home / "s", home / f"mark.{often}"
    shutil.rmtree(folder, ignore_errors=True)
    mark.unlink(missing_ok=True)
    ended, said, code = Counter[str](), "", 0
    with control_group(GROUP) as enter:
        for n in itertools.count():
            verb = (
                ("resume", folder)
                if folder.exists()
                else ("search", "study.toml", "--out", folder)
            )
            how = ("--executor", where, "--set", "resources.workers=1", "--allow-code")
            code, text = called(home, mark, *verb, *how, enter=enter)
            said += text
            if code != -signal.SIGKILL or n > 3:
                break
            ended["driver"] += 1
    if code:
        return Found(Counter(), [f"lost: {case}, exit code {code}: {said[-400:]}"])
    found, state = tables_of(folder), read_log(folder).state
    return judged(case, found, calm, state, said, ended)


def judged(
    case: str, found: Tables, calm: Tables, state: State, said: str, ended: Counter[str]
) -> Found:
    """Return what came of a case."""
    n_lost = sum(one.n for one in state.losses.values())
    facts = {"drivers killed": ended["driver"], "attempts lost": n_lost}
    if CASES[case][1] == "once":
        hit = ended["driver"] if CASES[case][0] == "inline" else n_lost
        wrong = [f"silent: {one}" for one in differing(found, calm)]
        if CASES[case][0] == "local" and "for want of memory" not in said:
            wrong.append("silent: nothing was said of memory")
        if not hit:
            wrong.append("lost: memory did not run out")
        return Found(Counter({f"{case}: same": 1}), wrong, facts)
    trials = found["trials"]
    bad = trials[trials["arch_width"] == 7]
    others = {
        name: t[~t["trial_id"].isin(bad["trial_id"])].reset_index(drop=True)
        for name, t in found.items()
    }
    same = {
        name: t[~t["trial_id"].isin(bad["trial_id"])].reset_index(drop=True)
        for name, t in calm.items()
    }
    wrong = [f"silent: {one}" for one in differing(others, same)]
    if not all("memory" in str(cause) for cause in bad["cause"]) or bad.empty:
        wrong.append(f"silent: the cause is {list(bad['cause'])}")
    facts |= {"cause": [str(cause) for cause in bad["cause"]][:1]}
    return Found(Counter({f"{case}: named": 1}), wrong, facts)


def called(
    home: Path, mark: Path, *arguments: object, enter: Callable[[], None] | None = None
) -> tuple[int, str]:
    """Run the command line with the family; return its exit code and what it printed."""
    where = "local" if "local" in arguments else "inline"
    paths = os.pathsep.join([environment()["PYTHONPATH"], str(home)])
    ended = subprocess.run(
        [str(SCRIPT), *map(str, arguments)], cwd=home, text=True, preexec_fn=enter, check=False,
        env=environment(HUNGRY=str(mark), HUNGRY_IN=where, PYTHONPATH=paths),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=PATIENCE,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    study = write_study(
        home, rows=120, epochs=6, every=3, n_trials=3, batch=3, finalists=0,
        sampler={"name": "grid"}, seed=seed, family={"hungry:Hungry": {}},
    )  # fmt: skip
    (home / "hungry.py").write_text(textwrap.dedent(_HUNGRY.format(taken=TAKEN)))
    calm = home / "calm"
    shutil.rmtree(calm, ignore_errors=True)
    how = ("--executor", "inline", "--allow-code")
    code, said = called(home, home / "mark.never", "search", study, "--out", calm, *how)
    assert code == 0, said
    tables = tables_of(calm)

    def disturb(case: str) -> Found:
        return disturbed(case, home, tables)

    yield iter(CASES), disturb


def table(result: Result) -> str:
    """Return the outcomes by case, as Markdown."""
    return outcomes_by_kind(result, "memory", OUTCOMES)
