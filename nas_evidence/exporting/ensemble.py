"""Several networks of a study that predict together, as files.

    ensemble.json   members with their weights, what they are together (`kind`), and what stacked
                    ones gain over the best member
    members/        an export of each member, see the package
    README.md       the model card: what to know before using it
    model.pt2       if asked for: torch.export program of all: raw inputs in; log probabilities
                    out, or for real targets predictions in their own unit (by the modes, without
                    the posterior)
    model.onnx      if asked for: the same as ONNX

A "mixture" is of all networks of the best architectures, with equal weights: what a study may
deliver (`mixture.py`). A "stacked" ensemble is of the best architectures:

    p(y | x) = Σ_k w_k p_k(y | x)        w maximises Σ_i log Σ_k w_k p_k,−i(y_i | x_i)

p_k,−i is of a network of architecture k trained without the fold of datum i: what
`conditional_evidence` trains anyway, or in a study without it `two_fold`. A trial keeps these
predictions beside its weights, n (C + 1) numbers in float32 up to 4 MB; where there are none, the
folds are trained again. Their outputs are divided by their likeliest scale, as in
cross-validation; the members predict with their posteriors instead.

The gain is of weights fitted to other data, over the member that is best on all of them
(`maths/stacking.py`), for networks trained on a part of the data. The K networks were chosen on
all data, the same ones for the ensemble and for its best member.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.exporting.device import CPU
from nas_evidence.exporting.folder import export_winner, rank_of, write_encoder
from nas_evidence.exporting.mixture import (
    load_delivered,
    measures_together,
    on_test_rows,
    thresholds_together,
)
from nas_evidence.exporting.model_card import ensemble_card
from nas_evidence.exporting.onnx_program import check_installed, write_onnx
from nas_evidence.exporting.program import Mixed, write_program
from nas_evidence.exporting.soundness import (
    ENSEMBLE,
    MODEL_CARD,
    ONNX,
    PT2,
    check_no_stack,
    check_place,
    is_mixture,
    written_whole,
)
from nas_evidence.exporting.winner import (
    Winner,
    delivered_unseen,
    elsewhere,
    load_winner,
    with_preprocessing,
)
from nas_evidence.likelihoods.predictive import Predictive
from nas_evidence.maths.metrics import best_thresholds
from nas_evidence.maths.stacking import Floats, stacked
from nas_evidence.maths.target_scale import unscaled
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.scores.folds import SCALES, cross_fitted, restored, targets_of_folds, unseen_of
from nas_evidence.spec.study import Assignment, TrainingPlan
from nas_evidence.storage.delivered import cost_of_networks
from nas_evidence.storage.kept_origin import read_origin
from nas_evidence.storage.tables import StudyTables

#: Members with less weight are left out.
LEAST_WEIGHT = 0.005


def export_ensemble(
    tables: StudyTables,
    to: Path,
    arrays: ArrayData,
    *,
    top: int,
    pt2: bool = False,
    onnx: bool = False,
    raw: bool = False,
    license: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the ensemble of the best `top` architectures of a study into the folder `to`.

    With `pt2` also as one model.pt2, a program for torch alone; with `onnx` as one model.onnx,
    which needs the extra of that name. `raw` members are without the factor on the spread that was
    fitted to unseen data. `license` is for the model card. With `force`
    files of other origin with the names of an export's are replaced. Returns the content of
    ensemble.json.

    Raises:
        ValueError: if the study has fewer complete architectures, or `to` holds something else.
        ArithmeticError: if an exported network does not reproduce its evidence or its outputs.
    """
    if (to / "model.safetensors").exists() or is_mixture(to):
        raise UserError(
            "folder-of-one-network",
            f"{to} holds the export of one architecture; choose another folder for the ensemble.",
        )
    check_place(to, force=force)
    if onnx:
        check_installed()
    study = tables.spec
    chosen = best_trials(tables, top)
    data = to_tensors(arrays, CPU)
    torch.set_num_threads(study.resources.cpus)
    winners = [load_winner(tables, arrays, i) for i in chosen]
    unseen = [_unseen(winner, data, tables) for winner in winners]
    found = stacked(_densities([table for table, _ in unseen], data, winners))
    kept = [k for k in range(top) if found.weights[k] >= LEAST_WEIGHT]
    weights = found.weights[kept] / found.weights[kept].sum()
    described: dict[str, Any] = {
        "study": study.name,
        "kind": "stacked",
        "objective": study.objective,
        "ranked_by": tables.standings.ranks_by,
        "top": top,
        "chosen": chosen,
        "members": [
            {
                "folder": f"members/{k + 1}",
                "trial_id": chosen[k],
                "architecture": str(winners[k].assignment.architecture),
                "weight": float(weight),
                "output_scale": SCALES[int(found.scales[k])],
            }
            for weight, k in zip(weights, kept, strict=True)
        ],
        "stacking": "convex weights that maximise the mean log predictive density of "
        "out-of-fold predictions; for the gain they are cross-fitted",
        "n_data": found.n,
        "best_member": chosen[found.best],
        "best_member_per_datum": found.single,
        "gain_per_datum": found.gain,
        "gain_standard_error": found.error,
        "without_chance": {str(chosen[k]): int(n) for k, n in enumerate(found.without) if n},
        "refitted": sum(again for _, again in unseen),
        "thresholds": _thresholds([unseen[k][0] for k in kept], weights, data, study.plan),
    }
    how = _How(pt2=pt2, onnx=onnx, raw=raw, license=license, force=force)
    _write(tables, to, arrays, [winners[k] for k in kept], described, how)
    return described


