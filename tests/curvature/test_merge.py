"""Curvature is a sum: passes over shards, here or in other processes, add up to one pass."""

import itertools
import multiprocessing
import pickle

import pytest
import torch
from cases import Case, case, pickled_passes
from torch.testing import assert_close

from nas_evidence.curvature import BUILDERS, KINDS, CurvaturePass, curvature_pass, merge
from nas_evidence.curvature import dense as dense_rules
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.maths.structured import FullMatrix

SUMS = tuple(k for k in KINDS if k != "ekfac_ggn" and not k.endswith("_mc"))


def run(kind: str, c: Case, rows: slice = slice(None)) -> CurvaturePass:
    generator = torch.Generator().manual_seed(0)
    return curvature_pass(
        kind,
        c.model,
        c.x[rows],
        c.y[rows],
        c.likelihood,
        batch_size=2,
        generator=generator,
        diagnose=True,
    )


def agree(kind: str, c: Case, merged: CurvaturePass, whole: CurvaturePass) -> None:
    assert merged.n_data == whole.n_data
    assert merged.n_correct == whole.n_correct
    assert merged.n_outputs == whole.n_outputs
    assert_close(merged.squared_error, whole.squared_error)
    assert_close(merged.log_likelihood, whole.log_likelihood, rtol=1e-12, atol=0)
    found, expected = (
        laplace_estimate(kind, p, c.model, c.prior_precision) for p in (merged, whole)
    )
    assert_close(found.value, expected.value, rtol=1e-11, atol=0)
    for one, other in zip(found.terms, expected.terms, strict=True):
        if one.term != "clamped_eigenvalues":  # of rounding errors
            assert (one.term, one.group) == (other.term, other.group)
            assert_close(one.value, other.value, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "sequence", "conv_groups", "residual"])
@pytest.mark.parametrize("kind", SUMS)
def test_ragged_shards_add_up_to_one_pass(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.startswith("full"):  # of one form whatever the shard
        monkeypatch.setitem(BUILDERS, "full", lambda sweep: [dense_rules.full_kernel(sweep)])
    c = case(name)
    shards = [slice(0, 1), slice(1, 4), slice(4, None)]
    agree(kind, c, merge([run(kind, c, rows) for rows in shards]), run(kind, c))


def test_full_matrices_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDERS, "full", lambda sweep: [dense_rules.full_matrix(sweep)])
    c = case("regression")
    shards = [run("full_ggn", c, rows) for rows in (slice(0, 2), slice(2, None))]
    agree("full_ggn", c, shards[0] + shards[1], run("full_ggn", c))


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1, 2), (3, 7), (1, 6), (8,)])
@pytest.mark.parametrize("kind", ["full_ggn", "full_ef"])
def test_shards_of_any_form_add_up_to_the_form_of_the_whole(
    kind: str, cuts: tuple[int, ...]
) -> None:
    # 12 parameters and up to 9 data of 2 columns: rows alone, rows that together outnumber the
    # parameters, and matrices, in every order.
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, bias=False)).double()
    r = case("regression")
    c = Case(model, r.x.repeat(3, 1), r.y.repeat(3, 1), 0.6)
    edges = [0, *(3 * cut for cut in cuts), len(c.x)]
    rows = [slice(a, b) for a, b in itertools.pairwise(edges)]
    whole, shards = run(kind, c), [run(kind, c, part) for part in rows]
    assert isinstance(whole.curvature, FullMatrix)
    for order in (shards, shards[::-1]):
        merged = merge(order)
        assert isinstance(merged.curvature, FullMatrix)
        agree(kind, c, merged, whole)


def test_kronecker_blocks_are_products_of_sums_and_not_sums_of_products() -> None:
    c = case("mlp")
    parts = [run("kfac_ggn", c, rows) for rows in (slice(0, 3), slice(3, None))]
    delta = c.prior_precision
    apart = sum(p.curvature.trace() for p in parts)
    together = (parts[0] + parts[1]).curvature.trace()
    assert_close(together, run("kfac_ggn", c).curvature.trace())
    assert delta is not None
    assert not torch.isclose(together[0], apart[0], rtol=1e-3)


def test_monte_carlo_passes_add_up_in_expectation_and_count() -> None:
    c = case("mlp")
    parts = [run("kfac_ggn_mc", c, rows) for rows in (slice(0, 3), slice(3, None))]
    assert merge(parts).n_data == len(c.x)
    one = torch.tensor(0.0).double()
    for block in (merge(parts).curvature.blocks[1], parts[0].curvature.blocks[1]):
        one = block.matrix - one
    assert_close(one, -parts[1].curvature.blocks[1].matrix)


@pytest.mark.long
@pytest.mark.slow  # two interpreters that import torch
def test_two_processes_give_the_numbers_of_one() -> None:
    kinds = SUMS
    tasks = [("conv_stride_padding", kinds, 0, 3), ("conv_stride_padding", kinds, 3, None)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        shards = [pickle.loads(data) for data in pool.starmap(pickled_passes, tasks, chunksize=1)]
    c = case("conv_stride_padding")
    for kind, *passes in zip(kinds, *shards, strict=True):
        agree(kind, c, merge(passes), run(kind, c))


def test_what_is_not_a_sum_is_refused() -> None:
    c, other = case("mlp"), case("regression")
    with pytest.raises(ValueError, match="at least one"):
        merge([])
    with pytest.raises(ValueError, match="except ekfac_ggn"):
        merge([run("ekfac_ggn", c), run("ekfac_ggn", c)])
    with pytest.raises(ValueError, match="passes of one kind"):
        merge([run("diag_ggn", c), run("kfac_ggn", c)])
    with pytest.raises(ValueError, match="cannot be added"):
        merge([run("diag_ggn", c), run("diag_ggn", other)])
    with pytest.raises(ValueError, match="cannot be added"):
        merge([run("diag_ggn", c), run("full_ggn", c)])
    images = case("conv_plain")
    smaller = Case(images.model[:1].append(torch.nn.Flatten()), images.x[..., :4, :4], images.y)
    wider = Case(smaller.model, images.x, images.y)
    smaller.y, wider.y = images.y, images.y
    with pytest.raises(ValueError, match="4 and 16 positions"):
        merge([run("kfac_ggn", smaller), run("kfac_ggn", wider)])
