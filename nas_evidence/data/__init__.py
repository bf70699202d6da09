"""Data sets as numpy arrays: reading, subsampling, and the scaling of the training set.

Only `tensors` needs torch. What reads data needs pandas, and is imported by `load`. There are no
worker processes: data sets fit in memory, or are files whose rows are read as needed (`mapped`).
"""

from pathlib import Path

from nas_evidence.data.arrays import ArrayData
from nas_evidence.spec.study import DatasetSpec

__all__ = ["ArrayData", "load"]


def load(
    spec: DatasetSpec,
    *,
    seed: int,
    data_root: str | None = None,
    download: bool = False,
    base: Path | None = None,
) -> ArrayData:
    """Return the data set, the same in every process for the same `spec` and `seed`.

    Args:
        spec: Which data, and how much of it.
        seed: Seed of the study; decides the rows of `test_size`, `max_train` and `max_test`.
        data_root: Folder of the named data sets, in torchvision's layout.
        download: Whether missing files may be downloaded into `data_root`.
        base: Folder of the study file, which relative paths in it are relative to.

    Raises:
        ValueError: If files are missing or damaged, or there are fewer examples than requested.
    """
    from nas_evidence.data.source import stored_source  # late: it imports pandas

    source = stored_source(spec, base=base, data_root=data_root, download=download)
    return source.arrays(seed=seed)
