"""Studies in Python: search, resume and load, which give a study (`results.py`)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Unpack

from nas_evidence.api.finishing import check_columns, run_to_end
from nas_evidence.api.progress import audience_for
from nas_evidence.api.request import (
    asked_for,
    check_more_of_refit,
    check_not_fewer,
    check_own_sampler,
    named_scores,
    of_memory,
    overrides_of,
    own_families,
    sampler_of,
    whole,
    with_families,
    with_workers,
)
from nas_evidence.api.results import LEADERBOARD, Study
from nas_evidence.api.runs import begun, check_reaches, forks_ahead, run_of
from nas_evidence.api.shared_options import (
    RefitOptions,
    RunOptions,
    SearchOptions,
    check_known,
    with_options,
)
from nas_evidence.plumbing.user_error import UserError

__all__ = ["load", "refit", "resume", "search"]


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
            as what makes one (see docs/how-to/extend.md); `resume` needs an object again.
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
    from nas_evidence.storage.outside_code import only_here, with_objects

    check_known("search", SearchOptions, options)
    settings, scores = named_scores(options.get("settings"))
    (named, given), run = sampler_of(sampler, settings), run_of(options)
    check_reaches(only_here([*own_families(families), *scores]), run.executor)  # before data
    with forks_ahead(run) as run:
        from nas_evidence.data.decided import how_read_of
        from nas_evidence.driver.mirror import working_copy
        from nas_evidence.storage.kept_how_read import keep_how_read
        from nas_evidence.storage.study_folder import default_folder

        given = with_objects(scores, given, [])
        overrides = [*overrides_of(options), *named]
        if isinstance(data, str | Path):
            if y is not None:
                raise UserError(
                    "y-with-file", "y is for data in memory; name the column of a file with target"
                )
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
                    "y-names-column",
                    f"y must be values; to name a column write search(data, target={y!r})",
                )
            asked = of_memory(data, y, options, overrides, allow_code=run.allow_code, given=given)
        if out is None:
            out, content = default_folder(asked.spec), asked.spec.dataset.content
            if content is not None and not isinstance(data, str | Path):  # which has no name
                out = out.with_name(f"{out.name}-{content[:8]}")
        spec, code = with_families(asked.spec, families, asked.code)
        check_reaches(code, run.executor)
        spec = with_workers(spec, options.get("workers", 1))
        store = working_copy(str(out))
        check_columns(run, spec, store.folder, LEADERBOARD)
        audience = audience_for(options.get("progress"))
        if asked.decided:
            audience.read(asked.decided)
        with code.in_use(), run.at(store):
            spec, source = begun(store.folder, spec, asked.source, run)
            if asked.arrays is not None and not run.only_checks:
                keep_how_read(store.folder, how_read_of(asked.arrays, asked.given))
            return run_to_end(Study, spec, store, run, audience, source, code)


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
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.conditions import edits_of
    from nas_evidence.storage.outside_code import admitted, kept_code
    from nas_evidence.storage.redo import find_done, to_retry
    from nas_evidence.storage.study_folder import read_study

    check_known("resume", RunOptions, options)
    asked, audience = run_of(options), audience_for(options.get("progress"))
    store = working_copy(str(folder))
    with forks_ahead(asked) as run, run.at(store):
        for edit in edits_of(store.folder):
            audience.say(f"note: study.toml was edited: {edit}")
        n_trials, keys = whole("n_trials", options.get("n_trials")), {**options, "n_trials": None}
        named, given = sampler_of(sampler, options.get("settings"))
        spec = read_study(store.folder, [*overrides_of(keys), *named])
        check_not_fewer(spec, n_trials)
        check_more_of_refit(spec, store.folder, n_trials)
        spec = spec.model_copy(update={"n_trials": n_trials or spec.n_trials})
        spec = with_workers(spec, options.get("workers", 1))
        kept = kept_code(store.folder)
        spec, code = admitted(spec, [Path.cwd()], allowed=run.allow_code, kept=kept, here=given)
        check_own_sampler(spec, code)
        if given.local:
            audience.say(
                f"note: the study keeps the name {spec.sampler.name} alone, so that nothing "
                "checks whether the sampler has the arguments that it began with"
            )
        check_reaches(code, run.executor)
        check_columns(run, spec, store.folder, LEADERBOARD)
        spec, source = begun(store.folder, spec, None, run)
        again: Collection[int] = ()
        if retry_failed is not False:
            which = None if retry_failed is True else retry_failed
            again = to_retry(find_done(store.folder), which)
            audience.say(f"retry: {len(again)} failed trial{'s' * (len(again) != 1)}")
        return run_to_end(Study, spec, store, run, audience, source, code, again)


@with_options(RefitOptions)
def refit(
    study: str | Path | Study,
    data: Any = None,
    y: Any = None,
    *,
    trial_id: int | None = None,
    top: int | None = None,
    seeds: int = 3,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Unpack[RefitOptions],
) -> Study:
    """Train the best architecture of a study again, on all rows or on other ones.

    Args:
        study: its folder, the URI of its store, or the study itself.
        data: in place of its own rows, see `Study.refit`.
        y: labels or targets, if `data` does not hold them.
        trial_id: of another architecture than the best.
        top: train the so many best architectures.
        seeds: trainings of each architecture, from random starts.
        seed: of the new study; by default that of the old one.
        out: its folder, or the URI of a store; by default that of the old study and "-refit".
        options: see `nas_evidence.api.shared_options.RefitOptions`.

    Returns:
        The new study, which says what it comes from.

    Raises:
        ValueError: without a complete trial, or for rows that do not fit the study.
        RuntimeError: if every trial failed, or none was complete in the time.

    Example:
        nas_evidence.refit("runs/flats", "flats_more.csv").predict("new.csv")
    """
    if not isinstance(study, Study):
        code = options.get("allow_code", False)
        study = load(study, data_root=options.get("data_root"), allow_code=code)
    return study.refit(
        data, y, trial_id=trial_id, top=top, seeds=seeds, seed=seed, out=out, **options
    )


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
