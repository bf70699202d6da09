"""The export folder of a network, or of several that predict together, for others to load.

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

Before the folder is moved into place, each network is loaded back from it, its evidence is
recomputed and its outputs are compared.

Several networks are those of the best N architectures, with equal weights:

    p(y | x) = 1/N Σ_k p_k(y | x)

Their folder has README.md, the programs, whose outputs are log probabilities for classes,
`ensemble.json` with the members, and an export of each below members/. Datum i is predicted out of
fold by the networks that have not seen it, each with its own folds.
"""

import copy
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import tomli_w
import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.arrays import value_range
from nas_evidence.data.given import Given
from nas_evidence.data.mapped import Array
from nas_evidence.exporting import encode
from nas_evidence.exporting.candidates import candidates_of
from nas_evidence.exporting.model_card import ensemble_card, model_card
from nas_evidence.exporting.onnx_program import check_installed, write_onnx
from nas_evidence.exporting.predicted import HeldOut, Prediction, mixed_of_rows
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.program import Exported, Mixed, compared, read_exported, write_program
from nas_evidence.exporting.soundness import (
    ENCODE,
    ENSEMBLE,
    MEANING,
    MODEL_CARD,
    ONNX,
    POSTERIOR,
    PT2,
    check_kind,
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
from nas_evidence.maths.metrics import best_thresholds, coverage_by_level, named
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.tensor_seals import n_numbers, on_cpu, sealed_tensors
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.kept_origin import read_origin
from nas_evidence.storage.tables import StudyTables


class Options(NamedTuple):
    """Options of an export.

    pt2      write model.pt2 too, a program for torch alone
    onnx     write model.onnx too, which needs the extra of that name
    raw      leave out the factor on the spread of predictions that was fitted to unseen data
    license  for the model card
    force    replace files of other origin with the names of an export's
    """

    pt2: bool = False
    onnx: bool = False
    raw: bool = False
    license: str | None = None
    force: bool = False


def export_winner(
    tables: StudyTables, to: Path, arrays: ArrayData, *, trial_id: int | None = None, **how: Any
) -> dict[str, Any]:
    """Write the best trial of a study (`storage/best.py`), or `trial_id`, into the folder `to`.

    `how` is as in `Options`. Returns the content of evidence.json.

    Raises:
        ValueError: if the study has no such complete trial, the extra is not installed, or `to`
            holds something else.
        ArithmeticError: if the exported model does not reproduce its evidence or its outputs.
    """
    options = _checked(tables, to, several=False, **how)
    chosen = trial_to_export(tables, trial_id)
    return _write_one(tables, to, load_winner(tables, arrays, chosen), options)


def export_ensemble(
    tables: StudyTables, to: Path, arrays: ArrayData, *, top: int, **how: Any
) -> dict[str, Any]:
    """Write the networks of the best `top` architectures of a study into the folder `to`.

    `how` is as in `Options`. Returns the content of ensemble.json.

    Raises:
        ValueError: if the study has fewer complete architectures, or `to` holds something else.
        ArithmeticError: if an exported network does not reproduce its evidence or its outputs.
    """
    options = _checked(tables, to, several=True, **how)
    chosen = best_trials(tables, top)
    winners = [load_winner(tables, arrays, trial_id) for trial_id in chosen]
    rows = [tables.row(trial_id) for trial_id in chosen]
    members = [
        {
            "folder": f"members/{k}",
            "trial_id": one.assignment.trial_id,
            "architecture": str(one.assignment.architecture),
            "weight": 1 / top,
        }
        for k, one in enumerate(winners, 1)
    ]
    described: dict[str, Any] = {
        "study": tables.spec.name,
        "kind": "mixture",
        "objective": tables.spec.objective,
        "ranked_by": tables.standings.ranks_by,
        "metric": tables.spec.metric,
        "top": top,
        "chosen": chosen,
        "members": members,
        "n_parameters": sum(int(row["n_parameters"]) for row in rows),
        "cost": _cost_of(rows),
        "test": _on_test_rows(winners, raw=options.raw),
        "unseen": measures_of(winners, tables),
        "thresholds": thresholds_of(winners),
    }
    shown = [with_preprocessing(one.raw() if options.raw else one) for one in winners]
    with written_whole(to, force=options.force) as made:
        for one, winner in zip(members, winners, strict=True):
            own = Options(raw=options.raw, license=options.license)
            summary = _write_one(tables, made / str(one["folder"]), winner, own)
            one["rescored_sum"] = summary["rescored_sum"]
        _write_json(made / ENSEMBLE, described)
        card = partial(ensemble_card, tables.spec, arrays, described)
        together = Mixed(shown, np.full(top, 1 / top))
        _write_programs(made, together, tables, arrays, options, card)
    return described


def _checked(tables: StudyTables, to: Path, *, several: bool, **how: Any) -> Options:
    """Return the options, after what can be refused before anything is loaded."""
    options = Options(**how)
    check_place(to, force=options.force)
    check_kind(to, several=several)
    if options.onnx:
        check_installed()
    torch.set_num_threads(tables.spec.resources.cpus)
    return options


def _write_one(tables: StudyTables, to: Path, winner: Winner, options: Options) -> dict[str, Any]:
    """Write a network with all that belongs to it; return the content of evidence.json."""
    study, arrays, chosen = tables.spec, winner.arrays, winner.assignment.trial_id
    winner = winner.raw() if options.raw else winner
    exported, row = with_preprocessing(winner), tables.row_of_network(chosen)
    final = tables.evidence_of_network(chosen)
    kind = checked_kind(study)
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
        "unseen": measures_of([winner], tables),
        "rescored_estimator": kind,
    }
    with written_whole(to, force=options.force) as made:
        loaded = _write_network(made, winner, exported, int(row["n_parameters"]), study.name)
        rescored = None if kind is None else rescore(kind, loaded, final)
        summary["rescored_sum"] = rescored
        summary["rescored_per_datum"] = None if rescored is None else rescored / arrays.n_train
        _write_json(made / "evidence.json", summary)
        if (tables.folder / "code").is_dir():  # families from outside the package need it
            shutil.copytree(tables.folder / "code", made / "code")
        _write_json(made / MEANING, meaning_of(winner, study.metric))
        winner.posterior.save(made / POSTERIOR)
        card = partial(model_card, study, row, arrays, summary)
        _write_programs(made, exported, tables, arrays, options, card)
    return summary


