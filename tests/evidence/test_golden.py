import pytest
from cases import GOLDEN, golden
from torch.testing import assert_close

#: The kinds that every golden file defines.
DEFINED = (
    "diag_ef", "diag_ggn", "kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn", "full_ef",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEFINED)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value_is_met(name: str, kind: str) -> None:
    c, definition = golden(name)
    found = c.estimate(kind, batch_size=64)
    assert_close(found.value, definition[kind], rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_golden_entry_is_tested(name: str) -> None:
    assert set(golden(name)[1]) == set(DEFINED)


@pytest.mark.parametrize("kind", ["diag_ggn_mc", "kfac_ggn_mc"])
@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_one_column_is_near_the_exact_value_of_a_trained_net(name: str, kind: str) -> None:
    # With draws of labels instead of signs, one draw is off by 50 nats and more here.
    c, definition = golden(name)
    found = c.estimate(kind, n_draws=8, batch_size=512)
    assert 0 < found.standard_error < 10
    assert abs(found.value - definition[kind.removesuffix("_mc")]) < 20
