"""A checksum inside a file of tensors.

`blake2b` in the header, over names, types, shapes, values and the other entries of the header, so
that any reader of safetensors can read the file.

A tensor that has several names, as tied weights have, is stored once; `shared` in the header has
its other names. `read_tensors` gives all of them the one tensor.
"""

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, uint8

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import DamagedError

#: Prefix of what scores keep beside the weights (see `Scorer.kept`).
KEPT_PREFIX = "kept/"
_KEY = "blake2b"
#: Of the header: the stored name of each tensor that is stored under another one, as JSON.
_SHARED = "shared"


def sealed_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """Return a safetensors file with a checksum in its header."""
    stored, shared = _each_once(tensors)
    plain = {**header, _SHARED: json.dumps(shared)} if shared else dict(header)
    whole = {**plain, _KEY: _checksum(stored, plain)}
    content: bytes = save(stored, metadata=whole)
    return content


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU, contiguous; names of one tensor are names of one again."""
    copies: dict[Hashable, Tensor] = {}
    return {
        name: copies.setdefault(_place(tensor), tensor.detach().cpu().contiguous())
        for name, tensor in tensors.items()
    }


def n_numbers(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers tensors have, those of one with several names counted once.

    >>> from torch import zeros
    >>> n_numbers([one := zeros(3), one, zeros(3)])
    6
    """
    return sum({_place(tensor): tensor.numel() for tensor in tensors}.values())


def _place(tensor: Tensor) -> Hashable:
    """Return where a tensor is in memory, equal for two names of one tensor."""
    if not tensor.numel():
        return id(tensor)
    kind = (str(tensor.device), tensor.dtype, tensor.shape, tensor.stride())
    return tensor.data_ptr(), *kind


def _each_once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors without common memory, and the stored name of each that is left out."""
    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[Hashable, str] = {}
    memory: set[int] = set()
    for name in tensors:
        tensor = tensors[name].detach()
        if (same := first.setdefault(_place(tensor), name)) != name:
            shared[name] = same
            continue
        start = tensor.untyped_storage().data_ptr()
        # A view of a part of another tensor becomes a tensor of its own.
        stored[name] = tensor.clone() if tensor.numel() and start in memory else tensor
        memory.add(start)
    return stored, shared


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
        again = parsed_json(header.get(_SHARED, "{}")).items()
        shared = {name: tensors[same] for name, same in again}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DamagedError("tensors-unreadable", f"{path} is damaged: {why}.") from None
    except (OverflowError, RuntimeError, MemoryError) as error:
        raise DamagedError(
            "tensors-wrong-type", f"{path} is damaged: {type(error).__name__}."
        ) from None
    kept = {key: value for key, value in header.items() if key != _KEY}
    if header.get(_KEY) != _checksum(tensors, kept):
        raise DamagedError(
            "checksum-wrong", f"{path} is damaged: its content does not match its checksum."
        )
    header.pop(_SHARED, None)
    return tensors | shared, header


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
