"""Evidence estimators: one paper, one file; each ends in an `EvidenceEstimate`.

`ESTIMATORS` names them all and says what holds on models that are linear in their parameters with
Gaussian noise, at the mode. There the truth is in closed form: an estimate that is EXACT_ON_LINEAR
must hit it, a LOWER_BOUND must not exceed it, a SCORE only ranks.
"""

from nas_evidence.record import Relation
from nas_evidence.scores import CONDITIONAL_KINDS

ESTIMATORS: dict[str, Relation] = {
    "diag_ef": "SCORE",
    # Dropping entries of H off a block diagonal raises its determinant (Fischer), hence bounds.
    # On one linear layer Kronecker blocks are exact and only the weight-bias part is dropped.
    "diag_ggn": "LOWER_BOUND",
    "diag_ggn_mc": "SCORE",
    "kfac_ggn": "LOWER_BOUND",
    "kfac_ggn_mc": "SCORE",
    "kfac_ef": "SCORE",
    "ekfac_ggn": "LOWER_BOUND",
    "block_ggn": "LOWER_BOUND",
    "full_ggn": "EXACT_ON_LINEAR",
    "full_ef": "SCORE",
    # The whole Gauss-Newton on blocks of data, Fischer's inequality again.
    "stochastic_ggn": "LOWER_BOUND",
    # In the mean over its seeds.
    "sgd_entropy": "LOWER_BOUND",
    # Within the standard error.
    "thermodynamic": "EXACT_ON_LINEAR",
    "temperature_ladder": "EXACT_ON_LINEAR",
    "sotl": "SCORE",
    "sotl_e": "SCORE",
    "sotl_ema": "SCORE",
    "prequential_epoch1": "SCORE",
    "prequential_epoch1_laplace": "SCORE",
    "prequential": "SCORE",
    "prequential_accuracy": "SCORE",
    "heldout_10": "SCORE",
    "heldout_10_accuracy": "SCORE",
    "n_parameters": "SCORE",
    "train_nll_per_datum": "SCORE",
    # Of the late data, given the early ones; a difference of bounds is none.
    **dict.fromkeys(CONDITIONAL_KINDS, "SCORE"),
    "conditional_full_ggn": "EXACT_ON_LINEAR",
}
