"""What an architecture costs: flops by hand, factors by counting, memory by measuring."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_trials import evaluated
from records import asked
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from nas_evidence.curvature import curvature_pass, layers, squares
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.at_once import ON_A_GPU
from nas_evidence.maths.blocks import Block
from nas_evidence.models import build, count_parameters
from nas_evidence.models.cnn import CELLS
from nas_evidence.spec.study import ArchitectureSpec, Assignment, TrainingPlan
from nas_evidence.training.cost import (
    _LENGTHS,
    _PRODUCTS,
    cost_of,
    factor_bytes,
    forward_pass,
    measured_latency,
)
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import begin

SGD, ADAM = TrainingPlan(), TrainingPlan(optimiser="adam")
MLP = ArchitectureSpec(family="mlp", values={"depth": 2, "width": 32})
CNN = ArchitectureSpec(family="cnn", values={"depth": 3, "width": 5})
RESNET = ArchitectureSpec(family="resnet", values={"depth": 8, "width": 4})
LINEAR = ArchitectureSpec(family="linear")


def mlp(depth: int, width: int) -> ArchitectureSpec:
    return ArchitectureSpec(family="mlp", values={"depth": depth, "width": width})


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(depth=st.integers(1, 4), width=st.integers(4, 40), classes=st.integers(2, 6))
def test_flops_of_an_mlp_are_two_for_each_weight(depth: int, width: int, classes: int) -> None:
    cost = cost_of(mlp(depth, width), (15,), classes, SGD, ())
    assert cost.flops == 2 * (15 * width + (depth - 1) * width**2 + width * classes)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_flops_of_a_cnn_are_those_of_convolutions_grid_means_and_head(depth: int) -> None:
    width, (height, columns), classes = 5, (28, 24), 10
    spec = ArchitectureSpec(family="cnn", values={"depth": depth, "width": width})
    multiply_adds, c_in = 0, 1
    for i in range(depth):
        c_out = width * 2**i
        before_pool = (height >> max(0, i - 1)) * (columns >> max(0, i - 1))
        multiply_adds += before_pool * c_out * c_in * 9
        c_in = c_out
    h, w = height >> (depth - 1), columns >> (depth - 1)
    rows, cells = CELLS[depth]
    multiply_adds += c_in * (rows * h * w + rows * cells * w)  # means over rows, then columns
    multiply_adds += c_in * rows * cells * classes
    cost = cost_of(spec, (1, height, columns), classes, SGD, ())
    assert cost.flops == 2 * multiply_adds


@pytest.mark.parametrize("spec", [MLP, CNN, RESNET, LINEAR], ids=lambda s: s.family)
def test_parameters_are_those_of_the_model(spec: ArchitectureSpec) -> None:
    cost = cost_of(spec, (3, 16, 16), 7, SGD, ("kfac_ggn",))
    assert cost.n_parameters == count_parameters(spec, (3, 16, 16), 7)


def test_flops_are_of_one_example_and_know_nothing_of_the_plan() -> None:
    one = cost_of(CNN, (1, 28, 28), 10, SGD, ())
    other = cost_of(CNN, (1, 28, 28), 10, TrainingPlan(batch_size=999), ("kfac_ggn", "sotl"))
    assert one.flops == other.flops


def test_an_input_that_the_family_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="cnn needs images"):
        cost_of(CNN, (13,), 2, SGD, ())


# --- memory


def memory(spec: ArchitectureSpec, plan: TrainingPlan, *kinds: str) -> int:
    return cost_of(spec, (1, 28, 28), 10, plan, kinds).memory_bytes


@pytest.mark.slow
def test_memory_grows_with_width_depth_batch_kinds_and_optimiser() -> None:
    widths = [memory(mlp(2, width), SGD, "kfac_ggn") for width in (8, 64, 512)]
    depths = [memory(mlp(depth, 512), SGD, "kfac_ggn") for depth in (1, 2, 5)]
    batches = [memory(CNN, TrainingPlan(batch_size=b), "diag_ef") for b in (512, 4096, 16384)]
    kinds = [
        memory(MLP, SGD, *names)
        for names in (("diag_ef",), ("diag_ef", "kfac_ggn"), ("diag_ef", "kfac_ggn", "full_ggn"))
    ]
    optimisers = [memory(MLP, plan, "diag_ef") for plan in (TrainingPlan(momentum=0), SGD, ADAM)]
    for sizes in (widths, depths, batches, kinds, optimisers):
        assert sizes == sorted(set(sizes)), sizes
    per_parameter = [b - a for a, b in pairwise(optimisers)]
    # Kept by the optimiser, and once more while steps are taken.
    assert per_parameter == [2 * 4 * count_parameters(MLP, (1, 28, 28), 10)] * 2


def test_networks_that_train_side_by_side_need_the_memory_of_all() -> None:
    plan = TrainingPlan(batch_size=16384)
    alone, two, eight = (
        memory(CNN, plan, *s) for s in ((), ("two_fold",), ("two_fold", "five_fold", "heldout_10"))
    )
    assert two == 2 * alone
    assert eight == 8 * alone
    assert memory(CNN, plan, "two_fold_accuracy", "two_fold") == two
    assert memory(CNN, plan.model_copy(update={"folds": 1}), "two_fold") == alone


def test_every_draw_of_a_monte_carlo_kind_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    four = memory(MLP, TrainingPlan(), "kfac_ggn_mc")
    monkeypatch.setattr("nas_evidence.spec.registry.MC_DRAWS", 1)
    one = memory(MLP, TrainingPlan(), "kfac_ggn_mc")
    model = build(MLP, (1, 28, 28), 10, torch.Generator())
    assert four - one == 3 * factor_bytes("kfac_ggn_mc", model)


def test_scores_that_are_no_curvature_cost_nothing() -> None:
    assert memory(MLP, SGD, "kfac_ggn_mc", "sotl", "n_parameters") == memory(MLP, SGD)


def tensors_of(block: Block) -> list[torch.Tensor]:
    return [value for value in vars(block).values() if isinstance(value, torch.Tensor)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        *((kind, spec) for kind in ("diag_ef", "kfac_ggn_mc") for spec in (MLP, CNN, RESNET)),
        ("ekfac_ggn", CNN),
        ("block_ggn", LINEAR),
    ],
    ids=str,
)
def test_factor_bytes_are_those_of_the_tensors_of_a_pass(
    kind: str, spec: ArchitectureSpec
) -> None:
    # The linear layer has 432 weights: 216 data, of two rows each, give its block as a matrix.
    found, expected = stored_bytes(kind, spec, 216 if kind == "block_ggn" else 4)
    assert found == expected


def test_factor_bytes_of_a_block_are_not_exceeded_by_its_rows() -> None:
    for n_data in (1, 215):
        found, bound = stored_bytes("block_ggn", LINEAR, n_data)
        assert 0 < found < bound


def stored_bytes(kind: str, spec: ArchitectureSpec, n_data: int) -> tuple[int, int]:
    """Bytes of the tensors of a pass, and `factor_bytes`."""
    shape = (1, 12, 12)
    model = build(spec, shape, 3, torch.Generator().manual_seed(0))
    passed = curvature_pass(
        kind,
        model,
        torch.randn(n_data, *shape),
        torch.arange(n_data) % 3,
        Categorical(),
        batch_size=4,
        generator=torch.Generator(),
    )
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for block in passed.curvature.blocks
        for tensor in tensors_of(block)
    }
    return sum(storages.values()), factor_bytes(kind, model)


def test_activations_are_what_autograd_keeps_of_an_mlp() -> None:
    model = nn.Sequential(nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 3)).to("meta")
    found = forward_pass(model, (6,))
    # The input, for the gradient of the first weight, and the output of the ReLU.
    assert found.saved_bytes == 4 * (6 + 11)
    assert found.largest_bytes == 4 * 11
    assert found.patch_elements == 0
    assert not model[0]._forward_hooks


def peak_bytes(assignment: Assignment) -> int:
    """Largest sum of allocations in an epoch and an evaluation, by torch's profiler."""
    n, shape, unit = 600, (1, 16, 16), torch.ones(10, dtype=torch.float64)
    x, y = torch.randn(n, *shape), torch.arange(n) % 10
    data = TensorData(x, y, x[:1], y[:1], "labels", 10, shape, 0 * unit, unit)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as recorded:
        model = build(assignment.architecture, shape, 10, torch.Generator().manual_seed(0))
        state = begin(model, data, assignment.plan, assignment.seed)
        train_epoch(state)
        evaluated(state, assignment)
    return highest_bytes(recorded)


