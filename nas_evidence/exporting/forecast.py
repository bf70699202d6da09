"""How long report and export of trained trials will take, to be said before more than a minute.

    seconds = Σ flops of a forward pass × rows × (1 + 2 columns) × draws / rate  +  training again

    columns  sent back through the network for each row: each costs two forward passes, one for
             the gradients and one for the products that they enter
    rate     flops per second of such passes on the device, timed on a few rows

The posterior takes exact columns of all training rows; the check of the evidence those of its
kind; predictions with uncertainty one for each output. Training again took what the row of the
trial says. Eigenvalues, simple models and files are left out: the forecast is good to a factor of
about two.

Nothing is approximated to be faster: the posterior of a large network uses all rows and exact
columns, as that of a small one. A sample of rows or Monte-Carlo columns would make the variance of
each prediction depend on a seed, and on a limit of size that the user does not see. On a GPU the
exact one takes seconds to minutes.
"""

import time
from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import torch

from nas_evidence.curvature import curvature_pass
from nas_evidence.data import ArrayData
from nas_evidence.exporting.device import device_again, device_of, trained_on
from nas_evidence.exporting.winner import assignment_of_row, checked_kind, scores_of_folds
from nas_evidence.models import build
from nas_evidence.plumbing.durations import rough_duration
from nas_evidence.spec.divisions import PREDICTED_FOLDS, TRAINED_ON, kept_division
from nas_evidence.spec.registry import CURVATURES, draws_of
from nas_evidence.spec.study import Assignment
from nas_evidence.storage.tables import StudyTables
from nas_evidence.storage.told_order import best_trial
from nas_evidence.training.cost import cost_of
from nas_evidence.training.loop import likelihood_of

#: From so many seconds on a forecast is said.
LEAST_SECONDS = 60.0
#: Parts that write an export.
_EXPORTS = {"export", "predict"}
#: Flops that any device does in less than a minute: then nothing is timed.
_FEW_FLOPS = 5e10
#: Flops that are timed on a CPU, which take about a second, and most rows.
_TIMED_FLOPS, _TIMED_ROWS = 2e10, 128


def forecast_of(
    tables: StudyTables,
    arrays: ArrayData,
    trial_ids: Collection[int],
    parts: Collection[str],
) -> str:
    """Say how long report and export of trials take; "" for a minute or less without a training.

    Args:
        tables: of the study.
        arrays: its data.
        trial_ids: the winner, or the members of an ensemble.
        parts: of "report", "export" and "predict", which is an export as predictions need it.

    Raises:
        ValueError: if weights are lost that cannot be trained again here.
    """
    torch.set_num_threads(tables.spec.resources.cpus)
    each = [_work_of(tables, arrays, trial_id, parts) for trial_id in trial_ids]
    seconds: dict[str, float] = {}
    for work, _, _ in each:
        for what, own in work.items():
            seconds[what] = seconds.get(what, 0.0) + own
    best = best_trial(tables)
    kept = (tables.folder / "models" / f"{best}.safetensors").is_file()
    if best is not None and best in trial_ids and not kept and scores_of_folds(tables.spec):
        once = _once(tables, arrays, tables.row(best))
        seconds["training the folds again"] = _multiples(tables, arrays) * once
    in_all, trains = sum(seconds.values()), any(what.startswith("training") for what in seconds)
    if in_all <= LEAST_SECONDS and not trains:
        return ""
    mostly = max(seconds, key=lambda what: seconds[what])
    where = "GPU" if all(device == "cuda" for _, device, _ in each) else "CPU"
    slowly = next((on for _, _, on in each if on), "")
    said = f"{rough_duration(in_all)} on the {where}, mostly {mostly}"
    return f"{said} (trained on {slowly}, of which none is free here)" if slowly else said


