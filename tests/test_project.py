"""What `pyproject.toml` declares."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_a_package_has_one_lowest_version_wherever_it_is_named() -> None:
    assert set(minimums(EXTRAS)) == {minimum(text)[0] for text in REQUIREMENTS}


def test_the_oldest_versions_are_written_as_constraints_of_pip() -> None:
    written = subprocess.run(
        [sys.executable, "-I", ROOT / "tests" / "oldest.py"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert written == [f"{name}=={version}" for name, version in minimums(["test"]).items()]
    assert {Requirement(line).name for line in written} >= {"torch", "numpy", "pytest"}


def test_the_package_knows_the_version_that_is_declared() -> None:
    assert PROJECT["version"] == __version__
