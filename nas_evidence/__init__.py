"""Architecture search ranked by the conditional marginal likelihood (last-layer Laplace, K folds).

The names below are imported on first use, so that `import nas_evidence` stays quick and needs
neither torch nor ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers
    from nas_evidence.api.checks import repair, verify
    from nas_evidence.api.control import Status, cancel, status
    from nas_evidence.api.estimators import EvidenceClassifier, EvidenceRegressor
    from nas_evidence.api.listing import ListedStudy, list_studies
    from nas_evidence.api.prediction import predict
    from nas_evidence.api.results import Study
    from nas_evidence.api.studies import load, refit, resume, search
    from nas_evidence.api.submission import resubmit, submit
    from nas_evidence.evidence.estimate import estimate_evidence
    from nas_evidence.exporting.own_posterior import ModelPosterior, posterior
    from nas_evidence.exporting.predictor import Predictor
    from nas_evidence.exporting.program import load_exported
    from nas_evidence.reporting.compare import compare
    from nas_evidence.scores.protocol import Scorer
    from nas_evidence.spec.record import EvidenceEstimate
    from nas_evidence.spec.registry import Score
    from nas_evidence.spec.study import StudySpec
    from nas_evidence.spec.toml import load_study
    from nas_evidence.storage.tables import read_table
    from nas_evidence.training.own_loop import online_laplace
    from nas_evidence.workers.executor import Watcher

from nas_evidence.plumbing.version import __version__

_EXPORTS = {
    "estimate_evidence": "nas_evidence.evidence.estimate",
    "online_laplace": "nas_evidence.training.own_loop",
    "posterior": "nas_evidence.exporting.own_posterior",
    "ModelPosterior": "nas_evidence.exporting.own_posterior",
    "EvidenceEstimate": "nas_evidence.spec.record",
    "Score": "nas_evidence.spec.registry",
    "Scorer": "nas_evidence.scores.protocol",
    "StudySpec": "nas_evidence.spec.study",
    "load_study": "nas_evidence.spec.toml",
    "load_exported": "nas_evidence.exporting.program",
    "read_table": "nas_evidence.storage.tables",
    "search": "nas_evidence.api.studies",
    "resume": "nas_evidence.api.studies",
    "refit": "nas_evidence.api.studies",
    "list_studies": "nas_evidence.api.listing",
    "ListedStudy": "nas_evidence.api.listing",
    "load": "nas_evidence.api.studies",
    "submit": "nas_evidence.api.submission",
    "resubmit": "nas_evidence.api.submission",
    "status": "nas_evidence.api.control",
    "cancel": "nas_evidence.api.control",
    "Status": "nas_evidence.api.control",
    "predict": "nas_evidence.api.prediction",
    "verify": "nas_evidence.api.checks",
    "repair": "nas_evidence.api.checks",
    "Watcher": "nas_evidence.workers.executor",
    "compare": "nas_evidence.reporting.compare",
    "Study": "nas_evidence.api.results",
    "Predictor": "nas_evidence.exporting.predictor",
    "EvidenceClassifier": "nas_evidence.api.estimators",
    "EvidenceRegressor": "nas_evidence.api.estimators",
}
__all__ = [
    "EvidenceClassifier",
    "EvidenceEstimate",
    "EvidenceRegressor",
    "ListedStudy",
    "ModelPosterior",
    "Predictor",
    "Score",
    "Scorer",
    "Status",
    "Study",
    "StudySpec",
    "Watcher",
    "__version__",
    "cancel",
    "compare",
    "estimate_evidence",
    "list_studies",
    "load",
    "load_exported",
    "load_study",
    "online_laplace",
    "posterior",
    "predict",
    "read_table",
    "refit",
    "repair",
    "resubmit",
    "resume",
    "search",
    "status",
    "submit",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'nas_evidence' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
