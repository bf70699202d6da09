"""Text to types: read, check and write study files.

A study file is TOML with one key per line. `load_study` reports all mistakes at once, one message
each: place, offending value, what is allowed, and the closest known key.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.parsing import parsed_toml
from nas_evidence.plumbing.user_error import Mistake, StudyError, UserError
from nas_evidence.spec.dataset import with_task
from nas_evidence.spec.domains import Choice, Frozen, IntRange, keys_of
from nas_evidence.spec.schedule import never_reached
from nas_evidence.spec.study import (
    FAMILY_PARAMETERS,
    FREE_KEYS,
    BudgetSpec,
    DatasetSpec,
    LimitSpec,
    OnlinePlan,
    PruningSpec,
    RaceSpec,
    ResourceSpec,
    RetrySpec,
    SamplerSpec,
    StudySpec,
    TrainingPlan,
)

#: The tables of a study file other than [family.NAME]; "" is its head.
TABLES: Mapping[str, type[Frozen]] = {
    "": StudySpec,
    "dataset": DatasetSpec,
    "plan": TrainingPlan,
    "plan.online": OnlinePlan,
    "sampler": SamplerSpec,
    "pruning": PruningSpec,
    "limits": LimitSpec,
    "budget": BudgetSpec,
    "resources": ResourceSpec,
    "retries": RetrySpec,
    "race": RaceSpec,
}


#: Keys that are no longer here, and what to do instead.
REMOVED = {
    "stop": "remove it: a search runs `n_trials`, and the report says what more would gain",
    "deliver": 'leave it out, or write "single": `--top N` predicts by N networks',
    **dict.fromkeys(("family.mlp.numbers", "family.linear.numbers"), "leave it out"),
}
#: Ends the sentence on a key that studies may still have.
_BY_EARLIER = "; nas-evidence of commit 52e6435a resumes and exports a study that has it"
#: What `deliver` may still say: it is what holds.
_DELIVERED = ("auto", "single")
#: Version of what a study folder holds, and the first line of its study file.
FORMAT = 4
_FORMAT_LINE = "# nas-evidence study folder, format {}"
#: Smallest similarity between an unknown name and a suggestion for it.
_SIMILAR = 0.6
#: Largest number of options listed next to a suggestion.
_MOST_OPTIONS = 12
#: Beginning of pydantic's name of a type error -> the type that belongs there, in words of TOML.
_TYPES = {
    "bool": "true or false", "int": "an integer", "float": "a number", "string": "text in quotes",
    "tuple": "a list", "list": "a list", "dict": "a table", "mapping": "a table",
    "model": "a table",
}  # fmt: skip
#: Pydantic's name for a bound -> its sign.
_BOUNDS = {"ge": ">=", "gt": ">", "lt": "<", "le": "<="}
#: Maximum number of characters of a wrong value that are shown.
_SHOWN = 100
_NOT_UTF8 = "a name of a file or column is not UTF-8, which a study file cannot hold; rename it"
_TOO_DEEP = "lists or tables are nested too deep; a study file needs three levels"


@dataclass(frozen=True)
class Override:
    """A key of a study file, and the value that it has instead.

    key    with its tables, as plan.epochs; "" in a text that names none
    value  as the file would hold it
    said   as it is typed, for messages
    """

    key: str
    value: Any
    said: str

    @classmethod
    def typed(cls, text: str) -> "Override":
        """Return what `TABLE.KEY=VALUE` says; a value that is no TOML is a text.

        >>> Override.typed("plan.epochs=50").value
        50
        """
        key, separator, right = text.partition("=")
        try:
            value = parsed_toml(f"value = {right}")["value"]
        except ValueError:
            value = right
        return cls(key.strip() if separator else "", value, text)

    @classmethod
    def given(cls, key: str, value: Any) -> "Override":
        """Return the override of a key by a value of Python.

        >>> Override.given("first", ({"family": "linear"},)).value
        [{'family': 'linear'}]

        Raises:
            TypeError: for a value that a study file cannot hold.
        """
        key, plain = str(key).strip(), _plain(value)
        return cls(key, plain, f"{key}={toml_line('value', plain).partition('=')[2].strip()}")


def _plain(value: Any) -> Any:
    """Return a copy of a value, as TOML would be read."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_scalar = hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0  # of numpy or torch
    return value.item() if is_scalar else value


