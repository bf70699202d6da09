"""Whatever happens to a study, and in whatever order, it ends as it should.

Hypothesis draws histories: runs of a study with other numbers of workers, lost, hung and slow
slices, late words of dead attempts, budgets, more trials, torn files, and a driver that dies at
any of its effects on the disk. A dead driver leaves half a line, half a folder or
a temporary file behind. NAS_EVIDENCE_EXAMPLES sets the number of histories,
NAS_EVIDENCE_DAY the day of those that differ from day to day.
"""

import datetime
import functools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeProposer, asked_in, drive, facts_in, told_in
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from learning_curves import SimulatedTrial, synthetic
from records import plain_study
from simulated import Fault, FaultPlan, SimulatedExecutor

import nas_evidence.driver.driver as driver_module
import nas_evidence.storage.tables as store_module
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.outcomes import result_of
from nas_evidence.driver.plan import n_proposals, trials_of
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, RetrySpec, StudySpec, derive_seed
from nas_evidence.storage.log import Log, read_log
from nas_evidence.storage.redo import find_done
from nas_evidence.storage.study_names import remove_attempts
from nas_evidence.storage.tables import compact, read_tables
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Event, Launch, Lost

EXAMPLES = int(os.environ.get("NAS_EVIDENCE_EXAMPLES", "0"))
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
MAX_TRIALS = 12
MAX_CRASHES = int(RetrySpec().crashes)


# --- a driver that dies


class Killed(BaseException):
    """The end of a process, as far as one process can tell."""


class Death:
    """Comes at the n-th effect of the driver; never for None."""

    def __init__(self, after: int | None) -> None:
        self.left, self.came = after, False

    def knocks(self) -> bool:
        """Count an effect; tell whether it is the one that is cut short."""
        if self.left is not None and not self.came:
            self.left -= 1
            self.came = self.left < 0
        return self.came

    def step(self, *_: object) -> None:
        if self.knocks():
            raise Killed


def mortal(death: Death, proposer: type[Any]) -> type[Any]:
    class Mortal(proposer):  # type: ignore[misc]
        def ask(self) -> ArchitectureSpec:
            death.step()
            proposal: ArchitectureSpec = super().ask()
            death.step()
            return proposal

        def tell(self, number: int, result: ProposalResult) -> None:
            death.step()
            super().tell(number, result)
            death.step()

    return Mortal


@contextmanager
def mortality(death: Death, compact_at: int) -> Iterator[None]:
    """Let every effect of a driver be its last."""
    write_line, write_table, stop = Log.write, store_module._write_table, Driver._stop
    unlink_file = Path.unlink

    def line(log: Log, event: Any, *, durable: bool = False) -> None:
        if death.knocks():
            if log._file is not None:
                log._file.write(b'{"line": 7, "t": 1.0, "event"')
            raise Killed
        write_line(log, event, durable=durable)
        if type(event).__name__ in ("AtRung", "AttemptLost", "Ended", "Merged", "Again"):
            assert read_log(log._folder).state == log.state

    def table(path: Path, content: Any, **how: Any) -> str:
        if death.knocks():
            path.parent.mkdir(exist_ok=True)
            (path.parent / f".{path.name}.{'d' * 32}").write_bytes(b"PAR1")
            raise Killed
        digest = write_table(path, content, **how)
        death.step()
        return digest

    def remove(folder: Path, place: str) -> None:
        if death.knocks():
            shutil.rmtree(next(iter(sorted((folder / place).iterdir())), folder / place))
            raise Killed
        remove_attempts(folder, place)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":  # a table that was merged, or that the log does not name
            death.step()
        unlink_file(path, missing_ok=missing_ok)

    def stopped(driver: Driver) -> None:
        driver._log.close() if death.came else stop(driver)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "crash_point", death.step)
        patch.setattr("nas_evidence.proposing.startup.STARTUP_PER_FAMILY", 2)
        patch.setattr(driver_module, "remove_attempts", remove)
        patch.setattr(driver_module, "COMPACT_AT", compact_at)
        patch.setattr(driver_module, "compact", functools.partial(compact, at_least=compact_at))
        patch.setattr(store_module, "_write_table", table)
        patch.setattr(Log, "write", line)
        patch.setattr(Driver, "_stop", stopped)
        patch.setattr(Path, "unlink", unlink)
        yield


# --- trials and what goes wrong with them


def curves(assignment: Assignment) -> SimulatedTrial:
    """What is found depends on the architecture: some diverge, some need more of a GPU."""
    trial, width = synthetic(assignment), int(assignment.architecture.values["width"])
    if width % 7 == 0:
        return replace(trial, status=TrialStatus.DIVERGED, ends_at=3)
    if width % 5 == 0:  # of those some run out of memory with twice the share too
        return replace(trial, share=0.25, needs_share=1.0 if width % 3 == 0 else 0.5)
    return trial


