"""Input factors of Kronecker blocks: of layers that read the data they are the same in every pass.

    SA = Σ_{n,t} a aᵀ of a linear layer or a convolution whose input is the data themselves

depends on no parameter, so the first network computes and decomposes it, and later passes over the
same rows, of any network, take it over. On a CPU; for 784 inputs it is most of a pass, for 3,072
nearly all.

Rows are known by their content, so that folds and samples that are selected anew for each trial
are recognised. Some factors are kept, the latest used.
"""

import ctypes
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.maths.blocks import Once

#: Bytes of all matrices that are kept; eigenvectors take as much again.
_MOST = 1 << 28
#: The factors by the content of the data and what else they depend on, the latest used last.
_FACTORS: "OrderedDict[tuple[Any, ...], InputFactor]" = OrderedDict()
#: The digest of a tensor's content, and the version of the tensor that it is of.
_DIGESTS: Any = WeakIdKeyDictionary()


@dataclass(frozen=True)
class InputFactor:
    """SA [groups, d_in, d_in], or the rows of a wide layer, and its decompositions once found."""

    matrix: Tensor
    once: Once = field(default_factory=Once)


@dataclass(frozen=True)
class DataFactors:
    """The factors of layers that read `data`, passed in batches of `batch_size`."""

    data: Tensor
    batch_size: int

    def key(self, layer: WeightLayer, a: Tensor) -> tuple[Any, ...] | None:
        """Return under which key the factor is kept, None if the input `a` is not the data."""
        if not self._is_batch(a):
            return None
        module = layer.module
        if isinstance(module, nn.Linear):
            return (self._digest, a.dtype, "linear", *a.shape[1:], self.batch_size)
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        geometry = (getattr(module, name) for name in names)
        rest = (type(module).__name__, *geometry, *a.shape[1:], self.batch_size)
        return (self._digest, a.dtype, *rest)

    def get(self, key: tuple[Any, ...]) -> InputFactor | None:
        """Return a factor that an earlier pass has found, None if none has."""
        if (found := _FACTORS.get(key)) is not None:
            _FACTORS.move_to_end(key)
        return found

    def put(self, key: tuple[Any, ...], factor: InputFactor) -> None:
        """Keep a factor, and forget those longest unused if all are too large together."""
        _FACTORS[key] = factor
        while sum(kept.matrix.nbytes for kept in _FACTORS.values()) > _MOST:
            _FACTORS.popitem(last=False)

    @cached_property
    def _digest(self) -> bytes:
        """Digest of the data's content, taken once where nobody can change it behind torch."""
        version, digest = _DIGESTS.get(self.data, (None, b""))
        if version == self.data._version and self.data.untyped_storage().resizable():
            return bytes(digest)
        # Not by `numpy()`, which would make torch share the memory from then on.
        size = self.data.numel() * self.data.element_size()
        content = (ctypes.c_char * size).from_address(self.data.data_ptr())
        digest = hashlib.blake2b(content, digest_size=16).digest()
        _DIGESTS[self.data] = (self.data._version, digest)
        return digest

    def _is_batch(self, a: Tensor) -> bool:
        data = self.data
        if type(data) is not Tensor or data.device.type != "cpu" or data.is_inference():
            return False  # rows of a file, or images moved
        if data.dtype not in (torch.float32, torch.float64) or not len(data):
            return False
        whole = a.numel() == len(a) * data[0].numel() and a.is_contiguous()
        return (
            whole
            and data.is_contiguous()
            and a.dtype == data.dtype
            and a.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
        )
