"""The verbs that run a study: search, resume and refit."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from math import inf
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

import nas_evidence
from nas_evidence.api.progress import Progress
from nas_evidence.api.runs import Run, left_out
from nas_evidence.api.submission import as_arguments
from nas_evidence.cli.interrupt import interruptible
from nas_evidence.cli.options import DryRun, JobName, StudyPlace, trial_ids, with_parameters_of
from nas_evidence.cli.report import (
    as_named,
    exit_if_unranked,
    say_cost,
    say_export,
    say_forecast,
    say_next,
    say_results,
)
from nas_evidence.cli.shown import LiveTable, Printed
from nas_evidence.cli.submit import resubmit
from nas_evidence.cli.terminal import err, out, typed
from nas_evidence.cli.validate import Check
from nas_evidence.jobs.jobs import submission_of_this_job
from nas_evidence.plumbing.masking import LogFormatter
from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of, seconds_running
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus, n_searched
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.api.results import Part, Study
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.reporting.contents import Report

#: Report and export of a few trials take as long as starting (2.8 and 2.5 s on x86-64, 300 rows).
_AFTER = 1.25


@with_parameters_of(nas_evidence.search)
def search(
    dry_run: DryRun = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Join this Ray cluster; auto finds it."),
    ] = None,
    **given: Any,
) -> None:
    """Search, rank, report and export; create the study folder or continue it.

    STUDY is a study file, a shipped study, or data: a table, arrays or a folder of images.

    Example: nas-evidence search digits --trials 12 --set plan.epochs=20
    Example: nas-evidence search mine.csv --target price
    Example: nas-evidence search mine.toml --dry-run
    """
    nas_evidence.search(address=address, **_here(dry_run, given))


@with_parameters_of(nas_evidence.resume)
def resume(
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="A study folder, or a store's URI.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL|HOST:PORT",
            help="URL of a dashboard: resume there as a job; else join this Ray cluster.",
        ),
    ] = None,
    name: JobName = None,
    dry_run: DryRun = False,
    **given: Any,
) -> None:
    """Resume a study after a stop or a crash, or with more trials or another budget.

    Example: nas-evidence resume runs/digits --trials 48
    """
    if "retry_failed" in given:
        given["retry_failed"] = trial_ids(given["retry_failed"]) or True
    if address is not None and address.startswith(("http://", "https://")):
        if dry_run:
            raise UserError(
                "dry-run-of-job",
                "--dry-run checks what runs here; for a job on a cluster leave it out, or leave "
                "--address out.",
            )
        resubmit(address, name, folder, **given)
        return
    if folder is None or name is not None:
        raise UserError(
            "resume-without-place",
            "resume needs a study folder, or --address URL and --name NAME.",
        )
    nas_evidence.resume(folder, address=address, **_here(dry_run, given))


@with_parameters_of(nas_evidence.refit)
def refit(
    study: StudyPlace,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA]",
            help="All rows to train on, in place of the study's own: a table, arrays or images.",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="K", help="The K best architectures, not one.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Trainings of each, from random starts [3]."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Random seed; by default that of the study."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "--store", metavar="DIR|URI", help="Its folder; else DIR-refit."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Join this Ray cluster; auto finds it."),
    ] = None,
    dry_run: DryRun = False,
    **given: Any,
) -> None:
    """Train the best architecture again, on all rows or on other ones, as a study of its own.

    Without DATA these are all rows of the study, its test rows too. DATA has the same columns.

    Example: nas-evidence refit runs/mine
    Example: nas-evidence refit runs/mine more.csv --top 3 --seeds 1
    """
    asked = {"top": top, "seeds": seeds, "seed": seed, "out": out, "address": address}
    given |= {name: value for name, value in asked.items() if value is not None}
    nas_evidence.refit(study, data, **_here(dry_run, given))


def _here(dry_run: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a study that this process runs, or only checks."""
    limit = _limit(given.get("time_limit"))
    audience = Check() if dry_run else _Terminal(limit)
    return {
        "workers": None, "executor": "auto", **given, "time_limit": limit, "progress": audience
    }  # fmt: skip


def _limit(text: str | None) -> TimeLimit | None:
    """Return the time limit of this process, from its start on."""
    if text is None:
        return None
    return TimeLimit(seconds_of(text), begun=monotonic() - seconds_running())


