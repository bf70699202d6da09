"""The name of a study on a cluster stays taken when its job died before it could say a word."""

from messages import refused

from nas_evidence.jobs.job import Job
from nas_evidence.jobs.jobs import submit_study


class DeadJob:
    """A cluster whose only job has failed."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def jobs(self) -> list[Job]:
        said = "Unexpected error:\nthe supervisor did not start"
        return [Job("nas-demo-1", "demo", "/a", "FAILED", said)]

    def submit(self, command: str, *, job_id: str, **_: object) -> None:
        self.submitted.append(job_id)

    def stop(self, job_id: str) -> None:
        raise AssertionError

    def logs(self, job_id: str) -> str:
        return ""


def test_another_store_is_refused_with_the_cause_and_the_same_one_goes_on() -> None:
    client = DeadJob()
    with refused("name-in-use", "FAILED: the supervisor did not start") as error:
        submit_study(client, "demo", "/b", arguments=["search"], folder=None)
    assert "known to the cluster with the store /a" in str(error.value)
    assert not client.submitted
    job, is_new, before = submit_study(client, "demo", "/a", arguments=["search"], folder=None)
    assert (job.id, is_new) == ("nas-demo-2", True)
    assert (before.id, before.cause) == ("nas-demo-1", "the supervisor did not start")
