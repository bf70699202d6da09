"""Figures of a study for notebooks: matplotlib figures, drawn without a display."""

from collections.abc import Sequence
from typing import Any

from nas_evidence.baselines.comparison import Importance
from nas_evidence.maths.metrics import Reliability
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.study_tables import Study

#: Most columns of a table that are drawn.
MOST_BARS = 20


def plot_ranking(study: Study) -> Any:
    """Return a figure of the objective by number of parameters, one colour per family."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for family in study.families:
        ranked = [
            one for one in study.ranking if one.family == family and one.objective is not None
        ]
        axes.scatter(
            [one.n_parameters or 0 for one in ranked],
            [one.objective or 0.0 for one in ranked],
            label=family,
            alpha=0.7,
        )
    if study.winner is not None:
        axes.scatter(
            [study.winner.n_parameters or 0], [study.winner.objective or 0.0], marker="o", s=120,
            facecolors="none", edgecolors="black", label="best",
        )  # fmt: skip
    axes.set(
        xscale="log",
        xlabel="parameters",
        ylabel=f"{study.spec.objective} ({study.objective_unit})",
        title=study.spec.name,
    )
    axes.legend()
    return figure


def plot_curves(study: Study) -> Any:
    """Return a figure of the training loss by epoch, one line per complete trial."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    best = None if study.winner is None else study.winner.trial_id
    for trial_id, curve in study.curves.groupby("trial_id"):
        if trial_id in study.complete.index:
            marked = trial_id == best
            axes.plot(
                curve["epoch"],
                curve["train_nll_per_datum"],
                color="black" if marked else "grey",
                alpha=1.0 if marked else 0.3,
                label="best" if marked else None,
            )
    axes.set(xlabel="epoch", ylabel="training nll, nats per datum", title=study.spec.name)
    if best is not None:
        axes.legend()
    return figure


def plot_importance(found: Importance) -> Any:
    """Return a figure of the importance of the first columns of a table, with its spread."""
    columns = found.columns[:MOST_BARS]
    figure = _bars([one.column for one in columns], [one.mean for one in columns])
    axes = figure.axes[0]
    axes.errorbar(
        [one.mean for one in columns], range(len(columns)), xerr=[one.std for one in columns],
        fmt="none", color="black",
    )  # fmt: skip
    axes.set_xlabel(f"how much worse {found.metric} becomes, on {found.n} {found.on} rows")
    return figure


def plot_parameters(study: Study) -> Any:
    """Return a figure of how much each parameter of the architecture decides, as in the report.

    Raises:
        ValueError: while too few architectures are ranked to tell.
    """
    from nas_evidence.reporting.importance import importance_sentence, importances

    found = sorted(importances(study), key=lambda one: -one.divergence)
    if not found:
        raise UserError(importance_sentence(found)).with_code("no-importance")
    figure = _bars([one.name for one in found], [one.divergence for one in found])
    figure.axes[0].set_xlabel("divergence of the best from all")
    return figure


def _bars(labels: Sequence[str], lengths: Sequence[float]) -> Any:
    """Return a figure of horizontal bars, the first on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 1.2 + 0.35 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(range(len(labels)), lengths)
    # A dollar sign would start a formula.
    axes.set_yticks(range(len(labels)), [label.replace("$", r"\$") for label in labels])
    axes.invert_yaxis()
    return figure


def plot_reliability(found: Reliability, *, labels: bool) -> Any:
    """Return a figure of accuracy by confidence, or of the coverage of intervals by probability.

    Args:
        found: bins of confidence, or intervals.
        labels: whether it is of classes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", label="calibrated")
    axes.plot(found.confidence, found.accuracy, marker="o", color="C0")
    if labels:
        share = found.count / found.count.sum()
        axes.bar(
            found.confidence, share, width=0.02, color="C0", alpha=0.25, label="share of data"
        )
        title = f"calibration error {found.error:.3f}, n = {found.count.sum()}"
        axes.set(xlabel="confidence", ylabel="accuracy", title=title)
    else:
        axes.set(
            xlabel="probability of the interval",
            ylabel="share of targets inside",
            title=f"coverage of intervals, n = {found.count.max()}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure
