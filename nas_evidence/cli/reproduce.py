"""The verb that runs the published experiments."""

from pathlib import Path
from typing import Annotated

import typer

from nas_evidence.cli.options import AsJson
from nas_evidence.cli.terminal import err, out, print_json, print_rows


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of --list.")] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Show every figure and table, and what came out.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Minutes on one core, or the published size.")
    ] = True,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Has the folders of the data sets."),
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Write figure, table and JSON here.")
    ] = Path("reproduced"),
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and write its figure, its table beside ours, and JSON.

    Example: nas-evidence reproduce duvenaud_fig2
    """
    from nas_evidence.audit.published import kept_cells, listed, reproduced, share_of

    if list_all:
        rows = listed()
        if as_json:
            print_json([vars(row) for row in rows])
            return
        print_rows(
            "Every figure and table of the papers",
            ("paper", "figure", "name", "status", "agree"),
            [(row.paper, row.figure, row.name, row.status, row.agree) for row in rows],
        )
        return
    if name is None:
        raise ValueError("reproduce needs a name: nas-evidence reproduce --list shows them.")
    found = reproduced(name, quick=quick, data=data, to=to, say=err.print)
    if as_json:
        print_json(found)
        return
    print_rows(
        f"{found['paper']} {found['figure']}: {found['title']}",
        ("what", "published", "ours", "spread", "why they differ"),
        [tuple(row.values()) for row in found["rows"]],
    )
    out.print(f"{found['status']}, {share_of(kept_cells(found))} cells: {found['why']}")
    err.print(f"{name}.md, .json and the figure are in {to}")
