"""The command line: real processes, from the first word on the screen to the exit code."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from approved import approve
from cases import GOLDEN_FOLDER
from commands import TINY, environment, hashes, run, start, write_study
from messages import refused

import nas_evidence
from nas_evidence.cli.validate import Check
from nas_evidence.data.named import NAMED
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.storage.tables import read_table

#: A process for each test: part of `make test`, too long for `make check`.
pytestmark = pytest.mark.slow

VERBS = (
    "search", "resume", "init", "status", "report", "compare", "watch", "predict", "export",
    "submit", "cancel", "verify", "repair", "check-family", "audit", "reproduce",
)  # fmt: skip
INLINE = ("--executor", "inline")
#: Libraries that take a tenth of a second and more to import.
HEAVY = {
    "torch", "ray", "optuna", "pandas", "numpy", "scipy", "sklearn", "pyarrow", "fsspec",
    "jinja2", "matplotlib", "asyncio", "multiprocessing", "torchvision", "PIL", "triton",
}  # fmt: skip
OF_TORCH = {"asyncio", "multiprocessing"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study file, its data, and a study `done` with the words of its search."""
    home = tmp_path_factory.mktemp("home")
    write_study(home)
    process = run("search", "tiny.toml", "--out", "done", *INLINE, folder=home)
    (home / "search.out").write_text(process.stdout)
    (home / "search.err").write_text(process.stderr)
    return home


@pytest.fixture
def done(home: Path, tmp_path: Path) -> Path:
    """A copy of the finished study, to be changed."""
    return Path(shutil.copytree(home / "done", tmp_path / "done"))


def modules_after(code: str, folder: Path) -> set[str]:
    """The libraries that are loaded after some code in a process of its own."""
    return {name.partition(".")[0] for name in loaded_after(code, folder)}


def loaded_after(code: str, folder: Path) -> set[str]:
    text = f"import sys\n{code}\nprint(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {*process.stdout.split()}


def as_command(*arguments: str, code: int = 0) -> str:
    """Python code that runs the command line and goes on after it."""
    return (
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "from nas_evidence.cli.main import main\n"
        "try:\n    main()\n"
        f"except SystemExit as stop:\n    assert (stop.code or 0) == {code}, stop.code"
    )


# --- what is asked of the program itself


def test_version(tmp_path: Path) -> None:
    expected = f"nas-evidence {nas_evidence.__version__}\n"
    assert run("--version", folder=tmp_path).stdout == expected


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_an_example_that_fits_a_line(verb: str, tmp_path: Path) -> None:
    text = run(verb, "--help", folder=tmp_path).stdout
    examples = [line.strip() for line in text.splitlines() if "Example:" in line]
    assert examples
    assert all(line.startswith(f"Example: nas-evidence {verb} ") for line in examples)
    # A wrapped example would go on here.
    following = text.split(examples[-1])[1].splitlines()[1]
    assert not following.strip(" │")


