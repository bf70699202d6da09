"""The coordination database on a real PostgreSQL server, started here on loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import FakeExecutor, Silent

import nas_evidence.storage.database as database_module
from nas_evidence.codec import StudyError, load_study
from nas_evidence.driver.driver import Driver
from nas_evidence.proposing.proposer import Proposer, Told
from nas_evidence.spec import StudySpec
from nas_evidence.storage.database import (
    Database,
    RetryingStorage,
    check_database,
    database_of,
    error_line,
)
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.study_folder import open_study
from nas_evidence.store import finished, read_table

PASSWORD = "s3cr3t/with@signs"
USER = "nas"


def study(name: str = "s", **changes: object) -> StudySpec:
    given: dict[str, object] = {
        "name": name,
        "n_trials": 6,
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 64}}},
        "plan": {"epochs": 4, "online": {"every": 2}},
    }
    return StudySpec.model_validate({**given, **changes})


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
def configured(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The environment as a user sets it."""
    for name in ("PGPASSWORD", "PGPASSFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", server.url)
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE_PASSWORD", PASSWORD)
    return server


def table(folder: Path) -> list[tuple[object, ...]]:
    columns = ["trial_id", "architecture_key", "status", "seed"]
    return [*read_table(folder, "trials")[columns].itertuples(index=False, name=None)]


def run(spec: StudySpec, folder: Path, executor: FakeExecutor | None = None) -> None:
    spec = open_study(folder, spec)
    Driver(spec, folder, executor or FakeExecutor(workers=1), Silent()).run()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The study on SQLite."""
    folder = tmp_path_factory.mktemp("calm")
    run(study(), folder)
    return table(folder)


def assert_nowhere(folder: Path, secret: str = PASSWORD) -> None:
    """Fail if a password is in any file of a study."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_study_on_a_server_is_the_one_on_sqlite_and_no_password_is_written(
    configured: Server, tmp_path: Path, calm: list[tuple[object, ...]]
) -> None:
    run(study(), tmp_path)
    assert table(tmp_path) == calm
    assert not (tmp_path / "study.db").exists()
    again = database_of(tmp_path, study())
    assert Proposer(study(), again).told() == set(range(6))
    assert_nowhere(tmp_path)
    assert PASSWORD not in repr(again)


