"""The verbs for the results of a study: report, export; and the audit of scores.

Each takes a study folder or the URI of a store; a report is written where the study is.
"""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nas_evidence
from nas_evidence.api.control import opened
from nas_evidence.api.request import check_one
from nas_evidence.api.results import Part, Study
from nas_evidence.api.shared_options import flag_of
from nas_evidence.cli.options import AllowCode, AsJson, DataRoot, StudyPlace, with_parameters_of
from nas_evidence.cli.shown import ranking_rows, trust_line
from nas_evidence.cli.terminal import (
    err,
    here,
    out,
    print_json,
    print_rows,
    say_flaws,
    statistic_text,
    typed,
)
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.outputs import check_output, files_in, written_here, written_whole
from nas_evidence.plumbing.parsing import parsed_toml
from nas_evidence.plumbing.sums import listed, write_sums
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.words import OF_FOLDS
from nas_evidence.spec.domains import architecture_text
from nas_evidence.spec.parameters import ARCHITECTURE, types_of
from nas_evidence.storage.kept_submission import resume_command
from nas_evidence.storage.study_folder import is_locked

if TYPE_CHECKING:  # these import pydantic models, data readers and pyarrow
    from nas_evidence.baselines.stored_comparison import Within
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.reporting.contents import Report

#: The file of `report --table --to`.
_TABLE = "correlations.csv"


@with_parameters_of(Study.report)
def report(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]", help="A study folder, or a store's URI; else the latest in runs/."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="OUT", help="Write the report here.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE.csv", help="Rank any table instead.")
    ] = None,
    score: Annotated[str | None, typer.Option(metavar="COL", help="Column of the score.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="Column of the truth.")] = None,
    group: Annotated[str | None, typer.Option(metavar="COL", help="Column of the family.")] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="Column of a baseline.")
    ] = None,
    data_root: DataRoot = None,
    **given: Any,
) -> None:
    """Write the report of a study, or the same statistics for any table.

    Example: nas-evidence report runs/digits --metric balanced_accuracy
    Example: nas-evidence report --table t.csv --score evidence --target accuracy
    """
    if table is not None:
        if place is not None:
            raise UserError(
                "folder-and-table",
                f"give a study folder or --table, not both (got {place}, {table}).",
            )
        if score is None or target is None:
            raise UserError("table-without-columns", "--table needs --score COL and --target COL.")
        force = given.pop("force", False)
        if given:
            raise UserError(
                "metric-with-table",
                f"--metric is for studies, but got {given['metric']!r} with --table.",
            )
        _report_table(table, score, target, group, baseline or (), to, force=force)
        return
    study = nas_evidence.load(place or _latest_study(), data_root=data_root)
    if to is not None and to.resolve() != (study.folder / "report").resolve():
        from nas_evidence.reporting.page import check_place

        check_place(to, force=given.get("force", False))
    say_flaws(study)
    say_forecast(study, "report")
    written = say_results(study, to=to, **given)
    if not len(written.study.complete):
        go_on = resume_command(study.place, study.folder, study.spec, data_root=study.data_root)
        out.print(f"continue: {here(go_on)}")
    else:
        say_next(study, written, is_running=is_locked(study.folder))
    exit_if_unranked(written)


def compare(
    places: Annotated[list[str], typer.Argument(metavar="DIR...", help="Two to ten studies.")],
) -> None:
    """Print the winners of two to ten studies side by side.

    Example: nas-evidence compare runs/digits runs/digits-wide
    """
    from nas_evidence.reporting.compare import compare as compared

    found = compared([opened(place).folder for place in places], places)
    known = found.dropna(axis=1, how="all").reset_index().astype(object)
    rows = [list(map(statistic_text, row)) for row in known.where(known.notna(), "-").to_numpy()]
    print_rows("Studies", [name.replace("_", " ") for name in known], rows)
    for sentence in found.attrs["notes"]:
        out.print(f"note:   {sentence}")