def test_help_names_every_verb_and_keeps_its_brackets(tmp_path: Path) -> None:
    text = run("--help", folder=tmp_path).stdout
    assert all(f" {verb} " in text for verb in VERBS)
    assert "runs/<name>" in run("search", "--help", folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage: nas-evidence"),
        (["validate", "a.toml"], "use `nas-evidence search STUDY --dry-run`"),
        (["attach", "runs/a"], "use `nas-evidence status DIR --follow`"),
        (["status", ".", "--all"], "--all shows every column of a trial; name its id."),
        (["status", ".", "--json", "--log"], "--json is of a status"),
        (["serch"], "No such command 'serch'. Did you mean 'search'?"),
        (["status", ".", "--jsn"], "No such option: --jsn"),
        (["status"], "give a study folder, or `address` and `name` of"),
        (["resume", ".", "--trials", "0"], "--trials"),
        (["search", "digits", "--executor", "slurm"], "inline or module:NAME, but got 'slurm'"),
        (["search", "digts"], "did you mean 'digits'?"),
        (["status", "."], "is not a study folder: it has no study.toml."),
        (["resume", "nowhere"], "nowhere is not a study folder"),
        (["report"], "give a study folder, or --table FILE.csv"),
        (["report", ".", "--table", "x.csv"], "not both"),
        (["report", "--table", "x.csv"], "--table needs --score COL and --target COL"),
        (["report", "--table", "x", "--score", "a", "--target", "b"], "there is no file x"),
        (["export", "."], "Missing option '--to'"),
        (["search"], "Usage: nas-evidence search [OPTIONS] STUDY\n"),
    ],
)
def test_bad_usage_is_exit_code_2_and_one_clear_message(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    process = run(*arguments, folder=tmp_path, code=2)
    assert said in process.stdout + process.stderr
    assert process.stderr.count("\n") <= 4
    assert not list(tmp_path.iterdir())


def test_the_package_and_its_command_line_start_without_the_heavy_libraries(
    tmp_path: Path,
) -> None:
    assert not HEAVY & modules_after("import nas_evidence.cli.main", tmp_path)
    public = "import nas_evidence; nas_evidence.search; nas_evidence.Study"
    assert not {"torch", "ray", "optuna"} & modules_after(public, tmp_path)


@pytest.mark.parametrize(("asked", "code"), [("--help", 0), ("--version", 0), ("serch", 2)])
def test_what_needs_no_verb_imports_none(asked: str, code: int, tmp_path: Path) -> None:
    found = loaded_after(as_command(asked, code=code), tmp_path)
    assert not {*HEAVY, "nas_evidence.spec.study", "nas_evidence.api"} & found


#: What each use of a finished study needs of `HEAVY`, beside numpy: all else costs its start up to
#: two seconds, and the memory of each process. The numbers are CPU seconds on an idle machine:
#: torch 1.2, scipy.stats 0.5, scipy.optimize 0.3, pandas 0.25, scipy.special 0.15, pyarrow 0.1.
NEEDED = {
    ("status", "done"): {"pyarrow"},
    ("status", "done", "--log"): set[str](),
    ("status", "done", "0"): {"pyarrow", "pandas"},
    ("list", "."): {"pyarrow"},
    ("report", "done", "--to", "r"): {"pyarrow", "pandas", "scipy", "jinja2"},
    ("predict", "done", "data.npz", "--to", "p.csv"): {"pyarrow", "pandas", "torch"},
}


@pytest.mark.long
@pytest.mark.parametrize("arguments", NEEDED, ids=" ".join)
def test_a_finished_study_is_used_without_the_libraries_that_this_does_not_need(
    arguments: tuple[str, ...], home: Path
) -> None:
    found = HEAVY & modules_after(as_command(*arguments), home)
    assert found - {"numpy"} - (OF_TORCH if "torch" in found else set()) == NEEDED[arguments]


@pytest.mark.long
def test_a_worker_starts_without_the_libraries_of_the_driver(tmp_path: Path) -> None:
    found = HEAVY & modules_after("import nas_evidence.workers.worker", tmp_path)
    assert found - OF_TORCH == {"numpy", "torch"}
    before = HEAVY & modules_after("import nas_evidence.workers.process", tmp_path)
    assert before == set()  # `on_ray` imports no more of ours before its worker is made


@pytest.mark.long
def test_a_process_that_drives_plain_workers_never_imports_what_trains(home: Path) -> None:
    # The report's comparison and the export are computed in a fork that has torch.
    asked = ("search", "tiny.toml", "--out", "driven", "--executor", "local", "--workers", "2")
    found = HEAVY & modules_after(as_command(*asked), home)
    assert not {"torch", "sklearn", "ray"} & found
    assert (home / "driven/export/SHA256SUMS").is_file()
    assert (home / "driven/report/comparison.json").is_file()


# --- study files


def test_a_dry_run_says_what_the_study_is(home: Path) -> None:
    asked = ("--set", "n_trials=7", "--workers", "2")
    text = run("search", "tiny.toml", "--dry-run", *asked, folder=home).stdout
    approve("dry_run_of_a_study", text.splitlines())


@pytest.mark.parametrize("fetches", [False, True])
def test_a_dry_run_fetches_a_data_set_if_it_is_asked_to(
    fetches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def read(*given: object, download: bool = False, **more: object) -> object:
        asked.append(download)
        raise ValueError("there is no data")

    monkeypatch.setitem(NAMED, "mnist", read)
    with pytest.raises(ValueError, match="there is no data"):
        nas_evidence.search("mnist", data_root=tmp_path, download=fetches, progress=Check())
    assert asked == [fetches]


def test_workers_are_typed_as_a_number_or_auto(home: Path) -> None:
    asked = ("search", "tiny.toml", "--dry-run", "--executor", "ray", "--workers")
    assert "4 trials, 3 workers -> " in run(*asked, "3", folder=home).stdout
    assert "4 trials, workers as there is room -> " in run(*asked, "auto", folder=home).stdout
    for wrong in ("0", "many"):
        assert f"but got '{wrong}'" in run(*asked, wrong, folder=home, code=2).stderr


def test_a_time_that_is_too_short_is_one_sentence_and_one_that_is_none_is_refused(
    home: Path,
) -> None:
    asked = ("search", "tiny.toml", "--executor", "inline", "--out", "short")
    said = run(*asked, "--time", "0.1s", folder=home, code=1)
    assert "time: 0 of " in said.stdout
    assert said.stderr.count("\n") == 1
    assert "error: no trial finished within the time limit" in said.stderr
    assert "resume short --time 1s" in said.stderr
    for option, value, says in (
        ("--time", "5d", "such as 90s, 10m or 2h, but got '5d'"),
        ("--preset", "fast", "preset must be one of quick, default, thorough, but got 'fast'"),
    ):
        refused = run(*asked, option, value, folder=home, code=2).stderr
        assert says in refused
        assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("executor", "gpu", "unknown-executor"),
        ("time_limit", "5x", "time-limit-form"),
        ("track", ("mlfow",), "unknown-tracker"),
        ("address", "http://head:8265", "address-of-dashboard"),
    ],
)
def test_a_dry_run_refuses_what_the_search_would(option: str, value: Any, code: str) -> None:
    with refused(code):
        nas_evidence.search("digits", progress=Check(), **{"executor": "auto", option: value})


