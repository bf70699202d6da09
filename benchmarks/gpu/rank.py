"""Does our evidence order the networks of Table C9 of Immer et al. (2021), trained on a GPU?

    python benchmarks/gpu/rank.py study --images cifar10.npz --seconds 300 --probe probe.jsonl
    nas-evidence search rank.toml --out c9
    python benchmarks/gpu/rank.py judge c9 --out rank

`study` writes the study file: 17 of the 45 networks, as many epochs as fit. `judge` prints
Spearman's rho with an interval for pairs of columns, and writes them beside the table of trials.
`--quick` makes the smallest study that runs, on images that are made here.
"""

import argparse
import csv
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from scipy.stats import spearmanr

HERE = Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "tests" / "golden" / "immer2021_table_c9_cifar10.csv"
#: Steps of an epoch of 50,000 images in batches of 128; least and most epochs.
STEPS, FEWEST, MOST = 391, 8, 20
#: Milliseconds of a step where nothing was measured.
ASSUMED_MS = 6.0
#: Launches of a step, with which its time grows on networks of this size: (a, b) of a + b depth.
LAUNCHES = {"cnn": (12, 24), "resnet": (14, 13)}
PAIRS = (
    ("diag_ef", "test_accuracy"), ("conditional_evidence", "test_accuracy"),
    ("elpd", "test_accuracy"), ("sotl", "test_accuracy"), ("n_parameters_score", "test_accuracy"),
    ("diag_ef", "test_log_loss"), ("conditional_evidence", "test_log_loss"),
    ("elpd", "test_log_loss"), ("sotl", "test_log_loss"), ("diag_ef", "published_evidence"),
    ("conditional_evidence", "published_accuracy"), ("diag_ef", "published_accuracy"),
    ("test_accuracy", "published_accuracy"), ("published_evidence", "published_accuracy"),
)  # fmt: skip
_DRAWS = 2000


def epochs_that_fit(study: Mapping[str, Any], findings: Sequence[Mapping[str, Any]],
                    seconds: float) -> int:  # fmt: skip
    """Return the epochs of the main trainings that fit, with two halves and a last pass each.

    Args:
        study: with its networks in `first`.
        findings: lines of probe.py, from which come the time of a step of ResNet-20 and what
            eight processes on one device gain.
        seconds: of all trials together.
    """
    plain = [f["ms_per_128"] for f in findings if f.get("how") == "plain"
             and f["network"] == "resnet-20 w16"]  # fmt: skip
    rates = {f["k"]: f["steps_per_second"] for f in findings if f["section"] == "packed"}
    if 1 in rates:
        plain = [1000 / rates[1]]
    gain = max(1.0, rates[8] / rates[1]) if {1, 8} <= set(rates) else 3.0
    of_20 = (plain or [2 * ASSUMED_MS])[0]

    def ms(network: Mapping[str, Any]) -> float:
        fixed, each = LAUNCHES[network["family"]]
        own = fixed + each * network["depth"]
        return float(of_20 * own / (LAUNCHES["resnet"][0] + LAUNCHES["resnet"][1] * 20))

    epoch = sum(map(ms, study["first"])) * STEPS / 1000
    # Both halves side by side take 0.7 of an epoch; three updates and the passes at the end, 2.
    return max(FEWEST, min(MOST, int((seconds * gain / epoch - 2) / 1.7)))


def written_study(to: Path, images: Path, epochs: int) -> None:
    """Write the study file."""
    study = tomllib.loads((HERE / "rank.toml").read_text(encoding="utf-8"))
    study["dataset"]["path"] = str(images)
    study["plan"]["epochs"] = epochs
    study["plan"]["online"]["every"] = math.ceil(epochs / 3)
    to.write_text(tomli_w.dumps(study), encoding="utf-8")


def written_quick_study(to: Path, images: Path) -> None:
    """Write the smallest study of this kind, and images for it: two classes of squares."""
    rng = np.random.default_rng(0)
    y = np.arange(96) % 2
    x = rng.integers(0, 90, (96, 12, 12, 3), dtype=np.uint8)
    x[y == 1, 4:8, 4:8] += 60
    np.savez(images, x_train=x[:64], y_train=y[:64], x_test=x[64:], y_test=y[64:])
    study = tomllib.loads((HERE / "rank.toml").read_text(encoding="utf-8"))
    study["dataset"]["path"] = str(images)
    study["first"] = [n for n in study["first"] if n["family"] == "cnn"][-3:]
    study |= {"n_trials": 3}
    study["plan"] |= {"epochs": 2, "batch_size": 32}
    study["plan"]["online"]["every"] = 1
    study["resources"] |= {"workers": 2, "gpus": 0}
    to.write_text(tomli_w.dumps(study), encoding="utf-8")