class Gossip(SimulatedExecutor):
    """Hears late words of dead attempts, and dies with its driver."""

    def __init__(self, *args: Any, death: Death, chance: random.Random, **facts: Any) -> None:
        super().__init__(*args, **facts)
        self.death, self.chance = death, chance

    def poll(self, timeout: float) -> list[Event]:
        self.death.step()
        events = super().poll(timeout)
        for trial_id, running in self._running.items():
            if self.chance.random() < 0.1:
                events.insert(0, Lost(trial_id, running.launch.assignment.attempt - 1, "late"))
        return events

    def launch(self, launch: Launch) -> None:
        super().launch(launch)
        assert launch.assignment.attempt == int(launch.folder.name[8:])


def seldom(plan: FaultPlan, seen: Counter[int], at_most: int) -> FaultPlan:
    """Return a plan with few losses a trial, so that none is given up."""

    def fault(assignment: Assignment, epoch: int) -> Fault | None:
        found = plan(assignment, epoch)
        if found and found.kind != "slow":
            seen[assignment.trial_id] += 1
            return found if seen[assignment.trial_id] <= at_most else None
        return found

    return fault


def chance_of(chance: random.Random, rate: float) -> FaultPlan:
    def fault(assignment: Assignment, epoch: int) -> Fault | None:
        kinds = ("lost", "hung", "slow")
        return Fault(chance.choice(kinds)) if chance.random() < rate else None  # type: ignore[arg-type]

    return fault


# --- the study


def study(**changes: Any) -> StudySpec:
    given = {
        "objective": "kfac_ggn", "n_trials": 4, "batch": 2, "estimators": ["kfac_ggn"],
        "family": {"mlp": {"width": {"low": 4, "high": 67}}},
        "plan": {"epochs": 5, "online": {"every": 1}}, "limits": {"n_parameters": 74 * 60},
    }  # fmt: skip
    return plain_study(**(given | changes))


def table(folder: Path) -> list[list[Any]]:
    """Return all rows of all tables without what may differ: attempts and seconds."""
    tables, _ = read_tables(folder)
    rows = []
    for frame in tables.values():
        free = [c for c in frame if c == "attempt" or c.endswith("seconds")]
        rows.append(frame.drop(columns=free).astype(object).where(frame.notna(), None))
    return [frame.to_numpy().tolist() for frame in rows]


@functools.cache
def undisturbed(spec_json: str, proposer: type[Any]) -> list[list[Any]]:
    """Return the table of a study that one worker ran through."""
    spec = StudySpec.model_validate_json(spec_json)
    with tempfile.TemporaryDirectory(dir=MEMORY) as home:
        death = Death(None)
        with mortality(death, 1000):
            executor = SimulatedExecutor(curves, workers=1, seed=0)
            drive(spec, Path(home), executor, proposer=mortal(death, proposer))
        return table(Path(home))