def test_a_dry_run_reports_every_mistake_once_with_its_place(tmp_path: Path) -> None:
    bad = TINY.replace("width =", "widht =").replace("epochs = 4", 'epochs = "four"')
    write_study(tmp_path, bad + "[resources]\ncpu = 1\n")
    process = run("search", "tiny.toml", "--dry-run", "--set", "sed=1", folder=tmp_path, code=2)
    messages = process.stderr.splitlines()
    assert len(messages) == 4
    assert "unknown key 'widht' in [family.mlp]; did you mean 'width'?" in messages[0]
    assert messages[0].startswith("tiny.toml:9: ")
    assert messages[1].startswith("tiny.toml:13: ")
    assert "did you mean 'cpus'?" in messages[2]
    assert messages[3].startswith("sed=1: unknown key 'sed'; did you mean 'seed'?")


def test_missing_data_is_one_line_and_the_folder_is_there(tmp_path: Path) -> None:
    study = TINY.replace('"npz"\npath = "{data}"', '"fashion_mnist"')
    path = write_study(tmp_path, study)
    root = tmp_path / "no such root"
    process = run("search", path, "--out", "s", "--data-root", root, folder=tmp_path, code=2)
    assert process.stdout == "tiny: 4 trials, 1 worker -> s\n"
    assert process.stderr.count("\n") == 1
    assert "fashion_mnist" in process.stderr
    begun = load_study(path).with_order(0).with_whole()
    assert load_study(tmp_path / "s" / "study.toml") == begun
    assert run("status", "s", folder=tmp_path).stdout.startswith("tiny: stopped, 0 of 4 trials")
    own = write_study(tmp_path, TINY.replace("{data}", "{data}.gone"))
    process = run("search", own, "--out", "own", folder=tmp_path, code=2)
    assert process.stderr.count("\n") == 1
    assert "data.npz.gone" in process.stderr
    assert not (tmp_path / "own").exists()


