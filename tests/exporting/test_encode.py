"""encode.py of an export and onnxruntime, without nas-evidence, give what `predict` gives."""

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import nas_evidence
from nas_evidence.data.reading import _MISSING_WORDS
from nas_evidence.exporting import encode
from nas_evidence.exporting.soundness import wrong_export_files

QUICK = {
    "plan.epochs": 2, "plan.settle": 0, "finalists": 0, "estimators": ["elpd"],
    "objective": "elpd",
}  # fmt: skip
N = 60


def written(n: int) -> dict[str, list[str]]:
    """Columns as people write them, as text."""
    rng = np.random.default_rng(0)
    number = rng.normal(10, 3, n)
    code = rng.choice([1, 2, 3], n)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400, n), unit="D")
    columns = {
        "plain": [f"{x:.3f}" for x in number],
        "money": [f"${1000 * x:,.2f}" for x in number],
        "size": [f"{x:.1f} cm" for x in number],
        "far": [f"{2459000 + x:.4f}" for x in number],
        "flag": ["true" if x > 10 else "False" for x in number],
        "grade": [str(x) for x in code],
        "town": list(rng.choice(["rome", "oslo", "köln"], n)),
        "iso": [f"{x:%Y-%m-%d} 08:30" for x in day],
        "short": [f"{x:%d.%m.%Y}" for x in day],
        "zoned": [f"{x:%Y-%m-%d}T22:00:00+02:00" for x in day],
    }
    for name in ("plain", "town", "iso", "grade"):
        columns[name][3] = ""
    columns["plain"][4] = "unknown"
    return columns | {"y": [f"{x + c:.3f}" for x, c in zip(number, code, strict=True)]}


def as_csv(path: Path, columns: dict[str, list[str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encode")
    columns = written(N)
    as_csv(folder / "train.csv", columns)
    new = {name: cells[::-1] for name, cells in columns.items() if name != "y"}
    new["town"][0], new["grade"][1], new["plain"][2] = "lima", "2.0", "1,234.5"
    new["size"][5], new["money"][6] = "NA", "(3)"
    as_csv(folder / "new.csv", new)
    return folder


def search(home: Path, name: str, **given: Any) -> nas_evidence.Study:
    return nas_evidence.search(
        home / "train.csv", target="y", settings=QUICK, progress=False, out=home / name,
        categorical=["grade"], **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def study(home: Path) -> nas_evidence.Study:
    found = search(home, "s", n_trials=1, families="linear")
    found.predictor()  # exports it
    return found


def load_encoder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    monkeypatch.setattr(encode, "__file__", str(folder / "encode.py"))
    return encode


@pytest.mark.slow
def test_features_are_those_of_predict_bit_by_bit(
    home: Path, study: nas_evidence.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = study.predictor()
    kinds = {one.name: one for one in predictor.preparation.columns}
    assert {*kinds} == {*written(9)} - {"y"}
    assert kinds["far"].shift
    expected = predictor.given(home / "new.csv").inputs
    encoder = load_encoder(monkeypatch, study.folder / "export")
    np.testing.assert_array_equal(encoder.encode(home / "new.csv"), expected)
    assert encoder.encode(home / "new.csv").dtype == np.float32


@pytest.mark.slow
def test_what_cannot_be_read_in_the_same_way_is_refused(
    home: Path, study: nas_evidence.Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = load_encoder(monkeypatch, study.folder / "export")
    for column, cell, said in (
        ("iso", "1st of May", "'iso': '1st of May' is no date"),
        ("plain", "1e300", "'plain' must be finite"),
        ("town", None, "lacks the columns town"),
    ):
        columns = written(9)
        columns[column][1:2] = [] if cell is None else [cell]
        if cell is None:
            del columns[column]
        with pytest.raises(ValueError, match=said):
            encoder.encode(as_csv(tmp_path / "bad.csv", columns))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of cells that are new
@pytest.mark.parametrize("top", [None, 2])
def test_onnxruntime_and_a_csv_file_alone_give_the_numbers_of_predict(
    home: Path, study: nas_evidence.Study, tmp_path: Path, top: int | None
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if top:
        study = search(home, "two", n_trials=2)
    folder = study.export(tmp_path / "winner", onnx=True, top=top)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "## Without nas-evidence\nThe inputs of model.onnx are features." in card
    without = "import sys; sys.modules['nas_evidence'] = sys.modules['pandas'] = None"
    code = f"{without}; import encode; encode.main({str(home / 'new.csv')!r})"
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout
    names, *rows = csv.reader(io.StringIO(out))
    assert names == ["y"]
    expected = study.predict(home / "new.csv", top=top).mean
    np.testing.assert_allclose(np.array(rows, dtype=float), expected, rtol=1e-4, atol=1e-4)
    (folder / "encode.py").write_text("")
    assert wrong_export_files(folder) == ["encode.py"]


def test_outputs_of_classes_become_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meaning.json").write_text('{"classes": ["a", 2], "targets": []}')
    encoder = load_encoder(monkeypatch, tmp_path)
    outputs = torch.tensor([[1000.0, 999.0], [-3.0, 2.0]])
    names, values = encoder.predictions(outputs.numpy())
    assert names == ["a", "2"]
    np.testing.assert_allclose(values, torch.softmax(outputs.double(), 1).numpy())


def test_missing_words_are_those_of_a_search() -> None:
    assert frozenset(_MISSING_WORDS) == encode.MISSING_WORDS
