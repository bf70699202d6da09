"""The export folder of one network, that others can load.

    architecture.toml   family, values, input shape, classes or outputs
    model.safetensors   weights and preprocessing, no pickle
    posterior.safetensors  the Laplace posterior, for predictions with uncertainty
    meaning.json        classes, targets, columns and the features they become, learned noise
    evidence.json       every score with its terms, and the learned hyperparameters
    README.md           the model card, shown by the hub of Hugging Face: data, scores, how to load
    SHA256SUMS          checksums of these files, for `sha256sum -c`
    model.pt2           if asked for: torch.export program with a dynamic batch; raw inputs in,
                        logits out, or for real targets predictions in their own unit, without a
                        noise that the network predicts beside them
    model.onnx          if asked for: the same as ONNX
    encode.py           beside one of these, if the data are a table: `encode.py` of this room,
                        which makes their inputs of a table with numpy alone

Before the folder is moved into place, the network is loaded back from it, its evidence is
recomputed and its outputs are compared.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.arrays import value_range
from nas_evidence.exporting import encode
from nas_evidence.exporting.candidates import candidates_of
from nas_evidence.exporting.model_card import model_card
from nas_evidence.exporting.onnx_program import check_installed, write_onnx
from nas_evidence.exporting.predicted import HeldOut, Prediction
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.program import compared, read_exported, write_program
from nas_evidence.exporting.soundness import (
    ENCODE,
    MEANING,
    MODEL_CARD,
    ONNX,
    POSTERIOR,
    PT2,
    check_no_stack,
    check_place,
    written_whole,
)
from nas_evidence.exporting.winner import (
    Winner,
    checked_kind,
    likelihood_fields,
    load_winner,
    rescore,
    with_preprocessing,
)
from nas_evidence.maths.metrics import best_thresholds, coverage_by_level
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.tensor_seals import n_numbers, on_cpu, sealed_tensors
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.kept_origin import read_origin
from nas_evidence.storage.tables import StudyTables


def export_winner(
    tables: StudyTables,
    to: Path,
    arrays: ArrayData,
    *,
    trial_id: int | None = None,
    pt2: bool = False,
    onnx: bool = False,
    raw: bool = False,
    license: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the best trial of a study (`storage/best.py`), or `trial_id`, into the folder `to`.

    With `pt2` also as model.pt2, a program for torch alone; with `onnx` as model.onnx, which needs
    the extra of that name. `raw` leaves out the factor on the spread of predictions that was
    fitted to unseen data. `license` is for the model card. With `force`
    files of other origin with the names of an export's are replaced. Returns the content of
    evidence.json.

    Raises:
        ValueError: if the study has no such complete trial, or the extra is not installed.
        ArithmeticError: if the exported model does not reproduce its evidence or its outputs.
    """
    check_place(to, force=force)
    if onnx:
        check_installed()
    study, evidence = tables.spec, tables.evidence
    chosen = trial_to_export(tables, trial_id)
    row = tables.row(chosen)
    torch.set_num_threads(study.resources.cpus)
    winner = load_winner(tables, arrays, chosen)
    winner = winner.raw() if raw else winner
    architecture = winner.assignment.architecture
    exported, plan = with_preprocessing(winner), winner.assignment.plan
    of = plan.declared.kind

    final = evidence[(evidence["trial_id"] == chosen) & (evidence["epoch"] == row["epochs"])]
    kind = checked_kind(study)
    check_no_stack(to)
    described: dict[str, Any] = {
        "family": architecture.family,
        "values": dict(architecture.values),
        "input_shape": list(arrays.input_shape),
        "n_classes" if of.classes else "n_outputs": (plan.head_width(arrays.n_outputs)),
        "likelihood": plan.likelihood,
        "n_parameters": int(row["n_parameters"]),
    }
    if arrays.fitted_scale is not None:
        described["target_scale"] = arrays.scale.name
    tensors = on_cpu(exported.state_dict())
    of_network = n_numbers(t for name, t in tensors.items() if name.startswith("model."))
    if n_constants := of_network - described["n_parameters"]:
        described["n_constants"] = n_constants
    metadata = {"architecture": architecture.model_dump_json(), "study": study.name}
    summary: dict[str, Any] = {
        "study": study.name,
        "trial_id": chosen,
        "conditions": tables.conditions(chosen),
        "objective": study.objective,
        **rank_of(tables, chosen),
        "epoch": int(row["epochs"]),
        "n_data": len(arrays.x_train),
        "unit": "per_datum: nats per datum, as the report shows; sum: nats over the data, and so "
        "are terms_of_sum and standard_error_of_sum; larger is better",
        **likelihood_fields(winner),
        "prior_precision": {n: float(p) for n, p in winner.precisions().items()},
        "scores": _scores(tables.terms, chosen, final),
        "unseen": unseen_measures(winner, tables),
        "rescored_estimator": kind,
    }
    meaning = meaning_of(winner, study.metric)
    with written_whole(to, force=force) as made:
        (made / "architecture.toml").write_text(tomli_w.dumps(described), encoding="utf-8")
        write_whole(made / "model.safetensors", sealed_tensors(tensors, metadata))
        again = read_exported(made)
        compared(again, exported, made / "model.safetensors", arrays)
        loaded = replace(winner, model=again.model)
        rescored = None if kind is None else rescore(kind, loaded, final)
        summary["rescored_sum"] = rescored
        summary["rescored_per_datum"] = None if rescored is None else rescored / arrays.n_train
        (made / "evidence.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
        if (tables.folder / "code").is_dir():  # families from outside the package need it
            shutil.copytree(tables.folder / "code", made / "code")
        (made / MEANING).write_text(json.dumps(meaning, indent=1, default=str), encoding="utf-8")
        winner.posterior.save(made / POSTERIOR)
        difference = write_program(exported, made / PT2, arrays) if pt2 else None
        if onnx:
            write_onnx(exported, made / ONNX, arrays)
        encoded = write_encoder(made, arrays)
        card = model_card(
            study, row, arrays, summary, difference, license, read_origin(tables.folder),
            encoded=encoded,
        )  # fmt: skip
        (made / MODEL_CARD).write_text(card, encoding="utf-8")
    return summary


def write_encoder(made: Path, arrays: ArrayData) -> tuple[str, ...]:
    """Write what encodes a table for model.pt2 and model.onnx; return which of them are there.

    Nothing is written, and none returned, for arrays and images: these are inputs as they are.
    """
    there = tuple(name for name in (PT2, ONNX) if (made / name).is_file())
    if arrays.meaning.preparation is None or not there:
        return ()
    shutil.copyfile(encode.__file__, made / ENCODE)
    return there


def trial_to_export(tables: StudyTables, trial_id: int | None = None) -> int:
    """Return the trial that represents the best architecture, or `trial_id` if it is complete.

    Raises:
        ValueError: if there is no such complete trial.
    """
    if trial_id is not None:
        complete = {one.trial_id for one in tables.rows if one.status is TrialStatus.COMPLETE}
        if trial_id not in complete:
            known = ", ".join(str(i) for i in sorted(complete)) or "none"
            raise UserError(
                "trial-not-complete",
                f"trial {trial_id} is not complete; complete trials: {known}.",
            )
        return trial_id
    study, best = tables.spec, tables.standings.best
    if best is None:
        raise UserError(
            "no-winner",
            f"no complete trial of study '{study.name}' has a valid {study.objective}; "
            "continue it with `nas-evidence resume`.",
        )
    return best.trial_id


def rank_of(tables: StudyTables, trial_id: int) -> dict[str, Any]:
    """Return the rank of a trial's architecture, by what, and the value of it that ranks.

    The value is per datum where the objective is, as the report shows it.
    """
    standings, row = tables.standings, tables.row(trial_id)
    key = str(row["architecture_key"])
    ranked = next(((k, one) for k, one in enumerate(standings.first(), 1) if one.key == key), None)
    found: dict[str, Any] = {"ranked_by": standings.ranks_by, "rank": None, "ranking_value": None}
    if ranked is None:
        return found
    rank, one = ranked
    return found | {"rank": rank, "ranking_value": one.ranked * _per_datum(tables, trial_id)}


def _per_datum(tables: StudyTables, trial_id: int) -> float:
    """Return by what the objective of a trial is multiplied to be shown: 1 / n, or 1."""
    evidence = tables.evidence
    mine = evidence[(evidence["trial_id"] == trial_id) & evidence["per_datum"].notna()]
    own = mine[mine["estimator"] == tables.spec.objective]
    if own.empty or not own["value"].iloc[-1]:
        return 1.0
    return float(own["per_datum"].iloc[-1] / own["value"].iloc[-1])


def meaning_of(winner: Winner, metric: str | None) -> dict[str, Any]:
    """Return what inputs and outputs stand for: the content of meaning.json."""
    arrays = winner.arrays
    kind, meaning = winner.assignment.plan.declared.kind, arrays.meaning
    classes = list(meaning.classes or range(arrays.n_outputs))
    learned = likelihood_fields(winner)
    prepared = meaning.preparation
    scale = arrays.fitted_scale
    return {
        "task": kind.task,
        "input_shape": list(arrays.input_shape),
        "classes": classes if kind.classes else [],
        "targets": list(meaning.targets or [f"y{i}" for i in range(arrays.n_outputs)]),
        "preparation": None if prepared is None else prepared.to_json(),
        "images": None if meaning.images is None else meaning.images.to_json(),
        "input_range": list(value_range(arrays.x_train)) if len(arrays.input_shape) == 3 else None,
        "features": [] if prepared is None else list(prepared.feature_names),
        "decided": list(meaning.said),
        "temperature": learned.get("temperature", 1.0),
        "likelihood": learned["likelihood"],
        "noise_std": learned.get("noise_std"),  # None where it is an output of the network
        "spread_factor": winner.spread_factor,
        "target_mean": arrays.y_mean.tolist(),
        "target_std": arrays.y_std.tolist(),
        "target_least": [] if kind.classes else arrays.scale.to_json()["least"],
        **({} if scale is None else {"target_scale": scale.to_json()}),
        "metric": metric,
        "weights": winner.assignment.dataset.weights,
        "class_weight": dict(meaning.class_weight),
        "thresholds": unseen_thresholds(winner),
    }


def predictor_of(winner: Winner, metric: str | None, *, with_posterior: bool) -> Predictor:
    """Return a trial as its export predicts, on the trial's device; else by "map" alone."""
    posterior = winner.posterior.to(winner.device) if with_posterior else None
    exported = copy.deepcopy(with_preprocessing(winner)).to(winner.device)
    return Predictor(exported, posterior, meaning_of(winner, metric))


def unseen_measures(winner: Winner, tables: StudyTables | None = None) -> Mapping[str, Any] | None:
    """Return how good and how calibrated held-out predictions are, None if none are kept.

    See `maths/metrics.py`; of real targets those that do not depend on their unit. `n_data` is
    the number of data predicted. Of several targets `by_target` has the coverage of each by name.
    These rows chose the winner among `chosen_among` architectures: the measures are corrected for
    it where `corrected` is True, see `candidates.py`. Of another trial, or without the study, they
    are its own.
    """
    if winner.held_out is None:
        return None
    ranked = [] if tables is None else tables.standings.first()
    is_best = bool(ranked) and ranked[0].trial_id == winner.assignment.trial_id
    return measures_of(winner.held_out, winner.arrays, tables, among=len(ranked) if is_best else 1)


def measures_of(
    held_out: HeldOut,
    arrays: ArrayData,
    tables: StudyTables | None,
    *,
    among: int,
    together: bool = False,
) -> Mapping[str, Any]:
    """Return how good and how calibrated some predictions out of fold are, see above.

    Args:
        held_out: the predictions and their rows.
        arrays: the data of the study.
        tables: of the study, None without it.
        among: architectures among which these rows chose.
        together: whether the predictions are those of several networks together.
    """
    found, rows = held_out
    y, others = arrays.y_train[rows], None
    if tables is not None and among > 1:
        others = candidates_of(tables, arrays, together=together)

    def of(column: int | None = None) -> dict[str, float]:
        measure = partial(_coverages, column=column)
        own = measure([found], y)
        return own if others is None else others.corrected(measure, own)

    if found.density is None:
        measures: dict[str, Any] = dict(found.metrics(y) if others is None else others.metrics)
    else:
        measures = dict(of())
        if y.shape[1] > 1:
            measures["by_target"] = {name: of(k) for k, name in enumerate(found.target_names)}
    corrected = among == 1 or others is not None
    return measures | {"n_data": len(rows), "chosen_among": among, "corrected": corrected}


def _coverages(
    predicted: Sequence[Prediction], y: Any, column: int | None = None
) -> dict[str, float]:
    """Return the coverage by level, the mean over some predictions of the same rows."""
    densities = [one.real if column is None else one.real.column(column) for one in predicted]
    known = y if column is None else y[:, [column]]
    each = [coverage_by_level(one, known) for one in densities]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def unseen_thresholds(winner: Winner) -> dict[str, float]:
    """Return the thresholds of the second of two classes that are best on the same predictions.

    See `maths/metrics.best_thresholds`; empty without such predictions.
    """
    if winner.held_out is None:
        return {}
    found, rows = winner.held_out
    if found.probabilities is None:
        return {}
    return best_thresholds(found.probabilities, winner.arrays.y_train[rows], found.class_weights)


def _scores(terms: pd.DataFrame, trial_id: int, final: pd.DataFrame) -> dict[str, Any]:
    """Return every score of a trial: per datum where that is defined, and its sum by that name."""
    terms = terms[terms["trial_id"] == trial_id]
    scores: dict[str, Any] = {}
    for row in final.itertuples():
        mine = terms[(terms["estimator"] == row.estimator) & (terms["epoch"] == row.epoch)]
        parts = [
            {"term": t.term, "group": t.group, "value": _number(t.value)}
            for t in mine.itertuples()
        ]
        value, error = _number(row.value), _number(row.standard_error)
        about = {"relation": row.relation, "valid": bool(row.valid), "note": row.note}
        if pd.isna(row.per_datum):  # in a unit of its own
            found = {"value": value, "standard_error": error, **about, "terms": parts}
        else:
            found = {"per_datum": _number(row.per_datum), "sum": value}
            found |= {"standard_error_of_sum": error, **about, "terms_of_sum": parts}
        scores[str(row.estimator)] = found
    return scores


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)