@pytest.mark.long
def test_the_folder_comes_before_torch_and_a_study_without_trials_can_be_resumed(
    tmp_path: Path,
) -> None:
    write_study(tmp_path, TINY.replace('"npz"\npath = "{data}"', '"fashion_mnist"'))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "lock").touch()  # killed before the study file was there
    code = as_command("search", "tiny.toml", "--out", "s", "--trials", "1", *INLINE, code=2)
    assert not {"torch", "ray"} & modules_after(code, tmp_path)
    assert (tmp_path / "s" / "study.toml").is_file()
    study = load_study(write_study(tmp_path)).model_copy(update={"n_trials": 1})
    open_study(tmp_path / "t", study)
    assert "[1/1] trial 0 (linear)" in run("resume", "t", *INLINE, folder=tmp_path).stdout


# --- a search


def test_a_search_says_what_comes_what_came_and_how_to_go_on(home: Path) -> None:
    lines = (home / "search.out").read_text().splitlines()
    assert [lines.pop(0) for _ in range(3)] == [
        "classification, 3 classes: 0, 1, 2; --task regression to change",
        "features: 6 numeric columns",
        "rows: 120 for training, 60 for the report's test",
    ]
    assert lines.pop(0) == "tiny: 4 trials, 1 worker -> done"
    # One line a trial: a hundred trials stay far below two hundred lines.
    for number, line in enumerate(lines[:4], start=1):
        named = r"\((linear|mlp, depth 1, width \d+)\)"
        assert re.match(rf"\[{number}/4\] trial \d {named} complete, diag_ef=-", line)
    assert lines[-5] == "report: done/report/index.html"
    assert lines[-4].startswith("export: done/export (trial ")
    assert lines[-3] == "trials: 4 complete"
    assert re.fullmatch(r"next:   .*:", lines[-2])
    assert lines[-1].startswith("nas-evidence ")


@pytest.mark.long
def test_the_answer_comes_in_order_and_its_command_can_be_copied_whole(
    home: Path, tmp_path: Path
) -> None:
    lines = (home / "search.out").read_text().splitlines()
    firsts = [line.partition(" ")[0] for line in lines]
    order = ["words:", "answer:", "worth", "how", "if", "trust:", "report:", "export:", "next:"]
    places = [firsts.index(word) for word in order]
    assert places == sorted(places)
    assert len(lines) - 2 == firsts.index("next:")
    assert sum("too few to tell" in line for line in lines) <= 1
    _, *words = shlex.split(lines[-1])
    assert words[:3] == ["resume", "done", "--set"]  # each was trained once
    shutil.copytree(home / "done", tmp_path / "done")
    said = run(*words, *INLINE, folder=tmp_path).stdout
    assert "\n[retraining the best, 1 of at most 10] trial 1000000 (" in said


def test_a_search_leaves_nothing_behind(home: Path) -> None:
    assert (home / "search.err").read_text() == ""
    assert not list(home.glob("*error*"))


def test_off_a_terminal_the_ranking_is_tab_separated_whole_and_plain(home: Path) -> None:
    text = (home / "search.out").read_text()
    assert "\x1b" not in text
    assert "…" not in text
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    assert rows[0][:3] == ["rank", "trial", "family"]
    assert len(rows) == 5
    assert {len(row) for row in rows} == {len(rows[0])}
    trials = read_table(home / "done", "trials").set_index("trial_id")
    for row in (dict(zip(rows[0], row, strict=True)) for row in rows[1:]):
        stored = trials.loc[int(row["trial"])]
        assert row["family"] == stored["family"]
        assert float(row["test accuracy"]) == pytest.approx(stored["test_accuracy"], abs=5e-4)
    evidence = read_table(home / "done", "evidence")
    last = evidence[(evidence["estimator"] == "diag_ef") & (evidence["epoch"] == 4)]
    best = last.sort_values("value", ascending=False)["trial_id"].tolist()
    assert [int(row[1]) for row in rows[1:]] == best


def test_the_folder_holds_what_the_design_names(home: Path) -> None:
    names = {path.name for path in (home / "done").iterdir()}
    assert names == {
        "study.toml", "lock", "trials", "evidence", "terms", "curves", "models",
        "checkpoints", "logs", "report", "export", "how_read.json",
    }  # fmt: skip
    assert {p.name for p in (home / "done/models").iterdir()} == {
        f"{i}.safetensors" for i in range(4)
    }
    assert not list((home / "done/checkpoints").iterdir())
    assert {"index.html", "report.md", "correlations.csv"} <= {
        path.name for path in (home / "done/report").iterdir()
    }


