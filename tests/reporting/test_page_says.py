"""Claims about what the page and its text say: the next command, what they are about, each thing
once, and to those who hear them or read them without a mouse."""

import html
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from reported import study_folder, trial
from searched import folder, load, record

from nas_evidence.baselines.comparison import Baseline, Comparison
from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.glossary import TERMS, explained, term
from nas_evidence.reporting.headline import Headline
from nas_evidence.reporting.next_step import next_step, repeated
from nas_evidence.reporting.page import Live, write_report
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.how_read import HowRead
from nas_evidence.spec.record import RACE_IDS
from nas_evidence.storage.events import Began
from nas_evidence.storage.log import Log

EDGE = "The winner has the largest depth. Set family.mlp.depth.high=6 and search again."
SCALE = (
    "Too narrow. Search again with target_scale=auto and plan.likelihood=heteroscedastic (--set), "
    "and another `out`."
)
UNKNOWN = "Unknown. Each architecture was trained once; set finalists=5 and resume to train again."


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A study of 12 architectures, of which few scores tell anything."""
    home = tmp_path_factory.mktemp("noisy")
    found = study_folder(home, [trial(i, noise=9.0) for i in range(12)])
    best = Baseline(name="gradient boosting", metrics={"log_loss": 0.4}, behind=0.12)
    study = load_study_tables(found)
    assert study.winner is not None
    judged = Comparison(
        trial_id=study.winner.trial_id, task="labels", on="test", n=500,
        metrics={"log_loss": 0.3, "accuracy": 0.9}, baselines=(best,),
        confusion=((240, 10), (7, 243)),
    )  # fmt: skip
    return report_on(study, judged, place=Path("runs/noisy"))


@pytest.fixture(scope="module")
def page(noisy: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    return shown(noisy, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> RankedStudy:
    return load(tmp_path_factory.mktemp("two"), [record(1, 1), record(2, 2)], n_trials=2)


def shown(report: Report, to: Path, live: Live | None = None) -> str:
    text = write_report(report, to, live=live).html.read_text(encoding="utf-8")
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ({}, "predict runs/a NEW.npz"),
        ({"answer": "Choose none yet: ."}, "predict runs/a NEW.npz"),
        ({"sure": UNKNOWN}, "resume runs/a --set finalists=5"),
        (
            {"advice": (SCALE, EDGE), "sure": UNKNOWN},
            "search runs/a/study.toml --target-scale auto --set plan.likelihood=heteroscedastic "
            "--set family.mlp.depth.high=6 --out runs/a-2",
        ),
        ({"worth": "Unknown: `nas-evidence report` does so."}, "report runs/a"),
        (
            {"worth": "Unknown: Search again with test_fraction=0.2 (--test-fraction)."},
            "search runs/a/study.toml --test-fraction 0.2 --out runs/a-2",
        ),
    ],
)  # fmt: skip
def test_what_to_do_next_is_one_whole_command(
    ended: RankedStudy, said: dict[str, str], command: str
) -> None:
    found = next_step(ended, Headline(**said), "runs/a")
    assert found.command == f"nas-evidence {command}"
    assert ("all the same" in found.words) == ("answer" in said)


def test_the_next_command_knows_the_state_the_place_and_the_data(ended: RankedStudy) -> None:
    warned = Headline(advice=(EDGE,))
    spec = ended.spec.model_copy(update={"n_trials": 9, "dataset": DatasetSpec(name="cifar10")})
    unfinished = replace(ended, spec=spec)
    one = next_step(unfinished, warned, "runs/my study", data_root=Path("/data"))
    assert one.command == "nas-evidence resume 'runs/my study' --data-root /data"
    assert one.words.startswith("2 of 9 trials are finished")
    assert next_step(unfinished, warned, "a", is_running=True).command == "nas-evidence watch a"
    refit = next_step(ended, warned, "a", is_refit=True)
    store = next_step(ended, warned, "s3://b/d")
    assert [refit.command, store.command] == [
        "nas-evidence predict a NEW.npz", "nas-evidence predict s3://b/d NEW.npz",
    ]  # fmt: skip
    outside = ended.spec.model_copy(update={"family": {"mine:Net": {}}})
    again = repeated(replace(ended, spec=outside), "a")
    assert again == "nas-evidence search a/study.toml --allow-code --out a-2"
    assert repeated(ended, "s3://b/d") == ""


def test_lines_that_fit_a_simple_model_stand_whole_on_page_and_text(
    noisy: Report, tmp_path: Path
) -> None:
    assert noisy.judged is not None
    code = "import nas_evidence\nstudy = {study}\nstudy.features({new})[[0, 1]]"
    tie = noisy.judged.baselines[0].model_copy(
        update={"behind": 0.1, "interval": (-0.1, 0.3), "code": code}
    )
    judged = noisy.judged.model_copy(update={"baselines": (tie,)})
    place, root = Path('runs/a"{new}'), Path("/data")
    spec = noisy.study.spec.model_copy(update={"n_trials": 12})
    report = report_on(replace(noisy.study, spec=spec), judged, place=place, data_root=root)
    assert report.headline.answer.startswith("Take gradient boosting: no network is clearly bette")
    lines = report.next_step().command
    assert lines.splitlines() == [
        "import nas_evidence",
        r'study = nas_evidence.load("runs/a\"{new}", data_root="/data")',
        'study.features("NEW.npz")[[0, 1]]',
    ]
    assert html.escape(lines, quote=False) in html.unescape(shown(report, tmp_path))
    assert f"```python\n{lines}\n```" in (tmp_path / "report.md").read_text("utf-8")


def test_nothing_that_a_name_says_becomes_an_option(ended: RankedStudy) -> None:
    said = Headline(advice=("The intervals of 'x set plan.epochs=1;rm -rf' fail.",))
    assert "epochs" not in next_step(ended, said, "a").command
    assert next_step(ended, Headline(), "a;b c").command == "nas-evidence predict 'a;b c' NEW.npz"


@pytest.mark.slow
def test_the_first_screen_answers_in_order_and_warns_before_it_is_left(
    noisy: Report, tmp_path: Path
) -> None:
    warned = replace(noisy)
    vars(warned)["headline"] = replace(noisy.headline, advice=(EDGE,))
    text = shown(warned, tmp_path)
    parts = ["What to take", 'class="warning"', "How good, beside what?", 'id="measured"',
             "How sure?", "What to do next", 'class="command"', 'id="load"']  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert '<code class="nowrap">family.mlp.depth.high=6</code>' in text
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    steps = ["**Take ", "> The winner", "How good, beside what?", "How sure?", "```sh\nnas-evid"]
    assert [markdown.index(one) for one in steps] == sorted(markdown.index(one) for one in steps)


@pytest.mark.slow
def test_the_page_of_a_running_study_follows_it(noisy: Report, tmp_path: Path) -> None:
    text = html.unescape(shown(noisy, tmp_path, Live(2, 1e9, "process 1 of host a")))
    assert "The search goes on." in text
    assert 'nas-evidence</span> <span class="nowrap">watch' in text


@pytest.mark.slow
def test_the_page_of_a_running_study_draws_the_losses_of_its_trials(
    noisy: Report, tmp_path: Path
) -> None:
    trials = [
        {"trial": 40 + i, "architecture": f"<b>{i}", "epoch": 2, "epochs": 8, "seconds": 3.0,
         "attempt": 1, "losses": [(1, 0.9), (2, 0.5 + i)] if i else []}
        for i in range(3)
    ]  # fmt: skip
    text = html.unescape(shown(noisy, tmp_path, Live(2, 1e9, "process 1", trials)))
    at = text.index('id="under_way"')
    drawn = text[at : text.index("<figcaption>", at)]
    assert "trial 41 1.500 at epoch 2; trial 42 2.500 at epoch 2" in drawn
    assert drawn.count("<polyline") == 3  # the best so far, too
    assert "at epoch 2 of 8: 1.5000" in drawn
    assert (
        "<b>1"
        not in write_report(noisy, tmp_path, live=Live(2, 1e9, "p", trials)).html.read_text()
    )
    assert 'id="under_way"' not in shown(noisy, tmp_path, Live(2, 1e9, "p", trials[:1]))


@pytest.mark.slow
def test_data_rows_date_version_and_command_stand_on_the_page(tmp_path: Path) -> None:
    versions = '{"nas-evidence": "9.9", "torch": "2.15", "device": "cpu x86_64"}'
    home = folder(tmp_path / "s", [record(1, 1, versions=versions), record(2, 2)], n_trials=2)
    log = Log(home)
    log.write(Began(pid=1, host="a", boot_id="b"))
    log.close()
    read = HowRead((), {}, (2,), 1096, 24, given="flats.csv")
    report = report_on(load_study_tables(home), place=Path("runs/s"), how_read=read)
    text = shown(report, tmp_path / "to")
    line = re.search(r'id="about-line">(.*?)<a', text)
    assert line is not None
    assert re.fullmatch(
        r"flats.csv: 1,096 training rows, 24 test rows; searched \d{4}-\d\d-\d\d \d\d:\d\d to "
        r"\d\d:\d\d \w+\. ", line[1],
    )  # fmt: skip
    markdown = (tmp_path / "to" / "report.md").read_text(encoding="utf-8")
    for where in (text, markdown.replace("\\", "")):
        assert "nas-evidence 9.9, torch 2.15, cpu x86_64" in where
    assert "nas-evidence search runs/s/study.toml --out runs/s-2" in markdown.replace("\\", "")


@pytest.mark.slow
def test_that_there_are_too_few_to_tell_is_said_once(page: str, noisy: Report) -> None:
    few = [one for one in noisy.trust.sentences if "too few to tell" in one[1]]
    assert len(few) > 2
    assert page.count("too few to tell") == 1
    told = dict(noisy.trust.told)
    assert all(score in ", ".join(told) for score, _ in few if score != noisy.trust.main)


@pytest.mark.slow
def test_no_backticks_are_left_over(page: str, noisy: Report, tmp_path: Path) -> None:
    assert "`" not in page
    assert "`" not in "".join(str(term(word)) for word in TERMS)
    said = "run `nas-evidence report`; --set objective=five_fold (--set), rho"
    codes = re.findall(r"<code[^>]*>(.*?)</code>", str(explained(said)))
    assert codes == ["nas-evidence report", "--set", "objective=five_fold", "--set"]
    write_report(noisy, tmp_path)
    assert "\\`" not in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_has_a_main_part_and_its_headings_descend_one_by_one(page: str) -> None:
    assert page.count("<main>") == page.count("</main>") == page.count("<h1>") == 1
    levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", page)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert "</main>" in page[: page.index("<footer>")]


@pytest.mark.slow
def test_each_figure_says_its_message_to_those_who_hear_it(page: str) -> None:
    alt = [html.unescape(one) for one in re.findall(r'role="img" aria-label="([^"]*)"', page)]
    assert len(alt) >= 7
    assert all(re.search(r"\d", one) for one in alt), alt
    assert any("gradient boosting 0.120" in one for one in alt)
    assert (
        "483 of 500 rows have their true class predicted; most often wrong: 0 as 1, 10 times"
        in alt
    )


@pytest.mark.slow
def test_the_keyboard_stops_at_each_term_once(page: str) -> None:
    stops = re.findall(r'class="term" tabindex="0">([^<]*)<', page)
    assert len(stops) == len({*stops}) > 3
    assert page.count('class="term"') > len(stops)


@pytest.mark.slow
def test_marks_of_trials_name_a_row_that_is_there(page: str) -> None:
    rows = {*re.findall(r'<tr id="trial-(\d+)"', page)}
    marks = {*re.findall(r' data-trial="(\d+)"', page)}
    assert len(rows) == 12
    assert marks == rows


@pytest.mark.slow
def test_trials_of_the_race_are_explained_where_they_stand(tmp_path: Path) -> None:
    searched = [record(key, key) for key in range(1, 4)]
    raced = [record(RACE_IDS + key, key, stage="race", replicate=1000) for key in range(1, 3)]
    study = load(tmp_path / "s", [*searched, *raced], n_trials=3)
    text = shown(report_on(study), tmp_path / "to")
    plain = re.sub(r"<[^>]*>", "", text)
    assert "3 of 3and 2 in the race" in plain
    assert "which trains the best again with other seeds; in all 5 complete" in plain
    assert "Trials from 1,000,000 on are the race: the best architectures, trained again" in plain
    markdown = (tmp_path / "to" / "report.md").read_text(encoding="utf-8")
    assert "Trials: 3 of 3, and 2 in the race" in markdown


@pytest.mark.slow
def test_the_second_line_of_the_text_is_two_whole_sentences(noisy: Report, tmp_path: Path) -> None:
    write_report(noisy, tmp_path)
    second = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()[2]
    assert second == (
        "Networks for digits, ranked using only the training data. Test data are used only in "
        "this report."
    )
