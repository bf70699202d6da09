"""What looks before a search: init, and search --dry-run."""

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import nas_evidence
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.cli.options import with_parameters_of
from nas_evidence.cli.shown import print_reading
from nas_evidence.cli.terminal import counted, err, out, typed
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # imports the data readers
    from nas_evidence.data import ArrayData


@with_parameters_of(nas_evidence.search, only=DataOptions.__annotations__)
def init(
    place: Annotated[str, typer.Argument(metavar="DATA", help="A table, arrays, or images.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Study file to write.")
    ] = None,
    **data: Any,
) -> None:
    """Write the study file that `search` would use for data, with comments, to be edited.

    Example: nas-evidence init mine.csv --target price
    """
    from nas_evidence.api.request import dataset_of, is_data
    from nas_evidence.data.proposed import name_of, proposed_text
    from nas_evidence.data.source import source_of

    if not is_data(place):
        raise UserError(
            f"there is no data at {place}; init takes a .csv, .parquet or .npz file."
        ).with_code("init-without-data")
    path = Path(place).expanduser()
    file = to or Path(f"{name_of(path)}.toml")
    if file.exists():
        raise UserError(f"{file} exists; give another file with --to, or remove it.").with_code(
            "init-file-exists"
        )
    dataset = dataset_of(path, cast("DataOptions", data))
    source = source_of(dataset)
    assert source is not None
    arrays = source.arrays(seed=0)
    beside = _relative(path, file.parent)
    text = proposed_text(dataset.model_copy(update={"path": beside}), arrays, name=file.stem)
    file.write_text(text, encoding="utf-8")
    print_reading(arrays.meaning.said)
    out.print(f"study file: {file}; run it with {typed('search', file)}")


def dry_run(data: str, **given: Any) -> None:
    """Check a study file and its data: every error of the file at once, then what is there."""
    from nas_evidence.api.request import asked_for, overrides_of, with_workers
    from nas_evidence.api.runs import run_of

    run_of({"executor": "auto", **given})  # what the search itself would refuse
    data_root = given.get("data_root")
    asked = asked_for(
        data, overrides_of(given), cast("DataOptions", given), data_root=data_root,
        allow_code=given.get("allow_code", False),
    )  # fmt: skip
    spec, arrays = with_workers(asked.spec, given.get("workers")), asked.arrays
    images = arrays is not None and arrays.meaning.images is not None  # kept as arrays
    out.print(
        f"{spec.name}: valid; {counted(spec.n_trials, 'trial')} over {', '.join(spec.family)} on "
        f"{'images' if images else spec.dataset.name}"
    )
    if arrays is None:
        from nas_evidence.data import load

        root = None if data_root is None else str(data_root)
        try:
            arrays = load(
                spec.dataset, seed=spec.seed, data_root=root, download=given.get("download", False)
            )
        except ValueError as error:
            err.print(f"data not checked: {error}")
            return
    _describe(spec, arrays, given.get("executor", "auto"), given.get("address"))


def _describe(spec: StudySpec, arrays: "ArrayData", executor: str, address: str | None) -> None:
    """Print what the data are and what the study would take."""
    from nas_evidence.data.arrays import check_space, check_task
    from nas_evidence.data.proposed import order_sentence, skewed_sentence, with_numbers
    from nas_evidence.driver.race import budget_of
    from nas_evidence.driver.runtime import forecast_seconds
    from nas_evidence.plumbing.durations import rough_duration
    from nas_evidence.workers.choice import chosen_executor, n_workers

    print_reading(arrays.meaning.said)
    shape = " x ".join(map(str, arrays.input_shape))
    targets = arrays.kind.targets  # one real target, but never one class
    outputs = f"{arrays.n_outputs} {targets if arrays.n_outputs > 1 else targets[:-1]}"
    out.print(
        f"data: {arrays.n_train} training rows, {len(arrays.x_test)} test rows, inputs {shape}, "
        f"{outputs}"
    )
    skewed = skewed_sentence(spec, arrays)
    print_reading([*filter(None, [skewed]), order_sentence(spec, arrays.n_train)])
    check_task(spec.plan, arrays)
    check_space(spec.family, arrays)
    megabytes = arrays.n_train * 4 * prod(arrays.input_shape) / 1e6
    out.print(f"memory: {megabytes:.3g} MB of training inputs in each worker")
    race = budget_of(spec) if spec.n_finalists else 0
    more = f", then up to {race} retrainings of the best" if race else ""
    where = executor
    if where == "auto":
        where, _ = chosen_executor(spec.resources, joins=address is not None)
    workers = n_workers(spec.resources, where, spec.n_trials + race)
    plan = with_numbers(spec.plan, arrays.n_train)
    time = rough_duration(forecast_seconds(spec.model_copy(update={"plan": plan}), arrays))
    at_once = f"{workers} worker{'s' * (workers > 1)}" if workers else "workers as there is room"
    end = f"{';' if more else ','} {at_once}"
    out.print(f"time: {time} on idle cores for {counted(spec.n_trials, 'trial')}{more}{end}")


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to the folder of the study file if it is below it."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
