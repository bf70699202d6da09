"""The families: published parameter counts, seeded initialisation, honest reasons."""

import csv
import math
import re
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from cases import GOLDEN_FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nas_evidence.models import FAMILIES, build, count_parameters, infeasible
from nas_evidence.models.cnn import CELLS, CellMean
from nas_evidence.models.fixup import FixupBias, FixupScale
from nas_evidence.models.resnet import Block
from nas_evidence.spec.study import FAMILY_PARAMETERS, ArchitectureSpec

IMAGE = (3, 12, 12)
SMALL = {
    "mlp": {"depth": 3, "width": 16},
    "cnn": {"depth": 3, "width": 2},
    "resnet": {"depth": 14, "width": 4},
    "linear": {},
}


def architecture(family: str, **values: int | str) -> ArchitectureSpec:
    return ArchitectureSpec(family=family, values=values)


def small(family: str) -> ArchitectureSpec:
    return architecture(family, **SMALL[family])


def input_of(family: str) -> tuple[int, ...]:
    """Return the shape of one example: an image, or a vector if the family takes no image."""
    return next(one for one in (IMAGE, (7,)) if infeasible(small(family), one, 5) is None)


def perturbed(family: str) -> nn.Module:
    """Return a small network off the zeros that Fixup starts with: its outputs vary."""
    model = build(small(family), input_of(family), 5, seeded())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(5)))
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def published(family: str) -> list[tuple[int, int, int, tuple[int, int, int], int]]:
    """Return (width, depth, count, input shape, classes) of each published model."""
    sets = {
        "c9_cifar10": ((3, 32, 32), 10),
        "c10_cifar100": ((3, 32, 32), 100),
        "c11_fmnist": ((1, 28, 28), 10),
    }
    rows = []
    for name, (shape, classes) in sets.items():
        with (GOLDEN_FOLDER / f"immer2021_table_{name}.csv").open() as file:
            for row in csv.DictReader(file):
                if row["family"] == family:
                    numbers = (int(row[k]) for k in ("width", "depth", "n_parameters"))
                    rows.append((*numbers, shape, classes))
    return rows


def test_registry_has_the_families_a_study_may_name():
    assert tuple(FAMILIES) == tuple(FAMILY_PARAMETERS)


@pytest.mark.slow
def test_cnn_counts_are_the_62_published_ones_up_to_16_and_42_a_block():
    rows = published("CNN")
    assert len(rows) == 62
    for width, depth, count, shape, classes in rows:
        channels = [shape[0], *(width * 2**i for i in range(depth))]
        convolutions = sum(9 * a * b + b for a, b in pairwise(channels))
        formula = convolutions + classes * (channels[-1] * math.prod(CELLS[depth]) + 1)
        assert formula == count - (16 + 42 * depth)
        ours = count_parameters(architecture("cnn", depth=depth, width=width), shape, classes)
        assert ours - 2 * depth == formula  # less a Fixup scale and bias per block


def test_mlp_counts_are_the_15_published_ones_up_to_16_and_8_a_layer():
    rows = published("MLP")
    assert len(rows) == 15
    for width, depth, count, shape, classes in rows:
        ours = count_parameters(architecture("mlp", depth=depth, width=width), shape, classes)
        assert ours == count - (16 + 8 * depth)


def test_taper_has_the_published_count_whatever_width_and_depth():
    for values in ({}, {"width": 7, "depth": 5}):
        taper = architecture("mlp", shape="taper", **values)
        assert count_parameters(taper, (1, 28, 28), 10) == 1_494_154


@pytest.mark.parametrize(
    ("depth", "count"), [(20, 268_393), (32, 461_959), (44, 655_525), (56, 849_091)]
)
def test_resnet_of_width_16_has_the_published_count(depth: int, count: int):
    assert (
        count_parameters(architecture("resnet", depth=depth, width=16), (3, 32, 32), 10) == count
    )


def test_linear_counts_weights_and_biases():
    assert count_parameters(architecture("linear"), (13,), 3) == 13 * 3 + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_count_is_that_of_the_built_model(family: str):
    model = build(small(family), input_of(family), 5, seeded())
    count = sum(p.numel() for p in model.parameters())
    assert count_parameters(small(family), input_of(family), 5) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_float32_leaves_on_the_cpu_in_known_modules(family: str):
    model = build(small(family), input_of(family), 5, seeded())
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.device.type == "cpu"
        assert parameter.requires_grad
        assert parameter.is_leaf
    owners = [m for m in model.modules() if list(m.parameters(recurse=False))]
    assert all(isinstance(m, nn.Linear | nn.Conv2d | FixupScale | FixupBias) for m in owners)
    for module in owners:
        if isinstance(module, FixupScale | FixupBias):
            assert [n for n, _ in module.named_parameters()] == [module.elementwise_affine_scalar]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_runs_once_and_every_parameter_gets_a_gradient(family: str):
    model = perturbed(family)
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1})
            )
    x = torch.randn(4, *input_of(family), generator=seeded(6))
    kept = x.clone()
    outputs = model(x)
    assert outputs.shape == (4, 5)
    assert set(calls.values()) == {1}
    assert torch.equal(x, kept), "the input must not be changed in place"
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_of_one_example_do_not_depend_on_the_others(family: str):
    model = perturbed(family).double()
    x = torch.randn(6, *input_of(family), generator=seeded(6), dtype=torch.float64)
    for part in (model.train(), model.eval()):
        torch.testing.assert_close(part(x)[2:3], part(x[2:3]))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_exports_with_a_dynamic_batch(family: str):
    model = perturbed(family).eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        model, (torch.zeros(2, *input_of(family)),), dynamic_shapes=({0: batch},)
    ).module()
    for n in (1, 7):
        x = torch.randn(n, *input_of(family), generator=seeded(7))
        assert model(x).abs().sum() > 0
        torch.testing.assert_close(program(x), model(x))