def _work_of(
    tables: StudyTables, arrays: ArrayData, trial_id: int, parts: Collection[str]
) -> tuple[dict[str, float], str, str]:
    """Return seconds by what they are for, the device, and the GPU that is missing."""
    row, study = tables.row(trial_id), tables.spec
    given = assignment_of_row(tables, trial_id)
    device = device_of(row, given, arrays, study.resources)
    kind, _, name = trained_on(row).partition(" ")
    slowly = name if kind == "cuda" and device.type == "cpu" else ""
    found: dict[str, float] = {}
    if not tables.has_network(trial_id):
        device_again(row, study.resources, kept=None)
        scores = ("evidence_seconds",) if study.trains_whole else ()
        found[f"training trial {trial_id} on all rows"] = _once(tables, arrays, row, *scores)
    kind_checked = checked_kind(tables.spec)
    kinds = [kind_checked] if kind_checked and {*parts} & _EXPORTS else []
    flops = _flops(given, arrays, kinds, parts)
    if sum(flops.values()) > _FEW_FLOPS:
        rate = flops_per_second(given, arrays, device)
        found |= {what: own / rate for what, own in flops.items()}
    return found, device.type, slowly


def _once(tables: StudyTables, arrays: ArrayData, row: pd.Series, *more: str) -> float:
    """Return the seconds of the training on all rows of a trial, and those of more columns."""
    spent = _spent(row, "train_seconds", "settle_seconds", *more)
    return spent if tables.spec.trains_whole else spent / _multiples(tables, arrays)


def _multiples(tables: StudyTables, arrays: ArrayData) -> float:
    """Return the rows on which the folds of a trial are trained, in multiples of all."""
    division = kept_division(tables.spec.plan, tables.spec.estimators, arrays.n_train)
    return PREDICTED_FOLDS[division] * TRAINED_ON[division]


def _spent(row: pd.Series, *columns: str) -> float:
    return float(row.reindex(columns).astype(float).fillna(0.0).sum())


def _flops(
    given: Assignment, arrays: ArrayData, kinds: Sequence[str], parts: Collection[str]
) -> dict[str, float]:
    """Return flops by what they are for."""
    plan, n, n_test = given.plan, arrays.n_train, len(arrays.x_test)
    width = plan.head_width(arrays.n_outputs)
    given_to = given.architecture, arrays.input_shape, width, plan, ()
    one = cost_of(*given_to, n).flops
    exact = likelihood_of(plan, 1.0).n_roots(width)
    uncertain = "report" in parts and plan.declared.averaged and n_test > 0
    found: dict[str, float] = {}
    if {*parts} & _EXPORTS or uncertain:
        found[f"the posterior of {n:,} rows"] = one * n * (1 + 2 * exact)
    if uncertain:
        found[f"predictions of {n_test:,} rows"] = one * n_test * (1 + 2 * width)
    for kind in kinds:
        columns = exact if CURVATURES[kind].columns == "exact" else 1
        found[f"the check of {kind}"] = one * n * (1 + 2 * columns) * draws_of(kind)
    return found


def flops_per_second(given: Assignment, arrays: ArrayData, device: torch.device) -> float:
    """Return the rate of passes like those of the posterior, timed for about a second."""
    plan, shape = given.plan, arrays.input_shape
    width, generator = plan.head_width(arrays.n_outputs), torch.Generator().manual_seed(0)
    likelihood = likelihood_of(plan, 1.0)
    model = build(given.architecture, shape, width, generator).to(device)
    each = cost_of(given.architecture, shape, width, plan, ()).flops
    each *= 1 + 2 * likelihood.n_roots(width)
    rows = _TIMED_ROWS if device.type == "cuda" else int(_TIMED_FLOPS / each)
    rows = max(1, min(_TIMED_ROWS, rows, arrays.n_train))
    x = torch.randn(rows, *shape, generator=generator).to(device)
    y = torch.from_numpy(np.array(arrays.y_train[:rows]))

    def seconds(n: int) -> float:
        started = time.perf_counter()
        own = (x[:n], y[:n].to(device), likelihood)
        curvature_pass("kfac_ggn", model, *own, batch_size=n)  # reads its sums, so it waits
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    seconds(rows if device.type == "cuda" else 1)  # loads code and kernels
    return each * rows / max(1e-9, seconds(rows))
