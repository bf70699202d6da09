"""Make the table of `docs/reference/estimators.md` from a whole audit.

nas-evidence audit --json > audit.json
python benchmarks/audit_table.py audit.json

A cell is value minus log evidence, ± the standard error where the value has one.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "estimators.md"
PROBLEMS = ("linear-3", "linear-12", "linear-63", "logistic-2", "softmax-15", "tanh-22")
_TIMED = PROBLEMS[-1]
_FIRST = "| | `linear-3` |"


def table(rows: list[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table, from the rows of `audit --json`."""
    found = {(row["estimator"], row["problem"]): row for row in rows}
    truths = [_number(found["full_ggn", problem]["truth"], "") for problem in PROBLEMS]
    lines = [
        "| | " + " | ".join(f"`{problem}`" for problem in PROBLEMS) + " | seconds |",
        "|---" * (len(PROBLEMS) + 2) + "|",
        "| log evidence | " + " | ".join(truths) + " | |",
    ]
    for name in dict.fromkeys(row["estimator"] for row in rows if row["problem"] == "softmax-15"):
        here = [found.get((name, problem)) for problem in PROBLEMS]
        timed = found.get((name, _TIMED)) or found[name, "linear-3"]
        cells = [_cell(row) for row in here]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {timed['seconds']:.2g} |")
    return lines


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    spread = row["spread"]
    error = f" ± {_number(spread, '')}" if spread and spread >= 0.005 else ""
    return _number(row["bias"], "+") + error


def _number(value: float, sign: str) -> str:
    text = f"{value:{sign}.2f}".replace("-", "−")
    return "0" if float(f"{value:.2f}") == 0 else text


def main() -> None:
    """Replace the table in the page."""
    rows = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(_FIRST))
    end = next(k for k in range(start, len(lines)) if not lines[k].startswith("|"))
    lines[start:end] = table(rows)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
