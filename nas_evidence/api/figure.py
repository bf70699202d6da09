"""Figures of the report as objects: shown by a notebook, with their values, and saved."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup, escape

from nas_evidence.baselines.comparison import Importance
from nas_evidence.baselines.measures import points_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting import figures as draw
from nas_evidence.reporting.by_matplotlib import check_installed, write_figure
from nas_evidence.reporting.svg import WIDTH, Drawing, Key, Panel, axis_of, colour, plot
from nas_evidence.reporting.templating import caption as caption_of
from nas_evidence.reporting.words import CALIBRATED
from nas_evidence.spec.likelihoods import TARGET_KINDS, TargetKind

if TYPE_CHECKING:  # it imports torch
    from nas_evidence.exporting.predictor import Metrics
    from nas_evidence.reporting.contents import Report

#: Figures by their names on the page, where `Study.plot` has another.
_NAMES = {
    "measured": "comparison", "trust": "correlations", "training": "loss",
    "evidence": "score", "importance": "parameters", "columns": "importance",
}  # fmt: skip

_LIGHT = "--ground: #ffffff; --ink: #1c2330; --faint: #5b6575; --line: #d9dde4"
_DARK = "--ground: #14181f; --ink: #e4e8ee; --faint: #9aa5b5; --line: #353e4c"
#: The rules of the page's style sheet that a figure needs, below the element `root`.
_STYLE = """{root} {{ {light}; background: var(--ground); color: var(--ink) }}
@media (prefers-color-scheme: dark) {{ {root} {{ {dark} }} }}
{root} text {{ fill: var(--ink); font: 11px system-ui, sans-serif }}
{root} .tick {{ fill: var(--faint) }} {root} .axis-title {{ font-size: 12px }}
{root} .value {{ font-size: 12px; font-weight: 600 }}
{root} .grid {{ stroke: var(--line); stroke-width: 0.7 }}"""
#: A key of the legend above a plot: its marker, and its name.
_KEY = re.compile(r'<span[^>]*><svg width="(\d+)"[^>]*>(.*?)</svg> (.*?)</span>', re.DOTALL)
_SVG = re.compile(r'<svg viewBox="0 0 [\d.]+ ([\d.]+)"([^>]*)>(.*)</svg>\s*$', re.DOTALL)
_KEYS_HIGH, _GAP, _CHARACTER = 24, 16.0, 6.5
#: Endings of the files that a figure is saved to.
ENDINGS = (".svg", ".pdf", ".png")
#: Inches across a figure; a browser has 96 pixels an inch.
_INCHES, _PIXELS = 6.875, 96
#: The widest figure in inches, and in dots.
_MOST_INCHES, _MOST_DOTS = 100, 20_000


@dataclass(frozen=True, repr=False)
class Figure:
    """One figure of the report; a notebook shows it with its caption.

    name     as `Study.plot` takes it
    caption  how to read it
    drawn    plot and legend, as the page has them

    Example:
        study.plot("ranking").save("ranking.pdf", width=3.4)  # inches
    """

    name: str
    caption: str
    drawn: Drawing

    def __repr__(self) -> str:
        caption = f": {self.caption}" if self.caption else ""
        return f"Figure({self.name!r}{caption})"

    @property
    def data(self) -> pd.DataFrame:
        """The values of the figure; its columns are in the docstring of `Study.plot`."""
        return pd.DataFrame(list(self.drawn.rows))

    @property
    def svg(self) -> str:
        """The figure as an SVG image of its own, in light and dark colours."""
        return self._svg(_INCHES)

    def _svg(self, width: float) -> str:
        found = _SVG.search(self.drawn)
        assert found is not None, "a plot ends with its picture"
        height, described, body = float(found[1]), found[2], found[3]
        across, down, keys = 8.0, 0, []
        for marked, marker, words in _KEY.findall(self.drawn[: found.start()]):
            wide = float(marked) + 4 + _CHARACTER * len(Markup(words).unescape())
            if across + wide > WIDTH and across > 8:
                across, down = 8.0, down + _KEYS_HIGH
            keys.append(
                f'<g transform="translate({across:g} {down + 5})">{marker}'
                f'<text x="{float(marked) + 4:g}" y="11">{words}</text></g>'
            )
            across += wide + _GAP
        top = down + _KEYS_HIGH if keys else 0
        style = _STYLE.format(root="svg", light=_LIGHT, dark=_DARK)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height + top:g}" '
            f'width="{_PIXELS * width:g}"{described}><style>{style}</style>{"".join(keys)}'
            f'<g transform="translate(0 {top})">{body}</g></svg>\n'
        )

    def _repr_html_(self) -> str:
        style = _STYLE.format(root=".nas-evidence", light=_LIGHT, dark=_DARK)
        style += " .nas-evidence .legend span { margin-right: 1em }"
        return (
            f'<style>{style}</style><figure class="nas-evidence" style="max-width: 40rem; '
            f'margin: 0; font: 0.9rem system-ui, sans-serif">{self.drawn}'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )

    def save(self, path: str | Path, *, width: float = _INCHES, dpi: float = 200) -> Path:
        """Write the figure as .svg, .pdf or .png, by the ending of the path, and return the path.

        A PDF or a PNG needs matplotlib, the extra `figures`.

        Args:
            path: of the file.
            width: in inches; the height follows from the figure.
            dpi: dots per inch of a PNG.

        Raises:
            ValueError: for another ending, a folder that does not exist, a size that is none, or
                without matplotlib.
        """
        path = Path(path).expanduser()
        check_figure_file(path)
        if not (0 < width <= _MOST_INCHES and dpi > 0 and width * dpi <= _MOST_DOTS):
            raise UserError(
                "figure-size",
                f"a figure must be above 0 and up to {_MOST_INCHES} inches wide, and up to "
                f"{_MOST_DOTS:,} dots, but got a width of {width:g} and {dpi:g} dots per inch",
            )
        if path.suffix == ".svg":
            path.write_text(self._svg(width), encoding="utf-8")
            return path
        named = dict(one.split(": ") for one in _LIGHT.split("; "))
        colours = {f"var({name})": value for name, value in named.items()}
        write_figure(self.svg, path, width=width, dpi=dpi, colours=colours)
        return path


def check_figure_file(path: Path) -> None:
    """Check that a figure can be written there.

    Raises:
        ValueError: for an ending that is none of `ENDINGS`, a missing package, or a folder that
            does not exist.
    """
    if path.suffix not in ENDINGS:
        raise UserError(
            "figure-ending",
            f"figures are saved as SVG, PDF or PNG, but got {path}; end the name with "
            f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
        )
    if path.suffix != ".svg":
        check_installed(path.suffix)
    if not path.absolute().parent.is_dir():
        raise UserError("figure-folder-missing", f"there is no folder for {path}; make it first")


def figures_of_report(report: "Report") -> dict[str, Figure]:
    """Return the figures of a report by their names in Python."""
    found = {"ranking": ranking} if (ranking := _ranking(report)) else {}
    for name, drawn in draw.figures_of(report).items():
        key = report.calibrated.caption if name == "calibration" else name
        judged = report.judged
        given = [judged.importance] if name == "columns" and judged else []
        caption = caption_of(key.partition("_")[0], *given).strip()
        own = _NAMES.get(name, name)
        found[own] = Figure(own, caption, drawn)
    return found


def _ranking(report: "Report") -> Figure | None:
    """Return what ranks by number of parameters, which needs no test rows."""
    study = report.study
    ranked = [
        (one, float(one.n_parameters), value)
        for one in study.ranking
        if (value := study.value(one)) is not None and one.n_parameters
    ]
    if not ranked:
        return None
    families = study.families
    panel = Panel(
        axis_of("parameters", [n for _, n, _ in ranked], log=True),
        axis_of(f"{study.ranks_by} ({study.objective_unit})", [value for *_, value in ranked]),
    )
    for one, n, value in ranked:
        at = families.index(one.family)
        panel.dot(
            n, value, colour=colour(at), symbol=at, family=one.family,
            title=f"rank {one.rank}, trial {one.trial_id}\n{one.architecture}\n{value:.4f}",
        )  # fmt: skip
    keys = [Key(family, colour(i), i) for i, family in enumerate(families)]
    caption = "The score that ranks, by the number of parameters: one marker per architecture."
    rows = [draw.architecture_cells(one) | {"score": value} for one, _, value in ranked]
    name = f"{study.ranks_by} by parameters"
    drawn = plot([panel], name=name, rows=rows, legend=keys)
    return Figure("ranking", caption, drawn)


def importance_of(found: Importance, kind: TargetKind) -> Figure:
    """Return the figure of the importance of columns."""
    drawn = draw.drawn_columns(found, kind)
    return Figure("importance", caption_of("columns", found).strip(), drawn)


def calibration_of(found: "Metrics") -> Figure:
    """Return the figure of stated probabilities against what is true, of labelled data."""
    assert found.reliability is not None
    confidence = TARGET_KINDS[found.task].confidence
    words = CALIBRATED[confidence]
    drawn = draw.calibration_of({"": points_of(found.reliability)}, words)
    error = (
        f" Calibration error: {found.reliability.error:.3f}."
        if confidence == "probabilities"
        else ""
    )
    caption = caption_of(words.caption)
    return Figure("calibration", f"{caption} Of {found.n:,} rows.{error}", drawn)
