# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Online Laplace on Snelson and banana
#
# Immer, Bauer, Fortuin, Rätsch and Khan, *Scalable Marginal Likelihood Estimation for Model Selection
# in Deep Learning* (ICML 2021), show on two toy problems what the evidence can do:
#
# 1. **Figure 1**: it prefers the deeper of two networks where that fits better. (Not here: see below.)
# 2. **Figure 4**: a prior precision learned during training reaches, from any start, the optimum of
#    a grid.
# 3. **Figure 3**: of a weakly regularised network and one regularised by the evidence, it selects the one that
#    is better on test data (there 86 % and 89 %).
#
# The data are Snelson's 200 points in one dimension (Snelson and Ghahramani, 2006) and the banana
# set (Rätsch's benchmark). They are not part of this package, because their licence is not stated. Put
# `snelson/train_inputs.txt`, `snelson/train_outputs.txt` (found in the tests of GPflow) and
# `banana/banana.csv` (OpenML 1460) into one folder and name it in `NAS_EVIDENCE_DATA`.
#
# Differences from the paper: during training, KFAC with exact columns instead of the full GGN, and updates of the
# prior every ten epochs. The evidences compared at the end use the full GGN, as in the paper; with so few data
# they take a fraction of a second.
#
# One thing to know about Newton steps, which go to the optimum of the evidence at once: taken before
# a network has learned anything, they find that it needs no weights. So an update raises no precision,
# noise or temperature as long as a network of zeros would be the better mode (`training/online.py`).

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from nas_evidence import estimate_evidence
from nas_evidence.data.tensors import TensorData
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    OnlinePlan,
    TrainingPlan,
)
from nas_evidence.training.loop import begin, train_epoch
from nas_evidence.training.online import update_and_follow

quick = os.environ.get("NAS_EVIDENCE_NOTEBOOK_QUICK") == "1"  # set where notebooks are tested
data = Path(os.environ.get("NAS_EVIDENCE_DATA", "data"))
epochs = 20 if quick else 1000
curvature = "kfac_ggn"


# %%
def network(n_inputs, n_outputs, n_hidden):
    """Return a network with hidden layers of 50 tanh units."""
    torch.manual_seed(0)
    sizes = [n_inputs, *[50] * n_hidden]
    layers = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(50, n_outputs))


def train(model, x, y, *, epochs=epochs, **plan):
    """Train on the log joint, full batch; return the state, and (precision, evidence) on the way."""
    plan = TrainingPlan(
        epochs=epochs, batch_size=len(x), optimiser="adam", learning_rate=0.01,
        schedule="constant", **plan,
    )  # fmt: skip
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, plan=plan, estimators=[curvature],
        architecture=ArchitectureSpec(family="mlp", values={}), dataset=DatasetSpec(name="digits"),
    )  # fmt: skip
    real, zero = plan.likelihood == "gaussian", torch.zeros(1, dtype=torch.float64)
    tensors = TensorData(
        x, y, x, y, task="real" if real else "labels", n_outputs=1 if real else 2,
        input_shape=tuple(x.shape[1:]), y_mean=zero, y_std=zero + 1,
    )  # fmt: skip
    state, path = begin(model, plan), []
    for stop in stops(plan):
        train_epoch(state, tensors, assignment, n_epochs=stop.epoch - state.epoch)
        passes = update_and_follow(state, tensors, assignment, due=stop.update)
        evidence = passes.estimate(curvature, passes.of(curvature)[0]).value
        path.append((float(state.prior_precision[0]), evidence))
    return state, np.array(path)


def full_evidence(state, x, y, likelihood, **hyperparameter):
    """Return the log evidence by the full GGN, in nats summed over the data."""
    return estimate_evidence(
        state.model, x, y, likelihood=likelihood, curvature="full_ggn",
        prior_precision=state.prior_precision, **hyperparameter,
    ).value  # fmt: skip


never = OnlinePlan(every="never", curvature=curvature)  # the prior stays as it was

# %% [markdown]
# ## Figure 1: one hidden layer or three?

# %%
inputs, outputs = (np.loadtxt(data / "snelson" / f"train_{n}.txt") for n in ("inputs", "outputs"))
x, y = (
    torch.tensor((values - values.mean()) / values.std(), dtype=torch.float32)[:, None]
    for values in (inputs, outputs)
)
grid = torch.linspace(-2.5, 2.5, 300)[:, None]
online = OnlinePlan(
    every=10, curvature=curvature, hyper_step="adam", hyper_steps=10, hyper_learning_rate=0.01
)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
figure_1 = {}
for axes, n_hidden in zip(panels, (3, 1), strict=True):
    state, path = train(network(1, 1, n_hidden), x, y, likelihood="gaussian", online=online)
    value = full_evidence(state, x, y, "gaussian", noise_std=state.noise_std)
    figure_1[n_hidden] = {"full": value, "kfac": path[-1, 1], "noise": state.noise_std}
    with torch.no_grad():
        mean = state.model(grid)[:, 0]
    band = 2 * state.noise_std
    axes.plot(x, y, ".", color="#888888", markersize=3)
    axes.plot(grid, mean, color="#1f5fa8")
    axes.fill_between(grid[:, 0], mean - band, mean + band, color="#1f5fa8", alpha=0.2)
    axes.set(xlabel="x", ylim=(-3, 3))
    axes.set_title(f"{n_hidden} hidden: {value:.1f} nats, noise {state.noise_std:.2f}")
