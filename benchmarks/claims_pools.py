"""What the committed pools, tables and searches support of the sentences in README and in pages.

    python benchmarks/claims_pools.py    # writes benchmarks/results/claims/pools.json, in seconds

Nothing is trained: all figures are computed again from `benchmarks/results`. A pool is a set of
networks trained with several seeds; rho is Spearman's, of the score of one seed with the test log
loss of the other seeds. Intervals are 90 %, drawing pools alone (`DRAWS` resamples, seed 0).

    all       the 53 pools of up to 1,000 rows behind README's table
    aside     the 27 of them that did not tune the estimate: those kept aside in the first look,
              and those of the second look (docs/experiments/estimate.md)
    second    the 16 of the second look alone, which were trained after every choice; that the
              estimate is of the mean of both scores was seen on all pools before them

`figures` has every number that a page says; `tests/test_claims_of_pools.py` compares the two.
"""

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "ranking"))

import judge
import numpy as np
import pandas as pd
import studies
from _common import RESULTS, hardware, versions

from nas_evidence.maths.architecture_posterior import _warp

DRAWS = 20_000
TO, RANK = RESULTS / "claims" / "pools.json", RESULTS / "ranking" / "rank"
#: Columns of the pools by the name of a score.
SCORES = {"conditional_evidence": "e5", "elpd": "plain5", "estimate": "estimate"}
PAIRS = (("conditional_evidence", "elpd"), ("estimate", "elpd"),
         ("estimate", "conditional_evidence"))  # fmt: skip
KINDS = {"classes": False, "real targets": True}
Pool = Mapping[str, Any]


