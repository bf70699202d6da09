"""Names that a study reads from its files, and those that it may remove.

A checksum says that a name was written so, and nothing about who wrote it. So each name is checked
before it becomes a path, and nothing is removed whose name no study gives.
"""

import contextlib
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from nas_evidence.plumbing import removal
from nas_evidence.plumbing.names import is_name
from nas_evidence.storage.links import link_on_the_way

#: Number of a trial, of a proposal or of an attempt, as it stands in the name of a file.
LARGEST = 10**10 - 1
Number = Annotated[int, Field(ge=0, le=LARGEST)]
#: Name, without its ending, of the files that hold many attempts.
Part = Annotated[str, Field(pattern=r"^part-[0-9a-f]{32}\z")]
TableName = Literal["trials", "evidence", "terms", "curves"]
#: The same for lines of the log, whose files are looked up by any text.
Table = Annotated[str, Field(pattern=rf"^({'|'.join(get_args(TableName))})\z")]
#: Digest of a file, or the hash of the conditions of a trial.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}\z")]

_STEM = r"(?:\d{6,}-a\d+|part-[0-9a-f]{32})"
_ATTEMPT = r"(?:\d{6,}/attempt-\d+|retrained/\d{6,})"
_ANY = r"(?:[\w@:+ -][\w.@:+ -]*/)*[\w@:+ -][\w.@:+ -]*"
#: What a study writes, and so may remove: by no other name is anything removed.
_OF_A_STUDY = re.compile(
    "|".join(
        (
            r"study\.toml|warm_start\.json|lock|node-token|(?:study|mlflow)\.db",
            rf"(?:trials|evidence|terms|curves)/{_STEM}\.parquet",
            r"models/\d+\.safetensors",
            rf"checkpoints/{_ATTEMPT}/(?:epoch-\d+\.pt|model\.safetensors)",
            r"logs/events/\d{6,}(?:-\d{6,})?\.jsonl",
            r"logs/(?:conditions-[0-9a-f]+\.toml|track-[^/*?[\]]+\.json|[\w.-]+\.log)",
            r"requests/cancel(?:-[0-9]{6,10})?",
            rf"(?:data|report|export[\w.-]*|code|tensorboard)/{_ANY}",
        )
    )
)
#: What `write_whole` calls a file until it is whole.
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{32}")


def is_removable(name: str) -> bool:
    """Return whether a study gives a file this name, so that it may remove it.

    >>> is_removable("models/0.safetensors"), is_removable("checkpoints/000000/thesis.tex")
    (True, False)
    """
    return is_name(name) and _OF_A_STUDY.fullmatch(name) is not None


def remove(folder: Path, name: str) -> None:
    """Remove a file of a study, if it is there; never another one, nor one behind a link.

    Args:
        folder: of the study.
        name: relative to it, with slashes.
    """
    if is_removable(name) and link_on_the_way(folder, name) is None:
        removal.remove(folder / name)


def remove_attempts(folder: Path, place: str) -> None:
    """Remove the checkpoints and weights of a trial, and the folders that are empty then.

    Args:
        folder: of the study.
        place: `checkpoints/000007`, or `checkpoints/retrained/000007`.
    """
    home = folder / place
    if link_on_the_way(folder, place):
        return
    for path in sorted(home.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):  # another process has removed it
            if path.is_dir() and not path.is_symlink():
                removal.remove_empty(path)
            else:
                remove(folder, path.relative_to(folder).as_posix())
                remove_half_written(path)
    removal.remove_empty(home)


def remove_half_written(path: Path) -> None:
    """Remove a file, if it is one that a killed process has not renamed."""
    if _HALF_WRITTEN.fullmatch(path.name) and not path.is_symlink():
        removal.remove(path)
