"""The ceiling of the tree: `.ci/weight` says what is above it."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

WEIGHT = Path(__file__).resolve().parents[1] / ".ci" / "weight"


@pytest.fixture
def weigh(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """A tree of its own with one room of one module; the fixture rewrites it and weighs."""
    if shutil.which("python3.11") is None:
        pytest.skip("python3.11 is not installed here")
    (tmp_path / ".ci").mkdir()
    shutil.copy(WEIGHT, tmp_path / ".ci")
    (tmp_path / "nas_evidence" / "maths").mkdir(parents=True)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)

    def weighed(module: str, *options: str, building: str = "") -> tuple[int, str]:
        (tmp_path / "nas_evidence" / "maths" / "one.py").write_text(module)
        subprocess.run([*git, "add", "."], check=True)
        ceilings = tmp_path / ".ci" / "ceilings.toml"
        if building:
            named = ceilings.read_text().replace("rooms = []", f'rooms = ["{building}"]')
            ceilings.write_text(named)
        done = subprocess.run(
            [tmp_path / ".ci" / "weight", *options], capture_output=True, text=True
        )
        return done.returncode, done.stdout

    return weighed


def test_a_room_may_fall_and_not_rise_but_for_docstrings_comments_and_layout(
    weigh: Callable[..., tuple[int, str]],
) -> None:
    assert weigh("x = 1\ny = 2\n", "--lower")[0] == 0
    assert weigh('"""More."""\n\nx = (  # long\n    1\n)\n')[0] == 0
    assert weigh("x = 1\n")[0] == 0
    code, said = weigh("x = 1\ny = 2\nz = 3\n")
    assert (code, "nas_evidence/maths  ABOVE [7, 0]" in said) == (1, True)
    assert weigh("x = 1\nz = 3\n", building="nas_evidence/maths")[0] == 0
    assert weigh("x = 1\ny = 2\nz = 3\n", "--lower")[0] == 0
    assert weigh("x = 1\ny = 2\nz = 3\n")[0] == 1
