"""The training loss of a trial under way, epoch by epoch, read from its checkpoint without torch.

A checkpoint is a ZIP archive of torch with a checksum after it. Its `data.pkl` holds each point of
the curve as a text of JSON, that of the whole network before those of its folds. The texts are
searched for: nothing is unpickled.
"""

import re
import zipfile
from pathlib import Path
from typing import BinaryIO

from nas_evidence.plumbing.parsing import parsed_json

_POINT = re.compile(rb'\{"epoch":\d+,"train_nll_per_datum":[^{}]*\}')
#: Bytes of the part that is searched; a larger one is no curve that a page could show.
_MOST = 1 << 24


def last_checkpoint(home: Path) -> tuple[int, Path] | None:
    """Return the epoch and the path of the last checkpoint below the folder of a trial."""
    found = (
        (int(epoch), path)
        for path in home.glob("attempt-*/epoch-*.pt")
        if (epoch := path.stem.removeprefix("epoch-")).isdecimal()
    )
    return max(found, default=None)


def losses_so_far(checkpoint: Path | BinaryIO) -> list[tuple[int, float]]:
    """Return epoch and training loss in nats per datum; empty if they cannot be read.

    Of an open file only these parts are read: its end, and `data.pkl`.
    """
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            part = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            content = archive.read(part) if part.file_size <= _MOST else b""
        points = [parsed_json(found.decode()) for found in _POINT.findall(content)]
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile):
        return []  # it was replaced by a later one, or is damaged, as `verify` says
    losses: list[tuple[int, float]] = []
    for point in points:
        if losses and point["epoch"] <= losses[-1][0]:
            break  # of a fold
        if (loss := point["train_nll_per_datum"]) is not None:
            losses.append((point["epoch"], float(loss)))
    return losses
