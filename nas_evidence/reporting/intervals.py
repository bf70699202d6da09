"""Sentences about prediction intervals: whether they hold for small and for large predictions."""

from nas_evidence.baselines.comparison import Comparison
from nas_evidence.maths.conditional_coverage import fails
from nas_evidence.reporting.study_tables import Study
from nas_evidence.spec.dataset import OWN_DATA

_NTH = ("first", "second", "third", "fourth")
_NOISE_OF_EACH_ROW = "heteroscedastic"


def intervals_sentence(judged: Comparison | None) -> str:
    """Say what the 90 % intervals cover by quartile of the prediction; "" if they fail in one.

    Then `coverage_warning` says it.
    """
    if judged is None or not judged.quarters or _failing(judged):
        return ""
    return f"{_where(judged)}, {_covered(judged)}."


def coverage_warning(study: Study, judged: Comparison | None) -> str:
    """Say in which quartiles of the prediction the intervals fail, and what mends it; "" if none.

    By the rule of `maths/conditional_coverage.py`.
    """
    if judged is None or not (failing := _failing(judged)):
        return ""
    parts = []
    for sign, words in ((1, "too wide"), (-1, "too narrow")):
        named = [_NTH[i] for i, found in enumerate(failing) if found == sign]
        if named:
            parts.append(f"{words} in the {_listed(named)} quartile")
    remedy = _remedy(study, judged)
    again = (
        f"Search again with {remedy}, and another --out." if remedy else "No option mends that."
    )
    return f"{_where(judged)}, {_covered(judged)}. They are {', and '.join(parts)}. {again}"


def _failing(judged: Comparison) -> list[int]:
    found = [fails(one.inside_90, one.n) for one in judged.quarters]
    return found if any(found) else []


def _where(judged: Comparison) -> str:
    return f"On {judged.n:,} {'test rows' if judged.on == 'test' else 'rows not trained on'}"


def _covered(judged: Comparison) -> str:
    shares = _listed([f"{one.inside_90:.2f}" for one in judged.quarters])
    return f"the 90 % intervals cover {shares} of the targets by quartile of the prediction"


def _listed(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _remedy(study: Study, judged: Comparison) -> str:
    """Return the options that let the spread differ between rows, those that are not in use.

    A scale may have been chosen by the evidence: another one is not advised.
    """
    dataset, plan = study.spec.dataset, study.spec.plan
    is_positive = judged.lowest is not None and judged.lowest > 0
    options = []
    if dataset.scale == "identity" and dataset.name in OWN_DATA:
        options += ["--target-scale log"] * is_positive + ["--target-scale auto"]
    elif dataset.scale == "identity":
        options.append(f"--target-scale {'log' if is_positive else 'yeo_johnson'}")
    if plan.likelihood != _NOISE_OF_EACH_ROW:
        options.append(f"--set plan.likelihood={_NOISE_OF_EACH_ROW}")
    return " or ".join(options)
