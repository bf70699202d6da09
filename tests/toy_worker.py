"""A worker that trains nothing and keeps checkpoints, for tests of stores."""

import json
from functools import partial
from typing import Any

from fakes import Silent, record_of, report_of

from nas_evidence.driver.driver import Driver
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.removal import remove
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ResourceSpec, StudySpec
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.executor import Launch, Verdict
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.stored import StoredWorker


def run_at(
    store: Any, spec: StudySpec, *, stored: Any = StoredWorker, steal: bool = False
) -> None:
    """Run a study at a store with `Toy` in this process, as the command line does."""
    with store.held(steal=steal):
        spec = open_study(store.folder, spec, steal=steal)
        worker: Any = Toy
        if store.make_worker is not None:
            worker = partial(stored, store.place, make_worker=Toy)
        executor = InlineExecutor(None, spec.resources, make_worker=worker)
        with locked(store.folder, steal=steal):
            Driver(spec, store.folder, store.around(executor), Silent()).run()


class Toy:
    """A worker whose checkpoints say which trial they are of: none other may go on from them."""

    def __init__(self, arrays: object, resources: ResourceSpec, *, gpu_share: float) -> None:
        self.must_go = ""

    def start(self, launch: Launch) -> SliceReport:
        self.launch, self.epoch = launch, 0
        checkpoints = launch.resume_from.glob("epoch-*.pt") if launch.resume_from else ()
        for latest in sorted(checkpoints)[-1:]:
            key, self.epoch = json.loads(latest.read_text())
            assert key == launch.assignment.architecture.key
        return self.report()

    def advance(self, until_epoch: int) -> SliceReport:
        self.epoch = until_epoch
        state = [self.launch.assignment.architecture.key, until_epoch]
        path = self.launch.folder / f"epoch-{until_epoch:06d}.pt"
        write_whole(path, json.dumps(state))
        for old in self.launch.folder.glob("epoch-*.pt"):
            if old != path:
                remove(old)
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