def highest_bytes(recorded: profile) -> int:
    """The most bytes of tensors that were there at one time."""
    results = recorded.profiler.kineto_results
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    total = highest = 0
    for _, change in sorted(changes):
        total += change
        highest = max(highest, total)
    return highest


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        ArchitectureSpec(family="mlp", values={"depth": 2, "width": 256}),
        ArchitectureSpec(family="cnn", values={"depth": 2, "width": 8}),
    ],
    ids=lambda s: s.family,
)
def test_memory_is_within_a_factor_of_two_of_what_torch_allocates(spec: ArchitectureSpec) -> None:
    plan = TrainingPlan(epochs=1, batch_size=256, online={"curvature": "kfac_ggn"})
    kinds = ("kfac_ggn", "diag_ef")
    assignment = asked(spec, kinds, plan=plan)
    measured = peak_bytes(assignment)
    estimated = cost_of(spec, (1, 16, 16), 10, plan, kinds).memory_bytes
    assert math.log2(estimated / measured) == pytest.approx(0, abs=1), (estimated, measured)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "width"), [("diag_ef", 32), ("kfac_ggn_mc", 8)])
def test_memory_of_a_pass_with_the_chunks_of_a_gpu_is_in_its_estimate(
    kind: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU takes the branches of a GPU here, with chunks of 256 MB."""
    for module in (squares, layers):
        monkeypatch.setattr(
            module, "elements_at_once", lambda _, __, dtype: ON_A_GPU // dtype.itemsize
        )
    monkeypatch.setattr(squares, "_grouped_is_faster", lambda *_: False)
    monkeypatch.setattr(layers, "rows_apply", lambda *_: False)
    spec = ArchitectureSpec(family="resnet", values={"depth": 8, "width": width})
    model = build(spec, (3, 32, 32), 10, torch.Generator().manual_seed(0))
    x, y = torch.randn(128, 3, 32, 32), torch.arange(128) % 10
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as recorded:
        curvature_pass(
            kind, model, x, y, Categorical(), batch_size=128,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
    measured = highest_bytes(recorded)
    plan = TrainingPlan(online={"curvature": kind})
    given = (spec, (3, 32, 32), 10, plan, (kind,))
    estimated = cost_of(*given, device="cuda").memory_bytes
    assert 1 <= estimated / measured < 2.5, (estimated, measured)
    assert estimated - cost_of(*given).memory_bytes > 0.2 * measured


# --- latency


class Counting(nn.Module):
    """Counts its passes; refuses to be timed in training mode or with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        self.passes += 1
        return x


def test_latency_is_a_positive_median_and_leaves_the_model_in_its_mode() -> None:
    for mode in (True, False):
        model = Counting().train(mode)
        assert 0 < measured_latency(model, torch.zeros(1, 3)) < 1
        assert model.training is mode
        assert model.passes > 5


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0].sum(1)


