"""The virtual clock: events in time order, faults as planned, results that no accident changes."""

import dataclasses
from pathlib import Path

import pytest
from learning_curves import SimulatedTrial, synthetic
from simulated import Fault, SimulatedExecutor, chance_faults

from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, LimitSpec, StudySpec
from nas_evidence.workers.executor import Event, Launch, Lost

STUDY = StudySpec(
    name="simulated",
    dataset=DatasetSpec(name="digits"),
    family={"mlp": {"width": {"low": 8, "high": 64}}},
    plan={"epochs": 6, "online": {"every": 2}},
)


def launch(
    trial_id: int, folder: Path, attempt: int = 1, resume: Path | None = None, **limits: int
) -> Launch:
    assignment = Assignment(
        trial_id=trial_id,
        attempt=attempt,
        replicate=0,
        architecture=ArchitectureSpec(family="mlp", values={"width": 8 + trial_id % 57}),
        dataset=STUDY.dataset,
        plan=STUDY.plan,
        estimators=STUDY.estimators,
        limits=LimitSpec(**limits),
        seed=trial_id,
    )
    return Launch(assignment, folder / f"{trial_id}-{attempt}", resume)


def run(
    executor: SimulatedExecutor,
    launches: list[Launch],
    *,
    retry: bool = False,
    timeout: float | None = 1000.0,
) -> tuple[list[TrialRecord], list[tuple[float, Event]]]:
    """Drive all trials to their ends; lost ones go on from their checkpoints if `retry`."""
    waiting, n_running, records, log = list(launches), 0, [], []
    under_way: dict[int, Launch] = {}
    while waiting or n_running:
        while waiting and executor.free:
            under_way[waiting[0].assignment.trial_id] = waiting[0]
            executor.launch(waiting.pop(0))
            n_running += 1
        (event,) = executor.poll(timeout=1.0)
        log.append((executor.now(), event))
        if isinstance(event, SliceReport):
            if event.done:
                executor.finish(event.trial_id)
            else:
                executor.advance(event.trial_id, event.epoch + 2, timeout=timeout)
            continue
        n_running -= 1
        if isinstance(event, TrialRecord):
            records.append(event)
        elif retry:
            old = under_way[event.trial_id]
            folder = old.folder.parent
            resume = old.folder if any(old.folder.glob("epoch-*.pt")) else old.resume_from
            waiting.append(launch(event.trial_id, folder, event.attempt + 1, resume))
    return records, log


def prepared(launches: list[Launch]) -> list[Launch]:
    for one in launches:
        one.folder.mkdir(parents=True, exist_ok=True)
    return launches


@pytest.mark.slow
def test_events_come_in_the_order_of_time_and_again_the_same(tmp_path: Path) -> None:
    logs = []
    for _ in range(2):
        executor = SimulatedExecutor(synthetic, workers=5, seed=3, speeds=(1, 2, 0.5))
        logs.append(run(executor, prepared([launch(i, tmp_path) for i in range(20)]))[1])
    assert logs[0] == logs[1]
    times = [time for time, _ in logs[0]]
    assert times == sorted(times)
    other = SimulatedExecutor(synthetic, workers=5, seed=4, speeds=(1, 2, 0.5))
    order = [e.trial_id for _, e in run(other, [launch(i, tmp_path) for i in range(20)])[1]]
    assert order != [e.trial_id for _, e in logs[0]]


def test_what_is_found_does_not_depend_on_workers_faults_or_resumption(tmp_path: Path) -> None:
    calm = SimulatedExecutor(synthetic, workers=1, seed=0)
    expected, _ = run(calm, prepared([launch(i, tmp_path / "calm") for i in range(30)]))
    wild = SimulatedExecutor(
        synthetic,
        workers=7,
        seed=1,
        speeds=(1, 3),
        faults=chance_faults(5, lost=0.2, hung=0.1, slow=0.1),
    )
    launches = prepared([launch(i, tmp_path / "wild") for i in range(30)])
    found, log = run(wild, launches, retry=True)
    causes = {event.cause for _, event in log if isinstance(event, Lost)}
    assert causes == {"the worker process crashed", "no answer for 1000 s"}
    by_id = {record.trial_id: record.model_copy(update={"attempt": 1}) for record in found}
    assert by_id == {record.trial_id: record for record in expected}


