"""M(3*), whose outputs cannot express confidence, by temperature (Baldock and Marzari, Fig. 4).

Logistic units before the softmax keep the loss per digit above log(1 + 9/e) = 1.46; the prior is
twenty times wider. Quick: 12 temperatures instead of 84 from 10^-1.5 to 10^1.5, trajectories of 50
steps, 64 after 64 of burn-in (D_500: 24 after 24), no D_5000.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from nas_evidence_reproduce._baldock import UNIFORM, digits, heated, network
from nas_evidence_reproduce._finite_temperature import HeatPlan, Tempered
from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Baldock and Marzari 2019"
FIGURE = "Fig. 4"
TITLE = "Training energy and test loss of M(3*) by temperature"
CLAIM = "The lowest test loss of M(3*) is at T far below 1: there is no minimum in between."
RULE = (
    "the temperature of least test loss is half a decade or more below 1, the loss at the "
    "lowest temperature is within two standard errors of the least one, and that at the highest"
    " above it"
)
NEEDS = ("MNIST", "baldock")
FULL_HOURS = 45.0

FLOOR = math.log(1 + 9 / math.e)
QUICK = HeatPlan(
    n_temperatures=12,
    lowest=10**-1.5,
    highest=10**1.5,
    n_burn_in=120,
    n_samples=120,
    n_leapfrog=50,
)
FULL = HeatPlan(
    n_temperatures=84, lowest=10**-1.5, highest=10**1.5, n_burn_in=1000, n_samples=1000,
    n_leapfrog=100,
)  # fmt: skip


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return whether the loss of each set is least in the cold, without a minimum in between."""
    found = []
    for name, one in numbers.items():
        if not name.startswith("D_"):
            continue
        mean, error = one["test_loss"]
        k = mean.index(min(mean))
        flat = mean[0] - mean[k] <= 2 * math.hypot(error[0], error[k]) if k else True
        rises = mean[-1] - mean[0] > 2 * math.hypot(error[0], error[-1])
        found += [
            Cell("least test loss far below T = 1", name, one["temperatures"][k] <= 10**-0.5),
            Cell("no minimum in between", name, flat),
            Cell("highest temperature is worse than lowest", name, rises),
        ]
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Sample M(3*) at all temperatures for each set."""
    assert data is not None
    plan, net = (QUICK if quick else FULL), network(3, logistic=True)
    found: dict[int, Tempered] = {}
    for per_class in (5, 50) if quick else (5, 50, 500):
        rows = digits(data, per_class, n_test=1000 if quick else 10_000)
        generator = torch.Generator().manual_seed(per_class)
        fewer = per_class > 5 and quick
        given = plan.model_copy(update={"n_burn_in": 24, "n_samples": 24}) if fewer else plan
        found[len(rows.x)] = heated(net, rows, given, generator=generator, say=say)
    table, said = [], []
    for n, one in found.items():
        best, low, high = one.best()
        mean, error = one.mean_loss()
        k = int(mean.argmin())
        said.append(f"D_{n} at T = {best:.2g} ({low:.2g} to {high:.2g})")
        table += [
            Row(
                f"D_{n}: temperature of least test loss",
                "far below 1",
                f"{best:.2g}",
                f"{low:.2g} to {high:.2g} within two errors, n = {len(one.losses)}",
            ),
            Row(
                f"D_{n}: least mean test loss (floor {FLOOR:.2f}, uniform {UNIFORM:.2f})",
                "above 1.46",
                f"{float(mean[k]):.3f}",
                f"± {float(error[k]):.3f}",
            ),
            Row(
                f"D_{n}: mean test loss at the lowest and the highest temperature",
                "low, high",
                f"{float(mean[0]):.3f}, {float(mean[-1]):.3f}",
                f"± {float(error[0]):.3f}, {float(error[-1]):.3f}",
            ),
        ]
    return Reproduction(
        tuple(table),
        _figure(found),
        {
            "n": plan.n_samples,
            **{
                f"D_{n}": {
                    "temperatures": one.temperatures.tolist(),
                    "energy": [v.tolist() for v in one.mean_energy()],
                    "test_loss": [v.tolist() for v in one.mean_loss()],
                    "acceptance": one.acceptance.tolist(),
                    "swap_probability": one.swap_probability,
                }
                for n, one in found.items()
            },
        },
        "least test loss of " + ", ".join(said),
    )


def _figure(found: dict[int, Tempered]) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    for i, (n, one) in enumerate(found.items()):
        mean, error = one.mean_loss()
        axis.errorbar(one.temperatures, mean, 2 * error, fmt="o-", color=f"C{i}", label=f"D_{n}")
        energy = one.mean_energy()[0] / n
        axis.plot(one.temperatures, energy, "s:", color=f"C{i}", markersize=3)
    axis.axhline(UNIFORM, color="0.5", linewidth=0.8)
    axis.axhline(FLOOR, color="0.5", linestyle=":", linewidth=0.8)
    axis.set(xscale="log", xlabel="T", ylabel="loss per digit (nats); dotted: training")
    axis.legend(frameon=False)
    return figure