def test_flops_of_attention_are_those_of_its_four_products() -> None:
    """It returns a tuple; q, k, v and out take 4 E² T, scores and mixing 2 T² E multiply-adds."""
    length, width = 5, 6
    found = forward_pass(_Attention().to("meta"), (length, width))
    assert found.flops == 2 * (4 * width**2 * length + 2 * length**2 * width)
    assert found.largest_bytes == 4 * length * width


class _Products(nn.Module):
    """Every kind of product that a network may have, and a convolution that is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.transposed = nn.ConvTranspose2d(8, 3, 2, stride=2)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.transposed(self.grouped(x)).flatten(2)[..., :6]
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        rows = torch.baddbmm(rows, rows @ rows.mT, rows)
        return self.head(rows.mean(1)) + torch.addmm(
            x[0, 0, :1, :3], rows[:, 0], self.head.weight.T
        )


def test_flops_are_those_that_torch_counts() -> None:
    model = _Products()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 4, 5, 5))
    assert forward_pass(model, (4, 5, 5)).flops == counter.get_total_flops() > 0


def test_every_operation_for_which_torch_has_a_formula_is_known_by_its_name() -> None:
    products = [one for one in flop_registry if isinstance(one, torch._ops.OpOverloadPacket)]
    assert len(products) > 20
    assert all(_PRODUCTS.search(one.__name__) for one in products)
    assert {*_LENGTHS} < {*products}


@pytest.mark.parametrize("spec", [MLP, CNN, RESNET, LINEAR], ids=lambda s: s.family)
def test_a_pass_over_zeros_costs_what_one_over_shapes_does(
    spec: ArchitectureSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TrainingPlan(optimiser="adam")
    given = (spec, (3, 16, 16), 7, plan, ("kfac_ggn", "two_fold"))
    over_zeros = cost_of(*given, n_data=500)
    monkeypatch.setattr("nas_evidence.training.cost._MOST_PARAMETERS", 0)
    assert cost_of(*given, n_data=500) == over_zeros
