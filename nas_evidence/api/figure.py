"""Figures of the report as objects: shown by a notebook, and saved as SVG."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from nas_evidence.baselines.comparison import Importance
from nas_evidence.baselines.measures import points_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting import figures as draw
from nas_evidence.reporting.svg import WIDTH, Key, Panel, axis_of, colour, plot
from nas_evidence.reporting.templating import caption as caption_of
from nas_evidence.reporting.words import CALIBRATED
from nas_evidence.spec.likelihoods import TargetKind

if TYPE_CHECKING:  # it imports torch
    from nas_evidence.exporting.predictor import Metrics
    from nas_evidence.reporting.contents import Report
    from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy

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


@dataclass(frozen=True, repr=False)
class Figure:
    """One figure of the report; a notebook shows it with its caption.

    name     as `Study.plot` takes it
    caption  how to read it
    drawn    plot and legend, as the page has them

    Example:
        study.plot("ranking").save("ranking.svg")
    """

    name: str
    caption: str
    drawn: Markup

    def __repr__(self) -> str:
        return (
            f"Figure({self.name!r}: {self.caption})" if self.caption else f"Figure({self.name!r})"
        )

    @property
    def svg(self) -> str:
        """The figure as an SVG image of its own, in light and dark colours."""
        found = _SVG.search(self.drawn)
        assert found is not None, "a plot ends with its picture"
        height, described, body = float(found[1]), found[2], found[3]
        across, down, keys = 8.0, 0, []
        for width, marker, words in _KEY.findall(self.drawn[: found.start()]):
            wide = float(width) + 4 + _CHARACTER * len(Markup(words).unescape())
            if across + wide > WIDTH and across > 8:
                across, down = 8.0, down + _KEYS_HIGH
            keys.append(
                f'<g transform="translate({across:g} {down + 5})">{marker}'
                f'<text x="{float(width) + 4:g}" y="11">{words}</text></g>'
            )
            across += wide + _GAP
        top = down + _KEYS_HIGH if keys else 0
        style = _STYLE.format(root="svg", light=_LIGHT, dark=_DARK)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height + top:g}" '
            f'width="{1.5 * WIDTH:g}"{described}><style>{style}</style>{"".join(keys)}'
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

    def save(self, path: str | Path) -> Path:
        """Write the figure as SVG and return the path.

        Raises:
            ValueError: for another ending than .svg, or a folder that does not exist.
        """
        path = Path(path).expanduser()
        if path.suffix != ".svg":
            raise UserError(
                f"figures are saved as SVG, but got {path}; end the name with .svg"
            ).with_code("figure-ending")
        if not path.absolute().parent.is_dir():
            raise UserError(f"there is no folder for {path}; make it first").with_code(
                "figure-folder-missing"
            )
        path.write_text(self.svg, encoding="utf-8")
        return path


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
    ranked = [one for one in study.ranking if study.value(one) is not None and one.n_parameters]
    if not ranked:
        return None
    families = study.families
    panel = Panel(
        axis_of("parameters", [float(one.n_parameters or 0) for one in ranked], log=True),
        axis_of(f"{study.ranks_by} ({study.objective_unit})", _values(study, ranked)),
    )
    for one, value in zip(ranked, _values(study, ranked), strict=True):
        at = families.index(one.family)
        panel.dot(
            float(one.n_parameters or 0), value, colour=colour(at), symbol=at, family=one.family,
            title=f"rank {one.rank}, trial {one.trial_id}\n{one.architecture}\n{value:.4f}",
        )  # fmt: skip
    keys = [Key(family, colour(i), i) for i, family in enumerate(families)]
    caption = "The score that ranks, by the number of parameters: one marker per architecture."
    drawn = plot([panel], name=f"{study.ranks_by} by parameters", legend=keys)
    return Figure("ranking", caption, drawn)


def _values(study: "RankedStudy", ranked: "Sequence[RankedArchitecture]") -> list[float]:
    return [value for one in ranked if (value := study.value(one)) is not None]


def importance_of(found: Importance, kind: TargetKind) -> Figure:
    """Return the figure of the importance of columns."""
    drawn = draw.drawn_columns(found, kind)
    return Figure("importance", caption_of("columns", found).strip(), drawn)


def calibration_of(found: "Metrics") -> Figure:
    """Return the figure of stated probabilities against what is true, of labelled data."""
    assert found.reliability is not None
    words = CALIBRATED["probabilities" if found.labels else "intervals"]
    drawn = draw.calibration_of(points_of(found.reliability), words)
    error = f" Calibration error: {found.reliability.error:.3f}." if found.labels else ""
    caption = caption_of(words.caption)
    return Figure("calibration", f"{caption} Of {found.n:,} rows.{error}", drawn)
