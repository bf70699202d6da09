"""The command line; the only file that prints.

Exit codes: 0 done, 1 the job failed (every trial failed, or an unexpected error), 2 bad usage or a
bad study, 130 interrupted.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import nas_evidence
from nas_evidence.codec import StudyError, find_study, load_study
from nas_evidence.record import TrialStatus
from nas_evidence.spec import StudySpec
from nas_evidence.terminal import (
    Progress,
    ranking_rows,
    rough_duration,
    score_text,
    trust_line,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Neural-architecture search ranked by marginal likelihood: no validation split needed.",
)
# Names, paths and causes are printed as they are: "[x]" is no markup, ":x:" no picture.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A study folder.")]
Trials = Annotated[int | None, typer.Option("--trials", min=1, help="Total number of trials.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Workers side by side.")]
Where = Annotated[
    Literal["ray", "inline"],
    typer.Option("--executor", help="Ray workers, or this process alone (for debugging)."),
]
Override = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one key.")
]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the data sets, as torchvision's.")
]
Steal = Annotated[
    bool, typer.Option("--steal", help="Take over from another host that is known to be dead.")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing data set.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line; every error becomes one clear message and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        # Not standalone, so that typer.Exit comes back as a number and errors come out here.
        sys.exit(app(standalone_mode=False, prog_name="nas-evidence"))
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StudyError as error:
        for message in error.messages:
            err.print(message)
        sys.exit(2)
    except ValueError as error:
        err.print(f"error: {error}")
        sys.exit(2)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # click's own usage errors
            error.show()
            sys.exit(error.exit_code)
        _unexpected(error)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(f"nas-evidence {nas_evidence.__version__}")
        raise typer.Exit(0)


@app.command()
def search(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or a shipped one.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Study folder; else runs/<name>.")
    ] = None,
    trials: Trials = None,
    workers: Workers = None,
    executor: Where = "ray",
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
) -> None:
    """Search, rank, report and export; creates the study folder or continues it.

    Example: nas-evidence search digits --trials 12 --set plan.epochs=20
    """
    from nas_evidence.service.study_folder import default_folder, open_study

    spec = _with_options(_checked(study, overrides), trials, workers)
    folder = folder or default_folder(spec)
    spec = open_study(folder, spec, steal=steal)
    _run(spec, folder, executor, data_root, download, steal=steal)


@app.command()
def resume(
    folder: StudyFolder,
    trials: Trials = None,
    workers: Workers = None,
    executor: Where = "ray",
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
) -> None:
    """Go on with a study after a stop or a crash, or with more trials or another budget.

    Example: nas-evidence resume runs/digits --trials 48
    """
    from nas_evidence.service.study_folder import open_study, read_study

    spec = _with_options(read_study(folder, overrides or ()), trials, workers)
    spec = open_study(folder, spec, steal=steal)
    _run(spec, folder, executor, data_root, download, steal=steal)


@app.command()
def status(folder: StudyFolder, as_json: AsJson = False) -> None:
    """Tell how a study stands.

    Example: nas-evidence status runs/digits --json
    """
    from nas_evidence.service.study_folder import study_status

    now = study_status(folder)
    best = None
    if now.best is not None:
        best = {"trial_id": int(now.best.trial_id), now.objective: now.best.values[now.objective]}
    if as_json:
        _print_json(
            {
                "name": now.name,
                "state": now.state,
                "n_trials": now.n_trials,
                "n_finished": now.n_finished,
                "by_status": now.by_status,
                "running": [a.trial_id for a in now.running],
                "best": best,
            }
        )
        return
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items())) or "none yet"
    out.print(f"{now.name}: {now.state}, {now.n_finished} of {now.n_trials} trials ({counts})")
    for assignment in now.running:
        out.print(f"running: trial {assignment.trial_id} {assignment.architecture}")
    if now.best is not None:
        value = score_text(now.best.values[now.objective])
        out.print(f"best: trial {now.best.trial_id} with {now.objective} = {value}")
    if now.state == "stopped":
        out.print(f"continue: {_program()} resume {folder}")
    if now.state == "budget spent":
        out.print(f"continue: {_program()} resume {folder} --set budget.KEY=SECONDS")


@app.command()
def show(
    folder: StudyFolder,
    trial_id: Annotated[int, typer.Argument(metavar="TRIAL", help="A trial id.")],
    as_json: AsJson = False,
) -> None:
    """Show one trial: how it ended, its scores and the terms of its evidence.

    Example: nas-evidence show runs/digits 7
    """
    from nas_evidence.service.study_folder import read_study
    from nas_evidence.store import TABLES, read_table

    read_study(folder)
    tables = {}
    for name in TABLES:
        frame = read_table(folder, name)
        tables[name] = json.loads(
            frame[frame["trial_id"] == trial_id].to_json(orient="records", double_precision=15)
        )
    if not tables["trials"]:
        raise ValueError(f"{folder} has no finished trial {trial_id}; see `nas-evidence status`.")
    if as_json:
        trial: dict[str, Any] = tables.pop("trials")[0]
        _print_json({"trial": trial} | tables)
        return
    trial = tables["trials"][0]
    for key, value in trial.items():
        if value is not None and key not in ("error", "versions", "attempt", "architecture_key"):
            _print_line(key, value)
    last = max((row["epoch"] for row in tables["evidence"]), default=0)
    _print_rows(
        f"Scores after epoch {last} (larger is better)",
        ("score", "value", "per datum", "standard error", "valid", "note"),
        [
            (
                r["estimator"],
                score_text(r["value"]),
                score_text(r["per_datum"]),
                score_text(r["standard_error"]),
                "yes" if r["valid"] else "no",
                r["note"] or "",
            )
            for r in tables["evidence"]
            if r["epoch"] == last
        ],
    )
    _print_rows(
        "Terms",
        ("score", "term", "group", "value"),
        [
            (r["estimator"], r["term"], r["group"], score_text(r["value"]))
            for r in tables["terms"]
            if r["epoch"] == last
        ],
    )
    if trial["error"]:
        out.print(trial["error"])


@app.command()
def validate(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or a shipped one.")],
    overrides: Override = None,
) -> None:
    """Check a study file and report all its mistakes at once.

    Example: nas-evidence validate search_spaces/digits.toml
    """
    spec = _checked(study, overrides)
    out.print(
        f"{spec.name}: valid; {spec.n_trials} trials over {', '.join(spec.family)} on "
        f"{spec.dataset.name}, ranked by {spec.objective}"
    )


@app.command()
def report(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A study folder [the latest in runs/].")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="OUT", help="Write it here.")] = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE.csv", help="Rank any table instead.")
    ] = None,
    score: Annotated[str | None, typer.Option(metavar="COL", help="The score's column.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="The truth's column.")] = None,
    group: Annotated[str | None, typer.Option(metavar="COL", help="A family's column.")] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="A column to beat.")
    ] = None,
) -> None:
    """Write the report of a study, or the same statistics for any table.

    Example: nas-evidence report runs/digits
    Example: nas-evidence report --table t.csv --score evidence --target accuracy
    """
    if table is not None:
        if folder is not None:
            raise ValueError(f"give a study folder or --table, not both (got {folder}, {table}).")
        if score is None or target is None:
            raise ValueError("--table needs --score COL and --target COL.")
        _report_table(table, score, target, group, baseline or (), to)
        return
    if folder is None:
        folder = _latest_study()
    from nas_evidence.report.study import build_report
    from nas_evidence.service.study_folder import read_study

    read_study(folder)
    paths = build_report(folder, to)
    out.print(f"report: {paths.html}")


@app.command()
def export(
    folder: StudyFolder,
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="Write the files here.")],
    trial_id: Annotated[
        int | None, typer.Option("--trial", metavar="ID", help="This trial, not the best.")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Export the best architecture, ready to use, checked against its stored evidence.

    Example: nas-evidence export runs/digits --to winner
    """
    from nas_evidence.service.study_folder import read_study

    spec = read_study(folder)
    if trial_id is None:
        from nas_evidence.report.tables import load_study_tables

        winner = load_study_tables(folder).winner
        trial_id = None if winner is None else winner.trial_id
    _export(spec, folder, to, trial_id, data_root)


