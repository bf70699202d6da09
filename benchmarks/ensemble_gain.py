"""What an ensemble of the best networks gains: claimed at export, and measured on test rows.

    python benchmarks/ensemble_gain.py DATA --keep FOLDER [--sets NAME ...] [--seeds 3]
    python benchmarks/ensemble_gain.py --page    # writes the table of docs/explanation/tables.md

Small studies: 6 trials without a race on at most 300 rows of the tables of `tables.py`, kept in
FOLDER. `export --top 3` claims a gain over the best of its members, in nats per datum, from
predictions of training rows by networks that had not seen them. Beside it stands what the exported
files gain on the test rows: the mean log predictive density of the ensemble less that of the same
member alone. Both have a standard error over rows. z is their difference in standard errors.

Each run is stored when it has ended, and is not repeated.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tables
import torch
from tables import CLASSES, HERE, PAGE, commit, conditions, read, split, spread, store, table

import nas_evidence
from nas_evidence.exporting.predictor import Predictor

RESULTS = HERE / "results" / "ensemble_gain.json"
SETS = ("australian", "ionosphere", "satellite", "waveform", "bostonHousing", "power-plant",
        "wine-quality-red")  # fmt: skip
TOP, TRIALS, MOST_TRAIN = 3, 6, 300
_TABLE = re.compile(r"(<!-- ensembles -->\n).*?(<!-- end of ensembles -->)", re.DOTALL)


def log_densities(predictor: Predictor, rows: Any, method: str) -> np.ndarray:
    """Return the log predictive density of the target of each row [n], nats."""
    found = predictor.predict(rows.drop(columns="target"), method=method)
    truth = found._known(rows["target"])
    if found.probabilities is not None:
        return np.log(found.probabilities[np.arange(len(truth)), truth].clip(1e-15))
    assert found.density is not None
    return np.asarray(found.density.log_density(truth))


def studied(train: Any, folder: Path, seed: int) -> nas_evidence.Study:
    """Return the study in `folder`, begun or continued if it is not over."""
    if (folder / "export" / "MODEL_CARD.md").is_file():
        return nas_evidence.load(folder)
    if (folder / "study.toml").is_file():
        study = nas_evidence.resume(folder, progress=False)
    else:
        study = nas_evidence.search(
            train,
            target="target",
            task="regression" if train["target"].dtype.kind == "f" else "classification",
            n_trials=TRIALS,
            settings={"seed": seed, "finalists": 0},
            out=folder,
            progress=False,
        )
    study.predictor()
    return study


def gain_of(study: nas_evidence.Study, test: Any, name: str) -> dict[str, Any]:
    """Return the claimed and the measured gain of the ensemble over its best member."""
    folder = study.export(top=TOP)
    claimed = json.loads((folder / "ensemble.json").read_text(encoding="utf-8"))
    ensemble = Predictor.load(folder)
    best = study.predictor(int(claimed["best_member"]))
    found: dict[str, Any] = {
        "claimed": claimed["gain_per_datum"],
        "claimed_error": claimed["gain_standard_error"],
        "weights": [one["weight"] for one in claimed["members"]],
    }
    for method in ("map", "probit"):
        gains = log_densities(ensemble, test, method) - log_densities(best, test, method)
        found[f"measured_{method}"] = float(gains.mean())
        found[f"measured_{method}_error"] = float(gains.std(ddof=1) / math.sqrt(len(gains)))
    return found


def measure(folder: Path, keep: Path, names: Sequence[str], n_seeds: int) -> None:
    """Measure all sets and seeds, and store each when it has ended."""
    tables.MOST_TRAIN = MOST_TRAIN
    fresh = {**conditions(TRIALS), "most_train": MOST_TRAIN, "top": TOP, "runs": []}
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else fresh
    done = {(run["data"], run["seed"]) for run in stored["runs"]}
    for seed in range(n_seeds):
        for name in names:
            if (name, seed) in done:
                continue
            train, test = split(read(folder, name), seed)
            study = studied(train, keep / f"{name}-{seed}-{TRIALS}", seed)
            run = {"data": name, "seed": seed, "commit": commit(), "n_train": len(train),
                   "n_test": len(test), **gain_of(study, test, name)}  # fmt: skip
            print(json.dumps(run), flush=True)
            stored["runs"].append(rounded(run))
            store(stored, RESULTS)


def rounded(value: Any) -> Any:
    """Return a value with every number inside to five decimals."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


def rows(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row per data set and seed, in the order of `SETS`."""
    lines = []
    for run in sorted(runs, key=lambda r: (SETS.index(r["data"]), r["seed"])):
        method = "probit" if run["data"] not in CLASSES else "map"
        measured, error = run[f"measured_{method}"], run[f"measured_{method}_error"]
        z = (measured - run["claimed"]) / math.hypot(error, run["claimed_error"] or 1e-9)
        lines.append(
            [run["data"], str(run["seed"]), f"{run['n_train']} / {run['n_test']:,}",
             str(len(run["weights"])), f"{run['claimed']:.3f} ± {run['claimed_error']:.3f}",
             f"{measured:.3f} ± {error:.3f}", f"{z:+.1f}"]
        )  # fmt: skip
    return lines


def written(page: str) -> str:
    """Return the page with its table as the stored results give it."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    header = ["data", "seed", "rows trained / tested", "members", "claimed gain",
              "measured gain", "z"]  # fmt: skip
    own = table(header, rows(runs))
    return _TABLE.sub(lambda found: f"{found[1]}{own}{found[2]}", page)


def summary() -> str:
    """Return the means over all runs, with standard errors over runs."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    cells = [
        f"{key} {spread([run[key] for run in runs])}"
        for key in ("claimed", "measured_map", "measured_probit")
    ]
    z = [float(line[-1]) for line in rows(runs)]
    of_z = f"z {statistics.mean(z):+.2f} ± {statistics.stdev(z):.2f}"
    return f"{len(runs)} runs: {', '.join(cells)}; {of_z}"


def main() -> None:
    """Measure and store, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--keep", type=Path, default=Path("runs"))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data is not None:
        measure(given.data, given.keep, given.sets, given.seeds)
    if given.page:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        print(summary())


if __name__ == "__main__":
    main()
