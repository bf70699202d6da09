"""The columns of a table, as the record declares them that a row is made from.

A field that holds one number, text or truth is a column of its name. The annotation says its type,
a `Unit` its unit, and the string below the field what it means. In each column a cell may be null:
no record has everything, and older files lack newer columns.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from nas_evidence.spec.domains import Frozen, Unit


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    kind    bool, int, float, str, or an enumeration of texts
    unit    "" for none
    record  whose field it is; its source says what the column means
    """

    kind: type
    unit: str
    record: type[Frozen]


@dataclass(frozen=True)
class StandsBefore:
    """Marks a field whose column stands before that of another record; used in `Annotated`."""

    name: str


def columns_declared(
    record: type[Frozen], only: Collection[str] | None = None
) -> dict[str, TableColumn]:
    """Return the columns of a record by name, in the order of its fields; or `only` these."""
    found: dict[str, TableColumn] = {}
    for name, field in record.model_fields.items():
        kind = _kind_of(field.annotation)
        if kind is not None and (only is None or name in only):
            units = (mark.name for mark in field.metadata if isinstance(mark, Unit))
            found[name] = TableColumn(kind, next(units, ""), record)
    return found


def columns_with(record: type[Frozen], further: type[Frozen]) -> dict[str, TableColumn]:
    """Return the columns of a record, with further ones each before the one that it names."""
    others = columns_declared(further)
    places = {
        name: mark.name
        for name, field in further.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, StandsBefore)
    }
    found: dict[str, TableColumn] = {}
    for name, column in columns_declared(record).items():
        found |= {other: others[other] for other in others if places[other] == name}
        found[name] = column
    return found


def _kind_of(annotation: Any) -> type | None:
    """Return the type of the values of a field, None if they are more than one cell."""
    kinds = {_plain(kind) for kind in _alternatives(annotation)} - {NoneType}
    return kinds.pop() if len(kinds) == 1 else None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for one in get_args(annotation) for kind in _alternatives(one))
    if get_origin(annotation) is Literal:
        return tuple({type(value) for value in get_args(annotation)})
    return (annotation,)


def _plain(kind: Any) -> type | None:
    is_cell = kind in (bool, int, float, str, NoneType)
    return kind if is_cell or (isinstance(kind, type) and issubclass(kind, Enum)) else None
