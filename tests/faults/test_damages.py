"""A sample of `soak/damage.py`: every kind of file of a study, damaged, meets every verb."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.damage import (
    DAMAGES,
    VERBS,
    WRONG,
    Cell,
    Met,
    cells_of,
    copies,
    kind_of,
    made_studies,
    meet,
    outcome,
    short,
)

pytestmark = pytest.mark.slow

KINDS = (
    "checkpoints/N/attempt-N/epoch-N.pt", "curves/N-aN.parquet", "data/train.parquet",
    "evidence/N-aN.parquet", "export/README.md", "export/SHA256SUMS", "export/architecture.toml",
    "export/evidence.json", "export/meaning.json", "export/model.safetensors",
    "export/posterior.safetensors", "how_read.json", "lock", "logs/conditions-HASH.toml",
    "logs/events/N.jsonl", "models/N.safetensors", "report/comparison.json", "study.toml",
    "terms/N-aN.parquet", "trials/N-aN.parquet",
)  # fmt: skip


class Studies:
    """Two studies, what each verb makes of them undamaged, and the cells."""

    def __init__(self, home: Path) -> None:
        self.made = made_studies(home)
        self.sound: dict[str, Met] = {
            f"{name} {verb}": meet(verb, of) for name, verb, of in copies(self.made)
        }
        self.cells = cells_of(self.made)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studies]:
    with short():
        yield Studies(tmp_path_factory.mktemp("damages"))


def cell_of(cells: list[Cell], kind: str, verb: str) -> Cell:
    """Return a cell of a kind of file and a verb; over these the damages take turns."""
    turn = KINDS.index(kind) + VERBS.index(verb)
    own = [cell for cell in cells if kind_of(cell.file) == kind and cell.verb == verb]
    order = [*DAMAGES[turn % len(DAMAGES) :], *DAMAGES]
    return next(cell for damage in order for cell in own if cell.damage == damage)


@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_misled_by_a_damaged_file_or_changes_a_sound_one(
    studies: Studies, kind: str, verb: str
) -> None:
    cell = cell_of(studies.cells, kind, verb)
    assert outcome(cell, studies.made, studies.sound) not in WRONG, cell


def test_every_kind_of_file_of_a_study_is_damaged(studies: Studies) -> None:
    assert {kind_of(cell.file) for cell in studies.cells} == {*KINDS}
