"""What a user asks for: a study file, or data alone, with options; as a study and its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nas_evidence.api.shared_options import DataOptions, Settings, keys_of_options
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.user_error import UserError, meant, no_such_file
from nas_evidence.spec.dataset import (
    OWN_DATA,
    DatasetSpec,
    scale_of_others,
    with_task,
)
from nas_evidence.spec.families import domains_of, is_family
from nas_evidence.spec.registry import Score
from nas_evidence.spec.study import (
    FAMILY_PARAMETERS,
    IN_PYTHON,
    ResourceSpec,
    StudySpec,
    preferred,
    preset_keys,
)
from nas_evidence.spec.toml import Override, find_study, load_study, parse_study
from nas_evidence.storage.outside_code import (
    admitted,
    outside_names,
    reference_of,
    with_objects,
)

if TYPE_CHECKING:  # these import pandas
    from nas_evidence.data import ArrayData
    from nas_evidence.data.source import Source


#: Keys of scores, which in Python may be objects or functions.
_OF_SCORES = ("estimators", "objective", "pruning.score")


def named_scores(settings: Settings | None) -> tuple[Settings, list[Any]]:
    """Return settings with the references of scores given as objects or functions, and these."""
    found = []

    def named(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [*map(named, value)]
        if not isinstance(value, Score) and not callable(value):
            return value
        found.append(value)
        return reference_of(value)

    if not isinstance(settings, Mapping):
        return settings or (), found
    changed = {key: named(settings[key]) for key in _OF_SCORES if key in settings}
    return {**settings, **changed}, found


def as_overrides(settings: Settings | None) -> list[Override]:
    """Return settings as overrides of a study file: keys with values, or texts.

    Raises:
        ValueError: for a value that a study file cannot hold.
    """
    settings, _ = named_scores(settings)
    if not isinstance(settings, Mapping):
        texts = [settings] if isinstance(settings, str) else settings
        return [Override.typed(text) for text in texts]
    found = []
    for key, value in settings.items():
        try:
            found.append(Override.given(key, value))
        except TypeError:
            raise UserError(
                "setting-of-no-type",
                f"settings[{key!r}] must be a number, text, bool, list or mapping, but is "
                f"{shortened(repr(value))}; convert it, or leave the key out",
            ) from None
    return found


def overrides_of(options: Mapping[str, Any]) -> list[Override]:
    """Return which keys of a study file the options replace; what comes later wins."""
    named = {key: options.get(name) for name, key in keys_of_options().items()}
    given = {key: value for key, value in named.items() if value is not None}
    preset = preset_keys(options.get("preset"))
    return [*as_overrides(preset), *as_overrides(options.get("settings")), *as_overrides(given)]


def whole(name: str, value: Any) -> int | None:
    """Return an option as a number of Python, which numpy's is not; None if it is not given.

    Raises:
        ValueError: if it is no whole number.
    """
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        raise UserError(
            "option-no-whole-number", f"{name} must be a whole number, but got {value!r}"
        ) from None


def check_one(trial_id: int | None, top: int | None) -> tuple[int | None, int | None]:
    """Check that not both a trial and an ensemble are asked for.

    Returns:
        The trial and the size of the ensemble as numbers of Python.
    """
    trial_id, top = whole("trial_id", trial_id), whole("top", top)
    if trial_id is not None and top is not None:
        raise UserError(
            "option-trial-and-top", f"give trial_id={trial_id} (--trial) or top={top}, not both."
        )
    return trial_id, top


def with_workers(spec: StudySpec, workers: int | Literal["auto"] | None) -> StudySpec:
    """Return a study with so many workers, unless it is None.

    Raises:
        ValueError: if it is neither a number nor "auto".
    """
    if workers is None:
        return spec
    try:
        resources = ResourceSpec(**{**spec.resources.model_dump(), "workers": workers})
    except ValueError as error:  # of pydantic: several lines
        raise _first_mistake(error) from None
    return spec.model_copy(update={"resources": resources})


def dataset_keys(options: DataOptions) -> dict[str, Any]:
    """Return the options that are given, by key of [dataset]; one name stands for a list of it."""
    known = DataOptions.__annotations__
    found: dict[str, Any] = {key: value for key, value in options.items() if key in known}
    target, test = found.pop("target", None), found.pop("test", None)
    if not isinstance(test, str | Path | None):
        raise UserError(
            "test-no-file", f"test must be a file, not {type(test).__name__}; write one"
        )
    names = target if isinstance(target, list | tuple) else [] if target is None else [target]
    found["target"] = ",".join(map(str, names)) or None
    found["test_path"] = None if test is None else str(Path(test).expanduser().resolve())
    for name in ("drop", "categorical", "numeric"):
        names = found.get(name) or ()
        found[name] = ([names] if isinstance(names, str) else list(names)) or None
    return {key: value for key, value in found.items() if value is not None}


def _changes(options: DataOptions) -> list[Override]:
    keys = dataset_keys(options)
    for name in ("groups", "time_column", "weights"):
        if not isinstance(keys.get(name, ""), str):
            raise UserError(
                "column-given-as-array", f"{name} must name a column of the file, not be an array"
            )
    return [Override.given(f"dataset.{key}", value) for key, value in keys.items()]


@dataclass(frozen=True)
class Request:
    """A study to run, and its data if they are the user's own.

    arrays    the data as they would load
    proposed  whether the study was made for the data, without a study file
    code      what the study names as module:NAME
    """

    spec: StudySpec
    source: "Source | None" = None
    arrays: "ArrayData | None" = None
    proposed: bool = False
    code: Code = field(default_factory=Code)

    def __post_init__(self) -> None:
        if self.spec.sampler.of_optuna:
            from nas_evidence.proposing.optuna_samplers import check_sampler

            check_sampler(self.spec)

    @property
    def given(self) -> str:
        """The name of the user's own data, "" for others."""
        return "" if self.source is None else self.source.name

    @property
    def decided(self) -> tuple[str, ...]:
        """What was decided about the data of the user's own, in sentences."""
        if self.arrays is None:
            return ()
        if not self.proposed:
            return self.arrays.meaning.said
        from nas_evidence.data.proposed import order_sentence, skewed_sentence

        skewed = skewed_sentence(self.spec, self.arrays)
        order = order_sentence(self.spec, self.arrays.n_train)
        return (*self.arrays.meaning.said, *filter(None, [skewed]), order)


