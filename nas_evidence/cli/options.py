"""Options that several verbs of the command line share, and the study that they name."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import typer
from typer.models import ArgumentInfo

from nas_evidence.api.shared_options import (
    PredictOptions,
    SearchOptions,
    Settings,
    SubmitOptions,
    as_parameters,
    flag_of,
)
from nas_evidence.plumbing.time_limit import TimeLimit
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.workers.executor import MakeExecutor

Verb = TypeVar("Verb", bound=Callable[..., None])


# fmt: off
StudyFile = Annotated[str, typer.Argument(
    metavar="STUDY", help="A study file, a shipped one, or data.")]
StudyPlace = Annotated[str, typer.Argument(
    metavar="DIR", help="A study folder, or a store's URI.")]
Place = Annotated[list[str] | None, typer.Argument(
    metavar="[DIR] [TRIAL]", help="A study folder; a trial id.")]
AllowCode = Annotated[bool, typer.Option(
    "--allow-code", help="Run code that is named as module:NAME.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Dashboard = Annotated[str | None, typer.Option(
    "--address", metavar="URL", help="URL of the Ray dashboard: http://HOST:8265.")]
JobName = Annotated[str | None, typer.Option(
    "--name", metavar="NAME", help="Name of the study on the cluster.")]
DryRun = Annotated[bool, typer.Option(
    "--dry-run", help="Check everything, say what would run, and end.")]
DataRoot = Annotated[Path | None, typer.Option(
    "--data-root", help="Folder of the data sets, in torchvision's layout.")]
# fmt: on
#: Options of Python as they are typed, where that is another type.
_TYPED = {
    str | Path | None: Path | None,
    Sequence[str] | str | None: list[str] | None,
    str | Sequence[str]: list[str] | None,
    Settings | None: list[str] | None,
    Any: str | None,
    str | Mapping[Any, float] | None: str | None,
    float | str | TimeLimit | None: str | None,
    int | Literal["auto"] | None: str | None,
    str | MakeExecutor | None: str | None,
    Literal["quick", "default", "thorough"] | None: str | None,
}
#: Options that are objects.
_OBJECTS = ("progress", "callbacks", "quantiles")


def _number_or_auto(text: str) -> int | str:
    """Return a number of workers, or "auto"."""
    if text != "auto" and not (text.isdecimal() and int(text) >= 1):
        raise typer.BadParameter(f'must be an integer from 1 on or "auto", but got {text!r}')
    return text if text == "auto" else int(text)


def _typed(parameter: Parameter) -> Any:
    """Return an option of Python as typer takes it."""
    kind, meant = get_args(parameter.annotation)
    how: dict[str, Any] = {"min": meant.least} if meant.least is not None else {}
    if kind == int | Literal["auto"] | None:
        how = {"parser": _number_or_auto}
    option = typer.Option(flag_of(parameter.name), help=meant.text, metavar=meant.word, **how)
    return Annotated[_TYPED.get(kind, kind), option]


#: How a parameter of a function of this package is typed, by its name; see `with_parameters_of`.
# fmt: off
OPTIONS: dict[str, Any] = {
    "data": StudyFile,
    "study": StudyFile,
    "name": JobName,
    "out": Annotated[str | None, typer.Option(
        "--out", "--store", metavar="DIR|URI", help="Study folder; else runs/<name>.")],
    "store": Annotated[str, typer.Option(
        metavar="DIR|URI", help="Study folder that all nodes see.")],
    "retry_failed": Annotated[str | None, typer.Option(
        metavar="[IDS]", help="Run failed trials again, all or 3,5.")],
    "trial_id": Annotated[int | None, typer.Option(
        flag_of("trial_id"), metavar="ID", help="This trial, not the best.")],
    "top": Annotated[int | None, typer.Option(
        metavar="K", help="An ensemble of the K best, with equal weights.")],
    "pt2": Annotated[bool, typer.Option(
        "--pt2", help="Write model.pt2 too, a program for torch alone.")],
    "onnx": Annotated[bool, typer.Option(
        "--onnx", help="Write model.onnx too; needs the extra onnx.")],
    "force": Annotated[bool, typer.Option(
        "--force", help="Replace files of the same names in OUT.")],
    "license": Annotated[str | None, typer.Option(
        metavar="NAME", help="State it in the model card, as mit.")],
} | {
    name: _typed(parameter)
    for options in (PredictOptions, SubmitOptions, SearchOptions)
    for name, parameter in as_parameters(options).items()
    if name not in _OBJECTS
}
# fmt: on
OPTIONS["address"] = Dashboard


def with_parameters_of(
    function: Callable[..., Any], *, only: Collection[str] = ()
) -> Callable[[Verb], Verb]:
    """Give a verb the parameters of a function, in place of its `**given`.

    All that `OPTIONS` has, or those in `only`, but for those that the verb declares itself.
    `given` holds what was typed, so that the defaults of the function hold.
    """

    def decorated(verb: Verb) -> Verb:
        *own, _ = inspect.signature(verb).parameters.values()
        known = {p.name for p in own}
        added = [
            Parameter(p.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=OPTIONS[p.name],
                      default=p.default if p.default is p.empty else None)
            for p in inspect.signature(function).parameters.values()
            if p.name in (only or OPTIONS) and p.name in OPTIONS.keys() - known
        ]  # fmt: skip

        ordered = sorted([*added, *own], key=_place)
        shown = inspect.Signature(ordered)

        @functools.wraps(verb)
        def called(*places: Any, **typed: Any) -> None:
            given = shown.bind(*places, **typed).arguments
            verb(**{name: value for name, value in given.items() if value is not None})

        called.__signature__ = shown  # type: ignore[attr-defined]
        return cast("Verb", called)

    return decorated


def _place(parameter: Parameter) -> tuple[bool, bool]:
    """Return what sorts parameters: those without a default first, arguments before options."""
    meant = get_args(parameter.annotation)[1]
    return parameter.default is not Parameter.empty, not isinstance(meant, ArgumentInfo)


def trial_ids(text: str) -> list[int] | None:
    """Return the ids in the value of `--retry-failed`, None for all."""
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(
            "retry-failed-form",
            f"--retry-failed takes trial ids such as 3,5, or nothing, not {text!r}.",
        )
    return [int(part) for part in parts]


def words_of_place(words: Sequence[str] | None, name: str | None) -> tuple[str | None, int | None]:
    """Return the folder or URI, None for a study that is named, and the trial if given."""
    left = list(words or ())
    place = left.pop(0) if left and name is None else None
    if not left:
        return place, None
    if len(left) > 1 or not left[0].isdecimal():
        raise UserError(
            "trial-not-one-number", f"TRIAL must be one number, but got {' '.join(left)}."
        )
    return place, int(left[0])
