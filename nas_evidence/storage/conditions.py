"""The conditions of a trial: all that decides its results, by content hash.

They are the study without the keys that may change between runs, and a hash of the data as
loaded. The hash is in every row of `trials` (`content_hash`). The study as it last ran is in
`logs/conditions-<hash>.toml`, sealed: the copy from which the study file can be restored. So a
study file edited by hand is found out and its change named: a key that may change is taken, any
other refused. A copy that does not match its seal is believed by nobody; it is made anew from
the study file if that and the data have the hash that is in the rows.
"""

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.seals import DamagedError, read_sealed_toml, sealed_toml
from nas_evidence.plumbing.user_error import StudyError, UserError
from nas_evidence.spec.study import FREE_KEYS, StudySpec
from nas_evidence.spec.toml import (
    changes_between_runs,
    differences,
    dump_study,
    load_study,
    parse_study,
)
from nas_evidence.storage.set_aside import set_aside

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
        raise UserError(
            "study-file-changed",
            f"{folder}/study.toml was changed after trials had run: {'; '.join(words)}. One table "
            "never holds the results of two studies: `nas-evidence repair "
            f"{shell_word(folder)}` restores the file, or give the changed study "
            "another folder.",
        )


def edits_of(folder: Path) -> list[str]:
    """Return what was changed by hand in the study file and may change, one line each."""
    old = study_of_trials(folder)
    try:
        return [] if old is None else changes_between_runs(old, load_study(folder / "study.toml"))
    except ValueError:
        return []


def hash_to_run(
    folder: Path, study: StudySpec, data: str, ran: Collection[str] = ()
) -> tuple[str, bool]:
    """Return the hash of the conditions of trials to come, and whether they are recorded.

    Args:
        folder: of the study.
        study: as it is to run.
        data: hash of the data as loaded.
        ran: hashes of the conditions of the stored trials.

    Raises:
        ValueError: trials of this study have run under other conditions; names what differs.
    """
    check_conditions(folder, study)
    for path, known in _sound(folder):
        if data and known.data and data != known.data:
            raise UserError(
                "data-set-replaced",
                f"the data set '{study.dataset.name}' is not the one that the trials of {folder} "
                f"were trained on (its hash was {known.data}, now {data}); restore the data, or "
                "start another study in another folder. If nobody changed them, an earlier "
                "version of nas-evidence read them otherwise.",
            )
        if data == known.data:  # also after an update that added keys
            return _hash_in(path), True
    found = content_hash(study, data)
    if ran and found not in ran:
        raise UserError(
            "conditions-lost",
            f"study.toml or the data of {folder} are not those of its trials (their hash is "
            f"{', '.join(sorted(ran))}, now it is {found}), and the copy of the study in logs/ "
            "is lost; restore study.toml and the data from a backup, or give another folder.",
        )
    return found, False


def note_conditions(
    folder: Path, study: StudySpec, data: str, ran: Collection[str] = ()
) -> tuple[str, list[str]]:
    """Record the conditions under which trials are about to run; arguments as `hash_to_run`.

    Returns:
        Their hash, and a line for each thing that was restored.
    """
    found, known = hash_to_run(folder, study, data, ran)
    done = []
    for place in damaged_conditions(folder):
        set_aside(folder, place)
        done.append(f"{place}: not as written; moved to damaged/, written again from study.toml")
    if not known:
        _write(folder / "logs" / f"conditions-{found}.toml", study, data)
    return found, done


def keep_copy(folder: Path, study: StudySpec) -> None:
    """Write the study as it is about to run over the copy of how it last ran, if there is one."""
    for path, known in _sound(folder):
        if known.study != study and not differences(known.study, study):
            _write(path, study, known.data)


def current_hash(folder: Path, study: StudySpec) -> str:
    """Return the hash that `note_conditions` recorded, or that of the study without data."""
    for path, known in _sound(folder):
        if not differences(known.study, study):
            return _hash_in(path)
    return content_hash(study, "")


def study_of_trials(folder: Path) -> StudySpec | None:
    """Return the study under which the trials of a folder ran, None if that is not recorded."""
    known = _sound(folder)
    return known[-1][1].study if known else None


def how_to_restore(folder: Path) -> str:
    """Return how the study file of a folder can be restored; "" where no run had begun."""
    if study_of_trials(folder):
        return f"`nas-evidence repair {shell_word(folder)}` restores it."
    if not any((folder / "logs").glob("events/*.jsonl")):
        return ""
    return (
        "The sealed copy in logs/ is lost or damaged, too: put a copy of the file there, as from "
        "a backup, or from another folder in which `nas-evidence search` began with the same data "
        f"and settings; then `nas-evidence repair {shell_word(folder)}` checks it by the trials."
    )


def data_of_trials(folder: Path) -> str:
    """Return the hash of the data that trials of a folder were trained on, "" if not recorded."""
    return next((known.data for _, known in reversed(_sound(folder)) if known.data), "")


def hashes_of_conditions(folder: Path) -> set[str]:
    """Return the hashes of the conditions that are recorded for the trials of a folder."""
    return {_hash_in(path) for path, _ in _sound(folder)}


def damaged_conditions(folder: Path) -> list[str]:
    """Return the copies of the study that do not match their seals, relative to the folder."""
    sound = {path for path, _ in _sound(folder)}
    return [path.relative_to(folder).as_posix() for path in _files(folder) if path not in sound]


@dataclass(frozen=True)
class _Conditions:
    """A study, and the hash of its data."""

    study: StudySpec
    data: str


def _write(path: Path, study: StudySpec, data: str) -> None:
    path.parent.mkdir(exist_ok=True)
    write_whole(path, sealed_toml(f"{_DATA}{data}\n{dump_study(study)}"))


def _sound(folder: Path) -> list[tuple[Path, _Conditions]]:
    read = ((path, _read(path)) for path in _files(folder))
    return [(path, known) for path, known in read if known is not None]


def _files(folder: Path) -> list[Path]:
    found = (folder / "logs").glob("conditions-*.toml")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def _hash_in(path: Path) -> str:
    return path.stem.removeprefix("conditions-")


def _read(path: Path) -> _Conditions | None:
    try:
        text = read_sealed_toml(path.read_bytes(), path)
        # Whatever an earlier version delivered, its trials are the same.
        study = parse_study(text, str(path), ["deliver=single"])
    except (StudyError, DamagedError, OSError) as error:
        _LOG.warning("conditions_unreadable path=%s error=%s", path, error)
        return None
    return _Conditions(study, text.partition("\n")[0].removeprefix(_DATA).strip())


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
