"""The verbs that run a study: search and resume."""

import contextlib
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Unpack

import typer
from rich.live import Live

from nas_evidence.api.request import DataOptions, check_not_fewer
from nas_evidence.api.runs import (
    Audience,
    Run,
    begun,
    finish_off,
    left_out,
    run_trials,
    unfinished,
)
from nas_evidence.api.trackers import check_track
from nas_evidence.cli.interrupt import interruptible
from nas_evidence.cli.options import (
    AllowCode,
    DataRoot,
    Download,
    JobName,
    Metric,
    Override,
    Preset,
    RetryFailed,
    Seed,
    Steal,
    StudyFile,
    Time,
    Track,
    Trials,
    Workers,
    as_arguments,
    assigned,
    shown,
    trial_ids,
    with_data_options,
    with_options,
)
from nas_evidence.cli.report import exported, judged, say_results
from nas_evidence.cli.restart import go_on_without_cluster
from nas_evidence.cli.submit import resubmit
from nas_evidence.cli.terminal import (
    Progress,
    counted,
    err,
    out,
    typed,
)
from nas_evidence.jobs.jobs import study_of_this_job
from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of, seconds_running
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import masked
from nas_evidence.spec.record import TrialStatus, n_searched
from nas_evidence.spec.study import StudySpec, preset_overrides
from nas_evidence.storage.best import Standing, Standings
from nas_evidence.storage.outside_code import admitted
from nas_evidence.workers.executor import Where
from nas_evidence.workers.fork_server import ForkServer
from nas_evidence.workers.own_cluster import end_what_starts, is_starting

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.baselines.comparison import Comparison
    from nas_evidence.data.source import Source
    from nas_evidence.driver.mirror import Store
    from nas_evidence.storage.tables import StudyTables

#: Report and export of a few trials take as long as starting (2.8 and 2.5 s on x86-64, 300 rows).
_AFTER = 1.25

StoreOption = Annotated[
    str | None,
    typer.Option("--out", "--store", metavar="DIR|URI", help="Study folder; else runs/<name>."),
]
Executor = Annotated[
    Where,
    typer.Option(
        "--executor",
        help="Where trials run: processes of this machine (local), Ray workers, only this process "
        "(inline, for debugging); auto chooses local or ray, and says so.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Join this Ray cluster; auto finds it."),
]


@with_data_options
def search(
    study: StudyFile,
    place: StoreOption = None,
    trials: Trials = None,
    seed: Seed = None,
    time: Time = None,
    preset: Preset = None,
    workers: Workers = None,
    executor: Executor = "auto",
    address: Cluster = None,
    overrides: Override = None,
    data_root: DataRoot = None,
    download: Download = False,
    steal: Steal = False,
    allow_code: AllowCode = False,
    metric: Metric = None,
    track: Track = None,
    **data: Unpack[DataOptions],
) -> None:
    """Search, rank, report and export; create the study folder or continue it.

    STUDY is a study file, a shipped study, or data: a table, arrays or a folder of images.

    Example: nas-evidence search digits --trials 12 --set plan.epochs=20
    Example: nas-evidence search mine.csv --target price
    """
    from nas_evidence.api.request import asked_for
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.storage.study_folder import default_folder

    limit = _limit(time)
    run = Run(executor, address, data_root, download, steal, allow_code, tuple(track or ()), limit)
    check_track(run.track)
    _check_address(run)
    asked = asked_for(
        study,
        [*preset_overrides(preset), *(overrides or ()), *assigned(seed=seed, metric=metric)],
        data,
        allow_code=allow_code,
        data_root=data_root,
    )
    spec = with_options(asked.spec, trials, workers)
    for sentence in asked.decided:
        out.print(sentence)
    store = open_store(place or str(default_folder(spec)))
    with store.held(steal=steal):
        spec, kept = begun(
            store.folder, spec, asked.source, steal=steal, data_root=data_root, download=download
        )
        _run(spec, store, run, kept)


def resume(
    place: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="A study folder, or a store's URI.")
    ] = None,
    trials: Trials = None,
    time: Time = None,
    workers: Workers = None,
    executor: Executor = "auto",
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
    metric: Metric = None,
    retry_failed: RetryFailed = None,
    track: Track = None,
) -> None:
    """Resume a study after a stop or a crash, or with more trials or another budget.

    Example: nas-evidence resume runs/digits --trials 48
    """
    limit = _limit(time)
    if address is not None and address.startswith(("http://", "https://")):
        options = as_arguments(
            trials=trials,
            workers=workers,
            overrides=overrides,
            data_root=data_root,
            download=download,
            steal=steal,
            allow_code=allow_code,
            metric=metric,
            track=track,
            time=time,
        )
        resubmit(address, name, place, options, track=track)
        return
    if place is None or name is not None:
        raise UserError(
            "resume needs a study folder, or --address URL and --name NAME."
        ).with_code("resume-without-place")
    from nas_evidence.data.source import stored_source
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.storage.conditions import edits_of
    from nas_evidence.storage.redo import ask_to_retry
    from nas_evidence.storage.study_folder import open_study, read_study

    run = Run(executor, address, data_root, download, steal, allow_code, tuple(track or ()), limit)
    check_track(run.track)
    _check_address(run)
    store = open_store(place)
    with store.held(steal=steal):
        for edit in edits_of(store.folder):
            out.print(f"note: study.toml was edited: {edit}")
        stored = read_study(store.folder, [*(overrides or ()), *assigned(metric=metric)])
        check_not_fewer(stored, trials)
        spec = with_options(stored, trials, workers)
        spec = admitted(spec, [store.folder.resolve() / "code"], allowed=allow_code)
        spec = open_study(store.folder, spec, steal=steal)
        if retry_failed is not None:
            again = ask_to_retry(store.folder, trial_ids(retry_failed))
            out.print(f"retry: {counted(len(again), 'failed trial')}")
        base = store.folder.resolve()
        data = stored_source(spec.dataset, base=base, data_root=data_root, download=download)
        _run(spec, store, run, data)


