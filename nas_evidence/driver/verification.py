"""Check all that a study folder holds, without changing any of it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nas_evidence.data import ArrayData
from nas_evidence.data.digest import ChangedDataError, data_digest
from nas_evidence.data.source import KEPT, is_kept
from nas_evidence.driver.plan import asked_of
from nas_evidence.driver.reconcile import contradictions
from nas_evidence.exporting.soundness import conditions_in, wrong_export_files
from nas_evidence.exporting.weights import read_weights
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import DamagedError, is_sealed_json
from nas_evidence.plumbing.sums import NAME as SUMS
from nas_evidence.plumbing.sums import wrong_sums
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.plumbing.user_error import StudyError
from nas_evidence.proposing.warm_start import WARM_START, read_warm_start
from nas_evidence.spec.record import WHOLE_IDS, is_searched
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import load_study
from nas_evidence.storage import COMPARISON
from nas_evidence.storage.best import Standings
from nas_evidence.storage.conditions import (
    content_hash,
    damaged_conditions,
    data_of_trials,
    study_of_trials,
)
from nas_evidence.storage.holding import is_damaged
from nas_evidence.storage.kept_how_read import FILE as HOW_READ
from nas_evidence.storage.kept_how_read import read_how_read
from nas_evidence.storage.kept_origin import FILE as ORIGIN
from nas_evidence.storage.kept_origin import read_origin, told_in_report
from nas_evidence.storage.kept_submission import FILE as SUBMITTED
from nas_evidence.storage.log import LOG, read_log
from nas_evidence.storage.outside_code import wrong_code
from nas_evidence.storage.redo import DoneTrials, find_done
from nas_evidence.storage.study_folder import read_study
from nas_evidence.storage.tables import FOREIGN, foreign_files
from nas_evidence.training.checkpoint import read_checkpoint

#: Loads the data of a study.
Load = Callable[[StudySpec], ArrayData]
_OTHER = "not as it was written"
#: Files that only tell something of a study, and whether that of a folder can be read.
_TOLD: dict[str, Callable[[Path], bool]] = {
    HOW_READ: lambda folder: read_how_read(folder) is not None,
    ORIGIN: lambda folder: read_origin(folder) is not None,
    SUBMITTED: lambda folder: is_sealed_json(folder / SUBMITTED),
}
_HOME, _ATTEMPT = re.compile(r"\d{6,}"), re.compile(r"attempt-\d+")


class Kind(StrEnum):
    """What is damaged; `repair` does something else for each."""

    STUDY = "study"
    DATA = "data"
    CONDITIONS = "conditions"
    CODE = "code"
    LOCK = "lock"
    LOG = "log"
    TABLE = "table"
    WARM_START = "warm start"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    REPORT = "report"
    COMPARISON = "comparison"
    TOLD = "told"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was written.

    place   relative to the study folder
    """

    kind: Kind
    place: str
    problem: str


def verify(folder: Path, *, with_checkpoints: bool = True) -> list[Finding]:
    """Return all that is wrong in a study folder, in order of place.

    Args:
        folder: A study folder.
        with_checkpoints: Whether checkpoints are there; of a store only their names are fetched.
    """
    found: list[Finding] = []
    study = _study(folder, found)
    finds = find_done(folder)
    found += _tables(folder, finds)
    found += _conditions(folder, finds, study)
    found += _log(finds, study)
    found += _small_files(folder)
    found += _warm_start(folder)
    found += _models(folder, finds, study)
    found += _checkpoints(folder) if with_checkpoints else ()
    found += _exports(folder, finds)
    return sorted(found, key=lambda finding: finding.place)


def check_data(folder: Path, load: Load) -> tuple[list[Finding], str]:
    """Compare the data set with what the trials were trained on.

    Args:
        folder: A study folder.
        load: Loads the data of a study; raises `ValueError` if they are not at hand.

    Returns:
        What is wrong, and why nothing was compared ("" if it was). Data that the study keeps are
        a part of it: where they cannot be read, that is wrong.
    """
    try:
        study = load_study(folder / "study.toml")
    except ValueError:
        return [], "study.toml does not say which"
    kept, recorded = is_kept(study.dataset), data_of_trials(folder)
    place = KEPT if kept else f"data set '{study.dataset.name}'"
    if not recorded and not kept:
        return [], "no trial has recorded a hash of it"
    try:
        now = data_digest(load(study))
    except ValueError as error:
        if kept or isinstance(error, ChangedDataError):
            return [Finding(Kind.DATA, place, str(error))], ""
        return [], f"it is not at hand: {str(error).removesuffix('.')}"
    if now == recorded or not recorded:
        return [], ""
    problem = f"not what the trials were trained on (the hash was {recorded}, now {now})"
    return [Finding(Kind.DATA, place, problem)], ""


