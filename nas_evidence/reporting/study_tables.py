"""A study folder as tables: read the Parquet files, average replicates, rank architectures.

The unit of every comparison is the architecture: trials that differ only in their seed are its
replicates and enter as their mean, never as independent architectures. All targets are
larger-is-better, so that correlations keep their sign: losses are negated and keep their name.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.maths.pareto import on_front
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import ParameterValue, architecture_text
from nas_evidence.spec.parameters import columns_of, searched_in
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.record import n_searched as count_searched
from nas_evidence.spec.registry import FREE_SCORES
from nas_evidence.spec.study import ALL_COSTS, ESTIMATED, StudySpec
from nas_evidence.storage.best import ESTIMATE, Standing, Standings, ranks_trials_by
from nas_evidence.storage.tables import (
    COLUMNS,
    StudyTables,
    architecture_values,
    own_values,
    read_study_tables,
)

#: Results on test rows of which less is better.
LOSSES = frozenset({"test_nll_per_datum", "test_rmse"})
Row = Mapping[str, Any]  # a table row by column
#: Baselines that are also known without an evaluation.
_FROM_OTHER_TABLES = frozenset({"n_parameters", "train_nll_per_datum"})
#: Of the ranking on the page, beside the parameters, the objective and the costs.
_HEADINGS = (
    "rank", "trial", "architecture", "family", "parameters", "estimate", "error", "front", "seeds",
)  # fmt: skip
#: Maximum number of epochs shown along training; evenly spaced, including the last one.
MAX_EPOCHS = 12


#: What `ranked_study` adds to the columns of complete trials.
_ADDED = ("objective", "ranked", "sotl")


@dataclass(frozen=True)
class RankedArchitecture:
    """One architecture with complete trials; values are means over them.

    A field whose name is a column of numbers in `trials` has the mean of that column.

    rank         None if the objective is missing
    trial_id     the trial that represents it: the replicate with the best objective
    estimate     what ranks few rows (see `storage/best.py`), with its standard deviation; the mean
                 of both scores, without one, where too few or too many are ranked
    spread       standard deviation of the objective over seeds, None for one value
    rank_seeds   best and worst rank that a single one of its replicates would have
    raced        whether the race of the finalists trained it again
    costs        n_parameters, flops, memory_bytes and latency_seconds, where known
    on_front     no other is as good in all objectives and better in one; None for one objective
    own          columns that callbacks have added, of that trial
    """

    rank: int | None
    trial_id: int
    trial_ids: tuple[int, ...]
    family: str
    architecture: str
    values: Mapping[str, ParameterValue]
    n_parameters: int | None
    objective: float | None  # in `RankedStudy.objective_unit`
    estimate: float | None  # in the same unit
    estimate_error: float | None
    spread: float | None
    rank_seeds: tuple[int, int] | None
    raced: bool
    sotl: float | None  # nats per datum, summed over epochs; smaller is better
    test_accuracy: float | None  # fraction
    test_nll_per_datum: float | None  # nats per datum
    test_rmse: float | None  # in the unit of the target
    costs: Mapping[str, float]
    on_front: bool | None
    own: Mapping[str, ParameterValue] = field(default_factory=dict)


#: The columns of `trials` of which the ranking has the mean.
AVERAGED = tuple(
    one.name
    for one in fields(RankedArchitecture)
    if one.name in COLUMNS["trials"] and COLUMNS["trials"][one.name].kind is float
)


@dataclass(frozen=True)
class RankedStudy:
    """A study as the report sees it.

    trials         one row per finished trial, whatever its status
    complete       one row per complete trial, by trial_id; `objective` as shown, and `ranked`, the
                   value that ranks in the same unit
    architectures  one row per architecture with complete trials, by key, in order of first
                   trial: family, `targets` and a column for each name in `scores`
    ranking        the same, best objective first
    evidence       every evaluation, with a column `shown`: per datum where that is defined
    terms          the parts of the last evaluations
    curves         one row per epoch
    by_epoch       trial_id, epoch, score, value (larger is better) of all trials at `epochs`,
                   including pruned ones
    epochs         epochs with stored evidence, at most MAX_EPOCHS
    tables         as they were read
    """

    spec: StudySpec
    objective_unit: str
    targets: tuple[str, ...]
    trials: pd.DataFrame
    complete: pd.DataFrame
    architectures: pd.DataFrame
    scores: tuple[str, ...]
    ranking: tuple[RankedArchitecture, ...]
    evidence: pd.DataFrame
    terms: pd.DataFrame
    curves: pd.DataFrame
    by_epoch: pd.DataFrame
    epochs: tuple[int, ...]
    tables: StudyTables

    @property
    def n_searched(self) -> int:
        """Return the number of finished trials of the search, without those of the race."""
        return count_searched(self.trials["trial_id"])

    @property
    def winner(self) -> RankedArchitecture | None:
        """Return the first of the ranking, or None while nothing ranks."""
        return self.ranking[0] if self.ranking and self.ranking[0].rank else None

    @property
    def order(self) -> str:
        """Return what the ranking is by, in a sentence."""
        ranked = [one for one in self.ranking if one.rank is not None]
        score, raced = self.spec.objective, sum(one.raced for one in ranked)
        first = f"first {raced} were" if raced > 1 else "first one was"
        if self.spec.rank_by == "estimate":
            before = f"The {first} trained several times; the others follow. " if raced else ""
            if not self.is_estimated:
                return f"{before}Ranked by {self.ranks_by}, best first."
            return (
                f"{before}Ranked by `estimate`: the mean of {' and '.join(ESTIMATED)}, smoothed "
                "over similar architectures, so that one lucky seed counts less."
            )
        if 0 < raced < len(ranked):
            return (
                f"The {first} trained several times and ranked by the mean {score}. The others "
                "follow by one training each, whose score may be higher by luck."
            )
        means = any(len(one.trial_ids) > 1 for one in ranked)
        return f"Ranked by {f'the mean {score} over seeds' if means else score}, best first."

    @cached_property
    def is_estimated(self) -> bool:
        """Return whether the architectures are ranked by their estimates."""
        return any(one.estimate_error is not None for one in self.ranking)

    @property
    def ranks_by(self) -> str:
        """Return the name of what the architectures are ranked by."""
        return ESTIMATE if self.is_estimated else self.ranks_trials_by

    @property
    def ranks_trials_by(self) -> str:
        """Return the name of the same of a single trial."""
        return ranks_trials_by(self.spec)

    @property
    def baseline(self) -> RankedArchitecture | None:
        """Return the best linear model, or None."""
        return next((one for one in self.ranking if one.family == "linear"), None)

    def value(self, one: RankedArchitecture) -> float | None:
        """Return what ranks an architecture, in the unit of the objective."""
        return one.estimate if self.spec.rank_by == "estimate" else one.objective

    def values(self, one: RankedArchitecture) -> list[float]:
        """Return the value that ranks of each replicate of an architecture, as shown."""
        found = (self._ranked[trial_id] for trial_id in one.trial_ids)
        return [value for value in found if not math.isnan(value)]

    @cached_property
    def _ranked(self) -> dict[int, float]:
        return dict(self.complete["ranked"].items())

    @cached_property
    def replicated(self) -> bool:
        """Return whether any architecture was trained with several seeds."""
        return any(len(one.trial_ids) > 1 for one in self.ranking)

    @cached_property
    def parameters(self) -> list[str]:
        """Return depth, width, and the other parameters that are searched."""
        return searched_in(self.spec)

    @property
    def headings(self) -> list[str]:
        """Return the headings of `parameters` in a table that has other columns, too."""
        others = {*_HEADINGS, *self.spec.minimise, str(self.spec.objective)}
        return list(columns_of(self.parameters, others).values())

    @cached_property
    def history(self) -> pd.DataFrame:
        """Return one row per finished trial, in order of completion as far as it is known.

        architecture in words; `score`, what ranks a trial, as shown, and `best` of all until then;
        `raced`, whether it is of the race; `cause`; `seconds` of a worker.
        """
        place = {trial_id: i for i, trial_id in enumerate(self.tables.ended)}
        order = [place.get(trial_id, len(place)) for trial_id in self.trials["trial_id"]]
        rows = self.trials.assign(order=order).sort_values(["order", "trial_id"])
        words = (
            architecture_text(str(row["family"]), architecture_values(row))
            for row in rows.to_dict("records")
        )
        score = self.complete["ranked"].reindex(rows["trial_id"]).astype(float)
        found = rows[["trial_id", "family", "status", "cause", "epochs"]].reset_index(drop=True)
        return found.assign(
            architecture=list(words),
            score=score.to_numpy(),
            best=score.cummax().ffill().to_numpy(),
            raced=(rows["stage"] == "race").to_numpy(),
            seconds=rows["total_seconds"].astype(float).to_numpy(),
        )

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Return the families of the ranking, sorted."""
        return tuple(sorted({one.family for one in self.ranking}))


