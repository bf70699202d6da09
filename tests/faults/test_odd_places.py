"""Places that mean something to a shell or in a URL: the study is where it was asked for."""

import logging
from pathlib import Path

import pytest
from commands import run, write_study
from faulty import call, study

from nas_evidence.api.studies import load
from nas_evidence.cli.search import _log_to
from nas_evidence.driver.mirror import working_copy
from nas_evidence.storage.study_folder import open_study


@pytest.mark.slow
def test_a_question_mark_in_the_path_of_a_study_puts_no_file_outside_of_it(tmp_path: Path) -> None:
    file = write_study(tmp_path / "in")
    place = tmp_path / "q?mode=memory#100%25 {a}"
    given = ["--executor", "inline", "--trials", "1", "--track", "optuna", "--out", place]
    run("search", file, *given, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", place.name]
    assert (place / "study.db").is_file()


@pytest.mark.slow
def test_a_study_at_a_uri_names_its_export_and_the_next_command_as_they_can_be_used(
    tmp_path: Path,
) -> None:
    file, place = write_study(tmp_path / "in"), f"file://{tmp_path}/my study"
    said = run("search", file, "--executor", "inline", "--out", place, folder=tmp_path).stdout
    assert f"export: {place}/export (trial " in said
    assert said.splitlines()[-1].startswith(f"nas-evidence resume '{place}' --set finalists=")
    assert (tmp_path / "my study" / "export" / "README.md").is_file()


def test_a_tilde_that_no_shell_has_expanded_is_the_home_for_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = working_copy("~/x")
    assert (store.folder, store.place) == (tmp_path / "x", str(tmp_path / "x"))
    open_study(tmp_path / "x", study(n_trials=3))
    assert load("~/x").folder == tmp_path / "x"


PLACES = ["ftp://user:tops3cret@host/x", "file://user:tops3cret@/x", "s3://b/x?password=tops3cret"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *(["search", "digits", "--out", place] for place in PLACES),
        *(["status", place] for place in PLACES),
        ["submit", "digits", "--address", "http://127.0.0.1:1", "--store", PLACES[0]],
        ["resume", PLACES[0], "--address", "http://127.0.0.1:1", "--name", "x"],
        ["search", "digits", "--address", "user:tops3cret@host:6379"],
        ["search", "digits", "--address", "ray://user:tops3cret@host:6379"],
        ["status", "--address", "user:tops3cret@host:8265", "--name", "x"],
        ["status", "--address", "http://user:tops3cret@host:8265", "--name", "x"],
        ["search", "digits", "--track", "mlflow:http://user:tops3cret@host"],
        ["search", "digits", "--track", "optuna:postgresql://user:tops3cret@host/x"],
    ],
    ids=" ".join,
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert "password" in err
    assert err.count("\n") == 1
    assert "tops3cret" not in err
    assert not list(tmp_path.rglob("*"))


def test_a_password_in_the_error_of_a_library_is_not_in_the_log(tmp_path: Path) -> None:
    _log_to(tmp_path / "driver.log")
    logger = logging.getLogger("nas_evidence")
    (handler,) = (one for one in logger.handlers if isinstance(one, logging.FileHandler))
    try:
        raise OSError("no answer from http://user:tops3cret@host/api")
    except OSError as error:
        logger.warning("tracker_stopped", exc_info=error)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert "http://user:***@host/api" in (tmp_path / "driver.log").read_text()
