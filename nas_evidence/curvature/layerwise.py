"""Collectors for curvature with one block per parameter tensor.

    diagonal   h_p = Σ_{n,k} (∂ r_k·f_n / ∂θ_p)²
    Kronecker  SA = Σ_{n,t} a aᵀ,  SB = Σ_{n,t,k} g sᵀ;  weight block SB ⊗ SA / (N |T|), bias
               block Σ_{n,k} (Σ_t g)(Σ_t g)ᵀ, exact                    (Martens & Grosse 2015)
    reduce     SA = Σ_n ā āᵀ with ā the mean over t, SB the bias block; weight block SB ⊗ SA / N,
               for layers whose output is averaged over positions (Eschenhagen et al. 2023)
    EKFAC      the diagonal in the eigenbasis of the Kronecker block   (George et al. 2018)
    dense      Σ_{n,k} j jᵀ with j the gradient of one datum; the Kronecker kinds use it for
               the parameters of normalisation layers, Fixup scalars and modules without a rule

    r_k  the vectors of a batch: K = C − 1 roots of the output Hessian, one Monte-Carlo root, or
         the residual (empirical Fisher); g, a as in `layers`.

Up to `FLUSH_EVERY` terms are summed in the dtype of the model, these partial sums in float64.
Some factors are summed in float64 throughout, from values in the dtype of the model: the inputs of
the first layer and of wide linear layers, and gradients of few outputs. Products in float32 leave
noise up to ε λ_max in each eigenvalue, those in float64 of float32 values up to ε² λ_max. With 784
smooth inputs the noise was worth 2 to 37 nats at a prior precision of 0.01, in the null vector of
a softmax 0.8.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import Collector, EachColumn
from nas_evidence.curvature.embedding import EmbeddingLayer
from nas_evidence.curvature.layers import Layer, SmallLayer, WeightLayer, WholeModel
from nas_evidence.curvature.memory import require_memory, squares
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.curvature.wide import keeps_rows
from nas_evidence.maths.blocks import Block, Dense, Diagonal, FewInputs, Kronecker, Once, Rotated
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.plumbing.user_error import UserError

DOUBLE = torch.finfo(torch.float64).eps
#: Terms summed in the model's dtype before they are added in float64. Adding a large matrix in
#: float64 for each batch would cost a third of the pass; 16 terms lose no more accuracy than a
#: 16 times larger batch.
FLUSH_EVERY = 16

#: Inputs of a linear layer above which SA is summed in float64. A hidden layer of 256 smooth
#: inputs loses up to 0.2 nats in float32 at a prior precision of 0.01, one of 600 3.8 nats.
WIDE_INPUTS = 256
#: Outputs of a linear layer up to which SB is summed in float64. Most networks end in such a
#: layer, and the gradients of a softmax sum to 0. Products of so few columns cost little.
FEW_OUTPUTS = 32


@dataclass
class Sums:
    """Named sums, created on first use; float64 except for the last few terms of another dtype."""

    totals: dict[str, Tensor] = field(default_factory=dict)
    latest: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def add(self, name: str, term: Tensor) -> None:
        """Add a term of any dtype; the sum may take it over and modify it."""
        if name in self.latest:
            partial, count = self.latest[name]
            partial += term
        else:
            partial, count = term, 0
        self._count(name, partial, count + 1)

    def add_gram(self, name: str, rows: Tensor) -> None:
        """Add the Gram matrices rowsᵀ rows of rows [groups, m, d], in place."""
        if name in self.latest:
            partial, count = self.latest[name]
            partial.baddbmm_(rows.mT, rows)
            self._count(name, partial, count + 1)
        else:
            self.add(name, rows.mT @ rows)

    def total(self, name: str) -> Tensor:
        """Return the sum, float64."""
        if name in self.latest:
            self._flush(name)
        return self.totals[name]

    def _count(self, name: str, partial: Tensor, count: int) -> None:
        self.latest[name] = (partial, count)
        if count == FLUSH_EVERY:
            self._flush(name)

    def _flush(self, name: str) -> None:
        partial, _ = self.latest.pop(name)
        if name in self.totals:
            self.totals[name] += partial
        else:
            self.totals[name] = partial.double()


@dataclass
class DiagonalCollector(Collector):
    """Sums of squared gradients."""

    layers: tuple[Layer, ...]
    sums: Sums = field(default_factory=Sums)
    squared: dict[str, Tensor] = field(default_factory=dict)  # Σ_k s² of the batch [n, d_out]

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Add the squares of one column; with a single position sum s² until the last column."""
        assert a is not None
        if not isinstance(layer, WeightLayer):
            if isinstance(layer, SmallLayer | WholeModel):
                self._add(layer, tuple(one.square().sum(0) for one in layer.gradients(a, g)))
            else:
                self._add(layer, layer.squares(a, g))
            return
        if g.ndim > 2:
            self._add(layer, layer.squares(a, g))
            return
        if layer.path in self.squared:
            self.squared[layer.path].addcmul_(g, g)
        else:
            self.squared[layer.path] = g.square()
        if last:
            self._add(layer, layer.outer_squares(a, self.squared.pop(layer.path)))

    def _add(self, layer: Layer, squares: tuple[Tensor, ...]) -> None:
        for name, square in zip(layer.names, squares, strict=True):
            self.sums.add(name, square)

    def finish(self) -> BlockDiagonal:
        """Return the diagonal."""
        names = tuple(name for layer in self.layers for name in layer.names)
        return BlockDiagonal(names, tuple(Diagonal(self.sums.total(n).flatten()) for n in names))


