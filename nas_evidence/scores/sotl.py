"""Sums of training losses (Ru et al. 2021; Lyle et al. 2020, section 4.2).

    SOTL       Σ_{t≤T} ℓ_t                      ℓ_t  mean loss of epoch t, nats per datum,
    SOTL-E     Σ_{T−E<t≤T} ℓ_t                       each taken before the step on its minibatch
    SOTL-EMA   Σ_{t≤T} γ^{T−t} ℓ_t              T    epochs so far

Only the first epoch is prequential: N ℓ_1 is a code length in nats, comparable with minus a log
evidence. Later epochs measure the area under the training curve. Lower is better here; stored
scores have the opposite sign. The sums are over epochs: they compare models trained with the same
plan, not across batch sizes, schedules or lengths.
"""

from collections.abc import Sequence

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.scores.protocol import Scorer
from nas_evidence.spec.record import CurvePoint, EvidenceEstimate
from nas_evidence.spec.registry import declared

#: E of sotl_e: the last epochs whose losses are summed.
SOTL_EPOCHS = 1
#: gamma of sotl_ema: the discount per earlier epoch.
SOTL_GAMMA = 0.9
_NOTES = {"sotl_e": f"E = {SOTL_EPOCHS}", "sotl_ema": f"gamma = {SOTL_GAMMA}"}
_MIXED = {"prequential_epoch1": "batches are random: groups are divided, times are not in order"}


def sotl(losses: Sequence[float]) -> float:
    """Return the sum of the mean losses of all epochs.

    >>> sotl([3.0, 2.0, 1.0])
    6.0
    """
    return float(sum(losses))


def sotl_e(losses: Sequence[float], n_epochs: int) -> float:
    """Return the sum over the last `n_epochs` epochs, or over all if there are fewer.

    >>> sotl_e([3.0, 2.0, 1.0], 2)
    3.0
    """
    if n_epochs < 1:
        raise UserError("sotl-n-epochs", f"`n_epochs >= 1` must hold, but got {n_epochs}")
    return float(sum(losses[-n_epochs:]))


def sotl_ema(losses: Sequence[float], gamma: float) -> float:
    """Return Σ_t γ^(T−t) ℓ_t; the latest epoch has weight one.

    >>> sotl_ema([4.0, 2.0, 1.0], 0.5)
    3.0
    """
    if not 0 < gamma < 1:
        raise UserError("sotl-gamma", f"`0 < gamma < 1` must hold, but got {gamma}")
    total = 0.0
    for loss in losses:
        total = gamma * total + loss
    return float(total)


def prequential_epoch1(losses: Sequence[float], n_data: int) -> float:
    """Return the code length of the data in nats: `n_data` times the mean loss of epoch 1.

    >>> prequential_epoch1([2.5, 1.0], 4)
    10.0
    """
    if not losses:
        raise UserError("sotl-without-losses", "`losses` must hold the first epoch, but is empty")
    return float(n_data * losses[0])


def with_sums(curve: Sequence[CurvePoint], n_data: int) -> tuple[CurvePoint, ...]:
    """Return the training curve with its sums up to each epoch filled in."""
    losses = [point.train_nll_per_datum for point in curve]
    return tuple(
        point.model_copy(update=_sums(losses[: i + 1], n_data)) for i, point in enumerate(curve)
    )


def _sums(losses: Sequence[float], n_data: int) -> dict[str, float]:
    return {
        "sotl": sotl(losses),
        "sotl_e": sotl_e(losses, SOTL_EPOCHS),
        "sotl_ema": sotl_ema(losses, SOTL_GAMMA),
        "prequential_epoch1": prequential_epoch1(losses, n_data),
    }


class Sotl(Scorer):
    """The sums of the training losses so far, and the last loss; larger is better."""

    def evaluate(self, *, last: bool) -> list[EvidenceEstimate]:
        """Return minus each sum, without a pass over the data."""
        losses = [point.train_nll_per_datum for point in self.context.training.curve]
        n_data = len(self.context.data.x_train)
        notes = _NOTES if self.context.data.units is None else _NOTES | _MIXED
        known = {**_sums(losses, n_data), "train_nll_per_datum": losses[-1]}
        return [
            EvidenceEstimate(
                estimator=name,
                value=-known[name],
                per_datum=-known[name] / n_data if declared(name).unit == "nats" else None,
                note=notes.get(name, ""),
            )
            for name in self.names
        ]