def _limit(text: str | None) -> TimeLimit | None:
    """Return the time limit of this process, from its start on."""
    if text is None:
        return None
    return TimeLimit(seconds_of(text), begun=monotonic() - seconds_running())


def _check_address(run: Run) -> None:
    if run.address is None:
        return
    if run.executor not in ("auto", "ray"):
        raise UserError(
            "--address joins a Ray cluster: it works only with --executor ray."
        ).with_code("address-without-ray")
    if "@" in run.address:
        raise UserError(
            "--address must hold no password; the token comes from RAY_AUTH_TOKEN."
        ).with_code("address-with-password")
    if "://" in run.address:
        raise UserError(
            f"--address must be auto or HOST:PORT to join a cluster from here, but got "
            f"{run.address}; to run on the cluster itself use `nas-evidence submit`."
        ).with_code("address-of-dashboard")


def _run(spec: StudySpec, store: "Store", run: Run, data: "Source") -> None:
    from nas_evidence.storage.redo import find_done
    from nas_evidence.storage.study_folder import locked
    from nas_evidence.storage.tables import finished, read_study_tables

    folder, again = store.folder, typed("resume", store.place) + _options(run)
    _log_to(folder / "logs" / "driver.log")
    forks = ForkServer((folder / "logs").resolve(), spec.resources.cpus)
    with locked(folder, steal=run.steal), closing(forks):
        finds = find_done(folder)
        left = unfinished(spec, folder, finds.done)
        reported = (folder / "report").is_dir()
        before = Standings(spec, finds.done.values()).best if reported else None
        if left:

            def stopped(say: Callable[[str], None]) -> None:
                n_stored = n_searched(finished(folder))
                ranking = f"\nRanking:  {_report_command(store, run)}" if n_stored else ""
                say(
                    f"\nStopped. Nothing is lost: {n_stored} of {spec.n_trials} trials are "
                    f"stored, the others resume from their last checkpoint.\nContinue: {again}"
                    f"{ranking}"
                )

            def late(say: Callable[[str], None]) -> bool:
                if store.uri is None and (run.executor == "inline" or is_starting()):
                    stopped(say)
                    if is_starting():
                        end_what_starts()
                    return True
                say("Stopping: waiting for the workers to store what they have.")
                return False

            try:
                with interruptible(late):
                    if run.limit is not None:
                        _plan_the_end(run.limit)
                    run_trials(
                        spec,
                        store,
                        run,
                        _audience(run.limit),
                        data=data,
                        finds=finds,
                        forks=forks,
                    )
            except KeyboardInterrupt:
                stopped(err.print)
                raise SystemExit(130) from None
        else:
            out.print(f"{spec.name}: all {spec.n_trials} trials are finished; writing the report")
            finish_off(spec, store, run, _audience(), finds)
        tables = read_study_tables(folder, spec)
        if another := other_first(before, tables.standings.best):
            out.print(another)
        n_stored = n_searched(tables.trials["trial_id"])
        cut = left_out(spec, folder, run.limit) if run.limit is not None else ""
        if cut:
            out.print(f"time: {cut}; the others: {again}")
        elif left and n_stored < spec.n_trials:
            out.print(
                f"budget: spent after {n_stored} of {spec.n_trials} trials; continue with "
                f"{again} --set budget.KEY=SECONDS"
            )
        if (
            run.limit is not None
            and cut
            and TrialStatus.COMPLETE not in set(tables.trials["status"])
        ):
            err.print(
                "error: no trial finished within the time limit; with a longer one the study "
                f"continues from its last checkpoint: {again} --time {10 * run.limit.seconds:.0f}s"
            )
            raise typer.Exit(1)
        _conclude(store, run, data, tables)


def other_first(before: Standing | None, now: Standing | None) -> str:
    """Say that another architecture comes first than in the last report; "" if none does."""
    if before is None or now is None or before.key == now.key:
        return ""
    from nas_evidence.reporting.study_tables import architecture_text

    was, is_now = (
        f"{architecture_text(one.architecture.family, one.architecture.values)} "
        f"(trial {one.trial_id})"
        for one in (before, now)
    )
    return f"note:   {is_now} comes first now; in the last report it was {was}"