def load_study_tables(folder: Path) -> RankedStudy:
    """Read a study folder.

    Raises:
        ValueError: the folder holds no study file, or one with mistakes.
    """
    return ranked_study(read_study_tables(folder))


def ranked_study(tables: StudyTables) -> RankedStudy:
    """Return a study with its ranking, from tables that were read."""
    spec, trials, curves = tables.spec, tables.trials, tables.curves
    own = tables.evidence["per_datum"]
    evidence = tables.evidence.assign(shown=own.where(own.notna(), tables.evidence["value"]))
    objective = str(spec.objective)
    complete = trials[trials["status"] == TrialStatus.COMPLETE.value].set_index("trial_id")
    scores = _final_scores(complete, evidence, curves, objective)
    names, epochs = _in_order(scores.columns, objective), _epochs(evidence)
    complete["objective"] = _shown(evidence, curves, scores, objective)
    complete["ranked"] = complete["objective"]
    if spec.rank_by == "estimate":
        parts = [_shown(evidence, curves, scores, name) for name in ESTIMATED]
        complete["ranked"] = sum(parts) / len(parts)
    final = curves.drop_duplicates("trial_id", keep="last").set_index("trial_id")
    complete["sotl"] = final["sotl"].reindex(complete.index).astype(float)
    targets = spec.plan.declared.kind.tests
    for target in targets:
        sign = -1.0 if target in LOSSES else 1.0
        scores[target] = sign * complete[target].astype(float)
    keys = complete["architecture_key"]
    architectures = scores.groupby(keys, sort=False).mean()
    architectures.insert(0, "family", complete.groupby("architecture_key")["family"].first())
    ranking = _ranking(complete, tables.standings, spec)
    if spec.rank_by == "estimate":
        names = (ESTIMATE, *names)
        architectures[ESTIMATE] = pd.Series(
            {keys[one.trial_id]: one.estimate for one in ranking}, dtype=float
        )
    of_term = ["trial_id", "estimator", "epoch"]
    return RankedStudy(
        spec=spec,
        objective_unit=_unit(evidence[evidence["estimator"] == objective]),
        targets=targets,
        trials=trials,
        complete=complete,
        architectures=architectures[["family", *targets, *names]],
        scores=names,
        ranking=ranking,
        evidence=evidence,
        terms=tables.terms.merge(last_evaluations(evidence)[of_term], on=of_term),
        curves=curves,
        by_epoch=_by_epoch(evidence, curves, names, epochs),
        epochs=epochs,
        tables=tables,
    )


