"""Sentences about several targets, scales and intervals: how often they err, by simulated studies.

    python benchmarks/claims_targets.py measure --to after.json
    PYTHONPATH=OLD python benchmarks/claims_targets.py measure --to before.json
    python benchmarks/claims_targets.py write before.json after.json

`measure` counts errors with the package that is imported, so that the same studies are judged by
the code before and after a change; `write` makes results/claims/targets.json of both. The seed of
a study is its number. "Worth it?" is said of a network that predicts exactly as ridge regression
does with what the likelihood of the study gives it, so that every "Yes" is false:

    two targets   linear, noise 0.15 and 1; the network has a noise for each. 300 rows, five folds
    prices        log-normal; the network is linear on log y. 200 rows, five folds
    both          the same on 200 test rows

Intervals are those of one normal noise around the true mean, of the standard deviation stated:

    right         normal noise; one, two or five targets, errors independent or equal in a row
    one noise     two standardised targets of noise 0.15 and 1 share the root mean square
    prices        log y = f + 0.6 e, f ~ N(0, 1): predicted mean and standard deviation of y, of
                  all rows alike. 160, 400 and 1,000 rows
    shifted       exponential noise of one width
    sorted        a constant prediction of a file that is sorted by its target
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, hardware, show, versions
from scipy.stats import beta
from sklearn.linear_model import RidgeCV
from sklearn.metrics import mean_squared_error, r2_score

from nas_evidence.baselines import models
from nas_evidence.baselines.measures import beside
from nas_evidence.data.arrays import ArrayData
from nas_evidence.exporting.predicted import Prediction, prediction_of
from nas_evidence.likelihoods.predictive import Delivered
from nas_evidence.maths import conditional_coverage
from nas_evidence.maths.conditional_coverage import by_quartile, fails, n_pit
from nas_evidence.maths.metrics import real_metrics
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import fit
from nas_evidence.scores import scale_choice
from nas_evidence.scores.folds import all_folds
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    StudySpec,
    TrainingPlan,
)
from nas_evidence.training.parts import order_of_data

TARGET = RESULTS / "claims" / "targets.json"
SCRIPT = "benchmarks/claims_targets.py measure"
_ASSIGNMENT = Assignment(
    trial_id=0, attempt=1, replicate=0, architecture=ArchitectureSpec(family="linear"),
    dataset=DatasetSpec(name="digits"), plan=TrainingPlan.model_validate({"folds": 5}),
    estimators=("conditional_evidence",), seed=0,
)  # fmt: skip


# --- worth it?


def arrays_of(x: np.ndarray, y: np.ndarray, n: int, scale: str | None = None) -> ArrayData:
    """Return a study of the first n rows; the others test."""
    x = x.astype(np.float32)
    return ArrayData(
        "mine", x[:n], y[:n], x[n:], y[n:], task="real", n_outputs=y.shape[1],
        input_shape=x.shape[1:], mean=x[:n].mean(0), std=x[:n].std(0), y_mean=y[:n].mean(0),
        y_std=y[:n].std(0), fitted_scale=None if scale is None else fit(scale, y[:n]),
    )  # fmt: skip


def two_targets(seed: int) -> ArrayData:
    """Return two linear targets; the noise of the second is seven times that of the first."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(500, 4))
    y = np.column_stack([
        x @ [1.0, 0.5, -0.5, 0.3] + 0.15 * random.normal(size=500),
        0.2 * x[:, 0] + random.normal(size=500),
    ])  # fmt: skip
    return arrays_of(x, y, 300)


