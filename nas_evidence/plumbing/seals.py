"""Checksums inside files: content that does not match its checksum is not used.

checkpoint      32 bytes of BLAKE2b after the content, with a mark; no file beside another that
                a crash could separate from it
JSON            the last key, `blake2b`, over all characters before it
TOML            the last line, a comment, over all lines before it

Files of tensors have theirs in `tensor_seals.py`, tables in `table_checksum.py`, folders that are
given away in `sums.py`, and each line of the log one like JSON (`storage/log.py`).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError

_MARK = b"nas-evidence/blake2b:"
_SIZE = 32
#: Hexadecimal digits of a checksum in text, and what surrounds it at the end of a file.
_DIGITS = 32
_JSON = (b', "blake2b": "', b'"}')
_TOML = (b"# blake2b ", b"")


class DamagedError(UserError):
    """A file does not match its checksum, or cannot be read at all."""


def sealed(content: bytes | memoryview) -> bytes:
    """Return content with its checksum appended."""
    content = bytes(content)
    return content + _MARK + hashlib.blake2b(content, digest_size=_SIZE).digest()


def unsealed(content: bytes, path: Path) -> bytes:
    """Return content without its checksum.

    Raises:
        DamagedError: the checksum is wrong, or the mark before it is damaged.
    """
    body, tail = content[: -_SIZE - len(_MARK)], content[-_SIZE - len(_MARK) :]
    if tail[: len(_MARK)] != _MARK:
        raise DamagedError(
            "checksum-missing", f"{path} is damaged: it does not end with its checksum."
        )
    if hashlib.blake2b(body, digest_size=_SIZE).digest() != tail[len(_MARK) :]:
        raise DamagedError(
            "checksum-wrong", f"{path} is damaged: its content does not match its checksum."
        )
    return body


def sealed_json(content: Mapping[str, Any]) -> str:
    """Return an object with at least one key as a line of JSON whose last key is its checksum."""
    return seal_object(json.dumps(content))


def seal_object(text: str) -> str:
    """Return the text of an object with at least one key, with its checksum as the last key."""
    return _sealed_text(text[:-1], _JSON)


def unsealed_object(text: str | bytes, path: Path) -> bytes:
    """Return the text that `seal_object` got; errors as of `read_sealed_json`."""
    return _unsealed_text(text, _JSON, path) + b"}"


def read_sealed_json(text: str | bytes, path: Path) -> dict[str, Any]:
    """Return the object that `sealed_json` wrote.

    Args:
        text: the content of the file; blanks after it do not count.
        path: its place, for the message.

    Raises:
        DamagedError: it does not match its checksum, or is no such text.
    """
    try:
        content: dict[str, Any] = parsed_json(unsealed_object(text, path))
    except DamagedError:
        raise
    except ValueError as error:  # with a right checksum: not written by this program
        raise DamagedError("sealed-not-json", f"{path} is damaged: {error}.") from None
    return content


def is_sealed_json(path: Path) -> bool:
    """Return whether a file holds what `sealed_json` wrote."""
    try:
        read_sealed_json(path.read_bytes(), path)
    except (DamagedError, OSError):
        return False
    return True


def sealed_toml(text: str) -> str:
    """Return lines of TOML with their checksum as a comment in the last line."""
    return _sealed_text(text, _TOML) + "\n"


def read_sealed_toml(text: str | bytes, path: Path) -> str:
    """Return the lines that `sealed_toml` got.

    Raises:
        DamagedError: they do not match their checksum.
    """
    return _unsealed_text(text, _TOML, path).decode()


def _sealed_text(body: str, around: tuple[bytes, bytes]) -> str:
    start, end = around
    return body + (start + _digest(body.encode()) + end).decode()


def _unsealed_text(text: str | bytes, around: tuple[bytes, bytes], path: Path) -> bytes:
    start, end = around
    whole = (text.encode() if isinstance(text, str) else text).rstrip(b"\0 \n")
    n = len(start) + _DIGITS + len(end)
    body, tail = whole[:-n], whole[-n:]
    if tail == start + _digest(body) + end:
        return body
    try:
        whole.decode()
    except UnicodeDecodeError:
        raise DamagedError("not-utf-8", f"{path} is damaged: it is not UTF-8.") from None
    if not tail.startswith(start) or not tail.endswith(end):
        raise DamagedError(
            "checksum-missing", f"{path} is damaged: it does not end with its checksum."
        )
    raise DamagedError(
        "checksum-wrong", f"{path} is damaged: its content does not match its checksum."
    )


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGITS // 2).hexdigest().encode()
