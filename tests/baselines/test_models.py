"""Claims about baselines: fitted on the same rows, at their optimum, on the networks' halves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import linear_assignment
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from nas_evidence.baselines.comparison import (
    Baseline,
    Comparison,
    read_comparison,
    write_comparison,
)
from nas_evidence.baselines.models import (
    ALPHAS,
    _boosted_classes,
    _boosted_reals,
    _distinct,
    _divided,
    _folds,
    _of_inner_folds,
    _on_better_scale,
    _ridge,
    baseline_models,
    flat,
    predict_folds,
    predict_test,
)
from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.units import Units
from nas_evidence.maths.metrics import class_metrics
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale, fit
from nas_evidence.scores.folds import all_folds
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.training.parts import order_of_data

pytestmark = pytest.mark.usefixtures("no_shortcuts")


def table(*, labels: bool, n: int = 160, n_test: int = 400, seed: int = 0) -> ArrayData:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + n_test, 5)).astype(np.float32)
    signal = x @ np.array([2.0, -1.0, 0.5, 0.0, 0.0])
    if labels:
        y = (signal + rng.logistic(size=len(x)) > 1).astype(np.int64)
    else:
        y = (10 + signal + 0.5 * rng.normal(size=len(x)))[:, None]
    mean, std = x[:n].mean(0), x[:n].std(0)
    real = not labels
    return ArrayData(
        "mine", x[:n], y[:n], x[n:], y[n:], task="real" if real else "labels",
        n_outputs=1 if real else 2, input_shape=(5,), mean=mean, std=std,
        y_mean=y[:n].mean(0) if real else np.zeros(2), y_std=y[:n].std(0) if real else np.ones(2),
    )  # fmt: skip


@pytest.mark.slow
def test_logistic_regression_nears_the_best_possible_loss_and_the_majority_the_worst() -> None:
    arrays = table(labels=True, n=400, n_test=4000)
    found = {name: one.metrics(arrays.y_test) for name, one in predict_test(arrays)}
    assert list(found) == ["majority class", "logistic regression", "gradient boosting"]
    signal = flat(arrays.x_test) @ np.array([2.0, -1.0, 0.5, 0.0, 0.0]) - 1
    p = 1 / (1 + np.exp(-signal))
    best = class_metrics(np.stack([1 - p, p], 1), arrays.y_test)["log_loss"]
    assert best <= found["logistic regression"]["log_loss"] < best + 0.02
    assert found["gradient boosting"]["log_loss"] > found["logistic regression"]["log_loss"]
    share = arrays.y_train.mean()
    frequencies = -(
        arrays.y_test.mean() * np.log(share) + (1 - arrays.y_test.mean()) * np.log(1 - share)
    )
    assert found["majority class"]["log_loss"] == pytest.approx(frequencies)


@pytest.mark.slow
def test_ridge_regression_nears_the_noise_and_its_intervals_cover() -> None:
    arrays = table(labels=False, n=300, n_test=3000)
    found = {name: one.metrics(arrays.y_test) for name, one in predict_test(arrays)}
    assert list(found) == ["mean", "ridge regression", "gradient boosting"]
    assert found["ridge regression"]["rmse"] == pytest.approx(0.5, rel=0.06)
    assert all(0.86 < one["coverage"] < 0.94 for one in found.values())
    assert found["mean"]["r2"] == pytest.approx(0.0, abs=0.01)


def two_targets(n: int = 300, n_test: int = 100) -> ArrayData:
    """Two linear targets, the noise of the second is seven times that of the first."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n + n_test, 4)).astype(np.float32)
    y = np.column_stack([
        x @ [1.0, 0.5, -0.5, 0.3] + 0.15 * rng.normal(size=len(x)),
        0.2 * x[:, 0] + rng.normal(size=len(x)),
    ])  # fmt: skip
    return replace(
        table(labels=False, n=n, n_test=n_test), x_train=x[:n], y_train=y[:n], x_test=x[n:],
        y_test=y[n:], n_outputs=2, input_shape=(4,), mean=x[:n].mean(0), std=x[:n].std(0),
        y_mean=y[:n].mean(0), y_std=y[:n].std(0),
    )  # fmt: skip


