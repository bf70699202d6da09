"""Studies that several acceptance tests look at: each is searched once in a process of tests.

Tests that share one are in one file, so that processes of tests do not search it twice. No test
changes such a study: it takes a copy.
"""

import numpy as np
import pandas as pd
import pytest
from acceptance.uses import SMALL, Arrays, Searched, command

import nas_evidence


def flowers(seed: int, n: int) -> pd.DataFrame:
    """Return a table of three classes that two numbers, a colour and gaps tell apart in part."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=n)
    colour = np.where(rng.random(n) < 0.7, kind, rng.integers(3, size=n))
    wide = rng.normal(size=n) + 1.5 * kind
    wide[rng.random(n) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "name": [f"{seed}-{i:04d}" for i in range(n)],
            "long": rng.normal(size=n) - kind,
            "wide": wide,
            "noise": rng.normal(size=n),
            "colour": np.array(["red", "blue", "green"])[colour],
            "kind": np.array(["x", "y", "z"])[kind],
        }
    )


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A table with classes, searched by the command line: numbers, categories, gaps, ids."""
    home = tmp_path_factory.mktemp("classes")
    flowers(0, 160).to_csv(home / "flowers.csv", index=False)
    flowers(1, 90).to_csv(home / "new.csv", index=False)
    command(
        "search", "flowers.csv", "--target", "kind", "--test-fraction", 0.3, "--trials", 6,
        *SMALL, "--out", "study", folder=home,
    )  # fmt: skip
    return Searched(home / "study", 6, home / "flowers.csv", home / "new.csv")


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """Arrays with a real target of zero mean, searched in Python; two networks, one linear."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(180, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.5 * np.sin(3 * x[:, 0]) + 0.3 * rng.normal(size=180)
    study = nas_evidence.search(
        x[:120],
        y[:120],
        families=["linear", "mlp"],
        n_trials=3,
        test_fraction=0.25,
        settings={"plan.epochs": 5, "plan.folds": 2},
        out=tmp_path_factory.mktemp("arrays") / "study",
        progress=False,
    )
    return Arrays(study, x[:120], y[:120], x[120:], y[120:])
