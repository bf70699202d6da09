"""An export in a process of its own: what is imported to predict, and torch alone.

A process that can import only the packages that the guide names, and what they require, stands for
a fresh environment.
"""

import re
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement

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
    study.export(folder / "one-program", pt2=True)
    study.export(folder / "two-program", top=2, pt2=True)
    table(9).to_csv(folder / "new.csv", index=False)
    table(9).to_parquet(folder / "new.parquet")
    study.predict(table(9)).to_frame().to_csv(folder / "expected.csv", index=False)
    np.save(folder / "x.npy", study.predictor().given(table(9)).inputs.round())
    return folder


def python(code: str, *options: str, cwd: Path) -> None:
    subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)], check=True, cwd=cwd, timeout=240
    )


def named_by_the_guide() -> list[str]:
    guide = (ROOT / "docs" / "how-to" / "predict-and-export.md").read_text(encoding="utf-8")
    return re.findall(r"^pip install (torch .*)$", guide, re.MULTILINE)[0].split()


def required(names: list[str]) -> set[str]:
    """Distributions, with all that they require here; names as pip compares them."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of a build for other hardware
            continue
        asked = (Requirement(line) for line in lines)
        waiting += [r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def all_but(names: set[str]) -> list[str]:
    """The modules that belong to other distributions only."""
    owners = metadata.packages_distributions()
    plain = {m: {re.sub(r"[-_.]+", "-", d).lower() for d in found} for m, found in owners.items()}
    return sorted(module for module, found in plain.items() if not found & names)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
def test_predicting_from_an_export_needs_only_the_packages_that_the_guide_names(
    place: Path, name: str
) -> None:
    blocked = all_but(required(named_by_the_guide()))
    heavy = {
        "ray",
        "optuna",
        "sklearn",
        "torchvision",
        "matplotlib",
        "typer",
        "tomli_w",
    }
    assert heavy <= set(blocked)
    (place / "blocked.txt").write_text("\n".join(blocked))
    python(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        for one in Path("blocked.txt").read_text().split():
            if one != "nas_evidence":
                sys.modules[one] = None  # importing it fails from now on
        import nas_evidence
        found = nas_evidence.Predictor.load({name!r}).predict("new.csv")
        assert found.probabilities.shape == (9, 2), found
        if {name!r} == "one":
            import numpy, pandas
            expected = pandas.read_csv("expected.csv")
            assert found.to_frame()["prediction"].tolist() == expected["prediction"].tolist()
            numpy.testing.assert_allclose(found.probabilities, expected.iloc[:, 1:], atol=1e-6)
        load = nas_evidence.Predictor.load
        assert load({name!r}).predict("new.parquet").to_frame().equals(found.to_frame())
        try:
            load({name!r}).predict("none.csv")
        except ValueError as error:
            assert "no file" in str(error)
        else:
            raise AssertionError
        sys.argv = ["nas-evidence", "predict", {name!r}, "new.csv"]
        from nas_evidence.__main__ import main
        try:
            main()
        except SystemExit as end:
            assert end.code == 1
        """,
        cwd=place,
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
def test_the_program_runs_with_torch_alone_on_any_type_of_number(place: Path, name: str) -> None:
    """`-I` ignores the environment and the current folder; the package cannot be imported."""
    python(
        f"""
        import sys
        sys.modules["nas_evidence"] = None
        import numpy, torch
        program = torch.export.load({str(place / f"{name}-program" / "model.pt2")!r}).module()
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
