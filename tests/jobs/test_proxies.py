"""What is asked of this machine reaches no proxy, and a proxy that is asked is named."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_server import JOB, JobServer, Proxy, job_server, proxy_server

import nas_evidence
from nas_evidence.api import runs, submission
from nas_evidence.api.trackers import sent_in_clear
from nas_evidence.jobs import auth_token
from nas_evidence.jobs.auth_token import sent_in_clear_to
from nas_evidence.plumbing.proxies import (
    is_loopback,
    is_of_this_machine,
    pass_proxies_by,
    proxy_of,
)
from nas_evidence.storage.in_clear import sent_in_clear as store_in_clear
from nas_evidence.storage.store import Store

#: Ray's client follows a job with `ssl=None`, as aiohttp no longer likes it.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated")
TOKEN = "never-shown-0123456789"
FAR = "http://ray.example.org:8265"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", *VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.setenv(name, "")  # so that it is as before, at the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with proxy_server() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobServer]:
    with job_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1"])
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_no_request_for_this_machine_reaches_a_proxy(
    proxy: Proxy, cluster: JobServer, monkeypatch: pytest.MonkeyPatch, variable: str, host: str
) -> None:
    from nas_evidence.jobs.client import RayClient

    monkeypatch.setenv(variable, proxy.url)
    monkeypatch.setenv("NO_PROXY", "example.org")
    client = RayClient(f"http://{host}:{cluster.port}")
    assert [job.id for job in client.jobs()] == [JOB]
    assert client.logs(JOB) == "first\nsecond\n"
    if host != "127.1":  # of which aiohttp wants the long form
        assert next(client.tail(JOB)) == "first\nsecond\n"
    assert (client.proxy, client.sends_token_in_clear, proxy.tokens) == (None, False, [])
    assert os.environ["NO_PROXY"].split(",")[0] == "example.org"


@pytest.mark.slow
def test_whoever_follows_a_job_behind_a_proxy_uses_it_too(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nas_evidence.jobs.client as client_module

    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setattr(client_module, "LOOK_EVERY", 0.01)
    client = client_module.RayClient(FAR)
    lines = client.tail(JOB)
    assert next(lines) == "first\nsecond\n"
    proxy.cluster.state = "SUCCEEDED"
    assert set(lines) == {""}
    assert set(proxy.tokens) == {f"Bearer {TOKEN}"}
    proxy.refusal = 502
    with pytest.raises(ValueError, match=r"by the proxy .* refused"):
        client.logs(JOB)


@pytest.mark.slow
def test_the_warning_about_a_token_in_clear_names_the_proxy_without_its_password(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas_evidence.api.control import connect

    monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:secret@"))
    said: list[str] = []
    connect(FAR, said.append)
    [line] = said
    assert FAR in line
    assert f"127.0.0.1:{proxy.server_port} (http_proxy)" in line
    assert "secret" not in line


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 407, 502])
def test_what_a_proxy_refuses_is_not_said_of_the_cluster(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    from nas_evidence.jobs.client import RayClient

    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    proxy.refusal = status
    with pytest.raises(ValueError, match=r"\(HTTP_PROXY\).* or add ray.example.org to no_proxy"):
        RayClient(FAR)


@pytest.mark.slow
def test_a_proxy_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    from nas_evidence.jobs.client import RayClient

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"through the proxy http://127[.]0[.]0[.]1:9 "):
        RayClient(FAR)


def test_a_token_of_a_tracker_or_of_a_cluster_is_never_sent_in_clear_without_a_word(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent_in_clear_to("10.0.0.1:6379")
    assert not any(map(sent_in_clear_to, ("127.0.0.1:6379", "[::1]:6379")))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert not sent_in_clear_to("10.0.0.1:6379")

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    monkeypatch.setenv("http_proxy", proxy.url)
    said = sent_in_clear("mlflow:http://ml.example.org")
    assert said.startswith("MLFLOW_TRACKING_TOKEN is sent unencrypted to http://ml.example.org ")
    assert f"{proxy.url} (http_proxy)" in said
    assert TOKEN not in said
    quiet = ("mlflow:https://ml.example.org", "mlflow:http://127.0.0.1:5000", "mlflow", "optuna")
    assert not any(map(sent_in_clear, quiet))
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example.org")
    assert not sent_in_clear("wandb:project")
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    assert "WANDB_API_KEY" in sent_in_clear("wandb:project")


def test_the_token_for_auto_is_never_sent_in_clear_without_a_word(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert not sent_in_clear_to("auto")  # Ray looks at processes of this machine
    (tmp_path / "ray").mkdir()
    known = tmp_path / "ray" / "ray_current_cluster"
    for address, warned in (("127.0.0.1:6379", ""), ("192.0.2.7:6379", "192.0.2.7:6379")):
        known.write_text(f"{address}\n")  # `ray start --address=192.0.2.7:6379` was here
        assert sent_in_clear_to("auto") == warned
    monkeypatch.setattr(auth_token, "is_of_this_machine", lambda host: host == "192.0.2.7")
    assert not sent_in_clear_to("auto")  # this is the head
    for named in ("192.0.2.8:6379", "ray://192.0.2.8:10001"):  # Ray takes it before the file
        monkeypatch.setenv("RAY_ADDRESS", named)
        assert sent_in_clear_to("auto") == named
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert not sent_in_clear_to("auto")


def test_an_address_of_this_machine_is_known_by_binding_it() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert not any(map(is_of_this_machine, ("192.0.2.7", "no such host")))


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("wandb", ".netrc", "machine ml.example.org login user password {}"),
        ("mlflow", ".netrc", "machine ml.example.org login user password {}"),
        ("mlflow", ".mlflow/credentials", "[mlflow]\nmlflow_tracking_password = {}"),
    ],
)
def test_a_password_that_a_trackers_client_finds_in_a_file_is_named_with_the_file(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, file: str,
    content: str,
) -> None:  # fmt: skip
    for variable in ("NETRC", "WANDB_API_KEY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = "http://ml.example.org:8080"
    if name == "wandb":  # the address may be in a file too
        settings = tmp_path / ".config" / "wandb" / "settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"[default]\nbase_url = {url}\n")
    track = name if name == "wandb" else f"{name}:{url}"
    assert not sent_in_clear(track)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content.format(TOKEN))
    said = sent_in_clear(track)
    assert said.startswith(f"the password in {tmp_path / file} is sent unencrypted to {url}")
    assert TOKEN not in said
    (tmp_path / file).write_text("no such format [")
    assert not sent_in_clear(track)


SAS = f"sv=2024&sig={TOKEN}"


@pytest.mark.parametrize(
    ("place", "given", "named"),
    [
        ("s3://b/s", {"AWS_SESSION_TOKEN": TOKEN, "AWS_ENDPOINT_URL": "{}"}, "AWS_SESSION_TOKEN"),
        (
            "s3a://b/s",
            {"AWS_SESSION_TOKEN": TOKEN, "AWS_ENDPOINT_URL_S3": "{}"},
            "AWS_SESSION_TOKEN",
        ),
        (
            "abfs://b/s",
            {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={{}};SharedAccessSignature={SAS}"},
            "the signature in AZURE_STORAGE_CONNECTION_STRING",
        ),
        (
            "az://b/s",
            {"AZURE_STORAGE_SAS_TOKEN": SAS, "AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint={}"},
            "AZURE_STORAGE_SAS_TOKEN",
        ),
        (
            "gs://b/s",
            {"GOOGLE_APPLICATION_CREDENTIALS": "key.json", "STORAGE_EMULATOR_HOST": "{}"},
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
    ],
)
def test_a_secret_that_goes_to_a_store_in_clear_is_named(
    proxy: Proxy, place: str, given: dict[str, str], named: str
) -> None:
    def said(url: str) -> str:
        return store_in_clear(place, {key: one.replace("{}", url) for key, one in given.items()})

    assert said("http://store.example.org").startswith(
        f"{named} is sent unencrypted to http://store.example.org"
    )
    assert TOKEN not in said("http://store.example.org")
    assert not any(map(said, ("https://store.example.org", "http://127.0.0.1:9000", "")))
    assert not store_in_clear("file:///nfs/s", given)


@pytest.mark.slow
def test_who_runs_a_study_at_a_store_is_warned_of_a_secret_in_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (runs, submission):
        monkeypatch.setattr(room, "store_in_clear", lambda place: f"a secret of {place} is sent")
    monkeypatch.setattr(submission, "check_store", lambda place: 1 / 0)
    place = f"file://{tmp_path}/st"
    given = {"n_trials": 1, "executor": "inline", "progress": False}
    with pytest.warns(RuntimeWarning, match=f"a secret of {place} is sent"):
        nas_evidence.search("digits", out=place, settings={"plan.epochs": 1}, **given)
    for ask, first in ((nas_evidence.submit, ["digits"]), (nas_evidence.resubmit, [])):
        with pytest.warns(RuntimeWarning, match="is sent"), pytest.raises(ZeroDivisionError):
            ask(*first, store=place, address="http://127.0.0.1:1", progress=False)


def test_without_tls_an_account_of_azure_is_met_at_its_own_host() -> None:
    text = f"DefaultEndpointsProtocol=http;AccountName=me;SharedAccessSignature={SAS}"
    said = store_in_clear("abfs://b/s", {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert "http://me.blob.core.windows.net" in said


@pytest.mark.parametrize("host", ["LOCALHOST", "a.localhost", "127.8.9.1", "2130706433", "[::1]"])
def test_a_loopback_address_is_known_however_it_is_written(host: str) -> None:
    assert is_loopback(host)


def test_a_store_and_a_tracker_on_this_machine_pass_the_proxy_by(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from urllib.request import getproxies_environment, proxy_bypass_environment

    Store("memory://s")
    assert "no_proxy" not in os.environ  # nothing to pass by
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.7.7:9000")
    Store("memory://s")
    for host in ("127.0.0.1", "localhost", "::1", "127.0.7.7"):
        assert proxy_bypass_environment(host, getproxies_environment())
    assert not proxy_bypass_environment("ray.example.org", getproxies_environment())
    before = os.environ["no_proxy"]
    pass_proxies_by("http://127.0.7.7")
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == before


def test_no_proxy_is_heard_and_stays(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    assert proxy_of(FAR) == f"{proxy.url} (http_proxy)"
    monkeypatch.setenv("no_proxy", "*")
    pass_proxies_by()
    assert os.environ["no_proxy"] == "*"
    assert proxy_of(FAR) is None
