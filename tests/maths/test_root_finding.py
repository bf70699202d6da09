"""Brent's method: the numbers of `scipy.optimize.brentq`, and its refusals."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq

from nas_evidence.maths.root_finding import root

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "convex": lambda x: math.exp(x) - 5,
    "nearly flat at its root": lambda x: (x - 0.3) ** 3 + 1e-3 * (x - 0.3),
    "steep then flat": lambda x: math.atan(40 * (x - 1)) + 0.1 * math.sin(x),
    "a jump": lambda x: -1.0 if x < 1 / 3 else 2.0,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_roots_are_those_of_scipy_bit_by_bit(name: str) -> None:
    function, generator = FUNCTIONS[name], np.random.default_rng(0)
    for xtol in (1e-13, 1e-9, 1e-3):
        for _ in range(20):
            low, high = -float(generator.uniform(0, 40)), float(generator.uniform(2, 40))
            assert root(function, low, high, xtol=xtol) == brentq(function, low, high, xtol=xtol)


def test_a_bound_may_be_the_root() -> None:
    assert root(lambda x: x, 0.0, 1.0, xtol=1e-9) == 0.0
    assert root(lambda x: x - 1, 0.0, 1.0, xtol=1e-9) == 1.0


@pytest.mark.parametrize(
    "function", [lambda x: x + 2, lambda _: math.nan], ids=["one sign", "not a number"]
)
def test_without_a_change_of_sign_there_is_no_root(function: Callable[[float], float]) -> None:
    with pytest.raises(ValueError, match="no root is found"):
        root(function, 0.0, 1.0, xtol=1e-9)
