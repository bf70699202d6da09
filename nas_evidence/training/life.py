"""The life of networks in training: epochs, updates of the hyperparameters, settling.

    to each stop    epochs; then the update that is due there
    after the last  rounds of settling, if the plan has it

The main training of a trial and those without a fold go this way, a slice at a time, so that a
slow trial is not mistaken for a hung one. What is not evaluated
at a stop costs nothing there: no evidence is recorded, and no decrement of a settled network.
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
    settling = [network for network in networks if network.settling is not None]
    settle_slices(settling)
    for network in settling:
        if stop.evaluate:
            _note_settled(network)
    found: list[Passes | DivergedError | None] = [None] * len(networks)
    training = [k for k, one in enumerate(networks) if one.settling is None]
    if training:
        n_epochs = stop.epoch - networks[training[0]].epoch
        errors = train_epochs([networks[k] for k in training], n_epochs=n_epochs)
        fine = [k for k, error in zip(training, errors, strict=True) if error is None]
        updates: list[Passes | DivergedError | None] = [None] * len(fine)
        if stop.update:
            updates = [*updated([networks[k] for k in fine])]
        for k, error in zip(training, errors, strict=True):
            found[k] = error
        for k, passes in zip(fine, updates, strict=True):
            found[k] = _stopped(networks[k], stop, passes, follow=follow)
    return found


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
