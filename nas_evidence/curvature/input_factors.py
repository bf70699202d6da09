"""Input factors of Kronecker blocks: of layers that read the data they are the same in every pass.

    SA = Σ_{n,t} a aᵀ of a linear layer or a convolution whose input is the data themselves

depends on no parameter, so the first network computes and decomposes it, and later passes over the
same tensor, of any network, take it over. For 784 inputs it is most of a pass.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.maths.blocks import Once

#: Bytes of the largest matrix that is kept: a side of 4,096; its eigenvectors take as much.
_LARGEST = 1 << 27
#: By data: the version of the tensor, and the factors by what they depend on besides.
_OF_DATA: Any = WeakIdKeyDictionary()


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
            return ("linear", *a.shape[1:], self.batch_size)
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        geometry = (getattr(module, name) for name in names)
        return (type(module).__name__, *geometry, *a.shape[1:], self.batch_size)

    def get(self, key: tuple[Any, ...]) -> InputFactor | None:
        """Return a factor that an earlier pass has found, None if none has."""
        return self._kept().get(key)

    def put(self, key: tuple[Any, ...], factor: InputFactor) -> None:
        """Keep a factor as long as the data, unless it is large."""
        if factor.matrix.nbytes <= _LARGEST:
            self._kept()[key] = factor

    def _kept(self) -> dict[tuple[Any, ...], InputFactor]:
        version, kept = _OF_DATA.get(self.data, (None, {}))
        if version != self.data._version:  # modified in place since
            kept = {}
            _OF_DATA[self.data] = (self.data._version, kept)
        return kept  # type: ignore[no-any-return]

    def _is_batch(self, a: Tensor) -> bool:
        data = self.data
        if type(data) is not Tensor or data.is_inference() or not len(data):
            return False  # rows of a file, or images moved
        whole = a.numel() == len(a) * data[0].numel() and a.is_contiguous()
        return (
            whole
            and data.is_contiguous()
            and a.dtype == data.dtype
            and a.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
        )
