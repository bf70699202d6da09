"""The published training curves, ranked by the functions that a study uses."""

import numpy as np
import pytest
import reproduced  # noqa: F401, before the scripts

from nas_evidence_reproduce._published import script, stored_results

FOUND = stored_results()["speedy"]["numbers"]


def test_speedy_has_the_correlations_counted_from_the_logs() -> None:
    expected = {
        "SOTL": (0.78, 0.87, 0.91, 0.94, 0.96),
        "SOTL-E": (0.78, 0.90, 0.93, 0.97, 0.98),
        "validation loss": (0.79, 0.92, 0.95, 0.99, 1.00),
    }
    assert FOUND["n"] == 341
    for name, rho in expected.items():
        np.testing.assert_allclose(FOUND["rho"][name], rho, atol=0.0051)
    assert FOUND["rho_parameters"] == pytest.approx(-0.10, abs=0.005)


def test_halving_by_training_speed_loses_less_than_by_chance() -> None:
    halving = FOUND["halving"]
    for name in ("SOTL", "SOTL-E"):
        assert halving[name]["regret"] < halving["chance"]["regret"] / 10
        assert halving[name]["saved"] > 0.7


def test_the_script_names_its_data() -> None:
    assert script("speedy").NEEDS == ("nas-bench-nlp",)