class _Terminal(Printed):
    """Prints what happens; at the end it writes report and export."""

    def __init__(self, limit: TimeLimit | None) -> None:
        self._left = (lambda: inf) if limit is None else limit.left
        self._finishing = False

    def leads(self, line: str) -> None:
        self._finishing = True
        err.print(line)

    def begins(self, store: "WorkingCopy") -> None:
        _log_to(store.folder / "logs" / "driver.log")

    def starting(self) -> contextlib.AbstractContextManager[object]:
        return out.status("starting the workers") if out.is_terminal else nullcontext()

    @contextlib.contextmanager
    def watching(self, spec: StudySpec, n_done: int) -> Iterator[Progress]:
        if out.is_terminal:
            table = LiveTable(spec, n_done, limit=self._left)
            with Live(table, console=out, refresh_per_second=2, transient=True):
                yield table
        else:
            yield Progress(spec, n_done, say=self.say, limit=self._left)

    @contextlib.contextmanager
    def running(self, spec: StudySpec, store: "WorkingCopy", run: Run) -> Iterator[None]:
        """Say what is stored and how to go on when it is interrupted, and end within 2 s."""
        from nas_evidence.storage.log import read_log

        def stopped(say: Callable[[str], None]) -> None:
            n_stored = n_searched(read_log(store.folder).state.rows)
            root = () if run.data_root is None else ("--data-root", run.data_root)
            ranking = f"\nRanking:  {typed('report', store.place, *root)}" if n_stored else ""
            others = ", the others resume from their last checkpoint" * (n_stored < spec.n_trials)
            say(
                f"\nStopped. Nothing is lost: {n_stored} of {spec.n_trials} trials are "
                f"stored{others}.\n"
                f"Continue: {self.go_on(store.place, run)}{ranking}"
            )

        def late(say: Callable[[str], None]) -> bool:
            if self._finishing:
                self._finishing = False
                return False
            if store.uri is None and run.executor == "inline":
                stopped(say)
                return True
            say("Stopping: waiting for the workers to store what they have.")
            return False

        try:
            with interruptible(late):
                if run.limit is not None:
                    _plan_the_end(run)
                yield
        except KeyboardInterrupt:
            stopped(err.print)
            raise SystemExit(130) from None

    def go_on(self, place: str, run: Run) -> str:
        return typed("resume", place, *_options(run))

    def ends(self, study: "Study", run: Run, ran: bool) -> None:
        """Say what a limit has left out; then print the ranking, and write report and export."""
        spec, statuses = study.spec, Counter(study.trials["status"])
        again = self.go_on(study.place, run)
        n_stored = n_searched(study.trials["trial_id"])
        cut = left_out(spec, study.folder, run.limit)
        if cut:
            out.print(f"time: {cut}; the others: {again}")
        elif ran and n_stored < spec.n_trials:
            more = 2 * (spec.budget.wall_seconds or 0.0)
            out.print(
                f"budget: spent after {n_stored} of {spec.n_trials} trials; continue with "
                f"{again} --set budget.wall_seconds={more:g}"
            )
        complete = statuses[TrialStatus.COMPLETE.value]
        if run.limit and cut and not complete:
            err.print(
                "error: no trial finished within the time limit; with a longer one the study "
                f"continues from its last checkpoint: {again} --time {10 * run.limit.seconds:.0f}s"
            )
            raise typer.Exit(1)
        report = _conclude(study, run)
        counts = ", ".join(f"{n} {word}" for word, n in sorted(statuses.items()))
        raced = len(study.trials) - n_stored
        race = f"{n_stored} of the search and {raced} retrainings of the best: " * (raced > 0)
        out.print(f"trials: {race}{counts}")
        if not complete:
            why = report.problems[0].detail if report.problems else f"see {study.place}/logs"
            err.print(f"error: no trial is complete, most often because: {why}")
            raise typer.Exit(1)
        say_next(study, report, resuming=_options(run))
        exit_if_unranked(report)


def _conclude(study: "Study", run: Run) -> "Report":
    """Print the ranking, and write report and export."""
    from nas_evidence.exporting.soundness import conditions_in, wrong_export_files
    from nas_evidence.storage.set_aside import set_aside

    # While a fork compares, which takes seconds, this process would only wait.
    Thread(target=_prepare_page, daemon=True).start()
    to, limit = study.folder / "export", run.limit
    wrong = wrong_export_files(to) if to.is_dir() else []
    others = conditions_in(to) - {*study.trials["content_hash"]}
    if wrong or others:
        set_aside(study.folder, "export")

    with suppress(ValueError):  # no trial is complete
        exported = study.is_exported()
        parts: list[Part] = ["report"] if exported else ["report", "export"]
        say_forecast(study, *parts)
    report = say_results(study, within=nullcontext if limit is None else limit.for_models)
    if wrong or others:
        what = f"export/{wrong[0]} was not as written" if wrong else "export/ was of another study"
        out.print(f"note:   {what}: the folder is in damaged/")
    winner = report.study.winner
    if winner is None:
        return report
    if study.is_exported():
        out.print(f"export: {as_named(study, to)}")
    else:
        say_export(study.export(), as_named(study, to))
        say_cost(study, to)
    return report


def _prepare_page() -> None:
    from nas_evidence.reporting import page, templating  # noqa: F401

    templating.compile_templates()


def _plan_the_end(run: Run) -> None:
    """Reserve time for report and export, by the time that starting took.

    Their modules are imported while the workers start.
    """
    limit = run.limit
    assert limit is not None
    limit.after = _AFTER * (limit.seconds - limit.left())
    needed = ["nas_evidence.reporting.page"]
    if run.executor in ("inline", "ray"):  # a fork of plain processes has torch
        needed.append("nas_evidence.baselines.on_test_rows")
    Thread(target=lambda: [*map(import_module, needed)], daemon=True).start()


def _options(run: Run) -> list[str]:
    """Return the options that the next run also needs, for whoever reads them.

    A job knows the address of its own cluster. Whoever reads its output on another machine needs
    the address at which it was submitted.
    """
    words = as_arguments(
        data_root=run.data_root, address=run.address, track=run.track, allow_code=run.allow_code
    )
    if run.address == "auto" and (found := submission_of_this_job()):
        at = words.index("--address")
        words[at : at + 2] = ["--address", found.address or "URL", "--name", found.name]
    return words


class _Log(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # it cannot be opened: the study says what is wrong with its disk
            super().emit(record)


def _log_to(path: Path) -> None:
    handler = _Log(path, delay=True)
    handler.setFormatter(LogFormatter())
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
