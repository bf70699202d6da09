"""The verb that predicts new data with an exported network."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from nas_evidence.cli.options import (
    AllowCode,
    AsJson,
    DataRoot,
    Metric,
    Raw,
    Top,
    check_one,
    opened,
)
from nas_evidence.cli.terminal import (
    err,
    out,
    print_json,
    print_line,
    print_rows,
    say_edits,
    say_missing,
)
from nas_evidence.plumbing.foreign_text import csv_cell
from nas_evidence.spec.metric_names import METRICS

#: Rows of predictions on the screen; the file has all.
_SHOWN = 5


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
            "--to", metavar="FILE.csv", help="Write here; else predictions.csv beside DATA."
        ),
    ] = None,
    method: Annotated[
        Literal["map", "probit", "mc"] | None,
        typer.Option("--method", help="Class probabilities: map, or with the posterior."),
    ] = None,
    level: Annotated[
        float, typer.Option("--level", metavar="P", help="Probability of the intervals.")
    ] = 0.9,
    ood: Annotated[
        Path | None,
        typer.Option(
            "--ood",
            metavar="DATA",
            help="Out-of-distribution data: how well the network tells them apart (AUROC).",
        ),
    ] = None,
    trial_id: Annotated[
        int | None, typer.Option("--trial", metavar="ID", help="This trial, not the best.")
    ] = None,
    top: Top = None,
    metric: Metric = None,
    raw: Raw = False,
    reliability: Annotated[
        Path | None,
        typer.Option("--reliability", metavar="FILE.png", help="Plot the calibration here."),
    ] = None,
    as_json: AsJson = False,
    data_root: DataRoot = None,
    allow_code: AllowCode = False,
) -> None:
    """Predict new data with uncertainty; if they hold the target, say how good that is.

    Example: nas-evidence predict runs/mine new.csv
    Example: nas-evidence predict runs/mine labelled.csv --reliability r.png
    """
    check_one(trial_id, top)
    from nas_evidence.exporting.predictor import Predictor, out_of_distribution
    from nas_evidence.exporting.program import import_family_of
    from nas_evidence.exporting.soundness import is_export

    for path in filter(None, (data, ood)):
        if not path.expanduser().exists():
            raise ValueError(f"there is no file {path} to predict; correct the path.")
    if to is None and not as_json:
        to = _beside(data)
    if to is not None and to.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--to must be a file .csv or .parquet, but got {to}.")
    if reliability is not None and reliability.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--reliability must be .png, .svg or .pdf, but got {reliability}.")
    if is_export(Path(place)):
        if trial_id is not None or top is not None:
            raise ValueError(
                f"--trial and --top choose among the trials of a study, but {place} is an export."
            )
        if allow_code:
            import_family_of(Path(place))
        predictor = Predictor.load(place)
    else:
        from nas_evidence.api.studies import Study

        study = Study(opened(place).folder, data_root, allow_code=allow_code)
        say_missing(study.missing)
        say_edits(study.folder)
        predictor = study.predictor(trial_id, top=top)
    given = predictor.given(data)
    ask = partial(predictor.predict, method=method, level=level, metric=metric, raw=raw)
    found = ask(given)
    for doubt in given.doubts:
        err.print(f"warning: {doubt}")
    labelled = given.labelled()
    judged = found
    weights = predictor.meaning.get("weights")
    if labelled is not None and (
        given.weights is not None or len(labelled.inputs) < len(given.inputs)
    ):
        judged = ask(labelled)
    truth = None if labelled is None else labelled.truth
    measures = {} if truth is None else judged.measures(truth)
    if ood is not None:
        # What tells other data apart is the posterior, unless a method is asked for.
        known, other = (
            predictor.predict(rows, method=method or "probit", level=level, raw=raw)
            for rows in (given, predictor.given(ood))
        )
        measures["ood_auroc"] = out_of_distribution(known, other)
    if reliability is not None:
        if truth is None:
            raise ValueError(
                f"--reliability compares with the truth, but {data} does not hold the target."
            )
        from nas_evidence.reporting.plots import plot_reliability

        labels = found.probabilities is not None
        plot_reliability(judged.reliability(truth), labels=labels).savefig(reliability)
    frame = found.to_frame()
    if to is not None:
        if to.suffix == ".csv":
            frame.rename(columns=csv_cell).map(csv_cell).to_csv(to, index=False)
        else:
            frame.to_parquet(to)
    if as_json:
        print_json({"measures": measures, "predictions": frame.to_dict("records")})
        return
    header = [str(name) for name in frame.columns]
    cells = ([_cell(v) for v in row] for row in frame.head(_SHOWN).itertuples(index=False))
    print_rows(f"First predictions for {data.name}", header, cells)
    out.print(f"predictions: {to} ({len(frame)} rows)")
    if reliability is not None:
        out.print(f"reliability: {reliability}")
    if found.threshold is not None:
        out.print(
            f"class: {found.classes[1]} from a probability of {found.threshold:.3f} on, the best "
            f"by {found.metric} on rows not trained on"
        )
    names = METRICS["categorical" if predictor.classes else "gaussian"]
    if weights is not None and truth is not None:
        times = (
            "once: there is no column" if given.weights is None else "as often as in the column"
        )
        out.print(f"metrics: each row counts {times} {weights!r} of weights")
    if found.class_weight and truth is not None:
        listed = ", ".join(f"{name} {times}" for name, times in found.class_weight.items())
        out.print(f"metrics: each row counts as its class weighed in the training: {listed}")
    for words, value in metric_lines(measures, names):
        print_line(words, f"{value:.4f}")


def metric_lines(
    measures: Mapping[str, float], names: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Yield metrics by the words that the report has; coverage once for each level."""
    asked = measures.get("level")
    for name, value in measures.items():
        level = asked if name == "coverage" else _level(name)
        if level is not None:
            if name == "coverage" or level != asked:
                yield f"{100 * level:g} % intervals cover", value
        elif name != "level":
            yield names.get(name, name.replace("_", " ")), value


def _level(name: str) -> float | None:
    """Return the probability of the intervals of `coverage_90`, None of another metric."""
    percent = name.removeprefix("coverage_")
    return int(percent) / 100 if percent.isdigit() else None


def _beside(data: Path) -> Path:
    """Return where the predictions go that are given no place: beside the data.

    Raises:
        ValueError: if there is such a file; it may hold other predictions.
    """
    place = data.expanduser().absolute().with_name("predictions.csv")
    place = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    if place.exists():
        raise ValueError(f"{place} exists; name another file with --to, or remove it.")
    return place


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
