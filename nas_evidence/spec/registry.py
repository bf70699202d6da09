"""Declarations of all scores and curvature kinds; reading them needs no torch.

A declaration says what a score is: its unit, when it is taken, what it needs and how it relates to
the log evidence. Its implementation is named as `module:name` and imported on first use, so study
files, reports and the terminal can look up a score without torch. Nothing parses a score's name:
use its declaration.

The name of a score from outside the package is its reference `module:NAME`, where NAME is a
`Score` in that module, or a function of the context. It is imported by `import_outside`, which the
command line calls for `--allow-code`; before that, `declared` knows only the reference. See
docs/how-to/extend.md.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import ModuleType
from typing import Any, Literal, get_args

from nas_evidence.plumbing.own_modules import ByReference, Code, code_in_use
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.plumbing.user_error import meant as near_name
from nas_evidence.spec.families import add_family, has_family, is_family

#: What holds on linear-Gaussian models at the mode: equal, a lower bound, or neither (score only).
Relation = Literal["EXACT_ON_LINEAR", "LOWER_BOUND", "SCORE"]
Taken = Literal["before", "evaluation", "end"]


@dataclass(frozen=True)
class Structure:
    """The structure of a curvature matrix; every question about memory and layers is asked of it.

    words         in the summaries of scores
    stored        what is kept: the diagonal, two factors of the block of each weight, the block of
                  each parameter tensor, or the whole matrix
    shares_bias   the bias of a linear layer shares the outer factor with the weight
    corrected     each element of a weight has an eigenvalue of its own, beside the two factors
    any_layer     for models that hooks cannot follow, too, one datum at a time
    """

    words: str
    stored: Literal["diagonal", "factors", "blocks", "matrix"]
    shares_bias: bool = False
    corrected: bool = False
    any_layer: bool = False


#: By the name under which `curvature.BUILDERS` has the function that builds it.
STRUCTURES: Mapping[str, Structure] = {
    "diagonal": Structure("diagonal", "diagonal", any_layer=True),
    "kronecker": Structure("Kronecker-factored", "factors", shares_bias=True),
    "eigen_corrected": Structure(
        "eigenvalue-corrected Kronecker-factored", "factors", corrected=True
    ),
    "block": Structure("block-diagonal", "blocks", any_layer=True),
    "full": Structure("full", "matrix", any_layer=True),
}


@dataclass(frozen=True)
class Curvature:
    """A kind of curvature: the structure of the matrix, and the columns it is built from.

    structure     of the matrix, a name in `STRUCTURES`
    columns       sent back through the network: the residual of each datum (empirical Fisher),
                  all roots of the output Hessian, or one sampled root per datum
    approximates  the exact kind that a sampled one estimates
    trace         the exact diagonal kind whose trace this Kronecker kind should match
    """

    structure: str
    columns: Literal["residual", "exact", "sampled"]
    approximates: str | None = None
    trace: str | None = None

    @property
    def form(self) -> Structure:
        """Return the declaration of the structure."""
        return STRUCTURES[self.structure]

    @property
    def is_diagonal(self) -> bool:
        """Return whether it keeps the diagonal alone."""
        return self.form.stored == "diagonal"

    @property
    def is_factored(self) -> bool:
        """Return whether the block of a weight is kept as Kronecker factors."""
        return self.form.stored == "factors"

    @property
    def is_dense(self) -> bool:
        """Return whether blocks, or all of the matrix, are kept element by element."""
        return self.form.stored in ("blocks", "matrix")

    @property
    def is_full(self) -> bool:
        """Return whether it couples the parameter tensors; online only up to a size."""
        return self.form.stored == "matrix"

    @property
    def any_layer(self) -> bool:
        """Return whether it supports models that hooks cannot follow, one datum at a time."""
        return self.form.any_layer


CURVATURES: Mapping[str, Curvature] = {
    "diag_ef": Curvature("diagonal", "residual"),
    "diag_ggn": Curvature("diagonal", "exact"),
    "diag_ggn_mc": Curvature("diagonal", "sampled", approximates="diag_ggn"),
    "kfac_ggn": Curvature("kronecker", "exact", trace="diag_ggn"),
    "kfac_ggn_mc": Curvature("kronecker", "sampled", approximates="kfac_ggn", trace="diag_ggn"),
    "kfac_ef": Curvature("kronecker", "residual", trace="diag_ef"),
    "ekfac_ggn": Curvature("eigen_corrected", "exact"),
    "block_ggn": Curvature("block", "exact"),
    "full_ggn": Curvature("full", "exact"),
    "full_ef": Curvature("full", "residual"),
}
ONLINE_CURVATURES = tuple(CURVATURES)


@dataclass(frozen=True)
class Score:
    """The declaration of a score.

    name            in study files and in the column `estimator`; for a score from outside the
                    package its reference replaces it
    summary         what it is, in one line
    implementation  a `Scorer` or a function (see scores/protocol.py), or its place "module:name"
    taken           before training, at every evaluation, or at the end
    unit            of `value`; nats are summed over the data that are scored
    relation        to the log evidence, on linear-Gaussian models at the mode
    on_request      computed only if `estimators` names it; the others are free and always computed
    baseline        a baseline that evidence has to beat
    curvature       the kind whose Laplace evidence it needs
    approximates    the exact score that a random one estimates
    metric          that it is, see `TargetKind.metrics`: not defined for targets without it
    plain_only      not defined with `plan.augment`
    trainings       cost of trainings on parts of the data, as a multiple of the main training
    division        of the data into folds that it trains without and predicts; "plan" for that of
                    `plan.folds`; scores of one division share its trainings
    own_order       predicts rows from others in a random order of its own, so that groups and
                    times are not respected; not defined with `groups` or `time_column`
    """

    name: str
    summary: str
    implementation: str | Callable[..., Any]
    taken: Taken = "evaluation"
    unit: Literal["nats", "nats per datum", "fraction", "none"] = "none"
    relation: Relation = "SCORE"
    on_request: bool = True
    baseline: bool = False
    curvature: str | None = None
    approximates: str | None = None
    metric: str = ""
    plain_only: bool = False
    trainings: float = 0.0
    division: str = ""
    own_order: bool = False

    def __post_init__(self) -> None:
        if self.taken not in get_args(Taken):
            raise UserError(
                "score-taken",
                f"`taken` of the score {self.name!r} must be one of {', '.join(get_args(Taken))}, "
                f"but got {self.taken!r}",
            )

    @property
    def is_laplace(self) -> bool:
        """Return whether this is the trained network's Laplace evidence, named after its kind."""
        return self.name in CURVATURES

    @property
    def of_folds(self) -> bool:
        """Return whether a trial that trains its folds alone has it, of these networks.

        Not a code length of all rows, nor what samples the posterior, nor code from outside.
        """
        free = not self.on_request and self.unit != "nats"
        return bool(self.division) or self.is_laplace or free


