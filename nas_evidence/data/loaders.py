"""Loaders, data sets and tensors as the two tensors that an evidence is of.

    x [n, ...], y [n, ...]    the rows that a training loop over them visits, each once

A `DataLoader` is read as it is: its sampler says which rows, its `collate_fn` what a row is. All
is read twice. Rows that change from one reading to the next, or count several times, have no
evidence of their own, and are refused with the remedy.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    default_collate,
)

from nas_evidence.plumbing.user_error import UserError

#: Names of the targets in a batch that is a mapping.
_TARGETS = ("y", "label", "labels", "target", "targets")
#: Rows at which a stream counts as endless.
_MOST_STREAMED = 1_000_000


@dataclass(frozen=True)
class VisitedRows:
    """The rows that a training visits.

    x, y     inputs [n, ...] and targets [n, ...]
    shorter  some rows as a batch of their own, and as in x, where the former is padded less
    """

    x: Tensor
    y: Tensor
    shorter: tuple[Tensor, Tensor] | None = None


def visited_rows(data: Any) -> VisitedRows:
    """Return the rows of a DataLoader, a data set, a list of pairs, or tensors (x, y).

    The state of global random generators and of those of the loader is left as it was.

    Raises:
        ValueError: if the rows are not the same in each epoch, count several times, or do not fit
            one tensor of inputs and one of targets; says why and what to do.
    """
    with _randomness_kept(data):
        found, again = _read(data), _read(data)
    if not (_same(found.x, again.x) and _same(found.y, again.y)):
        raise _varying(data)
    if len(found.x) != len(found.y) or len(found.x) == 0:
        raise UserError(
            "own-loop-rows",
            f"inputs and targets must have the same number of rows, at least one, but have "
            f"{len(found.x)} and {len(found.y)}",
        )
    return found


def _varying(data: Any) -> UserError:
    return UserError(
        "loader-rows-vary",
        f"`data`, a {type(data).__name__}, must hold the same rows each time it is read, and each "
        "row once, but does not; the evidence is of fixed data: leave out random augmentation and "
        "sampling with replacement, give rows as a torch.utils.data.Subset with shuffle=True, and "
        "let a stream begin anew in each epoch, in one order",
    )


def _read(data: Any) -> VisitedRows:
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            return _stream(data)
        rows = _visited(data)
        if data.batch_sampler is None:  # the data set gives batches
            return _joined([_pair(data.collate_fn(data.dataset[row])) for row in rows])
        return _collated(data.dataset, rows, data.collate_fn, data.batch_size or len(rows))
    if isinstance(data, IterableDataset):
        return _stream(DataLoader(data, batch_size=256))
    if isinstance(data, Mapping) or (
        isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data))
    ):
        return VisitedRows(*_pair(data))
    if not hasattr(data, "__getitem__") or not isinstance(data, Sized):
        raise UserError(
            "own-loop-data",
            "`data` must be a DataLoader or Dataset with a length, pairs, or tensors (x, y), but "
            f"got a {type(data).__name__}; every update needs all data in a fixed order",
        )
    return _collated(data, range(len(data)), default_collate, len(data))


def _visited(loader: "DataLoader[Any]") -> Sequence[int]:
    """Return the rows that the epochs of a loader visit, in ascending order.

    Samplers are copied, so that what counts its epochs goes on as if nothing had been drawn.
    """
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    if isinstance(sampler, DistributedSampler):  # this process draws its part of them
        return range(len(sampler.dataset))  # type: ignore[arg-type]
    if isinstance(sampler, Iterator):  # can be read only once
        raise _varying(loader)
    if batches is None:
        rows = [*copy.copy(sampler)]
    else:
        own = copy.copy(batches)
        if sampler is not batches:
            own.sampler = copy.copy(sampler)  # type: ignore[attr-defined]
        rows = [row for batch in own for row in batch]
        if rows and type(batches) is BatchSampler and batches.drop_last:
            one, other = ([*copy.copy(sampler)] for _ in range(2))
            if one != other:  # an epoch leaves out others each time, so all are visited
                rows = one
    if len({*rows}) < len(rows):
        raise _varying(loader)
    return sorted(map(int, rows))


def _collated(
    data: Any, rows: Sequence[int], collate: Callable[[list[Any]], Any], size: int
) -> VisitedRows:
    """Return rows of a data set as one batch, checked to be the same in a smaller one."""
    if not rows:
        return VisitedRows(torch.zeros(0), torch.zeros(0))
    if isinstance(data, TensorDataset) and collate is default_collate:
        return VisitedRows(*_pair(data[torch.as_tensor(rows)]))
    many = getattr(data, "__getitems__", None)
    items = [data[row] for row in rows] if many is None else [*many([*rows])]
    x, y = _pair(_put_together(collate, items))
    if collate is default_collate:
        return VisitedRows(x, y)
    last = list(range(len(rows)))[: -min(size, len(rows)) - 1 : -1]
    few, few_y = _pair(_put_together(collate, [items[i] for i in last]))
    if len(x) != len(rows) or not _is_corner(few, x[last]) or not _same(few_y, y[last]):
        raise UserError(
            "loader-collate-varies",
            "`collate_fn` gives rows other values in another batch, or each time, so that the "
            "training has no fixed data; let it treat each row by itself, and pad at the end only",
        )
    return VisitedRows(x, y, None if few.shape[1:] == x.shape[1:] else (few, x[last]))


def _is_corner(few: Tensor, whole: Tensor) -> bool:
    """Tell whether rows are the same as padded ones, up to the padding at their ends."""
    if few.ndim != whole.ndim:
        return False
    return _same(whole[tuple(slice(length) for length in few.shape)], few)


def _put_together(collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return collate(items)
    except (RuntimeError, TypeError, ValueError) as error:
        first = " ".join(str(error).strip().splitlines()[:1])
        raise UserError(
            "loader-rows-differ",
            f"the rows cannot be put together as one batch: {first}; give rows of one shape, or a "
            "`collate_fn` that pads any number of them",
        ) from error


def _stream(loader: "DataLoader[Any]") -> VisitedRows:
    """Return the rows of a data set that can only be read from its beginning to its end."""
    parts, n = [], 0
    for batch in loader:
        x, y = _pair(batch)
        parts.append((x[None], y[None]) if loader.batch_size is None and y.ndim == 0 else (x, y))
        n += len(parts[-1][0])
        if n > _MOST_STREAMED:
            raise UserError(
                "loader-stream-endless",
                f"the stream, a {type(loader.dataset).__name__}, has not ended after "
                f"{_MOST_STREAMED:,} rows; the evidence is of all data of an epoch, so give one "
                "that ends, or tensors (x, y)",
            )
    return _joined(parts)


def _joined(batches: list[tuple[Tensor, Tensor]]) -> VisitedRows:
    shapes = {x.shape[1:] for x, _ in batches}
    if len(shapes) > 1:
        raise UserError(
            "loader-shapes-differ",
            f"the inputs of batches have the shapes {sorted(map(list, shapes))[:3]}; give all "
            "rows one shape, such as sequences padded to one length",
        )
    parts = zip(*batches, strict=True) if batches else [(torch.zeros(0),)] * 2
    return VisitedRows(*(torch.cat([*part]) for part in parts))


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a batch: a pair, or a mapping with a name for the targets."""
    parts = batch
    if isinstance(batch, Mapping):
        named = sorted(batch, key=lambda name: str(name).lower() in _TARGETS)
        is_target = [str(name).lower() in _TARGETS for name in named]
        parts = [batch[name] for name in named] if is_target == [False, True] else batch
    if (
        not isinstance(parts, tuple | list)
        or len(parts) != 2
        or not all(_is_array(part) for part in parts)
    ):
        found = [*batch] if isinstance(batch, Mapping) else batch
        held = [f"`{one}`" if isinstance(one, str) else type(one).__name__ for one in found][:5]
        raise UserError(
            "own-loop-pairs",
            f"`data` must hold pairs (input, target) of tensors, or two tensors by name, one of "
            f"them {', '.join(_TARGETS)}, but holds {len(found)} parts: {', '.join(held)}; let "
            "the network take one tensor, and give tensors (x, y) of these",
        )
    x, y = (torch.as_tensor(part).detach() for part in parts)
    return x, y


def _is_array(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray) and part.ndim > 0


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal; NaN equals NaN."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


@contextmanager
def _randomness_kept(data: Any) -> Iterator[None]:
    """Leave the global random generators and those of a loader as they are."""
    holders = [getattr(data, name, None) for name in ("sampler", "batch_sampler")]
    found = [getattr(holder, "generator", None) for holder in (data, *holders)]
    own = [(one, one.get_state()) for one in found if isinstance(one, torch.Generator)]
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for generator, state in own:
                generator.set_state(state)
