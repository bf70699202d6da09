"""Proposals: stratified start, seeded by counter, surviving the process."""

import math
from collections import Counter
from pathlib import Path

import pytest

from nas_evidence.service.proposer import Proposer, startup_points
from nas_evidence.spec import ArchitectureSpec, Choice, DatasetSpec, IntRange, StudySpec

SPACE = {
    "mlp": {
        "depth": IntRange(low=1, high=4),
        "width": IntRange(low=4, high=256, log=True),
    },
    "cnn": {
        "depth": IntRange(low=1, high=3),
        "width": IntRange(low=2, high=16, log=True),
    },
    "resnet": {"depth": Choice(options=(8, 14)), "width": IntRange(low=4, high=16, log=True)},
    "linear": {},
}


def study(**changes: object) -> StudySpec:
    given = {"name": "s", "dataset": DatasetSpec(name="digits"), "family": SPACE, **changes}
    return StudySpec.model_validate(given)


def ask_all(spec: StudySpec, database: Path, count: int) -> list[ArchitectureSpec]:
    proposer = Proposer(spec, database)
    asked = []
    for _ in range(count):
        proposal = proposer.ask()
        proposer.tell(proposal.number, float(len(str(proposal.architecture))))
        asked.append(proposal.architecture)
    return asked


def test_start_up_gives_each_family_its_share_and_the_yardstick_one_trial() -> None:
    points = startup_points(study())
    assert Counter(p.family for p in points) == {"linear": 1, "mlp": 6, "cnn": 6, "resnet": 6}
    assert points[0].family == "linear"
    assert len({p.key for p in points}) == len(points)


def test_start_up_points_lie_in_the_space_and_carry_every_parameter() -> None:
    for point in startup_points(study()):
        for key, domain in SPACE[point.family].items():
            assert domain.contains(point.values[key])
    assert all("shape" in p.values for p in startup_points(study()) if p.family == "mlp")


def test_the_grid_holds_every_architecture_once() -> None:
    spec = study(
        sampler={"name": "grid"},
        family={"mlp": {"depth": IntRange(low=1, high=3), "width": Choice(options=(8, 16))}},
    )
    points = startup_points(spec)
    assert len(points) == len({p.key for p in points}) == 6


def test_the_same_seed_and_results_give_the_same_proposals(tmp_path: Path) -> None:
    one = ask_all(study(), tmp_path / "1.db", 24)
    two = ask_all(study(), tmp_path / "2.db", 24)
    other = ask_all(study(seed=1), tmp_path / "3.db", 24)
    assert one == two
    assert one != other


def test_a_new_process_goes_on_as_the_old_one_would_have(tmp_path: Path) -> None:
    whole = ask_all(study(), tmp_path / "1.db", 24)
    parts = [ask_all(study(), tmp_path / "2.db", 8) for _ in range(3)]
    assert [a for part in parts for a in part] == whole


def test_a_proposal_cut_off_before_it_was_written_down_is_completed(tmp_path: Path) -> None:
    whole = ask_all(study(), tmp_path / "1.db", 23)
    for cut in (3, 21):
        proposer = Proposer(study(), tmp_path / f"cut{cut}.db")
        for _ in range(cut):
            proposal = proposer.ask()
            proposer.tell(proposal.number, float(len(str(proposal.architecture))))
        # The process dies after Optuna's row exists and before the architecture is stored.
        storage = proposer._study
        storage.sampler = proposer._sampler(cut)
        if cut < len(proposer._start):
            storage.enqueue_trial(proposer._parameters(proposer._start[cut]))
        storage.ask()
        again = Proposer(study(), tmp_path / f"cut{cut}.db")
        assert again.proposals()[-1].architecture == whole[cut]
        assert again.proposals()[-1].number == cut


def test_a_known_architecture_is_asked_again_and_in_the_end_repeated(tmp_path: Path) -> None:
    space = {"cnn": {"depth": IntRange(low=1, high=3), "width": Choice(options=(4, 8))}}
    spec = study(family=space, sampler={"startup_per_family": 2})
    asked = ask_all(spec, tmp_path / "s.db", 9)
    keys = [a.key for a in asked]
    assert len(set(keys[:6])) >= 5  # six members: all but the unluckiest come before a repetition
    assert len(set(keys)) < len(keys)
    again = Proposer(spec, tmp_path / "s.db")
    assert [p.architecture for p in again.proposals()] == asked
    assert [p.number for p in again.proposals()] == list(range(9))
    assert again.told() == set(range(9))


def test_a_start_up_point_left_waiting_is_asked_next(tmp_path: Path) -> None:
    proposer = Proposer(study(), tmp_path / "s.db")
    proposer._study.enqueue_trial(proposer._parameters(proposer._start[0]))
    again = Proposer(study(), tmp_path / "s.db")
    assert [again.ask().number, again.ask().number] == [0, 1]
    assert [p.architecture for p in again.proposals()] == startup_points(study())[:2]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_told_as_a_failure(
    tmp_path: Path, value: float | None
) -> None:
    proposer = Proposer(study(), tmp_path / "s.db")
    proposer.tell(proposer.ask().number, value)
    assert proposer.told() == {0}
    assert proposer._study.trials[0].state.name == "FAIL"


WIDE = {
    "mlp": {"depth": IntRange(low=1, high=5), "width": IntRange(low=4, high=1024, log=True)},
    "cnn": {"depth": IntRange(low=1, high=5), "width": IntRange(low=1, high=256, log=True)},
    "linear": {},
}


def _objective(architecture: ArchitectureSpec) -> float:
    """A landscape with its best point inside one family: the sampler has to find both."""
    values = architecture.values
    best = {"mlp": -1.0, "cnn": 0.0, "linear": -2.0}[architecture.family]
    width, depth = float(values.get("width", 1)), float(values.get("depth", 1))
    return best - abs(math.log(width / 40)) - abs(depth - 3) / 4


@pytest.mark.slow
def test_the_sampler_beats_random_on_a_synthetic_objective(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> tuple[float, float]:
        """Return the best value found, and the mean of the last 25 of 45."""
        proposer = Proposer(
            study(family=WIDE, sampler={"name": name}, seed=seed), tmp_path / f"{name}{seed}.db"
        )
        values = []
        for _ in range(45):
            proposal = proposer.ask()
            values.append(_objective(proposal.architecture))
            proposer.tell(proposal.number, values[-1])
        return max(values), sum(values[20:]) / 25

    for seed in (1, 2, 3, 4):  # each of four paired runs, by both measures
        best, mean = run("tpe", seed)
        best_by_chance, mean_by_chance = run("random", seed)
        assert best > best_by_chance
        assert mean > mean_by_chance
