"""A GPU without a GPU: tensors of the CPU play tensors of CUDA, and the rules about devices hold.

    with FakeGpu() as gpu:
        ...  # code that says device="cuda", x.to(device), x.cpu(), x.numpy()
    gpu.launches, gpu.reads, gpu.copies

Values are real, so whole trials run, through float(x), L-BFGS, eigh, `vmap` and checkpoints. What
is on the GPU says so in `x.device`, so its branches are taken. An operator on tensors of both
devices raises `DeviceError` where CUDA would refuse it; so do `x.numpy()` of the GPU, and random
numbers of one device from a generator of the other.

Two modes see what happens. `_Api` sees what Python calls: devices as arguments, `.device`, `.to`,
`.cpu`, `.numpy`, generators. `_Operators` sees every operator below autograd and functorch, those
of backward passes included: it checks the inputs, counts, and notes where outputs are. Attributes
are answered in Python alone: C++ that branches on the device takes the branch of the CPU.

Not seen: kernels that CUDA lacks, their rounding and order of sums, memory, autocast,
torch.compile, and errors that CUDA reports late. What a program traced by `make_fx` makes from
nothing fits everywhere, since it knows the device that C++ sees.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.autograd
from device_rules import (
    DeviceError,
    Place,
    Places,
    indexed_from_cpu,
    launches,
    outputs_elsewhere,
    refusal,
    tensors_in,
    waits,
)
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_GPU = torch.device("cuda", 0)
#: One for all GPUs: what the project keeps for a device outlives one of them.
_PLACES = Places()


class FakeGpu(contextlib.AbstractContextManager["FakeGpu"]):
    """An invented GPU in a `with`, and what was done on it.

    launches  operators that launch a kernel, by name
    reads     times that the host waited for a value, by line of the project
    copies    tensors copied from the CPU, by line of the project
    """

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "FakeGpu":
        stack = self._stack.__enter__()
        answers: dict[str, Callable[..., object]] = {
            "is_available": lambda: True,
            "is_current_stream_capturing": lambda: False,  # asked by torch's Adam
            "synchronize": lambda *_: self.note_read("synchronize"),
            "mem_get_info": lambda *_: (80 << 30, 80 << 30),
            "empty_cache": lambda: None,
            "set_per_process_memory_fraction": lambda *_: None,
            "get_device_name": lambda *_: "a GPU that does not exist",
            "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *_: None,
        }
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stream = SimpleNamespace(is_capturing=lambda: False)
        current = mock.patch.object(torch.accelerator, "current_stream", return_value=stream)
        stack.enter_context(current)
        cudnn = mock.patch.object(torch.backends.cudnn, "is_acceptable", return_value=False)
        stack.enter_context(cudnn)  # asked by recurrent layers
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def backward(*args: Any, **kwargs: Any) -> Any:
            with _Api(self):  # torch leaves it out inside its own functions, and so inside hooks
                return run_backward(*args, **kwargs)

        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(_Operators(self))
        stack.enter_context(_Api(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def forget(self) -> None:
        """Count from zero again."""
        for counter in (self.launches, self.reads, self.copies):
            counter.clear()

    def note_read(self, what: str) -> None:
        """Count a wait of the host."""
        self.reads[f"{_line()} {what}"] += 1

    def note_copies(self, number: int = 1) -> None:
        """Count tensors copied from the CPU."""
        if number:
            self.copies[_line()] += number

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing of what is done inside."""
        before = [counter.copy() for counter in (self.launches, self.reads, self.copies)]
        try:
            yield
        finally:
            self.launches, self.reads, self.copies = before


