"""A secret in a URI is in no message, no log, no stored text, and no store is opened with it."""

import logging
import string
from pathlib import Path

import pytest
from faulty import call
from hypothesis import given
from hypothesis import strategies as st
from messages import listed, refused
from records import asked, record_with

from nas_evidence.api.trackers import check_track
from nas_evidence.cli.terminal import err, print_foreign
from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import LogFormatter, masked
from nas_evidence.plumbing.user_error import Mistake, UserError, no_such_file
from nas_evidence.spec.domains import refuse_password
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.toml import StudyError
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
#: Every message of the package, with a URI in the place of each value.
TEMPLATES = tuple(listed().values())


def filled(template: str, uri: str) -> str:
    for opening in ("{", "["):
        template = template.replace(opening, f" {uri} ")
    return f"{template} {uri!r}, ({uri}): {uri}"


def test_each_form_of_a_secret_is_masked_in_each_scheme() -> None:
    for form in FORMS:
        for scheme in SCHEMES:
            uri = form.replace("{scheme}", scheme).replace("{path}", "a/b").replace("{}", SECRET)
            assert SECRET not in masked(uri), uri
            assert "a/b" in masked(uri) or "@" in uri
            with refused("password-visible", "***"):
                refuse_password(uri, "the store ")


@pytest.mark.slow
@given(uri=URIS, template=st.sampled_from(TEMPLATES))
def test_no_message_repeats_the_secret_of_a_uri(uri: str, template: str) -> None:
    text = filled(template, uri)
    assert SECRET not in masked(text)
    assert masked(masked(text)) == masked(text)
    for error in (UserError(text), StudyStoppedError(text), StudyError([Mistake("x", text)])):
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
    record = logging.LogRecord("nas_evidence.x", 30, "x.py", 1, "at %s", (text,), None)
    assert SECRET not in LogFormatter().format(record)


@pytest.mark.slow
@given(uri=URIS)
def test_no_stored_cause_or_traceback_repeats_the_secret_of_a_uri(uri: str) -> None:
    for error in (OSError(f"403 for {uri}"), RuntimeError(f"'{uri}'"), StudyStoppedError(uri)):
        assert SECRET not in loss_of(error)[0]
    found = checked(Lost(0, 1, f"no answer of {uri}", LossKind.CRASH), asked())
    assert SECRET not in str(found)
    linear = asked()
    record = record_with(0, architecture=linear.architecture, seed=0, cause=uri, error=uri)
    assert SECRET not in str(checked(record, linear))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * 80_000_000, "a://b:" * 1_000_000, "?key=" * 1_000_000])
def test_an_endless_text_of_an_error_is_cut_where_it_is_stored_and_shown(text: str) -> None:
    assert len(str(UserError(text))) < 50_000
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
    import nas_evidence

    package = Path(nas_evidence.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("logging.Formatter") == (path.name == "masking.py"), path
        if "FileHandler(" in text:
            assert "LogFormatter()" in text
