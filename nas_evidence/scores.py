"""The names of all scores, by what they are made of; each means one thing everywhere."""

from collections.abc import Collection

#: Curvature kinds whose spectrum splits over parameter tensors, fit for the online update.
ONLINE_KINDS = (
    "diag_ef",
    "diag_ggn",
    "diag_ggn_mc",
    "kfac_ggn",
    "kfac_ggn_mc",
    "kfac_ef",
    "ekfac_ggn",
    "block_ggn",
)
#: Laplace evidences: a curvature kind each. A bare name is exact, `_mc` is Monte Carlo.
LAPLACE_KINDS = (*ONLINE_KINDS, "full_ggn", "full_ef")
#: Those with one number for each parameter.
DIAGONAL_KINDS = frozenset({"diag_ef", "diag_ggn", "diag_ggn_mc"})
#: Scores read off the training losses at no cost; recorded for every trial.
CURVE_SCORES = ("sotl", "sotl_e", "sotl_ema", "prequential_epoch1")
#: Scores of data predicted before they are trained on, and of a tenth held out: more training.
CONDITIONAL_SCORES = ("prequential", "prequential_accuracy", "heldout_10", "heldout_10_accuracy")
#: Laplace evidence of all data minus that of the early ones: one and a half trainings more.
CONDITIONAL_KINDS = tuple(f"conditional_{kind}" for kind in LAPLACE_KINDS)
#: What is known before the first epoch of the training proper.
EARLY_SCORES = CONDITIONAL_SCORES + CONDITIONAL_KINDS
#: The first epoch predicted by linearised networks: a dearer first epoch.
FIRST_PASS = ("prequential_epoch1_laplace",)
#: What any useful score has to beat; recorded for every trial.
BASELINES = ("n_parameters", "train_nll_per_datum")
#: Evidences of tiny networks by sampling, at the end of training: far dearer than it.
SAMPLED_KINDS = ("sgd_entropy", "thermodynamic", "temperature_ladder")
SCORES = LAPLACE_KINDS + EARLY_SCORES + FIRST_PASS + SAMPLED_KINDS + CURVE_SCORES + BASELINES
#: Scores that a study has only where its `estimators` name them.
ON_REQUEST = LAPLACE_KINDS + EARLY_SCORES + FIRST_PASS + SAMPLED_KINDS
#: What ranks where a study names no objective, in this order; see docs/explanation/ranking.md.
PREFERRED = ("prequential", "kfac_ggn")


def laplace_kinds_of(estimators: Collection[str]) -> set[str]:
    """Return the curvature kinds whose evidence is needed for some estimators.

    >>> sorted(laplace_kinds_of(["kfac_ggn", "conditional_diag_ef", "sotl"]))
    ['diag_ef', 'kfac_ggn']
    """
    return {name.removeprefix("conditional_") for name in estimators} & set(LAPLACE_KINDS)
