"""Two to ten studies in one table: their winners side by side."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nas_evidence.baselines.comparison import Comparison, read_comparison
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.headline import rival_of
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables
from nas_evidence.reporting.words import named
from nas_evidence.spec.record import n_searched
from nas_evidence.spec.study import StudySpec

FEWEST, MOST = 2, 10
#: Columns of test results, and what a trial calls them.
_TESTED = {
    "test_nll": "test_nll_per_datum", "test_accuracy": "test_accuracy", "test_rmse": "test_rmse",
}  # fmt: skip


def compare(
    folders: Sequence[str | Path], places: Sequence[str | Path] | None = None
) -> pd.DataFrame:
    """Return the winners of two to ten studies, one row per study, in the order given.

    `value` is that of `score`, in its own unit, larger is better; `test_nll` in nats per datum,
    of real targets divided by their standard deviation; `worker_seconds` summed over trials.
    `attrs["notes"]` says which columns cannot be compared, and why. Rows and split decide: studies
    of one data set that read it otherwise are compared, as by `target_scale` or `drop`.

    Args:
        folders: of the studies.
        places: what to call studies of one name; the folders by default.

    Raises:
        ValueError: for fewer than two studies or more than ten, or what is no study.

    Example:
        nas_evidence.compare(["runs/digits", "runs/digits-wide"])
    """
    if not FEWEST <= len(folders) <= MOST:
        raise UserError(
            "number-of-studies",
            f"compare takes {FEWEST} to {MOST} studies, but got {len(folders)}.",
        )
    paths = [Path(folder) for folder in folders]
    studies = [load_study_tables(path) for path in paths]
    names = _names(studies, paths, places or paths)
    comparisons = [read_comparison(path) for path in paths]
    frame = pd.DataFrame(map(_row, names, studies, comparisons)).set_index("study")
    notes: dict[str, set[Any]] = {
        "The studies are of different data or splits: no column says which is better.": {
            study.spec.dataset.rows(study.spec.seed) for study in studies
        },
        "They are ranked by different scores: compare the test columns only.": {
            study.ranks_by for study in studies
        },
    }
    frame.attrs["notes"] = [note for note, kinds in notes.items() if len(kinds) > 1]
    for column, key, of_each in _kinds([study.spec for study in studies]):
        if len({*of_each}) > 1:
            each = ", ".join(map("{} ({})".format, of_each, names))
            what = {"value": "scores"}.get(column, column.replace("_", " "))
            frame.attrs["notes"].append(f"Their {what} are not compared: `{key}` is {each}.")
            frame[column] = float("nan")
    return frame


def _kinds(specs: Sequence[StudySpec]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield columns whose values are of different kinds where a key differs, and the key's values.

    An integral of a power of the likelihood is no evidence: values at different powers are of
    different quantities. Class weights decide what an error counts in an accuracy.
    """
    plans = [spec.plan for spec in specs]
    yield "value", "likelihood_power", [f"{plan.likelihood_power:g}" for plan in plans]
    yield "value", "augment", [" + ".join(sorted(plan.augment)) or "none" for plan in plans]
    weights = [spec.dataset.class_weight for spec in specs]
    yield "test_accuracy", "class_weight", [_weights_text(one) for one in weights]


def _weights_text(weights: str | Mapping[str, float] | None) -> str:
    if weights is None or isinstance(weights, str):
        return weights or "none"
    return ",".join(f"{name}={weight:g}" for name, weight in sorted(weights.items()))


def _names(
    studies: Sequence[RankedStudy], folders: Sequence[Path], places: Sequence[Path | str]
) -> list[str]:
    names = [study.spec.name for study in studies]
    return [
        named(name, folder) if names.count(name) == 1 else f"{name} ({place})"
        for name, folder, place in zip(names, folders, places, strict=True)
    ]


def _row(name: str, study: RankedStudy, comparison: Comparison | None) -> dict[str, object]:
    winner = study.winner
    is_of_winner = comparison and winner and comparison.trial_id == winner.trial_id
    judged = comparison if is_of_winner else None
    rival = rival_of(judged)
    results: Any = vars(winner) if winner else {}
    if winner and not study.spec.trains_whole:  # those of fold networks are not compared
        results = study.tables.row_of_network(winner.trial_id)
        results = {} if results["of"] == "folds" else results
    tested = {name: results.get(column) for name, column in _TESTED.items()}
    return {
        "study": name,
        "score": study.ranks_by,
        "value": winner and study.value(winner),
        **{name: None if pd.isna(value) else value for name, value in tested.items()},
        "best_simple_model": rival and rival.model.name,
        "its_log_loss": rival and rival.model.metrics.get("log_loss"),
        "n_trials": n_searched(study.trials["trial_id"]),
        "worker_seconds": float(study.trials["total_seconds"].astype(float).sum()),
        "winner": winner and winner.architecture,
    }
