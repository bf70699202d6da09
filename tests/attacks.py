"""The page of attacks, from `tests/attacks.toml`: before, now, and the tests that hold each row.

python tests/attacks.py    writes docs/experiments/attacks.md
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTED, PAGE = Path(__file__).with_suffix(".toml"), ROOT / "docs" / "experiments" / "attacks.md"
_HEAD = """\
# What happens to a study that others attack, damage or clean away?

**Verdict.** Each class of attacks that once did harm is now held by tests. The classes that
are new since then: hosts over a folder that shows news late, exports of another study, kills
inside merges, want of memory, coarse times, names that differ in case, and other locales.

**Rule written before.** Nothing outside the study is changed, no secret leaves, nothing finished
is lost, no answer is silently wrong. Whatever is not as it was written is named.

About 280 disturbances were made by hand on one commit (Python 3.11, CPU, two cores), where no
campaign looked. "Right" counts those that did no harm then. "-" stands for classes that came
later, or had one case. The last column names what holds the row now: `soak/` is a
[campaign](fault-campaigns.md), the rest are tests below `tests/`.

"""


def rows() -> list[dict[str, object]]:
    """Return the rows: attack, how many were tried and right, before, now, tests."""
    return list(tomllib.loads(LISTED.read_text("utf-8"))["attack"])


def page() -> str:
    """Return the page, as Markdown."""
    lines = ["| attack | tried | right then | what went wrong then | now | held by |"]
    lines.append("|---|---:|---:|---|---|---|")
    for row in rows():
        cells = [row[name] for name in ("attack", "tried", "right", "before", "now")]
        tests = "<br>".join(f"`{test}`" for test in row["tests"])  # type: ignore[attr-defined]
        lines.append(f"| {' | '.join(map(str, cells))} | {tests} |")
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
