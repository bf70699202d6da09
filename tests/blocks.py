"""The code blocks of a page in Markdown, and what to do with each."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```([\w-]*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
#: Titles of blocks that no test runs: what they need is not here.
ELSEWHERE = (
    "on a cluster",
    "on a machine with GPUs",
    "in a fresh clone",
    "in an environment of its own",
    "while the study runs",
)
LANGUAGES = ("", "text", "console", "bash", "python", "toml", "sql")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its title, its text, its line, and the paragraph before it."""

    language: str
    title: str
    text: str
    line: int
    before: str

    @property
    def is_elsewhere(self) -> bool:
        """Tell whether the block says that it cannot run here."""
        return self.title in ELSEWHERE

    @property
    def is_commands(self) -> bool:
        """Tell whether the block is commands and not output or a drawing."""
        return self.language in ("console", "bash") or (
            self.language in ("", "text") and self.text.lstrip().startswith("nas-evidence ")
        )

    @property
    def file(self) -> str | None:
        """The file that the block is, by its title or the words `name.py` just before it."""
        named = re.findall(r"`([\w-]+\.(?:py|toml))`", self.before)
        return self.title if re.fullmatch(r"[\w-]+\.\w+", self.title) else next(iter(named), None)

    def commands(self) -> list[list[str]]:
        """Return the commands as words, without prompts and comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = (shlex.split(line.removeprefix("$ "), comments=True) for line in lines)
        return [one for one in words if one]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    return [of_match(text, match) for match in _FENCE.finditer(text)]


def of_match(text: str, match: re.Match[str]) -> Block:
    indent, language, rest, body = match.groups()
    lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
    title = _TITLE.search(rest)
    before = text[: match.start()].rstrip().rpartition("\n\n")[2]
    return Block(
        language=language,
        title=title[1] if title else "",
        text="".join(lines),
        line=text[: match.start()].count("\n") + 1,
        before="" if "```" in before else before,
    )
