"""Optuna's tree-structured Parzen estimator, fitted once per set of trials instead of per draw.

A draw that repeats a known architecture is drawn again with another seed. The densities of good
and of other trials do not depend on the seed, so further draws reuse them; a draw is the same, bit
by bit, as that of a fresh `TPESampler` with its seed. `_sample` and `_build_parzen_estimator` are
private to Optuna; `tests/proposing/test_parzen.py` compares with the original.
"""

import warnings
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

#: Draws from the density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24
#: What was fitted to one set of trials: search spaces, and densities by names of parameters.
Fits = dict[Any, Any]

_SPACE = "space"


def sampler_of(seed: int, fits: Fits) -> TPESampler:
    """Return a sampler that uses and extends the fits, which must be of the same trials."""
    with warnings.catch_warnings():
        # group is marked experimental; the constraint file pins optuna.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = _Sampler(
            n_startup_trials=1,
            n_ei_candidates=N_EI_CANDIDATES,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )
    sampler.fits = fits
    return sampler


class _Sampler(TPESampler):  # type: ignore[misc]
    fits: Fits
    _search_space_group: Any

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        if _SPACE not in self.fits:
            space = super().infer_relative_search_space(study, trial)
            self.fits[_SPACE] = space, self._search_space_group
        space, self._search_space_group = self.fits[_SPACE]
        return dict(space)

    def _sample(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        names = tuple(search_space)
        if (names, False) not in self.fits:
            return dict(super()._sample(study, trial, search_space))
        good, other = self.fits[names, True], self.fits[names, False]
        samples = good.sample(self._rng.rng, self._n_ei_candidates)
        found = self._compare(samples, self._compute_acquisition_func(samples, good, other))
        return {name: d.to_external_repr(found[name]) for name, d in search_space.items()}

    def _build_parzen_estimator(
        self, study: Study, search_space: dict[str, BaseDistribution], *rest: Any, **options: Any
    ) -> Any:
        density = super()._build_parzen_estimator(study, search_space, *rest, **options)
        self.fits[tuple(search_space), options["handle_below"]] = density
        return density
