"""One trial on the screen, the sentence that matters first."""

import math
from typing import Any

from nas_evidence.api.control import opened
from nas_evidence.api.progress import number_text, score_text
from nas_evidence.cli.terminal import out, print_json, print_line, print_rows
from nas_evidence.plumbing.durations import duration
from nas_evidence.plumbing.parsing import parsed_json

#: Rows of one trial by table.
_Tables = dict[str, list[dict[str, Any]]]
#: The numbers of a trial that a screen shows, by their words; some are real.
_FACTS = {
    "parameters": "n_parameters", "rows": "n_data", "epochs": "epochs",
    "test accuracy": "test_accuracy", "test RMSE": "test_rmse",
}  # fmt: skip
_REAL = frozenset({"test_accuracy", "test_rmse"})
#: A network that lost less than this share of its first training loss has learned nothing.
_LEARNED = 0.05
#: Below this share of effective parameters the prior holds all weights at zero.
_HELD = 0.001
_ENDED = {
    "pruned": "was pruned", "infeasible": "did not fit", "cancelled": "was cancelled",
    "out_of_memory": "ran out of memory",
}  # fmt: skip
_HIDDEN = ("error", "versions", "attempt", "architecture_key", "checksum")


def show(place: str, trial_id: int, all_terms: bool = False, as_json: bool = False) -> None:
    """Show one trial: how it ended and its scores; everything with `all_terms` or to a pipe."""
    from nas_evidence.storage.tables import TABLES, read_study_tables

    stored = read_study_tables(opened(place, looking="results").folder)
    stored.row(trial_id)  # refuses one that is not there
    tables: _Tables = {}
    for name in TABLES:
        frame = getattr(stored, name)
        tables[name] = parsed_json(
            frame[frame["trial_id"] == trial_id].to_json(orient="records", double_precision=15)
        )
    if as_json:
        print_json({"trial": tables.pop("trials")[0]} | tables)
        return
    from nas_evidence.reporting.study_tables import ranked_study

    study = ranked_study(stored)
    own = next((one for one in study.ranking if trial_id in one.trial_ids), None)
    n_ranked = sum(one.rank is not None for one in study.ranking)
    objective = str(study.spec.objective)
    said = trial_sentence(
        tables, objective, None if own is None else own.rank, n_ranked, by=study.ranks_by,
        ranked=None if own is None else study.value(own),
    )  # fmt: skip
    print_line("trial", said)
    if out.is_terminal and not all_terms:
        _print_screen(tables, stored.spec.plan.declared.kind.metrics["log_loss"])
    else:
        _print_trial(tables)


def trial_sentence(
    tables: _Tables,
    objective: str,
    rank: int | None,
    n_ranked: int,
    *,
    by: str | None = None,
    ranked: float | None = None,
) -> str:
    """Return the one sentence that matters about a trial.

    Args:
        tables: the rows of the trial in each table.
        objective: the score of a trial.
        rank: of its architecture, None if it has none.
        n_ranked: number of ranked architectures.
        by: what ranks architectures, by default the objective.
        ranked: its value of the architecture, where that is not the objective.
    """
    trial, curve = tables["trials"][0], tables["curves"]
    name = f"{trial['trial_id']} ({trial['family']})"
    if trial["status"] != "complete":
        why = trial["cause"] or (trial["error"] or "no cause stored").strip().split("\n")[-1]
        ended = _ENDED.get(trial["status"], trial["status"])
        return f"{name} {ended} after epoch {trial['epochs']}: {why}"
    known = (row["train_nll_per_datum"] for row in curve)
    losses = [loss for loss in known if loss is not None]
    accuracy = trial["test_accuracy"]
    tested = "" if accuracy is None else f", test accuracy {100 * accuracy:.1f} %"
    flat = len(losses) > 1 and losses[-1] > (1 - _LEARNED) * losses[0] and losses[0] > 0
    if flat or (losses and _at_chance(losses[-1], accuracy)):
        return (
            f"{name} never learned: its training loss was {losses[0]:.3f} nats in the first epoch "
            f"and {losses[-1]:.3f} in the last{tested}; {_reason(tables, trial)}"
        )
    last = [row for row in tables["evidence"] if row["estimator"] == objective and row["valid"]]
    if rank is None or not last:
        return f"{name} is complete but has no valid {objective}, so it does not rank"
    value = last[-1]["per_datum"] if last[-1]["per_datum"] is not None else last[-1]["value"]
    unit = " nats per datum" if last[-1]["per_datum"] is not None else ""
    order = f"{name} has the architecture ranked {rank} of {n_ranked} by {by or objective}"
    if by not in (None, objective) and ranked is not None:
        order += f" ({score_text(ranked)}{unit}); its {objective}"
    return f"{order}: {score_text(value)}{unit}{tested}"


