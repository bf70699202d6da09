"""The families: published parameter counts, seeded initialisation, honest reasons."""

import copy
import csv
import functools
import io
import math
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import GOLDEN_FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_trials import tensors_of
from messages import refused
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import nas_evidence
from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.capture import undisturbed
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import FAMILIES, build, count_parameters, infeasible, skeleton
from nas_evidence.models.cnn import CELLS, CellMean
from nas_evidence.models.fixup import FixupBias, FixupScale
from nas_evidence.models.layout import laid_out
from nas_evidence.models.modes import in_training_mode
from nas_evidence.models.resnet import Block
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.families import add_family
from nas_evidence.spec.study import FAMILY_PARAMETERS, ArchitectureSpec, TrainingPlan
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import begin
from nas_evidence.training.own_family import tried_networks
from nas_evidence.training.stacked import can_stack

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


# --- channels last in memory: another order of the same numbers


SHAPE = (2, 9, 8)
NETWORKS = {
    "cnn": ArchitectureSpec(family="cnn", values={"depth": 2, "width": 3}),
    "resnet": ArchitectureSpec(family="resnet", values={"depth": 8, "width": 8}),
}


def network(name: str) -> nn.Module:
    model = build(NETWORKS[name], SHAPE, 3, torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():  # no weight stays at Fixup's zeros
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=random)
    return model


