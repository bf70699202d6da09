"""Sums of training losses on published curves of 341 recurrent networks (Ru et al. 2021).

    rho_T = Spearman(−s_T, −test loss at the epoch of the lowest validation loss)

    s_T  SOTL, SOTL-E with E = 1, or the validation loss, after epoch T of 50

The curves are of NAS-Bench-NLP (Klyuchnikov et al. 2020: wikitext-2, one plan for all networks;
the logs are under the Apache License 2.0). Networks that did not reach epoch 50 are left out. The
claim was made on image classification (NAS-Bench-201), whose curves are not among our data: what
is tested here is whether it carries over.

Halving is replayed on draws of 24 networks: those in the best third of the ones seen so far go on
at epochs 2, 6 and 17; the survivor of lowest validation loss is the choice. In full it takes about
6 minutes.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nas_evidence.maths.pruning_rule import judge
from nas_evidence.maths.ranking import resampling_plan, spearman
from nas_evidence.scores.sotl import sotl, sotl_e

from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run

FIGURE = "rank correlation"
TITLE = "Sums of training losses on the curves of 341 recurrent networks"
CLAIM = (
    "The sum of training losses ranks fully trained networks with a rank correlation of 0.95 "
    "(NAS-Bench-201), and the sum over the last epochs better than that over all."
)
RULE = (
    "rho of SOTL after the last epoch at least 0.95; rho of SOTL-E not below SOTL at each of five "
    "epochs; each above rho of the number of parameters"
)
NEEDS = ("nas-bench-nlp",)

EPOCHS, RUNGS, REDUCTION, DRAWN = (1, 5, 10, 25, 50), (2, 6, 17), 3, 24
SCORES = ("SOTL", "SOTL-E", "validation loss")
Floats = NDArray[np.float64]


def curves(archive: Path) -> tuple[dict[str, Floats], Floats]:
    """Return train, validation and test losses [n, 50], and numbers of parameters [n]."""
    with zipfile.ZipFile(archive) as held:
        logs = [json.loads(held.read(name)) for name in sorted(held.namelist())]
    whole = [log for log in logs if len(log["train_losses"]) == log["epochs"]]
    names = {"train": "train_losses", "validation": "val_losses", "test": "test_losses"}
    found = {name: np.array([log[key] for log in whole]) for name, key in names.items()}
    return found, np.array([log["num_params"] for log in whole], np.float64)


def scores_after(epoch: int, found: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return each score [n] after an epoch, in nats per word; lower is better."""
    past = found["train"][:, :epoch]
    return {
        "SOTL": np.array([sotl(losses) for losses in past]),
        "SOTL-E": np.array([sotl_e(losses.tolist(), 1) for losses in past]),
        "validation loss": found["validation"][:, epoch - 1],
    }


def stopping_rungs(scores: Floats) -> NDArray[np.int64]:
    """Return the rung at which halving stops each trial [n], R for those that run to the end.

    `scores` [R, n] are larger for better trials, which arrive in the order of the columns.
    """
    seen = [[] for _ in scores]
    stopped = np.full(scores.shape[1], len(scores), np.int64)
    for trial, own in enumerate(scores.T.tolist()):
        for rung, (score, others) in enumerate(zip(own, seen, strict=True)):
            on = judge(score, others, rule="halving", reduction=REDUCTION).goes_on
            others.append(score)
            if not on:
                stopped[trial] = rung
                break
    return stopped


def halving(
    score: str | None, found: Mapping[str, Floats], target: Floats, *, n_draws: int
) -> tuple[Floats, Floats]:
    """Return the share of epochs saved [D] and the regret [D] of draws of 24 networks.

    Args:
        score: the rung score; None for a random one.
        found: as from `curves`.
        target: test loss [n] of each network.
        n_draws: D.
    """
    random = np.random.default_rng(0)
    at_rungs = [scores_after(epoch, found) for epoch in RUNGS]
    ends, saved, regret = np.array([*RUNGS, found["train"].shape[1]]), [], []
    for _ in range(n_draws):
        some = random.choice(len(target), DRAWN, replace=False)
        noise = random.standard_normal((len(RUNGS), DRAWN))
        table = noise if score is None else np.array([-s[score][some] for s in at_rungs])
        stopped = stopping_rungs(table)
        alive = some[stopped == len(RUNGS)]
        chosen = alive[found["validation"][alive].min(1).argmin()]
        saved.append(1 - ends[stopped].sum() / (DRAWN * ends[-1]))
        regret.append(target[chosen] - target[some].min())
    return np.array(saved), np.array(regret)


