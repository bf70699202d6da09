"""Inside a trial the posterior of predictions stays on its device; the GPU is a fake."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from torch import Tensor

from nas_evidence.data.augmentation import MovedRows, Moves
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.loop import begin
from nas_evidence.training.predict_rows import predict_rows

pytestmark = pytest.mark.slow


def image_rows(x: Tensor) -> Any:
    """Rows that can be sliced, but are no tensor, like those of a file."""
    return MovedRows(x, Moves(torch.zeros(len(x), 2).long(), torch.zeros(len(x)).bool()))


CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str, Callable[[Tensor], Any]]] = {
    "all of the covariance": ("linear", {}, (7,), "gaussian", lambda x: x),
    "outer products": ("mlp", {"depth": 2, "width": 24}, (7,), "gaussian", lambda x: x),
    "own noise": ("mlp", {"depth": 2, "width": 24}, (7,), "heteroscedastic", lambda x: x),
    "jacobians": ("cnn", {"depth": 2, "width": 6}, (1, 8, 8), "gaussian", image_rows),
}


@pytest.mark.parametrize("name", CASES)
def test_the_posterior_is_fitted_where_the_network_is_with_the_values_of_a_cpu(name: str) -> None:
    family, values, shape, likelihood, rows = CASES[name]
    plan = TrainingPlan.model_validate({"likelihood": likelihood})
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, *shape, generator=generator), torch.randn(60, 2, generator=generator)

    def spread(device: str) -> Tensor:
        start = torch.Generator().manual_seed(1)
        spec = ArchitectureSpec(family=family, values=values)
        model = build(spec, shape, plan.head_width(2), start).to(device)
        predict = predict_rows(begin(model, plan), plan, rows(x.to(device)), y.to(device))
        found = predict(rows(x[:9].to(device)))
        assert found.outputs.device.type == "cpu"
        return found.spread

    expected = spread("cpu")
    with FakeGpu() as gpu:
        found = spread("cuda")
        assert found.device.type == "cpu"
        copied = [line for line in gpu.reads if "likelihoods/predictive.py" in line]
    assert gpu.launches["_linalg_eigh"]
    assert len(copied) == 1, copied  # the spread alone
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
