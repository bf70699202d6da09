"""The same statistics on any table: one score, its baselines, one target, from a CSV file."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.reporting import figures as draw
from nas_evidence.reporting.correlations import Correlation, scale_of, trust, write_csv
from nas_evidence.reporting.figure_data import Dot, score_marks
from nas_evidence.reporting.page import ReportPaths
from nas_evidence.reporting.templating import write_markdown, write_page

CAPTIONS: Mapping[str, str] = {
    "table_scatter": (
        "How to read it: each marker is one row. If the score can be trusted, the markers rise "
        "from the lower left to the upper right. The shape of a marker is its group; where the "
        "table has a column n_parameters, larger and brighter markers have more parameters."
    ),
    "table_trust": (
        "How to read it: the dot is Spearman's rho between score and target over all rows, the "
        "bar its 95 % interval. 1 is the same order, 0 no relation, -1 the reverse "
        "order. The score should lie clearly to the right of its baselines."
    ),
}


#: Most groups of a table: each gets its own statistics.
MAX_GROUPS = 50


@dataclass(frozen=True)
class TableReport:
    """Statistics of a table, their verdicts, and the path of the report if written."""

    rows: tuple[Correlation, ...]
    sentences: tuple[tuple[str, str], ...]  # (score, verdict)
    warnings: tuple[str, ...]
    paths: ReportPaths | None


def rank_table_report(
    csv_path: Path,
    *,
    score: str,
    target: str,
    group: str | None = None,
    baselines: Sequence[str] = (),
    to: Path | None = None,
) -> TableReport:
    """Return how `score` and the baselines rank `target` in a CSV file, by `group` if given.

    Every column counts as larger-is-better. If `to` is given, writes a page, its text as Markdown
    and correlations.csv.

    Raises:
        ValueError: the file is missing or not a table, a column is missing, or a column is not
            numeric.
    """
    frame = _read_csv(csv_path)
    names = list(dict.fromkeys([score, *baselines]))
    for name in [*names, target, *([group] if group is not None else [])]:
        _require(frame, name, csv_path)
    if group is not None and (n := frame[group].nunique()) > MAX_GROUPS:
        raise ValueError(
            f'--group must name a column of at most {MAX_GROUPS} different values, but "{group}" '
            f"of {csv_path} has {n}; leave --group away, or group its values first."
        )
    for name in [*names, target]:
        frame[name] = _numeric(frame[name], csv_path)
    judged = trust(
        frame,
        scores=names,
        targets=[target],
        rivals=[name for name in names if name != score],
        group=group,
        noun="rows",
    )
    report = TableReport(judged.rows, judged.sentences, judged.warnings, None)
    if to is None:
        return report
    to.mkdir(parents=True, exist_ok=True)
    dots, marks = _dots(frame, score, target, group), score_marks(judged, target=target)
    figures = {}
    if dots:
        figures["scatter"] = draw.scatter_figure(dots, x_title=score, y_title=target)
    if marks:
        figures["trust"] = draw.trust_figure(marks, target=target)
    values = {
        "title": f"{score} against {target}",
        "file": csv_path.name,
        "n_rows": len(frame),
        "target": target,
        "scale": scale_of(target),
        "trust": judged,
        "figures": figures,
        "reload_seconds": None,
        "groups": sorted({dot.family for dot in dots}),
        "captions": CAPTIONS,
    }
    paths = ReportPaths(to / "index.html", to / "report.md", to / "correlations.csv")
    write_page(paths.html, "table.html.j2", values)
    write_markdown(paths.markdown, "table.md.j2", values)
    write_csv(paths.correlations, judged.rows)
    return TableReport(judged.rows, judged.sentences, judged.warnings, paths)


def _read_csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise ValueError(f"--table names a CSV file, but there is no file {path}.")
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--table names a CSV file, but {path} cannot be read: {error}."
        ) from None


def _require(frame: pd.DataFrame, name: str, path: Path) -> None:
    if name not in frame.columns:
        columns = [str(column) for column in frame.columns]
        near = difflib.get_close_matches(name, columns, n=1, cutoff=0.4)
        hint = f'; did you mean "{near[0]}"?' if near else f"; it has {', '.join(columns)}."
        raise ValueError(f'{path} has no column "{name}"{hint}')


def _numeric(values: pd.Series, path: Path) -> pd.Series:
    numeric = pd.to_numeric(values, errors="coerce")
    wrong = values[numeric.isna() & values.notna()]
    if len(wrong):
        raise ValueError(
            f'column "{values.name}" of {path} must hold numbers, but row {wrong.index[0] + 1} '
            f'holds "{wrong.iloc[0]}".'
        )
    return numeric.astype(float)


def _dots(frame: pd.DataFrame, score: str, target: str, group: str | None) -> list[Dot]:
    known = frame[frame[[score, target]].notna().all(axis=1)]
    parameters = known.get("n_parameters")
    return [
        Dot(
            x=row[score],
            y=row[target],
            family="all rows" if group is None else str(row[group]),
            n_parameters=None if parameters is None else float(row["n_parameters"]),
            details=tuple(f"{name}: {value}" for name, value in row.items()),
        )
        for row in known.to_dict("records")
    ]