def not_checked(folder: Path, *, with_checkpoints: bool = True, data: str = "") -> list[str]:
    """Return what was left unchecked of a study folder, each with the reason or who checks it.

    Args:
        folder: A study folder.
        with_checkpoints: As given to `verify`.
        data: Why the data set was not compared, as returned by `check_data`.
    """
    left = [f"the data set ({data})"] if data else []
    if (folder / "report").is_dir() and not (folder / "report" / SUMS).is_file():
        left.append("the report (it has no SHA256SUMS; `report` writes it again)")
    if not read_log(folder).state.in_order:
        left.append(f"the end of {LOG} (a run goes on, was killed, or lines are lost)")
    if not with_checkpoints:
        left.append("the checkpoints in the store (a trial checks its own when it resumes)")
    return left


def _study(folder: Path, found: list[Finding]) -> StudySpec | None:
    try:
        return read_study(folder)
    except StudyError as error:
        found += [Finding(Kind.STUDY, "study.toml", message) for message in error.messages]
    except ValueError as error:
        found.append(Finding(Kind.STUDY, "study.toml", str(error)))
    return study_of_trials(folder)


def _tables(folder: Path, finds: DoneTrials) -> Iterator[Finding]:
    """Yield damaged and missing files with the trials that lost rows by them."""
    state = finds.past.state
    held: dict[str, list[int]] = {}
    for trial_id, row in sorted(state.rows.items()):
        held.setdefault(state.stems.get((trial_id, row.attempt), ""), []).append(trial_id)
    for path, reason in finds.wrong.items():
        lost = ", ".join(map(str, held.get(path.stem, [])))
        rows = f" (rows of trial {lost})" if lost else ""
        yield Finding(Kind.TABLE, path.relative_to(folder).as_posix(), f"{reason}{rows}")
    for path in foreign_files(folder):
        yield Finding(Kind.TABLE, path.relative_to(folder).as_posix(), FOREIGN)
    if finds.found:
        ids = sorted({row.trial_id for one in finds.found for row in one.rows})
        stored = ", ".join(map(str, ids))
        problem = f"it lacks the end of trials that are stored: {stored}"
        yield Finding(Kind.LOG, LOG, problem)
    hashes = {row.content_hash for row in finds.done.values() if row.content_hash}
    if len(hashes) > 1:
        problem = f"the trials ran under {len(hashes)} different conditions"
        yield Finding(Kind.TABLE, "trials", problem)


def _conditions(folder: Path, finds: DoneTrials, study: StudySpec | None) -> Iterator[Finding]:
    """Yield what is wrong with the sealed copy of the study, beside the hash in the rows."""
    damaged = damaged_conditions(folder)
    yield from (Finding(Kind.CONDITIONS, place, _OTHER) for place in damaged)
    if study is not None and study_of_trials(folder) is None and not damaged:
        hashes = {row.content_hash for row in finds.done.values() if row.content_hash}
        for lost in sorted(hashes - {content_hash(study, "")}):
            yield Finding(Kind.CONDITIONS, f"logs/conditions-{lost}.toml", "missing")


def _small_files(folder: Path) -> Iterator[Finding]:
    for name, is_sound in _TOLD.items():
        if (folder / name).exists() and not is_sound(folder):
            yield Finding(Kind.TOLD, name, _OTHER)
    if not (folder / ORIGIN).exists() and told_in_report(folder, ORIGIN) is not None:
        yield Finding(Kind.TOLD, ORIGIN, "missing")
    if (folder / COMPARISON).exists() and not is_sealed_json(folder / COMPARISON):
        yield Finding(Kind.COMPARISON, COMPARISON, _OTHER)
    try:
        lock = folder / "lock"
        if lock.exists() and is_damaged(lock.read_bytes()):
            yield Finding(Kind.LOCK, "lock", f"{_OTHER}; the option `steal` takes the study over")
    except OSError as error:
        yield Finding(Kind.LOCK, "lock", f"it cannot be read: {error.strerror}")
    yield from (Finding(Kind.CODE, f"code/{name}", _OTHER) for name in wrong_code(folder))
    if (folder / "report" / SUMS).is_file():  # else it was not written to its end
        for name in wrong_sums(folder / "report"):
            yield Finding(Kind.REPORT, f"report/{name}", f"{_OTHER}; `report` writes it again")


