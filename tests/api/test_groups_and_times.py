"""A search of data with groups or times, from the table to the comparison with simple models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from messages import refused
from safetensors.torch import load_file

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.data import load
from nas_evidence.data.arrays import MOST_BINNED, check_space
from nas_evidence.data.preparation import inputs_of
from nas_evidence.data.tensors import to_tensors
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.storage.tables import read_table

QUICK = {"plan.epochs": 2, "plan.settle": 0, "finalists": 0}


def sales(n: int = 100) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    price = generator.normal(0, 1, n)
    return pd.DataFrame(
        {"price": price, "shop": np.arange(n) % 20, "week": np.arange(n) // 2, "sold": price**2}
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "n"),
    [({"groups": "shop", "drop": ["week"]}, 100), ({"time_column": "week", "drop": ["shop"]}, 80)],
)
def test_a_search_is_judged_on_the_rows_that_its_folds_predict(
    options: dict[str, str | list[str]], n: int, tmp_path: Path
) -> None:
    study = nas_evidence.search(
        sales(), target="sold", n_trials=1, settings=QUICK, out=tmp_path / "s", **options
    )  # type: ignore[arg-type]
    study.report()
    comparison = read_comparison(study.folder)
    assert comparison.n == n
    assert comparison.errors  # from predictions of each row, not only their sum
    assert study.predict(sales()[["price"]]).mean is not None
    again = nas_evidence.search(
        sales(), target="sold", n_trials=1, settings=QUICK, out=tmp_path / "s", **options
    )  # type: ignore[arg-type]
    assert again.ranking.equals(study.ranking)


def test_too_few_groups_leave_no_folder_behind(tmp_path: Path) -> None:
    table = sales().assign(shop=["north", "south"] * 50)
    with pytest.raises(ValueError, match="need at least 5 groups, but the data have 2"):
        nas_evidence.search(
            table, target="sold", groups="shop", settings=QUICK, out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()


# --- A study whose networks encode numbers, from the table to the files that are delivered


BOTH = ["plain", "piecewise"]


def table(n: int = 90) -> pd.DataFrame:
    """A target with a kink in one number; a column of each kind, some cells missing."""
    random = np.random.default_rng(0)
    number, other = random.normal(size=n), random.lognormal(size=n)
    return pd.DataFrame(
        {
            "number": number,
            "other": np.where(random.random(n) < 0.3, np.nan, other),
            "count": random.integers(0, 4, n),
            "flag": random.integers(0, 2, n),
            "always": 3.0,
            "kind": random.choice(list("xyz"), n),
            "y": np.abs(number) + 0.1 * random.normal(size=n),
        }
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """Two linear maps, with piecewise numbers and without."""
    return nas_evidence.search(
        table(), target="y", n_trials=2, progress=False, task="regression",
        out=tmp_path_factory.mktemp("numbers") / "study",
        settings={"family": {"linear": {"numbers": BOTH}}, "plan.epochs": 3, "finalists": 0,
                  "sampler.name": "grid", "estimators": ["conditional_evidence", "kfac_ggn"]},
    )  # fmt: skip


def piecewise(study: nas_evidence.Study) -> int:
    ranking = study.ranking
    return int(ranking.loc[ranking["numbers"] == "piecewise", "trial_id"].iloc[0])


@pytest.mark.slow
def test_bins_are_of_numbers_and_of_their_known_cells(study: nas_evidence.Study) -> None:
    arrays = study.arrays()
    preparation, bins = arrays.meaning.preparation, arrays.columns.bins
    names = [preparation.feature_names[at] for at in bins.column]
    assert set(names) == {"number", "other", "count"}
    at = preparation.feature_names.index("other")
    known = table()["other"].dropna().to_numpy()
    lows = bins.low[bins.column == at] * arrays.std[at] + arrays.mean[at]
    np.testing.assert_allclose(lows, np.quantile(known, np.arange(8) / 8), rtol=1e-4)


@pytest.mark.slow
def test_a_kink_is_better_explained_with_piecewise_numbers(study: nas_evidence.Study) -> None:
    assert study.ranking.iloc[0]["numbers"] == "piecewise"
    assert set(read_table(study.folder, "trials")["arch_numbers"]) == set(BOTH)


@pytest.mark.slow
def test_every_export_predicts_as_the_study_from_its_files_alone(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    folder = study.export(tmp_path / "e", trial_id=piecewise(study), pt2=True)
    rows = table().drop(columns="y").head(9)
    found = Predictor.load(folder).predict(rows)
    expected = study.predictor(piecewise(study)).predict(rows)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-6)
    features = inputs_of(study.arrays().meaning.preparation, rows, "here")
    with torch.no_grad():
        outputs = torch.export.load(folder / "model.pt2").module()(torch.from_numpy(features))
    np.testing.assert_allclose(outputs.numpy(), expected.mean, rtol=1e-4, atol=1e-4)
    stored = load_file(folder / "model.safetensors")
    bins = study.arrays().columns.bins
    np.testing.assert_array_equal(stored["model.numbers.low"].numpy(), bins.low)
    assert "Piecewise numbers, up to 8 bins" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_weights_that_are_lost_are_trained_again_with_their_bins(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    trial = piecewise(study)
    path = study.folder / "models" / f"{trial}.safetensors"
    before = load_file(path)
    path.unlink()
    again = nas_evidence.load(study.folder)
    again.export(tmp_path / "e", trial_id=trial)
    stored = load_file(tmp_path / "e" / "model.safetensors")
    for name in ("head.weight", "numbers.column", "numbers.low", "numbers.std"):
        torch.testing.assert_close(stored[f"model.{name}"], before[name], rtol=0, atol=0)


def test_images_are_refused_in_one_sentence_before_anything_runs(tmp_path: Path) -> None:
    with refused("numbers-of-images", "linear", "numbers"):
        nas_evidence.search(
            "digits", n_trials=1, progress=False, out=tmp_path / "study",
            settings={"family": {"linear": {"numbers": "piecewise"}}},
        )  # fmt: skip
    assert [*(tmp_path / "study" / "trials").glob("*")] == []


def test_plain_numbers_of_images_are_no_mistake() -> None:
    digits = load(DatasetSpec(name="digits", max_train=20, max_test=10), seed=0)
    check_space({"mlp": {"numbers": Choice(options=("plain",))}}, digits)
    assert digits.columns is None


def test_the_bins_of_many_rows_are_of_evenly_spaced_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(MOST_BINNED + 999, 2)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=random.normal(size=len(x)))
    arrays = load(DatasetSpec(name="npz", path=str(tmp_path / "d.npz")), seed=0)
    bins = arrays.columns.bins
    assert len(arrays.columns.rows) == MOST_BINNED
    seen = to_tensors(arrays, "cpu").x_train.numpy()[:, 0]
    edges = np.quantile(seen, np.arange(8) / 8)
    own = bins.low[bins.column == 0]
    np.testing.assert_allclose(own[1:], edges[1:], atol=0.05)
