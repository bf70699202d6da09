"""A checksum inside a file of tensors.

`blake2b` in the header, over names, types, shapes, values and the other entries of the header, so
that any reader of safetensors can read the file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, uint8

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import DamagedError

#: Prefix of what scores keep beside the weights (see `Scorer.kept`).
KEPT_PREFIX = "kept/"
_KEY = "blake2b"


def sealed_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """Return a safetensors file with a checksum in its header."""
    whole = {**header, _KEY: _checksum(tensors, header)}
    content: bytes = save(dict(tensors), metadata=whole)
    return content


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and header of a safetensors file.

    Raises:
        DamagedError: it cannot be read, or does not match its checksum.
        OSError: there is no such file, or the disk fails.
    """
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = parsed_json(content[8 : 8 + size]).get("__metadata__", {})
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {str(error).splitlines()[0]}.").with_code(
            "tensors-unreadable"
        ) from None
    except (OverflowError, RuntimeError, MemoryError) as error:
        raise DamagedError(f"{path} is damaged: {type(error).__name__}.").with_code(
            "tensors-wrong-type"
        ) from None
    kept = {key: value for key, value in header.items() if key != _KEY}
    if header.get(_KEY) != _checksum(tensors, kept):
        raise DamagedError(
            f"{path} is damaged: its content does not match its checksum."
        ).with_code("checksum-wrong")
    return tensors, header


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
