"""The options that functions of Python and verbs of the command line share, each written once.

`with_options` shows them in the signature and in the docstring of a function; the command line
makes its own from them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from nas_evidence.api.runs import Audience
from nas_evidence.plumbing.time_limit import TimeLimit
from nas_evidence.spec.dataset import AskedScale
from nas_evidence.spec.likelihoods import Task
from nas_evidence.workers.executor import MakeExecutor, Watcher

#: Options whose flag is another word, by their names in Python.
_FLAGS = {"n_trials": "trials", "trial_id": "trial", "time_limit": "time", "settings": "set"}
_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Keys of a study file with their values, or texts as `--set` takes them.
Settings = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True)
class Meant:
    """What an option means, and how it is typed.

    text     the meaning
    word     stands for the value on the command line
    default  in Python
    least    the smallest number
    more     what only Python takes
    key      of a study file, which the option replaces
    """

    text: str
    word: str | None = None
    default: Any = None
    least: int | None = None
    more: str = ""
    key: str = ""


#: Meanings of options that are declared twice.
_METRIC = "Metric to show first: accuracy, f1, roc_auc, rmse, ...; the ranking stays."
_AT_ONCE = "Trials that run at once, or auto; by default as the study says."


# fmt: off
class AskedOptions(TypedDict, total=False):
    """Options of what a study is to do."""

    n_trials: Annotated[int | None, Meant(
        "Trials in all; by default as the study says, or 24.", least=1,
        key="n_trials")]
    metric: Annotated[str | None, Meant(
        _METRIC, "NAME",
        key="metric")]
    settings: Annotated[Settings | None, Meant(
        'Change one key; "auto" keys adapt to it.', "TABLE.KEY=VALUE",
        more='Here a mapping: {"plan.epochs": 50}; scores may be objects or functions.')]


class AnyRunOptions(TypedDict, total=False):
    """Options of whatever runs trials, wherever it does."""

    data_root: Annotated[str | Path | None, Meant(
        "Folder of the data sets, in torchvision's layout.")]
    download: Annotated[bool, Meant("Fetch a missing data set.", default=False)]
    allow_code: Annotated[bool, Meant("Run code that is named as module:NAME.", default=False)]
    track: Annotated[str | Sequence[str], Meant(
        "Write to mlflow, tensorboard, optuna, wandb, trackio or prometheus too.", "NAME[:PLACE]",
        default=())]
    progress: Annotated[bool | Audience | None, Meant(
        "Whether to print; by default all on a terminal or in a notebook, and elsewhere a line on "
        "the data, one a minute, and the answer.")]


class JobOptions(AskedOptions, AnyRunOptions, total=False):
    """Options of a study that runs, wherever it does."""


_Workers = Annotated[int | Literal["auto"] | None, Meant(
    _AT_ONCE, least=1)]
_Time = Annotated[float | str | TimeLimit | None, Meant(
    "Limit of the whole command, report too: 90s, 10m, 2h.", "TIME",
    more="A number is in seconds. Trials that do not fit run when the study is resumed.")]


class ResubmitOptions(JobOptions, total=False):
    """Options of `resubmit`."""

    workers: _Workers
    time_limit: _Time


class HereOptions(TypedDict, total=False):
    """Options of whatever this process runs."""

    workers: Annotated[int | Literal["auto"] | None, Meant(
        _AT_ONCE, least=1, default=1,
        more='Here the default is 1; None is what the study says, "auto" on Ray as many as there '
        "is room for.")]
    time_limit: _Time
    executor: Annotated[str | MakeExecutor | None, Meant(
        "Where trials run: local (processes of this machine), ray, inline (this process, for "
        "debugging), your own as module:NAME; auto (default) chooses local or ray, and says so.",
        "WHERE", more="Here the default for one worker is inline. Also what makes an executor, "
        "see `nas_evidence.testing.ExecutorContract`.")]
    address: Annotated[str | None, Meant("Join this Ray cluster; auto finds it.", "HOST:PORT")]
    steal: Annotated[bool, Meant(
        "Take over from another host that is known to be dead.", default=False)]
    callbacks: Annotated[Sequence[Watcher], Meant(
        "Told what happens while it runs; see `nas_evidence.Watcher`.", default=())]


class RunOptions(JobOptions, HereOptions, total=False):
    """Options of a study that this process runs."""


class RefitOptions(AnyRunOptions, HereOptions, total=False):
    """Options of `refit`."""


class DataOptions(TypedDict, total=False):
    """Options about your data, in Python and on the command line.

    They replace keys of [dataset]. In Python `groups`, `time_column` and `weights` of data in
    memory may be arrays with a value for each row.
    """

    target: Annotated[Sequence[str] | str | None, Meant(
        "Column of a table to predict; several if real.", "COL")]
    task: Annotated[Task | None, Meant(
        "What the targets are; by default inferred from their values.")]
    test: Annotated[str | Path | None, Meant(
        "A table of test rows, used only in the report.", "FILE")]
    test_fraction: Annotated[float | None, Meant("Rows to split off for the test.", "SHARE")]
    drop: Annotated[Sequence[str] | str | None, Meant("Leave this column out.", "COL")]
    categorical: Annotated[Sequence[str] | str | None, Meant(
        "Treat this column as categories.", "COL")]
    numeric: Annotated[Sequence[str] | str | None, Meant("Treat this column as numbers.", "COL")]
    groups: Annotated[Any, Meant(
        "Rows of one value are never split between folds or test.", "COL")]
    time_column: Annotated[Any, Meant(
        "Order rows by it; predict later ones from earlier ones.", "COL")]
    weights: Annotated[Any, Meant("How often each row occurs.", "COL")]
    class_weight: Annotated[str | Mapping[Any, float] | None, Meant(
        "Cost of an error on each class, or balanced.", "CLASS=N,...")]
    target_scale: Annotated[AskedScale | None, Meant(
        "Scale on which real targets have normal noise; by default identity.")]
    image_size: Annotated[int | None, Meant("Resize all images to this.", "PIXELS")]


class SubmitOptions(JobOptions, DataOptions, total=False):
    """Options of `submit`."""

    workers: _Workers


class SearchOptions(RunOptions, DataOptions, total=False):
    """Options of `search`."""

    seed: Annotated[int | None, Meant("Random seed of the study [0].", least=0, key="seed")]
    preset: Annotated[Literal["quick", "default", "thorough"] | None, Meant(
        "Set several keys: quick, default or thorough.", "NAME")]


class JudgeOptions(TypedDict, total=False):
    """Options of predictions that are judged."""

    method: Annotated[Literal["probit", "mc", "map"] | None, Meant(
        "map: the network's probabilities; probit, mc: averaged.")]
    level: Annotated[float, Meant("Probability of the intervals [0.9].", "P", default=0.9)]
    metric: Annotated[str | None, Meant(
        _METRIC, "NAME",
        more="Of two classes the predicted one is chosen by the threshold that is best by it.")]
    raw: Annotated[bool, Meant(
        "Without the calibration factor (fitted out of fold).", default=False)]


class PredictOptions(JudgeOptions, total=False):
    """Options of predictions."""

    quantiles: Annotated[Sequence[float], Meant(
        "Quantiles of real targets too: 0.1,0.5,0.9.", "P,...", default=())]
# fmt: on


def flag_of(name: str) -> str:
    """Return the flag of the command line for an argument of Python.

    >>> flag_of("n_trials"), flag_of("test_fraction")
    ('--trials', '--test-fraction')
    """
    return "--" + _FLAGS.get(name, name.replace("_", "-"))


def as_parameters(options: Any) -> dict[str, Parameter]:
    """Return options as parameters of a function, annotated with what they mean."""
    kind = Parameter.KEYWORD_ONLY
    return {
        name: Parameter(name, kind, default=get_args(hint)[1].default, annotation=hint)
        for name, hint in get_type_hints(options, include_extras=True).items()
    }


@functools.cache
def keys_of_options() -> Mapping[str, str]:
    """Return the key of a study file that an option of `search` replaces, by its name."""
    declared = {
        name: get_args(p.annotation)[1] for name, p in as_parameters(SearchOptions).items()
    }
    return {name: meant.key for name, meant in declared.items() if meant.key}


def with_options(options: Any) -> Callable[[_Function], _Function]:
    """Show options in the signature of a function, and in its docstring what they mean.

    They stand in place of its `**options`, and of the sentence on them in the docstring.
    """

    def decorated(function: _Function) -> _Function:
        plain, shown = signature(function), as_parameters(options)
        kinds = {name: get_args(p.annotation) for name, p in shown.items()}
        added = [p.replace(annotation=kinds[name][0]) for name, p in shown.items()]
        own = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = plain.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        meant = "".join(
            f"\n        {name}: {said.text[0].lower()}{said.text[1:]} {said.more}".rstrip()
            for name, (_, said) in kinds.items()
        )
        sentence = f"options: see `nas_evidence.api.shared_options.{options.__name__}`."
        assert sentence in (function.__doc__ or ""), function
        function.__doc__ = str(function.__doc__).replace(sentence, meant.lstrip())
        return function

    return decorated


def check_known(function: str, shared: Any, options: Mapping[str, Any]) -> None:
    """Check that a function takes these options, as Python does; suggest a close one."""
    known = shared.__annotations__
    if unknown := options.keys() - known:
        near = get_close_matches(min(unknown), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}{hint}")
