"""From rows as read to a data set: targets, units, weights, test rows, features, scaling.

Each step is taken here, in this order, whether the rows are a table, vectors or images.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import (
    ArrayData,
    Inputs,
    Meaning,
    RawArrays,
    moments,
)
from nas_evidence.data.cells import dates_of, said_far_dates
from nas_evidence.data.decided import (
    grouped,
    said_alike,
    said_categories,
    said_copies,
    said_of_numbers,
)
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.leaks import leaks
from nas_evidence.data.mapped import Array, rows_at
from nas_evidence.data.preparation import inputs_of, option, prepare
from nas_evidence.data.said import Said
from nas_evidence.data.table_columns import Preparation, read_otherwise
from nas_evidence.data.targets import (
    Reading,
    class_weights,
    reading_of,
    said_class_weights,
    said_scale,
    targets_of,
    with_targets,
)
from nas_evidence.data.units import Units, said_units, said_weights, units_of, weights_of
from nas_evidence.maths.target_scale import fit
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import weights_of_others
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import DatasetSpec, derive_seed

#: Minimum number of training rows of a table.
FEWEST_ROWS = 10
#: Mean, in standard deviations, from which float32 keeps under three digits; columns named.
_FAR, _LISTED = 1e4, 3


@dataclass(frozen=True)
class RowsRead:
    """Rows as read, before anything is decided about them.

    x, x_test  a table of features, vectors [n, d] of a file, or images [n, C, H, W]
    y, y_test  targets of any type [n] or [n, C]
    where      the place of the rows, for messages
    place      the place of the targets, for messages
    targets    names of the columns of the targets; empty for arrays
    units      cells of groups or times of the training rows
    weights    cells of weights, of training rows and of test rows
    read       how a table was read: sentences, and how its cells are written
    images     how files of images were read
    before     whether version 0.1.0 read a table, before preparations had a version
    """

    x: pd.DataFrame | Inputs
    y: Array
    x_test: pd.DataFrame | Inputs | None
    y_test: Array | None
    where: str
    place: str
    targets: tuple[str, ...] = ()
    units: Any = None
    weights: tuple[Any, Any] = (None, None)
    read: tuple[tuple[Said, ...], dict[str, Any]] = ((), {})
    images: ImageReading | None = None
    before: bool = False


def raw_of(rows: RowsRead, spec: DatasetSpec, *, seed: int) -> RawArrays:
    """Return features and targets of rows, with the test rows split off that `spec` asks for.

    Raises:
        ValueError: if targets, units, weights or columns cannot be used; names the place.
    """
    rows, left_out = with_targets(rows)
    where, how = rows.where, rows.read[1].get(",".join(rows.targets))
    found = targets_of(
        rows.y,
        rows.y_test,
        task=spec.task,
        where=rows.place,
        integers_are_labels=not rows.targets,
        categories=how is not None and how.sign == "category",
        scale=spec.scale,
    )
    reading = reading_of(TARGET_KINDS[found.task])
    units = units_of(spec, rows.units, where)
    counts = [
        None if cells is None else weights_of(cells, spec.weights, place)
        for cells, place in zip(rows.weights, (where, f"the test rows of {where}"), strict=True)
    ]
    x, y, x_test, y_test = rows.x, found.train, rows.x_test, found.test
    if spec.test_fraction is not None:
        if x_test is not None:
            raise UserError(
                "test-fraction-and-test-rows",
                f"`test_fraction` is for data without test rows, but {where} has some; leave it "
                "out",
            )
        in_test = test_rows(y, spec.test_fraction, seed, units, reading)
        train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
        x, x_test, y, y_test = rows_at(x, train), rows_at(x, test), y[train], y[test]
        units = None if units is None else units.at(train)
        counts = [None, None] if counts[0] is None else [counts[0][train], counts[0][test]]
    if x_test is None:
        x_test = rows_at(x, np.arange(0))
    preparation, said = None, list[str]()
    n_train, n_test = len(x), len(x_test)
    if isinstance(x, pd.DataFrame) and isinstance(x_test, pd.DataFrame):
        preparation, said = _prepared(x, y, spec, rows, reading)
        x = inputs_of(preparation, x, where)
        x_test = inputs_of(preparation, x_test, f"the test rows of {where}") if n_test else x[:0]
        if units is None:  # else copies may belong together
            said = [*said, *said_copies(x, y, x_test, y_test)]
    elif spec.drop or spec.categorical or spec.numeric:
        raise UserError(
            "columns-of-no-table",
            f"`drop`, `categorical` and `numeric` are of tables and of vectors in memory, but "
            f"x_train in {where} has the shape {list(x.shape)}; leave them out",
        )
    assert not isinstance(x, pd.DataFrame)
    assert not isinstance(x_test, pd.DataFrame)
    said = [
        *(said if preparation is not None else map(str, rows.read[0])),
        *(rows.images.said if rows.images is not None else ()),
        *said_alike(found.classes),
        *said_units(spec, units),
        *said_weights(spec.weights, counts[0]),
        *left_out,
        _said_test(n_train, n_test),
    ]
    if counts[0] is not None:
        if units is None and (counts[0] > 1).any():
            units = Units(np.arange(n_train))  # the copies of a row are one unit
        copies = np.repeat(np.arange(n_train), counts[0])
        x, y = rows_at(x, copies), y[copies]
        units = None if units is None else units.at(copies)
    if counts[1] is not None:
        copies = np.repeat(np.arange(n_test), counts[1])
        x_test, y_test = rows_at(x_test, copies), y_test[copies]
    meaning = Meaning(
        found.classes,
        rows.targets,
        preparation,
        (found.sentence, *said),
        found.change,
        images=rows.images,
    )
    return RawArrays(x, y, x_test, y_test, meaning, units, found.task)


def _prepared(
    frame: pd.DataFrame, y: Array, spec: DatasetSpec, rows: RowsRead, reading: Reading
) -> tuple[Preparation, list[str]]:
    preparation, said = prepare(
        frame,
        drop=spec.drop or (),
        categorical=spec.categorical or (),
        numeric=spec.numeric or (),
        where=rows.where,
        written=rows.read[1],
        unnamed=not rows.targets,
    )
    read = [*said_of_numbers(rows.read[0], preparation)]
    # Categories are no remedy for two notations; the sentence that says so has the right one.
    mixed = {one.column for one in read if one.about == "not read"}
    said = [
        one._replace(about="", remedy="")
        if one.about == "free text" and one.column in mixed
        else one
        for one in said
    ]
    dates = {column.name: column.order for column in preparation.columns if column.part}
    for name, order in dates.items() if rows.before else ():
        local = dates_of(frame[name], order, zones=False)
        if not local.equals(dates_of(frame[name], order)):
            raise read_otherwise(name, "has times of a zone")
    far = (said_far_dates(frame[name], order) for name, order in dates.items())
    said += [Said(one) for one in far if one]
    known = ": is it known when a prediction is made? If not, drop="
    told = [
        Said(f"{how}{known}{option(name)}", name)
        for name, how in leaks(frame[list(preparation.places)], y, reading.leak)
    ]
    categories = said_categories(preparation, frame)
    return preparation, grouped([*read, *said, *categories, *told], {*preparation.names})


def _said_test(n_train: int, n_test: int) -> str:
    if n_test:
        return f"rows: {n_train} for training, {n_test} for the report's test"
    more = "test_fraction=0.2 (--test-fraction) splits off a test for the report"
    return f"rows: {n_train}, all for training; {more}"


def test_rows(
    y: Array, fraction: float, seed: int, units: Units | None, reading: Reading
) -> Array:
    """Return which rows are split off for testing, bool [n]: seeded, as the reading divides them.

    Of groups some whole ones are split off, of times
    the latest.

    Raises:
        ValueError: if a part would have too few rows.
    """
    n_test = round(fraction * len(y))
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    if units is not None:
        order = units.ordered(np.arange(len(y)), generator.permutation(units.count))
        in_test[order[units.cuts(order, [len(y) - n_test])[0] :]] = True
        n_test = int(in_test.sum())
    if n_test < 1 or len(y) - n_test < FEWEST_ROWS:
        raise UserError(
            "test-fraction-leaves-too-few",
            f"test_fraction {fraction:g} of {len(y)} rows leaves {len(y) - n_test} for training "
            f"and {n_test} for testing; at least {FEWEST_ROWS} and 1 are needed",
        )
    return in_test if units is not None else reading.tested(y, n_test, generator)


def assembled(raw: RawArrays, spec: DatasetSpec, *, seed: int) -> ArrayData:
    """Return the rows of a data set that `spec` asks for, with the scaling of the training rows.

    Raises:
        ValueError: If there are fewer examples than requested.
    """
    meaning, units = raw.meaning, raw.units
    kind = TARGET_KINDS[raw.task]
    reading = reading_of(kind)
    x_train, y_train, kept = _subset(raw.x_train, raw.y_train, spec, "train", seed, reading)
    x_test, y_test, _ = _subset(raw.x_test, raw.y_test, spec, "test", seed, reading)
    if units is not None and kept is not None:
        units = units.at(kept)
    mean, std = moments(x_train)
    if meaning.preparation is not None:
        scaled = meaning.preparation.scaled
        mean, std = np.where(scaled, mean, 0), np.where(scaled, std, 1)
        mean, std = mean.astype(np.float32), std.astype(np.float32)
    elif len(x_train.shape) == 2:
        meaning = replace(meaning, said=(*meaning.said, *_said_far(mean, std)))
    n_outputs, y_mean, y_std = reading.outputs(y_train, raw.y_train, len(meaning.classes))
    scale = None
    if spec.scale != "identity":
        scale = fit(spec.scale, y_train)
        meaning = replace(meaning, said=(*meaning.said, said_scale(scale)))
    if spec.class_weight is not None:
        if not kind.classes:
            raise weights_of_others(kind)
        names = [str(name) for name in meaning.classes or range(n_outputs)]
        found = class_weights(y_train, names, spec.class_weight)
        weights = dict(zip(names, found.tolist(), strict=True))
        said = (*meaning.said, said_class_weights(weights))
        meaning = replace(meaning, class_weight=weights, said=said)
    return ArrayData(
        spec.name,
        x_train,
        y_train,
        x_test,
        y_test,
        task=kind.stored,
        n_outputs=n_outputs,
        input_shape=x_train.shape[1:],
        mean=mean,
        std=std,
        y_mean=y_mean,
        y_std=y_std,
        meaning=meaning,
        units=units,
        fitted_scale=scale,
    )


def _said_far(mean: Array, std: Array) -> list[str]:
    """Return in words which vectors on disk, float32, lose digits that distinguish them."""
    far = np.flatnonzero((np.abs(mean) > _FAR * std) & (std != 1))
    if not len(far):
        return []
    listed = ", ".join(f"x{at}" for at in far[:_LISTED]) + ", ..." * (len(far) > _LISTED)
    return [
        f"{listed}: far from 0 for how little the values vary, so that float32 keeps few of their "
        "digits; subtract a constant, or write an .npz file"
    ]


def _subset(
    x: Inputs, y: Array, spec: DatasetSpec, part: str, seed: int, reading: Reading
) -> tuple[Inputs, Array, Array | None]:
    """Return at most `max_<part>` examples, and which; each part has its own random stream."""
    wanted = spec.max_train if part == "train" else spec.max_test
    if wanted is None or not len(y):
        return x, y, None
    if wanted > len(y):
        raise UserError(
            "max-examples-too-large",
            f"`max_{part} <= {len(y)}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{part} examples, but got {wanted}; lower it: set dataset.max_{part}=N",
        )
    generator = np.random.default_rng(derive_seed(seed, "split", part))
    rows = reading.rows_of(y, wanted, generator)
    return rows_at(x, rows), y[rows], rows
