"""Records made up for a test, and what of a record every run must find again."""

from collections.abc import Callable, Sequence
from typing import Any

from nas_evidence.spec.record import (
    CurvePoint,
    Evaluation,
    EvidenceEstimate,
    Term,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec


def mlp(**values: Any) -> ArchitectureSpec:
    return ArchitectureSpec(family="mlp", values=values)


def laplace(
    per_datum: float, n_data: int = 100, kind: str = "kfac_ggn", **more: Any
) -> EvidenceEstimate:
    """A log evidence whose only term is the fit."""
    value = n_data * per_datum
    terms = (Term(term="log_likelihood", group="all", value=value),)
    given = {"estimator": kind, "value": value, "per_datum": per_datum, "terms": terms}
    return EvidenceEstimate(**(given | more))


def at(epoch: int, *estimates: EvidenceEstimate) -> tuple[Evaluation, ...]:
    return tuple(Evaluation(epoch=epoch, estimate=estimate) for estimate in estimates)


def curve_of(
    loss: Callable[[int], float], epochs: int, n_data: int = 100
) -> tuple[CurvePoint, ...]:
    """The curve of a training whose loss per datum in an epoch is `loss(epoch)`."""
    losses = [loss(epoch) for epoch in range(1, epochs + 1)]
    return tuple(
        CurvePoint(
            epoch=epoch,
            train_nll_per_datum=each,
            learning_rate=0.01,
            sotl=sum(losses[:epoch]),
            sotl_e=each,
            sotl_ema=each,
            prequential_epoch1=n_data * losses[0],
            seconds=0.1,
        )
        for epoch, each in enumerate(losses, start=1)
    )


def record_with(trial_id: int = 0, **facts: Any) -> TrialRecord:
    """A trial that is complete, unless `facts` says otherwise."""
    given: dict[str, Any] = {
        "trial_id": trial_id,
        "attempt": 1,
        "replicate": 0,
        "architecture": mlp(width=8),
        "status": TrialStatus.COMPLETE,
        "seed": trial_id,
        "n_data": 100,
        "epochs": 1,
    }
    return TrialRecord(**(given | facts))


def plain_study(**changes: Any) -> StudySpec:
    """A study of small perceptrons on the digits; all that is not given is as by default."""
    family = {"mlp": {"width": {"low": 4, "high": 64}}}
    given = {"name": "s", "dataset": {"name": "digits"}, "family": family}
    return StudySpec.model_validate(given | changes)


def asked(
    architecture: ArchitectureSpec | None = None, estimators: Sequence[str] = (), **facts: Any
) -> Assignment:
    """The first attempt of trial 0, a linear network on the digits; `facts` may be of the plan."""
    given: dict[str, Any] = {
        "trial_id": 0,
        "attempt": 1,
        "replicate": 0,
        "architecture": architecture or ArchitectureSpec(family="linear"),
        "dataset": {"name": "digits"},
        "plan": {},
        "estimators": tuple(estimators),
        "seed": 0,
    }
    given |= {key: facts.pop(key) for key in [*facts] if key in Assignment.model_fields}
    if facts:
        given["plan"] = facts
    return Assignment.model_validate(given)


def of_few_rows(
    trial_id: int, architecture: ArchitectureSpec, evidence: float, elpd: float
) -> TrialRecord:
    """A trial with both scores of few rows, per datum of 100 rows."""
    scores = {"conditional_evidence": evidence, "elpd": elpd}
    return record_with(
        trial_id, architecture=architecture, n_data=100, n_parameters=100,
        evaluations=at(1, *(laplace(value, kind=kind) for kind, value in scores.items())),
    )  # fmt: skip
