"""The page on ranking shows what the committed results give; its statistics are what they say."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import spearmanr

FOLDER = Path(__file__).parents[1] / "benchmarks" / "ranking"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module(request.param)


@pytest.mark.parametrize("script", ["page"], indirect=True)
def test_the_tables_of_the_page_are_what_the_results_give(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.written(text), "run python benchmarks/ranking/page.py"
    readme = script.README.read_text(encoding="utf-8")
    assert readme == script.written(readme, readme=True), "run python benchmarks/ranking/page.py"
    for name in ("ranking_wide", "ranking_large", "ranking_own"):
        pools = json.loads((script.RESULTS / f"{name}.json").read_text(encoding="utf-8"))["pools"]
        assert all(f"| {script.POOLS[pool['pool']]} |" in text for pool in pools)


@pytest.mark.parametrize("script", ["page"], indirect=True)
def test_a_page_without_a_place_for_a_table_is_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="no place for the table 'small'"):
        script.written("# Ranking\n")


@pytest.mark.parametrize("script", ["compare_wide"], indirect=True)
def test_rho_is_spearmans_and_its_interval_holds_it(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, 40).astype(float)  # with ties
    y = x + 2 * rng.normal(size=40)
    rho = script.spearman(x, y)
    assert rho == pytest.approx(spearmanr(x, y)[0])
    low, high = script.interval([(x, y)])
    assert low < rho < high
    assert np.isnan(script.spearman(x, np.ones(40)))
    wider = script.interval([(x[:10], y[:10])])
    assert wider[1] - wider[0] > high - low


@pytest.mark.parametrize("script", ["search_replay"], indirect=True)
def test_a_replayed_search_meets_different_architectures_and_tpe_uses_what_it_is_told(
    script: ModuleType,
) -> None:
    pool = "waveform72"
    depths, widths = script.LONG[pool].grids["mlp"]
    value = {f"mlp {d}x{w}": -abs(d - 3) - abs(np.log2(w / 32)) for d in depths for w in widths}
    met = {s: script.met(script.study_of(pool, s, 0), value, 24) for s in ("tpe", "random")}
    assert all(len({*names}) == 24 and {*names} <= {*value} for names in met.values())
    late = {s: np.mean([value[name] for name in names[12:]]) for s, names in met.items()}
    assert late["tpe"] > late["random"]