class History(RuleBasedStateMachine):
    """One study and all that happens to it."""

    proposer: type[Any] = FakeProposer

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory(dir=MEMORY)
        self.folder = Path(self.home.name)
        self.done: dict[int, TrialRow] = {}
        self.losses: Counter[int] = Counter()
        self.n_kills = self.n_torn = 0
        self.torn: set[Path] = set()

    @initialize(
        scheduling=st.sampled_from(["async", "batch"]),
        rule=st.sampled_from(["none", "halving", "median"]),
        replicates=st.sampled_from([1, 2]),
        minimise=st.sampled_from([(), ("n_parameters",)]),
        compact_at=st.sampled_from([3, 1000]),
        seed=st.integers(0, 3),
    )
    def begin(
        self,
        scheduling: str,
        rule: str,
        replicates: int,
        minimise: tuple[str, ...],
        compact_at: int,
        seed: int,
    ) -> None:
        pruning = {"rule": rule, "first_epoch": 1, "reduction": 2, "startup_trials": 2}
        self.spec = study(
            seed=seed,
            scheduling=scheduling,
            replicates=replicates,
            minimise=minimise,
            pruning=pruning,
        )
        self.compact_at = compact_at

    @rule(
        workers=st.integers(1, 5),
        chance=st.integers(0, 2**32),
        fault_rate=st.sampled_from([0.0, 0.1, 0.6]),
        dies_after=st.integers(0, 60) | st.integers(0, 300) | st.none(),
        seconds=st.none() | st.floats(0.5, 40.0),
    )
    def run(
        self,
        workers: int,
        chance: int,
        fault_rate: float,
        dies_after: int | None,
        seconds: float | None,
    ) -> None:
        """Run the study until it is over, the budget is spent, or the driver is dead."""
        death, dice = Death(dies_after), random.Random(chance)
        faults = chance_of(random.Random(chance + 1), fault_rate)
        if self.spec.scheduling == "batch":
            faults = seldom(faults, self.losses, MAX_CRASHES - 1)
        executor = Gossip(
            curves,
            workers=workers,
            seed=chance,
            speeds=(1.0, 3.0, 0.5),
            spread=0.5,
            faults=faults,
            death=death,
            chance=dice,
        )
        budget = {} if seconds is None else {"wall_seconds": self.spent + seconds}
        spec = self.spec.model_copy(
            update={"budget": self.spec.budget.model_validate(budget), "n_trials": self.n_trials}
        )
        try:
            with mortality(death, self.compact_at):
                drive(spec, self.folder, executor, proposer=mortal(death, self.proposer))
        except Killed:
            self.n_kills += 1
        else:
            assert executor.free == workers, "a trial was left on its worker"
        self.nothing_finished_is_lost_or_changed()

    @property
    def spent(self) -> float:
        return read_log(self.folder).state.spent.wall_seconds

    @property
    def n_trials(self) -> int:
        return self.spec.n_trials

    @precondition(lambda self: self.n_trials < MAX_TRIALS)
    @rule()
    def ask_for_more_trials(self) -> None:
        # A whole number of batches: the last one does not depend on when it was filled up.
        self.spec = self.spec.model_copy(update={"n_trials": self.n_trials + 4})

    @precondition(lambda self: any(self.folder.glob("checkpoints/*/attempt-*/epoch-*.pt")))
    @rule(which=st.integers(0, 100), size=st.integers(0, 5))
    def tear_a_checkpoint(self, which: int, size: int) -> None:
        paths = sorted(self.folder.glob("checkpoints/*/attempt-*/epoch-*.pt"))
        path = paths[which % len(paths)]
        path.write_bytes(path.read_bytes()[:size])
        self.n_torn += 1

    @precondition(lambda self: self.single_files and not self.parts)
    @rule(which=st.integers(0, 100))
    def tear_a_commit_marker(self, which: int) -> None:
        """A trial whose row cannot be read any more runs again, and is not told again."""
        path = self.single_files[which % len(self.single_files)]
        path.write_bytes(path.read_bytes()[:40])
        self.done.pop(int(path.name[:6]), None)
        self.torn.add(path)

    @property
    def single_files(self) -> list[Path]:
        return sorted(self.folder.glob("trials/[0-9]*.parquet"))

    @property
    def parts(self) -> list[Path]:
        return sorted(self.folder.glob("trials/part-*.parquet"))

    def nothing_finished_is_lost_or_changed(self) -> None:
        now = find_done(self.folder).done
        assert {i: row for i, row in now.items() if i in self.done} == self.done
        assert all(row.status.is_final for row in now.values())
        self.done = now

    def teardown(self) -> None:
        try:
            if hasattr(self, "spec"):
                self.run(workers=2, chance=0, fault_rate=0.0, dies_after=None, seconds=None)
                self.every_trial_is_there_once()
                self.every_proposal_is_told_once_and_as_it_is_stored()
                self.attempts_are_bounded()
                self.nothing_is_left_over()
                if self.spec.scheduling == "batch":
                    calm = undisturbed(self.spec.model_dump_json(), self.proposer)
                    assert table(self.folder) == calm
        finally:
            self.home.cleanup()

    def every_trial_is_there_once(self) -> None:
        assert sorted(self.done) == list(range(self.n_trials))
        tables, unreadable = read_tables(self.folder)
        assert {file.path for file in unreadable} <= self.torn, "reported as long as it is there"
        assert not tables["trials"]["trial_id"].duplicated().any()
        assert not tables["curves"].duplicated(["trial_id", "epoch"]).any()
        assert not tables["evidence"].duplicated(["trial_id", "epoch", "estimator"]).any()
        for row in tables["trials"].itertuples():
            replicate = row.trial_id % self.spec.replicates
            assert row.replicate % self.spec.replicates == replicate
            assert row.seed == derive_seed(self.spec.seed, int(row.trial_id), int(row.replicate))
            if row.status in ("complete", "pruned"):
                curve = tables["curves"][tables["curves"]["trial_id"] == row.trial_id]
                assert list(curve["epoch"]) == list(range(1, row.epochs + 1))

    def every_proposal_is_told_once_and_as_it_is_stored(self) -> None:
        n = n_proposals(self.spec)
        proposals = asked_in(self.folder)
        assert len(proposals) == n
        for number, proposal in enumerate(proposals):
            for trial_id in trials_of(number, self.spec):
                assert self.done[trial_id].architecture == proposal
        asked = [e.number for e in facts_in(self.folder, "ask")]
        told = [e.number for e in facts_in(self.folder, "tell")]
        assert asked == list(range(n))
        again = {number for number in range(n) if self.ran_again(number)}
        assert sorted(told if not again else {*told}) == list(range(n))
        if self.spec.scheduling == "batch":
            assert told == asked
        assert told_in(self.folder) == {number: self.stored(number) for number in range(n)}

    def stored(self, number: int) -> ProposalResult:
        return result_of([self.done[i] for i in trials_of(number, self.spec)], self.spec)

    def ran_again(self, number: int) -> bool:
        """Tell whether a trial, its row torn, was judged anew among other rivals."""
        torn = {int(path.name[:6]) for path in self.torn}
        return self.spec.scheduling == "async" and not torn.isdisjoint(
            trials_of(number, self.spec)
        )

    def attempts_are_bounded(self) -> None:
        losses = facts_in(self.folder, "lost")
        lost = Counter(e.trial_id for e in losses if e.epoch is not None)
        small = Counter(e.trial_id for e in losses if e.share is not None)
        parked = Counter(e.trial_id for e in facts_in(self.folder, "park"))
        again = Counter(e.trial_id for e in facts_in(self.folder, "retry"))
        assert all(count <= 1 + again[i] for i, count in small.items())
        for trial_id, row in self.done.items():
            bound = 1 + lost[trial_id] + small[trial_id] + parked[trial_id] + self.n_kills
            assert row.attempt <= bound + again[trial_id]
            if "attempts lost" in row.cause:
                assert row.status is TrialStatus.FAILED
                assert lost[trial_id] >= MAX_CRASHES

    def nothing_is_left_over(self) -> None:
        assert not list((self.folder / "checkpoints").iterdir())
        assert not list(self.folder.glob("*/.*"))
        weights = {int(path.stem) for path in (self.folder / "models").glob("*")}
        complete = {i for i, row in self.done.items() if row.status is TrialStatus.COMPLETE}
        assert weights == complete