#: SA [groups, d_in, d_in] of a layer, or the rows of a wide one, with its decompositions.
InputFactor = tuple[Tensor, Once]
#: Bytes of the matrices SA kept with one data set; eigenvectors take as much again.
MOST_KEPT = 1 << 28


@dataclass
class Inputs:
    """What Kronecker blocks keep of the inputs of layers; the same for every draw of columns.

    SA of a layer whose input is the data depends on no parameter. `kept`, owned by the data, has
    those that earlier passes found: of 784 inputs SA is most of a pass, of 3,072 nearly all.
    """

    data: Tensor
    batch_size: int
    reduced: frozenset[str] = frozenset()
    kept: dict[Any, InputFactor] | None = None
    sums: Sums = field(default_factory=Sums)
    rows: dict[str, tuple[Tensor, int]] = field(default_factory=dict)  # of wide layers; how many
    keys: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of layers that read the data
    factors: dict[str, InputFactor] = field(default_factory=dict)
    double: dict[str, bool] = field(default_factory=dict)  # whether SA is summed in float64

    def add(self, layer: WeightLayer, a: Tensor) -> None:
        """Add the input of a batch, unless an earlier pass has summed that of all."""
        if layer.path in self.factors:
            return
        reduced = layer.path in self.reduced
        if not reduced and keeps_rows(layer.module, self._n_rows(a)):
            self._add_rows(layer.path, a)
            return
        is_batch = self._is_batch(a)
        if layer.path not in self.double:  # the first layer called reads the data, or nearly so
            wide = isinstance(layer.module, nn.Linear) and layer.module.in_features > WIDE_INPUTS
            self.double[layer.path] = not self.double or is_batch or wide
        if self.kept is not None and not reduced and is_batch:
            key = self._key(layer, a)
            if key in self.kept:
                self.factors[layer.path] = self.kept[key]
                return
            self.keys[layer.path] = key
        if self.double[layer.path]:
            a = a.double()
        gram = None if reduced else layer.input_gram(a)
        if gram is not None:
            self.sums.add(layer.path, gram)
            return
        for rows in [layer.mean_rows(a)] if reduced else layer.input_rows(a):
            self.sums.add_gram(layer.path, rows)

    def factor(self, path: str) -> InputFactor:
        """Return SA or, of a wide layer, its rows; all draws share the decompositions."""
        if path not in self.factors:
            rows = self.rows.get(path)
            factor = (self.sums.total(path) if rows is None else rows[0], Once())
            self.factors[path] = factor
            if self.kept is not None and path in self.keys:
                if sum(matrix.nbytes for matrix, _ in (factor, *self.kept.values())) > MOST_KEPT:
                    self.kept.clear()
                if factor[0].nbytes <= MOST_KEPT:
                    self.kept[self.keys[path]] = factor
        return self.factors[path]

    def _is_batch(self, a: Tensor) -> bool:
        """Tell whether `a` is a batch of the data themselves, in another shape at most."""
        data = self.data
        if type(data) is not Tensor or data.device.type != "cpu":
            return False  # rows of a file, or of a GPU
        whole = a.numel() == len(a) * data[0].numel() and a.is_contiguous()
        same = a.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
        return whole and data.is_contiguous() and same

    def _key(self, layer: WeightLayer, a: Tensor) -> tuple[Any, ...]:
        """Return what SA of the data depends on: the layer's geometry, and by rounding batches."""
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        geometry = (getattr(layer.module, name, None) for name in names)
        return (type(layer.module), *geometry, *a.shape[1:], self.batch_size)

    def _n_rows(self, a: Tensor) -> int:
        """Return the number of rows of a linear layer's input, over all data."""
        return len(self.data) * a[0].numel() // a.shape[-1]

    def _add_rows(self, path: str, a: Tensor) -> None:
        if path not in self.rows:
            self.double[path] = True  # `FewInputs` multiplies its rows in float64
            self.rows[path] = (a.new_empty(self._n_rows(a), a.shape[-1]), 0)
        rows, n_before = self.rows[path]
        batch = a.reshape(-1, a.shape[-1])
        rows[n_before : n_before + len(batch)] = batch
        self.rows[path] = (rows, n_before + len(batch))


