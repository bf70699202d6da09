"""What an optimiser keeps between its steps; `together.Program` takes the steps.

An optimiser of `torch.optim` would do, but the first one of a process imports torch's compiler,
1.4 s of CPU time and 2.8 s on a cold disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Optimiser:
    """The state of SGD or Adam for one network.

    parameters  the tensors that it steps
    relative    factor on the learning rate of each of them
    moments     by name, a tensor of the shape of each of them
    steps       taken so far
    """

    parameters: Sequence[Tensor]
    relative: Sequence[float]
    moments: dict[str, list[Tensor]] = field(default_factory=dict)
    steps: int = 0

    def moment(self, name: str) -> list[Tensor]:
        """Return a moment of every parameter; zeros where there was none."""
        if name not in self.moments:
            self.moments[name] = [torch.zeros_like(p) for p in self.parameters]
        return self.moments[name]

    def state_dict(self) -> dict[str, Any]:
        """Return moments and steps, for `load_state_dict`."""
        return {"moments": dict(self.moments), "steps": self.steps}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of the same network, on the device of its parameters."""
        self.steps = int(stored["steps"])
        self.moments = {
            name: [t.to(p, copy=True) for t, p in zip(tensors, self.parameters, strict=True)]
            for name, tensors in stored["moments"].items()
        }