# ---------------------------------------------------------------------------------------------


def _checked(study: str, overrides: Sequence[str] | None) -> StudySpec:
    """Return a study whose file has no mistake, and whose first architectures are in its space."""
    spec = load_study(find_study(study), overrides or ())
    if spec.first:
        from nas_evidence.service.startup import first_points

        first_points(spec)
    return spec


def _latest_study() -> Path:
    """Return the study folder below runs/ that was worked on last."""
    databases = sorted(Path("runs").glob("*/study.db"), key=lambda path: path.stat().st_mtime)
    if not databases:
        raise ValueError(
            "there is no study below runs/; give a study folder, or --table FILE.csv with "
            "--score and --target."
        )
    return databases[-1].parent


def _with_options(spec: StudySpec, trials: int | None, workers: int | None) -> StudySpec:
    changes: dict[str, Any] = {}
    if trials is not None:
        changes["n_trials"] = trials
    if workers is not None:
        changes["resources"] = spec.resources.model_copy(update={"workers": workers})
    return spec.model_copy(update=changes)


def _run(
    spec: StudySpec,
    folder: Path,
    executor: str,
    data_root: Path | None,
    download: bool,
    *,
    steal: bool,
) -> None:
    from nas_evidence.service.study_folder import locked
    from nas_evidence.store import finished

    _log_to(folder / "logs" / "driver.log")
    with locked(folder, steal=steal):
        done = finished(folder)
        if len(done) < spec.n_trials:
            try:
                _search(spec, folder, executor, data_root, download, n_done=len(done))
            except KeyboardInterrupt:
                n_stored = len(finished(folder))
                err.print(
                    f"\nStopped. Nothing is lost: {n_stored} of {spec.n_trials} trials are "
                    "stored, the others go on from their last checkpoint.\n"
                    f"Continue: {_program()} resume {folder}{_data_option(data_root)}"
                )
                raise typer.Exit(130) from None
            n_stored = len(finished(folder))
            if n_stored < spec.n_trials:
                out.print(
                    f"budget: spent after {n_stored} of {spec.n_trials} trials; the others go on "
                    f"with a higher one: {_program()} resume {folder} "
                    f"--set budget.KEY=SECONDS{_data_option(data_root)}"
                )
        else:
            out.print(f"{spec.name}: all {spec.n_trials} trials are finished; writing the report")
            if any((folder / "checkpoints").iterdir()):  # killed before the last one was told
                _tell_what_is_stored(spec, folder)
        _conclude(spec, folder, data_root)