def prices(seed: int) -> ArrayData:
    """Return log-normal targets of a study on the logarithm."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(400, 5))
    y = np.exp(3 + x @ [0.8, -0.5, 0.3, 0, 0] + 0.4 * random.normal(size=400))[:, None]
    return arrays_of(x, y, 200, "log")


def network(arrays: ArrayData, x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[Any, Any]:
    """Return means and noise of ridge regression on what the network sees, as it predicts."""
    scale = arrays.scale
    z = scale.standardised(y)
    folds = np.arange(len(x)) % 5
    left = np.empty_like(z)
    for k in range(5):
        of = RidgeCV(models.ALPHAS).fit(x[folds != k], z[folds != k])
        left[folds == k] = of.predict(x[folds == k]).reshape(-1, z.shape[1])
    mean = RidgeCV(models.ALPHAS).fit(x, z).predict(new).reshape(-1, z.shape[1])
    noise = np.sqrt(np.square(z - left).mean(0))
    return mean * scale.spread + scale.centre, noise * scale.spread


def own_predictions(arrays: ArrayData) -> tuple[Prediction, Prediction]:
    """Return what the network predicts of the folds' rows, and of the test rows."""
    x, test = models.flat(arrays.x_train), models.flat(arrays.x_test)
    order = order_of_data(arrays.n_train, _ASSIGNMENT)
    mean, std = np.empty_like(arrays.y_train), np.empty_like(arrays.y_train)
    for task in all_folds("five_fold", order):
        seen, unseen = task.trained.numpy(), task.predicted.numpy()
        mean[unseen], std[unseen] = network(arrays, x[seen], arrays.y_train[seen], x[unseen])
    tested = network(arrays, x, arrays.y_train, test)
    return (
        prediction_of(arrays, Delivered(density=arrays.scale.density(mean, std))),
        prediction_of(arrays, Delivered(density=arrays.scale.density(*tested))),
    )


def false_yes(make: Callable[[int], ArrayData], studies: int) -> dict[str, list[float]]:
    """Return by how many nats the network is ahead, and the lower end, by where it is judged."""
    ridge_alone = models.baseline_models

    def rivals(arrays: ArrayData) -> Any:
        return {k: v for k, v in ridge_alone(arrays).items() if k == "ridge regression"}

    models.baseline_models = rivals
    found: dict[str, list[float]] = {"folds": [], "folds low": [], "test": [], "test low": []}
    for seed in range(studies):
        arrays = make(seed)
        folds, test = own_predictions(arrays)
        [one] = models.predict_folds(arrays, _ASSIGNMENT)
        [(_, tested)] = models.predict_test(arrays)
        for where, own, other, y in (
            ("folds", folds, one.predicted, arrays.y_train),
            ("test", test, tested, arrays.y_test),
        ):
            judged = beside([own], "ridge regression", [other], y)
            assert judged.interval is not None
            found[where].append(judged.behind)
            found[f"{where} low"].append(judged.interval[0])
    models.baseline_models = ridge_alone
    return found


# --- intervals


def warned(density: Normals, y: np.ndarray) -> bool:
    """Return whether the first screen warns of the intervals."""
    if not hasattr(conditional_coverage, "failures"):  # one pooled coverage for all targets
        return any(fails(one.inside_90, one.n) for one in by_quartile(density, y))
    count = y.shape[1]
    parts = [(density.column(k), y[:, [k]]) for k in range(count)]
    return any(
        conditional_coverage.failures(by_quartile(*part), n_pit(*part), n_targets=count)
        for part in parts
    )


