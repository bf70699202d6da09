"""The glossary: the words of the report and of these pages, and every score in one line.

python docs/_make/glossary_reference.py prints it.
"""

import sys
from collections.abc import Iterator, Mapping

from nas_evidence.reporting.glossary import TERMS
from nas_evidence.spec.registry import SCORES

_HEAD = """\
# Glossary

One name for each thing. The report explains its words where they stand; these are the same.
"""
#: Words of the pages that the report does not explain.
WORDS: Mapping[str, str] = {
    "architecture": "A family of networks with values of its parameters, such as depth and width.",
    "attainable": (
        "The rho that a score without noise would reach: two trainings of one network differ, so "
        "no score can follow both."
    ),
    "attempt": "One try at a trial; a retry after a crash is the next, with the same seed.",
    "calibration factor": (
        "One number that multiplies the temperature of classes or the standard deviation of real "
        "targets, fitted on out-of-fold predictions."
    ),
    "conditional evidence": (
        "The joint log density of a fold under a Bayesian last layer on the features of a network "
        "trained on the other folds; averaged over folds it is the score `conditional_evidence`."
    ),
    "evidence": "The log marginal likelihood log p(y) of a model, in nats, or an estimate of it.",
    "finalist": "One of the best architectures by the score, which the race trains again.",
    "fold": "A part of the training rows that a network trained on the other parts predicts.",
    "heteroscedastic": "With a noise whose standard deviation differs between rows.",
    "kept aside": "Data on which this project chose nothing, and which it judged once.",
    "Laplace approximation": "A Gaussian at a mode of the posterior, from the curvature there.",
    "mode": "A maximum of the log posterior of the weights: the gradient is zero there.",
    "Newton decrement": "gᵀ(H + Δ)⁻¹g: about twice the log posterior that is left to gain.",
    "not significantly different": "A 95 % interval of the difference holds 0.",
    "out-of-fold prediction": "The prediction of a row by a network trained on the other folds.",
    "overconfident": "Stating higher probabilities than the share that turns out right.",
    "pool": "A set of networks trained once, on which scores are compared.",
    "prior precision": "1 / variance of the Gaussian prior of a tensor's weights: δ; Δ for all.",
    "ranking score": "The score that orders the architectures: `objective` of the study.",
    "replicate": "A training of an architecture with another seed and another split.",
    "row": "One example of the data with its label or target; a datum.",
    "rung": "An epoch at which trials are compared and the worse ones stopped.",
    "score": "A number that a trial computes from the training data alone; larger is better.",
    "seed noise": "How much a score or a loss differs between seeds of one architecture.",
    "settling": "Optimising on to a mode after the last epoch.",
    "slice": "A training up to its next update or evaluation; a crash loses at most one.",
    "study": "One search: its file, its trials and its results, in one folder.",
    "trial": "One training of one architecture, with its scores.",
    "winner's curse": "The best of many noisy scores is partly lucky, and falls when repeated.",
}


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    if twice := {*TERMS} & {*WORDS}:
        raise ValueError(f"the report explains {', '.join(sorted(twice))} already")
    yield f"{_HEAD}\n## Words\n\n| word | meaning |\n|---|---|"
    words = {**TERMS, **WORDS}
    for word in sorted(words, key=str.lower):
        yield f"| {word} | {words[word]} |"
    yield "\n## Scores\n\n[Estimators](estimators.md) has formulas and costs.\n"
    yield "| score | what it is |\n|---|---|"
    for name in sorted(SCORES):
        yield f"| `{name}` | {SCORES[name].summary} |"
    yield "\n## Symbols\n\n| symbol | meaning |\n|---|---|"
    for symbol, meaning in _SYMBOLS.items():
        yield f"| {symbol} | {meaning} |"


_SYMBOLS: Mapping[str, str] = {
    "y, x": "targets and inputs of all training rows; y_k those of fold k, y_-k the others",
    "θ": "parameters of a network; θ* after training",
    "δ, Δ": "prior precision of a tensor; Δ = diag(δ) over all parameters",
    "σ": "noise, the standard deviation of real targets",
    "T": "softmax temperature",
    "κ": "power of the likelihood",
    "H": "curvature of the summed negative log likelihood",
    "g": "gradient",
    "N, P, C, K": "rows, parameters, outputs, folds",
}

if __name__ == "__main__":
    sys.stdout.write(page())
