"""The verbs for the results of a study: report, export; and the audit of scores.

Each takes a study folder or the URI of a store; a report is written where the study is.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nas_evidence.cli.options import (
    AllowCode,
    AsJson,
    DataRoot,
    Metric,
    Raw,
    Top,
    check_one,
    opened,
    shown,
)
from nas_evidence.cli.show import StudyPlace
from nas_evidence.cli.terminal import (
    err,
    out,
    print_json,
    print_rows,
    ranking_rows,
    say_edits,
    say_missing,
    statistic_text,
    trust_line,
)
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:  # these import pydantic models, data readers and pyarrow
    from nas_evidence.baselines.comparison import Comparison
    from nas_evidence.baselines.stored_comparison import Within
    from nas_evidence.data import ArrayData
    from nas_evidence.data.source import Source
    from nas_evidence.driver.mirror import Store
    from nas_evidence.reporting.contents import Report
    from nas_evidence.reporting.page import Live
    from nas_evidence.storage.tables import StudyTables


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
    metric: Metric = None,
    data_root: DataRoot = None,
) -> None:
    """Write the report of a study, or the same statistics for any table.

    Example: nas-evidence report runs/digits --metric balanced_accuracy
    Example: nas-evidence report --table t.csv --score evidence --target accuracy
    """
    if table is not None:
        if place is not None:
            raise UserError(
                f"give a study folder or --table, not both (got {place}, {table})."
            ).with_code("folder-and-table")
        if score is None or target is None:
            raise UserError("--table needs --score COL and --target COL.").with_code(
                "table-without-columns"
            )
        if metric is not None:
            raise UserError(
                f"--metric is for studies, but got {metric!r} with --table."
            ).with_code("metric-with-table")
        _report_table(table, score, target, group, baseline or (), to)
        return
    from nas_evidence.reporting.live import running_now
    from nas_evidence.storage.tables import read_study_tables

    store = opened(place or _latest_study())
    tables = read_study_tables(store.folder)
    say_missing(tables.missing)
    say_edits(tables.folder)
    compared = judged(tables, _data_of(tables, data_root))
    live = running_now(store.folder)
    say_results(tables, compared, store, to=to, metric=metric, live=live)
    if to is None:
        store.push()


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


def export(
    place: StudyPlace,
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="Write the files here.")],
    trial_id: Annotated[
        int | None, typer.Option("--trial", metavar="ID", help="This trial, not the best.")
    ] = None,
    top: Top = None,
    pt2: Annotated[
        bool, typer.Option("--pt2", help="Write model.pt2 too, a program for torch alone.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write model.onnx too; needs the extra onnx.")
    ] = False,
    raw: Raw = False,
    data_root: DataRoot = None,
    allow_code: AllowCode = False,
) -> None:
    """Export the best architecture, ready to use, after checking its stored evidence.

    Example: nas-evidence export runs/digits --to winner
    Example: nas-evidence export runs/digits --to five --top 5
    """
    check_one(trial_id, top)
    from nas_evidence.storage.tables import read_study_tables

    store = opened(place)
    tables = read_study_tables(store.folder)
    say_missing(tables.missing)
    say_edits(tables.folder)
    if allow_code:
        from nas_evidence.storage.outside_code import admitted

        admitted(tables.spec, [store.folder.resolve() / "code"], allowed=True)
    data = _data_of(tables, data_root)
    if top is None:
        arrays = data.arrays(seed=tables.spec.seed)
        out.print(exported(tables, to, arrays, trial_id, pt2=pt2, onnx=onnx, raw=raw))
    else:
        _write_ensemble(tables, to, top, data, pt2=pt2, onnx=onnx, raw=raw)


# ---------------------------------------------------------------------------------------------


def _data_of(tables: "StudyTables", data_root: Path | None) -> "Source":
    """Return the data of a study, read when they are first asked for."""
    from nas_evidence.data.source import stored_source

    return stored_source(tables.spec.dataset, base=tables.folder.resolve(), data_root=data_root)


def say_results(
    tables: "StudyTables",
    compared: "Comparison | None",
    store: "Store",
    *,
    to: Path | None = None,
    metric: str | None = None,
    live: "Live | None" = None,
) -> "Report":
    """Write the report of a study, print its ranking and its first screen, and return it."""
    from nas_evidence.reporting.contents import report_on
    from nas_evidence.reporting.glossary import brief
    from nas_evidence.reporting.page import write_report
    from nas_evidence.reporting.study_tables import ranked_study

    spec, study = tables.spec, ranked_study(tables)
    report = report_on(study, compared, place=Path(store.place), metric=metric)
    header, rows = ranking_rows(study.ranking, spec)
    print_rows(
        f"Ranking of {spec.name} by {study.ranks_by} ({study.objective_unit})", header, rows
    )
    out.print(study.order)
    paths = write_report(report, to or store.folder / "report", live=live)
    said = report.headline
    if said.answer:
        out.print(f"answer: {said.answer}")
    facts = {"worth it?": said.worth, "how sure?": said.sure, "if wrong:": said.cost}
    for word, sentence in facts.items():
        if sentence:
            out.print(f"{word:7} {sentence}")
    notes = (said.together, said.measured, said.intervals, *said.advice, report.pruning)
    for sentence in filter(None, notes):
        out.print(f"note:   {sentence}")
    out.print(trust_line(report))
    screen = (study.objective_unit, *header, study.order, said.worth, report.verdict)
    if words := brief(" ".join(map(str, screen))):
        out.print(f"words:  {words}.")
    out.print(f"report: {paths.html if to else shown(paths.html, store)}")
    return report


def judged(
    tables: "StudyTables",
    data: "Source",
    within: "Within" = nullcontext,
) -> "Comparison | None":
    """Return the winner of a study beside simple models, computed and stored if it is new.

    Where the data or the weights cannot be read it is the stored one, and the reason is said.
    For `within` see `kept_comparison`.
    """
    from nas_evidence.baselines.comparison import read_comparison
    from nas_evidence.baselines.stored_comparison import kept_comparison

    try:
        return kept_comparison(tables, data, within=within)
    except (ValueError, OSError, RuntimeError) as error:
        err.print(f"warning: the winner is not compared with simple models: {error}")
        return read_comparison(tables.folder)


def exported(
    tables: "StudyTables",
    to: Path,
    arrays: "ArrayData",
    trial_id: int | None,
    *,
    pt2: bool = False,
    onnx: bool = False,
    raw: bool = False,
    place: str = "",
) -> str:
    """Export a trial of a study, by default the best, and say where it is; imports torch.

    `place` is what `to` is called where the user will look for it.
    """
    from nas_evidence.exporting.folder import export_winner
    from nas_evidence.reporting.study_tables import architecture_text

    done = export_winner(tables, to, arrays, trial_id=trial_id, pt2=pt2, onnx=onnx, raw=raw)
    again = "" if done.rescored_value is None else ", evidence recomputed: identical"
    name = architecture_text(done.architecture.family, done.architecture.values)
    return f"export: {place or done.folder} (trial {done.trial_id}: {name}{again})"


def _write_ensemble(
    tables: "StudyTables",
    to: Path,
    top: int,
    data: "Source",
    *,
    pt2: bool,
    onnx: bool,
    raw: bool,
) -> None:
    """Export an ensemble of the best networks of a study, and print what it gains."""
    from nas_evidence.exporting.ensemble import export_ensemble

    arrays = data.arrays(seed=tables.spec.seed)
    done = export_ensemble(tables, to, arrays, top=top, pt2=pt2, onnx=onnx, raw=raw)
    members = ", ".join(
        f"trial {i} {weight:.2f}" for i, weight in zip(done.trial_ids, done.weights, strict=True)
    )
    out.print(f"export: {done.folder} (weights: {members})")
    if done.left_out:
        out.print(f"note:   left out, with weight 0: trials {', '.join(map(str, done.left_out))}")
    if done.refitted:
        out.print(
            f"note:   {done.refitted} trained again, since the study kept no predictions of them"
        )
    out.print(
        f"gain:   {done.gain:.4f} ± {done.gain_error:.4f} nats per datum over the best network "
        f"alone, with cross-fitted weights, on {done.n} data"
    )


def _latest_study() -> str:
    """Return the most recently used study folder below runs/."""
    # Every driver touches the lock.
    locks = sorted(Path("runs").glob("*/lock"), key=lambda path: path.stat().st_mtime)
    if not locks:
        raise UserError(
            "there is no study below runs/; give a study folder, or --table FILE.csv with "
            "--score and --target."
        ).with_code("no-study-below-runs")
    return str(locks[-1].parent)


def _report_table(
    table: Path,
    score: str,
    target: str,
    group: str | None,
    baselines: Sequence[str],
    to: Path | None,
) -> None:
    from nas_evidence.reporting.any_table import rank_table
    from nas_evidence.reporting.correlations import MAIN_COLUMNS, write_csv

    found = rank_table(table, score=score, target=target, group=group, baselines=baselines)
    print_rows(
        f"How well the columns of {table.name} rank {target}",
        MAIN_COLUMNS,
        [[statistic_text(row.cells()[name]) for name in MAIN_COLUMNS] for row in found.rows],
    )
    for warning in found.warnings:
        out.print(f"warning: {warning}")
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        write_csv(to / "correlations.csv", found.rows)
        out.print(f"table:  {to / 'correlations.csv'}")
