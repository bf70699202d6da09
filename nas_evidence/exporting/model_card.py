"""The model card: what to know before using an exported model."""

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.arrays import value_range
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.spec.divisions import TRAINED_ON, kept_division
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.tables import architecture_values
from nas_evidence.workers.trial import versions

#: Most features of a table that the card lists.
_LISTED = 30
_UNTESTED = "- Not tested: the study had no test rows."


def model_card(
    study: StudySpec,
    row: pd.Series,
    arrays: ArrayData,
    summary: dict[str, Any],
    difference: float | None,
) -> str:
    """Return the card as Markdown.

    Args:
        study: the study that found the model.
        row: row of the trial in the table `trials`.
        arrays: the data of the study.
        summary: content of evidence.json.
        difference: between the outputs of model.pt2 and of the model, None without that file.
    """
    shape = " x ".join(map(str, arrays.input_shape))
    sizes = shape.replace(" x ", ", ")
    scores = "\n".join(
        f"| `{name}` | {_shown(s)} | {s['note']} |" for name, s in summary["scores"].items()
    )
    found = versions(torch.device("cpu"))
    used = "\n".join(f"- {name} {version}" for name, version in found.items())
    low, high = value_range(arrays.x_train)
    values = ", ".join(f"{name} = {value}" for name, value in architecture_values(row).items())
    rescored = summary["rescored_per_datum"]
    check = (
        f"Recomputed from these files, `{summary['rescored_estimator']}` is "
        f"{rescored:.6f} nats per datum, the value stored by the study."
        if rescored is not None
        else "The study has no evidence that can be recomputed from these files."
    )
    describe = _of_labels if arrays.task == "labels" else _of_real_targets
    outputs, measured, name = describe(row, arrays, summary)
    kind = f"{arrays.x_train.dtype} [n, {sizes}] -> [n, {arrays.n_outputs}]"
    return f"""# Model card: {row["family"]} ({values}), trial {summary["trial_id"]}

Found by the study "{study.name}": of the architectures tried, the one with the largest
`{study.objective}`. No validation data was used; the test data was read for this card only.

## Intended use
{intended_use(study, arrays)}

## Data
- Data: {_data(study, arrays)}; {len(arrays.x_train)} training and {len(arrays.x_test)} test rows.
- Inputs: batch x {shape}, raw ({arrays.x_train.dtype}, {low:g} to {high:g}); the preprocessing
  (subtract the mean, divide by the standard deviation of the training data) is in the model.
{features(arrays)}{outputs}

## Measured
{measured}
- {int(row["n_parameters"])} parameters, {int(row["epochs"])} epochs.

## Calibration
{calibration(summary["unseen"], row)}

## Limits
{limits(arrays)}

## Scores
Larger is better; evidences and cross-validated scores in nats per datum.
`sotl*`, `prequential_epoch1` and `train_nll_per_datum` hold minus the named quantity;
`conditional_evidence` is the conditional marginal likelihood (last-layer Laplace, K folds): the
log density of each fold of the training data under a Bayesian last layer on a network trained on
the others. `two_fold`,
`five_fold`, `ten_fold` and `heldout_10` are cross-validation: nats over data that the predicting
network had not seen. A
Laplace evidence (`diag_*`, `kfac_*`) approximates the log marginal likelihood at the learned
prior precisions; use it to compare models on the same data, not to predict accuracy.

| score | value | note |
|---|---|---|
{scores}

{check}

## Load
```python
import nas_evidence
model = nas_evidence.load_exported(".")             # an ordinary module
{name} = model(raw_inputs)   # {kind}
```
`model.safetensors` holds only tensors, no code.
{program(difference, f"{name} = program(raw_inputs)   # {kind}")}
## Versions
{used}
"""


def intended_use(study: StudySpec, arrays: ArrayData) -> str:
    """Return what the network is for."""
    shape, kinds = " x ".join(map(str, arrays.input_shape)), arrays.n_outputs
    what = (
        f"Probabilities of {kinds} classes" if arrays.task == "labels"
        else f"Prediction, with intervals, of {kinds} real target{'s' * (kinds > 1)}"
    )  # fmt: skip
    return (
        f"{what} for inputs of the shape {shape} that were collected and encoded as those of\n"
        f"{_data(study, arrays)}. It was not made for a particular use: test it for\n"
        "yours before it serves decisions about people, health or safety."
    )


