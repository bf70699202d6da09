"""Restore what can be restored of a study folder; what is sound is never touched.

Damaged files are moved to `damaged/`, never deleted. A trial whose row is sound is trained again
from its seed, to the epoch and status at which it ended; one whose row is lost runs again with
`resume`.
"""

import contextlib
from pathlib import Path

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.digest import data_digest
from nas_evidence.data.source import KEPT
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.plan import asked_of
from nas_evidence.driver.reconcile import complete, known_proposals
from nas_evidence.driver.verification import Kind, Load, check_data, trial_of_weights, verify
from nas_evidence.exporting.winner import assignment_of_row, scores_of_folds, train_again
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.sums import NAME as SUMS
from nas_evidence.plumbing.user_error import StudyError, UserError
from nas_evidence.spec.record import TrialRecord, TrialStatus, stage_of
from nas_evidence.spec.schedule import next_stop
from nas_evidence.spec.study import FREE_KEYS, Assignment, StudySpec
from nas_evidence.spec.toml import (
    differences,
    dump_study,
)
from nas_evidence.storage.conditions import (
    content_hash,
    current_hash,
    damaged_conditions,
    data_of_trials,
    note_conditions,
    study_of_trials,
)
from nas_evidence.storage.events import Ended
from nas_evidence.storage.kept_origin import FILE as ORIGIN
from nas_evidence.storage.kept_origin import restore_told
from nas_evidence.storage.log import LOG, Log, mend_log
from nas_evidence.storage.redo import adopt, find_done, set_aside_wrong
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.study_folder import restorable
from nas_evidence.storage.study_names import remove_attempts
from nas_evidence.storage.tables import (
    FOREIGN,
    TABLES,
    read_study_tables,
    write_record,
)
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.trial import Trial, device_for
from nas_evidence.workers.worker import make_reproducible

_AGAIN = (
    "not the data of the study; a search with the same data and this study as `out` "
    "writes it again"
)
_NO_GPU = (
    "it was trained on a GPU, of which torch finds none here; run `nas-evidence repair` or "
    "`resume` on a machine with one"
)
#: How often at most a folder is looked through for what the mends before have uncovered.
_PASSES = 4
#: What becomes of a damaged file that is set aside.
_THEN = {
    Kind.COMPARISON: "the report computes it again",
    Kind.REPORT: "`nas-evidence report` writes it again",
    Kind.CHECKPOINT: "an earlier checkpoint, or the start, is used",
    Kind.WEIGHTS: "not a file of weights",
    Kind.EXPORT: "`nas-evidence resume` or `export` writes it again",
    Kind.WARM_START: "`nas-evidence resume` reads the older study again",
}


def repair(folder: Path, data: Load, *, with_checkpoints: bool = True) -> list[str]:
    """Repair a study folder; return one line for each thing done.

    What one mend uncovers is mended, too. What is left, `verify` names.

    Args:
        folder: A study folder, held by this process.
        data: Loads the data of a study.
        with_checkpoints: Whether checkpoints are there; of a store only their names are fetched.

    Raises:
        ValueError: the study file cannot be restored, or the data cannot be loaded.
    """
    done: list[str] = []
    for _ in range(_PASSES):
        new = _repaired(folder, data, with_checkpoints=with_checkpoints)
        done += [line for line in new if line not in done]
        if not new or not verify(folder, with_checkpoints=with_checkpoints):
            break
    return done