def _tell_what_is_stored(spec: StudySpec, folder: Path) -> None:
    from nas_evidence.service.driver import Driver
    from nas_evidence.service.learning_curves import synthetic
    from nas_evidence.service.simulated_executor import SimulatedExecutor

    nobody = SimulatedExecutor(synthetic, workers=0, seed=0)
    Driver(spec, folder.resolve(), nobody, Progress(spec, spec.n_trials)).run()


def _search(
    spec: StudySpec,
    folder: Path,
    executor: str,
    data_root: Path | None,
    download: bool,
    *,
    n_done: int,
) -> None:
    """Load the data, say what will happen, and run what is left of the study."""
    from nas_evidence.data import load

    arrays = load(
        spec.dataset, seed=spec.seed, data_root=_text_or_none(data_root), download=download
    )

    # Torch and Ray come in here, after the folder is there and the data is read.
    from nas_evidence.service.driver import Driver
    from nas_evidence.service.executors import Executor
    from nas_evidence.service.forecast import forecast_seconds
    from nas_evidence.service.inline_executor import InlineExecutor
    from nas_evidence.trial import check_task, device_for

    check_task(spec.plan, arrays)
    left = spec.n_trials - n_done
    seconds = forecast_seconds(spec, arrays) * left / spec.n_trials
    workers = 1 if executor == "inline" else min(spec.resources.workers, left)
    seconds *= min(spec.resources.workers, left) / workers
    device = "GPU" if device_for(spec.resources.gpus).type == "cuda" else "CPU"
    more = f" of {spec.n_trials}" if n_done else ""
    out.print(
        f"{spec.name}: {_count(left, 'trial', more)}, {rough_duration(seconds)}, "
        f"{_count(workers, 'worker')}, {device} -> {folder}"
    )
    pool: Executor
    if executor == "inline":
        pool = InlineExecutor(arrays, spec.resources)
    else:
        from nas_evidence.service.ray_executor import RayExecutor

        resources = spec.resources.model_copy(update={"workers": workers})
        starting = out.status("starting the workers") if out.is_terminal else nullcontext()
        with starting:
            pool = RayExecutor(arrays, resources, (folder / "logs").resolve())
    try:
        with _watching(spec, n_done) as progress:
            Driver(spec, folder.resolve(), pool, progress).run()
        out.print(f"workers waited {pool.idle_share():.0%} of their time")
    finally:
        pool.close()


@contextlib.contextmanager
def _watching(spec: StudySpec, n_done: int) -> Iterator[Progress]:
    if out.is_terminal:
        progress = Progress(spec, n_done)
        with Live(progress, console=out, refresh_per_second=2, transient=True):
            yield progress
    else:
        yield Progress(spec, n_done, say=lambda line: out.print(line))


