"""The one life of networks: what a stop does, and to whom."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import tensors_of
from records import asked
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.models import build
from nas_evidence.spec.schedule import next_stop, stops
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.training import life
from nas_evidence.training.checkpoint import load_checkpoint, restore, save_checkpoint, state_of
from nas_evidence.training.life import advance
from nas_evidence.training.loop import DivergedError, train_epochs
from nas_evidence.training.network import Network, begin
from nas_evidence.training.online import Passes, sample_of, updated

MLP = ArchitectureSpec(family="mlp", values={"depth": 1, "width": 4})
#: Products that a CPU rounds by where its operands lie in memory.
LARGER = ArchitectureSpec(family="mlp", values={"depth": 2, "width": 32})


def network(
    seed: int = 0,
    n_targets: int = 1,
    *,
    of: ArchitectureSpec = MLP,
    n_rows: int = 30,
    n_inputs: int = 3,
    **plan: object,
) -> Network:
    """One of real targets that updates every two of five epochs."""
    given = asked(
        of, seed=seed, **{"likelihood": "gaussian", "epochs": 5, "batch_size": 8, "settle": 0,
        "online": {"every": 2, "curvature": "diag_ggn"}, **plan},
    )  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n_rows, n_inputs, generator=draw)
    y = x.sin().sum(1, keepdim=True) + 0.3 * torch.randn(n_rows, n_targets, generator=draw)
    y = (y - y.mean(0)) / y.std(0)
    model = build(of, (n_inputs,), n_targets, draw)
    return begin(model, tensors_of(x, y), given.plan, given.seed, family="mlp")


def flat(one: Network) -> Tensor:
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


def test_a_stop_that_does_not_evaluate_trains_and_learns_alike_and_records_nothing() -> None:
    seen = network()
    unseen = copy.deepcopy(seen)
    for stop in stops(seen.plan):
        (passes,) = advance([seen], stop)
        assert isinstance(passes, Passes)
        assert advance([unseen], replace(stop, evaluate=False)) == [None]
        assert torch.equal(flat(seen), flat(unseen))
        assert torch.equal(seen.hyper.precision, unseen.hyper.precision)
        assert seen.hyper.scale == unseen.hyper.scale
    assert seen.is_over
    assert unseen.is_over
    assert seen.best_epoch in (2, 4)
    assert unseen.best_epoch is None


@pytest.mark.parametrize("evaluate", [True, False])
def test_no_update_is_made_where_the_stop_has_none(evaluate: bool) -> None:
    one = network()
    before, stop = one.hyper, stops(one.plan)[0]
    advance([one], replace(stop, update=False, evaluate=evaluate))
    assert one.epoch == stop.epoch
    assert one.hyper is before


@pytest.mark.parametrize("hyper_step", ["newton", "adam"])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_networks_updated_side_by_side_learn_what_each_does_alone(
    n_targets: int, hyper_step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = {"every": 2, "hyper_step": hyper_step, "hyper_steps": 3}
    plan = {"epochs": 60, "learning_rate": 0.05, "online": online}
    networks = [network(seed, n_targets, **plan) for seed in range(3)]
    networks[2].data = sample_of(networks[2].data, 21)
    for one in networks:
        train_epochs([one], n_epochs=30)
    others, before = copy.deepcopy(networks), networks[0].hyper
    updated(networks)
    monkeypatch.setattr("nas_evidence.training.online._AT_ONCE", 1)
    updated(others)
    for one, other in zip(networks, others, strict=True):
        assert_close(one.hyper.precision, other.hyper.precision, rtol=1e-5, atol=0)
        assert math.isclose(one.hyper.scale, other.hyper.scale, rel_tol=1e-5)
        assert one.hyper.unit == pytest.approx(other.hyper.unit, rel=1e-5)
    assert not torch.equal(networks[0].hyper.precision, before.precision)
    assert len(networks[0].hyper.unit) == (0 if n_targets == 1 else n_targets)


@pytest.mark.parametrize("curvature", ["diag_ggn", "kfac_ggn_mc"])  # apart; side by side
def test_one_that_diverges_at_a_stop_is_told_and_the_others_go_on(
    curvature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = {"every": 2, "curvature": curvature}
    networks = [network(seed, online=online) for seed in range(3)]
    train, before = life.train_epochs, [one.hyper for one in networks]

    def spoiled(given: list[Network], **how: int) -> list[DivergedError | None]:
        found = train(given, **how)
        with torch.no_grad():
            next(networks[1].model.parameters()).fill_(math.nan)
        return found

    monkeypatch.setattr(life, "train_epochs", spoiled)
    stop = replace(next_stop(networks[0].plan, 0), evaluate=False)
    found = advance(networks, stop)
    assert [type(end) for end in found] == [type(None), DivergedError, type(None)]
    kept = [one.hyper is old for one, old in zip(networks, before, strict=True)]
    assert kept == [False, True, False]
    others = [networks[0], networks[2]]
    assert all(bool(one.hyper.precision.isfinite().all()) for one in others)


@pytest.mark.slow
def test_a_network_in_any_part_of_its_life_is_restored_with_all_that_it_needs() -> None:
    whole = network(settle=3.0)
    resumed = copy.deepcopy(whole)
    while not whole.is_over:
        stop = next_stop(whole.plan, whole.epoch)
        advance([whole], stop)
        advance([resumed], stop)
        again = network(settle=3.0)
        restore(again, copy.deepcopy(state_of(resumed)))
        resumed = again
    assert resumed.is_over
    assert whole.settling is not None
    assert whole.settling.rounds > 0
    assert torch.equal(flat(whole), flat(resumed))
    assert whole.hyper.scale == resumed.hyper.scale
    assert whole.best_evidence == resumed.best_evidence
    assert [p.epoch for p in resumed.curve] == [1, 2, 3, 4, 5]


# --- Checkpoints: an unreadable one costs a slice and not the trial, in whichever attempt it lies


def write(folder: Path, *epochs: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in epochs:
        save_checkpoint(folder, epoch, {"epoch": epoch})
    return folder


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_the_last_two_of_an_attempt_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "attempt-1", 2, 4, 6)
    assert sorted(p.name for p in folder.iterdir()) == ["epoch-000004.pt", "epoch-000006.pt"]
    assert load_checkpoint(folder) == {"epoch": 6}


def test_behind_a_torn_checkpoint_stands_the_newest_good_one_of_any_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "attempt-2", 2, 4)
    write(tmp_path / "attempt-9", 4, 6)
    newest = write(tmp_path / "attempt-10", 8)
    write(tmp_path / "elsewhere", 99)
    tear(newest / "epoch-000008.pt")
    assert load_checkpoint(newest) == {"epoch": 6}
    assert "attempt-10/epoch-000008.pt" in caplog.text
    for path in tmp_path.glob("attempt-9/*"):
        tear(path)
    assert load_checkpoint(newest) == {"epoch": 4}
    for path in tmp_path.glob("attempt-2/*"):
        tear(path)
    assert load_checkpoint(newest) is None


def test_a_folder_of_another_name_stands_alone(tmp_path: Path) -> None:
    write(tmp_path / "attempt-1", 8)
    assert load_checkpoint(write(tmp_path / "mine", 2)) == {"epoch": 2}
    assert load_checkpoint(tmp_path / "nowhere") is None


def test_of_two_attempts_at_one_epoch_the_later_is_taken(tmp_path: Path) -> None:
    """Slices before the first epoch and rounds of settling are all of one epoch."""
    for attempt in (9, 2, 10):
        save_checkpoint(tmp_path / f"attempt-{attempt}", 3, {"attempt": attempt})
    state = load_checkpoint(tmp_path / "attempt-2")
    assert state["attempt"] == 10
