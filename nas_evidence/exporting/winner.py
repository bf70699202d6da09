"""A finished trial loaded from its file of weights: evidence, posterior, held-out predictions.

A trial that computes `conditional_evidence` or `two_fold` keeps, beside its weights, the outputs
for each datum of the network trained without its fold. They calibrate the model card, compare the
winner with simple models and weigh the members of an ensemble.
"""

import copy
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.data import ArrayData
from nas_evidence.data.augmentation import data_of_evidence
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.laplace import laplace_estimate, mean_estimate
from nas_evidence.evidence.posterior import Posterior, fit_posterior
from nas_evidence.exporting.device import CPU, computed_on, device_again, device_of
from nas_evidence.exporting.predicted import Prediction, prediction_of
from nas_evidence.exporting.program import Exported, network_only
from nas_evidence.exporting.weights import read_weights
from nas_evidence.likelihoods import Likelihood, Scale, likelihood
from nas_evidence.models import build
from nas_evidence.plumbing.own_modules import code_in_use
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.tensor_seals import KEPT_PREFIX, read_tensors
from nas_evidence.scores.folds import OUTPUTS, SPREAD, cross_fitted, restored, targets_of_folds
from nas_evidence.spec.divisions import whole
from nas_evidence.spec.record import TrialStatus, ranks, trial_of
from nas_evidence.spec.registry import CURVATURES, declared, draws_of
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.storage.outside_code import outside_names
from nas_evidence.storage.tables import StudyTables, architecture_values
from nas_evidence.storage.told_order import best_trial
from nas_evidence.training.loop import likelihood_of
from nas_evidence.workers.apart import called_apart
from nas_evidence.workers.trial import Trial
from nas_evidence.workers.worker import make_reproducible

_LOG = logging.getLogger(__name__)
#: Largest relative difference between the stored evidence and the one computed from the files.
RESCORE_TOLERANCE = 1e-6
T = TypeVar("T")


