"""Free text as 32 numbers: principal axes of hashed character n-grams.

    words of a text -> the word and its 3- and 4-grams -> 1,024 signed buckets -> log(1 + count)
    -> times log(rows / rows with the bucket) -> length 1 -> 32 principal axes of the training rows

The hash is CRC-32, so it is the same everywhere. Axes are rounded to three digits, so that every
machine finds the same. They are scaled by one number, the standard deviation along the first:
later axes carry less. A missing text is the mean of the training rows, 0.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nas_evidence.data.mapped import Array

#: Buckets and features.
BUCKETS, AXES = 1024, 32
#: Fewest rows, and least median of words, of free text; see docs/experiments/texts.md.
FEWEST_TEXTS, FEWEST_WORDS = 200, 4
#: Rows at a time, and most rows that the axes are found from.
_ROWS, _MOST_ROWS = 4096, 10_000
_WORD = re.compile(r"[^\W_]+")
_SIZES = (3, 4)


@dataclass(frozen=True)
class TextAxes:
    """How a text becomes k features: weights [1024] of buckets, axes [k, 1024], their mean [k]."""

    weights: Sequence[float]
    axes: Sequence[Sequence[float]]
    mean: Sequence[float]

    def features(self, texts: pd.Series) -> Array:
        """Return the features of texts, float64 [n, k]."""
        weights, axes = np.array(self.weights), np.array(self.axes).T
        parts = [texts.iloc[i : i + _ROWS] for i in range(0, len(texts), _ROWS)]
        x = np.concatenate([_weighted(_counts(part), weights) @ axes for part in parts])
        return np.where(np.asarray(texts.isna())[:, None], 0.0, np.round(x - self.mean, 6))


def is_free_text(present: pd.Series) -> bool:
    """Tell whether texts are many and long enough."""
    words = present.astype(str).map(lambda text: len(_WORD.findall(text)))
    return len(present) >= FEWEST_TEXTS and words.median() >= FEWEST_WORDS


def axes_of(texts: pd.Series) -> TextAxes:
    """Return the axes of the texts of the training rows."""
    present = texts.dropna()
    counts = _counts(present.iloc[:: 1 + len(present) // _MOST_ROWS])
    weights = np.round(np.log(len(counts) / np.maximum((counts != 0).sum(0), 1)), 3)
    x = _weighted(counts, weights)
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    axes = vectors[:, : -AXES - 1 : -1].T / np.sqrt(values[-1])
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    axes = np.round(axes * np.sign(largest), 3)
    mean = np.round(x.mean(0) @ axes.T, 6)
    return TextAxes(weights.tolist(), axes.tolist(), mean.tolist())


def _weighted(counts: Array, weights: Array) -> Array:
    x = np.sign(counts) * np.log1p(np.abs(counts)) * weights
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9))


def _counts(texts: pd.Series) -> Array:
    """Return the signed counts of the buckets, float64 [n, 1024]."""
    known: dict[str, Array] = {}
    found = np.zeros((len(texts), BUCKETS))
    for row, text in enumerate(texts.astype("object").where(texts.notna(), "")):
        for word in _WORD.findall(str(text).lower()):
            if word not in known:
                known[word] = _word(word)
            found[row] += known[word]
    return found


def _word(word: str) -> Array:
    marked = f" {word} "
    parts = {marked[i : i + n] for n in _SIZES for i in range(len(marked) - n + 1)} | {marked}
    vector = np.zeros(BUCKETS)
    for part in parts:
        code = zlib.crc32(part.encode())
        vector[code % BUCKETS] += 1 if code >> 31 else -1
    return vector
