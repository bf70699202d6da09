"""Claims about the page in a browser: no error, no request, and filter, sort and choice work."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, browser
from reported import study_folder, trial
from searched import build_report

from nas_evidence.reporting import templating
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.page import Live, write_report
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables
from nas_evidence.reporting.terms import term_table
from nas_evidence.spec.how_read import HowRead

pytestmark = pytest.mark.slow

WARNING = "The winner has the largest depth. Set family.mlp.depth.high=6 and search again."
RANKING = "#ranking .scroll.tall"
COLUMN = (
    "[...document.querySelectorAll('#comparison tbody tr')].map((row) => row.cells[{}].innerText)"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = "<img src=http://localhost:9/x onerror=alert(1)>"
    trials = [trial(i, status="failed" if i == 5 else "complete") for i in range(14)]
    return study_folder(tmp_path_factory.mktemp("page"), trials, name)


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return build_report(folder).html


@pytest.fixture(scope="module")
def study(folder: Path) -> RankedStudy:
    return load_study_tables(folder)


@pytest.fixture(scope="module")
def tab(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[str, bool], None]
) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    require_service("chromium", bool(program))
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def desktop(tab: Browser, page: Path) -> Browser:
    tab.open(page)
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    return tab


def test_the_page_of_a_running_study_loads_itself_again_and_stays_where_it_was(
    tab: Browser, study: RankedStudy, tmp_path: Path
) -> None:
    running = {"trial": 7, "architecture": "mlp, width 4", "epoch": 3, "epochs": 20}
    live = Live(2, 1e9, "process 1 of host a", ({**running, "seconds": 12.3, "attempt": 1},))
    page = write_report(report_on(study), tmp_path, live=live).html
    tab.open(page, width=390)
    assert "3 of 20" in tab.evaluate("document.querySelector('#live').innerText")
    tab.evaluate("document.querySelector('#why').open = true, scrollTo(0, 1500)")
    write_report(report_on(study), tmp_path)  # the study has ended
    ended = "document.readyState === 'complete' && !document.querySelector('#live')"
    later = f"new Promise((done) => setTimeout(() => done({ended}), 300))"
    for _ in range(100):
        with suppress(AssertionError):  # the page went away before its answer
            if tab.evaluate(later):
                break
    assert tab.evaluate(ended)
    assert tab.evaluate("[...document.querySelectorAll('details[open]')].map((d) => d.id)") == [
        "why"
    ]
    height = 300  # more than that of what is no longer under way, above
    assert tab.evaluate("scrollY") == pytest.approx(1500, abs=height)
    tab.evaluate("mark = 2, new Promise((done) => setTimeout(done, 2500))")
    assert tab.evaluate("mark") == 2  # it stays
    assert tab.errors == []


@pytest.mark.crossed
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_asks_for_nothing_logs_nothing_and_fits(
    tab: Browser, page: Path, width: int, dark: bool
) -> None:
    tab.open(page, width=width, dark=dark)
    assert tab.errors == []
    assert tab.requests == [page.as_uri()]
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.querySelectorAll('figure .figure > svg').length") >= 4
    ground, ink = (
        tab.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (("body", "backgroundColor"), ("#scatter .axis-title", "fill"))
    )
    assert (_lightness(ground) < 60, _lightness(ink) > 180) == (dark, dark)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_how_the_data_were_read_fits_and_divides_no_flag(
    tab: Browser, study: RankedStudy, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    wild = "<script>a|b</script>" + "x" * 300
    decided = ("images: 14 of 6 x 8 pixels; image_size=N (--image-size) to resize", wild)
    read = HowRead(decided, {"numbers": ("a", "b"), "left out": (wild,)}, (2,), 96, 24)
    page = write_report(report_on(study, how_read=read), tmp_path).html
    tab.open(page, width=width, height=height, dark=dark)
    tab.evaluate("document.querySelector('#data').open = true")
    assert "<script>a|b</script>" in tab.evaluate("document.querySelector('#data').innerText")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    lines = "document.querySelector('#data li code').getClientRects().length"
    assert tab.evaluate(lines) == 1
    assert tab.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_answer_comes_before_all_else_and_the_rest_is_folded(
    tab: Browser, page: Path, width: int
) -> None:
    tab.open(page, width=width)
    top = "document.querySelector('{}').getBoundingClientRect().top + scrollY"
    if width == 1280:
        assert tab.evaluate(top.format("details")) < 2.5 * 900
        assert tab.evaluate(top.format("#load")) < 900
    assert tab.evaluate("document.querySelectorAll('details[open]').length") == 0
    tab.evaluate("document.querySelector('#trust-section').open = true")
    tab.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert tab.evaluate("document.querySelector('#trust > svg').clientWidth") > 0.4 * width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.errors == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_warnings_are_above_the_fold_and_the_four_answers_follow_each_other(
    tab: Browser, study: RankedStudy, tmp_path: Path, width: int, height: int
) -> None:
    report = report_on(study)
    vars(report)["headline"] = replace(report.headline, advice=(WARNING, WARNING))
    tab.open(write_report(report, tmp_path).html, width=width, height=height)
    box = (
        "(({{top, bottom}}) => [top, bottom])"
        "(document.querySelector('{}').getBoundingClientRect())"
    )
    places = [tab.evaluate(box.format(one)) for one in (".answer", ".warning", "#good", "#sure")]
    assert places[1][1] < height
    assert [top for top, _ in places] == sorted(top for top, _ in places)
    if width == 1280:
        assert tab.evaluate(box.format("#next .command"))[1] < height
    assert tab.errors == []


def test_a_click_on_a_mark_opens_the_row_of_its_trial_also_of_a_hidden_family(
    tab: Browser, page: Path, study: RankedStudy
) -> None:
    tab.open(page)
    assert tab.evaluate("document.querySelectorAll('details[open]').length") == 0
    last = study.ranking[-1]
    other = next(one.family for one in study.ranking if one.family != last.family)
    tab.evaluate(f"document.querySelector('#pictures [data-show-family={other}]').click()")
    tab.evaluate(
        f"document.querySelector('#scatter [data-trial=\"{last.trial_id}\"]').dispatchEvent("
        "new MouseEvent('click', {bubbles: true}))"
    )
    assert tab.evaluate("document.querySelector('#every-trial').open")
    assert tab.evaluate("document.activeElement.id") == f"trial-{last.trial_id}"
    seen = tab.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 < seen < 900
    tab.evaluate("document.querySelector('a[href=\"#about\"]').click()")
    assert tab.evaluate("document.querySelector('#about').open")
    assert tab.errors == []


def test_a_table_that_scrolls_says_so_and_takes_the_keyboard(tab: Browser, page: Path) -> None:
    tab.open(page, width=390)
    tab.evaluate("document.querySelector('#why').open = true")
    box = "document.querySelector('#comparison').parentElement"
    wait = "new Promise((done) => setTimeout(done, 200))"
    tab.evaluate(wait)
    assert tab.evaluate(f"{box}.nextElementSibling.hidden")
    tab.evaluate(f"{box}.firstElementChild.style.minWidth = '900px', {box}.style.maxWidth = '99%'")
    tab.evaluate(wait)
    said = tab.evaluate(f"{box}.nextElementSibling.innerText")
    assert said == "This table goes on: scroll it sideways for more columns."
    assert tab.evaluate(f"[{box}.tabIndex, {box}.getAttribute('role')]") == [0, "region"]
    assert tab.errors == []


def test_the_command_is_copied_whole(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.evaluate("document.querySelector('#next .copy').click()")
    tab.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert tab.evaluate("document.querySelector('#next .copy').innerText") in (
        "Copied",
        "Selected",
    )
    assert tab.evaluate("getSelection().toString()").startswith("nas-evidence resume ")
    assert tab.errors == []


def _lightness(colour: str) -> float:
    red, green, blue = (int(one) for one in colour.split("(")[1].rstrip(")").split(",")[:3])
    return (red + green + blue) / 3


def test_the_filter_shows_one_family_in_table_and_figure(
    desktop: Browser, study: RankedStudy
) -> None:
    shown = f"[...document.querySelectorAll('{RANKING} tbody tr')].filter((r) => !r.hidden).length"
    points = "document.querySelectorAll('#scatter .dot:not([hidden])').length"
    n = sum(one.family == "cnn" for one in study.ranking)
    assert (desktop.evaluate(shown), desktop.evaluate(points)) == (13, 13)
    desktop.evaluate("document.querySelector('[data-show-family=cnn]').click()")
    assert (desktop.evaluate(shown), desktop.evaluate(points)) == (n, n)
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map((b) => b.innerText)"
    assert set(desktop.evaluate(pressed)) == {"cnn"}
    desktop.evaluate("document.querySelector('[data-show-family=\"\"]').click()")
    assert (desktop.evaluate(shown), desktop.evaluate(points)) == (13, 13)
    assert desktop.errors == []


def test_headings_sort_by_mouse_and_by_keyboard_and_say_so(
    desktop: Browser, study: RankedStudy
) -> None:
    by_accuracy = sorted(study.ranking, key=lambda one: one.test_accuracy or 0.0)
    heading = (
        f"[...document.querySelectorAll('{RANKING} th button')]"
        ".find((b) => b.innerText.startsWith('test accuracy'))"
    )
    first = f"document.querySelector('{RANKING} tbody tr').cells[1].innerText"
    state = f"{heading}.parentElement.getAttribute('aria-sort')"
    assert desktop.evaluate(state) is None
    desktop.evaluate(f"{heading}.click()")
    assert desktop.evaluate(state) == "ascending"
    assert desktop.evaluate(first) == str(by_accuracy[0].trial_id)
    desktop.evaluate(f"{heading}.focus()")
    desktop.type_key("Enter", 13, "\r")
    assert desktop.evaluate(state) == "descending"
    assert desktop.evaluate(first) == str(by_accuracy[-1].trial_id)
    desktop.type_key("Tab", 9)
    assert desktop.evaluate("document.activeElement.tagName") == "BUTTON" or (
        desktop.evaluate("document.activeElement.tagName") == "SUMMARY"
    )


def test_every_table_with_headings_to_click_sorts_without_an_error(desktop: Browser) -> None:
    tables = "[...document.querySelectorAll('table.sortable')]"
    assert desktop.evaluate(f"{tables}.length") >= 6
    desktop.evaluate(
        f"{tables}.forEach((t) => t.querySelectorAll('th button').forEach((b) => b.click()))"
    )
    assert desktop.errors == []
    table = "document.querySelector('#trust-section .scroll table')"
    desktop.evaluate(f"{table}.querySelectorAll('th button')[3].click()")
    shown = desktop.evaluate(
        f"[...{table}.tBodies[0].rows].map((row) => row.cells[3].dataset.value)"
        ".filter((v) => v !== undefined).map(Number)"
    )
    assert len(shown) > 10
    assert shown in (sorted(shown), sorted(shown, reverse=True))


def test_the_first_and_the_second_stand_side_by_side(desktop: Browser, study: RankedStudy) -> None:
    compared = term_table(study)
    for i, (_, row) in enumerate(compared.head(2).iterrows()):
        heading = f"document.querySelector('#comparison thead tr').cells[{1 + i}].innerText"
        assert desktop.evaluate(heading) == row["trial"]
        shown = desktop.evaluate(COLUMN.format(1 + i))
        assert shown[0] == f"{row.iloc[1]:.4f}"
        assert len(shown) == len(row) - 1
    assert desktop.errors == []


def test_no_table_is_wider_than_a_phone(tab: Browser, page: Path) -> None:
    tab.open(page, width=390)
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    wide = "[...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth)"
    assert tab.evaluate(f"{wide}.map((s) => s.innerText.slice(0, 80))") == []


def test_a_term_shows_its_meaning_when_it_is_tapped_and_only_then(
    tab: Browser, page: Path
) -> None:
    tab.open(page, width=390)
    first = "[...document.querySelectorAll('.term')].find((term) => term.offsetParent)"
    shown = f"getComputedStyle({first}.querySelector('span')).display"
    assert tab.evaluate(shown) == "none"
    tab.evaluate(f"{first}.focus()")
    assert tab.evaluate(shown) == "block"
    box = tab.evaluate(
        "(({left, right}) => [left, right])"
        f"({first}.querySelector('span').getBoundingClientRect())"
    )
    assert 0 <= box[0] < box[1] <= 390


def test_a_mark_says_what_it_is_to_a_mouse_and_to_the_first_tap(tab: Browser, page: Path) -> None:
    tab.open(page)
    dot = "document.querySelector('#scatter .dot')"
    tap = (
        f"{dot}.dispatchEvent(new PointerEvent('pointerdown', {{pointerType: 'touch'}})), "
        f"{dot}.dispatchEvent(new MouseEvent('click', {{clientX: 300, clientY: 300}}))"
    )
    said = "document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').innerText"
    assert tab.evaluate(said) == ""
    tab.evaluate(
        f"{dot}.dispatchEvent(new PointerEvent('pointerenter', {{pointerType: 'mouse'}}))"
    )
    assert "rank " in tab.evaluate(said)
    tab.evaluate(
        f"{dot}.dispatchEvent(new PointerEvent('pointerleave', {{pointerType: 'mouse'}}))"
    )
    assert tab.evaluate(said) == ""
    tab.evaluate(tap)
    assert "rank " in tab.evaluate(said)
    assert not tab.evaluate("document.querySelector('#every-trial').open")
    tab.evaluate(tap)
    assert tab.evaluate("document.querySelector('#every-trial').open")
    assert tab.errors == []


def test_templates_are_compiled_ahead_and_a_page_compiles_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    templating.compile_templates()

    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("compiled again")

    monkeypatch.setattr(templating.environment(), "compile", refuse)
    for name in ("study.html.j2", "study.md.j2", "captions.html.j2", "layout.html.j2"):
        templating.environment().get_template(name)
