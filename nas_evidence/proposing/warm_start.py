"""Warm start: the results of an older study, for the sampler of a new one.

Scores of two studies are comparable only with the same data, objective and likelihood.
Architectures outside the new space, and those without a valid score, are left out.

`warm_start.json` in the folder of the new study keeps them, with a checksum, from its first start
on: the older study may then go on or be deleted.
"""

import math
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.seals import read_sealed_json, sealed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.startup import as_searched, misfit
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.best import ranked_value
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_folder import read_study
from nas_evidence.storage.trial_row import TrialRow

Found = tuple[ArchitectureSpec, tuple[float, ...]]
#: The file in the folder of the new study.
WARM_START = "warm_start.json"


def kept_warm_start(study: StudySpec, folder: Path) -> list[Found]:
    """Return the warm start of a study; read it from the older one at the first start.

    Raises:
        ValueError: the older study is not comparable, or the stored file is damaged.
    """
    if study.warm_start is None:
        return []
    path = folder / WARM_START
    if not path.exists():
        trials = [
            {"architecture": architecture.model_dump(mode="json"), "values": values}
            for architecture, values in warm_trials(study)
        ]
        write_whole(path, sealed_json({"trials": trials}))
    return read_warm_start(folder)


def read_warm_start(folder: Path) -> list[Found]:
    """Return the warm start that a folder keeps; empty if it keeps none.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / WARM_START
    if not path.exists():
        return []
    try:
        trials = read_sealed_json(path.read_bytes(), path)["trials"]
        return [
            (ArchitectureSpec.model_validate(one["architecture"]), tuple(one["values"]))
            for one in trials
        ]
    except (ValueError, LookupError, TypeError):
        raise UserError(
            "warm-start-damaged",
            f"{path} is damaged: not as it was written; `nas-evidence repair "
            f"{shell_word(folder)}` moves it to damaged/, and `resume` reads the "
            "older study again.",
        ) from None


def warm_trials(study: StudySpec) -> list[Found]:
    """Return architectures of `study.warm_start` with their objective and costs, in trial order.

    The values are means over an architecture's replicates.

    Raises:
        ValueError: if the folder holds no study, its data, objective or likelihood differ, or none
            of its finished architectures is in the current space.
    """
    if study.warm_start is None:
        return []
    folder = Path(study.warm_start)
    _check_comparable(study, read_study(folder), folder)
    groups: dict[str, list[TrialRow]] = {}
    for _, row in sorted(find_done(folder).done.items()):
        known = as_searched(study, row.architecture)
        if _values(row, study) is not None and misfit(study, known) is None:
            groups.setdefault(row.architecture_key, []).append(row)
    if not groups:
        raise UserError(
            "warm-start-without-trials",
            f"no finished trial of {folder} has {' and '.join(study.ranking_scores)}"
            f"{' and the costs' if study.minimise else ''} and an architecture in the current "
            "space; leave out `warm_start`.",
        )
    return [
        (as_searched(study, rows[0].architecture), _mean(rows, study)) for rows in groups.values()
    ]


def _check_comparable(study: StudySpec, old: StudySpec, folder: Path) -> None:
    of_both = {
        "dataset": (old.dataset, study.dataset),
        "objective": (old.objective, study.objective),
        "likelihood": (old.plan.likelihood, study.plan.likelihood),
        "likelihood_power": (old.plan.likelihood_power, study.plan.likelihood_power),
        "augment": (sorted(old.plan.augment), sorted(study.plan.augment)),
    }
    for name, (there, here) in of_both.items():
        if there != here:
            raise UserError(
                "warm-start-differs",
                f"`{name}` must be the same as in the study of `warm_start`, but {folder} has "
                f"{there!r} and this study {here!r}; their scores are not comparable. "
                "Leave out `warm_start`.",
            )


def _values(row: TrialRow, study: StudySpec) -> tuple[float, ...] | None:
    if row.status is not TrialStatus.COMPLETE:
        return None
    values = [ranked_value(row.values, study), *(row.costs.get(name) for name in study.minimise)]
    known = tuple(v for v in values if v is not None and math.isfinite(v))
    return known if len(known) == len(values) else None


def _mean(rows: list[TrialRow], study: StudySpec) -> tuple[float, ...]:
    columns = zip(*filter(None, (_values(row, study) for row in rows)), strict=True)
    return tuple(math.fsum(column) / len(rows) for column in columns)
