import pytest
import torch
from cases import GOLDEN, golden
from torch.testing import assert_close

from nas_evidence import estimate_evidence

#: The kinds that every golden file defines.
DEFINED = (
    "diag_ef", "diag_ggn", "kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn", "full_ef",
)  # fmt: skip


@pytest.mark.parametrize("kind", DEFINED)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value_is_met(shared, name: str, kind: str) -> None:
    c, definition = golden(shared, name)
    found = estimate_evidence(
        c.model,
        c.x,
        c.y,
        likelihood="categorical" if c.noise_std is None else "gaussian",
        curvature=kind,
        prior_precision=c.prior_precision,
        noise_std=c.noise_std,
        batch_size=64,
    )
    assert_close(found.value, definition[kind], rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_golden_entry_is_tested(shared, name: str) -> None:
    assert set(golden(shared, name)[1]) == set(DEFINED)


@pytest.mark.parametrize("kind", ["diag_ggn_mc", "kfac_ggn_mc"])
@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_one_column_is_near_the_exact_value_of_a_trained_net(shared, name: str, kind: str) -> None:
    # With draws of labels instead of signs, one draw is off by 50 nats and more here.
    c, definition = golden(shared, name)
    found = estimate_evidence(
        c.model,
        c.x,
        c.y,
        likelihood="categorical",
        curvature=kind,
        prior_precision=c.prior_precision,
        n_draws=8,
    )
    assert 0 < found.standard_error < 10
    assert abs(found.value - definition[kind.removesuffix("_mc")]) < 20


def test_float32_is_near_float64(shared) -> None:
    c, definition = golden(shared, "digits_cnn")
    precision = c.prior_precision
    for kind in DEFINED:
        found = estimate_evidence(
            c.model.float(),
            c.x.float(),
            c.y,
            likelihood="categorical",
            curvature=kind,
            prior_precision=precision,
        )
        assert_close(found.value, definition[kind], rtol=2e-5, atol=0)
        assert all(torch.isfinite(torch.tensor(t.value)) for t in found.terms)
