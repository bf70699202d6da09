"""Studies in Python: search, resume and load, which give a study (`results.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from nas_evidence.api.progress import audience_for, tell_of_data
from nas_evidence.api.request import (
    Request,
    asked_for,
    check_not_fewer,
    check_own_sampler,
    of_memory,
    overrides_of,
    own_families,
    sampler_of,
    with_families,
    with_workers,
)
from nas_evidence.api.results import LEADERBOARD, Study
from nas_evidence.api.runs import (
    Audience,
    Run,
    begun,
    check_reaches,
    left_out,
    run_of,
    study_run,
)
from nas_evidence.api.shared_options import RunOptions, SearchOptions, check_known, with_options
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import pandas and torch
    from nas_evidence.data.source import Source
    from nas_evidence.driver.mirror import WorkingCopy

__all__ = ["load", "resume", "search"]


@with_options(SearchOptions)
def search(
    data: Any,
    y: Any = None,
    *,
    families: Sequence[Any] | str | None = None,
    sampler: Any = None,
    out: str | Path | None = None,
    **options: Unpack[SearchOptions],
) -> Study:
    """Search architectures for data, or run a study file; continue if its folder exists.

    Args:
        data: a DataFrame, array, tensor or torch Dataset; or the path of a table, .npz file,
            image folder or study file, or the name of a shipped study.
        y: labels or targets, if `data` does not hold them.
        families: what to search: names of families, or families of your own (see
            `nas_evidence.spec.families`); by default those that fit the data.
        sampler: what proposes: a name as in a study file, or a sampler of Optuna as an object or
            as what makes one (see docs/how-to/other-tools.md); `resume` needs an object again.
        out: study folder, or the URI of a store; by default runs/<name>.
        options: see `nas_evidence.api.shared_options.SearchOptions`.

    Returns:
        The study with its finished trials: `ranking`, `best`, `predict`, `report`, `export`.

    Raises:
        ValueError: for data or settings that cannot be used; one sentence with a remedy.
        RuntimeError: if every trial failed, or none was complete in the time.

    Example:
        from sklearn.datasets import load_diabetes

        frame = load_diabetes(as_frame=True).frame
        study = nas_evidence.search(frame, target="target", test_fraction=0.2, time_limit="10m")
        study.leaderboard()
    """
    from nas_evidence.data.decided import how_read_of
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.kept_how_read import keep_how_read
    from nas_evidence.storage.outside_code import only_here

    check_known("search", SearchOptions, options)
    (named, given), run = sampler_of(sampler, options.get("settings")), run_of(options)
    overrides = [*overrides_of(options), *named]
    check_reaches(only_here(own_families(families)), run.executor)  # before data are read
    if isinstance(data, str | Path):
        if y is not None:
            raise UserError(
                "y is for data in memory; name the column of a file with target"
            ).with_code("y-with-file")
        asked = asked_for(
            str(data),
            overrides,
            options,
            allow_code=run.allow_code,
            given=given,
            data_root=run.data_root,
        )
    else:
        if isinstance(y, str):
            raise UserError(
                f"y must be values; to name a column write search(data, target={y!r})"
            ).with_code("y-names-column")
        asked = of_memory(data, y, options, overrides, allow_code=run.allow_code, given=given)
    place = _folder_of(asked, named=isinstance(data, str | Path)) if out is None else out
    spec, code = with_families(asked.spec, families, asked.code)
    check_reaches(code, run.executor)
    spec = with_workers(spec, options.get("workers", 1))
    store = working_copy(str(place))
    _check_columns(run, spec, store.folder)
    audience = audience_for(options.get("progress"))
    tell = tell_of_data(options.get("progress"), audience)
    for sentence in asked.decided:
        tell(sentence)
    with code.in_use(), store.held(steal=run.steal):
        spec, source = begun(
            store.folder,
            spec,
            asked.source,
            steal=run.steal,
            data_root=run.data_root,
            download=run.download,
        )
        if asked.arrays is not None:
            keep_how_read(store.folder, how_read_of(asked.arrays))
        return _run(spec, store, run, audience, source, code)


@with_options(RunOptions)
def resume(
    folder: str | Path,
    *,
    retry_failed: bool | Sequence[int] = False,
    sampler: Any = None,
    **options: Unpack[RunOptions],
) -> Study:
    """Continue a study after a stop or a crash, or with more trials, time or another budget.

    Args:
        folder: of the study, or the URI of its store.
        retry_failed: run failed trials again, all, or those with these ids.
        sampler: the object that `search` was given, of which the study keeps the name alone.
        options: see `nas_evidence.api.shared_options.RunOptions`.

    Returns:
        The study with the old and the new trials.

    Raises:
        ValueError: if it is not a study folder, or a key may not change.
        RuntimeError: if every trial failed.

    Example:
        study = nas_evidence.resume("runs/mine", n_trials=48)
    """
    from nas_evidence.data.source import stored_source
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.conditions import edits_of
    from nas_evidence.storage.outside_code import admitted, kept_code
    from nas_evidence.storage.redo import ask_to_retry
    from nas_evidence.storage.study_folder import open_study, read_study

    check_known("resume", RunOptions, options)
    run, audience = run_of(options), audience_for(options.get("progress"))
    store = working_copy(str(folder))
    with store.held(steal=run.steal):
        for edit in edits_of(store.folder):
            audience.say(f"note: study.toml was edited: {edit}")
        n_trials, keys = options.get("n_trials"), {**options, "n_trials": None}
        named, given = sampler_of(sampler, options.get("settings"))
        spec = read_study(store.folder, [*overrides_of(keys), *named])
        check_not_fewer(spec, n_trials)
        spec = spec.model_copy(update={"n_trials": n_trials or spec.n_trials})
        spec = with_workers(spec, options.get("workers", 1))
        kept = kept_code(store.folder) | given
        spec, code = admitted(spec, [Path.cwd()], allowed=run.allow_code, kept=kept)
        check_own_sampler(spec, code)
        if given.local:
            audience.say(
                f"note: the study keeps the name {spec.sampler.name} alone, so that nothing "
                "checks whether the sampler has the arguments that it began with"
            )
        check_reaches(code, run.executor)
        _check_columns(run, spec, store.folder)
        spec = open_study(store.folder, spec, steal=run.steal)
        if retry_failed is not False:
            n = len(ask_to_retry(store.folder, None if retry_failed is True else retry_failed))
            audience.say(f"retry: {n} failed trial{'s' * (n != 1)}")
        source = stored_source(
            spec.dataset, base=store.folder.resolve(), data_root=run.data_root,
            download=run.download,
        )  # fmt: skip
        return _run(spec, store, run, audience, source, code)


def load(
    folder: str | Path, *, data_root: str | Path | None = None, allow_code: bool = False
) -> Study:
    """Return the study in a folder, or in the store at a URI, of which a copy is fetched.

    With `allow_code` the code that it names is imported.

    Raises:
        ValueError: if it is not a study folder.

    Example:
        nas_evidence.load("runs/mine").predict(new)
    """
    return Study(folder, data_root, allow_code=allow_code)


def _check_columns(run: Run, spec: StudySpec, folder: Path) -> None:
    """Check the columns of callbacks before anything runs."""
    from nas_evidence.api.callbacks import columns_added_by
    from nas_evidence.storage.tables import check_own_columns

    if columns := columns_added_by(run.callbacks):
        check_own_columns(columns, spec, (*LEADERBOARD, "objective", "ranked", "own"), folder)


def _run(
    spec: StudySpec,
    store: "WorkingCopy",
    run: Run,
    audience: Audience,
    data: "Source",
    code: Code,
) -> Study:
    from nas_evidence.reporting.live import stamp
    from nas_evidence.spec.registry import import_outside
    from nas_evidence.storage.outside_code import outside_names, with_kept

    # The copy may hold more files than are needed now; all of it runs and is kept.
    code = with_kept(store.folder, code)
    with code.in_use():
        import_outside(outside_names(spec))
    with code.in_use(), study_run(spec, store, run, audience, data, code) as (tables, ran):
        study = Study(store.place, run.data_root, spec=spec, store=store, code=code)
        study._data, study._read = data, (stamp(store.folder), tables)
        audience.ends(study, run, ran)
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
    return study


def _folder_of(asked: Request, *, named: bool) -> Path:
    """Return runs/<name>; for data in memory, which have none, with the start of their hash."""
    from nas_evidence.storage.study_folder import default_folder

    folder = default_folder(asked.spec)
    content = asked.spec.dataset.content
    if named or content is None:
        return folder
    return folder.with_name(f"{folder.name}-{content[:8]}")