def without_boosting(arrays: ArrayData) -> dict[str, object]:
    return {n: m for n, m in baseline_models(arrays).items() if n != "gradient boosting"}


def test_several_targets_have_each_its_noise_on_folds_as_on_test_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One noise for both cost 1.4 nats per datum, and reversed "worth it?"."""
    arrays = two_targets()
    own = without_boosting(arrays)
    monkeypatch.setattr("nas_evidence.baselines.models.baseline_models", lambda _: own)
    on_folds = {one.name: one for one in predict_folds(arrays, linear_assignment())}
    on_test = dict(predict_test(arrays))
    ridge = on_folds["ridge regression"].predicted
    noise = ridge.real.std.mean(0)
    assert noise == pytest.approx([0.15, 1.0], rel=0.15)
    assert noise == pytest.approx(on_test["ridge regression"].real.std.mean(0), rel=0.1)
    rows = arrays.y_train
    loss = ridge.losses(rows).mean()
    assert loss == pytest.approx(on_test["ridge regression"].losses(arrays.y_test).mean(), abs=0.2)
    assert -on_folds["ridge regression"].log_predictive == pytest.approx(loss, abs=0.05)
    for one in ridge.metrics_of_each(rows):
        assert 0.86 < one["coverage_90"] < 0.94


def five_folds() -> Assignment:
    return linear_assignment().model_copy(update={"estimators": ("conditional_evidence",)})


@pytest.mark.parametrize("scale", ["identity", "log"])
def test_the_noise_of_a_fold_is_that_of_the_other_folds_whatever_its_own_targets_are(
    monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    """Targets of one fold that nobody could predict leave its own noise as it is, to the bit."""
    arrays = prices(scale, n=60, n_test=0)
    own = {"ridge regression": baseline_models(arrays)["ridge regression"]}
    monkeypatch.setattr("nas_evidence.baselines.models.baseline_models", lambda _: own)
    order = order_of_data(arrays.n_train, five_folds())
    folds = [task.predicted.numpy() for task in all_folds("five_fold", order)]
    y = arrays.y_train.copy()
    y[folds[1]] *= np.random.default_rng(0).uniform(0.1, 10, (12, 1))
    plain, wild = (
        _on_better_scale("ridge regression", one, own["ridge regression"], flat(one.x_train),
                         [(np.setdiff1d(np.arange(60), fold), fold) for fold in folds],
                         flat(one.x_train))
        for one in (arrays, replace(arrays, y_train=y))
    )  # fmt: skip
    assert plain[0].scale.name == wild[0].scale.name == scale
    for k, (before, after) in enumerate(zip(plain, wild, strict=True)):
        assert (before.noise == after.noise).all() == (k == 1)


def test_a_model_without_two_folds_serves_both_and_in_time_earlier_rows_alone_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[set[float]] = []

    def recorder(x: np.ndarray, y: np.ndarray, unseen: np.ndarray, n_outputs: int) -> np.ndarray:
        fitted.append({*x[:, 0]})
        assert fitted[-1].isdisjoint(unseen[:, 0])
        return np.zeros((len(unseen), n_outputs))

    monkeypatch.setattr(
        "nas_evidence.baselines.models.baseline_models", lambda _: {"zero": recorder}
    )
    arrays = table(labels=False, n=50)
    [found] = predict_folds(arrays, five_folds())
    assert sorted(map(len, fitted)) == [30] * 10 + [40] * 5
    everything = np.sqrt((arrays.y_train**2).mean())
    assert found.predicted.real.std.mean() == pytest.approx(everything, rel=0.02)
    fitted.clear()
    list(predict_folds(replace(arrays, units=Units(np.arange(50), in_time=True)), five_folds()))
    blocks = fitted[20:]
    assert [len(rows) for rows in blocks] == [10, 20, 30, 40]
    assert blocks[-1] == {*arrays.x_train[:40, 0]}
    assert all(rows < blocks[k // 5] for k, rows in enumerate(fitted[:20]))


@pytest.mark.slow
@pytest.mark.parametrize("labels", [True, False])
def test_trees_without_columns_that_no_leaf_can_divide_are_the_same_to_the_bit(
    labels: bool,
) -> None:
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat(range(12), [54, 20, 19, *[3] * 9]))
    x = np.column_stack([np.eye(12)[codes], rng.normal(size=(120, 2)), np.ones(120)])
    y = x[:, 0] + 3 * x[:, 1] + x[:, 12] + rng.normal(size=120)
    unseen = rng.normal(size=(30, x.shape[1]))
    assert np.flatnonzero(_divided(x)).tolist() == [0, 1, 12, 13]
    if labels:
        hits = (y > 1).astype(int)
        plain = HistGradientBoostingClassifier(random_state=0).fit(x, hits).predict_proba(unseen)
        own = _boosted_classes(x, hits, unseen, 2)
        assert own == pytest.approx(plain, rel=1e-15)
    else:
        plain = HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(unseen)
        assert (_boosted_reals(x, y[:, None], unseen, 1)[:, 0] == plain).all()
    assert _divided(x[:39]).tolist() == [True] + [False] * 14


def prices(scale: str, n: int = 200, n_test: int = 400) -> ArrayData:
    """Positive, log-normal targets of a study on a scale."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n + n_test, 5)).astype(np.float32)
    y = np.exp(3 + x @ [0.8, -0.5, 0.3, 0.0, 0.0] + 0.4 * rng.normal(size=len(x)))[:, None]
    return replace(
        table(labels=False, n=n, n_test=n_test), x_train=x[:n], y_train=y[:n], x_test=x[n:],
        y_test=y[n:], y_mean=y[:n].mean(0), y_std=y[:n].std(0),
        fitted_scale=None if scale == "identity" else fit(scale, y[:n]),
    )  # fmt: skip


