"""The verbs of the command line, each imported when it is asked for.

What all of them import takes a third of a second: types of study files, numpy, the options that
Python shares. `--help`, `--version`, a wrong word and the completion of a verb need none of it.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Verb(NamedTuple):
    """A verb: what it is for, its file and function, and the first paragraph of its docstring."""

    group: str
    place: str
    text: str


# fmt: off
#: The verbs by name, in the order of the help.
VERBS = {
    "search": Verb("Search", "search:search",
        "Search, rank, report and export; create the study folder or continue it."),
    "resume": Verb("Search", "search:resume",
        "Resume a study after a stop or a crash, or with more trials or another budget."),
    "refit": Verb("Search", "search:refit",
        "Train the best architecture again, on all rows or on other ones, as a study of its own."),
    "init": Verb("Search", "validate:init",
        "Write the study file that `search` would use for data, with comments, to be edited."),
    "list": Verb("Look", "listed:listed",
        "List the studies in a folder: state, trials, best architecture, data, and age."),
    "status": Verb("Look", "look:status",
        "Show the status of a study, or how one trial ended and its scores."),
    "report": Verb("Look", "report:report",
        "Write the report of a study, or the same statistics for any table."),
    "compare": Verb("Look", "report:compare",
        "Print the winners of two to ten studies side by side."),
    "watch": Verb("Look", "watch:watch",
        "Keep the report of a running study up to date, and serve it, until the study ends."),
    "predict": Verb("Use", "predict:predict",
        "Predict new data with uncertainty; if they hold the target, print metrics."),
    "export": Verb("Use", "report:export",
        "Export the best architecture, ready to use, after checking its stored evidence."),
    "submit": Verb("Cluster", "submit:submit",
        "Search on a cluster: start the study as a job there, or resume it."),
    "cancel": Verb("Cluster", "submit:cancel",
        "Stop a running study after the current slice, to be resumed later; or end one trial."),
    "verify": Verb("Check", "verify:verify",
        "Check everything that a study holds, and change nothing; exit code 1 if something is "
        "wrong."),
    "repair": Verb("Check", "verify:repair",
        "Restore what is damaged; train torn trials again from their seeds. Sound files stay."),
    "check-family": Verb("Check", "check_family:check_family",
        "Build networks of a family of your own and say which curvature kinds cover which layer."),
    "audit": Verb("Check", "report:audit_estimators",
        "Compare every estimator with the truth where it is known; takes a minute or two."),
    "reproduce": Verb("Check", "reproduce:reproduce",
        "Run a published experiment and write its figure, its table beside ours, and JSON."),
}
# fmt: on


def function_of(name: str) -> Any:
    """Import a verb and return its function."""
    module, _, function = VERBS[name].place.partition(":")
    return getattr(import_module(f"nas_evidence.cli.{module}"), function)


class _Command(TyperCommand):
    """Shows its arguments in the usage as `metavar` has them; typer puts braces around them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the name of the verb."""
        arguments = (p for p in self.params if p.param_type_name == "argument")
        return ["[OPTIONS]", *(p.metavar or p.name.upper() for p in arguments)]


class _Commands(Mapping[str, Any]):
    """The commands by name; a value is made, and its verb imported, when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        function = function_of(name)  # KeyError if there is no such verb
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name, cls=_Command, rich_help_panel=VERBS[name].group)(function)
        return get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class Group(TyperGroup):
    """The group of all verbs, which imports the one that is run."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs."""
        return [*VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what help and completion show of a verb: its name and its text."""
        if (verb := VERBS.get(cmd_name)) is None:
            return None
        return TyperCommand(cmd_name, help=verb.text, rich_help_panel=verb.group)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return name, command and other words of what was typed; a wrong verb is refused."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and self.commands[name], rest