def sampler_of(sampler: Any, settings: Settings | None = None) -> tuple[list[Override], Code]:
    """Return the override that names a sampler given in Python, and what only this process has.

    Args:
        sampler: a name as in a study file; or an object, a class or a function.
        settings: that are given beside it.

    Raises:
        ValueError: if both name a sampler.
    """
    if sampler is None:
        return [], Code()
    for one in as_overrides(settings):
        if one.key in ("sampler", "sampler.name"):
            raise UserError(
                "sampler-named-twice",
                "sampler= and settings both name a sampler: "
                f"{shortened(repr(sampler))} and {one.said}; leave one of them out",
            )
    if isinstance(sampler, str):
        return as_overrides({"sampler.name": sampler}), Code()
    named = getattr(sampler, "__name__", type(sampler).__name__)
    reference = IN_PYTHON + "".join(c for c in named if c.isalnum() or c == "_")
    return as_overrides({"sampler.name": reference}), Code(local={reference: sampler})


def check_own_sampler(spec: StudySpec, code: Code) -> None:
    """Check the sampler of a study that is from outside the package, if it has one.

    Raises:
        ValueError: if it is none, or cannot propose.
    """
    if spec.sampler.own:
        from nas_evidence.proposing.optuna_samplers import check_sampler

        with code.in_use():
            check_sampler(spec)


def asked_for(
    study: str,
    overrides: Sequence[Override | str] = (),
    options: DataOptions | None = None,
    *,
    allow_code: bool = False,
    given: Code | None = None,
    data_root: Path | None = None,
    elsewhere: bool = False,
) -> Request:
    """Return the study that a study file, the name of a shipped one, or a data file stands for.

    Args:
        study: path or name.
        overrides: what replaces keys of the file.
        options: about your data.
        allow_code: import the scores that the study names from outside the package.
        given: code that only this process has.
        data_root: folder that the paths of a study file are relative to.
        elsewhere: the study runs on other machines; only a table or images are read here, if they
            are here. Other data must be where every node sees them.

    Raises:
        ValueError: for a mistake in the file, the options or the data.
    """
    options = options or {}
    if is_data(study):
        from nas_evidence.data.source import source_of

        source = source_of(dataset_of(Path(study).expanduser(), options))
        assert source is not None
        return of_source(source, overrides, allow_code=allow_code, given=given)
    path = find_study(study)
    base = path.resolve().parent
    spec = load_study(path, [*_changes(options), *overrides], to_run=True)
    spec, code = admitted(spec, (base, Path.cwd()), allowed=allow_code, here=given)
    check_own_sampler(spec, code)
    with code.in_use():
        root = None if data_root is None else str(data_root)
        found = _of_study(spec, base=base, data_root=root, elsewhere=elsewhere)
    return replace(found, code=code)


