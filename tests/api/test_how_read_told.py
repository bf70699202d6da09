"""How the data were read is printed, also without a terminal, and kept with the study."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import QUICK

import nas_evidence
from nas_evidence.api.progress import audience_for
from nas_evidence.api.request import asked_for
from nas_evidence.storage.kept_how_read import FILE

LEFT_OUT = "2 constant columns are left out: a, b; "


def table(n: int = 40) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=n)
    return pd.DataFrame({"x": x, "a": 1.0, "b": "one", "y": np.where(x > 0, "up", "down")})


def search(folder: Path) -> nas_evidence.Study:
    return nas_evidence.search(
        table(), target="y", families="linear", n_trials=1, settings=QUICK,
        executor="inline", out=folder / "s",
    )  # fmt: skip


@pytest.mark.slow
def test_a_search_without_a_terminal_prints_it_and_keeps_it_for_summary_page_and_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = search(tmp_path)
    data, answer = capsys.readouterr().out.splitlines()  # progress is for a terminal
    assert LEFT_OUT + "categorical=COL to keep one" in data
    assert answer.startswith(f"{tmp_path / 's'}: linear (trial 0) is the only architecture by ")
    assert answer.endswith("; study.report() writes the page")
    kept = LEFT_OUT + "categorical=COL to keep one"
    found = study.summary().how_read
    assert found is not None
    assert kept in found.decided
    assert dict(found.columns) == {"numbers": ("x",), "left out": ("a", "b")}
    assert (found.n_train, found.n_test, found.shape) == (40, 0, (1,))
    assert kept in study.report().with_name("report.md").read_text()
    card = (study.export(tmp_path / "winner") / "README.md").read_text()
    assert "## How the data were read\n- classification, 2 classes: down, up\n" in card
    assert f"- {kept}\n" in card
    assert "- 2 columns left out: a, b\n" in card
    meaning = json.loads((tmp_path / "winner" / "meaning.json").read_text())
    assert kept in meaning["decided"]
    (study.folder / FILE).unlink()  # as of an older version: resume writes it again
    nas_evidence.resume(study.folder, n_trials=2, executor="inline")
    again = nas_evidence.load(study.folder).summary().how_read
    assert again is not None
    assert kept in again.decided


def test_it_is_printed_in_one_line_without_a_terminal_unless_progress_is_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for progress in (None, False):
        audience_for(progress).read(("column 'a' is left out; drop=a", "2 classes: up, down"))
    expected = "data: Column 'a' is left out; drop=a. 2 classes: up, down.\n"
    assert capsys.readouterr().out == expected


def test_data_of_a_study_file_are_told_as_well(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    file = tmp_path / "s.toml"
    file.write_text(
        'name = "s"\nn_trials = 1\nobjective = "diag_ef"\nestimators = ["diag_ef"]\n'
        '[dataset]\nname = "table"\npath = "t.csv"\ntarget = "y"\n[family.linear]\n'
    )
    assert any(one.startswith(LEFT_OUT) for one in asked_for(str(file)).decided)
