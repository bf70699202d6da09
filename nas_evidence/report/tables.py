"""What the report is about: the tables of a study folder, joined and ranked.

Only complete trials rank. A score is the last value of an estimator, missing where that value is
invalid; every score is larger-is-better, so that a correlation keeps its sign.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.record import TrialStatus
from nas_evidence.spec import BASELINES, CURVE_SCORES, ParameterValue
from nas_evidence.store import UnreadableFile, read_tables

TARGETS = ("test_accuracy", "test_log_likelihood")


@dataclass(frozen=True)
class RankedTrial:
    """One complete trial; `rank` is None where its objective is missing."""

    rank: int | None
    trial_id: int
    replicate: int | None
    family: str
    architecture: str
    values: Mapping[str, ParameterValue]
    n_parameters: int | None
    objective: float | None  # as `Study.objective_unit` says
    sotl: float | None  # nats per datum, summed over epochs; smaller is better
    test_accuracy: float | None  # fraction
    test_nll: float | None  # nats per datum


@dataclass(frozen=True)
class Study:
    """A study as the report sees it.

    trials      one row a finished trial, whatever its status
    complete    one row a complete trial: family, TARGETS and a column for each name in `scores`
    ranking     complete trials, best objective first
    evidence    every evaluation, with a column `shown`: per datum where that has a meaning
    curves      one row an epoch
    """

    name: str
    dataset: str
    objective: str
    objective_unit: str
    seed: int
    n_trials: int
    trials: pd.DataFrame
    complete: pd.DataFrame
    scores: tuple[str, ...]
    ranking: tuple[RankedTrial, ...]
    evidence: pd.DataFrame
    curves: pd.DataFrame
    unreadable: tuple[UnreadableFile, ...]

    @property
    def winner(self) -> RankedTrial | None:
        """Return the first of the ranking, or None while nothing ranks."""
        return self.ranking[0] if self.ranking and self.ranking[0].rank else None

    @property
    def yardstick(self) -> RankedTrial | None:
        """Return the best linear model, or None if there is none."""
        return next((trial for trial in self.ranking if trial.family == "linear"), None)

    @property
    def families(self) -> tuple[str, ...]:
        """Return the families of the ranking, sorted."""
        return tuple(sorted({trial.family for trial in self.ranking}))


def load_study_tables(folder: Path) -> Study:
    """Read a study folder.

    Raises:
        ValueError: the folder holds no study file.
    """
    study_file = folder / "study.toml"
    if not study_file.is_file():
        raise ValueError(
            f"a study folder holds study.toml, but {folder} does not; "
            "name the folder that `search` wrote (its --out, by default runs/<name>)."
        )
    spec = tomllib.loads(study_file.read_text(encoding="utf-8"))
    tables, unreadable = read_tables(folder, ["trials", "evidence", "curves"])
    trials, evidence, curves = tables["trials"], tables["evidence"], tables["curves"]
    evidence["shown"] = evidence["per_datum"].where(
        evidence["per_datum"].notna(), evidence["value"]
    )
    complete = trials[trials["status"] == TrialStatus.COMPLETE.value].set_index("trial_id")
    complete["test_log_likelihood"] = -complete["test_nll_per_datum"]
    objective = str(spec["objective"])
    scores = _final_scores(complete, evidence, curves, objective)
    names = _in_order(scores.columns, objective)
    return Study(
        name=str(spec["name"]),
        dataset=str(spec["dataset"]["name"]),
        objective=objective,
        objective_unit=_unit(evidence[evidence["estimator"] == objective]),
        seed=int(spec["seed"]),
        n_trials=int(spec["n_trials"]),
        trials=trials,
        complete=complete[["family", *TARGETS]].join(scores[list(names)]),
        scores=names,
        ranking=_ranking(complete, evidence, curves, objective),
        evidence=evidence,
        curves=curves,
        unreadable=unreadable,
    )


def last_evaluations(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the last evaluation of each estimator in each trial, valid or not."""
    return evidence.drop_duplicates(["trial_id", "estimator"], keep="last")


def usable(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the evaluations that are valid and have a value."""
    return evidence[evidence["valid"].fillna(False) & evidence["value"].notna()]


def _final_scores(
    complete: pd.DataFrame, evidence: pd.DataFrame, curves: pd.DataFrame, objective: str
) -> pd.DataFrame:
    last = usable(last_evaluations(evidence))
    scores = last.pivot(index="trial_id", columns="estimator", values="value")
    for estimator in {objective, *evidence["estimator"]}:
        if estimator not in scores:  # never once valid: a column of missing values, not no column
            scores[estimator] = float("nan")
    scores = scores.reindex(complete.index)
    final = curves.drop_duplicates("trial_id", keep="last").set_index("trial_id")
    baselines = {
        "n_parameters": complete["n_parameters"],
        "train_nll_per_datum": -final["train_nll_per_datum"].reindex(complete.index),
    }
    for name, values in baselines.items():
        if name not in scores:
            scores[name] = values
    return scores.astype(float)


def _in_order(names: pd.Index, objective: str) -> tuple[str, ...]:
    """Return the objective first, then other estimators, free scores, and baselines."""
    last = (*CURVE_SCORES, *BASELINES)
    others = sorted(set(names) - {objective, *last})
    return (objective, *others, *(name for name in last if name in names and name != objective))


def _unit(objective: pd.DataFrame) -> str:
    return "nats per datum" if objective["per_datum"].notna().any() else "larger is better"


def _ranking(
    complete: pd.DataFrame, evidence: pd.DataFrame, curves: pd.DataFrame, objective: str
) -> tuple[RankedTrial, ...]:
    last = usable(last_evaluations(evidence[evidence["estimator"] == objective]))
    shown = last.set_index("trial_id")["shown"].reindex(complete.index)
    sotl = curves.drop_duplicates("trial_id", keep="last").set_index("trial_id")["sotl"]
    best_first = shown.sort_values(ascending=False, kind="stable", na_position="last").index
    trials = []
    for position, trial_id in enumerate(best_first, start=1):
        row, value = complete.loc[trial_id], _known(shown[trial_id])
        values = {
            name.removeprefix("arch_"): row[name]
            for name in complete.columns
            if name.startswith("arch_") and not pd.isna(row[name])
        }
        n_parameters, replicate = row["n_parameters"], row["replicate"]
        trials.append(
            RankedTrial(
                rank=position if value is not None else None,
                trial_id=int(trial_id),
                replicate=None if pd.isna(replicate) else int(replicate),
                family=str(row["family"]),
                architecture=architecture_text(str(row["family"]), values),
                values=values,
                n_parameters=None if pd.isna(n_parameters) else int(n_parameters),
                objective=value,
                sotl=_known(sotl.get(trial_id)),
                test_accuracy=_known(row["test_accuracy"]),
                test_nll=_known(row["test_nll_per_datum"]),
            )
        )
    return tuple(trials)


def architecture_text(family: str, values: Mapping[str, ParameterValue]) -> str:
    """Return an architecture in words.

    >>> architecture_text("mlp", {"depth": 2, "width": 64})
    'mlp, depth 2, width 64'
    """
    return ", ".join([family, *(f"{name} {value}" for name, value in values.items())])


def _known(value: object) -> float | None:
    return None if value is None or pd.isna(value) else float(value)  # type: ignore[arg-type]
