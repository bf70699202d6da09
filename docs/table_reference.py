"""The reference page of the Parquet tables and of `correlations.csv`, generated from the code.

    python docs/table_reference.py > docs/reference/columns.md

Names and types are those of `storage.tables.COLUMNS` and `reporting.correlations.COLUMNS`; the
meanings are below. A column without a meaning, or a meaning without a column, is an error.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping

from nas_evidence.reporting.correlations import COLUMNS as CORRELATIONS
from nas_evidence.storage.tables import COLUMNS, TABLES

_TYPES = {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}

#: (unit, meaning) of each column that means the same in every table.
SHARED: Mapping[str, tuple[str, str]] = {
    "trial_id": ("", "Number of the trial, from 0; those of the race begin at 1,000,000."),
    "attempt": (
        "",
        "Which start of the trial, from 1. Readers use the last.",
    ),
    "epoch": ("epochs", "Epochs finished when the row was made; 0 is before the main training."),
    "estimator": ("", "Name of the score, as in a study file."),
}

#: (unit, meaning) of the columns of one table.
MEANINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "trials": {
        "replicate": ("", "Which seed of its architecture, from 0; those of the race from 1000."),
        "architecture_key": ("", "Hash of family and values: equal for equal architectures."),
        "status": ("", "How the trial ended: see [messages](messages.md#how-a-trial-ends)."),
        "cause": ("", "Why it ended so, in words; empty for most complete trials."),
        "family": ("", "Family of networks."),
        "arch_depth": (
            "",
            "Value of `depth`. Each parameter of the space has a column `arch_NAME`, null for "
            "families without it; in a space of your own this may be another type.",
        ),
        "arch_width": ("", "Value of `width`."),
        "arch_shape": ("", "Value of `shape`."),
        "seed": ("", "Seed of the trial, from (study seed, trial, replicate)."),
        "stage": ("", "`search`, or `race` for trials of the race of the finalists."),
        "n_parameters": ("parameters", "Number of parameters of the network."),
        "n_data": ("examples", "Number of training data."),
        "flops": ("operations", "Floating-point operations of a forward pass of one example."),
        "memory_bytes": ("bytes", "Estimated memory of training."),
        "latency_seconds": ("seconds", "Measured forward pass of one example."),
        "gpu_share": ("", "Share of one GPU; 0 on a CPU."),
        "epochs": ("epochs", "Epochs of the main training that were done."),
        "best_epoch": (
            "epochs", "Evaluation epoch of the highest evidence of the online curvature."
        ),
        "best_evidence": (
            "nats",
            "That evidence, summed over the training data; above `plan.online.rows` estimated.",
        ),
        "noise_std": (
            "",
            "Learned noise at the end; of standardised targets. Real targets with one noise only.",
        ),
        "temperature": ("", "Softmax temperature at the end. Labels only."),
        "spread_factor": (
            "",
            "Factor on the temperature, or on the standard deviation of predictions of real "
            "targets, that is delivered: fitted to data that networks without their fold predict.",
        ),
        "test_accuracy": ("fraction", "Correct predictions of test rows. No score has seen them."),
        "test_nll_per_datum": ("nats", "Log loss on test rows; of standardised targets, if real."),
        "test_rmse": (
            "of the target",
            "Root mean squared error on test rows; of several targets their mean.",
        ),
        "converged": ("", "Whether settling ended at a mode with learned hyperparameters."),
        "kept": ("", "`settled` or `scheduled`: the state that was kept."),
        "decrement_per_datum": ("nats", "Newton decrement of the kept state: distance to a mode."),
        "train_seconds": ("seconds", "Main training."),
        "settle_seconds": ("seconds", "Settling after the last epoch."),
        "evidence_seconds": ("seconds", "All scores."),
        "total_seconds": ("seconds", "Whole trial, on its worker."),
        "content_hash": ("", "Hash of all that decides the result: study, data, assignment."),
        "versions": ("", "Versions of the packages that computed the trial, as JSON."),
        "error": ("", "Traceback, if there is one."),
    },
    "evidence": {
        "value": ("see meaning", "The score; larger is better. Nats summed over the data where "
                  "`per_datum` is given. Scores from folds (`conditional_evidence`, `two_fold`, "
                  "...): over the data of one fold, averaged over the folds, about N/K "
                  "times `per_datum`; of blocks in time over all data predicted. "
                  "`sotl*` and `train_nll_per_datum` are negated sums."),
        "per_datum": ("nats", "Mean over the data that the score predicts or explains: value / N, "
                      "of K folds value / (N/K). Compare scores by this one. Null for scores of "
                      "other units."),
        "relation": ("", "What holds on linear-Gaussian models: `EXACT_ON_LINEAR`, `LOWER_BOUND`, "
                     "or `SCORE`, which only ranks."),
        "standard_error": ("as value", "Of `value`; null where the score is deterministic."),
        "valid": ("", "False if a condition was not met: `note` says which. Never ranks."),
        "note": ("", "What to know about it: see [messages](messages.md#notes-of-scores)."),
        "seconds": ("seconds", "Time that the score took."),
    },
    "terms": {
        "term": ("", "Name of the part of the estimate."),
        "group": ("", "Parameter tensor or fold that the part belongs to, or `all`."),
        "value": ("see meaning", "The part. Log likelihoods, scatter and log determinants in nats "
                  "summed over the data; precisions, counts and noise in their own unit."),
    },
    "curves": {
        "train_nll_per_datum": ("nats", "Mean training loss of the epoch, before each step."),
        "learning_rate": ("", "Learning rate of the epoch."),
        "sotl": ("nats", "Sum of `train_nll_per_datum` up to this epoch; positive here."),
        "sotl_e": ("nats", "The same over the last epochs only."),
        "sotl_ema": ("nats", "The same with weights that fall with age."),
        "prequential_epoch1": ("nats", "Losses of the first epoch, summed over the data."),
        "seconds": ("seconds", "Time of the epoch."),
        "noise_std": ("", "Learned noise after the epoch. Real targets with one noise only."),
        "temperature": ("", "Softmax temperature after the epoch. Labels only."),
    },
}  # fmt: skip

#: (unit, meaning) of the columns of correlations.csv.
CORRELATION_MEANINGS: Mapping[str, tuple[str, str]] = {
    "score": ("", "What ranks: a score, or `random` for a random order."),
    "target": (
        "",
        "Test result that it is compared with; log loss and RMSE with their sign turned.",
    ),
    "group": ("", "`all`, or the family within which it is compared."),
    "n": ("architectures", "How many are compared."),
    "rho": ("", "Spearman's rank correlation: 1 is the same order, -1 the reverse."),
    "rho_low": ("", "Lower end of its 95 % interval (bootstrap; of few also Fisher's)."),
    "rho_high": ("", "Upper end."),
    "tau": ("", "Kendall's rank correlation."),
    "tau_low": ("", "Lower end of its interval."),
    "tau_high": ("", "Upper end."),
    "regret_1": ("of the target", "What the first by the score loses to the best on the target."),
    "regret_3": ("of the target", "What the best of the first three loses."),
    "regret_10": ("of the target", "What the best of the first ten loses."),
    **{
        f"regret_{k}_{end}": ("of the target", f"{name} end of the interval of `regret_{k}`.")
        for k in (1, 3, 10)
        for end, name in (("low", "Lower"), ("high", "Upper"))
    },
    "partial_rho": ("", "rho with the number of parameters taken out."),
    "partial_rho_low": ("", "Lower end of its interval."),
    "partial_rho_high": ("", "Upper end."),
    "note": ("", "Why a value is missing."),
}

_HEAD = """\
# Columns

