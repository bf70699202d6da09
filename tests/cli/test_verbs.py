"""The verbs are told without being imported."""

from pathlib import Path
from typing import Any

import pytest
import typer.main
from commands import SCRIPT, environment, forked

from nas_evidence.cli.main import app
from nas_evidence.cli.verbs import VERBS


def test_the_table_has_the_first_paragraph_of_each_docstring_and_its_command_the_group() -> None:
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, verb in VERBS.items():
        paragraph = commands[name].help.partition("\n\n")[0]
        assert verb.text == " ".join(paragraph.split())
        assert verb.group == commands[name].rich_help_panel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "at", "words"),
    [
        ("nas-evidence st", 1, ["status"]),
        ("nas-evidence re", 1, ["resume", "refit", "report", "repair", "reproduce"]),
        ("nas-evidence status --fol", 2, ["--follow"]),
        ("nas-evidence nowhere --fol", 2, []),
    ],
)
def test_the_shell_completes_verbs_and_their_options(
    line: str, at: int, words: list[str], tmp_path: Path
) -> None:
    asked = {"_NAS_EVIDENCE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    code, said, _ = forked([str(SCRIPT)], tmp_path, environment(**asked))
    assert (code, said.split()) == (0, words)
