"""From a study that has begun to its end, for each function that runs one."""

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nas_evidence.api.runs import Audience, Run, left_out, study_run
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.data.source import Source
    from nas_evidence.driver.mirror import WorkingCopy

Made = TypeVar("Made")


def check_columns(run: Run, spec: StudySpec, folder: Path, taken: Iterable[str]) -> None:
    """Check the columns of callbacks before anything runs; none has the name of a `taken` one."""
    from nas_evidence.api.callbacks import columns_added_by
    from nas_evidence.storage.tables import check_own_columns

    if columns := columns_added_by(run.callbacks):
        check_own_columns(columns, spec, (*taken, "objective", "ranked", "own"), folder)


def run_to_end(
    make: Callable[..., Made],
    spec: StudySpec,
    store: "WorkingCopy",
    run: Run,
    audience: Audience,
    data: "Source",
    code: Code,
    again: Collection[int] = (),
) -> Made:
    """Run what is left of a study, tell the audience its end, and return it.

    Args:
        make: makes the study that is returned (`results.Study`).
        spec: as stored in the folder.
        store: its place, which is held.
        run: how to run it.
        audience: who is told.
        data: of the study.
        code: what the study names as module:NAME.
        again: failed trials that run again.

    Raises:
        RuntimeError: if every trial failed, or none was complete in its time.
    """
    from nas_evidence.spec.registry import import_outside
    from nas_evidence.storage.outside_code import outside_names, with_kept
    from nas_evidence.storage.tables import stamp

    # The copy may hold more files than are needed now; all of it runs and is kept.
    code = with_kept(store.folder, code)
    with code.in_use():
        import_outside(outside_names(spec))
    with code.in_use(), study_run(spec, store, run, audience, data, code, again) as ended:
        tables = ended.tables
        made = make(store.place, run.data_root, spec=spec, store=store, code=code)
        study: Any = made
        study._data, study._read = data, (stamp(store.folder), tables)
        # What follows needs torch, which the server of plain processes has imported.
        with study._with_fork_of(ended.forks) if ended.forks else nullcontext():
            audience.ends(study, run, ended.ran)
    statuses = set(tables.trials["status"])
    cut = left_out(spec, store.folder, run.limit)
    if cut and not statuses:
        raise RuntimeError(
            f"no trial of {store.place} was complete in its time; resume it with more"
        )
    if statuses and TrialStatus.COMPLETE.value not in statuses:
        from nas_evidence.reporting.problems import problems

        why = problems(study._ranked())[0].detail
        raise RuntimeError(f"no trial of {store.place} is complete, most often because: {why}")
    return made
