"""The best architecture trained again: on which rows, as what study, and with which bits."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import BY_DIAGONAL
from fakes import drive, study
from messages import refused
from safetensors.numpy import load_file

import nas_evidence
from nas_evidence.api.request import check_more_of_refit
from nas_evidence.spec.origin import Origin
from nas_evidence.storage.kept_origin import keep_origin, read_origin
from nas_evidence.storage.study_folder import open_study


def pets(n: int = 48, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    weight = generator.normal(10, 4, n)
    town = generator.choice(["rome", "oslo"], n)
    return pd.DataFrame({"weight": weight, "town": town, "pet": np.where(weight > 10, "d", "c")})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    """A study with a test, whose best is trial 0."""
    place = tmp_path_factory.mktemp("refit") / "pets"
    return nas_evidence.search(
        pets(), target="pet", test_fraction=0.25, n_trials=1, settings=BY_DIAGONAL, out=place
    )


@pytest.mark.slow
def test_all_rows_are_trained_on_in_a_study_that_says_what_it_comes_from(
    searched: nas_evidence.Study,
) -> None:
    again = searched.refit(seeds=2)
    assert again.place == f"{searched.place}-refit"
    assert (searched.arrays().n_train, again.arrays().n_train) == (36, 48)
    assert len(again.arrays().x_test) == 0
    assert again.best.values == searched.best.values
    assert again.trials["replicate"].tolist() == [0, 1]
    origin = read_origin(again.folder)
    assert origin is not None
    assert (origin.place, origin.trials, origin.n_rows, origin.n_tested) == (
        searched.place, (0,), 48, 12,
    )  # fmt: skip
    assert again.summary().refit_of == origin
    assert origin.sentence in again.report().read_text()
    card = (again.export() / "README.md").read_text()
    assert origin.sentence in card.replace("\\", "")
    assert again.predict_proba(pets(6, 1).drop(columns="pet")).shape == (6, 2)
    assert not nas_evidence.verify(again.folder).problems
    assert len(nas_evidence.resume(again.folder, n_trials=3).trials) == 3


@pytest.mark.slow
def test_what_a_study_comes_from_is_written_again_from_its_report(
    searched: nas_evidence.Study, tmp_path: Path
) -> None:
    again = searched.refit(seeds=1, out=tmp_path / "again")
    again.report()
    file, origin = again.folder / "refit_of.json", read_origin(again.folder)
    for content in (None, file.read_bytes()[:-20]):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        (problem,) = nas_evidence.verify(again.folder).problems
        assert problem.place == "refit_of.json"
        done = nas_evidence.repair(again.folder)
        assert done == ["refit_of.json: written again from the report"]
        assert read_origin(again.folder) == origin
        assert not nas_evidence.verify(again.folder).problems
    file.write_text("{}")
    (again.folder / "report" / "report.json").write_text("{}")
    assert nas_evidence.repair(again.folder)[0] == (
        "refit_of.json: moved to damaged/; the study looks like a search now"
    )
    assert not nas_evidence.verify(again.folder).problems


@pytest.mark.slow
def test_the_same_rows_and_seed_give_the_weights_of_the_search_bit_for_bit(
    tmp_path: Path,
) -> None:
    first = nas_evidence.search(
        pets(), target="pet", n_trials=1, settings=BY_DIAGONAL, out=tmp_path / "a"
    )
    again, other = first.refit(seeds=1), first.refit(seeds=1, seed=7, out=tmp_path / "b")
    one, same, unlike = (load_file(s.folder / "models" / "0.safetensors")
                         for s in (first, again, other))  # fmt: skip
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], unlike[name]) for name in one)


@pytest.mark.slow
def test_several_architectures_are_trained_on_other_rows_in_their_order(tmp_path: Path) -> None:
    place = tmp_path / "pets"
    nas_evidence.search(pets(), target="pet", n_trials=3, settings=BY_DIAGONAL, out=place)
    more = tmp_path / "more.csv"
    pets(60, 1).to_csv(more, index=False)
    again = nas_evidence.refit(place, more, top=2, seeds=1, out=tmp_path / "two")
    best = nas_evidence.load(place).ranking.head(2)["trial_id"].tolist()
    origin = again.summary().refit_of
    assert origin is not None
    assert (list(origin.trials), origin.own_rows, origin.data) == (best, False, "more.csv")
    assert len(again.trials) == 2
    assert again.arrays().n_train == 60


@pytest.mark.long
def test_a_named_data_set_is_trained_on_with_its_test_rows(tmp_path: Path) -> None:
    settings = BY_DIAGONAL | {"dataset.max_train": 60, "dataset.max_test": 10}
    first = nas_evidence.search(
        "digits", n_trials=1, families=["linear"], settings=settings, out=tmp_path / "digits"
    )
    again = first.refit(seeds=1)
    assert again.arrays().n_train == 1797
    assert again.arrays().input_shape == first.arrays().input_shape
    assert again.predict_proba(first.arrays().x_test).shape == (10, 10)


def test_a_study_without_a_complete_trial_is_not_refitted(tmp_path: Path) -> None:
    open_study(tmp_path / "s", study())
    with refused("study-without-complete-trial"):
        nas_evidence.refit(tmp_path / "s")


def test_what_is_asked_wrongly_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path / "s", study(n_trials=2))
    drive(study(n_trials=2), tmp_path / "s")
    found = nas_evidence.load(tmp_path / "s")
    with refused("refit-number", "0"):
        found.refit(seeds=0)
    with refused("refit-y-alone"):
        found.refit(y=[1])
    with refused("top-out-of-range", "9"):
        found.refit(top=9)
    with refused("trial-not-complete", "9"):
        found.refit(trial_id=9)
    with pytest.raises(TypeError, match="argument 'sed'"):
        found.refit(sed=1)  # type: ignore[call-arg]


def test_more_trials_of_several_architectures_are_refused_since_the_space_holds_others(
    tmp_path: Path,
) -> None:
    spec = study(n_trials=2)
    for name, trials in (("one", (7,)), ("two", (7, 3))):
        open_study(tmp_path / name, spec)
        names = ("mlp, depth 2",) * len(trials)
        keep_origin(
            tmp_path / name, Origin("runs/flats", trials, names, True, "", 120, 0, 96, 3, 3)
        )
    with refused("refit-with-more-trials", "2 architectures of runs/flats", "seeds=N (--seeds)"):
        nas_evidence.resume(tmp_path / "two", n_trials=4)
    check_more_of_refit(spec, tmp_path / "two", None)  # what is left of it
    check_more_of_refit(spec, tmp_path / "one", 4)


def test_the_sentence_names_study_trials_rows_and_what_was_not_finished() -> None:
    origin = Origin("runs/flats", (7,), ("mlp, depth 2",), True, "flats.csv", 120, 24, 96, 3, 24)
    assert origin.sentence == (
        "refit of trial 7 of runs/flats (mlp, depth 2) on all its 120 rows, its 24 test rows "
        "among them; it had finished 3 of 24 trials"
    )
    assert Origin.from_json(origin.to_json()) == origin
    with refused("origin-damaged"):
        Origin.from_json("{}")
