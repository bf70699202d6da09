"""The families in notebooks/: covered by every curvature kind, searched, scored, exported."""

import functools
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nas_evidence
from nas_evidence.curvature.coverage import coverage, coverage_of_layers

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
