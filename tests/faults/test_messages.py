"""Bad input gets one clear sentence at once, without a library's internals or a password."""

import socket
import threading
import time
from pathlib import Path

import pytest
from faulty import call
from messages import refused

from nas_evidence.api.trackers import check_track
from nas_evidence.plumbing.masking import masked
from nas_evidence.reporting.any_table import rank_table
from nas_evidence.spec.toml import StudyError, load_study
from nas_evidence.workers.reachable import check_reachable

HEAD = 'name = "x"\n{head}\n[dataset]\nname = "digits"\n[family.linear]\n{tail}'


def mistakes(folder: Path, head: str = "", tail: str = "") -> str:
    path = folder / "s.toml"
    path.write_text(HEAD.format(head=head, tail=tail))
    with pytest.raises(StudyError) as error:
        load_study(path)
    said = str(error.value)
    assert "ydantic" not in said
    assert "constrained" not in said
    return said


NUMBERS = ("learning_rate", "settle", "likelihood_power")


@pytest.mark.parametrize("value", ["inf", "1e30", "nan"])
@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_is_infinite_or_absurd(tmp_path: Path, key: str, value: str) -> None:
    assert f"{key} in [plan] must be <= " in mistakes(tmp_path, tail=f"[plan]\n{key} = {value}\n")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("[resources]\nslice_timeout_seconds = inf\n", "slice_timeout_seconds in [resources]"),
        ("[budget]\nwall_seconds = 1e30\n", "wall_seconds in [budget]"),
        ("[plan]\nepochs = 1000000000000000000000\n", "epochs in [plan]"),
        ("[retries]\ncrashes = 0\n", '`crashes` must be a number of attempts or "unlimited"'),
        (
            "[family.mlp]\nwidth = {low = 1e30, high = 4}\n",
            "low in [family.mlp.width] must be an int",
        ),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, tail: str, expected: str) -> None:
    assert expected in mistakes(tmp_path, tail=tail)


@pytest.mark.parametrize("name", [r"a\u0000b", r"\u001b[31m", "x" * 5000, r"a\nb", "  "])
def test_a_name_is_short_and_printable(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(HEAD.format(head="", tail="").replace('"x"', f'"{name}"'))
    with refused("study-name", 200) as error:
        load_study(path)
    assert len(str(error.value)) < 300 + len(str(path))


def test_the_only_estimator_is_the_objective(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(HEAD.format(head='estimators = ["diag_ef"]', tail=""))
    assert load_study(path).objective == "diag_ef"


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
    said = mistakes(tmp_path, tail='[database]\nurl = "postgresql://u:secret@h/d"\n')
    assert "unknown key 'database'" in said
    assert "secret" not in said


def test_a_table_grouped_by_a_column_of_many_values_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,score,truth\n" + "".join(f"{i},{i % 7},{i % 5}\n" for i in range(3000)))
    with refused("too-many-groups", 50, "id", 3000):
        rank_table(path, score="score", target="truth", group="id")


@pytest.fixture
def silent() -> str:
    """The address of a port that takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"  # type: ignore[misc]
    finally:
        server.close()


def test_an_address_of_nobody_is_told_before_ray_is_asked(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.workers.reachable.PATIENCE", 0.2)
    with pytest.raises(ValueError, match="nothing answers within"):
        check_reachable(silent)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ValueError, match="connection refused"):
        check_reachable(gone)
    with refused("address-form"):
        check_reachable("nowhere")


def test_a_port_of_another_service_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with refused("address-unreachable", "something else than a Ray cluster answers"):
            check_reachable(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["data://x/y", "data:text/plain,x", "nothing://x", "zip://x.zip"])
def test_a_store_that_cannot_be_written_is_refused_without_retries(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    if "://" in uri:
        for verb in (("status", uri), ("search", "digits", "--store", uri)):
            code, _, said = call(capsys, *verb)
            assert code in (1, 2)
            assert uri in said
            assert said.count("\n") == 1
    assert not slept
