"""What every model family owes the rest of the house; a new one is tested by being registered."""

import itertools
import re

import pytest
import torch

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.models import FAMILIES, build, count_parameters, infeasible
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import FAMILY_DEFAULTS, FAMILY_PARAMETERS, ArchitectureSpec

SHAPES = [(1,), (7,), (1, 1, 1), (1, 8, 8), (3, 5, 16)]
#: Inputs of one example: an image, or a vector for families of vectors alone.
INPUTS = [(2, 8, 8), (7,)]


def at_quantiles(family: str, *quantiles: float) -> list[ArchitectureSpec]:
    """Return the members with every parameter at one of the quantiles of its domain."""
    domains = FAMILY_PARAMETERS[family]
    rows = itertools.product(quantiles, repeat=len(domains))
    return [
        ArchitectureSpec(
            family=family,
            values={
                name: domain.at(q) for (name, domain), q in zip(domains.items(), row, strict=True)
            },
        )
        for row in rows
    ]


def input_of(architecture: ArchitectureSpec) -> tuple[int, ...]:
    """Return the first of `INPUTS` that an architecture has no obstacle against."""
    return next(shape for shape in INPUTS if infeasible(architecture, shape, 3) is None)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_defaults_are_declared_together(family: str) -> None:
    assert FAMILY_DEFAULTS[family].keys() == FAMILY_PARAMETERS[family].keys()
    for name, value in FAMILY_DEFAULTS[family].items():
        assert FAMILY_PARAMETERS[family][name].contains(value)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_corner_of_the_space_has_a_size_or_a_reason(family: str) -> None:
    for architecture in at_quantiles(family, 0.0, 0.5, 1 - 1e-9):
        for shape in SHAPES:
            reason = infeasible(architecture, shape, 3)
            if reason is None:
                assert count_parameters(architecture, shape, 3) > 0
            else:
                with pytest.raises(ValueError, match=re.escape(reason)):
                    count_parameters(architecture, shape, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_smallest_member_is_built_the_same_from_a_seed_and_from_nothing_else(
    family: str,
) -> None:
    architecture = at_quantiles(family, 0.0)[0]
    shape = input_of(architecture)
    state = torch.get_rng_state()
    one = build(architecture, shape, 3, seeded()).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    two = build(architecture, shape, 3, seeded()).state_dict()
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    other = build(architecture, shape, 3, seeded(1)).state_dict()
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", CURVATURES)
def test_every_curvature_of_a_study_covers_every_parameter_of_the_family(
    family: str, kind: str
) -> None:
    architecture = at_quantiles(family, 0.0)[0]
    shape = input_of(architecture)
    model = build(architecture, shape, 3, seeded())
    with torch.no_grad():  # off the zeros that Fixup starts with
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(1)))
    x = torch.randn(5, *shape, generator=seeded(2))
    y = torch.arange(5) % 3
    passed = curvature_pass(kind, model, x, y, Categorical(), batch_size=3, generator=seeded(3))
    named = dict(model.named_parameters())
    assert passed.curvature.names == tuple(named)
    assert passed.curvature.sizes == tuple(p.numel() for p in named.values())
    assert (passed.curvature.trace() > 0).all()
