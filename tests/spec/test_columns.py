"""A record declares the columns of its table: one field, with type, unit and order."""

from enum import StrEnum
from typing import Annotated, Literal

from nas_evidence.spec.columns import StandsBefore, columns_declared, columns_with
from nas_evidence.spec.domains import Frozen, Unit


class Colour(StrEnum):
    RED = "red"


class Inner(Frozen):
    place: Annotated[str, StandsBefore("watts")]
    further: Annotated[int | None, Unit("steps"), StandsBefore("watts")]


class Record(Frozen):
    colour: Colour
    inner: Inner
    parts: tuple[int, ...] = ()
    either: int | str = 0
    watts: Annotated[float | None, Unit("W")] = None
    kept: Literal["yes", "no"] | None = None
    done: bool = False


def test_a_field_of_one_cell_is_a_column_and_no_other() -> None:
    found = columns_declared(Record)
    assert {name: one.kind for name, one in found.items()} == {
        "colour": Colour, "watts": float, "kept": str, "done": bool,
    }  # fmt: skip
    assert (found["watts"].unit, found["done"].unit, found["kept"].record) == ("W", "", Record)
    assert list(columns_declared(Record, ("done", "colour"))) == ["colour", "done"]


def test_columns_of_another_record_stand_before_the_one_that_they_name() -> None:
    names = ["colour", "place", "further", "watts", "kept", "done"]
    assert list(columns_with(Record, Inner)) == names
