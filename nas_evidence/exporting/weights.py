"""The weights of a finished trial, as the study keeps them in `models/`."""

from pathlib import Path

from torch import Tensor

from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.spec.study import Assignment


def read_weights(folder: Path, given: Assignment) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the weights of a trial, with what is kept beside them, and their header.

    Args:
        folder: of the study.
        given: what trained them, as the study has it. Attempt, scores and the place of the data
            do not count.

    Raises:
        DamagedError: the file cannot be read, does not match its checksum, or holds the weights
            of another trial or study.
        OSError: there is no such file, or the disk fails.
    """
    path = folder / "models" / f"{given.trial_id}.safetensors"
    tensors, header = read_tensors(path)
    try:
        found = Assignment.model_validate_json(header["assignment"])
    except (ValueError, LookupError):
        raise DamagedError(
            "weights-without-assignment",
            f"{path} is damaged: its header does not say what trained it.",
        ) from None
    if found.trial_id != given.trial_id:
        raise DamagedError(
            "weights-of-another-trial", f"{path} is damaged: it is of trial {found.trial_id}."
        )
    same = (found.architecture.key, found.seed, found.plan) == (
        given.architecture.key,
        given.seed,
        given.plan,
    )
    if not same:
        raise DamagedError(
            "weights-of-another-study", f"{path} is damaged: it is of another study."
        )
    return tensors, header