def find_study(name: str) -> Path:
    """Return the path of a study file given by path or by the name of a shipped study.

    Raises:
        StudyError: if there is no such file and no such shipped study.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_studies()
    if path.name == name and path.stem in shipped and path.suffix in ("", ".toml"):
        return shipped[path.stem]
    near = difflib.get_close_matches(path.stem, shipped, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise StudyError(
        [
            Mistake(
                "no-such-study",
                f"no study file '{name}', and no shipped study of that name{hint} "
                f"(shipped: {', '.join(shipped)})",
            )
        ]
    )


def shipped_studies() -> dict[str, Path]:
    """Return the shipped study files by name: in a wheel, or next to the package in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "search_spaces", here.parent / "search_spaces"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def load_study(
    path: str | Path, overrides: Iterable[Override | str] = (), *, to_run: bool = False
) -> StudySpec:
    """Read a study file, replace some of its keys, and check the result.

    Args:
        path: of the file.
        overrides: what replaces its keys; texts are `TABLE.KEY=VALUE`.
        to_run: whether the study is to begin: then all that its plan asks for must come to pass.

    Raises:
        StudyError: with one message for each mistake in the file or the overrides.
        ValueError: it is of a study folder that another version wrote.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(
            [Mistake("study-unreadable", f"{path}: cannot be read: {error}")]
        ) from error
    _check_format(path, text)
    return parse_study(text, str(path), overrides, to_run=to_run)


def _check_format(path: Path, text: str) -> None:
    """Refuse the file of a study folder that another version wrote."""
    found = re.match(_FORMAT_LINE.format(r"(\w+)"), text)
    if found is not None and found[1] != str(FORMAT):
        raise UserError(
            "study-format",
            f"{path}: the format of a study folder must be {FORMAT}, but it is {found[1]}: "
            "another version of nas-evidence wrote it; continue it with that one, or give "
            "another folder as `out`",
        )


def parse_study(
    text: str, path: str, overrides: Iterable[Override | str] = (), *, to_run: bool = False
) -> StudySpec:
    """Return the study in a text, as `load_study`; `path` is its place in messages."""
    places = _Places(path, text)
    try:
        raw = parsed_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError([Mistake("not-toml", f"{path}: not valid TOML: {error}")]) from error
    except UserError:
        raise StudyError([Mistake("nested-too-deep", f"{places.path}: {_TOO_DEEP}")]) from None
    mistakes: list[Mistake] = []
    for override in overrides:
        one = Override.typed(override) if isinstance(override, str) else override
        _apply_override(raw, one, places, mistakes)
    if raw.get("deliver") in _DELIVERED:
        del raw["deliver"]
    if isinstance(plan := raw.get("plan"), Mapping) and plan.get("epochs") == "auto":
        raw["plan"] = {key: value for key, value in plan.items() if key != "epochs"}
    if _FORMAT_LINE.partition("{")[0] not in text:  # the copies in logs/ have it further down
        mistakes += _not_keys(raw, places)
    study = None
    try:
        # Strict, so that "10" is not a number and true not a count; as JSON, so lists become
        # tuples.
        as_json = json.dumps(with_task(raw), default=str)
        with Code().in_use():  # code from outside is known by its names alone
            study = StudySpec.model_validate_json(as_json, strict=True, context=FAMILY_PARAMETERS)
    except ValidationError as error:
        mistakes += _mistakes(error, places)
    if to_run and study is not None and not study.plan.automatic:
        unreached = never_reached(study.plan, study.pruning.rule).items()
        mistakes += [
            Mistake(code, f"{places.of(f'plan.{name}')}: {text}")
            for name, (code, text) in unreached
        ]
    if mistakes or study is None:
        raise StudyError(sorted(mistakes, key=_line_number))
    return study


def dump_study(study: StudySpec) -> str:
    """Return the study as TOML with every key explicit; `load_study` reads it back unchanged.

    The first line says the format of the folder that keeps it. Fields that are no keys are left
    out at their defaults, and so are the arguments of a sampler without any.
    """
    keys = _without_none(study.model_dump(mode="json"))
    for table, kind in TABLES.items():
        target = keys
        for part in filter(None, table.split(".")):
            target = target[part]
        for name in kind.model_fields.keys() - set(keys_of(kind)):
            if target.get(name) == kind.model_fields[name].default:
                target.pop(name, None)
    if not study.sampler.arguments:
        del keys["sampler"]["arguments"]
    if study.plan.automatic:
        keys["plan"]["epochs"] = "auto"
    return f"{_FORMAT_LINE.format(FORMAT)}\n{tomli_w.dumps(keys)}"


def toml_line(key: str, value: Any) -> str:
    """Return a key with its value as one line of TOML: a text, a list of texts, a table, ...

    >>> toml_line("class_weight", {"not so": 2})
    'class_weight = {"not so" = 2}'
    """
    if isinstance(value, Mapping):
        parts = (
            f"{json.dumps(name, ensure_ascii=False)} = {toml_line('v', item).partition(' = ')[2]}"
            for name, item in value.items()
        )
        return f"{key} = {{{', '.join(parts)}}}"
    if isinstance(value, list | tuple):
        parts = (toml_line(key, item).partition(" = ")[2] for item in value)
        return f"{key} = [{', '.join(parts)}]"
    return tomli_w.dumps({key: value}).rstrip("\n")


def differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Return one line per difference, except of the `FREE_KEYS`."""
    return [
        f"{name}: {left!r} in the folder, {right!r} asked"
        for name, left, right in _changed(old, new)
        if name.partition(".")[0] not in FREE_KEYS
    ]


