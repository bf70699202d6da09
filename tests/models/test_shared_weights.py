"""A family whose networks use a weight twice is trained, kept, exported and loaded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nas_evidence
from nas_evidence.plumbing.tensor_seals import read_tensors

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
