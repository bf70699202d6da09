"""Intervals of several targets hold for each, from search to export."""

from pathlib import Path

import numpy as np
import pytest

import nas_evidence


@pytest.mark.long
@pytest.mark.slow
def test_intervals_of_a_quiet_and_of_a_noisy_target_cover_what_they_say(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(n, 4))
        means = np.stack([np.sin(x[:, 0]) + 0.5 * x[:, 1], np.cos(x[:, 2]) + 0.5 * x[:, 0]], 1)
        return x, means + draw.normal(size=(n, 2)) * [0.15, 0.9]

    (x, y), (unseen, truth) = rows(400), rows(3000)
    study = nas_evidence.search(x, y, out=tmp_path / "study", n_trials=2, workers=1)
    study.export(tmp_path / "export")
    exported = nas_evidence.Predictor.load(tmp_path / "export").predict(unseen)
    for found in (study.predict(unseen), exported):
        covered = ((truth >= found.low) & (truth <= found.high)).mean(0)
        assert ((covered > 0.84) & (covered < 0.96)).all(), covered
