"""Several Monte-Carlo draws in one sweep: the same numbers as one sweep for each."""

import pytest
import torch
from cases import CASES, case
from messages import refused
from torch import nn

from nas_evidence.curvature import curvature_pass, curvature_passes, wide
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

KINDS = ("diag_ggn_mc", "kfac_ggn_mc")


class _TwoCalls(nn.Module):
    """A module that hooks cannot follow: its layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(torch.tanh(self.inner(x))))
        return out


def _words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3))


def _compare(
    kind: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor, likelihood: Likelihood
) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    one_by_one = generator()
    expected = [
        curvature_pass(kind, model, x, y, likelihood, batch_size=4, generator=one_by_one)
        for _ in range(3)
    ]
    together = curvature_passes(
        kind, model, x, y, likelihood, batch_size=4, n_draws=3, generator=generator()
    )
    assert len(together) == 3
    for found, alone in zip(together, expected, strict=True):
        assert found.log_likelihood == alone.log_likelihood
        for one, other in zip(found.curvature.spectra(), alone.curvature.spectra(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    first, second = (draw.curvature.trace() for draw in together[:2])
    assert not torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_draws_of_one_sweep_are_those_of_one_sweep_each(kind: str, name: str) -> None:
    c = case(name)
    _compare(kind, c.model, c.x, c.y, c.likelihood)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_share_the_counts_of_an_embedding(kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 7, (9, 5)), torch.randint(0, 3, (9,))
    _compare(kind, _words(), x, y, Categorical())


def test_draws_share_the_rows_of_a_wide_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "WIDE", 5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3))
    _compare("kfac_ggn_mc", model, torch.randn(9, 12), torch.arange(9) % 3, Categorical())


def test_draws_of_a_model_without_hooks_are_those_of_one_sweep_each() -> None:
    torch.manual_seed(0)
    _compare("diag_ggn_mc", _TwoCalls(), torch.randn(9, 4), torch.arange(9) % 3, Categorical())


def test_draws_call_the_model_as_often_as_one_does() -> None:
    c = case("conv_plain")
    calls: list[int] = []  # the draws of each call
    for n_draws in (1, 4):
        handle = c.model.register_forward_hook(lambda *_, n=n_draws: calls.append(n))
        curvature_passes(
            "kfac_ggn_mc", c.model, c.x, c.y, c.likelihood,
            batch_size=4, n_draws=n_draws, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        handle.remove()
    assert calls.count(4) == calls.count(1) > 0


def test_an_exact_kind_has_one_draw() -> None:
    c = case("mlp")
    with refused("n-draws-of-kind", 2, "'diag_ggn'"):
        curvature_passes("diag_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4, n_draws=2)


def test_the_evidence_is_the_mean_over_the_draws() -> None:
    c = case("mlp")
    random = torch.Generator().manual_seed(5)
    alone = [
        c.estimate("kfac_ggn_mc", prior_precision=1.0, generator=random, n_draws=1).value
        for _ in range(4)
    ]
    again = torch.Generator().manual_seed(5)
    found = c.estimate("kfac_ggn_mc", prior_precision=1.0, generator=again, n_draws=4)
    assert found.value == pytest.approx(sum(alone) / 4, rel=1e-13)
