"""Exports of earlier versions, whose description names no likelihood."""

from pathlib import Path

import pytest
import tomli_w
import torch

from nas_evidence.exporting.program import Exported, read_exported
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.models import build
from nas_evidence.plumbing.tensor_seals import sealed_tensors
from nas_evidence.spec.study import ArchitectureSpec


@pytest.mark.parametrize("own_noise", [False, True])
def test_without_a_likelihood_by_name_the_outputs_say_whether_noise_is_among_them(
    own_noise: bool, tmp_path: Path
) -> None:
    spec, n_outputs = (
        ArchitectureSpec(family="mlp", values={"depth": 1, "width": 5}),
        1 + own_noise,
    )
    model = build(spec, (3,), n_outputs, torch.Generator().manual_seed(0))
    written = Exported(
        model,
        torch.zeros(3),
        torch.ones(3),
        likelihood=Heteroscedastic() if own_noise else None,
        scale=torch.tensor([3.0]),
        shift=torch.tensor([1.0]),
    ).eval()
    described = {
        "family": "mlp",
        "values": dict(spec.values),
        "input_shape": [3],
        "n_outputs": n_outputs,
        "n_parameters": sum(p.numel() for p in model.parameters()),
    }
    (tmp_path / "architecture.toml").write_text(tomli_w.dumps(described))
    (tmp_path / "model.safetensors").write_bytes(sealed_tensors(dict(written.state_dict()), {}))
    x = torch.randn(7, 3)
    found = read_exported(tmp_path)(x)
    assert found.shape == (7, 1)
    assert torch.equal(found, written(x))
