"""Jobs of a study: ids, what travels, what is said when something is wrong. No cluster here."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import study
from job_server import job_server
from messages import refused

import nas_evidence.jobs.code_package as code_package
from nas_evidence.api.control import there
from nas_evidence.jobs.auth_token import read_token, use_token_if_there_is_one
from nas_evidence.jobs.client import RayClient
from nas_evidence.jobs.code_package import PACKAGE, package_to_send, write_package
from nas_evidence.jobs.job import STORE, STUDY, IdTakenError, Job, NotReadyError, UnreachableError
from nas_evidence.jobs.jobs import (
    PATIENCE,
    STOP_SECONDS,
    ask_there,
    follow,
    jobs_of,
    latest_job,
    namespace_of,
    submit_study,
)
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.spec.toml import load_study

TOKEN = "never-shown-0123456789"
ARGUMENTS = ["search", "study.toml", "--out", "/s", "--address", "auto"]


class FakeClient:
    """A job server in memory: every submitted job waits until `state` says otherwise."""

    def __init__(self) -> None:
        self.table: dict[str, list] = {}  # id -> metadata, state, message
        self.text = ""
        self.submitted: list[dict[str, object]] = []
        self.silent = 0
        self.refusals: list[Exception] = []

    def jobs(self) -> list[Job]:
        if self.silent:
            self.silent -= 1
            raise UnreachableError("x", "no answer")
        return [
            Job(name, facts.get(STUDY, ""), facts.get(STORE, ""), *rest)
            for name, (facts, *rest) in self.table.items()
        ]

    def submit(self, command: str, *, job_id: str, **how: object) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        if job_id in self.table:
            raise IdTakenError("job-id-taken", job_id)
        self.table[job_id] = [how["metadata"], "RUNNING", ""]
        self.submitted.append({"command": command, "job_id": job_id, **how})

    def stop(self, job_id: str) -> None:
        self.table[job_id][1] = "STOPPED"

    def logs(self, job_id: str) -> str:
        return self.text

    def tail(self, job_id: str) -> Iterator[str]:
        yield self.text


def put(client: FakeClient, name: str = "demo", store: str = "/s") -> tuple[Job, bool]:
    how = {"arguments": ARGUMENTS, "folder": None, "sleep": lambda seconds: None}
    return submit_study(client, name, store, **how)[:2]


# --- ids


def test_a_living_job_is_found_again_and_a_dead_one_is_followed_by_the_next_number() -> None:
    client = FakeClient()
    job, is_new = put(client)
    assert (job.id, is_new) == ("nas-demo-1", True)
    assert put(client) == (jobs_of(client, "demo")[0], False)
    client.stop("nas-demo-1")
    assert put(client)[0].id == "nas-demo-2"
    client.table["nas-demo-2"][1] = "FAILED"
    client.table["nas-demo-10"] = [client.table["nas-demo-2"][0], "SUCCEEDED", ""]
    assert put(client)[0].id == "nas-demo-11"  # by number, not by letters


def test_names_that_begin_alike_are_not_mixed_up() -> None:
    client = FakeClient()
    put(client, "demo")
    put(client, "demo-2")
    put(client, "demo.x")
    assert [job.id for job in jobs_of(client, "demo")] == ["nas-demo-1"]


def test_another_store_is_refused_with_the_cause_and_the_same_one_goes_on() -> None:
    """The name stays taken when a job died before it could say a word."""
    client = FakeClient()
    put(client, store="/a")
    client.table["nas-demo-1"][1:] = "FAILED", "Unexpected error:\nthe supervisor did not start"
    with refused("name-in-use", "FAILED: the supervisor did not start") as error:
        put(client, store="/b")
    assert "known to the cluster with the store /a" in str(error.value)
    assert len(client.submitted) == 1
    job, is_new, before = submit_study(client, "demo", "/a", arguments=ARGUMENTS, folder=None)
    assert (job.id, is_new) == ("nas-demo-2", True)
    assert (before.id, before.cause) == ("nas-demo-1", "the supervisor did not start")


def test_a_living_job_with_another_store_is_refused() -> None:
    client = FakeClient()
    put(client)
    with refused("name-in-use", "/s", "/t"):
        put(client, store="/t")


def test_of_two_that_submit_at_once_one_finds_the_job_of_the_other() -> None:
    client = FakeClient()
    rival = client.submit

    def late(command: str, **how: object) -> None:
        client.submit = rival  # type: ignore[method-assign]
        rival("other", **how)
        rival(command, **how)

    client.submit = late  # type: ignore[method-assign]
    assert put(client)[1] is False
    assert len(client.submitted) == 1


def test_a_cluster_that_has_just_started_is_asked_again_for_a_minute() -> None:
    client = FakeClient()
    client.refusals = [NotReadyError("x", "not yet")] * 3
    assert put(client)[1]
    client.refusals = [NotReadyError("x", "not yet")] * 100
    client.stop("nas-demo-1")
    with pytest.raises(UnreachableError, match="not yet"):
        put(client)
    assert len(client.refusals) == 100 - PATIENCE - 1


def test_the_job_creates_or_resumes_and_has_time_to_stop() -> None:
    client = FakeClient()
    submit_study(client, "a study", "/s x", arguments=["resume", "/s x"], folder="here")
    (job,) = client.submitted
    assert job["job_id"] == "nas-a-study-1"
    assert job["command"] == "exec python -m nas_evidence resume '/s x'"
    assert job["environment"] == {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    client = FakeClient()
    put(client, "demo")
    with refused("cluster-knows-no-study", "dem", "demo"):
        latest_job(client, "dem")


def test_namespaces_differ_by_name_and_by_store() -> None:
    assert len({namespace_of("a", "/s"), namespace_of("a", "/t"), namespace_of("b", "/s")}) == 3


# --- following


def test_following_yields_whole_lines_once_and_at_last_the_end() -> None:
    client = FakeClient()
    job, _ = put(client)

    def tail(job_id: str) -> Iterator[str]:
        yield from ("one\ntw", "", "o\nth")
        client.stop(job_id)
        yield "ree\nend"

    client.tail = tail  # type: ignore[method-assign]
    *said, last = follow(client, job)
    assert said == ["one\n", "two\n", "three\n", "end"]
    assert isinstance(last, Job)
    assert last.state == "STOPPED"


def test_a_connection_that_breaks_is_opened_again_and_no_word_comes_twice() -> None:
    client = FakeClient()
    job, _ = put(client)
    texts = iter(["one\ntw", "one\nt", "one\ntwo\nthree\n"])

    def tail(job_id: str) -> Iterator[str]:
        text = next(texts)
        yield from text
        if not text.endswith("three\n"):
            raise UnreachableError("x", "the connection broke")
        client.stop(job_id)

    client.tail = tail  # type: ignore[method-assign]
    *said, _ = follow(client, job, sleep=lambda seconds: None)
    assert said == ["one\n", "two\n", "three\n"]


def test_a_job_whose_words_are_lost_with_its_node_is_followed_for_a_minute() -> None:
    client = FakeClient()
    job, _ = put(client)

    def tail(job_id: str) -> Iterator[str]:
        raise UnreachableError("x", "its node is gone")
        yield

    client.tail = tail  # type: ignore[method-assign]
    client.stop(job.id)
    with pytest.raises(UnreachableError, match="its node is gone"):
        list(follow(client, job, sleep=lambda seconds: None))


def test_a_job_that_is_forgotten_while_it_is_silent_is_said() -> None:
    client = FakeClient()
    job, _ = put(client)

    def tail(job_id: str) -> Iterator[str]:
        yield "one\n"
        client.table.clear()
        while True:
            yield ""

    client.tail = tail  # type: ignore[method-assign]
    with refused("job-forgotten", job.id):
        list(follow(client, job))


def test_following_outlives_a_silent_minute_and_no_more() -> None:
    client = FakeClient()
    job, _ = put(client)
    client.stop(job.id)
    client.silent = int(PATIENCE)
    assert [j.state for j in follow(client, job, sleep=lambda s: None)] == ["STOPPED"]
    client.silent = int(PATIENCE) + 2
    with pytest.raises(UnreachableError, match="no answer"):
        list(follow(client, job, sleep=lambda s: None))


def test_following_ends_in_one_line_when_the_head_has_forgotten_the_job() -> None:
    client = FakeClient()
    job, _ = put(client)
    client.table.clear()
    with pytest.raises(UnreachableError, match="its head was restarted"):
        list(follow(client, job))


def test_what_is_asked_there_comes_back() -> None:
    client = FakeClient()
    client.text = '{"state": "running"}\n'
    begin = client.submit

    def at_once(command: str, **how: object) -> None:
        begin(command, **how)
        client.table[str(how["job_id"])][1] = "SUCCEEDED"

    client.submit = at_once  # type: ignore[method-assign]
    text, job = ask_there(client, ["status", "/s", "--json"], folder=None)
    assert text == client.text
    assert job.state == "SUCCEEDED"
    assert client.submitted[0]["command"] == "exec python -m nas_evidence status /s --json"
    assert not jobs_of(client, "s")


# --- what travels


def test_the_study_travels_with_its_overrides_and_the_code_without_its_caches(
    tmp_path: Path,
) -> None:
    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "a.pyc").write_bytes(b"x")
    (package / "a.py").write_text("A = 1\n")
    folder = tmp_path / "out"
    folder.mkdir()
    size = write_package(folder, study(n_trials=7), package=package)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert files == ["package/a.py", "study.toml"]
    assert size == sum((folder / name).stat().st_size for name in files)
    assert load_study(folder / "study.toml").n_trials == 7


def test_too_much_code_is_refused_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_package, "MAX_BYTES", 1000)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "big.bin").write_bytes(b"x" * 1001)
    (tmp_path / "out").mkdir()
    with refused("code-too-large", 1000, 1001):
        write_package(tmp_path / "out", study(), package=tmp_path / "package")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "changes",
    [{"dataset": DatasetSpec(name="npz", path="data.npz")}, {"warm_start": "runs/old"}],
    ids=["data", "warm start"],
)
def test_a_relative_path_to_data_is_refused_for_data_do_not_travel(
    changes: dict[str, object], tmp_path: Path
) -> None:
    with refused("path-not-absolute"):
        write_package(tmp_path, study(**changes), package=None)


def test_a_checkout_is_sent_and_a_released_wheel_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def __init__(self, origin: str | None) -> None:
            self.origin = origin

        def read_text(self, name: str) -> str | None:
            return self.origin

        def locate_file(self, name: str) -> Path:
            return PACKAGE

    for origin, sent in ((None, None), ('{"dir_info": {"editable": true}}', PACKAGE)):
        installed = Installed(origin)
        monkeypatch.setattr("importlib.metadata.distribution", lambda _, i=installed: i)
        assert package_to_send() == sent


# --- the token, and the address


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_token_is_looked_for_where_ray_looks(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_token() is None
    use_token_if_there_is_one()
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (clean / ".ray").mkdir()
    (clean / ".ray" / "auth_token").write_text("of-home\n")
    assert read_token() == "of-home"
    (clean / "file").write_text("of-file")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(clean / "file"))
    assert read_token() == "of-file"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-environment")
    assert read_token() == "of-environment"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert read_token() is None


def test_a_token_file_that_is_not_there_is_one_line(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    with refused("token-file-unreadable"):
        read_token()


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status and the text of its server."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.text)  # type: ignore[attr-defined]

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "text", "token", "message"),
    [
        (200, b"<html>", None, "answers, but is not the dashboard of a Ray cluster"),
        (200, b"{}", None, "answers, but is not the dashboard of a Ray cluster"),
        (404, b"", None, "answers, but is not the dashboard of a Ray cluster"),
        (500, b"", None, "answers, but is not the dashboard of a Ray cluster"),
        (401, b"Unauthorized", None, "asks for a token, and none was found"),
        (403, b"Forbidden", TOKEN, "refuses the token"),
    ],
)
def test_an_address_that_is_none_of_ours_is_one_line(
    server: http.server.HTTPServer,
    clean: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    text: bytes,
    token: str | None,
    message: str,
) -> None:
    from nas_evidence.jobs.client import RayClient

    server.status, server.text = status, text  # type: ignore[attr-defined]
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # --address counts, not this
    if token:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with pytest.raises(ValueError, match=message) as caught:
        RayClient(f"http://127.0.0.1:{server.server_port}")
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("address", ["head:8265", "ray://head:10001", "http://", "http://h:port"])
def test_an_address_that_is_no_url_is_refused(address: str, clean: Path) -> None:
    from nas_evidence.jobs.client import RayClient

    with refused("address-not-a-url"):
        RayClient(address)


def test_a_closed_port_is_one_line(clean: Path) -> None:
    from nas_evidence.jobs.client import RayClient

    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match="does not answer"):
            RayClient(f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (400, UnreachableError, "http://h:1 refused: ValueError: no such runtime_env"),
        (500, NotReadyError, "http://h:1 accepts no jobs"),
    ],
)
def test_a_job_that_is_refused_is_not_submitted_again_and_one_that_comes_too_early_is(
    clean: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    error: type[Exception],
    message: str,
) -> None:
    import nas_evidence.jobs.client as submit_module

    def submit_job(**how: object) -> None:
        text = "Traceback ...:\n  x\nValueError: no such runtime_env\n"
        raise RuntimeError(f"Request failed with status code {status}: {text}.")

    ray = SimpleNamespace(submit_job=submit_job, list_jobs=list)
    monkeypatch.setattr(submit_module, "_Jobs", lambda address, headers: ray)
    client = submit_module.RayClient("http://h:1")
    with pytest.raises(error) as caught:
        client.submit("x", job_id="j", folder=None, environment={}, metadata={})
    assert type(caught.value) is error
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_token_that_goes_over_a_network_unencrypted_is_noticed(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nas_evidence.jobs.client as submit_module

    monkeypatch.setattr(submit_module, "_Jobs", lambda address, headers: None)
    addresses = ["http://127.0.0.1:1", "http://localhost:1", "https://head:1", "http://head:1"]
    clear = [submit_module.RayClient(a).sends_token_in_clear for a in addresses]
    assert clear == [False] * 4  # there is no token
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    clear = [submit_module.RayClient(a).sends_token_in_clear for a in addresses]
    assert clear == [False, False, False, True]


# --- what Ray says of its own work stays off the screen of whoever submits, follows or cancels


OWN = (
    "2026-11-27 03:01:02,003\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
    "Running entrypoint for job nas-digits-1: exec python -m nas_evidence search\n"
)
KEPT = "2026-11-27 03:01:02,003\tWARNING worker.py:1 -- the disk of node 1 is full\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # as Ray calls aiohttp
def test_submit_follow_and_cancel_print_no_line_of_ray(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / "f.py").touch()
    with job_server() as server:
        server.printed = f"{OWN}first\n{KEPT}"
        client = RayClient(f"http://127.0.0.1:{server.port}")
        new = submit_study(client, "other", "/s", arguments=["search"], folder=str(tmp_path))
        assert new.is_new
        text, _ = ask_there(client, ["status"], folder=str(tmp_path))
        assert text == f"first\n{KEPT}"
        at = there(None, client.address, "digits")
        assert at.client is not None
        assert at.job is not None
        at.client.stop(at.job.id)
        assert next(follow(client, at.job)) == f"first\n{KEPT}"
        assert client.logs(at.job.id).startswith(OWN)  # what is left out is in the log
    assert capfd.readouterr() == ("", "")