def export_mixture(
    tables: StudyTables,
    to: Path,
    arrays: ArrayData,
    *,
    pt2: bool = False,
    onnx: bool = False,
    raw: bool = False,
    license: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the networks that a study delivers into the folder `to`, with equal weights.

    The evidence of each is recomputed from its files. Arguments as of `export_ensemble`. Returns
    the content of ensemble.json.

    Raises:
        ValueError: if `to` holds something else, or a network cannot be had here: its weights
            are lost, and it was trained on a kind of device that is not here.
        ArithmeticError: if an exported network does not reproduce its evidence or its outputs.
    """
    check_no_stack(to)
    check_place(to, force=force)
    if onnx:
        check_installed()
    study = tables.spec
    torch.set_num_threads(study.resources.cpus)
    winners = load_delivered(tables, arrays)
    chosen = [winner.assignment.trial_id for winner in winners]
    described: dict[str, Any] = {
        "study": study.name,
        "kind": "mixture",
        "objective": study.objective,
        **rank_of(tables, chosen[0]),
        "metric": study.metric,
        "trial_id": chosen[0],
        "chosen": chosen,
        "members": [
            {
                "folder": f"members/{k + 1}",
                "trial_id": winner.assignment.trial_id,
                "architecture": str(winner.assignment.architecture),
                "weight": 1 / len(winners),
            }
            for k, winner in enumerate(winners)
        ],
        "n_parameters": sum(int(tables.row(i)["n_parameters"]) for i in chosen),
        "cost": cost_of_networks([tables.row(i) for i in chosen]),
        "test": on_test_rows(winners, raw=raw),
        "unseen": measures_together(winners, tables),
        "thresholds": thresholds_together(winners),
    }
    how = _How(pt2=pt2, onnx=onnx, raw=raw, license=license, force=force)
    _write(tables, to, arrays, winners, described, how)
    return described


@dataclass(frozen=True)
class _How:
    """Options of an export, see `export_ensemble`."""

    pt2: bool
    onnx: bool
    raw: bool
    license: str | None
    force: bool


def _write(
    tables: StudyTables,
    to: Path,
    arrays: ArrayData,
    winners: Sequence[Winner],
    described: dict[str, Any],
    how: _How,
) -> None:
    """Write networks together: each in its folder, with programs of all if asked for.

    Args:
        tables: of the study.
        to: the folder.
        arrays: the data of the study.
        winners: the members, as in `described`.
        described: content of ensemble.json.
        how: options.
    """
    weights = np.array([one["weight"] for one in described["members"]])
    whole = Mixed([with_preprocessing(one.raw() if how.raw else one) for one in winners], weights)
    with written_whole(to, force=how.force) as made:
        for one in described["members"]:
            to_member, trial_id = made / one["folder"], one["trial_id"]
            summary = export_winner(
                tables, to_member, arrays, trial_id=trial_id, raw=how.raw, license=how.license
            )
            one["rescored_sum"] = summary["rescored_sum"]
        (made / ENSEMBLE).write_text(json.dumps(described, indent=1), encoding="utf-8")
        difference = write_program(whole, made / PT2, arrays) if how.pt2 else None
        if how.onnx:
            write_onnx(whole, made / ONNX, arrays)
        encoded = write_encoder(made, arrays)
        card = ensemble_card(
            tables.spec, arrays, described, difference, how.license, read_origin(tables.folder),
            encoded=encoded,
        )  # fmt: skip
        (made / MODEL_CARD).write_text(card, encoding="utf-8")


def best_trials(tables: StudyTables, top: int) -> list[int]:
    """Return the trials that represent the best `top` architectures, best first.

    Raises:
        ValueError: if fewer are complete.
    """
    standings = tables.standings.first()
    if not 1 <= top <= len(standings):
        raise UserError(
            "top-out-of-range",
            f"top must be from 1 to {len(standings)}, the number of architectures with a "
            f"complete trial and a valid {tables.spec.objective}, but got {top}.",
        )
    return [standing.trial_id for standing in standings[:top]]


def _unseen(winner: Winner, data: TensorData, tables: StudyTables) -> tuple[Tensor, bool]:
    """Return delivered outputs and spread of networks without each datum, and if trained anew."""
    stored = delivered_unseen(winner, data)
    if stored is not None:
        return stored, False
    given = (_unseen_on, winner.assignment, winner.arrays, winner.device)
    again = elsewhere(winner.device, tables.spec, tables.folder / "logs", *given)
    return cross_fitted(again, data, winner.assignment), True


def _unseen_on(assignment: Assignment, arrays: ArrayData, device: torch.device) -> Tensor:
    return unseen_of(assignment, to_tensors(arrays, device))


def densities_at_scales(
    predictive: Predictive, targets: Tensor, log_jacobian: Floats | None = None
) -> Floats:
    """Return the log predictive density of each datum at each of `SCALES` [M, n], nats.

    Args:
        predictive: of networks that have not seen the datum.
        targets: labels [n], or standardised real targets [n, C].
        log_jacobian: of the targets [n], nats, see `TargetScale.log_jacobian`.
    """
    found = [predictive.at(scale).log_density(targets) for scale in SCALES]
    densities = np.asarray(torch.stack(found).numpy())
    return densities if log_jacobian is None else densities + log_jacobian


def _densities(unseen: Sequence[Tensor], data: TensorData, winners: Sequence[Winner]) -> Floats:
    """Return log densities of the data at each scale [M, n, K], where all networks have them.

    Raises:
        ValueError: if no datum is predicted by all, because trainings diverged.
    """
    known = torch.stack([table[:, -1] > 0 for table in unseen]).all(0)
    if not known.any():
        lost = [w.assignment.trial_id for w, t in zip(winners, unseen, strict=True)
                if not (t[:, -1] > 0).any()]  # fmt: skip
        raise UserError(
            "ensemble-without-common-data",
            f"no datum is predicted by all networks: on parts of the data the trainings of trials "
            f"{lost or 'of different folds'} diverged; choose a smaller `top`.",
        )
    each = []
    for table, winner in zip(unseen, winners, strict=True):
        own = targets_of_folds(data, winner.assignment)
        jacobian = own.log_jacobian[known.numpy()]
        unseen_rows = restored(table[known], winner.assignment.plan)
        each.append(densities_at_scales(unseen_rows, own.seen[known], jacobian))
    return np.stack(each, axis=2)


def _thresholds(
    unseen: Sequence[Tensor], weights: Floats, data: TensorData, plan: TrainingPlan
) -> dict[str, float]:
    known, scale = torch.stack([table[:, -1] > 0 for table in unseen]).all(0), unscaled(1)
    said = [restored(t[known], plan).delivered(scale).probabilities for t in unseen]
    each = [one for one in said if one is not None]
    if not each:
        return {}
    mixture, y = np.tensordot(weights, np.stack(each), 1), data.y_train[known].numpy()
    return best_thresholds(mixture, y, data.class_weights)
