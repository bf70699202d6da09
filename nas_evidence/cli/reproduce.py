"""The verb that runs the published experiments, whose code is in a clone beside the package."""

import importlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from nas_evidence.cli.options import AsJson
from nas_evidence.cli.terminal import err, out, print_json, print_rows
from nas_evidence.plumbing.user_error import UserError

ROOM = "nas_evidence_reproduce"  # the name under which scripts import each other


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A name of --list.")] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Show every figure and table, with its result.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Minutes on one core, or the published size.")
    ] = True,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder that holds those of the data sets."),
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Write figure, table and JSON here.")
    ] = Path("reproduced"),
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and write its figure, its table beside ours, and JSON.

    Runs from a clone of the project, which has the scripts.

    Example: nas-evidence reproduce duvenaud_fig2
    """
    make_importable(scripts_folder())
    published: Any = importlib.import_module(f"{ROOM}._published")
    if list_all:
        rows = published.listed()
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
        raise UserError(
            "reproduce-without-name",
            "reproduce needs a name: nas-evidence reproduce --list shows them.",
        )
    if find_spec("matplotlib") is None:
        raise UserError(
            "reproduce-needs-matplotlib",
            "reproduce draws its figure with matplotlib, which is not installed: run "
            "`pip install '.[bench]'` in the clone.",
        )
    found = published.reproduced(name, quick=quick, data=data, to=to, say=err.print)
    if as_json:
        print_json(found)
        return
    print_rows(
        f"{found['paper']} {found['figure']}: {found['title']}",
        ("what", "published", "ours", "spread", "why they differ"),
        [tuple(row.values()) for row in found["rows"]],
    )
    agree = published.agreement(found, published.kept_cells(found))
    cells = "" if published.is_picture(found) else " cells"
    out.print(f"{found['status']}, {agree}{cells}: {found['why']}")
    err.print(f"{name}.md, .json and the figure are in {to}")


def scripts_folder() -> Path:
    """Return the folder of the scripts."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "reproduce"
    if not folder.is_dir():
        raise UserError(
            "reproduce-needs-clone",
            f"reproduce needs a clone of the project, with {folder}; clone it, run `pip install "
            "-e .` there, and try again.",
        )
    return folder


def make_importable(folder: Path) -> None:
    """Make the scripts of a folder a package with what they share, the only one of its name."""
    room, path = sys.modules.get(ROOM), [str(folder), str(scripts_folder())]
    if room is None or list(room.__path__) != path:
        for name in [n for n in sys.modules if n.partition(".")[0] == ROOM]:
            if not name.endswith("._published"):
                del sys.modules[name]
        room = types.ModuleType(ROOM)
        room.__path__ = path
        sys.modules[ROOM] = room
