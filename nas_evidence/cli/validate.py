"""What looks before a study runs: init, and --dry-run of search, resume and refit."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

import nas_evidence
from nas_evidence.api.runs import Ahead
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.cli.options import with_parameters_of
from nas_evidence.cli.shown import Printed, print_reading
from nas_evidence.cli.terminal import out, typed
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.words import counted
from nas_evidence.spec.study import StudySpec


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
            "init-without-data",
            f"there is no data at {place}; init takes a .csv, .parquet or .npz file.",
        )
    path = Path(place).expanduser()
    file = to or Path(f"{name_of(path)}.toml")
    if file.exists():
        raise UserError(
            "init-file-exists", f"{file} exists; give another file with --to, or remove it."
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


class Check(Printed):
    """Prints what a search, a resume or a refit would do; nothing is written, and none runs."""

    only_checks = True
    _has_read = False

    def read(self, sentences: Sequence[str]) -> None:
        """Print how the data were read."""
        self._has_read = True
        print_reading(sentences)

    def ready(self, spec: StudySpec, ahead: Ahead | None) -> NoReturn:
        """Print what the data are and what the trials would take, and end."""
        if ahead is None:
            out.print(f"{spec.name}: all {counted(spec.n_trials, 'trial')} are finished")
        else:
            self._describe(spec, ahead)
        out.print("valid: nothing was written; without --dry-run it runs")
        raise typer.Exit

    def _describe(self, spec: StudySpec, ahead: Ahead) -> None:
        from nas_evidence.data.proposed import order_sentence, skewed_sentence
        from nas_evidence.driver.runtime import forecast_seconds
        from nas_evidence.plumbing.durations import rough_duration

        arrays, n_trials = ahead.arrays, ahead.left
        if not self._has_read:
            skewed = skewed_sentence(spec, arrays)
            order = order_sentence(spec, arrays.n_train)
            self.read([*arrays.meaning.said, *filter(None, [skewed]), order])
        shape = " x ".join(map(str, arrays.input_shape))
        targets = arrays.kind.targets  # one real target, but never one class
        outputs = f"{arrays.n_outputs} {targets if arrays.n_outputs > 1 else targets[:-1]}"
        out.print(
            f"data: {arrays.n_train} training rows, {len(arrays.x_test)} test rows, inputs "
            f"{shape}, {outputs}"
        )
        out.print(f"families: {', '.join(spec.family)}")
        megabytes = arrays.n_train * 4 * prod(arrays.input_shape) / 1e6
        out.print(f"memory: {megabytes:.3g} MB of training inputs in each worker")
        seconds = forecast_seconds(spec, arrays, n_trials=n_trials, workers=ahead.workers)
        out.print(f"time: {rough_duration(seconds)} on idle cores")


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to the folder of the study file if it is below it."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
