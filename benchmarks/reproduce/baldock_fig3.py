"""Networks at finite temperature: M(3) on D_50 and D_500 (Baldock and Marzari 2019, Fig. 2, 3).

Replica exchange as in Table 1, by our sampler: exact swaps of even and odd neighbours, walls that
reflect, step sizes tuned in the burn-in only. Quick: 12 temperatures instead of 112, 50 steps per
trajectory instead of 100, 64 trajectories after 64 of burn-in (D_500: 24 after 24), no D_5000.
With so few temperatures neighbours hardly swap: each replica then samples by itself, from a
minimum of its own.

Both kinds of walls have the same density, so they can differ in speed alone. The published code
rejects trajectories that end outside. "rejected" is that, from the same minima; weights over half
widths tell how far a replica has come from its minimum (0.58 where the box is filled uniformly).
In full it takes about 60 hours.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ._baldock import (
    UNIFORM,
    digits,
    digits_and_plans,
    heated,
    kept,
    least_row,
    minimised,
    network,
)
from ._finite_temperature import HeatPlan, Tempered
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run

FIGURE = "Fig. 2, Fig. 3, Table 1"
TITLE = "Training energy and test loss of M(3) by temperature"
CLAIM = (
    "Sampling generalises better than optimisation, and the least test loss of D_50 and D_500 is "
    "near T = 1."
)
RULE = (
    "the temperature of least test loss is within half a decade of 1; the least loss is below "
    "the mean of minima, and on the published side of that of equal probabilities; the mean "
    "energy rises from each temperature to the next (Fig. 2); or the setting is the published "
    "one (Table 1)"
)
NEEDS = ("MNIST", "baldock")

COMMON = "from_common_minima"
SETTINGS = {"temperatures": 112, "lowest": 0.01, "highest": 100.0, "n_leapfrog": 100}
QUICK = HeatPlan(12, 0.01, 100.0, n_burn_in=64, n_samples=64, n_leapfrog=50)
FULL = HeatPlan(112, 0.01, 100.0, n_burn_in=1000, n_samples=1000, n_leapfrog=100)
FROM_ONE = HeatPlan(8, 0.1, 30.0, n_burn_in=32, n_samples=32, n_leapfrog=50)
Sampled = tuple[Tempered, Tensor]


def cells(numbers: Numbers) -> Cells:
    """Yield all sets, both kinds of walls, and all starts from a common minimum."""

    def about_one(temperature: float) -> bool:
        return 10**-0.5 <= temperature <= 10**0.5

    kelvin, fig_3 = numbers["D_50"]["temperatures"], ("Fig. 3",)
    for name, one in numbers.items():
        if name.startswith("D_"):
            mean, size = one["test_loss"][0], name.partition(",")[0]
            least, minima = min(mean), numbers[size]["minima"][0]
            best, side = kelvin[mean.index(least)], (least > UNIFORM) == (size == "D_50")
            yield Cell("least test loss near T = 1", name, about_one(best), fig_3)
            yield Cell("sampling beats minima", name, least < minima, fig_3)
            yield Cell("least loss against equal probabilities", name, side, fig_3)
    for walls, temperatures in zip(("reject", "reflect"), numbers[COMMON], strict=True):
        for i, t in enumerate(temperatures, 1):
            what = f"{i}, walls {walls}"
            yield Cell("the same from a common minimum", what, about_one(t), fig_3)
    for name in ("D_50", "D_500"):
        rises = all(a < b for a, b in pairwise(numbers[name]["energy"][0]))
        yield Cell("energy rises with T", name, rises, ("Fig. 2",))
    settings = {**numbers["settings"], "temperatures": len(kelvin)}
    for name, value in SETTINGS.items():
        yield Cell("setting of the sampler", name, settings[name] == value, ("Table 1",))


def run(at: Run) -> Reproduction:
    """Sample M(3) at all temperatures for each set, and minimise it from common first weights."""
    plan, net, n_minima = at.sized(QUICK, FULL), network(3), at.sized(10, 100)
    turned = {}
    rejected = {}
    minima = {}
    for per_class, (rows, given) in digits_and_plans(at, plan).items():
        n = 10 * per_class
        for reflects, into in ((True, turned), (False, rejected)):
            if reflects or given is plan:
                at.say(f"D_{n}, walls {'reflect' if reflects else 'reject'}")
                generator = torch.Generator().manual_seed(per_class)
                into[n] = heated(net, rows, given, generator, reflects=reflects)
        positions = minimised(net, rows, n_minima, generator, 400)
        losses = net.mean_loss(positions, rows.x_test, rows.y_test).double()
        minima[n] = float(losses.mean()), float(losses.std()) / n_minima**0.5
    common, row = from_common_minima(at)
    table = [
        Row(
            "Table 1: temperatures, lowest, highest, steps of a trajectory",
            "112, 0.01, 100, 100",
            f"{plan.n_temperatures}, {plan.lowest:g}, {plan.highest:g}, {plan.n_leapfrog}",
        ),
        row,
    ]
    said = []
    for n, (one, sizes) in turned.items():
        table += _rows(n, one, minima[n], n_minima, quick=at.quick)
        said.append(f"D_{n} at T = {one.best()[0]:.2g}")
        if n in rejected:
            table += _walls(n, one, rejected[n][0], [sizes, rejected[n][1]])
            said[-1] += f" ({rejected[n][0].best()[0]:.2g} where walls reject)"
    numbers = {
        f"D_{n}": {**kept(one), "minima": minima[n], "size": sizes.mean(0)}
        for n, (one, sizes) in turned.items()
    }
    for n, (one, sizes) in rejected.items():
        numbers[f"D_{n}, rejecting walls"] = {
            "test_loss": one.mean_loss(),
            "size": sizes.mean(0),
        }
    settings = {name: getattr(plan, name) for name in ("lowest", "highest", "n_leapfrog")}
    return Reproduction(
        table,
        _figure(turned, rejected, minima),
        {"n": plan.n_samples, "settings": settings, COMMON: common, **numbers},
        f"least test loss of {', '.join(said)}. With all replicas of D_50 from one minimum, three "
        f"times: T = {row.ours} (walls that reject, as published, and that reflect): rejected "
        "chains stay nearer their minima, which moves the least loss to about 1",
    )


def from_common_minima(at: Run) -> tuple[list[list[float]], Row]:
    """Return the temperatures of least test loss of D_50 for both kinds of walls.

    All replicas start from one minimum, since minima differ by more than temperatures do.
    """
    net, rows = network(3), digits(at.data, 5, n_test=1000)
    best, size = [], []
    for reflects in (False, True):
        found = []
        for seed in (1, 2, 3):
            at.say(f"D_50 from minimum {seed}, walls {'reflect' if reflects else 'reject'}")
            generator = torch.Generator().manual_seed(seed)
            start = minimised(net, rows, 1, generator, 300)[0]
            found.append(heated(net, rows, FROM_ONE, generator, reflects=reflects, start=start))
        best.append([one.best()[0] for one, _ in found])
        size.append(float(torch.cat([sizes for _, sizes in found]).mean()))
    said = ["; ".join(f"{t:.2g}" for t in each) for each in best]
    return best, Row(
        "D_50, all replicas from one minimum: temperature of least test loss, walls that reject, "
        "walls that reflect",
        "about 1, rejecting",
        f"{said[0]} and {said[1]}",
        "three minima, 8 temperatures from 0.1 to 30, n = 32 after 32; weights over half widths "
        f"{size[0]:.2f} and {size[1]:.2f}",
        "rejected chains stay short of the box (0.58), which is the density of both",
    )


def _range(values: Tensor) -> str:
    return f"{float(values.min()):.2f} to {float(values.max()):.2f}"


def _rows(
    n: int, one: Tempered, minimum: tuple[float, float], n_minima: int, *, quick: bool
) -> list[Row]:
    """Return what replicas had whose walls reflect."""
    mean, error = one.mean_loss()
    k = int(mean.argmin())
    return [
        least_row(n, one, "about 1"),
        Row(
            f"D_{n}: least mean test loss per digit (uniform {UNIFORM:.2f})",
            "above that of equal probabilities" if n == 50 else "below it",
            f"{float(mean[k]):.2f}",
            f"± {float(error[k]):.2f}",
        ),
        Row(
            f"D_{n}: mean test loss of minima by RMin",
            "worse than sampling",
            f"{minimum[0]:.2f}",
            f"± {minimum[1]:.2f}, n = {n_minima}",
        ),
        Row(
            f"D_{n}: acceptance, lowest swap probability",
            "0.6 to 0.7",
            f"{_range(one.acceptance)}, {one.swap_probability:.2g}",
            "",
            "our target is 0.8; 12 temperatures are too far apart to swap" if quick else "",
        ),
    ]


def _walls(n: int, turned: Tempered, rejected: Tempered, sizes: list[Tensor]) -> list[Row]:
    """Return rows that separate the walls: least loss, and how far the weights have come."""
    best, low, high = rejected.best()
    one = int((turned.temperatures.log().abs()).argmin())
    quarter = max(1, len(sizes[0]) // 4)
    ways = [
        f"{float(each[:quarter, one].mean()):.3f} to {float(each[-quarter:, one].mean()):.3f}"
        for each in sizes
    ]
    return [
        Row(
            f"D_{n}, rejecting walls: temperature of least test loss, that loss",
            "about 1",
            f"{best:.2g}, {float(rejected.mean_loss()[0].min()):.2f}",
            f"{low:.2g} to {high:.2g} within two errors, n = {len(rejected.losses)}; acceptance "
            + _range(rejected.acceptance),
        ),
        Row(
            f"D_{n}: weights over half widths at T = {float(turned.temperatures[one]):.2g}, first "
            "and last quarter, reflecting; rejecting",
            "",
            "; ".join(ways),
            "root mean square; 0.577 fills the box",
        ),
    ]


def _figure(
    turned: dict[int, Sampled],
    rejected: dict[int, Sampled],
    minima: dict[int, tuple[float, float]],
) -> Any:
    figure, (left, right) = panels(9, 3.6, 1, 2)
    last = turned[max(turned)][0]
    for k in range(0, len(last.temperatures), 2):
        label = f"T = {float(last.temperatures[k]):.2g}"
        left.plot(last.energies[:, k].clamp(min=1e-3), linewidth=0.8, label=label)
    left.set(yscale="log", xlabel="trajectory", ylabel=f"E on D_{max(turned)} (nats)")
    for i, (n, (one, _)) in enumerate(turned.items()):
        mean, error = one.mean_loss()
        kelvin, colour = one.temperatures, f"C{i}"
        right.errorbar(kelvin, mean, 2 * error, fmt="o-", color=colour, label=f"D_{n}, test")
        if n in rejected:
            loss = rejected[n][0].mean_loss()[0]
            right.plot(kelvin, loss, "x-", color="C3", label=f"D_{n}, test, walls reject")
        energy = one.mean_energy()[0] / n
        right.plot(kelvin, energy, "s:", color=colour, markersize=3, label=f"D_{n}, training")
        right.axhline(minima[n][0], color=colour, linestyle="--", linewidth=0.8)
    right.axhline(UNIFORM, color="0.5", linewidth=0.8)
    right.set(xscale="log", yscale="log", xlabel="T", ylabel="loss per digit (nats)")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=7)
    return figure