@pytest.mark.parametrize("scale", ["log", "shifted_log", "yeo_johnson"])
def test_simple_models_count_on_the_scale_of_the_study_where_it_is_better(
    monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    losses = []
    for arrays in (prices("identity"), prices(scale)):
        own = without_boosting(arrays)
        monkeypatch.setattr(
            "nas_evidence.baselines.models.baseline_models", lambda _, own=own: own
        )
        [_, ridge] = predict_folds(arrays, linear_assignment())
        tested = dict(predict_test(arrays))["ridge regression"]
        losses.append([ridge.predicted.losses(arrays.y_train).mean(),
                       tested.losses(arrays.y_test).mean()])  # fmt: skip
    assert min(np.subtract(*losses)) > 0.2
    assert -ridge.log_predictive == pytest.approx(losses[1][0], abs=0.1)
    x, z = flat(arrays.x_train), np.log(arrays.y_train)
    of_logs = RidgeCV(ALPHAS).fit(x, z)
    residual = z - of_logs.predict(x).reshape(z.shape)
    expected = 0.5 * np.log(2 * np.pi * np.e * residual.var()) + (z - np.log(arrays.y_std)).mean()
    assert losses[1][0] == pytest.approx(expected, abs=0.05)


def test_simple_models_keep_the_identity_where_the_scale_of_the_study_is_worse() -> None:
    arrays = table(labels=False)
    arrays = replace(arrays, fitted_scale=fit("log", arrays.y_train))
    ridge = dict(predict_test(arrays))["ridge regression"]
    assert isinstance(ridge.density, Normals)
    assert ridge.mean == pytest.approx(
        dict(predict_test(replace(arrays, fitted_scale=None)))["ridge regression"].mean
    )


def test_no_row_that_is_predicted_chooses_the_scale_of_a_simple_model() -> None:
    arrays = prices("log")
    other = replace(arrays, y_test=arrays.y_test[::-1] * 100)
    for one in (arrays, other):
        found = dict(predict_test(one))
        assert isinstance(found["ridge regression"].density, OnScale)
    same = dict(predict_test(arrays))["ridge regression"].mean
    assert (found["ridge regression"].mean == same).all()


def test_without_a_test_split_the_halves_are_those_of_the_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = table(labels=True, n=41)
    seen = []

    def recorder(x: np.ndarray, y: np.ndarray, unseen: np.ndarray, n_outputs: int) -> object:
        seen.append((x, unseen))
        return np.full((len(unseen), n_outputs), 0.5)

    monkeypatch.setattr(
        "nas_evidence.baselines.models.baseline_models", lambda _: {"even": recorder}
    )
    [found] = predict_folds(arrays, linear_assignment())
    order = order_of_data(41, linear_assignment())
    first = arrays.x_train[order[:20].numpy()]
    assert (seen[0][0] == first).all()
    assert (seen[1][1] == first).all()
    assert len(seen[0][1]) == 21
    assert (found.name, found.log_predictive) == ("even", pytest.approx(np.log(0.5)))
    assert found.accuracy == pytest.approx((arrays.y_train == 0).mean())


def test_a_class_that_a_half_lacks_costs_a_finite_loss() -> None:
    arrays = table(labels=True, n=40)
    model = baseline_models(arrays)["logistic regression"]
    one_class = np.zeros(20, np.int64)
    found = model(flat(arrays.x_train)[:20], one_class, flat(arrays.x_train)[20:], 2)
    assert (found > 0).all()
    assert found.sum(1) == pytest.approx(1.0)


@pytest.mark.parametrize("n_classes", [15, 25])  # two rows of each; of most a single one
def test_simple_models_warn_of_no_number_of_classes(n_classes: int) -> None:
    """A warning is an error in tests."""
    x = flat(table(labels=True, n=40).x_train)
    y = np.arange(30) % n_classes
    for model in baseline_models(table(labels=True, n=40)).values():
        found = model(x[:30], y, x[30:], n_classes)
        assert found.shape == (len(x) - 30, n_classes)


def test_large_data_get_fewer_baselines() -> None:
    arrays = table(labels=True)
    wide = ArrayData(**{**arrays.__dict__, "input_shape": (3, 200, 200)})
    assert list(baseline_models(wide)) == ["majority class"]


def test_a_comparison_is_read_back_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    stick = Baseline(name="mean", metrics={"rmse": 1.0}, behind=0.5)
    one = Comparison(trial_id=3, task="real", on="test", n=9, metrics={}, baselines=(stick,))
    assert read_comparison(tmp_path) is None
    write_comparison(tmp_path, one)
    assert read_comparison(tmp_path) == one
    (tmp_path / "report" / "comparison.json").write_text("{")
    assert read_comparison(tmp_path) is None


@pytest.mark.slow
def test_the_baselines_leave_the_random_state_of_torch_alone() -> None:
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    before = torch.get_rng_state()
    list(predict_folds(arrays, linear_assignment()))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_copies_of_a_row_do_not_hide_the_noise_of_a_simple_model() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = (x[:, :1] + rng.normal(size=(80, 1))).astype(np.float32)
    for model in (_boosted_reals, _ridge(np.ones(2, dtype=bool))):
        once = _of_inner_folds(model, x, y)
        three_times = _of_inner_folds(model, np.repeat(x, 3, 0), np.repeat(y, 3, 0))
        assert three_times[0] > 0.8 * once[0]


def test_rows_that_differ_are_divided_as_scikit_learn_does() -> None:
    x, y = np.array([[3.0], [1.0], [2.0], [1.0], [5.0]]), np.array([0, 1, 0, 1, 1])
    first, kinds = _distinct(x, y)
    assert first.tolist() == [0, 1, 2, 4]
    assert kinds.tolist() == [0, 1, 2, 1, 3]
    own = [0, 1, 2, 4]
    plain = KFold(2, shuffle=True, random_state=0)
    expected = [[*map(list, pair)] for pair in plain.split(x[own])]
    assert [[*map(list, pair)] for pair in _folds(x[own], y[own], plain)] == expected
    for trained, tested in _folds(x, y, plain):
        assert ({1, 3} <= {*trained}) != ({1, 3} <= {*tested})


def test_the_majority_class_on_folds_has_the_share_of_its_rows() -> None:
    """Fitted without a fold it would predict the class that the fold has less of."""
    arrays = table(labels=True, n=100)
    given = linear_assignment()
    majority = next(iter(predict_folds(arrays, given)))
    share = np.bincount(arrays.y_train).max() / arrays.n_train
    assert majority.name == "majority class"
    assert majority.accuracy == pytest.approx(share)
