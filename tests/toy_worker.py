"""A worker that trains nothing and keeps checkpoints, for tests of stores."""

import json

from fakes import record_of, report_of

from nas_evidence.plumbing.removal import remove
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import Launch, Verdict


class Toy:
    """A worker whose checkpoints say which trial they are of: none other may go on from them."""

    def __init__(self, arrays: object, resources: ResourceSpec, *, gpu_share: float) -> None:
        self.must_go = ""

    def start(self, launch: Launch) -> SliceReport:
        self.launch, self.epoch = launch, 0
        if launch.resume_from is not None:
            latest = max(launch.resume_from.glob("epoch-*.pt"), key=lambda path: path.name)
            key, self.epoch = json.loads(latest.read_text())
            assert key == launch.assignment.architecture.key
        return self.report()

    def advance(self, until_epoch: int) -> SliceReport:
        self.epoch = until_epoch
        state = [self.launch.assignment.architecture.key, until_epoch]
        for old in self.launch.folder.glob("epoch-*.pt"):
            remove(old)
        path = self.launch.folder / f"epoch-{until_epoch:06d}.pt"
        path.write_text(json.dumps(state))
        return self.report()

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        assignment = self.launch.assignment
        if verdict is not None:
            return record_of(assignment, verdict.status, epoch=self.epoch, cause=verdict.cause)
        (self.launch.folder / "model.safetensors").write_text(assignment.architecture.key)
        return record_of(assignment)

    def park(self) -> None:
        pass

    def report(self) -> SliceReport:
        return report_of(self.launch.assignment, self.epoch)
