"""Some blocks of the data stand for all: value and error from the dense determinants of two."""

import math
from statistics import stdev

import pytest
import torch

from nas_evidence.audit.known_problems import NOISE_STD, linear_problem
from nas_evidence.evidence.stochastic_bound import stochastic_lower_bound


def test_blocks_left_out_are_made_up_for_and_their_spread_is_the_error() -> None:
    problem = linear_problem("p", 0, n_data=12, n_features=2, n_outputs=1)
    found = stochastic_lower_bound(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=problem.precision, block_size=3, n_blocks_seen=2,
        generator=torch.Generator().manual_seed(4),
    )  # fmt: skip
    again = torch.Generator().manual_seed(4)
    blocks = torch.randperm(12, generator=again).split(3)
    seen = [blocks[k] for k in torch.randperm(4, generator=again)[:2]]
    delta = problem.precision[[0, 0, 1]]
    phi = torch.cat([problem.x, torch.ones(12, 1).double()], 1) / delta.sqrt() / NOISE_STD
    ratios = [
        float(torch.linalg.slogdet(torch.eye(3).double() + phi[b].mT @ phi[b])[1]) for b in seen
    ]
    terms = {term.term: term.value for term in found.terms}
    assert terms["log_det_ratio"] == pytest.approx(4 / 2 * sum(ratios), rel=1e-9)
    error = 0.5 * 4 * stdev(ratios) * math.sqrt((1 - 2 / 4) / 2)
    assert found.standard_error == pytest.approx(error, rel=1e-9)
