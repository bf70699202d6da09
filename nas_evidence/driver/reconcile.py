"""The database of a study compared with all else that is stored, and rebuilt if they differ.

Three other sources know what was proposed, the first of them that knows a number decides:

    trials/                          the architecture of every finished trial
    checkpoints/*/assignment.json    that of every trial under way
    logs/events.jsonl                that of every proposal, in its `ask` line

What the sampler was told is a function of the finished trials (`results.told_of`). So a database
that was lost, damaged, restored from a copy, or of another study is set aside and written again.
A proposal that no source knows has no result either: it is asked again, after all earlier batches
were told. With `scheduling = "batch"` that gives the lost proposal exactly.
"""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nas_evidence.driver.plan import batch_of, n_proposals, trials_of
from nas_evidence.driver.results import told_of
from nas_evidence.spec import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.storage.database import (
    Database,
    database_of,
    is_silent,
    set_aside,
    sqlite_damage,
)
from nas_evidence.storage.faults import StudyStoppedError, is_disk_full
from nas_evidence.storage.journal import read_journal
from nas_evidence.store import TrialRow

_LOG = logging.getLogger(__name__)
Known = Mapping[int, ArchitectureSpec]


def reconciled(
    study: StudySpec,
    folder: Path,
    done: Mapping[int, TrialRow],
    open_proposer: Callable[[StudySpec, Path | Database], Any],
) -> tuple[Any, list[str]]:
    """Return a proposer whose database agrees with what is stored, and what was done for it.

    Args:
        study: The study.
        folder: Its folder.
        done: Its finished trials.
        open_proposer: `Proposer`, or a stand-in.

    Raises:
        ValueError: a newer version wrote the database, or `first` or `warm_start` is wrong.
        StudyStoppedError: the database does not answer.
    """
    known = known_proposals(study, folder, done)
    database = database_of(folder, study)
    there = not isinstance(database, Path) or database.exists()
    why = sqlite_damage(database) if isinstance(database, Path) and there else ""
    proposer = None
    if not why:
        try:
            proposer = open_proposer(study, database)
            why = "" if there or not known else "it was missing"
            why = why or difference(proposer, known, done, study)
        except Exception as error:
            if not _is_damage(error):
                raise
            why = f"it cannot be read ({str(error).splitlines()[0] or type(error).__name__})"
    if why:
        if there:
            aside = set_aside(folder, study)
            why += f", and is kept as {aside}"
        proposer = open_proposer(study, database_of(folder, study))
    assert proposer is not None
    n_asked = _add_missing(proposer, known, done, study)
    if not why:
        return proposer, []
    line = (
        f"the database of the study was rebuilt from its results and its journal: {why}. "
        f"It has {len(proposer.proposals())} proposals again"
        + (f", {n_asked} of them new: nothing was stored of them." if n_asked else ".")
    )
    _LOG.warning("database_rebuilt reason=%s", why)
    return proposer, [line]


def known_proposals(
    study: StudySpec, folder: Path, done: Mapping[int, TrialRow]
) -> dict[int, ArchitectureSpec]:
    """Return the proposals that results, assignments and journal know, by number."""
    found: dict[int, ArchitectureSpec] = {}
    for event in read_journal(folder):
        if event["event"] == "ask" and isinstance(event.get("point"), Mapping):
            with contextlib.suppress(ValueError):
                found[event["number"]] = ArchitectureSpec.model_validate(event["point"])
    for path in folder.glob("checkpoints/[0-9]*/attempt-*/assignment.json"):
        with contextlib.suppress(OSError, ValueError):  # torn: the trial is assigned again
            assignment = Assignment.model_validate_json(path.read_text(encoding="utf-8"))
            found[assignment.trial_id // study.replicates] = assignment.architecture
    for trial_id, row in done.items():
        found[trial_id // study.replicates] = row.architecture
    return {number: a for number, a in found.items() if 0 <= number < n_proposals(study)}


def difference(proposer: Any, known: Known, done: Mapping[int, TrialRow], study: StudySpec) -> str:
    """Return how the database contradicts what is known, or "".

    A database that merely ends earlier is not wrong: a store may lag behind its journal.
    """
    proposals = proposer.proposals()
    for number, architecture in sorted(known.items()):
        if number < len(proposals) and proposals[number].key != architecture.key:
            return f"proposal {number} is {proposals[number]} there, but ran as {architecture}"
    for number, result in proposer.results().items():
        rows = [done[i] for i in trials_of(number, study) if i in done]
        if len(rows) == len(trials_of(number, study)):
            right = told_of(rows, study)
            if result.values is not None and result.values != right.values:
                return f"proposal {number} has {result.values} there, but scored {right.values}"
    return ""


def _add_missing(
    proposer: Any, known: Known, done: Mapping[int, TrialRow], study: StudySpec
) -> int:
    """Add the proposals that the database lacks, and results; return how many were asked anew."""
    n_asked, first = 0, len(proposer.proposals())
    if first > max(known, default=-1):
        return 0
    for number in range(first, 1 + max(known)):
        if number not in known or number == batch_of(number, study).start:
            _tell(proposer, number, done, study)
        if number in known:
            proposer.adopt(known[number])
        else:
            proposer.ask()
            n_asked += 1
    _tell(proposer, 1 + max(known), done, study)
    return n_asked


def _tell(proposer: Any, until: int, done: Mapping[int, TrialRow], study: StudySpec) -> None:
    """Tell the finished proposals below a number whose whole batch is there and finished."""
    told = proposer.told()
    for number in range(until):
        batch = batch_of(number, study)
        ids = [i for n in batch for i in trials_of(n, study)]
        if number not in told and batch.stop <= until and all(i in done for i in ids):
            rows = [done[i] for i in trials_of(number, study)]
            proposer.tell(number, told_of(rows, study))


def _is_damage(error: Exception) -> bool:
    """Return whether an error of opening a database means that its content is damaged."""
    if is_disk_full(error) or isinstance(error, StudyStoppedError) or is_silent(error):
        return False
    if isinstance(error, (OSError, sqlite3.OperationalError, ImportError, NotImplementedError)):
        return False
    # A plain ValueError is a message for the user; its subclasses come from reading the content.
    return type(error) is not ValueError or isinstance(error, json.JSONDecodeError)