def _line() -> str:
    """Return the innermost line of the project that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        _, found, file = frame.f_code.co_filename.rpartition("/nas_evidence/")
        if found:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class _Generator(torch.Generator):
    """A generator of the CPU that says where it would be."""

    place: Place

    def __new__(cls, device: object = "cpu") -> "_Generator":
        found = super().__new__(cls, "cpu")
        found.place = _place(device) or "cpu"
        return found

    def __init__(self, device: object = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        """Where it would be."""
        return _GPU if self.place == "gpu" else torch.device("cpu")


def _place(device: object) -> Place | None:
    """Return the place that a device means; None for no device and for "meta"."""
    if device is None or isinstance(device, bool):
        return None
    kind = torch.device(device).type if isinstance(device, str) else None
    if isinstance(device, int) or kind == "cuda" or getattr(device, "type", "") == "cuda":
        return "gpu"
    return "cpu" if kind == "cpu" or getattr(device, "type", "") == "cpu" else None


#: Those that copy what they are given.
_FROM_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)


class _Api(TorchFunctionMode):
    """What Python calls."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "__get__" and first is not None:
            return self._attribute(function, first, args, kwargs)
        if first is not None:
            if name in ("numpy", "__array__", "__dlpack__") and self._on_gpu(first):
                raise DeviceError("can't convert a tensor of cuda:0 to numpy; use .cpu() first")
            if name == "tolist" and self._on_gpu(first):
                self.gpu.note_read("tolist")
            if name in ("cpu", "cuda"):
                return self._moved(first, "gpu" if name == "cuda" else "cpu", lambda: first)
            if name in ("to", "type_as"):
                return self._to(function, args, kwargs)
            if name == "__deepcopy__":
                with self.gpu.uncounted():  # it goes through the storage
                    found = function(*args, **kwargs)
                _PLACES.put(found, _PLACES.of(first))
                return found
        return self._made(function, first, args, kwargs)

    def _on_gpu(self, tensor: Tensor) -> bool:
        return _PLACES.of(tensor) == "gpu"

    def _attribute(self, function: Any, tensor: Tensor, args: Any, kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if self._on_gpu(tensor):
            if owner is Tensor.device:
                return _GPU
            if owner in (Tensor.is_cuda, Tensor.is_cpu):
                return owner is Tensor.is_cuda
        return function(*args, **kwargs)

    def _made(self, function: Any, first: Tensor | None, args: Any, kwargs: Any) -> Any:
        """Call a function on the CPU, and note where what it makes would be."""
        if isinstance(function, torch._ops.OpOverload):
            return function(*args, **kwargs)  # of a traced program, which knows the CPU alone
        wanted = _place(kwargs.get("device"))
        if wanted == "gpu":
            kwargs["device"] = torch.device("cpu")
        inherited = None if first is None else _PLACES.of(first)
        generator = kwargs.get("generator")
        if generator is not None:
            drawn = getattr(generator, "place", "cpu")
            if (wanted or inherited or "cpu") not in (drawn, "nowhere"):
                raise DeviceError(
                    f"expected a generator on the {wanted or inherited or 'cpu'}, but it is on "
                    f"the {drawn}"
                )
        found = function(*args, **kwargs)
        if not isinstance(found, Tensor):
            return found
        if getattr(function, "__name__", "") == "new_tensor":
            wanted = wanted or inherited
            if wanted == "gpu" and not self._on_gpu(found):
                self.gpu.note_copies()
        elif function in _FROM_VALUES and first is None and wanted == "gpu":
            self.gpu.note_copies()
            # It may share the memory of an array.
            found = found if function is torch.tensor else found.clone()
        elif function in _FROM_VALUES and first is not None:
            return self._moved(found, wanted or _PLACES.of(first), lambda: found)
        if wanted is not None:
            _PLACES.put(found, wanted)
        elif _PLACES.of(found) == "nowhere" and not tensors_in(args, kwargs):
            _PLACES.put(found, "cpu")
        return found

    def _to(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Convert the type as torch does; the device is a matter of `_moved`."""
        first, rest = args[0], list(args[1:])
        kwargs.pop("copy", None)
        if isinstance(kwargs.get("other"), Tensor):
            rest = [kwargs.pop("other"), *rest]
        memory = kwargs.get("memory_format")
        wanted: Place | None
        if rest and isinstance(rest[0], Tensor):
            dtype, wanted = rest[0].dtype, _PLACES.of(rest[0])
        else:
            device, dtype, _, memory = torch._C._nn._parse_to(*rest, **kwargs)
            if first.is_meta or (device is not None and device.type == "meta"):
                return function(*args, **kwargs)
            wanted = _place(device)
        how = {} if memory is None else {"memory_format": memory}

        def converted() -> Tensor:
            if dtype is None and memory is None:
                return first
            return first.to(first.dtype if dtype is None else dtype, **how)

        return self._moved(first, wanted or _PLACES.of(first), converted)

    def _moved(self, first: Tensor, wanted: Place, converted: Callable[[], Tensor]) -> Tensor:
        """Return a tensor, converted, at another place: a read or a copy, if it was not there."""
        place, found = _PLACES.of(first), converted()
        if first.is_meta or wanted in (place, "nowhere"):
            return found
        if place == "gpu":
            self.gpu.note_read("to the CPU")
        elif place == "cpu":
            self.gpu.note_copies()
        if found.untyped_storage()._cdata == first.untyped_storage()._cdata:
            with self.gpu.uncounted():
                found = found.clone()
        _PLACES.put(found, wanted)
        return found


class _Operators(TorchDispatchMode):
    """What is computed."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(function, args, kwargs or {})

    def _run(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = function._overloadpacket.__name__
        tensors = tensors_in(args, kwargs)
        places = [_PLACES.of(tensor) for tensor in tensors]
        if "gpu" in places:
            self._look(function, args, kwargs, tensors, places)
        found = function(*args, **kwargs)
        place: Place
        if name == "copy_":
            place = places[0]
        elif "gpu" in places:
            place = "gpu"
        else:
            place = "cpu" if "cpu" in places else "nowhere"
        for output in outputs_elsewhere(found, tensors, _PLACES):
            _PLACES.put(output, place)
        if place == "gpu":  # what was nowhere and is written to is there now
            for output in tensors_in(found):
                if _PLACES.of(output) == "nowhere":
                    _PLACES.put(output, place)
        return found

    def _look(
        self, function: Any, args: Any, kwargs: Any, tensors: list[Tensor], places: list[Place]
    ) -> None:
        """Refuse what CUDA would refuse, and count."""
        name = function._overloadpacket.__name__
        if reason := refusal(function, args, tensors, _PLACES):
            raise DeviceError(f"{reason}, at {_line()}")
        if launches(name):
            self.gpu.launches[name] += 1
        if waits(name, args, kwargs) or (name == "copy_" and places[:2] == ["cpu", "gpu"]):
            self.gpu.note_read(name)
        self.gpu.note_copies(indexed_from_cpu(name, args, _PLACES))
        self.gpu.note_copies(name == "copy_" and places[:2] == ["gpu", "cpu"])