@dataclass(frozen=True)
class Winner:
    """A trained trial, as stored in its file of weights."""

    assignment: Assignment
    arrays: ArrayData  # of its study
    model: nn.Module
    precision: Tensor  # float64, one per parameter tensor [G]
    header: Mapping[str, str]
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # by its scores, see `Scorer.kept`
    spread_factor: float = 1.0  # of what is delivered, on temperature or standard deviation
    device: torch.device = CPU  # for what is computed of it; all of this lies on the CPU

    @property
    def noise_std(self) -> Scale:
        """Standard deviation of the noise on standardised targets, or of that of each."""
        found = parsed_json(self.header["noise_std"])
        return tuple(found) if isinstance(found, list) else float(found)

    @property
    def temperature(self) -> float:
        """Divisor of the logits."""
        return float(self.header["temperature"])

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with its learned hyperparameter."""
        return likelihood_of(self.assignment.plan, self.noise_std)

    @property
    def data(self) -> TensorData:
        """The data of the study as networks see them, on the CPU."""
        return to_tensors(self.arrays, CPU)

    @cached_property
    def posterior(self) -> Posterior:
        """The Laplace posterior, with which report and export predict: fitted once.

        It is computed on `device` and lies on the CPU.
        """
        return computed_on(self.device, self._posterior_on)

    def _posterior_on(self, device: torch.device) -> Posterior:
        model, data = self.placed(device)
        found = fit_posterior(
            model,
            data.x_train,
            data.y_train,
            self.likelihood,
            self.precisions(),
            likelihood_power=self.assignment.plan.likelihood_power,
        )
        return found.to(CPU)

    def placed(self, device: torch.device) -> tuple[nn.Module, TensorData]:
        """Return the network and the data of its evidence on a device."""
        model = self.model if device == CPU else copy.deepcopy(self.model).to(device)
        return model, data_of_evidence(to_tensors(self.arrays, device), self.assignment)

    @cached_property
    def held_out(self) -> tuple[Prediction, np.ndarray] | None:
        """Predictions of the data by the folds without them, as delivered, and their rows [m].

        None where a trial kept none. Classes are predicted without a posterior, as by `predict`.
        """
        return held_out_of(self.kept, self.assignment, self.arrays, self.data)

    def raw(self) -> "Winner":
        """Return the same without the factor on the spread."""
        return replace(self, spread_factor=1.0)

    def precisions(self) -> dict[str, Tensor]:
        """Return the prior precision of each parameter tensor [1]."""
        names = (name for name, _ in self.model.named_parameters())
        return dict(zip(names, torch.split(self.precision, 1), strict=True))


#: The networks last loaded of each study: report and export share what is computed from them.
_LAST: WeakKeyDictionary[StudyTables, dict[int, Winner]] = WeakKeyDictionary()


def load_winner(tables: StudyTables, arrays: ArrayData, trial_id: int) -> Winner:
    """Return a complete trial, retrained from its seed if its weights were not kept."""
    held = _LAST.setdefault(tables, {})
    if trial_id not in held:
        found = _loaded(tables, arrays, trial_id)
        for other in held.keys() - {best_trial(tables)}:
            del held[other]
        held[trial_id] = found
    return held[trial_id]


def _loaded(tables: StudyTables, arrays: ArrayData, trial_id: int) -> Winner:
    study, scores = tables.spec, scores_of_folds(tables.spec)
    wanted = scores if trial_id == best_trial(tables) else ()
    given = assignment_of_row(tables, tables.network_of(trial_id), wanted)
    tensors, header = _stored_or_again(tables, arrays, given)
    assignment = Assignment.model_validate_json(header["assignment"])
    beside: Mapping[str, Tensor] = tensors
    if not study.trains_whole:
        its = {"trial_id": trial_id, "estimators": study.estimators}
        assignment, beside = assignment.model_copy(update=its), {}
        if wanted or (tables.folder / f"models/{trial_id}.safetensors").is_file():
            own = assignment_of_row(tables, trial_id, scores)
            beside, _ = _stored_or_again(tables, arrays, own)
    model = build(
        assignment.architecture,
        arrays.input_shape,
        assignment.plan.head_width(arrays.n_outputs),
        torch.Generator().manual_seed(0),
    )
    model.load_state_dict(network_only(tensors))
    names = [name for name, _ in model.named_parameters()]
    by_name = parsed_json(header["prior_precision"])
    precision = torch.tensor([by_name[name] for name in names], dtype=torch.float64)
    factor = tables.row(trial_id).get("spread_factor", 1.0)  # earlier studies have none
    factor = 1.0 if pd.isna(factor) else factor
    device = device_of(tables.row(trial_id), assignment, arrays, tables.spec.resources)
    kept = kept_beside(beside)
    return Winner(assignment, arrays, model.eval(), precision, header, kept, factor, device)


def _stored_or_again(
    tables: StudyTables, arrays: ArrayData, given: Assignment
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return weights and their header as a study keeps them, or trained again."""
    path = tables.folder / "models" / f"{given.trial_id}.safetensors"
    try:
        return read_weights(tables.folder, given)
    except (OSError, DamagedError) as error:
        if path.is_file():
            _LOG.warning("weights_unreadable path=%s error=%s; training again", path, error)
        return read_tensors(train_again(tables, arrays, given))


def stored_unseen(winner: Winner) -> Tensor | None:
    """Return `Folds.unseen` as a trial kept it [n, C + S], None if it did not."""
    return _kept_unseen(winner.kept, winner.arrays.n_train)


def _kept_unseen(kept: Mapping[str, Tensor], n: int) -> Tensor | None:
    if OUTPUTS not in kept or len(outputs := kept[OUTPUTS]) != n:
        return None
    return torch.cat([outputs, kept[SPREAD].reshape(n, -1)], 1)


