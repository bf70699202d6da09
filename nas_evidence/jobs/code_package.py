"""The files sent to a cluster with a job: the study file, the code that it names, this package.

The package itself is sent only if it is not a released version. Ray unpacks what is sent where
every user of a node can read it, so data and runs are never sent. Ray refuses to send more than
512 MiB; this is checked first.
"""

import importlib.metadata
import shutil
from pathlib import Path

from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study

#: Ray's limit for a working directory, bytes.
MAX_BYTES = 512 * 1024**2
PACKAGE = Path(__file__).resolve().parents[1]
STUDY_FILE = "study.toml"


def write_package(
    folder: Path, study: StudySpec | None, *, package: Path | None, code: Code | None = None
) -> int:
    """Fill an empty folder with what a job needs, and return its size in bytes.

    Args:
        folder: Working directory of the job.
        study: Written as `study.toml`, with its overrides applied.
        package: Folder of the Python package; None if the cluster has it already.
        code: What the study names as module:NAME.

    Raises:
        ValueError: if the cluster cannot see the data, or the total exceeds 512 MiB.
    """
    if package is not None:
        size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file())
        if size > MAX_BYTES:
            raise UserError(
                "code-too-large",
                f"at most {MAX_BYTES} bytes of code can be sent to a cluster, but {package} holds "
                f"{size}; move other files out of it, or install the package on the cluster.",
            )
        shutil.copytree(
            package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    if study is not None:
        _check_paths(study)
        (folder / STUDY_FILE).write_text(dump_study(study), encoding="utf-8")
    for name, content in (code or Code()).files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def package_to_send() -> Path | None:
    """Return the folder of this package, or None if it was installed as a released wheel."""
    try:
        installed = importlib.metadata.distribution("nas-evidence")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return PACKAGE
    origin = parsed_json(installed.read_text("direct_url.json") or "{}")
    if origin or Path(str(installed.locate_file("nas_evidence"))).resolve() != PACKAGE:
        return PACKAGE
    return None


def _check_paths(study: StudySpec) -> None:
    for key, given in (("[dataset] path", study.dataset.path), ("warm_start", study.warm_start)):
        if given is not None and "://" not in given and not Path(given).is_absolute():
            raise UserError(
                "path-not-absolute",
                f"{key} must be an absolute path on the cluster, since data are not sent with a "
                f"job, but got {given!r}; put it where every node sees it.",
            )
