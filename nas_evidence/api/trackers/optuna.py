"""Optuna: finished proposals in a database; the log of the study says which."""

from pathlib import Path

from nas_evidence.proposing.optuna_export import Export
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import StudyStatus, Watcher


class Optuna(Watcher):
    """Copies what the log has, after each trial.

    Args:
        spec: the study.
        folder: of the study.
        url: of a database, see `Export`.
    """

    def __init__(self, spec: StudySpec, folder: Path, url: str) -> None:
        self._export = Export(spec, folder, url)

    def study_started(self, study: StudySpec, folder: Path) -> None:
        """Copy what the log has."""
        self._update()

    def ended(self, record: TrialRecord) -> None:
        """Copy what the log has."""
        self._update()

    def study_ended(self, status: StudyStatus) -> None:
        """Copy what the log has, and close the connections."""
        self._update()
        self._export.close()

    def _update(self) -> None:
        try:
            self._export.update()
        except Exception:
            self._export.close()
            raise
