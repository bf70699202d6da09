"""A checksum of a table's content in its own metadata.

It covers what a reader gets: names, types and values, in order. It does not depend on how a file
was cut into pages, nor on the version of the library that wrote it. Parquet's own page checksums
would add nothing: they leave out the footer, where a flipped bit can rename a column or change a
type (docs/decisions).
"""

import hashlib
from collections.abc import Mapping
from typing import Any

_KEY = b"nas_evidence.checksum"
#: Up to this many rows a table is hashed as text: column by column would take longer.
_FEW_ROWS = 100


def sealed(table: Any) -> Mapping[bytes, bytes]:
    """Return the metadata of an Arrow table with its checksum."""
    return {**(table.schema.metadata or {}), _KEY: _checksum(table)}


def is_sound(table: Any) -> bool:
    """Return whether a table has the checksum of its content."""
    stored = (table.schema.metadata or {}).get(_KEY)
    return bool(stored == _checksum(table))


def _checksum(table: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    if table.num_rows <= _FEW_ROWS:
        types = [(field.name, str(field.type)) for field in table.schema]
        digest.update(repr((types, table.to_pylist())).encode())
        return digest.hexdigest().encode()
    digest.update(str(table.num_rows).encode())
    for field, column in zip(table.schema, table.columns, strict=True):
        digest.update(f"|{field.name}|{field.type}|".encode())
        digest.update(column.is_null().to_numpy().tobytes())
        if str(field.type) == "string":
            texts = column.fill_null("").to_pylist()
            digest.update(repr([len(text) for text in texts]).encode())
            digest.update("".join(texts).encode())
        elif column.null_count:
            nothing = False if str(field.type) == "bool" else 0
            digest.update(column.fill_null(nothing).to_numpy().tobytes())
        else:
            digest.update(column.to_numpy().tobytes())
    return digest.hexdigest().encode()
