"""How well each score ranks: statistics, sentences and warnings.

A score is compared with the target over all rows and within each group (family), beside baselines
that cost nothing. An evidence that does not beat the number of parameters is useless, and the
text says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nas_evidence.maths.ranking import (
    Floats,
    RankStatistics,
    random_statistics,
    rank_statistics,
    regret,
    resampling_plan,
    share_at_least_as_good,
    spearman,
)
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.reporting.templating import write_table
from nas_evidence.reporting.words import WORDS, Scale, chance, scale_of, words_of
from nas_evidence.spec.registry import SCORES

ALL = "all"
REGRET_AT = (1, 3, 10)
#: The columns that fit a terminal; `COLUMNS` adds intervals and partial correlations.
MAIN_COLUMNS = ("score", "target", "group", "n", "rho", "rho_low", "rho_high", "tau", "regret_1",
                "regret_3", "note")  # fmt: skip
COLUMNS = (
    *MAIN_COLUMNS[:-1], "regret_10", "tau_low", "tau_high",
    *(f"regret_{k}_{end}" for k in REGRET_AT for end in ("low", "high")),
    "partial_rho", "partial_rho_low", "partial_rho_high", "note",
)  # fmt: skip
#: The baseline that partial correlations control for.
SIZE = "n_parameters"
#: The baseline without information: a random order.
RANDOM = "random"
#: A rival that ranks at least as well in more than this share of resamples is not clearly worse.
NOT_CLEARLY_WORSE = 0.05
_NAMED = 2  # baselines named per group


@dataclass(frozen=True)
class Correlation:
    """One row of correlations.csv."""

    score: str
    target: str
    group: str
    statistics: RankStatistics

    def cells(self) -> dict[str, object]:
        """Return the row by column; an undefined value is empty, and `note` says why."""
        s = self.statistics
        regret, ends = s.regret or {}, s.regret_intervals or {}
        notes = [f"undefined: {s.reason}" if s.reason else ""]
        notes += [f"{s.n_missing} dropped for missing values" if s.n_missing else ""]
        cells: dict[str, object] = {
            "score": self.score, "target": self.target, "group": self.group, "n": s.n,
            "rho": s.rho, "tau": s.tau, "partial_rho": s.partial,
            "note": "; ".join(filter(None, notes)),
        }  # fmt: skip
        cells |= {f"regret_{k}": regret.get(k) for k in REGRET_AT}
        intervals = {
            "rho": s.rho_interval,
            "tau": s.tau_interval,
            "partial_rho": s.partial_interval,
        }
        intervals |= {f"regret_{k}": ends.get(k) for k in REGRET_AT}
        for name, interval in intervals.items():
            cells |= {f"{name}_low": interval and interval.low}
            cells |= {f"{name}_high": interval and interval.high}
        return {column: cells[column] for column in COLUMNS}


@dataclass(frozen=True)
class Trust:
    """The answer to "can this score be trusted here?"; `main` is the score that ranks."""

    main: str
    rivals: tuple[str, ...]
    rows: tuple[Correlation, ...]
    sentences: tuple[tuple[str, str], ...]  # (score, verdict)
    warnings: tuple[str, ...]
    scale: Scale  # of the first target

    @property
    def told(self) -> tuple[tuple[str, str], ...]:
        """The verdicts on the scores beside the main one; those that are too few to tell at once.

        The verdict on the main score is said on its own.
        """
        others = [one for one in self.sentences if one[0] != self.main]
        unclear = [score for score, said in others if said[0].isdigit()]
        clear = [one for one in others if one[0] not in unclear]
        if not unclear:
            return tuple(clear)
        last = (
            "the 95 % interval of rho includes 0, so this order may be chance; the table below "
            "has the numbers."
        )
        return (*clear, (", ".join(unclear), last))

    def defined(self, target: str) -> bool:
        """Return whether any correlation with `target` is defined."""
        return any(row.target == target and not row.statistics.reason for row in self.rows)


def trust(
    frame: pd.DataFrame,
    *,
    scores: Sequence[str],
    targets: Sequence[str],
    rivals: Sequence[str],
    group: str | None,
    noun: str = "architectures",
    seed: int = 0,
) -> Trust:
    """Compare every score with every target, over all rows of `frame` and within each group.

    An additional score `random` gives the average of random orders. If `frame` has a column
    n_parameters, partial correlations control for it.

    Args:
        frame: one row per architecture; scores, targets and group are columns.
        scores: the first one is the score that ranks.
        targets: sentences and the random baseline are about the first one.
        rivals: the baselines, which the first score has to beat.
        group: the column of the groups, or None.
        noun: what the rows are called.
        seed: seed of the resampling plan of each group.
    """
    groups = {ALL: frame}
    if group is not None:
        groups |= {str(name): part for name, part in frame.groupby(group)}
    plans = {name: resampling_plan(len(part), seed=seed) for name, part in groups.items()}
    rows = tuple(
        Correlation(
            score,
            target,
            name,
            rank_statistics(
                part[score],
                part[target],
                plan=plans[name],
                given=part[SIZE] if SIZE in part and SIZE not in (score, target) else None,
                regret_at=REGRET_AT,
            ),
        )
        for target in targets
        for score in scores
        for name, part in groups.items()
    )
    if RANDOM not in scores:
        rows += tuple(
            Correlation(RANDOM, target, name, random_statistics(part[target], regret_at=REGRET_AT))
            for target in targets
            for name, part in groups.items()
        )
    free = (*rivals, RANDOM) if RANDOM not in scores else tuple(rivals)
    first = scale_of(targets[0])
    pooled = [r for r in rows if r.group == ALL and r.target == targets[0]]
    sentences = tuple((row.score, _sentence(row, first, noun)) for row in pooled)
    if len({sentence for _, sentence in sentences}) == 1:
        sentences = sentences[:1]  # too few rows for any of them
    return Trust(
        main=scores[0],
        rivals=free,
        rows=rows,
        sentences=sentences,
        warnings=(*_rivals_ahead(rows, scores[0], free, noun),
                  *_rivals_close(frame, plans[ALL], pooled, scores[0], rivals),
                  *_reversals(rows, scores[0]), *_explained_by_size(pooled[0])),
        scale=first,
    )  # fmt: skip


def write_csv(path: Path, rows: Sequence[Correlation]) -> None:
    """Write correlations.csv."""
    write_table(path, pd.DataFrame([row.cells() for row in rows], columns=COLUMNS, dtype=object))


def _sentence(row: Correlation, scale: Scale, noun: str) -> str:
    s, words = row.statistics, words_of(row.target)
    if s.rho is None or s.regret is None:
        if s.n == 0:
            return (
                "cannot be checked here: there are no test rows. test_fraction=0.2 "
                "(--test-fraction) splits some off."
            )
        return f"unknown: {s.reason}."
    if row.score == RANDOM and s.rho_interval is not None:
        return (
            f"in 95 % of random orders of {s.n} {noun}, rho lies within ± "
            f"{s.rho_interval.high:.2f}; the first choice of one loses "
            f"{scale.text(s.regret[1])} of {words} on average."
        )
    interval = "no interval"
    if s.rho_interval is not None:
        low, high = s.rho_interval.low, s.rho_interval.high
        interval = f"95 % interval {low:.2f} to {high:.2f}"
        if high < 0:
            verdict = f"orders the {noun} in reverse"
        elif low <= 0:
            verdict = f"{s.n} {noun} are too few to tell whether this score predicts {words}"
        elif s.rho >= 0.8:
            verdict = f"orders the {noun} much like {words}"
        elif s.rho >= 0.5:
            verdict = f"orders the {noun} roughly like {words}"
        else:
            verdict = f"orders the {noun} only loosely like {words}"
    else:
        verdict = "has too few distinct values for an interval"
    rows = "these test rows" if row.target in WORDS else "these rows"
    choice = f"On {rows} its first choice also has the best {words}"
    if s.regret[1] > 0:
        choice = (
            f"On {rows} the {words} of its first choice is {scale.text(s.regret[1])} worse than "
            "the best"
        )
    risk = (s.regret_intervals or {}).get(1)
    if risk is not None and risk.high > 0:
        least = scale.text(risk.low).split()[0]
        choice += f" ({least} to {scale.text(risk.high)} in resamples)"
    count = "" if verdict.startswith(str(s.n)) else f", {s.n} {noun}"
    return f"{verdict} (rho {s.rho:.2f}, {interval}{count}). {choice}."


def _rivals_ahead(
    rows: Sequence[Correlation], main: str, rivals: Sequence[str], noun: str
) -> list[str]:
    """Return a warning for each target against which a baseline has at least the same rho."""
    rho = {(r.target, r.group, r.score): r.statistics.rho for r in rows}
    warnings = []
    for target in dict.fromkeys(row.target for row in rows):
        places = []
        for group in dict.fromkeys(row.group for row in rows):
            own = rho[target, group, main]
            known = [(value, r) for r in rivals if (value := rho[target, group, r]) is not None]
            ahead = sorted(pair for pair in known if own is not None and pair[0] >= own)[::-1]
            if ahead:
                where = f"over all {noun}" if group == ALL else f"within {group}"
                named = ahead if group == ALL else ahead[:_NAMED]  # there may be many groups
                names = ", ".join(f"{rival} {value:.2f}" for value, rival in named)
                if len(ahead) > len(named):
                    names += f" and {len(ahead) - len(named)} more"
                places.append(f"{where} (rho {own:.2f}): {names}")
        if places:
            warnings.append(
                f"Against {words_of(target)}, {main} is no better than baselines "
                f"{'; '.join(places)}."
            )
    return warnings


def _rivals_close(
    frame: pd.DataFrame,
    plan: Floats,
    pooled: Sequence[Correlation],
    main: str,
    rivals: Sequence[str],
) -> list[str]:
    target = pooled[0].target
    rho = {row.score: row.statistics.rho for row in pooled}
    close = []
    for rival in rivals:
        share = share_at_least_as_good(frame[rival], frame[main], frame[target], plan=plan)
        own, other = rho[main], rho[rival]
        behind = own is not None and other is not None and other < own
        if behind and share is not None and share > NOT_CLEARLY_WORSE:
            close.append(f"{rival} (at least as good in {chance(share)} of resamples)")
    if not close:
        return []
    return [f"Against {words_of(target)}, {main} is not clearly ahead of {', '.join(close)}."]


def _reversals(rows: Sequence[Correlation], main: str) -> list[str]:
    """Return a warning where the order over all rows is the reverse of that in every group."""
    warnings = []
    for target in dict.fromkeys(row.target for row in rows):
        rho = {
            row.group: row.statistics.rho
            for row in rows
            if (row.score, row.target) == (main, target) and row.statistics.rho is not None
        }
        pooled, within = rho.pop(ALL, None), rho
        if pooled and len(within) > 1 and all(pooled * own < 0 for own in within.values()):
            groups = ", ".join(f"{group} {own:.2f}" for group, own in within.items())
            warnings.append(
                f"Simpson's paradox: against {words_of(target)}, {main} has rho {pooled:.2f} over "
                f"all, but the opposite sign within every group ({groups}). It separates the "
                "groups but misleads within each."
            )
    return warnings


def _explained_by_size(row: Correlation) -> list[str]:
    s = row.statistics
    if s.rho is None or s.rho_interval is None or s.partial is None or s.partial_interval is None:
        return []
    if not (s.rho_interval.low > 0 and s.partial_interval.low <= 0):
        return []
    return [
        f"Against {words_of(row.target)}, {row.score} may measure only the size: given {SIZE}, "
        f"its rho falls from {s.rho:.2f} to {s.partial:.2f} (95 % interval "
        f"{s.partial_interval.low:.2f} to {s.partial_interval.high:.2f})."
    ]


def early_trust(study: RankedStudy) -> pd.DataFrame:
    """Return how the scores that change in training rank the first target at each epoch.

    score, epoch, n (architectures that have both), rho with the ends of its interval, regret at 1.
    """
    target = study.architectures[study.targets[0]]
    constant = {name for name, one in SCORES.items() if one.taken == "before"} - {SIZE}
    keys = study.by_epoch["trial_id"].map(study.complete["architecture_key"])
    long = study.by_epoch.assign(key=keys)
    means = long.groupby(["score", "epoch", "key"])["value"].mean()
    plan = resampling_plan(len(target), seed=study.spec.seed)
    found = []
    for score in (name for name in study.scores if name not in constant):
        for epoch in study.epochs:
            if score == SIZE:
                values = study.architectures[SIZE]
            elif (score, epoch) in means.index:
                values = means[score, epoch].reindex(target.index)
            else:
                continue
            ranked = spearman(values, target, plan=plan)
            known = values.notna() & target.notna()
            if ranked is not None:
                ends = () if ranked[1] is None else (ranked[1].low, ranked[1].high)
                lost = regret(values[known], target[known], 1)
                found.append((score, epoch, int(known.sum()), lost, ranked[0], *ends))
    columns = ["score", "epoch", "n", "regret", "rho", "low", "high"]
    return pd.DataFrame(found).reindex(columns=range(len(columns))).set_axis(columns, axis=1)
