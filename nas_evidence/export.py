"""The winner as files that others can load.

    architecture.toml   family, values, input shape, classes
    model.safetensors   weights and preprocessing, no pickle
    model.pt2           torch.export program with a dynamic batch: raw inputs in, logits out
    evidence.json       every score with its terms, and the learned prior precisions
    MODEL_CARD.md       data, splits, scores and their meaning, how to load, versions

Before anything is written into its final place, the winner is loaded back, its evidence computed
again and its logits compared.
"""

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nas_evidence.codec import load_study
from nas_evidence.curvature import curvature_pass
from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.likelihood import Categorical
from nas_evidence.models import build
from nas_evidence.record import TrialStatus
from nas_evidence.spec import LAPLACE_KINDS, ArchitectureSpec, Assignment, StudySpec
from nas_evidence.store import read_table
from nas_evidence.trial import Trial, versions

#: Largest relative difference between the stored evidence and the one computed from the files.
RESCORE_TOLERANCE = 1e-6
#: Largest absolute difference between the logits of the model and of the exported program.
LOGIT_TOLERANCE = 1e-5


class Exported(nn.Module):
    """A trained model with its preprocessing inside: raw inputs [n, ...] in, logits [n, C] out."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [n, C] of raw inputs [n, ...] in the data set's own units."""
        logits: Tensor = self.model((inputs.to(self.mean.dtype) - self.mean) / self.std)
        return logits


@dataclass(frozen=True)
class ExportReport:
    """Where the winner went, and how well it loads back."""

    folder: Path
    trial_id: int
    architecture: ArchitectureSpec
    objective: str
    stored_value: float | None
    rescored_value: float | None


