"""A search of data with groups or times, from the table to the comparison with simple models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison

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
