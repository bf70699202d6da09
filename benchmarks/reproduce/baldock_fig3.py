"""Networks at finite temperature: M(3) on D_50 and D_500 (Baldock and Marzari 2019, Fig. 2, 3).

Replica exchange as in Table 1, by our sampler: exact swaps of even and odd neighbours, walls that
reflect, step sizes tuned in the burn-in only. Quick: 12 temperatures instead of 112, 50 steps per
trajectory instead of 100, 64 trajectories after 64 of burn-in (D_500: 24 after 24), no D_5000.
With so few temperatures neighbours hardly swap: each replica then samples by itself, from a
minimum of its own.

Both kinds of walls have the same density, so they can differ in speed alone. The published code
rejects trajectories that end outside. "rejected" is that, from the same minima; weights over half
widths tell how far a replica has come from its minimum (0.58 where the box is filled uniformly).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from nas_evidence_reproduce._baldock import UNIFORM, digits, heated, minimised, network
from nas_evidence_reproduce._finite_temperature import HeatPlan, Tempered
from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Baldock and Marzari 2019"
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
FULL_HOURS = 60.0

FIG_3, COMMON = ("Fig. 3",), "from_common_minima"
SETTINGS = {"temperatures": 112, "lowest": 0.01, "highest": 100.0, "n_leapfrog": 100}

QUICK = HeatPlan(
    n_temperatures=12, lowest=0.01, highest=100.0, n_burn_in=64, n_samples=64, n_leapfrog=50
)
FULL = HeatPlan(
    n_temperatures=112, lowest=0.01, highest=100.0, n_burn_in=1000, n_samples=1000, n_leapfrog=100
)


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return all sets, both kinds of walls, and all starts from a common minimum."""
    sets = {name: one for name, one in numbers.items() if name.startswith("D_")}
    kelvin = numbers["D_50"]["temperatures"]
    found = []
    for name, one in sets.items():
        mean, size = one["test_loss"][0], name.partition(",")[0]
        best, least = kelvin[mean.index(min(mean))], min(mean)
        found += [
            Cell("least test loss near T = 1", name, _about_one(best), FIG_3),
            Cell("sampling beats minima", name, least < numbers[size]["minima"][0], FIG_3),
            Cell(
                "least loss against equal probabilities", name,
                (least > UNIFORM) == (size == "D_50"), FIG_3,
            ),
        ]  # fmt: skip
    for walls, temperatures in zip(("reject", "reflect"), numbers[COMMON], strict=True):
        found += [
            Cell("the same from a common minimum", f"{i}, walls {walls}", _about_one(t), FIG_3)
            for i, t in enumerate(temperatures, 1)
        ]
    found += [
        Cell("energy rises with T", name, _rises(numbers[name]["energy"][0]), ("Fig. 2",))
        for name in ("D_50", "D_500")
    ]
    settings = {**numbers["settings"], "temperatures": len(kelvin)}
    found += [
        Cell("setting of the sampler", name, settings[name] == value, ("Table 1",))
        for name, value in SETTINGS.items()
    ]
    return found


