"""Names of files that are read from files and listings: do they stay below their folder?"""

#: Longest part of a path that file systems take, bytes.
_LONGEST = 255


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
