# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quickstart: rank architectures without a validation split
#
# A study is one file: a data set, families of networks with ranges for their sizes, and how to train
# them. Every trial trains one network on **all** labelled data and learns its regularisation during
# training. This study ranks by the conditional marginal likelihood in folds, `conditional_evidence`: how
# probable the labels of each fold are, under a Bayesian last layer on a network trained on the other folds.
#
# From a shell this is one line, `nas-evidence search digits`. This notebook runs a small study of its own in
# a few minutes.

# %%
import os
import tempfile
from pathlib import Path

import nas_evidence
from nas_evidence import load_study, read_table

quick = os.environ.get("NAS_EVIDENCE_NOTEBOOK_QUICK") == "1"  # set where notebooks are tested
folder = Path(tempfile.mkdtemp()) / "digits"
study = folder.with_suffix(".toml")

# %% [markdown]
# ## The study
#
# 600 images of handwritten digits to train on, 500 to test. The test images play no part in the ranking; the
# report uses them to say how good the ranking was.

# %%
study.write_text(
    f"""
name = "digits"
n_trials = {3 if quick else 16}
objective = "conditional_evidence"
estimators = ["diag_ef", "kfac_ggn", "conditional_evidence"]

[dataset]
name = "digits"
max_train = 600
test_size = 500

[family.mlp]
depth = {{low = 1, high = 3}}
width = {{low = 4, high = 128, log = true}}

[family.cnn]
depth = {{low = 1, high = 2}}
width = {{low = 2, high = 12, log = true}}

[family.linear]

[plan]
epochs = {2 if quick else 40}
batch_size = 64
learning_rate = 0.05

[plan.online]
every = {1 if quick else 8}
"""
)
load_study(study).family

# %% [markdown]
# ## The search
#
# The trials run one after another in this process; `workers=4` runs four at a time on Ray workers. You can stop
# the search at any time and continue it with `nas_evidence.resume(folder)`.

# %%
found = nas_evidence.search(study, out=folder)
found.ranking.head()

# %% [markdown]
# ## What was found
#
# Results are Parquet files: `trials` (one row a trial), `evidence` (every estimate at every
# evaluation), `terms` (the parts of each estimate) and `curves` (one row an epoch).

# %%
trials = read_table(folder, "trials").set_index("trial_id")
evidence = read_table(folder, "evidence")
last = evidence.drop_duplicates(["trial_id", "estimator"], keep="last")
scores = last.pivot(index="trial_id", columns="estimator", values="value")
columns = ["family", "arch_depth", "arch_width", "n_parameters", "test_accuracy"]
table = trials[columns].join(scores[["conditional_evidence", "kfac_ggn", "sotl"]])
table.sort_values("conditional_evidence", ascending=False).round(3)

# %% [markdown]
# ## Can it be trusted?
#
# A ranking is worth as much as its agreement with the test data. A score has to beat the free ones: the number of
# parameters, and `sotl`, minus the sum of the training losses. `kfac_ggn` is the Laplace evidence of the trained
# network, which orders some data the wrong way round. Spearman's rho, without the intervals that the
# report adds:

# %%
complete = table[trials["status"] == "complete"].drop(columns="family").astype(float)
rho = complete.rank().corr()["test_accuracy"].drop("test_accuracy")
rho[["conditional_evidence", "kfac_ggn", "sotl", "n_parameters"]].round(2)

# %% [markdown]
# The page of the report answers five questions: which architecture, and how sure; can the score be
# trusted here; why this one; could it have been cheaper; what went wrong. The notebook *Reading a
# report* goes through it.

# %%
report = found.report()
print(report.is_file(), f"{report.stat().st_size / 1e6:.1f} MB")