def _exports(folder: Path, finds: DoneTrials) -> Iterator[Finding]:
    known = {row.content_hash for row in finds.done.values()}
    for export in sorted(path for path in folder.glob("export*") if path.is_dir()):
        wrong = wrong_export_files(export)
        for name in wrong:
            yield Finding(Kind.EXPORT, f"{export.name}/{name}", f"missing, or {_OTHER}")
        if not wrong and known and conditions_in(export) - known:
            yield Finding(Kind.EXPORT, export.name, "it is of another study")


def _log(finds: DoneTrials, study: StudySpec | None) -> Iterator[Finding]:
    yield from (Finding(Kind.LOG, LOG, problem) for problem in finds.past.problems)
    if study is None:
        return
    known = finds.past.state.proposals
    ran = {
        trial_id // study.replicates: row.architecture
        for trial_id, row in sorted(finds.done.items())
        if is_searched(trial_id)
    }
    if lacking := sorted(ran.keys() - known.keys()):
        noun = "proposal" + "s" * (len(lacking) > 1)
        problem = f"it lacks {len(lacking)} {noun} that ran, first {lacking[0]}"
        yield Finding(Kind.LOG, LOG, problem)
    between = contradictions(study, known, finds.done, finds.past.state.stems)
    for problem in [*between, *finds.against]:
        yield Finding(Kind.LOG, LOG, problem)


def _warm_start(folder: Path) -> Iterator[Finding]:
    try:
        read_warm_start(folder)
    except ValueError as error:
        problem = _short(error, folder / WARM_START).partition(";")[0]
        yield Finding(Kind.WARM_START, WARM_START, problem)


def trial_of_weights(place: str) -> int | None:
    """Return the trial whose weights are at a place of a study; None for another file there."""
    match = re.fullmatch(r"models/(\d+)\.safetensors", place)
    return None if match is None else int(match[1])


def _models(folder: Path, finds: DoneTrials, study: StudySpec | None) -> Iterator[Finding]:
    for path in sorted((folder / "models").glob("*")):
        trial_id = trial_of_weights(f"models/{path.name}")
        row = None if trial_id is None else finds.done.get(trial_id)
        try:
            if study is None or row is None:
                read_tensors(path)
            else:
                read_weights(folder, asked_of(row, study))
        except (OSError, DamagedError) as error:
            yield Finding(Kind.WEIGHTS, f"models/{path.name}", _short(error, path))
    if study is None:
        return
    best = [one.trial_id for one in Standings(study, finds.done.values()).first(1)]
    for trial_id in best if study.trains_whole else [*best, *(WHOLE_IDS + i for i in best)]:
        if not (folder / (place := f"models/{trial_id}.safetensors")).is_file():
            again = "missing; `predict` and `export` train it again each time they need it"
            yield Finding(Kind.WEIGHTS, place, again)


def _checkpoints(folder: Path) -> Iterator[Finding]:
    for home in sorted((folder / "checkpoints").glob("*")):
        if home.name == "retrained":
            continue
        if not _HOME.fullmatch(home.name) or not home.is_dir():
            yield Finding(Kind.CHECKPOINT, f"checkpoints/{home.name}", "not the folder of a trial")
            continue
        for path in sorted(home.glob("attempt-*/epoch-*.pt")):
            try:
                of = parsed_json(read_checkpoint(path).get("same_trial", "{}")).get("trial_id")
                if of not in (None, int(home.name)):
                    name = path.relative_to(folder).as_posix()
                    yield Finding(Kind.CHECKPOINT, name, f"damaged: it is of trial {of}.")
            except (OSError, ValueError) as error:
                name = path.relative_to(folder).as_posix()
                yield Finding(Kind.CHECKPOINT, name, _short(error, path))


def _short(error: Exception, path: Path) -> str:
    return str(error).replace(f"{path} is ", "").replace(str(path), path.name)