def _write_network(
    made: Path, winner: Winner, exported: Exported, n_parameters: int, study: str
) -> Winner:
    """Write a network and what it is; return it as it is loaded from these files, compared."""
    arrays, plan = winner.arrays, winner.assignment.plan
    architecture = winner.assignment.architecture
    width = "n_classes" if plan.declared.kind.classes else "n_outputs"
    described: dict[str, Any] = {
        "family": architecture.family,
        "values": dict(architecture.values),
        "input_shape": list(arrays.input_shape),
        width: plan.head_width(arrays.n_outputs),
        "likelihood": plan.likelihood,
        "n_parameters": n_parameters,
    }
    if arrays.fitted_scale is not None:
        described["target_scale"] = arrays.scale.name
    tensors = on_cpu(exported.state_dict())
    of_network = n_numbers(t for name, t in tensors.items() if name.startswith("model."))
    if n_constants := of_network - n_parameters:
        described["n_constants"] = n_constants
    metadata = {"architecture": architecture.model_dump_json(), "study": study}
    (made / "architecture.toml").write_text(tomli_w.dumps(described), encoding="utf-8")
    write_whole(made / "model.safetensors", sealed_tensors(tensors, metadata))
    again = read_exported(made)
    compared(again, exported, made / "model.safetensors", arrays)
    return replace(winner, model=again.model)


