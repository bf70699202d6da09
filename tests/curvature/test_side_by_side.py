"""Perceptrons side by side have the passes, and the spectra, that each has alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import CurvaturePass, curvature_passes
from nas_evidence.curvature.side_by_side import Member, can_join, kroneckers_side_by_side
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.eigenvalues import eigenvalues
from nas_evidence.maths.structured import BlockDiagonal

#: Two batches of eight rows at most, the second of no, one and of some rows.
SIZES, ROWS = (13, 8, 9), 8
KINDS: dict[str, list[Likelihood]] = {
    "labels": [Categorical(0.7)] * 3,
    "reals": [Gaussian(0.3), gaussian([0.2, 0.5, 2.0, 1.0]), Gaussian(1.0)],
    "pairs": [Heteroscedastic()] * 3,
}


def member(kind: str, k: int, hidden: tuple[int, ...], n_inputs: int = 5) -> Member:
    """A perceptron with four outputs in float64, and its data."""
    draw = torch.Generator().manual_seed(k)
    widths = [n_inputs, *hidden, 4]
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=torch.float64))
    x = torch.randn(SIZES[k], 1, n_inputs, generator=draw, dtype=torch.float64)
    y: Tensor = torch.randn(SIZES[k], 2 if kind == "pairs" else 4, generator=draw).double()
    y = y.argmax(1) if kind == "labels" else y
    signs = torch.Generator().manual_seed(100 + k)
    return Member(model, x, y, KINDS[kind][k], signs, {})


def alone(one: Member, n_draws: int) -> list[CurvaturePass]:
    return curvature_passes(
        "kfac_ggn_mc", one.model, one.inputs, one.targets, one.likelihood,
        batch_size=ROWS, n_draws=n_draws, generator=one.generator,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [(), (6,), (9, 40)])  # fewer rows than 40
@pytest.mark.parametrize("n_inputs", [5, 10])  # more rows than columns, or not of all
def test_passes_side_by_side_are_those_of_each_alone(
    kind: str, hidden: tuple[int, ...], n_inputs: int
) -> None:
    members = [member(kind, k, hidden, n_inputs) for k in range(3)]
    assert all(can_join(one.model, max(SIZES)) for one in members)
    found = kroneckers_side_by_side(members, batch_size=ROWS, n_draws=2)
    for k, draws in enumerate(found):
        for one, right in zip(draws, alone(member(kind, k, hidden, n_inputs), 2), strict=True):
            assert math.isclose(one.log_likelihood, right.log_likelihood, rel_tol=1e-12)
            assert one.squared_errors == pytest.approx(right.squared_errors, rel=1e-12)
            assert (one.n_data, one.n_outputs) == (SIZES[k], 4)
            mine, theirs = one.curvature, right.curvature
            assert isinstance(mine, BlockDiagonal)
            assert isinstance(theirs, BlockDiagonal)
            assert mine.names == theirs.names
            assert_close(mine.trace(), theirs.trace(), rtol=1e-10, atol=0)
            for values, others in zip(mine.spectra(), theirs.spectra(), strict=True):
                assert_close(values, others, rtol=1e-8, atol=1e-10 * float(others.max()))
            vector, delta = torch.ones(mine.n_parameters).double(), torch.ones(len(mine.names))
            one_form, other = (c.inverse_quadratic(vector, delta) for c in (mine, theirs))
            assert_close(one_form, other, rtol=1e-8, atol=0)


def test_the_factor_of_the_inputs_is_computed_once_for_each_data_set() -> None:
    first = member("labels", 0, (6,))
    ((before,),) = kroneckers_side_by_side([first], batch_size=ROWS)
    assert isinstance(before.curvature, BlockDiagonal)
    before.curvature.spectra()
    ((matrix, once),) = first.kept.values()
    assert once.has("values")
    matrix.mul_(4.0)  # what is kept is what is used
    again = replace(first, generator=torch.Generator().manual_seed(100))
    ((after,), _) = kroneckers_side_by_side([again, member("labels", 1, (6,))], batch_size=ROWS)
    assert_close(after.curvature.trace()[0], 4 * before.curvature.trace()[0])
    assert_close(after.curvature.trace()[1:], before.curvature.trace()[1:])


def test_many_columns_are_decomposed_as_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []

    def noted(matrices: Sequence[Tensor]) -> list[Tensor]:
        sides.extend(matrix.shape[-1] for matrix in matrices)
        return eigenvalues(matrices)

    monkeypatch.setattr("nas_evidence.curvature.side_by_side.eigenvalues", noted)
    for n_inputs in (8, 30):
        members = [member("labels", k, (6,), n_inputs) for k in (1, 2)]
        for (draw,) in kroneckers_side_by_side(members, batch_size=ROWS):
            assert isinstance(draw.curvature, BlockDiagonal)
            draw.curvature.spectra()
    # Gradients of both layers, inputs of the second; then the data of 8 and 9 rows.
    assert sides == [6, 4, 6, 8, 8, 6, 4, 6, 8, 9]


def test_one_that_has_diverged_does_not_disturb_the_spectra_of_the_others() -> None:
    members = [member("labels", k, (6,)) for k in range(3)]
    with torch.no_grad():
        next(members[1].model.parameters()).fill_(math.nan)
    found = kroneckers_side_by_side(members, batch_size=ROWS)
    assert [bool(one.curvature.trace().isfinite().all()) for (one,) in found] == [
        True,
        False,
        True,
    ]
    for k in (0, 2):
        mine, (right,) = found[k][0].curvature, alone(member("labels", k, (6,)), 1)
        delta = torch.ones(4).double()
        assert_close(mine.log_det_ratio(delta), right.curvature.log_det_ratio(delta))
