"""The command line: the verbs for a study that runs here; `cli_cluster.py` has the others.

Exit codes: 0 done, 1 the job failed (every trial failed, or an unexpected error), 2 bad usage or a
bad study, 130 interrupted.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

import nas_evidence
from nas_evidence.cli_cluster import attach, cancel, logs, resubmit, status, submit
from nas_evidence.cli_options import (
    AsJson,
    DataRoot,
    Download,
    JobName,
    Override,
    Steal,
    StudyFile,
    Trials,
    Workers,
    as_arguments,
    checked,
    with_options,
)
from nas_evidence.codec import StudyError
from nas_evidence.record import TrialStatus
from nas_evidence.service.auth_token import use_token_if_there_is_one
from nas_evidence.service.jobs import namespace_of
from nas_evidence.spec import StudySpec
from nas_evidence.terminal import (
    Progress,
    err,
    out,
    program,
    ranking_rows,
    rough_duration,
    score_text,
    trust_line,
)

if TYPE_CHECKING:  # they bring the data's readers, and what opens stores
    from nas_evidence.data import ArrayData
    from nas_evidence.service.executors import Executor
    from nas_evidence.service.mirror import Store

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Neural-architecture search ranked by marginal likelihood: no validation split needed.",
)
StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A study folder.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--out", "--store", metavar="DIR|URI", help="Study folder; else runs/<name>."),
]
Where = Annotated[
    Literal["ray", "inline"],
    typer.Option("--executor", help="Ray workers, or this process alone (for debugging)."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Join this Ray cluster; auto finds it."),
]


@dataclass(frozen=True)
class Run:
    """How a study is run: where its trials run, and where its data are."""

    executor: str
    address: str | None  # of a cluster to join
    data_root: Path | None
    download: bool
    steal: bool


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
    study: StudyFile,
    place: StoreOption = None,
    trials: Trials = None,
    workers: Workers = None,
    executor: Where = "ray",
    address: Cluster = None,
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
) -> None:
    """Search, rank, report and export; creates the study folder or continues it.

    Example: nas-evidence search digits --trials 12 --set plan.epochs=20
    """
    from nas_evidence.service.mirror import open_store
    from nas_evidence.service.study_folder import default_folder, open_study

    spec = with_options(checked(study, overrides), trials, workers)
    run = Run(executor, address, data_root, download, steal)
    _check_address(run)
    store = open_store(place or str(default_folder(spec)))
    with store.held(steal=steal):
        _run(open_study(store.folder, spec, steal=steal), store, run)


@app.command()
def resume(
    place: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="A study folder, or a store's URI.")
    ] = None,
    trials: Trials = None,
    workers: Workers = None,
    executor: Where = "ray",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="URL|HOST:PORT",
            help="Of a dashboard: go on there as a job; else join this Ray cluster.",
        ),
    ] = None,
    name: JobName = None,
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
) -> None:
    """Go on with a study after a stop or a crash, or with more trials or another budget.

    Example: nas-evidence resume runs/digits --trials 48
    """
    if address is not None and address.startswith(("http://", "https://")):
        options = as_arguments(
            trials=trials,
            workers=workers,
            overrides=overrides,
            data_root=data_root,
            download=download,
            steal=steal,
        )
        resubmit(address, name, place, options)
        return
    if place is None or name is not None:
        raise ValueError("resume needs a study folder, or --address URL and --name NAME.")
    from nas_evidence.service.mirror import open_store
    from nas_evidence.service.study_folder import open_study, read_study

    run = Run(executor, address, data_root, download, steal)
    _check_address(run)
    store = open_store(place)
    with store.held(steal=steal):
        spec = with_options(read_study(store.folder, overrides or ()), trials, workers)
        _run(open_study(store.folder, spec, steal=steal), store, run)


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
    study: StudyFile,
    overrides: Override = None,
) -> None:
    """Check a study file and report all its mistakes at once.

    Example: nas-evidence validate search_spaces/digits.toml
    """
    spec = checked(study, overrides)
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
def watch(
    folder: StudyFolder,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="From one report to the next, at least.")
    ] = 30.0,
) -> None:
    """Keep the report of a running study up to date, until the study is over.

    Example: nas-evidence watch runs/digits
    """
    from nas_evidence.report.watching import all_finished
    from nas_evidence.report.watching import watch as reports
    from nas_evidence.service.study_folder import is_locked, read_study

    read_study(folder)
    was_running = False

    def over() -> bool:
        nonlocal was_running
        running, before = is_locked(folder), was_running
        was_running = running
        return all_finished(folder) or (before and not running)  # parked, cancelled or killed

    for paths in reports(folder, is_over=over, every_seconds=every):
        out.print(f"report: {paths.html}")


@app.command()
def audit(as_json: AsJson = False) -> None:
    """Hold every estimator against the truth where it is known; a few minutes.

    Exit code 1 if one is further off than it claims to be.
    """
    from nas_evidence.audit import run_audit

    rows = run_audit()
    if as_json:
        _print_json([row.model_dump(mode="json") for row in rows])
    else:
        _print_rows(
            "Every estimator beside the truth (nats)",
            ("problem", "estimator", "value", "truth", "bias", "spread", "seconds", "holds"),
            [
                (row.problem, row.estimator, _statistic(row.value), _statistic(row.truth),
                 _statistic(row.bias), _statistic(row.spread), f"{row.seconds:.2f}",
                 "yes" if row.holds else f"NO: {row.claim}")
                for row in rows
            ],
        )  # fmt: skip
    missed = sum(not row.holds for row in rows)
    if missed:
        err.print(f"{missed} of {len(rows)} rows miss their claim.")
        raise typer.Exit(1)
    err.print(f"all {len(rows)} rows hold.")


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


for verb in (submit, status, attach, logs, cancel):
    app.command()(verb)

# ---------------------------------------------------------------------------------------------


def _latest_study() -> Path:
    """Return the study folder below runs/ that was worked on last."""
    # The lock is touched by every driver, wherever the study's database is.
    locks = sorted(Path("runs").glob("*/lock"), key=lambda path: path.stat().st_mtime)
    if not locks:
        raise ValueError(
            "there is no study below runs/; give a study folder, or --table FILE.csv with "
            "--score and --target."
        )
    return locks[-1].parent


def _check_address(run: Run) -> None:
    if run.address is None:
        return
    if run.executor == "inline":
        raise ValueError("--address joins a Ray cluster: it goes with --executor ray only.")
    if "://" in run.address:
        raise ValueError(
            f"--address must be auto or HOST:PORT to join a cluster from here, but got "
            f"{run.address}; to run on the cluster itself use `nas-evidence submit`."
        )


def _run(spec: StudySpec, store: "Store", run: Run) -> None:
    from nas_evidence.service.study_folder import locked
    from nas_evidence.store import finished

    folder, again = store.folder, f"{program()} resume {store.place}{_options(run)}"
    _log_to(folder / "logs" / "driver.log")
    with locked(folder, steal=run.steal):
        done = finished(folder)
        if len(done) < spec.n_trials:
            try:
                _search(spec, store, run, n_done=len(done))
            except KeyboardInterrupt:
                n_stored = len(finished(folder))
                err.print(
                    f"\nStopped. Nothing is lost: {n_stored} of {spec.n_trials} trials are "
                    f"stored, the others go on from their last checkpoint.\nContinue: {again}"
                )
                raise typer.Exit(130) from None
            n_stored = len(finished(folder))
            if n_stored < spec.n_trials:
                out.print(
                    f"budget: spent after {n_stored} of {spec.n_trials} trials; the others go on "
                    f"with a higher one: {again} --set budget.KEY=SECONDS"
                )
        else:
            out.print(f"{spec.name}: all {spec.n_trials} trials are finished; writing the report")
            if any((folder / "checkpoints").iterdir()):  # killed before the last one was told
                _tell_what_is_stored(spec, folder)
        _conclude(spec, store, run)


def _tell_what_is_stored(spec: StudySpec, folder: Path) -> None:
    from nas_evidence.service.driver import Driver
    from nas_evidence.service.learning_curves import synthetic
    from nas_evidence.service.simulated_executor import SimulatedExecutor

    nobody = SimulatedExecutor(synthetic, workers=0, seed=0)
    Driver(spec, folder.resolve(), nobody, Progress(spec, spec.n_trials)).run()


def _search(spec: StudySpec, store: "Store", run: Run, *, n_done: int) -> None:
    """Load the data, say what will happen, and run what is left of the study.

    Raises:
        KeyboardInterrupt: also if another terminal asked for it.
    """
    from nas_evidence.data import load

    arrays = load(
        spec.dataset,
        seed=spec.seed,
        data_root=_text_or_none(run.data_root),
        download=run.download,
    )

    # Torch and Ray come in here, after the folder is there and the data is read.
    from nas_evidence.service.driver import Driver
    from nas_evidence.service.forecast import forecast_seconds
    from nas_evidence.trial import check_task, device_for

    check_task(spec.plan, arrays)
    left = spec.n_trials - n_done
    seconds = forecast_seconds(spec, arrays) * left / spec.n_trials
    workers = 1 if run.executor == "inline" else min(spec.resources.workers, left)
    seconds *= min(spec.resources.workers, left) / workers
    device = "GPU" if device_for(spec.resources.gpus).type == "cuda" else "CPU"
    more = f" of {spec.n_trials}" if n_done else ""
    out.print(
        f"{spec.name}: {_count(left, 'trial', more)}, {rough_duration(seconds)}, "
        f"{_count(workers, 'worker')}, {device} -> {store.place}"
    )
    pool = _executor(spec, arrays, store, run, workers=workers)
    try:
        with _watching(spec, n_done) as progress:
            driver = Driver(spec, store.folder.resolve(), store.around(pool), progress)
            driver.run()
        out.print(f"workers waited {pool.idle_share():.0%} of their time")
    finally:
        pool.close()
    if driver.requests.study and n_done + len(progress.finished) < spec.n_trials:
        raise KeyboardInterrupt


def _executor(
    spec: StudySpec, arrays: "ArrayData", store: "Store", run: Run, *, workers: int
) -> "Executor":
    if run.executor == "inline":
        from nas_evidence.service.inline_executor import InlineExecutor

        return InlineExecutor(arrays, spec.resources, make_worker=store.make_worker)
    if run.address is not None:
        use_token_if_there_is_one()
    from nas_evidence.service.ray_executor import RayExecutor

    starting = out.status("starting the workers") if out.is_terminal else nullcontext()
    with starting:
        return RayExecutor(
            arrays,
            spec.resources.model_copy(update={"workers": workers}),
            (store.folder / "logs").resolve(),
            address=run.address,
            namespace=namespace_of(spec.name, store.place) if run.address else None,
            make_worker=store.make_worker,
            store=store.uri,
        )


@contextlib.contextmanager
def _watching(spec: StudySpec, n_done: int) -> Iterator[Progress]:
    if out.is_terminal:
        progress = Progress(spec, n_done)
        with Live(progress, console=out, refresh_per_second=2, transient=True):
            yield progress
    else:
        yield Progress(spec, n_done, say=lambda line: out.print(line))


def _conclude(spec: StudySpec, store: "Store", run: Run) -> None:
    """Print the ranking, write report and export, and say how to go on."""
    from nas_evidence.report.headline import certainty_sentences
    from nas_evidence.report.pruning import pruning_report
    from nas_evidence.report.study import build_report
    from nas_evidence.report.tables import load_study_tables
    from nas_evidence.service.study_folder import study_status

    folder = store.folder
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
        _export(spec, folder, folder / "export", winner.trial_id, run.data_root)
    elif winner is not None:
        out.print(f"export: {_shown(folder / 'export', store)}")
    out.print(f"report: {_shown(paths.html, store)}")
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items()))
    out.print(f"trials: {counts}")
    out.print(
        f"more:   {program()} resume {store.place} --trials {2 * spec.n_trials}{_options(run)}"
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


def _shown(path: Path, store: "Store") -> str:
    """Return where a file of a study is, as the user named the place of the study."""
    return f"{store.place}/{path.relative_to(store.folder).as_posix()}"


def _text_or_none(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _options(run: Run) -> str:
    """Return the options that the next run needs too."""
    given = (("--data-root", run.data_root), ("--address", run.address))
    return "".join(f" {name} {value}" for name, value in given if value is not None)


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
