"""Does a column of free text help as hashed features, or should it be left out?

Tables with one column of text, and two to seven others, made from what a Debian system and
the standard library hold. The first five have texts of any kind:

debian      description, log size, priority -> section of a package, eight sections
unicode     name, width, mirrored, combining -> category of a character, six categories
cars        name, origin and six numbers -> miles per gallon (vega_datasets)
docstrings  first line of a docstring, parameters, depth -> lines of a function of the standard
            library, logarithm to the base 2
files       name without its ending, log size, depth -> ending of a file of /usr, six endings

Five more have free text alone, four words or more in the median:

sizes       description, section, priority -> size of a package of other sections, log10
man         description, log size -> section of a manual page, six sections
functions   docstring, parameters, lines -> installed package of a function, five packages
raises      message, depth, line -> class of an exception in installed packages, five classes
commits     message, files, weekday -> lines changed by a commit of this repository, log2

Each is drawn and split by a seed: 300 training rows, and up to 400 test rows. Two perceptrons are
trained as a search trains them, with the column and without it. The difference is in nats of test
log predictive density per datum; real targets are standardised. The features of a text:

    words of a text -> the word and its 3- and 4-grams -> 1,024 signed buckets (CRC-32)
    -> log(1 + count) -> times log(rows / rows with the bucket) -> length 1
    -> 32 principal axes of the training rows, of which the first has standard deviation 1

    python benchmarks/texts.py CARS [--splits 5] [--tables debian ...] [--to FILE]

CARS is cars.json of vega_datasets. Rows are added to FILE; results/texts.json is committed.
"""

import argparse
import ast
import gzip
import re
import subprocess
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
from _common import conditions, read_json, show, write_json
from _networks import assignment
from plans import networks, plan_of, tested

from nas_evidence.data.assembly import assembled, raw_of
from nas_evidence.data.mapped import Array
from nas_evidence.data.reading import rows_of_table
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.training.life import advance
from nas_evidence.training.parts import new_network, part_of, stop_of_part

N_TRAIN, N_TEST = 300, 400
#: Buckets and features.
BUCKETS, AXES = 1024, 32
#: Rows at a time, and most rows that the axes are found from.
_ROWS, _MOST_ROWS = 4096, 10_000
_WORD = re.compile(r"[^\W_]+")
_SIZES = (3, 4)


@dataclass(frozen=True)
class TextAxes:
    """How a text becomes k features: weights [1024] of buckets, axes [k, 1024], their mean [k]."""

    weights: Sequence[float]
    axes: Sequence[Sequence[float]]
    mean: Sequence[float]

    def features(self, texts: pd.Series) -> Array:
        """Return the features of texts, float64 [n, k]."""
        weights, axes = np.array(self.weights), np.array(self.axes).T
        parts = [texts.iloc[i : i + _ROWS] for i in range(0, len(texts), _ROWS)]
        x = np.concatenate([_weighted(_counts(part), weights) @ axes for part in parts])
        return np.where(np.asarray(texts.isna())[:, None], 0.0, np.round(x - self.mean, 6))


def axes_of(texts: pd.Series) -> TextAxes:
    """Return the axes of the texts of the training rows."""
    present = texts.dropna()
    counts = _counts(present.iloc[:: 1 + len(present) // _MOST_ROWS])
    weights = np.round(np.log(len(counts) / np.maximum((counts != 0).sum(0), 1)), 3)
    x = _weighted(counts, weights)
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    axes = vectors[:, : -AXES - 1 : -1].T / np.sqrt(values[-1])
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    axes = np.round(axes * np.sign(largest), 3)
    mean = np.round(x.mean(0) @ axes.T, 6)
    return TextAxes(weights.tolist(), axes.tolist(), mean.tolist())


def _weighted(counts: Array, weights: Array) -> Array:
    x = np.sign(counts) * np.log1p(np.abs(counts)) * weights
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9))


def _counts(texts: pd.Series) -> Array:
    """Return the signed counts of the buckets, float64 [n, 1024]."""
    known: dict[str, Array] = {}
    found = np.zeros((len(texts), BUCKETS))
    for row, text in enumerate(texts.astype("object").where(texts.notna(), "")):
        for word in _WORD.findall(str(text).lower()):
            if word not in known:
                known[word] = _word(word)
            found[row] += known[word]
    return found


def _word(word: str) -> Array:
    marked = f" {word} "
    parts = {marked[i : i + n] for n in _SIZES for i in range(len(marked) - n + 1)} | {marked}
    vector = np.zeros(BUCKETS)
    for part in parts:
        code = zlib.crc32(part.encode())
        vector[code % BUCKETS] += 1 if code >> 31 else -1
    return vector


def commonest(frame: pd.DataFrame, target: str, n: int) -> pd.DataFrame:
    """Return the rows of the n commonest classes, as many of each as of the rarest."""
    counts = frame[target].value_counts()[:n]
    rows = frame[frame[target].isin(counts.index)]
    return rows.groupby(target).sample(min(200, int(counts.min())), random_state=0)


def packages() -> pd.DataFrame:
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
            rows.append(dict(zip(("text", "size", "priority", "section"), row, strict=True)))
    return pd.DataFrame(rows).drop_duplicates("text")


def debian() -> pd.DataFrame:
    """Return packages of eight sections."""
    kept = ("games", "science", "admin", "sound", "net", "editors", "web", "graphics")
    frame = packages().rename(columns={"section": "y"})
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


