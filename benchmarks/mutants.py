"""Put wrong formulas into a copy of the code, one at a time, and say which check sees each.

    python benchmarks/mutants.py              record the coverage if it is not there, and run
    python benchmarks/mutants.py record       record which check runs which line, again
    python benchmarks/mutants.py run NAME...  run some mutants only, and keep the other results

At the end it prints the mutants that are not seen.

`mutants.toml` has the mutants: a module, a text that is in it exactly once, the wrong text, and
the claim that it breaks. Each is checked by the tests of `make test` and by the problems of the
audit whose recorded coverage touches its statement, and by nothing else: those of the module's own
file first, the quick ones before the slow, up to the first failure. As many copies of the tree as
`--workers` work side by side in a temporary folder; the checkout is never changed. The coverage is
kept in `--home`.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import importlib.util
import json
import multiprocessing
import os
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MPLBACKEND": "Agg",
    "COVERAGE_CORE": "ctrace",  # the one that knows contexts
}

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "benchmarks" / "mutants.toml"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
CHECKS = "not long and not ray and not matrix and not soak"
AUDIT = "audit:"
#: A mutant whose checks do not end within this time is seen too: it does not end.
_SECONDS = 900
#: Imported once, by the process that all others are copies of.
_LARGE = ("torch", "torch._dynamo", "torchvision", "pandas", "scipy.stats", "scipy.optimize",
          "sklearn.linear_model", "sklearn.ensemble", "pyarrow.parquet", "optuna",
          "matplotlib.pyplot", "_pytest.assertion")  # fmt: skip


# --- mutants


@dataclass(frozen=True)
class Mutant:
    """A patch of one line.

    module   dotted           old, new  texts; `old` is in the module exactly once
    claim    what it breaks   audited   whether the audit makes that claim too
    """

    name: str
    module: str
    old: str
    new: str
    claim: str
    audited: bool = False

    def file(self, root: Path) -> Path:
        """Return the file of the module below a folder.

        Raises:
            LookupError: if there is none.
        """
        base = root.joinpath(*self.module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        raise LookupError(f"{self.name}: no module {self.module}")

    def patched(self, text: str) -> str:
        """Return the text of the module with the wrong formula.

        Raises:
            LookupError: unless `old` is in it exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise LookupError(
                f"{self.name}: {self.old!r} must be in {self.module} once, but is {found} times"
            )
        return text.replace(self.old, self.new)

    def lines(self, text: str) -> set[int]:
        """Return the lines of the smallest statement that the patch is in."""
        start = text.index(self.old)
        first = text.count("\n", 0, start) + 1
        last = first + self.old.rstrip("\n").count("\n")
        spans = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.stmt)
        ]
        around = [(a, b) for a, b in spans if a <= first and last <= b]
        a, b = min(around, key=lambda span: span[1] - span[0])
        return set(range(a, b + 1))


def mutants() -> list[Mutant]:
    """Return the mutants of `mutants.toml`.

    Raises:
        ValueError: if two have the same name.
    """
    found = [Mutant(**entry) for entry in tomllib.loads(MUTANTS.read_text("utf-8"))["mutant"]]
    names = [one.name for one in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"names must differ, but these do not: {', '.join(sorted(twice))}")
    return found


# --- copies of the tree


@contextlib.contextmanager
def copies(number: int) -> Iterator[list[Path]]:
    """Yield copies of the tree, beside a link to the folder of reference data."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = [Path(folder) / f"{k}" / "tree" for k in range(number)]
        for tree in made:
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            if (ROOT.parent / "shared").is_dir():
                (tree.parent / "shared").symlink_to(ROOT.parent / "shared")
        yield made


def side_by_side(workers: int, jobs: Iterable[Callable[[Path], Any]]) -> Iterator[Any]:
    """Yield what jobs return as they end, each of which has a copy of the tree for itself."""
    free: queue.Queue[Path] = queue.Queue()
    with copies(workers) as trees, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for tree in trees:
            free.put(tree)

        def one(job: Callable[[Path], Any]) -> Any:
            tree = free.get()
            try:
                return job(tree)
            finally:
                free.put(tree)

        for ended in concurrent.futures.as_completed([pool.submit(one, job) for job in jobs]):
            yield ended.result()


def apart(tree: Path, call: Callable[..., Any], given: Sequence[Any]) -> Any:
    """Return what a call returns in a copy, from a process that has the large libraries already.

    Raises:
        TimeoutError: if it does not end in time.
        EOFError: if the process ends without an answer.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_LARGE))
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_copy, args=(theirs, tree, call, given))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_SECONDS):
            raise TimeoutError
        return ours.recv()
    finally:
        process.kill()
        process.join()


