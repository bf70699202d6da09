"""`study.db` is what Optuna would have stored, whatever was there before."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import optuna
import pytest
from records import plain_study

from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.proposing.optuna_export import STUDY_DB, Export
from nas_evidence.proposing.past import ProposalResult
from nas_evidence.proposing.startup import startup_points
from nas_evidence.proposing.warm_start import WARM_START
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.events import Asked, Told
from nas_evidence.storage.log import Log

WIDTH = {"low": 4, "high": 1024, "log": True}
FAMILIES = {
    "mlp": {"depth": {"low": 1, "high": 5}, "width": WIDTH},
    "cnn": {"width": {"low": 1, "high": 9, "step": 3}, "depth": {"options": [1, 2]}},
    "linear": {},
}


def study(**changes: object) -> StudySpec:
    return plain_study(**{"family": FAMILIES, **changes})


RESULTS = [
    (ProposalResult((1.5,)), "COMPLETE", [1.5]),
    (ProposalResult(None), "FAIL", None),
    (ProposalResult((float("inf"),)), "FAIL", None),
    (ProposalResult((1.5,), pruned=True), "PRUNED", None),
    (ProposalResult(None, {"flops": 0.25}), "PRUNED", None),
    (ProposalResult(None, {"flops": -0.25}), "FAIL", None),
    (ProposalResult((2.5,), {"flops": -0.25, "n_parameters": 0.5}), "COMPLETE", [2.5]),
]
POINTS = startup_points(study())[: len(RESULTS)]


def ask(folder: Path, number: int, point: ArchitectureSpec) -> None:
    with closing(Log(folder)) as log:
        log.write(Asked(number=number, architecture=point))


def tell(folder: Path, number: int, told: ProposalResult) -> None:
    facts = {"pruned": told.pruned, "constraints": dict(told.constraints)}
    with closing(Log(folder)) as log:
        log.write(Told(number=number, values=told.values, **facts))


@contextmanager
def export(folder: Path, url: str = "", **changes: object) -> Iterator[Export]:
    with closing(Export(study(**changes), folder, url)) as found:
        found.update()
        yield found


def there(url: str, name: str = "s") -> list[optuna.trial.FrozenTrial]:
    storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def in_folder(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return there(f"sqlite:///{folder / STUDY_DB}")


def agrees(folder: Path, results: list[ProposalResult]) -> None:
    """Every told proposal is there with its parameters, state, values and constraints."""
    trials = in_folder(folder)
    assert len(trials) == len(results)
    for number, (trial, told) in enumerate(zip(trials, results, strict=True)):
        point = POINTS[number]
        facts = {"architecture": point.model_dump(mode="json"), "number": number}
        assert trial.user_attrs == facts
        searched = {f"{point.family}.{key}": value for key, value in point.values.items()}
        own = {name: value for name, value in trial.params.items() if name != "family"}
        assert own.items() <= searched.items()
        assert len(own) == len(FAMILIES[point.family])  # type: ignore[arg-type]
        _, state, values = next(row for row in RESULTS if row[0] is told)
        assert (trial.state.name, trial.values) == (state, values)
        assert trial.constraints == (told.constraints if state != "FAIL" or told.values is None
                                     else {})  # fmt: skip


def told_so_far(n: int) -> list[ProposalResult]:
    return [told for told, *_ in RESULTS[:n]]


@pytest.mark.long
@pytest.mark.slow
def test_what_is_told_while_it_follows_is_what_it_finds_told_later(tmp_path: Path) -> None:
    with closing(Export(study(), tmp_path)) as following:
        following.update()  # no log yet
        for number, point in enumerate(POINTS):
            ask(tmp_path, number, point)
        following.update()
        assert not (tmp_path / STUDY_DB).exists()
        for number, told in enumerate(told_so_far(len(POINTS))):
            tell(tmp_path, number, told)
            following.update()
            agrees(tmp_path, told_so_far(number + 1))
    followed = in_folder(tmp_path)
    (tmp_path / STUDY_DB).unlink()
    with export(tmp_path):
        agrees(tmp_path, told_so_far(len(POINTS)))
    for one, other in zip(followed, in_folder(tmp_path), strict=True):
        assert (one.params, one.distributions) == (other.params, other.distributions)


@pytest.mark.slow
def test_another_process_goes_on_after_what_is_there(tmp_path: Path) -> None:
    for n_told in (2, 5):
        for number in range(n_told):
            ask(tmp_path, number, POINTS[number])
        for number in range(0 if n_told == 2 else 2, n_told):
            tell(tmp_path, number, RESULTS[number][0])
        with export(tmp_path):
            agrees(tmp_path, told_so_far(n_told))


@pytest.mark.slow
def test_proposals_are_in_the_order_of_telling_and_the_last_result_counts(
    tmp_path: Path,
) -> None:
    for number in range(3):
        ask(tmp_path, number, POINTS[number])
    with export(tmp_path) as following:
        for number in (2, 0):
            tell(tmp_path, number, RESULTS[0][0])
            following.update()
        assert [trial.user_attrs["number"] for trial in in_folder(tmp_path)] == [2, 0]
        tell(tmp_path, 2, RESULTS[-1][0])
        following.update()
    first, last = in_folder(tmp_path)
    assert (first.user_attrs["number"], first.values) == (0, [1.5])
    assert (last.user_attrs["number"], last.values) == (2, [2.5])


def emptied(table: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"DELETE FROM {table}")

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "no database": lambda path: path.write_bytes(b"x" * 5000),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:20000]),
    **{
        table: emptied(table) for table in ("trials", "studies", "version_info", "alembic_version")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_written_again(tmp_path: Path, damage: str) -> None:
    for number in range(4):
        ask(tmp_path, number, POINTS[number])
        tell(tmp_path, number, RESULTS[number][0])
    with export(tmp_path):
        pass
    DAMAGES[damage](tmp_path / STUDY_DB)
    with export(tmp_path):
        agrees(tmp_path, told_so_far(4))


@pytest.mark.slow
def test_the_copy_of_another_study_and_a_changed_log_are_written_again(
    tmp_path: Path,
) -> None:
    for number in range(3):
        ask(tmp_path, number, POINTS[number + 1])
        tell(tmp_path, number, RESULTS[0][0])
    with export(tmp_path) as following:
        for number in range(3):
            ask(tmp_path, number, POINTS[number])  # as a driver mends its log
            tell(tmp_path, number, RESULTS[number][0])
        following.update()
        agrees(tmp_path, told_so_far(3))


@pytest.mark.slow
def test_a_held_file_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.proposing.optuna_export._LOCKED", 0.1)
    ask(tmp_path, 0, POINTS[0])
    tell(tmp_path, 0, RESULTS[0][0])
    with export(tmp_path):
        pass
    ask(tmp_path, 1, POINTS[1])
    tell(tmp_path, 1, RESULTS[1][0])
    holding = sqlite3.connect(tmp_path / STUDY_DB, isolation_level=None)
    with closing(holding):
        holding.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Exception, match=r"locked|storage"), export(tmp_path):
            pass
        holding.execute("ROLLBACK")
    agrees(tmp_path, told_so_far(1))
    with export(tmp_path):
        agrees(tmp_path, told_so_far(2))


@pytest.mark.slow
def test_the_warm_start_comes_first_and_costs_have_their_directions(tmp_path: Path) -> None:
    warm = [{"architecture": p.model_dump(mode="json"), "values": [1.0, 2.0]} for p in POINTS[:2]]
    content = sealed_json({"trials": warm})
    (tmp_path / WARM_START).write_text(content)
    ask(tmp_path, 0, POINTS[2])
    tell(tmp_path, 0, ProposalResult((3.0, 4.0)))
    for _ in range(2):
        with export(tmp_path, minimise=["n_parameters"]):
            first, second, third = in_folder(tmp_path)
    assert first.user_attrs == {"warm_start": POINTS[0].model_dump(mode="json")}
    assert second.values == [1.0, 2.0]
    assert third.values == [3.0, 4.0]


@pytest.mark.slow
def test_times_are_those_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas_evidence.storage.log.time.time", lambda: 1e9)
    ask(tmp_path, 0, POINTS[0])
    monkeypatch.setattr("nas_evidence.storage.log.time.time", lambda: 1e9 + 60)
    tell(tmp_path, 0, ProposalResult((1.5,)))
    monkeypatch.undo()
    with export(tmp_path):
        (trial,) = in_folder(tmp_path)
    assert trial.datetime_start == datetime.fromtimestamp(1e9)
    assert trial.duration.total_seconds() == 60


@pytest.mark.slow
def test_two_studies_of_one_name_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'all.db'}"
    for place, n in (("a", 2), ("b", 3), ("a", 2)):
        for number in range(n):
            ask(tmp_path / place, number, POINTS[number])
            tell(tmp_path / place, number, RESULTS[0][0])
        with export(tmp_path / place, url):
            pass
    storage = optuna.storages.RDBStorage(url)
    names = optuna.get_all_study_names(storage)
    storage.remove_session()
    storage.engine.dispose()
    assert sorted(len(there(url, name)) for name in names) == [2, 3]
    assert all(name.startswith("s-") for name in names)
    assert not (tmp_path / "a" / STUDY_DB).exists()