def results(name: str) -> Any:
    """Return a file of committed results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def pools_by_part() -> dict[str, list[Pool]]:
    """Return the pools of `all`, `aside` and `second`."""
    groups = results("ranking_worth")
    aside = {*results("ranking_rank")["kept aside"]["pools"]}
    named = [(group, name, pool) for group, one in groups.items()
             for name, pool in one["pools"].items()]  # fmt: skip
    second = [pool for group, _, pool in named if group == "rank/second"]
    kept = [pool for group, name, pool in named if group == "rank" and name in aside]
    return {"all": [pool for *_, pool in named], "aside": [*kept, *second], "second": second}


def of_kind(pools: Sequence[Pool], kind: str) -> list[Pool]:
    """Return the pools of classes, or of real targets."""
    return [pool for pool in pools if pool["real"] == KINDS[kind]]


def interval(values: Sequence[float]) -> list[float]:
    """Return the mean of one value for each pool, and its interval over draws of pools."""
    own = np.array(values)
    drawn = own[np.random.default_rng(0).integers(len(own), size=(DRAWS, len(own)))].mean(1)
    return [round(float(v), 6) for v in (own.mean(), *np.quantile(drawn, [0.05, 0.95]))]


def of_order() -> dict[str, Any]:
    """Return mean rho, attainable and differences of scores, by part and kind."""
    found: dict[str, Any] = {}
    for part, pools in pools_by_part().items():
        for kind in KINDS:
            own = of_kind(pools, kind)
            rho = {name: [pool["scores"][column]["rho"] for pool in own]
                   for name, column in SCORES.items()}  # fmt: skip
            found[f"{part}, {kind}"] = {
                "pools": len(own),
                "attainable": round(float(np.mean([pool["attainable"] for pool in own])), 6),
                "rho": {name: round(float(np.mean(values)), 6) for name, values in rho.items()},
                "range of the estimate": [round(v, 4) for v in (min(rho["estimate"]),
                                                                max(rho["estimate"]))],
                "differences": {
                    f"{one} - {other}": interval(np.subtract(rho[one], rho[other]).tolist())
                    for one, other in PAIRS
                },
            }  # fmt: skip
    return found


def of_forecasts() -> dict[str, Any]:
    """Return the gain of ten further trials as forecast, and as it was, by table and sampler."""
    found: dict[str, Any] = {}
    stops = {name.removesuffix(", stop"): one
             for name, one in results("posterior")["summary, kept aside"].items()
             if name.endswith(", stop")}  # fmt: skip
    for sampler in ("posterior", "tpe"):
        pairs = {name: [one[sampler]["forecast gain"], one[sampler]["true gain"]]
                 for name, one in stops.items()}  # fmt: skip
        ratios = [forecast / true for forecast, true in pairs.values()]
        found[sampler] = {
            "tables": len(pairs),
            "forecast, true": pairs,
            "too low on": sum(ratio < 1 for ratio in ratios),
            "forecast over true, median": round(float(np.median(ratios)), 6),
            "range": [round(min(ratios), 6), round(max(ratios), 6)],
        }
    return found


def of_own_spaces() -> dict[str, Any]:
    """Return how often each sampler found the best score in 24 trials, and its test loss."""
    found: dict[str, Any] = {}
    for row in results("search_replay_posterior")["rows"]:
        if row["trials"] == 24:
            one = found.setdefault(f"{row['pool']}, {row['score']}", {})
            one[row["sampler"]] = {
                "found the best": row["found_best_score"],
                "test loss over the best, nats": row["regret_nats"],
                "less TPE's, 95 %": [row["regret_nats_minus_tpe"],
                                     *row["regret_nats_minus_tpe_95"]],
            }  # fmt: skip
    return found


def of_laplace() -> dict[str, Any]:
    """Return rho of the Kronecker-factored evidence on pools of 1,000 rows or more."""
    large = results("ranking_large")["pools"]
    return {
        pool["pool"]: {
            "rows": pool["n_data"],
            "with accuracy": round(pool["scores"]["kfac_ggn"]["rho_second"], 6),
            "with the loss": round(pool["scores"]["kfac_ggn"]["rho"], 6),
        }
        for pool in large
    }


def of_accuracy() -> dict[str, Any]:
    """Return rho of two folds with log loss and with accuracy on the large pools of classes."""
    large = results("ranking_large")["pools"]
    found = {}
    for score in ("last_layer_conditional", "two_fold"):
        for what, key in (("log loss", "rho"), ("accuracy", "rho_second")):
            own = [pool["scores"][score][key] for pool in large]
            found[f"{score}, {what}"] = [round(v, 6) for v in (float(np.mean(own)), min(own),
                                                               max(own))]  # fmt: skip
    return found


def of_seeds() -> dict[str, Any]:
    """Return the share of the variance of M, the mean of both scores, that is of the seed.

    By the analysis of variance of networks and seeds: what is left when both have their means,
    over itself and the variance between networks (at least 0). M is on the scale on which the
    estimate models it (`Warp`), seed by seed, since each seed has its own training rows.
    """
    shares = []
    for group, one in results("ranking_worth").items():
        for name in one["pools"]:
            scores = judge.read(group, name, complete=True).scores
            both = (scores["e5"] + scores["plain5"]) / 2
            known = both[np.isfinite(both).all(1)]
            z = np.stack([_warp(own).z(own) for own in known.T], 1)
            z -= z.mean(0)
            n, k = z.shape
            own = float(np.square(z - z.mean(1, keepdims=True)).sum()) / ((n - 1) * (k - 1))
            between = float(z.mean(1).var(ddof=1)) - own / k
            shares.append(own / (own + max(between, 0.0)))
    low, middle, high = np.quantile(shares, [0.25, 0.5, 0.75])
    return {"pools": len(shares), "median": round(float(middle), 3),
            "quartiles": [round(float(low), 3), round(float(high), 3)],
            "below 0.15": sum(share < 0.15 for share in shares)}  # fmt: skip


def of_searches() -> dict[str, Any]:
    """Return what ranking by the estimate changes in the committed searches, one seed each.

    The test log loss of the first architecture by the estimate less that by the score, nats.
    """
    found = {}
    for kind, real in KINDS.items():
        gaps = []
        for file in sorted((RANK / "studies_score").glob("*.csv")):
            both = [pd.read_csv(RANK / f"studies_{by}" / file.name, dtype={"ordered": str})
                    for by in ("estimate", "score")]  # fmt: skip
            if bool(both[0]["real"].iloc[0]) == real:
                estimated, scored = both
                new = studies.first(estimated, "estimate")[0]
                gaps.append(new - studies.first(scored, "score")[0])
        found[kind] = {
            "searches": len(gaps), "mean": interval(gaps),
            "median": round(float(np.median(gaps)), 4),
            "better": sum(gap < 0 for gap in gaps), "worse": sum(gap > 0 for gap in gaps),
            "the same": sum(gap == 0 for gap in gaps),
        }  # fmt: skip
    return found


def claims(figures: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the sentences that pages say of pools, before and after they were mended."""
    order = figures["order"]

    def said(part: str, one: str, other: str) -> str:
        mean, low, high = order[part]["differences"][f"{one} - {other}"]
        return f"{mean:+.3f} ({low:.3f} to {high:.3f})"

    def trusted(part: str) -> str:
        one = order[part]
        return f"{one['rho']['estimate']:.2f} of {one['attainable']:.2f}"

    rows = []
    for kind in KINDS:
        own = order[f"all, {kind}"]
        rows.append({
            "claim": f"`conditional_evidence` is not behind `elpd`, {kind}",
            "promise": "difference of rho not below 0 beyond its interval",
            "before": "said of 14 pools: +0.01 (-0.03 to 0.06)",
            "after": f"behind: {said(f'all, {kind}', 'conditional_evidence', 'elpd')}; the "
                     f"estimate: {said(f'all, {kind}', 'estimate', 'elpd')}",
            "n": f"{own['pools']} pools",
        })  # fmt: skip
        rows.append({
            "claim": f"rho of the default with the test log loss, {kind}, up to 1,000 rows",
            "promise": "the mean of pools that did not tune what ranks",
            "before": trusted(f"all, {kind}"),
            "after": f"{trusted(f'aside, {kind}')}; on the {order[f'second, {kind}']['pools']} "
                     f"trained after every choice {trusted(f'second, {kind}')}",
            "n": f"{order[f'aside, {kind}']['pools']} pools",
        })  # fmt: skip
    forecasts = figures["forecasts"]["posterior"]
    rows.append({
        "claim": "the forecast of what ten further trials gain",
        "promise": "said: 1.95 times too much",
        "before": "supported by no mean of the results",
        "after": f"too low on {forecasts['too low on']} of {forecasts['tables']} tables; median "
                 f"forecast / gain {forecasts['forecast over true, median']:.2f}",
        "n": f"{forecasts['tables']} tables",
    })  # fmt: skip
    common = {"place": "page", "spread": "90 %, drawing pools",
              "script": "benchmarks/claims_pools.py"}  # fmt: skip
    return [{**row, **common} for row in rows]


