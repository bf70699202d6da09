"""The same statistics on any table: one score, its baselines, one target, from a CSV file."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nas_evidence.data.exact_text import read_csv, to_numeric
from nas_evidence.plumbing.user_error import UserError, no_such_file
from nas_evidence.reporting.correlations import Trust, trust

#: Maximum number of groups of a table: each gets its own statistics.
MAX_GROUPS = 50


def rank_table(
    csv_path: Path,
    *,
    score: str,
    target: str,
    group: str | None = None,
    baselines: Sequence[str] = (),
) -> Trust:
    """Return how `score` and the baselines rank `target` in a CSV file, by `group` if given.

    Every column counts as larger-is-better.

    Raises:
        ValueError: the file is missing or not a table, a column is missing, or a column is not
            numeric.
    """
    if not csv_path.is_file():
        raise no_such_file(csv_path)
    try:
        frame = read_csv(csv_path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(
            "report-table-unreadable",
            f"--table names a CSV file, but {csv_path} cannot be read: {error}.",
        ) from None
    names = list(dict.fromkeys([score, *baselines]))
    for name in [*names, target, *([group] if group is not None else [])]:
        if name not in frame.columns:
            columns = [str(column) for column in frame.columns]
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.4)
            hint = f'; did you mean "{near[0]}"?' if near else f"; it has {', '.join(columns)}."
            raise UserError("table-without-column", f'{csv_path} has no column "{name}"{hint}')
    if group is not None and (n := frame[group].nunique()) > MAX_GROUPS:
        raise UserError(
            "too-many-groups",
            f'--group must name a column of at most {MAX_GROUPS} different values, but "{group}" '
            f"of {csv_path} has {n}; leave --group away, or group its values first.",
        )
    for name in [*names, target]:
        numeric = to_numeric(frame[name], errors="coerce")
        wrong = frame[name][numeric.isna() & frame[name].notna()]
        if len(wrong):
            raise UserError(
                "table-column-not-numbers",
                f'column "{name}" of {csv_path} must hold numbers, but row {wrong.index[0] + 1} '
                f'holds "{wrong.iloc[0]}".',
            )
        frame[name] = numeric.astype(float)
    return trust(
        frame, scores=names, targets=[target], rivals=[name for name in names if name != score],
        group=group, noun="rows",
    )  # fmt: skip