@pytest.mark.long
def test_no_database_is_written_or_loaded_unless_asked_for(home: Path, tmp_path: Path) -> None:
    code = as_command(
        "search", "tiny.toml", "--out", str(tmp_path / "s"), "--trials", "1", *INLINE
    )
    assert not {"sqlalchemy", "alembic"} & modules_after(code, home)
    assert not (tmp_path / "s" / "study.db").exists()


def test_a_finished_study_runs_nothing_again_and_rebuilds_its_report(
    home: Path, done: Path
) -> None:
    before = hashes(done)
    shutil.rmtree(done / "report")
    for arguments in (("search", "tiny.toml", "--out", done), ("resume", done)):
        process = run(*arguments, folder=home)
        assert "tiny: all 4 trials are finished" in process.stdout.splitlines()
        assert (done / "report" / "index.html").is_file()
        assert hashes(done) == before


@pytest.mark.slow
def test_more_trials_run_the_rest_alone(home: Path, done: Path) -> None:
    before = hashes(done)
    process = run("resume", done, "--trials", 6, *INLINE, folder=home)
    assert process.stdout.startswith("tiny: 2 of 6 trials, ")
    assert "[5/6] trial 4 " in process.stdout
    after = hashes(done)
    assert {name: after[name] for name in before} == before
    assert sorted(read_table(done, "trials")["trial_id"]) == list(range(6))
    assert load_study(done / "study.toml").n_trials == 6
    # Fewer than there are is a slip, and no reason to lose any.
    refused = run("resume", done, "--trials", 2, folder=home, code=2).stderr
    assert "has 6 trials, which cannot become 2" in refused
    assert sorted(read_table(done, "trials")["trial_id"]) == list(range(6))


def test_a_folder_at_work_is_refused_and_left_as_it_is(home: Path, done: Path) -> None:
    before = (done / "study.toml").read_bytes()
    with locked(done):
        for arguments in (("resume", done, "--trials", 9), ("search", "tiny.toml", "--out", done)):
            process = run(*arguments, folder=home, code=2)
            holder = f"another process works on {done} (process {os.getpid()} of host "
            assert process.stderr.startswith(f"error: {holder}")
        assert run("status", done, folder=home).stdout.startswith("tiny: running, 4 of 4 trials")
    assert (done / "study.toml").read_bytes() == before
    assert run("status", done, folder=home).stdout.startswith("tiny: finished, ")


@pytest.mark.parametrize("content", ["file", "folder", "below a file"])
def test_what_is_no_study_folder_is_left_alone(home: Path, tmp_path: Path, content: str) -> None:
    target = tmp_path / "out"
    if content == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
    else:
        target.write_text("mine")
    out = target / "s" if content == "below a file" else target
    run("search", "tiny.toml", "--out", out, *INLINE, folder=home, code=2)
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "thesis.txt"][: 1 + target.is_dir()]


# --- looking at a study


@pytest.mark.long
def test_trials_of_the_race_are_counted_apart(home: Path) -> None:
    race = ("--set", "finalists=2", "--set", "race.trials=2", "--executor", "inline")
    said = run("search", "tiny.toml", "--trials", 2, *race, "--out", "raced", folder=home).stdout
    assert "tiny: 2 trials, then up to 2 retrainings of the best; 1 worker -> raced\n" in said
    assert "\n[retraining the best, 2 of at most 2] trial 1000001 (" in said
    assert "trials: 2 of the search and 2 retrainings of the best: 4 complete\n" in said
    assert "words:  nats per datum: log probability, averaged over rows" in said
    status = run("status", "raced", folder=home).stdout
    counted = "2 of 2 trials and 2 retrainings of the best (4 complete)"
    assert status.startswith(f"tiny: finished, {counted}\n")


