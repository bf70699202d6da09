"""The model card: what to know before using an exported model. Its text is in `templates/`."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.arrays import value_range
from nas_evidence.data.decided import how_read_of
from nas_evidence.data.targets import listed_weights
from nas_evidence.plumbing.foreign_text import markdown, shortened
from nas_evidence.spec.likelihoods import imported
from nas_evidence.spec.origin import Origin
from nas_evidence.spec.registry import is_outside
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.tables import architecture_values
from nas_evidence.workers.trial import versions

if TYPE_CHECKING:
    from jinja2 import Environment


def model_card(
    study: StudySpec,
    row: pd.Series,
    arrays: ArrayData,
    summary: dict[str, Any],
    difference: float | None,
    license: str | None = None,
    refit_of: Origin | None = None,
    *,
    encoded: Sequence[str] = (),
) -> str:
    """Return the card as Markdown, after the metadata that the hub of Hugging Face reads.

    Args:
        study: the study that found the model.
        row: row of the trial in the table `trials`.
        arrays: the data of the study.
        summary: content of evidence.json.
        difference: between the outputs of model.pt2 and of the model, None without that file.
        license: of the model, as the hub abbreviates it; None leaves it open.
        refit_of: the study that found its architecture, if another one did.
        encoded: files of the model whose inputs `encode.py` makes of a table.
    """
    values, kind = architecture_values(row), arrays.kind
    return _card(
        "model_card.md.j2",
        study,
        arrays,
        row=row,
        own_code=is_outside(str(row["family"])),
        summary=summary,
        difference=difference,
        values=", ".join(f"{name} = {value}" for name, value in values.items()),
        tested=not pd.isna(row[kind.tests[-1]]),
        shift=summary["likelihood_power"] * np.log(arrays.y_std).sum(),
        versions=versions(torch.device("cpu")),
        license=license,
        refit_of=refit_of,
        encoded=encoded,
        results=_results(study, row, arrays, summary),
    )


def ensemble_card(
    study: StudySpec,
    arrays: ArrayData,
    described: Mapping[str, Any],
    difference: float | None,
    license: str | None = None,
    refit_of: Origin | None = None,
    *,
    encoded: Sequence[str] = (),
) -> str:
    """Return the card of an ensemble as Markdown, after its metadata.

    Args:
        study: the study that found its members.
        arrays: the data of the study.
        described: content of ensemble.json.
        difference: see `model_card`.
        license: see `model_card`.
        refit_of: see `model_card`.
        encoded: see `model_card`.
    """
    return _card(
        "ensemble_card.md.j2",
        study,
        arrays,
        ensemble=described,
        own_code=any(map(is_outside, study.family)),
        difference=difference,
        license=license,
        refit_of=refit_of,
        encoded=encoded,
        results=_results_together(study, arrays, described),
    )


def _results_together(
    study: StudySpec, arrays: ArrayData, described: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the results of networks together on test rows."""
    test = described["test"]
    metrics = [(name, test.get(name), words) for name, words in arrays.kind.metrics.items()]
    return _of_splits(study, arrays, {"test": metrics})


def _results(
    study: StudySpec, row: pd.Series, arrays: ArrayData, summary: Mapping[str, Any]
) -> list[dict[str, Any]]:
    score, by = summary["scores"].get(study.objective, {}), summary["ranked_by"]
    per_datum = score.get("per_datum", score.get("value"))
    ranking = [] if by == study.objective else [(by, summary["ranking_value"], f"{by}, larger is "
                                                 "better; what ranks")]  # fmt: skip
    measured = {
        "test": [
            ("accuracy", row["test_accuracy"], "accuracy"),
            ("rmse", row["test_rmse"], "RMSE"),
            ("log_loss", row["test_nll_per_datum"], "log loss, nats per datum"),
        ],
        "train": [*ranking, (study.objective, per_datum, f"{study.objective}, larger is better")],
    }
    return _of_splits(study, arrays, measured)


def _of_splits(
    study: StudySpec, arrays: ArrayData, measured: Mapping[str, list[tuple[str, Any, str]]]
) -> list[dict[str, Any]]:
    """Return what is measured on each split: type, value and name, where the value is known."""
    dataset = {"name": study.name if _is_own(arrays) else arrays.name, "type": arrays.name}
    found = []
    for split, metrics in measured.items():
        known = [
            {"type": kind, "value": float(value), "name": name}
            for kind, value, name in metrics
            if not pd.isna(value)
        ]
        if known:
            of = {"task": {"type": _task(arrays)}, "dataset": {**dataset, "split": split}}
            found.append({**of, "metrics": known})
    return found


def _is_own(arrays: ArrayData) -> bool:
    return arrays.meaning.preparation is not None or arrays.name in ("npz", "images")


def _task(arrays: ArrayData) -> str:
    inputs = "tabular" if len(arrays.input_shape) == 1 else "image"
    return f"{inputs}-{arrays.kind.task}"


def _metadata(
    study: StudySpec, arrays: ArrayData, license: str | None, results: Sequence[Mapping[str, Any]]
) -> str:
    """Return the metadata as YAML, of which JSON is a part, one key a line."""
    tags = ["neural-architecture-search", "marginal-likelihood", "laplace-approximation"]
    values: dict[str, Any] = {"library_name": "nas-evidence", "tags": [*tags, _task(arrays)]}
    values |= {"license": license} if license else {}
    values |= {"model-index": [{"name": study.name, "results": results}]} if results else {}
    # Whoever shows it without reading it finds no HTML in it.
    escapes = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&"})
    lines = (f"{key}: {json.dumps(value).translate(escapes)}" for key, value in values.items())
    return "\n".join(lines)


@cache
def _environment() -> "Environment":
    """Return the templates of the cards, each compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # late: only cards need it

    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"number": format, "shortened": shortened, "md": markdown}
    return found


def _card(
    template: str,
    study: StudySpec,
    arrays: ArrayData,
    *,
    license: str | None,
    results: Sequence[Mapping[str, Any]],
    **values: Any,
) -> str:
    """Return a template with what every card says of the data, and more values."""
    low, high = value_range(arrays.x_train)
    text = (
        _environment()
        .get_template(template)
        .render(
            study=study,
            arrays=arrays,
            meaning=arrays.meaning,
            read=how_read_of(arrays),
            class_weights=listed_weights(arrays.meaning.class_weight),
            data=_data(study, arrays),
            labels=arrays.kind.classes,
            kind=arrays.kind,
            multiplied=imported(study.plan.declared.implementation).says.multiplied,
            shape=" x ".join(map(str, arrays.input_shape)),
            low=low,
            high=high,
            **values,
        )
    )
    return f"---\n{_metadata(study, arrays, license, results)}\n---\n\n{text}"


def _data(study: StudySpec, arrays: ArrayData) -> str:
    """Return what to call the data: a table of the user's own has the name of its study."""
    return f"the data '{study.name}'" if _is_own(arrays) else f"the data set {arrays.name}"
