"""The reference page of the Parquet tables and of `correlations.csv`, generated from the code.

    python docs/_make/table_reference.py

Those of the tables are declared by the records of `spec/record.py` and `spec/estimates.py`: name,
type, unit, and as meaning the string below the field. The names of `correlations.csv` are those of
`reporting.correlations.COLUMNS`; their meanings are below.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping

from study_reference import meanings

from nas_evidence.reporting.correlations import COLUMNS as CORRELATIONS
from nas_evidence.storage.tables import COLUMNS

_TYPES = {int: "integer", float: "number", bool: "true or false"}

#: (unit, meaning) of the columns of correlations.csv.
CORRELATION_MEANINGS: Mapping[str, tuple[str, str]] = {
    "score": ("", "What ranks: a score, or `random` for a random order."),
    "target": (
        "",
        "Test result that it is compared with; log loss and RMSE with their sign turned.",
    ),
    "group": ("", "`all`, or the family within which it is compared."),
    "n": ("architectures", "How many are compared."),
    "rho": ("", "Spearman's rank correlation: 1 is the same order, -1 the reverse."),
    "rho_low": ("", "Lower end of its 95 % interval (bootstrap; of few also Fisher's)."),
    "rho_high": ("", "Upper end."),
    "tau": ("", "Kendall's rank correlation."),
    "tau_low": ("", "Lower end of its interval."),
    "tau_high": ("", "Upper end."),
    "regret_1": ("of the target", "What the first by the score loses to the best on the target."),
    "regret_3": ("of the target", "What the best of the first three loses."),
    "regret_10": ("of the target", "What the best of the first ten loses."),
    **{
        f"regret_{k}_{end}": ("of the target", f"{name} end of the interval of `regret_{k}`.")
        for k in (1, 3, 10)
        for end, name in (("low", "Lower"), ("high", "Upper"))
    },
    "partial_rho": ("", "rho with the number of parameters taken out."),
    "partial_rho_low": ("", "Lower end of its interval."),
    "partial_rho_high": ("", "Upper end."),
    "note": ("", "Why a value is missing."),
}

_HEAD = """\
# Columns of the tables

The results of a study are four tables in Parquet. [The folder of a study](study-folder.md) says
how to read them. A column has one type in all files, and a missing value is null. Attempts at one
trial are told apart by `attempt`. Columns that end in `seconds`, and `versions`, are the only ones
that differ between two runs of the same study.
"""

_ABOUT = {
    "trials": "One row per attempt at a trial: what ran, how it ended, what it cost. "
    "Its file is written last: without it the attempt does not exist. Callbacks may add "
    "[columns of their own](../how-to/extend.md#a-callback).",
    "evidence": "One row per score and evaluation. A new score is new rows, not a new column. "
    "The last `epoch` of a score in a trial is the value that ranks; a score of your own that is "
    "taken before training has one row, of epoch 0.",
    "terms": "The named parts of each row of `evidence`.",
    "curves": "One row per epoch of the main training.",
}

_CORRELATIONS = """\
## correlations.csv

Beside the report: how well each score orders the architectures of the study by their test results.
Regret is in fractions for accuracy and nats per datum for log loss.
"""


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    yield _HEAD
    for table, columns in COLUMNS.items():
        yield f"## {table}\n\n{_ABOUT[table]}\n"
        yield from _rows(
            (name, _TYPES.get(one.kind, "text"), one.unit, meanings(one.record)[name])
            for name, one in columns.items()
        )
    yield _CORRELATIONS
    text = ("score", "target", "group", "note")
    kinds = {name: "text" if name in text else "number" for name in CORRELATIONS}
    yield from _rows((name, kinds[name], *CORRELATION_MEANINGS[name]) for name in CORRELATIONS)


def _rows(cells: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    yield "| column | type | unit | meaning |\n|---|---|---|---|"
    for name, kind, unit, meaning in cells:
        yield f"| `{name}` | {kind} | {unit} | {meaning} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
