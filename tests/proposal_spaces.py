"""Spaces to propose in, and a landscape of scores."""

import math

from nas_evidence.proposing.proposer import Learner, ProposalResult
from nas_evidence.spec.domains import Choice, IntRange
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec

SPACE = {
    "mlp": {
        "depth": IntRange(low=1, high=4),
        "width": IntRange(low=4, high=256, log=True),
    },
    "cnn": {
        "depth": IntRange(low=1, high=3),
        "width": IntRange(low=2, high=16, log=True),
    },
    "resnet": {"depth": Choice(options=(8, 14)), "width": IntRange(low=4, high=16, log=True)},
    "linear": {},
}
WIDE = {
    "mlp": {"depth": IntRange(low=1, high=5), "width": IntRange(low=4, high=1024, log=True)},
    "cnn": {"depth": IntRange(low=1, high=5), "width": IntRange(low=1, high=256, log=True)},
    "linear": {},
}


def study(**changes: object) -> StudySpec:
    given = {"name": "s", "dataset": DatasetSpec(name="digits"), "family": SPACE}
    given |= {"objective": "kfac_ggn", **changes}
    return StudySpec.model_validate(given)


def score(architecture: ArchitectureSpec) -> float:
    """A landscape with its best point inside one family: the sampler has to find both."""
    values = architecture.values
    best = {"mlp": -1.0, "cnn": 0.0, "resnet": -1.5, "linear": -2.0}[architecture.family]
    width, depth = float(values.get("width", 1)), float(values.get("depth", 1))
    return best - abs(math.log(width / 40)) - abs(depth - 3) / 4


def whole(architecture: ArchitectureSpec) -> ProposalResult:
    return ProposalResult((score(architecture),))


def shown(
    spec: StudySpec, results: list[tuple[ArchitectureSpec, ProposalResult | None]]
) -> Learner:
    learner = Learner(spec)
    for number, (architecture, result) in enumerate(results):
        learner.show(number, architecture, result)
    return learner
