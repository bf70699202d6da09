"""How images become arrays, as a value that a study and an export keep; see `images.py`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from nas_evidence.plumbing.parsing import parsed_json

#: The file of a study, beside its arrays, that holds an `ImageReading`.
STORED = "images.json"
#: What the pixels of an image are.
Kind = Literal["grey", "RGB", "8-bit signed grey", "16-bit grey", "32-bit grey", "float grey"]


@dataclass(frozen=True)
class ImageReading:
    """How images become arrays: decided by those of training, applied to every image.

    kind  of the pixels
    size  height and width that images are resized to; None if all must have one
    said  sentences about the training images
    """

    kind: Kind
    size: int | None = None
    said: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ImageReading":
        """Return what `to_json` wrote."""
        stored = parsed_json(text)
        return cls(stored["kind"], stored["size"], tuple(stored["said"]))


def reading_in(folder: Path) -> ImageReading | None:
    """Return how the images of a study were read; None if its arrays are of no such files."""
    file = folder / STORED
    return ImageReading.from_json(file.read_text(encoding="utf-8")) if file.is_file() else None
