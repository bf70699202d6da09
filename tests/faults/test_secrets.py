"""A secret is in no message, no log and no stored text, and no search opens a port."""

import logging
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from commands import SCRIPT, environment, forked, write_study
from faulty import call
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from records import asked, record_with

import nas_evidence
from nas_evidence.api.trackers import check_track
from nas_evidence.cli.main import app
from nas_evidence.cli.search import _log_to
from nas_evidence.cli.terminal import err, print_foreign
from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import LogFormatter, masked
from nas_evidence.plumbing.user_error import Mistake, UserError, no_such_file
from nas_evidence.spec.domains import refuse_password
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.toml import StudyError, load_study
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.store import Store
from nas_evidence.workers.executor import Lost, checked, loss_of

SECRET = "tops3cret"
#: Where a URI may hold a secret; `{}` stands for it.
FORMS = (
    "{scheme}://me:{}@host/{path}",
    "{scheme}://me%3A{}@host/{path}",
    "{scheme}://host/{path}?sig={}",
    "{scheme}://host/{path}?sv=2024-11-04&sr=c&sig={}&se=2030",
    "{scheme}://host/{path}?key={}",
    "{scheme}://host/{path}?x=1&api_key={}",
    "{scheme}://host/{path}?X-Amz-Signature={}",
    "{scheme}://host/{path}?X-Amz-Credential={}&b",
    "{scheme}://host/{path}?AWSAccessKeyId={}",
    "{scheme}://host/{path}?password={}",
    "{scheme}://host/{path}?auth_token={}",
    "{scheme}://host/{path}#{}",
    "{scheme}://host/{path}?a=1#access={}",
)
SCHEMES = ("s3", "gs", "abfs", "https", "http", "ftp", "postgresql", "ray", "mlflow:http")
NAMES = st.text(string.ascii_letters + string.digits + "._~-/", min_size=1, max_size=12)
URIS = st.builds(
    lambda form, scheme, path: form.replace("{scheme}", scheme).replace("{path}", path),
    st.sampled_from(FORMS),
    st.sampled_from(SCHEMES),
    NAMES,
).map(lambda form: form.replace("{}", SECRET))
#: How messages hold what they name; `{}` stands for it.
FRAMES = st.builds(
    "{}{}".format, st.text(string.ascii_letters + " ;,.(", max_size=8),
    st.sampled_from(["{}", " {!r}", "`{}`", "({})", "[{}]", '"{}"', " {}.", " {}:", "={},"]),
)  # fmt: skip


def test_each_form_of_a_secret_is_masked_in_each_scheme() -> None:
    for form in FORMS:
        for scheme in SCHEMES:
            uri = form.replace("{scheme}", scheme).replace("{path}", "a/b").replace("{}", SECRET)
            assert SECRET not in masked(uri), uri
            assert "a/b" in masked(uri) or "@" in uri
            with refused("password-visible", "***"):
                refuse_password(uri, "the store ")


@pytest.mark.slow
@given(uri=URIS, frames=st.lists(FRAMES, min_size=1, max_size=4))
def test_no_message_repeats_the_secret_of_a_uri(uri: str, frames: list[str]) -> None:
    text = " ".join(frame.format(uri) for frame in frames)
    assert SECRET not in masked(text)
    assert masked(masked(text)) == masked(text)
    for error in (
        UserError("x", text),
        StudyStoppedError("x", text),
        StudyError([Mistake("x", text)]),
    ):
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
    record = logging.LogRecord("nas_evidence.x", 30, "x.py", 1, "at %s", (text,), None)
    assert SECRET not in LogFormatter().format(record)


@pytest.mark.slow
@given(uri=URIS)
def test_no_stored_cause_or_traceback_repeats_the_secret_of_a_uri(uri: str) -> None:
    for error in (
        OSError(f"403 for {uri}"),
        RuntimeError(f"'{uri}'"),
        StudyStoppedError("x", uri),
    ):
        assert SECRET not in loss_of(error)[0]
    found = checked(Lost(0, 1, f"no answer of {uri}", LossKind.CRASH), asked())
    assert SECRET not in str(found)
    linear = asked()
    record = record_with(0, architecture=linear.architecture, seed=0, cause=uri, error=uri)
    assert SECRET not in str(checked(record, linear))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * 80_000_000, "a://b:" * 1_000_000, "?key=" * 1_000_000])
def test_an_endless_text_of_an_error_is_cut_where_it_is_stored_and_shown(text: str) -> None:
    assert len(str(UserError("x", text))) < 50_000
    assert len(loss_of(RuntimeError(text))[0]) < 5_000
    record = logging.LogRecord("nas_evidence.x", 30, "x.py", 1, "at %s", (text,), None)
    assert len(LogFormatter().format(record)) < 50_000
    linear = asked()
    found = record_with(0, architecture=linear.architecture, seed=0, cause=text, error=text)
    stored = checked(found, linear)
    assert len(str(stored)) < 60_000


def test_of_a_text_that_is_cut_begin_and_end_stay() -> None:
    found = cut("begin " + "x" * 10**6 + " end", most=100)
    assert found.startswith("begin ")
    assert found.endswith(" end")
    assert len(found) < 200


