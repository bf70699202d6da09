"""Your own family: from a class or a study file to a ranked and exported network."""

import functools
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nas_evidence
from nas_evidence.cli.main import main
from nas_evidence.curvature.coverage import coverage, coverage_of_layers
from nas_evidence.models import build, count_parameters, infeasible
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.families import add_family, domains_of
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.spec.toml import StudyError, dump_study, load_study, parse_study
from nas_evidence.storage.outside_code import admitted, keep_code, reference_of

MODULE = """
from torch import nn


class Wide:
    domains = {"width": {"low": 2, "high": 8}, "act": ["relu", "tanh"]}

    def build(self, values, input_shape, n_outputs):
        act = nn.ReLU() if values["act"] == "relu" else nn.Tanh()
        width = values["width"]
        return nn.Sequential(nn.Linear(input_shape[0], width), act, nn.Linear(width, n_outputs))


plain = Wide()
number = 3
"""
STUDY = """\
name = "own"
[dataset]
name = "digits"
[family.mine]
module = "own_nets:plain"
width = {low = 3, high = 5}
[family.linear]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_nets", None)


class Tiny:
    """A family given as a class."""

    domains = {"width": IntRange(low=2, high=4)}  # noqa: RUF012

    def build(self, values: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3, values["width"]), nn.Tanh(),
            nn.Linear(values["width"], n_outputs),
        )  # fmt: skip


def test_a_study_file_names_it_and_its_code_says_the_rest(module: Path) -> None:
    read = parse_study(STUDY, "own.toml")
    assert list(read.family) == ["own_nets:plain", "linear"]
    with pytest.raises(ValueError, match=r"own_nets:plain.*only with allow_code"):
        admitted(read, [module], allowed=False)
    study, code = admitted(read, [module], allowed=True)
    family = study.family["own_nets:plain"]
    assert family["width"] == IntRange(low=3, high=5)
    assert family["act"].contains("tanh")
    (module / "again.toml").write_text(dump_study(study))
    assert load_study(module / "again.toml") == study
    keep_code(module / "study", code)
    assert [path.name for path in (module / "study" / "code").glob("*.py")] == ["own_nets.py"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (STUDY.replace("width", "widht"), "no parameter 'widht'; it has: width, act"),
        (STUDY.replace(":plain", ":gone"), "own_nets:gone cannot be imported"),
        (STUDY.replace(":plain", ":number"), "or a family with .* but is a int"),
        (STUDY.replace("own_nets:plain", "own_nets"), "must be a reference"),
        (STUDY.replace("low = 3", "low = 9"), "low <= high"),
    ],
)
def test_mistakes_are_one_sentence(text: str, says: str, module: Path) -> None:
    with pytest.raises((ValueError, StudyError), match=says):
        admitted(parse_study(text, "own.toml"), [module], allowed=True)


def test_its_networks_depend_on_the_seed_alone_and_not_on_the_global_stream() -> None:
    reference = reference_of(Tiny)
    add_family(reference, Tiny)
    assert domains_of(reference) == Tiny.domains
    architecture = ArchitectureSpec(family=reference, values={"width": 3})
    state = torch.random.get_rng_state()
    one, same, other = (
        build(architecture, (3,), 2, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [model[1].weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert count_parameters(architecture, (3,), 2) == sum(p.numel() for p in one.parameters())
    wrong = ArchitectureSpec(family=reference, values={"depth": 3})
    assert "has no parameter 'depth'" in (infeasible(wrong, (3,), 2) or "")


def test_coverage_names_the_layer_without_a_rule() -> None:
    covered = {one.kind for one in coverage(Tiny().build({"width": 2}, (3,), 2), (3,), 2)}
    assert "kfac_ggn" in covered
    odd = nn.Sequential(nn.Linear(3, 4), nn.Bilinear(4, 4, 2))
    odd.forward = lambda x: odd[1](*2 * (odd[0](x),))  # type: ignore[method-assign]
    found = {one.kind: one for one in coverage(odd, (3,), 2)}
    assert not found["kfac_ggn"].covered
    assert "Bilinear" in found["kfac_ggn"].reason


class Mixed(nn.Module):
    """A layer of each treatment."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.batch = nn.LayerNorm(4), nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.shift
        h = self.norm(self.attention(h, h, h)[0])
        h = self.twice(self.twice(self.cross(h, x, x)[0])).sum(1)
        return self.head(self.batch(h))


