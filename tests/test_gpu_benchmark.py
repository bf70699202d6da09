"""The scripts of a first run on a GPU run on a CPU, and judge as they say."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from gpu import check, rank

ROOT = Path(__file__).resolve().parents[1]


def on_a_cpu(script: str, tmp_path: Path, *arguments: str) -> str:
    """Return what a script of benchmarks/gpu prints; its files are in tmp_path/out."""
    environment = {
        **os.environ, "DEVICE": "cpu", "PYTHON": sys.executable, "PYTHONWARNINGS": "default",
        "OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", f"benchmarks/gpu/{script}", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def found(**changes: Any) -> Mapping[str, Any]:
    values = {"golden/a/diag_ef": -10.0, "case/b/float32/kfac_ggn": -5.0, "trial/c/elpd/0": -2.0}
    return {"values": {**values, **changes}, "truths": {}, "same_bits": {"c": [True, True]}}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_the_first_script_measures_every_section_on_a_cpu(tmp_path: Path) -> None:
    printed = on_a_cpu("first.sh", tmp_path, "100000")
    assert "45 of 45 agree" in printed
    assert "0 GPUs counted" in printed
    assert "default search ended with 0" in printed
    sections = {line["section"] for line in lines_of(tmp_path / "out" / "probe.jsonl")}
    assert sections == {"steps", "memory", "passes", "together", "packed"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_the_second_script_resumes_a_killed_search_and_ranks_it(tmp_path: Path) -> None:
    printed = on_a_cpu("second.sh", tmp_path, "300")
    assert "3 of 3 trials stored" in printed
    assert "no problems found" in printed
    judged = json.loads((tmp_path / "out" / "rank.json").read_text())
    assert judged["trials"] == 3
    pairs = {(row["score"], row["target"]) for row in judged["correlations"]}
    assert ("conditional_evidence", "test_log_loss") in pairs
    assert ("published_evidence", "published_accuracy") in pairs
    assert printed.count("evidence recomputed: identical") >= 2  # stored, and trained again


def test_equal_values_are_not_wrong() -> None:
    assert check.wrong(found(), found()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("golden/a/diag_ef", -10.0 * (1 + 2e-8)),
        ("case/b/float32/kfac_ggn", -5.01),
        ("trial/c/elpd/0", -2.2),
        ("trial/c/elpd/0", float("nan")),
        ("trial/c/elpd/0", "RuntimeError: expected all tensors to be on the same device"),
    ],
)
def test_a_value_beyond_its_limit_is_wrong(key: str, value: object) -> None:
    (line,) = check.wrong(found(), found(**{key: value}))
    assert line.startswith(key)


def test_other_bits_after_parking_are_wrong() -> None:
    gpu = {**found(), "same_bits": {"c": [True, False]}}
    assert check.wrong(found(), gpu) == ["bits of 'c': again True, parked and resumed False"]


def test_a_golden_value_is_held_against_its_truth_and_not_against_the_cpu() -> None:
    truths = {"golden/a/diag_ef": -10.0}
    off = {"golden/a/diag_ef": -10.1}
    assert check.wrong(found(**off), {**found(**off), "truths": truths}) != []


def test_fewer_epochs_are_trained_where_steps_take_longer() -> None:
    study = tomllib.loads((ROOT / "benchmarks" / "gpu" / "rank.toml").read_text())

    def epochs(ms: float, seconds: float = 300) -> int:
        line = {"section": "steps", "how": "plain", "network": "resnet-20 w16", "ms_per_128": ms}
        return rank.epochs_that_fit(study, [line], seconds)

    assert epochs(12) > epochs(24) >= epochs(96) == rank.FEWEST
    assert epochs(20, 400) > epochs(20, 200)
    assert epochs(0.1) == rank.MOST


def test_all_networks_of_the_ranking_are_published() -> None:
    study = tomllib.loads((ROOT / "benchmarks" / "gpu" / "rank.toml").read_text())
    table = pd.read_csv(rank.TABLE)
    published = set(zip(table["family"].str.lower(), table["depth"], table["width"], strict=True))
    chosen = {(n["family"], n["depth"], n["width"]) for n in study["first"]}
    assert len(chosen) == study["n_trials"] == 17
    assert chosen <= published


def test_the_interval_of_a_perfect_order_is_one_and_equal_targets_have_none() -> None:
    accuracy = [0.1, 0.2, 0.3, 0.5, 0.6, 1]
    table = pd.DataFrame(
        {"family": ["cnn"] * 6, "diag_ef": range(6), "elpd": [-1] * 6, "test_accuracy": accuracy}
    )
    (row,) = [r for r in rank.correlations(table) if r["group"] == "all"]
    assert (row["rho"], row["rho_low"], row["rho_high"], row["n"]) == (1, 1, 1, 6)