# Dropping entries of H off a block diagonal raises its determinant (Fischer), hence the bounds. On
# one linear layer Kronecker blocks are exact and only the weight-bias part is dropped.
_RELATIONS: Mapping[str, Relation] = {
    "diag_ggn": "LOWER_BOUND",
    "kfac_ggn": "LOWER_BOUND",
    "ekfac_ggn": "LOWER_BOUND",
    "block_ggn": "LOWER_BOUND",
    "full_ggn": "EXACT_ON_LINEAR",
}
_COLUMNS = {
    "residual": "empirical Fisher",
    "exact": "Gauss-Newton",
    "sampled": "Gauss-Newton, Monte Carlo",
}
_LAPLACE = [
    Score(
        name=name,
        summary=f"Laplace evidence, {kind.form.words} {_COLUMNS[kind.columns]}",
        implementation="nas_evidence.scores.laplace_scores:Laplace",
        unit="nats",
        relation=_RELATIONS.get(name, "SCORE"),
        curvature=name,
        approximates=kind.approximates,
    )
    for name, kind in CURVATURES.items()
]


def _folds(
    name: str, what: str, trainings: float, *, baseline: bool = False
) -> tuple[Score, Score]:
    log_density = Score(
        name=name,
        summary=f"{what}: log predictive density, output scale marginalised",
        implementation="nas_evidence.scores.folds:Folds",
        taken="before",
        unit="nats",
        baseline=baseline,
        trainings=trainings,
        division=name,
    )
    accuracy = replace(
        log_density,
        name=f"{name}_accuracy",
        summary=f"{what}: accuracy",
        unit="fraction",
        metric="accuracy",
    )
    return log_density, accuracy


