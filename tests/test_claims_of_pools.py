"""What pages say of pools, tables and searches is what the committed results give."""

import json
from pathlib import Path
from typing import Any

import claims_pools
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOUND = json.loads(claims_pools.TO.read_text(encoding="utf-8"))["figures"]
ORDER = FOUND["order"]
PLAIN, ESTIMATE = "conditional_evidence - elpd", "estimate - elpd"


def page(name: str) -> str:
    """Return a page on one line, without marks of emphasis."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("*", "")
    return " ".join(text.split())


def ends(part: str, pair: str) -> tuple[float, float, float]:
    mean, low, high = ORDER[part]["differences"][pair]
    return mean, low, high


def signed(part: str, pair: str) -> str:
    mean, low, high = ends(part, pair)
    return f"{mean:+.3f} ({low:.3f} to {high:.3f})"


def lower(part: str) -> tuple[str, str]:
    """Return by how much `conditional_evidence` is behind, and the interval."""
    mean, low, high = ends(part, PLAIN)
    assert high < 0
    return f"{-mean:.3f}", f"{-high:.3f} to {-low:.3f}"


def of(part: str) -> str:
    one = ORDER[part]
    return f"{one['rho']['estimate']:.2f} of {one['attainable']:.2f}"


@pytest.mark.parametrize("what", ["order", "forecasts", "own_spaces", "laplace", "accuracy"])
def test_the_committed_figures_are_those_of_the_results(what: str) -> None:
    again: Any = getattr(claims_pools, f"of_{what}")()
    assert json.loads(json.dumps(again)) == FOUND[what.replace("_", " ")]


@pytest.mark.long
@pytest.mark.slow
def test_the_committed_shares_of_seeds_are_those_of_the_results() -> None:
    again, stored = claims_pools.of_seeds(), {**FOUND["seeds"]}
    assert again.pop("quartiles") == pytest.approx(stored.pop("quartiles"), abs=0.01)
    assert again == pytest.approx(stored, rel=0.01)


@pytest.mark.slow
def test_the_committed_gains_of_searches_are_those_of_the_results() -> None:
    for kind, own in claims_pools.of_searches().items():
        assert own.pop("mean") == pytest.approx(FOUND["searches"][kind]["mean"], abs=2e-3)
        assert own.items() <= FOUND["searches"][kind].items()


def test_four_pages_say_how_far_the_evidence_is_behind_plain_cross_validation() -> None:
    (classes, at), (real, by) = lower("all, classes"), lower("all, real targets")
    n, m = (ORDER[f"all, {kind}"]["pools"] for kind in claims_pools.KINDS)
    said = {
        "docs/explanation/ranking.md": f"its rho is {classes} lower with classes ({at}; {n} "
        f"pools) and {real} lower with real targets ({by}; {m} pools)",
        "docs/explanation/from-immer-2021.md": f"its rho is lower by {classes} for classes (90 % "
        f"interval {at}) and by {real} for real targets ({by})",
        "docs/experiments/conditional-folds.md": f"behind, by {classes} for classes and {real} "
        "for real targets",
        "docs/state.md": f"behind by {classes} of rho with classes and {real} with real targets",
        "docs/experiments/README.md": f"on {n + m} pools (rho -{classes} and -{real})",
    }
    assert {name for name, text in said.items() if text not in page(name)} == set()


def test_the_table_of_the_page_on_folds_has_the_differences() -> None:
    text = page("docs/experiments/conditional-folds.md")
    for part, pair in (("all", PLAIN), ("aside", PLAIN), ("all", ESTIMATE)):
        for kind in claims_pools.KINDS:
            assert signed(f"{part}, {kind}", pair) in text, (part, kind)


def test_three_pages_say_how_the_estimate_stands_beside_plain_cross_validation() -> None:
    classes, real = (signed(f"all, {kind}", ESTIMATE) for kind in claims_pools.KINDS)
    classes, real = (own.replace(" (", ", ", 1).strip(")") for own in (classes, real))
    for name in ("docs/explanation/ranking.md", "docs/explanation/from-immer-2021.md",
                 "docs/state.md"):  # fmt: skip
        text = page(name)
        assert f"({classes})" in text, name
        assert f"({real})" in text, name


def test_the_pools_that_did_not_choose_what_ranks_are_said() -> None:
    text = page("docs/explanation/ranking.md")
    said = [
        f"the estimate has {of('aside, classes')} with classes",
        f"and {of('aside, real targets')} with real targets",
        f"it has {of('second, classes')} ({ORDER['second, classes']['pools']}) and "
        f"{of('second, real targets')} ({ORDER['second, real targets']['pools']})",
    ]
    assert [one for one in said if one not in text] == []
    shares = [ORDER[f"aside, {kind}"]["rho"]["estimate"] / ORDER[f"aside, {kind}"]["attainable"]
              for kind in claims_pools.KINDS]  # fmt: skip
    assert f"{shares[0]:.2f} of it with classes, {shares[1]:.2f} with real" in page(
        "docs/state.md"
    )


def test_the_readme_says_how_the_order_by_accuracy_is() -> None:
    mean, low, high = FOUND["accuracy"]["last_layer_conditional, accuracy"]
    n = len(FOUND["laplace"])
    said = f"With accuracy rho is {mean:.2f} there ({low:.2f} to {high:.2f} on seven pools"
    assert n == 7
    assert said in page("README.md")


def test_the_forecast_is_said_to_be_a_mean_that_is_often_too_low() -> None:
    ours, tpe = (FOUND["forecasts"][name] for name in ("posterior", "tpe"))
    low, high = ours["range"]
    said = (
        "it was too low on six of the nine tables (median of forecast over gain "
        f"{ours['forecast over true, median']:.2f}, {low:.2f} to {high:.2f}; with TPE five, "
        f"{tpe['forecast over true, median']:.2f})"
    )
    assert (ours["too low on"], tpe["too low on"], ours["tables"]) == (6, 5, 9)
    assert said in page("docs/experiments/posterior-sampler.md")


def test_random_search_on_our_own_spaces_is_said() -> None:
    text, spaces = page("docs/experiments/posterior-sampler.md"), FOUND["own spaces"]
    rates = {
        name: {sampler: f"{100 * own['found the best']:.0f}" for sampler, own in one.items()}
        for name, one in spaces.items()
    }
    wave, mnist, kin = (rates[f"{name}72, two_fold"] for name in ("waveform", "mnist", "kin8nm"))
    assert f"{wave['posterior']} % of the searches on Waveform (TPE {wave['tpe']} %)" in text
    assert f"on Waveform and MNIST ({wave['random']} and {mnist['random']} %)" in text
    assert f"more often than both on kin8nm ({kin['random']} %)" in text
    assert int(kin["random"]) > max(int(kin["tpe"]), int(kin["posterior"]))
    for score in ("two_fold", "last_layer_conditional"):
        own = spaces[f"mnist72, {score}"]
        mean, low, high = own["random"]["less TPE's, 95 %"]
        assert f"{-mean:.3f} ({-high:.3f} to {-low:.3f}) with `{score}`" in text
    gaps = [spaces[f"mnist72, {score}"] for score in ("two_fold", "last_layer_conditional")]
    behind = [one["posterior"]["test loss over the best, nats"]
              - one["random"]["test loss over the best, nats"] for one in gaps]  # fmt: skip
    assert f"than the posterior's, by {behind[0]:.3f} and {behind[1]:.3f}" in text


def test_the_laplace_evidence_is_said_to_fail_on_the_pools_that_are_kept() -> None:
    text, rho = page("docs/explanation/from-immer-2021.md"), FOUND["laplace"]
    accuracy = {name: f"{one['with accuracy']:.2f}" for name, one in rho.items()}
    said = [
        f"rho is {accuracy['satellite1000']} on Satellite, {accuracy['fmnist1000']} and "
        f"{accuracy['fmnist10000']} on Fashion-MNIST with 1,000 and 10,000 images, "
        f"{accuracy['digits1297']} on digits",
        f"On MNIST it is {accuracy['mnist1000']}, on CIFAR-10 {accuracy['cifar5000']}, on all of "
        f"Fashion-MNIST {accuracy['fmnist60000']}",
        f"rho is {min(one['with the loss'] for one in rho.values()):.2f} (Satellite) to "
        f"{max(one['with the loss'] for one in rho.values()):.2f} (CIFAR-10)",
    ]
    assert [one for one in said if one not in text] == []
    assert sum(one["with accuracy"] < 0 for one in rho.values()) == 4


def test_the_luck_of_a_seed_is_a_median_with_quartiles() -> None:
    seeds = FOUND["seeds"]
    low, high = seeds["quartiles"]
    said = f"a median of {seeds['median']:.2f} over {seeds['pools']} pools, quartiles {low:.2f}"
    text = page("docs/decisions/0027-what-is-scored-and-delivered.md")
    assert f"{said} and {high:.2f}" in text


def test_searches_with_classes_gain_in_the_mean_and_not_in_the_median() -> None:
    own = FOUND["searches"]["classes"]
    assert (own["searches"], own["better"], own["worse"], own["the same"]) == (17, 7, 5, 5)
    assert own["median"] == 0
    for name in ("docs/explanation/ranking.md", "docs/experiments/estimate.md"):
        text = page(name)
        assert "better in 7, worse in 5" in text
        assert "median" in text
