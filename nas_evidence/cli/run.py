"""The verbs that run a study: search and resume."""

import contextlib
import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.live import Live

from nas_evidence.cli.cluster import resubmit
from nas_evidence.cli.interrupting import interruptible
from nas_evidence.cli.options import (
    AllowCode,
    DataRoot,
    Download,
    JobName,
    Override,
    RetryFailed,
    Steal,
    StudyFile,
    Trials,
    Workers,
    as_arguments,
    checked,
    shown,
    trial_ids,
    with_options,
)
from nas_evidence.cli.restarting import go_on_without_cluster
from nas_evidence.cli.results import write_export
from nas_evidence.cli.terminal import (
    Progress,
    counted,
    err,
    out,
    print_rows,
    program,
    ranking_rows,
    trust_line,
)
from nas_evidence.durations import rough_duration
from nas_evidence.jobs.auth_token import use_token_if_there_is_one
from nas_evidence.jobs.jobs import namespace_of
from nas_evidence.record import TrialStatus
from nas_evidence.spec import StudySpec
from nas_evidence.storage.outside_code import Code, admitted, keep_code, outside_names

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.data import ArrayData
    from nas_evidence.driver.mirror import Store
    from nas_evidence.workers.protocol import Executor

StoreOption = Annotated[
    str | None,
    typer.Option("--out", "--store", metavar="DIR|URI", help="Study folder; else runs/<name>."),
]
Where = Annotated[
    Literal["ray", "inline"],
    typer.Option("--executor", help="Ray workers, or only this process (for debugging)."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Join this Ray cluster; auto finds it."),
]


@dataclass(frozen=True)
class Run:
    """How to run a study: where its trials run, and where its data are."""

    executor: str
    address: str | None  # cluster to join
    data_root: Path | None
    download: bool
    steal: bool
    allow_code: bool


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
    allow_code: AllowCode = False,
) -> None:
    """Search, rank, report and export; create the study folder or continue it.

    Example: nas-evidence search digits --trials 12 --set plan.epochs=20
    """
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.storage.study_folder import default_folder, open_study

    spec = with_options(checked(study, overrides, allow_code=allow_code), trials, workers)
    run = Run(executor, address, data_root, download, steal, allow_code)
    _check_address(run)
    store = open_store(place or str(default_folder(spec)))
    with store.held(steal=steal):
        _run(open_study(store.folder, spec, steal=steal), store, run)


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
            help="URL of a dashboard: resume there as a job; else join this Ray cluster.",
        ),
    ] = None,
    name: JobName = None,
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
    allow_code: AllowCode = False,
    retry_failed: RetryFailed = None,
) -> None:
    """Resume a study after a stop or a crash, or with more trials or another budget.

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
            allow_code=allow_code,
        )
        resubmit(address, name, place, options)
        return
    if place is None or name is not None:
        raise ValueError("resume needs a study folder, or --address URL and --name NAME.")
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.storage.redo import ask_to_retry
    from nas_evidence.storage.study_folder import open_study, read_study

    run = Run(executor, address, data_root, download, steal, allow_code)
    _check_address(run)
    store = open_store(place)
    with store.held(steal=steal):
        spec = with_options(read_study(store.folder, overrides or ()), trials, workers)
        spec = admitted(spec, [store.folder.resolve() / "code"], allowed=allow_code)
        spec = open_study(store.folder, spec, steal=steal)
        if retry_failed is not None:
            again = ask_to_retry(store.folder, trial_ids(retry_failed))
            out.print(f"retry: {counted(len(again), 'failed trial')}")
        _run(spec, store, run)


def _check_address(run: Run) -> None:
    if run.address is None:
        return
    if run.executor == "inline":
        raise ValueError("--address joins a Ray cluster: it works only with --executor ray.")
    if "://" in run.address:
        raise ValueError(
            f"--address must be auto or HOST:PORT to join a cluster from here, but got "
            f"{run.address}; to run on the cluster itself use `nas-evidence submit`."
        )


def _run(spec: StudySpec, store: "Store", run: Run) -> None:
    from nas_evidence.storage.redo import find_done
    from nas_evidence.storage.study_folder import locked
    from nas_evidence.store import finished

    folder, again = store.folder, f"{program()} resume {store.place}{_options(run)}"
    _log_to(folder / "logs" / "driver.log")
    with locked(folder, steal=run.steal):
        done = find_done(folder).done
        if len(done) < spec.n_trials:

            def stopped() -> None:
                n_stored = len(finished(folder))
                err.print(
                    f"\nStopped. Nothing is lost: {n_stored} of {spec.n_trials} trials are "
                    f"stored, the others resume from their last checkpoint.\nContinue: {again}"
                )

            def late() -> bool:
                if run.executor == "inline" and store.uri is None:
                    stopped()
                    return True
                err.print("Stopping: the workers end, and what is not stored yet is stored.")
                return False

            try:
                with interruptible(late):
                    _search(spec, store, run, n_done=len(done))
            except KeyboardInterrupt:
                stopped()
                raise SystemExit(130) from None
            n_stored = len(finished(folder))
            if n_stored < spec.n_trials:
                out.print(
                    f"budget: spent after {n_stored} of {spec.n_trials} trials; resume with "
                    f"{again} --set budget.KEY=SECONDS"
                )
        else:
            out.print(f"{spec.name}: all {spec.n_trials} trials are finished; writing the report")
            if any((folder / "checkpoints").iterdir()):  # killed before the last trial was told
                _tell_what_is_stored(spec, folder)
        _conclude(spec, store, run)


def _tell_what_is_stored(spec: StudySpec, folder: Path) -> None:
    from nas_evidence.driver.driver import Driver
    from nas_evidence.workers.learning_curves import synthetic
    from nas_evidence.workers.simulated import SimulatedExecutor

    no_workers = SimulatedExecutor(synthetic, workers=0, seed=0)
    Driver(spec, folder.resolve(), no_workers, Progress(spec, spec.n_trials)).run()


def _search(spec: StudySpec, store: "Store", run: Run, *, n_done: int) -> None:
    """Load the data, announce the run, and run the rest of the study.

    Raises:
        KeyboardInterrupt: also if another terminal cancels the study.
    """
    from nas_evidence.data import load
    from nas_evidence.data.digest import data_digest
    from nas_evidence.storage.conditions import note_conditions

    arrays = load(
        spec.dataset,
        seed=spec.seed,
        data_root=None if run.data_root is None else str(run.data_root),
        download=run.download,
    )

    # Torch and Ray are imported here, after the folder exists and the data are read.
    from nas_evidence.driver.driver import Driver
    from nas_evidence.driver.runtime import forecast_seconds
    from nas_evidence.trial import check_task, device_for

    check_task(spec.plan, arrays)
    note_conditions(store.folder, spec, data_digest(arrays))
    left = spec.n_trials - n_done
    seconds = forecast_seconds(spec, arrays) * left / spec.n_trials
    workers = 1 if run.executor == "inline" else min(spec.resources.workers, left)
    seconds *= min(spec.resources.workers, left) / workers
    device = "GPU" if device_for(spec.resources.gpus).type == "cuda" else "CPU"
    more = f" of {spec.n_trials}" if n_done else ""
    out.print(
        f"{spec.name}: {counted(left, 'trial', more)}, {rough_duration(seconds)}, "
        f"{counted(workers, 'worker')}, {device} -> {store.place}"
    )
    code = keep_code(store.folder, spec)
    pool = _executor(spec, arrays, store, run, workers=workers, code=code)
    try:
        with _watching(spec, n_done) as progress:
            driver = Driver(spec, store.folder.resolve(), store.around(pool), progress)
            for notice in driver.notices:
                out.print(f"note: {notice}")
            driver.run()
        out.print(f"workers were idle {pool.idle_share():.0%} of the time")
    finally:
        pool.close()
    if driver.requests.study and n_done + len(progress.finished) < spec.n_trials:
        raise KeyboardInterrupt


def _executor(
    spec: StudySpec, arrays: "ArrayData", store: "Store", run: Run, *, workers: int, code: Code
) -> "Executor":
    make_worker = store.make_worker
    if outside := outside_names(spec):
        from nas_evidence.workers.process import worker_with_code

        make_worker = partial(worker_with_code, code, outside, make_worker)
    if run.executor == "inline":
        from nas_evidence.workers.inline import InlineExecutor

        return InlineExecutor(arrays, spec.resources, make_worker=make_worker)
    if run.address is not None:
        use_token_if_there_is_one()
    from nas_evidence.workers.on_ray import RayExecutor

    starting = out.status("starting the workers") if out.is_terminal else nullcontext()
    with starting:
        executor = RayExecutor(
            arrays,
            spec.resources.model_copy(update={"workers": workers}),
            (store.folder / "logs").resolve(),
            address=run.address,
            namespace=namespace_of(spec.name, store.place) if run.address else None,
            make_worker=make_worker,
            store=store.uri,
            on_cluster_lost=partial(go_on_without_cluster, store.place, _words(run), run.address),
        )
    for notice in executor.notices:
        out.print(f"note: {notice}")
    return executor


@contextlib.contextmanager
def _watching(spec: StudySpec, n_done: int) -> Iterator[Progress]:
    if out.is_terminal:
        progress = Progress(spec, n_done)
        with Live(progress, console=out, refresh_per_second=2, transient=True):
            yield progress
    else:
        yield Progress(spec, n_done, say=lambda line: out.print(line))


def _conclude(spec: StudySpec, store: "Store", run: Run) -> None:
    """Print the ranking, write report and export, and print how to continue."""
    from nas_evidence.reporting.report import report_on
    from nas_evidence.reporting.study import write_report
    from nas_evidence.reporting.tables import load_study_tables
    from nas_evidence.storage.study_folder import study_status

    folder = store.folder
    now = study_status(folder)
    report = report_on(load_study_tables(folder))
    tables = report.study
    header, rows = ranking_rows(tables.ranking, spec, tables.targets[0])
    print_rows(
        f"Ranking of {spec.name} by {spec.objective} ({tables.objective_unit})", header, rows
    )
    paths = write_report(report, folder / "report")
    pruned = report.pruning.sentences if spec.pruning.rule != "none" else ()
    for sentence in filter(None, (report.settled, *report.certainty, *pruned)):
        out.print(f"note:   {sentence}")
    out.print(trust_line(report))
    winner = tables.winner
    if winner is not None and not _is_exported(folder / "export", winner.trial_id):
        write_export(spec, folder, folder / "export", winner.trial_id, run.data_root)
    elif winner is not None:
        out.print(f"export: {shown(folder / 'export', store)}")
    out.print(f"report: {shown(paths.html, store)}")
    counts = ", ".join(f"{n} {word}" for word, n in sorted(now.by_status.items()))
    out.print(f"trials: {counts}")
    out.print(
        f"more:   {program()} resume {store.place} --trials {2 * spec.n_trials}{_options(run)}"
    )
    if not now.by_status.get(TrialStatus.COMPLETE.value):
        err.print(f"error: no trial is complete; causes: nas-evidence report, or {folder}/logs")
        raise typer.Exit(1)


def _is_exported(folder: Path, trial_id: int) -> bool:
    """Return whether the folder holds this trial, complete and as it was written."""
    from nas_evidence.exporting.sums import wrong_sums

    if not (folder / "MODEL_CARD.md").is_file() or wrong_sums(folder):  # the card comes last
        return False
    try:
        written = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
        return bool(written["trial_id"] == trial_id)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _options(run: Run) -> str:
    """Return the options that the next run also needs, as text."""
    return "".join(f" {word}" for word in _words(run))


def _words(run: Run) -> list[str]:
    given = (("--data-root", run.data_root), ("--address", run.address))
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    return words + ["--allow-code"] * run.allow_code


def _log_to(path: Path) -> None:
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.propagate = False
