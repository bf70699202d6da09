"""The verb refit: what it prints, where it writes, and what the first study knows of it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run

import nas_evidence

QUICK = {
    "plan.epochs": 2,
    "plan.settle": 0,
    "estimators": ["diag_ef"],
    "objective": "diag_ef",
    "plan.online.curvature": "diag_ef",
}


@pytest.mark.long
def test_refit_says_what_it_trains_and_refuses_rows_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).normal(10, 4, 40)
    pets = pd.DataFrame({"weight": weight, "pet": np.where(weight > 10, "dog", "cat")})
    pets.to_csv("pets.csv", index=False)
    options = {"test_fraction": 0.2, "n_trials": 1, "settings": QUICK, "progress": False}
    nas_evidence.search("pets.csv", target="pet", **options)
    inline = ("--executor", "inline")
    said = run("refit", "runs/pets", "--seeds", 2, *inline, folder=tmp_path).stdout
    assert said.splitlines()[0] == (
        "refit of trial 0 of runs/pets (linear) on all its 40 rows, its 8 test rows among them"
    )
    assert "export: runs/pets-refit/export" in said
    assert "What test rows said of the architecture is in runs/pets." in said
    assert "--test" not in said

    pets.assign(pet="cow").to_csv("cows.csv", index=False)
    wrong = run("refit", "runs/pets", "cows.csv", folder=tmp_path, code=2).stderr
    assert wrong.startswith("error: ")
    assert "cow" in wrong
    pets.assign(more=1)[:30].to_csv("fewer.csv", index=False)
    other = run("refit", "runs/pets", "fewer.csv", *inline, folder=tmp_path, code=2).stderr
    assert "runs/pets-refit belongs to other data (pets.csv, 40 rows)" in other
    shown = run("list", folder=tmp_path).stdout.splitlines()
    assert [line.split("\t")[0] for line in shown[1:]] == ["runs/pets-refit", "runs/pets"]
    assert shown[1].split("\t")[5:7] == ["pets.csv", "40"]
