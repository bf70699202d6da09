"""What a report is about: its data, rows, dates, versions, and the command that repeats it."""

import time
from pathlib import Path

import pandas as pd

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.reporting.next_step import repeated
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.reporting.words import count
from nas_evidence.spec.how_read import HowRead
from nas_evidence.storage.log import first_written, last_written


def about(
    study: RankedStudy, how_read: HowRead | None, place: str, data_root: Path | None = None
) -> dict[str, str]:
    """Return what is known, each a line by its name; what is not known is left out.

    The first three fit on the first screen: data, rows, and when the search ran.
    """
    found = {
        "data": (how_read.given if how_read else "") or study.spec.dataset.name,
        "rows": _rows(study, how_read),
        "searched": _searched(study.tables.folder),
        "computed by": _versions(study.trials),
        "study file": f"{place}/study.toml",
        "the same search again": repeated(study, place, data_root),
    }
    return {name: said for name, said in found.items() if said}


def _rows(study: RankedStudy, how_read: HowRead | None) -> str:
    n_train, n_test = (how_read.n_train, how_read.n_test) if how_read else (0, None)
    n_train = n_train or study.tables.n_rows
    if not n_train:
        return ""
    said = f"{count(n_train)} training rows"
    if n_test is None:
        return said
    return f"{said}, {count(n_test)} test rows" if n_test else f"{said}, no test rows"


def _searched(folder: Path) -> str:
    """Return from when to when the log was written, in local time with its zone."""
    first, last = first_written(folder), last_written(folder)
    if first is None or last is None:
        return ""
    begin, end = (time.localtime(t) for t in (first, last))
    same_day = begin[:3] == end[:3]
    until = time.strftime("%H:%M %Z" if same_day else "%Y-%m-%d %H:%M %Z", end)
    return f"{time.strftime('%Y-%m-%d %H:%M', begin)} to {until}"


def _versions(trials: pd.DataFrame) -> str:
    """Return the versions of the last trial that names them; hardware comes last."""
    for text in reversed([text for text in trials["versions"] if isinstance(text, str) and text]):
        try:
            known = parsed_json(text)
        except ValueError:
            continue
        if isinstance(known, dict):
            return ", ".join(
                str(value) if name == "device" else f"{name} {value}"
                for name, value in known.items()
            )
    return ""
