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
# # Reading a report
#
# How to read the numbers of a report, computed from its tables. So that no search is needed, this notebook
# simulates a study of 40 architectures with a score whose properties are known: it depends on the quality of an
# architecture, favours small networks too much, and is noisy. See also `docs/how-to/reading-the-report.md`.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from nas_evidence.maths.finalists import posterior_of
from nas_evidence.maths.ranking import random_statistics, rank_statistics, resampling_plan

quick = os.environ.get("NAS_EVIDENCE_NOTEBOOK_QUICK") == "1"  # set where notebooks are tested
n_resamples = 100 if quick else 2000
rng = np.random.default_rng(0)
n = 40
size = 10 ** rng.uniform(2.5, 5, n)
quality = 0.02 * np.log10(size) + rng.normal(0, 0.01, n)
study = pd.DataFrame({
    "test_accuracy": 0.88 + quality,
    "evidence": -0.5 + 3 * quality - 0.05 * np.log10(size) + rng.normal(0, 0.02, n),
    "n_parameters": size,
})  # fmt: skip

# %% [markdown]
# ## Can this score be trusted?
#
# Spearman's rho between score and test accuracy, with a bootstrap interval over architectures. All scores use
# the same resamples, so they can be compared resample by resample. The row `random` is what a random order
# gives.

# %%
plan = resampling_plan(n, seed=0, n_resamples=n_resamples)
target = study["test_accuracy"]
found = {
    name: rank_statistics(study[name], target, plan=plan,
                          given=study["n_parameters"] if name == "evidence" else None)
    for name in ("evidence", "n_parameters")
}  # fmt: skip
found["random"] = random_statistics(target)
pd.DataFrame({
    name: {
        "rho": s.rho, "low": s.rho_interval.low, "high": s.rho_interval.high,
        "partial rho": s.partial, "regret at 1, points": 100 * s.regret[1], "at 3": 100 * s.regret[3],
    }
    for name, s in found.items()
}).T.astype(float).round(2)  # fmt: skip

# %% [markdown]
# `n_parameters` is free and does as well or better here; the report of such a study says so in a warning box. The
# *partial* rho, with the number of parameters partialled out, shows that the score carries information of its own. It is
# larger than the plain rho because the score penalises size, while size helps.

# %%
figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
dots = axes.scatter(study["evidence"], target, c=np.log10(size), s=40)
axes.set(xlabel="evidence, nats per datum", ylabel="test accuracy")
bar = figure.colorbar(dots, label="log10 of the number of parameters")

# %% [markdown]
# ## How sure is the first rank?
#
# Replicates are trials that differ only in their seed. They show how much a score varies by chance. The first of many is
# first partly by luck, which the posterior takes back. A report states a probability only from three replicates on.

# %%
best_first = study.sort_values("evidence", ascending=False)["evidence"].to_numpy()
for spread in (0.002, 0.02):
    replicates = [value + spread * np.array([-1, 0, 1]) for value in best_first]
    found = posterior_of(replicates, ["mlp"] * n, seed=0)
    print(f"spread {spread}: the first is the best with probability {found.best[0]:.2f};")
    print(f"  {(found.best >= 0.05).sum()} may be the best")
