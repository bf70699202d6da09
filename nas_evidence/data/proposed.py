"""The study that `search` runs for data without a study file, as the text of a commented file.

    families    vectors: the linear baseline and multilayer perceptrons; images: convolutional
                networks too, and residual ones where there are data and pixels enough
    sizes       the widest layer grows with the square root of the number of rows
    batch       a power of two near a fifth of the rows up to 64, of many an eightieth, to 256
    epochs      a training shows about 40,000 rows in all, in 625 steps at least; 20 to 300 epochs

The text is also what `nas-evidence init` writes.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.targets import skewed_columns
from nas_evidence.plumbing.foreign_text import on_one_line, shortened
from nas_evidence.spec.dataset import OWN_DATA, DatasetSpec
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.likelihoods import LIKELIHOODS, default_of
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.schedule import interval
from nas_evidence.spec.study import (
    ESTIMATED,
    StudySpec,
    TrainingPlan,
    preferred,
    usual_estimators,
)
from nas_evidence.spec.toml import toml_line

#: Rows that a training is shown in all, its least steps, and the bounds of its epochs; measured by
#: benchmarks/plans.py, see docs/results/few-rows-and-real-targets.md.
ROWS_SHOWN, FEWEST_STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 40_000, 625, 20, 300
#: Learning rate at the start, of adam.
LEARNING_RATE = 0.02
#: Least pixels along a side, and least rows, for a residual network.
_RESNET_PIXELS, _RESNET_ROWS = 16, 5000


def proposed_text(
    dataset: DatasetSpec, arrays: ArrayData, *, name: str, n_trials: int = 24, seed: int = 0
) -> str:
    """Return a study file that fits the data, with comments.

    Args:
        dataset: its table [dataset].
        arrays: the data.
        name: of the study.
        n_trials: trials to run.
        seed: of the study.
    """
    batch, epochs = training_length(arrays.n_train)
    shape = " x ".join(map(str, arrays.input_shape))
    kind = arrays.kind
    likelihood = default_of(kind.task)
    estimators = usual_estimators(TrainingPlan.model_validate({"likelihood": likelihood}))
    if len(arrays.input_shape) > 1:  # exact factors cost a fifth of a training, and rank nothing
        sampled = {kind.approximates: name for name, kind in CURVATURES.items()}
        estimators = tuple(sampled.get(name, name) for name in estimators)
    said = [f"# {on_one_line(sentence)}" for sentence in arrays.meaning.said]
    lines = [
        f"# A study of {arrays.n_train} rows, inputs {shape}, "
        f"{arrays.n_outputs} {kind.targets}. Made by nas-evidence from the",
        "# data; change what you like.",
        *said,
        toml_line("name", name),
        f"seed = {seed}",
        f"n_trials = {n_trials}                    # trials = architecture x replicate",
        f"{toml_line('objective', preferred(estimators))}  # which score ranks",
        toml_line("estimators", estimators),
        "",
        "[dataset]",
        *_dataset_lines(dataset, arrays),
        "",
        *_family_lines(arrays),
        "[plan]",
        f'likelihood = "{likelihood}"'
        + ("          # the noise is learned" if LIKELIHOODS[likelihood].learned else ""),
        f'epochs = "auto"                  # by the number of rows; here {epochs}',
        f"batch_size = {batch}",
        'optimiser = "adam"',
        f"learning_rate = {LEARNING_RATE}             # at its start; cosine schedule",
        "",
        "[plan.online]",
        'every = "auto"                   # epochs between prior updates',
        'curvature = "kfac_ggn_mc"',
        "",
        "[resources]",
        'workers = "auto"                 # trials at a time; on Ray as there is room',
        "cpus = 1                         # torch threads of a worker",
        'gpus = "auto"',
    ]
    return "\n".join(lines) + "\n"


def training_length(n_rows: int) -> tuple[int, int]:
    """Return batch size and epochs for a number of rows.

    >>> [training_length(n) for n in (100, 1000, 60_000)]
    [(16, 300), (64, 40), (256, 20)]
    """
    wanted = max(8.0, min(64.0, n_rows / 5), min(256.0, n_rows / 80))
    batch = 2 ** round(math.log2(wanted))
    return batch, epochs_for(n_rows, batch)


def epochs_for(n_rows: int, batch: int) -> int:
    """Return the epochs of `epochs = "auto"` for a number of rows and a batch size.

    >>> [epochs_for(n, 128) for n in (480, 5000, 60_000)]
    [167, 20, 20]
    """
    shown = max(ROWS_SHOWN, FEWEST_STEPS * batch)
    return max(FEWEST_EPOCHS, min(MOST_EPOCHS, round(shown / n_rows)))


def with_numbers(
    plan: TrainingPlan, n_rows: int, stored: TrainingPlan | None = None
) -> TrainingPlan:
    """Return a plan with numbers for `epochs`, `folds` and `every` of "auto".

    Args:
        plan: of a study.
        n_rows: training rows, which decide its epochs and folds; 0 if nothing asks for them.
        stored: the plan with which the study began before, whose numbers stay.
    """
    changed: dict[str, object] = {}
    if plan.automatic:
        changed["epochs"] = (
            epochs_for(n_rows, plan.batch_size) if stored is None else stored.epochs
        )
    if plan.folds == "auto" and (n_rows or stored is not None):
        changed["folds"] = plan.n_folds(n_rows) if stored is None else stored.folds
    plan, online = plan.model_copy(update=changed), dict[str, object]()
    if plan.online.every == "auto":
        online["every"] = interval(plan) if stored is None else stored.online.every
    if plan.online.rows == "auto" and stored is not None:  # a number where a study is older
        online["rows"] = stored.online.rows
    if stored is not None and (plan.whole is None or (plan.whole and stored.whole is None)):
        changed["whole"] = stored.whole  # None: each trial trains one
    if online:
        changed["online"] = plan.online.model_copy(update=online)
    if stored is not None and stored.milestones == plan.milestone_epochs:
        changed["milestones"] = stored.milestones
    return plan.model_copy(update=changed)


def order_sentence(study: StudySpec, n_rows: int) -> str:
    """Say what orders the architectures of a study of so many training rows, and the option."""
    study = study.model_copy(update={"plan": with_numbers(study.plan, n_rows)})
    if study.with_order(n_rows).rank_by == "score":
        return f"ranked by: {study.objective}; set objective=NAME to change it"
    return (
        f"ranked by: the estimate, the mean of {' and '.join(ESTIMATED)} smoothed over all "
        "trials; set rank_by=score to change it"
    )


def skewed_sentence(study: StudySpec, arrays: ArrayData) -> str:
    """Say which target is positive and skewed, and what two options gained on such; "" if none.

    The figures are those of docs/results/intervals-and-calibration.md.

    Nothing is said where a scale was asked for, or a shipped data set is read.
    """
    asked = study.dataset.target_scale is not None or study.dataset.name not in OWN_DATA
    if asked or not arrays.kind.scaled or not (found := skewed_columns(arrays.y_train)):
        return ""
    several = f" and {len(found) - 1} more targets" if len(found) > 1 else ""
    names = arrays.meaning.targets or tuple(f"y{k}" for k in range(arrays.n_outputs))
    (column, skewness), is_one = next(iter(found.items())), len(found) == 1
    options = "target_scale=auto (--target-scale)"
    gained = "0.4 nats of log density per datum on sixteen such tables, and lost RMSE"
    if by_row := study.plan.declared.by_row:
        options += f" and plan.likelihood={by_row}"
        gained = (
            "0.5 nats of log density per datum on ten such tables, in 2.5 times the time, and "
            "lost RMSE, 1.12 times"
        )
    return (
        f"{shortened(names[column])}{several} {'is' if is_one else 'are'} positive and skewed "
        f"(skewness {skewness:.1f}): {options} gained {gained}"
    )


def name_of(path: Path) -> str:
    """Return the name of the study of a data file: its own without endings."""
    return path.name.partition(".")[0] or "study"


def _dataset_lines(dataset: DatasetSpec, arrays: ArrayData) -> list[str]:
    given = dataset.model_dump(mode="json", exclude_defaults=True, exclude={"content"})
    asked = given | {"task": arrays.kind.task}
    lines = [toml_line(key, value) for key, value in asked.items()]
    if not any(line.startswith("test") for line in lines) and not len(arrays.x_test):
        lines.append("# test_fraction = 0.2            # rows for the report's test")
    return lines


def proposed_domains(n_rows: int) -> Mapping[str, Mapping[str, IntRange]]:
    """Return the domains of the families that follow the number of rows, by family and name."""
    widest = int(2 ** round(math.log2(max(32.0, min(256.0, 4 * math.sqrt(n_rows))))))
    depth = IntRange(low=1, high=3 if n_rows >= 500 else 2)
    return {"mlp": {"depth": depth, "width": IntRange(low=8, high=widest, log=True)}}


def _family_lines(arrays: ArrayData) -> list[str]:
    lines = ["[family.linear]                  # the baseline", ""]
    mlp = proposed_domains(arrays.n_train)["mlp"]
    lines += [
        "[family.mlp]",
        f"depth = {{low = {mlp['depth'].low}, high = {mlp['depth'].high}}}",
        f"width = {{low = {mlp['width'].low}, high = {mlp['width'].high}, log = true}}",
        "",
    ]
    if len(arrays.input_shape) != 3:
        return lines
    side = min(arrays.input_shape[1:])
    depth = max(1, min(3, int(math.log2(side)) - 1))
    lines += [
        "[family.cnn]",
        f"depth = {{low = 1, high = {depth}}}",
        "width = {low = 4, high = 16, log = true}",
        "",
    ]
    if side >= _RESNET_PIXELS and arrays.n_train >= _RESNET_ROWS:
        lines += ["[family.resnet]", "depth = 8", "width = {low = 4, high = 16, log = true}", ""]
    return lines