def load_exported(folder: str | Path) -> Exported:
    """Return the model of an export folder, in evaluation mode, with raw inputs as its inputs.

    Raises:
        ValueError: if a file is missing or does not fit the architecture.
    """
    folder = Path(folder)
    for name in ("architecture.toml", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not an export folder: it has no {name}.")
    described = tomllib.loads((folder / "architecture.toml").read_text(encoding="utf-8"))
    architecture = ArchitectureSpec(family=described["family"], values=described["values"])
    state = load_file(folder / "model.safetensors")
    model = build(
        architecture,
        tuple(described["input_shape"]),
        described["n_classes"],
        torch.Generator().manual_seed(0),
    )
    exported = Exported(model, torch.empty_like(state["mean"]), torch.empty_like(state["std"]))
    exported.load_state_dict(state)
    return exported.eval()


def export_winner(
    study_folder: Path, to: Path, arrays: ArrayData, *, trial_id: int | None = None
) -> ExportReport:
    """Write the best trial of a study, or trial `trial_id`, into the folder `to`.

    Raises:
        ValueError: if the study has no such complete trial.
        ArithmeticError: if the written model does not reproduce its evidence or its logits.
    """
    study = load_study(study_folder / "study.toml")
    trials, evidence = read_table(study_folder, "trials"), read_table(study_folder, "evidence")
    chosen = _choose(study, trials, evidence, trial_id)
    row = trials[trials["trial_id"] == chosen].iloc[0]
    state, header = _weights(study_folder, study, arrays, row)
    assignment = Assignment.model_validate_json(header["assignment"])
    architecture = assignment.architecture
    model = build(
        architecture, arrays.input_shape, arrays.n_classes, torch.Generator().manual_seed(0)
    )
    model.load_state_dict(state)
    exported = Exported(model, torch.from_numpy(arrays.mean), torch.from_numpy(arrays.std)).eval()

    final = evidence[(evidence["trial_id"] == chosen) & (evidence["epoch"] == row["epochs"])]
    precision = json.loads(header["prior_precision"])
    rescored = _rescore(study, model, arrays, assignment, header)
    stored = final.loc[final["estimator"] == study.objective, "value"]
    value = None if stored.empty or pd.isna(stored.iloc[0]) else float(stored.iloc[0])
    if value is not None and rescored is not None:
        _assert_close(rescored, value)

    to.mkdir(parents=True, exist_ok=True)
    (to / "MODEL_CARD.md").unlink(missing_ok=True)  # written last: it says that all are there
    described = {
        "family": architecture.family,
        "values": dict(architecture.values),
        "input_shape": list(arrays.input_shape),
        "n_classes": arrays.n_classes,
        "n_parameters": int(row["n_parameters"]),
    }
    (to / "architecture.toml").write_text(tomli_w.dumps(described), encoding="utf-8")
    weights = save(
        {name: tensor.contiguous() for name, tensor in exported.state_dict().items()},
        metadata={"architecture": architecture.model_dump_json(), "study": study.name},
    )
    (to / "model.safetensors").write_bytes(weights)
    difference = _write_program(exported, to / "model.pt2", arrays)
    scores = _scores(study_folder, chosen, final)
    summary: dict[str, Any] = {
        "study": study.name,
        "trial_id": chosen,
        "objective": study.objective,
        "epoch": int(row["epochs"]),
        "n_data": len(arrays.x_train),
        "unit": "nats summed over the training data, larger is better, where per_datum is given",
        "likelihood": "categorical",
        "prior_precision": precision,
        "scores": scores,
        "rescored": rescored,
    }
    (to / "evidence.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    card = _model_card(study, row, arrays, summary, difference)
    (to / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    return ExportReport(to, chosen, architecture, study.objective, value, rescored)


def _choose(
    study: StudySpec, trials: pd.DataFrame, evidence: pd.DataFrame, trial_id: int | None
) -> int:
    complete = set(trials.loc[trials["status"] == TrialStatus.COMPLETE.value, "trial_id"])
    if trial_id is not None:
        if trial_id not in complete:
            known = ", ".join(str(i) for i in sorted(complete)) or "none"
            raise ValueError(f"trial {trial_id} is not complete; complete trials: {known}.")
        return trial_id
    rows = evidence[
        (evidence["estimator"] == study.objective)
        & evidence["valid"].fillna(False)
        & evidence["trial_id"].isin(complete)
    ].drop_duplicates("trial_id", keep="last")
    if rows.empty:
        raise ValueError(
            f"no complete trial of study '{study.name}' has a valid {study.objective}; "
            "let it run on with `nas-evidence resume`."
        )
    return int(rows.loc[rows["value"].idxmax(), "trial_id"])


def _weights(
    study_folder: Path, study: StudySpec, arrays: ArrayData, row: pd.Series
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return weights and header of a trial; trained again from its seed if they were not kept."""
    chosen = int(row["trial_id"])
    path = study_folder / "models" / f"{chosen}.safetensors"
    if not path.is_file():
        path = _train_again(study_folder, study, arrays, row)
    with safe_open(path, framework="pt") as file:
        header = dict(file.metadata())
    return load_file(path), header


def _train_again(study_folder: Path, study: StudySpec, arrays: ArrayData, row: pd.Series) -> Path:
    columns = {n: row[n] for n in row.index if n.startswith("arch_") and not pd.isna(row[n])}
    values = {
        name.removeprefix("arch_"): v.item() if hasattr(v, "item") else v
        for name, v in columns.items()
    }
    assignment = Assignment(
        trial_id=int(row["trial_id"]),
        attempt=int(row["attempt"]),
        replicate=int(row["replicate"]),
        architecture=ArchitectureSpec(family=str(row["family"]), values=values),
        dataset=study.dataset,
        plan=study.plan,
        estimators=study.estimators,
        seed=int(row["seed"]),
    )
    folder = study_folder / "checkpoints" / "retrained" / f"{assignment.trial_id:06d}"
    torch.set_num_threads(study.resources.cpus)
    trial = Trial.start(assignment, to_tensors(arrays, torch.device("cpu")), folder)
    trial.advance(study.plan.epochs)
    trial.finish()
    return folder / "model.safetensors"


def _rescore(
    study: StudySpec,
    model: nn.Module,
    arrays: ArrayData,
    assignment: Assignment,
    header: dict[str, str],
) -> float | None:
    """Return the objective computed anew, or None if it is not an evidence of the weights."""
    if study.objective not in LAPLACE_KINDS:
        return None
    data = to_tensors(arrays, torch.device("cpu"))
    torch.set_num_threads(study.resources.cpus)
    seed = assignment.derived_seed(f"curvature:{study.objective}", int(header["epoch"]))
    curvature = curvature_pass(
        study.objective,
        model,
        data.x_train,
        data.y_train,
        Categorical(),
        batch_size=int(header["curvature_batch"]),
        generator=torch.Generator().manual_seed(seed),
    )
    precision = json.loads(header["prior_precision"])
    ordered = torch.tensor(
        [precision[name] for name, _ in model.named_parameters()], dtype=torch.float64
    )
    return laplace_estimate(study.objective, curvature, model, ordered).value


def _assert_close(rescored: float, stored: float) -> None:
    if not math.isclose(rescored, stored, rel_tol=RESCORE_TOLERANCE):
        raise ArithmeticError(
            f"the exported weights give the evidence {rescored!r}, but the study stored "
            f"{stored!r}: they are not the same model."
        )


def _write_program(exported: Exported, path: Path, arrays: ArrayData) -> float:
    """Write the program, load it back and return the largest difference of its logits."""
    example = torch.from_numpy(arrays.x_train[:2].copy())
    batch = torch.export.Dim("batch")
    program = torch.export.export(exported, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    inputs = torch.from_numpy(arrays.x_train[:7].copy())
    with torch.no_grad():
        again = torch.export.load(path).module()(inputs)
        difference = float((again - exported(inputs)).abs().max())
    if difference > LOGIT_TOLERANCE:
        raise ArithmeticError(f"{path} differs from the model by {difference} in its logits.")
    return difference


def _scores(study_folder: Path, trial_id: int, final: pd.DataFrame) -> dict[str, Any]:
    terms = read_table(study_folder, "terms")
    terms = terms[terms["trial_id"] == trial_id]
    scores: dict[str, Any] = {}
    for row in final.itertuples():
        mine = terms[(terms["estimator"] == row.estimator) & (terms["epoch"] == row.epoch)]
        scores[str(row.estimator)] = {
            "value": _number(row.value),
            "per_datum": _number(row.per_datum),
            "standard_error": _number(row.standard_error),
            "relation": row.relation,
            "valid": bool(row.valid),
            "note": row.note,
            "terms": [
                {"term": t.term, "group": t.group, "value": _number(t.value)}
                for t in mine.itertuples()
            ],
        }
    return scores


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _model_card(
    study: StudySpec,
    row: pd.Series,
    arrays: ArrayData,
    summary: dict[str, Any],
    difference: float,
) -> str:
    shape = " x ".join(map(str, arrays.input_shape))
    sizes = shape.replace(" x ", ", ")
    scores = "\n".join(
        f"| `{name}` | {_cell(s['value'])} | {_cell(s['per_datum'])} | {s['note']} |"
        for name, s in summary["scores"].items()
    )
    found = versions(torch.device("cpu"))
    used = "\n".join(f"- {name} {version}" for name, version in found.items())
    low, high = arrays.x_train.min(), arrays.x_train.max()
    values = ", ".join(
        f"{name.removeprefix('arch_')} = {row[name]}"
        for name in row.index
        if name.startswith("arch_") and not pd.isna(row[name])
    )
    rescored = summary["rescored"]
    check = (
        f"Computed again from these files, `{study.objective}` is {rescored:.6f} nats, the value "
        "that the study stored."
        if rescored is not None
        else f"`{study.objective}` is read off the training losses; it cannot be computed again."
    )
    return f"""# Model card: {row["family"]} ({values}), trial {summary["trial_id"]}

Found by the study "{study.name}": of the architectures tried, the one with the largest
`{study.objective}`. No validation data was used; the test data was read for this card only.

## Data
- Data set: {arrays.name}; {len(arrays.x_train)} training and {len(arrays.x_test)} test rows.
- Inputs: batch x {shape}, raw ({arrays.x_train.dtype}, {low:g} to {high:g}); the preprocessing
  (subtract the mean, divide by the standard deviation of the training data) is in the model.
- Outputs: {arrays.n_classes} logits; `softmax` gives class probabilities.

## Measured
- Test accuracy {row["test_accuracy"]:.4f}, test negative log likelihood
  {row["test_nll_per_datum"]:.4f} nats per datum.
- {int(row["n_parameters"])} parameters, {int(row["epochs"])} epochs.

## Scores
Larger is better. Values in nats summed over the training data where a value per datum is given.
`sotl*`, `prequential_epoch1` and `train_nll_per_datum` hold minus the named quantity. A Laplace
evidence (`diag_*`, `kfac_*`) approximates the log marginal likelihood at the learned prior
precisions; it serves to compare models on the same data, not to predict accuracy.

| score | value | per datum | note |
|---|---|---|---|
{scores}

{check}

## Load
```python
import torch
program = torch.export.load("model.pt2").module()   # torch alone
logits = program(raw_inputs)   # {arrays.x_train.dtype} [n, {sizes}] -> [n, {arrays.n_classes}]

import nas_evidence
model = nas_evidence.load_exported(".")             # an ordinary module, same inputs
```
Open a .pt2 only from a trusted source; `model.safetensors` holds tensors and nothing else.
The program's logits differ from the model's by at most {difference:.1e}.

## Versions
{used}
"""


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
