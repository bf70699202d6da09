"""Claims about the report: true to the tables, honest about scores, harmless, self-contained."""

import csv
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from reported import study_folder, trial
from scipy import stats
from searched import build_report

import nas_evidence
from nas_evidence.reporting.any_table import rank_table
from nas_evidence.reporting.correlations import COLUMNS
from nas_evidence.reporting.page import ReportPaths
from nas_evidence.reporting.words import MOST
from nas_evidence.spec.record import (
    Evaluation,
    TrialStatus,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [trial(i) for i in range(22)]
    records += [trial(22, status="diverged"), trial(23, status="infeasible")]
    return study_folder(tmp_path_factory.mktemp("study"), records)


@pytest.fixture(scope="module")
def paths(folder: Path) -> ReportPaths:
    return build_report(folder)


@pytest.fixture(scope="module")
def page(paths: ReportPaths) -> str:
    return paths.html.read_text(encoding="utf-8")


def correlations(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figures(page: str) -> dict[str, str]:
    """Return the SVG of each figure by name."""
    found = re.findall(r'<div id="(\w+)" class="figure">(.*?)</div>\s*(?:<figcaption|</figure)',
                       page, re.DOTALL)  # fmt: skip
    return dict(found)


def without_scripts(page: str) -> str:
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)


class Tags(HTMLParser):
    """All opening tags with their attributes, and whether they are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_correlations_in_python_are_those_of_the_file(folder: Path, paths: ReportPaths) -> None:
    found = nas_evidence.load(folder).correlations
    written = pd.read_csv(paths.correlations)
    pd.testing.assert_frame_equal(found.fillna({"note": ""}), written.fillna({"note": ""}),
                                  check_dtype=False)  # fmt: skip


def test_correlations_csv_holds_what_scipy_says_of_the_stored_trials(paths: ReportPaths) -> None:
    rows = correlations(paths.correlations)
    assert list(rows[0]) == list(COLUMNS)
    assert list(COLUMNS[:10]) == [
        "score", "target", "group", "n", "rho", "rho_low", "rho_high", "tau", "regret_1",
        "regret_3",
    ]  # fmt: skip
    records = [trial(i) for i in range(22)]
    accuracy = [record.test_accuracy or 0.0 for record in records]
    nll = [record.test_nll_per_datum or 0.0 for record in records]
    scores: dict[str, list[float]] = {
        name: [record.final_estimate(name).value for record in records]  # type: ignore[union-attr]
        for name in ("kfac_ggn", "diag_ef", "sotl")
    }
    assert {"random"} == {row["score"] for row in rows} - {
        *scores,
        "n_parameters",
        "train_nll_per_datum",
    }
    rows = [row for row in rows if row["score"] != "random"]
    scores["n_parameters"] = [record.n_parameters or 0 for record in records]
    scores["train_nll_per_datum"] = [-record.curve[-1].train_nll_per_datum for record in records]
    pooled = {(r["score"], r["target"]): r for r in rows if r["group"] == "all"}
    assert set(pooled) == {
        (score, target) for score in scores for target in ("test_accuracy", "test_nll_per_datum")
    }
    for name, score in scores.items():
        for target, values, sign in (
            ("test_accuracy", accuracy, 1),
            ("test_nll_per_datum", nll, -1),
        ):
            row = pooled[name, target]
            assert row["n"] == "22"
            expected = sign * stats.spearmanr(score, values).statistic
            assert_allclose(float(row["rho"]), expected, atol=1e-12)
            tau = sign * stats.kendalltau(score, values).statistic
            assert_allclose(float(row["tau"]), tau, atol=1e-12)
            assert float(row["rho_low"]) <= float(row["rho"]) <= float(row["rho_high"])
        best = accuracy[int(np.argmax(score))]
        assert_allclose(
            float(pooled[name, "test_accuracy"]["regret_1"]), max(accuracy) - best, atol=1e-12
        )
    assert {row["group"] for row in rows} == {"all", "cnn", "linear", "mlp", "resnet"}
    linear = next(row for row in rows if row["group"] == "linear")
    assert (linear["rho"], linear["regret_1"]) == ("", "")
    assert linear["note"] == "undefined: only 1 with both values, at least 5 needed"


def test_the_headline_names_winner_baseline_and_statuses(page: str) -> None:
    records = [trial(i) for i in range(22)]
    winner = max(records, key=lambda r: r.final_estimate("kfac_ggn").value)  # type: ignore[union-attr]
    values = winner.architecture.values
    text = without_scripts(page)
    headline = text[text.index('id="headline"') : text.index('id="pictures"')]
    assert f"{winner.architecture.family}, depth {values['depth']}" in headline
    assert f"{winner.test_accuracy:.4f}" in headline
    assert "22 complete, 1 diverged, 1 infeasible" in headline
    assert "24 of 30" in headline
    assert "linear model" in headline


def test_trials_that_are_not_complete_never_rank_but_are_explained(page: str) -> None:
    text = without_scripts(page)
    ranking = text[text.index('id="ranking"') : text.index('id="every-trial"')]
    assert ranking.count("<tr data-family=") == 22
    drawn = re.findall(r'class="dot"[^>]* data-family="(\w+)"', figures(page)["scatter"])
    assert Counter(drawn) == {"cnn": 7, "linear": 1, "mlp": 7, "resnet": 7}
    problems = text[text.index('id="problems"') :]
    assert "diverged" in problems
    assert "infeasible" in problems
    assert "loss became nan &lt;b&gt;at" in problems


def test_sections_come_in_the_order_of_the_questions(page: str, paths: ReportPaths) -> None:
    folds = re.findall(r"<summary><h3>(.*?)[:<]", page)
    shared = [
        "Can this score be trusted here?",
        "Why this one?",
        "Could it have been cheaper?",
        "What went wrong, and what it took",
    ]
    about = "About this study"
    assert folds == [about, "All architectures", "Every trial, in order", *shared]
    markdown = paths.markdown.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", markdown, flags=re.MULTILINE) == [
        "Which architecture, and how sure?",
        about,
        *shared,
    ]


def test_figures_are_well_formed_stay_inside_and_each_has_a_caption(page: str) -> None:
    drawn = figures(page)
    assert set(drawn) == {
        "scatter", "history", "trust", "training", "importance", "evidence", "epochs",
    }  # fmt: skip
    for figure in drawn.values():
        svg = ElementTree.fromstring(figure[figure.index("<svg viewBox") :])
        width, height = map(float, svg.attrib["viewBox"].split()[2:])
        for points in (one.attrib.get("points", "") for one in svg.iter()):
            for x, y in (pair.split(",") for pair in points.split()):
                assert 0 <= float(x) <= width
                assert 0 <= float(y) <= height
    assert page.count("<figcaption>") == len(drawn)


def test_the_page_is_well_formed_and_asks_for_nothing(page: str) -> None:
    tags = Tags(page)
    assert not tags.open
    for tag, attributes in tags.seen:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "data:").startswith(("data:", "#")), tag
    assert "default-src 'none'" in page
    assert len(page.encode()) < 1e6
    assert "prefers-color-scheme: dark" in page
    assert "nan" not in without_scripts(page).replace("became nan", "")


def test_the_markdown_has_the_same_numbers(paths: ReportPaths) -> None:
    markdown = paths.markdown.read_text(encoding="utf-8")
    winner = max(
        (trial(i) for i in range(22)),
        key=lambda r: r.final_estimate("kfac_ggn").value,  # type: ignore[union-attr]
    )
    assert f"| {winner.test_accuracy:.4f} |" in markdown
    assert "<b>" not in markdown
    widths = {
        line.replace(r"\|", "").count("|")
        for line in markdown.splitlines()
        if line.startswith("| kfac")
    }
    assert 10 in widths


@pytest.mark.slow
def test_the_same_tables_give_the_same_report(
    folder: Path, paths: ReportPaths, tmp_path: Path
) -> None:
    build_report(folder, tmp_path)
    for path in paths.html.parent.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


@pytest.mark.long
@pytest.mark.slow
def test_a_report_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from nas_evidence.reporting.contents import report_on;"
        "from nas_evidence.reporting.page import write_report;"
        "from nas_evidence.reporting.study_tables import load_study_tables;"
        "from nas_evidence.reporting.any_table import rank_table;"
        f"report = report_on(load_study_tables(Path({str(folder)!r})));"
        f"write_report(report, Path({str(tmp_path)!r}));"
        "print([name for name in ('torch', 'ray', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_a_hostile_study_name_is_harmless(tmp_path: Path, name: str) -> None:
    hostile = trial(1).model_copy(update={"status": TrialStatus.FAILED, "cause": name})
    paths = build_report(study_folder(tmp_path / "s", [trial(2), hostile], name))
    page = paths.html.read_text(encoding="utf-8")
    assert name not in page
    assert name not in paths.markdown.read_text(encoding="utf-8")
    tags = [tag for tag, _ in Tags(page).seen]
    assert tags.count("script") == 1  # ours
    assert "img" not in tags


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "said"),
    [
        (0, "Nothing to rank yet"),
        (1, "1 architecture is too few to tell whether"),
        (4, "4 architectures are too few to tell whether"),
    ],
)
def test_a_study_with_few_trials_builds_and_says_so(tmp_path: Path, n: int, said: str) -> None:
    paths = build_report(study_folder(tmp_path / "s", [trial(i) for i in range(n)]))
    page = without_scripts(paths.html.read_text(encoding="utf-8"))
    assert said in page
    assert said in paths.markdown.read_text(encoding="utf-8")
    assert all(row["rho"] == "" and row["note"] for row in correlations(paths.correlations))


@pytest.mark.slow
def test_invalid_estimates_are_left_out_and_listed(tmp_path: Path) -> None:
    records = [trial(i) for i in range(8)]
    bad = (
        records[3]
        .evaluations[1]
        .estimate.model_copy(update={"valid": False, "note": "not at a mode"})
    )
    evaluations = (records[3].evaluations[0], Evaluation(epoch=8, estimate=bad))
    records[3] = records[3].model_copy(update={"evaluations": evaluations})
    paths = build_report(study_folder(tmp_path / "s", records))
    rows = correlations(paths.correlations)
    own = next(r for r in rows if r["score"] == "kfac_ggn" and r["group"] == "all")
    assert (own["n"], own["note"]) == ("7", "1 dropped for missing values")
    page = without_scripts(paths.html.read_text(encoding="utf-8"))
    assert "not at a mode" in page
    assert ">undefined</td>" in page


@pytest.mark.slow
def test_a_study_with_no_complete_trial_or_no_test_data_builds(tmp_path: Path) -> None:
    failed = [trial(i, status="failed") for i in range(6)]
    page = build_report(study_folder(tmp_path / "a", failed)).html.read_text(encoding="utf-8")
    assert "Nothing to rank yet" in page
    blind = [
        trial(i).model_copy(update={"test_accuracy": None, "test_nll_per_datum": None})
        for i in range(6)
    ]
    page = build_report(study_folder(tmp_path / "b", blind)).html.read_text(encoding="utf-8")
    assert "There are no test rows to check" in page
    assert "picture of score against test result needs test rows" in page


def test_a_folder_without_study_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        build_report(tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_a_thousand_trials_stay_below_3_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = MOST["rows"]
    monkeypatch.setitem(MOST, "rows", 20)
    none, few, some = (
        build_report(study_folder(tmp_path / str(n), [trial(i) for i in range(n)])).html.stat()
        for n in (0, 20, 60)
    )
    shown = (few.st_size - none.st_size) / 20
    beyond = (some.st_size - few.st_size) / 40
    assert none.st_size + most * shown + 1000 * beyond < 3e6


# --- any table -----------------------------------------------------------------------------------


def table(path: Path, **columns: object) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_a_baseline_that_does_as_well_is_a_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.random(40)
    noisy = target + 0.5 * rng.random(40)
    path = table(tmp_path / "t.csv", s=noisy, y=target, size=target, junk=rng.random(40))
    beaten = rank_table(path, score="s", target="y", baselines=["size", "junk"])
    assert len(beaten.warnings) == 1
    assert "over all rows (rho 0.94)" in beaten.warnings[0]
    assert "size 1.00" in beaten.warnings[0]
    assert "junk" not in beaten.warnings[0]
    assert not rank_table(path, score="size", target="y", baselines=["s"]).warnings
    twin = rank_table(
        table(tmp_path / "u.csv", s=noisy, t=noisy - 1, y=target),
        score="s", target="y", baselines=["t"],
    )  # fmt: skip
    assert "s is no better than baselines over all rows (rho 0.94): t 0.94" in twin.warnings[0]


def test_a_baseline_just_behind_is_said_to_be_not_clearly_worse(tmp_path: Path) -> None:
    target = np.arange(30.0)
    score = np.where(target % 3 == 0, target + 3.5, target)
    rival = np.where(target % 4 == 0, target + 5.5, target)
    report = rank_table(
        table(tmp_path / "t.csv", s=score, r=rival, y=target),
        score="s", target="y", baselines=["r"],
    )  # fmt: skip
    assert "not clearly ahead of r (at least as good in" in report.warnings[0]


def test_a_known_rho_ties_missing_values_and_a_reversal_are_all_told(tmp_path: Path) -> None:
    """Within each group the order is reversed but for a tie; over all, the groups decide."""
    base = np.array([0.0, 1.0, 2.0, 3.0, 3.0, 5.0])
    nothing = [np.nan]
    path = table(
        tmp_path / "simpson.csv",
        s=np.concatenate([base, base + 10, nothing]),
        y=np.concatenate([-np.arange(6.0), 10 - np.arange(6.0), [3.0]]),
        g=["a"] * 6 + ["b"] * 7,
    )
    report = rank_table(path, score="s", target="y", group="g")
    rows = {row.group: row.statistics for row in report.rows if row.score == "s"}
    for group in "ab":  # centred ranks -2.5 .. 2.5, two of them 1 instead of 0.5 and 1.5
        assert_allclose(rows[group].rho, -17 / np.sqrt(17.5 * 17.0))
    assert (rows["a"].n_missing, rows["b"].n_missing) == (0, 1)
    known = pd.read_csv(path).dropna()
    assert_allclose(rows["all"].rho, stats.spearmanr(known["s"], known["y"]).statistic)
    assert_allclose(rows["all"].tau, stats.kendalltau(known["s"], known["y"]).statistic)
    # the first choice by s is the worst of group b: 10 - 5 against 10
    assert rows["all"].regret == {1: 5.0, 3: 3.0, 10: 0.0}
    worse, reversal = report.warnings
    assert "no better than baselines within a (rho -0.99): random 0.00" in worse
    assert "Simpson's paradox" in reversal
    assert "the opposite sign within every group (a -0.99, b -0.99)" in reversal


def test_missing_values_are_dropped_and_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", s=[1, 2, None, 4, 5, 6, 7], y=[1, 2, 3, None, 5, 6, 7])
    only = rank_table(path, score="s", target="y").rows[0]
    assert (only.statistics.n, only.statistics.n_missing) == (5, 2)
    assert only.cells()["note"] == "2 dropped for missing values"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "evidnce"}, 'no column "evidnce"; did you mean "evidence"'),
        ({"target": "zzz"}, 'no column "zzz"; it has evidence, y, g'),
        ({"group": "gg"}, 'no column "gg"; did you mean "g"'),
        ({"baselines": ["g"]}, 'column "g" of .* must hold numbers, but row 1 holds "a"'),
    ],
)
def test_mistakes_in_columns_name_file_column_and_remedy(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = table(tmp_path / "mine.csv", evidence=[1.0, 2.0], y=[1.0, 2.0], g=["a", "b"])
    with pytest.raises(ValueError, match=message) as caught:
        rank_table(path, **({"score": "evidence", "target": "y"} | change))
    assert "mine.csv" in str(caught.value)


@pytest.mark.parametrize("write", [lambda p: None, lambda p: p.write_text("")])
def test_a_file_that_is_missing_or_empty_is_named(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    path = tmp_path / "mine.csv"
    write(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        rank_table(path, score="s", target="y")
