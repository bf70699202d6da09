"""Claims about what all scores together recommend, and about the gain of further trials."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from searched import EPOCHS, N_DATA, build_report, folder, load, record

import nas_evidence
from nas_evidence.maths.architecture_posterior import Prior
from nas_evidence.proposing.further import gain_of_further
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.reporting.headline import together_sentence
from nas_evidence.reporting.recommendation import Recommendation, expected_gain, recommendation
from nas_evidence.reporting.study_tables import RankedStudy, load_study_tables
from nas_evidence.spec.record import RACE_IDS, TrialRecord
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.tables import read_study_tables


def at_width(trial_id: int, width: int, value: float) -> TrialRecord:
    return record(trial_id, 1, value=value).model_copy(
        update={"architecture": ArchitectureSpec(family="mlp", values={"width": width})}
    )


def hill(lucky: float = 0.53) -> list[TrialRecord]:
    """Return a smooth hill at width 40, and a lucky seed at width 8 that is a little higher."""
    widths = [width for width in range(4, 65) if width != 8]
    found = [at_width(width, width, 0.5 - 0.0005 * (width - 40) ** 2) for width in widths]
    return [*found, at_width(8, 8, lucky)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Studies of the hill: all of it, without the lucky seed, and with fewer than fifty scores."""
    home = tmp_path_factory.mktemp("hills")
    records = {"lucky": hill(), "clear": hill()[:-1], "few": hill()[:49]}
    return {name: folder(home / name, own) for name, own in records.items()}


@pytest.fixture(scope="module")
def studies(folders: dict[str, Path]) -> dict[str, RankedStudy]:
    return {name: load_study_tables(path) for name, path in folders.items()}


@pytest.fixture(scope="module")
def recommended(studies: dict[str, RankedStudy]) -> dict[str, Recommendation]:
    return {name: of(recommendation(study)) for name, study in studies.items()}


def of(found: Recommendation | None) -> Recommendation:
    assert found is not None
    return found


@pytest.mark.slow
def test_a_lucky_seed_among_bad_neighbours_is_not_recommended_and_the_sentence_says_why(
    folders: dict[str, Path],
    studies: dict[str, RankedStudy],
    recommended: dict[str, Recommendation],
) -> None:
    study, found = studies["lucky"], recommended["lucky"]
    assert study.winner.trial_id == 8
    assert found.architecture.values["width"] == 40
    assert found.behind == pytest.approx(0.03)
    said = together_sentence(study, found)
    assert "prefers mlp, width 40 (trial 40): its own score is 0.030 nats" in said
    assert (
        "but similar architectures score well. To take it, export it with trial_id=40 (--trial)"
        in said
    )
    page = build_report(read_study_tables(folders["lucky"])).markdown.read_text(encoding="utf-8")
    assert "A model of all scores prefers mlp, width 40 (trial 40)" in page


@pytest.mark.slow
def test_a_clear_winner_is_recommended_too(
    studies: dict[str, RankedStudy], recommended: dict[str, Recommendation]
) -> None:
    study, found = studies["clear"], recommended["clear"]
    assert found.architecture is study.winner
    assert found.behind == 0.0
    assert together_sentence(study, replace(found, gain=0.5)).startswith(
        "A model of all scores also prefers it. 10 further trials would gain about 0.500 nats"
    )


@pytest.mark.slow
def test_a_family_without_parameters_can_be_recommended(tmp_path: Path) -> None:
    study = load(tmp_path, [*hill(), record(80, 0, value=5.0)])
    assert study.baseline is not None
    assert of(recommendation(study)).architecture is study.baseline


@pytest.mark.slow
def test_what_the_race_trained_again_is_not_compared_with_single_seeds(tmp_path: Path) -> None:
    raced = [
        at_width(RACE_IDS + i, width, 0.4).model_copy(update={"stage": "race"})
        for i, width in enumerate((8, 8, 7, 7))
    ]
    found = of(recommendation(load(tmp_path, [*hill(), *raced]))).architecture
    assert found.raced


@pytest.mark.slow
def test_with_fewer_than_fifty_only_the_gain_is_said(
    studies: dict[str, RankedStudy], recommended: dict[str, Recommendation]
) -> None:
    study, found = studies["few"], recommended["few"]
    assert found.architecture is None
    said = together_sentence(study, replace(found, gain=0.25))
    assert said == "10 further trials would gain about 0.250 nats per datum on average."
    none = together_sentence(study, replace(found, gain=0.0))
    assert none == "10 further trials would gain nothing, by a model of all scores."


@pytest.mark.slow
def test_a_gain_below_three_decimals_is_said_as_it_is(
    studies: dict[str, RankedStudy], recommended: dict[str, Recommendation]
) -> None:
    study, found = studies["few"], recommended["few"]
    said = together_sentence(study, replace(found, gain=0.00012))
    assert said == "10 further trials would gain about 0.0001 nats per datum on average."
    tiny = together_sentence(study, replace(found, gain=2e-18))
    assert tiny == "10 further trials would gain less than 0.0001 nats per datum on average."


@pytest.mark.slow
def test_the_gain_is_of_what_the_study_itself_would_propose_next(tmp_path: Path) -> None:
    spread = {2 * k + i: (4 + 3 * k, [0.3, 0.4][i] + 0.01 * k) for k in range(12) for i in (0, 1)}
    study = load(
        tmp_path, [at_width(i, *one) for i, one in spread.items()], n_trials=24, replicates=2
    )
    mlps = [ArchitectureSpec(family="mlp", values={"width": 4 + 3 * k}) for k in range(12)]
    means = [N_DATA * (0.35 + 0.01 * k - 1 / EPOCHS) for k in range(12)]
    known = [(mlp, ProposalResult((mean,))) for mlp, mean in zip(mlps, means, strict=True)]
    nats = gain_of_further(study.spec, Proposer(study.spec), known, prior=Prior())
    assert nats > 0
    assert expected_gain(study) == pytest.approx(nats / N_DATA)


@pytest.mark.slow
def test_before_the_end_of_the_search_nothing_is_said_of_the_gain(tmp_path: Path) -> None:
    study = load(tmp_path, hill()[:-1], n_trials=61)
    said = together_sentence(study, recommendation(study))
    assert said == "A model of all scores also prefers it."
    assert recommendation(load(tmp_path / "few", hill()[:49], n_trials=50)) is None


@pytest.mark.slow
def test_with_a_damaged_warm_start_the_report_says_nothing_of_the_gain(tmp_path: Path) -> None:
    study = load(tmp_path, hill()[:49])
    assert expected_gain(study) is not None
    (tmp_path / "warm_start.json").write_text("{}", encoding="utf-8")
    assert expected_gain(study) is None


@pytest.mark.slow
def test_nothing_is_said_of_few_architectures_or_of_several_objectives(tmp_path: Path) -> None:
    few = load(tmp_path / "few", [record(key, key) for key in range(1, 7)])
    assert recommendation(few) is None
    assert together_sentence(few, None) == ""
    several = load(tmp_path / "several", hill(), minimise=("n_parameters",))
    assert recommendation(several) is None


@pytest.mark.slow
def test_python_has_a_row_for_each_architecture_with_an_interval(
    folders: dict[str, Path],
) -> None:
    table = nas_evidence.load(folders["lucky"]).posterior
    assert len(table) == 61
    assert table["mean"].is_monotonic_decreasing
    assert (table["low"] < table["mean"]).all()
    assert (table["mean"] < table["high"]).all()
    assert table["width"].iloc[0] == 40
    own = table["kfac_ggn"].to_numpy()
    assert np.abs(table["mean"] - own).max() > 0.01