def last_evaluations(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the last evaluation of each estimator in each trial, valid or not."""
    return evidence.drop_duplicates(["trial_id", "estimator"], keep="last")


def usable(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the evaluations that are valid and have a value."""
    return evidence[evidence["valid"].fillna(False) & evidence["value"].notna()]


def by_trial(evidence: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a column of the last evaluations as trials x estimators, missing if not valid.

    Infinite values stay.
    """
    last = _ordered(last_evaluations(evidence))
    return last.pivot(index="trial_id", columns="estimator", values=column)


def _ordered(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the usable evaluations, and infinite ones, which are first or last in an order."""
    infinite = np.isinf(evidence["value"].astype(float))
    return evidence[evidence.index.isin(usable(evidence).index) | infinite]


def _epochs(evidence: pd.DataFrame) -> tuple[int, ...]:
    epochs = sorted({int(epoch) for epoch in evidence["epoch"]} - {0})
    if len(epochs) <= MAX_EPOCHS:
        return tuple(epochs)
    step = (len(epochs) - 1) / (MAX_EPOCHS - 1)
    return tuple(epochs[round(i * step)] for i in range(MAX_EPOCHS))


def _by_epoch(
    evidence: pd.DataFrame, curves: pd.DataFrame, scores: Sequence[str], epochs: Sequence[int]
) -> pd.DataFrame:
    own = _ordered(evidence)[["trial_id", "epoch", "estimator", "value"]]
    own = own.rename(columns={"estimator": "score"})
    free = [name for name in FREE_SCORES if name in scores and name != "n_parameters"]
    points = curves[curves["epoch"].isin(epochs)]
    long = points.melt(["trial_id", "epoch"], free, "score", "value")
    long["value"] = -long["value"].astype(float)
    keys = ["trial_id", "epoch", "score"]
    return pd.concat([own, long]).drop_duplicates(keys).dropna(subset="value")


def _final_scores(
    complete: pd.DataFrame, evidence: pd.DataFrame, curves: pd.DataFrame, objective: str
) -> pd.DataFrame:
    scores = by_trial(evidence, "value")
    for estimator in {objective, *evidence["estimator"]} - _FROM_OTHER_TABLES:
        if estimator not in scores:  # never valid: a column of missing values
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


def _shown(
    evidence: pd.DataFrame, curves: pd.DataFrame, scores: pd.DataFrame, objective: str
) -> pd.Series:
    own = usable(last_evaluations(evidence[evidence["estimator"] == objective]))
    shown = own.set_index("trial_id")["shown"].reindex(scores.index)
    # A score that no trial has, as where all failed, is NaN.
    free = pd.Series(scores.get(objective, math.nan), scores.index, dtype=float)
    return shown.astype(float).fillna(free.where(np.isfinite(free)))


def _in_order(names: pd.Index, objective: str) -> tuple[str, ...]:
    last = FREE_SCORES
    others = sorted(set(names) - {objective, *last})
    return (objective, *others, *(name for name in last if name in names and name != objective))


def _unit(objective: pd.DataFrame) -> str:
    return "nats per datum" if objective["per_datum"].notna().any() else "larger is better"


def _ranking(
    complete: pd.DataFrame, standings: Standings, spec: StudySpec
) -> tuple[RankedArchitecture, ...]:
    groups: dict[str, list[Row]] = {}
    for row in complete.reset_index().to_dict("records"):
        groups.setdefault(str(row["architecture_key"]), []).append(row)
    standing = {one.key: one for one in standings.first()}
    if not groups.keys() >= standing.keys():
        raise UserError(
            "tables-contradict",
            "the tables contradict each other: a trial's architecture is not the one of its key; "
            "`nas-evidence verify` says which",
        )
    objectives = {key: _known(rows, "objective") for key, rows in groups.items()}
    means = {key: fmean(objectives[key]) for key in standing}
    costs = {key: _costs(rows) for key, rows in groups.items()}
    front = _front(means, costs, spec.minimise)
    ascending = sorted(means.values())
    found = []
    for rank, key in enumerate(dict.fromkeys([*standing, *groups]), start=1):
        rows, own = groups[key], standing.get(key)
        known = (row for row in rows if own is not None and row["trial_id"] == own.trial_id)
        one = next(known, rows[0])
        values, family = architecture_values(one), str(one["family"])
        estimate, error = _estimate(spec, own, rows)
        found.append(
            RankedArchitecture(
                rank=rank if key in means else None,
                trial_id=int(one["trial_id"]),
                trial_ids=tuple(int(row["trial_id"]) for row in rows),
                family=family,
                architecture=architecture_text(family, values),
                values=values,
                n_parameters=int(n) if (n := costs[key].get("n_parameters")) is not None else None,
                objective=_mean(rows, "objective"),
                estimate=estimate,
                estimate_error=error,
                spread=stdev(objectives[key]) if len(objectives[key]) > 1 else None,
                rank_seeds=_rank_seeds(objectives[key], ascending),
                raced=any(row.get("stage") == "race" for row in rows),
                sotl=_mean(rows, "sotl"),
                **{name: _mean(rows, name) for name in AVERAGED},
                costs=costs[key],
                on_front=front.get(key, False) if spec.minimise else None,
                own=own_values({k: v for k, v in one.items() if k not in _ADDED}),
            )
        )
    return tuple(found)


def _estimate(
    spec: StudySpec, standing: Standing | None, rows: list[Row]
) -> tuple[float | None, float | None]:
    """Return the estimate of an architecture as shown, and its standard deviation.

    Without one it is the mean of the values, and no deviation is known.
    """
    if spec.rank_by != "estimate" or standing is None:
        return None, None
    mean = fmean(_known(rows, "ranked"))
    if standing.estimate is None or standing.error is None:
        return mean, None
    # Shown per datum, stored as the mean over folds: the folds are the same for all.
    share = mean / standing.mean if standing.mean else 1.0
    return share * standing.estimate, share * standing.error


def _rank_seeds(values: list[float], ascending: list[float]) -> tuple[int, int] | None:
    """Return the best and worst rank that any of `values` has among the others' means."""
    if len(values) < 2:
        return None
    own = fmean(values)
    ranks = [
        1 + len(ascending) - bisect_right(ascending, value) - int(own > value) for value in values
    ]
    return min(ranks), max(ranks)


def _costs(rows: list[Row]) -> dict[str, float]:
    found = {name: _mean(rows, name) for name in ALL_COSTS}
    return {name: value for name, value in found.items() if value is not None}


def _front(
    objective: Mapping[str, float],
    costs: Mapping[str, Mapping[str, float]],
    minimise: tuple[str, ...],
) -> dict[str, bool]:
    keys = [key for key in objective if all(name in costs[key] for name in minimise)]
    if not minimise or not keys:
        return {}
    gains = [(objective[key], *(-costs[key][name] for name in minimise)) for key in keys]
    return dict(zip(keys, on_front(gains), strict=True))


def _known(rows: list[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if not pd.isna(row[name])]


def _mean(rows: list[Row], name: str) -> float | None:
    known = _known(rows, name)
    return fmean(known) if known else None