def cells(numbers: Numbers) -> Cells:
    """Yield the published number, and the order of the sums at each epoch."""
    rho, size = numbers["rho"], numbers["rho_parameters"]
    yield Cell("rho after the last epoch", "SOTL at least 0.95", rho["SOTL"][-1] >= 0.95)
    for epoch, late, all_epochs in zip(EPOCHS, rho["SOTL-E"], rho["SOTL"], strict=True):
        yield Cell("SOTL-E not below SOTL", f"epoch {epoch}", late >= all_epochs)
    for name in ("SOTL", "SOTL-E"):
        for epoch, value in zip(EPOCHS, rho[name], strict=True):
            yield Cell("above the number of parameters", f"{name}, epoch {epoch}", value > size)


def run(at: Run) -> Reproduction:
    """Rank the published networks by their first epochs, and replay halving on them."""
    found, n_parameters = curves(at.data / "nas-bench-nlp" / "logs.zip")
    best = found["validation"].argmin(1)
    target = found["test"][np.arange(len(best)), best]
    n, plan = len(target), resampling_plan(len(target), seed=0)
    rho = {name: [] for name in SCORES}
    intervals = {name: [] for name in SCORES}
    for epoch in EPOCHS:
        for name, values in scores_after(epoch, found).items():
            ranked = spearman(-values, -target, plan=plan)
            assert ranked is not None
            assert ranked[1] is not None
            rho[name].append(ranked[0])
            intervals[name].append([ranked[1].low, ranked[1].high])
    by_size = spearman(-n_parameters, -target, plan=plan)
    assert by_size is not None
    rows = []
    for name in SCORES:
        for epoch, value, ends in zip(EPOCHS, rho[name], intervals[name], strict=True):
            said = "0.95 (NAS-Bench-201)" if (name, epoch) == ("SOTL", EPOCHS[-1]) else ""
            spread = "{:.2f} to {:.2f}, n = {}".format(*ends, n)
            rows.append(Row(f"rho of {name} after epoch {epoch}", said, f"{value:.2f}", spread))
    rows.append(Row("rho of the number of parameters", "", f"{-by_size[0]:.2f}", "more is worse"))
    n_draws, replayed = at.sized(200, 2000), {}
    for name in (*SCORES, None):
        score = name or "chance"
        at.say(f"halving by {score}, {n_draws} draws of {DRAWN} networks")
        saved, regret = halving(name, found, target, n_draws=n_draws)
        error = float(regret.std(ddof=1) / n_draws**0.5)
        replayed[score] = {"saved": saved.mean(), "regret": regret.mean(), "standard_error": error}
        rows.append(
            Row(
                f"halving by {score}: epochs saved, nats per word lost",
                "",
                f"{100 * saved.mean():.0f} %, {regret.mean():.3f}",
                f"± {error:.3f}, {n_draws} draws",
            )
        )
    figure, axis = panels(5, 3.4)
    for name in SCORES:
        axis.plot(EPOCHS, rho[name], ".-", label=name)
        axis.fill_between(EPOCHS, *np.array(intervals[name]).T, alpha=0.2)
    axis.axhline(-by_size[0], color="grey", linestyle=":", label="number of parameters")
    axis.set(xscale="log", xlabel="epochs", ylabel="Spearman's rho with test loss")
    axis.set_xticks(EPOCHS, [str(epoch) for epoch in EPOCHS])
    axis.legend()
    return Reproduction(
        rows,
        figure,
        {
            "n": n, "rho": rho, "intervals": intervals, "rho_parameters": -by_size[0],
            "halving": replayed,
        },
        "networks of one plan that pass over 2 million words without fitting them: differences "
        "of training loss are larger than those of the generalisation gap",
    )  # fmt: skip