def _of_study(spec: StudySpec, *, base: Path, data_root: str | None, elsewhere: bool) -> Request:
    if spec.first:
        from nas_evidence.proposing.startup import first_points

        first_points(spec)
    name, given = spec.dataset.name, base / str(spec.dataset.path)
    if elsewhere and not (name in ("table", "images") and given.exists()):
        if spec.dataset.target_scale == "auto":
            raise UserError(
                "target-scale-auto-elsewhere",
                '`target_scale = "auto"` needs data that are read here, but those of '
                f"{spec.dataset.path} are read by the workers; name a scale",
            )
        return Request(spec)
    if name not in OWN_DATA:
        return Request(spec)
    from nas_evidence.data.source import source_of

    source = source_of(spec.dataset, base=base, data_root=data_root)
    assert source is not None
    spec = spec.model_copy(update={"dataset": source.spec})
    return Request(*_settled(spec, source, source.arrays(seed=spec.seed)))


def check_not_fewer(spec: StudySpec, n_trials: int | None) -> None:
    """Check that a study is not resumed with fewer trials than it has."""
    if n_trials is not None and n_trials < spec.n_trials:
        raise UserError(
            "fewer-trials-than-before",
            f"the study {spec.name} has {spec.n_trials} trials, which cannot become {n_trials}; "
            "leave the number out to finish them, or give a larger one for more",
        )


def check_more_of_refit(spec: StudySpec, folder: Path, n_trials: int | None) -> None:
    """Check that more trials of a refit would train none but the architectures that it is of.

    The space of several architectures also holds others, with the depth of one and the width of
    another.
    """
    from nas_evidence.storage.kept_origin import read_origin

    origin = read_origin(folder)
    if origin is None or len(origin.trials) == 1 or (n_trials or 0) <= spec.n_trials:
        return
    raise UserError(
        "refit-with-more-trials",
        f"the study {spec.name} trains {len(origin.trials)} architectures of {origin.place} "
        f"again; more than its {spec.n_trials} trials would be of other ones. Begin another refit "
        "with more seeds=N (--seeds), and another `out`",
    )


def is_data(study: str) -> bool:
    """Tell whether an argument names data rather than a study file.

    Raises:
        ValueError: for data in a format that is not read; names the remedy.
    """
    path = Path(study).expanduser()
    if path.suffix == ".toml":
        return False
    from nas_evidence.data.reading import kind_of

    if (path / "study.toml").is_file():
        from nas_evidence.storage.kept_submission import resume_command

        go_on = resume_command(study, path, load_study(path / "study.toml"))
        raise UserError(
            "search-on-study-folder", f"{study} is a study folder; continue it with `{go_on}`."
        )
    kind = kind_of(path)
    if kind is not None and not path.exists():
        raise no_such_file(study)
    if kind is None and path.is_dir():
        raise UserError(
            "folder-without-study-or-data",
            f"{study} is a folder without a study file, without x_train.npy, and without folders "
            "of images; name a study file (.toml) or data (.csv, .parquet, .npz).",
        )
    if kind is None and path.is_file():
        raise UserError(
            "file-of-no-kind",
            f"{study} is neither a study file (.toml) nor data in a format that is read, by the "
            "ending of its name; write it as CSV or Parquet.",
        )
    return kind is not None


def of_memory(
    data: Any,
    y: Any,
    options: DataOptions,
    overrides: Sequence[Override | str],
    *,
    allow_code: bool = False,
    given: Code | None = None,
) -> Request:
    """Return the study that fits data in memory."""
    from nas_evidence.data.source import source_in_memory

    keys = dataset_keys(options)
    try:
        source = source_in_memory(data, y, keys)
    except ValueError as error:  # of pydantic: several lines
        raise _first_mistake(error) from None
    name = source.called.split()[-1].lower()  # "dataframe", as they have no name of their own
    return of_source(source, overrides, name=name, allow_code=allow_code, given=given)


def of_source(
    source: "Source",
    overrides: Sequence[Override | str] = (),
    *,
    name: str | None = None,
    allow_code: bool = False,
    given: Code | None = None,
) -> Request:
    """Return the study that fits your data."""
    from nas_evidence.data.proposed import name_of, proposed_text

    name = name or name_of(Path(source.given))
    asked = [Override.typed(one) if isinstance(one, str) else one for one in overrides]
    keys = {one.key: one.value for one in asked}
    if isinstance(scores := keys.get("estimators"), list) and "objective" not in keys:
        asked.append(Override.given("objective", preferred(scores)))  # not that of the proposal

    def proposed() -> StudySpec:
        text = proposed_text(source.spec, arrays, name=name)
        spec = parse_study(text, source.given, asked, to_run=True)
        dataset = spec.dataset.model_copy(update={"content": source.spec.content})
        return spec.model_copy(update={"dataset": dataset})

    arrays = source.arrays(seed=0)
    spec = proposed()
    rows = spec.dataset.model_copy(update={"task": source.spec.task})
    if (rows, spec.seed, spec.dataset.task) != (source.spec, 0, arrays.kind.task):
        source = source.with_spec(spec.dataset)  # overridden: propose again for what is left
        arrays = source.arrays(seed=spec.seed)
        spec = proposed()
    spec, code = admitted(spec, [Path.cwd()], allowed=allow_code, here=given)
    check_own_sampler(spec, code)
    with code.in_use():
        return Request(*_settled(spec, source, arrays), proposed=True, code=code)


