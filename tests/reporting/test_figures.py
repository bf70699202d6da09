"""Claims about figures and words of the page: marks where the axes say, and terms that explain."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from searched import EPOCHS, build_report, load, record

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.figures import history, measured, scatter
from nas_evidence.reporting.glossary import TERMS, explained
from nas_evidence.reporting.headline import rival_of, worth_sentence
from nas_evidence.reporting.study_tables import ranked_study
from nas_evidence.reporting.svg import Axis, Panel, axis_of, named_axis, plot
from nas_evidence.reporting.words import MOST
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.record import (
    RACE_IDS,
    Evaluation,
    EvidenceEstimate,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import TrainingPlan


def places(svg: str, name: str) -> list[list[tuple[float, float]]]:
    """Return the points of the marks of one class."""
    found = re.findall(rf'class="{name}" points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in one.split()] for one in found]  # type: ignore[misc]


def marks(svg: str) -> list[tuple[str, float, float]]:
    """Return what each marker stands for, and its centre."""
    found = []
    for mark in ElementTree.fromstring(svg[svg.index("<svg viewBox") :]).iter():
        if mark.get("class") == "dot":
            points = [one.split(",") for one in mark.get("points", "").split()]
            points = points or [(mark.attrib["cx"], mark.attrib["cy"])]
            x, y = ([float(point[i]) for point in points] for i in (0, 1))
            said = mark.findtext("title")
            found.append((said, (min(x) + max(x)) / 2, (min(y) + max(y)) / 2))
    return found


def test_a_mark_lies_where_the_ticks_say() -> None:
    panel = Panel(Axis("x", 0, 10), Axis("y", 0, 1))
    panel.line([(2, 0.2), (8, 0.8)], colour="black")
    svg = str(plot([panel], name="a line", rows=[]))
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
    svg = plot([panel], name=bad, rows=[])
    assert "<script" not in svg
    ElementTree.fromstring(str(svg))  # well-formed


@pytest.mark.slow
def test_the_first_picture_shows_each_simple_model_with_its_own_interval(
    tmp_path: Path,
) -> None:
    stick = Baseline(name="ridge regression", metrics={}, behind=-0.1, interval=(-0.16, -0.04))
    bare = Baseline(name="mean", metrics={}, behind=0.2, interval=(0.1, 0.3))
    judged = Comparison(
        trial_id=1, task="real", on="test", n=100, metrics={"rmse": 1.0}, baselines=(stick, bare)
    )
    plan = TrainingPlan.model_validate({"likelihood": "gaussian", "epochs": EPOCHS})
    study = load(tmp_path, [record(1, 1, real=True)], plan=plan)
    svg = str(measured(report_on(study, judged)))
    said = worth_sentence(study, judged)
    assert said.startswith("No: clearly worse than ridge regression")
    found = rival_of(judged)
    assert found is not None
    low, high = found.as_best  # of the best of two, in the sentence alone
    assert low < -0.16
    assert f"{-high:.3f} to {-low:.3f}, corrected for 2 simple models" in said
    assert re.findall(r'class="value"[^>]*>([^<]*)<', svg) == [
        "-0.100 (-0.160 to -0.040)", "0.200 (0.100 to 0.300)",
    ]  # fmt: skip
    alone = rival_of(judged.model_copy(update={"baselines": (bare,)}))
    assert alone is not None
    assert (alone.interval, alone.best_of, alone.as_best) == ((0.1, 0.3), 1, (0.1, 0.3))
    other = bare.model_copy(update={"behind": -0.2})
    folds = judged.model_copy(
        update={"on": "folds", "chosen_among": 9, "corrected": True, "against": stick.name,
                "baselines": (stick, other)}
    )  # fmt: skip
    assert rival_of(folds).model == stick  # as the draws choose, though the other has more
    assert "0.040 to 0.160)." in worth_sentence(study, folds)
    none = judged.model_copy(update={"baselines": (stick.model_copy(update={"interval": None}),)})
    assert re.findall(r'class="value"[^>]*>([^<]*)<', str(measured(report_on(study, none)))) == [
        "-0.100"
    ]
    assert measured(report_on(study, judged.model_copy(update={"trial_id": 2}))) is None


@pytest.mark.slow
def test_the_history_has_each_trial_the_best_until_then_and_those_without_a_score(
    tmp_path: Path,
) -> None:
    values = {4: 0.1, 1: 0.5, 3: 0.3, 6: 0.7}
    records = [record(i, i, value=value) for i, value in values.items()]
    records.append(record(RACE_IDS, 1, value=0.4, stage="race"))
    records.append(record(2, 2, status=TrialStatus.PRUNED, epochs=5, cause="rung 5: last"))
    records.append(record(5, 5, status=TrialStatus.FAILED, cause="boom <b>"))
    study = load(tmp_path, records)
    order = (4, 2, 1, 3, RACE_IDS, 6, 5)
    study = ranked_study(replace(study.tables, ended=order))
    assert study.history["trial_id"].tolist() == list(order)
    svg = str(history(report_on(study)))
    found = {said.split(":")[0]: (x, y, said) for said, x, y in marks(svg)}
    assert list(found) == [
        "trial 4", "trial 2", "trial 1", "trial 3", f"trial {RACE_IDS} of the race", "trial 6",
        "trial 5",
    ]  # fmt: skip
    lefts = [x for x, _, _ in found.values()]
    assert lefts == sorted(lefts)  # in order of completion
    lowest = {name for name, (_, y, _) in found.items() if y > found["trial 4"][1]}
    assert lowest == {"trial 2", "trial 5"}
    assert "pruned after 5 epochs\nrung 5: last" in found["trial 2"][2]
    [[*line]] = places(svg, "line")
    heights = [y for _, y in line]
    assert heights == sorted(heights, reverse=True)  # the best so far never falls
    assert len({*heights}) == 3  # of trials 4, 1 and 6
    for words in ("race", "pruned", "without a score", "best so far"):
        assert f"> {words}</span>" in svg
    assert svg.count('fill="none" stroke="var(--ink)"') == 3  # line, ring, and its key
    assert history(report_on(load(tmp_path / "one", records[:1]))) is None


@pytest.mark.slow
def test_the_scatter_is_of_what_ranks(tmp_path: Path) -> None:
    def both(one: TrialRecord, first: float, second: float) -> TrialRecord:
        more = [
            Evaluation(
                epoch=EPOCHS,
                estimate=EvidenceEstimate(estimator=name, value=50 * value, per_datum=value),
            )
            for name, value in (("conditional_evidence", first), ("elpd", second))
        ]
        return one.model_copy(update={"evaluations": tuple(more)})

    records = [both(record(i, i), 0.1 * i, -0.3 * i) for i in range(6)]
    given = {"objective": "conditional_evidence", "rank_by": "estimate"}
    study = load(tmp_path, records, estimators=("conditional_evidence", "elpd"), **given)
    report = report_on(study)
    assert study.ranks_by == "the mean of conditional_evidence and elpd"
    svg = str(scatter(report))
    assert f"{study.ranks_by} ({study.objective_unit})</text>" in svg
    centres = [x for _, x, _ in marks(svg)]
    assert centres == sorted(centres, reverse=True)  # drawn best first; the scores rise
    rho = {row.score: row.statistics.rho for row in report.trust.rows if row.group == "all"}
    assert rho[report.trust.main] == pytest.approx(-rho["conditional_evidence"])
    assert f"(rho {rho[report.trust.main]:.2f}" in report.verdict


@pytest.mark.slow
def test_of_many_architectures_the_first_and_evenly_spaced_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record(i, 1 + i % 7, value=float(i)) for i in range(20)]
    widths = [one.architecture.model_copy(update={"values": {"width": 4 + i}})
              for i, one in enumerate(records)]  # fmt: skip
    records = [one.model_copy(update={"architecture": own})
               for one, own in zip(records, widths, strict=True)]  # fmt: skip
    report = report_on(load(tmp_path, records))
    monkeypatch.setitem(MOST, "dots", 8)
    ranks = [int(re.match(r"rank (\d+),", said)[1]) for said, _, _ in marks(str(scatter(report)))]
    assert ranks == [1, 2, 3, 4, 6, 11, 16]
    drawn = [int(re.match(r"trial (\d+):", said)[1]) for said, _, _ in marks(str(history(report)))]
    assert drawn == list(range(20))  # each was the best until then
    page = build_report(tmp_path).html.read_text("utf-8")
    assert "Of 20 architectures the first 4 by rank are drawn" in page
    assert "Of 20 trials one in 3 is drawn" in page
    monkeypatch.setitem(MOST, "rows", 12)
    page = build_report(tmp_path).html.read_text("utf-8")
    assert "The first 12 by rank; 8 more are in <code>ranking.csv</code>." in page
    assert "The first 12 are here, and 8 more in <code>trials/</code>." in page


def test_every_metric_that_can_be_asked_for_is_explained() -> None:
    names = {name for kind in TARGET_KINDS.values() for name in kind.metrics.values()} - {
        "90 % intervals cover"
    }
    assert all(name in TERMS or name.startswith("log loss") for name in names)


def test_a_term_is_explained_once_a_longer_one_wins_and_names_stay_whole() -> None:
    said = explained("accuracy, balanced accuracy and accuracy of test_accuracy <b>")
    assert said.count('class="term"') == 2
    assert TERMS["balanced accuracy"] in said
    assert "test_accuracy &lt;b&gt;" in said
    assert '<code class="nowrap">finalists=5</code>.' in explained("set finalists=5.")
    assert explained("`predict` <b>`").startswith("<code>predict</code> &lt;b&gt;`")
