"""What trackers write: one run of another tool for each trial, while it runs."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Self

from nas_evidence.plumbing.names import translated
from nas_evidence.spec.parameters import columns_of
from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.workers.executor import Lost, StudyStatus, Watcher

_Row = Mapping[Any, Any]
#: Values by name, each with its epoch, in the order of epochs.
Series = Mapping[str, Sequence[tuple[int, float]]]
_CURVE = ("train_nll_per_datum", "learning_rate", "noise_std", "temperature")
_FINAL = (
    "n_parameters", "epochs", "test_accuracy", "test_nll_per_datum", "test_rmse", "total_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Tracked:
    """A finished trial.

    key      trial and attempt
    about    family, architecture and replicate
    status   how it ended
    series   the training curve, and each score, per datum where that is defined
    final    numbers of the whole trial
    """

    key: tuple[int, int]
    about: Mapping[str, str]
    status: TrialStatus
    series: Series = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: TrialRecord) -> Self:
        """Return what a record says."""
        from nas_evidence.storage.tables import rows_of_record

        rows = rows_of_record(record)
        return cls._of_rows(rows["trials"][0], rows["curves"], rows["evidence"])

    @classmethod
    def all_in(cls, folder: Path) -> list[Self]:
        """Return what the tables of a study folder say of its finished trials."""
        from nas_evidence.storage.tables import read_tables

        tables, _ = read_tables(folder, ["trials", "evidence", "curves"])
        curves, scores = (
            {
                key: own.to_dict("records")
                for key, own in tables[name].groupby(["trial_id", "attempt"])
            }
            for name in ("curves", "evidence")
        )
        return [
            cls._of_rows(row, curves.get(key, ()), scores.get(key, ()))
            for row in tables["trials"].to_dict("records")
            for key in [(row["trial_id"], row["attempt"])]
        ]

    @classmethod
    def _of_rows(cls, row: _Row, curve: Iterable[_Row], scores: Iterable[_Row]) -> Self:
        from nas_evidence.storage.tables import architecture_values

        return cls(
            key=(int(row["trial_id"]), int(row["attempt"])),
            about=_about(str(row["family"]), architecture_values(row), int(row["replicate"])),
            status=TrialStatus(row["status"]),
            series=_series(curve, scores),
            final={name: float(row[name]) for name in _FINAL if _is_number(row.get(name))},
        )


def _about(family: str, values: Mapping[str, Any], replicate: int) -> dict[str, str]:
    columns = columns_of(values, ("family", "replicate", "status"))
    plain = {columns[name]: str(_plain(value)) for name, value in values.items()}
    return {"family": family, **plain, "replicate": str(replicate)}


def _series(curve: Iterable[_Row], scores: Iterable[_Row]) -> Series:
    found: dict[str, list[tuple[int, float]]] = {}
    points: list[tuple[str, int, Any]] = [
        (name, point["epoch"], point.get(name)) for point in curve for name in _CURVE
    ]
    for one in scores:
        if one["valid"]:
            value = one["per_datum"] if _is_number(one["per_datum"]) else one["value"]
            points.append((f"score/{one['estimator']}", one["epoch"], value))
    for name, epoch, value in points:
        if _is_number(value):
            found.setdefault(name, []).append((int(epoch), float(value)))
    return found


def _is_number(value: object) -> bool:
    """Tell whether a value is a number that trackers take; pandas' missing value is none."""
    return isinstance(value, Real) and math.isfinite(value)


