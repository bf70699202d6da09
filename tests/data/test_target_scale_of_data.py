"""The option `target_scale`: what it takes, what it refuses, and where it goes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from messages import refused
from scipy.stats import skew

import nas_evidence
from nas_evidence.api.request import asked_for
from nas_evidence.api.shared_options import DataOptions
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.maths.target_scale import CURVES, fit
from nas_evidence.scores.scale_choice import LEAST_LEAD, best_of, chosen_scale
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.toml import dump_study, parse_study


def prices(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "price": np.exp(x + 0.1 * rng.normal(size=n))})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    prices().to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


def asked(path: Path, **options: object) -> nas_evidence.api.request.Request:
    return asked_for(str(path), (), DataOptions(target="price", **options))  # type: ignore[typeddict-item]


def test_the_scale_is_fitted_to_the_training_rows_alone(table: Path) -> None:
    found = asked(table, target_scale="shifted_log", test_fraction=0.3)
    arrays = found.arrays
    expected = fit("shifted_log", arrays.y_train)
    assert np.array_equal(arrays.scale.parameters, expected.parameters)
    data = to_tensors(arrays, "cpu")
    assert float(data.y_train.mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.y_train.std(correction=0)) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(
        data.y_test.numpy(), expected.standardised(arrays.y_test), rtol=1e-5, atol=1e-6
    )
    assert np.array_equal(arrays.y_mean, arrays.y_train.mean(0))  # the unit of densities
    assert (
        found.decided[-2]
        == "scale of the target: shifted_log; change it with target_scale (--target-scale)"
    )
    assert found.spec.dataset.target_scale == "shifted_log"


def test_identity_gives_the_tensors_and_the_sentences_of_no_scale(table: Path) -> None:
    plain, named = asked(table), asked(table, target_scale="identity")
    one, other = (to_tensors(a.arrays, "cpu") for a in (plain, named))
    assert one.own is None
    assert other.own is None
    assert one.y_train.equal(other.y_train)
    said = [one for one in plain.decided if "positive and skewed" not in one]
    assert tuple(said) == named.decided
    assert "target_scale" not in dump_study(plain.spec)


def test_a_study_file_keeps_the_scale(table: Path) -> None:
    spec = asked(table, target_scale="yeo_johnson").spec
    text = dump_study(spec)
    assert 'target_scale = "yeo_johnson"' in text
    assert parse_study(text, "study.toml").dataset.target_scale == "yeo_johnson"


def test_the_bundled_regression_takes_a_scale() -> None:
    arrays = load(DatasetSpec(name="diabetes", target_scale="log"), seed=0)
    assert arrays.scale.name == "log"


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_a_target_outside_the_support_is_refused_by_value_row_and_column(
    value: float, tmp_path: Path
) -> None:
    frame = prices()
    frame.loc[17, "price"] = value
    frame.to_csv(tmp_path / "mine.csv", index=False)
    with refused(
        "target-outside-scale", "'price' in mine.csv", "row 17", f"{value:g}", "shifted_log"
    ):
        asked(tmp_path / "mine.csv", target_scale="log")
    arrays = asked(tmp_path / "mine.csv", target_scale="shifted_log").arrays
    assert arrays.scale.holds(arrays.y_train).all()


def test_a_test_target_outside_the_support_is_refused_too(table: Path, tmp_path: Path) -> None:
    prices(20).assign(price=0.0).to_csv(tmp_path / "test.csv", index=False)
    with refused("target-outside-scale", "test row 0"):
        asked(table, target_scale="log", test=tmp_path / "test.csv")


def test_of_several_targets_the_column_is_named(tmp_path: Path) -> None:
    y = np.exp(np.random.default_rng(0).normal(size=(40, 3)))
    y[4, 2] = -1
    with refused("target-outside-scale", "row 4 has -1", "column 2"):
        nas_evidence.search(
            np.zeros((40, 2), np.float32), y, target_scale="log", out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()


def test_classes_have_no_scale(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    prices().assign(price=["a", "b"] * 30).to_csv(path, index=False)
    with refused("target-scale-of-classes", "'log'", "'price' in mine.csv", "task = regression"):
        asked(path, target_scale="log")
    assert asked(path, target_scale="identity").arrays.task == "labels"
    for given in ({"name": "digits"}, {"name": "table", "path": "t", "target": "y",
                                       "task": "classification"}):  # fmt: skip
        with pytest.raises(ValueError, match="'log' is for real targets, but the targets are"):
            DatasetSpec(**given, target_scale="log")


def test_an_unknown_scale_is_refused(table: Path) -> None:
    with pytest.raises(ValueError, match=r"target_scale.*identity.*sinh_arcsinh"):
        asked(table, target_scale="sqrt")


@pytest.mark.slow
def test_the_estimator_takes_a_scale() -> None:
    frame = prices()
    settings = {"plan.epochs": 4, "finalists": 0}
    found = nas_evidence.EvidenceRegressor(1, settings=settings, target_scale="log")
    found.fit(frame[["x"]], frame["price"])
    assert found.study_.spec.dataset.target_scale == "log"
    assert (found.predict(frame[["x"]]) > 0).all()
    assert found.get_params()["target_scale"] == "log"


@pytest.mark.slow
def test_auto_takes_the_scale_of_most_evidence_and_says_all_values(table: Path) -> None:
    found = asked_for(
        str(table),
        ["plan.epochs=30", "plan.settle=0"],
        DataOptions(target="price", target_scale="auto"),
    )
    values = chosen_scale(
        found.spec.model_copy(update={"dataset": found.spec.dataset}), found.arrays
    ).values
    assert tuple(values) == tuple(CURVES)
    best = max(values, key=lambda name: values[name])
    assert best != "identity"  # the logarithm of these prices is linear
    assert found.spec.dataset.target_scale == best
    assert found.arrays.scale.name == best
    said = [s for s in found.decided if s.startswith("scale of the target")]
    assert len(said) == 1
    assert f"scale of the target: {best}, by conditional_evidence" in said[0]
    assert all(f"{name} {value:.3f}" in said[0] for name, value in values.items())
    assert f'target_scale = "{best}"' in dump_study(found.spec)


def test_no_test_target_decides_which_scales_are_tried(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test target of 0 took "log" away, so the test rows chose how training went."""
    found = asked(table)
    monkeypatch.setattr("nas_evidence.scores.scale_choice._evidence", lambda spec, arrays: 0.0)
    arrays = found.arrays
    for y_test in (arrays.y_train, arrays.y_train[:3] * 0, -arrays.y_train):
        given = replace(arrays, x_test=arrays.x_train[: len(y_test)], y_test=y_test)
        assert tuple(chosen_scale(found.spec, given).values) == tuple(CURVES)
    with_zero = replace(arrays, y_train=np.r_[arrays.y_train[1:], [[0.0]]])
    assert "log" not in chosen_scale(found.spec, with_zero).values


