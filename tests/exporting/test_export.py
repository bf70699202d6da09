"""The winner as files: loads with torch alone, gives the same logits and the same evidence."""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
import yaml
from fakes import Silent
from messages import refused

import nas_evidence
from nas_evidence.data import ArrayData, load
from nas_evidence.driver.driver import Driver
from nas_evidence.exporting.folder import export_winner
from nas_evidence.exporting.program import Exported, load_exported, read_exported
from nas_evidence.exporting.soundness import wrong_export_files
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.likelihoods.predictive import Reals
from nas_evidence.models import build
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import architecture_values, read_study_tables, read_table
from nas_evidence.workers.inline import InlineExecutor

STUDY = StudySpec.model_validate(
    {
        "name": "exported",
        "n_trials": 4,
        "dataset": {"name": "digits", "max_train": 200, "max_test": 50},
        "family": {
            "cnn": {"depth": {"options": [2]}, "width": {"options": [3, 4]}},
            "resnet": {"depth": {"options": [8]}, "width": {"options": [4]}},
            "linear": {},
        },
        "plan": {"epochs": 4, "learning_rate": 0.05, "online": {"every": 2}},
        "estimators": ["diag_ef", "kfac_ggn", "kfac_ggn_mc"],
        "sampler": {"name": "random"},
    }
)


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(STUDY.dataset, seed=STUDY.seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, arrays: ArrayData) -> Path:
    folder = tmp_path_factory.mktemp("study") / "s"
    open_study(folder, STUDY)
    Driver(STUDY, folder, InlineExecutor(arrays, STUDY.resources), Silent()).run()
    return folder


def stored(folder: Path, trial_id: int, estimator: str) -> float:
    rows = read_table(folder, "evidence")
    rows = rows[(rows["trial_id"] == trial_id) & (rows["estimator"] == estimator)]
    return float(rows.iloc[-1]["value"])


