"""How large a tensor a piece of code makes: bounds its memory without measuring it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else (result,)
        sizes = [part.numel() for part in parts if isinstance(part, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result