def _conclude(spec: StudySpec, folder: Path, data_root: Path | None) -> None:
    """Print the ranking, write report and export, and say how to go on."""
    from nas_evidence.report.headline import certainty_sentences
    from nas_evidence.report.pruning import pruning_report
    from nas_evidence.report.study import build_report
    from nas_evidence.report.tables import load_study_tables
    from nas_evidence.service.study_folder import study_status

    now = study_status(folder)
    tables = load_study_tables(folder)
    target = tables.targets[0]
    header, rows = ranking_rows(tables.ranking, spec, target)
    _print_rows(
        f"Ranking of {spec.name} by {spec.objective} ({tables.objective_unit})", header, rows
    )
    paths = build_report(folder)
    pruned = pruning_report(tables).sentences if spec.pruning.rule != "none" else ()
    for sentence in (*certainty_sentences(tables), *pruned):
        out.print(f"note:   {sentence}")
    out.print(trust_line(paths.correlations, spec.objective, target))
    winner = tables.winner
    if winner is not None and not _is_exported(folder / "export", winner.trial_id):
        _export(spec, folder, folder / "export", winner.trial_id, data_root)
    elif winner is not None:
        out.print(f"export: {folder / 'export'}")
    out.print(f"report: {paths.html}")
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items()))
    out.print(f"trials: {counts}")
    out.print(
        f"more:   {_program()} resume {folder} --trials {2 * spec.n_trials}"
        f"{_data_option(data_root)}"
    )
    if not now.by_status.get(TrialStatus.COMPLETE.value):
        err.print(f"error: no trial is complete; causes: nas-evidence report, or {folder}/logs")
        raise typer.Exit(1)


def _is_exported(folder: Path, trial_id: int) -> bool:
    """Tell whether the folder holds this trial, whole: the model card is written last."""
    if not (folder / "MODEL_CARD.md").is_file():
        return False
    written = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
    return bool(written["trial_id"] == trial_id)


def _export(
    spec: StudySpec, folder: Path, to: Path, trial_id: int | None, data_root: Path | None
) -> None:
    from nas_evidence.data import load
    from nas_evidence.export import export_winner

    arrays = load(spec.dataset, seed=spec.seed, data_root=_text_or_none(data_root))
    done = export_winner(folder, to, arrays, trial_id=trial_id)
    again = "" if done.rescored_value is None else ", evidence computed again and equal"
    out.print(f"export: {done.folder} (trial {done.trial_id}, {done.architecture}{again})")


def _report_table(
    table: Path,
    score: str,
    target: str,
    group: str | None,
    baselines: Sequence[str],
    to: Path | None,
) -> None:
    from nas_evidence.report.correlations import MAIN_COLUMNS
    from nas_evidence.report.table import rank_table_report

    result = rank_table_report(
        table, score=score, target=target, group=group, baselines=baselines, to=to
    )
    _print_rows(
        f"How well the columns of {table.name} rank {target}",
        MAIN_COLUMNS,
        [[_statistic(row.cells()[name]) for name in MAIN_COLUMNS] for row in result.rows],
    )
    for warning in result.warnings:
        out.print(f"warning: {warning}")
    if to is not None:
        out.print(f"report: {to / 'index.html'}")


def _print_rows(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for a person, or tab-separated text for a pipe."""
    rows = list(rows)
    if not rows:
        return
    if not out.is_terminal:
        for row in (header, *rows):
            print("\t".join(row))  # noqa: T201
        return
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in header:
        table.add_column(name, justify="left" if name in ("family", "note", "score") else "right")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print_line(name: str, value: object) -> None:
    if out.is_terminal:
        out.print(Text(f"{name:20}", "bold"), value)
    else:  # not through rich, which turns tabs into spaces
        print(f"{name}\t{value}")  # noqa: T201


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1))  # noqa: T201


def _count(n: int, noun: str, of: str = "") -> str:
    return f"{n}{of} {noun}" if n == 1 and not of else f"{n}{of} {noun}s"


def _statistic(cell: object) -> str:
    if cell is None:
        return "undefined"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _program() -> str:
    """Return how this program is called from here: its name if on the path, else where it lies."""
    if shutil.which("nas-evidence") or not Path(sys.argv[0]).is_file():
        return "nas-evidence"
    path = Path(sys.argv[0]).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _text_or_none(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _data_option(data_root: Path | None) -> str:
    return f" --data-root {data_root}" if data_root else ""


def _log_to(path: Path) -> None:
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.propagate = False


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _unexpected(error: BaseException) -> NoReturn:
    path = Path(f"nas-evidence-error-{os.getpid()}.txt").resolve()
    path.write_text("".join(traceback.format_exception(error)))
    err.print(f"unexpected {type(error).__name__}: {error}; details in {path}")
    sys.exit(1)
