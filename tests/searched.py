"""Finished studies of a few small networks, written down and not run."""

from pathlib import Path
from typing import Any

from records import at, curve_of, mlp, record_with

from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.page import ReportPaths, write_report
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables, ranked_study
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.record import (
    EvidenceEstimate,
    Term,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import (
    ArchitectureSpec,
    DatasetSpec,
    OnlinePlan,
    StudySpec,
    TrainingPlan,
)
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.tables import StudyTables, read_study_tables, write_record

N_DATA = 100


EPOCHS = 20


QUALITY = (0.1, 0.9, 0.5, 0.7, 0.3, 0.8, 0.2, 0.6)


def record(
    trial_id: int,
    architecture: int,
    *,
    value: float | None = None,
    status: TrialStatus = TrialStatus.COMPLETE,
    epochs: int = EPOCHS,
    real: bool = False,
    **changes: Any,
) -> TrialRecord:
    """Return a trial whose evidence per datum is `value`, by default the quality of what it is."""
    quality = QUALITY[architecture]
    value = quality if value is None else value
    epochs_seen = range(5, epochs + 1, 5)
    done = status is TrialStatus.COMPLETE
    return record_with(
        trial_id,
        replicate=trial_id,
        architecture=mlp(width=4 + architecture)
        if architecture
        else ArchitectureSpec(family="linear"),
        status=status,
        n_parameters=100 * (1 + architecture),
        latency_seconds=0.1 / (1 + architecture),
        n_data=N_DATA,
        epochs=epochs,
        evaluations=[one for e in epochs_seen for one in at(e, estimate_of(value - 1 / e))],
        curve=curve_of(lambda epoch: 1 - quality, epochs, N_DATA),
        test_accuracy=quality if done and not real else None,
        test_nll_per_datum=2 - quality if done else None,
        test_rmse=10 - quality if done and real else None,
        train_seconds=float(epochs),
        total_seconds=float(epochs) + 1,
    ).model_copy(update=changes)


def estimate_of(per_datum: float) -> EvidenceEstimate:
    fit, scatter = per_datum + 0.5, 0.4
    terms = (
        Term(term="log_likelihood", group="all", value=N_DATA * fit),
        Term(term="scatter", group="a", value=N_DATA * scatter),
        Term(term="log_det_ratio", group="a", value=N_DATA * 0.2),
        Term(term="log_det_ratio", group="b", value=N_DATA * 0.4),
        Term(term="prior_precision", group="a", value=2.0),
        Term(term="prior_precision", group="b", value=8.0),
        Term(term="clamped_eigenvalues", group="all", value=0.0),
        Term(term="gradient_norm_squared", group="all", value=0.5),
    )
    value = N_DATA * per_datum
    return EvidenceEstimate(estimator="kfac_ggn", value=value, per_datum=per_datum, terms=terms)


def folder(path: Path, records: list[TrialRecord], **changes: Any) -> Path:
    given: dict[str, Any] = {
        "name": "synthetic",
        "objective": "kfac_ggn",
        "dataset": DatasetSpec(name="digits"),
        "family": {"mlp": {"width": IntRange(low=4, high=64)}, "linear": {}},
        "plan": TrainingPlan(epochs=EPOCHS, online=OnlinePlan(every=5)),
    }
    study = StudySpec(**(given | changes))
    path.mkdir(parents=True, exist_ok=True)
    (path / "study.toml").write_text(dump_study(study), encoding="utf-8")
    for one in records:
        write_record(path, one, study)
    return path


def load(path: Path, records: list[TrialRecord], **changes: Any) -> RankedStudy:
    return load_study_tables(folder(path, records, **changes))


def build_report(
    study: Path | StudyTables, to: Path | None = None, *, metric: str | None = None
) -> ReportPaths:
    """Write the report of a study to `to`, by default the folder `report` of its own."""
    tables = read_study_tables(study) if isinstance(study, Path) else study
    folder = tables.folder
    report = report_on(ranked_study(tables), read_comparison(folder), place=folder, metric=metric)
    return write_report(report, to or folder / "report")
