"""The life of networks in training: epochs, updates of the hyperparameters, settling.

    to each stop    epochs; then the update that is due there
    after the last  rounds of settling, if the plan has it

The main training of a trial and those without a fold go this way, a slice at a time, so that a
slow trial is not mistaken for a hung one. What is not evaluated at a stop costs nothing there: no
evidence is recorded, and no decrement of a settled network.
"""

from collections.abc import Sequence

from nas_evidence.spec.schedule import Stop
from nas_evidence.training.loop import DivergedError, train_epochs
from nas_evidence.training.network import Network
from nas_evidence.training.online import Passes, followed, passes_of_sample, updated
from nas_evidence.training.settling import begin_settling, settle_slices


def advance(
    networks: Sequence[Network], stop: Stop, *, follow: bool = False
) -> list[Passes | DivergedError | None]:
    """Take networks to a stop side by side; those whose epochs are over settle for a round.

    Networks that have diverged or are over must not be passed again. The group, and with it the
    last digits of each, is then a function of the assignment.

    Args:
        networks: of one architecture and plan; those not settling must have done equally many
            epochs.
        stop: the next one of those.
        follow: where the stop evaluates, record the evidence of the online curvature even if no
            update is due.

    Returns:
        For each the error if it diverged; else the curvature passes of its update, where the stop
        evaluates and it does not settle; else None.
    """
    training = [one for one in networks if one.settling is None]
    settling = [one for one in networks if one.settling is not None]
    ends = dict[int, Passes | DivergedError | None]()
    if training:
        ended = train_epochs(training, n_epochs=stop.epoch - training[0].epoch)
        ends = {id(one): error for one, error in zip(training, ended, strict=True)}
    if stop.update:
        fine = [one for one in training if ends[id(one)] is None]
        ends |= {id(one): end for one, end in zip(fine, updated(fine), strict=True)}
    settle_slices(settling)
    for one in settling:
        if stop.evaluate:
            _note_settled(one)
    return [
        _stopped(one, stop, ends[id(one)], follow=follow) if id(one) in ends else None
        for one in networks
    ]


def _stopped(
    network: Network, stop: Stop, updated: Passes | DivergedError | None, *, follow: bool
) -> Passes | DivergedError | None:
    """Evaluate after an update, or without one; after the last epoch begin to settle."""
    passes = None
    if isinstance(updated, DivergedError):
        return updated
    if stop.evaluate:
        try:
            sample = passes_of_sample(network) if updated is None else updated
            passes = followed(sample, follow=stop.update or follow)
        except DivergedError as error:
            return error
    if stop.last:
        settling = begin_settling(network, network.plan.settle * network.epoch)
        settling.reported = stop.evaluate
        if settling.budget:
            return None
        network.settling = None
    return passes


def _note_settled(network: Network) -> None:
    """Record the evidence of a settled state that is kept, if it is the largest so far."""
    settling, best = network.settling, network.best_evidence
    assert settling is not None
    evidence = settling.evidence if settling.done and settling.kept == "settled" else None
    if evidence is not None and (best is None or evidence > best):
        network.best_epoch, network.best_evidence = network.epoch, evidence
