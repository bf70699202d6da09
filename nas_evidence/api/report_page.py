"""The page of a report: a path, which a notebook shows as a link."""

import os
from html import escape
from pathlib import Path, PosixPath
from urllib.parse import quote


class ReportPage(PosixPath):
    """The path of a page; a notebook shows a link that opens it.

    Example:
        study.report()  # in a notebook a link; in a script a path
    """

    def _repr_html_(self) -> str | None:
        if self.suffix != ".html":
            return None  # its folder, for example
        here, place = Path.cwd(), Path(os.path.abspath(self))
        # A notebook opens what lies below its folder by a relative link alone.
        below = place.is_relative_to(here)
        link = quote(place.relative_to(here).as_posix()) if below else place.as_uri()
        return f'<a href="{escape(link)}" target="_blank">{escape(str(self))}</a>'