def _plain(value: Any) -> Any:
    """Return a whole float, as a column with gaps has, as the integer it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Tracker(Watcher):
    """Keeps one run for each trial; its attempts continue it, and no epoch is in it twice.

    When the study starts it writes the finished trials that its tool does not know. In a thread
    that is late, some of them have ended since: what is told of them later is left out.

    fits         names that its tool takes; others are translated
    not_tracked  what the tool refused all the same and is to be said, each once
    """

    fits = re.compile(".+")

    def __init__(self) -> None:
        self.not_tracked: list[str] = []
        self._refused = set[tuple[str, str]]()
        self._ended: dict[int, int] = {}  # attempt by trial
        self._about: dict[int, Mapping[str, str]] = {}
        self._written: dict[int, dict[str, int]] = {}  # last epoch, by trial and name

    def known(self) -> set[tuple[int, int]]:
        """Return the trials, with their attempts, that ended there already."""
        raise NotImplementedError

    def written(self, trial_id: int) -> dict[str, int]:
        """Return the last epoch of each name that an earlier process wrote, if that counts."""
        return {}

    def refuses(self, error: Exception) -> bool:
        """Return whether an error is about a name or a value, and not about the tool itself."""
        return isinstance(error, ValueError | TypeError)

    def write(
        self,
        of: str,
        values: Mapping[str, Any],
        into: Callable[[dict[str, Any]], object],
        *,
        together: bool = False,
    ) -> None:
        """Write values by name; what the tool refuses is left out, and the rest is written.

        Args:
            of: what they are, in a message.
            values: to be written.
            into: writes some of them, all or none.
            together: whether they are refused together, and not each for itself.
        """
        left = {name: value for name, value in values.items() if (of, name) not in self._refused}
        if not (left or together):
            return
        try:
            into(left)
        except Exception as error:
            if not self.refuses(error):
                raise
            if len(left) > 1 and not together:
                for name, value in left.items():
                    self.write(of, {name: value}, into)
                return
            self._refused |= {(of, name) for name in left}
            what = of if together else f"{of} {next(iter(left))}"
            self.not_tracked.append(f"{what} is left out: {str(error).partition(chr(10))[0]}")

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Write values by epoch and name into the run of a trial, which may be new."""
        raise NotImplementedError

    def pause(self, trial_id: int) -> None:
        """Let go of the run of a trial, which may continue later."""

    def finish(self, trial: Tracked) -> None:
        """End the run of a trial, which may be new; its series are written."""
        raise NotImplementedError

    def study_started(self, study: StudySpec, folder: Path) -> None:
        """Write what was missed before."""
        known = self.known()
        for trial in Tracked.all_in(folder):
            if trial.key not in known:
                self._finish(trial)
            self._ended.update([trial.key])

    def launched(self, assignment: Assignment) -> None:
        """Remember the architecture; the run begins with its first values."""
        given = assignment.architecture
        about = _about(given.family, given.values, assignment.replicate)
        self._about[assignment.trial_id] = self._named(about)

    def progressed(self, report: SliceReport) -> None:
        """Write the new epochs."""
        if report.attempt <= self._ended.get(report.trial_id, 0):
            return
        scores = [{"epoch": e.epoch, **vars(e.estimate)} for e in report.evaluations]
        self._log(report.trial_id, self._named(_series(map(vars, report.curve), scores)))

    def parked(self, trial_id: int) -> None:
        """Let go of the run."""
        self.pause(trial_id)

    def lost(self, loss: Lost) -> None:
        """Let go of the run."""
        self.pause(loss.trial_id)

    def ended(self, record: TrialRecord) -> None:
        """Write the rest of a trial."""
        if record.attempt > self._ended.get(record.trial_id, 0):
            self._finish(Tracked.of(record))

    def study_ended(self, status: StudyStatus) -> None:
        """Let go of all runs."""
        for trial_id in self._written:
            self.pause(trial_id)

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {translated(name, self.fits): value for name, value in found.items()}

    def _finish(self, trial: Tracked) -> None:
        trial = replace(
            trial,
            about=self._named(trial.about),
            series=self._named(trial.series),
            final=self._named(trial.final),
        )
        self._about[trial.key[0]] = trial.about
        self._log(trial.key[0], trial.series)
        self.finish(trial)
        self._written.pop(trial.key[0], None)

    def _log(self, trial_id: int, series: Series) -> None:
        if trial_id not in self._written:
            self._written[trial_id] = self.written(trial_id)
        last, new = self._written[trial_id], dict[int, dict[str, float]]()
        for name, points in series.items():
            for epoch, value in points:
                if epoch > last.get(name, -1):
                    new.setdefault(epoch, {})[name] = value
                    last[name] = epoch
        if new:
            self.log(trial_id, self._about[trial_id], dict(sorted(new.items())))
