"""Every kind of file of a study is damaged once, and pairs of files by a seeded sample."""

from collections.abc import Iterator

import pytest
from damages import (
    DAMAGES,
    VERBS,
    WRONG,
    Cell,
    Made,
    kinds_of,
    outcome,
    outcome_of_pair,
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with short():
        yield Made(tmp_path_factory.mktemp("damages"))


def test_every_kind_of_file_of_a_study_is_damaged(made: Made) -> None:
    assert kinds_of(made.studies).keys() == {*KINDS}


@pytest.mark.parametrize("turn", range(len(KINDS)))
def test_no_verb_is_misled_by_a_damaged_file_or_changes_a_sound_one(made: Made, turn: int) -> None:
    """Damages and verbs take turns over the kinds; `make long` meets each kind by each verb."""
    name, file = kinds_of(made.studies)[KINDS[turn]]
    damage = DAMAGES[turn % 4 if made.older(name, file) is None else turn % 5]
    cell = Cell(name, file, damage, VERBS[turn % len(VERBS)])
    assert outcome(cell, made) not in WRONG, cell


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_verb_meets_each_kind_of_damaged_file(made: Made, kind: str, verb: str) -> None:
    name, file = kinds_of(made.studies)[kind]
    cell = Cell(name, file, DAMAGES[KINDS.index(kind) % 4], verb)
    assert outcome(cell, made) not in WRONG, cell


@pytest.mark.parametrize("number", range(8))
def test_after_two_damages_what_is_said_leads_to_the_sound_results(
    made: Made, number: int
) -> None:
    word, said = outcome_of_pair(number, made)
    assert word not in WRONG, said
