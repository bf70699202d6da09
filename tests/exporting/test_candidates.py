"""The choice of several architectures, judged on other rows than those that chose."""

import numpy as np
import pytest

from nas_evidence.exporting.candidates import Candidates
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.bias_corrected import chosen
from nas_evidence.maths.crps import crps
from nas_evidence.maths.normals import Normals

N = 40


def guesses(n_architectures: int, together: int, *, seeds: int = 1, data: int = 0) -> Candidates:
    """Architectures that know nothing, best first by their luck on the rows."""
    random = np.random.default_rng(data)
    y, each = random.integers(2, size=N), []
    for _ in range(n_architectures):
        p = random.uniform(0.2, 0.8, size=(seeds, N))
        each.append([Prediction((0, 1), probabilities=np.stack([1 - q, q], 1)) for q in p])
    each.sort(key=lambda own: float(np.mean([one.losses(y).mean() for one in own])))
    return Candidates(each, y, None, 1.5, together)


def test_a_draw_chooses_the_mixture_of_its_three_best() -> None:
    found = guesses(6, 3, seeds=2)
    densities = np.stack(
        [
            np.log(np.mean([p.probabilities[np.arange(N), found.y] for p in own], axis=0))  # type: ignore[index]
            for own in found.networks
        ],
        axis=1,
    )
    assert found.choices[0] == (0, 1, 2)
    for draw, k in zip(found.draws[:20], found.choice[:20], strict=True):
        best = sorted(np.argsort(-(draw @ densities))[:3].tolist())
        assert [*found.choices[k]] == best
        (mixture,) = found.predictions(k)
        six = [p.probabilities for one in best for p in found.networks[one]]
        np.testing.assert_allclose(mixture.probabilities, np.mean(six, 0))  # type: ignore[arg-type]
        np.testing.assert_allclose(found.log_densities[:, k], -mixture.losses(found.y))


def test_what_three_that_know_nothing_gain_by_their_choice_is_taken_off() -> None:
    """The mean over data sets of what is said of them is that of three drawn by lot."""
    apparent, corrected, by_lot = [], [], []
    for data in range(12):
        found = guesses(8, 3, data=data)
        none = np.zeros((N, 1))
        judged = chosen(found.log_densities, none, found.draws[:200], choice=found.choice[:200])
        apparent.append(found.log_densities[:, 0].mean())
        corrected.append(judged.value + judged.behind)
        lots = [np.random.default_rng(k).permutation(8)[:3] for k in range(30)]
        by_lot.append(np.mean([found._log_density(one).mean() for one in lots]))
        assert judged.optimism > 0
    assert np.mean(apparent) > np.mean(by_lot) + 0.03
    assert np.mean(corrected) == pytest.approx(np.mean(by_lot), abs=0.015)


def test_accuracy_and_log_loss_of_three_are_of_rows_that_did_not_choose_them() -> None:
    found = guesses(6, 3)
    own = found.predictions(0)[0].metrics(found.y)
    assert found.metrics["log_loss"] > own["log_loss"] + 0.01
    assert found.metrics["accuracy"] < own["accuracy"] - 0.01


def test_three_of_three_architectures_are_no_choice() -> None:
    found = guesses(3, 3)
    assert [*found.choices] == [(0, 1, 2)]
    own = found.predictions(0)[0].metrics(found.y)
    assert found.metrics["log_loss"] == pytest.approx(own["log_loss"])


def test_the_crps_of_three_is_that_of_rows_left_out() -> None:
    random, n = np.random.default_rng(0), 20
    y, means = random.normal(size=(n, 1)), random.normal(size=(4, n, 1))
    each = [
        [Prediction(density=Normals.single(mean, np.ones(1)), unit=np.ones(1))] for mean in means
    ]
    found = Candidates(each, y, None, 1.5, 3)
    own = found.predictions(0)[0].metrics(y)
    assert found.metrics["crps"] >= own["crps"]
    losses = np.zeros((n, len(found.choices)))
    for k in range(len(found.choices)):
        losses[:, k] = crps(found.predictions(k)[0].real, y).mean(1)
    draws, choice = found.draws[:100], found.choice[:100]
    each_row = [losses[i, choice[draws[:, i] == 0]].mean() for i in range(n)]
    assert found.metrics["crps"] == pytest.approx(max(np.mean(each_row), own["crps"]))
