"""How the data of a study were read, as the report, the model card and `summary()` show it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError

#: Columns that are named where all of them are listed.
_LISTED = 40


@dataclass(frozen=True)
class HowRead:
    """What was decided about the data of a study, and what became of their columns.

    decided   sentences, with the option that changes what they say, if one does
    columns   names of the columns of a table by what they are read as: "numbers", "categories",
              "dates", "left out"; empty for images and vectors on disk
    shape     of an input of the networks
    n_train   training rows
    n_test    test rows
    given     the name of the data as they were given, "" if it is not known
    """

    decided: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    n_train: int = 0
    n_test: int = 0
    given: str = ""

    @property
    def listed(self) -> dict[str, tuple[int, str]]:
        """How many columns are read as what, and their names in one line.

        >>> HowRead((), {"numbers": ("a", "b"), "dates": ()}).listed
        {'numbers': (2, 'a, b')}
        """
        return {
            kind: (
                len(names),
                ", ".join(map(shortened, names[:_LISTED])) + ", ..." * (len(names) > _LISTED),
            )
            for kind, names in self.columns.items()
            if names
        }

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @property
    def size(self) -> str:
        """Return the data and how many rows they have, in words.

        >>> HowRead((), n_train=8, n_test=2, given="flats.csv").size
        'flats.csv, 10 rows'
        >>> HowRead((), n_train=8, n_test=2, given="a DataFrame").size
        'a DataFrame of 10 rows'
        """
        of_memory = self.given.startswith(("a ", "an "))
        rows = f"{self.n_train + self.n_test} rows"
        return (" of " if of_memory else ", ").join(filter(None, [self.given, rows]))

    @classmethod
    def from_json(cls, text: str) -> "HowRead":
        """Return what `to_json` wrote.

        Raises:
            ValueError: if it did not.
        """
        stored = parsed_json(text)
        try:
            return cls(
                tuple(map(str, stored["decided"])),
                {str(kind): tuple(map(str, own)) for kind, own in stored["columns"].items()},
                tuple(map(int, stored["shape"])),
                int(stored["n_train"]),
                int(stored["n_test"]),
                str(stored.get("given", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                "how-read-damaged", f"it does not say how data were read: {error!r}"
            ) from None