def _free(
    name: str,
    summary: str,
    unit: Literal["nats", "nats per datum", "none"],
    where: str = "sotl:Sotl",
) -> Score:
    return Score(
        name=name,
        summary=summary,
        implementation=f"nas_evidence.scores.{where}",
        unit=unit,
        on_request=False,
        baseline=True,
    )


def _at_end(name: str, summary: str, module: str, relation: Relation) -> Score:
    return Score(
        name=name,
        summary=summary,
        implementation=f"nas_evidence.scores.{module}",
        taken="end",
        unit="nats",
        relation=relation,
        plain_only=True,
    )


_ALL = [
    *_LAPLACE,
    *_folds("two_fold", "two-fold cross-validation", 1.0),
    *_folds("heldout_10", "a tenth held out", 0.9, baseline=True),
    *_folds("five_fold", "five-fold cross-validation", 4.0, baseline=True),
    *_folds("ten_fold", "ten-fold cross-validation", 9.0, baseline=True),
    Score(
        name="conditional_evidence",
        summary="conditional marginal likelihood (last-layer Laplace, K folds)",
        # The class that trains without the folds also computes what is made from the networks.
        implementation="nas_evidence.scores.folds:Folds",
        taken="before",
        unit="nats",
        relation="EXACT_ON_LINEAR",
        plain_only=True,
        trainings=4.0,
        division="plan",
    ),
    Score(
        name="elpd",
        summary="K-fold cross-validation: log predictive density of the network as trained",
        implementation="nas_evidence.scores.folds:Folds",
        taken="before",
        unit="nats",
        trainings=4.0,
        division="plan",
    ),
    _at_end("sgd_entropy", "lower bound by the entropy of SGD", "sgd_entropy:score",
            "LOWER_BOUND"),
    _at_end("thermodynamic", "thermodynamic integration", "thermodynamic:score",
            "EXACT_ON_LINEAR"),
    _at_end("temperature_ladder", "replica exchange over temperatures",
            "temperature_ladder:score", "EXACT_ON_LINEAR"),
    replace(
        _at_end("sto_lk", "sample-then-optimise ensembles that predict chunk after chunk",
                "sample_then_optimise:score", "LOWER_BOUND"),
        own_order=True,
    ),
    _free("sotl", "minus the sum of training losses", "nats per datum"),
    _free("sotl_e", "minus the sum of the latest training losses", "nats per datum"),
    _free("sotl_ema", "minus the discounted sum of training losses", "nats per datum"),
    _free("prequential_epoch1", "minus the code length of the first epoch", "nats"),
    _free("n_parameters", "number of parameters", "none", "n_parameters:n_parameters"),
    _free("train_nll_per_datum", "minus the last training loss", "nats per datum"),
]  # fmt: skip
#: Every score of the package by name.
SCORES: Mapping[str, Score] = {score.name: score for score in _ALL}
#: Those that cost nothing and are computed for every trial.
FREE_SCORES = tuple(name for name, score in SCORES.items() if not score.on_request)
#: Scores that are no longer here, and what to write instead.
REMOVED: Mapping[str, str] = {
    "last_layer_conditional": "conditional_evidence with `folds = 2` in [plan]",
    "tangent_conditional": "conditional_evidence",
    "tangent": "conditional_evidence",
    "ntk_init": "conditional_evidence",
    "conditional_full_ggn": "conditional_evidence",
    "prequential_replay": "two_fold",
    "prequential": "two_fold",
    "prequential_accuracy": "two_fold_accuracy",
    "prequential_epoch1_laplace": "prequential_epoch1",
    "full_ggn_slq": "full_ggn, or kfac_ggn for large networks",
    "stochastic_ggn": "kfac_ggn",
    "thermodynamic_box": "thermodynamic",
}
#: The objective if a study names none: the first of these in its `estimators`.
PREFERRED = ("conditional_evidence", "two_fold", "kfac_ggn")
#: Draws of the Monte-Carlo kinds; the estimate is their mean.
MC_DRAWS = 4
#: Scores from outside the package that have been imported, by reference.
_OUTSIDE: ByReference[Score] = ByReference()