def test_status_in_words_and_as_json(home: Path) -> None:
    text = run("status", "done", folder=home).stdout
    assert text.startswith("tiny: finished, 4 of 4 trials (4 complete)\nbest: ")
    known = json.loads(run("status", "done", "--json", folder=home).stdout)
    evidence = read_table(home / "done", "evidence")
    last = evidence[(evidence["estimator"] == "diag_ef") & (evidence["epoch"] == 4)]
    best = last.sort_values("value").iloc[-1]
    assert known == {
        "name": "tiny",
        "state": "finished",
        "n_trials": 4,
        "n_finished": 4,
        "by_status": {"complete": 4},
        "running": [],
        "architectures": {},
        "best": {
            "trial_id": best["trial_id"],
            "diag_ef": best["per_datum"],
            "unit": "nats per datum",
            "ranked_by": "diag_ef",
            "architecture": known["best"]["architecture"],
        },
        "held_by": None,
        "waits_for": None,
        "submitted": None,
        "resume": "nas-evidence resume done",
    }
    words = nas_evidence.list_studies(home / "done")[0].best
    assert known["best"]["architecture"] == words
    assert f"best: {words} (trial {best['trial_id']}) with diag_ef = " in text


def test_show_tells_all_of_one_trial(home: Path) -> None:
    lines = run("status", "done", 1, folder=home).stdout.splitlines()
    rows = [line.split("\t") for line in lines]
    assert {len(row) for row in rows} == {2, 4, 5}
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    assert facts["status"] == "complete"
    assert facts["arch_depth"] == "1"
    terms = [row for row in rows if len(row) == 4]
    assert ["diag_ef", "log_det_ratio", "head.weight"] in [row[:3] for row in terms]
    shown = json.loads(run("status", "done", 1, "--json", folder=home).stdout)
    trial = read_table(home / "done", "trials").set_index("trial_id").loc[1]
    assert shown["trial"]["seed"] == trial["seed"]
    assert shown["trial"]["test_nll_per_datum"] == pytest.approx(
        trial["test_nll_per_datum"], rel=1e-14
    )
    assert {row["epoch"] for row in shown["evidence"]} == {2, 4}
    assert len(shown["curves"]) == 4


def test_show_of_no_trial_says_so(home: Path) -> None:
    process = run("status", "done", 99, folder=home, code=2)
    assert process.stderr.endswith("has no finished trial 99; see `nas-evidence status`.\n")


@pytest.mark.parametrize("arguments", [("status", "done", 1), ("status", "done")])
def test_a_reader_that_stops_early_is_no_error(home: Path, arguments: tuple[object, ...]) -> None:
    with start(*arguments, folder=home, stderr=subprocess.STDOUT) as process:
        process.stdout.close()
        process.wait(timeout=600)
    assert not list(home.glob("*error*"))


# --- report and export


def test_report_prints_what_the_search_printed(home: Path) -> None:
    said = (home / "search.out").read_text()
    first, last, then = (said.index(word) for word in ("rank\t", "export: ", "next: "))
    assert "\nanswer: Take " in said[first:last]
    assert run("report", "done", folder=home).stdout == said[first:last] + said[then:]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_after_ctrl_c_nothing_is_computed_and_the_command_for_the_ranking_is_said(
    done: Path, number: int
) -> None:
    shutil.rmtree(done / "report")
    process = start("resume", done, "--trials", 80, *INLINE, folder=done.parent)
    while not process.stdout.readline().startswith("[5/"):
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Stopped. Nothing is lost: " in err
    assert "rank\t" not in out
    assert err.endswith(f"Ranking:  nas-evidence report {done}\n")
    assert not (done / "report").exists()
    assert "\nanswer: Take " in run("report", done, folder=done.parent).stdout


def test_report_goes_where_it_is_told(home: Path, tmp_path: Path) -> None:
    process = run("report", "done", "--to", tmp_path / "r", folder=home)
    assert f"report: {tmp_path}/r/index.html" in process.stdout.splitlines()
    assert (tmp_path / "r" / "index.html").stat().st_size > 1000


