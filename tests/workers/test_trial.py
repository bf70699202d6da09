"""Trials: one path, failures as rows, bit-identical after any resume, blind to test labels."""

import dataclasses
import errno
import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lone_trials import (
    assert_parking_changes_nothing,
    ended,
    mlp_assignment,
    trained_part,
)
from records import asked

from nas_evidence.data import ArrayData, load
from nas_evidence.data.arrays import check_task
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.driver.runtime import Pieces, trial_seconds
from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.schedule import next_stop
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    LimitSpec,
    TrainingPlan,
)
from nas_evidence.testing.executor_contract import without_times
from nas_evidence.training import life, loop, online
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.online import Passes
from nas_evidence.training.parts import part_of
from nas_evidence.workers.trial import Trial

PLAN = {"epochs": 5, "batch_size": 64, "learning_rate": 0.05, "online": {"every": 2}}


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(DatasetSpec(name="digits", max_train=300, max_test=100), seed=0)


@pytest.fixture(scope="module")
def data(arrays: ArrayData) -> TensorData:
    return to_tensors(arrays, "cpu")


def assignment(family: str = "cnn", plan: dict[str, object] | None = None, **values: int):
    sizes = {"cnn": {"depth": 2, "width": 4}, "mlp": {"depth": 1, "width": 16}}
    architecture = ArchitectureSpec(family=family, values=sizes.get(family, {}) | values)
    kinds = ("diag_ef", "kfac_ggn", "kfac_ggn_mc")
    return asked(architecture, kinds, trial_id=3, seed=11, **({"settle": 0} | PLAN | (plan or {})))


