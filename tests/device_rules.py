"""Where tensors are on an invented GPU, and what CUDA would say of an operator on them.

`Places` keeps a tag for each storage. The rest are the rules of torch: which operators take
tensors of two devices, which make the host wait, and which launch no kernel.
"""

import atexit
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

#: "nowhere": made by C++ without an input, such as zeros in a backward formula; fits anywhere.
Place = Literal["cpu", "gpu", "nowhere"]

#: Operators in which a 0-dim tensor of the CPU may meet tensors of the GPU, beside pointwise ones.
_TAKES_SCALARS = {
    "fill", "fill_", "masked_fill", "masked_fill_", "where", "index_fill", "index_fill_",
}  # fmt: skip
#: Pointwise operators that take no scalar of the CPU in every version of torch we support.
_TAKES_NONE = {
    "addcmul", "addcmul_", "addcdiv", "addcdiv_", "lerp", "lerp_", "clamp", "clamp_", "clamp_min",
    "clamp_max", "clamp_min_", "clamp_max_",
}  # fmt: skip
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
#: Operators that read a value, or whose output has a size that depends on values.
_WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2",
    "unique_dim", "equal", "is_nonzero", "bincount", "histc", "repeat_interleave",
    # They check that the decomposition succeeded.
    "linalg_eigh", "_linalg_eigh", "linalg_cholesky", "cholesky", "_linalg_slogdet",
    "_linalg_svd", "linalg_lstsq", "_linalg_check_errors",
}  # fmt: skip
#: Views, and memory without values: no kernel.
_LAUNCHES_NOTHING = {
    "detach", "alias", "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice",
    "select", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "as_strided",
    "diagonal", "reshape", "_reshape_alias", "unfold", "lift_fresh", "empty", "empty_like",
    "new_empty", "empty_strided", "new_empty_strided", "chunk", "expand_as", "view_as",
    "is_same_size", "sym_size", "sym_stride", "sym_numel", "set_", "real", "movedim",
}  # fmt: skip


class DeviceError(RuntimeError):
    """What CUDA would refuse."""


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _inner(tensor: Tensor) -> Tensor:
    """Return the tensor inside functorch's wrappers."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


class Places:
    """The place of each storage, by its address; a storage without an entry is on the CPU.

    The weak references keep addresses from being used again.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, Place]] = {}
        self._cleaned_at = 4096
        atexit.register(lambda: self._of.clear())  # torch goes before them

    def storage(self, tensor: Tensor) -> torch.UntypedStorage | None:
        """Return the storage that holds a tensor's values; None for "meta" and sparse tensors."""
        with torch._C.DisableTorchFunction():
            tensor = _inner(tensor)
            if tensor.is_meta or tensor.layout != torch.strided:
                return None
            return tensor.untyped_storage()

    def of(self, tensor: Tensor) -> Place:
        """Return where a tensor is."""
        storage = self.storage(tensor)
        if storage is None:
            return "nowhere"
        found = self._of.get(storage._cdata)
        return "cpu" if found is None else found[1]

    def put(self, tensor: Tensor, place: Place) -> None:
        """Say where a tensor is, and all that share its storage."""
        storage = self.storage(tensor)
        if storage is None:
            return
        if place == "cpu":
            self._of.pop(storage._cdata, None)
        else:
            self._of[storage._cdata] = (StorageWeakRef(storage), place)
        if len(self._of) > self._cleaned_at:
            self._of = {key: one for key, one in self._of.items() if not one[0].expired()}
            self._cleaned_at = 4096 + 2 * len(self._of)


def launches(name: str) -> bool:
    """Tell whether an operator on the GPU launches a kernel."""
    return name not in _LAUNCHES_NOTHING


def waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the host waits for the result of an operator on the GPU."""
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    by_mask = name in _INDEXED and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    return by_mask or name in _WAITS


def refusal(function: Any, args: Sequence[Any], tensors: Sequence[Tensor], of: Places) -> str:
    """Return why CUDA refuses an operator on tensors of both devices, or an empty string.

    Args:
        function: the overload, such as `torch.ops.aten.add.Tensor`.
        args: its arguments.
        tensors: those among all its arguments, of which at least one is on the GPU.
        of: where they are.
    """
    name = function._overloadpacket.__name__
    strays = [tensor for tensor in tensors if of.of(tensor) == "cpu"]
    if not strays or name in ("copy_", "_to_copy", "set_"):
        return ""
    if name in _INDEXED:
        return _refused_index(name, args, of)
    pointwise = torch.Tag.pointwise in function.tags and name not in _TAKES_NONE
    numbers = all(not stray.ndim for stray in strays) and (len(strays) == 1 or name == "where")
    written = function._schema.arguments[0].alias_info
    into_cpu = written is not None and written.is_write and of.of(tensors[0]) == "cpu"
    if numbers and not into_cpu and (pointwise or name in _TAKES_SCALARS):
        return ""
    what = ", ".join(f"{of.of(tensor)} {tuple(tensor.shape)}" for tensor in tensors)
    return f"aten.{name}: expected all tensors to be on the same device, but got {what}"


def _refused_index(name: str, args: Sequence[Any], of: Places) -> str:
    """Return why an index is refused; a tensor of the GPU takes one of the CPU and copies it."""
    whole = of.of(args[0])
    indices = [of.of(index) for index in args[1] if index is not None]
    if whole == "cpu" and "gpu" in indices:
        return f"aten.{name}: a tensor of the CPU is indexed by one of the GPU"
    values = [] if name == "index" else [args[2]]
    for value in values:
        place = of.of(value)
        if place not in (whole, "nowhere") and (value.ndim or whole == "cpu"):
            return f"aten.{name}: values on the {place} for a tensor on the {whole}"
    return ""


def indexed_from_cpu(name: str, args: Sequence[Any], of: Places) -> int:
    """Return how many index tensors an operator copies from the CPU."""
    if name not in _INDEXED or of.of(args[0]) != "gpu":
        return 0
    return sum(index is not None and of.of(index) == "cpu" for index in args[1])


def outputs_elsewhere(found: object, tensors: Sequence[Tensor], of: Places) -> Iterator[Tensor]:
    """Return the outputs of an operator whose storage none of its inputs has."""
    known = {storage._cdata for tensor in tensors if (storage := of.storage(tensor)) is not None}
    for output in tensors_in(found):
        storage = of.storage(output)
        if storage is not None and storage._cdata not in known:
            yield output
