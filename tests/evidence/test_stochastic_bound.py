"""Blocks of the data bound the evidence of the full Gauss-Newton from below."""

import pytest
import torch
from torch import Tensor, nn

from nas_evidence import estimate_evidence
from nas_evidence.curvature.likelihood import Categorical, Gaussian
from nas_evidence.evidence.stochastic_bound import stochastic_lower_bound

pytestmark = pytest.mark.slow


def classifier() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    return model, torch.randn(22, 3).double(), torch.randint(0, 3, (22,))


PRECISION = torch.tensor([0.3, 1.0, 2.0, 0.7], dtype=torch.float64)


def bound(block_size: int, seed: int = 0, n_blocks_seen: int | None = None) -> float:
    model, x, y = classifier()
    return stochastic_lower_bound(
        model, x, y, likelihood=Categorical(), prior_precision=PRECISION, block_size=block_size,
        generator=torch.Generator().manual_seed(seed), n_blocks_seen=n_blocks_seen,
    ).value  # fmt: skip


def full() -> float:
    model, x, y = classifier()
    return estimate_evidence(
        model, x, y, likelihood="categorical", curvature="full_ggn", prior_precision=PRECISION
    ).value


def test_one_block_of_all_data_is_the_full_evidence() -> None:
    assert bound(22) == pytest.approx(full(), abs=1e-9)
    assert bound(1000) == pytest.approx(full(), abs=1e-9)


@pytest.mark.parametrize("block_size", [1, 3, 8, 21])
@pytest.mark.parametrize("seed", range(3))
def test_every_partition_is_below_the_full_evidence(block_size: int, seed: int) -> None:
    """Ragged last blocks included: 22 is a multiple of 1 only."""
    assert bound(block_size, seed) < full()


def test_larger_blocks_are_nearer_on_average() -> None:
    means = [sum(bound(size, seed) for seed in range(4)) for size in (1, 4, 11)]
    assert means[0] < means[1] < means[2]


def test_a_block_is_its_log_determinant() -> None:
    """By hand: the dense Gauss-Newton of each block from autograd Jacobians."""
    model, x, y = classifier()
    model.eval()
    parameters = dict(model.named_parameters())
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(parameters)
    j = torch.cat([part.flatten(2) for part in jacobians.values()], 2).detach()
    p = model(x).softmax(1).detach()
    hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    per_datum = torch.einsum("ncp,ncd,ndq->npq", j, hessians, j)
    prior = PRECISION.repeat_interleave(torch.tensor([q.numel() for q in parameters.values()]))
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randperm(22, generator=generator).split(5)
    ratio = sum(
        torch.linalg.slogdet(torch.eye(len(prior)).double() + per_datum[b].sum(0) / prior)[1]
        for b in blocks
    )
    theta = torch.cat([q.detach().flatten() for q in parameters.values()])
    log_likelihood = Categorical().log_likelihood(model(x), y).detach()
    expected = log_likelihood - 0.5 * ((prior * theta**2).sum() + ratio)
    assert bound(5, seed=4) == pytest.approx(float(expected), abs=1e-8)


def test_some_of_the_blocks_estimate_the_bound_without_bias() -> None:
    """Within 4 of the standard errors of the mean over 40 draws, and as spread as stated."""
    model, x, y = classifier()
    estimates = [
        stochastic_lower_bound(
            model, x, y, likelihood=Categorical(), prior_precision=PRECISION, block_size=1,
            n_blocks_seen=6, generator=torch.Generator().manual_seed(seed),
        )
        for seed in range(40)
    ]  # fmt: skip
    values = torch.tensor([e.value for e in estimates])
    stated = torch.tensor([e.standard_error for e in estimates]).square().mean().sqrt()
    assert abs(values.mean() - bound(1)) < 4 * values.std() / 40**0.5
    assert 0.6 < values.std() / stated < 1.6


def test_a_linear_model_is_bounded_by_its_evidence_and_meets_it() -> None:
    torch.manual_seed(0)
    model, x, y = (
        nn.Linear(3, 2).double(),
        torch.randn(15, 3).double(),
        torch.randn(15, 2).double(),
    )
    exact = estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="full_ggn", prior_precision=1.0,
        noise_std=0.5,
    ).value  # fmt: skip
    for block_size, equal in ((15, True), (4, False)):
        estimate = stochastic_lower_bound(
            model, x, y, likelihood=Gaussian(0.5), prior_precision=1.0, block_size=block_size,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        assert (estimate.value == pytest.approx(exact, abs=1e-9)) is equal
        assert estimate.value <= exact + 1e-9
        assert estimate.standard_error is None


def test_the_model_is_left_in_training_and_bad_blocks_are_refused() -> None:
    model, x, y = classifier()
    ask = {"likelihood": Categorical(), "generator": torch.Generator().manual_seed(0)}
    stochastic_lower_bound(model, x, y, prior_precision=1.0, block_size=4, n_blocks_seen=2, **ask)
    assert all(module.training for module in model.modules())
    with pytest.raises(ValueError, match="from 2 to 6, the blocks of 4"):
        stochastic_lower_bound(
            model, x, y, prior_precision=1.0, block_size=4, n_blocks_seen=7, **ask
        )
    with pytest.raises(ValueError, match="block_size >= 1"):
        stochastic_lower_bound(model, x, y, prior_precision=1.0, block_size=0, **ask)
    spread = torch.linspace(1, 2, sum(p.numel() for p in model.parameters()))
    with pytest.raises(ValueError, match="differs within"):
        stochastic_lower_bound(model, x, y, prior_precision=spread, block_size=4, **ask)
