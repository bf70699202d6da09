"""The number of parameters: the baseline for any useful score."""

from nas_evidence.scores.protocol import Context


def n_parameters(context: Context) -> float:
    """Return the number of parameters of the network."""
    return float(sum(p.numel() for p in context.model.parameters()))