def _repaired(folder: Path, data: Load, *, with_checkpoints: bool) -> list[str]:
    done: list[str] = []
    study = restored_study(folder, done)
    _restore_conditions(folder, study, data, done)
    problems = verify(folder, with_checkpoints=with_checkpoints)
    finds = find_done(folder)
    there = [path for path in finds.wrong if path.exists()]
    set_aside_wrong(folder, finds)
    done += [f"{path.parent.name}/{path.name}: moved to damaged/" for path in there]
    for place in (f"{table}/{stem}.parquet" for stem in sorted(finds.torn) for table in TABLES):
        if (folder / place).exists():
            _aside(folder, place, done, "of an attempt of which another table is damaged")
    torn = {row.trial_id: row for rows in finds.torn.values() for row in rows}
    past = mend_log(folder, finds.past)
    done += [f"{LOG}: {problem}; the other lines count" for problem in finds.past.problems]
    if any(one.kind is Kind.LOG for one in problems):
        done.append(f"{LOG}: proposals restored from the results")
    with contextlib.closing(Log(folder, past)) as log:
        adopt(log, finds.found)
        for trial_id, attempt in sorted(finds.redo.items()):
            row = log.state.rows.get(trial_id, torn.get(trial_id))
            if row is None or log.state.again.get(trial_id) == attempt:
                continue
            if row.gpu_share and device_for(study.resources.gpus).type != "cuda":
                done.append(f"trial {trial_id}: not trained again; {_NO_GPU}")
            elif (arrays := _loaded(folder, study, data, done, f"trial {trial_id}")) is not None:
                log.write(_retrained(folder, study, arrays, row), durable=True)
                done.append(f"trial {trial_id}: trained again as attempt {attempt + 1}")
        rows = log.state.rows
        complete(log, known_proposals(study, log.state.proposals, rows))
    for place in (one.place for one in problems if one.problem == FOREIGN):
        _aside(folder, place, done, "not a file of a study")
    for one in problems:
        if one.kind is Kind.TOLD:  # before the report goes
            _restore_told(folder, one.place, done)
    if any(one.kind is Kind.REPORT for one in problems) and (folder / "report" / SUMS).exists():
        _aside(folder, f"report/{SUMS}", done, _THEN[Kind.REPORT])  # it lists what goes
    for kind, place in sorted({(one.kind, one.place) for one in problems}):
        if kind is Kind.WEIGHTS and (weights := trial_of_weights(place)) is not None:
            _restore_model(folder, study, data, weights, rows.get(weights), done)
        elif kind in _THEN:
            whole = place.partition("/")[0] if kind is Kind.EXPORT else place
            if (folder / whole).exists():
                _aside(folder, whole, done, _THEN[kind])
    _restore_data(folder, data, done)
    return done


def replayed(
    assignment: Assignment, row: TrialRow, epochs: int, trial: Trial, *, score: str
) -> TrialRecord:
    """Run a trial to the epoch and status at which it ended before; return its record."""
    stopped_early = row.status in (TrialStatus.PRUNED, TrialStatus.CANCELLED)
    report = trial.report()
    while not report.done:
        if stopped_early and report.epoch >= epochs and (epochs > 0 or score in report.scores):
            return trial.finish(row.status, row.cause)
        report = trial.advance(next_stop(assignment.plan, report.epoch).epoch)
    return trial.finish()


def _retrained(folder: Path, study: StudySpec, arrays: ArrayData, row: TrialRow) -> Ended:
    """Train a trial again from its seed and store it; return the line about it."""
    trial_id, attempt = row.trial_id, row.attempt + 1
    planned = asked_of(row, study)
    assignment = planned.model_copy(update={"attempt": attempt})
    place = folder / "checkpoints" / f"{trial_id:06d}" / f"attempt-{attempt}"
    place.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(study.resources.cpus)
    device = device_for(study.resources.gpus if row.gpu_share else 0)
    make_reproducible(device)
    tensors = to_tensors(arrays, device)
    trial = Trial.start(assignment, tensors, place, gpu_share=row.gpu_share or 0.0)
    record = replayed(assignment, row, row.epochs, trial, score=study.pruning_score)
    about = {"content_hash": current_hash(folder, study), "own": row.own}
    about |= {"stage": stage_of(trial_id)}
    record = record.model_copy(update=about)
    files = write_record(folder, record, study)
    remove_attempts(folder, place.parent.relative_to(folder).as_posix())
    return Ended(row=TrialRow.of(record), files=files)


def _loaded(
    folder: Path, study: StudySpec, data: Load, done: list[str], what: str
) -> ArrayData | None:
    """Return the data of the trials; if they are not at hand, say what cannot be restored."""
    try:
        arrays = data(study)
        _check_trained_on(folder, study, data_digest(arrays))
        return arrays
    except ValueError as error:
        done.append(f"{what}: not restored; {error}")
        return None


def _check_trained_on(folder: Path, study: StudySpec, now: str) -> None:
    """Check that data are those on which the trials were trained.

    Raises:
        ValueError: they are not; a trial that is trained again would be another.
    """
    recorded, ran = data_of_trials(folder), _ran(folder)
    if now == recorded or (not recorded and (not ran or content_hash(study, now) in ran)):
        return
    if recorded or ran != {content_hash(study, "")}:
        raise UserError(
            "repair-with-other-data",
            f"study.toml or the data set '{study.dataset.name}' is not that of the trials; "
            "restore it, then repair again.",
        )


