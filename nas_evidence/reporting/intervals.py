"""Sentences about prediction intervals: whether they hold for small and for large predictions.

Of several targets each has its own coverage, since what is too wide for one and too narrow for
another is right on average.
"""

from collections.abc import Sequence

from nas_evidence.baselines.comparison import Comparison
from nas_evidence.maths.conditional_coverage import Failure, Quarter, failures
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.spec.dataset import OWN_DATA

_NTH = ("first", "second", "third", "fourth")
#: Maximum number of targets whose coverage is listed in a sentence; the page has all of them.
MOST_LISTED = 6


def intervals_sentence(judged: Comparison | None) -> str:
    """Say what the 90 % intervals cover by quartile of the prediction; "" if they fail in one.

    Of several targets, what they cover of each. Then `coverage_warning` says it.
    """
    if judged is None or not _known(judged) or any(_failing(judged)):
        return ""
    if judged.by_target:
        return f"{_where(judged)}, {_covered_by_target(judged)}."
    return f"{_where(judged)}, {_covered(judged.quarters)}."


def coverage_warning(study: RankedStudy, judged: Comparison | None) -> str:
    """Say where the intervals fail, and what mends it; "" if they hold.

    By the rule of `maths/conditional_coverage.py`.
    """
    if judged is None or not any(failing := _failing(judged)):
        return ""
    if judged.by_target:
        return _of_several(study, judged, failing)
    [own] = failing
    half = any(one.level not in (None, LEVEL) for one in own)
    said = f"{_where(judged)}, {_covered(judged.quarters, half=half)}."
    if signs := _signs(own):
        said += f" They are {signs}."
    if _is_shape(own):
        said += f" {_shape(judged.pit)}"
    return f"{said} {_again(study, judged)}"


def _known(judged: Comparison) -> bool:
    return bool(judged.quarters) or any(one.quarters for one in judged.by_target)


def _failing(judged: Comparison) -> list[list[Failure]]:
    """Return where the intervals of each target fail.

    Of targets without a density only where they are too narrow: an interval that ends at possible
    values contains more than its level, and the PIT is not uniform.
    """
    if not _known(judged):
        return []
    each = [(one.quarters, one.pit) for one in judged.by_target]
    each = each or [(judged.quarters, judged.pit)]
    found = [failures(*one, n_targets=len(each)) for one in each]
    if judged.kind.chance_of:
        return [[failure for failure in one if failure.sign < 0] for one in found]
    return found


def _of_several(
    study: RankedStudy, judged: Comparison, failing: Sequence[Sequence[Failure]]
) -> str:
    names = [_quoted(one.name) for one in judged.by_target]
    own = [(name, found) for name, found in zip(names, failing, strict=True) if found]
    wrong = [_for(name, signs) for name, found in own[:MOST_LISTED] if (signs := _signs(found))]
    said = f"{_where(judged)}, {_covered_by_target(judged, [name for name, _ in own])}."
    if wrong:
        said += f" They are {'; '.join(wrong)}."
    shapes = [name for name, found in own if _is_shape(found)][:MOST_LISTED]
    if shapes:
        said += f" The values of {_listed(shapes)} have another distribution than predicted."
    return f"{said} {_again(study, judged)}"


def _for(name: str, signs: str) -> str:
    """Return "too wide for NAME", with the quartiles after the name."""
    kind, inside, rest = signs.partition(" in ")
    return f"{kind} for {name}{inside}{rest}"


def _where(judged: Comparison) -> str:
    return f"On {judged.n:,} {'test rows' if judged.on == 'test' else 'rows not trained on'}"


def _covered(quarters: Sequence[Quarter], *, half: bool = False) -> str:
    shares = _listed([f"{one.inside_90:.2f}" for one in quarters])
    said = f"the 90 % intervals cover {shares} of the targets by quartile of the prediction"
    if half:
        said += f", the 50 % intervals {_listed([f'{one.inside_50:.2f}' for one in quarters])}"
    return said


def _covered_by_target(judged: Comparison, first: Sequence[str] = ()) -> str:
    """Say the coverage of each target, `first` before the others, up to `MOST_LISTED`."""
    shares = {_quoted(one.name): one.metrics["coverage_90"] for one in judged.by_target}
    order = [*first, *(name for name in shares if name not in first)]
    listed = [f"{shares[name]:.2f} of {name}" for name in order[:MOST_LISTED]]
    if len(order) > MOST_LISTED:
        rest = [shares[name] for name in order[MOST_LISTED:]]
        listed.append(f"{min(rest):.2f} to {max(rest):.2f} of {len(rest)} others")
    return f"the 90 % intervals cover {_listed(listed)}"


def _signs(found: Sequence[Failure]) -> str:
    """Say which quarters are too wide and which too narrow; "" if only the shape fails."""
    parts = []
    for sign, words in ((1, "too wide"), (-1, "too narrow")):
        named = [_NTH[one.quarter] for one in found
                 if one.sign == sign and one.quarter is not None]  # fmt: skip
        if len(named) == len(_NTH):
            return words
        if named:
            parts.append(f"{words} in the {_listed(named)} quartile")
        elif any(one.sign == sign for one in found):
            parts.append(words)
    return ", and ".join(parts)


def _is_shape(found: Sequence[Failure]) -> bool:
    return any(one.level is None for one in found)


def _shape(pit: Sequence[int]) -> str:
    worst = max(range(len(pit)), key=lambda k: pit[k])
    return (
        f"The targets have another distribution than predicted: {pit[worst]:,} of {sum(pit):,} "
        f"lie in one tenth of it, between the quantiles {worst / len(pit):g} and "
        f"{(worst + 1) / len(pit):g}."
    )


def _quoted(name: str) -> str:
    return repr(shortened(name))


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _again(study: RankedStudy, judged: Comparison) -> str:
    """Say which options let the spread differ between rows, those that are not in use.

    Both together, as a positive skewed target has them by default. A scale may have been chosen by
    the evidence: another one is not advised. Of several targets a noise of each row was measured
    alone.
    """
    dataset, plan = study.spec.dataset, study.spec.plan
    free = plan.declared.kind.scaled and dataset.scale == "identity"
    options = []
    if free and dataset.name in OWN_DATA and not judged.by_target:
        options.append("target_scale=auto")
    if plan.declared.by_row:
        options.append(f"plan.likelihood={plan.declared.by_row} (--set)")
    if not options:
        return "No option mends that."
    return f"Search again with {' and '.join(options)}, and another `out`."
