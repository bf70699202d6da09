"""The trials of a study, and which are asked and told together: pure functions.

Proposal `n` holds the trials n * replicates + r. A batch of proposals is told together, in order
of number, when its last trial has ended; with asynchronous scheduling a batch is one proposal.
A grid learns nothing from results: it is asked at once.
With `scheduling = "batch"` a batch is asked and told only after the previous one was told, so that
neither the speed of workers nor a crash nor a torn file changes what is proposed.
"""

import itertools
from collections.abc import Collection, Container, Iterable, Mapping

from nas_evidence.spec.divisions import whole
from nas_evidence.spec.record import ranks, trial_of
from nas_evidence.spec.schedule import rungs
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec, derive_seed
from nas_evidence.storage.trial_row import TrialRow

#: Largest grid that is asked at once, so that its longest trials can run first. In a larger one a
#: single trial is a small share of the work.
MOST_AHEAD = 256


def plan_trials(
    proposals: Iterable[ArchitectureSpec],
    done: Container[int],
    study: StudySpec,
    seen: dict[str, int] | None = None,
    *,
    first_number: int = 0,
) -> list[Assignment]:
    """Return the trials left to run, in order of trial id: a function of what is on disk.

    Proposals are numbered from `first_number` on. The attempt is 1 here; the launch sets it. A
    repeated architecture becomes its next replicate; `seen` counts the replicates of each
    architecture and is updated.
    """
    seen = {} if seen is None else seen
    assignments = []
    for number, architecture in enumerate(proposals, start=first_number):
        key = architecture.key
        first = seen.get(key, 0)
        for r, trial_id in enumerate(trials_of(number, study)):
            if trial_id not in done:
                assignments.append(assignment_of(architecture, trial_id, first + r, study))
        seen[key] = first + study.replicates
    return assignments


#: Replicates of the race start here, so that those of a longer search never repeat one.
RACE_REPLICATES = 1000


def plan_race(
    chosen: Mapping[int, ArchitectureSpec], done: Container[int], study: StudySpec
) -> list[Assignment]:
    """Return the race trials left to run; each is the next replicate of its architecture.

    Args:
        chosen: all race trials so far by id, in order.
        done: the finished trials.
        study: what was asked.
    """
    counts: dict[str, int] = {}
    assignments = []
    for trial_id, architecture in sorted(chosen.items()):
        replicate = counts.get(architecture.key, RACE_REPLICATES)
        counts[architecture.key] = replicate + 1
        if trial_id not in done:
            assignments.append(assignment_of(architecture, trial_id, replicate, study))
    return assignments


def assignment_of(
    architecture: ArchitectureSpec, trial_id: int, replicate: int, study: StudySpec
) -> Assignment:
    """Return the first attempt at a trial."""
    return Assignment(
        trial_id=trial_id,
        attempt=1,
        replicate=replicate,
        architecture=architecture,
        dataset=study.dataset,
        plan=study.plan,
        estimators=study.estimators,
        followed=study.followed,
        limits=study.limits,
        first_fold_alone=0 in rungs(study),
        seed=derive_seed(study.seed, trial_id, replicate),
    )


def asked_of(row: TrialRow, study: StudySpec) -> Assignment:
    """Return the first attempt at a finished trial; of what its folds have found nothing."""
    own = assignment_of(row.architecture, trial_of(row.trial_id), row.replicate, study)
    return own if ranks(row.trial_id) else whole(own)


def n_proposals(study: StudySpec) -> int:
    """Return how many proposals the study asks for; the last may have fewer replicates."""
    return -(-study.n_trials // study.replicates)


def trials_of(number: int, study: StudySpec) -> range:
    """Return the trials of a proposal."""
    first = number * study.replicates
    return range(first, min(first + study.replicates, study.n_trials))


def batch_of(number: int, study: StudySpec) -> range:
    """Return the proposals that are told together with this one."""
    size = study.batch if study.scheduling == "batch" else 1
    first = number // size * size
    return range(first, min(first + size, n_proposals(study)))


def trials_of_batch(number: int, study: StudySpec) -> list[int]:
    """Return the trials of the batch that a proposal belongs to."""
    return [i for n in batch_of(number, study) for i in trials_of(n, study)]


def to_ask(n_asked: int, n_told: int, study: StudySpec) -> int:
    """Return how many proposals to ask now, given room for a trial."""
    if n_asked >= n_proposals(study):
        return 0
    batch = batch_of(n_asked, study)
    # Also in the middle of a batch: a crash may have left it so, and a torn result may run again.
    if study.scheduling == "batch" and n_told < batch.start:
        return 0
    if study.scheduling == "async" and _is_known(study):
        return n_proposals(study) - n_asked
    return batch.stop - n_asked


def _is_known(study: StudySpec) -> bool:
    """Return whether all proposals are known, and no result depends on the order of trials."""
    grid = study.sampler.name == "grid" and n_proposals(study) <= MOST_AHEAD
    return grid and not rungs(study)  # a rung compares with the trials before


def to_tell(
    number: int, told: Collection[int], done: Container[int], study: StudySpec
) -> list[int]:
    """Return the proposals to tell, in order, once a trial of proposal `number` has ended.

    Batches are told one after another: those that ended before an earlier one, of which a trial
    with a torn result ran again, are told after it.
    """
    in_order = study.scheduling == "batch"
    numbers = range(len(told), n_proposals(study)) if in_order else [number]
    ended = itertools.takewhile(
        lambda n: all(i in done for i in trials_of_batch(n, study)), numbers
    )
    return [n for n in ended if n not in told]