def _ran(folder: Path) -> set[str]:
    """Return the hashes of the conditions in the rows of a study."""
    rows = find_done(folder).done.values()
    return {row.content_hash for row in rows if row.content_hash}


def _restore_model(
    folder: Path,
    study: StudySpec,
    data: Load,
    trial_id: int,
    row: TrialRow | None,
    done: list[str],
) -> None:
    name = f"models/{trial_id}.safetensors"
    if row is None or row.status is not TrialStatus.COMPLETE:
        if (folder / name).exists():
            _aside(folder, name, done, "its trial is not complete")
        return
    arrays = _loaded(folder, study, data, done, name)
    if arrays is None:
        return
    try:
        tables = read_study_tables(folder, study)
        given = assignment_of_row(tables, trial_id, scores_of_folds(study))
        made = train_again(tables, arrays, given)
    except UserError as error:
        done.append(f"{name}: left as it is; {error}")
        return
    if (folder / name).exists():
        _aside(folder, name, done, "its trial is trained again")
    write_whole(folder / name, made.read_bytes())
    remove_attempts(folder, made.parent.relative_to(folder).as_posix())
    done.append(f"{name}: trained again from its seed")


def _restore_told(folder: Path, place: str, done: list[str]) -> None:
    """Write what a study tells of itself again from its report, or set it aside."""
    there = (folder / place).exists()
    if there:
        set_aside(folder, place)
    if restore_told(folder, place):
        done.append(f"{place}: written again from the report")
    elif there:
        then = "the study looks like a search now" if place == ORIGIN else "the next run writes it"
        done.append(f"{place}: moved to damaged/; {then}")


def restored_study(folder: Path, done: list[str]) -> StudySpec:
    """Return the study; restore its file if it is damaged or was changed after trials had run.

    Args:
        folder: A study folder.
        done: One line for each thing done is added to it.
    """
    known = study_of_trials(folder)
    try:
        there = restorable(folder)
        if known is None or not (changed := differences(there, known)):
            return there
        study = known.model_copy(update={key: getattr(there, key) for key in FREE_KEYS})
        words = [
            one.replace("in the folder", "there").replace("asked", "again") for one in changed
        ]
    except StudyError:
        if known is None:
            raise
        study, words = known, [f"as it last ran, with n_trials = {known.n_trials}"]
    then = f"restored from the sealed copy: {'; '.join(words)}"
    if (folder / "study.toml").exists():
        _aside(folder, "study.toml", done, then)
    else:
        done.append(f"study.toml: {then}")
    write_whole(folder / "study.toml", dump_study(study))
    return study


def _restore_conditions(folder: Path, study: StudySpec, data: Load, done: list[str]) -> None:
    """Write the sealed copy of a study again, if study file and data have the hash of its rows."""
    ran = _ran(folder)
    lost = ran and study_of_trials(folder) is None and ran != {content_hash(study, "")}
    if lost or damaged_conditions(folder):
        there = not damaged_conditions(folder)
        arrays = _loaded(folder, study, data, done, "logs/conditions-*.toml")
        if arrays is None:
            return
        try:
            found, restored = note_conditions(folder, study, data_digest(arrays), ran)
        except UserError as error:  # the rest can be repaired
            done.append(f"logs/conditions-*.toml: not restored; {error}")
            return
        done += [f"logs/conditions-{found}.toml: written again"] if there else restored


def _restore_data(folder: Path, data: Load, done: list[str]) -> None:
    """Set the kept data aside if they are not those of the study; name other data that are not."""
    for found in check_data(folder, data)[0]:
        if found.place != KEPT or study_of_trials(folder) is None:  # the study file may be wrong
            done.append(f"{found.place}: {found.problem}")
        elif (folder / KEPT).exists():
            _aside(folder, KEPT, done, _AGAIN)
        else:
            done.append(f"{KEPT}: missing; {_AGAIN}")


def _aside(folder: Path, place: str, done: list[str], then: str) -> None:
    set_aside(folder, place)
    done.append(f"{place}: moved to damaged/; {then}")