def is_outside(name: str) -> bool:
    """Return whether a name is the reference `module:NAME` of a score from outside the package."""
    return ":" in name


def declared(name: str) -> Score:
    """Return the declaration of a score; for one not yet imported, only its reference.

    Raises:
        ValueError: for an unknown name; suggests a close one.
    """
    if name in SCORES:
        return SCORES[name]
    if name in REMOVED:
        raise UserError("removed-score", f"{name!r} is no longer a score; write {REMOVED[name]}")
    if is_outside(name):
        return _OUTSIDE.get(name) or Score(name=name, summary=name, implementation=name)
    near = difflib.get_close_matches(name, SCORES, n=1, cutoff=0.5)
    meant = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(SCORES)}"
    raise UserError(
        "unknown-score", f"must be the name of a score, or module:NAME, but got {name!r}; {meant}"
    )


def draws_of(kind: str) -> int:
    """Return of how many draws the last evaluation of a curvature kind is the mean."""
    return MC_DRAWS if CURVATURES[kind].approximates else 1


def curvatures_of(names: Iterable[str]) -> set[str]:
    """Return the curvature kinds that the named scores need.

    >>> sorted(curvatures_of(["kfac_ggn", "full_ggn", "sotl"]))
    ['full_ggn', 'kfac_ggn']
    """
    return {kind for name in names if (kind := declared(name).curvature) is not None}


def import_outside(names: Iterable[str]) -> None:
    """Import the scores and families among `names` from outside the package: runs their code.

    Raises:
        ValueError: if there is no such module, or no score or family of that name in it.
    """
    for name in filter(is_outside, names):
        found = imported(name, "a score or a family")
        if is_family(found):
            add_family(name, found)
        else:
            _OUTSIDE.put(name, score_of(name, found))


def score_of(name: str, found: Any) -> Score:
    """Return the declaration of a score from outside: a `Score`, or a function of the context.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(found, Score):
        return replace(found, name=name)
    if not callable(found):
        raise UserError(
            "reference-to-something-else",
            f"{name} must be a nas_evidence.Score, a function of the context, or a family with "
            f"`domains` and `build`, but is a {type(found).__name__}.",
        )
    return Score(name=name, summary=name, implementation=found)


def has_outside(code: Code, name: str) -> bool:
    """Tell whether a score or a family was imported from a code in this process."""
    return _OUTSIDE.has(code, name) or has_family(code, name)


def imported(name: str, meant: str) -> Any:
    """Import and return what a reference `module:NAME` names: runs the code of the module.

    Args:
        name: the reference.
        meant: what it should name, for the error.

    Raises:
        ValueError: if there is no such module, or nothing of that name in it.
    """
    code = code_in_use() or Code()
    if name in code.local:
        return code.local[name]
    module, _, attribute = name.partition(":")
    try:
        found = code.module(module)
    except FileNotFoundError as error:
        if code.package not in str(error.filename):
            raise _not_imported(name, meant, error) from error
        file = PurePath(error.filename).name
        raise UserError(
            "own-file-not-copied",
            f"{name} reads {file} from beside its module, which is not copied with the code; "
            f"read it with pkgutil.get_data(__name__, {file!r}), or put what it holds into a "
            "Python file.",
        ) from error
    except Exception as error:  # any code may stand there
        raise _not_imported(name, meant, error) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = module if isinstance(found, ModuleType) else name.rpartition(".")[0]
            known = [one for one in dir(found) if not one.startswith("_")]
            lost = AttributeError(f"{where} has no {part!r}{near_name(part, known)}")
            raise _not_imported(name, meant, lost) from None
        except Exception as error:
            raise _not_imported(name, meant, error) from error
    return found


def _not_imported(name: str, meant: str, error: Exception) -> UserError:
    kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
    package = (code_in_use() or Code()).package  # files say neither its name nor its place
    text = str(error).replace(f"{package}.", "").replace(f"<{package}>/", "")
    return UserError(
        "reference-not-imported",
        f"{name} cannot be imported: {kind}{text}; it must name {meant} in a module that is "
        "installed, in this folder, or in the folder of the study file.",
    )


def implementation_of(score: Score) -> Any:
    """Import and return the implementation of a score."""
    given = score.implementation
    return imported(given, "a score") if isinstance(given, str) else given
