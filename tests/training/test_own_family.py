"""A family of your own that cannot take its first step is refused before the study begins, with
the cause; and the remedy that is given works."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import refused
from torch import Tensor, nn

import nas_evidence
from nas_evidence.spec.domains import Choice
from nas_evidence.spec.families import add_family
from nas_evidence.spec.study import StudySpec
from nas_evidence.training.own_family import check_own_families, tried_networks

Build = Callable[[int, tuple[int, ...], int], nn.Module]
N_INPUTS, N_CLASSES = 3, 2


class Recurrent(nn.Module):
    def __init__(self, width: int, n_outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[..., None])[0][:, -1])


class Tied(nn.Module):
    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.again = nn.Linear(n_inputs, n_inputs)
        self.head = nn.Linear(n_inputs, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.again(x).relu()))


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def half_frozen(model: nn.Module) -> nn.Module:
    model[1].bias.requires_grad_(False)
    return model


class BackToFront(nn.Module):
    def __init__(self, n_inputs: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(width, n_outputs), nn.Linear(n_inputs, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def raises(width: int, shape: tuple[int, ...], n: int) -> nn.Module:
    raise KeyError("depth")


BUILDS: dict[str, Build] = {
    "batch_norm": lambda w, s, n: sequence(nn.Linear(s[0], w), nn.BatchNorm1d(w), nn.Linear(w, n)),
    "layer_norm": lambda w, s, n: sequence(nn.Linear(s[0], w), nn.LayerNorm(w), nn.Linear(w, n)),
    "recurrent": lambda w, s, n: Recurrent(w, n),
    "tied": lambda w, s, n: Tied(s[0], n),
    "wrong_input": lambda w, s, n: sequence(nn.Linear(7, w), nn.ReLU(), nn.Linear(w, n)),
    "wrong_output": lambda w, s, n: sequence(nn.Linear(s[0], w)),
    "no_parameter": lambda w, s, n: sequence(nn.Flatten(), nn.Softmax(1)),
    "raises": raises,
    "half_head": lambda w, s, n: half_frozen(sequence(nn.Linear(s[0], w), nn.Linear(w, n))),
    "last_registered": lambda w, s, n: BackToFront(s[0], w, n),
}


class Family:
    """A family whose networks are those of `BUILDS` by name."""

    domains = {"width": [4, 6]}  # noqa: RUF012
    build_one: Build

    def build(self, values: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return type(self).build_one(values["width"], input_shape, n_outputs)


#: Found again by their names in this module.
globals().update(
    {f"Of_{name}": type(f"Of_{name}", (Family,), {"build_one": staticmethod(one)})
     for name, one in BUILDS.items()}
)  # fmt: skip


def family(name: str) -> type[Family]:
    found: type[Family] = globals()[f"Of_{name}"]
    return found


def search(name: str, out: Path, **settings: Any) -> nas_evidence.Study:
    x = np.random.default_rng(0).normal(size=(33, N_INPUTS))
    given = {"plan.epochs": 3, "finalists": 0} | settings
    return nas_evidence.search(
        x, x[:, 0] > 0, families=[family(name)], n_trials=1, settings=given, out=out
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batch_norm", "cannot be trained here: module `1` .*use nn.GroupNorm or nn.LayerNorm"),
        (
            "wrong_input",
            r"fails on inputs \[n, 3\]: RuntimeError: .*; build it from `input_shape`",
        ),
        ("wrong_output", r"must return a tensor \[4, 2\] for 4 examples, but gave \[4, 4\]"),
        ("raises", "does not fit inputs .*: KeyError: 'depth'; correct `build` or the domains"),
        ("recurrent", "module `lstm` of type LSTM must take one tensor and return one"),
        ("tied", "module `again` is called more than once"),
    ],
)
def test_a_family_that_fails_in_its_first_step_ends_the_study_once_before_it_begins(
    name: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        search(name, tmp_path / "s")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "s").glob("trials/*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrent", "tied"])
def test_the_remedy_for_a_layer_without_a_rule_works(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Set ") as caught:
        search(name, tmp_path / "refused")
    settings = {
        key: json.loads(value)
        for key, value in re.findall(r"([a-z.]+)=(\[.*?\]|\".*?\"|\d+)", str(caught.value))
    }
    assert "plan.online.curvature" in settings
    study = search(name, tmp_path / "s", **settings)
    assert study.trials["status"].tolist() == ["complete"]


@pytest.mark.slow
def test_the_remedy_for_batch_normalisation_works(tmp_path: Path) -> None:
    assert search("layer_norm", tmp_path / "s").trials["status"].tolist() == ["complete"]


def test_outputs_without_parameters_are_refused() -> None:
    add_family("x:Of", family("no_parameter"))
    with pytest.raises(ValueError, match="depend on no free parameter"):
        tried_networks("x:Of", {"width": Choice(options=(1,))}, (2,), 2)


def test_a_corner_that_cannot_be_built_does_not_refuse_the_others() -> None:
    class Corner(Family):
        def build(self, values: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
            if values["width"] == 4:
                raise ValueError("too narrow")
            return BUILDS["layer_norm"](values["width"], input_shape, n_outputs)

    add_family("x:Corner", Corner)
    found = tried_networks("x:Corner", {"width": Choice(options=(4, 6))}, (N_INPUTS,), 2)
    assert {model[0].out_features for model in found} == {6}


def test_families_of_the_package_are_not_tried() -> None:
    before = torch.random.get_rng_state()
    check_own_families(
        StudySpec.model_validate({"name": "s", "dataset": {"name": "digits"},
                                  "family": {"linear": {}}}), (1, 8, 8), 10
    )  # fmt: skip
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["half_head", "last_registered"])
def test_a_last_layer_without_an_evidence_is_refused_before_the_search(name: str) -> None:
    add_family(f"x:{name}", family(name))
    given = {
        "name": "s",
        "dataset": {"name": "digits"},
        "family": {f"x:{name}": {"width": [4, 6]}},
    }
    with refused("last-layer-not-computable", f"x:{name}", "Set estimators=", "objective="):
        check_own_families(StudySpec.model_validate(given), (N_INPUTS,), N_CLASSES)
    remedy = given | {"estimators": ["elpd", "kfac_ggn"], "objective": "kfac_ggn"}
    check_own_families(StudySpec.model_validate(remedy), (N_INPUTS,), N_CLASSES)
