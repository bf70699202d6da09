"""The copy of a study on a real PostgreSQL server, started here on loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
import pytest
from fakes import FakeExecutor, Silent, asked_in, finished, told_in
from records import plain_study

from nas_evidence.api.callbacks import Callbacks, InThread
from nas_evidence.api.trackers import check_track, tracker_of
from nas_evidence.driver.driver import Driver
from nas_evidence.spec.study import StudySpec

PASSWORD = "s3cr3t/with@signs"
USER = "nas"


def study(**changes: object) -> StudySpec:
    plan = {"epochs": 4, "online": {"every": 2}}
    return plain_study(**({"n_trials": 6, "plan": plan} | changes))


def programs() -> Path | None:
    """Return where the server's programs lie: on the path, or where Debian puts them."""
    on_path = shutil.which("pg_ctl")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((p for p in places if (p / "initdb").exists()), None)


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server of our own."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of the server, not as root, which it refuses."""
        command = [str(self.programs / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
            stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode()

    def start(self) -> None:
        where = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder}"
        log = str(self.folder / "server.log")
        data = str(self.folder / "data")
        self.run("pg_ctl", "-D", data, "-w", "-l", log, "-o", where, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")


pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that asks for a password, on a free port of loopback."""
    found = programs()
    if found is None:
        reason = "PostgreSQL's server programs are not installed"
        if os.environ.get("NAS_REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="nas-pg-"))  # a short path: it holds a socket
    here = Server(found, folder, port)
    try:
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            shutil.chown(folder / "password", "postgres")
        how = ("-U", USER, "-A", "scram-sha-256", "--pwfile", str(folder / "password"))
        here.run("initdb", "-D", str(folder / "data"), "-N", *how)
        here.start()
        try:
            yield here
        finally:
            with contextlib.suppress(AssertionError):  # a test has stopped it
                here.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the server; the password is where its own client reads it."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return server.url


def run(
    spec: StudySpec, folder: Path, url: str, executor: FakeExecutor | None = None
) -> list[str]:
    """Run a study with a copy at a URL; return what was said."""
    said: list[str] = []
    check_track([f"optuna:{url}"])
    copy = InThread(partial(tracker_of, f"optuna:{url}", spec, folder), f"track=optuna:{url}")
    with Callbacks(Silent(), [copy], spec, folder, said.append) as watcher:
        Driver(spec, folder, executor or FakeExecutor(workers=1), watcher).run()
    return said


def copies(url: str) -> dict[str, list[tuple[object, object]]]:
    """Return architecture and values of every proposal there, by study."""
    storage = optuna.storages.RDBStorage(url.replace("postgresql", "postgresql+psycopg"))
    try:
        return {
            name: [
                (trial.user_attrs["architecture"], trial.values)
                for trial in optuna.load_study(study_name=name, storage=storage).trials
            ]
            for name in optuna.get_all_study_names(storage)
        }
    finally:
        storage.remove_session()
        storage.engine.dispose()


def in_log(folder: Path) -> list[tuple[object, object]]:
    told = told_in(folder)
    return [
        (point.model_dump(mode="json"), list(told[number].values or ()) or None)
        for number, point in enumerate(asked_in(folder))
    ]


def test_two_studies_of_one_name_are_copied_to_a_server_and_gone_on_with(
    url: str, tmp_path: Path
) -> None:
    before = set(copies(url))
    for place, n_trials in (("a", 4), ("b", 6), ("a", 6)):
        assert run(study(n_trials=n_trials), tmp_path / place, url) == []
    found = [copy for name, copy in copies(url).items() if name not in before]
    wanted = [in_log(tmp_path / place) for place in ("a", "b")]
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes()


class Stopping(FakeExecutor):
    """The server goes away in the midst of a study."""

    def __init__(self, server: Server) -> None:
        super().__init__(workers=1)
        self.server, self.polls = server, 0

    def poll(self, timeout: float) -> list[object]:  # type: ignore[override]
        self.polls += 1
        if self.polls == 5:
            self.server.stop()
        return list(super().poll(timeout))


def test_a_server_that_goes_away_is_one_warning_and_the_copy_is_completed_later(
    url: str, server: Server, tmp_path: Path
) -> None:
    before = set(copies(url))
    try:
        (line,) = run(study(), tmp_path, url, Stopping(server))
        assert line.startswith(f"track=optuna:{url} has stopped, the search goes on: ")
        assert "\n" not in line
        assert PASSWORD not in line
        assert len(finished(tmp_path)) == 6
    finally:
        server.start()
    assert run(study(), tmp_path, url) == []
    assert [copy for name, copy in copies(url).items() if name not in before] == [in_log(tmp_path)]


def test_a_wrong_password_is_one_warning(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wr0ng")
    (line,) = run(study(n_trials=2), tmp_path, url)
    assert "password authentication failed" in line
    assert "wr0ng" not in line
    assert len(finished(tmp_path)) == 2


# --- what needs no server


def test_an_unknown_server_is_one_warning(tmp_path: Path) -> None:
    (line,) = run(study(n_trials=2), tmp_path, "postgresql://me@127.0.0.1:9/db")
    assert line.startswith("track=optuna:postgresql://me@127.0.0.1:9/db has stopped")
    assert len(finished(tmp_path)) == 2


def test_a_missing_driver_and_a_url_that_is_none_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"needs the URL of a database such as postgresql://"):
        check_track(["optuna:db.example"])
    monkeypatch.setattr(
        "nas_evidence.api.trackers.find_spec", lambda name: None if name == "psycopg" else name
    )
    with pytest.raises(ValueError, match=r"needs psycopg: install it with .*\[postgresql\]"):
        check_track(["optuna:postgresql://me@host/db"])
