"""Loaders, data sets and tensors as the two tensors that an evidence is of.

    x [n, ...], y [n, ...]    the rows that a training loop over them visits

A loader or a data set is read twice. Rows that are others the second time, in any order, have no
evidence of their own: those of random augmentation, of samplers that draw some of the rows or
some more often, and of a `collate_fn` that mixes rows. They are refused with the remedy.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from nas_evidence.plumbing.user_error import UserError

#: Names of the targets in a batch that is a mapping.
_TARGETS = ("y", "label", "labels", "target", "targets")
#: Rows at which a stream counts as endless, and rows of a batch of data without a loader.
_MOST_STREAMED, _BATCH = 1_000_000, 256


def visited_rows(data: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a DataLoader, a data set, a list of pairs, or tensors (x, y).

    The state of global random generators and of those of the loader is left as it was.

    Raises:
        ValueError: if the rows are not the same in each epoch, or do not fit one tensor of inputs
            and one of targets; says why and what to do.
    """
    if isinstance(data, Mapping) or (
        isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data))
    ):
        return _joined([_pair(data)])
    with _randomness_kept(data):
        (x, y), other = (_epoch(_all_rows(data, more)) for more in (0, 1))
    keys, again = _hashes(x, y), _hashes(*other)
    if sorted(keys) != sorted(again):
        raise UserError(
            "loader-rows-vary",
            f"`data`, a {type(data).__name__}, must give the same rows each time it is read, but "
            "does not; the evidence is of fixed data: leave out random augmentation, sampling and "
            "a collate_fn that mixes rows, and give what is trained on as a Dataset, such as "
            "torch.utils.data.Subset, or as tensors (x, y)",
        )
    if keys != again:  # shuffled: in an order of their own
        order = sorted(range(len(keys)), key=keys.__getitem__)
        x, y = x[order], y[order]
    return x, y


def _all_rows(data: Any, more: int) -> "DataLoader[Any]":
    """Return a loader of what a training visits, in order if it visits all rows of a data set.

    Args:
        data: of the user.
        more: rows that a batch has more, which must not change them.
    """
    if not isinstance(data, DataLoader):
        if not isinstance(data, IterableDataset) and not (
            hasattr(data, "__getitem__") and isinstance(data, Sized)
        ):
            raise UserError(
                "own-loop-data",
                "`data` must be a DataLoader or Dataset with a length, pairs, or tensors (x, y), "
                f"but got a {type(data).__name__}; every update needs all data in a fixed order",
            )
        return DataLoader(data, _BATCH + more)  # type: ignore[arg-type]
    sampler = data.sampler
    shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement
    shuffles = shuffles and len(sampler) == len(data.dataset)  # type: ignore[arg-type]
    if (shuffles or isinstance(sampler, DistributedSampler)) and len(data):
        size = None if data.batch_size is None else data.batch_size + more
        return DataLoader(data.dataset, size, collate_fn=data.collate_fn)
    return data


def _epoch(loader: "DataLoader[Any]") -> tuple[Tensor, Tensor]:
    parts, n = list[tuple[Tensor, Tensor]](), 0
    try:
        for batch in loader:
            x, y = _pair(batch)
            alone = loader.batch_size is None and y.ndim == 0
            parts.append((x[None], y[None]) if alone else (x, y))
            n += len(parts[-1][0])
            if n > _MOST_STREAMED:
                raise UserError(
                    "loader-stream-endless",
                    f"the stream, a {type(loader.dataset).__name__}, has not ended after "
                    f"{_MOST_STREAMED:,} rows; the evidence is of all data of an epoch, so give "
                    "one that ends, or tensors (x, y)",
                )
    except (RuntimeError, TypeError) as error:
        first = " ".join(str(error).strip().splitlines()[:1])
        raise UserError(
            "loader-rows-differ",
            f"the rows cannot be put together as batches: {first}; give rows of one shape",
        ) from error
    return _joined(parts)


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    shapes = {x.shape[1:] for x, _ in parts}
    if len(shapes) > 1:
        raise UserError(
            "loader-shapes-differ",
            f"the inputs of batches have the shapes {sorted(map(list, shapes))[:3]}; give all "
            "rows one shape, such as sequences padded to one length",
        )
    n, n_targets = (sum(len(part[k]) for part in parts) for k in (0, 1))
    if n != n_targets or not n:
        raise UserError(
            "own-loop-rows",
            "inputs and targets must have the same number of rows, at least one, but have "
            f"{n} and {n_targets}",
        )
    if len(parts) == 1:  # tensors of the user, which are not copied
        return parts[0]
    x, y = (torch.cat(list(part)) for part in zip(*parts, strict=True))
    return x, y


def _hashes(x: Tensor, y: Tensor) -> list[bytes]:
    """Return a hash of each row [n], of its input and its target."""
    rows = (
        part.cpu().reshape(len(part), -1).contiguous().view(torch.uint8).numpy() for part in (x, y)
    )
    return [
        hashlib.sha256(one.tobytes() + other.tobytes()).digest()
        for one, other in zip(*rows, strict=True)
    ]


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
