"""Claims about the winner beside simple models: its own stored predictions, on the same rows."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lone_trials import linear_assignment
from numpy.testing import assert_allclose
from sklearn.metrics import balanced_accuracy_score, r2_score, roc_auc_score
from unseen import delivered_unseen

from nas_evidence.baselines import models, on_folds
from nas_evidence.baselines.comparison import (
    Baseline,
    Comparison,
    read_comparison,
    write_comparison,
)
from nas_evidence.baselines.measures import beside
from nas_evidence.baselines.models import Model, OnFolds, baseline_models, predict_folds
from nas_evidence.baselines.on_folds import _seeds, judged_on_folds
from nas_evidence.baselines.stored_comparison import is_compared, kept_comparison
from nas_evidence.data import ArrayData, load
from nas_evidence.data.source import stored_source
from nas_evidence.exporting.candidates import candidates_of, kept_of
from nas_evidence.exporting.folder import export_winner
from nas_evidence.exporting.predicted import Prediction, mean_metrics
from nas_evidence.exporting.winner import Winner, load_winner, stored_unseen
from nas_evidence.maths.bias_corrected import chosen, draws_of_rows
from nas_evidence.maths.paired import expected_variance_of_classes, paired_interval
from nas_evidence.maths.target_scale import OnScale
from nas_evidence.reporting.headline import worth_sentence
from nas_evidence.reporting.next_step import load_call
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.scores.folds import OUTPUTS, SCALES, SPREAD, all_folds
from nas_evidence.spec.likelihoods import stored_kind
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.storage import COMPARISON
from nas_evidence.storage.tables import read_study_tables, read_table
from nas_evidence.training.parts import order_of_data

pytestmark = pytest.mark.usefixtures("no_shortcuts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nas_evidence.api.studies import search

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (x[:, 0] + rng.logistic(size=400) > 0).astype(np.int64)
    out = tmp_path_factory.mktemp("judged")
    data = out / "mine.npz"
    np.savez(data, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    quick = {"plan.epochs": 3, "objective": "two_fold", "estimators": ["two_fold"]}
    search(data, n_trials=1, settings=quick, out=out / "study", progress=False)
    return out / "study"


@pytest.mark.slow
def test_the_winners_metrics_are_those_of_its_trial_and_the_loss_gaps_are_paired(
    folder: Path,
) -> None:
    tables = read_study_tables(folder)
    data = stored_source(tables.spec.dataset, base=folder.resolve())
    found = kept_comparison(tables, data)
    assert found == read_comparison(folder)
    trial = tables.row_of_network(0)
    assert found.metrics["log_loss"] == pytest.approx(trial["test_nll_per_datum"], rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(trial["test_accuracy"])
    assert (found.on, found.n) == ("test", 280)
    assert sum(map(sum, found.confusion)) == 280
    assert sum(point.n for point in found.calibration) == 280
    for one in found.baselines:
        gap = one.metrics["log_loss"] - found.metrics["log_loss"]
        assert one.behind == pytest.approx(gap)
        assert one.interval[0] < one.behind < one.interval[1]
    assert kept_comparison(tables, data) == found


def shops(home: Path) -> tuple[Path, Path]:
    """Two tables: numbers, gaps, a category with a rare level, a class and two real targets."""
    rng, files = np.random.default_rng(0), (home / "train.csv", home / "new.csv")
    for n, file in zip((150, 70), files, strict=True):
        size, age = rng.normal(size=(2, n))
        town = rng.choice(["rome", "oslo", "riga"], n, p=[0.6, 0.37, 0.03])
        price = np.exp(5 + size + 0.4 * (town == "oslo") + 0.3 * rng.normal(size=n))
        frame = pd.DataFrame({"size": size, "age": age, "town": town, "price": price})
        frame["rent"] = price / 9 + age
        frame["kind"] = np.where(size + rng.normal(size=n) > 0, "big", "small")
        frame.loc[::9, "age"] = np.nan
        frame.to_csv(file, index=False)
    return files


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of scikit-learn, which renames arguments
@pytest.mark.parametrize(
    ("target", "dropped", "scale"),
    [
        ("kind", ("price", "rent"), None),
        ("price", ("kind", "rent"), None),
        ("price", ("kind", "rent"), "log"),
        ("price,rent", ("kind",), None),
    ],
)
def test_five_lines_of_scikit_learn_give_each_simple_model_that_was_compared(
    tmp_path: Path, target: str, dropped: tuple[str, ...], scale: str | None
) -> None:
    from nas_evidence.api.studies import search

    train, new = shops(tmp_path)
    quick = {"plan.epochs": 2, "plan.settle": 0, "objective": "two_fold", "plan.folds": 2,
             "estimators": ["two_fold"]}  # fmt: skip
    study = search(
        train, target=target, drop=dropped, test=new, target_scale=scale, n_trials=1,
        settings=quick, out=tmp_path / "a {b}", progress=False,
    )  # fmt: skip
    arrays, told = study.arrays(), study.summary().comparison
    scaled = []
    constant, *others = zip(told.baselines, models.predict_test(arrays), strict=True)
    assert constant[0].code == ""
    for one, (name, expected) in others:
        lines = one.code.format(study=load_call(study._ranked(), study.place), new=repr(str(new)))
        *fit, predict = lines.split("\n")
        assert (name, len(fit)) == (one.name, 4)
        spoken = {}
        exec("\n".join(fit), spoken)
        found = eval(predict, spoken)
        if target == "kind":
            assert_allclose(found, expected.probabilities, rtol=0, atol=1e-9)
            p = found[np.arange(len(found)), arrays.y_test]
            assert one.metrics["log_loss"] == pytest.approx(-np.log(p).mean(), abs=1e-9)
            continue
        density = expected.real
        if isinstance(density, OnScale):
            scaled.append(name)
            medians = density.scale.inverse(density.normals.means[0])
            assert_allclose(found, medians.ravel(), rtol=1e-9)
        else:
            own = density.mean.reshape(found.shape)
            assert_allclose(found, own, rtol=1e-9, atol=1e-9 * own.std())
    assert ("gradient boosting" in scaled) == (scale is not None)


@contextmanager
def no_time() -> Iterator[None]:
    raise TimeoutError
    yield


@pytest.mark.slow
def test_without_time_for_simple_models_the_winner_has_its_metrics_and_says_what_lacks(
    folder: Path, tmp_path: Path
) -> None:
    tables = replace(read_study_tables(folder), folder=tmp_path)
    shutil.copytree(folder / "models", tmp_path / "models")
    data = stored_source(tables.spec.dataset, base=folder.resolve())
    short = kept_comparison(tables, data, within=no_time)
    assert short == read_comparison(tmp_path)
    assert short.baselines == ()
    simple = ("majority class", "logistic regression", "gradient boosting")
    assert short.lacks == (*simple, "importance of the columns")
    whole = kept_comparison(tables, data)
    assert whole.lacks == ()
    assert tuple(one.name for one in whole.baselines) == simple
    assert whole.metrics == short.metrics
    assert kept_comparison(tables, data, within=no_time) == whole


@pytest.fixture(scope="module", params=["labels", "real"])
def without_test(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ArrayData]:
    """A study of one architecture and two seeds, without test rows, and its data."""
    from nas_evidence.api.studies import search

    rng = np.random.default_rng(0)
    x = rng.normal(size=(61, 4)).astype(np.float32)
    y = x[:, 0] + rng.logistic(size=61)
    out = tmp_path_factory.mktemp("folds") / request.param
    quick = {"plan.epochs": 3, "replicates": 2, "finalists": 0}
    labels = request.param == "labels"
    study = search(
        x, (y > 0).astype(np.int64) if labels else y, n_trials=2, settings=quick, out=out,
        task="classification" if labels else "regression", progress=False,
    )  # fmt: skip
    spec = study.spec
    return out, load(spec.dataset, seed=spec.seed, base=out.resolve())


def trial_of(place: tuple[Path, ArrayData], trial_id: int) -> Winner:
    folder, arrays = place
    return load_winner(read_study_tables(folder), arrays, trial_id)


def kept_in(place: tuple[Path, ArrayData]) -> on_folds.KeptOf:
    folder, arrays = place
    return partial(kept_of, read_study_tables(folder), arrays)


@pytest.mark.long
@pytest.mark.slow
def test_the_predictions_by_datum_are_those_whose_marginal_over_scales_is_five_fold(
    without_test: tuple[Path, ArrayData],
) -> None:
    folder, arrays = without_test
    evidence = read_table(folder, "evidence").set_index(["trial_id", "estimator"])
    one = trial_of(without_test, 0)
    table = stored_unseen(one)
    assert table is not None
    order = order_of_data(arrays.n_train, one.assignment)
    folds = [task.predicted.numpy() for task in all_folds("five_fold", order)]
    assert sorted(np.concatenate(folds)) == list(range(arrays.n_train))
    # Independent of `log_densities`: each fold, at each scale, by hand.
    spread = one.kept[SPREAD].double().numpy()
    outputs = one.kept[OUTPUTS].double().numpy()
    total, at_one = 0.0, np.empty(arrays.n_train)
    for fold in folds:
        logs = []
        for scale in SCALES:
            if arrays.task == "labels":
                z = outputs[fold] / (scale * spread[fold])
                z -= np.log(np.exp(z).sum(1, keepdims=True))
                logs.append(z[np.arange(len(fold)), arrays.y_train[fold]])
            else:
                y, s = (arrays.y_train[fold] - arrays.y_mean) / arrays.y_std, scale * spread[fold]
                z = -0.5 * ((y - outputs[fold]) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
                logs.append(z.sum(1))
        sums = np.array([own.sum() for own in logs])
        total += sums.max() + np.log(np.exp(sums - sums.max()).mean())
        at_one[fold] = logs[SCALES.index(1.0)]
    stored = evidence.loc[(0, "five_fold"), "per_datum"]
    if arrays.task == "labels":  # of real targets the score leaves the weights' variance out
        assert total / arrays.n_train == pytest.approx(stored, rel=1e-4)
    assert -losses(table, arrays) == pytest.approx(at_one, abs=1e-9)


@pytest.mark.long
@pytest.mark.slow
def test_without_test_rows_the_metrics_are_those_of_the_kept_predictions_of_the_folds(
    without_test: tuple[Path, ArrayData],
) -> None:
    folder, arrays = without_test
    stored = read_study_tables(folder)
    trials, evidence = stored.trials, stored.evidence
    *_, found = judged_on_folds(0, arrays, trials, evidence, kept_in(without_test))
    by_key = trials.groupby("architecture_key")["trial_id"].apply(list)
    tables = [
        delivered_unseen(trial_of(without_test, i))
        for i in next(own for own in by_key if 0 in own)
    ]
    n_outputs = arrays.n_outputs
    outputs = [one[:, :n_outputs].double().numpy() for one in tables if one is not None]
    y, more = arrays.y_train, {"recall", "confusion"}
    if arrays.task == "labels":
        spread = [one[:, -1].double().numpy() for one in tables if one is not None]
        logits = [(one[:, 1] - one[:, 0]) / s for one, s in zip(outputs, spread, strict=True)]
        areas = [roc_auc_score(y, one) for one in logits]
        assert found.metrics["roc_auc"] == pytest.approx(np.mean(areas))
        balanced = [balanced_accuracy_score(y, one.argmax(1)) for one in outputs]
        assert found.metrics["balanced_accuracy"] == pytest.approx(np.mean(balanced))
        assert sum(map(sum, found.confusion)) == 61
        assert sum(one.n for one in found.calibration) == 61
    else:
        means = [one * arrays.y_std + arrays.y_mean for one in outputs]
        errors = [np.sqrt(np.mean((y - one) ** 2)) for one in means]
        assert found.metrics["rmse"] == pytest.approx(np.mean(errors))
        assert found.metrics["r2"] == pytest.approx(np.mean([r2_score(y, one) for one in means]))
        assert np.array(found.pairs)[:, 0] == pytest.approx(y.ravel())
        assert len(found.calibration) == 9
        more = {"pairs"}
    assert all(getattr(found, name) for name in more)
    known = stored_kind(arrays.task).metrics
    assert all({*known} <= {*one.metrics} for one in (found, *found.baselines))


@pytest.mark.long
@pytest.mark.slow
def test_without_test_rows_gaps_and_accuracy_are_means_over_seeds_with_a_paired_error(
    without_test: tuple[Path, ArrayData],
) -> None:
    folder, arrays = without_test
    stored = read_study_tables(folder)
    trials, evidence = stored.trials, stored.evidence
    by_key = trials.groupby("architecture_key")["trial_id"].apply(list)
    ids = next(own for own in by_key if 0 in own)
    assert len(ids) == 2
    *_, found = judged_on_folds(0, arrays, trials, evidence, kept_in(without_test))
    assert (found.on, found.seeds, found.n) == ("folds", 2, 61)
    tables = {i: delivered_unseen(trial_of(without_test, i)) for i in ids}
    own = {i: losses(table, arrays) for i, table in tables.items() if table is not None}
    assert found.metrics["log_loss"] == pytest.approx(np.mean(list(own.values())))
    if arrays.task == "labels":
        right = evidence[evidence["estimator"] == "five_fold_accuracy"]
        hits = right.groupby("trial_id")["value"].last()
        assert found.metrics["accuracy"] == pytest.approx(hits[ids].mean())
    latest = predict_folds(arrays, trial_of(without_test, max(ids)).assignment)
    for one, rival in zip(found.baselines, latest, strict=True):
        gaps = [rival.predicted.losses(arrays.y_train) - own[i] for i in ids]
        assert one.behind == pytest.approx(np.mean(gaps))
        assert one.behind == pytest.approx(one.metrics["log_loss"] - found.metrics["log_loss"])
        low, high = paired_interval(np.mean(gaps, axis=0))[1:]
        low, high = low + 1e-12, high - 1e-12  # rounding
        assert one.interval[0] <= low < high <= one.interval[1]
    kept = kept_in(without_test)
    *_, alone = judged_on_folds(0, arrays, trials, evidence, lambda i: kept(i) if i == 0 else None)
    assert alone.seeds == 1


@pytest.mark.slow
def test_all_seeds_of_the_winner_count_where_trials_train_their_folds_alone(
    tmp_path: Path,
) -> None:
    from nas_evidence.api.studies import search

    x = np.random.default_rng(0).normal(size=(61, 4)).astype(np.float32)
    quick = {"plan.epochs": 2, "replicates": 2, "finalists": 0, "plan.whole": False}
    study = search(
        x, (x[:, 0] > 0).astype(np.int64), n_trials=2, settings=quick, families="linear",
        task="classification", out=tmp_path / "study", progress=False,
    )  # fmt: skip
    found = judged_anew(study.folder)
    assert (found.seeds, found.corrected, len(found.baselines)) == (2, True, 3)


def losses(table: torch.Tensor, arrays: ArrayData) -> np.ndarray:
    """By torch alone, from outputs and spread as they are kept."""
    table, n = table.double(), arrays.n_outputs
    if arrays.task == "labels":
        logs = (table[:, :n] / table[:, n:]).log_softmax(1).numpy()
        return -logs[np.arange(len(logs)), arrays.y_train]
    y = torch.from_numpy((arrays.y_train - arrays.y_mean) / arrays.y_std)
    return -torch.distributions.Normal(table[:, :n], table[:, n:]).log_prob(y).sum(1).numpy()


def seed_of(own: OnFolds) -> on_folds._Seed:
    return on_folds._Seed(linear_assignment(), own.log_predictive, float("nan"), own.predicted)


def test_a_model_is_not_behind_itself() -> None:
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    own = next(iter(predict_folds(arrays, linear_assignment())))
    found = on_folds._compared([seed_of(own)] * 2, own, arrays)
    assert found.behind == pytest.approx(0.0)
    assert found.interval == pytest.approx((0.0, 0.0))


@pytest.mark.slow
def test_on_folds_the_interval_is_that_of_the_differences_averaged_over_seeds() -> None:
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    _, ridge, boosted = predict_folds(arrays, linear_assignment())
    found = on_folds._compared([seed_of(boosted), seed_of(ridge)], ridge, arrays)
    y = arrays.y_train
    gaps = (ridge.predicted.losses(y) - boosted.predicted.losses(y)) / 2
    assert (found.behind, *(found.interval or ())) == pytest.approx(paired_interval(gaps))


def test_for_labels_the_interval_holds_losses_too_rare_to_be_seen() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.beta(50, 2, size=(2, 30))
    both = [np.stack([x, 1 - x], 1) for x in (p, q)]
    one, other = (Prediction((0, 1), probabilities=each) for each in both)
    y = np.zeros(30, np.int64)
    found = beside([one], "simple", other, y)
    expected = expected_variance_of_classes(*both, y)
    gaps = np.log(p) - np.log(q)
    held = paired_interval(gaps, expected_variance=expected)
    assert found.interval == pytest.approx(held[1:])
    assert held.low < paired_interval(gaps).low


def test_without_kept_predictions_values_of_two_fold_are_compared_without_an_interval() -> None:
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    own = next(iter(predict_folds(arrays, linear_assignment())))
    seed = on_folds._Seed(linear_assignment(), own.log_predictive + 0.25, float("nan"), None)
    found = on_folds._compared([seed], own, arrays)
    assert (found.behind, found.interval) == (pytest.approx(0.25), None)
    assert found.metrics["log_loss"] == pytest.approx(-own.log_predictive)


@pytest.fixture(scope="module", params=["labels", "real"])
def chosen_on_folds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A study of three architectures, two of them with two seeds, without test rows."""
    from nas_evidence.api.studies import search

    rng = np.random.default_rng(0)
    x = rng.normal(size=(61, 4)).astype(np.float32)
    y = x[:, 0] + rng.logistic(size=61)
    labels = request.param == "labels"
    quick = {"plan.epochs": 3, "finalists": 2, "race.trials": 2}
    out = tmp_path_factory.mktemp("chosen") / request.param
    study = search(
        x, (y > 0).astype(np.int64) if labels else y, n_trials=3, settings=quick, out=out,
        families="mlp",
        task="classification" if labels else "regression", progress=False,
        executor="inline",
    )  # fmt: skip
    return study.folder