def _rises(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _about_one(temperature: float) -> bool:
    return 10**-0.5 <= temperature <= 10**0.5


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Sample M(3) at all temperatures for each set, and minimise it from common first weights."""
    assert data is not None
    plan, net, n_minima = (QUICK if quick else FULL), network(3), 10 if quick else 100
    found: dict[int, Tempered] = {}
    rejected: dict[int, Tempered] = {}
    sizes: dict[tuple[int, bool], list[torch.Tensor]] = {}
    optimised: dict[int, tuple[float, float]] = {}
    for per_class in (5, 50) if quick else (5, 50, 500):
        rows = digits(data, per_class, n_test=1000 if quick else 10_000)
        n = len(rows.x)
        fewer = n > 50 and quick
        given = plan.model_copy(update={"n_burn_in": 24, "n_samples": 24}) if fewer else plan
        for reflects, into in ((True, found), (False, rejected)):
            if fewer and not reflects:
                continue
            sizes[n, reflects] = []
            generator = torch.Generator().manual_seed(per_class)
            into[n] = heated(
                net, rows, given, generator=generator, say=say, reflects=reflects,
                sizes=sizes[n, reflects],
            )  # fmt: skip
        positions, _ = minimised(net, rows, n_minima, generator, 400)
        losses = net.mean_loss(positions, rows.x_test, rows.y_test).double()
        optimised[n] = float(losses.mean()), float(losses.std()) / n_minima**0.5
        say(f"minima of D_{n}: test loss {optimised[n][0]:.3f}")
    table = [
        Row(
            "Table 1: temperatures, lowest, highest, steps of a trajectory",
            "112, 0.01, 100, 100",
            f"{plan.n_temperatures}, {plan.lowest:g}, {plan.highest:g}, {plan.n_leapfrog}",
        )
    ]
    row, common = from_common_minima(data, say)
    table.append(row)
    said = []
    for n, one in found.items():
        best, low, high = one.best()
        mean, error = one.mean_loss()
        k = int(mean.argmin())
        said.append(f"D_{n} at T = {best:.2g}")
        table += [
            Row(
                f"D_{n}: temperature of least test loss",
                "about 1",
                f"{best:.2g}",
                f"{low:.2g} to {high:.2g} within two errors, n = {len(one.losses)}",
            ),
            Row(
                f"D_{n}: least mean test loss per digit (uniform {UNIFORM:.2f})",
                "above that of equal probabilities" if n == 50 else "below it",
                f"{float(mean[k]):.2f}",
                f"± {float(error[k]):.2f}",
            ),
            Row(
                f"D_{n}: mean test loss of minima by RMin",
                "worse than sampling",
                f"{optimised[n][0]:.2f}",
                f"± {optimised[n][1]:.2f}, n = {n_minima}",
            ),
            Row(
                f"D_{n}: acceptance, lowest swap probability",
                "0.6 to 0.7",
                f"{float(one.acceptance.min()):.2f} to {float(one.acceptance.max()):.2f}, "
                f"{one.swap_probability:.2g}",
                "",
                "our target is 0.8; 12 temperatures are too far apart to swap" if quick else "",
            ),
        ]
        if n in rejected:
            table += _walls(n, one, rejected[n], sizes[n, True], sizes[n, False])
            said[-1] += f" ({rejected[n].best()[0]:.2g} where walls reject)"
    return Reproduction(
        tuple(table),
        _figure(found, rejected, optimised),
        {
            "n": plan.n_samples,
            "settings": {
                "lowest": plan.lowest, "highest": plan.highest, "n_leapfrog": plan.n_leapfrog,
            },
            COMMON: common,
            **{
                f"D_{n}": {
                    "temperatures": one.temperatures.tolist(),
                    "energy": [v.tolist() for v in one.mean_energy()],
                    "test_loss": [v.tolist() for v in one.mean_loss()],
                    "minima": optimised[n],
                    "size": torch.stack(sizes[n, True]).mean(0).tolist(),
                }
                for n, one in found.items()
            },
            **{
                f"D_{n}, rejecting walls": {
                    "test_loss": [v.tolist() for v in one.mean_loss()],
                    "size": torch.stack(sizes[n, False]).mean(0).tolist(),
                }
                for n, one in rejected.items()
            },
        },
        "least test loss of " + ", ".join(said)
        + ". With all replicas of D_50 from one minimum, three times: "
        f"T = {row.ours} (walls that reject, as published, and that reflect): rejected chains "
        "stay nearer their minima, which moves the least loss to about 1",
    )  # fmt: skip


def from_common_minima(data: Path, say: Callable[[str], None]) -> tuple[Row, list[list[float]]]:
    """Return the temperatures of least test loss of D_50 for both kinds of walls.

    All replicas start from one minimum, since minima differ by more than temperatures do.
    """
    net, rows = network(3), digits(data, 5, n_test=1000)
    plan = HeatPlan(
        n_temperatures=8, lowest=0.1, highest=30.0, n_burn_in=32, n_samples=32, n_leapfrog=50
    )
    best: list[list[float]] = []
    size = []
    for reflects in (False, True):
        best.append([])
        sizes: list[torch.Tensor] = []
        for seed in (1, 2, 3):
            generator = torch.Generator().manual_seed(seed)
            start = minimised(net, rows, 1, generator, 300)[0][0]
            one = heated(
                net, rows, plan, generator=generator, say=say, reflects=reflects, sizes=sizes,
                start=start,
            )  # fmt: skip
            best[-1].append(one.best()[0])
        size.append(float(torch.stack(sizes).mean()))
    said = ["; ".join(f"{t:.2g}" for t in found) for found in best]
    row = Row(
        "D_50, all replicas from one minimum: temperature of least test loss, walls that reject, "
        "walls that reflect",
        "about 1, rejecting",
        f"{said[0]} and {said[1]}",
        "three minima, 8 temperatures from 0.1 to 30, n = 32 after 32; weights over half widths "
        f"{size[0]:.2f} and {size[1]:.2f}",
        "rejected chains stay short of the box (0.58), which is the density of both",
    )
    return row, best


def _walls(
    n: int,
    turned: Tempered,
    rejected: Tempered,
    sizes: list[torch.Tensor],
    sizes_rejected: list[torch.Tensor],
) -> list[Row]:
    """Return rows that separate the walls: least loss, and how far the weights have come."""
    best, low, high = rejected.best()
    kelvin = turned.temperatures
    one = int((kelvin.log().abs()).argmin())
    each = [torch.stack(sizes), torch.stack(sizes_rejected)]
    quarter = max(1, len(each[0]) // 4)
    first, last = (
        [f"{float(part[at, one].mean()):.3f}" for part in each]
        for at in (slice(0, quarter), slice(-quarter, None))
    )
    mean = rejected.mean_loss()[0]
    return [
        Row(
            f"D_{n}, rejecting walls: temperature of least test loss, that loss",
            "about 1",
            f"{best:.2g}, {float(mean.min()):.2f}",
            f"{low:.2g} to {high:.2g} within two errors, n = {len(rejected.losses)}; acceptance "
            f"{float(rejected.acceptance.min()):.2f} to {float(rejected.acceptance.max()):.2f}",
        ),
        Row(
            f"D_{n}: weights over half widths at T = {float(kelvin[one]):.2g}, first and last "
            "quarter, reflecting; rejecting",
            "",
            f"{first[0]} to {last[0]}; {first[1]} to {last[1]}",
            "root mean square; 0.577 fills the box",
        ),
    ]


def _figure(
    found: dict[int, Tempered],
    rejected: dict[int, Tempered],
    optimised: dict[int, tuple[float, float]],
) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    last = found[max(found)]
    for k in range(0, len(last.temperatures), 2):
        label = f"T = {float(last.temperatures[k]):.2g}"
        left.plot(last.energies[:, k].clamp(min=1e-3), linewidth=0.8, label=label)
    left.set(yscale="log", xlabel="trajectory", ylabel=f"E on D_{max(found)} (nats)")
    left.legend(frameon=False, fontsize=7)
    for i, (n, one) in enumerate(found.items()):
        mean, error = one.mean_loss()
        kelvin = one.temperatures
        right.errorbar(kelvin, mean, 2 * error, fmt="o-", color=f"C{i}", label=f"D_{n}, test")
        if n in rejected:
            loss = rejected[n].mean_loss()[0]
            right.plot(kelvin, loss, "x-", color="C3", label=f"D_{n}, test, walls reject")
        energy = one.mean_energy()[0] / n
        right.plot(kelvin, energy, "s:", color=f"C{i}", markersize=3, label=f"D_{n}, training")
        right.axhline(optimised[n][0], color=f"C{i}", linestyle="--", linewidth=0.8)
    right.axhline(UNIFORM, color="0.5", linewidth=0.8)
    right.set(xscale="log", yscale="log", xlabel="T", ylabel="loss per digit (nats)")
    right.legend(frameon=False, fontsize=7)
    return figure
