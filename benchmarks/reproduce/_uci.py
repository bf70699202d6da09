"""UCI sets by split and kind of curvature, for Table 1 and Table C4 of Immer et al. 2021.

One hidden layer of 50 ReLU units. Published are means and standard errors over ten splits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ._immer import Fitted, fit, mlp
from ._panels import panels
from ._published import Run
from ._shared_data import Examples

KINDS = ("full_ggn", "full_ef", "kfac_ggn", "diag_ggn", "diag_ef")
FULL, DIAGONAL = KINDS[:2], KINDS[3:]
LINEARISED = "kfac_ggn, linearised"
COLUMNS = (*KINDS, LINEARISED)


@dataclass(frozen=True)
class Split:
    """Split k of a set, and the kinds that are trained on it for some epochs."""

    name: str
    k: int
    train: Examples
    test: Examples
    n_outputs: int
    kinds: Sequence[str]
    epochs: int
    batch_size: int
    scale: float = 1.0  # of real targets


def table(*columns: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """Return means and errors by column, from all means and all errors; the last is of MAP."""
    return dict(zip((*COLUMNS, "MAP"), zip(*columns, strict=True), strict=False))


def measured(
    at: Run,
    splits: Iterable[Split],
    mode: Callable[[Fitted], Any],
    linearised: Callable[[Fitted], Any],
) -> dict[str, dict[str, list[Any]]]:
    """Return what the mode of each training and the linearised KFAC give, by set and column."""
    found = {}
    for one in splits:
        of_set = found.setdefault(one.name, {column: [] for column in COLUMNS})
        for kind in one.kinds:
            at.say(f"{one.name}, split {one.k}, {kind}")
            every = 40 if at.quick and kind in FULL else at.sized(10, 1)
            fitted = fit(
                mlp([one.train[0].shape[1], 50, one.n_outputs], nn.ReLU, one.k),
                one.train, one.test, scale=one.scale, seed=one.k, epochs=one.epochs,
                batch_size=one.batch_size, schedule=at.sized("cosine", "constant"),
                likelihood="gaussian" if one.n_outputs == 1 else "categorical",
                learning_rate=at.sized(0.01, 0.001), online={"every": every, "curvature": kind},
            )  # fmt: skip
            of_set[kind].append(mode(fitted))
            if kind == "kfac_ggn":
                of_set[LINEARISED].append(linearised(fitted))
    return found


def drawn(
    losses: Mapping[str, Mapping[str, Sequence[float]]],
    published: Mapping[str, Mapping[str, tuple[float, ...]]],
    labels: Sequence[str],
    **settings: Any,
) -> Any:
    """Return a figure of test log losses by set and column, beside the published means."""
    figure, axis = panels(8, 3.4)
    for i, name in enumerate(losses):
        zero = published[name]["kfac_ggn"][0]
        for j, column in enumerate(COLUMNS):
            values, x = [loss - zero for loss in losses[name][column]], i + 0.12 * j
            label = None if i else column
            axis.plot(
                [x] * len(values), values, "*+o^sx"[j], color=f"C{j}", markersize=4, label=label
            )
            axis.plot(x, published[name][column][0] - zero, "_", color="k", markersize=10)
    axis.set_xticks(range(len(labels)), labels, fontsize=7)
    axis.set(ylabel="test log loss minus published KFAC\n(bar: published), nats", **settings)
    axis.legend(fontsize=7)
    return figure
