"""What `pyproject.toml` declares, and which tests `make test` takes of a matrix."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import pairs, sample_of
from oldest import PROJECT, minimum, minimums
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nas_evidence.plumbing.version import __version__

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^(.+)==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
}


@pytest.mark.parametrize("text", sorted(set(REQUIREMENTS)))
def test_a_requirement_has_a_lowest_version_and_allows_it_and_the_exact_one(text: str) -> None:
    name, version = minimum(text)
    requirement = Requirement(text)
    assert name == requirement.name
    assert requirement.specifier.contains(version, prereleases=True)
    pin = PINS.get(canonicalize_name(name), version)
    assert requirement.specifier.contains(pin, prereleases=True), pin


@pytest.mark.parametrize(
    "text", ["torch", "torch<3", "torch==2.11", "torch>2.11", "torch>=2.11,!=2.12", "torch~=2.11"]
)
def test_a_requirement_without_a_lowest_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' does not read name>=version"):
        minimum(text)


def test_a_package_has_one_lowest_version_wherever_it_is_named() -> None:
    assert set(minimums(EXTRAS)) == {minimum(text)[0] for text in REQUIREMENTS}


def test_the_oldest_versions_are_written_as_constraints_of_pip() -> None:
    written = subprocess.run(
        [sys.executable, "-I", ROOT / "tests" / "oldest.py"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert written == [f"{name}=={version}" for name, version in minimums(["test"]).items()]
    assert {Requirement(line).name for line in written} >= {"torch", "numpy", "pytest"}


def test_make_oldest_takes_the_oldest_python_that_is_allowed() -> None:
    (python,) = re.findall(
        r"^OLDEST_PYTHON \?= python(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert PROJECT["requires-python"].startswith(f">={python},")


def test_the_package_knows_the_version_that_is_declared() -> None:
    assert PROJECT["version"] == __version__


@pytest.mark.parametrize("sizes", [(3,), (4, 2), (2, 3, 4), (5, 5)])
def test_a_sample_of_crossed_parameters_has_each_value_in_as_few_cases_as_can_be(
    sizes: tuple[int, ...],
) -> None:
    cases = [dict(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    found = [cases[i] for i in sample_of(cases)]
    for k, size in enumerate(sizes):
        assert {case[k] for case in found} == {*range(size)}
    assert len(found) == max(sizes)


def test_a_sample_of_pairs_has_each_value_of_both() -> None:
    found = [one.values for one in pairs("abc", "xy") if not one.marks]
    assert {a for a, _ in found} == {*"abc"}
    assert {b for _, b in found} == {*"xy"}
    assert len(found) == 3
