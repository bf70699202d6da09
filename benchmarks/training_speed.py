"""When sums of training losses rank: a condition that is known without test data.

    agreement  Spearman's rho over the networks of a study between `sotl_e` and the study's score,
               here `two_fold`, which predicts each datum by a network that has not seen it

For each seed of the committed pools: the agreement, and rho of `sotl` and `sotl_e` with minus the
test log loss. Other candidates beside it: the share of the first loss that is left at the end, the
gap between the held-out and the training loss, the ratio of their spreads over networks, the
number of data.

    python benchmarks/training_speed.py
"""

import json
from pathlib import Path

import pandas as pd

from nas_evidence.maths.ranking import resampling_plan, spearman

ROOT = Path(__file__).resolve().parents[1]
POOLS = ROOT / "benchmarks" / "results" / "ranking" / "wide"
RESULTS = ROOT / "benchmarks" / "results" / "training_speed.json"
PAGE = ROOT / "docs" / "experiments" / "training-speed.md"
CANDIDATES = ("agreement", "loss_left", "gap", "spread_ratio", "n_data")
#: Pools by their agreement.
CLASSES = ((-1.0, 0.0), (0.0, 0.5), (0.5, 1.0))
FEWEST = 6  # networks of a seed


def of_seed(pool: str, seed: int, rows: pd.DataFrame) -> dict[str, float | str]:
    """Return the agreement, the other candidates and both correlations for one seed of a pool."""
    n_data, target = rows["n_data"].iloc[0], -rows["test_nll"]
    first, last, unseen = (
        rows["prequential_epoch1"].abs(),
        -rows["train_nll_per_datum"],
        -rows["two_fold"],
    )
    if first.median() > last.max() * 10:  # summed over the data
        first = first / n_data
    found = {
        name: _rho(rows[a], b)
        for name, a, b in (
            ("agreement", "sotl_e", rows["two_fold"]),
            ("sotl", "sotl", target),
            ("sotl_e", "sotl_e", target),
        )
    }
    return {
        "pool": pool, "seed": seed, "n_data": int(n_data), "networks": len(rows), **found,
        "loss_left": float((last / first).median()), "gap": float((unseen - last).median()),
        "spread_ratio": float(last.std() / (unseen - last).std()),
    }  # fmt: skip


def pools() -> pd.DataFrame:
    """Return a row for each seed of each committed pool with training and test losses."""
    rows = []
    for path in sorted(POOLS.glob("*.csv")):
        if "-" in path.stem:  # folds and races of the same networks
            continue
        table = pd.read_csv(path)
        table = table[
            table["test_nll"].notna() & table["sotl"].notna() & table["two_fold"].notna()
        ]
        for seed, some in table.groupby("seed"):
            if len(some) >= FEWEST:
                rows.append(of_seed(path.stem, int(str(seed)), some))
    return pd.DataFrame(rows)


def summary(found: pd.DataFrame) -> dict[str, object]:
    """Return how each candidate goes with rho, and rho by class of agreement."""
    classes = []
    for low, high in CLASSES:
        some = found[found["agreement"].between(low, high, inclusive="left")]
        classes.append({
            "from": low, "to": high, "n": len(some),
            **{
                name: [float(some[name].mean()), float(some[name].min()), float(some[name].max())]
                for name in ("sotl", "sotl_e")
            },
        })  # fmt: skip
    with_rho = {
        name: {score: _rho(found[name], found[score]) for score in ("sotl", "sotl_e")}
        for name in CANDIDATES
    }
    return {"candidates": with_rho, "classes": classes, "pools": found.to_dict("records")}


def tables(numbers: dict[str, object]) -> str:
    """Return the two tables of the page."""
    lines = [
        "| known without test data | its rho with rho of `sotl` | of `sotl_e` |",
        "|---|---|---|",
    ]
    for name, rho in numbers["candidates"].items():  # type: ignore[attr-defined]
        lines.append(f"| {name.replace('_', ' ')} | {rho['sotl']:.2f} | {rho['sotl_e']:.2f} |")
    lines += [
        "",
        "| agreement | seeds of pools | rho of `sotl` | rho of `sotl_e` |",
        "|---|---|---|---|",
    ]
    for one in numbers["classes"]:  # type: ignore[attr-defined]
        cells = ("{:.2f} ({:.2f} to {:.2f})".format(*one[name]) for name in ("sotl", "sotl_e"))
        lines.append(f"| {one['from']:g} to {one['to']:g} | {one['n']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rho(a: pd.Series, b: pd.Series) -> float:
    found = spearman(a.to_numpy(), b.to_numpy(), plan=resampling_plan(len(a), seed=0))
    return float("nan") if found is None else found[0]


def written(page: str, numbers: dict[str, object]) -> str:
    """Return the page with its tables made anew."""
    before, _, rest = page.partition("<!-- condition -->\n")
    _, _, after = rest.partition("<!-- /condition -->")
    return f"{before}<!-- condition -->\n\n{tables(numbers)}\n<!-- /condition -->{after}"


if __name__ == "__main__":
    numbers = summary(pools())
    RESULTS.write_text(json.dumps(numbers, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), numbers))
    print(tables(numbers))
