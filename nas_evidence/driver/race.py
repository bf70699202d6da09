"""Which trials run after the search, as functions of what is stored: the race of the finalists.

After the search the first architectures are trained again, with further seeds and further orders
of the data, until the first is the best by the score with probability `CONFIDENCE` or the budget
of the race is spent. Race trials are ordinary replicates with ids from `RACE_IDS` on, so that a
longer search never meets them. They run in rounds: a round is chosen from all earlier results and
the next one only when all its trials have ended. So the race is the same for any number and speed
of workers, and after any crash. The round is in the log before its first trial is launched.

Where trials train their folds alone, the finalists are then trained on all rows, in rounds too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice, zip_longest

from nas_evidence.driver.plan import plan_race
from nas_evidence.spec.record import (
    RACE_IDS,
    WHOLE_IDS,
    Stage,
    TrialStatus,
    is_race,
    is_searched,
    n_searched,
    ranks,
)
from nas_evidence.spec.study import FINALISTS, ArchitectureSpec, StudySpec, derive_seed
from nas_evidence.storage.best import Standings, ranked_value
from nas_evidence.storage.trial_row import TrialRow

#: The race ends when the first is the best by the score with this probability.
CONFIDENCE = 0.9
#: Trial id -> architecture of all race trials that were ever chosen.
Chosen = Mapping[int, ArchitectureSpec]


def budget_of(study: StudySpec) -> int:
    """Return the most race trials of a study."""
    return study.race.trials or max(10, -(-study.n_trials // 3))


def chosen_so_far(
    study: StudySpec, told: Chosen, done: Mapping[int, TrialRow]
) -> Mapping[int, ArchitectureSpec]:
    """Return the race trials that log and results know, by id.

    A round of which the log lost the line, but not all results, is chosen again from the
    results before it: its other trials are those that they were.

    Args:
        study: what was asked.
        told: those in the log.
        done: every finished trial.
    """
    raced = {i: row.architecture for i, row in done.items() if is_race(i)}
    told = {i: architecture for i, architecture in told.items() if is_race(i)}
    found = raced | told
    if lost := raced.keys() - told.keys():
        found = _rounds(study, done, found, last=max(lost)) | found
    return dict(sorted(found.items()))


def _rounds(
    study: StudySpec, done: Mapping[int, TrialRow], known: Chosen, *, last: int
) -> dict[int, ArchitectureSpec]:
    """Return the rounds up to a trial, chosen again; none from the first that contradicts."""
    chosen: dict[int, ArchitectureSpec] = {}
    while max(chosen, default=-1) < last and chosen.keys() <= done.keys():
        before = {i: row for i, row in done.items() if is_searched(i) or i in chosen}
        found = next_round(study, before, chosen)
        if not found or any(i in known and known[i].key != a.key for i, a in found.items()):
            break  # the search went on, or the study file was changed, after that round
        chosen |= found
    return chosen


def finalists(study: StudySpec, done: Mapping[int, TrialRow]) -> list[TrialRow]:
    """Return a trial of each of the first architectures by the search alone, best first."""
    searched = [row for i, row in done.items() if is_searched(i)]
    first = Standings(study, searched).first(study.n_finalists)
    return [done[one.trial_id] for one in first]


def next_round(
    study: StudySpec, done: Mapping[int, TrialRow], chosen: Chosen
) -> dict[int, ArchitectureSpec]:
    """Return the race trials to run next; none if the race is over.

    Call it only when the search and all chosen race trials have ended.

    Args:
        study: what was asked.
        done: every finished trial.
        chosen: every race trial so far.
    """
    done = {i: row for i, row in done.items() if ranks(i)}
    left = budget_of(study) - len(chosen)
    racing = finalists(study, done) if left > 0 else []
    if len(racing) < 2:
        return {}
    from nas_evidence.maths.finalists import MIN_REPEATS  # late: it imports scipy

    values = _values(study, done)
    keys = [row.architecture_key for row in racing]
    tried = Counter(architecture.key for architecture in chosen.values())
    raced = _values(study, {i: row for i, row in done.items() if is_race(i)})
    alone = {key: len(values[key]) - len(raced.get(key, ())) for key in keys}
    missing = [max(0, MIN_REPEATS - alone[key] - tried[key]) for key in keys]
    if any(missing):
        turns = zip_longest(*([i] * n for i, n in enumerate(missing)))
        picks = [i for i in chain.from_iterable(turns) if i is not None]
    else:
        picks = _contested(study, values, racing, min(len(racing), left), len(chosen), done)
    first = max(chosen, default=RACE_IDS - 1) + 1
    return {first + k: racing[i].architecture for k, i in enumerate(islice(picks, left))}


def race_left(study: StudySpec, told: Chosen, done: Mapping[int, TrialRow]) -> int:
    """Return how many trials the race may still run; 0 if it is over or the study has none.

    Args as of `chosen_so_far`.
    """
    if not study.n_finalists:
        return 0
    chosen = chosen_so_far(study, told, done)
    if n_searched(done) >= study.n_trials and not (
        plan_race(chosen, done, study) or next_round(study, done, chosen)
    ):
        return 0
    return max(budget_of(study) - sum(i in done for i in chosen), 0)


def whole_left(study: StudySpec, done: Mapping[int, TrialRow], *, over: bool) -> int:
    """Return how many networks of all rows are still trained after the race; at most.

    Args:
        study: what was asked.
        done: every finished trial.
        over: whether search and race are over.
    """
    if over or study.trains_whole:
        return len(next_whole(study, done))
    return min(study.n_finalists or FINALISTS, study.n_trials)


def after_search(study: StudySpec) -> dict[Stage, int]:
    """Return how many trials a study has after its search, at most."""
    race = budget_of(study) if study.n_finalists else 0
    return {"race": race, "whole": whole_left(study, {}, over=False)}


def is_finished(study: StudySpec, told: Chosen, done: Mapping[int, TrialRow]) -> bool:
    """Return whether no trial is left to run; args as of `race_left`."""
    over = n_searched(done) >= study.n_trials and race_left(study, told, done) == 0
    return over and not next_whole(study, done)


def next_whole(
    study: StudySpec, done: Mapping[int, TrialRow], n: int | None = None
) -> dict[int, ArchitectureSpec]:
    """Return the networks of all rows to train next, the best first; none if they are there.

    Where trials train their folds alone: those of the trials that represent the first
    architectures. A network that fails gives way to the next seed of its architecture, and the
    last one to the next architecture (`storage/best.py`).

    Args:
        study: what was asked.
        done: every finished trial.
        n: the first architectures; those of the race, or five, if None.
    """
    if study.trains_whole:
        return {}
    standings = Standings(study, done.values()).first(n or study.n_finalists or FINALISTS)
    first = {WHOLE_IDS + one.trial_id: one.architecture for one in standings if not one.is_spoilt}
    return {trial_id: found for trial_id, found in first.items() if trial_id not in done}


def _contested(
    study: StudySpec,
    values: Mapping[str, list[float]],
    racing: Sequence[TrialRow],
    n: int,
    n_chosen: int,
    done: Mapping[int, TrialRow],
) -> list[int]:
    """Return which finalists run next, by position; none if the first is sure."""
    from nas_evidence.maths.finalists import next_replicates, posterior_of

    keys = list(values)
    families = {row.architecture_key: row.family for row in done.values()}
    posterior = posterior_of(
        [values[key] for key in keys], [families[key] for key in keys], seed=study.seed
    )
    if posterior is None:  # all replicates are equal: nothing to decide
        return []
    at = {keys.index(row.architecture_key): i for i, row in enumerate(racing)}
    standings = Standings(study, done.values()).first()
    places = {one.key: place for place, one in enumerate(standings)}
    first = min(at, key=lambda position: places[keys[position]])
    if posterior.best[first] >= CONFIDENCE:
        return []
    seed = derive_seed(study.seed, "race", n_chosen)
    return [at[i] for i in next_replicates(posterior, list(at), n, seed=seed)]


def _values(study: StudySpec, done: Mapping[int, TrialRow]) -> dict[str, list[float]]:
    """Return the values that rank each architecture over its complete trials, in order of id."""
    found: dict[str, list[float]] = {}
    for _, row in sorted(done.items()):
        value = ranked_value(row.values, study)
        if value is not None and row.status is TrialStatus.COMPLETE:
            found.setdefault(row.architecture_key, []).append(value)
    return found