def intervals() -> Iterator[tuple[str, int, Callable[[np.random.Generator, int], Any]]]:
    """Yield each kind of study: its name, its rows, and what draws densities and targets."""

    def right(
        count: int, alike: bool
    ) -> Callable[[np.random.Generator, int], tuple[Normals, np.ndarray]]:
        def draw(random: np.random.Generator, n: int) -> tuple[Normals, np.ndarray]:
            f = random.normal(size=(n, count))
            e = random.normal(size=(n, 1 if alike else count))
            return Normals.single(f, np.ones(count)), f + e

        return draw

    def one_noise(random: np.random.Generator, n: int) -> tuple[Normals, np.ndarray]:
        signal, noise = np.array([1.0, 0.2]), np.array([0.15, 1.0])
        f = signal * random.normal(size=(n, 2))
        y, unit = f + noise * random.normal(size=(n, 2)), np.hypot(signal, noise)
        common = math.sqrt(np.mean(np.square(noise / unit)))
        return Normals.single(f / unit, np.full(2, common)), y / unit

    def skewed(random: np.random.Generator, n: int) -> tuple[Normals, np.ndarray]:
        f = random.normal(size=(n, 1))
        mean, y = np.exp(f + 0.18), np.exp(f + 0.6 * random.normal(size=(n, 1)))
        std = math.exp(1 + 0.18) * math.sqrt(math.exp(0.36) - 1)  # root mean square over f
        return Normals.single(mean, np.full(1, std)), y

    def shifted(random: np.random.Generator, n: int) -> tuple[Normals, np.ndarray]:
        f = random.normal(size=(n, 1))
        return Normals.single(f, np.ones(1)), f - 1 + random.exponential(size=(n, 1))

    def in_order(random: np.random.Generator, n: int) -> tuple[Normals, np.ndarray]:
        return Normals.single(np.zeros((n, 1)), np.ones(1)), np.sort(random.normal(size=(n, 1)), 0)

    for n in (100, 400, 2000):
        yield "right, 1 target", n, right(1, alike=False)
        yield "right, 2 targets", n, right(2, alike=False)
        yield "right, 5 targets, errors of a row equal", n, right(5, alike=True)
    for n in (100, 300):
        yield "one noise for two targets", n, one_noise
    for n in (160, 400, 1000):
        yield "skewed prices", n, skewed
        yield "exponential noise", n, shifted
    yield "sorted file, constant prediction", 400, in_order


def shares(k: int, n: int) -> str:
    """Return a share with its 95 % Clopper-Pearson interval, in per cent."""
    low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return f"{100 * k / n:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


# --- rules without chance


def rules() -> dict[str, Any]:
    """Return RMSE and R2 of two targets less those of scikit-learn, and the scales tried."""
    random = np.random.default_rng(0)
    f = random.normal(size=(500, 2))
    y = f + np.array([0.3, 20.0]) * random.normal(size=(500, 2))
    found = real_metrics(Normals.single(f, np.ones(2)), y, unit=np.ones(2))
    each = np.sqrt(mean_squared_error(y, f, multioutput="raw_values"))
    y[:, 1] = 3.0
    flat = real_metrics(Normals.single(f, np.ones(2)), y, unit=np.ones(2))
    arrays, tried = prices(0), []
    arrays = replace(arrays, y_test=np.r_[arrays.y_test[1:], [[0.0]]], fitted_scale=None)
    scale_choice._evidence = lambda spec, data: 0.0  # type: ignore[assignment]
    spec = StudySpec.model_validate(
        {"name": "mine", "n_trials": 1, "dataset": {"name": "diabetes"}, "family": {"linear": {}},
         "objective": "conditional_evidence", "estimators": ["conditional_evidence"],
         "plan": {"likelihood": "gaussian", "epochs": 5}}
    )  # fmt: skip
    tried = list(scale_choice.chosen_scale(spec, arrays).values)
    return {
        "rmse": found["rmse"], "rmse_of_sklearn": float(each.mean()), "r2": flat["r2"],
        "r2_of_sklearn": float(r2_score(y, f)), "tried_with_a_test_target_of_0": tried,
    }  # fmt: skip


def measure(studies: int, draws: int) -> dict[str, Any]:
    """Return all counts with the package that is imported."""
    found: dict[str, Any] = {"rules": rules(), "studies": studies, "draws": draws}
    for name, make in (("two targets", two_targets), ("prices", prices)):
        found[name] = false_yes(make, studies)
        show({name: {k: float(np.mean(v)) for k, v in found[name].items()}})
    found["warned"] = []
    for name, n, draw in intervals():
        count = 0
        for seed in range(draws):
            random = np.random.default_rng((n, seed))
            count += warned(*draw(random, n))
        found["warned"].append([name, n, count])
        show({"warned": name, "rows": n, "share": count / draws})
    return found


# --- the result


