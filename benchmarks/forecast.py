"""The forecast of a study's runtime beside what its trials take, piece by piece.

    python benchmarks/forecast.py DATA

DATA is the folder that holds `uci/`, `uci-classification/` and `FashionMNIST/`.

Five studies of three to five trials. Each trial is forecast by its own architecture, as
`driver/runtime.py` does it for the start of the search, and then compared with what it took. All
times are CPU seconds of this process, one thread, so that a loaded machine does not matter.
"""

import argparse
import json
import tempfile
import time

time.perf_counter = time.process_time  # before anything reads the clock

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pandas as pd  # noqa: E402
import tables  # noqa: E402
import torch  # noqa: E402
from tables import HERE, commit, conditions, read, split  # noqa: E402

import nas_evidence  # noqa: E402
from nas_evidence.data import load  # noqa: E402
from nas_evidence.data.tensors import to_tensors  # noqa: E402
from nas_evidence.driver import runtime  # noqa: E402
from nas_evidence.spec.study import ArchitectureSpec  # noqa: E402

RESULTS = HERE / "results" / "forecast_cpu.json"
#: Study: data, most training rows, trials, settings.
STUDIES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "small table, classes": ("ionosphere", 300, 4, {}),
    "small table, real targets": ("bostonHousing", 300, 3, {}),
    "larger table, classes": ("satellite", 1000, 3, {}),
    "8x8 images": ("digits", 500, 5, {"plan.epochs": 10}),
    "28x28 images": ("fashion_mnist", 1500, 3, {"plan.epochs": 5}),
}


def trial_of(row: Any) -> ArchitectureSpec:
    """Return the architecture of a row of the table `trials`."""
    named = {n.removeprefix("arch_"): row[n] for n in row.index if n.startswith("arch_")}
    values = {n: v.item() if hasattr(v, "item") else v for n, v in named.items() if not pd.isna(v)}
    return ArchitectureSpec(family=row["family"], values=values)


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Run a study and forecast its trials."""
    data, rows, n_trials, settings = STUDIES[name]
    images = data in ("digits", "fashion_mnist")
    given: dict[str, Any] = {"data": data, "data_root": folder if images else None}
    settings = {**settings, "finalists": 0}
    if images:
        settings |= {"dataset.max_train": rows, "dataset.max_test": 200}
    else:
        tables.MOST_TRAIN = rows
        train, _ = split(read(folder, data), 0)
        real = train["target"].dtype.kind == "f"
        given = {"data": train, "target": "target"}
        given["task"] = "regression" if real else "classification"
    with tempfile.TemporaryDirectory() as where:
        out = Path(where) / "study"
        study = nas_evidence.search(
            **given, n_trials=n_trials, settings=settings, out=out, progress=False
        )
        spec = study.spec
        root = str(folder) if images else None
        arrays = load(spec.dataset, seed=spec.seed, data_root=root, base=out.resolve())
        trials = nas_evidence.read_table(out, "trials")
    tensors = to_tensors(arrays, "cpu")
    found: list[dict[str, Any]] = []
    for _, row in trials.iterrows():
        pieces = runtime.pieces_of(trial_of(row), spec, tensors)
        forecast = runtime.trial_seconds(pieces, spec.plan, spec.estimators, len(tensors.x_train))
        seconds = {n: row[f"{n}_seconds"] for n in ("train", "evidence", "settle", "total")}
        found.append(
            {
                "family": row["family"],
                "n_parameters": int(row["n_parameters"]),
                "forecast": round(forecast + runtime._TRIAL_SECONDS, 3),
                **{n: None if pd.isna(v) else round(float(v), 3) for n, v in seconds.items()},
                "pieces": {n: round(v, 5) for n, v in vars(pieces).items()},
            }
        )
    ratio = sum(one["forecast"] for one in found) / sum(one["total"] for one in found)
    return {"study": name, "commit": commit(), "ratio": round(ratio, 2), "trials": found}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    given = parser.parse_args()
    if given.data is None:
        parser.exit(0, "nothing measured: name the folder of the data sets\n")
    torch.set_num_threads(1)
    runs = []
    for name in STUDIES:
        runs.append(measure(given.data, name))
        print(json.dumps(runs[-1]), flush=True)
        lines = ",\n  ".join(json.dumps(one) for one in runs)
        text = json.dumps({**conditions(0), "runs": []}, indent=1)[: -len("[]\n}")]
        RESULTS.write_text(f"{text}[\n  {lines}\n ]\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