def test_a_secret_is_not_cut_out_of_the_uri_that_shows_it() -> None:
    for form in FORMS:
        uri = form.replace("{scheme}", "https").replace("{path}", "a").replace("{}", SECRET)
        for before in range(len(uri) + 1):  # where the cut falls in the first URI, and in the last
            text = f"{'x' * (49 - before)} {uri} {'y ' * 200}{uri} {'z' * before}"
            for most in (100, 100 + before, 2 * len(uri)):
                assert SECRET not in masked(cut(text, most=most))


@pytest.mark.parametrize(
    "text",
    [
        "file:///home/me/a#b",
        "runs/q#1",
        "s3://bucket/a/b",
        "postgresql://me@host/d?sslkey=/home/me/k.pem&connect_timeout=3",
        "sorted(rows, key=len), see #12",
        "gs://b/x?generation=7",
        "sqlite:////tmp/a#b.db",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert masked(text) == text
    refuse_password(text, "the store ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [f"s3://b/x?sig={SECRET}", f"s3://b/x#{SECRET}", f"https://h/my runs#a {SECRET}"]
)
def test_no_door_opens_a_uri_with_a_secret_or_repeats_it(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused("password-visible", "***") as caught:
        Store(place)
    assert SECRET not in str(caught.value)
    with pytest.raises(UserError) as caught:
        check_track([f"mlflow:{place.replace('s3', 'http')}"])
    assert SECRET not in str(caught.value)
    assert SECRET not in str(no_such_file(f"https://h/x?sig={SECRET}"))
    for verb in ("status", "verify", "report", "resume"):
        code, out, said = call(capsys, verb, place)
        assert (code, out) == (2, "")
        assert SECRET not in said


def test_the_terminal_repeats_no_secret_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    err.print(f"note: no answer from https://h/c?sig={SECRET}")
    print_foreign(f"GET https://h/c?sig={SECRET}#{SECRET}\n")
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert said.err.count("***") == 1


def test_every_log_of_the_package_has_the_formatter_that_masks() -> None:

    package = Path(nas_evidence.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("logging.Formatter") == (path.name == "masking.py"), path
        if "FileHandler(" in text:
            assert "LogFormatter()" in text


# --- passwords and tokens


PASSWORDS = (
    "postgresql://u:sec ret@h/d", "postgresql://u:se'cret@h/d", "postgresql://h/d?passwd=secret",
    "postgresql://u%3Asecret@h/d", "host=h password=secret", "postgresql://u:secret@h/d",
    "postgresql://h/d?PWD=secret", "postgresql://h/d?auth_token=secret",
)  # fmt: skip


@pytest.mark.parametrize("url", PASSWORDS)
def test_no_password_is_accepted_in_the_url_of_a_tracker_or_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="PGPASSWORD") as error:
        check_track([f"optuna:{url}"])
    assert "secret" not in str(error.value)
    assert "sec ret" not in str(error.value)
    assert "secret" not in masked(f"error at {url}")


def test_a_password_in_a_table_that_is_not_known_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('name = "x"\n[database]\nurl = "postgresql://u:secret@h/d"\n')
    with pytest.raises(StudyError, match="unknown key 'database'") as error:
        load_study(tmp_path / "s.toml")
    assert "secret" not in str(error.value)


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


def test_no_option_takes_a_token_or_skips_the_check_of_a_certificate() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    names = {name for one in commands.values() for option in one.params for name in option.opts}
    assert "--allow-code" in names
    words = ("token", "password", "insecure", "cert", "tls", "ssl")
    assert [name for name in names if any(word in name for word in words)] == []


TOKEN = "never-shown-0123456789abcdef"


@pytest.mark.slow
def test_the_token_of_a_cluster_is_in_no_file_and_no_output(tmp_path: Path) -> None:
    path, given = write_study(tmp_path), environment(RAY_AUTH_TOKEN=TOKEN, RAY_AUTH_MODE="token")
    asked = ("search", path, "--out", "s", "--executor", "inline")
    verbs = (asked, ("status", "s"), ("verify", "s"))
    for verb in verbs:
        code, out, err = forked([str(SCRIPT), *map(str, verb)], tmp_path, given)
        assert code == 0, err
        assert TOKEN not in out + err
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 20
    assert [one for one in files if TOKEN.encode() in one.read_bytes()] == []


HOOK = """
import sys
def hook(event, arguments):
    if event == "socket.bind" and isinstance(arguments[1], tuple):
        raise RuntimeError(f"binds {arguments[1]}")
sys.addaudithook(hook)
from nas_evidence.__main__ import main
main()
"""


@pytest.mark.slow
def test_a_search_on_one_machine_opens_no_port(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    for verb in (("search", path, "--out", "s", "--executor", "inline"), ("report", "s")):
        done = subprocess.run(
            [sys.executable, "-c", HOOK, *map(str, verb)],
            cwd=tmp_path, env=os.environ | environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    binding = "import socket; socket.socket().bind(('127.0.0.1', 0))"
    hooked = [sys.executable, "-c", HOOK.replace("from", f"{binding}\nfrom")]
    found = subprocess.run(hooked, env=environment(), capture_output=True, text=True)
    assert "binds ('127.0.0.1', 0)" in found.stderr
