"""Two to ten studies on one page: their winners side by side, and the best so far over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.baselines.comparison import Comparison, read_comparison
from nas_evidence.plumbing.durations import duration
from nas_evidence.reporting import figures as draw
from nas_evidence.reporting.figure_data import Line
from nas_evidence.reporting.study_tables import Study, load_study_tables
from nas_evidence.reporting.templating import MISSING, named, number, write_page
from nas_evidence.spec.record import n_searched

FEWEST, MOST = 2, 10
HEADER = (
    "study", "score", "value", "test log loss", "test accuracy or RMSE", "best simple model",
    "trials", "worker time", "winner",
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """The rows of the table, one per study, and what to know before comparing them."""

    rows: list[list[str]]
    notes: list[str]


def compare_studies(
    folders: Sequence[Path], to: Path, places: Sequence[str] | None = None
) -> Compared:
    """Write a page about several studies into the folder `to`, and return its table.

    `places` are what the user calls the folders.

    Raises:
        ValueError: for fewer than two studies or more than ten.
    """
    if not FEWEST <= len(folders) <= MOST:
        raise ValueError(f"compare takes {FEWEST} to {MOST} studies, but got {len(folders)}.")
    studies = [load_study_tables(folder) for folder in folders]
    comparisons = [read_comparison(folder) for folder in folders]
    names = _names(studies, folders, places or folders)
    rows = [_row(*one) for one in zip(names, studies, comparisons, strict=True)]
    notes = _notes(studies)
    if same_power := _power_note(names, studies):
        # An integral of a power of the likelihood is no evidence: values at different powers are
        # of different quantities.
        notes.append(same_power)
        for row in rows:
            row[HEADER.index("value")] = MISSING
    figures = {}
    lines = [line for line in map(_best_so_far, names, studies) if line is not None]
    if lines and not same_power:
        figures["progress"] = draw.training_figure(
            "best score so far", lines, x_title="finished trials"
        )
    to.mkdir(parents=True, exist_ok=True)
    write_page(
        to / "index.html",
        "compare.html.j2",
        {
            "title": f"{len(studies)} studies compared",
            "header": HEADER,
            "rows": rows,
            "notes": notes,
            "figures": figures,
            "reload_seconds": None,
        },
    )
    return Compared(rows, notes)


def _names(
    studies: Sequence[Study], folders: Sequence[Path], places: Sequence[Path | str]
) -> list[str]:
    """Return the names of the studies, with the folder where it differs or two are the same."""
    names = [study.spec.name for study in studies]
    return [
        named(name, folder) if names.count(name) == 1 else f"{name} ({place})"
        for name, folder, place in zip(names, folders, places, strict=True)
    ]


def _row(name: str, study: Study, comparison: Comparison | None) -> list[str]:
    winner = study.winner
    seconds = float(study.trials["total_seconds"].astype(float).sum())
    n = f"{n_searched(study.trials['trial_id'])} of {study.spec.n_trials}"
    score = str(study.spec.objective)
    if winner is None:
        return [name, score, *[MISSING] * 4, n, duration(seconds), MISSING]
    labels = study.spec.plan.likelihood == "categorical"
    simple = MISSING
    if comparison is not None and comparison.trial_id == winner.trial_id and comparison.baselines:
        best = min(comparison.baselines, key=lambda one: one.behind)
        simple = f"{best.name} {number(best.metrics.get('log_loss'), 3)}"
    return [
        name,
        score,
        number(winner.objective, 4),
        number(winner.test_nll, 4),
        number(winner.test_accuracy if labels else winner.test_rmse, 4),
        simple,
        n,
        duration(seconds),
        winner.architecture,
    ]


def _notes(studies: Sequence[Study]) -> list[str]:
    """Say which columns cannot be compared between these studies, and why."""
    notes = []
    if len({study.spec.dataset.model_dump_json() for study in studies}) > 1:
        notes.append(
            "The studies are of different data or splits: no column says which is better."
        )
    if len({study.spec.objective for study in studies}) > 1:
        notes.append("They are ranked by different scores: compare the test columns only.")
    return notes


def _power_note(names: Sequence[str], studies: Sequence[Study]) -> str:
    """Refuse to compare scores of differently weighted or augmented data; "" if all are alike."""
    plans = [study.spec.plan for study in studies]
    values = {
        "likelihood_power": [f"{plan.likelihood_power:g}" for plan in plans],
        "augment": [" + ".join(sorted(plan.augment)) or "none" for plan in plans],
    }
    for key, of_each in values.items():
        if len(set(of_each)) > 1:
            pairs = zip(names, of_each, strict=True)
            each = ", ".join(f"{value} ({name})" for name, value in pairs)
            return f"Their scores are not compared: `{key}` is {each}."
    return ""


def _best_so_far(name: str, study: Study) -> Line | None:
    """Return the largest score of any trial so far, over the number of finished trials."""
    values = study.complete["objective"].dropna()
    if values.empty:
        return None
    best = values.cummax()
    return Line(
        label=name,
        family=name,
        epochs=tuple(range(1, len(best) + 1)),
        values=tuple(map(float, best)),
        emphasised=False,
    )
