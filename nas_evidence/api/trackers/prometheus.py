"""Prometheus: the counters of a study, in a text file or from Ray's own metrics.

The file is for node_exporter's textfile collector. Ray serves the same names, with `ray_` before
them, beside its own on the metrics port of the driver's node.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.workers.executor import Lost, StudyStatus, Watcher

#: By name: kind, text, and label beside `study`.
_METRICS = {
    "trials_total": ("counter", "Finished trials, by status.", "status"),
    "retries_total": ("counter", "Lost attempts since this run began, by cause.", "cause"),
    "phase_seconds_total": ("counter", "Seconds of finished trials, by phase.", "phase"),
    "running_trials": ("gauge", "Trials that have a worker.", ""),
}
#: Seconds of a trial that its record has by phase.
_PHASES = ("train", "settle", "evidence")
#: Totals by name and by the value of the label.
Totals = Mapping[tuple[str, str], float]
#: Makes all totals of a study known.
Publish = Callable[[str, Totals], None]


def to_file(file: Path) -> Publish:
    """Return what writes all anew into a file named `*.prom`, in a folder of node_exporter.

    Raises:
        ValueError: the file is there and was not written by this.
    """
    if file.exists() and not file.read_bytes().startswith(b"# HELP nas_evidence_"):
        raise UserError(
            "track-file-held",
            f"{file} is not of track=prometheus; give another file: track=prometheus:FILE.",
        )

    def publish(study: str, totals: Totals) -> None:
        lines, study = [], study.replace("\\", r"\\").replace('"', r"\"")
        for name, (kind, text, label) in _METRICS.items():
            lines += [f"# HELP nas_evidence_{name} {text}", f"# TYPE nas_evidence_{name} {kind}"]
            for (own, value), number in sorted(totals.items()):
                if own == name:
                    more = f',{label}="{value}"' if label else ""
                    lines.append(f'nas_evidence_{name}{{study="{study}"{more}}} {number}')
        write_whole(file, "\n".join(lines) + "\n")

    return publish


def to_ray() -> Publish:
    """Return what tells Ray, which must be connected."""
    from nas_evidence.workers.on_ray import metric

    set_total = {
        name: metric(kind, f"nas_evidence_{name}", text, ("study", *filter(None, [label])))
        for name, (kind, text, label) in _METRICS.items()
    }

    def publish(study: str, totals: Totals) -> None:
        for (name, value), number in totals.items():
            label = _METRICS[name][2]
            set_total[name](number, {"study": study} | ({label: value} if label else {}))

    return publish


class Prometheus(Watcher):
    """Counts, and publishes whenever a trial starts or ends.

    Args:
        publish: `to_file` or `to_ray`.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish, self._study = publish, ""
        self._running: set[int] = set()
        self._totals: defaultdict[tuple[str, str], float] = defaultdict(float)

    def study_started(self, study: StudySpec, folder: Path) -> None:
        """Count what earlier runs finished."""
        from nas_evidence.storage.tables import read_table

        self._study = study.name
        table = read_table(folder, "trials")
        for status, n in table["status"].value_counts().items():
            self._totals["trials_total", str(status)] = float(n)
        for phase in _PHASES:
            seconds = float(table[f"{phase}_seconds"].sum())
            self._totals["phase_seconds_total", phase] = seconds
        self._tell()

    def launched(self, assignment: Assignment) -> None:
        """Count a trial that runs."""
        self._running.add(assignment.trial_id)
        self._tell()

    def parked(self, trial_id: int) -> None:
        """Count it no more."""
        self._running.discard(trial_id)
        self._tell()

    def lost(self, loss: Lost) -> None:
        """Count a retry."""
        self._totals["retries_total", str(loss.kind)] += 1
        self.parked(loss.trial_id)

    def ended(self, record: TrialRecord) -> None:
        """Count a finished trial, and its seconds."""
        self._totals["trials_total", str(record.status)] += 1
        for phase in _PHASES:
            seconds = getattr(record, f"{phase}_seconds")
            self._totals["phase_seconds_total", phase] += seconds
        self.parked(record.trial_id)

    def study_ended(self, status: StudyStatus) -> None:
        """Say that nothing runs."""
        self._running.clear()
        self._tell()

    def _tell(self) -> None:
        self._totals["running_trials", ""] = float(len(self._running))
        self._publish(self._study, self._totals)
