"""The best architectures of a study trained again, as a study of its own.

It is a grid of these architectures alone, on all rows of the study or on others that are read as
it read its own (`data/as_before.py`). Plan, scores and what ranks are as there. It has no race, no
pruning and no limits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nas_evidence.api.finishing import check_columns, run_to_end
from nas_evidence.api.progress import audience_for
from nas_evidence.api.request import check_one, whole, with_workers
from nas_evidence.api.runs import begun, check_reaches, run_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import OWN_DATA
from nas_evidence.spec.domains import Choice, architecture_text
from nas_evidence.spec.record import n_searched
from nas_evidence.spec.study import (
    MAX_NAME,
    ArchitectureSpec,
    BudgetSpec,
    DatasetSpec,
    LimitSpec,
    PruningSpec,
    RaceSpec,
    SamplerSpec,
    StudySpec,
)

if TYPE_CHECKING:  # these import pandas
    from nas_evidence.data.as_before import ReadBefore
    from nas_evidence.data.source import Source
    from nas_evidence.spec.domains import ParameterValue
    from nas_evidence.storage.tables import StudyTables

#: What the name and the folder of the new study end with.
ENDING = "-refit"


def refitted(
    study: Any,
    data: Any,
    y: Any,
    *,
    trial_id: int | None,
    top: int | None,
    seeds: int,
    seed: int | None,
    out: str | Path | None,
    options: Mapping[str, Any],
    taken: Iterable[str],
) -> Any:
    """Return the study in which the best architectures of `study` are trained again.

    Args:
        study: a `results.Study`, whose type the new one has.
        data: see `Study.refit`, as all others.
        y: see there.
        trial_id: see there.
        top: see there.
        seeds: see there.
        seed: see there.
        out: see there.
        options: of `shared_options.RefitOptions`.
        taken: names that no column of a callback may have.
    """
    from nas_evidence.data.decided import how_read_of
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.spec.origin import Origin
    from nas_evidence.storage.kept_how_read import keep_how_read, read_how_read
    from nas_evidence.storage.kept_origin import keep_origin
    from nas_evidence.storage.outside_code import admitted, outside_names

    run, audience = run_of(options), audience_for(options.get("progress"))
    trial_id, top = check_one(trial_id, top)
    seeds, seed = whole("seeds", seeds) or 0, whole("seed", seed)
    for name, number in (("seeds", seeds), ("top", top)):
        if number is not None and number < 1:
            raise UserError("refit-number", f"--{name} must be at least 1, but got {number}")
    if y is not None and data is None:
        raise UserError("refit-y-alone", "y holds the targets of data; give these too")
    # Only now, since it imports torch, which takes seconds.
    from nas_evidence.exporting.winner import assignment_of_row

    tables = study._tables()
    trials = _trials(study, tables, trial_id, top)
    chosen = [assignment_of_row(tables, one).architecture for one in trials]
    spec = _spec(study.spec, chosen, seeds, seed)
    if outside_names(spec) and not (study._code.files or study._code.local):
        admitted(spec, [Path.cwd()], allowed=run.allow_code)  # says what it needs
    check_reaches(study._code, run.executor)
    spec = with_workers(spec, options.get("workers", 1))

    known = read_how_read(study.folder)
    given = known.given if known and known.given else str(study.place)
    before = _before(study, other=data is not None)
    source = _source(study, before, data, y, given=given, seed=spec.seed)
    arrays = source.arrays(seed=spec.seed)
    n_finished = n_searched(tables.trials["trial_id"])
    origin = Origin(
        place=study.place,
        trials=tuple(trials),
        architectures=tuple(architecture_text(one.family, one.values) for one in chosen),
        own_rows=data is None,
        data=source.name,
        n_rows=arrays.n_train,
        n_tested=known.n_test if known else 0,
        n_before=known.n_train if known else 0,
        n_finished=n_finished,
        n_trials=study.spec.n_trials,
    )
    spec = spec.model_copy(update={"dataset": source.spec})
    place = str(study.place).rstrip("/") + ENDING if out is None else str(out)
    store = working_copy(place)
    check_columns(run, spec, store.folder, taken)
    how = how_read_of(arrays, origin.data)  # the origin says which rows
    how = replace(how, decided=tuple(s for s in how.decided if not s.startswith("rows: ")))
    audience.read((origin.sentence, *how.decided))
    code = study._code
    with code.in_use(), run.at(store):
        spec, source = begun(store.folder, spec, source, run)
        if not run.only_checks:
            keep_how_read(store.folder, how)
            keep_origin(store.folder, origin)
        return run_to_end(type(study), spec, store, run, audience, source, code)


def _trials(
    study: Any, tables: "StudyTables", trial_id: int | None, top: int | None
) -> Sequence[int]:
    """Return the trials that represent the architectures to train again, the best first."""
    from nas_evidence.exporting.folder import best_trials, trial_to_export

    if trial_id is not None:
        return [trial_to_export(tables, trial_id)]
    best = study.best.trial_id  # refuses a study without one
    return [best] if top is None else best_trials(tables, top)


def _spec(
    old: StudySpec, chosen: Sequence[ArchitectureSpec], seeds: int, seed: int | None
) -> StudySpec:
    """Return a study of these architectures alone, in this order."""
    options: dict[str, dict[str, list[ParameterValue]]] = {}
    for one in chosen:
        own = options.setdefault(one.family, {})
        for name, value in one.values.items():
            if value not in own.setdefault(name, []):
                own[name].append(value)
    family = {
        name: {key: Choice(options=tuple(values)) for key, values in own.items()}
        for name, own in options.items()
    }
    update = {
        "name": old.name[: MAX_NAME - len(ENDING)] + ENDING,
        "seed": old.seed if seed is None else seed,
        "n_trials": seeds * len(chosen),
        "replicates": seeds,
        "finalists": 0,
        "minimise": (),
        "warm_start": None,
        "first": tuple({"family": one.family, **one.values} for one in chosen),
        "family": family,
        "sampler": SamplerSpec(name="grid"),
        "pruning": PruningSpec(),
        "limits": LimitSpec(),
        "budget": BudgetSpec(),
        "race": RaceSpec(),
        "scheduling": "async",
    }
    return old.model_copy(update=update)


def _before(study: Any, *, other: bool) -> "ReadBefore":
    """Return how a study read its data: from these, or where they are no more from its export."""
    from nas_evidence.data.as_before import ReadBefore
    from nas_evidence.data.digest import ChangedDataError

    try:
        return ReadBefore.of(study.arrays(), study.spec.dataset, study.place)
    except (ChangedDataError, OSError):
        if not other or not study.is_exported():
            raise
    found = study.predictor()
    return ReadBefore(
        study.place,
        study.spec.dataset,
        tuple(found.meaning["input_shape"]),
        len(found.classes) or len(found.meaning["target_mean"]),
        found.classes,
        found.preparation,
        found.images,
    )


def _source(
    study: Any, before: "ReadBefore", data: Any, y: Any, *, given: str, seed: int
) -> "Source":
    """Return the rows to train on, read as before."""
    from nas_evidence.data.as_before import all_named_rows, all_rows, other_rows, read_as_before
    from nas_evidence.data.source import stored_rows

    spec: DatasetSpec = study.spec.dataset
    if data is not None:
        found = other_rows(before, data, y)
    elif spec.name in OWN_DATA:
        base = study.folder.resolve()
        rows = stored_rows(spec, base=base, data_root=study.data_root)
        found = all_rows(before, rows, given)
    else:
        raw = study._source().raw(spec, seed=study.spec.seed)
        named = {key: getattr(raw, key) for key in ("x_train", "y_train", "x_test", "y_test")}
        found = all_named_rows(before, cast("Mapping[str, Any]", named))
    return read_as_before(before, found, seed=seed)
