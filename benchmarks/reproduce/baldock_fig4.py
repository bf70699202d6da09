"""M(3*), whose outputs cannot express confidence, by temperature (Baldock and Marzari, Fig. 4).

Logistic units before the softmax keep the loss per digit above log(1 + 9/e) = 1.46; the prior is
twenty times wider. Quick: 12 temperatures instead of 84 from 10^-1.5 to 10^1.5, trajectories of 50
steps, 120 after 120 of burn-in (D_500: 24 after 24), no D_5000. In full it takes about 45 hours.
"""

import math

import torch

from ._baldock import UNIFORM, digits_and_plans, heated, kept, least_row, network
from ._finite_temperature import HeatPlan
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run

FIGURE = "Fig. 4"
TITLE = "Training energy and test loss of M(3*) by temperature"
CLAIM = "The lowest test loss of M(3*) is at T far below 1: there is no minimum in between."
RULE = (
    "the temperature of least test loss is half a decade or more below 1, the loss at the "
    "lowest temperature is within two standard errors of the least one, and that at the highest"
    " above it"
)
NEEDS = ("MNIST", "baldock")

FLOOR = math.log(1 + 9 / math.e)
QUICK = HeatPlan(12, 10**-1.5, 10**1.5, n_burn_in=120, n_samples=120, n_leapfrog=50)
FULL = HeatPlan(84, 10**-1.5, 10**1.5, n_burn_in=1000, n_samples=1000, n_leapfrog=100)


def cells(numbers: Numbers) -> Cells:
    """Yield whether the loss of each set is least in the cold, without a minimum in between."""
    for name, one in numbers.items():
        if name.startswith("D_"):
            mean, error = one["test_loss"]
            k = mean.index(min(mean))
            flat = k == 0 or mean[0] - mean[k] <= 2 * math.hypot(error[0], error[k])
            rises = mean[-1] - mean[0] > 2 * math.hypot(error[0], error[-1])
            cold = one["temperatures"][k] <= 10**-0.5
            yield Cell("least test loss far below T = 1", name, cold)
            yield Cell("no minimum in between", name, flat)
            yield Cell("highest temperature is worse than lowest", name, rises)


def run(at: Run) -> Reproduction:
    """Sample M(3*) at all temperatures for each set."""
    plan, net = at.sized(QUICK, FULL), network(3, logistic=True)
    found = {}
    table, said = [], []
    for per_class, (rows, given) in digits_and_plans(at, plan).items():
        n = 10 * per_class
        at.say(f"D_{n}")
        one, _ = heated(net, rows, given, torch.Generator().manual_seed(per_class))
        found[n] = one
        best, low, high = one.best()
        mean, error = one.mean_loss()
        said.append(f"D_{n} at T = {best:.2g} ({low:.2g} to {high:.2g})")
        table += [
            least_row(n, one, "far below 1"),
            Row(
                f"D_{n}: least mean test loss (floor {FLOOR:.2f}, uniform {UNIFORM:.2f})",
                "above 1.46",
                f"{float(mean.min()):.3f}",
                f"± {float(error[mean.argmin()]):.3f}",
            ),
            Row(
                f"D_{n}: mean test loss at the lowest and the highest temperature",
                "low, high",
                f"{float(mean[0]):.3f}, {float(mean[-1]):.3f}",
                f"± {float(error[0]):.3f}, {float(error[-1]):.3f}",
            ),
        ]
    numbers = {
        f"D_{n}": {
            **kept(one),
            "acceptance": one.acceptance,
            "swap_probability": one.swap_probability,
        }
        for n, one in found.items()
    }
    figure, axis = panels(5, 3.6)
    for i, (n, one) in enumerate(found.items()):
        mean, error = one.mean_loss()
        axis.errorbar(one.temperatures, mean, 2 * error, fmt="o-", color=f"C{i}", label=f"D_{n}")
        energy = one.mean_energy()[0] / n
        axis.plot(one.temperatures, energy, "s:", color=f"C{i}", markersize=3)
    axis.axhline(UNIFORM, color="0.5", linewidth=0.8)
    axis.axhline(FLOOR, color="0.5", linestyle=":", linewidth=0.8)
    axis.set(xscale="log", xlabel="T", ylabel="loss per digit (nats); dotted: training")
    axis.legend(frameon=False)
    why = "least test loss of " + ", ".join(said)
    return Reproduction(table, figure, {"n": plan.n_samples, **numbers}, why)