@dataclass
class KroneckerCollector(Collector):
    """Sums of outer products of inputs and of output gradients."""

    layers: tuple[Layer, ...]
    n_data: int
    inputs: Inputs
    sums: Sums = field(default_factory=Sums)
    n_positions: dict[str, int] = field(default_factory=dict)

    def keep(self, layer: Layer, a: Tensor) -> Tensor | None:
        """Add the input factor; a weight layer's input is then no longer needed."""
        if isinstance(layer, WeightLayer):
            self.inputs.add(layer, a)
            return None
        if isinstance(layer, EmbeddingLayer):
            self.inputs.sums.add(layer.path, layer.counts(a))
            return None
        return a

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Add the gradient factors of one column."""
        if isinstance(layer, WeightLayer):
            self._same_positions(layer, g)
            reduced = layer.path in self.inputs.reduced
            gram = None if reduced else layer.gradient_gram(g)
            if gram is not None:
                self.sums.add(f"{layer.path}:B", gram)
            else:
                rows = layer.total_rows(g) if reduced else layer.gradient_rows(g)
                rows = rows.double() if _few_outputs(layer) else rows
                self.sums.add_gram(f"{layer.path}:B", rows)
            if len(layer.names) == 2 and not self._bias_is_gradient_factor(layer):
                self.sums.add_gram(layer.names[1], layer.gradient_totals(g)[None])
            return
        if isinstance(layer, EmbeddingLayer):
            self._same_positions(layer, g)
            self.sums.add_gram(f"{layer.path}:B", layer.gradient_rows(g))
            return
        assert a is not None
        for name, gradients in zip(layer.names, layer.gradients(a, g), strict=True):
            self.sums.add_gram(name, gradients[None])

    def finish(self) -> BlockDiagonal:
        """Return the blocks: Kronecker for weights, dense for all other parameters."""
        names: list[str] = []
        blocks: list[Block] = []
        for layer in self.layers:
            for position, name in enumerate(layer.names):
                names.append(name)
                if isinstance(layer, WeightLayer) and position == 0:
                    blocks.append(self._weight_block(layer))
                elif isinstance(layer, EmbeddingLayer):
                    blocks.append(self._embedding_block(layer))
                elif isinstance(layer, WeightLayer) and self._bias_is_gradient_factor(layer):
                    gradients = self.sums.total(f"{layer.path}:B")[0]
                    blocks.append(Dense(gradients, _rounding_of_gradients(layer)))
                else:
                    blocks.append(Dense(self.sums.total(name)[0], _rounding(layer)))
        return BlockDiagonal(tuple(names), tuple(blocks))

    def _weight_block(self, layer: Layer) -> Kronecker | FewInputs:
        gradients = self.sums.total(f"{layer.path}:B")
        n_positions = 1 if layer.path in self.inputs.reduced else self.n_positions[layer.path]
        inputs, once = self.inputs.factor(layer.path)
        block = FewInputs if layer.path in self.inputs.rows else Kronecker
        return block(
            inputs,
            gradients,
            self.n_data,
            n_positions,
            _rounding_of_gradients(layer),
            once,
            n_rows=self.n_data * n_positions,
            rounding_of_inputs=DOUBLE if self.inputs.double[layer.path] else _rounding(layer),
        )

    def _embedding_block(self, layer: EmbeddingLayer) -> Kronecker:
        counts = self.inputs.sums.total(layer.path)
        gradients = self.sums.total(f"{layer.path}:B")
        return layer.block(counts, gradients, self.n_data, self.n_positions[layer.path])

    def _bias_is_gradient_factor(self, layer: WeightLayer) -> bool:
        """Tell whether SB is built from Σ_t g, which makes it the exact block of the bias."""
        single = self.n_positions[layer.path] == 1 or layer.path in self.inputs.reduced
        return layer.groups == 1 and single

    def _same_positions(self, layer: WeightLayer | EmbeddingLayer, g: Tensor) -> None:
        found = layer.n_positions(g)
        if self.n_positions.setdefault(layer.path, found) != found:
            raise UserError(
                "positions-differ",
                f"`{layer.path}` has {found} positions in one batch and "
                f"{self.n_positions[layer.path]} in another; all data must have one shape",
            )


@dataclass
class EigenCollector(Collector):
    """The diagonal of weights in given eigenbases; other blocks come from the first pass."""

    layers: tuple[Layer, ...]
    first: BlockDiagonal
    bases: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        for name, block in zip(self.first.names, self.first.blocks, strict=True):
            if isinstance(block, Kronecker | FewInputs):
                basis = block.decomposed()
                self.bases[name] = (basis.left, basis.right)

    def keep(self, layer: Layer, a: Tensor) -> Tensor | None:
        """Keep the inputs of weight layers."""
        return a if isinstance(layer, WeightLayer | EmbeddingLayer) else None

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Add (Q_Bᵀ j Q_A)² of one column, j the gradient of a weight."""
        if not isinstance(layer, WeightLayer | EmbeddingLayer) or a is None:
            return
        left, right = (basis.to(g.dtype) for basis in self.bases[layer.names[0]])
        for columns, g_columns in layer.chunks(a, g):
            rotated = (left.mT @ g_columns) @ (right.mT @ columns).mT
            self.sums.add(layer.names[0], rotated.square_().sum(0))

    def finish(self) -> BlockDiagonal:
        """Return the corrected eigenvalues of weights and the exact blocks of other parameters."""
        blocks = tuple(
            Rotated(self.sums.total(name), *self.bases[name]) if name in self.bases else block
            for name, block in zip(self.first.names, self.first.blocks, strict=True)
        )
        return BlockDiagonal(self.first.names, blocks)


