"""Text to types: read, check and write study files.

A study file is TOML with one key per line. `load_study` reports all mistakes at once, one message
each: place, offending value, what is allowed, and the closest known key.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nas_evidence.plumbing.user_error import Mistake, UserError
from nas_evidence.spec.dataset import with_task
from nas_evidence.spec.domains import (
    Choice,
    Domain,
    FloatRange,
    Frozen,
    IntRange,
    described,
    keys_of,
    masked,
)
from nas_evidence.spec.registry import is_outside
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
REMOVED = {"stop": "remove it: a search runs `n_trials`, and the report says what more would gain"}
#: Version of what a study folder holds, and the first line of its study file.
FORMAT = 4
_FORMAT_LINE = "# nas-evidence study folder, format {}"
#: Smallest similarity between an unknown name and a suggestion for it.
_SIMILAR = 0.6
#: Largest number of options listed next to a suggestion.
_MOST_OPTIONS = 12
#: Pydantic's name for a type error -> the right type in the words of someone who writes TOML.
_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer that fits in 64 bits",
    "int_type": "an integer",
    "float_parsing": "a number",
    "string_type": "text in quotes",
    "tuple_type": "a list",
    "list_type": "a list",
}


class StudyError(UserError):
    """A study file with mistakes; `messages` has one line each, `codes` the code of each."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(
            Mistake(code, masked(" ".join(text.splitlines())))  # they quote the input
            for code, text in mistakes
        )
        super().__init__("\n".join(self.messages))
        self.code = mistakes[0].code

    @property
    def messages(self) -> tuple[str, ...]:
        """Return one line for each mistake."""
        return tuple(mistake.text for mistake in self.mistakes)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the code of each mistake."""
        return tuple(mistake.code for mistake in self.mistakes)

    def __reduce__(self) -> tuple[Any, ...]:  # to another process
        return type(self), (self.mistakes,)


#: Most characters of a wrong value that are shown.
_SHOWN = 100
_TOO_DEEP = "lists or tables are nested too deep; a study file needs three levels"


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
    path: str | Path, overrides: Iterable[str] = (), *, to_run: bool = False
) -> StudySpec:
    """Read a study file, apply `table.key=value` overrides, and check the result.

    Args:
        path: of the file.
        overrides: replace its keys.
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
            f"{path}: the format of a study folder must be {FORMAT}, but it is {found[1]}: "
            "another version of nas-evidence wrote it; continue it with that one, or give "
            "another folder with --out"
        ).with_code("study-format")


def parse_study(
    text: str, path: str, overrides: Iterable[str] = (), *, to_run: bool = False
) -> StudySpec:
    """Return the study in a text, as `load_study`; `path` is its place in messages."""
    places = _Places(path, text)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError([Mistake("not-toml", f"{path}: not valid TOML: {error}")]) from error
    except RecursionError:
        raise StudyError([Mistake("nested-too-deep", f"{places.path}: {_TOO_DEEP}")]) from None
    mistakes: list[Mistake] = []
    for override in overrides:
        _apply_override(raw, override, places, mistakes)
    raw = _without_automatic(raw)
    if _FORMAT_LINE.partition("{")[0] not in text:  # the copies in logs/ have it further down
        mistakes += _not_keys(raw, places)
    study = _check(raw, places, mistakes)
    if to_run and study is not None and not study.plan.automatic:
        unreached = study.plan.never_reached().items()
        mistakes += [
            Mistake(code, f"{places.of(f'plan.{name}')}: {text}")
            for name, (code, text) in unreached
        ]
    if mistakes or study is None:
        raise StudyError(sorted(mistakes, key=_line_number))
    return study