def written(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the file of results from both measurements."""
    n, draws = after["studies"], after["draws"]

    def row(claim: str, place: str, promise: str, values: Any, count: int, spread: str) -> Any:
        old, new = values
        return {"claim": claim, "place": place, "promise": promise, "before": old, "after": new,
                "n": count, "spread": spread, "script": SCRIPT}  # fmt: skip

    def yes(name: str, where: str) -> list[str]:
        return [
            shares(sum(low > 0 for low in own[name][f"{where} low"]), n)
            + f", ahead by {np.mean(own[name][where]):+.3f} nats"
            for own in (before, after)
        ]

    def alarms(name: str, rows: int) -> list[str]:
        counts = [
            next(k for a, b, k in own["warned"] if (a, b) == (name, rows))
            for own in (before, after)
        ]
        return [f"warned {shares(k, draws)}" for k in counts]

    inside = "95 % Clopper-Pearson interval in brackets"
    worth, screen = "Yes: clearly better than ridge regression", "first screen"
    never = "false in at most 2.5 % where both predict alike"
    rare, often = "false in at most 5 %", "warns of intervals that are wrong"
    rows = [
        row(f"{worth} (two targets, no test rows)", screen, never, yes("two targets", "folds"), n,
            inside),
        row(f"{worth} (two targets, test rows)", screen, never, yes("two targets", "test"), n,
            inside),
        row(f"{worth} (target scale log, no test rows)", screen, never, yes("prices", "folds"), n,
            inside),
        row(f"{worth} (target scale log, test rows)", screen, never, yes("prices", "test"), n,
            inside),
        row("the 90 % intervals cover ... of each target (one noise makes them wrong, 300 rows)",
            "first screen, page, card, Python", often, alarms("one noise for two targets", 300),
            draws, inside),
        row("the intervals are too wide ... and too narrow (skewed prices, 160 rows)", screen,
            often, alarms("skewed prices", 160), draws, inside),
        row("... have another distribution than predicted (exponential noise, 400 rows)", screen,
            often, alarms("exponential noise", 400), draws, inside),
        row("a warning of right intervals (one target, 400 rows)", screen, rare,
            alarms("right, 1 target", 400), draws, inside),
        row("a warning of right intervals (five targets, errors of a row equal, 400 rows)", screen,
            rare, alarms("right, 5 targets, errors of a row equal", 400), draws, inside),
        row("a warning of right intervals (constant prediction of a sorted file)", screen, rare,
            alarms("sorted file, constant prediction", 400), draws, inside),
        row("RMSE of two targets of noise 0.3 and 20", "report, card, Python",
            "scikit-learn's root_mean_squared_error, "
            f"{after['rules']['rmse_of_sklearn']:.3f}",
            [f"{own['rules']['rmse']:.3f}" for own in (before, after)], 1, "exact"),
        row("R² of two targets, one of them constant", "report, card, Python",
            f"scikit-learn's r2_score, {after['rules']['r2_of_sklearn']:.3f}",
            [f"{own['rules']['r2']:.3f}" for own in (before, after)], 1, "exact"),
        row("scale of the target: ..., by conditional_evidence", screen,
            "no test target decides (one is 0)",
            ["log " + ("tried" if "log" in own["rules"]["tried_with_a_test_target_of_0"]
                       else "left out") for own in (before, after)], 1, "exact"),
    ]  # fmt: skip
    each = [
        [name, rows_, shares(old, draws), shares(new, draws)]
        for (name, rows_, old), (_, _, new) in zip(before["warned"], after["warned"], strict=True)
    ]
    return {
        "hardware": hardware(),
        "versions": versions("numpy", "scipy", "scikit-learn"),
        "date": date.today().isoformat(),
        "rows": rows,
        "tables": [
            {"title": "Studies that warn of their intervals", "rows": each,
             "header": ["intervals", "rows", "before", "now"],
             "note": "A warning is right in all but the kinds `right` and `sorted`."}
        ],
    }  # fmt: skip


def main() -> None:
    """Measure, or write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = parser.add_subparsers(dest="what", required=True)
    one = sub.add_parser("measure")
    one.add_argument("--to", type=Path, required=True)
    one.add_argument("--studies", type=int, default=100)
    one.add_argument("--draws", type=int, default=1000)
    both = sub.add_parser("write")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.what == "measure":
        given.to.write_text(json.dumps(measure(given.studies, given.draws)), encoding="utf-8")
        return
    found = written(*(json.loads(p.read_text("utf-8")) for p in (given.before, given.after)))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
