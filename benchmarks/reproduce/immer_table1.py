"""Regression on UCI sets (Immer et al. 2021, Table 1, C2 and C3).

One hidden layer of 50 ReLU units, targets and inputs standardised, the standard 90/10 splits. The
sets concrete, energy and yacht of the paper are not at hand. The quick version has KFAC alone on
sets of more than 2,000 data, and updates by full matrices every 40 epochs in place of 10. In full
it takes about 12 hours.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from ._immer import Fitted, averaged, real_predictive_nll, within
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run
from ._shared_data import Examples
from ._uci import COLUMNS, DIAGONAL, FULL, KINDS, LINEARISED, Split, drawn, measured, table

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

#: Published means and errors by the mode for each kind; KFAC by the Bayesian predictive; MAP with
#: a cross-validated prior.
PUBLISHED = {
    "bostonHousing": table(
        (2.69, 2.62, 2.70, 2.84, 2.89, 2.70, 2.71), (0.13, 0.12, 0.09, 0.05, 0.03, 0.08, 0.10)
    ),
    "wine-quality-red": table((0.93, 0.93, 0.94, 0.95, 0.96, 0.94, 0.98), (0.02,) * 7),
    "kin8nm": table((-1.14, -1.14, -1.13, -1.13, -1.13, -1.13, -1.09), (0.01,) * 7),
    "naval-propulsion-plant": table(
        (-6.93, -6.92, -6.88, -6.91, -6.95, -6.32, -5.75),
        (0.03, 0.04, 0.05, 0.08, 0.04, 0.05, 0.05),
    ),
    "power-plant": table(
        (2.78, 2.78, 2.78, 2.79, 2.79, 2.78, 2.82), (0.02, 0.01, 0.02, 0.02, 0.01, 0.02, 0.01)
    ),
}
#: The tables that have a column.
TABLES = {
    "full_ggn": ("Table 1", "Table C2", "Table C3"),
    "full_ef": ("Table 1", "Table C2"),
    "kfac_ggn": ("Table 1", "Table C2"),
    "diag_ggn": ("Table C3",),
    "diag_ef": ("Table C3",),
    LINEARISED: ("Table C2",),
}
_SMALL = 2000  # data of a set on which the short version runs all kinds


def split(folder: Path, k: int) -> tuple[Examples, Examples, float]:
    """Return training and test data of split k, standardised, and the scale of the targets."""
    values = np.loadtxt(folder / "data.txt")
    inputs = np.loadtxt(folder / "index_features.txt").astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    rows, tested = (
        np.loadtxt(folder / f"index_{part}_{k}.txt").astype(int) for part in ("train", "test")
    )
    x, y = values[:, inputs], values[:, [target]]
    spread = x[rows].std(0)
    x = (x - x[rows].mean(0)) / np.where(spread > 0, spread, 1)
    scale = float(y[rows].std())
    y = (y - y[rows].mean()) / scale
    train, test = (
        (torch.from_numpy(x[r]).float(), torch.from_numpy(y[r]).float()) for r in (rows, tested)
    )
    return train, test, scale


def splits(at: Run) -> Iterator[Split]:
    """Yield the splits of each set: of large ones a short version has one, and KFAC alone."""
    for name in PUBLISHED:
        for k in range(10):
            train, test, scale = split(at.data / "uci" / name, k)
            n, kinds, epochs, batch = len(train[0]), KINDS, at.sized(800, 10_000), len(train[0])
            if at.quick and n >= _SMALL:
                kinds, epochs, batch = ("kfac_ggn",), epochs // 4, 256
            elif at.quick and k > (0 if n > 1000 else 1):
                kinds = tuple(kind for kind in KINDS if kind not in FULL)
            if at.quick and k >= (2 if n < _SMALL else 1):
                break
            yield Split(name, k, train, test, 1, kinds, epochs, batch, scale)


def cells(numbers: Numbers) -> Cells:
    """Yield every log loss that ran, against its published one, MAP, and the diagonal kinds."""
    for name, values in numbers["values"].items():
        ran = {kind: fmean(v) for kind, v in values.items() if v}
        for kind, mean in ran.items():
            near = within(mean, *PUBLISHED[name][kind], len(values[kind]))
            yield Cell("test log loss", f"{name} {kind}", near, TABLES[kind])
        kfac, best = ran["kfac_ggn"], PUBLISHED[name]["MAP"]
        good = kfac <= best[0] or within(kfac, *best, len(values["kfac_ggn"]))
        yield Cell("KFAC against cross-validated MAP", name, good, TABLES["kfac_ggn"])
        for kind in (kind for kind in DIAGONAL if kind in ran):
            good, what = kfac <= ran[kind], f"{name} {kind}"
            yield Cell("KFAC not worse than diagonal", what, good, TABLES[kind])


def run(at: Run) -> Reproduction:
    """Train on some splits of each set."""
    every = list(splits(at))
    sizes = {one.name: len(one.train[0]) for one in every}
    found = measured(at, every, Fitted.test_nll, real_predictive_nll)
    rows, near = [], []
    for name, values in found.items():
        said = {kind: "{:.2f} ± {:.2f}".format(*both) for kind, both in PUBLISHED[name].items()}
        short = at.quick and sizes[name] >= _SMALL
        why = "200 epochs in batches of 256 instead of 10,000 full batches" if short else ""
        rows += [
            averaged(
                f"{name}: test log loss, {kind}", said[kind], values[kind], 2, "split", why=why
            )
            for kind in COLUMNS
            if values[kind]
        ]
        kfac = fmean(values["kfac_ggn"])
        near.append(f"{name} {kfac - PUBLISHED[name]['kfac_ggn'][0]:+.2f}")
        rows.append(
            Row(
                f"{name}: KFAC minus the published cross-validated MAP",
                "at most about 0",
                f"{kfac - PUBLISHED[name]['MAP'][0]:+.2f}",
                f"published MAP {said['MAP']}",
            )
        )
    return Reproduction(
        rows,
        drawn(found, PUBLISHED, [f"{k}\n{n} data" for k, n in sizes.items()], ylim=(-0.6, 1)),
        {"epochs": at.sized(800, 10_000), "values": found, "n_train": sizes},
        f"KFAC minus the published KFAC, nats per datum: {', '.join(near)}"
        + at.sized("; the three large sets are trained more briefly than published", ""),
    )