def is_last(model: nn.Module) -> bool:
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    return all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    return torch.randn(7, *SHAPE, generator=random), torch.arange(7) % 3


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_channels_last_computes_the_same(name: str) -> None:
    last = network(name)
    first = laid_out(copy.deepcopy(last), channels_last=False)
    assert is_last(last)
    assert all(p.is_contiguous() for p in first.parameters())
    x, y = examples()
    torch.testing.assert_close(last(x), first(x), rtol=1e-5, atol=1e-6)
    for model in (last, first):
        nn.functional.cross_entropy(model(x), y).backward()
    for one, other in zip(last.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn", "ekfac_ggn"])
@pytest.mark.parametrize("name", NETWORKS)
def test_curvature_does_not_depend_on_the_order_of_channels(name: str, kind: str) -> None:
    last = network(name).double()
    first = laid_out(copy.deepcopy(last), channels_last=False)
    x, y = examples()
    found, expected = (
        curvature_pass(kind, model, x.double(), y, Categorical(), batch_size=4).curvature.trace()
        for model in (last, first)
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_the_order_survives_steps_and_checkpoints() -> None:
    model = network("cnn")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = examples()
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    content = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, content)
    content.seek(0)
    state = torch.load(content, weights_only=True)
    again = build(NETWORKS["cnn"], SHAPE, 3, torch.Generator().manual_seed(5))
    again.load_state_dict(state["model"])
    resumed = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    resumed.load_state_dict(state["optimiser"])
    for one, other in ((model, optimiser), (again, resumed)):
        other.zero_grad()
        nn.functional.cross_entropy(one(x), y).backward()
        other.step()
    assert is_last(again)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def test_stored_weights_have_the_usual_order(tmp_path: Path) -> None:
    model = network("resnet")
    stored = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors")
    again = build(NETWORKS["resnet"], SHAPE, 3, torch.Generator().manual_seed(5))
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x, _ = examples()
    assert torch.equal(again(x), model(x))


def test_narrow_residual_networks_keep_channels_first() -> None:
    narrow = ArchitectureSpec(family="resnet", values={"depth": 8, "width": 4})
    model = build(narrow, SHAPE, 3, torch.Generator().manual_seed(0))
    assert all(p.is_contiguous() for p in model.parameters())


# --- A family whose networks use a weight twice is trained, kept, exported and loaded


MODULE = """
from torch import nn


class Tied(nn.Module):
    def __init__(self, n_outputs):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, n_outputs)

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh()).tanh())


class Shared:
    domains = {"kind": ["tied", "twice"]}

    def build(self, values, input_shape, n_outputs):
        if values["kind"] == "tied":
            return Tied(n_outputs)
        layer = nn.Linear(4, 4)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, n_outputs))
"""


@pytest.mark.long
@pytest.mark.slow
def test_shared_weights_are_kept_exported_and_loaded_with_the_spread_of_autograd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "home", tmp_path / "study"
    home.mkdir()
    (home / "sharing.py").write_text(MODULE)
    monkeypatch.syspath_prepend(home)
    import sharing

    x = np.random.default_rng(0).normal(size=(60, 4))
    y = x @ [1.0, -1, 0.5, 0] + 0.1 * np.random.default_rng(1).normal(size=60)
    study = nas_evidence.search(
        x, y, families=[sharing.Shared], n_trials=2, test_fraction=0.3, out=out,
        executor="inline", progress=False,
        settings={
            "plan.epochs": 3, "finalists": 0, "replicates": 1, "estimators": ["elpd", "diag_ef"],
            "objective": "elpd", "plan.online.curvature": "diag_ggn_mc",
        },
    )  # fmt: skip
    assert len(study.ranking) == 2
    for trial, row in study.ranking.set_index("trial_id").iterrows():
        kind = row["kind"]
        study.export(out / kind, trial_id=int(trial))
        stored = read_tensors(out / kind / "model.safetensors")[0]
        expected = {"tied": 4 * 4 + 2 * 4 + 5, "twice": 4 * 4 + 4 + 5}[kind]
        assert row["n_parameters"] == expected
        assert "n_constants" not in (out / kind / "architecture.toml").read_text()
        assert sum(name.startswith("model.") for name in stored) == 6
        predictor = nas_evidence.Predictor.load(out / kind, allow_code=True)
        assert np.isfinite(predictor.predict(x[:3]).std).all()
        exported = nas_evidence.load_exported(out / kind, allow_code=True)
        assert sum(p.numel() for p in exported.model.parameters()) == expected
        of_posterior = predictor.posterior
        z = torch.tensor(x[:3], dtype=torch.float32)
        found = of_posterior.output_covariance(exported.model, z)[:, 0, 0]
        model: nn.Module = exported.model.double()
        wanted = [dict(model.named_parameters())[name] for name in of_posterior.names]
        sigma = of_posterior.tensors["covariance"]
        for i in range(3):
            f = model(z[i : i + 1].double())[0, 0]
            j = torch.cat([g.flatten() for g in torch.autograd.grad(f, wanted)])
            torch.testing.assert_close(found[i], j @ sigma @ j, rtol=1e-4, atol=0)


# --- A family with constants: a frozen part is neither trained nor counted, and travels as it is


FROZEN = """
import io
import pkgutil

import torch
from torch import nn


class OnFile:
    domains = {"width": [2, 3]}

    def build(self, values, input_shape, n_outputs):
        trunk = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Tanh())
        content = pkgutil.get_data(__name__, "trunk.pt")
        trunk.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
        trunk.requires_grad_(False).eval()
        width = values["width"]
        return nn.Sequential(
            trunk, nn.Linear(5, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, n_outputs)
        )
"""


def trunk() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Tanh())
        made[1].running_mean.normal_()
        made[1].running_var.uniform_(0.5, 2)
    return made


class Partly:
    """The first layer is a constant; its normalisation and dropout stay in evaluation mode."""

    domains = {"width": [2, 3], "free": [0, 1]}  # noqa: RUF012

    def build(self, values: dict, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        fixed = trunk().requires_grad_(False).eval()
        head = nn.Linear(5, n_outputs).requires_grad_(bool(values["free"]))
        return nn.Sequential(fixed, nn.Dropout(0.1), head)


@functools.cache
def frozen_architecture(free: int = 1) -> ArchitectureSpec:
    add_family("x:Partly", Partly)
    return ArchitectureSpec(family="x:Partly", values={"width": 2, "free": free})


def test_only_free_parameters_are_parameters_of_a_network_of_a_study() -> None:
    model = build(frozen_architecture(), (4,), 3, torch.Generator().manual_seed(0))
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]
    assert count_parameters(frozen_architecture(), (4,), 3) == 18
    meta = skeleton(frozen_architecture(), (4,), 3)
    assert {t.device.type for t in meta.state_dict().values()} == {"meta"}
    names = [*nn.Sequential(trunk(), nn.Dropout(), nn.Linear(5, 3)).state_dict()]
    assert sorted(model.state_dict()) == sorted(names)


