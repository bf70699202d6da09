"""The verb that predicts new data with an exported network."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nas_evidence
from nas_evidence.api.prediction import study_at
from nas_evidence.api.progress import number_text
from nas_evidence.api.request import check_one
from nas_evidence.cli.options import AllowCode, AsJson, DataRoot, with_parameters_of
from nas_evidence.cli.report import say_forecast
from nas_evidence.cli.terminal import (
    err,
    out,
    print_json,
    print_line,
    print_rows,
    say_flaws,
)
from nas_evidence.plumbing.foreign_text import csv_cell
from nas_evidence.plumbing.sums import listed
from nas_evidence.plumbing.user_error import UserError, no_such_file

if TYPE_CHECKING:
    import pandas as pd

#: Rows of predictions on the screen; the file has all.
_SHOWN = 5


@with_parameters_of(nas_evidence.predict)
def predict(
    place: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A study folder, a store's URI, or an export folder."),
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table, an .npz file or images to predict.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE.csv",
            help="Write here; else predictions.csv beside DATA; of images, here.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COL", help="Copy this column of DATA to the output."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file that is written, if it is there.")
    ] = False,
    quantiles: Annotated[
        str | None,
        typer.Option(metavar="P,...", help="Quantiles of real targets too: 0.1,0.5,0.9."),
    ] = None,
    ood: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Out-of-distribution data: how well the network tells them apart (AUROC).",
        ),
    ] = None,
    reliability: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the calibration here: .svg, .pdf, .png."),
    ] = None,
    as_json: AsJson = False,
    data_root: DataRoot = None,
    allow_code: AllowCode = False,
    **given: Any,
) -> None:
    """Predict new data with uncertainty; if they hold the target, print metrics.

    Example: nas-evidence predict runs/mine new.csv
    Example: nas-evidence predict runs/mine new.csv --quantiles 0.1,0.5,0.9
    Example: nas-evidence predict runs/mine labelled.csv --reliability r.svg
    """
    trial_id, top = given.get("trial_id"), given.get("top")
    check_one(trial_id, top)
    probabilities = _probabilities(quantiles)
    for path in filter(None, (data, ood)):
        if not path.expanduser().exists():
            raise no_such_file(path)
    _check_place("--to", to, (".csv", ".parquet"), data, force=force)
    if reliability is not None:
        from nas_evidence.api.figure import ENDINGS, check_figure_file

        _check_place("--reliability", reliability, ENDINGS, data, force=force)
        check_figure_file(reliability)
    chosen = (trial_id, top) != (None, None)
    study = study_at(place, chosen=chosen, data_root=data_root, allow_code=allow_code)
    if to is None and not as_json:
        to = _beside(data, force=force)
    copied = _copied(data.expanduser(), ids or [])

    if study is not None:
        say_flaws(study)
        say_forecast(study, "predict", trial_id=trial_id, top=top)
    predicted = nas_evidence.predict(
        study or place,
        data,
        quantiles=probabilities,
        ood=ood,
        allow_code=allow_code,
        **given,
        warn=lambda line: err.print(f"warning: {line}"),
    )
    found, measures = predicted.rows, predicted.metrics
    for note in predicted.notes:
        err.print(f"note: {note}")
    if reliability is not None:
        if measures.reliability is None:
            raise UserError(
                "reliability-without-target",
                f"--reliability compares with the truth, but {data} does not hold the target.",
            )
        from nas_evidence.api.figure import calibration_of

        calibration_of(measures).save(reliability)
    table = found.to_frame().reset_index(drop=True)  # the order is that of the file
    if predicted.given.names:
        table.insert(0, "image", predicted.given.names)
    for at, (name, values) in enumerate(copied.items()):
        table.insert(at, f"{name} (given)" if name in table else name, values)
    if to is not None:
        if to.suffix == ".csv":
            table.rename(columns=csv_cell).map(csv_cell).to_csv(to, index=False)
        else:
            with to.open("wb") as file:  # Arrow opens no path that is not UTF-8
                table.to_parquet(file)
    if as_json:
        print_json({"measures": measures, "predictions": table.to_dict("records")})
        return
    header = [str(name) for name in table.columns]
    cells = ([_cell(v) for v in row] for row in table.head(_SHOWN).itertuples(index=False))
    print_rows(f"First predictions for {data.name}", header, cells)
    out.print(f"predictions: {to} ({len(table)} rows)")
    if reliability is not None:
        out.print(f"reliability: {reliability}")
    from nas_evidence.data.targets import listed_weights  # pandas is here by now

    listed = listed_weights(found.class_weight)
    if found.threshold is not None:
        out.print(
            f"class: {found.classes[1]} from a probability of {found.threshold:.3f} on, the best "
            f"by {found.metric} on rows not trained on"
        )
    elif listed:
        out.print(f"class: the largest class weight times probability ({listed})")
    if predicted.weights is not None and measures.n:
        known = predicted.given.weights is not None
        times = "as often as in the column" if known else "once: there is no column"
        out.print(f"metrics: each row counts {times} {predicted.weights!r} of weights")
    if listed and measures.n:
        out.print(f"metrics: accuracy is weighted by class ({listed}); all others are not")
    for words, value in measures.lines():
        print_line(words, f"{value:.4f}")


def _probabilities(text: str | None) -> tuple[float, ...]:
    """Return the probabilities of --quantiles."""
    try:
        return tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise UserError(
            "quantiles-form",
            f"--quantiles takes probabilities with commas between, such as 0.1,0.5,0.9, but got "
            f"{text!r}.",
        ) from None


def _beside(data: Path, *, force: bool) -> Path:
    """Return where the predictions go that are given no place: beside the data.

    Those of images go to the current folder: beside them is the folder of a class.
    """
    from nas_evidence.data.images import are_images

    place = data.expanduser().absolute().with_name("predictions.csv")
    if are_images(data.expanduser()):
        place = Path.cwd() / "predictions.csv"
    place = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    if place.exists() and not force:
        raise UserError(
            "output-exists",
            f"{place} exists; name another file with --to, or replace it by --force.",
        )
    return place


def _check_place(
    option: str, path: Path | None, endings: tuple[str, ...], data: Path, *, force: bool
) -> None:
    """Check that a file to write has one of these endings, a folder, and is not there yet.

    With `force` it may be there, but for the data, and what a study or an export holds.
    """
    if path is None:
        return
    if path.suffix not in endings:
        raise UserError(
            "output-ending", f"{option} must end with {' or '.join(endings)}, but got {path}."
        )
    if not path.absolute().parent.is_dir():
        raise UserError(
            "output-folder-missing",
            f"{option} {path} is in a folder that does not exist; make it first.",
        )
    if path.absolute() == data.expanduser().absolute():
        raise UserError(
            "output-is-the-data", f"{option} {path} would replace the data; name another file."
        )
    real = path.resolve()
    for folder in real.parents if real.exists() else ():
        is_study = (folder / "study.toml").is_file() and (folder / "logs").is_dir()
        if is_study or real.relative_to(folder).as_posix() in listed(folder):
            raise UserError(
                "output-of-a-study",
                f"{option} {path} would replace a file of {folder}; name another file.",
            )
    if path.exists() and not force:
        raise UserError(
            "output-file-exists",
            f"{option} {path} exists; name another file, or replace it by --force.",
        )


def _copied(data: Path, ids: list[str]) -> "Mapping[str, pd.Series]":
    """Return the columns of the data that are copied to the output, as they are written.

    Raises:
        ValueError: if the data do not have them.
    """
    from nas_evidence.data.reading import as_written, kind_of, known_column

    if not ids:
        return {}
    if data.suffix == ".npy" or kind_of(data) != "table":
        raise UserError("id-without-table", f"--id names a column of a table, but {data} is none.")
    frame = as_written(data)
    frame = frame.reset_index(drop=True)
    return {name: frame[known_column(frame, name, data.name)] for name in ids}


def _cell(value: object) -> str:
    return number_text(value) if isinstance(value, float) else str(value)