def test_weights_have_he_standard_deviation_and_biases_are_zero():
    model = build(architecture("mlp", depth=1, width=1024), (512,), 10, seeded())
    n = model.linear1.weight.numel()
    variance = model.linear1.weight.double().square().mean().item()
    # The variance estimate of n normals has relative standard error sqrt(2 / n); k = 4.
    assert variance == pytest.approx(2 / 512, rel=4 * math.sqrt(2 / n))
    assert model.linear1.bias.abs().sum() == 0


def test_resnet_starts_as_fixup_says():
    model = build(architecture("resnet", depth=20, width=32), (3, 32, 32), 10, seeded())
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    assert len(blocks) == 9
    for block in blocks:
        weight = block.conv1.weight.double()
        he = 2 / math.prod(weight.shape[1:])
        error = 4 * math.sqrt(2 / weight.numel())  # k = 4
        assert weight.square().mean().item() == pytest.approx(he / 9, rel=error)
        assert block.conv2.weight.abs().sum() == 0
        assert block.scale.scale.item() == 1


@pytest.mark.parametrize("family", ["cnn", "resnet"])
def test_fixup_networks_start_as_the_zero_function(family: str):
    model = build(small(family), input_of(family), 5, seeded())
    assert model.head.weight.abs().sum() == 0
    assert model(torch.randn(2, *IMAGE, generator=seeded(1))).abs().sum() == 0


def test_resnet_block_with_zero_residual_is_the_rectified_shortcut():
    x = torch.randn(2, 4, 5, 7, generator=seeded())
    block = Block(4, 8, stride=2)
    nn.init.zeros_(block.conv2.weight)
    nn.init.constant_(block.bias1a.bias, 0.5)
    shortcut = F.avg_pool2d(x + 0.5, 1, stride=2)
    expected = F.relu(torch.cat([shortcut, torch.zeros_like(shortcut)], 1))
    torch.testing.assert_close(block(x), expected)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 32),
    width=st.integers(1, 32),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
)
def test_cell_mean_is_adaptive_average_pooling(height: int, width: int, rows: int, columns: int):
    x = torch.randn(2, 3, height, width, generator=seeded(), dtype=torch.float64)
    mean = CellMean((height, width), (rows, columns)).double()
    # The weights of the mean are rounded to float32 before they are doubled.
    expected = F.adaptive_avg_pool2d(x, (rows, columns))
    torch.testing.assert_close(mean(x), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(tuple(FAMILY_PARAMETERS)),
    depth=st.sampled_from((1, 2, 3, 4, 5, 8)),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    channels=st.integers(1, 4),
)
def test_feasible_means_buildable_and_infeasible_raises_the_reason(
    family: str, depth: int, height: int, width: int, channels: int
):
    values = {} if family == "linear" else {"depth": depth, "width": 4}
    spec, shape = architecture(family, **values), (channels, height, width)
    reason = infeasible(spec, shape, 3)
    if reason is None:
        assert build(spec, shape, 3, seeded())(torch.zeros(2, *shape)).shape == (2, 3)
    else:
        with pytest.raises(ValueError, match=re.escape(reason)):
            build(spec, shape, 3, seeded())
        if family == "cnn" and depth <= 5:
            size = (height >> (depth - 1), width >> (depth - 1))
            assert size[0] < CELLS[depth][0] or size[1] < CELLS[depth][1]


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        (architecture("cnn"), (13,), r"cnn needs images .* input is \[13\]"),
        (architecture("resnet"), (13,), r"resnet needs images .* input is \[13\]"),
        (architecture("resnet"), (1, 3, 9), "at least 4x4, but the input is 3x9"),
        (architecture("cnn", depth=5), (1, 8, 8), r"1x1 or more .* 8x8; .* \[1, 2, 3\]"),
        (architecture("cnn", depth=4), (1, 8, 8), r"at least 1x2 .* leaves 1x1; .* \[1, 2, 3\]"),
        (architecture("cnn", depth=1), (1, 3, 3), "at least 4x4 .* no depth fits"),
        (architecture("mlp", width=2000), (13,), "width .* 2000"),
        (architecture("resnet", depth=9), (1, 8, 8), "depth .* 9"),
        (
            architecture("mlp", widht=8),
            (13,),
            "'widht'; its parameters: depth, width, shape",
        ),
        (architecture("rnn"), (13,), "family 'rnn' is unknown; choose one of mlp"),
        (architecture("mlp"), (28, 28), "vector .* or an image"),
    ],
)
def test_reason_names_rule_and_value(spec: ArchitectureSpec, shape: tuple[int, ...], says: str):
    reason = infeasible(spec, shape, 2)
    assert reason is not None
    with pytest.raises(ValueError, match=says):
        build(spec, shape, 2, seeded())


@pytest.mark.parametrize("family", ["mlp", "linear"])
def test_vectors_are_accepted(family: str):
    assert build(small(family), (13,), 3, seeded())(torch.zeros(2, 13)).shape == (2, 3)
