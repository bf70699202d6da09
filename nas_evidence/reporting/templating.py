"""Rendering of the pages: templates, and filters that format numbers and names.

Everything is escaped unless a template says otherwise; in Markdown also its own markup. The page
contains its scripts and styles, and its content security policy forbids all requests.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nas_evidence.plumbing.durations import duration
from nas_evidence.plumbing.files import write_whole
from nas_evidence.reporting import svg
from nas_evidence.reporting.glossary import explained

MISSING = "–"

_TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, template: str, values: Mapping[str, object]) -> None:
    """Write a self-contained HTML page."""
    _write(path, _environment().get_template(template).render(values))


def write_markdown(path: Path, template: str, values: Mapping[str, object]) -> None:
    """Write a Markdown document."""
    text = _environment().get_template(template).render(values)
    _write(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode(errors="backslashreplace"))  # a path may not be UTF-8


def named(name: str, folder: Path) -> str:
    """Return what to call a study: with its folder, where that has another name.

    >>> named("memory", Path("runs/wine")), named("wine", Path("runs/wine")), named("a", Path())
    ('memory (wine)', 'wine', 'a')
    """
    return name if folder.name in ("", name) else f"{name} ({folder.name})"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals, or a dash where it is missing."""
    return MISSING if value is None else f"{value:.{digits}f}"


def count(value: int | None) -> str:
    """Return a count with thousands separated, or a dash where it is missing."""
    return MISSING if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """Return a number with three digits and a suffix, or a dash where it is missing."""
    return MISSING if value is None else svg.short(value)


def amount(value: float | None) -> str:
    """Return a number of any size with its leading digits.

    >>> [amount(x) for x in (0.123456, -1.5, 12345.6, 123.456, 352.0, 0.00012, 0.0, None)]
    ['0.1235', '-1.5000', '12,346', '123.5', '352', '0.00012', '0', '–']
    """
    if value is None:
        return MISSING
    if abs(value) >= 1000 or value == round(value):
        return f"{value:,.0f}"
    for size, digits in ((100, 1), (10, 2), (0.001, 4)):
        if abs(value) >= size:
            return f"{value:.{digits}f}"
    return f"{value:.2g}"


def percent(share: float | None) -> str:
    """Return a share in percent, or a dash where it is missing.

    >>> [percent(p) for p in (1.0, 0.9996, 0.25, 0.034, 0.0004, 0.0, None)]
    ['100 %', '99.96 %', '25 %', '3.4 %', '< 0.1 %', '0 %', '–']
    """
    if share is None:
        return MISSING
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.995 <= share < 1:
        return "> 99.99 %" if share > 0.9999 else f"{100 * share:.2f} %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def markdown(text: object) -> Markup:
    r"""Return text that Markdown and HTML show literally.

    >>> print(markdown("a|b <i>_x_"))
    a\|b &lt;i&gt;\_x\_
    """
    one_line = " ".join(str(text).split())
    html = re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", one_line)
    return Markup(html.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def row(cells: Iterable[object]) -> Markup:
    r"""Return a row of a Markdown table.

    >>> print(row(["a|b", 1, None]))
    | a\|b | 1 | – |
    """
    shown = (markdown(MISSING if cell is None else cell) for cell in cells)
    return Markup(f"| {' | '.join(shown)} |")


def head(text: Sequence[str], numbers: Sequence[str]) -> Markup:
    """Return the head of a Markdown table: columns of text, then columns of numbers.

    >>> print(head(["name"], ["n"]))
    | name | n |
    |---|---:|
    """
    return Markup(f"{row([*text, *numbers])}\n|{'---|' * len(text)}{'---:|' * len(numbers)}")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "count": count, "md": markdown}
    environment.filters |= {"short": short, "duration": duration, "amount": amount}
    environment.filters |= {"percent": percent, "explained": explained}
    environment.globals |= {"row": row, "head": head}
    environment.globals["cells"] = lambda names, of: [of.get(name) for name in names]
    environment.globals["include_raw"] = lambda name: Markup(
        (_TEMPLATES / name).read_text(encoding="utf-8")
    )
    return environment
