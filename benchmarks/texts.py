"""Does a column of free text help as hashed features, or should it be left out?

Five tables with one column of text, and two to seven others, made from what a Debian system and
the standard library hold:

debian      description, log size, priority -> section of a package, eight sections
unicode     name, width, mirrored, combining -> category of a character, six categories
cars        name, origin and six numbers -> miles per gallon (vega_datasets)
docstrings  first line of a docstring, parameters, depth -> lines of a function of the standard
            library, logarithm to the base 2
files       name without its ending, log size, depth -> ending of a file of /usr, six endings

Each is drawn and split by a seed: 300 training rows, and up to 400 test rows. Two perceptrons are
trained as a search trains them, with the column (`nas_evidence/data/text.py`) and without it. The
difference is in nats of test log predictive density per datum; real targets are standardised.

    python benchmarks/texts.py CARS [--splits 5] [--tables debian ...] [--to FILE]

CARS is cars.json of vega_datasets. results/texts.json is committed.
"""

import argparse
import ast
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
from _common import conditions, show, write_json
from _networks import assignment
from plans import networks, plan_of, tested

from nas_evidence.data.assembly import assembled, raw_of
from nas_evidence.data.reading import rows_of_table
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.training.parts import new_run, part_of, train_slices

N_TRAIN, N_TEST = 300, 400


def commonest(frame: pd.DataFrame, target: str, n: int) -> pd.DataFrame:
    """Return the rows of the n commonest classes, as many of each as of the rarest."""
    counts = frame[target].value_counts()[:n]
    rows = frame[frame[target].isin(counts.index)]
    return rows.groupby(target).sample(min(200, int(counts.min())), random_state=0)


def debian() -> pd.DataFrame:
    """Return packages that can be installed."""
    command = ["apt-cache", "dumpavail"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = []
    for entry in listed.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line[:40])
        about = next((fields[key] for key in fields if key.startswith("Description")), None)
        if about and "Installed-Size" in fields:
            size = np.log10(1 + int(fields["Installed-Size"])).round(3)
            row = (about, size, fields.get("Priority"), fields.get("Section"))
            rows.append(dict(zip(("text", "size", "priority", "y"), row, strict=True)))
    kept = ("games", "science", "admin", "sound", "net", "editors", "web", "graphics")
    frame = pd.DataFrame(rows).drop_duplicates("text")
    return commonest(frame[frame["y"].isin(kept)], "y", 8)


def unicode() -> pd.DataFrame:
    """Return characters with a name."""
    chars = [chr(i) for i in range(0x20000) if unicodedata.name(chr(i), "")]
    rows = [
        {
            "text": unicodedata.name(c).lower(), "width": unicodedata.east_asian_width(c),
            "mirrored": unicodedata.mirrored(c), "combining": unicodedata.combining(c),
            "y": unicodedata.category(c),
        }
        for c in chars if not unicodedata.name(c).startswith(("CJK", "HANGUL SYLLABLE"))
    ]  # fmt: skip
    return commonest(pd.DataFrame(rows), "y", 6)


def cars(path: Path) -> pd.DataFrame:
    """Return cars with a known consumption."""
    frame = pd.read_json(path, convert_dates=["Year"])
    frame = frame.assign(Year=frame["Year"].dt.year).dropna(subset="Miles_per_Gallon")
    return frame.rename(columns={"Name": "text", "Miles_per_Gallon": "y"})


def docstrings() -> pd.DataFrame:
    """Return functions of the standard library with a docstring."""
    rows = []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                lines = (node.end_lineno or node.lineno) - node.lineno
                rows.append({
                    "text": said.splitlines()[0], "parameters": len(node.args.args),
                    "depth": node.col_offset // 4, "y": float(np.log2(1 + lines).round(3)),
                })  # fmt: skip
    return pd.DataFrame(rows).drop_duplicates("text")


def files() -> pd.DataFrame:
    """Return files below /usr with an ending."""
    rows = []
    for path in sorted(Path("/usr").rglob("*.*")):
        if path.is_file() and not path.is_symlink():
            stem, _, ending = path.name.partition(".")
            size = float(np.log10(1 + path.stat().st_size).round(3))
            rows.append({"text": stem, "size": size, "depth": len(path.parts), "y": ending})
    return commonest(pd.DataFrame(rows).drop_duplicates("text"), "y", 6)


def split(frame: pd.DataFrame, seed: int, drop: tuple[str, ...]) -> TensorData:
    """Return training and test rows of a seed, with or without the text."""
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    train, test = frame[:N_TRAIN], frame[N_TRAIN : N_TRAIN + N_TEST]
    spec = DatasetSpec(name="table", path="t.csv", target="y", drop=drop)
    raw = raw_of(rows_of_table(train, test, spec, "t.csv"), spec, seed=0)
    return to_tensors(assembled(raw, spec, seed=0), "cpu")


def losses(data: TensorData, seed: int) -> Iterator[tuple[float, float]]:
    """Yield test log loss and error of each network."""
    for network in networks("mlp", (1, 16), (2, 32)):
        plan = plan_of(data, "proposed")
        part = part_of(None, data, assignment(network, plan), f"s{seed}")
        run = new_run(part)
        while not all(train_slices([run], [part])):
            pass
        yield tested(run.training, data, plan)


def compared(name: str, frame: pd.DataFrame, n_splits: int) -> dict[str, Any]:
    """Return mean log loss and error with and without the text, and the gain of each split."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for seed in range(n_splits):
        for with_text, means in found.items():
            data = split(frame, seed, () if with_text else ("text",))
            each = [*losses(data, seed)]
            means.append((fmean(nll for nll, _ in each), fmean(error for _, error in each)))
            print(name, seed, with_text, data.input_shape, means[-1], file=sys.stderr, flush=True)
    gains = [out[0] - kept[0] for out, kept in zip(found[False], found[True], strict=True)]
    measure = "accuracy" if data.task == "labels" else "rmse"
    return {
        "table": name, "rows": len(frame), "test": len(data.x_test), "splits": n_splits,
        "log_loss_without": round(fmean(a for a, _ in found[False]), 4),
        "log_loss_with": round(fmean(a for a, _ in found[True]), 4),
        f"{measure}_without": round(fmean(b for _, b in found[False]), 4),
        f"{measure}_with": round(fmean(b for _, b in found[True]), 4),
        "gain": round(fmean(gains), 4),
        "standard_error": round(stdev(gains) / len(gains) ** 0.5, 4),
        "gains": [round(gain, 4) for gain in gains],
    }  # fmt: skip


def main() -> None:
    """Compare on each table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cars", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--tables", nargs="+", default=None)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    makers = {
        "debian": debian, "unicode": unicode, "cars": lambda: cars(options.cars),
        "docstrings": docstrings, "files": files,
    }  # fmt: skip
    rows = []
    for name in options.tables or makers:
        rows.append(show(compared(name, makers[name](), options.splits)))
        head = conditions("text as hashed features or left out", "torch", "pandas")
        write_json(options.to, {**head, "rows": rows}, rows="rows")


if __name__ == "__main__":
    main()