def test_modules_that_build_returns_in_evaluation_mode_stay_in_it() -> None:
    model = build(frozen_architecture(), (4,), 3, torch.Generator().manual_seed(0))
    with undisturbed(model):
        pass
    in_training_mode(model.eval())
    assert [m.training for m in model.modules()] == [True, *[False] * 5, True, True]
    before = model[0][1].running_mean.clone()
    model(torch.randn(6, 4))
    assert_close(model[0][1].running_mean, before, rtol=0, atol=0)


class Plain:
    """Only layers that otherwise train side by side."""

    domains = {"layer": ["none", "0", "2", "0.bias"]}  # noqa: RUF012

    def build(self, values: dict, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, n_outputs))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(values["layer"]))
        return model


@pytest.mark.parametrize("layer", ["0", "2", "0.bias"])
def test_folds_with_constants_train_one_after_another(layer: str) -> None:
    add_family("x:Plain", Plain)
    for name, expected in ((layer, False), ("none", True)):
        given = ArchitectureSpec(family="x:Plain", values={"layer": name})
        model = build(given, (4,), 3, torch.Generator().manual_seed(0))
        assert can_stack(model) is expected
        plan = TrainingPlan(epochs=2, batch_size=8, likelihood="categorical")
        random = torch.Generator().manual_seed(1)
        x, y = torch.randn(20, 4, generator=random), torch.arange(20) % 3
        states = [begin(copy.deepcopy(model), tensors_of(x, y), plan, seed=7) for _ in range(2)]
        assert train_epochs(states) == [None, None]
        for key, value in model.state_dict().items():
            same = torch.equal(value, states[1].model.state_dict()[key])
            assert same is key.startswith(name)


def test_a_family_without_a_free_parameter_is_one_sentence() -> None:
    add_family("x:Partly", Partly)
    domains = {"width": Choice(options=(2,)), "free": Choice(options=(0,))}
    with refused("family-without-parameters", "requires_grad=True"):
        tried_networks("x:Partly", domains, (4,), 3)


@pytest.mark.long
@pytest.mark.slow
def test_a_head_on_weights_from_a_file_is_searched_exported_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "home", tmp_path / "study"
    home.mkdir()
    (home / "on_file.py").write_text(FROZEN)
    content = io.BytesIO()
    torch.save(trunk().state_dict(), content)
    (home / "trunk.pt").write_bytes(content.getvalue())
    monkeypatch.syspath_prepend(home)
    import on_file

    x = np.random.default_rng(0).normal(size=(60, 4))
    y = x @ [1.0, -1, 0.5, 0] + 0.1 * np.random.default_rng(1).normal(size=60)
    estimators = ["conditional_evidence", "elpd", "kfac_ggn", "diag_ef"]
    search = functools.partial(
        nas_evidence.search, x, y, families=[on_file.OnFile], n_trials=2, test_fraction=0.3,
        out=out, executor="inline",
        settings={"plan.epochs": 5, "finalists": 0, "estimators": estimators},
    )  # fmt: skip
    study = search()
    ranked = study.ranking
    assert ranked["conditional_evidence"].notna().all()
    assert sorted(ranked["n_parameters"]) == [15, 22]
    study.report()
    study.export()
    given = trunk().state_dict()
    shutil.rmtree(home)
    sys.modules.pop("on_file")
    exported = nas_evidence.load_exported(out / "export", allow_code=True)
    stored = {n.removeprefix("model.0."): t for n, t in exported.state_dict().items()}
    for name, tensor in given.items():
        assert_close(stored[name], tensor, rtol=0, atol=0)
    assert (out / "export/code/trunk.pt").read_bytes() == content.getvalue()
    predicted = nas_evidence.Predictor.load(out / "export", allow_code=True).predict(x[:5])
    np.testing.assert_allclose(predicted.mean, study.predict(x[:5]).mean, rtol=1e-5)
    assert np.isfinite(predicted.std).all()

    home.mkdir()
    (home / "on_file.py").write_text(FROZEN)
    (home / "trunk.pt").write_bytes(content.getvalue() + b"\0")
    import on_file

    with refused("code-changed", "trunk.pt"):
        search(families=[on_file.OnFile])
