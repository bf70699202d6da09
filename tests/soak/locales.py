"""A study under other locales: labels, columns and a study with names that are not ASCII.

Each locale is that of a process of its own, which searches, resumes, reports, exports and
predicts, and prints to a pipe. "set" means that the process calls `locale.setlocale(LC_ALL, "")`,
as programs do that embed Python: numbers then have decimal commas where the C library writes them.
With PYTHONUTF8=0 Python takes the encoding of the locale for files and names.

    same     the tables, predictions and exported files are those of the locale C.UTF-8
    lost     a verb failed: must not occur
    silent   something differs: must not occur
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from commands import environment
from soak.harness import ROOT, Found, Result, Studies, differing, outcomes_by_kind, tables_of

OUTCOMES = ("same", "lost", "silent")
#: Longest that the verbs may take under one locale, seconds.
PATIENCE = 900.0
BYTES = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CALM = "C.UTF-8"
CASES = {
    "de_DE.UTF-8, set": {"LC_ALL": "de_DE.UTF-8"},
    "tr_TR.UTF-8, set": {"LC_ALL": "tr_TR.UTF-8"},
    "C, PYTHONUTF8=0": {"LC_ALL": "C", **BYTES},
    "de_DE.ISO-8859-1, PYTHONUTF8=0": {"LC_ALL": "de_DE.ISO-8859-1", **BYTES},
}
#: The last two are one in Turkish only.
LABELS = ("Straße", "東京", "ışık", "IŞIK")
_WORK = """
import locale, sys
if sys.argv[1] == "set":
    locale.setlocale(locale.LC_ALL, "")
from faulty import quiet_call
how = ["--executor", "inline"]
given = ["--target", "Größe İ", "--set", "finalists=0", "--set", "plan.epochs=4"]
given += ["--set", "name=Größe"]
codes = [
    quiet_call("search", "t.csv", *given, "--out", "s", "--trials", "3", *how),
    quiet_call("resume", "s", "--trials", "4", *how),
    quiet_call("report", "s"),
    quiet_call("export", "s", "--to", "x"),
    quiet_call("predict", "x", "t.csv", "--to", "p.csv"),
    quiet_call("verify", "s"),
]
print("codes", codes)
"""


def why_not() -> str:
    """Return which locales are missing here; "" if all are there."""
    how = {"capture_output": True, "text": True, "check": False}
    there = subprocess.run(["locale", "-a"], **how).stdout.lower()  # type: ignore[call-overload]
    wanted = {"de_de.utf8": "de_DE.UTF-8", "tr_tr.utf8": "tr_TR.UTF-8", "de_de.iso88591": "de_DE"}
    lacking = [name for key, name in wanted.items() if key not in there]
    return f"make these locales with `localedef`: {', '.join(lacking)}" if lacking else ""


def worked(home: Path, case: str, locale: dict[str, str]) -> tuple[Path, str]:
    """Run the verbs under a locale; return the folder of the study, and what went wrong."""
    home = home / case.replace(",", "").replace(" ", "-")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    y = np.arange(120) % len(LABELS)
    x = np.random.default_rng(0).normal(size=(120, 3)) + 2 * np.eye(4)[y][:, :3]
    frame = pd.DataFrame(x, columns=["größe", "ı", "İ,;"])
    frame.assign(**{"Größe İ": np.array(LABELS)[y]}).to_csv(home / "t.csv", index=False)
    plain = {
        k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF8"))
    }
    (home / "work.py").write_text(_WORK, encoding="utf-8")
    paths = os.pathsep.join([environment()["PYTHONPATH"], str(ROOT / "tests")])
    ended = subprocess.run(
        [sys.executable, home / "work.py", "set" if "set" in case else ""],
        cwd=home, env=plain | locale | {"PYTHONPATH": paths}, capture_output=True, check=False,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = (ended.stdout + ended.stderr).decode("utf-8", "backslashreplace")
    fine = "codes [0, 0, 0, 0, 0, 0]" in said and "Traceback" not in said
    return home, "" if fine else said[-600:]


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    calm = home / CALM
    if not (calm / "p.csv").exists():
        _, why = worked(home, CALM, {"LC_ALL": CALM})
        assert not why, why
    tables = tables_of(calm / "s")

    def disturb(case: str) -> Found:
        there, why = worked(home, case, CASES[case])
        if why:
            return Found(Counter(), [f"lost: {case}: {why}"])
        wrong = [f"silent: {one}" for one in differing(tables_of(there / "s"), tables)]
        wrong += [
            f"silent: {name} differs"
            for name in ("p.csv", "x/meaning.json", "x/architecture.toml", "s/data/train.parquet")
            if (there / name).read_bytes() != (calm / name).read_bytes()
        ]
        return Found(Counter({f"{case}: same": 1}), wrong)

    yield iter(CASES), disturb


def table(result: Result) -> str:
    """Return the outcomes by locale, as Markdown."""
    return outcomes_by_kind(result, "locale", OUTCOMES)