def test_coverage_says_how_each_layer_is_covered_and_what_to_do() -> None:
    torch.manual_seed(0)
    found = {one.path: one for one in coverage_of_layers(Mixed(), (3, 4), 2)}
    ways = {path: (one.diagonal, one.kronecker, one.dense) for path, one in found.items()}
    assert ways == {
        "(model)": ("yes", "own block", "yes"),
        "attention": ("yes", "factors", "yes"),
        "attention.out_proj": ("yes", "factors", "yes"),
        "cross": ("per datum", "no", "per datum"),
        "cross.out_proj": ("per datum", "no", "per datum"),
        "norm": ("yes", "own block", "yes"),
        "batch": ("no", "no", "no"),
        "twice": ("per datum", "no", "per datum"),
        "head": ("yes", "factors", "yes"),
    }
    assert "small module" in found["(model)"].remedy
    assert "attention(h, h, h)" in found["cross"].remedy
    assert "nn.GroupNorm" in found["batch"].remedy
    assert "a module for each call" in found["twice"].remedy
    assert found["head"].remedy == ""


def test_a_family_with_batch_normalisation_is_covered_by_no_kind() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    found = coverage(model, (3,), 2)
    assert not any(one.covered for one in found)
    assert all("`1` of type BatchNorm1d" in one.reason for one in found)


@pytest.mark.parametrize(
    ("family", "says"),
    [("mlpp", "family 'mlpp' is unknown; choose among mlp"), (int, "must have `domains`")],
)
def test_what_is_no_family_is_one_sentence(family: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        nas_evidence.search(
            np.eye(20)[:, :2], np.arange(20) % 2, families=[family], out=tmp_path / "s"
        )


def test_check_family_prints_how_each_layer_is_covered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2] / "notebooks")
    words = "check-family tabular_resnet:TabularResNet --input 10 --outputs 1 --allow-code"
    monkeypatch.setattr(sys, "argv", ["nas-evidence", *words.split()])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    sys.modules.pop("tabular_resnet", None)
    said = capsys.readouterr().out
    assert not end.value.code
    assert "0\tLinear\t704\tyes\tfactors\tyes\t" in said
    assert "1.norm\tLayerNorm\t128\tyes\town block\tyes\t" in said
    assert "estimators that cover it: block_ggn, diag_ef" in said


# --- the families in notebooks/: covered by every curvature kind, searched, scored, exported


EXAMPLES = Path(__file__).resolve().parents[2] / "notebooks"
#: File -> family, what to build, input shape, outputs.
FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int]] = {
    "vision_transformer": (
        "VisionTransformer", {"patch": 4, "width": 8, "depth": 1}, (1, 8, 8), 10),
    "tabular_resnet": ("TabularResNet", {"width": 8, "blocks": 2}, (10,), 1),
    "frozen_backbone": ("FrozenBackbone", {"width": 8, "depth": 1}, (1, 8, 8), 10),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("example", FAMILIES)
def test_every_kind_covers_every_layer_of_an_example(example: str) -> None:
    name, values, shape, n_outputs = FAMILIES[example]
    family = runpy.run_path(str(EXAMPLES / f"{example}.py"))[name]
    torch.manual_seed(0)
    model = family().build(values, shape, n_outputs)
    assert [one.reason for one in coverage(model, shape, n_outputs) if not one.covered] == []
    layers = coverage_of_layers(model, shape, n_outputs)
    assert {one.kronecker for one in layers} <= {"factors", "own block"}
    free = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sum(one.n_parameters for one in layers) == free


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("example", FAMILIES)
def test_an_example_is_searched_scored_and_exported_as_it_stands(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"plan.epochs": 2, "plan.settle": 0.0, "dataset.max_train": 120, "finalists": 0}
    search = functools.partial(
        nas_evidence.search, n_trials=2, settings=short, out=tmp_path / "study"
    )
    monkeypatch.setattr(nas_evidence, "search", search)
    found = runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    study, (name, _, shape, _) = found["study"], FAMILIES[example]
    assert study.spec.objective == "conditional_evidence"
    assert study.ranking["conditional_evidence"].notna().all()
    assert study.ranking["family"].str.endswith(name).any()
    rows = np.linspace(0, 16 if len(shape) > 1 else 0.1, 3 * math.prod(shape))  # as in training
    predicted = study.predict(rows.reshape(3, *shape))
    answer = predicted.probabilities if predicted.classes else predicted.mean
    assert np.isfinite(answer).all()
    assert (tmp_path / "study" / "export" / "model.safetensors").is_file()
