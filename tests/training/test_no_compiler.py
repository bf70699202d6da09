"""What a process that trains does not import."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

_TRIALS = """
import sys
from pathlib import Path
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.workers.trial import Trial

spec = DatasetSpec(name="npz", path=sys.argv[1])
data = to_tensors(load(spec, seed=0), "cpu")
for family, depth in (("mlp", 1), ("cnn", 1), ("resnet", 8)):
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=0, dataset=spec, seed=0,
        architecture=ArchitectureSpec(family=family, values={"depth": depth, "width": 4}),
        plan={"epochs": 2, "batch_size": 20, "settle": 0.5},
        estimators=("two_fold", "kfac_ggn", "diag_ef"),
    )
    trial = Trial.start(assignment, data, Path(sys.argv[2]) / family)
    while trial.status == "running":
        trial.advance(2)
    print(trial.finish().status)
slow = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
print("imported" if any(name in sys.modules for name in slow) else "never")
"""


@pytest.mark.long
def test_a_trial_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    """It takes more than a second of every process, a part of what a small study takes."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 3
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    command = [sys.executable, "-c", _TRIALS, str(tmp_path / "d.npz"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["complete"] * 3 + ["never"], done.stderr
