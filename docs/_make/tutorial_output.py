"""Runs the tutorials and writes what their commands print into their pages and the README.

    python docs/_make/tutorial_output.py [FOLDER]

Each command of a console block of a tutorial runs as it stands, on a terminal of 110 columns, and
each block of Python, in their order in an empty folder; in a FOLDER that is given, finished trials
are not run again. What a command prints goes between the markers `<!-- output: COMMAND -->` and
`<!-- /output -->`; `<!-- output: COMMAND | rank 1 answer: -->` takes the lines that begin with one
of these words. Blocks with a title are not run.
"""

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial" / "first-study.md"
TABLE = ROOT / "docs" / "tutorial" / "your-table.md"
#: What is run, and where its output is written.
PAGES = {PAGE: (PAGE, ROOT / "README.md"), TABLE: (TABLE,)}
_BLOCKS = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"(<!-- output: (.+?)(?: \| (.+?))? -->\n).*?(<!-- /output -->)", re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the commands that the page runs, in their order."""
    blocks = _BLOCKS.findall(page)
    return [line for kind, text in blocks if kind == "console" for line in text.splitlines()]


def shown(page: str) -> dict[str, str]:
    """Return what the page says that its commands print, by command."""
    return {found[2]: found[0].split("```")[1] for found in _OUTPUT.finditer(page)}


def written(page: str, printed: dict[str, str]) -> str:
    """Return the page with what each command printed.

    Raises:
        KeyError: for the output of a command that the page does not run.
    """

    def anew(found: re.Match[str]) -> str:
        lines = printed[found[2]].splitlines()
        if found[3]:
            lines = [line for line in lines if {*line.split()[:1]} & {*found[3].split()}]
        return f"{found[1]}\n```text\n" + "\n".join(lines) + f"\n```\n\n{found[4]}"

    return _OUTPUT.sub(anew, page)


def fixed(text: str) -> set[str]:
    r"""Return the words of a command's output that no result changes.

    These are the names of lines ("answer:", "how sure?") and of columns.

    >>> sorted(fixed("rank  trial\n1     4\nanswer: Take mlp."))
    ['answer:', 'rank', 'trial']
    """
    found = set(re.findall(r"^[a-z][a-z ]{2,10}[:?](?= )", text, flags=re.MULTILINE))
    for line in text.splitlines():
        cells = re.split(r"\t| {2,}", line.strip())
        if len(cells) > 1 and not re.search(r"[\d:?]", line):
            found |= {word for cell in cells for word in cell.split()}
    return found


def run(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal.

    Raises:
        RuntimeError: if it fails; with what it said.
    """
    words = shlex.split(command, comments=True)
    program = Path(sys.executable).with_name(words[0])
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "110", "LINES": "40",
    }  # fmt: skip
    ours, theirs = pty.openpty()
    errors = folder / "errors.txt"
    with errors.open("wb") as said:
        process = subprocess.Popen(
            [program, *words[1:]], cwd=folder, env=environment, stdout=theirs, stderr=said
        )
    os.close(theirs)
    text = b"".join(_read(ours)).decode()
    if process.wait():
        raise RuntimeError(f"{command}: {errors.read_text(encoding='utf-8')}")
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").splitlines()]
    return "\n".join(lines).strip("\n").replace(f"{folder}{os.sep}", "")


def _read(terminal: int) -> Iterator[bytes]:
    try:
        while part := os.read(terminal, 1 << 16):
            yield part
    except OSError:  # the program has ended
        pass
    os.close(terminal)


def run_page(page: str, folder: Path) -> dict[str, str]:
    """Run the blocks of a tutorial in a folder; return what each command prints."""
    printed: dict[str, str] = {}
    for kind, text in _BLOCKS.findall(page):
        if kind == "console":
            printed |= {command: run(command, folder) for command in text.splitlines()}
        else:
            subprocess.run([sys.executable, "-c", text], cwd=folder, check=True)
    return printed


def main(place: str | None = None) -> None:
    """Run the pages in a folder, and write them anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(place or name).absolute()
        if not (folder / "search_spaces").exists():
            (folder / "search_spaces").symlink_to(ROOT / "search_spaces")
        for page, files in PAGES.items():
            printed = run_page(page.read_text(encoding="utf-8"), folder)
            for file in files:
                text = written(file.read_text(encoding="utf-8"), printed)
                file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