def test_the_folder_remembers_the_server(
    configured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study(name="kept")
    run(spec, tmp_path)
    monkeypatch.delenv("NAS_EVIDENCE_DATABASE")
    executor = FakeExecutor()
    run(study(name="kept", n_trials=8), tmp_path, executor)
    assert sorted({launch.assignment.trial_id for launch in executor.launches}) == [6, 7]


def test_two_studies_of_one_name_share_a_server(configured: Server, tmp_path: Path) -> None:
    proposers = []
    for place in ("a", "b"):
        open_study(tmp_path / place, study())
        proposers.append(Proposer(study(), database_of(tmp_path / place, study())))
    asked = [p.ask() for _ in range(3) for p in proposers]
    assert asked[::2] == asked[1::2]
    proposers[0].tell(0, Told((1.0,)))
    for place, told in (("a", {0}), ("b", set())):
        again = Proposer(study(), database_of(tmp_path / place, study()))
        assert len(again.proposals()) == 3
        assert again.told() == told


class Flaky(FakeExecutor):
    """The server goes away in the midst of a study."""

    def __init__(self, server: Server, *, comes_back: bool) -> None:
        super().__init__(workers=1)
        self.server, self.comes_back, self.polls = server, comes_back, 0

    def poll(self, timeout: float) -> list[object]:  # type: ignore[override]
        self.polls += 1
        if self.polls == 5:
            self.server.stop()
            if self.comes_back:  # before the next word to it: the connections are dead
                self.server.start()
        return list(super().poll(timeout))


def test_a_server_that_was_started_anew_is_gone_on_with(
    configured: Server, tmp_path: Path, calm: list[tuple[object, ...]]
) -> None:
    run(study(), tmp_path, Flaky(configured, comes_back=True))
    assert table(tmp_path) == calm


def test_a_server_that_stays_away_stops_the_study_in_one_line_and_it_goes_on_later(
    configured: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calm: list[tuple[object, ...]],
) -> None:
    monkeypatch.setattr(database_module, "PATIENCE", 3.0)
    try:
        with pytest.raises(StudyStoppedError, match=r"does not answer.*resume it") as caught:
            run(study(), tmp_path, Flaky(configured, comes_back=False))
        assert "\n" not in str(caught.value)
        assert PASSWORD not in str(caught.value)
        assert len(finished(tmp_path)) < 6
        with pytest.raises(ValueError, match=r"127\.0\.0\.1:\d+/postgres does not answer"):
            open_study(tmp_path, study())
    finally:
        configured.start()
    run(study(), tmp_path)
    assert table(tmp_path) == calm
    assert_nowhere(tmp_path)


def test_a_wrong_password_is_one_line_before_anything_runs(
    configured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE_PASSWORD", "wr0ng")
    with pytest.raises(ValueError, match="password authentication failed") as caught:
        open_study(tmp_path, study())
    assert "\n" not in str(caught.value)
    assert "wr0ng" not in str(caught.value)


def test_the_clients_own_variable_serves(
    configured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAS_EVIDENCE_DATABASE_PASSWORD")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    open_study(tmp_path, study())
    assert isinstance(database_of(tmp_path, study()), Database)


# --- what needs no server


def test_an_unknown_server_is_one_line(tmp_path: Path) -> None:
    spec = study(database={"url": "postgresql://me@127.0.0.1:9/db"})
    with pytest.raises(ValueError, match=r"me@127\.0\.0\.1:9/db does not answer") as caught:
        open_study(tmp_path, spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:h1dden@host/db", "postgresql://host/db?user=me&password=h1dden"]
)
def test_a_password_in_the_study_file_is_refused_and_not_repeated(
    tmp_path: Path, url: str
) -> None:
    text = 'name = "s"\n[dataset]\nname = "digits"\n[family.linear]\n'
    path = tmp_path / "s.toml"
    path.write_text(f'{text}[database]\nurl = "{url}"\n')
    with pytest.raises(StudyError, match="NAS_EVIDENCE_DATABASE_PASSWORD") as caught:
        load_study(path)
    assert len(caught.value.messages) == 1
    assert "s.toml:6" in str(caught.value)
    assert "h1dden" not in str(caught.value)
    path.write_text(text)
    with pytest.raises(StudyError, match=r"--set database\.url=") as caught:
        load_study(path, [f"database.url={url}"])
    assert "h1dden" not in str(caught.value)


def test_a_password_in_the_environment_s_url_is_used_and_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", "postgresql://me:h1dden@host/db")
    database = database_of(tmp_path, study())
    assert isinstance(database, Database)
    assert database.url == "postgresql+psycopg://me@host/db"
    assert database.engine_options["connect_args"]["password"] == "h1dden"
    assert "h1dden" not in repr(database)
    assert "h1dden" not in error_line(database, ValueError("for h1dden at x://a:h1dden@b"))
    assert_nowhere(tmp_path, "h1dden")
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", "postgresql://me:h1dden@host:port/db")
    with pytest.raises(ValueError, match="NAS_EVIDENCE_DATABASE_PASSWORD") as caught:
        database_of(tmp_path, study())
    assert "h1dden" not in str(caught.value)


def test_a_study_stays_in_the_database_it_began_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proposer(study(), tmp_path / "study.db")
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", "postgresql://me@host/db")
    with pytest.raises(ValueError, match=r"study\.db, but .* unset NAS_EVIDENCE_DATABASE"):
        database_of(tmp_path, study())
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", f"sqlite:///{tmp_path}/one.db")
    first = database_of(other, study())
    Proposer(study(), first).ask()
    monkeypatch.setenv("NAS_EVIDENCE_DATABASE", f"sqlite:///{tmp_path}/two.db")
    with pytest.raises(ValueError, match="began in another database"):
        Proposer(study(), database_of(other, study()))
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    assert len(Proposer(study(), database_of(other, study())).proposals()) == 1


def test_a_missing_driver_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"nas-evidence\[postgresql\]"):
        check_database(Database("postgresql+psycopg://me@host/db", "s"))


def test_what_a_silent_server_had_written_counts_once(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/s.db", "s")
    proposer = Proposer(study(), database)
    storage = proposer._storage
    assert isinstance(storage, RetryingStorage)
    plain = storage._storage.create_new_trial

    def written_twice(*arguments: object) -> int:
        plain(*arguments)  # its answer was lost
        return int(plain(*arguments))

    storage._storage.create_new_trial = written_twice
    asked = [proposer.ask() for _ in range(2)]
    proposer.tell(0, Told((1.0,)))
    proposer._told.clear()
    proposer.tell(0, Told((1.0,)))  # nor was this one heard
    again = Proposer(study(), database)
    assert again.proposals() == asked
    assert again.told() == {0}
