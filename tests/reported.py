"""A study of many networks whose evidence follows their accuracy, written down and not run."""

from pathlib import Path

import numpy as np
from records import at, curve_of, laplace, record_with

from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.record import (
    EvidenceEstimate,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.tables import write_record

N_DATA = 1000


FAMILIES = ("mlp", "cnn", "resnet")


def spec(name: str = "synthetic") -> StudySpec:
    widths = {"width": IntRange(low=4, high=64)}
    return StudySpec(
        name=name,
        objective="kfac_ggn",
        n_trials=30,
        dataset=DatasetSpec(name="digits"),
        family={"mlp": widths, "cnn": widths, "resnet": {}, "linear": {}},
    )


def trial(trial_id: int, *, noise: float = 0.1, status: str = "complete") -> TrialRecord:
    """Return a trial whose evidence follows its accuracy up to `noise`; trial 0 is linear."""
    rng = np.random.default_rng(trial_id)
    quality = rng.random() if trial_id else 0.05
    family = FAMILIES[trial_id % 3] if trial_id else "linear"
    values = {"depth": 1 + trial_id % 3, "width": 4 + trial_id} if trial_id else {}
    losses = [2.0 * np.exp(-0.3 * (1 + quality) * epoch) + 0.05 for epoch in range(9)]
    final = -1.5 + quality + noise * rng.normal()
    curve = curve_of(losses.__getitem__, 8, N_DATA)
    early, late = (laplace(final - 3 * losses[epoch], N_DATA) for epoch in (4, 8))
    other = laplace(rng.normal() - 2, N_DATA, "diag_ef")
    sotl = EvidenceEstimate(estimator="sotl", value=-curve[-1].sotl)
    return record_with(
        trial_id,
        architecture=ArchitectureSpec(family=family, values=values),
        status=TrialStatus(status),
        cause="" if status == "complete" else "loss became nan <b>at</b> epoch 3 | step 5",
        n_parameters=int(10 ** (2.5 + 3 * rng.random())),
        n_data=N_DATA,
        epochs=8,
        evaluations=(*at(4, early), *at(8, late, other, sotl)),
        curve=curve,
        test_accuracy=round(0.85 + 0.14 * quality, 4),
        test_nll_per_datum=0.6 - 0.5 * quality,
        train_seconds=3.0,
        total_seconds=3.5,
    )


def study_folder(folder: Path, records: list[TrialRecord], name: str = "synthetic") -> Path:
    study = spec(name)
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(dump_study(study), encoding="utf-8")
    for record in records:
        write_record(folder, record, study)
    return folder