def _write_programs(
    made: Path,
    exported: Exported | Mixed,
    tables: StudyTables,
    arrays: ArrayData,
    options: Options,
    card: Callable[..., str],
) -> None:
    """Write the programs that are asked for, what encodes a table for them, and the model card.

    Nothing encodes arrays and images: these are inputs as they are.
    """
    difference = write_program(exported, made / PT2, arrays) if options.pt2 else None
    if options.onnx:
        write_onnx(exported, made / ONNX, arrays)
    encoded = tuple(name for name in (PT2, ONNX) if (made / name).is_file())
    if arrays.meaning.preparation is None:
        encoded = ()
    if encoded:
        shutil.copyfile(encode.__file__, made / ENCODE)
    text = card(difference, options.license, read_origin(tables.folder), encoded=encoded)
    (made / MODEL_CARD).write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")


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
        "thresholds": thresholds_of([winner]),
    }


def predictor_of(
    winners: Sequence[Winner], metric: str | None, *, with_posterior: bool
) -> Predictor:
    """Return networks as their export predicts, on their devices; else by "map" alone."""
    each = []
    for one in winners:
        posterior = one.posterior.to(one.device) if with_posterior else None
        exported = copy.deepcopy(with_preprocessing(one)).to(one.device)
        each.append(Predictor(exported, posterior, meaning_of(one, metric)))
    first = each[0]
    if len(each) == 1:
        return first
    meaning = {**first.meaning, "thresholds": thresholds_of(winners)}
    return Predictor(first.exported, first.posterior, meaning, [(1 / len(each), o) for o in each])


def held_out_of(winners: Sequence[Winner]) -> HeldOut | None:
    """Return the out-of-fold predictions of networks together, and their rows [m]."""
    return mixed_of_rows([winner.held_out for winner in winners])


def thresholds_of(winners: Sequence[Winner]) -> dict[str, float]:
    """Return the thresholds of the second of two classes that are best on the same predictions.

    See `maths/metrics.best_thresholds`; empty without such predictions.
    """
    found, rows = held_out_of(winners) or (None, ())
    if found is None or found.probabilities is None:
        return {}
    y = winners[0].arrays.y_train[rows]
    return best_thresholds(found.probabilities, y, found.class_weights)


def measures_of(
    winners: Sequence[Winner], tables: StudyTables | None = None
) -> Mapping[str, Any] | None:
    """Return how good and how calibrated held-out predictions are, None if none are kept of one.

    See `maths/metrics.py`; of real targets those that do not depend on their unit. `n_data` is
    the number of data predicted. Of several targets `by_target` has the coverage of each by name.
    If these rows chose the networks among `chosen_among` architectures, the measures are corrected
    for it where `corrected` is True, see `candidates.py`. Of another trial, or without the study,
    they are its own.
    """
    found, rows = held_out_of(winners) or (None, ())
    if found is None:
        return None
    arrays, ranked = winners[0].arrays, [] if tables is None else tables.standings.first()
    is_best = bool(ranked) and ranked[0].trial_id == winners[0].assignment.trial_id
    among = len(ranked) if is_best else 1
    y, others = arrays.y_train[rows], None
    if tables is not None and among > 1:
        others = candidates_of(tables, arrays, together=len(winners))

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


def _on_test_rows(winners: Sequence[Winner], *, raw: bool) -> dict[str, float]:
    """Return the metrics of networks together on the test rows, those of the report."""
    arrays = winners[0].arrays
    if not len(arrays.x_test):
        return {}
    averaged = winners[0].assignment.plan.declared.averaged
    predictor = predictor_of(winners, None, with_posterior=averaged)
    inputs = cast(Array, arrays.x_test)  # sliced, so that a mapped file is read in parts
    return named(predictor.predict(Given(inputs), raw=raw).metrics(arrays.y_test))


def _cost_of(rows: Sequence[pd.Series]) -> str:
    """Return how many parameters networks have together, and how long a forward pass of all takes.

    The pass of one example was measured in training.
    """
    n = sum(int(row["n_parameters"]) for row in rows)
    seconds = sum(float(row.get("latency_seconds") or "nan") for row in rows)
    if math.isnan(seconds):
        return f"{n:,} parameters in all"
    return f"{n:,} parameters in all, and a forward pass of one row takes {1000 * seconds:.2g} ms"


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
