"""Convolutional networks with Fixup scalars (Immer et al., 2021, appendix C.5).

    block i = 1..depth   conv 3x3 -> scale -> bias -> ReLU -> max-pool 2x2 (not in block 1)
    channels             width * 2^(i-1)
    head                 mean over a grid of cells (by depth: 4x4, 3x3, 2x2, 1x2, 1x1) -> linear

The grid is not in the paper; it is inferred from the published parameter counts: for each of the
62 CNNs the published count exceeds that of weights and biases here by 16 + 42 depth.

The head starts at zero, as in Fixup (Zhang, Dauphin & Ma, 2019). With He's rule there, the first
gradients of the scalars, sums over all pixels, permanently switch off the ReLUs of whole blocks
for some seeds.
"""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nas_evidence.models.fixup import FixupBias, FixupScale
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.pooling import CELLS, feature_map, shortage


class CellMean(nn.Module):
    """Average over a grid of cells, like `nn.AdaptiveAvgPool2d`, by two small products.

    Where cells overlap, torch's version adds gradients atomically on a GPU, so runs are not
    bit-reproducible. The products are, and they are faster on a CPU.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, feature_map: tuple[int, int], cells: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("rows", _averages(feature_map[0], cells[0]), persistent=False)
        self.register_buffer("columns", _averages(feature_map[1], cells[1]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the means [n, C, *cells] of `x` [n, C, *feature_map]."""
        x = torch.einsum("nchw,ih->nciw", x, self.rows)
        return torch.einsum("nciw,jw->ncij", x, self.columns)


def construct(
    values: Mapping[str, ParameterValue], input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    """Return the network; weights are not yet initialised."""
    depth = int(values["depth"])
    c_in, height, width = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, depth + 1):
        c_out = int(values["width"]) * 2 ** (i - 1)
        layers[f"conv{i}"] = nn.Conv2d(c_in, c_out, 3, padding=1)
        layers[f"scale{i}"] = FixupScale()
        layers[f"bias{i}"] = FixupBias()
        layers[f"relu{i}"] = nn.ReLU()
        if i > 1:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        c_in = c_out
    rows, columns = CELLS[depth]
    layers["mean"] = CellMean(feature_map(depth, height, width), (rows, columns))
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(c_in * rows * columns, n_outputs)
    return nn.Sequential(layers)


def obstacle(values: Mapping[str, ParameterValue], input_shape: tuple[int, ...]) -> str | None:
    """Return why the input does not fit the network, or None."""
    if len(input_shape) != 3:
        return f"cnn needs images [channels, height, width], but an input is {list(input_shape)}"
    _, height, width = input_shape
    fitting = [depth for depth in CELLS if shortage(depth, height, width) is None]
    lacks = shortage(int(values["depth"]), height, width)
    if lacks is None:
        return None
    remedy = f"depths that fit are {fitting}" if fitting else "no depth fits"
    return f"cnn {lacks}; {remedy}"


def gain(name: str, values: Mapping[str, ParameterValue]) -> float:
    """Return the factor on He's standard deviation for the weight called `name`."""
    return 0.0 if name == "head.weight" else 1.0


def _averages(size: int, cells: int) -> Tensor:
    """Return the matrix [cells, size] that averages the bins of torch's adaptive pooling."""
    matrix = torch.zeros(cells, size, dtype=torch.float32, device="cpu")  # never on "meta"
    for i in range(cells):
        start, stop = i * size // cells, -(-(i + 1) * size // cells)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix
