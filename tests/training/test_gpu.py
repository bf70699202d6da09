"""Training on an invented GPU: what a step costs beyond arithmetic, and the values of a CPU."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from both_devices import TOLERANCE
from fake_gpu import FakeGpu
from launches import ALLOWED, MEASURED, NETWORKS, launches_of, members_of, table, traffic_of_epochs
from torch import Tensor, nn

import nas_evidence
from nas_evidence.data.augmentation import moved_rows
from nas_evidence.data.tensors import TensorData
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.network import begin
from nas_evidence.training.own_loop import OnlineLaplace
from nas_evidence.training.predict_rows import predict_rows

SIZES = {
    "mlp": {"depth": 2, "width": 4},
    "cnn": {"depth": 2, "width": 3},
    "resnet": {"depth": 8, "width": 4},
}
CROP = ("RandomCrop", "RandomHorizontalFlip")
SMALL = (1, 8, 8)


@pytest.fixture
def _gathered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather the rows of each step by themselves, as those of many large images are."""
    monkeypatch.setattr("nas_evidence.training.together._GATHERED", 1)


def assert_no_traffic_in_steps(family: str, k: int, **plan: object) -> None:
    """Compare epochs of one step with epochs of four, and epochs with each other."""
    found = []
    for n_steps in (1, 4):
        with FakeGpu() as gpu:
            sizes = (16 * n_steps, 16 * n_steps - 8)[:k]
            members = members_of(family, SIZES[family], sizes, SMALL, batch_size=16, **plan)
            found.append(traffic_of_epochs(gpu, members, 2))
    one, four = found
    assert (one[0], four[0]) == (one[1], four[1])  # epochs are alike
    assert one[0].launches < four[0].launches
    assert one[0].reads == four[0].reads == 1  # the sums of the losses, after the steps
    assert one[0].copies == four[0].copies  # orders, rates and moves, before the steps


@pytest.mark.usefixtures("_gathered_alone")
def test_a_step_reads_nothing_from_the_gpu_and_copies_nothing_to_it() -> None:
    assert_no_traffic_in_steps("mlp", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("_gathered_alone")
@pytest.mark.crossed
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    ("family", "plan"),
    [
        ("mlp", {}), ("cnn", {}), ("resnet", {}), ("mlp", {"optimiser": "adam"}),
        ("resnet", {"optimiser": "adam"}), ("cnn", {"augment": CROP}),
        ("resnet", {"augment": CROP}),
    ],
)  # fmt: skip
def test_steps_of_every_family_read_and_copy_nothing(
    family: str, plan: dict[str, object], k: int
) -> None:
    assert_no_traffic_in_steps(family, k, **plan)


@pytest.mark.long
@pytest.mark.slow
def test_launches_of_steps_and_passes_are_those_measured_or_fewer() -> None:
    found = {network: launches_of(*given) for network, given in NETWORKS.items()}
    again = f"after a change that is meant to, `python tests/launches.py` prints:\n{table(found)}"
    assert {name: of.keys() for name, of in found.items()} == {
        name: of.keys() for name, of in MEASURED.items()
    }, again
    for network, counts in found.items():
        for what, count in counts.items():
            assert count <= ALLOWED * MEASURED[network][what], f"{network}, {what}: {again}"


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "heteroscedastic"])
def test_a_loop_of_ones_own_finds_on_a_gpu_what_it_finds_on_the_cpu(
    likelihood: str, adam: bool
) -> None:
    """With its state stored and loaded on the way."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=draw).double()
    real = x[:, : 2 if likelihood == "gaussian" else 1].sin()
    y = (x[:, 0] > 0).long() if likelihood == "categorical" else real
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    def trained(device: str) -> tuple[list[float], list[Tensor]]:
        model = copy.deepcopy(network).to(device)
        make = torch.optim.Adam if adam else torch.optim.SGD
        optimiser = make(model.parameters(), lr=0.01)
        there = x.to(device), y.to(device)

        def begun() -> OnlineLaplace:
            return nas_evidence.online_laplace(
                model, optimiser, there, likelihood=likelihood, every=2
            )

        laplace = begun()
        for epoch in range(4):
            if epoch == 3:
                kept = laplace.state_dict()
                optimiser = make(model.parameters(), lr=0.01)
                laplace = begun()
                laplace.load_state_dict(kept)
            for rows in (slice(0, 16), slice(16, 30)):
                optimiser.zero_grad()
                laplace.loss(model(there[0][rows]), there[1][rows]).backward()
                optimiser.step()
            laplace.after_epoch()
        numbers = [value for _, value in laplace.history]
        noise = laplace.noise_std if isinstance(laplace.noise_std, tuple) else (laplace.noise_std,)
        numbers += [*laplace.prior_precision.values(), *noise, laplace.log_evidence()]
        return numbers, [p.detach().cpu() for p in model.parameters()]

    numbers, weights = trained("cpu")
    with FakeGpu() as gpu:
        found, moved = trained("cuda")
    assert gpu.launches.total() > 500
    assert found == pytest.approx(numbers, rel=TOLERANCE)
    torch.testing.assert_close(moved, weights, rtol=TOLERANCE, atol=1e-12)


# --- inside a trial the posterior of predictions stays on its device; the GPU is a fake


def image_rows(x: Tensor) -> Any:
    """Rows that can be sliced, but are no tensor, like those of a file."""
    return moved_rows(x, torch.zeros(len(x), 3).long())


CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str, Callable[[Tensor], Any]]] = {
    "all of the covariance": ("linear", {}, (7,), "gaussian", lambda x: x),
    "outer products": ("mlp", {"depth": 2, "width": 24}, (7,), "gaussian", lambda x: x),
    "own noise": ("mlp", {"depth": 2, "width": 24}, (7,), "heteroscedastic", lambda x: x),
    "jacobians": ("cnn", {"depth": 2, "width": 6}, (1, 8, 8), "gaussian", image_rows),
}


@pytest.mark.slow
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
        x_train, y_train = rows(x.to(device)), y.to(device)
        network = begin(model, cast(TensorData, None), plan, 0)
        found = predict_rows(network, x_train, y_train)(rows(x[:9].to(device)))
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
