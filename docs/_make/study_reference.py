"""The reference page of the study file, generated from the types in `spec/study.py`.

    python docs/_make/study_reference.py

Each field gives a row: name, type, default, unit, and as meaning the string below the field.
The examples of a table together set all its keys; tests load them.
"""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic.fields import FieldInfo

from nas_evidence.spec.domains import (
    Choice,
    FloatRange,
    Frozen,
    IntRange,
    ParameterValue,
    Unit,
    described,
    keys_of,
)
from nas_evidence.spec.likelihoods import LIKELIHOODS, TARGET_KINDS
from nas_evidence.spec.study import (
    FAMILY_DEFAULTS,
    FAMILY_PARAMETERS,
    PRESETS,
    StudySpec,
    TrainingPlan,
)
from nas_evidence.spec.toml import TABLES

#: Keys that a study file leaves to the data: their value in the types is for plans made in Python.
_AUTOMATIC = {(TrainingPlan, "epochs")}
#: What the declarations say of a key, after its meaning.
_DECLARED = {
    (TrainingPlan, "likelihood"): [
        f'"{name}": {one.summary}.' for name, one in LIKELIHOODS.items()
    ],
    (TrainingPlan, "folds"): [
        "Few are under "
        + " or ".join(f"{kind.few:,} of {kind.targets}" for kind in TARGET_KINDS.values())
        + "."
    ],
    (StudySpec, "metric"): [
        f"Of {kind.targets}: {', '.join(kind.metrics)}." for kind in TARGET_KINDS.values()
    ],
}
#: Longer lists of names are not shown in a row.
_MOST_NAMES = 8

#: Meanings of the parameters of the families.
PARAMETERS: Mapping[tuple[str, str], str] = {
    ("mlp", "depth"): "Hidden layers.",
    ("mlp", "width"): "Units of each hidden layer.",
    ("mlp", "shape"): '"taper" is 1024, 512, 256, 128 units, regardless of depth and width.',
    ("cnn", "depth"): "Convolutions.",
    ("cnn", "width"): "Channels of the first convolution; each further one has twice as many.",
    ("resnet", "depth"): "Layers: 6 n + 2, with n blocks in each of three stages.",
    ("resnet", "width"): "Channels of the first stage; each further one has twice as many.",
}

#: Example study-file snippets of each table, which together set all its keys.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        """\
name = "digits"                   # the folder is runs/digits
seed = 0
n_trials = 30                     # 10 architectures, each with 3 seeds
replicates = 3
estimators = ["conditional_evidence", "kfac_ggn"]
objective = "conditional_evidence"   # the score that ranks
rank_by = "score"                 # and not an estimate from the scores of all trials
minimise = ["n_parameters"]       # the report also draws the Pareto front
first = [{family = "mlp", depth = 1, width = 64}]   # a baseline, tried before all others
warm_start = "runs/older"
scheduling = "batch"              # the same proposals on any number of workers
batch = 6
curves = true                     # the report shows from which epoch on the scores rank well
""",
        """\
finalists = 8                     # 0: no race
metric = "f1"                     # in report and predict; ranks nothing
""",
    ),
    "dataset": (
        """\
[dataset]
name = "digits"
test_size = 500                   # of 1,797 images
""",
        """\
[dataset]
name = "npz"
path = "mine.npz"                 # x_train, y_train; x_test, y_test if there are test rows
max_train = 5000                  # a first look at large data
max_test = 2000
""",
        """\
[dataset]
name = "table"
path = "mine.csv"                 # beside the study file
target = "price"
task = "regression"               # not guessed from the values
test_fraction = 0.2
drop = ["id"]
categorical = ["district"]        # a code, not an amount
numeric = ["area"]                # what is no number counts as missing
""",
        """\
[dataset]
name = "table"
path = "visits.csv"
target = "cost"
groups = "patient"                # the visits of one patient are in one fold
""",
        """\
[dataset]
name = "table"
path = "sales.csv"
target = "sold"
time_column = "date"              # each block of rows is predicted from the earlier ones
test_fraction = 0.2               # the latest rows
target_scale = "shifted_log"      # sold is positive and skewed
""",
        """\
