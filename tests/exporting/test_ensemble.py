"""The ensemble: stored and refitted predictions agree, the mixture is the sum it says it is."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import Silent
from messages import refused

import nas_evidence
from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.data.units import Units
from nas_evidence.driver.driver import Driver
from nas_evidence.exporting.ensemble import densities_at_scales, export_ensemble
from nas_evidence.exporting.folder import export_winner, unseen_measures
from nas_evidence.exporting.model_card import ensemble_card
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import delivered_unseen, load_winner, stored_unseen
from nas_evidence.maths.stacking import stacking_weights
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors
from nas_evidence.scores.folds import SCALES, restored, unseen_of
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import read_study_tables, read_table
from nas_evidence.training.parts import order_of_data
from nas_evidence.workers.inline import InlineExecutor

pytestmark = pytest.mark.slow


def run(folder: Path, **changed: object) -> tuple[Path, ArrayData]:
    study = StudySpec.model_validate(
        {
            "name": "several",
            "n_trials": 3,
            "family": {"mlp": {"depth": {"options": [1]}, "width": {"low": 4, "high": 40}}},
            "objective": "two_fold",
            "estimators": ["two_fold", "diag_ef"],
            "sampler": {"name": "random"},
            **changed,
        }
    )
    arrays = load(study.dataset, seed=study.seed)
    open_study(folder / "s", study)
    Driver(study, folder / "s", InlineExecutor(arrays, study.resources), Silent()).run()
    return folder / "s", arrays


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArrayData]:
    return run(
        tmp_path_factory.mktemp("digits"),
        dataset={"name": "digits", "max_train": 160, "max_test": 60},
        plan={"epochs": 4, "learning_rate": 0.05, "online": {"every": 2}},
    )


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArrayData]:
    return run(
        tmp_path_factory.mktemp("diabetes"),
        dataset={"name": "diabetes", "max_train": 120, "max_test": 60},
        plan={"epochs": 6, "likelihood": "gaussian", "online": {"every": 3}},
    )


def test_what_a_trial_keeps_is_what_two_fold_scored(digits: tuple[Path, ArrayData]) -> None:
    """The fold's log predictive density is the mean over scales of the kept ones; hits agree."""
    folder, arrays = digits
    data = to_tensors(arrays, torch.device("cpu"))
    row = read_table(folder, "trials").iloc[0]
    winner = load_winner(read_study_tables(folder), arrays, int(row["trial_id"]))
    kept = stored_unseen(winner)
    logs = densities_at_scales(restored(kept, winner.assignment.plan), data.y_train)
    terms = read_table(folder, "terms")
    terms = terms[(terms["trial_id"] == row["trial_id"]) & (terms["estimator"] == "two_fold")]
    terms = terms[terms["term"] == "log_predictive"].drop_duplicates("group", keep="last")
    stored = terms.set_index("group")["value"]
    order = order_of_data(arrays.n_train, winner.assignment)
    for name, rows in (("fold 1", order[80:]), ("fold 2", order[:80])):
        each = torch.from_numpy(logs[:, rows.numpy()].sum(1))
        expected = float(each.logsumexp(0)) - np.log(len(SCALES))
        assert stored[name] == pytest.approx(expected, rel=1e-5)
    accuracy = (kept[:, :-1].argmax(1) == data.y_train).double().mean()
    measured = unseen_measures(winner)
    assert measured["accuracy"] == pytest.approx(float(accuracy))
    assert measured["n_data"] == 160
    export_winner(
        read_study_tables(folder), folder.parent / "one", arrays, trial_id=int(row["trial_id"])
    )
    card = (folder.parent / "one" / "README.md").read_text()
    assert f"expected calibration error {measured['ece']:.4f} (15 bins)" in card


