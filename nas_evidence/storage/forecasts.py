"""What further trials would gain, as the journal has it, and whether that ended the search.

    {"event": "gain", "number": 25, "gain": 0.3, "noise": 4.1, "n_proposals": 25}

`proposing/further.py` has the forecast. `stop = "auto"` ends a search where `gain` was below
`SHARE` of `noise` `IN_A_ROW` times: nothing is proposed after the first `n_proposals`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.journal import read_journal

#: Trials whose gain is forecast.
FURTHER = 10
#: A search ends where these are expected to gain less than this share of the noise, so many times.
SHARE, IN_A_ROW = 0.05, 3


@dataclass(frozen=True)
class Gain:
    """Of `FURTHER` further trials, and the noise of a seed, in the unit of the objective."""

    gain: float
    noise: float

    @property
    def is_small(self) -> bool:
        """Whether further trials are not worth it."""
        return self.gain < SHARE * self.noise


def last_gain(folder: Path, n_searched: int) -> Gain | None:
    """Return the forecast made after the last of so many trials of the search, if there is one."""
    for event in reversed(list(read_journal(folder))):
        if event["event"] == "gain":
            known = event.get("n_searched") == n_searched and event.get("gain") is not None
            return Gain(float(event["gain"]), float(event["noise"])) if known else None
    return None


def until_enough(
    study: StudySpec, folder: Path, events: Iterable[Mapping[str, Any]] | None = None
) -> StudySpec:
    """Return a study with the `n_trials` after which `stop = "auto"` ended it, if it did.

    Args:
        study: as its folder has it.
        folder: of the study.
        events: its journal, if it was read already.
    """
    if study.stop != "auto":
        return study
    for event in read_journal(folder) if events is None else events:
        if event["event"] == "gain" and (n := event.get("n_proposals")) is not None:
            n_trials = min(study.n_trials, n * study.replicates)
            return study.model_copy(update={"n_trials": n_trials})
    return study