def _data(study: StudySpec, arrays: ArrayData) -> str:
    """Return what to call the data: a table of the user's own has the name of its study."""
    own = arrays.meaning.preparation is not None or arrays.name in ("npz", "images")
    return f"the data '{study.name}'" if own else f"the data set {arrays.name}"


def features(arrays: ArrayData) -> str:
    """Return which features of a table are the inputs, in order; nothing for other data."""
    if arrays.meaning.preparation is None:
        return ""
    names = arrays.meaning.preparation.feature_names
    more = f", ... {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    literal = (shortened(name).replace("`", "'") for name in names[:_LISTED])
    listed = ", ".join(f"`{name}`" for name in literal)
    return (
        f"- The inputs are features of the table, in this order: {listed}{more}. `meaning.json`\n"
        "  lists them under `features`, and under `preparation` how columns become them: a\n"
        "  missing number is its `fill`, indicators and categories are 0 or 1.\n"
        "  `nas_evidence.Predictor` does all that.\n"
    )


def _literal(name: object) -> str:
    """Return the name of a class or feature for Markdown: on one line, without tags."""
    return html.escape(shortened(name), quote=False)


def calibration(unseen: Mapping[str, float] | None, row: pd.Series | None = None) -> str:
    """Return the text on calibration, measured on data that the predicting networks had not seen.

    Args:
        unseen: see `unseen_measures`.
        row: of the trial in the table `trials`, None for several.
    """
    if unseen is None:
        return (
            "Not measured: the study keeps no predictions by networks that had not seen the data\n"
            "(`conditional_evidence` makes them). `nas-evidence predict` measures it on\n"
            "other data."
        )
    start = (
        f"On {unseen['n_data']} training data, each predicted by a network of this architecture\n"
        "trained without its fold, with the factor on the spread that the other folds give:"
    )
    if "coverage_90" in unseen:
        inside = ", ".join(f"{unseen[f'coverage_{p}']:.1%} in {p} %" for p in (50, 90, 95))
        return f"{start}\n- the intervals cover {inside} intervals."
    return (
        f"{start}\n- accuracy {unseen['accuracy']:.4f}, balanced accuracy "
        f"{unseen['balanced_accuracy']:.4f}, log loss {unseen['log_loss']:.4f} nats;\n"
        f"- expected calibration error {unseen['ece']:.4f} (15 bins)."
    )


def limits(arrays: ArrayData) -> str:
    """Return what the network was not tested on."""
    low, high = value_range(arrays.x_train)
    tested = (
        f"- Tested on {len(arrays.x_test)} rows of the same data set, and on nothing else."
        if len(arrays.x_test)
        else "- Tested on no data at all: the study had no test rows."
    )
    return (
        f"{tested}\n"
        f"- Not tested: inputs outside {low:g} to {high:g}, data from another source or time,\n"
        "  rare groups by themselves, inputs made to deceive. Uncertainty grows away from the\n"
        "  data, but is no proof that an input is unlike them: try `nas-evidence predict --ood`.\n"
        f"- The Laplace posterior is an approximation around one mode, made from "
        f"{len(arrays.x_train)} rows."
    )


def program(difference: float | None, call: str) -> str:
    """Return how to load and call model.pt2; nothing without that file, see `model_card`."""
    if difference is None:
        return ""
    return f"""
```python
import torch
program = torch.export.load("model.pt2").module()   # torch alone
{call}
```
Open a .pt2 only from a trusted source. The program's outputs differ from the model's by at most
{difference:.1e}.
"""


def ensemble_card(
    study: StudySpec, arrays: ArrayData, described: Mapping[str, Any], difference: float | None
) -> str:
    """Return the card of an ensemble as Markdown.

    Args:
        study: the study that found its members.
        arrays: the data of the study.
        described: content of ensemble.json.
        difference: see `model_card`.
    """
    rows = "\n".join(
        f"| {one['folder']} | {one['trial_id']} | {one['architecture']} | {one['weight']:.3f} |"
        for one in described["members"]
    )
    out = len(described["chosen"]) - len(described["members"])
    left = f" {out} of them got no weight and are left out." if out else ""
    name = "log_probabilities" if arrays.task == "labels" else "predictions"
    sizes = ", ".join(map(str, arrays.input_shape))
    kind = f"{arrays.x_train.dtype} [n, {sizes}] -> [n, {arrays.n_outputs}]"
    return f"""# Model card: ensemble of {len(described["members"])} networks

Found by the study "{study.name}": the {described["top"]} architectures with the largest
`{study.objective}`, weighted by stacking on predictions of data that the predicting network had
not seen.{left} No validation data was used.

## Intended use
{intended_use(study, arrays)}

## Members
| folder | trial | architecture | weight |
|---|---|---|---|
{rows}

Each has a card of its own in its folder.

## What it gains
{described["gain_per_datum"]:.4f} ± {described["gain_standard_error"]:.4f} nats per datum (standard
error) over the best member alone, trial {described["best_member"]}, on {described["n_data"]} data.
The weights are fitted without the data on which they are compared (cross-fitting), the best member
is that of all of them. Measured on networks trained on {_trained_on(study, arrays)}.

## Limits
{limits(arrays)}
- It takes the time and memory of all its members.

## Load
```python
import nas_evidence
predictor = nas_evidence.Predictor.load(".")         # with uncertainty
```
{program(difference, f"{name} = program(raw_inputs)   # {kind}")}"""


def _of_labels(row: pd.Series, arrays: ArrayData, summary: dict[str, Any]) -> tuple[str, str, str]:
    """Return the card's text on outputs and measures, and the name of the outputs."""
    outputs = f"- Outputs: {arrays.n_outputs} logits; `softmax` gives class probabilities."
    if arrays.meaning.classes:
        listed = ", ".join(map(_literal, arrays.meaning.classes[:_LISTED]))
        more = ", ..." if arrays.n_outputs > _LISTED else ""
        outputs += f"\n  The classes, in this order: {listed}{more}."
    divisor = summary.get("temperature", 1) * summary.get("spread_factor", 1)
    if divisor != 1:
        outputs += (
            f"\n  They are divided by the temperature {divisor:.4g}, fitted to training data that"
            "\n  networks of this architecture had not seen."
        )
    if pd.isna(row["test_accuracy"]):
        return outputs, _UNTESTED, "logits"
    measured = (
        f"- Test accuracy {row['test_accuracy']:.4f}, test log loss "
        f"{row['test_nll_per_datum']:.4f}."
    )
    return outputs, measured, "logits"


def _of_real_targets(
    row: pd.Series, arrays: ArrayData, summary: dict[str, Any]
) -> tuple[str, str, str]:
    """Return the same for real targets, whose scores refer to standardised targets."""
    noise = ", ".join(f"{value:.4g}" for value in summary["noise_std_in_own_unit"])
    shift = summary["likelihood_power"] * float(np.log(arrays.y_std).sum())
    outputs = (
        f"- Outputs: {arrays.n_outputs} predictions in the unit of the targets: the mean of a\n"
        f"  normal distribution with the learned noise standard deviation {noise}.\n"
        "  `predict` adds the uncertainty of the weights, and multiplies the standard deviation\n"
        f"  by {summary.get('spread_factor', 1):.4g}, fitted to training data that networks of\n"
        "  this architecture had not seen."
    )
    tested = (
        _UNTESTED
        if pd.isna(row["test_rmse"])
        else f"- Test RMSE {row['test_rmse']:.4g} in the unit of the targets, test log loss\n"
        f"  {row['test_nll_per_datum']:.4f} of the standardised targets."
    )
    measured = (
        f"{tested}\n"
        f"- Scores refer to standardised targets; subtract {shift:.6g} nats per datum from an\n"
        "  evidence to get it in the unit of the targets."
    )
    return outputs, measured, "predictions"


def _shown(score: dict[str, Any]) -> str:
    """Return a score as everywhere: per datum where that is defined."""
    return _cell(score["per_datum"] if "per_datum" in score else score["value"])


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _trained_on(study: StudySpec, arrays: ArrayData) -> str:
    """Return the part of the data that the networks of the kept folds are trained on."""
    if arrays.units is not None and arrays.units.in_time:
        return "the data before each fold"
    division = kept_division(study.plan, study.estimators, arrays.n_train)
    return f"{100 * TRAINED_ON[division]:.0f} % of the data"