[dataset]
name = "table"
path = "counts.csv"
target = "survived"
weights = "n"                     # how often the row occurs
class_weight = "balanced"         # what an error costs, by class; or {yes = 3.5}
""",
        """\
[dataset]
name = "table"
path = "train.parquet"
test_path = "test.parquet"
target = "label"
""",
        """\
[dataset]
name = "images"
path = "pets"                     # pets/cat/1.png, pets/dog/1.png, ...
image_size = 32                   # resize all to 32 x 32
""",
    ),
    "family": (
        """\
[family.mlp]
depth = {low = 1, high = 4}
width = {low = 8, high = 256, log = true}
shape = {options = ["constant", "taper"]}

[family.cnn]
depth = 3                         # fixed
width = [4, 8, 16]

[family.resnet]
depth = {low = 8, high = 20, step = 6}
width = 16

[family.linear]
""",
    ),
    "plan": (
        """\
[plan]
epochs = 90
evaluate_every = 15
batch_size = 128
optimiser = "sgd"
learning_rate = 0.05
schedule = "steps"
milestones = [0.5, 0.75]          # after 45 and 68 of them
precision = "bf16"                # training steps in bfloat16
compile = true                    # and as CUDA graphs
""",
        """\
[plan]
likelihood = "gaussian"           # real targets
""",
        """\
[plan]
likelihood = "heteroscedastic"    # real targets, each with a noise of its own
""",
        """\
[plan]
likelihood = "categorical"        # classes
likelihood_power = 0.5            # a tempered posterior
settle = 0                        # no settling after the last epoch
folds = 1                         # half the cost, more seed noise
whole = true                      # a network of all rows in each trial
""",
        """\
[plan]
augment = ["RandomCrop", "RandomHorizontalFlip"]   # of images
likelihood_power = 5              # an image and its variants count as five
""",
    ),
    "plan.online": (
        """\
[plan.online]
every = 5
burn_in = 20                      # updates from epoch 25 on
curvature = "kfac_ggn_mc"
hyper_step = "adam"
rows = 1000                       # of more, a sample of so many
prior_groups = "scalar"
""",
    ),
    "sampler": (
        """\
[sampler]
name = "posterior"
""",
        """\
[sampler]
name = "optuna:NSGAIISampler"
arguments = {population_size = 20}
""",
        """\
[sampler]
name = "my_samplers:Mine"         # needs --allow-code
""",
    ),
    "pruning": (
        """\
[pruning]
rule = "halving"                  # the best third continues
score = "sotl"                    # costs nothing; without it, the objective
""",
    ),
    "limits": (
        """\
[limits]
n_parameters = 1_000_000
memory_bytes = 2_000_000_000
""",
    ),
    "budget": (
        """\
[budget]
wall_seconds = 7200
""",
    ),
    "resources": (
        """\
[resources]
workers = 4
cpus = 2
gpus = 0.25                       # four trials share one GPU
slice_timeout_seconds = 1800      # five epochs of the largest network take minutes
wait_seconds = 7200               # for room on a full cluster
""",
    ),
    "race": (
        """\
[race]
trials = 20                       # on top of n_trials; without it 10
""",
    ),
    "retries": (
        """\
[retries]
crashes = 5
""",
    ),
}

_HEAD = """\
# Study file

One TOML file is one study. A folder of results keeps its own copy as `study.toml`, with every key,
and with the SHA-256 of your data (`content`), so that data that changed are refused.
`nas-evidence search FILE --dry-run` reports all its errors at once; `--set table.key=value`
changes one key. A required key must be given; a default of "none" means that the key is absent.
The shipped files in `search_spaces/` are complete examples.
"""

_FAMILIES = """\
The families to search, at least one; an omitted parameter keeps its default. `depth = 2` fixes a
parameter, `width = [8, 16]` lists its options, a table gives a range or options as below.
"""


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_sections())


def examples() -> Iterator[str]:
    """Yield every example of the page."""
    for pieces in EXAMPLES.values():
        yield from pieces


def meanings(kind: type[Frozen]) -> dict[str, str]:
    """Return the meanings of a type's fields: the strings below them in its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def keys(kind: type[Frozen]) -> list[str]:
    """Return the keys of a table: its fields without the tables inside it."""
    return [name for name in keys_of(kind) if not _is_table(name, kind.model_fields[name])]


