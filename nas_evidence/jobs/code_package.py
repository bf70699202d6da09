"""What travels to a cluster with a job: the study file, the code it names, and this package.

The package itself travels only where it is no release. Data and runs never travel: only files
that are named here are copied. Ray refuses to send more than 512 MiB; that is checked before
anything is sent.
"""

import importlib.metadata
import json
import shutil
from pathlib import Path

from nas_evidence.codec import dump_study
from nas_evidence.spec import StudySpec
from nas_evidence.storage.outside_code import code_of

#: Bytes that Ray takes for a working directory.
MAX_BYTES = 512 * 1024**2
PACKAGE = Path(__file__).resolve().parents[1]
STUDY_FILE = "study.toml"


def write_package(folder: Path, study: StudySpec | None, *, package: Path | None) -> int:
    """Fill an empty folder with what a job needs, and return its size in bytes.

    Args:
        folder: Becomes the working directory of the job.
        study: Written as `study.toml`, with its overrides applied.
        package: Folder of the Python package; None if the cluster has it already.

    Raises:
        ValueError: if data lie where the cluster cannot see them, or all is larger than 512 MiB.
    """
    if package is not None:
        size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file())
        if size > MAX_BYTES:
            raise ValueError(
                f"code of at most {MAX_BYTES} bytes can travel to a cluster, but {package} holds "
                f"{size}; move what is no code out of it, or install the package on the cluster."
            )
        shutil.copytree(
            package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    if study is not None:
        _check_paths(study)
        (folder / STUDY_FILE).write_text(dump_study(study), encoding="utf-8")
        for name, content in code_of(study).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def package_to_send() -> Path | None:
    """Return the folder of this package, or None if it was installed as a released wheel."""
    try:
        installed = importlib.metadata.distribution("nas-evidence")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return PACKAGE
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if origin or Path(str(installed.locate_file("nas_evidence"))).resolve() != PACKAGE:
        return PACKAGE
    return None


def _check_paths(study: StudySpec) -> None:
    for key, given in (("[dataset] path", study.dataset.path), ("warm_start", study.warm_start)):
        if given is not None and "://" not in given and not Path(given).is_absolute():
            raise ValueError(
                f"{key} must be an absolute path on the cluster, for data do not travel with a "
                f"job, but got {given!r}; put it where every node sees it."
            )
