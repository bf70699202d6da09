"""Model selection by thermodynamic integration: M(1) on D_500 (Baldock and Marzari 2019, 4.4).

    log p(D|M) = log ∫_box exp(−E(w)) dw − Σ log σ_i

The volumes are exact. The integral is short: Gauss-Legendre nodes and chains in both directions
(scores/thermodynamic.py) in place of 102 nodes of 200 trajectories of 100 steps, 28 times. The
difference of the two directions (hysteresis) is the honest error bar: a chain that lags behind its
node errs one way on the way up and the other way on the way down. Walls reflect
(maths/hmc.py): where 10,690 pairs of walls reject, as published, chains cannot leave the
neighbourhood of the minimum in any time that two cores have. In full it takes about 20 hours.
"""

import math
from dataclasses import replace

import torch

from nas_evidence.scores.sampling_plan import SweepPlan
from nas_evidence.scores.thermodynamic import fitted_reference, swept

from ._baldock import digits, minimised, network
from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined

FIGURE = "Eq. 28"
TITLE = "Prior volumes, and the evidence of M(1) by thermodynamic integration"
CLAIM = "Bayes' theorem clearly favours M(1) over M(3) on D_500, by 2,332 nats."
RULE = (
    "it is the published value to the digits printed (volumes), within two standard errors of "
    "the difference (integral, evidence), or within a tenth (largest weight, which has no "
    "error)"
)
NEEDS = ("MNIST", "baldock")

INTEGRAL, INTEGRAL_ERROR, EVIDENCE, LARGEST = 19793.0, 13.0, -153.0, 33.0
INTEGRAL_OF_M3 = 26475.0
VOLUMES = {"M(1)": 19946, "M(3)": 28960}
QUICK = SweepPlan(n_chains=2, n_nodes=8, n_burn_in=70, n_settle=8, n_samples=5, n_leapfrog=20)
FULL = SweepPlan(
    n_chains=14, n_nodes=101, n_burn_in=1000, n_settle=100, n_samples=100, n_leapfrog=100
)


def cells(numbers: Numbers) -> Cells:
    """Yield whether each published number that ran is ours; the integral of M(3) did not run."""
    for name, value in VOLUMES.items():
        yield Cell("prior volumes", name, round(numbers["volumes"][name]) == value)
    yield Cell("minimum", "largest weight", abs(numbers["largest_weight"] / LARGEST - 1) < 0.1)
    wide = 2 * math.hypot(numbers["error"], INTEGRAL_ERROR)
    yield Cell("M(1) on D_500", "integral", abs(numbers["integral"] - INTEGRAL) < wide)
    yield Cell("M(1) on D_500", "log evidence", abs(numbers["log_evidence"] - EVIDENCE) < wide)


def run(at: Run) -> Reproduction:
    """Compute volumes, then the integral of M(1) from a minimum with E = 0."""
    nets = {h: network(h) for h in (1, 3)}
    volumes = {h: float((2 * net.box.double()).log().sum()) for h, net in nets.items()}
    plan, rows = at.sized(QUICK, FULL), digits(at.data, 50, n_test=2000)
    net, rows = replace(nets[1], box=nets[1].box.double()), replace(rows, x=rows.x.double())
    generator = torch.Generator().manual_seed(0)
    position = minimised(net, rows, 1, generator, 2000)[0]
    reach = float((position.abs() / net.box).max()) * 50
    at.say(f"minimum: largest weight {reach:.0f} / √k")
    log_likelihood = net.log_likelihood(rows.x, rows.y)
    reference, posterior = fitted_reference(
        log_likelihood, position, scale=net.box / 10, half_width=net.box, plan=plan,
        generator=generator,
    )  # fmt: skip
    wide = float((reference.stiffness.rsqrt() / net.box).median())
    at.say(f"spread of the chains in units of the box: {wide:.3f}")
    sweeps = swept(log_likelihood, reference, posterior, plan=plan, generator=generator)
    both = torch.cat([sweeps.forward, sweeps.backward]).double()
    value, gap = float(both.mean()), sweeps.hysteresis
    error = max(abs(gap) / 2, float(both.std()) / len(both) ** 0.5)
    evidence = value - volumes[1]
    odds = INTEGRAL_OF_M3 - INTEGRAL - volumes[3] + volumes[1]
    table = [
        Row(
            f"Σ log σ of M(3), {nets[3].n_parameters} parameters",
            "28,960; 10,690 parameters",
            f"{volumes[3]:.1f}",
            "",
            "the paper's count of 10,690 is that of M(1)",
        ),
        Row(f"Σ log σ of M(1), {nets[1].n_parameters} parameters", "19,946", f"{volumes[1]:.1f}"),
        Row("largest weight of the minimum, in 1 / √k", "33", f"{reach:.0f}", "n = 1"),
        Row(
            "log ∫ exp(−E), M(1) on D_500 (nats)",
            "19,790 ± 10",
            f"{value:.0f}",
            f"± {error:.0f}: half of the hysteresis of {gap:.0f}, n = {len(both)}",
            "" if abs(value - INTEGRAL) < 2 * error else "see the summary",
        ),
        Row("forward and backward chains (nats)", "", joined(both, ".0f")),
        Row(
            "log evidence of M(1) (nats); that of equal probabilities is −1,151",
            "−153",
            f"{evidence:.0f}",
            f"± {error:.0f}",
        ),
        Row(
            "log odds of M(3) against M(1), published integrals and our volumes",
            "−2,332",
            f"{odds:.0f}",
            "± 174",
        ),
    ]
    numbers = {
        "n": len(both), "forward": sweeps.forward, "backward": sweeps.backward,
        "volumes": {f"M({h})": v for h, v in volumes.items()}, "integral": value, "error": error,
        "log_evidence": evidence, "largest_weight": reach, "spread": wide,
    }  # fmt: skip
    figure, axis = panels(5, 3)
    for chains, mark, way in ((sweeps.forward, "o", "from"), (sweeps.backward, "s", "to")):
        axis.plot(chains, range(len(chains)), mark, label=f"{way} the Gaussian")
    axis.axvline(INTEGRAL, color="black", linewidth=0.8, label="published")
    axis.axvline(volumes[1], color="0.5", linestyle=":", label="prior volume: E = 0 everywhere")
    axis.set(xlabel="log ∫ exp(−E) of M(1) on D_500 (nats)", ylabel="chain")
    axis.legend(frameon=False, fontsize=7)
    return Reproduction(
        table,
        figure,
        numbers,
        f"the integral is {value:.0f} ± {error:.0f}, published 19,793 ± 13; chains that are still "
        f"spreading ({wide:.2f} of the box, 0.58 if uniform) give a value that rises with their "
        "length: the error bar has the lag between nodes, not the way still to go",
    )
