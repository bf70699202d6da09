"""What is said of rows: one object for classes and numbers, kept as a table, and any density."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import laplace
from torch import Tensor

from nas_evidence.exporting.predicted import Prediction, mixed
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.likelihoods.predictive import joined
from nas_evidence.maths.crps import crps
from nas_evidence.maths.target_scale import fit, unscaled

GENERATOR = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(9, 4, generator=GENERATOR)
ROOT = torch.randn(9, 4, 4, generator=GENERATOR).double()
COVARIANCE = 0.1 * ROOT @ ROOT.mT
REALS, LABELS = torch.randn(9, 4, generator=GENERATOR), torch.arange(9) % 4
CASES: dict[str, tuple[Likelihood, Tensor]] = {
    "categorical": (Categorical(1.3), LABELS),
    "gaussian": (gaussian([0.2, 0.5, 1.0, 3.0]), REALS),
    "heteroscedastic": (Heteroscedastic(), REALS[:, :2]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_trial_keeps_says_the_same_of_the_targets(name: str) -> None:
    likelihood, targets = CASES[name]
    said = likelihood.predictive(OUTPUTS, None if name == "categorical" else COVARIANCE)
    table = said.at(1.7).stored()
    assert table.dtype == torch.float32
    found = likelihood.says.restored(table)
    torch.testing.assert_close(
        found.log_density(targets), said.at(1.7).log_density(targets), rtol=1e-5, atol=1e-6
    )
    assert found.factor(targets) == pytest.approx(said.at(1.7).factor(targets), rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_without_a_posterior_it_is_the_likelihood_itself(name: str) -> None:
    likelihood, targets = CASES[name]
    for factor in (1.0, 2.5):
        log = likelihood.predictive(OUTPUTS).at(factor).log_density(targets).sum()
        expected = likelihood.at(factor).log_likelihood(OUTPUTS, targets)
        torch.testing.assert_close(log, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_rows_and_parts_say_the_same_as_the_whole(name: str) -> None:
    likelihood, targets = CASES[name]
    whole = likelihood.predictive(OUTPUTS, COVARIANCE)
    again = joined([whole.rows(torch.arange(4)), whole.rows(torch.arange(4, 9))])
    torch.testing.assert_close(again.log_density(targets), whole.log_density(targets))


def test_every_target_has_the_noise_of_its_own_and_the_uncertainty_of_its_own() -> None:
    said = gaussian([0.2, 0.5, 1.0, 3.0]).predictive(OUTPUTS, COVARIANCE, 0.4)
    own = COVARIANCE.diagonal(dim1=1, dim2=2).clamp(max=0.4**2)
    noise = torch.tensor([0.2, 0.5, 1.0, 3.0]).double().square()
    torch.testing.assert_close(said.spread, (noise + own).sqrt(), rtol=1e-7, atol=0)
    delivered = said.delivered(unscaled(4))
    assert delivered.density is not None
    np.testing.assert_allclose(delivered.density.std, said.spread.numpy())
    np.testing.assert_allclose(delivered.std_model, own.sqrt().numpy())


def test_on_a_curved_scale_the_density_of_the_target_is_that_of_the_scale() -> None:
    y = np.exp(REALS[:, :1].double().numpy())
    scale = fit("log", y)
    z = torch.from_numpy(scale.standardised(y))
    said = Gaussian(0.3).predictive(OUTPUTS[:, :1], COVARIANCE[:, :1, :1])
    density = said.delivered(scale).density
    assert density is not None
    log = said.log_density(z).numpy() + scale.log_jacobian(y, np.ones(1))
    np.testing.assert_allclose(density.log_density(y), log)


@dataclass(frozen=True)
class Tails:
    """Laplace's distributions: neither classes nor normal on any scale."""

    mean: np.ndarray
    b: np.ndarray
    weights: np.ndarray
    least: float = -np.inf
    n_medians: int = 0

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.tensordot(self.weights, 2 * self.b**2, 1))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        each = laplace.logpdf(y, self.mean, self.b).sum(2)
        return np.log(self.weights @ np.exp(each))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, laplace.cdf(y, self.mean, self.b), 1)

    def quantile(self, p: float) -> np.ndarray:
        return np.tensordot(self.weights, laplace.ppf(p, self.mean, self.b), 1)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def at(self, rows: Any) -> "Tails":
        return replace(self, mean=self.mean[rows], b=self.b[:, rows])

    def column(self, k: int) -> "Tails":
        return replace(self, mean=self.mean[:, [k]], b=self.b[..., [k]])

    def mixed(self, weights: Any, others: Any, of_weights: Any) -> tuple["Tails", np.ndarray]:
        b = np.concatenate([self.b, *(one.b for one in others)])
        return replace(self, b=b, weights=np.asarray(weights)), np.mean(of_weights, axis=0)


@crps.register
def _(predictive: Tails, targets: np.ndarray) -> np.ndarray:
    away = np.abs(targets - predictive.mean) / predictive.b[0]
    return predictive.b[0] * (away + np.exp(-away) - 0.75)


def test_densities_of_another_class_are_shown_measured_and_mixed() -> None:
    y = REALS[:, :1].double().numpy()
    tails = Tails(np.zeros((9, 1)), np.full((1, 9, 1), 2.0), np.ones(1))
    one = Prediction(targets=("y",), density=tails, std_model=np.ones((9, 1)), unit=np.ones(1))
    shown = one.to_frame()
    assert shown["high"].tolist() == pytest.approx([-2 * np.log(0.1)] * 9)
    found = one.measures(y)
    assert found["log_loss"] == pytest.approx((np.abs(y) / 2).mean() + np.log(4))
    grid = np.linspace(-60, 60, 400_001)
    of_first = trapezoid((laplace.cdf(grid, 0, 2) - (grid >= y[0])) ** 2, grid)
    assert crps(tails, y)[0, 0] == pytest.approx(of_first, rel=1e-4)
    other = replace(one, density=replace(tails, b=tails.b / 2))
    log = mixed([one, other], np.array([0.25, 0.75])).real.log_density(y)
    each = [np.exp(part.real.log_density(y)) for part in (one, other)]
    np.testing.assert_allclose(np.exp(log), 0.25 * each[0] + 0.75 * each[1])