@pytest.mark.slow
def test_the_best_trial_is_exported_with_all_its_files(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    report = export_winner(read_study_tables(folder), tmp_path / "e", arrays)
    values = {i: stored(folder, i, "kfac_ggn") for i in range(4)}
    assert report["trial_id"] == max(values, key=lambda i: values[i])
    names = {path.name for path in (tmp_path / "e").iterdir()}
    assert names == {
        "architecture.toml", "model.safetensors", "evidence.json", "SHA256SUMS", "README.md",
        "meaning.json", "posterior.safetensors",
    }  # fmt: skip
    described = tomllib.loads((tmp_path / "e" / "architecture.toml").read_text())
    row = read_study_tables(folder).row(report["trial_id"])
    assert described["family"] == row["family"]
    assert described["values"] == architecture_values(row)
    card = (tmp_path / "e" / "README.md").read_text()
    assert ".pt2" not in card
    assert "200 training and 50 test rows" in card
    for part in ("## Intended use", "## Calibration\nNot measured", "## Limits\n- Tested on 50"):
        assert part in card


@pytest.mark.slow
def test_a_program_is_written_if_asked_for_takes_any_type_and_is_sealed(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    export_winner(read_study_tables(folder), tmp_path / "e", arrays, pt2=True)
    program = torch.export.load(tmp_path / "e" / "model.pt2").module()
    x = torch.from_numpy(arrays.x_test[:3]).round()
    expected = program(x)
    for dtype in (torch.float64, torch.float16, torch.uint8, torch.int64):
        assert torch.equal(program(x.to(dtype)), expected)
    assert "only from a trusted source" in (tmp_path / "e" / "README.md").read_text()
    assert wrong_export_files(tmp_path / "e") == []
    with (tmp_path / "e" / "model.pt2").open("ab") as file:
        file.write(b"more")
    assert wrong_export_files(tmp_path / "e") == ["model.pt2"]


@pytest.mark.slow
def test_weights_that_are_written_wrong_are_found_twice_and_leave_no_export(
    folder: Path, arrays: ArrayData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(tensors: dict[str, torch.Tensor], header: dict[str, str]) -> bytes:
        changed = {n: t * (1.5 if n.startswith("model.") else 1) for n, t in tensors.items()}
        return sealed_tensors(changed, header)

    monkeypatch.setattr("nas_evidence.exporting.folder.sealed_tensors", wrong)
    tables, to = read_study_tables(folder), tmp_path / "e"
    with pytest.raises(ArithmeticError, match=r"the outputs of .*model\.safetensors differ"):
        export_winner(tables, to, arrays)
    monkeypatch.setattr("nas_evidence.exporting.folder.compared", lambda *_: 0.0)
    with pytest.raises(ArithmeticError, match="not the same model"):
        export_winner(tables, to, arrays)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "trial_id", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))]
)
def test_the_program_gives_the_same_logits_with_torch_and_numpy_alone(
    folder: Path, arrays: ArrayData, tmp_path: Path, trial_id: int
) -> None:
    to = tmp_path / "e"
    export_winner(read_study_tables(folder), to, arrays, trial_id=trial_id, pt2=True)
    np.save(tmp_path / "x.npy", arrays.x_test[:9])
    code = f"""
        import sys
        for name in ("nas_evidence", "torchvision", "ray", "optuna", "pandas", "pyarrow",
                     "sklearn", "safetensors", "pydantic", "scipy", "backpack", "rich", "typer"):
            sys.modules[name] = None  # importing it fails from now on
        import numpy, torch
        program = torch.export.load({str(to / "model.pt2")!r}).module()
        x = torch.from_numpy(numpy.load({str(tmp_path / "x.npy")!r}))
        for rows in (9, 1, 4):
            numpy.save({str(tmp_path)!r} + f"/y{{rows}}.npy", program(x[:rows]).detach().numpy())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=tmp_path)
    model = load_exported(to)
    for rows in (9, 1, 4):
        with torch.no_grad():
            expected = model(torch.from_numpy(arrays.x_test[:rows]))
        found = torch.from_numpy(np.load(tmp_path / f"y{rows}.npy"))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_exported_model_has_the_accuracy_of_its_row(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    report = export_winner(read_study_tables(folder), tmp_path / "e", arrays)
    with torch.no_grad():
        logits = load_exported(tmp_path / "e")(torch.from_numpy(arrays.x_test))
    accuracy = float((logits.argmax(-1).numpy() == arrays.y_test).mean())
    trials = read_table(folder, "trials").set_index("trial_id")
    assert accuracy == pytest.approx(trials.loc[report["trial_id"], "test_accuracy"], abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["diag_ef", "kfac_ggn"])
def test_scoring_the_exported_winner_anew_gives_the_stored_evidence(
    folder: Path, arrays: ArrayData, tmp_path: Path, estimator: str
) -> None:
    report = export_winner(read_study_tables(folder), tmp_path / "e", arrays)
    written = json.loads((tmp_path / "e" / "evidence.json").read_text())
    model = load_exported(tmp_path / "e")
    estimate = nas_evidence.estimate_evidence(
        model,
        torch.from_numpy(arrays.x_train),
        torch.from_numpy(arrays.y_train),
        likelihood="categorical",
        curvature=estimator,
        prior_precision=list(written["prior_precision"].values()),
    )
    expected = stored(folder, report["trial_id"], estimator)
    assert estimate.value == pytest.approx(expected, rel=1e-6)
    assert written["scores"][estimator]["sum"] == expected
    assert written["scores"][estimator]["per_datum"] == expected / len(arrays.x_train)
    assert written["scores"][estimator]["terms_of_sum"]
    assert all("per_datum" in one or "sum" not in one for one in written["scores"].values())
    assert f"{expected / len(arrays.x_train):.6g}" in (tmp_path / "e" / "README.md").read_text()


@pytest.mark.slow
def test_weights_that_were_not_kept_are_trained_again_from_their_seed(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    kept = folder / "models" / "1.safetensors"
    weights = kept.read_bytes()
    kept.unlink()
    try:
        report = export_winner(read_study_tables(folder), tmp_path / "e", arrays, trial_id=1)
    finally:
        kept.write_bytes(weights)
    assert report["rescored_sum"] == pytest.approx(stored(folder, 1, "kfac_ggn"), rel=1e-12)


@pytest.mark.slow
def test_weights_of_another_model_are_refused(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    kept = folder / "models" / "1.safetensors"
    weights = kept.read_bytes()
    tensors, header = read_tensors(kept)
    del header["blake2b"]
    next(iter(tensors.values())).view(-1)[:2] = 1.0
    kept.write_bytes(sealed_tensors(tensors, header))
    try:
        with pytest.raises(ArithmeticError, match="not the same model"):
            export_winner(read_study_tables(folder), tmp_path / "e", arrays, trial_id=1)
    finally:
        kept.write_bytes(weights)
    assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_an_unknown_trial_is_refused_with_the_known_ones(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    with refused("trial-not-complete", 77, "0, 1, 2, 3"):
        export_winner(read_study_tables(folder), tmp_path / "e", arrays, trial_id=77)


def test_a_folder_without_an_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no model\.safetensors"):
        load_exported(tmp_path)


# --- real targets, and hyperparameters of the likelihood


def run_study(folder: Path, changed: dict[str, object]) -> tuple[Path, ArrayData]:
    study = StudySpec.model_validate(
        {
            "name": "small",
            "n_trials": 1,
            "family": {"mlp": {"depth": {"options": [1]}, "width": {"options": [6]}}},
            "sampler": {"name": "random"},
            **changed,
        }
    )
    data = load(study.dataset, seed=study.seed)
    open_study(folder / "s", study)
    Driver(study, folder / "s", InlineExecutor(data, study.resources), Silent()).run()
    return folder / "s", data


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArrayData]:
    changed = {
        "dataset": {"name": "diabetes", "max_train": 120, "max_test": 60},
        "plan": {
            "epochs": 6,
            "batch_size": 32,
            "likelihood": "gaussian",
            "online": {"every": 3},
        },
        "objective": "kfac_ggn_mc",
        "estimators": ["kfac_ggn_mc", "kfac_ggn", "diag_ef"],
    }
    return run_study(tmp_path_factory.mktemp("regression"), changed)


@pytest.mark.slow
def test_the_program_predicts_real_targets_in_their_own_unit(
    regression: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, data = regression
    export_winner(read_study_tables(folder), tmp_path / "e", data, pt2=True)
    row = read_table(folder, "trials").iloc[0]
    program = torch.export.load(tmp_path / "e" / "model.pt2").module()
    for model in (program, load_exported(tmp_path / "e")):
        with torch.no_grad():
            predicted = model(torch.from_numpy(data.x_test)).double().numpy()
        assert predicted.shape == data.y_test.shape
        rmse = np.sqrt(np.mean((predicted - data.y_test) ** 2))
        # Predictions near 150 in float32: 1e-5 each.
        assert rmse == pytest.approx(row["test_rmse"], rel=1e-6)
    assert 30 < row["test_rmse"] < 150  # the targets go from 25 to 346
    noise = row["noise_std"] * data.y_std[0]
    card = (tmp_path / "e" / "README.md").read_text()
    assert f"Test RMSE {row['test_rmse']:.4g} in the unit of the targets" in card
    assert f"noise standard deviation {noise:.4g}" in card
    assert "logits" not in card
    described = tomllib.loads((tmp_path / "e" / "architecture.toml").read_text())
    assert described["n_outputs"] == 1
    assert "n_classes" not in described


@pytest.mark.slow
def test_the_card_names_what_the_factor_multiplies_as_the_predictions_do(
    regression: tuple[Path, ArrayData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = regression
    monkeypatch.setattr(Reals, "multiplied", "spread of the log rate")
    export_winner(read_study_tables(folder), tmp_path / "e", data)
    assert "multiplies the spread of the log rate\n" in (tmp_path / "e" / "README.md").read_text()


@pytest.mark.slow
def test_the_evidence_of_real_targets_is_scored_anew_at_the_learned_noise(
    regression: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, data = regression
    report = export_winner(read_study_tables(folder), tmp_path / "e", data)
    assert report["rescored_sum"] == pytest.approx(stored(folder, 0, "kfac_ggn_mc"), rel=1e-12)
    written = json.loads((tmp_path / "e" / "evidence.json").read_text())
    assert written["likelihood"] == "gaussian"
    # In the unit of the targets the density of each is smaller by the factor y_std.
    in_own_unit = nas_evidence.estimate_evidence(
        load_exported(tmp_path / "e"),
        torch.from_numpy(data.x_train),
        torch.from_numpy(data.y_train),
        likelihood="gaussian",
        noise_std=written["noise_std_in_own_unit"][0],
        curvature="kfac_ggn",
        prior_precision=list(written["prior_precision"].values()),
    )
    jacobian = data.n_train * np.log(data.y_std[0])
    expected = written["scores"]["kfac_ggn"]["sum"] - jacobian
    assert in_own_unit.value == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_temperature_and_power_are_exported(tmp_path: Path) -> None:
    changed = {
        "dataset": {"name": "digits", "max_train": 150, "max_test": 50},
        "plan": {
            "epochs": 2,
            "learning_rate": 0.05,
            "temperature": 1.7,
            "likelihood_power": 0.5,
            "online": {"every": 1, "curvature": "diag_ggn"},
        },
        "objective": "diag_ggn_mc",  # the mean of four draws
        "estimators": ["diag_ggn_mc", "diag_ggn"],
    }
    folder, data = run_study(tmp_path, changed)
    report = export_winner(read_study_tables(folder), tmp_path / "e", data)
    assert report["rescored_sum"] == pytest.approx(stored(folder, 0, "diag_ggn_mc"), rel=1e-9)
    model = load_exported(tmp_path / "e")
    with torch.no_grad():
        logits = model(torch.from_numpy(data.x_test)).double()
    nll = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.y_test)).item()
    row = read_table(folder, "trials").iloc[0]
    assert nll == pytest.approx(row["test_nll_per_datum"], rel=1e-5)

    written = json.loads((tmp_path / "e" / "evidence.json").read_text())
    given = [name.removeprefix("model.") for name, _ in model.named_parameters()]
    precisions = [written["prior_precision"][name] for name in given]
    again = nas_evidence.estimate_evidence(
        model,
        torch.from_numpy(data.x_train),
        torch.from_numpy(data.y_train),
        likelihood="categorical",
        curvature="diag_ggn",
        prior_precision=torch.tensor(precisions),
        likelihood_power=written["likelihood_power"],
    )
    assert again.value == pytest.approx(stored(folder, 0, "diag_ggn"), rel=1e-6)
    assert "by the temperature 1.7," in (tmp_path / "e" / "README.md").read_text()


# --- the metadata of the model card


@pytest.mark.slow
@pytest.mark.parametrize("license", [None, "apache-2.0"])
def test_the_card_begins_with_what_the_hub_reads(
    folder: Path, arrays: ArrayData, tmp_path: Path, license: str | None
) -> None:
    tables = read_study_tables(folder)
    done = export_winner(tables, tmp_path / "e", arrays, license=license)
    row = tables.row(done["trial_id"])
    card = (tmp_path / "e" / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    assert text.startswith("\n# Model card")
    told = yaml.safe_load(metadata)
    assert told.get("license") == license
    assert told["library_name"] == "nas-evidence"
    assert "image-classification" in told["tags"]
    (index,) = told["model-index"]
    assert index["name"] == STUDY.name
    test, train = index["results"]
    assert test["task"] == {"type": "image-classification"}
    assert test["dataset"] == {"name": "digits", "type": "digits", "split": "test"}
    measured = {one["type"]: one["value"] for one in test["metrics"]}
    assert measured == {
        "accuracy": row["test_accuracy"], "log_loss": row["test_nll_per_datum"],
    }  # fmt: skip
    (score,) = train["metrics"]
    n = len(arrays.x_train)
    assert score["type"] == STUDY.objective
    assert score["value"] * n == pytest.approx(stored(folder, done["trial_id"], STUDY.objective))


@pytest.mark.slow
def test_the_library_of_the_hub_reads_the_card(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    tables = read_study_tables(folder)
    done = export_winner(tables, tmp_path / "e", arrays, license="mit")
    card = hub.ModelCard.load(tmp_path / "e" / "README.md")
    assert card.data.license == "mit"
    results = {one.metric_type: one for one in card.data.eval_results}
    accuracy = results["accuracy"]
    assert accuracy.metric_value == tables.row(done["trial_id"])["test_accuracy"]
    assert (accuracy.task_type, accuracy.dataset_split) == ("image-classification", "test")
    assert results[STUDY.objective].dataset_split == "train"


@pytest.mark.slow
def test_a_readme_of_somebody_else_is_not_replaced(
    folder: Path, arrays: ArrayData, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("mine")
    with refused("output-held", "README.md"):
        export_winner(read_study_tables(folder), tmp_path, arrays)
    assert (tmp_path / "README.md").read_text() == "mine"


# --- exports of earlier versions, whose description names no likelihood


@pytest.mark.parametrize("own_noise", [False, True])
def test_without_a_likelihood_by_name_the_outputs_say_whether_noise_is_among_them(
    own_noise: bool, tmp_path: Path
) -> None:
    spec, n_outputs = (
        ArchitectureSpec(family="mlp", values={"depth": 1, "width": 5}),
        1 + own_noise,
    )
    model = build(spec, (3,), n_outputs, torch.Generator().manual_seed(0))
    written = Exported(
        model,
        torch.zeros(3),
        torch.ones(3),
        likelihood=Heteroscedastic() if own_noise else None,
        scale=torch.tensor([3.0]),
        shift=torch.tensor([1.0]),
    ).eval()
    described = {
        "family": "mlp",
        "values": dict(spec.values),
        "input_shape": [3],
        "n_outputs": n_outputs,
        "n_parameters": sum(p.numel() for p in model.parameters()),
    }
    (tmp_path / "architecture.toml").write_text(tomli_w.dumps(described))
    (tmp_path / "model.safetensors").write_bytes(sealed_tensors(dict(written.state_dict()), {}))
    x = torch.randn(7, 3)
    found = read_exported(tmp_path)(x)
    assert found.shape == (7, 1)
    assert torch.equal(found, written(x))
