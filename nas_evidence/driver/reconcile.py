"""The proposals of a study, from its log and its results.

Both are sealed: what does not match its checksum is set aside and not believed. Where two that are
sound contradict each other the study stops; `repair` then believes the results.

What the sampler was told is a function of the finished trials (`outcomes.result_of`). A proposal
that neither knows has no result either: it is asked again, after all earlier batches were told.
With `scheduling = "batch"` that gives the lost proposal exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from nas_evidence.driver.outcomes import result_of
from nas_evidence.driver.plan import n_proposals, to_tell, trials_of
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.proposing.warm_start import Found, kept_warm_start
from nas_evidence.spec.record import is_searched
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.events import Asked
from nas_evidence.storage.log import LOG, Log
from nas_evidence.storage.trial_row import TrialRow

Proposals = Mapping[int, ArchitectureSpec]
TrialRows = Mapping[int, TrialRow]
#: Name of the file that has the rows of a trial and attempt, where it is not their own.
Stems = Mapping[tuple[int, int], str]


def restored(
    study: StudySpec,
    folder: Path,
    asked: Proposals,
    done: TrialRows,
    make: Callable[[StudySpec, Sequence[Found]], Proposer],
    against: Sequence[str] = (),
    stems: Stems = MappingProxyType({}),
) -> tuple[Proposer, dict[int, ProposalResult], list[str]]:
    """Return what proposes as an earlier process left it, its results, and a line about losses.

    Args:
        study: The study.
        folder: Its folder.
        asked: The proposals in its log.
        done: Its finished trials.
        make: `Proposer`, or a stand-in.
        against: Where its tables contradict its log.
        stems: As for `between_replicates`.

    Raises:
        ValueError: two sound files contradict each other, `first` or `warm_start` is wrong, or the
            stored warm start is damaged.
    """
    if between := between_replicates(study, done, stems):
        raise UserError("replicates-contradict", f"{folder}: {between[0]}.")
    if against := [*contradictions(study, asked, done), *against]:
        raise UserError(
            "files-contradict",
            f"{folder}/{LOG} contradicts the study's other files: {against[0]}; restore what was "
            f"copied there, or let the results decide: `nas-evidence repair "
            f"{shell_word(folder)}`.",
        )
    known = known_proposals(study, asked, done)
    proposer = make(study, kept_warm_start(study, folder))
    told, n_asked, end = dict[int, ProposalResult](), 0, 1 + max(known, default=-1)
    for number in range(end):
        if number in known:
            proposer.adopt(known[number])
        else:
            _tell(proposer, told, number, done, study)
            proposer.ask()
            n_asked += 1
    _tell(proposer, told, end, done, study)
    again = f"{n_asked} proposals were asked again: nothing was stored of them."
    return proposer, told, [again] if n_asked else []


def known_proposals(
    study: StudySpec, asked: Proposals, done: TrialRows
) -> dict[int, ArchitectureSpec]:
    """Return the proposals that log and results know, by number; the results decide."""
    known = dict(asked) | {number: row.architecture for number, row in _ran(study, done)}
    return {number: a for number, a in known.items() if 0 <= number < n_proposals(study)}


def contradictions(
    study: StudySpec, asked: Proposals, done: TrialRows, stems: Stems = MappingProxyType({})
) -> list[str]:
    """Return where log and results, or two results, say different things about a proposal.

    `stems` as for `between_replicates`.
    """
    found = between_replicates(study, done, stems)
    for number, row in _ran(study, done):
        before = asked.get(number)
        if before is None or not 0 <= number < n_proposals(study):
            continue
        if _differ(before, row.architecture):
            found.append(
                f"proposal {number} is {before} there, but {row.architecture} in trials, trial "
                f"{row.trial_id}"
            )
    return found


def between_replicates(study: StudySpec, done: TrialRows, stems: Stems) -> list[str]:
    """Return where two replicates of one proposal are of two architectures; both are sound.

    Args:
        study: The study.
        done: Its finished trials.
        stems: Name of the file with the rows of a trial and attempt, where that is not its own.
    """
    first, found = dict[int, TrialRow](), list[str]()
    for number, row in _ran(study, done):
        one = first.setdefault(number, row)
        if _differ(one.architecture, row.architecture) and 0 <= number < n_proposals(study):
            found.append(
                f"trials {one.trial_id} and {row.trial_id} are replicates of proposal {number}, "
                f"but {one.architecture} is in {_file(one, stems)} and {row.architecture} in "
                f"{_file(row, stems)}. Both are sound, so nothing tells which is of this study: "
                "move the files of that name that were copied there (in trials/, evidence/, "
                "terms/ and curves/) elsewhere; `nas-evidence repair` then trains again what is "
                "missing"
            )
    return found


def _file(row: TrialRow, stems: Stems) -> str:
    own = f"{row.trial_id:06d}-a{row.attempt}"
    return f"trials/{stems.get((row.trial_id, row.attempt), own)}.parquet"


def complete(log: Log, proposals: Proposals) -> None:
    """Write the proposals that a log lacks, or has otherwise."""
    there = log.state.proposals
    for number, architecture in sorted(proposals.items()):
        if number not in there or _differ(there[number], architecture):
            fact = Asked(number=number, architecture=architecture, recovered=True)
            log.write(fact, durable=True)


def _differ(one: ArchitectureSpec, other: ArchitectureSpec) -> bool:
    return one != other and one.key != other.key  # a key takes longer


def _ran(study: StudySpec, done: TrialRows) -> list[tuple[int, TrialRow]]:
    """Return the number of the proposal and the row of each finished trial of the search."""
    return [(i // study.replicates, row) for i, row in done.items() if is_searched(i)]


def _tell(
    proposer: Proposer,
    told: dict[int, ProposalResult],
    until: int,
    done: TrialRows,
    study: StudySpec,
) -> None:
    """Tell the proposals below a number whose trials, and those of their batch, have ended."""
    for number in range(until):
        for n in to_tell(number, told, done, study):
            told[n] = result_of([done[i] for i in trials_of(n, study)], study)
            proposer.tell(n, told[n])