def held_out_of(
    kept: Mapping[str, Tensor], assignment: Assignment, arrays: ArrayData, data: TensorData
) -> tuple[Prediction, np.ndarray] | None:
    """Return `Winner.held_out` of what a trial kept beside its weights, without its network.

    Args:
        kept: by name, as in `Winner`.
        assignment: of the trial, with its scores.
        arrays: the data of the study.
        data: the same as networks see them, on the CPU.
    """
    table = _kept_unseen(kept, arrays.n_train)
    if table is None:
        return None
    table = cross_fitted(table, data, assignment)
    if not (known := table[:, -1] > 0).any():
        return None
    rows, own = np.flatnonzero(known), targets_of_folds(data, assignment).scale
    scale = arrays.standardisation if own is None else own.at(rows)
    delivered = restored(table[known], assignment.plan).delivered(scale)
    return prediction_of(arrays, delivered), rows


def kept_beside(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the scores of a trial kept in its file of weights, by name."""
    return {
        name.removeprefix(KEPT_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(KEPT_PREFIX)
    }


def with_preprocessing(winner: Winner) -> Exported:
    """Return the model with the scaling of its inputs and outputs built in."""
    arrays = winner.arrays
    others, on = dict[str, Tensor](), arrays.scale
    if not arrays.kind.classes:
        others |= {"scale": torch.from_numpy(on.spread).float()}
        others |= {"shift": torch.from_numpy(on.centre).float()}
    elif (divisor := winner.temperature * winner.spread_factor) != 1:
        others["scale"] = torch.tensor(1 / divisor)
    if arrays.fitted_scale is not None:
        others |= {"lowest": torch.from_numpy(on.lowest).float()}
        others |= {"highest": torch.from_numpy(on.highest).float()}
    if len(on.parameters):
        others["curve_parameters"] = torch.from_numpy(on.parameters)
    mean, std = torch.from_numpy(arrays.mean), torch.from_numpy(arrays.std)
    name = winner.assignment.plan.likelihood
    return Exported(winner.model, mean, std, on.name, likelihood(name), **others).eval()


def likelihood_fields(winner: Winner) -> dict[str, Any]:
    """Return the likelihood by name, with its learned hyperparameter."""
    plan, arrays = winner.assignment.plan, winner.arrays
    found: dict[str, Any] = {
        "likelihood": plan.likelihood,
        "likelihood_power": plan.likelihood_power,
        "spread_factor": winner.spread_factor,
    }
    of = plan.declared
    if of.scale is not None:  # of real targets on standardised ones, as the network sees them
        found[of.scale] = getattr(winner, of.scale)
    if not of.kind.scaled:
        return found
    if arrays.fitted_scale is not None:
        return found | {"target_scale": arrays.scale.to_json()}
    if of.scale is not None:
        own = np.array(getattr(winner, of.scale)) * arrays.y_std
        found[f"{of.scale}_in_own_unit"] = own.tolist()
    return found | {"target_mean": arrays.y_mean.tolist(), "target_std": arrays.y_std.tolist()}


def assignment_of_row(
    tables: StudyTables, trial_id: int, scores: tuple[str, ...] = ()
) -> Assignment:
    """Return what trained the weights of a finished trial, or of its network of all rows.

    Scores change no weights.
    """
    study, row = tables.spec, tables.row(trial_of(trial_id))
    own = Assignment(
        trial_id=trial_of(trial_id),
        attempt=int(row["attempt"]),
        replicate=int(row["replicate"]),
        architecture=ArchitectureSpec(family=str(row["family"]), values=architecture_values(row)),
        dataset=study.dataset,
        plan=study.plan,
        estimators=scores,
        seed=int(row["seed"]),
    )
    return own if ranks(trial_id) else whole(own)


def scores_of_folds(study: StudySpec) -> tuple[str, ...]:
    """Return the scores of a study that train on parts of the data."""
    return tuple(one for one in study.estimators if declared(one).trainings > 0)


def train_again(tables: StudyTables, arrays: ArrayData, given: Assignment) -> Path:
    """Train a network of a complete trial from its seed; return the file of its weights.

    Args:
        tables: of the study.
        arrays: its data.
        given: what trains it, see `assignment_of_row`; with the scores whose folds are to be
            predicted again: what is delivered has its thresholds and its calibration from them.

    Raises:
        ValueError: if it was trained on a kind of device that is not here.
        ArithmeticError: if it does not come to its end.
    """
    study, trial_id = tables.spec, given.trial_id
    row = tables.row(trial_of(trial_id))
    device = device_again(row, study.resources, kept=_best_kept(tables))
    folder = tables.folder / "checkpoints" / "retrained" / f"{trial_id:06d}"
    asked = (_trained_in, folder.resolve(), given, arrays, device, study.resources.cpus)
    status, cause = elsewhere(device, study, tables.folder / "logs", *asked)
    if status is not TrialStatus.COMPLETE:
        what = "was complete, but trained again it is" if ranks(trial_id) else "is on all rows"
        raise ArithmeticError(f"trial {row['trial_id']} {what} {status}: {cause}")
    return folder / "model.safetensors"


def elsewhere(
    device: torch.device,
    study: StudySpec,
    logs: Path,
    train: Callable[..., T],
    *arguments: Any,
) -> T:
    """Return what a training returns: on a GPU in a process of its own, see `device.py`.

    A family of a notebook or a script is known to this process alone.
    """
    outside = outside_names(study)
    if device == CPU:
        return train(*arguments)
    if (code := code_in_use()) is not None and code.local:
        return _reproducibly(device, train, *arguments)
    given = (device, train, *arguments)
    found: T = called_apart(_reproducibly, *given, logs=logs, outside=outside)
    return found


def _reproducibly(device: torch.device, train: Callable[..., T], *arguments: Any) -> T:
    make_reproducible(device)
    return train(*arguments)


def _trained_in(
    folder: Path, assignment: Assignment, arrays: ArrayData, device: torch.device, threads: int
) -> tuple[TrialStatus, str]:
    """Train into a folder; return how it ended, and why."""
    torch.set_num_threads(threads)
    trial = Trial.start(assignment, to_tensors(arrays, device), folder)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(assignment.plan.epochs)
    record = trial.finish()
    return record.status, record.cause


def _best_kept(tables: StudyTables) -> int | None:
    """Return the best trial whose weights are kept, None if there is none."""
    ranked = (standing.trial_id for standing in tables.standings.first())
    return next(filter(tables.has_network, ranked), None)


def checked_kind(study: StudySpec) -> str | None:
    """Return the evidence that can be computed from weights: the objective, else an estimator."""
    kinds = (study.objective, *study.estimators)
    return next((kind for kind in kinds if kind in CURVATURES), None)


def rescore(kind: str, winner: Winner, stored: pd.DataFrame) -> float:
    """Return the recomputed evidence `kind` of the winner's weights, nats.

    Args:
        kind: a curvature.
        winner: with the weights to check.
        stored: the last rows of the trial in the table of evidence.

    Raises:
        ArithmeticError: if it differs from the stored one by more than `RESCORE_TOLERANCE`.
    """
    found = computed_on(winner.device, lambda device: _evidence_on(device, kind, winner))
    for value in stored.loc[stored["estimator"] == kind, "value"].dropna()[:1]:
        if not math.isclose(found, value, rel_tol=RESCORE_TOLERANCE):
            raise ArithmeticError(
                f"the exported weights give the evidence {found!r}, but the study stored "
                f"{float(value)!r}: they are not the same model."
            )
    return found


def _evidence_on(device: torch.device, kind: str, winner: Winner) -> float:
    """Return the evidence by the rows at once and the draws of the trial, whatever the device."""
    (model, data), plan = winner.placed(device), winner.assignment.plan
    seed = winner.assignment.derived_seed(f"curvature:{kind}", int(winner.header["epoch"]))
    generator, batch = torch.Generator().manual_seed(seed), int(winner.header["curvature_batch"])
    draws = []
    for _ in range(draws_of(kind)):
        curvature = curvature_pass(
            kind, model, data.x_train, data.y_train, winner.likelihood,
            batch_size=batch, generator=generator,
        )  # fmt: skip
        estimate = laplace_estimate(
            kind, curvature, model, winner.precision.to(device),
            likelihood_power=plan.likelihood_power, log_jacobian=data.log_jacobian,
        )  # fmt: skip
        draws.append(estimate)
    return mean_estimate(draws).value