def test_the_record_holds_the_curve_and_every_score_at_every_evaluation(tmp_path: Path) -> None:
    (record,), _ = run(
        SimulatedExecutor(synthetic, workers=1, seed=0), prepared([launch(3, tmp_path)])
    )
    assert record.status is TrialStatus.COMPLETE
    assert [point.epoch for point in record.curve] == [1, 2, 3, 4, 5, 6]
    assert {e.epoch for e in record.evaluations} == {2, 4, 6}
    last = record.curve[-1]
    losses = [point.train_nll_per_datum for point in record.curve]
    assert last.sotl == pytest.approx(sum(losses), rel=1e-12)
    assert last.sotl_e == pytest.approx(losses[-1], rel=1e-12)
    decayed = sum(0.9 ** (6 - t) * loss for t, loss in enumerate(losses, start=1))
    assert last.sotl_ema == pytest.approx(decayed, rel=1e-12)
    estimate = record.final_estimate("kfac_ggn")
    assert estimate.value == pytest.approx(1000 * estimate.per_datum, rel=1e-12)
    for name in ("sotl", "sotl_e", "sotl_ema", "prequential_epoch1", "n_parameters"):
        assert record.final_estimate(name) is not None
    files = {path.name for path in launch(3, tmp_path).folder.iterdir()}
    assert files == {"epoch-000004.pt", "epoch-000006.pt", "model.safetensors"}


def test_a_torn_checkpoint_costs_a_slice_and_not_the_trial(tmp_path: Path) -> None:
    first = launch(0, tmp_path)
    run(SimulatedExecutor(synthetic, workers=1, seed=0), prepared([first]))
    (first.folder / "epoch-000006.pt").write_text("epo")
    executor = SimulatedExecutor(synthetic, workers=1, seed=0)
    executor.launch(*prepared([launch(0, tmp_path, 2, first.folder)]))
    (report,) = executor.poll(1.0)
    assert isinstance(report, SliceReport)
    assert report.epoch == 4


def test_a_slow_slice_is_waited_for_and_lost_only_after_the_timeout(tmp_path: Path) -> None:
    for timeout, expected in ((1000.0, SliceReport), (10.0, Lost)):
        executor = SimulatedExecutor(
            synthetic, workers=1, seed=0, faults=lambda a, e: Fault("slow", factor=20.0)
        )
        executor.launch(*prepared([launch(0, tmp_path)]))
        executor.poll(1.0)
        executor.advance(0, 2, timeout=timeout)
        (event,) = executor.poll(1.0)
        assert isinstance(event, expected)
    assert executor.now() == 10.0


def test_out_of_memory_at_a_share_that_is_too_small_and_not_at_a_larger_one(
    tmp_path: Path,
) -> None:
    def curves(assignment: Assignment) -> SimulatedTrial:
        return SimulatedTrial(
            1.0, lambda epoch: {}, lambda epoch: 1.0, share=0.25, needs_share=0.5
        )

    executor = SimulatedExecutor(curves, workers=1, seed=0)
    small = launch(0, tmp_path)
    large = Launch(small.assignment, small.folder, None, min_share=0.5)
    (first,), _ = run(executor, prepared([small]))
    (second,), _ = run(executor, [large])
    assert (first.status, first.gpu_share) == (TrialStatus.OUT_OF_MEMORY, 0.25)
    assert (second.status, second.gpu_share) == (TrialStatus.COMPLETE, 0.5)


def test_a_trial_may_end_badly_at_its_epoch_or_above_a_limit(tmp_path: Path) -> None:
    def curves(assignment: Assignment) -> SimulatedTrial:
        return SimulatedTrial(
            1.0,
            lambda epoch: {"diag_ef": -1.0},
            lambda epoch: 1.0,
            status=TrialStatus.DIVERGED,
            ends_at=3,
            costs={"n_parameters": 100},
        )

    executor = SimulatedExecutor(curves, workers=1, seed=0)
    (record,), _ = run(executor, prepared([launch(0, tmp_path)]))
    assert (record.status, record.epochs) == (TrialStatus.DIVERGED, 3)
    assert {e.epoch for e in record.evaluations} == {2}
    assert not (launch(0, tmp_path).folder / "model.safetensors").exists()
    (above,), _ = run(executor, prepared([launch(1, tmp_path, n_parameters=99)]))
    assert (above.status, above.epochs) == (TrialStatus.INFEASIBLE, 0)
    assert above.cause == "n_parameters 100 > 99 allowed"


def test_trainings_before_the_first_epoch_take_their_slices_and_their_time(tmp_path: Path) -> None:
    def curves(assignment: Assignment) -> SimulatedTrial:
        plain = dataclasses.replace(synthetic(assignment), seconds_per_epoch=1.0)
        return dataclasses.replace(plain, slices_before=3, slice_seconds_before=10.0)

    pool = SimulatedExecutor(curves, workers=1, seed=0, spread=0.0)
    pool.launch(launch(0, tmp_path))
    (first,) = pool.poll(1.0)
    assert isinstance(first, SliceReport)
    found = [first]
    while not found[-1].done:
        pool.advance(0, found[-1].epochs)
        found += [event for event in pool.poll(1.0) if isinstance(event, SliceReport)]
    assert [report.epoch for report in found] == [0, 0, 0, 0, first.epochs]
    assert pool.now() == pytest.approx(30.0 + first.epochs)
