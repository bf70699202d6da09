"""The verb list: the studies in a folder, or below a URI."""

from typing import Annotated

import typer

import nas_evidence
from nas_evidence.api.listing import HOME, ListedStudy
from nas_evidence.api.progress import score_text
from nas_evidence.cli.options import AsJson
from nas_evidence.cli.terminal import err, out, print_json, print_rows, typed
from nas_evidence.plumbing.durations import duration

_HEADER = ("study", "state", "trials", "score", "best", "data", "rows", "age")


def listed(
    folder: Annotated[
        str,
        typer.Argument(metavar="[FOLDER]", help="Folder of study folders, or a URI; else runs/."),
    ] = HOME,
    as_json: AsJson = False,
) -> None:
    """List the studies in a folder: state, trials, best architecture, data, and age.

    The study that wrote last is first. What is no study is left out.

    Example: nas-evidence list
    Example: nas-evidence list s3://bucket/studies --json
    """
    found = nas_evidence.list_studies(folder)
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    if not found:
        err.print(f"{folder} holds no study; begin one with {typed('search', 'YOUR.csv')}")
        return
    print_rows(f"Studies in {folder}", _HEADER, [*map(_row, found)])
    for one in found:
        if one.problem:
            out.print(f"damaged: {one.place}: {one.problem}")
        if one.waits_for:
            out.print(f"waiting: {one.place}: waits for {one.waits_for}")


def _row(one: ListedStudy) -> tuple[str, ...]:
    return (
        one.place,
        one.state,
        f"{one.n_finished} of {one.n_trials}" if one.n_trials else "-",
        "-" if one.value is None else score_text(one.value),
        one.best or "-",
        one.data or "-",
        "-" if one.n_rows is None else str(one.n_rows),
        "-" if one.age is None else duration(one.age),
    )
