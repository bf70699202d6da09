"""Every figure has its values, in the columns that `Study.plot` names, and is a file."""

import inspect
import re
from pathlib import Path

import pytest
from PIL import Image
from records import mlp
from searched import load, record

import nas_evidence
from nas_evidence.api.figure import Figure, figures_of_report
from nas_evidence.baselines.comparison import (
    Baseline,
    CalibrationPoint,
    ColumnImportance,
    Comparison,
    Importance,
)
from nas_evidence.maths.conditional_coverage import Quarter
from nas_evidence.reporting.contents import Report, report_on

ARCHITECTURE = ["rank", "trial_id", "family", "architecture", "n_parameters"]


def judged(winner: int) -> Comparison:
    """A comparison with all that a figure is drawn of."""
    quarter = Quarter(n=10, low=0.5, high=2.5, inside_50=0.4, inside_90=0.9)
    column = ColumnImportance(column="$weight_1$", mean=0.3, std=0.1)
    return Comparison(
        trial_id=winner, task="labels", on="test", n=40, metrics={"log_loss": 0.4},
        baselines=(
            Baseline(name="majority", metrics={}, behind=0.5, interval=(0.2, 0.8)),
            Baseline(name="forest", metrics={}, behind=-0.1, interval=(-0.3, 0.1)),
        ),
        classes=("cat", "dog"), confusion=((15, 5), (4, 16)),
        calibration=(CalibrationPoint(n=40, confidence=0.8, accuracy=0.75),),
        pairs=((1.0, 1.5), (2.0, 1.0)), quarters=(quarter,) * 4, pit=(4,) * 10,
        importance=Importance(
            metric="log_loss", asked=None, on="test", n=40, repeats=5, left_out=0,
            columns=(column,),
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    # Twelve architectures, for the importance of parameters.
    records = [
        record(i, i % 8).model_copy(update={"architecture": mlp(width=4 + i)}) for i in range(12)
    ]
    study = load(tmp_path_factory.mktemp("s"), records, minimise=("latency_seconds",))
    winner = study.winner
    assert winner is not None
    return report_on(study, judged(winner.trial_id))


@pytest.fixture(scope="module")
def drawn(report: Report) -> dict[str, Figure]:
    return figures_of_report(report)


def documented() -> dict[str, list[str]]:
    """The columns of each figure in the docstring of `Study.plot`."""
    text = inspect.getdoc(nas_evidence.Study.plot) or ""
    text = text.partition("`n_parameters`:\n")[2].partition("\n\nWhich of")[0]
    items = re.findall(r"^(\w+) +[^(]*\(([^)]*)\)", text, re.MULTILINE)
    return {name: re.split(r",\s+", columns) for name, columns in items}


@pytest.mark.slow
def test_the_docstring_of_plot_names_every_figure_and_the_columns_of_its_values(
    drawn: dict[str, Figure],
) -> None:
    told = documented()
    told["front_latency_seconds"] = told.pop("front_COST")
    assert set(told) == set(drawn)
    words = {"the objective": "kfac_ggn", "the cost": "latency_seconds"}
    words["test_..."] = "test_nll_per_datum"
    for name, columns in told.items():
        of_architecture = columns[0] == "of an architecture"
        expected = ARCHITECTURE * of_architecture + columns[of_architecture:]
        found = drawn[name].data
        assert list(found) == [words.get(one, one) for one in expected], name
        assert len(found), name


def test_values_are_those_of_the_study(report: Report, drawn: dict[str, Figure]) -> None:
    best = report.study.ranking[0]
    scatter, front = drawn["scatter"].data, drawn["front_latency_seconds"].data
    assert scatter.loc[0, "test_nll_per_datum"] == best.test_nll_per_datum  # as in the tables
    assert dict(zip(front["trial_id"], front["latency_seconds"], strict=True)) == {
        one.trial_id: one.costs["latency_seconds"] for one in report.study.ranking
    }
    assert drawn["confusion"].data["n"].tolist() == [15, 5, 4, 16]
    assert drawn["comparison"].data["behind"].tolist() == [0.5, -0.1]
    assert len(drawn["history"].data) == 12
    curves = drawn["loss"].data
    assert len(curves) == 20 * curves["trial_id"].nunique()


@pytest.mark.slow
def test_every_figure_is_drawn_as_a_picture(drawn: dict[str, Figure], tmp_path: Path) -> None:
    for name, figure in drawn.items():
        with Image.open(figure.save(tmp_path / f"{name}.png", width=3, dpi=60)) as image:
            assert image.width == 180
            shades = {shade for _, shade in image.convert("RGB").getcolors(10**6)}
            assert len(shades) > 20, name