def table_of(run: Path) -> pd.DataFrame:
    """Return a row for each complete trial of a study folder, with the published values."""
    trials = pd.concat([pd.read_parquet(path) for path in run.glob("trials/*.parquet")])
    trials = trials[trials["status"] == "complete"].set_index("trial_id")
    scores = pd.concat([pd.read_parquet(path) for path in run.glob("evidence/*.parquet")])
    last = scores.sort_values("epoch").groupby(["trial_id", "estimator"]).tail(1)
    wide = last.pivot(index="trial_id", columns="estimator", values="value")
    found = trials.join(wide.rename(columns={"n_parameters": "n_parameters_score"}))
    seconds = last.pivot(index="trial_id", columns="estimator", values="seconds")
    found["two_fold_seconds"] = seconds.get("two_fold")
    found["test_log_loss"] = -found["test_nll_per_datum"]  # larger is better, as every score
    with TABLE.open(encoding="utf-8") as file:
        published = {
            (row["family"].lower(), int(row["depth"]), int(row["width"])): row
            for row in csv.DictReader(file)
        }
    of = {
        "published_accuracy": "test_accuracy_percent",
        "published_evidence": "log_evidence_per_datum_nats",
    }
    keys = list(zip(found["family"], found["arch_depth"], found["arch_width"], strict=True))
    for column, name in of.items():
        rows = (published.get((family, int(d), int(w)), {}) for family, d, w in keys)
        found[column] = [float(row.get(name, math.nan)) for row in rows]
    return found.reset_index()


def correlations(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rho of each pair with its 95 % percentile interval over resampled networks."""
    for group in ("all", "cnn", "resnet"):
        rows = table if group == "all" else table[table["family"] == group]
        for score, target in PAIRS:
            if score not in rows or target not in rows:
                continue
            known = rows[[score, target]].dropna().to_numpy(float)
            if len(known) < 3 or min(np.ptp(known, 0)) == 0:
                continue
            rng = np.random.default_rng(0)
            drawn = (known[rng.integers(0, len(known), len(known))] for _ in range(_DRAWS))
            varied = (d for d in drawn if min(np.ptp(d, 0)) > 0)
            rhos = [float(spearmanr(*d.T).statistic) for d in varied]
            low, high = np.quantile(rhos, [0.025, 0.975])
            yield {
                "score": score, "target": target, "group": group, "n": len(known),
                "rho": round(float(spearmanr(*known.T).statistic), 3),
                "rho_low": round(float(low), 3), "rho_high": round(float(high), 3),
            }  # fmt: skip


def judge(run: Path, out: Path) -> None:
    """Print the correlations; write them as JSON and the table of trials as CSV."""
    table = table_of(run)
    rows = list(correlations(table))
    for row in rows:
        print(json.dumps(row))
    devices = sorted({json.loads(text)["device"] for text in table["versions"]})
    versions = json.loads(table["versions"].iloc[0]) if len(table) else {}
    found = {
        "trials": len(table), "epochs": int(table["epochs"].max()), "devices": devices,
        "versions": versions, "correlations": rows,
    }  # fmt: skip
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    kept = [
        "trial_id", "family", "arch_depth", "arch_width", "n_parameters", "epochs",
        "test_accuracy", "test_nll_per_datum", "train_seconds", "two_fold_seconds",
        "total_seconds", "diag_ef", "conditional_evidence", "elpd", "sotl", "published_accuracy",
        "published_evidence",
    ]  # fmt: skip
    columns = [column for column in kept if column in table]
    table[columns].round(5).to_csv(out.with_suffix(".csv"), index=False)


def main() -> None:
    """Write the study, or judge what it has found."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    study = verbs.add_parser("study")
    study.add_argument("--images", type=Path, required=True)
    study.add_argument("--to", type=Path, default=Path("rank.toml"))
    study.add_argument("--probe", type=Path, help="findings of probe.py")
    study.add_argument("--seconds", type=float, default=300)
    study.add_argument("--quick", action="store_true")
    judged = verbs.add_parser("judge")
    judged.add_argument("run", type=Path)
    judged.add_argument("--out", type=Path, default=Path("rank"))
    options = parser.parse_args()
    if options.verb == "judge":
        judge(options.run, options.out)
    elif options.quick:
        written_quick_study(options.to, options.images)
    else:
        lines = options.probe.read_text(encoding="utf-8").splitlines() if options.probe else []
        given = tomllib.loads((HERE / "rank.toml").read_text(encoding="utf-8"))
        epochs = epochs_that_fit(given, [json.loads(line) for line in lines], options.seconds)
        written_study(options.to, options.images, epochs)
        print(f"{epochs} epochs")


if __name__ == "__main__":
    main()
