"""Each option of a verb is a parameter of the function behind it; messages name both alike."""

import ast
import doctest
import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
import typer.main
from commands import SCRIPT, environment, forked
from fakes import Heard, drive, record_of, study
from faulty import Cli
from messages import refused
from records import asked, plain_study
from rich.console import Console
from searched import folder, record

import nas_evidence
from nas_evidence.api.control import facts_in
from nas_evidence.api.progress import Progress, score_text, size_text
from nas_evidence.api.results import Study
from nas_evidence.api.runs import Run, UnfinishedStudy, begun
from nas_evidence.api.shared_options import flag_of
from nas_evidence.cli.main import MOVED, app
from nas_evidence.cli.report import exit_if_unranked
from nas_evidence.cli.search import _options, _Terminal
from nas_evidence.cli.shown import LiveTable
from nas_evidence.cli.submit import _Told
from nas_evidence.cli.verbs import VERBS
from nas_evidence.driver.mirror import working_copy
from nas_evidence.jobs.jobs import submission_of_this_job
from nas_evidence.plumbing.durations import duration, rough_duration
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import (
    RACE_IDS,
    Evaluation,
    EvidenceEstimate,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.storage.kept_submission import Submission
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.executor import Lost

PACKAGE = Path(nas_evidence.__file__).parent
#: What Python calls an option, where it is not the same word.
NAMES = {
    "study": "data", "place": "folder", "trials": "n_trials", "time": "time_limit",
    "set": "settings", "store": "out", "trial": "trial_id", "dir": "folder",
}  # fmt: skip
#: The functions of each verb: one, or what gives the study and what is done with it.
CALLED: dict[str, tuple[Callable[..., Any], ...]] = {
    "search": (nas_evidence.search,),
    "resume": (nas_evidence.resume,),
    "refit": (nas_evidence.refit,),
    "list": (nas_evidence.list_studies,),
    "submit": (nas_evidence.submit,),
    "report": (nas_evidence.load, Study.report),
    "export": (nas_evidence.load, Study.export),
    "predict": (nas_evidence.predict,),
    "verify": (nas_evidence.verify,),
    "repair": (nas_evidence.repair,),
    "status": (nas_evidence.status,),
    "cancel": (nas_evidence.cancel,),
}
_TABLE = "the same statistics of any table are `nas_evidence.reporting.any_table.rank_table`"
#: Options that are no parameter, with the reason.
ONLY_TYPED = {
    **{
        (verb, "dry-run"): "prints what it would do, and has no study to return"
        for verb in ("search", "resume", "refit")
    },
    ("resume", "name"): "of a job on a cluster, as `resubmit`",
    **{("report", name): _TABLE for name in ("table", "score", "target", "group", "baseline")},
    ("predict", "to"): "`Prediction.to_frame` is written by pandas",
    ("predict", "id"): "columns that the written file copies",
    ("predict", "force"): "of the file that is written",
    ("predict", "reliability"): "`Study.plot('calibration', data)`",
    ("predict", "json"): "how it is printed",
    ("list", "json"): "how it is printed",
    ("verify", "json"): "how it is printed",
    ("status", "json"): "how it is printed",
    ("status", "all"): "of one trial, whose tables `read_table` returns",
    ("status", "log"): "a text, and no value",
    ("status", "follow"): "a text, and no value",
}
#: Parameters that are no option, with the reason.
ONLY_CALLED = {
    ("search", "y"): "data in memory",
    ("search", "families"): "objects; a study file names families",
    ("search", "sampler"): "objects; a study file names samplers",
    ("resume", "sampler"): "objects; a study file names samplers",
    ("search", "callbacks"): "objects",
    ("resume", "callbacks"): "objects",
    ("refit", "callbacks"): "objects",
    ("refit", "progress"): "the command line always prints",
    ("refit", "y"): "data in memory",
    ("search", "progress"): "the command line always prints",
    ("resume", "progress"): "the command line always prints",
    ("submit", "progress"): "the command line always prints",
    **{
        (verb, "warn"): "the command line always prints"
        for verb in ("predict", "status", "cancel")
    },
    ("cancel", "trial_id"): "the second word after the verb",
    ("report", "allow_code"): "a report runs no code",
}


#: An option of the command line; an argument of Python with its flag; a whole command.
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z0-9-]*|(?<= \()--[a-z][a-z0-9-]*")
NAMED = re.compile(r"\b([a-z_]+)(?:=\S+)? \((--[a-z-]+)\)")
COMMAND = re.compile(r"`(?:nas-evidence|pip|ray|resume|ulimit) [^`]*`")
#: Arguments that only Python has, of other functions too, and a name of an example.
FOREIGN = {
    "column", "diagnose", "differentiable", "inplace", "orient", "rare", "requires_grad",
    "sampler", "sparse", "structure", "training",
}  # fmt: skip
#: Files whose sentences only the command line can cause, or that hold style sheets.
TYPED_FILES = ("__main__.py", "reporting/any_table.py", "api/figure.py")


def typed(verb: str) -> set[str]:
    """The names of all that can be typed after a verb, as Python has them."""
    command: Any = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    found = set()
    for one in command.params:
        words = [word.removeprefix("--") for word in one.opts if word.startswith("--")]
        found.add(words[-1] if words else str(one.name))
    return found - {"help"}


def python_name(word: str) -> str:
    return NAMES.get(word, word.replace("-", "_"))


def parameters(verb: str) -> set[str]:
    return {name for one in CALLED[verb] for name in signature(one).parameters} - {"self"}


@pytest.mark.parametrize("verb", CALLED)
def test_every_option_is_a_parameter_but_for_a_few_with_a_reason(verb: str) -> None:
    others = {name for own, name in ONLY_TYPED if own == verb}
    words = typed(verb)
    assert others <= words
    known = parameters(verb)
    assert {w for w in words - others if not {python_name(w), w} & known} == set()


@pytest.mark.parametrize("verb", CALLED)
def test_every_parameter_is_an_option_but_for_a_few_with_a_reason(verb: str) -> None:
    others = {name for own, name in ONLY_CALLED if own == verb}
    words = {python_name(word) for word in typed(verb)} | typed(verb)
    assert others <= parameters(verb)
    assert parameters(verb) - words == others


def words(node: ast.expr) -> str:
    """Return a text in quotes with what is filled in as {expression}; of all else nothing."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(words, parts))
        case ast.FormattedValue(value=value):
            return "{" + re.sub(r"[{}]", "", ast.unparse(value)).replace('"', "'") + "}"
        case ast.BinOp(left=left, right=right):
            return words(left) + words(right)
    return ""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def messages() -> str:
    """All that errors are made with."""
    made = (
        [*call.args, *(one.value for one in call.keywords)]
        for _, tree in trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and re.search(r"(Error|Mistake)$", ast.unparse(call.func))
    )
    return COMMAND.sub("", "\n".join(words(one) for given in made for one in given))


def sentences() -> Iterator[tuple[str, str]]:
    """File and text of what the rooms that both doors share may say."""
    for place, tree in trees():
        if place.startswith("cli/") or place in TYPED_FILES:
            continue
        nodes = [*ast.walk(tree)]
        inside = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        inside |= {id(p) for node in nodes if isinstance(node, ast.JoinedStr) for p in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in inside:
                yield place, COMMAND.sub("", words(node))


@pytest.mark.slow
def test_a_flag_in_a_sentence_stands_behind_the_argument_of_python() -> None:
    arguments = {name for verb in CALLED for name in parameters(verb)}
    found = [(place, text) for place, text in sentences() if FLAG.search(text)]
    assert len(found) >= 20
    for place, text in found:
        if FLAG.fullmatch(text):  # a word of a command
            continue
        pairs = [(name, flag) for name, flag in NAMED.findall(text) if name in arguments]
        settings = [("settings", "--set")] * text.count(" (--set)")
        said = {(name, flag) for name, flag in [*pairs, *settings] if flag_of(name) == flag}
        assert {flag for _, flag in said} == {*FLAG.findall(text)}, (place, text)


def test_each_value_in_a_message_is_of_an_argument_of_both_doors() -> None:
    typed_ones = {python_name(word) for verb in CALLED for word in typed(verb)}
    both = {name for verb in CALLED for name in parameters(verb)} & typed_ones
    given = {*re.findall(r"(?<![\w.])([a-z_]+)=(?!=)", messages())}
    assert len(given & both) >= 6
    assert given - both == FOREIGN, given - both ^ FOREIGN


def test_each_flag_in_a_message_can_be_typed() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert {*FLAG.findall(messages())} <= {o for c in commands for p in c.params for o in p.opts}


def test_what_moved_is_no_verb_and_names_one() -> None:
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not verbs & set(MOVED)
    assert {successor.split()[0] for successor in MOVED.values()} <= verbs


# --- how soon and what single verbs say: told without being imported, and true at a store


def test_the_table_has_the_first_paragraph_of_each_docstring_and_its_command_the_group() -> None:
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, verb in VERBS.items():
        paragraph = commands[name].help.partition("\n\n")[0]
        assert verb.text == " ".join(paragraph.split())
        assert verb.group == commands[name].rich_help_panel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "at", "words"),
    [
        ("nas-evidence st", 1, ["status"]),
        ("nas-evidence re", 1, ["resume", "refit", "report", "repair", "reproduce"]),
        ("nas-evidence status --fol", 2, ["--follow"]),
        ("nas-evidence nowhere --fol", 2, []),
    ],
)
def test_the_shell_completes_verbs_and_their_options(
    line: str, at: int, words: list[str], tmp_path: Path
) -> None:
    asked = {"_NAS_EVIDENCE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    code, said, _ = forked([str(SCRIPT)], tmp_path, environment(**asked))
    assert (code, said.split()) == (0, words)


# --- a search speaks before it imports torch, Ray or any other library that takes seconds


SLOW = ("torch", "ray", "optuna", "sklearn.datasets")


class Stopped(Exception):
    """Raised by the first line, to see the process as it was then."""


def test_the_first_line_comes_before_the_slow_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = plain_study(n_trials=5)
    store = working_copy(str(tmp_path / "s"))
    spec, data = begun(store.folder, spec, None)
    finds = find_done(store.folder)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("torch", "ray", "optuna")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        raise Stopped

    with pytest.raises(Stopped):
        UnfinishedStudy(spec, store, Run("ray"), Heard(say), data, finds).run_trials()
    assert said == [
        f"s: 5 trials, then the best 5 on all rows; workers as there is room -> {tmp_path / 's'}"
    ]
    assert not [name for name in SLOW if name in sys.modules]


def forecast_told(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is said of the seconds that a study will take."""
    monkeypatch.setattr("nas_evidence.driver.runtime.forecast_seconds", seconds)
    lines: list[str] = []
    left: Any = UnfinishedStudy(plain_study(), None, Run("local"), Heard(lines.append), None, None)
    with left.forecast_told(None, 1, 2):
        pass
    return lines


@pytest.mark.usefixtures("no_shortcuts")
def test_the_forecast_is_one_line_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = forecast_told(lambda *_, **__: 30.0, monkeypatch)
    assert re.fullmatch(r"s: less than a minute on the (CPU|GPU)", line)


@pytest.mark.usefixtures("no_shortcuts")
def test_a_forecast_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> float:
        raise MemoryError("the largest network does not fit here")

    assert forecast_told(broken, monkeypatch) == []


# --- a study of which no score is finite ends with exit code 1 and one sentence, by every door


@pytest.mark.slow
def test_a_study_without_a_finite_score_fails_by_every_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimate = EvidenceEstimate(estimator="kfac_ggn", value=np.nan, valid=False, note="NaN")
    evaluations = (Evaluation(epoch=20, estimate=estimate),)
    folder(tmp_path / "a", [record(1, 1).model_copy(update={"evaluations": evaluations})])
    with pytest.raises(typer.Exit) as ended:
        exit_if_unranked(report_on(load_study_tables(tmp_path / "a")))
    assert ended.value.exit_code == 1
    assert "Nothing can be ranked" in capsys.readouterr().err.replace("\n", " ")
    with refused("study-without-finite-score", "Nothing can be ranked"):
        _ = nas_evidence.load(tmp_path / "a").best
    exit_if_unranked(report_on(load_study_tables(folder(tmp_path / "b", [record(1, 1)]))))


# --- no browser opens a report at a URI: one command, which is printed, fetches it


@pytest.mark.slow
def test_the_command_under_a_report_at_a_uri_fetches_it(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, folder = study(name="a", n_trials=2), tmp_path / "store" / "a"
    drive(open_study(folder, spec), folder)
    place = f"file://{tmp_path}/store/a"
    lines = cli("report", place)[0].splitlines()
    at = lines.index(f"report: {place}/report/index.html")
    word, _, command = lines[at + 1].partition(":")
    assert (word, "--to a-report" in command) == ("fetch", True)
    _, *words = shlex.split(command)
    assert "fetch:" not in cli(*words[words.index("report") :])[0]
    assert (tmp_path / "a-report" / "index.html").read_bytes()
    assert "fetch:" not in cli("report", folder)[0]


# --- what a job prints is read whatever log lines surround it, and what it advises can be typed


LOG = "2026-11-22 22:00:01,123\tINFO worker.py:1879 -- Connecting to existing cluster\n"


@pytest.mark.parametrize("before", ["", LOG, LOG * 3, "{not JSON}\n"])
@pytest.mark.parametrize("after", ["", LOG])
def test_the_status_of_a_job_is_found_among_the_lines_of_its_log(before: str, after: str) -> None:
    facts = {"name": "digits", "by_status": {"complete": 2}, "best": None}
    assert facts_in(f"{before}{json.dumps(facts, indent=1)}\n{after}") == facts


def test_a_job_that_prints_no_status_is_quoted() -> None:
    with pytest.raises(ValueError, match="it said: 2026-11-22 22:00:01"):
        facts_in(LOG)


def test_a_job_advises_the_address_that_its_reader_has(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("ray", address="auto")
    assert _options(run) == ["--address", "auto"]
    job = {"metadata": {"nas_evidence_study": "my study", "nas_evidence_store": "/nfs"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert submission_of_this_job() == Submission("", "my study", "/nfs")
    assert _options(run) == ["--address", "URL", "--name", "my study"]
    elsewhere = Run("ray", address="host:6379", data_root=Path("d"))
    assert _options(elsewhere) == ["--data-root", "d", "--address", "host:6379"]


@pytest.mark.parametrize("value", ["", "[]", '{"metadata": null}', "{"])
def test_a_process_of_another_job_has_no_study(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", value)
    assert submission_of_this_job() is None


# --- the command line of a source tree that is on the path and not installed


ROOT = Path(nas_evidence.__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python with all libraries and no installation of the package, for its children too."""
    venv.create(tmp_path / "venv", symlinks=True)
    (libraries,) = tmp_path.glob("venv/lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "nas_evidence" not in entry.name:  # the package, its path file, its metadata
            (libraries / entry.name).symlink_to(entry)
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.long
def test_a_tree_that_is_only_on_the_path_searches_verifies_and_exports(
    bare: Path, tmp_path: Path
) -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run(
            [bare, *arguments], cwd=tmp_path, env=environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    asks = "from importlib.metadata import packages_distributions as p; print(*p())"
    assert "torch" in (packages := python("-c", asks).split())
    assert "nas_evidence" not in packages
    assert nas_evidence.__version__ in python("-m", "nas_evidence", "--version")
    options = ("--trials", "2", "--preset", "quick", "--executor", "local", "--out", "study")
    assert "export: " in python("-m", "nas_evidence", "search", "digits", *options)
    python("-m", "nas_evidence", "verify", "study")
    trials = read_table(tmp_path / "study", "trials")
    assert set(trials["status"]) == {"complete"}
    assert {json.loads(found)["nas-evidence"] for found in trials["versions"]} == {"source"}


# --- what a person sees of a running study; and every example in a docstring of the package


MODULES = sorted(
    module.name for module in pkgutil.walk_packages(nas_evidence.__path__, "nas_evidence.")
)
STUDY = plain_study(
    name="small [b]", objective="kfac_ggn", n_trials=100, family={"mlp": {}, "linear": {}}
)


def assignment(trial_id: int, family: str = "mlp", **values: int | str) -> Assignment:
    return asked(ArchitectureSpec(family=family, values=values), trial_id=trial_id)


def ended(progress: Progress, given: Assignment, **changes: object) -> TrialRecord:
    progress.launched(given)
    record = record_of(given).model_copy(update=changes)
    progress.ended(record)
    return record


def shown(progress: Progress, width: int = 110) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(progress)
    return capture.get()


@pytest.mark.parametrize(
    ("n_stored", "others"), [(99, ", the others resume from their last checkpoint"), (100, "")]
)
def test_a_stop_speaks_of_other_trials_only_if_there_are_some(
    n_stored: int, others: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = SimpleNamespace(state=SimpleNamespace(rows=range(n_stored)))
    monkeypatch.setattr("nas_evidence.storage.log.read_log", lambda folder: log)
    store: Any = SimpleNamespace(folder=None, place="runs/small", uri=None)
    with pytest.raises(SystemExit), _Terminal(None).running(STUDY, store, Run()):
        raise KeyboardInterrupt
    said = " ".join(capsys.readouterr().err.split())
    assert f"Nothing is lost: {n_stored} of 100 trials are stored{others}. Continue:" in said


@pytest.mark.long
def test_examples_in_docstrings_are_true() -> None:
    failed = {
        name: doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed
        for name in MODULES
    }
    assert not [name for name, count in failed.items() if count]


@pytest.mark.parametrize(
    ("said", "by_seconds"),
    [
        (duration, {59.4: "59.4 s", 60: "1.0 min", 3599: "60.0 min", 3600: "1.0 h"}),
        (rough_duration, {44: "less than a minute", 46: "about 1 min", 5400: "about 1.5 h"}),
    ],
)
def test_durations_at_the_edges(
    said: Callable[[float], str], by_seconds: dict[float, str]
) -> None:
    assert {seconds: said(seconds) for seconds in by_seconds} == by_seconds


def test_scores_and_sizes_are_short_and_missing_ones_a_dash() -> None:
    assert [score_text(v) for v in (None, -0.12345, 12345.6)] == ["-", "-0.123", "12346"]
    architectures = [
        ArchitectureSpec(family="mlp", values={"depth": 2, "width": 37, "shape": "constant"}),
        ArchitectureSpec(family="mlp", values={"depth": 2, "width": 37, "shape": "taper"}),
        ArchitectureSpec(family="linear"),
        ArchitectureSpec(family="own:net", values={"width": 13}),
    ]
    assert [size_text(a) for a in architectures] == ["37/2", "taper", "-", "13"]


def test_a_hundred_trials_and_as_many_losses_take_at_most_two_hundred_lines() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=0, say=lines.append)
    for trial_id in range(100):
        given = assignment(trial_id, width=20, depth=1)
        progress.launched(given)
        progress.lost(Lost(trial_id, 1, "the worker process crashed"))
        ended(progress, given)
    assert 100 < len(lines) <= 200
    assert not any("\n" in line for line in lines)
    assert lines[0] == "trial 0 attempt 1 lost (the worker process crashed); retrying"
    told = "[100/100] trial 99 (mlp, width 20, depth 1) complete, kfac_ggn=-0.500 (0.0 s, "
    assert lines[-1].startswith(told)
    assert progress.rows == {}


def test_every_failure_has_a_line_with_its_cause() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=0, say=lines.append)
    for trial_id in range(7):
        ended(progress, assignment(trial_id), status=TrialStatus.DIVERGED, cause="a nan")
    assert len(lines) == 7
    assert "trial 0 (mlp) diverged, a nan (" in lines[0]


def test_a_retraining_of_the_best_is_called_so_with_its_number() -> None:
    lines: list[str] = []
    progress = Progress(STUDY, n_done=100, say=lines.append)
    ended(progress, assignment(RACE_IDS + 5, "linear"))
    assert lines[0].startswith(f"[retraining the best, 6 of at most 34] trial {RACE_IDS + 5} (")
    table = LiveTable(STUDY, n_done=100)
    table.launched(assignment(RACE_IDS + 6))
    assert "100 of 100 trials, retraining the best, 7 of at most 34, " in shown(table, 160)


def test_the_end_is_expected_from_the_pace_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(STUDY.model_copy(update={"finalists": 0}), n_done=90, started=1000.0)
    assert progress.expected_seconds() is None
    assert progress.left() == ""
    monkeypatch.setattr("nas_evidence.api.progress.time.monotonic", lambda: 1030.0)
    ended(progress, assignment(90))
    ended(progress, assignment(91))
    # Two trials in 30 s; those of earlier runs say nothing of the pace; 8 are left.
    assert progress.expected_seconds() == pytest.approx(120)
    assert progress.left() == "2.0 min left"
    progress.limit = lambda: 20.0
    assert progress.left() == "20.0 s left"
    progress.limit = lambda: -1.0  # the time is over
    assert progress.expected_seconds() == 0


def test_the_race_of_the_finalists_is_part_of_what_is_left_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = Progress(STUDY, n_done=99, started=1000.0)
    monkeypatch.setattr("nas_evidence.api.progress.time.monotonic", lambda: 1015.0)
    ended(progress, assignment(99))
    assert progress.expected_seconds() == pytest.approx(15 * 34)  # a third of 100 trials
    assert progress.left() == "at most 8.5 min left"
    ended(progress, assignment(RACE_IDS))
    assert progress.expected_seconds() == pytest.approx(7.5 * 33)


def test_the_live_table_shows_every_running_trial_and_the_last_finished() -> None:
    progress = LiveTable(STUDY, n_done=0)
    assert "estimating the end" in shown(progress)
    for trial_id in range(12):
        ended(progress, assignment(trial_id, width=4, depth=1))
    progress.launched(assignment(12, "cnn", width=37, depth=3))
    progress.progressed(
        SliceReport(trial_id=12, attempt=1, epoch=5, epochs=40, done=False,
                    scores={"kfac_ggn": -1.25}, sotl=6.5)
    )  # fmt: skip
    rows = [line.split() for line in shown(progress).splitlines()]
    running = next(row for row in rows if row[:1] == ["12"])
    assert running == ["12", "cnn", "37/3", "5/40", "-1.250", "6.500", "0.0", "s", "running"]
    assert [row[0] for row in rows if row[1:2] == ["mlp"]] == [str(i) for i in range(4, 12)]
    assert shown(progress).startswith("small [b]: 12 of 100 trials, 0.")


def test_what_is_printed_of_a_reading_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    sentences = (
        "column 'it''s' is left out; categorical='it'\"'\"'s' to keep the most frequent",
        "column 'a' has 'A' and 'a'; write them alike, or drop=a to leave it out",
        "'b' determines the target: is it known when a prediction is made? If not, drop=b",
        "column 'drop=c' is read as numbers: 'task=d' is 4",
        "price is skewed: target_scale=auto (--target-scale) and plan.likelihood=x gained 0.5",
    )
    for audience in (_Terminal(None), _Told()):
        audience.read(sentences)
        assert capsys.readouterr().out.splitlines() == [
            "column 'it''s' is left out; --categorical 'it'\"'\"'s' to keep the most frequent",
            "column 'a' has 'A' and 'a'; write them alike, or --drop a to leave it out",
            "'b' determines the target: is it known when a prediction is made? If not, --drop b",
            "column 'drop=c' is read as numbers: 'task=d' is 4",
            "price is skewed: --target-scale auto and --set plan.likelihood=x gained 0.5",
        ]
