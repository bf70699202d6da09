"""The proposals of a study, from all that is stored.

    logs/events.jsonl                every proposal, in its `ask` line: the record
    checkpoints/*/assignment.json    the architecture of every trial under way
    trials/                          that of every finished trial

Each is sealed: what does not match its checksum is set aside and not believed. Where two that are
sound contradict each other the study stops; `repair` then believes the results.

What the sampler was told is a function of the finished trials (`outcomes.result_of`). A proposal
that no source knows has no result either: it is asked again, after all earlier batches were told.
With `scheduling = "batch"` that gives the lost proposal exactly.
"""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nas_evidence.driver.outcomes import result_of
from nas_evidence.driver.plan import n_proposals, to_tell, trials_of
from nas_evidence.plumbing.seals import is_sealed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.proposer import Proposer
from nas_evidence.proposing.warm_start import Found, kept_warm_start
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.assignments import stored_assignments
from nas_evidence.storage.budget import BUDGET
from nas_evidence.storage.journal import JOURNAL, Journal, mend_journal, read_journal
from nas_evidence.storage.redo import RETRY
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.tables import TrialRow

#: What counts where a file is not as it was written.
_INSTEAD = {
    BUDGET: "the journal says what was used",
    RETRY: "ask again with --retry-failed",
}


def restored(
    study: StudySpec,
    folder: Path,
    done: Mapping[int, TrialRow],
    make: Callable[[StudySpec, Sequence[Found]], Proposer],
) -> tuple[Proposer, list[str]]:
    """Return what proposes as an earlier process left it, and a line about what was lost.

    Args:
        study: The study.
        folder: Its folder.
        done: Its finished trials.
        make: `Proposer`, or a stand-in.

    Raises:
        ValueError: two sound files contradict each other, `first` or `warm_start` is wrong, or the
            stored warm start is damaged.
    """
    if against := contradictions(study, folder, done):
        place, problem = against[0]
        raise UserError(
            f"{folder}/{place} contradicts the study's other files: {problem}; restore what was "
            f"copied there, or let the results decide: `nas-evidence repair "
            f"{shlex.quote(str(folder))}`."
        ).with_code("files-contradict")
    known = known_proposals(study, folder, done)
    proposer = make(study, kept_warm_start(study, folder))
    n_asked, end = 0, 1 + max(known, default=-1)
    for number in range(end):
        if number in known:
            proposer.adopt(known[number])
        else:
            _tell(proposer, number, done, study)
            proposer.ask()
            n_asked += 1
    _tell(proposer, end, done, study)
    again = f"{n_asked} proposals were asked again: nothing was stored of them."
    return proposer, [again] if n_asked else []


def known_proposals(
    study: StudySpec, folder: Path, done: Mapping[int, TrialRow]
) -> dict[int, ArchitectureSpec]:
    """Return the proposals that results, assignments and journal know, by number."""
    found = proposals_in_journal(folder)
    for _, number, architecture in _beside_the_journal(study, folder, done):
        found[number] = architecture
    return {number: a for number, a in found.items() if 0 <= number < n_proposals(study)}


def contradictions(
    study: StudySpec, folder: Path, done: Mapping[int, TrialRow]
) -> list[tuple[str, str]]:
    """Return where sound files say different things about a proposal: the place, and what."""
    known = {number: (JOURNAL, one) for number, one in proposals_in_journal(folder).items()}
    found = []
    for place, number, architecture in _beside_the_journal(study, folder, done):
        there, before = known.setdefault(number, (place, architecture))
        if before.key != architecture.key and 0 <= number < n_proposals(study):
            found.append(
                (there, f"proposal {number} is {before} there, but {architecture} in {place}")
            )
    return found


def _beside_the_journal(
    study: StudySpec, folder: Path, done: Mapping[int, TrialRow]
) -> Iterator[tuple[str, int, ArchitectureSpec]]:
    """Yield the place, number and architecture of assignments, then of results."""
    for path, assignment in stored_assignments(folder):
        if assignment is not None:
            place = path.relative_to(folder).as_posix()
            yield place, assignment.trial_id // study.replicates, assignment.architecture
    for trial_id, row in done.items():
        yield f"trials, trial {trial_id}", trial_id // study.replicates, row.architecture


def set_aside_damaged_records(folder: Path) -> list[str]:
    """Set aside the records that are not as they were written; return a line for each."""
    notes = [f"{JOURNAL}: {problem}; the other lines count" for problem in mend_journal(folder)]
    gone = {
        place: "the trial is assigned again"
        for path, assignment in stored_assignments(folder)
        if assignment is None
        for place in [path.relative_to(folder).as_posix()]
    }
    gone |= {
        place: instead
        for place, instead in _INSTEAD.items()
        if (folder / place).exists() and not is_sealed_json(folder / place)
    }
    for place, instead in gone.items():
        set_aside(folder, place)
        notes.append(f"{place}: not as it was written, moved to damaged/; {instead}")
    return notes


def proposals_in_journal(folder: Path) -> dict[int, ArchitectureSpec]:
    """Return the proposals that the journal knows, by number."""
    found: dict[int, ArchitectureSpec] = {}
    for event in read_journal(folder):
        if event["event"] == "ask" and isinstance(event.get("point"), Mapping):
            with contextlib.suppress(ValueError):
                found[event["number"]] = ArchitectureSpec.model_validate(event["point"])
    return found


def complete(journal: Journal, folder: Path, proposals: Mapping[int, ArchitectureSpec]) -> None:
    """Write the proposals that the journal of a folder lacks, or has otherwise."""
    there = proposals_in_journal(folder)
    for number, architecture in sorted(proposals.items()):
        if number not in there or there[number].key != architecture.key:
            log_ask(journal, number, architecture, recovered=True)


def log_ask(journal: Journal, number: int, architecture: ArchitectureSpec, **facts: bool) -> None:
    """Write a proposal; it survives a power failure."""
    point, text = architecture.model_dump(mode="json"), str(architecture)
    journal.write("ask", durable=True, number=number, architecture=text, point=point, **facts)


def _tell(proposer: Proposer, until: int, done: Mapping[int, TrialRow], study: StudySpec) -> None:
    """Tell the proposals below a number whose trials, and those of their batch, have ended."""
    told = proposer.told()
    for number in range(until):
        for n in to_tell(number, told, done, study):
            proposer.tell(n, result_of([done[i] for i in trials_of(n, study)], study))
            told.add(n)