# ---------------------------------------------------------------------------------------------


def _sections() -> Iterator[str]:
    yield _HEAD
    for name, kind in TABLES.items():
        yield f"## [{name}]\n" if name else "## At the head of the file\n"
        yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
        yield from _table(kind)
        yield from _pieces(name)
        if name == "dataset":
            yield from _families()
    yield "## Presets\n"
    yield "`search --preset NAME` sets these keys; those of `--set` and other options win.\n"
    yield "| preset | keys |\n|---|---|"
    for name, values in PRESETS.items():
        shown = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in values.items())
        yield f"| `{name}` | {shown or 'as the study file has them, or the defaults'} |"
    yield ""


def _table(kind: type[Frozen]) -> Iterator[str]:
    yield "| key | type | default | unit | meaning |\n|---|---|---|---|---|"
    meaning = meanings(kind)
    for name in keys(kind):
        field = kind.model_fields[name]
        default = '`"auto"`' if (kind, name) in _AUTOMATIC else _default(field)
        said = " ".join([meaning[name], *_DECLARED.get((kind, name), [])])
        cells = (f"`{name}`", _type(field), default, _unit(field), said)
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _pieces(table: str) -> Iterator[str]:
    for piece in EXAMPLES[table]:
        yield f"```toml\n{piece}```\n"


def _families() -> Iterator[str]:
    yield "## [family.NAME]\n"
    yield f"{_FAMILIES}\n"
    yield "| family | key | allowed | default | meaning |\n|---|---|---|---|---|"
    for family, parameters in FAMILY_PARAMETERS.items():
        for name, widest in parameters.items():
            default = _toml(FAMILY_DEFAULTS[family][name])
            meaning = PARAMETERS[family, name]
            yield f"| {family} | `{name}` | {described(widest)} | `{default}` | {meaning} |"
    yield ""
    for kind in (IntRange, FloatRange, Choice):
        yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
        yield from _table(kind)
    yield from _pieces("family")


def _is_table(name: str, field: FieldInfo) -> bool:
    return name == "family" or (
        isinstance(field.annotation, type) and issubclass(field.annotation, Frozen)
    )


def _type(field: FieldInfo) -> str:
    return _named(field.annotation, field.metadata)


def _named(kind: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """Return a type in words, with the bounds in its metadata."""
    arguments = get_args(kind)
    if hasattr(kind, "__metadata__"):  # Annotated[kind, ...]
        return _named(arguments[0], kind.__metadata__)
    origin = get_origin(kind)
    if origin is Literal:
        if len(arguments) > _MOST_NAMES:
            return "name"
        return ", ".join(f"`{_toml(option)}`" for option in arguments)
    if kind == ParameterValue:
        return "value"
    if origin in (Union, UnionType):
        return " or ".join(_named(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return "list of " + " or ".join(map(_plural, _named(arguments[0]).split(" or ")))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    words = {int: "integer", float: "number", bool: "true or false", str: "text"}
    return f"{words[kind]} {' and '.join(_bounds(metadata))}".strip()


def _plural(kind: str) -> str:
    one, *bounds = kind.split(" ", 1)
    return " ".join([one if one.startswith("`") else f"{one}s", *bounds])


def _bounds(metadata: list[Any] | tuple[Any, ...]) -> Iterator[str]:
    for item in metadata:
        for bound in item.metadata if isinstance(item, FieldInfo) else [item]:
            for sign, name in ((">=", "ge"), (">", "gt"), ("<", "lt")):
                if hasattr(bound, name):
                    yield f"{sign} {getattr(bound, name)}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "see meaning"
    return "none" if field.default is None else f"`{_toml(field.default)}`"


def _unit(field: FieldInfo) -> str:
    found = [*_units(field.metadata), *_units(get_args(field.annotation))]
    return found[-1] if found else ""


def _units(parts: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Unit):
            yield part.name
        elif hasattr(part, "__metadata__"):
            yield from _units(part.__metadata__)


def _toml(value: Any) -> str:
    if value == {}:
        return "{}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


if __name__ == "__main__":
    sys.stdout.write(page())
