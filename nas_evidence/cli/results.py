"""The verbs for the results of a study: show, report, watch, export; and the audit of scores.

Each takes a study folder or the URI of a store; a report is written where the study is.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nas_evidence.cli.options import AllowCode, AsJson, DataRoot, opened, shown
from nas_evidence.cli.terminal import (
    err,
    out,
    print_json,
    print_line,
    print_rows,
    score_text,
    statistic_text,
)
from nas_evidence.spec import StudySpec

StudyPlace = Annotated[
    str, typer.Argument(metavar="DIR", help="A study folder, or a store's URI.")
]


def show(
    place: StudyPlace,
    trial_id: Annotated[int, typer.Argument(metavar="TRIAL", help="A trial id.")],
    as_json: AsJson = False,
) -> None:
    """Show one trial: how it ended, its scores and the terms of its evidence.

    Example: nas-evidence show runs/digits 7
    """
    from nas_evidence.store import TABLES, read_table

    store = opened(place)
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in TABLES:
        frame = read_table(store.folder, name)
        tables[name] = json.loads(
            frame[frame["trial_id"] == trial_id].to_json(orient="records", double_precision=15)
        )
    if not tables["trials"]:
        raise ValueError(f"{place} has no finished trial {trial_id}; see `nas-evidence status`.")
    if as_json:
        print_json({"trial": tables.pop("trials")[0]} | tables)
    else:
        _print_trial(tables)


def report(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]", help="A study folder, or a store's URI [the latest in runs/]."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="OUT", help="Write the report here.")
    ] = None,
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
        if place is not None:
            raise ValueError(f"give a study folder or --table, not both (got {place}, {table}).")
        if score is None or target is None:
            raise ValueError("--table needs --score COL and --target COL.")
        _report_table(table, score, target, group, baseline or (), to)
        return
    from nas_evidence.reporting.study import build_report

    store = opened(place or _latest_study())
    paths = build_report(store.folder, to)
    if to is None:
        store.push()
    out.print(f"report: {paths.html if to else shown(paths.html, store)}")


def watch(
    place: StudyPlace,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Least time between two reports.")
    ] = 30.0,
) -> None:
    """Keep the report of a running study up to date until the study ends.

    Example: nas-evidence watch runs/digits
    """
    from nas_evidence.reporting.watching import all_finished
    from nas_evidence.reporting.watching import watch as reports
    from nas_evidence.storage.study_folder import is_locked

    store = opened(place)
    was_running = False

    def over() -> bool:
        nonlocal was_running
        store.pull()
        running, before = is_locked(store.folder), was_running
        was_running = running
        # Not running any more: parked, cancelled or killed.
        return all_finished(store.folder) or (before and not running)

    for paths in reports(store.folder, is_over=over, every_seconds=every):
        store.push()
        out.print(f"report: {shown(paths.html, store)}")


def audit(as_json: AsJson = False) -> None:
    """Compare every estimator with the truth where it is known; takes a minute or two.

    Exit code 1 if one is further off than it claims.
    """
    from nas_evidence.auditing import run_audit

    rows = run_audit()
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
        err.print(f"{missed} of {len(rows)} rows miss their claim.")
        raise typer.Exit(1)
    err.print(f"all {len(rows)} rows hold.")


def export(
    place: StudyPlace,
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="Write the files here.")],
    trial_id: Annotated[
        int | None, typer.Option("--trial", metavar="ID", help="This trial, not the best.")
    ] = None,
    data_root: DataRoot = None,
    allow_code: AllowCode = False,
) -> None:
    """Export the best architecture, ready to use, after checking its stored evidence.

    Example: nas-evidence export runs/digits --to winner
    """
    from nas_evidence.storage.study_folder import read_study

    store = opened(place)
    spec = read_study(store.folder)
    if allow_code:
        from nas_evidence.storage.outside_code import admitted

        spec = admitted(spec, [store.folder.resolve() / "code"], allowed=True)
    write_export(spec, store.folder, to, trial_id, data_root)


# ---------------------------------------------------------------------------------------------


def write_export(
    spec: StudySpec, folder: Path, to: Path, trial_id: int | None, data_root: Path | None
) -> None:
    """Export a trial of a study, by default the best, and print where it is."""
    from nas_evidence.data import load
    from nas_evidence.exporting import export_winner

    root = None if data_root is None else str(data_root)
    arrays = load(spec.dataset, seed=spec.seed, data_root=root, base=folder.resolve())
    done = export_winner(folder, to, arrays, trial_id=trial_id)
    again = "" if done.rescored_value is None else ", evidence computed again and equal"
    out.print(f"export: {done.folder} (trial {done.trial_id}, {done.architecture}{again})")


def _print_trial(tables: dict[str, list[dict[str, Any]]]) -> None:
    trial = tables["trials"][0]
    for key, value in trial.items():
        if value is not None and key not in ("error", "versions", "attempt", "architecture_key"):
            print_line(key, value)
    last = max((row["epoch"] for row in tables["evidence"]), default=0)
    print_rows(
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
    print_rows(
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


def _latest_study() -> str:
    """Return the most recently used study folder below runs/."""
    # Every driver touches the lock, wherever the study's database is.
    locks = sorted(Path("runs").glob("*/lock"), key=lambda path: path.stat().st_mtime)
    if not locks:
        raise ValueError(
            "there is no study below runs/; give a study folder, or --table FILE.csv with "
            "--score and --target."
        )
    return str(locks[-1].parent)


def _report_table(
    table: Path,
    score: str,
    target: str,
    group: str | None,
    baselines: Sequence[str],
    to: Path | None,
) -> None:
    from nas_evidence.reporting.correlations import MAIN_COLUMNS
    from nas_evidence.reporting.table import rank_table_report

    result = rank_table_report(
        table, score=score, target=target, group=group, baselines=baselines, to=to
    )
    print_rows(
        f"How well the columns of {table.name} rank {target}",
        MAIN_COLUMNS,
        [[statistic_text(row.cells()[name]) for name in MAIN_COLUMNS] for row in result.rows],
    )
    for warning in result.warnings:
        out.print(f"warning: {warning}")
    if to is not None:
        out.print(f"report: {to / 'index.html'}")
