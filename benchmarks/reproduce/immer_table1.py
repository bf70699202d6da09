"""Regression on UCI sets (Immer et al. 2021, Table 1, C2 and C3).

One hidden layer of 50 ReLU units, targets and inputs standardised, the standard 90/10 splits. The
sets concrete, energy and yacht of the paper are not at hand. The quick version has KFAC alone on
sets of more than 2,000 data, and updates by full matrices every 40 epochs in place of 10.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import fit, mean_and_error, mlp, real_predictive_nll, within

PAPER = "Immer et al. 2021"
FIGURE = "Table 1, Table C2, Table C3"
TITLE = "Test log loss of networks with learned priors on UCI regression"
CLAIM = (
    "Without validation data the test log loss is as good as cross-validated baselines; KFAC is "
    "about as good as the full GGN, diagonal kinds are slightly worse."
)
RULE = (
    "ours is the published log loss within two standard errors of the difference (published "
    "ones are of ten splits; ours, of n splits, is taken as the root of 10 / n times that); "
    "KFAC is not above the published cross-validated MAP by more than that, nor above a "
    "diagonal kind"
)
NEEDS = ("uci",)
FULL_HOURS = 12.0

#: Published by the mode for each kind; KFAC by the Bayesian predictive; cross-validated MAP.
COLUMNS = ("full_ggn", "full_ef", "kfac_ggn", "diag_ggn", "diag_ef", "kfac_ggn, linearised", "MAP")
PUBLISHED = {
    name: {
        column: f"{value} ± {error}"
        for column, value, error in zip(COLUMNS, values, errors, strict=True)
    }
    for name, values, errors in (
        ("bostonHousing", ("2.69", "2.62", "2.70", "2.84", "2.89", "2.70", "2.71"),
         ("0.13", "0.12", "0.09", "0.05", "0.03", "0.08", "0.10")),
        ("wine-quality-red", ("0.93", "0.93", "0.94", "0.95", "0.96", "0.94", "0.98"),
         ("0.02", "0.02", "0.02", "0.02", "0.02", "0.02", "0.02")),
        ("kin8nm", ("-1.14", "-1.14", "-1.13", "-1.13", "-1.13", "-1.13", "-1.09"),
         ("0.01",) * 7),
        ("naval-propulsion-plant",
         ("-6.93", "-6.92", "-6.88", "-6.91", "-6.95", "-6.32", "-5.75"),
         ("0.03", "0.04", "0.05", "0.08", "0.04", "0.05", "0.05")),
        ("power-plant", ("2.78", "2.78", "2.78", "2.79", "2.79", "2.78", "2.82"),
         ("0.02", "0.01", "0.02", "0.02", "0.01", "0.02", "0.01")),
    )
}  # fmt: skip
KINDS = COLUMNS[:5]
FULL = COLUMNS[:2]
#: The tables that have a column.
TABLES = {
    "full_ggn": ("Table 1", "Table C2", "Table C3"),
    "full_ef": ("Table 1", "Table C2"),
    "kfac_ggn": ("Table 1", "Table C2"),
    "diag_ggn": ("Table C3",),
    "diag_ef": ("Table C3",),
    "kfac_ggn, linearised": ("Table C2",),
}
_SMALL = 2000  # data of a set on which the short version runs all kinds


def split(folder: Path, k: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], float]:
    """Return training and test data of split k, standardised, and the scale of the targets."""
    table = np.loadtxt(folder / "data.txt")
    inputs = np.loadtxt(folder / "index_features.txt").astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    both = (np.loadtxt(folder / f"index_{part}_{k}.txt") for part in ("train", "test"))
    rows, tested = (indices.astype(int) for indices in both)
    x, y = table[:, inputs], table[:, [target]]
    spread = x[rows].std(0)
    x = (x - x[rows].mean(0)) / np.where(spread > 0, spread, 1)
    scale = float(y[rows].std())
    y = (y - y[rows].mean()) / scale
    train, test = (
        (torch.from_numpy(x[r]).float(), torch.from_numpy(y[r]).float()) for r in (rows, tested)
    )
    return train, test, scale


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return every log loss that ran, against its published one, MAP, and the diagonal kinds."""
    found = []
    for name, values in numbers["values"].items():
        ran = {kind: fmean(v) for kind, v in values.items() if v}
        for kind, mean in ran.items():
            published, error = (float(part) for part in PUBLISHED[name][kind].split(" ± "))
            near = within(mean, published, error, len(values[kind]))
            found.append(Cell("test log loss", f"{name} {kind}", near, TABLES[kind]))
        kfac, n = ran["kfac_ggn"], len(values["kfac_ggn"])
        best, error = (float(part) for part in PUBLISHED[name]["MAP"].split(" ± "))
        good = kfac <= best or within(kfac, best, error, n)
        found.append(Cell("KFAC against cross-validated MAP", name, good, TABLES["kfac_ggn"]))
        found += [
            Cell("KFAC not worse than diagonal", f"{name} {kind}", kfac <= ran[kind], TABLES[kind])
            for kind in KINDS[3:]
            if kind in ran
        ]
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train on some splits of each set."""
    assert data is not None
    epochs, rate, every = (800, 0.01, 10) if quick else (10_000, 0.001, 1)
    found: dict[str, dict[str, list[float]]] = {}
    sizes: dict[str, int] = {}
    for name in PUBLISHED:
        found[name] = {kind: [] for kind in COLUMNS[:-1]}
        n_splits = 10
        for k in range(n_splits):
            train, test, scale = split(data / "uci" / name, k)
            sizes[name] = len(train[0])
            small = sizes[name] < _SMALL
            if quick and k >= (2 if small else 1):
                break
            for kind in KINDS if small or not quick else ("kfac_ggn",):
                if quick and kind in FULL and k > (0 if sizes[name] > 1000 else 1):
                    continue
                say(f"{name}, split {k}, {kind}")
                plan = {
                    "likelihood": "gaussian",
                    "epochs": epochs if small or not quick else epochs // 4,
                    "batch_size": len(train[0]) if small or not quick else 256,
                    "optimiser": "adam",
                    "learning_rate": rate,
                    "schedule": "cosine" if quick else "constant",
                    "online": {
                        "every": 40 if quick and kind in FULL else every,
                        "curvature": kind,
                    },
                }
                model = mlp([train[0].shape[1], 50, 1], nn.ReLU, k)
                one = fit(model, train, test, scale=scale, seed=k, plan=plan)
                found[name][kind].append(one.test_nll())
                if kind == "kfac_ggn":
                    found[name]["kfac_ggn, linearised"].append(real_predictive_nll(one))
    rows, better = [], {}
    for name, values in found.items():
        for kind in COLUMNS[:-1]:
            if not values[kind]:
                continue
            mean, error = mean_and_error(values[kind])
            n = len(values[kind])
            short = quick and sizes[name] >= _SMALL
            rows.append(
                Row(
                    f"{name}: test log loss, {kind}",
                    PUBLISHED[name][kind],
                    f"{mean:.2f}",
                    f"± {error:.2f}, n = {n} splits" if n > 1 else "one split",
                    f"{epochs // 4} epochs in batches of 256 instead of 10,000 full batches"
                    if short
                    else "",
                )
            )
        mean = mean_and_error(values["kfac_ggn"])[0]
        better[name] = mean - float(PUBLISHED[name]["MAP"].split()[0])
        rows.append(
            Row(
                f"{name}: KFAC minus the published cross-validated MAP",
                "at most about 0",
                f"{better[name]:+.2f}",
                f"published MAP {PUBLISHED[name]['MAP']}",
            )
        )
    near = {
        name: mean_and_error(v["kfac_ggn"])[0] - float(PUBLISHED[name]["kfac_ggn"].split()[0])
        for name, v in found.items()
    }
    return Reproduction(
        tuple(rows),
        _figure(found, sizes),
        {"epochs": epochs, "values": found, "n_train": sizes},
        "KFAC minus the published KFAC, nats per datum: "
        + ", ".join(f"{name} {d:+.2f}" for name, d in near.items())
        + ("; the three large sets are trained more briefly than published" if quick else ""),
    )


def _figure(found: dict[str, dict[str, list[float]]], sizes: dict[str, int]) -> Figure:
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axis = figure.subplots()
    for i, name in enumerate(found):
        zero = float(PUBLISHED[name]["kfac_ggn"].split()[0])
        for j, kind in enumerate(COLUMNS[:-1]):
            values = [v - zero for v in found[name][kind]]
            axis.plot(
                [i + 0.1 * j] * len(values),
                values,
                "*+o^sx"[j],
                color=f"C{j}",
                markersize=4,
                label=kind if i == 0 else None,
            )
    axis.axhline(0, color="0.8", zorder=0)
    axis.set_xticks(range(len(found)), [f"{n}\n{sizes[n]} data" for n in found], fontsize=7)
    axis.set(ylabel="test log loss minus published KFAC", ylim=(-0.6, 1))
    axis.legend(fontsize=7)
    return figure
