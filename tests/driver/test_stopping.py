"""Claims about `stop = "auto"`: when a search ends, and that crashes do not matter."""

from pathlib import Path

import pytest
from driver.test_race import noisy
from fakes import FakeExecutor, Silent, asked_in

from nas_evidence.driver.driver import Driver
from nas_evidence.reporting.live import all_finished
from nas_evidence.reporting.study_tables import load_study_tables
from nas_evidence.spec.record import is_race
from nas_evidence.spec.study import StudySpec
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.forecasts import IN_A_ROW, SHARE, until_enough
from nas_evidence.storage.journal import journal_path, read_journal
from nas_evidence.storage.tables import finished


def study(**changes: object) -> StudySpec:
    """Return a study of which the noise is all there is to see, in batches of eight."""
    given: dict[str, object] = {
        "name": "s",
        "objective": "kfac_ggn",
        "n_trials": 96,
        "stop": "auto",
        "finalists": 0,
        "scheduling": "batch",
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 640}, "depth": {"low": 1, "high": 5}}},
        "sampler": {"name": "posterior"},
        "plan": {"epochs": 2, "online": {"every": 2}},
    }
    return StudySpec.model_validate({**given, **changes})


def run(spec: StudySpec, folder: Path, executor: FakeExecutor) -> list[int]:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(dump_study(spec), encoding="utf-8")
    Driver(spec, folder, executor, Silent()).run()
    return sorted(finished(folder))


def gains(folder: Path) -> list[dict[str, object]]:
    return [event for event in read_journal(folder) if event["event"] == "gain"]


@pytest.mark.long
@pytest.mark.slow
def test_it_ends_where_three_times_further_trials_gain_less_than_a_share_of_the_noise(
    tmp_path: Path,
) -> None:
    done = run(study(), tmp_path, noisy(1e5)(workers=2))
    events = gains(tmp_path)
    n = 1 + next(k for k, one in enumerate(events) if one["n_proposals"] is not None)
    *before, last = events[:n]
    small = [float(str(one["gain"])) < SHARE * float(str(one["noise"])) for one in [*before, last]]
    assert small[-IN_A_ROW:] == [True] * IN_A_ROW
    assert [all(small[k : k + IN_A_ROW]) for k in range(len(small) - 3)] == (
        [False] * (len(small) - 3)
    )
    assert len(done) == last["n_proposals"] < 96
    assert len(done) % 8 == 0
    assert until_enough(study(), tmp_path).n_trials == len(done)
    assert all_finished(tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_any_number_of_workers_and_any_crash_end_the_search_alike(tmp_path: Path) -> None:
    calm = run(study(), tmp_path / "a", noisy(1e5)(workers=1))
    assert run(study(), tmp_path / "b", noisy(1e5)(workers=5, seed=3)) == calm

    class Killed(Exception):
        pass

    class Unlucky(noisy(1e5)):  # type: ignore[misc]
        def finish(self, trial_id: int, verdict: object = None) -> None:
            super().finish(trial_id, verdict)
            if trial_id == len(calm) - 1:
                raise Killed

    with pytest.raises(Killed):
        run(study(), tmp_path / "c", Unlucky(workers=2))
    lines = journal_path(tmp_path / "c").read_bytes().splitlines(keepends=True)
    journal_path(tmp_path / "c").write_bytes(
        b"".join(line for line in lines if b'"event":"gain"' not in line.replace(b": ", b":"))
    )
    assert run(study(), tmp_path / "c", noisy(1e5)(workers=3)) == calm
    assert asked_in(tmp_path / "c") == asked_in(tmp_path / "a")


@pytest.mark.long
@pytest.mark.slow
def test_a_search_that_ended_goes_on_if_asked_and_a_race_follows_what_ended(
    tmp_path: Path,
) -> None:
    done = run(study(), tmp_path, noisy(1e5)(workers=2))
    racing = run(study(finalists=2), tmp_path, noisy(1e5)(workers=2))
    assert [i for i in racing if not is_race(i)] == done
    assert any(map(is_race, racing))
    on = run(study(stop="never"), tmp_path, noisy(1e5)(workers=2))
    assert len([i for i in on if not is_race(i)]) == 96


@pytest.mark.slow
def test_by_default_the_search_runs_to_its_end_and_says_what_more_would_gain(
    tmp_path: Path,
) -> None:
    assert len(run(study(stop="never", n_trials=24), tmp_path, noisy(10.0)(workers=2))) == 24
    [only] = gains(tmp_path)
    gain = load_study_tables(tmp_path).gain
    assert gain is not None
    assert only["number"] == 24
    assert run(study(stop="never", n_trials=26), tmp_path, noisy(10.0)(workers=2))
    assert len(gains(tmp_path)) == 2


def test_with_another_sampler_it_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r'needs name = "posterior" in .sampler., but got "tpe"'):
        study(sampler={"name": "tpe"})


def test_with_several_objectives_it_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match='`stop` must be "never" with `minimise`'):
        study(minimise=("n_parameters",), scheduling="async")