@pytest.fixture
def without_boosting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the simple model that takes longest; two are enough to be chosen from."""

    def few(arrays: ArrayData) -> Mapping[str, Model]:
        return {name: one for name, one in baseline_models(arrays).items() if "boost" not in name}

    for module in (models, on_folds):
        monkeypatch.setattr(module, "baseline_models", few)


def judged_anew(folder: Path) -> Comparison:
    tables = read_study_tables(folder)
    (folder / COMPARISON).unlink(missing_ok=True)
    found = kept_comparison(tables, stored_source(tables.spec.dataset, base=folder.resolve()))
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("without_boosting")
def test_rows_that_chose_the_winner_judge_it_only_where_draws_leave_them_out(
    chosen_on_folds: Path,
) -> None:
    found = judged_anew(chosen_on_folds)
    assert (found.on, found.chosen_among, found.corrected) == ("folds", 3, True)
    tables = read_study_tables(chosen_on_folds)
    arrays = load(tables.spec.dataset, seed=tables.spec.seed, base=chosen_on_folds.resolve())
    y, each = arrays.y_train, []
    for standing in tables.standings.first():
        ids = sorted(standing.values)
        each.append(
            np.mean([load_winner(tables, arrays, i).held_out[0].losses(y) for i in ids], axis=0)
        )
    densities = -np.stack(each, axis=1)
    others = candidates_of(tables, arrays)
    assert others is not None
    assert others.log_densities == pytest.approx(densities)
    draws = draws_of_rows(61)
    alone = chosen(densities, np.zeros((61, 1)), draws)
    assert found.metrics["log_loss"] == pytest.approx(-alone.gap)
    assert -alone.gap > densities.mean(0).max() * -1  # without the luck of the choice
    for one in found.baselines:
        assert one.behind == pytest.approx(one.metrics["log_loss"] - found.metrics["log_loss"])
        assert one.interval[0] < one.behind < one.interval[1]
    assert found.against in [one.name for one in found.baselines]
    # One draw by hand: its metrics are of the rows that it leaves out.
    rows = np.flatnonzero(draws[0] == 0)
    own = others.predictions(alone.own[0])
    name = "accuracy" if arrays.task == "labels" else "mae"
    one_draw = replace(others)
    vars(one_draw)["draws"] = draws[:1]
    expected = np.mean([p.at(rows).metrics(y[rows])[name] for p in own])
    apparent = mean_metrics(others.predictions(0), y)
    measure = partial(mean_metrics, with_crps=False)
    assert one_draw.corrected(measure, apparent)[name] == pytest.approx(expected)
    worse = np.less_equal if name == "accuracy" else np.greater_equal
    assert worse(found.metrics[name], apparent[name])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("without_boosting")
def test_where_predictions_are_missing_the_rows_that_chose_are_named(
    chosen_on_folds: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(chosen_on_folds, folder)
    whole = judged_anew(folder)
    last = read_study_tables(folder).standings.first()[-1]
    for trial_id in last.values:
        (folder / "models" / f"{trial_id}.safetensors").unlink()
    found = judged_anew(folder)
    assert (found.chosen_among, found.corrected, found.against) == (3, False, None)
    assert found.metrics["log_loss"] < whole.metrics["log_loss"]
    study = load_study_tables(folder)
    sure = found.model_copy(
        update={"baselines": (Baseline(name="mean", metrics={}, behind=1.0, interval=(0.5, 2)),)}
    )
    assert worth_sentence(
        study, whole.model_copy(update={"against": "mean", "baselines": sure.baselines})
    ).startswith("Yes: ")
    said = worth_sentence(study, sure)
    assert said.startswith("Unknown: ahead of mean by 1.000")
    assert "chosen on these rows among 3 architectures" in said
    old = found.model_copy(update={"corrected": None, "chosen_among": 1})
    write_comparison(folder, old)
    assert not is_compared(read_study_tables(folder))
    assert worth_sentence(study, old.model_copy(update={"baselines": sure.baselines})).startswith(
        "Unknown: "
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("without_boosting")
def test_the_model_card_is_free_of_the_choice_too(chosen_on_folds: Path, tmp_path: Path) -> None:
    tables = read_study_tables(chosen_on_folds)
    arrays = load(tables.spec.dataset, seed=tables.spec.seed, base=chosen_on_folds.resolve())
    unseen = export_winner(tables, tmp_path / "export", arrays)["unseen"]
    assert (unseen["chosen_among"], unseen["corrected"]) == (3, True)
    if arrays.task == "labels":
        judged = judged_anew(chosen_on_folds)
        assert unseen["log_loss"] == pytest.approx(judged.metrics["log_loss"])
        assert unseen["accuracy"] == pytest.approx(judged.metrics["accuracy"])
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert "corrected for the choice among 3 architectures" in card
    other = tables.standings.first()[-1].trial_id
    unseen = export_winner(tables, tmp_path / "other", arrays, trial_id=other)["unseen"]
    assert (unseen["chosen_among"], unseen["corrected"]) == (1, True)


# --- the seeds of the winner that are compared on folds


def stored(trial_id: int) -> tuple[dict[str, torch.Tensor], Assignment]:
    given = Assignment(
        trial_id=trial_id, attempt=1, replicate=0, seed=trial_id, estimators=("two_fold",),
        architecture=ArchitectureSpec(family="linear", values={}),
        dataset=DatasetSpec(name="diabetes"), plan={"likelihood": "gaussian", "epochs": 2},
    )  # fmt: skip
    return {}, given


def test_the_latest_seeds_of_the_winner_count_and_not_those_that_chose_it() -> None:
    ids = [3, 7, 11, 12, 13, 20]  # 3 was searched, the race came later; 20 is another architecture
    trials = pd.DataFrame(
        {"trial_id": ids, "status": "complete", "architecture_key": ["a"] * 5 + ["b"]}
    )
    evidence = pd.DataFrame(
        {"trial_id": ids, "estimator": "two_fold", "per_datum": -1.0, "value": -30.0}
    )
    arrays = load(DatasetSpec(name="diabetes", max_train=40), seed=0)
    found = list(_seeds(3, arrays, trials, evidence, stored))
    assert [one.assignment.trial_id for one in found] == [13, 12, 11]
