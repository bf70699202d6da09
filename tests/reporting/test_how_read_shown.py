"""How the data were read stands on the page, in its Markdown and JSON, for any names."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from reported import study_folder, trial

from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.page import write_report
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.how_read import HowRead

WILD = "<script>a|b</script>" + "x" * 300
FOUND = HowRead(
    (
        "9 constant columns are left out: x0, x8, ...; --categorical COL to keep one",
        f"column {WILD!r} is left out: it is empty",
    ),
    {"numbers": tuple(f"n{i}" for i in range(50)), "left out": (WILD,)},
    (50,),
    96,
    24,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = study_folder(tmp_path_factory.mktemp("read"), [trial(0), trial(1)], "read")
    return report_on(load_study_tables(folder), how_read=FOUND)


def test_the_report_says_how_the_data_were_read(report: Report, tmp_path: Path) -> None:
    paths = write_report(report, tmp_path)
    page, text = (path.read_text() for path in (paths.html, paths.markdown))
    assert "<code>--categorical</code> COL to keep one" in page
    assert "96 training rows, 24 test rows; inputs of the networks: 50." in page
    assert "<script>a" not in page
    assert "- 9 constant columns are left out: x0, x8, ...; --categorical COL to keep one" in text
    assert "- 50 columns as numbers: n0, n1, " in text
    assert "n39, ...\n" in text
    assert "- 1 column left out: &lt;script&gt;a\\|b" in text
    assert json.loads((tmp_path / "report.json").read_text())["how_read"]["n_train"] == 96


def test_a_study_that_does_not_know_it_says_so(report: Report, tmp_path: Path) -> None:
    paths = write_report(replace(report, how_read=None), tmp_path)
    for path in (paths.html, paths.markdown):
        text = path.read_text()
        assert "How the data were read is not known" in text
        assert "how_read.json" in text