def dataset_of(path: Path, options: DataOptions) -> DatasetSpec:
    """Return the table [dataset] of a data file.

    Raises:
        ValueError: without a target for a table, or for an option that does not fit.
    """
    from nas_evidence.data.reading import kind_of, read_frame

    keys, kind = dataset_keys(options), kind_of(path)
    if kind == "table" and "target" not in keys:
        columns = read_frame(path).columns
        raise UserError(
            "target-not-named",
            f"{path.name} is a table: name the column to predict with `target` "
            f"(columns: {', '.join(columns[:12])}{', ...' * (len(columns) > 12)}).",
        )
    if kind != "table" and "target" in keys:
        raise UserError(
            "target-without-table", f"`target` names a column of a table, but {path.name} is none."
        )
    try:
        return DatasetSpec.model_validate({"name": kind, "path": str(path), **keys})
    except ValueError as error:
        raise _first_mistake(error) from None


def _settled(
    spec: StudySpec, source: "Source", arrays: "ArrayData"
) -> tuple[StudySpec, "Source", "ArrayData"]:
    """Return a study with the task and the scale of its target, if the data decide them."""
    from nas_evidence.data.units import check_units

    if spec.dataset.task is None:
        given = spec.model_dump(exclude_unset=True)
        given["dataset"] = {**given["dataset"], "task": arrays.kind.task}
        try:
            spec = StudySpec.model_validate(with_task(given))
        except ValueError as error:
            raise _first_mistake(error) from None
    check_units(spec, arrays.units, arrays.n_train)
    source = source.with_spec(spec.dataset)
    if spec.dataset.target_scale != "auto":
        return spec, source, arrays
    if not arrays.kind.scaled:
        raise scale_of_others("auto", arrays.kind)
    from nas_evidence.scores.scale_choice import chosen_scale

    found = chosen_scale(spec, arrays)
    dataset = spec.dataset.model_copy(update={"target_scale": found.name})
    source = source.with_spec(dataset)
    arrays = source.arrays(seed=spec.seed)
    meaning = arrays.meaning
    said = (*(s for s in meaning.said if not s.startswith("scale of the target")), found.sentence)
    arrays = replace(arrays, meaning=replace(meaning, said=said))
    return spec.model_copy(update={"dataset": dataset}), source, arrays


def _first_mistake(error: ValueError) -> ValueError:
    details: Sequence[Mapping[str, Any]] = getattr(error, "errors", list)()
    for detail in details:
        cause = detail.get("ctx", {}).get("error")
        reason, given = detail["msg"].replace("Input should", "must"), detail.get("input")
        got = f", but got {shortened(repr(given))}" if isinstance(given, str | int | float) else ""
        named = f"`{'.'.join(map(str, detail['loc']))}`: {reason}{got}"
        return cause or UserError("option-not-allowed", named)
    return error


def own_families(families: Sequence[Any] | str | None) -> list[Any]:
    """Return the families that are given as classes or objects, not by name.

    Raises:
        ValueError: for an object that is no family.
    """
    given = () if families is None or isinstance(families, str) else families
    own = [family for family in given if not isinstance(family, str)]
    if wrong := [family for family in own if not is_family(family)]:
        raise UserError(
            "family-incomplete",
            "a family must have `domains` and `build(values, input_shape, n_outputs)`, but "
            f"{wrong[0]!r} has not",
        )
    return own


def with_families(
    spec: StudySpec, families: Sequence[Any] | str | None, code: Code
) -> tuple[StudySpec, Code]:
    """Return a study that searches these families, and its code with theirs.

    Raises:
        ValueError: for an unknown name, or an object that is no family.
    """
    if families is None:
        return spec, code
    chosen = {}
    families = [families] if isinstance(families, str) else families
    if not families:
        raise UserError(
            "no-family-asked",
            f"families is empty, so there is nothing to search; name some of "
            f"{', '.join(FAMILY_PARAMETERS)}, or leave it out",
        )
    own = own_families(families)
    code = with_objects(own, code, outside_names(spec)) if own else code
    for family in families:
        if isinstance(family, str):
            if family not in FAMILY_PARAMETERS:
                known = ", ".join(FAMILY_PARAMETERS)
                hint = meant(family, FAMILY_PARAMETERS)
                raise UserError(
                    "unknown-family-asked",
                    f"family {family!r} is unknown; choose among {known}{hint}",
                )
            chosen[family] = spec.family.get(family, FAMILY_PARAMETERS[family])
        else:
            reference = reference_of(family)
            with code.in_use():
                chosen[reference] = domains_of(reference)
    return spec.model_copy(update={"family": chosen}), code