def test_predictions_that_were_not_stored_are_made_again_and_equal(
    digits: tuple[Path, ArrayData],
) -> None:
    folder, arrays = digits
    data = to_tensors(arrays, torch.device("cpu"))
    winner = load_winner(read_study_tables(folder), arrays, 1)
    torch.testing.assert_close(
        unseen_of(winner.assignment, data), stored_unseen(winner), rtol=1e-5, atol=1e-5
    )


def test_an_ensemble_predicts_the_weighted_sum_of_its_members(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = digits
    done = export_ensemble(read_study_tables(folder), tmp_path / "e", arrays, top=3, pt2=True)
    assert list((tmp_path / "e").rglob("*.pt2")) == [tmp_path / "e" / "model.pt2"]
    assert json.loads((tmp_path / "e" / "ensemble.json").read_text()) == done
    assert sum(one["weight"] for one in done["members"]) == pytest.approx(1)
    assert done["refitted"] == 0
    predictor = Predictor.load(tmp_path / "e")
    for method in ("probit", "map", "mc"):
        found = predictor.predict(arrays.x_test, method=method).probabilities
        expected = sum(
            one["weight"]
            * np.asarray(
                Predictor.load(tmp_path / "e" / one["folder"])
                .predict(arrays.x_test, method=method)
                .probabilities
            )
            for one in done["members"]
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)
    program = torch.export.load(tmp_path / "e" / "model.pt2").module()
    with torch.no_grad():
        logs = program(torch.from_numpy(arrays.x_test)).numpy()
    by_modes = predictor.predict(arrays.x_test, method="map").probabilities
    np.testing.assert_allclose(np.exp(logs), by_modes, atol=1e-5)
    card = (tmp_path / "e" / "README.md").read_text()
    assert (
        f"{done['gain_per_datum']:.4f} ± {done['gain_standard_error']:.4f} nats per datum" in card
    )
    assert "## Intended use" in card


@pytest.mark.parametrize(
    ("score", "folds", "part"),
    [("conditional_evidence", 5, "80 %"), ("conditional_evidence", 10, "90 %"),
     ("conditional_evidence", 2, "50 %"), ("two_fold", "auto", "50 %")],
)  # fmt: skip
def test_the_card_says_on_which_part_of_the_data_the_gain_was_measured(
    digits: tuple[Path, ArrayData], score: str, folds: int | str, part: str
) -> None:
    folder, arrays = digits
    study = read_study_tables(folder).spec
    plan = study.plan.model_copy(update={"folds": folds})
    study = study.model_copy(update={"estimators": (score,), "plan": plan})
    gain = {"gain_per_datum": 0.1, "gain_standard_error": 0.1, "best_member": 0, "n_data": 160}
    described = {"members": [], "chosen": [], "top": 2, **gain}
    card = ensemble_card(study, arrays, described, None)
    assert ".pt2" not in card
    assert f"trained on {part} of the data." in card
    late = replace(arrays, units=Units(np.arange(160), in_time=True))
    told = ensemble_card(study, late, described, None)
    assert "trained on the data before each fold." in told


def test_weights_are_those_of_stacking_and_the_gain_is_smaller_than_in_sample(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = digits
    data, tables = to_tensors(arrays, torch.device("cpu")), read_study_tables(folder)
    done = export_ensemble(tables, tmp_path / "e", arrays, top=2)
    ranking = nas_evidence.load(folder).ranking["trial_id"].tolist()[:2]
    columns = []
    for trial_id in ranking:
        kept = delivered_unseen(load_winner(tables, arrays, trial_id))
        assert kept is not None
        logs = densities_at_scales(restored(kept, tables.spec.plan), data.y_train)
        columns.append(logs[logs.mean(1).argmax()])
    table = np.stack(columns, 1)
    weights = dict(zip(ranking, stacking_weights(table), strict=True))
    for one in done["members"]:
        assert one["weight"] == pytest.approx(weights[one["trial_id"]], abs=0.01)
    in_sample = np.log(np.exp(table) @ list(weights.values())).mean() - table.mean(0).max()
    assert done["gain_per_datum"] < in_sample + 1e-3  # scales are cross-fitted too
    assert done["gain_standard_error"] > 0


@pytest.mark.long
def test_an_ensemble_of_real_targets_is_a_mixture_of_normals_in_their_unit(
    diabetes: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = diabetes
    done = export_ensemble(read_study_tables(folder), tmp_path / "e", arrays, top=3, pt2=True)
    found = Predictor.load(tmp_path / "e").predict(arrays.x_test)
    assert found.std_model is not None
    each = [
        Predictor.load(path).predict(arrays.x_test)
        for path in sorted((tmp_path / "e" / "members").iterdir())
    ]
    means = np.stack([np.asarray(one.mean) for one in each])
    weights = np.array([one["weight"] for one in done["members"]])
    cut = (means == 0).any(0)  # a member shows 0 there, and its own mean counts in the mixture
    assert cut.mean() < 0.1
    mixed = np.tensordot(weights, means, 1)
    np.testing.assert_allclose(found.mean[~cut], mixed[~cut], rtol=1e-10)
    between = np.tensordot(weights, (means - found.mean) ** 2, 1)
    within = np.tensordot(weights, [np.asarray(one.std_model) ** 2 for one in each], 1)
    mixed_std = np.sqrt(between + within)
    np.testing.assert_allclose(found.std_model[~cut], mixed_std[~cut], rtol=1e-6)
    np.testing.assert_allclose(found.density.cdf(found.high), 0.95, atol=1e-9)
    measures = found.measures(arrays.y_test)
    assert 0 < measures["coverage_50"] < measures["coverage_90"] <= measures["coverage_95"] <= 1
    program = torch.export.load(tmp_path / "e" / "model.pt2").module()
    with torch.no_grad():
        means_again = program(torch.from_numpy(arrays.x_test).double()).numpy()
    np.testing.assert_allclose(means_again, found.mean, rtol=1e-4)


def test_without_stored_predictions_the_halves_are_trained_again(
    diabetes: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = diabetes
    shutil.copytree(folder, tmp_path / "s")
    for path in (tmp_path / "s" / "models").iterdir():
        tensors, header = read_tensors(path)
        del header["blake2b"]
        bare = {name: t for name, t in tensors.items() if not name.startswith("kept/")}
        path.write_bytes(sealed_tensors(bare, header))
    again = export_ensemble(read_study_tables(tmp_path / "s"), tmp_path / "again", arrays, top=2)
    once = export_ensemble(read_study_tables(folder), tmp_path / "once", arrays, top=2)
    assert (again["refitted"], once["refitted"]) == (2, 0)
    assert again["gain_per_datum"] == pytest.approx(once["gain_per_datum"], abs=1e-6)
    weights, expected = ([one["weight"] for one in done["members"]] for done in (again, once))
    assert weights == pytest.approx(expected, abs=1e-3)


def test_more_networks_than_there_are_and_a_folder_in_use_are_refused(
    digits: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = digits
    with refused("top-out-of-range", 3, 4):
        export_ensemble(read_study_tables(folder), tmp_path / "e", arrays, top=4)
    export_winner(read_study_tables(folder), tmp_path / "one", arrays)
    with refused("folder-of-one-network"):
        export_ensemble(read_study_tables(folder), tmp_path / "one", arrays, top=2)
    export_ensemble(read_study_tables(folder), tmp_path / "two", arrays, top=2)
    with pytest.raises(ValueError, match="holds an ensemble"):
        export_winner(read_study_tables(folder), tmp_path / "two", arrays)


def test_a_study_predicts_with_an_ensemble_in_python(digits: tuple[Path, ArrayData]) -> None:
    folder, arrays = digits
    study = nas_evidence.load(folder)
    found = study.predict(arrays.x_test, top=2)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    written = (study.folder / "export-top-2" / "ensemble.json").stat().st_mtime_ns
    study.predict(arrays.x_test, top=2)
    assert (study.folder / "export-top-2" / "ensemble.json").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match="not both"):
        study.export(trial_id=0, top=2)
