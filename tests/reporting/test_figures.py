"""Claims about figures and words of the page: marks where the axes say, and terms that explain."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from searched import EPOCHS, load, record

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.figures import measured
from nas_evidence.reporting.glossary import TERMS, explained
from nas_evidence.reporting.svg import Axis, Panel, axis_of, named_axis, plot
from nas_evidence.spec.metric_names import METRICS
from nas_evidence.spec.study import TrainingPlan


def places(svg: str, name: str) -> list[list[tuple[float, float]]]:
    """Return the points of the marks of one class."""
    found = re.findall(rf'class="{name}" points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in one.split()] for one in found]  # type: ignore[misc]


def test_a_mark_lies_where_the_ticks_say() -> None:
    panel = Panel(Axis("x", 0, 10), Axis("y", 0, 1))
    panel.line([(2, 0.2), (8, 0.8)], colour="black")
    svg = str(plot([panel], name="a line"))
    [[(x0, y0), (x1, y1)]] = places(svg, "line")
    ticks = {
        label: (float(x), float(y))
        for x, y, label in re.findall(r'class="tick" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', svg)
    }
    assert x0 == pytest.approx(ticks["2"][0], abs=0.1)
    assert x1 == pytest.approx(ticks["8"][0], abs=0.1)
    assert y0 == pytest.approx(ticks["0.2"][1] - 4, abs=0.1)
    assert y1 == pytest.approx(ticks["0.8"][1] - 4, abs=0.1)
    assert y1 < y0  # up is more


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-0.134, -0.098), (3.0, 3.0), (1e-9, 2e-9), (0.0, 1.7e6)]
)
def test_ticks_lie_inside_the_axis_and_differ(low: float, high: float) -> None:
    axis = axis_of("x", [low, high])
    ticks = axis.ticks()
    assert all(axis.low <= value <= axis.high for value, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks) >= 1


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios() -> None:
    axis = axis_of("parameters", [10.0, 1e5], log=True)
    assert axis.share(1e3) - axis.share(1e2) == pytest.approx(axis.share(1e5) - axis.share(1e4))
    assert [label for _, label in axis.ticks()] == ["10", "100", "1k", "10k", "100k"]


def test_outside_text_cannot_leave_its_place_in_a_figure() -> None:
    bad = '"><script>alert(1)</script>'
    panel = Panel(named_axis([bad]), Axis(bad, 0, 1))
    panel.dot(0, 0.5, colour="black", title=bad, family=bad)
    svg = plot([panel], name=bad)
    assert "<script" not in svg
    ElementTree.fromstring(str(svg))  # well-formed


def test_the_first_picture_is_the_winner_beside_simple_models_with_their_errors(
    tmp_path: Path,
) -> None:
    stick = Baseline(
        name="ridge regression", metrics={"rmse": 2.0}, errors={"rmse": 0.25}, behind=0.1
    )
    bare = Baseline(name="mean", metrics={"rmse": 3.0}, behind=0.2)
    judged = Comparison(
        trial_id=1, task="real", on="test", n=100, metrics={"rmse": 1.0}, errors={"rmse": 0.5},
        baselines=(stick, bare),
    )  # fmt: skip
    plan = TrainingPlan.model_validate({"likelihood": "gaussian", "epochs": EPOCHS})
    study = load(tmp_path, [record(1, 1, real=True)], plan=plan)
    svg = str(measured(report_on(study, judged)))
    assert re.findall(r'class="value"[^>]*>([^<]*)<', svg) == [
        "1.00 ± 0.50", "2.00 ± 0.25", "3.00",
    ]  # fmt: skip
    assert all(f">{name}</text>" in svg for name in ("winner", "ridge regression", "mean"))
    widths = [float(one) for one in re.findall(r'class="box"[^>]* width="([\d.]+)"', svg)]
    assert widths == pytest.approx([widths[0], 2 * widths[0], 3 * widths[0]], rel=0.01)
    errors = [abs(b - a) for (a, _), (b, _) in places(svg, "line")]
    assert errors == pytest.approx([widths[0], 0.5 * widths[0]], rel=0.02)
    assert measured(report_on(study, judged.model_copy(update={"trial_id": 2}))) is None


def test_every_metric_that_can_be_asked_for_is_explained() -> None:
    names = {name for group in METRICS.values() for name in group.values()} - {
        "90 % intervals cover"
    }
    assert all(name in TERMS or name.startswith("log loss") for name in names)


def test_a_term_is_explained_once_a_longer_one_wins_and_names_stay_whole() -> None:
    said = explained("accuracy, balanced accuracy and accuracy of test_accuracy <b>")
    assert said.count('class="term"') == 2
    assert TERMS["balanced accuracy"] in said
    assert "test_accuracy &lt;b&gt;" in said
    assert '<code class="nowrap">--set finalists=5</code>.' in explained("add --set finalists=5.")
    assert explained("`predict` <b>`").startswith("<code>predict</code> &lt;b&gt;`")