def sizes() -> pd.DataFrame:
    """Return packages of the sections that `debian` leaves out, with their size."""
    frame = packages()
    kept = ("python", "libs", "devel", "utils", "doc", "kde", "gnome", "math", "text", "misc")
    frame = frame[frame["section"].isin(kept)].sample(2000, random_state=0)
    return frame.rename(columns={"size": "y"})


def man() -> pd.DataFrame:
    """Return manual pages with a one-line description."""
    rows = []
    for path in sorted(Path("/usr/share/man").glob("man[1-8]/*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            head = re.search(r"^\.S[Hh] \"?NAME\"?\n(.*)", file.read(20_000), re.MULTILINE)
        if head and len(parts := re.split(r" \\?\\?-+ ", head[1], maxsplit=1)) == 2:
            size = float(np.log10(path.stat().st_size).round(3))
            rows.append({"text": parts[1], "size": size, "y": f"section {path.parent.name[3:]}"})
    return commonest(pd.DataFrame(rows).drop_duplicates("text"), "y", 6)


def trees(*names: str) -> Iterator[tuple[str, Path, ast.AST]]:
    """Yield the syntax trees of installed packages."""
    site = Path(pd.__file__).parents[1]
    for name in names:
        for path in sorted((site / name).rglob("*.py")):
            if "test" not in str(path.relative_to(site)):
                yield name, path, ast.parse(path.read_text(encoding="utf-8", errors="replace"))


def functions() -> pd.DataFrame:
    """Return functions of installed packages with a docstring of several words."""
    rows = []
    for name, _, tree in trees("numpy", "scipy", "sklearn", "pandas", "optuna"):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                lines = (node.end_lineno or node.lineno) - node.lineno
                rows.append({"text": said[:300], "parameters": len(node.args.args),
                             "lines": lines, "y": name})  # fmt: skip
    return commonest(pd.DataFrame(rows).drop_duplicates("text"), "y", 5)


def raises() -> pd.DataFrame:
    """Return exceptions with a message in installed packages."""
    rows = []
    for _, _, tree in trees("numpy", "scipy", "sklearn", "pandas", "optuna"):
        for node in ast.walk(tree):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[message, *_])):
                    texts = [n.value for n in ast.walk(message) if isinstance(n, ast.Constant)]
                    said = " ".join(text for text in texts if isinstance(text, str))
                    rows.append({"text": said, "depth": node.col_offset // 4,
                                 "line": node.lineno, "y": name})  # fmt: skip
    return commonest(pd.DataFrame(rows).drop_duplicates("text"), "y", 5)


def commits() -> pd.DataFrame:
    """Return commits of this repository, up to the one that this table was written for."""
    command = ["git", "log", "--shortstat", "--no-merges", "--format=%x00%w(0)%aI%n%B%x01"]
    listed = subprocess.run([*command, "dd06092b"], capture_output=True, text=True, check=True)
    rows = []
    for entry in listed.stdout.split("\0")[1:]:
        said, _, stat = entry.partition("\1")
        date, _, text = said.partition("\n")
        numbers = [int(n) for n in re.findall(r"\d+", stat)]
        if len(numbers) > 1:
            rows.append({
                "text": text.strip(), "files": numbers[0], "weekday": pd.Timestamp(date).weekday(),
                "y": float(np.log2(1 + sum(numbers[1:])).round(3)),
            })  # fmt: skip
    return pd.DataFrame(rows).drop_duplicates("text")


def split(frame: pd.DataFrame, seed: int, with_text: bool) -> TensorData:
    """Return training and test rows of a seed, with or without the text."""
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    train, test = frame[:N_TRAIN], frame[N_TRAIN : N_TRAIN + N_TEST]
    spec = DatasetSpec(name="table", path="t.csv", target="y", drop=("text",))
    raw = raw_of(rows_of_table(train, test, spec, "t.csv"), spec, seed=0)
    arrays = assembled(raw, spec, seed=0)
    if with_text:
        axes = axes_of(train["text"])
        inputs = ((arrays.x_train, train), (arrays.x_test, test))
        x, x_test = (np.hstack([x, axes.features(f["text"])], dtype=np.float32) for x, f in inputs)
        arrays = replace(
            arrays, x_train=x, x_test=x_test, input_shape=x.shape[1:],
            mean=np.append(arrays.mean, np.zeros(AXES, np.float32)),
            std=np.append(arrays.std, np.ones(AXES, np.float32)),
        )  # fmt: skip
    return to_tensors(arrays, "cpu")


def losses(data: TensorData, seed: int) -> Iterator[tuple[float, float]]:
    """Yield test log loss and error of each network."""
    for network in networks("mlp", (1, 16), (2, 32)):
        plan = plan_of(data, "proposed")
        run = new_network(*part_of(None, data, assignment(network, plan), f"s{seed}"))
        while not (run.is_over or any(advance([run], stop_of_part(run)))):
            pass
        yield tested(run, data, plan)


def compared(name: str, frame: pd.DataFrame, n_splits: int) -> dict[str, Any]:
    """Return mean log loss and error with and without the text, and the gain of each split."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for seed in range(n_splits):
        for with_text, means in found.items():
            data = split(frame, seed, with_text)
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
        "docstrings": docstrings, "files": files, "sizes": sizes, "man": man,
        "functions": functions, "raises": raises, "commits": commits,
    }  # fmt: skip
    rows = read_json(options.to, {}).get("rows", []) if options.to else []
    for name in options.tables or makers:
        rows.append(show(compared(name, makers[name](), options.splits)))
        head = conditions("text as hashed features or left out", "torch", "pandas")
        write_json(options.to, {**head, "rows": rows}, rows="rows")


if __name__ == "__main__":
    main()