class SamplerHistory(History):
    """The same with the real sampler."""

    proposer = Proposer


def histories(machine: type[History], *, n: int, steps: int) -> Callable[[], None]:
    case = machine.TestCase
    case.settings = settings(
        max_examples=EXAMPLES or n,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    return case


class AnotherHistory(History):
    """The same, of which more are drawn."""


class HistoryOfTheDay(History):
    """The same, drawn anew each day."""


def run_histories(machine: type[History], *, n: int, seed: int) -> None:
    """Run histories that follow from a seed; without shrinking, which takes minutes."""
    drawn = settings(histories(machine, n=n, steps=6).settings, derandomize=False)
    run_state_machine_as_test(seeded(seed)(machine), settings=drawn)


TestAnyHistory = pytest.mark.long(pytest.mark.slow(histories(History, n=20, steps=6)))
TestManyHistories = pytest.mark.soak(pytest.mark.slow(histories(AnotherHistory, n=60, steps=6)))
TestAnyHistoryOfTheSampler = pytest.mark.slow(histories(SamplerHistory, n=3, steps=4))


@pytest.mark.long
@pytest.mark.slow
def test_any_history_of_today() -> None:
    """NAS_EVIDENCE_DAY, an ordinal of the calendar, draws the histories of another day."""
    day = int(os.environ.get("NAS_EVIDENCE_DAY") or datetime.date.today().toordinal())
    try:
        run_histories(HistoryOfTheDay, n=6, seed=day)
    except BaseException as error:
        where = "tests/driver/test_service_machine.py -k history_of_today"
        error.add_note(f"replay: NAS_EVIDENCE_DAY={day} python -m pytest -q {where}")
        raise


@pytest.mark.slow
def test_batches_that_waited_for_a_torn_trial_are_told_after_its_batch() -> None:
    """Trials 0 and 1 run again; 2 and 3, of the next batch, end before them."""
    state = History()
    state.begin(
        scheduling="batch",
        rule="halving",
        replicates=1,
        minimise=("n_parameters",),
        compact_at=3,
        seed=3,
    )
    state.run(chance=657, dies_after=192, fault_rate=0.6, seconds=20.153060873409597, workers=3)
    state.tear_a_commit_marker(which=76)
    state.ask_for_more_trials()
    state.tear_a_commit_marker(which=19)
    assert [path.name[:6] for path in sorted(state.torn)] == ["000000", "000001"]
    state.run(chance=67126952, dies_after=2, fault_rate=0.0, seconds=5.501910651640491, workers=5)
    state.teardown()
