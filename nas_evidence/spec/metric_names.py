"""Which metrics can be asked for, by any of their names; `maths/metrics.py` computes them.

`spec/likelihoods.py` declares them.
"""

import difflib
import re
from collections.abc import Mapping

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.likelihoods import TARGET_KINDS, declared

#: Metrics of which less is better; `coverage` is best at its level, of the others more is better.
LESS_IS_BETTER = frozenset({"log_loss", "ece", "rmse", "mae", "crps"})
#: Metrics by other names of theirs; or the nearest one that there is.
ALIASES: Mapping[str, str] = {
    "acc": "accuracy", "ap": "average_precision", "auc": "roc_auc", "auc_pr": "average_precision",
    "auprc": "average_precision", "auroc": "roc_auc", "bacc": "balanced_accuracy",
    "cross_entropy": "log_loss", "logloss": "log_loss", "mape": "mae",
    "mean_absolute_error": "mae", "mean_squared_error": "rmse", "mse": "rmse",
    "nll": "log_loss", "pr_auc": "average_precision", "r_squared": "r2",
}  # fmt: skip


def check_metric(name: str | None, likelihood: str) -> None:
    """Check that a metric is known for a likelihood; None is always fine.

    Raises:
        ValueError: if it is not; names those that are.
    """
    kind = declared(likelihood).kind
    known = kind.metrics
    if name is not None and name not in known:
        other = next((of.targets for of in TARGET_KINDS.values() if name in of.metrics), None)
        why = f", which is for {other}" if other else ""
        plain = re.sub(r"\W", "_", name.lower()).removeprefix("neg_").removesuffix("_score")
        meant = ALIASES.get(plain, plain)
        near = difflib.get_close_matches(meant, known, n=1)
        remedy = f"did you mean metric={near[0]}?" if near else "correct metric."
        raise UserError(
            "unknown-metric",
            f"the metric of {kind.targets} must be one of {', '.join(known)}, but got "
            f"{name!r}{why}; {remedy}",
        )
