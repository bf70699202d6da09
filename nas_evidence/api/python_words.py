"""Messages of the command line in Python's terms: `out=...` for `--out`."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Options of another name in Python, and those that Python does not have.
_NAMES = {"trials": "n_trials", "trial": "trial_id", "time": "time_limit", "set": "settings"}
_NOT_HERE = ("table",)
_OWN = ("n_trials", "seed", "metric")  # keys that are arguments, too
_LISTS = ("drop", "categorical", "numeric")
_FLAGS = ("allow-code", "download", "force", "onnx", "raw", "steal")
_WORDS = ("as", "and", "or", "to", "in", "with", "names", "takes", "needs", "must", "for")
_COMMANDS = ContextVar("commands", default=False)
_OPTION = re.compile(
    r"`ray [^`]*`|--([a-z][a-z-]*[a-z])(?: ([\w.-]+=\[[^]]*\]|'[^']*'|[^\s;,(]*[^\s;,.:(?)]))?"
)


def in_python(text: str) -> str:
    """Return a message with the arguments of `nas_evidence.search` for options of the command.

    >>> in_python("give another study folder with --out")
    'give another study folder with out=...'
    >>> in_python("--test-fraction 0.2 splits off a test; --drop id to leave it out")
    "test_fraction=0.2 splits off a test; drop=['id'] to leave it out"
    >>> in_python("choose fewer folds with --set plan.folds=2, or --allow-code.")
    "choose fewer folds with settings={'plan.folds': 2}, or allow_code=True."
    >>> in_python("take trial 1, whose weights are kept (--trial 1).")
    'take trial 1, whose weights are kept (trial_id=1).'
    """
    return _OPTION.sub(_argument, text).replace("=....", "=...")


def option_of(name: str) -> str:
    """Return the option for an argument: "trials" for `n_trials`."""
    return {python: typed for typed, python in _NAMES.items()}.get(name, name.replace("_", "-"))


def _argument(found: re.Match[str]) -> str:
    option, value = found.groups()
    if not option:  # of a command of Ray
        return found[0]
    name = _NAMES.get(option, option.replace("-", "_"))
    if option in _NOT_HERE:
        return found[0]
    if option in _FLAGS:
        return f"{name}=True" + (f" {value}" if value else "")
    if not value or value in _WORDS:
        return f"{name}=..." + (f" {value}" if value else "")
    if option == "set":
        key, _, value = value.partition("=")
        value = _written(value)
        return f"{key}={value}" if key in _OWN else f"settings={{{key!r}: {value}}}"
    return f"{name}=[{_written(value)}]" if option in _LISTS else f"{name}={_written(value)}"


def _written(value: str) -> str:
    """Return a value as Python writes it: a number, a list, True, or text."""
    if value in ("true", "false"):
        return value.title()
    plain = re.fullmatch(r"-?[\d.]+(e-?\d+)?|[\[{'\"].*|N|COL|FILE", value)
    return value if plain else repr(value)


def warn_user(line: str) -> None:
    """Warn with a sentence, in Python's terms."""
    warnings.warn(in_python(line), UserWarning, stacklevel=3)


@contextmanager
def speaking_commands() -> Iterator[None]:
    """Let the errors of the functions of this package keep the words of the command line."""
    before = _COMMANDS.set(True)
    try:
        yield
    finally:
        _COMMANDS.reset(before)


@contextmanager
def speaking_python() -> Iterator[None]:
    """Let errors speak Python; as a decorator, those of a function."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if _COMMANDS.get():
            raise
        error.args = tuple(in_python(a) if isinstance(a, str) else a for a in error.args)
        raise
