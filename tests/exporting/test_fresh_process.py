"""An export in a process of its own: what is imported to predict, and torch alone."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nas_evidence

ROOT = Path(nas_evidence.__file__).resolve().parents[1]
QUICK = {"plan.epochs": 2, "plan.settle": 0, "estimators": ["diag_ef"], "objective": "diag_ef"}


def table(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    size, town = rng.normal(50, 9, n), rng.choice(["rome", "oslo"], n)
    size[3] = np.nan
    pet = np.where(np.nan_to_num(size, nan=50) + 9 * (town == "oslo") > 54, "cat", "dog")
    return pd.DataFrame({"size": size, "town": town, "pet": pet})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    study = nas_evidence.search(
        table(), target="pet", n_trials=2, settings=QUICK, out=folder / "s", progress=False
    )
    study.export(folder / "one")
    study.export(folder / "two", top=2)
    table(9).to_csv(folder / "new.csv", index=False)
    study.predict(table(9)).to_frame().to_csv(folder / "expected.csv", index=False)
    np.save(folder / "x.npy", study.predictor().given(table(9)).inputs.round())
    return folder


def python(code: str, *options: str, cwd: Path) -> None:
    subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)], check=True, cwd=cwd, timeout=240
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
def test_predicting_from_an_export_needs_neither_ray_nor_optuna_nor_scikit_learn(
    place: Path, name: str
) -> None:
    python(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        heavy = ("ray", "optuna", "sklearn", "torchvision", "sqlalchemy", "fsspec", "matplotlib",
                 "plotly", "jinja2", "typer", "rich", "PIL")
        for one in heavy:
            sys.modules[one] = None  # importing it fails from now on
        from nas_evidence.exporting.predictor import Predictor
        found = Predictor.load({name!r}).predict("new.csv")
        assert found.probabilities.shape == (9, 2), found
        if {name!r} == "one":
            import numpy, pandas
            expected = pandas.read_csv("expected.csv")
            assert found.to_frame()["prediction"].tolist() == expected["prediction"].tolist()
            numpy.testing.assert_allclose(found.probabilities, expected.iloc[:, 1:], atol=1e-6)
        assert not [one for one in heavy if sys.modules.get(one)]
        """,
        cwd=place,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
def test_the_program_runs_with_torch_alone_on_any_type_of_number(place: Path, name: str) -> None:
    """`-I` ignores the environment and the current folder; the package cannot be imported."""
    python(
        f"""
        import sys
        sys.modules["nas_evidence"] = None
        import numpy, torch
        program = torch.export.load({str(place / name / "model.pt2")!r}).module()
        x = torch.from_numpy(numpy.load({str(place / "x.npy")!r})).abs()
        expected = program(x)
        assert expected.shape == (9, 2)
        for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8):
            found = program(x.to(dtype))
            assert torch.equal(found, expected), dtype
        assert torch.allclose(program(x[:1]), expected[:1], atol=1e-5)
        """,
        "-I",
        cwd=place,
    )