<!-- Generated by `python docs/table_reference.py`; edit that module instead. -->

The results of a study are four tables in Parquet. Each is a folder of files. A column has one type
in all of them. All files that one run of a study writes have the same columns, so any reader opens
their folder as one table:

```python
import pandas as pd

trials = pd.read_parquet("runs/digits/trials")
trials = pd.read_parquet("runs/digits/trials", dtype_backend="pyarrow")  # integers stay integers
```

```python
import polars as pl

trials = pl.read_parquet("runs/digits/trials/*.parquet")
```

```sql
-- duckdb
SELECT * FROM 'runs/digits/trials/*.parquet';
```

A store is read with its URI: `pd.read_parquet("s3://bucket/digits/trials")`.

Columns are only ever added. Files that were there before lack those that came later:

- If an older version began the study, its files lack the newer columns.
- If a study is resumed with a callback that adds columns, the files that were there lack them. If
  it is resumed without the callback, the new files lack them.

`nas_evidence.read_table("runs/digits", "trials")` has every column of every file, in a folder or
at a URI. It also skips damaged files and drops copies. Other readers take the columns of the first
file, or fail. They need to be told:

```python
from pathlib import Path

files = sorted(Path("runs/digits/trials").glob("*.parquet"))
trials = pd.concat([pd.read_parquet(file, dtype_backend="pyarrow") for file in files])
trials = pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")
```

```sql
SELECT * FROM read_parquet('runs/digits/trials/*.parquet', union_by_name = true);
```

Attempts at one trial are told apart by `attempt`; `read_table` gives the last one of each. A
missing value is null. Columns that end in `seconds`, and `versions`, are the only ones that differ
between two runs of the same study.
"""

_ABOUT = {
    "trials": "One row per attempt at a trial: what ran, how it ended, what it cost. "
    "Its file is written last: without it the attempt does not exist. Callbacks may add "
    "[columns of their own](../how-to/other-tools.md#a-callback-of-your-own).",
    "evidence": "One row per score and evaluation. A new score is new rows, not a new column. "
    "The last `epoch` of a score in a trial is the value that ranks; a score of your own that is "
    "taken before training has one row, of epoch 0.",
    "terms": "The named parts of each row of `evidence`.",
    "curves": "One row per epoch of the main training.",
}

_CORRELATIONS = """\
## correlations.csv

Beside the report: how well each score orders the architectures of the study by their test results.
Regret is in fractions for accuracy and nats per datum for log loss.
"""


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    yield _HEAD
    for table in sorted(TABLES, key=list(COLUMNS).index):
        yield f"## {table}\n\n{_ABOUT[table]}\n"
        columns = [name.partition(":")[::2] for name in COLUMNS[table].split()]
        known = {**SHARED, **MEANINGS[table]}
        yield from _rows((name, _TYPES[kind], *known[name]) for name, kind in columns)
    yield _CORRELATIONS
    text = ("score", "target", "group", "note")
    kinds = {name: "text" if name in text else "number" for name in CORRELATIONS}
    yield from _rows((name, kinds[name], *CORRELATION_MEANINGS[name]) for name in CORRELATIONS)


def _rows(cells: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    yield "| column | type | unit | meaning |\n|---|---|---|---|"
    for name, kind, unit, meaning in cells:
        yield f"| `{name}` | {kind} | {unit} | {meaning} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