def tables(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables behind the claims."""
    rows = [
        [part, str(one["pools"]), f"{one['attainable']:.2f}",
         *(f"{one['rho'][name]:.2f}" for name in SCORES),
         *(f"{m:+.3f} ({a:.3f} to {b:.3f})" for m, a, b in one["differences"].values())]
        for part, one in figures["order"].items()
    ]  # fmt: skip
    header = ["pools", "number", "attainable", *(f"`{name}`" for name in SCORES),
              *(f"{one} - {other}" for one, other in PAIRS)]  # fmt: skip
    gains = [
        [name, *(f"{v:.4f}" for v in own["forecast, true"][name]),
         *(f"{v:.4f}" for v in figures["forecasts"]["tpe"]["forecast, true"][name])]
        for own in [figures["forecasts"]["posterior"]] for name in own["forecast, true"]
    ]  # fmt: skip
    return [
        {"title": "Order of the networks of a pool", "header": header, "rows": rows,
         "note": "rho of one seed with the test log loss of the other seeds; 90 % intervals."},
        {"title": "Gain of ten further trials", "rows": gains,
         "header": ["table", "forecast", "gain", "forecast, TPE", "gain, TPE"]},
    ]  # fmt: skip


def main() -> None:
    """Write the file of results."""
    figures = {
        "order": of_order(), "forecasts": of_forecasts(), "own spaces": of_own_spaces(),
        "laplace": of_laplace(), "accuracy": of_accuracy(), "seeds": of_seeds(),
        "searches": of_searches(),
    }  # fmt: skip
    found = {
        "hardware": hardware(), "versions": versions("numpy", "scipy"),
        "date": datetime.date.today().isoformat(), "rows": claims(figures),
        "tables": tables(figures), "figures": figures,
    }  # fmt: skip
    TO.parent.mkdir(parents=True, exist_ok=True)
    TO.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