def _in_copy(answer: Any, tree: Path, call: Callable[..., Any], given: Sequence[Any]) -> None:
    """Send what a call returns in a copy."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ |= {"PYTHONPATH": str(tree), "RAY_AUTH_MODE": "disabled"}
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    answer.send(call(*given))


@contextlib.contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Have the wrong formula in a copy, and nothing compiled from the right one."""
    path = mutant.file(tree)
    right = path.read_text("utf-8")
    for text in (mutant.patched(right), right):
        path.write_text(text, "utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        if text is not right:
            yield


# --- recording: in a copy


class Recorder:
    """Records the lines of each test, its duration and whether it passed; a plugin of pytest."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.ended = measured, {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test in a context of its own."""
        self.measured.switch_context(item.nodeid)
        started = time.perf_counter()
        yield
        self.ended.setdefault(item.nodeid, {})["seconds"] = time.perf_counter() - started
        self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether it passed."""
        one = self.ended.setdefault(report.nodeid, {"passed": True})
        one["passed"] = one.get("passed", True) and not report.failed


def measuring(to: Path) -> coverage.Coverage:
    """Return a running measurement of the package in this folder."""
    found = coverage.Coverage(
        data_file=str(to.with_suffix(".db")), config_file=False,
        include=[f"{Path.cwd()}/nas_evidence/*"],
    )  # fmt: skip
    found.start()
    return found


def finish(measured: coverage.Coverage, to: Path, ended: dict[str, Any]) -> None:
    """Write lines by file and check: {module file: {check: [line]}}, and the checks."""
    measured.stop()
    measured.save()
    data, table = measured.get_data(), {}
    for name in data.measured_files():
        by_check: dict[str, list[int]] = {}
        for line, checks in data.contexts_by_lineno(name).items():
            for check in checks:
                by_check.setdefault(check, []).append(line)
        table[str(Path(name).relative_to(Path.cwd()))] = by_check
    to.write_text(json.dumps({"checks": ended, "lines": table}), "utf-8")


def record_tests(files: Sequence[str], to: Path) -> None:
    """Run the tests of some files in this folder, and write their coverage."""
    measured = measuring(to)
    recorder = Recorder(measured)
    pytest.main(["-q", "-m", CHECKS, *files], plugins=[recorder])
    finish(measured, to, recorder.ended)


def missed_row(check: str) -> str | None:
    """Return the first row of a problem that does not hold in this folder."""
    from nas_evidence.audit.run import run_audit

    return next((row.estimator for row in run_audit([check]) if not row.holds), None)


def record_audit(to: Path) -> None:
    """Run the audit in this folder, check by check, and write its coverage."""
    from nas_evidence.audit.run import PROBLEMS

    measured, ended = measuring(to), {}
    for check in PROBLEMS:
        measured.switch_context(AUDIT + check)
        started = time.perf_counter()
        passed = missed_row(check) is None
        ended[AUDIT + check] = {"passed": passed, "seconds": time.perf_counter() - started}
    measured.switch_context("")
    finish(measured, to, ended)


def record(home: Path, workers: int) -> None:
    """Record the coverage of the tests, room by room, and of the audit."""
    home.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        files.setdefault(path.parent.name, []).append(str(path.relative_to(ROOT)))
    jobs = [partial(apart, call=record_tests, given=(own, home / f"{room}.json"))
            for room, own in files.items()]  # fmt: skip
    jobs.append(partial(apart, call=record_audit, given=(home / f"{AUDIT}.json",)))
    for _ in side_by_side(workers, jobs):
        pass


@dataclass(frozen=True)
class Recorded:
    """What was recorded: checks with seconds, and {file: {check: [line]}} of those that passed."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]

    @classmethod
    def read(cls, home: Path) -> "Recorded":
        """Return the recordings in a folder; a check that failed then is left out."""
        seconds: dict[str, float] = {}
        lines: dict[str, dict[str, list[int]]] = {}
        for path in sorted(home.glob("*.json")):
            found = json.loads(path.read_text("utf-8"))
            good = {name: one for name, one in found["checks"].items() if one.get("passed")}
            seconds |= {name: one.get("seconds", 0.0) for name, one in good.items()}
            for file, by_check in found["lines"].items():
                kept = {c: found for c, found in by_check.items() if c in good}
                lines.setdefault(file, {}).update(kept)
        return cls(seconds, lines)

    def touching(self, mutant: Mutant) -> list[str]:
        """Return the checks that run the mutant's statement, in the order in which to run them.

        What runs at import, as a constant does, is in no check: then those that run the file.
        """
        path = mutant.file(ROOT)
        by_check = self.lines.get(str(path.relative_to(ROOT)), {})
        wanted = mutant.lines(path.read_text("utf-8"))
        found = [name for name, lines in by_check.items() if not wanted.isdisjoint(lines)]
        return sorted(found or by_check, key=lambda name: (self._far(mutant, name), name))

    def _far(self, mutant: Mutant, check: str) -> tuple[bool, float]:
        own = mutant.module.split(".")[-1] in check.split("::")[0]
        return not own, self.seconds[check]


# --- running


@dataclass(frozen=True)
class Seen:
    """Who saw a mutant first, None for nobody, and how many checks could have.

    test, audit      the first test or row that failed
    tests, problems  how many run its statement
    """

    name: str
    test: str | None
    audit: str | None
    tests: int
    problems: int
    seconds: float


def run(mutant: Mutant, tree: Path, recorded: Recorded) -> Seen:
    """Return who sees a mutant in a copy."""
    started = time.perf_counter()
    checks = recorded.touching(mutant)
    tests = [name for name in checks if not name.startswith(AUDIT)]
    problems = [name.removeprefix(AUDIT) for name in checks if name.startswith(AUDIT)]
    own = [name for name in tests if mutant.module.split(".")[-1] in name.split("::")[0]]
    parts = [part for part in (own, [name for name in tests if name not in own]) if part]
    with applied(mutant, tree):
        test = next(filter(None, (_asked(tree, _first_test, part) for part in parts)), None)
        audit = next(filter(None, (_asked(tree, _first_row, one) for one in problems)), None)
    seconds = round(time.perf_counter() - started, 1)
    return Seen(mutant.name, test, audit, len(tests), len(problems), seconds)


class First:
    """Runs tests in an order and keeps the first that fails; a plugin of pytest."""

    def __init__(self, order: Sequence[str]) -> None:
        self.place = {name: k for k, name in enumerate(order)}
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests in order."""
        items.sort(key=lambda item: self.place.get(item.nodeid, len(self.place)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def _first_test(tests: Sequence[str]) -> str | None:
    """Return the first of some tests that fails in this folder."""
    first = First(tests)
    code = pytest.main(["-x", "-q", "--tb=no", "-p", "no:xdist", *tests], plugins=[first])
    return first.failed or (f"pytest ends with {int(code)}" if code else None)


def _first_row(check: str) -> str | None:
    """Return the first row of a check of the audit that does not hold, in words."""
    try:
        missed = missed_row(check)
    except Exception as error:
        return f"{check}: {type(error).__name__}"
    return f"{check}: {missed}" if missed else None


def _asked(tree: Path, call: Callable[..., str | None], given: Any) -> str | None:
    """Return who sees the mutant in a copy; a process that never ends, or dies, sees it too."""
    try:
        found: str | None = apart(tree, call, [given])
    except TimeoutError:
        return "does not end"
    except EOFError:
        return "the process dies"
    return found


def run_all(chosen: Sequence[Mutant], given: argparse.Namespace) -> None:
    """Return who sees each mutant; results so far are kept as they come."""
    recorded = Recorded.read(given.home)
    found = {one.name: one for one in read_results()}
    for seen in side_by_side(given.workers, [partial(run, m, recorded=recorded) for m in chosen]):
        found[seen.name] = seen
        print(f"{seen.name}: {seen.test} | {seen.audit} | {seen.seconds:.0f} s", flush=True)
        write_results([found[m.name] for m in mutants() if m.name in found])


def read_results() -> list[Seen]:
    """Return the committed results."""
    return [Seen(**one) for one in json.loads(RESULTS.read_text("utf-8"))["mutants"]]


def write_results(found: Sequence[Seen]) -> None:
    """Write the results, one mutant a line."""
    head = {"python": platform.python_version(), "cpu": "two x86-64 cores"}
    lines = ",\n".join("  " + json.dumps(asdict(one), ensure_ascii=False) for one in found)
    text = json.dumps(head)[:-1] + f', "mutants": [\n{lines}\n]}}\n'
    RESULTS.write_text(text, "utf-8")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", nargs="?", default="all", choices=("all", "record", "run"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--home", type=Path, default=ROOT / "runs" / "mutants")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_intermixed_args()
    if given.verb == "record" or not list(given.home.glob("*.json")):
        record(given.home, given.workers)
    if given.verb == "record":
        return
    run_all([m for m in mutants() if not given.names or m.name in given.names], given)
    audited = {m.name for m in mutants() if m.audited}
    for one in read_results():
        if one.test is None or (one.audit is None and one.name in audited):
            print(f"{one.name} is not seen by {'the audit' if one.test else 'the tests'}")


if __name__ == "__main__":
    main()
