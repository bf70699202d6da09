"""Neural-architecture search ranked by marginal likelihood.

The names below are imported on first use, so that `import nas_evidence` stays quick and needs
neither torch nor ray.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "estimate_evidence": "nas_evidence.evidence.estimate",
    "online_laplace": "nas_evidence.training.own_loop",
    "EvidenceEstimate": "nas_evidence.record",
    "Score": "nas_evidence.registry",
    "Scorer": "nas_evidence.scores.protocol",
    "StudySpec": "nas_evidence.spec",
    "load_study": "nas_evidence.codec",
    "load_exported": "nas_evidence.exporting.program",
    "read_table": "nas_evidence.store",
    "search": "nas_evidence.api.study",
    "resume": "nas_evidence.api.study",
    "load": "nas_evidence.api.study",
    "Study": "nas_evidence.api.study",
    "Predictor": "nas_evidence.exporting.predictor",
    "EvidenceClassifier": "nas_evidence.api.estimators",
    "EvidenceRegressor": "nas_evidence.api.estimators",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'nas_evidence' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