def audit_estimators(
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME", help="One problem, or the rows of one estimator."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every estimator with the truth where it is known; takes a minute or two.

    Exit code 1 if an estimate misses the truth by more than it claims.

    Example: nas-evidence audit --only linear-3
    """
    from nas_evidence.audit.run import named, run_audit

    problems, estimator = (None, None) if only is None else named(only)
    rows = run_audit(problems, say=err.print)
    rows = [row for row in rows if estimator in (None, row.estimator)]
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
    else:
        print_rows(
            "Every estimator against the truth (nats)",
            ("problem", "estimator", "value", "truth", "bias", "spread", "seconds", "holds"),
            [
                (row.problem, row.estimator, statistic_text(row.value), statistic_text(row.truth),
                 statistic_text(row.bias), statistic_text(row.spread), f"{row.seconds:.2f}",
                 "yes" if row.holds else f"NO: {row.claim}")
                for row in rows
            ],
        )  # fmt: skip
    missed = sum(not row.holds for row in rows)
    if missed:
        err.print(f"{missed} of {len(rows)} rows do not hold.")
        raise typer.Exit(1)
    err.print(f"all {len(rows)} rows hold.")


@with_parameters_of(Study.export)
def export(
    place: StudyPlace,
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="Write the files here.")],
    track: Annotated[
        str | None,
        typer.Option(metavar="mlflow[:URI]", help="Also keep it as an artifact of its run."),
    ] = None,
    data_root: DataRoot = None,
    allow_code: AllowCode = False,
    **given: Any,
) -> None:
    """Export the best architecture, ready to use, after checking its stored evidence.

    Example: nas-evidence export runs/digits --to winner
    Example: nas-evidence export runs/digits --to five --top 5
    """
    chosen = {name: given.get(name) for name in ("trial_id", "top")}
    check_one(**chosen)
    study = nas_evidence.load(place, data_root=data_root, allow_code=allow_code)
    say_flaws(study)
    say_forecast(study, "export", **chosen)
    folder = study.export(to, track=track, **given)
    say_export(folder, str(to))
    say_cost(study, folder)


def say_results(
    study: Study,
    *,
    to: Path | None = None,
    metric: str | None = None,
    force: bool = False,
    within: "Within" = nullcontext,
) -> "Report":
    """Write the report of a study, print its ranking and its first screen, and return it.

    `within` limits the time of each simple model beside the winner.
    """
    from nas_evidence.reporting.glossary import brief

    report = study.summary(metric, within=within)
    if study.not_compared:
        err.print(f"warning: the winner is not compared with simple models: {study.not_compared}")
    lacks = report.comparison.lacks if report.comparison else ()
    if lacks and within is not nullcontext:
        out.print(f"note:   there was no time for {', '.join(lacks)}: {report_command(study)}")
    shown, spec = report.study, study.spec
    header, rows = ranking_rows(shown.ranking, spec)
    parameters = {*types_of(spec)} - {"width", "depth", str(spec.objective)}
    own = [name for name in header if name.removeprefix(ARCHITECTURE) in parameters]
    print_rows(
        f"Ranking of {spec.name} by {shown.ranks_by} ({shown.objective_unit})",
        header,
        rows,
        dispensable=own,
    )
    out.print(shown.order + OF_FOLDS * bool(spec.of_folds))
    said = report.headline
    screen = (shown.objective_unit, *header, shown.order, said.worth, report.verdict)
    if words := brief(" ".join(map(str, screen))):
        out.print(f"words:  {words}.")
    page = study.report(to, metric=metric, force=force)
    if said.answer and shown.winner is not None:
        out.print(f"answer: {said.answer}")
    facts = {"worth it?": said.worth, "how sure?": said.sure, "if wrong:": said.cost}
    for word, sentence in facts.items():
        if sentence:
            out.print(f"{word:7} {sentence}")
    notes = (*said.advice, said.together, said.measured, said.intervals, report.pruning)
    for sentence in filter(None, notes):
        out.print(f"note:   {sentence}")
    out.print(trust_line(report))
    out.print(f"report: {page if to else as_named(study, page)}")
    if to is None and "://" in study.place:  # no browser opens it there
        here = f"{study.place.rstrip('/').rpartition('/')[2]}-report"
        out.print(f"fetch:  {report_command(study, '--to', here)}")
    return report


def say_next(
    study: Study, report: "Report", *, is_running: bool = False, resuming: Sequence[str] = ()
) -> None:
    """Say what to do next, and below it the command alone, so that it can be copied whole.

    Args:
        study: with a complete trial.
        report: of the study.
        is_running: whether a process runs the study now.
        resuming: further options of `resume`, where the study was searched with them.
    """
    from nas_evidence.reporting.next_step import next_step

    step = next_step(
        report.study, report.headline, study.place, is_running=is_running,
        is_refit=report.refit_of is not None, data_root=study.data_root,
    )  # fmt: skip
    command = here(step.command)
    if step.command.startswith("nas-evidence resume "):
        words = shlex.split(command)
        command = " ".join([command, *(shell_word(w) for w in resuming if w not in words)])
    out.print(f"next:   {step.words}\n{command}")


def exit_if_unranked(report: "Report") -> None:
    """End with exit code 1 if trials are complete and none can be ranked, as its answer says."""
    if report.study.winner is None and len(report.study.complete):
        err.print(f"error: {report.headline.answer}")
        raise typer.Exit(1)


def as_named(study: "Study | WorkingCopy", path: Path) -> str:
    """Return the place of a file of a study, as the user named the study."""
    return f"{study.place}/{path.relative_to(study.folder).as_posix()}"


def report_command(study: Study, *more: str) -> str:
    """Return the command that writes the report, with more words."""
    root = () if study.data_root is None else ("--data-root", study.data_root)
    return typed("report", study.place, *more, *root)


def say_forecast(study: Study, *parts: Part, **chosen: int | None) -> None:
    """Say how long report or export will take, if it is more than a minute, and how to stop."""
    if said := study.forecast(parts, **chosen):
        *_, last = parts
        options = [
            word
            for name, value in chosen.items()
            if value is not None
            for word in (flag_of(name), value)
        ]
        later = typed("export", study.place, *options, "--to", "OUT")
        again = report_command(study) if last == "report" else later
        what, goes_on = " and ".join(parts), "take" if len(parts) > 1 else "takes"
        say = err if last == "predict" else out
        say.print(
            f"time:   {what} {goes_on} {said}. Ctrl-C stops here and loses nothing; go on with "
            f"`{again}`."
        )


def say_export(folder: Path, place: str) -> None:
    """Say what an export holds; `place` is what it is called."""
    from nas_evidence.exporting.soundness import ENSEMBLE, read_json

    if not (folder / ENSEMBLE).is_file():
        written = read_json(folder, "evidence.json")
        described = parsed_toml((folder / "architecture.toml").read_text(encoding="utf-8"))
        again = "" if written["rescored_sum"] is None else ", evidence recomputed: identical"
        name = architecture_text(described["family"], described["values"])
        out.print(f"export: {place} (trial {written['trial_id']}: {name}{again})")
        return
    whole = read_json(folder, ENSEMBLE)
    *others, last = (str(one["trial_id"]) for one in whole["members"])
    which = f"trials {', '.join(others)} and {last}" if others else f"trial {last}"
    checked = all(one.get("rescored_sum") is not None for one in whole["members"])
    again = ", evidence of each recomputed: identical" * checked
    out.print(f"export: {place} ({which}, which predict together with equal weights{again})")


def say_cost(study: Study, folder: Path) -> None:
    """Say of several networks how large the export is, and how long a prediction takes here."""
    from nas_evidence.exporting.soundness import ENSEMBLE

    if not (folder / ENSEMBLE).is_file():
        return
    found = study.cost(folder)
    size, unit = found["bytes"] / 1e3, "kB"
    if size >= 1e3:
        size, unit = size / 1e3, "MB"
    each = found["milliseconds_per_row"]
    out.print(f"size:   {size:.3g} {unit}; a prediction takes {each:.2g} ms a row here")


def _latest_study() -> str:
    """Return the most recently used study folder below runs/."""
    # Every driver touches the lock.
    locks = sorted(Path("runs").glob("*/lock"), key=lambda path: path.stat().st_mtime)
    if not locks:
        raise UserError(
            "no-study-below-runs",
            "there is no study below runs/; give a study folder, or --table FILE.csv with "
            "--score and --target.",
        )
    return str(locks[-1].parent)


def _report_table(
    table: Path,
    score: str,
    target: str,
    group: str | None,
    baselines: Sequence[str],
    to: Path | None,
    *,
    force: bool,
) -> None:
    from nas_evidence.reporting.any_table import rank_table
    from nas_evidence.reporting.correlations import MAIN_COLUMNS, write_csv

    if to is not None:
        ours = _of_a_table(to)
        foreign = [other for other in files_in(to) if other not in ours]
        check_output(to, foreign, verb="report --table", force=force)
    found = rank_table(table, score=score, target=target, group=group, baselines=baselines)
    print_rows(
        f"How well the columns of {table.name} rank {target}",
        MAIN_COLUMNS,
        [[statistic_text(row.cells()[name]) for name in MAIN_COLUMNS] for row in found.rows],
    )
    for warning in found.warnings:
        out.print(f"warning: {warning}")
    if to is not None:
        with written_whole(to, _of_a_table) as made:
            write_csv(made / _TABLE, found.rows)
            write_sums(made, [_TABLE])
        out.print(f"table:  {to / _TABLE}")


def _of_a_table(folder: Path) -> set[str]:
    """Return the files of a folder that hold the statistics of a table, as they were written."""
    return written_here(folder, (_TABLE,)) if listed(folder) == {_TABLE} else set()