def test_a_positive_skewed_target_is_said_with_the_option_and_its_gain(
    table: Path, tmp_path: Path
) -> None:
    [said] = [one for one in asked(table).decided if "skewed" in one]
    skewness = float(skew(prices()["price"]))
    assert said.startswith(f"price is positive and skewed (skewness {skewness:.1f}): ")
    assert "target_scale=auto (--target-scale) and plan.likelihood=heteroscedastic gained" in said
    for named in ("identity", "log"):
        assert "skewed" not in " ".join(asked(table, target_scale=named).decided)
    noisy = asked_for(str(table), ["plan.likelihood=heteroscedastic"], DataOptions(target="price"))
    [said] = [one for one in noisy.decided if "skewed" in one]
    assert "target_scale=auto (--target-scale) gained" in said
    for changed in (lambda y: y - y.mean(), lambda y: np.log(y) + 10, lambda y: y.max() - y + 1):
        frame = prices()
        frame["price"] = changed(frame["price"])
        frame.to_csv(tmp_path / "other.csv", index=False)
        assert "skewed" not in " ".join(asked(tmp_path / "other.csv").decided)


def test_auto_leaves_identity_only_for_a_lead_that_counts() -> None:
    assert (
        best_of({"identity": 0.5, "log": 0.5 + 0.9 * LEAST_LEAD, "shifted_log": 0.4}) == "identity"
    )
    assert best_of({"identity": 0.5, "log": 0.5 + 1.1 * LEAST_LEAD, "shifted_log": 0.4}) == "log"
    assert best_of({"log": -3.0, "yeo_johnson": -2.0}) == "yeo_johnson"
    assert best_of({}) == "identity"


@pytest.mark.slow
def test_auto_leaves_out_a_scale_whose_support_does_not_hold_all_targets(tmp_path: Path) -> None:
    frame = prices()
    frame.loc[3, "price"] = 0.0
    frame.to_csv(tmp_path / "mine.csv", index=False)
    found = asked_for(
        str(tmp_path / "mine.csv"), ["plan.epochs=8", "plan.settle=0"],
        DataOptions(target="price", target_scale="auto"),
    )  # fmt: skip
    assert found.spec.dataset.target_scale in set(CURVES) - {"log"}


def test_auto_is_refused_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    prices().assign(price=["a", "b"] * 30).to_csv(path, index=False)
    with refused("target-scale-of-classes", "'auto'"):
        asked(path, target_scale="auto")
    with pytest.raises(ValueError, match="data of your own"):
        DatasetSpec(name="diabetes", target_scale="auto")
