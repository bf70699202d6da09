"""Options that several verbs of the command line share, and the study that they name."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from nas_evidence.api.request import data_parameters
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:  # imports the stores
    from nas_evidence.driver.mirror import Looking, WorkingCopy

Verb = TypeVar("Verb", bound=Callable[..., None])
StudyFile = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study file, a shipped one, or data.")
]
StudyPlace = Annotated[
    str, typer.Argument(metavar="DIR", help="A study folder, or a store's URI.")
]
Trials = Annotated[int | None, typer.Option("--trials", min=1, help="Total number of trials.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Random seed of the study [0].")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Parallel workers.")]
Time = Annotated[
    str | None,
    typer.Option(
        "--time", metavar="TIME", help="Limit of the whole command, report too: 90s, 10m, 2h."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Set several keys: quick, default or thorough."),
]
Override = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help='Change one key; "auto" keys adapt to it.'
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the data sets, in torchvision's layout."),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing data set.")]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Metric to show first: accuracy, f1, roc_auc, rmse, ...; the ranking stays.",
    ),
]
Steal = Annotated[
    bool, typer.Option("--steal", help="Take over from another host that is known to be dead.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run code that is named as module:NAME.")
]
RetryFailed = Annotated[
    str | None,
    typer.Option("--retry-failed", metavar="[IDS]", help="Run failed trials again, all or 3,5."),
]
Top = Annotated[
    int | None,
    typer.Option("--top", metavar="K", help="An ensemble of the K best, with stacked weights."),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Without the calibration factor (fitted out of fold)."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME[:PLACE]",
        help="Write to mlflow, tensorboard, optuna, wandb, trackio or prometheus too.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Dashboard = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="URL of the Ray dashboard: http://HOST:8265."),
]
JobName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the study on the cluster.")
]


def with_data_options(verb: Verb) -> Verb:
    """Give a verb the options about your data, in place of its `**data`.

    They come after the parameters that have no default.
    """
    *own, _ = inspect.signature(verb).parameters.values()
    needed = [p for p in own if p.default is p.empty]
    others = [p for p in own if p.default is not p.empty]
    added = [p.replace(kind=p.POSITIONAL_OR_KEYWORD, annotation=_shown_as(p.annotation))
             for p in data_parameters()]  # fmt: skip
    verb.__signature__ = inspect.Signature([*needed, *added, *others])  # type: ignore[attr-defined]
    return verb


def _shown_as(annotation: Any) -> Any:
    """Return the type of an option about data as typer takes it."""
    kind, meant = get_args(annotation)
    typer_kind = {
        str | Path | None: Path | None,
        Sequence[str] | str | None: list[str] | None,
        Any: str | None,
        str | Mapping[Any, float] | None: str | None,
    }
    option = typer.Option(help=meant.text, metavar=meant.word)
    return Annotated[typer_kind.get(kind, kind), option]


def with_ids(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments in which `--retry-failed` always has a value.

    >>> with_ids(["resume", "--retry-failed", "runs/digits"])
    ['resume', '--retry-failed', 'all', 'runs/digits']
    >>> with_ids(["resume", "runs/digits", "--retry-failed", "3", "5,6"])
    ['resume', 'runs/digits', '--retry-failed', '3,5,6']
    """
    if "--retry-failed" not in arguments:
        return list(arguments)
    at = list(arguments).index("--retry-failed") + 1
    ids = list(itertools.takewhile(lambda a: a.replace(",", "").isdecimal(), arguments[at:]))
    return [*arguments[:at], ",".join(ids) or "all", *arguments[at + len(ids) :]]


def trial_ids(text: str) -> list[int] | None:
    """Return the ids in the value of `--retry-failed`, None for all.

    Raises:
        ValueError: the text is neither "all" nor ids.
    """
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(
            f"--retry-failed takes trial ids such as 3,5, or nothing, not {text!r}."
        ).with_code("retry-failed-form")
    return [int(part) for part in parts]


def opened(place: str, *, looking: "Looking | None" = None) -> "WorkingCopy":
    """Return a study after fetching it, or only what somebody looks at."""
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.study_folder import read_study

    store = working_copy(place)
    store.looking = looking
    store.check_answers()
    store.pull()
    if store.uri is not None and not (store.folder / "study.toml").is_file():
        raise UserError(f"there is no study at {store.uri}: it has no study.toml.").with_code(
            "no-study-in-store"
        )
    with store.named():
        read_study(store.folder)
    return store


def shown(path: Path, store: "WorkingCopy") -> str:
    """Return the place of a file of a study, as the user named the study."""
    return f"{store.place}/{path.relative_to(store.folder).as_posix()}"