def changes_between_runs(old: StudySpec, new: StudySpec) -> list[str]:
    """Return one line per difference of the `FREE_KEYS`."""
    return [
        f"{name}: {left!r} then, {right!r} now"
        for name, left, right in _changed(old, new)
        if name.partition(".")[0] in FREE_KEYS
    ]


def _changed(old: StudySpec, new: StudySpec) -> Iterator[tuple[str, Any, Any]]:
    left, right = (
        _flatten(dict(with_task(_without_none(s.model_dump(mode="json"))))) for s in (old, new)
    )
    for name in {**left, **right}:
        if left.get(name) != right.get(name):
            yield name, left.get(name, "absent"), right.get(name, "absent")


# ---------------------------------------------------------------------------------------------


class _Places:
    """The place of a key: file and line, or the override that set it."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines: dict[str, int] = {}
        self.overridden: dict[str, str] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                table = header.group(1).strip()
                self.lines.setdefault(table, number)
            elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
                name = key.group(1).strip("\"'")
                self.lines.setdefault(f"{table}.{name}" if table else name, number)

    def of(self, name: str) -> str:
        """Return `file:line` of a dotted name, or of the innermost table around it."""
        while name and name not in self.lines.keys() | self.overridden.keys():
            name = name.rpartition(".")[0]
        if name in self.overridden:
            return self.overridden[name]
        return f"{self.path}:{self.lines[name]}" if name else self.path


def _apply_override(
    raw: dict[str, Any], override: Override, places: _Places, mistakes: list[Mistake]
) -> None:
    if not override.key:
        form = f"{override.said}: must have the form table.key=value"
        mistakes.append(Mistake("set-form", form))
        return
    *tables, key = override.key.split(".")
    target: Any = raw
    for depth, table in enumerate(tables, start=1):
        if table not in target:
            places.overridden[".".join(tables[:depth])] = override.said
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            text = f"{override.said}: '{table}' is not a table"
            mistakes.append(Mistake("set-not-a-table", text))
            return
    target[key] = override.value
    places.overridden[override.key] = override.said


def _not_keys(raw: Mapping[str, Any], places: _Places) -> list[Mistake]:
    """Return one message for each field that only the study file of a folder has."""
    return [
        _unknown(name, places)
        for table, kind in TABLES.items()
        for key in kind.model_fields.keys() - set(keys_of(kind))
        if (name := f"{table}.{key}") in _flatten(raw)
    ]


def _mistakes(error: ValidationError, places: _Places) -> list[Mistake]:
    # The default of one key depends on others: if those are wrong, it is not a separate mistake.
    details = [d for d in error.errors() if d["type"] != "default_factory_not_called"]
    found = [_mistake(detail, places) for detail in details]
    # A misspelt key is one mistake: report it as unknown, but not the intended key as missing.
    meant = {m.group(1) for _, text in found if (m := re.search(r"did you mean '(\w+)'", text))}
    return [
        mistake
        for detail, mistake in zip(details, found, strict=True)
        if not (detail["type"] == "missing" and detail["loc"][-1] in meant)
    ]


def _mistake(error: ErrorDetails, places: _Places) -> Mistake:
    kind, loc = error["type"], error["loc"]
    name = ".".join(part for part in loc if isinstance(part, str))
    table, _, key = name.rpartition(".")
    where, place = f" in [{table}]" if table else "", places.of(name)
    if kind == "json_invalid":  # what a study file holds is handed over as JSON
        if "surrogate" in str(error.get("ctx")):
            return Mistake("text-not-utf8", f"{places.path}: {_NOT_UTF8}")
        return Mistake("nested-too-deep", f"{places.path}: {_TOO_DEEP}")
    if kind == "extra_forbidden":
        return _unknown(name, places)
    if kind == "missing":
        return Mistake("missing-key", f"{place}: missing key '{key}'{where}")
    code, text = _reason(error)
    of_table = kind == "value_error" and name in TABLES
    if of_table or f"`{key}`" in text:  # the text names its key
        table = name if of_table else table
        if about := re.match(r"`(\w+)", text):
            place = places.of(f"{table}.{about[1]}".strip("."))
        return Mistake(code, f"{place}: " + (f"[{table}]: {text}" if table else text))
    entry = next((f"entry {part + 1} of " for part in loc if isinstance(part, int)), "")
    return Mistake(code, f"{place}: {entry}{key}{where} {text}")


def _reason(error: ErrorDetails) -> Mistake:
    """Return what is wrong with a value, in the words of someone who writes TOML."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    got = repr(given) if len(repr(given)) <= _SHOWN else f"{repr(given)[:_SHOWN]}..."
    if kind == "literal_error":
        options = re.findall(r"[\w.-]+(?=')|\b\d+\b", str(context["expected"]))
        near = difflib.get_close_matches(str(given), options, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        many = near and len(options) > _MOST_OPTIONS
        listed = "a known name" if many else f"one of {', '.join(options)}"
        return Mistake("not-an-option", f"must be {listed}, but got {got}{hint}")
    for key, sign in _BOUNDS.items():
        if key in context:
            return Mistake("out-of-bounds", f"must be {sign} {context[key]}, but got {got}")
    if kind == "value_error":
        return Mistake(getattr(context["error"], "code", "not-allowed"), str(context["error"]))
    if kind.endswith("too_short"):
        return Mistake("empty", "must not be empty")
    if right := _TYPES.get(kind.partition("_")[0]):
        return Mistake("wrong-type", f"must be {right}, but got {got}")
    return Mistake("not-allowed-here", f"has a value that is not allowed here: {got}")


def _unknown(name: str, places: _Places) -> Mistake:
    table, _, key = name.rpartition(".")
    where, place = f" in [{table}]" if table else "", places.of(name)
    if name in REMOVED:
        instead = REMOVED[name] + _BY_EARLIER * (name != "stop")
        return Mistake("removed-key", f"{place}: `{name}` is no longer a key; {instead}")
    if table == "family":
        own = "a family of your own needs the key 'module'"
        text = f"{place}: unknown family '{key}'{_known(key, FAMILY_PARAMETERS)} ({own})"
        return Mistake("unknown-family", text)
    of_family = FAMILY_PARAMETERS.get(table.removeprefix("family."), ())
    domain = {**IntRange.model_fields, **Choice.model_fields} if table.count(".") == 2 else {}
    known = keys_of(TABLES[table]) if table in TABLES else [*of_family, *domain]
    text = f"{place}: unknown key '{key}'{where}{_known(key, known)}"
    return Mistake("unknown-key", text)


def _known(key: str, known: Iterable[str]) -> str:
    names = list(known)
    if near := difflib.get_close_matches(key, names, n=1, cutoff=_SIMILAR):
        return f"; did you mean '{near[0]}'?"
    tables = [table for table, kind in TABLES.items() if key in keys_of(kind)]
    elsewhere = f"[{tables[0]}]" if tables and tables[0] else "the head of the file"
    if tables and not 0 < len(names) <= _MOST_OPTIONS:
        return f"; did you mean '{key}' in {elsewhere}?"
    other = f"; '{key}' is a key of {elsewhere}" if tables else ""
    return f"; known: {', '.join(names)}{other}" if names else "; it takes no keys"


def _line_number(mistake: Mistake) -> tuple[bool, int]:
    line = re.match(r"[^ ]*:(\d+): ", mistake.text)
    return (line is None, int(line.group(1)) if line else 0)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    assert not (isinstance(value, float) and math.isnan(value))
    return value


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