def _at_chance(loss: float, accuracy: float | None) -> bool:
    """Return whether a training loss is that of guessing among k classes, and so is the accuracy.

    >>> _at_chance(2.3026, 0.1), _at_chance(2.3026, 0.5), _at_chance(0.1, 0.97)
    (True, False, False)
    """
    if accuracy is None or not 0.5 < loss < 10:
        return False
    k = round(math.exp(loss))
    return abs(loss - math.log(k)) < 0.02 and accuracy <= 1.5 / k


def _reason(tables: _Tables, trial: dict[str, Any]) -> str:
    """Say why a network has not learned, as far as its terms tell."""
    final = max((row["epoch"] for row in tables["terms"]), default=0)
    effective = [
        row["value"]
        for row in tables["terms"]
        if row["term"] == "effective_parameters" and row["epoch"] == final
    ]
    n = trial["n_parameters"] or 0
    if effective and n and sum(effective) < _HELD * n:
        return (
            f"the learned prior holds its weights at zero ({sum(effective):.1f} of {n:,} "
            "parameters are effective): let it learn first with --set plan.online.burn_in=EPOCHS"
        )
    return "try --set plan.learning_rate=VALUE, or more epochs with --set plan.epochs=N"


def _print_screen(tables: _Tables, log_loss: str) -> None:
    """Print what fits a screen: the facts that people ask for, and the scores.

    Args:
        tables: the rows of the trial in each table.
        log_loss: what that of the study's targets is called.
    """
    trial = tables["trials"][0]
    values = {key.removeprefix("arch_"): v for key, v in trial.items() if key.startswith("arch_")}
    architecture = ", ".join(f"{name} {v}" for name, v in values.items() if v is not None)
    print_line("architecture", f"{trial['family']} {architecture}".strip())
    for words, key in _FACTS.items():
        if trial.get(key) is not None:
            print_line(words, number_text(trial[key]) if key in _REAL else f"{trial[key]:,}")
    if trial["test_nll_per_datum"] is not None:
        print_line(f"test {log_loss}", number_text(trial["test_nll_per_datum"]))
    if trial["of"] is not None:
        print_line("of", trial["of"])
    if trial["total_seconds"] is not None:
        print_line("worker time", duration(trial["total_seconds"]))
    rows = [
        (
            r["estimator"],
            shown,
            "" if r["valid"] else f"invalid: {r['note'] or 'no reason stored'}",
        )
        for r, shown in _scores(tables)
    ]
    header = ("score", "per datum or value", "note")
    width = 3 if any(row[2] for row in rows) else 2
    print_rows(_title(tables), header[:width], [row[:width] for row in rows])
    out.print("(--all shows every column, and the terms of its evidence)")


def _print_trial(tables: _Tables) -> None:
    trial = tables["trials"][0]
    for key, value in trial.items():
        if value is not None and key not in _HIDDEN:
            print_line(key, value)
    print_rows(
        _title(tables),
        ("score", "per datum or value", "standard error", "valid", "note"),
        [
            (r["estimator"], shown, score_text(r["standard_error"]),
             "yes" if r["valid"] else "no", r["note"] or "")
            for r, shown in _scores(tables)
        ],
    )  # fmt: skip
    last = _last(tables)
    terms = [r for r in tables["terms"] if r["epoch"] == last]
    if out.is_terminal:  # zeros say nothing; a pipe gets every row
        terms = [r for r in terms if r["value"] is not None and abs(r["value"]) >= 0.0005]
    print_rows(
        "Terms that are not zero, nats summed over the data" if out.is_terminal else "Terms",
        ("score", "term", "group", "value"),
        [(r["estimator"], r["term"], r["group"], score_text(r["value"])) for r in terms],
    )
    if trial["error"]:
        out.print(trial["error"])


def _last(tables: _Tables) -> int:
    return max((row["epoch"] for row in tables["evidence"]), default=0)


def _title(tables: _Tables) -> str:
    return f"Scores after epoch {_last(tables)} (larger is better)"


def _scores(tables: _Tables) -> list[tuple[dict[str, Any], str]]:
    """Return the last row of each score, and its value as text."""
    last = {r["estimator"]: r["epoch"] for r in tables["evidence"]}  # in order of epochs
    return [
        (r, score_text(r["value"] if r["per_datum"] is None else r["per_datum"]))
        for r in tables["evidence"]
        if r["epoch"] == last[r["estimator"]]
    ]