figure_1

# %% [markdown]
# The band is twice the learned noise on either side. **Here the paper's claim does not come out**: in
# our run the network with one hidden layer has the larger evidence (-120.5 nats, noise 0.36) and the
# deeper one no better fit (-130.3 nats, noise 0.38). The paper trains on a *modified* Snelson set that
# it does not describe further; without the points between 1.5 and 3 the order was the same.
# One initialisation each: with two (`nas-evidence reproduce immer_fig1`) the deeper network leads by 2 to 10 nats,
# less than the 8 to 14 nats that the end of training is away from a mode. Such a gap is not to be trusted.

# %% [markdown]
# ## Figure 4: learned online, or found on a grid
#
# One precision for all weights, so that a grid can be searched, and the noise held at 0.4, so that
# nothing else is learned. Three starts, from 0.001 to 100. In our run they end at 0.17, 0.17 and
# 0.20, within a nat of each other and of the best of the grid (its points lie a factor 3 apart).

# %%
held = {"likelihood": "gaussian", "noise_std": 0.4}
one = OnlinePlan(every=10, curvature=curvature, prior_groups="scalar", learn_noise=False)
precisions = np.logspace(-3, 2, 3 if quick else 11)
on_grid = [
    train(network(1, 1, 1), x, y, prior_precision=float(p), online=never, **held)[1][-1, 1]
    for p in precisions
]
paths = {
    start: train(network(1, 1, 1), x, y, prior_precision=start, online=one, **held)[1]
    for start in (1e-3, 1.0, 1e2)
}

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.plot(precisions, on_grid, "k.-", label="grid: trained at that precision")
for start, path in paths.items():
    (line,) = axes.plot(*path.T, "-", alpha=0.5)
    label = f"online from {start:g}: ends at {path[-1, 0]:.3f}"
    axes.plot(*path[-1], "o", color=line.get_color(), label=label)
low, high = min(on_grid), max(on_grid)
axes.set(xscale="log", xlabel="prior precision", ylabel="log evidence, nats")
axes.set_ylim(low - 0.1 * (high - low), high + 0.2 * (high - low))
axes.legend(fontsize=8)
figure_4 = {"grid": (precisions[int(np.argmax(on_grid))], high)}
figure_4 |= {f"from {start:g}": tuple(path[-1].round(3)) for start, path in paths.items()}
figure_4

# %% [markdown]
# ## Figure 3: a weak prior or a learned one
#
# 265 points of the banana set to train on, the other 5,035 to test, 50 hidden units.

# %%
table = np.loadtxt(data / "banana" / "banana.csv", delimiter=",", ndmin=2)
order = np.random.default_rng(0).permutation(len(table))
points = torch.tensor(table[order, :2], dtype=torch.float32)
labels = torch.tensor(table[order, 2] - table[:, 2].min(), dtype=torch.int64)
n = 265
span = torch.linspace(-3.5, 3.5, 120)
mesh = torch.cartesian_prod(span, span)
kinds = {
    "weak prior": {"prior_precision": 1e-4, "online": never},
    "learned": {"online": OnlinePlan(every=10, curvature=curvature)},
}
figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
figure_3 = {}
for axes, (name, plan) in zip(panels, kinds.items(), strict=True):
    state, path = train(network(2, 2, 1), points[:n], labels[:n], **plan)
    with torch.no_grad():
        right = (state.model(points).argmax(1) == labels).double()
        shade = torch.softmax(state.model(mesh), 1)[:, 1].reshape(120, 120)
    value = full_evidence(state, points[:n], labels[:n], "categorical")
    found = value, float(right[:n].mean()), float(right[n:].mean())
    figure_3[name] = dict(zip(("log evidence", "train", "test"), found, strict=True))
    axes.contourf(span, span, shade.T, 20, cmap="RdBu", alpha=0.7)
    axes.scatter(
        *points[:n].T, c=labels[:n], cmap="RdBu", edgecolors="white", s=14, linewidths=0.4
    )
    axes.set_title(f"{name}: {found[0]:.0f} nats, train {found[1]:.3f}, test {found[2]:.3f}")
figure_3

# %% [markdown]
# Without using test data, the evidence selects the network that generalises better: in our run
# -116 nats and 88.0 % on the test data against -327 nats and 84.2 %, which had 99.2 % on the training
# data. The temperature, which the paper learns too, stays at 1 here.

# %% [markdown]
# ## KFAC against the full GGN
#
# One trained network, two curvatures. The correlations that KFAC ignores appear as additional complexity. The gap
# grows with depth, so KFAC should not be used to compare networks of different depth when they are this close.

# %%
round(value, 1), round(path[-1, 1], 1)
