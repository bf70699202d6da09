"""One quick figure of each paper: the numbers that it writes, beside data, bounds and claims."""

import gzip
import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from acceptance.uses import command
from scipy.stats import spearmanr

pytestmark = pytest.mark.slow

#: The data of the papers, beside some checkouts.
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def reproduced(name: str, to: Path, *needs: str) -> dict[str, Any]:
    """Return what `reproduce` wrote of a figure; skip without its data."""
    for folder in needs:
        if not (DATA / folder).is_dir():
            pytest.skip(f"the data {folder} are not beside this checkout")
    command("reproduce", name, "--quick", "--to", to, *(("--data", DATA) if needs else ()))
    for ending in ("md", "png"):
        assert (to / f"{name}.{ending}").stat().st_size
    found = json.loads((to / f"{name}.json").read_text())
    assert found["rows"]
    check_finite(found["numbers"])
    numbers: dict[str, Any] = found["numbers"]
    return numbers


def check_finite(value: Any) -> None:
    """Check that all numbers in something nested are finite."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            check_finite(each)
    else:
        assert isinstance(value, str) or np.isfinite(value)


def test_every_figure_of_five_papers_has_a_result() -> None:
    listed = json.loads(command("reproduce", "--list", "--json").out)
    papers = {row["paper"] for row in listed}
    assert len(papers) == 5
    names = {row["name"] for row in listed}
    assert {"duvenaud_fig2", "baldock_fig1", "immer_fig3", "lyle_fig5", "speedy"} <= names


def test_entropy_friendly_steps_keep_more_entropy_duvenaud(tmp_path: Path) -> None:
    found = reproduced("duvenaud_fig2", tmp_path)
    for what in ("entropy", "bound"):
        plain, plain_error = found[f"{what} plain"]
        friendly, error = found[f"{what} entropy-friendly"]
        assert friendly - plain > 2 * np.hypot(plain_error, error)
    assert found["entropy plain"][0] < found["start_entropy"]
    assert found["entropy entropy-friendly"][0] < found["start_entropy"]


def test_each_set_of_digits_has_as_many_of_each_class_baldock(tmp_path: Path) -> None:
    counts = reproduced("baldock_fig1", tmp_path, "MNIST", "baldock")["n"]
    raw = gzip.decompress(next((DATA / "MNIST" / "raw").glob("train-labels*gz")).read_bytes())
    labels = np.frombuffer(raw, np.uint8, offset=8)
    for per_class in (5, 50, 500):
        rows = np.loadtxt(DATA / "baldock" / f"data{per_class}.txt").astype(int)
        ours = np.bincount(labels[rows], minlength=10).tolist()
        assert ours == counts[str(10 * per_class)] == 10 * [per_class]


def test_evidence_prefers_learned_precisions_immer(tmp_path: Path) -> None:
    found = reproduced("immer_fig3", tmp_path, "banana")
    weak, learned = (np.array(found["measured"][name]) for name in ("weak", "learned"))
    assert weak.shape == learned.shape == (found["n"], 5)
    evidence, train_accuracy, test_accuracy, test_loss = range(4)
    assert (learned[:, evidence] > weak[:, evidence]).all()
    # They fit less, and test rows no worse.
    assert (learned[:, train_accuracy] < weak[:, train_accuracy]).all()
    assert learned[:, test_loss].mean() < weak[:, test_loss].mean()
    assert learned[:, test_accuracy].mean() > weak[:, test_accuracy].mean() - 0.02
    accuracies = np.stack([weak, learned])[..., [train_accuracy, test_accuracy]]
    assert ((accuracies > 0.75) & (accuracies <= 1)).all()


def test_sums_of_losses_bound_the_evidence_and_find_its_best_model_lyle(tmp_path: Path) -> None:
    found = reproduced("lyle_fig5", tmp_path, "MNIST")
    for name in ("features", "prior variance", "frequency"):
        evidence, bound = (np.array(found[name]["mean"][of]) for of in ("log P(D)", "L"))
        assert (bound < evidence).all()
        assert abs(int(bound.argmax()) - int(evidence.argmax())) <= 2
        posterior = np.array(found[name]["mean"]["posterior"])
        assert posterior.argmax() != evidence.argmax()
    assert found["features"]["best"]["log P(D)"] == 15  # the features that carry the target
    assert found["features"]["best"]["L"] == 15


def test_sums_of_losses_rank_trained_networks_ru(tmp_path: Path) -> None:
    found = reproduced("speedy", tmp_path, "nas-bench-nlp")
    with zipfile.ZipFile(DATA / "nas-bench-nlp" / "logs.zip") as held:
        logs = [json.loads(held.read(name)) for name in held.namelist()]
    whole = [log for log in logs if len(log["train_losses"]) == log["epochs"]]
    train, valid, test = (
        np.array([log[f"{part}_losses"] for log in whole]) for part in ("train", "val", "test")
    )
    target = test[np.arange(len(whole)), valid.argmin(1)]
    assert found["n"] == len(whole)
    for i, epoch in enumerate((1, 5, 10, 25, 50)):
        for name, score in {
            "SOTL": train[:, :epoch].sum(1),
            "SOTL-E": train[:, epoch - 1],
            "validation loss": valid[:, epoch - 1],
        }.items():
            ours = spearmanr(score, target).statistic
            assert found["rho"][name][i] == pytest.approx(ours, abs=1e-9)
            low, high = found["intervals"][name][i]
            assert low <= ours <= high
    for name in ("SOTL", "SOTL-E"):
        assert all(before < after for before, after in pairwise(found["rho"][name]))
    assert found["rho"]["SOTL"][-1] >= 0.95
    chance = found["halving"]["chance"]["regret"]
    assert all(found["halving"][name]["regret"] < chance / 4 for name in ("SOTL", "SOTL-E"))
