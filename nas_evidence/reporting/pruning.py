"""What pruning saved."""

from nas_evidence.plumbing.durations import duration
from nas_evidence.reporting.study_tables import Study
from nas_evidence.spec.record import TrialStatus


def pruning_sentence(study: Study) -> str:
    """Return how much training time pruning saved, estimated from the epochs of each trial.

    Empty if the study does not prune.
    """
    if study.spec.pruning.rule == "none":
        return ""
    pruned = study.trials[study.trials["status"] == TrialStatus.PRUNED.value]
    if not len(pruned):
        return "Pruning was on, but stopped no trial."
    total, done = study.spec.plan.epochs, pruned["epochs"].astype(float)
    seconds = pruned["train_seconds"].astype(float) / done.where(done > 0) * total
    # Pruned at rung 0: its score took one training run on half of the data.
    seconds = seconds.fillna(pruned["evidence_seconds"].astype(float) / 0.5).fillna(0.0)
    spent = float(study.trials["train_seconds"].astype(float).sum())
    saved = float((seconds * (1 - done / total)).sum())
    share = f"{100 * saved / (spent + saved):.0f} %" if spent + saved > 0 else "an unknown part"
    return (
        f"Pruning stopped {len(pruned)} of {len(study.trials)} trials and saved about {share} of "
        f"the training time ({duration(saved)}; {duration(spent)} was spent)."
    )
