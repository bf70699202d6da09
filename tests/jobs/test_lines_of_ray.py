"""What Ray says of its own work stays off the screen of whoever submits, follows or cancels."""

from pathlib import Path

import pytest
from job_server import job_server

from nas_evidence.api.control import there
from nas_evidence.jobs.client import RayClient
from nas_evidence.jobs.jobs import ask_there, follow, submit_study

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
