"""`Prediction.losses`: log losses of rows in the units that a person compares."""

import numpy as np
from scipy import stats

from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.normals import Normals


def test_losses_of_real_targets_are_in_units_of_the_training_targets() -> None:
    """-log p(y / u): a target in cents has the loss of the same target in euros."""
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 7, 2))
    std = rng.uniform(0.5, 2.0, size=(7, 2))
    for unit in (np.ones(2), np.array([100.0, 0.5])):
        density = Normals(np.ones(1), (mean * unit)[None], (std * unit)[None])
        found = Prediction(("a", "b"), density=density, unit=unit).losses(y * unit)
        expected = -stats.norm.logpdf(y, mean, std).sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_losses_of_classes_are_minus_the_logarithms_of_their_probabilities() -> None:
    p = np.array([[0.2, 0.8], [0.5, 0.5]])
    found = Prediction((0, 1), probabilities=p).losses(np.array([1, 0]))
    np.testing.assert_allclose(found, -np.log([0.8, 0.5]))
