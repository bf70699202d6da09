"""The report of a study: one HTML page, its text as Markdown, its values as JSON, three tables.

The first screen is the answer: which architecture, how sure, what it costs to be wrong, beside
which simple models, and how to use it. Then the pictures. All else folds away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

import pandas as pd
from pydantic_core import to_json

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.outputs import check_output, files_in, written_here, written_whole
from nas_evidence.plumbing.removal import remove
from nas_evidence.plumbing.sums import NAME, write_sums
from nas_evidence.reporting.contents import Report, StoredFact
from nas_evidence.reporting.correlations import write_csv
from nas_evidence.reporting.figures import figures_of
from nas_evidence.reporting.study_tables import RankedArchitecture
from nas_evidence.reporting.templating import write_markdown, write_page, write_table
from nas_evidence.spec.parameters import ARCHITECTURE, types_of

#: What report.json has of a report, beside its ranking.
_FACTS = (
    "comparison", "metric", "how_read", "refit_of",
    *(name for name, member in vars(Report).items() if isinstance(member, StoredFact)),
)  # fmt: skip


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report."""

    html: Path
    markdown: Path
    correlations: Path


@dataclass(frozen=True)
class Live:
    """What is under way in a running study.

    reload_seconds  after which an open page loads itself again
    now             when this was so, s since 1970
    holder          the process that runs the study, in words; "" while none does
    waits_for       what the study waits for while no trial can run, in words; "" otherwise
    trials          under way: trial, family, architecture, epoch, epochs, seconds and attempt of
                    each, and its losses: (epoch, nats per datum)
    """

    reload_seconds: int
    now: float
    holder: str = ""
    trials: Sequence[Mapping[str, object]] = ()
    waits_for: str = ""


def write_report(report: Report, to: Path, *, live: Live | None = None) -> ReportPaths:
    """Write the page, its text as Markdown, JSON and CSV into the folder `to`.

    The page of a running study shows what is `live`, and loads itself again.
    """
    to.mkdir(parents=True, exist_ok=True)
    paths = ReportPaths(to / "index.html", to / "report.md", to / "correlations.csv")
    remove(to / NAME)  # until all is written anew
    values = {
        "report": report,
        "figures": figures_of(report, () if live is None else live.trials),
        "live": live,
        "next": report.next_step(is_running=live is not None and bool(live.holder)),
    }
    write_page(paths.html, values)
    write_markdown(paths.markdown, values)
    write_csv(paths.correlations, report.trust.rows)
    write_whole(to / "report.json", as_json(report))
    terms = report.compared
    tables = {
        "ranking.csv": _ranking_table(report),
        "terms.csv": pd.DataFrame() if terms is None else terms.reset_index(),
    }
    for name, table in tables.items():
        write_table(to / name, table)
    ours = (paths.html, paths.markdown, paths.correlations)
    write_sums(to, [*(path.name for path in ours), "report.json", *tables])
    return paths


def write_report_whole(report: Report, to: Path, *, live: Live | None, force: bool) -> Path:
    """Write a report outside the study, all of it or nothing, and return the path of its page.

    Raises:
        ValueError: as `check_place`.
    """
    check_place(to, force=force)
    with written_whole(to, _written_by_report) as made:
        page = write_report(report, made, live=live).html.name
    return to / page


def check_place(to: Path, *, force: bool) -> None:
    """Check that a report may be written into a folder: it is empty, or holds a report.

    Args:
        to: the folder.
        force: whether files with the names of a report's may be replaced. Other files stay.

    Raises:
        ValueError: it may not.
    """
    ours = _written_by_report(to)
    foreign = [name for name in files_in(to) if name not in ours]
    check_output(to, foreign, verb="report", force=force)


def _written_by_report(folder: Path) -> set[str]:
    return written_here(folder, ("index.html", "report.md", "report.json"))


def as_json(report: Report) -> str:
    """Return the values of the page; the trials and their curves are in the Parquet tables."""
    study, terms = report.study, report.compared
    found = {
        "name": study.spec.name,
        "score": study.spec.objective,
        "ranked_by": study.ranks_by,
        "unit": study.objective_unit,
        "targets": study.targets,
        "n_trials": study.spec.n_trials,
        "n_searched": study.n_searched,
        "ranking": study.ranking,
    }
    values = {"study": found} | {name: getattr(report, name) for name in _FACTS}
    values["early"] = report.early.to_dict("records")
    values["compared"] = None if terms is None else terms.head(2).to_dict("records")
    scalar = methodcaller("item")  # of NumPy
    return to_json(values, indent=1, inf_nan_mode="null", fallback=scalar).decode()


def _ranking_table(report: Report) -> pd.DataFrame:
    """Return the ranking with all parameters of the space; whole numbers stay whole."""
    best = (report.certainty and report.certainty.best) or ()
    rows = [
        _flat(one) | {"p_best": best[i] if i < len(best) else None}
        for i, one in enumerate(report.study.ranking)
    ]
    table = pd.DataFrame(rows)
    kinds = {ARCHITECTURE + name: kind for name, kind in types_of(report.study.spec).items()}
    whole = [name for name, kind in kinds.items() if kind is int and name in table]
    return table.astype(dict.fromkeys(whole, "Int64"))


def _flat(one: RankedArchitecture) -> dict[str, object]:
    """Return a row without nesting: pairs become _low and _high, mappings columns."""
    flat: dict[str, object] = {}
    for name, value in vars(one).items():
        if isinstance(value, Mapping):
            prefix = ARCHITECTURE if name == "values" else ""
            flat |= {f"{prefix}{key}": inner for key, inner in value.items()}
        elif name == "rank_seeds":
            flat["rank_seeds_low"], flat["rank_seeds_high"] = value or (None, None)
        elif isinstance(value, tuple):
            flat[name] = " ".join(map(str, value))
        else:
            flat[name] = value
    return flat