def test_report_on_a_published_table_prints_its_statistics(tmp_path: Path) -> None:
    table = GOLDEN_FOLDER / "immer2021_table_c9_cifar10.csv"
    process = run(
        "report", "--table", table, "--score", "log_evidence_per_datum_nats",
        "--target", "test_accuracy_percent", "--group", "family", "--baseline", "n_parameters",
        "--to", "out", folder=tmp_path,
    )  # fmt: skip
    header, *rows = (line.split("\t") for line in process.stdout.splitlines() if "\t" in line)
    first = dict(zip(header, rows[0], strict=True))
    assert first["score"] == "log_evidence_per_datum_nats"
    assert first["group"] == "all"
    assert first["rho"] == "0.9718"
    assert float(first["regret_1"]) == pytest.approx(0.30, abs=5e-3)
    baseline = [dict(zip(header, row, strict=True)) for row in rows if row[0] == "n_parameters"]
    assert float(baseline[0]["rho"]) == pytest.approx(0.961, abs=5e-4)
    assert process.stdout.splitlines()[-1] == "table:  out/correlations.csv"
    assert len(pd.read_csv(tmp_path / "out" / "correlations.csv")) == len(rows)


@pytest.mark.long
def test_export_writes_the_best_or_the_one_asked_for(home: Path, tmp_path: Path) -> None:
    best = json.loads(run("status", "done", "--json", folder=home).stdout)["best"]["trial_id"]
    other = next(i for i in range(4) if i != best)
    for arguments, trial_id in ((), best), (("--trial", other, "--pt2"), other):
        process = run("export", "done", "--to", tmp_path / str(trial_id), *arguments, folder=home)
        assert f"(trial {trial_id}: " in process.stdout
        assert "evidence recomputed: identical" in process.stdout
        assert {p.name for p in (tmp_path / str(trial_id)).iterdir()} == {
            "architecture.toml", "model.safetensors", "evidence.json", "README.md",
            "meaning.json", "posterior.safetensors", "SHA256SUMS",
            *(["model.pt2", "encode.py"] if "--pt2" in arguments else []),
        }  # fmt: skip


@pytest.mark.long
def test_a_study_at_a_uri_is_shown_reported_watched_and_exported(
    done: Path, tmp_path: Path
) -> None:
    uri = done.as_uri()
    assert "status\tcomplete" in run("status", uri, 1, folder=tmp_path).stdout
    shutil.rmtree(done / "report")
    live, report = run("watch", uri, folder=tmp_path).stdout.splitlines()
    assert report == f"report: {live.removeprefix('live: ')}"
    assert not (done / "report").exists()  # its driver alone writes there
    said = run("report", uri, folder=tmp_path).stdout.splitlines()
    assert f"report: {uri}/report/index.html" in said
    assert (done / "report" / "index.html").is_file()
    run("export", uri, "--to", tmp_path / "winner", folder=tmp_path)
    assert (tmp_path / "winner" / "README.md").is_file()
    process = run("status", f"{uri}-else", 1, folder=tmp_path, code=2)
    assert process.stderr == f"error: there is no study at {uri}-else: it has no study.toml.\n"


def test_an_interrupted_audit_says_so_in_a_word(tmp_path: Path) -> None:
    process = start("audit", folder=tmp_path)
    while "libtorch_cpu" not in Path(f"/proc/{process.pid}/maps").read_text():  # it computes soon
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = "interrupted; nothing is lost: run the same command again to go on\n"
    assert process.communicate(timeout=600) == ("", said)
    assert process.returncode == 130


def test_export_of_no_trial_says_so(home: Path, tmp_path: Path) -> None:
    process = run("export", "done", "--to", tmp_path / "x", "--trial", 99, folder=home, code=2)
    assert process.stderr.startswith("error: ")
    assert "99" in process.stderr


@pytest.mark.long
@pytest.mark.parametrize("damage", ["another trial", "cut short"])
def test_an_export_that_is_not_the_winner_whole_is_made_again(
    home: Path, done: Path, damage: str
) -> None:
    summary = done / "export" / "evidence.json"
    written = json.loads(summary.read_text())
    if damage == "another trial":
        summary.write_text(json.dumps({**written, "trial_id": 99}))
    else:
        (done / "export" / "README.md").unlink()
    run("resume", str(done), *INLINE, folder=home)
    assert json.loads(summary.read_text())["trial_id"] == written["trial_id"]
    assert (done / "export" / "README.md").is_file()
