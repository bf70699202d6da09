"""The tables of the page about campaigns of disturbed studies, from their committed results.

python benchmarks/campaigns.py
"""

import json
import sys
from pathlib import Path

from _common import filled

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from soak.harness import campaign  # noqa: E402  # below `tests`

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "experiments" / "fault-campaigns.md"
NAMES = ("damage", "faults", "merges", "thousands", "memory", "disks", "locales")


def written(page: str) -> str:
    """Return the page with its tables made anew."""
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES}
    return filled(page, {name: f"{campaign(name).table(one)}\n" for name, one in results.items()})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
