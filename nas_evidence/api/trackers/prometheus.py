"""Prometheus: the counters of a study in a file that node_exporter's textfile collector reads."""

from collections import defaultdict
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.workers.executor import Lost, StudyStatus, Watcher

_HELP = {
    "trials_total": ("counter", "Finished trials, by status."),
    "retries_total": ("counter", "Lost attempts since this run began, by cause."),
    "phase_seconds_total": ("counter", "Seconds of finished trials, by phase."),
    "running_trials": ("gauge", "Trials that have a worker."),
}
#: Seconds of a trial that its record has by phase.
_PHASES = ("train", "settle", "evidence")


class Prometheus(Watcher):
    """Writes the file anew whenever a trial starts or ends.

    Args:
        file: in a folder that node_exporter reads, named `*.prom`.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._study = file, ""
        self._running: set[int] = set()
        self._values: defaultdict[tuple[str, str, str], float] = defaultdict(float)  # by label

    def study_started(self, study: StudySpec, folder: Path) -> None:
        """Count what earlier runs finished."""
        from nas_evidence.storage.tables import read_table

        self._study = study.name
        table = read_table(folder, "trials")
        for status, n in table["status"].value_counts().items():
            self._values["trials_total", "status", str(status)] = n
        for phase in _PHASES:
            seconds = float(table[f"{phase}_seconds"].sum())
            self._values["phase_seconds_total", "phase", phase] = seconds
        self._write()

    def launched(self, assignment: Assignment) -> None:
        """Count a trial that runs."""
        self._running.add(assignment.trial_id)
        self._write()

    def parked(self, trial_id: int) -> None:
        """Count it no more."""
        self._running.discard(trial_id)
        self._write()

    def lost(self, loss: Lost) -> None:
        """Count a retry."""
        self._values["retries_total", "cause", str(loss.kind)] += 1
        self.parked(loss.trial_id)

    def ended(self, record: TrialRecord) -> None:
        """Count a finished trial, and its seconds."""
        self._values["trials_total", "status", str(record.status)] += 1
        for phase in _PHASES:
            seconds = getattr(record, f"{phase}_seconds")
            self._values["phase_seconds_total", "phase", phase] += seconds
        self.parked(record.trial_id)

    def study_ended(self, status: StudyStatus) -> None:
        """Say that nothing runs."""
        self._running.clear()
        self._write()

    def _write(self) -> None:
        lines = []
        values = {**self._values, ("running_trials", "", ""): float(len(self._running))}
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP nas_evidence_{name} {text}", f"# TYPE nas_evidence_{name} {kind}"]
            for (own, label, value), number in sorted(values.items()):
                if own == name:
                    more = f',{label}="{value}"' if label else ""
                    lines.append(f'nas_evidence_{name}{{study="{self._study}"{more}}} {number}')
        write_whole(self._file, "\n".join(lines) + "\n")
