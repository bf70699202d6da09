"""A family with constants: a frozen part is neither trained nor counted, and travels as it is."""

import copy
import functools
import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import tensors_of
from messages import refused
from torch import nn
from torch.testing import assert_close

import nas_evidence
from nas_evidence.curvature.capture import undisturbed
from nas_evidence.models import build, count_parameters, skeleton
from nas_evidence.models.modes import in_training_mode
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.families import add_family
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.loop import train_epochs
from nas_evidence.training.network import begin
from nas_evidence.training.own_family import tried_networks
from nas_evidence.training.stacked import can_stack

MODULE = """
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
def architecture(free: int = 1) -> ArchitectureSpec:
    add_family("x:Partly", Partly)
    return ArchitectureSpec(family="x:Partly", values={"width": 2, "free": free})


def test_only_free_parameters_are_parameters_of_a_network_of_a_study() -> None:
    model = build(architecture(), (4,), 3, torch.Generator().manual_seed(0))
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]
    assert count_parameters(architecture(), (4,), 3) == 18
    meta = skeleton(architecture(), (4,), 3)
    assert {t.device.type for t in meta.state_dict().values()} == {"meta"}
    names = [*nn.Sequential(trunk(), nn.Dropout(), nn.Linear(5, 3)).state_dict()]
    assert sorted(model.state_dict()) == sorted(names)


def test_modules_that_build_returns_in_evaluation_mode_stay_in_it() -> None:
    model = build(architecture(), (4,), 3, torch.Generator().manual_seed(0))
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
    (home / "on_file.py").write_text(MODULE)
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
    (home / "on_file.py").write_text(MODULE)
    (home / "trunk.pt").write_bytes(content.getvalue() + b"\0")
    import on_file

    with refused("code-changed", "trunk.pt"):
        search(families=[on_file.OnFile])
