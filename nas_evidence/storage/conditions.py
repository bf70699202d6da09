"""The conditions of a trial: all that decides its results, by content hash.

They are the study without the keys that may change between runs, and a hash of the data as
loaded. The hash is in every row of `trials` (`content_hash`), and the text that was hashed is in
`logs/conditions-<hash>.toml`, so that a study file edited by hand in the folder is found out, its
change can be named, and the file can be restored.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

import tomli_w

from nas_evidence.plumbing.files import write_whole
from nas_evidence.spec.study import FREE_KEYS, StudySpec
from nas_evidence.spec.toml import StudyError, differences, dump_study, load_study

_LOG = logging.getLogger(__name__)
#: The comment that holds the hash of the data in a file of conditions.
_DATA = "# data "


def content_hash(study: StudySpec, data: str) -> str:
    """Return 16 hexadecimal digits of a hash of what decides the results of trials.

    Args:
        study: The study; its `FREE_KEYS`, its name and the place of its data do not count.
        data: Hash of the data as loaded, "" if not known.
    """
    return hashlib.blake2b((_text(study) + data).encode(), digest_size=8).hexdigest()


def check_conditions(folder: Path, study: StudySpec) -> None:
    """Check that a study is the one under which the trials of a folder ran.

    Raises:
        ValueError: if not; names what differs.
    """
    old = study_of_trials(folder)
    changed = [] if old is None else differences(old, study)
    if changed:
        words = (line.replace("in the folder", "then").replace("asked", "now") for line in changed)
        raise ValueError(
            f"{folder}/study.toml was changed after trials had run: {'; '.join(words)}. One table "
            f"never holds the results of two studies: `nas-evidence repair {folder}` restores the "
            "file, or give the changed study another folder."
        )


def note_conditions(folder: Path, study: StudySpec, data: str) -> str:
    """Record the conditions under which trials are about to run; return their hash.

    Raises:
        ValueError: trials of this study have run under other conditions; names what differs.
    """
    check_conditions(folder, study)
    for path in _files(folder):
        known = _read(path)
        if known is None:
            continue
        old_data = known[1]
        if data and old_data and data != old_data:
            raise ValueError(
                f"the data set '{study.dataset.name}' is not the one that the trials of {folder} "
                f"were trained on (its hash was {old_data}, now {data}); restore the data, or "
                "start another study in another folder."
            )
        if data == old_data:  # also after an update that added keys
            return path.stem.removeprefix("conditions-")
    found = content_hash(study, data)
    path = folder / "logs" / f"conditions-{found}.toml"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, f"{_DATA}{data}\n{dump_study(study)}")
    return found


def current_hash(folder: Path, study: StudySpec) -> str:
    """Return the hash that `note_conditions` recorded, or that of the study without data."""
    for path in _files(folder):
        known = _read(path)
        if known is not None and not differences(known[0], study):
            return path.stem.removeprefix("conditions-")
    return content_hash(study, "")


def study_of_trials(folder: Path) -> StudySpec | None:
    """Return the study under which the trials of a folder ran, None if that is not recorded."""
    known = [found for path in _files(folder) if (found := _read(path)) is not None]
    return known[-1][0] if known else None


def data_of_trials(folder: Path) -> str:
    """Return the hash of the data that trials of a folder were trained on, "" if not recorded."""
    known = [found[1] for path in _files(folder) if (found := _read(path)) is not None]
    return next((data for data in reversed(known) if data), "")


def _files(folder: Path) -> list[Path]:
    found = (folder / "logs").glob("conditions-*.toml")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def _read(path: Path) -> tuple[StudySpec, str] | None:
    try:
        study = load_study(path)
        head = path.read_text(encoding="utf-8").partition("\n")[0]
    except (StudyError, OSError) as error:
        _LOG.warning("conditions_unreadable path=%s error=%s", path, error)
        return None
    return study, head.removeprefix(_DATA).strip()


def _text(study: StudySpec) -> str:
    facts: dict[str, Any] = study.model_dump(mode="json", exclude_none=True)
    for free in ("name", *FREE_KEYS):
        facts.pop(free, None)
    facts["dataset"].pop("path", None)
    return tomli_w.dumps(_sorted(facts))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value