def run(given: Assignment, data: TensorData, folder: Path, *, slices: int = 99) -> TrialRecord:
    trial = Trial.start(given, data, folder)
    for until in range(slices, given.plan.epochs + slices, slices):
        trial.advance(until)
    return ended(trial)  # linear networks settle


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "mlp", "cnn", "resnet"])
def test_a_trial_of_every_family_completes_with_every_score(
    data: TensorData, tmp_path: Path, family: str
) -> None:
    values = {"depth": 8, "width": 4} if family == "resnet" else {}
    record = run(assignment(family, **values), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE, record.error
    assert record.epochs == len(record.curve) == 5
    assert sorted({e.epoch for e in record.evaluations}) == [2, 4, 5]
    names = [e.estimate.estimator for e in record.evaluations if e.epoch == 5]
    assert sorted(names) == sorted(
        ["diag_ef", "kfac_ggn", "kfac_ggn_mc", "sotl", "sotl_e", "sotl_ema",
         "prequential_epoch1", "train_nll_per_datum", "n_parameters"]
    )  # fmt: skip
    assert all(e.estimate.valid for e in record.evaluations)
    assert record.test_accuracy is not None
    assert (tmp_path / "model.safetensors").is_file()


def test_a_trial_of_a_tree_that_is_not_installed_completes_and_its_record_says_source(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    record = run(assignment("mlp", {"epochs": 1}), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE, record.error
    assert json.loads(record.versions)["nas-evidence"] == "source"


@pytest.mark.slow
def test_scores_of_the_curve_have_their_signs_and_definitions(
    data: TensorData, tmp_path: Path
) -> None:
    record = run(assignment(), data, tmp_path)
    losses = [point.train_nll_per_datum for point in record.curve]
    last = {e.estimate.estimator: e.estimate for e in record.evaluations if e.epoch == 5}
    assert last["sotl"].value == pytest.approx(-sum(losses), rel=1e-14)
    assert last["sotl_e"].value == -losses[-1] == last["train_nll_per_datum"].value
    ema = sum(0.9 ** (5 - t) * loss for t, loss in enumerate(losses, start=1))
    assert last["sotl_ema"].value == pytest.approx(-ema, rel=1e-14)
    assert last["prequential_epoch1"].value == pytest.approx(-300 * losses[0], rel=1e-14)
    assert last["prequential_epoch1"].per_datum == pytest.approx(-losses[0], rel=1e-14)
    assert last["n_parameters"].value == record.n_parameters
    assert last["sotl"].per_datum is None
    for name in ("diag_ef", "kfac_ggn"):
        assert last[name].per_datum == pytest.approx(last[name].value / 300, rel=1e-14)


def test_evidence_is_the_sum_of_its_terms(data: TensorData, tmp_path: Path) -> None:
    record = run(assignment(), data, tmp_path)
    for evaluation in record.evaluations:
        terms = evaluation.estimate.terms
        if not terms:
            continue
        total = {
            name: sum(t.value for t in terms if t.term == name)
            for name in ("log_likelihood", "scatter", "log_det_ratio")
        }
        expected = total["log_likelihood"] - 0.5 * (total["scatter"] + total["log_det_ratio"])
        assert evaluation.estimate.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("family", ["cnn", "mlp"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_resumed_trial_ends_bit_identical_to_an_undisturbed_one(
    data: TensorData, tmp_path: Path, family: str, optimiser: str
) -> None:
    given = assignment(family, {"optimiser": optimiser})
    whole = run(given, data, tmp_path / "whole")
    for cut in (1, 4, 5):
        folder = tmp_path / f"cut{cut}"
        Trial.start(given, data, folder).advance(cut)
        torch.manual_seed(cut)  # another process, another global state
        again = given.model_copy(update={"attempt": 2})
        trial = Trial.start(again, data, folder / "2", resume_from=folder)
        assert trial.report().epoch == cut
        trial.advance(5)
        assert without_times(trial.finish()) == without_times(whole)
        old, new = tmp_path / "whole" / "model.safetensors", folder / "2" / "model.safetensors"
        assert old.read_bytes()[-1000:] == new.read_bytes()[-1000:]


@pytest.mark.slow
def test_slicing_changes_nothing(data: TensorData, tmp_path: Path) -> None:
    one = run(assignment(), data, tmp_path / "one")
    five = run(assignment(), data, tmp_path / "five", slices=1)
    assert without_times(one) == without_times(five)


@pytest.mark.slow
def test_a_torn_newest_checkpoint_costs_a_slice_and_not_the_trial(
    data: TensorData, tmp_path: Path
) -> None:
    trial = Trial.start(assignment(), data, tmp_path)
    trial.advance(2)
    trial.advance(4)
    newest = tmp_path / "epoch-000004.pt"
    newest.write_bytes(newest.read_bytes()[:100])
    again = Trial.start(assignment(), data, tmp_path / "2", resume_from=tmp_path)
    assert again.report().epoch == 2
    again.advance(5)
    assert without_times(again.finish()) == without_times(
        run(assignment(), data, tmp_path / "whole")
    )


def test_the_network_of_all_rows_is_what_it_was_when_its_folds_trained_beside_it(
    data: TensorData, tmp_path: Path
) -> None:
    """Numbers of the version that trained them in one program; float32 of other machines."""
    scores = ("diag_ef", "kfac_ggn", "two_fold", "five_fold", "conditional_evidence", "elpd")
    record = run(assignment("mlp").model_copy(update={"estimators": scores}), data, tmp_path)
    assert record.test_nll_per_datum == pytest.approx(0.6880681089902179, rel=1e-4)
    known = {"diag_ef": -729.0365068242006, "kfac_ggn": -634.3011457821816,
             "conditional_evidence": -56.65738984389418, "elpd": -88.24124734920795,
             "sotl": -6.526699591477712}  # fmt: skip
    for name, value in known.items():
        estimate = record.final_estimate(name)
        assert estimate is not None
        assert estimate.value == pytest.approx(value, rel=1e-4)


@dataclasses.dataclass
class Clock:
    """Moves on by 0.75 s with each slice."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, trial: Trial) -> SliceReport:
        report = None
        with pytest.MonkeyPatch.context() as patch:

            def timed(*given: Any, **how: Any) -> Any:
                self.now += 0.75
                return life.advance(*given, **how)

            patch.setattr("nas_evidence.workers.trial.advance", timed)
            report = trial.advance(trial.report().epoch + 2)
        return report


def test_a_kill_costs_two_seconds_of_work_and_not_every_slice_is_written(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = assignment("mlp", {"epochs": 10})
    monkeypatch.delenv("NAS_EVIDENCE_SAVE_EVERY")
    clock, folder = Clock(), tmp_path / "attempt-1"
    trial = Trial.start(given, data, folder, clock=clock)
    written = [clock.run(trial).saved for _ in range(4)]
    assert written == [False, False, True, False]
    assert [path.name for path in folder.iterdir()] == ["epoch-000006.pt"]
    del trial  # killed after 3 s of work, of which 0.75 s are lost
    again = given.model_copy(update={"attempt": 2})
    second = Trial.start(again, data, tmp_path / "attempt-2", resume_from=folder)
    assert (second.report().epoch, second.report().saved) == (6, True)
    assert without_times(ended(second)) == without_times(run(given, data, tmp_path / "whole"))
    monkeypatch.setenv("NAS_EVIDENCE_SAVE_EVERY", "0")  # what other tests have
    often = Trial.start(given, data, tmp_path / "often", clock=Clock())
    assert all(Clock().run(often).saved for _ in range(3))


def test_a_parked_trial_is_written_and_a_slice_that_broke_off_is_not(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_EVIDENCE_SAVE_EVERY", "1000")
    trial = Trial.start(assignment("mlp"), data, tmp_path)
    trial.save()
    assert not [*tmp_path.iterdir()]  # nothing is done yet
    trial.advance(2)
    trial.save()
    trial.save()
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000002.pt"]

    def broken(*given: object, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nas_evidence.workers.trial.advance", broken)
    with pytest.raises(KeyboardInterrupt):
        trial.advance(4)
    trial.save()
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000002.pt"]


@pytest.mark.slow
def test_a_checkpoint_of_another_trial_is_not_taken_up(data: TensorData, tmp_path: Path) -> None:
    Trial.start(assignment(width=5), data, tmp_path).advance(2)
    trial = Trial.start(assignment(), data, tmp_path / "2", resume_from=tmp_path)
    assert trial.report().epoch == 0


@pytest.mark.slow
def test_trials_one_after_another_in_one_process_do_not_touch_each_other(
    data: TensorData, tmp_path: Path
) -> None:
    fresh = run(assignment(), data, tmp_path / "1")
    run(assignment("mlp"), data, tmp_path / "2")
    torch.rand(17)
    assert without_times(run(assignment(), data, tmp_path / "3")) == without_times(fresh)


@pytest.mark.slow
def test_permuting_the_test_labels_changes_nothing_but_test_columns(
    arrays: ArrayData, tmp_path: Path
) -> None:
    mixed = np.random.default_rng(0).permutation(arrays.y_test)
    other = dataclasses.replace(arrays, y_test=mixed)
    one = without_times(run(assignment(), to_tensors(arrays, "cpu"), tmp_path / "1"))
    two = without_times(run(assignment(), to_tensors(other, "cpu"), tmp_path / "2"))
    assert one["test_accuracy"] != two["test_accuracy"]
    for key in ("test_accuracy", "test_nll_per_datum"):
        one.pop(key), two.pop(key)
    assert one == two


def test_divergence_is_a_row(data: TensorData, tmp_path: Path) -> None:
    record = run(assignment(plan={"learning_rate": 1e6}), data, tmp_path)
    assert record.status is TrialStatus.DIVERGED
    assert "training loss is" in record.cause
    assert record.test_accuracy is None


def test_what_the_input_cannot_carry_is_infeasible_with_its_reason(
    data: TensorData, tmp_path: Path
) -> None:
    record = run(assignment(depth=5), data, tmp_path)
    assert record.status is TrialStatus.INFEASIBLE
    assert "8" in record.cause
    assert record.epochs == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), TrialStatus.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), TrialStatus.OUT_OF_MEMORY),
        (RuntimeError("a bug in the model"), TrialStatus.FAILED),
        (RuntimeError("\n  a cause after an empty line\n"), TrialStatus.FAILED),
    ],
)
def test_an_exception_becomes_a_row_with_cause_and_traceback(
    data: TensorData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: TrialStatus,
) -> None:
    def explode(*args: object, **known: object) -> None:
        raise error

    trial = Trial.start(assignment(), data, tmp_path)
    monkeypatch.setattr("nas_evidence.training.life.train_epochs", explode)
    report = trial.advance(5)
    assert report.done
    record = trial.finish()
    assert record.status is status
    assert str(error).strip() in record.cause
    assert ("explode" in record.error) == (status is TrialStatus.FAILED)


@pytest.mark.parametrize(("likelihood", "task"), [("gaussian", "labels"), ("categorical", "real")])
def test_a_likelihood_that_does_not_fit_the_targets_is_refused_with_the_remedy(
    arrays: ArrayData, data: TensorData, tmp_path: Path, likelihood: str, task: str
) -> None:
    plan = TrainingPlan(likelihood=likelihood)
    other = {"gaussian": "categorical", "categorical": "gaussian"}[likelihood]
    match = f'must be "{other}".* but got "{likelihood}"; set likelihood = "{other}"'
    with pytest.raises(ValueError, match=match):
        check_task(plan, dataclasses.replace(arrays, task=task))
    check_task(TrainingPlan(likelihood=other), dataclasses.replace(arrays, task=task))
    record = run(
        assignment(plan={"likelihood": likelihood}),
        dataclasses.replace(data, task=task),
        tmp_path,
    )
    assert record.status is TrialStatus.FAILED
    assert other in record.cause


def test_costs_are_reported_from_the_start_and_recorded(data: TensorData, tmp_path: Path) -> None:
    trial = Trial.start(assignment(), data, tmp_path, gpu_share=0.25)
    first = trial.report()
    assert set(first.costs) == {"n_parameters", "flops", "latency_seconds"}
    assert first.seconds == 0
    report = trial.advance(5)
    assert report.costs == first.costs
    assert report.seconds > 0
    record = trial.finish()
    assert record.model_dump(include=set(first.costs)) == dict(first.costs)
    assert record.n_parameters == sum(p.numel() for p in trial.network.model.parameters())
    assert record.memory_bytes is not None
    assert record.gpu_share == 0.25


@pytest.mark.parametrize(("name", "limit"), [("n_parameters", 10), ("memory_bytes", 10)])
def test_what_costs_more_than_is_allowed_is_infeasible(
    data: TensorData, tmp_path: Path, name: str, limit: float
) -> None:
    given = assignment().model_copy(update={"limits": LimitSpec(**{name: limit})})
    trial = Trial.start(given, data, tmp_path)
    assert trial.report().done
    record = trial.finish()
    assert record.status is TrialStatus.INFEASIBLE
    assert record.cause.startswith(f"{name} ")
    assert record.cause.endswith(f" > {limit:g} allowed")
    assert record.epochs == 0
    assert record.n_parameters is not None  # so that a sampler can learn from it
    wide = assignment().model_copy(update={"limits": LimitSpec(**{name: 10**12})})
    assert not Trial.start(wide, data, tmp_path).report().done


def test_a_factor_too_wide_to_decompose_is_infeasible_with_its_remedy(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.curvature.wide.WIDEST", 8)
    record = run(assignment(), data, tmp_path)
    assert record.status is TrialStatus.INFEASIBLE
    assert "has a Kronecker factor of side" in record.cause
    assert "use diag_ef or diag_ggn instead of" in record.cause
    assert record.epochs == 0
    assert record.n_parameters is not None


@pytest.mark.slow
def test_a_resumed_trial_keeps_its_latency(data: TensorData, tmp_path: Path) -> None:
    trial = Trial.start(assignment(), data, tmp_path)
    trial.advance(2)
    again = Trial.start(assignment(), data, tmp_path / "2", resume_from=tmp_path)
    assert again.report().costs == trial.report().costs


@pytest.mark.slow
@pytest.mark.parametrize("status", [TrialStatus.PRUNED, TrialStatus.CANCELLED])
def test_a_verdict_ends_a_trial_that_runs_and_no_other(
    data: TensorData, tmp_path: Path, status: TrialStatus
) -> None:
    trial = Trial.start(assignment(), data, tmp_path)
    trial.advance(2)
    record = trial.finish(status, "below the median")
    assert (record.status, record.cause) == (status, "below the median")
    assert (record.epochs, record.test_accuracy) == (2, None)
    assert {e.epoch for e in record.evaluations} == {2}
    assert not (tmp_path / "model.safetensors").exists()
    diverged = Trial.start(assignment(plan={"learning_rate": 1e6}), data, tmp_path / "2")
    diverged.advance(5)
    assert diverged.finish(status, "below the median").status is TrialStatus.DIVERGED
    whole = Trial.start(assignment(), data, tmp_path / "3")
    whole.advance(5)
    assert whole.finish(status, "too late").cause == ""


@pytest.mark.slow
def test_a_full_disk_is_not_the_networks_failure(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trial = Trial.start(assignment("mlp"), data, tmp_path)
    trial.advance(2)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*epoch-000005.pt'"):
            trial.advance(5)
    assert [p.name for p in tmp_path.iterdir()] == ["epoch-000002.pt"]  # nothing torn is left
    again = Trial.start(assignment("mlp"), data, tmp_path / "2", resume_from=tmp_path)
    again.advance(5)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*model.safetensors'"):
            again.finish()
    assert without_times(again.finish()) == without_times(
        run(assignment("mlp"), data, tmp_path / "whole")
    )


@pytest.mark.slow
def test_the_prior_alone_regularises_as_ridge_regression_does(data: TensorData) -> None:
    # At the end of long training of a linear model the gradient of the objective vanishes:
    # grad nll_sum + delta theta = 0 for each tensor, delta held fixed.
    given = assignment(
        "linear",
        {"epochs": 400, "batch_size": 300, "learning_rate": 0.3, "prior_precision": 5.0,
         "schedule": "constant", "online": {"burn_in": 1000}},
    )  # fmt: skip
    trial = Trial.start(given, data, Path("unused"))
    training = trial.network
    for _ in range(400):
        loop.train_epoch(training)
    model = training.model.double()
    loss = torch.nn.functional.cross_entropy(
        model(data.x_train.double()), data.y_train, reduction="sum"
    )
    parameters = list(model.parameters())
    for gradient, p in zip(torch.autograd.grad(loss, parameters), parameters, strict=True):
        torch.testing.assert_close(gradient, -5.0 * p.detach(), atol=2e-2, rtol=1e-3)


def test_learning_rates_follow_their_schedules() -> None:
    plan = assignment(plan={"schedule": "steps", "milestones": [2, 4], "learning_rate": 1.0}).plan
    rates = [loop.learning_rate(plan, e) for e in range(1, 6)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = assignment(plan={"schedule": "cosine", "learning_rate": 1.0}).plan
    assert [loop.learning_rate(cosine, e) for e in (1, 6)] == pytest.approx([1.0, 0.0])


# --- A trial settles after its scheduled epochs: its rows, its slices, and trainings on parts


@pytest.fixture(scope="module")
def settling_data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=120, max_test=50)
    return to_tensors(load(spec, seed=0), "cpu")


def given(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 4, "settle": 3.0} | plan))  # type: ignore[arg-type]


def test_the_record_says_which_state_is_kept_and_how_far_from_a_mode_it_is(
    settling_data: TensorData, tmp_path: Path
) -> None:
    record = ended(Trial.start(given("diag_ef", "kfac_ggn"), settling_data, tmp_path))
    assert record.status is TrialStatus.COMPLETE
    assert record.kept in ("settled", "scheduled")
    assert record.decrement_per_datum >= 0
    assert record.converged is not None
    assert record.settle_seconds > 0
    estimate = record.final_estimate("kfac_ggn")
    terms = {t.term: t.value for t in estimate.terms if t.group == "all"}
    # A Kronecker-factored inverse in place of the exact one: of the same size.
    assert terms["gradient_norm_squared"] / 120 < 10 * record.decrement_per_datum + 0.01


def test_a_budget_of_zero_is_the_scheduled_training_alone(
    settling_data: TensorData, tmp_path: Path
) -> None:
    record = ended(Trial.start(given("diag_ef", settle=0), settling_data, tmp_path))
    assert (record.converged, record.kept) == (False, "scheduled")
    assert record.decrement_per_datum is None
    assert record.settle_seconds == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "diabetes"])
def test_a_linear_model_always_reaches_its_optimum(task: str, tmp_path: Path) -> None:
    spec = DatasetSpec(name=task, max_train=100, max_test=50)  # type: ignore[arg-type]
    tensors = to_tensors(load(spec, seed=0), "cpu")
    likelihood = "gaussian" if task == "diabetes" else "categorical"
    linear = given(settle=0.1, likelihood=likelihood).model_copy(
        update={"architecture": ArchitectureSpec(family="linear")}
    )
    record = ended(Trial.start(linear, tensors, tmp_path))
    assert (record.converged, record.kept) == (True, "settled")
    assert record.decrement_per_datum < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "slices", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 7)), 5]
)
def test_a_trial_parked_at_any_slice_of_settling_ends_bit_identical(
    slices: int, settling_data: TensorData, tmp_path: Path
) -> None:
    names = ("diag_ef", "two_fold", "two_fold_accuracy")
    assert_parking_changes_nothing(
        names, given(*names, folds=1), settling_data, tmp_path, slices=slices
    )


@pytest.mark.slow
def test_a_trial_is_not_done_before_it_has_settled(
    settling_data: TensorData, tmp_path: Path
) -> None:
    trial = Trial.start(given("diag_ef"), settling_data, tmp_path)
    reports = []
    while trial.status is TrialStatus.RUNNING:
        reports.append(trial.advance(4))
    assert [r.done for r in reports[:-1]] == [False] * (len(reports) - 1)
    assert reports[-1].done
    assert {r.epoch for r in reports} == {4}
    assert len(reports) > 2
    assert {e.epoch for e in trial.finish().evaluations} == {2, 4}


@pytest.mark.slow
def test_a_training_on_a_part_settles_too(settling_data: TensorData) -> None:
    assignment = given(settle=8.0)
    current = trained_part(part_of(torch.arange(60), settling_data, assignment, "part"))
    assert current.settling.done
    assert bool((current.prior_precision != 1).all())


@pytest.mark.slow
def test_a_trial_that_ends_while_it_settles_has_the_noise_of_its_schedule(tmp_path: Path) -> None:
    spec = DatasetSpec(name="diabetes", max_train=100, max_test=50)
    linear = given(likelihood="gaussian").model_copy(
        update={"architecture": ArchitectureSpec(family="linear")}
    )
    trial = Trial.start(linear, to_tensors(load(spec, seed=0), "cpu"), tmp_path)
    network = trial.network
    assert network is not None
    trial.advance(4)  # its epochs
    scheduled = network.hyper.scale
    while network.hyper.scale == scheduled:
        trial.advance(4)
    assert trial.status is TrialStatus.RUNNING
    record = trial.finish(TrialStatus.CANCELLED, "asked to")
    assert record.noise_std == scheduled != network.hyper.scale
    assert record.kept == "scheduled"


def test_networks_settle_by_default_where_targets_are_real_and_linear_ones_always() -> None:
    assert TrainingPlan().settle == 0
    assert TrainingPlan(likelihood="gaussian").settle == 1
    assert TrainingPlan(likelihood="gaussian", settle=0).settle == 0


@pytest.mark.slow
def test_a_network_that_diverges_while_it_settles_keeps_its_schedule(
    settling_data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr("nas_evidence.training.settling._begin_descent", diverge)
    record: TrialRecord = ended(Trial.start(given("diag_ef"), settling_data, tmp_path))
    assert record.status is TrialStatus.COMPLETE
    assert (record.kept, record.converged) == ("scheduled", False)
    assert math.isfinite(record.test_nll_per_datum or math.nan)


# --- A trial updates and evaluates at the stops of its plan, and so do its folds


ROWS = 40
SCORES = ("kfac_ggn_mc", "two_fold")


@pytest.fixture(scope="module")
def stop_data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=ROWS, max_test=20)
    return to_tensors(load(spec, seed=0), "cpu")


def stop_assignment(evaluate_every: int | str = 12) -> Assignment:
    """Updates every 3 of 30 epochs."""
    return mlp_assignment(
        *SCORES, seed=1, width=4, epochs=30, batch_size=ROWS, evaluate_every=evaluate_every,
        online={"every": 3, "burn_in": 3},
    ).model_copy(update={"followed": SCORES})  # fmt: skip


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The epochs of the updates of each training, by its seed."""
    found, original = defaultdict(list), online.update_hyperparameters

    def noted(passes: Sequence[Passes]) -> list[Passes | DivergedError]:
        for one in passes:
            found[one.network.seed].append(one.network.epoch)
        return original(passes)

    monkeypatch.setattr(online, "update_hyperparameters", noted)
    return found


def run_stops(given: Assignment, stop_data: TensorData, folder: Path) -> TrialRecord:
    """Run a trial as the driver does: from stop to stop."""
    trial = Trial.start(given, stop_data, folder)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(next_stop(given.plan, trial.report().epoch).epoch)
    return trial.finish()


@pytest.mark.slow
def test_updates_every_3_and_evaluations_every_12_are_at_their_epochs_in_folds_too(
    stop_data: TensorData, tmp_path: Path, updates: dict[int, list[int]]
) -> None:
    given = stop_assignment()
    record = run_stops(given, stop_data, tmp_path)
    assert record.status is TrialStatus.COMPLETE, record.error
    evaluated = {e.epoch for e in record.evaluations if e.estimate.estimator == "kfac_ggn_mc"}
    assert evaluated == {12, 24, 30}
    assert record.best_epoch in evaluated
    due = list(range(6, 31, 3))  # after a burn-in of 3
    assert updates.pop(given.seed) == due
    assert list(updates.values()) == [due] * 2


@pytest.mark.slow
def test_the_forecast_counts_the_updates_and_evaluations_that_a_trial_runs(
    stop_data: TensorData, tmp_path: Path, updates: dict[int, list[int]]
) -> None:
    given = stop_assignment()
    record = run_stops(given, stop_data, tmp_path)
    main = updates.pop(given.seed)
    halves = [len(epochs) / 2 for epochs in updates.values()]  # each has half of the rows

    def counted(**seconds: float) -> float:
        pieces = Pieces(**{"epoch": 0, "beside": 0, "update": 0, "evaluation": 0, **seconds})
        return trial_seconds(pieces, given.plan, SCORES, ROWS)

    assert counted(update=1) == len(main) + sum(halves)
    assert counted(evaluation=1) == len({e.epoch for e in record.evaluations if e.epoch})


@pytest.mark.slow
def test_fewer_evaluations_change_no_training(stop_data: TensorData, tmp_path: Path) -> None:
    one, other = (
        without_times(run_stops(stop_assignment(every), stop_data, tmp_path / str(every)))
        for every in (12, "update")
    )
    assert one["curve"] == other["curve"]
    last = [[e for e in found["evaluations"] if e["epoch"] == 30] for found in (one, other)]
    assert last[0] == last[1]


@pytest.mark.slow
def test_a_trial_killed_after_an_update_continues_bit_identically(
    stop_data: TensorData, tmp_path: Path
) -> None:
    given = stop_assignment()
    first = Trial.start(given, stop_data, tmp_path / "1")
    while first.report().epoch < 9:  # no evaluation is due there
        first.advance(9)
    second = Trial.start(given, stop_data, tmp_path / "2", resume_from=tmp_path / "1")
    assert second.report().epoch == 9
    assert without_times(ended(second)) == without_times(
        run_stops(given, stop_data, tmp_path / "whole")
    )
