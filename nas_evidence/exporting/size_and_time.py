"""What an export costs to keep and to use: bytes, and milliseconds a row."""

import time
from pathlib import Path

import numpy as np

from nas_evidence.data import ArrayData
from nas_evidence.data.given import Given
from nas_evidence.exporting.predictor import Predictor

#: Rows that are predicted to be timed, and how often: the fastest counts.
_ROWS, _REPEATS = 256, 3


def size_of(folder: Path) -> int:
    """Return the bytes of all files of an export."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def milliseconds_per_row(predictor: Predictor, arrays: ArrayData) -> float:
    """Return the milliseconds that one row takes in a prediction of up to 256 rows here.

    Args:
        predictor: of one network, or of several together.
        arrays: the data of the study, whose training rows are predicted.
    """
    given, seconds = Given(np.array(arrays.x_train[:_ROWS])), []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        predictor.predict(given)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds) / len(given.inputs)
