"""File systems whose times are whole seconds: what was replaced at once is still seen as new."""

import os
import uuid
from pathlib import Path

import pytest
from fakes import study
from messages import refused

from nas_evidence.driver.mirror import Mirror
from nas_evidence.plumbing.files import write_whole
from nas_evidence.storage.store import Store
from nas_evidence.storage.study_folder import open_study


def coarse(folder: Path) -> None:
    """Give all files of a folder one time, as if all were written in the same second."""
    for path in folder.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))


def test_a_study_file_of_the_same_size_and_second_reaches_the_store(tmp_path: Path) -> None:
    spec, uri = study(n_trials=4), f"memory://{uuid.uuid4().hex}/s"
    for n_trials in (4, 5):
        mirror = Mirror(uri, tmp_path / str(n_trials))
        with mirror.held():
            coarse(mirror.folder)
            mirror._sent = mirror._stamps()  # as after a fetch in this second
            open_study(mirror.folder, spec.model_copy(update={"n_trials": n_trials}))
            coarse(mirror.folder)
    assert b"n_trials = 5\n" in (Store(uri).get("study.toml") or b"")


def test_whoever_looks_at_a_folder_sees_a_file_that_was_replaced_in_the_same_second(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    write_whole_in(there, b"n_trials = 4\n")
    reader = Mirror(f"file://{there}", tmp_path / "s")
    reader.pull()
    write_whole_in(there, b"n_trials = 5\n")
    reader.pull()
    assert (reader.folder / "study.toml").read_bytes() == b"n_trials = 5\n"


def write_whole_in(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    write_whole(folder / "study.toml", content)
    coarse(folder)


def test_a_folder_without_hard_links_is_refused_as_a_store_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with refused("store-without-hard-links", str(tmp_path)):
        Store(f"file://{tmp_path}").check()
