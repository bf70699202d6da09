"""The benchmark of GPUs runs on a CPU, and its table has every part."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


@pytest.mark.long
@pytest.mark.slow
def test_the_benchmark_of_gpus_writes_its_table(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out)]
    subprocess.run([*command, "--networks", "small cnn"], check=True, stdout=subprocess.DEVNULL)
    table = json.loads(out.read_text())
    assert {row["kind"] for row in table["passes"]} == {
        "diag_ef", "diag_ggn", "kfac_ggn_mc", "kfac_ggn",
    }  # fmt: skip
    ways = {"plain", "bf16", "compiled", "compiled bf16", "channels first"}
    assert {row["how"] for row in table["steps"] if "failed" not in row} == ways
    assert [row["k"] for row in table["together"]] == [2]
    assert all(row["ratio"] > 0 and row["n"] == 1 for row in table["passes"] + table["steps"])
    step, *passes = table["waits"]
    assert step["reads"] == 0 < step["operators"]
    # The label range, the check of gradients, the sums, and the spectra for the evidence.
    assert all(row["reads"] <= 6 for row in passes)
