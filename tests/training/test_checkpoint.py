"""Checkpoints: an unreadable one costs a slice and not the trial, in whichever attempt it lies."""

from pathlib import Path

import pytest

from nas_evidence.training.checkpoint import load_checkpoint, save_checkpoint


def write(folder: Path, *epochs: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in epochs:
        save_checkpoint(folder, epoch, {"epoch": epoch})
    return folder


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_the_last_two_of_an_attempt_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "attempt-1", 2, 4, 6)
    assert sorted(p.name for p in folder.iterdir()) == ["epoch-000004.pt", "epoch-000006.pt"]
    assert load_checkpoint(folder) == {"epoch": 6}


def test_behind_a_torn_checkpoint_stands_the_newest_good_one_of_any_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "attempt-2", 2, 4)
    write(tmp_path / "attempt-9", 4, 6)
    newest = write(tmp_path / "attempt-10", 8)
    write(tmp_path / "elsewhere", 99)
    tear(newest / "epoch-000008.pt")
    assert load_checkpoint(newest) == {"epoch": 6}
    assert "attempt-10/epoch-000008.pt" in caplog.text
    for path in tmp_path.glob("attempt-9/*"):
        tear(path)
    assert load_checkpoint(newest) == {"epoch": 4}
    for path in tmp_path.glob("attempt-2/*"):
        tear(path)
    assert load_checkpoint(newest) is None


def test_a_folder_of_another_name_stands_alone(tmp_path: Path) -> None:
    write(tmp_path / "attempt-1", 8)
    assert load_checkpoint(write(tmp_path / "mine", 2)) == {"epoch": 2}
    assert load_checkpoint(tmp_path / "nowhere") is None


def test_of_two_attempts_at_one_epoch_the_later_is_taken(tmp_path: Path) -> None:
    """Slices before the first epoch and rounds of settling are all of one epoch."""
    for attempt in (9, 2, 10):
        save_checkpoint(tmp_path / f"attempt-{attempt}", 3, {"attempt": attempt})
    state = load_checkpoint(tmp_path / "attempt-2")
    assert state["attempt"] == 10
