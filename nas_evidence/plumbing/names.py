"""Names: do those of files stay below their folder, and what other tools call ours."""

import hashlib
import re

#: Longest part of a path that file systems take, bytes.
_LONGEST = 255
#: Characters that are left of a name that is translated.
_LEFT = 50


def stays_inside(name: str) -> bool:
    """Return whether a name with slashes is that of something below its folder.

    >>> stays_inside("code/a.py"), stays_inside("../a"), stays_inside("/a"), stays_inside("")
    (True, False, False, False)
    """
    return "\0" not in name and all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= _LONGEST
        for part in name.split("/")
    )


def is_name(name: str) -> bool:
    """Return whether a name stays below its folder, and is not hidden.

    >>> is_name("trials/000000-a1.parquet"), is_name("requests/../../x"), is_name("a/.b")
    (True, False, False)
    """
    return stays_inside(name) and not any(part.startswith(".") for part in name.split("/"))


def translated(name: str, fits: re.Pattern[str]) -> str:
    r"""Return a name as a tool takes it: itself if it `fits`, else its letters, digits and dots.

    A mark made of the name follows, so that two names never become one. Slashes stay where they
    fit.

    >>> translated("kernel size (px)", re.compile(r"[\w ]+"))
    'kernel_size_px-018002f7'
    """
    if fits.fullmatch(name):
        return name
    mark = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    parts = (part.strip("._") for part in re.sub(r"[^\w./]+", "_", name).split("/"))
    found = f"{'/'.join(filter(None, parts))[:_LEFT] or 'name'}-{mark}"
    return found if fits.fullmatch(found) else found.replace("/", "_")