def _cluster_lost(place: str, run: Run) -> None:
    go_on_without_cluster(place, [*_words(run), "--executor", str(run.executor)], run.address)


def _plan_the_end(limit: TimeLimit) -> None:
    """Reserve time for report and export, by the time that starting took.

    Their modules are imported while the workers start.
    """
    limit.after = _AFTER * (limit.seconds - limit.left())
    needed = ("nas_evidence.baselines.on_test_rows", "nas_evidence.reporting.page")
    Thread(target=lambda: [*map(import_module, needed)], daemon=True).start()


def _audience(limit: TimeLimit | None = None) -> Audience:
    def starting() -> contextlib.AbstractContextManager[object]:
        return out.status("starting the workers") if out.is_terminal else nullcontext()

    return Audience(
        say=out.print,
        warn=lambda line: out.print(f"warning: {line}"),
        watching=partial(_watching, left=(lambda: inf) if limit is None else limit.left),
        starting=starting,
        cluster_lost=_cluster_lost,
    )


@contextlib.contextmanager
def _watching(spec: StudySpec, n_done: int, *, left: Callable[[], float]) -> Iterator[Progress]:
    if out.is_terminal:
        progress = Progress(spec, n_done, limit=left)
        with Live(progress, console=out, refresh_per_second=2, transient=True):
            yield progress
    else:
        yield Progress(spec, n_done, say=lambda line: out.print(line), limit=left)


def _compared(
    store: "Store", run: Run, tables: "StudyTables", data: "Source"
) -> "Comparison | None":
    """Return the winner beside the simple models there is time for; say which are left out."""
    if (limit := run.limit) is None:
        return judged(tables, data)

    def within() -> contextlib.AbstractContextManager[None]:
        return limit.stopping(max(1.0, limit.left() - limit.after))

    found = judged(tables, data, within=within)
    if found is not None and found.lacks:
        out.print(
            f"note:   there was no time for {', '.join(found.lacks)}: "
            f"{_report_command(store, run)}"
        )
    return found


def _report_command(store: "Store", run: Run) -> str:
    root = () if run.data_root is None else ("--data-root", run.data_root)
    return typed("report", store.place, *root)


def _conclude(store: "Store", run: Run, data: "Source", tables: "StudyTables") -> None:
    """Print the ranking, write report and export, and print how to continue."""
    from nas_evidence.exporting.soundness import is_export_of, wrong_files
    from nas_evidence.storage.set_aside import set_aside

    folder, spec = store.folder, tables.spec
    to, best = folder / "export", tables.standings.best
    wrong = wrong_files(to) if to.is_dir() else []
    if wrong:
        set_aside(folder, "export")
    report = say_results(tables, _compared(store, run, tables, data), store)
    if wrong:
        out.print(f"note:   export/{wrong[0]} was not as written: the folder is in damaged/")
    if best is not None and not is_export_of(to, best.trial_id, spec.metric):
        arrays = data.arrays(seed=spec.seed)
        out.print(exported(tables, to, arrays, best.trial_id, place=shown(to, store)))
    elif best is not None:
        out.print(f"export: {shown(to, store)}")
    by_status = Counter(tables.trials["status"])
    counts = ", ".join(f"{n} {word}" for word, n in sorted(by_status.items()))
    raced = len(tables.trials) - n_searched(tables.trials["trial_id"])
    race = f" ({raced} of them in the race of the best)" * (raced > 0)
    out.print(f"trials: {counts}{race}")
    more = typed("resume", store.place, "--trials", 2 * spec.n_trials)
    out.print(f"more:   {more}{_options(run)}")
    if not by_status[TrialStatus.COMPLETE.value]:
        why = report.problems[0].detail if report.problems else f"see {store.place}/logs"
        err.print(f"error: no trial is complete, most often because: {why}")
        raise typer.Exit(1)


def _options(run: Run) -> str:
    """Return the options that the next run also needs, as text for whoever reads it.

    A job finds the cluster that it runs on by itself; its reader, on another machine, does not.
    """
    words = _words(run)
    if run.address == "auto" and (name := study_of_this_job()):
        at = words.index("--address")
        words[at : at + 2] = ["--address", "URL", "--name", name]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _words(run: Run) -> list[str]:
    given = (
        ("--data-root", run.data_root),
        ("--address", run.address),
    )
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    words += [word for text in run.track for word in ("--track", str(text))]
    return words + ["--allow-code"] * run.allow_code


class _Masking(logging.Formatter):
    """Writes no password that an error of somebody else's library quotes."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _Log(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # it cannot be opened: the study says what is wrong with its disk
            super().emit(record)


def _log_to(path: Path) -> None:
    handler = _Log(path, delay=True)
    handler.setFormatter(_Masking("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.propagate = False
