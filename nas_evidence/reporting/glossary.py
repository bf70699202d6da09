"""The glossary of the report: each term is explained where it first appears.

A term in a sentence becomes a word that a mouse, a finger or the keyboard can ask: the
explanation is part of the page and is shown by its style sheet, without a script.
"""

import re
from collections.abc import Mapping

from markupsafe import Markup, escape

from nas_evidence.spec.registry import SCORES

TERMS: Mapping[str, str] = {
    "nats per datum": (
        "A unit of log probability, averaged over the rows. A gain of 0.1 means that what "
        "happened was given about 10 % more probability."
    ),
    "log loss": (
        "How surprised the model is by the true outcomes: minus the logarithm of the probability "
        "that it gave them, averaged over the rows. Smaller is better; for real targets it is of "
        "the target divided by its standard deviation, and may be negative."
    ),
    "balanced accuracy": "The share of rows that is right in each class, averaged over classes.",
    "accuracy": (
        "The share of rows whose class is predicted right; with class weights, each row counts as "
        "its class weighs."
    ),
    "calibration error": (
        "How far the stated probabilities are from the shares that turn out right. 0 is best."
    ),
    "F1": (
        "Harmonic mean of precision (share of the rows predicted as the second class that belong "
        "to it) and recall (share of that class that is found). 1 is perfect."
    ),
    "average precision": (
        "Precision for the second class, averaged over all thresholds. The share of that class "
        "is guessing, 1 is perfect."
    ),
    "ROC AUC": (
        "How often a row of the second class gets a higher probability than one of the first. "
        "0.5 is guessing, 1 is perfect."
    ),
    "RMSE": "Root of the mean squared error, in the unit of the target. Smaller is better.",
    "MAE": "Mean absolute error, in the unit of the target. Smaller is better.",
    "R²": "The share of the target's variance that is predicted. 1 is perfect, 0 is the mean.",
    "CRPS": (
        "Continuous ranked probability score, in the unit of the target: how far the predicted "
        "distributions are from the true values. It rewards narrow intervals that hold; of a "
        "single value it is the absolute error. Smaller is better."
    ),
    "quartile of the prediction": (
        "The rows in four quarters by what is predicted, the smallest predictions first. "
        "Intervals that hold on average can be too narrow where the target is large."
    ),
    "PIT": (
        "Probability integral transform: the share of its predicted distribution that lies below "
        "a true value. Of calibrated predictions it is uniform from 0 to 1."
    ),
    "95 % interval": (
        "About 95 of 100 ranges computed like this one hold the true value, if the rows (or, of "
        "rho, the architectures) were drawn at random."
    ),
    "seeds": "Trainings of the same architecture that differ only in their random numbers.",
    "seed": "The random numbers of one training; another seed gives a slightly other network.",
    "rho": (
        "Spearman's rank correlation: 1 for the same order, 0 for no relation, -1 for the reverse."
    ),
    "estimate": (
        "The mean of `conditional_evidence` and `elpd`, smoothed by a model of all architectures, "
        "so that the noise of its seed counts less. It ranks."
    ),
    "P(best)": "The probability that this architecture is the best of all tried, by the score.",
    "Pareto front": "Architectures that no other one beats in every objective at once.",
    "gradient boosting": "Many small decision trees, each correcting the ones before it.",
    "logistic regression": "The usual linear model for classes.",
    "ridge regression": "The usual linear model for numbers, with small weights preferred.",
    "majority class": "Always the most frequent class; any model should beat it.",
    "regret": "How much worse the first choice of a score is than the best one in hindsight.",
    "SOTL": "The training losses of all epochs, summed: small for a network that learns fast.",
}


#: The same for one line of a terminal.
BRIEF: Mapping[str, str] = {
    "conditional_evidence": "how probable each fold is, predicted from the other rows",
    "elpd": "log probability of each row by the network trained without its fold",
    "estimate": "score expected of another seed, by a model of all architectures",
    "nats per datum": "log probability, averaged over rows (larger is better)",
    "log loss": "minus the log probability of rows not trained on (smaller is better)",
    "SOTL": "training losses of all epochs, summed",
    "rho": "1 for the same order, 0 for no relation",
}


def brief(text: str) -> str:
    """Return the terms that a screen uses in a few words each, "" if it uses none.

    >>> brief("SOTL")
    'SOTL: training losses of all epochs, summed'
    """
    return "; ".join(f"{word}: {words}" for word, words in BRIEF.items() if word in text)


def explained(text: object) -> Markup:
    """Return escaped text; the first use of each term can be asked for its meaning.

    >>> print(explained("tau < rho")[:54])
    tau &lt; <span class="term" tabindex="0">rho<span role
    """
    seen: set[str] = set()

    def asked(found: re.Match[str]) -> str:
        word = found.group()
        if word in seen:
            return word
        seen.add(word)
        return str(term(word))

    code = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    words = _TERMS.sub(asked, code)
    return Markup(_OPTION.sub(r'<code class="nowrap">\g<0></code>', words))


def term(word: str) -> Markup:
    """Return a term with its meaning, or the word alone if it has none."""
    meaning = TERMS.get(word) or (SCORES[word].summary if word in SCORES else "")
    if not meaning:
        return escape(word)
    return Markup(
        '<span class="term" tabindex="0">{0}<span role="tooltip"><b>{0}</b>: {1}</span></span>'
    ).format(word, meaning)


#: What is typed, as a sentence for the terminal marks it.
_CODE = re.compile("`([^`]+)`")
#: What is typed: an option and its value.
_OPTION = re.compile(r"--[a-z-]+ [\w.=]*\w")
#: Longer terms first: "balanced accuracy" is not "accuracy".
_TERMS = re.compile(
    r"(?<![\w.])(?:"
    + "|".join(map(re.escape, sorted({*TERMS, *SCORES}, key=len, reverse=True)))
    + r")(?!\w)"
)