def _without_automatic(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study without `epochs = "auto"`, which is the same as no value."""
    plan = raw.get("plan")
    if not isinstance(plan, Mapping) or plan.get("epochs") != "auto":
        return dict(raw)
    return {**raw, "plan": {key: value for key, value in plan.items() if key != "epochs"}}


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
            return f"--set {self.overridden[name]}"
        return f"{self.path}:{self.lines[name]}" if name else self.path


def _apply_override(
    raw: dict[str, Any], override: str, places: _Places, mistakes: list[Mistake]
) -> None:
    name, separator, text = override.partition("=")
    name = name.strip()
    if not separator or not name:
        form = f"--set {override}: must have the form table.key=value"
        mistakes.append(Mistake("set-form", form))
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *tables, key = name.split(".")
    target: Any = raw
    for depth, table in enumerate(tables, start=1):
        if table not in target:
            places.overridden[".".join(tables[:depth])] = override
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            text = f"--set {override}: '{table}' is not a table"
            mistakes.append(Mistake("set-not-a-table", text))
            return
    target[key] = value
    places.overridden[name] = override


def _not_keys(raw: Mapping[str, Any], places: _Places) -> list[Mistake]:
    """Return one message for each field that only the study file of a folder has."""
    return [
        _unknown(name, places)
        for table, kind in TABLES.items()
        for key in kind.model_fields.keys() - set(keys_of(kind))
        if (name := f"{table}.{key}") in _flatten(raw)
    ]


def _check(raw: Mapping[str, Any], places: _Places, mistakes: list[Mistake]) -> StudySpec | None:
    wrong: list[Mistake] = []
    families = _check_families(raw, places, wrong)
    mistakes += wrong
    data = {**raw, "family": families}
    if not wrong:
        try:
            return _validated(data)
        except ValidationError as error:
            found = _mistakes(error, places)
            mistakes.extend(dict.fromkeys(found + _check_objective(raw, places)))
            return None
    # The families are wrong already: use a valid one to find the other mistakes.
    try:
        _validated({**data, "family": {"linear": {}}})
    except ValidationError as error:
        mistakes.extend(_mistakes(error, places))
    mistakes.extend(m for m in _check_objective(raw, places) if m not in mistakes)
    return None


def _check_objective(raw: Mapping[str, Any], places: _Places) -> list[Mistake]:
    """Check the objective against the estimators, even if there are other mistakes."""
    asked = {key: raw[key] for key in ("objective", "estimators") if key in raw}
    try:
        _validated({"name": "x", "dataset": {"name": "digits"}, "family": {"linear": {}}, **asked})
    except ValidationError as error:
        return [_mistake(detail, places) for detail in error.errors() if not detail["loc"]]
    return []


def _validated(data: Mapping[str, Any]) -> StudySpec:
    families = {
        family: {key: domain.model_dump() for key, domain in table.items()}
        for family, table in data["family"].items()
    }
    # Strict, so that "10" is not a number and true not a count; as JSON, so lists become tuples.
    text = json.dumps({**with_task(data), "family": families}, default=str)
    return StudySpec.model_validate_json(text, strict=True)


def _check_families(
    raw: Mapping[str, Any], places: _Places, mistakes: list[Mistake]
) -> dict[str, dict[str, Domain]]:
    tables = raw.get("family")
    if not isinstance(tables, Mapping) or not tables:
        known = ", ".join(f"[family.{name}]" for name in FAMILY_PARAMETERS)
        text = f"{places.path}: no family to search; give at least one of {known}"
        mistakes.append(Mistake("no-family", text))
        return {}
    families: dict[str, dict[str, Domain]] = {}
    for family, table in tables.items():
        place = places.of(f"family.{family}")
        if isinstance(table, Mapping) and ("module" in table or is_outside(family)):
            _outside(family, table, places, families, mistakes)
            continue
        if family not in FAMILY_PARAMETERS:
            known = _known(family, FAMILY_PARAMETERS)
            own = "a family of your own needs the key 'module'"
            text = f"{place}: unknown family '{family}'{known} ({own})"
            mistakes.append(Mistake("unknown-family", text))
            continue
        if not isinstance(table, Mapping):
            text = f"{place}: [family.{family}] must be a table, but got {table!r}"
            mistakes.append(Mistake("family-not-a-table", text))
            continue
        families[family] = {}
        for key, value in table.items():
            name = f"family.{family}.{key}"
            if key not in FAMILY_PARAMETERS[family]:
                known = _known(key, FAMILY_PARAMETERS[family])
                text = f"{places.of(name)}: unknown key '{key}' in [family.{family}]{known}"
                mistakes.append(Mistake("unknown-family-key", text))
                continue
            parsed = _domain(value, FAMILY_PARAMETERS[family][key])
            if isinstance(parsed, Mistake):
                text = f"{places.of(name)}: {key} in [family.{family}] {parsed.text}"
                mistakes.append(Mistake(parsed.code, text))
            else:
                families[family][key] = parsed
    return families


def _outside(
    family: str,
    table: Mapping[str, Any],
    places: _Places,
    families: dict[str, dict[str, Domain]],
    mistakes: list[Mistake],
) -> None:
    """Add a family from outside the package, under its reference; its code says what it takes."""
    place = places.of(f"family.{family}")
    reference = table.get("module", family)
    if not isinstance(reference, str) or not re.fullmatch(r"[\w.]+:[\w.]+", reference):
        text = (
            f'{place}: module in [family.{family}] must be a reference "package.module:NAME", '
            f"but got {reference!r}"
        )
        mistakes.append(Mistake("family-module-form", text))
        return
    families[reference] = {}
    for key, value in table.items():
        if key == "module":
            continue
        parsed = _free_domain(value)
        if isinstance(parsed, Mistake):
            text = f"{places.of(f'family.{family}.{key}')}: {key} {parsed.text}"
            mistakes.append(Mistake(parsed.code, text))
        else:
            families[reference][key] = parsed


def _free_domain(value: Any) -> Domain | Mistake:
    """Return the parsed domain of a parameter of any type, or what is wrong with it."""
    if isinstance(value, list):
        value = {"options": value}
    elif not isinstance(value, Mapping):
        value = {"options": [value]}
    ends = (value.get("low"), value.get("high"))
    numbers = FloatRange if any(isinstance(end, float) for end in ends) else IntRange
    kind = Choice if "options" in value else numbers
    try:
        domain: Domain = kind.model_validate(value)
    except ValidationError as error:
        return _reason(error.errors()[0])
    return domain


def _domain(value: Any, widest: Domain) -> Domain | Mistake:
    """Return the parsed domain, or what is wrong with it."""
    allowed = described(widest)
    if isinstance(value, list):
        value = {"options": value}
    elif not isinstance(value, Mapping):
        value = {"options": [value]}  # a plain value fixes the parameter
    ranged = FloatRange if isinstance(widest, FloatRange) else IntRange
    kind = Choice if "options" in value else ranged
    for key in value:
        if key not in kind.model_fields:
            text = f"has an unknown key '{key}'{_known(key, kind.model_fields)}"
            return Mistake("unknown-domain-key", text)
    if kind is not Choice and isinstance(widest, Choice):
        text = f"must be options among {allowed}, but got {dict(value)}"
        return Mistake("range-of-options", text)
    try:
        domain: Domain = kind.model_validate(value, strict=False)
    except ValidationError as error:
        code, text = _reason(error.errors()[0])
        return Mistake(code, f"{text} (allowed: {allowed})")
    members = domain.options if isinstance(domain, Choice) else (domain.low, domain.high)
    for member in members:
        if not widest.contains(member):
            text = f"allows {member!r}, which is outside {allowed}"
            return Mistake("outside-widest-range", text)
    if isinstance(widest, IntRange) and isinstance(domain, IntRange) and domain.step % widest.step:
        text = f"needs step = {widest.step}, but got step = {domain.step} (allowed: {allowed})"
        return Mistake("step-of-range", text)
    if isinstance(domain, Choice) and len(set(domain.options)) < len(domain.options):
        return Mistake("option-twice", f"repeats an option: {list(domain.options)}")
    return domain


def _line_number(mistake: Mistake) -> tuple[bool, int]:
    line = re.match(r"[^ ]*:(\d+): ", mistake.text)
    return (line is None, int(line.group(1)) if line else 0)


def _known(key: str, known: Iterable[str]) -> str:
    names = list(known)
    if near := difflib.get_close_matches(key, names, n=1, cutoff=_SIMILAR):
        return f"; did you mean '{near[0]}'?"
    elsewhere = [name for name, table in TABLES.items() if key in keys_of(table)]
    if elsewhere and not 0 < len(names) <= _MOST_OPTIONS:
        return f"; did you mean '{key}' in {_table_name(elsewhere[0])}?"
    other = f"; '{key}' is a key of {_table_name(elsewhere[0])}" if elsewhere else ""
    return f"; known: {', '.join(names)}{other}" if names else "; it takes no keys"


def _table_name(table: str) -> str:
    return f"[{table}]" if table else "the head of the file"


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
    in_list = [part for part in error["loc"] if isinstance(part, int)]
    name = ".".join(part for part in error["loc"] if isinstance(part, str))
    table, _, key = name.rpartition(".")
    where = f" in [{table}]" if table else ""
    place = places.of(name)
    if error["type"] == "json_invalid":  # what a study file holds is handed over as JSON
        return Mistake("nested-too-deep", f"{places.path}: {_TOO_DEEP}")
    if error["type"] == "extra_forbidden":
        return _unknown(name, places)
    if error["type"] == "missing":
        return Mistake("missing-key", f"{place}: missing key '{key}'{where}")
    code, text = _reason(error)
    if error["type"] == "value_error" and not text.startswith(
        "must"
    ):  # of one value: its key is named below
        about = re.match(r"`(\w+)", text)
        place = places.of(f"{name}.{about.group(1)}".strip(".")) if about else place
        table = name if name in TABLES else table
        return Mistake(code, f"{place}: " + (f"[{table}]: {text}" if table else text))
    entry = f"entry {in_list[0] + 1} of " if in_list else ""
    return Mistake(code, f"{place}: {entry}{key}{where} {text}")


def _unknown(name: str, places: _Places) -> Mistake:
    table, _, key = name.rpartition(".")
    where = f" in [{table}]" if table else ""
    if name in REMOVED:
        text = f"{places.of(name)}: `{name}` is no longer a key; {REMOVED[name]}"
        return Mistake("removed-key", text)
    known = keys_of(TABLES[table]) if table in TABLES else []
    text = f"{places.of(name)}: unknown key '{key}'{where}{_known(key, known)}"
    return Mistake("unknown-key", text)


def _reason(error: ErrorDetails) -> Mistake:
    kind, given = error["type"], error["input"]
    got = repr(given) if len(repr(given)) <= _SHOWN else f"{repr(given)[:_SHOWN]}..."
    context = error.get("ctx", {})
    if kind == "literal_error":
        options = re.findall(r"[\w.-]+(?=')|\b\d+\b", str(context["expected"]))
        near = difflib.get_close_matches(str(given), options, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        listed = f"one of {', '.join(options)}"
        if near and len(options) > _MOST_OPTIONS:
            listed = "a known name"
        return Mistake("not-an-option", f"must be {listed}, but got {got}{hint}")
    bounds = {
        "greater_than_equal": (">=", "ge"),
        "greater_than": (">", "gt"),
        "less_than": ("<", "lt"),
        "less_than_equal": ("<=", "le"),
    }
    if kind in bounds:
        sign, key = bounds[kind]
        return Mistake("out-of-bounds", f"must be {sign} {context[key]}, but got {got}")
    if kind == "value_error":
        return Mistake(getattr(context["error"], "code", "not-allowed"), str(context["error"]))
    if kind == "missing":
        return Mistake("key-of-table-missing", f"needs `{error['loc'][-1]}`")
    if kind in ("string_too_short", "too_short"):
        return Mistake("empty", "must not be empty")
    if kind in _TYPES:
        return Mistake("wrong-type", f"must be {_TYPES[kind]}, but got {got}")
    text, found, _ = error["msg"].removeprefix("Input should be ").partition(",")
    if error["msg"].startswith("Input should be ") and "ydantic" not in text + found:
        return Mistake("not-allowed", f"must be {text}, but got {got}")
    return Mistake("not-allowed-here", f"has a value that is not allowed here: {got}")


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
