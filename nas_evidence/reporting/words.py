"""Names and number formats of the report: page, text, terminal and figures use these alone."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.spec.likelihoods import Confidence

MISSING = "–"
#: How many of a kind the page shows, the best first; more would be unreadable.
MOST = {"rows": 200, "lines": 20, "columns": 10, "dots": 500}

# --- names ---------------------------------------------------------------------------------------

#: Targets in words; the columns of the tables have their names.
WORDS: Mapping[str, str] = {
    "test_accuracy": "test accuracy",
    "test_nll_per_datum": "test log loss",
    "test_rmse": "test RMSE",
}
#: What stands below a ranking whose trials train their folds alone.
OF_FOLDS = " Test figures, SOTL and evidences are of the networks of each trial's folds."
_AXES: Mapping[str, str] = {
    "test_accuracy": "test accuracy",
    "test_nll_per_datum": "minus test log loss, nats per datum",
    "test_rmse": "minus test RMSE",
}


def words_of(target: str, of: str = "") -> str:
    """Return a target in words; `of` tells whose it is."""
    return WORDS.get(target, target) + of


def axis_words(target: str) -> str:
    """Return the axis title of a target; losses are negated."""
    return _AXES.get(target, target)


@dataclass(frozen=True)
class Calibrated:
    """What the axes of calibration, a point between them, and its caption are called."""

    probability: str
    share: str
    stated: str
    found: str
    caption: str


CALIBRATED: Mapping[Confidence, Calibrated] = {
    "probabilities": Calibrated(
        "stated probability", "share that is right", "stated", "right", "calibration"
    ),
    "intervals": Calibrated(
        "probability of the interval", "share of targets inside", "interval", "inside", "coverage"
    ),
}


def named(name: str, folder: Path) -> str:
    """Return what to call a study: with its folder, where that has another name.

    >>> named("array", Path("runs/wine")), named("wine", Path("runs/wine")), named("a", Path())
    ('array (wine)', 'wine', 'a')
    """
    return name if folder.name in ("", name) else f"{name} ({folder.name})"


# --- numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How differences of a target are written: `factor` times the value, in `unit`."""

    factor: float
    digits: int
    unit: str

    def text(self, difference: float) -> str:
        """Return a difference in words, "0.30 points"."""
        return f"{self.factor * difference:.{self.digits}f} {self.unit}".strip()


NATS = Scale(1.0, 3, "nats per datum")
PLAIN = Scale(1.0, 2, "")
SCALES: Mapping[str, Scale] = {
    "test_accuracy": Scale(100.0, 2, "points"),
    "test_nll_per_datum": NATS,
    "test_rmse": Scale(1.0, 4, ""),
}


def scale_of(target: str) -> Scale:
    """Return how differences of `target` are written."""
    return SCALES.get(target, PLAIN)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals, or a dash where it is missing or NaN."""
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def metric_value(value: float | None, digits: int = 3) -> str:
    """Return a metric with `digits` decimals, and a large one with its leading digits.

    >>> [metric_value(x) for x in (0.98765, -0.5, 85866.176, 123.456, None)]
    ['0.988', '-0.500', '85,866', '123.5', '–']
    """
    return number(value, digits) if value is None or abs(value) < 100 else amount(value)


def count(value: int | None) -> str:
    """Return a count with thousands separated, or a dash where it is missing."""
    return MISSING if value is None else f"{value:,}"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: "1 seed", "12 seeds"."""
    return f"{n} {noun}{'s' * (n != 1)}"


def short(value: float | None) -> str:
    """Return a number with three digits and a suffix, or a dash where it is missing.

    >>> [short(n) for n in (650, 268_393, 1_494_154, 2.5e9, 0.00025)]
    ['650', '268k', '1.49M', '2.5G', '0.00025']
    """
    if value is None:
        return MISSING
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def amount(value: float | None) -> str:
    """Return a number of any size with its leading digits.

    >>> [amount(x) for x in (0.123456, -1.5, 12345.6, 123.456, 352.0, 0.00012, 0.0, None)]
    ['0.1235', '-1.5000', '12,346', '123.5', '352', '0.00012', '0', '–']
    """
    if value is None or math.isnan(value):
        return MISSING
    if abs(value) >= 1000 or value == round(value):
        return f"{value:,.0f}"
    for size, digits in ((100, 1), (10, 2), (0.001, 4)):
        if abs(value) >= size:
            return f"{value:.{digits}f}"
    return f"{value:.2g}"


def chance(probability: float | None, digits: int = 0) -> str:
    """Return a probability in percent, or a dash where it is missing; none is 0 or 100 %.

    >>> [chance(p) for p in (1.0, 0.996, 0.994, 0.25, 0.004, 0.0, None)]
    ['more than 99 %', 'more than 99 %', '99 %', '25 %', 'less than 1 %', 'less than 1 %', '–']
    >>> chance(0.741, 1), chance(0.9996, 1)
    ('74.1 %', 'more than 99.9 %')
    """
    if probability is None:
        return MISSING
    shown, step = f"{100 * probability:.{digits}f}", 10.0**-digits
    if float(shown) in (0, 100):
        end = f"less than {step:g}" if probability < 0.5 else f"more than {100 - step:g}"
        return f"{end} %"
    return f"{shown} %"


def loss_text(nats: float) -> str:
    """Return a loss with three decimals, and one digit of one that these round to nothing.

    >>> loss_text(0.1234), loss_text(0.00012), loss_text(0.0)
    ('0.123', '0.0001', '0.000')
    """
    return f"{nats:.3f}" if nats == 0 or abs(nats) >= 5e-4 else f"{nats:.1g}"


def clock(seconds: float) -> str:
    """Return the time of the day, of seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def decimals(values: Sequence[float], digits: int) -> int:
    """Return the decimals that show so many digits of the largest value.

    >>> decimals([79.58, 55.8], 3), decimals([0.0432, -0.001], 2), decimals([0.0], 2)
    (1, 3, 3)
    """
    largest = max(map(abs, values), default=0.0)
    return max(0, digits - 1 - math.floor(math.log10(largest))) if largest else 3