def diagonals(sweep: Sweep) -> list[BlockDiagonal]:
    """Return the diagonal of the curvature, one for each draw of columns."""
    return _drawn(sweep, lambda: DiagonalCollector(sweep.layers))


def kroneckers(sweep: Sweep) -> list[BlockDiagonal]:
    """Return Kronecker blocks for weights, exact dense blocks for all other parameters.

    One for each draw of columns; the factors of the inputs are summed once for all.
    """
    sides = [
        side
        for layer in sweep.layers
        for parameter in layer.module.parameters(recurse=False)
        for side in _sides(layer, parameter, len(sweep.inputs))
    ]
    what = f"Kronecker curvature with a factor of side {max(sides)}"
    require_memory(what, squares(sides), sweep.inputs.device, instead="a diagonal kind")
    inputs = Inputs(sweep.inputs, sweep.batch_size, sweep.reduced, sweep.kept)
    return _drawn(sweep, lambda: KroneckerCollector(sweep.layers, len(sweep.inputs), inputs))


def _drawn(
    sweep: Sweep, collector: Callable[[], DiagonalCollector | KroneckerCollector]
) -> list[BlockDiagonal]:
    """Return what a collector finds for each draw of columns, all in one sweep."""
    collectors = [collector() for _ in range(sweep.n_draws)]
    sweep.run(EachColumn(collectors) if len(collectors) > 1 else collectors[0])
    return [each.finish() for each in collectors]


def _rounding(layer: Layer) -> float:
    return float(torch.finfo(next(layer.module.parameters()).dtype).eps)


def _rounding_of_gradients(layer: Layer) -> float:
    """Return ε of the dtype that SB is summed in."""
    return DOUBLE if _few_outputs(layer) else _rounding(layer)


def _few_outputs(layer: Layer) -> bool:
    module = layer.module
    return isinstance(module, nn.Linear) and module.out_features <= FEW_OUTPUTS


def _sides(layer: Layer, parameter: Tensor, n_data: int) -> tuple[int, ...]:
    """Return the sides of the matrices kept for a parameter, or formed from its rows."""
    if isinstance(layer, WeightLayer | EmbeddingLayer) and parameter.ndim > 1:
        inputs = n_data if keeps_rows(layer.module, n_data) else parameter[0].numel()
        return (inputs, len(parameter))
    return (parameter.numel(),)


def eigen_corrected(sweep: Sweep) -> BlockDiagonal:
    """Return the Kronecker curvature with exact diagonals in its eigenbases; two sweeps."""
    (first,) = kroneckers(sweep)
    if not bool(first.trace().isfinite().all()):
        return first  # a diverged model has no eigenbasis; the caller sees its non-finite trace
    collector = EigenCollector(sweep.layers, first)
    sweep.run(collector)
    return collector.finish()
