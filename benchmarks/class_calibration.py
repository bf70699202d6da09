"""Why class probabilities of default searches were badly calibrated on tables.

    python benchmarks/class_calibration.py DATA --keep FOLDER [--sets NAME ...] [--splits 3]
    python benchmarks/class_calibration.py --page    # writes the table of docs/explanation

The studies are those of `ensemble_gain.py` in the same FOLDER: 6 trials without a race on at most
300 rows; and of small images the same, with 20 epochs. The best network then predicts the same
test rows in several ways, which differ in nothing else. Runs are stored as they end; what is
stored is not repeated.

Four suspects, each with what would clear it:

    formula    "probit" scaled each logit by its own variance, which contains the shift that all
               logits of a row share; the softmax does not see it, and only the prior bounds it.
               Cleared if the pairwise form, which does not see it either, is no better, or if the
               shift is a small part of the variance.
    posterior  it is too wide: learned precisions too small, or a Gaussian at the mode is no
               picture of it. Cleared if Monte Carlo with it is as good as "map", which has no
               posterior. If not: precisions 10 and 100 times as large tell whether the prior is at
               fault, and the exact posterior of the same linearised network and the same prior
               ("sampled", for up to 600 parameters) whether the Gaussian is.
    network    trained too long or too short. Cleared if "map" is calibrated as well as labels
               drawn from its own probabilities would make it.
    few rows   the error of a few dozen rows is biased upwards. Cleared if the error is well above
               that of labels drawn from the predicted probabilities.

The exact posterior is sampled by elliptical slice sampling (Murray, Adams and MacKay 2010).
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tables
import torch
from ensemble_gain import MOST_TRAIN, TRIALS, rounded, studied
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import HERE, PAGE, commit, conditions, read, split, spread, store, table
from torch import Tensor

import nas_evidence
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.data import load
from nas_evidence.evidence.posterior import fit_posterior, jacobians
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_mean
from nas_evidence.maths.metrics import class_metrics
from nas_evidence.spec.study import DatasetSpec

#: Small images: 300 training rows and 500 test rows of these sets.
IMAGES = ("digits",)
IMAGE_EPOCHS, MOST_TEST = 20, 500
SETS = ("australian", "ionosphere", "satellite", "waveform", *IMAGES)
RESULTS = HERE / "results" / "class_calibration.json"
N_DRAWS, N_LABELS, N_STEPS = 2048, 100, 12_000
#: Most parameters for the exact posterior.
MOST_SAMPLED = 600
ARMS = ("map", "marginal probit", "probit", "mc", "mc, precisions x 10", "mc, precisions x 100",
        "sampled", "LogisticRegression")  # fmt: skip
_TABLE = re.compile(r"(<!-- calibration -->\n).*?(<!-- end of calibration -->)", re.DOTALL)


def expected_error(probabilities: np.ndarray, generator: np.random.Generator) -> float:
    """Return the mean calibration error of labels drawn from these probabilities [n, C]."""
    below = probabilities.cumsum(1)
    drawn = generator.random((N_LABELS, len(below), 1))
    labels = (drawn > below).sum(2).clip(max=below.shape[1] - 1)
    errors = [class_metrics(probabilities, one)["ece"] for one in labels]
    return statistics.mean(errors)


def measured(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the measures, the error of calibrated predictions, and confidence − accuracy."""
    found = class_metrics(probabilities, labels)
    expected = expected_error(probabilities, np.random.default_rng(0))
    above = float(probabilities.max(1).mean()) - found["accuracy"]
    return {**found, "expected_error": expected, "confidence_above_accuracy": above}


def marginal_probit(outputs: Tensor, covariance: Tensor, temperature: float) -> Tensor:
    """Return softmax(f / √(T² + π Var f / 8)), each logit by its own variance [n, C]."""
    variances = covariance.diagonal(dim1=1, dim2=2)
    return (outputs / (temperature**2 + math.pi / 8 * variances).sqrt()).softmax(-1)


def sampled(
    outputs: tuple[Tensor, Tensor], jacobian: tuple[Tensor, Tensor], start: Tensor, labels: Tensor,
    temperature: float,
) -> Tensor:  # fmt: skip
    """Return mean probabilities under the exact posterior of the linearised network [m, C].

    Args:
        outputs: f at the mode, of the training and the test rows [n, C], [m, C].
        jacobian: J Δ^(-1/2) of both, [n, C, P], [m, C, P].
        start: Δ^(1/2) θ*, the mode in units of the prior [P].
        labels: of the training rows [n].
        temperature: of the softmax.
    """
    generator = torch.Generator().manual_seed(0)
    (f, f_new), (j, j_new) = outputs, jacobian
    offset, offset_new = f - j @ start, f_new - j_new @ start

    def log_likelihood(w: Tensor) -> float:
        logs = ((offset + j @ w) / temperature).log_softmax(1)
        return float(logs.gather(1, labels[:, None]).sum())

    w, now = start.clone(), log_likelihood(start)
    total, count = torch.zeros_like(f_new), 0
    for step in range(N_STEPS):
        nu = torch.randn(len(w), generator=generator, dtype=w.dtype)
        level = now + math.log(float(torch.rand(1, generator=generator)))
        angle = float(torch.rand(1, generator=generator)) * 2 * math.pi
        low, high = angle - 2 * math.pi, angle
        while True:
            proposed = w * math.cos(angle) + nu * math.sin(angle)
            then = log_likelihood(proposed)
            if then > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = low + float(torch.rand(1, generator=generator)) * (high - low)
        w, now = proposed, then
        if step >= N_STEPS // 4 and step % 10 == 0:
            total += ((offset_new + j_new @ w) / temperature).softmax(1)
            count += 1
    return total / count


class Rows(NamedTuple):
    """Inputs, a DataFrame or an array, and labels, of training and of test rows."""

    x: Any
    y: Any
    x_new: Any
    y_new: Any


def rows_of(folder: Path, name: str, seed: int) -> Rows:
    """Return the rows of a table or of images, split by a seed."""
    if name in IMAGES:
        spec = DatasetSpec(name=name, max_train=MOST_TRAIN, max_test=MOST_TEST)
        arrays = load(spec, seed=seed, data_root=str(folder))
        return Rows(arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test)
    train, test = split(read(folder, name), seed)
    x, x_new = (frame.drop(columns="target") for frame in (train, test))
    return Rows(x, train["target"], x_new, test["target"])


def study_of(rows: Rows, folder: Path, name: str, seed: int) -> nas_evidence.Study:
    """Return the study of a table as `ensemble_gain.py` has it, or one of images."""
    if name not in IMAGES:
        return studied(rows.x.assign(target=rows.y), folder, seed)
    if (folder / "study.toml").is_file():
        study = nas_evidence.resume(folder, progress=False)
    else:
        settings = {"seed": seed, "finalists": 0, "plan.epochs": IMAGE_EPOCHS}
        study = nas_evidence.search(
            rows.x, rows.y, n_trials=TRIALS, settings=settings, out=folder, progress=False
        )
    study.predictor()
    return study


def arms_of(folder: Path, rows: Rows) -> dict[str, Any]:
    """Return the measures of each way to predict with the exported network, and its shape."""
    found = Predictor.load(folder)
    model, posterior = found.exported, found.posterior
    assert posterior is not None
    number = {str(value): i for i, value in enumerate(found.classes)}
    y, y_new = (np.array([number[str(v)] for v in part]) for part in (rows.y, rows.y_new))
    raw, raw_new = (
        torch.from_numpy(np.array(found.given(part).inputs)) for part in (rows.x, rows.x_new)
    )
    x, x_new = ((part.to(model.mean.dtype) - model.mean) / model.std for part in (raw, raw_new))
    temperature = float(found.meaning["temperature"])
    stored = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
    precisions = {k: torch.tensor([v]) for k, v in stored["prior_precision"].items()}
    with torch.no_grad():
        f, f_new = (model.model(part).double() for part in (x, x_new))
    covariance = posterior.output_covariance(model.model, x_new)

    def monte_carlo(covariance: Tensor) -> Tensor:
        parts = [
            log_sampled_mean(
                f_new, covariance, temperature, n_draws=256, generator=generator
            ).exp()
            for generator in [torch.Generator().manual_seed(0)]
            for _ in range(N_DRAWS // 256)
        ]
        return torch.stack(parts).mean(0)

    ways = {
        "map": (f_new / temperature).softmax(1),
        "marginal probit": marginal_probit(f_new, covariance, temperature),
        "probit": pairwise_mean(f_new, covariance, temperature),
        "mc": monte_carlo(covariance),
    }
    for factor in (10, 100):
        larger = fit_posterior(
            model.model,
            x,
            torch.from_numpy(y),
            Categorical(temperature),
            {name: precision * factor for name, precision in precisions.items()},
            likelihood_power=stored["likelihood_power"],
        )
        ways[f"mc, precisions x {factor}"] = monte_carlo(
            larger.output_covariance(model.model, x_new)
        )
    named = dict(model.model.named_parameters())
    if sum(p.numel() for p in named.values()) <= MOST_SAMPLED:
        names = tuple(named)
        scale = [precisions[n].double().rsqrt() for n in names]

        def scaled(inputs: Tensor) -> Tensor:
            parts = jacobians(model.model, inputs, names)
            each = (parts[n].flatten(2) * s for n, s in zip(names, scale, strict=True))
            return torch.cat(list(each), 2)

        theta = [
            named[n].detach().double().flatten() / s for n, s in zip(names, scale, strict=True)
        ]
        ways["sampled"] = sampled(
            (f, f_new), (scaled(x), scaled(x_new)), torch.cat(theta), torch.from_numpy(y),
            temperature,
        )  # fmt: skip
    found_ways = {name: measured(p.numpy(), y_new) for name, p in ways.items()}
    if "sampled" in ways:
        for name, p in ways.items():
            distance = 0.5 * (p - ways["sampled"]).abs().sum(1).mean()
            found_ways[name]["distance_from_sampled"] = float(distance)
    variance = covariance.diagonal(dim1=1, dim2=2).mean()
    return {
        "structure": posterior.structure,
        "n_parameters": sum(p.numel() for p in named.values()),
        "shared_part_of_variance": float(covariance.mean((1, 2)).mean() / variance),
        "ways": found_ways,
    }


def measure(folder: Path, keep: Path, names: Sequence[str], n_splits: int) -> None:
    """Measure all sets and splits, and store each when it has ended."""
    tables.MOST_TRAIN = MOST_TRAIN
    fresh = {**conditions(TRIALS), "most_train": MOST_TRAIN, "runs": []}
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else fresh
    done = {(run["data"], run["split"]) for run in stored["runs"]}
    for seed in range(n_splits):
        for name in names:
            if (name, seed) in done:
                continue
            rows = rows_of(folder, name, seed)
            study = study_of(rows, keep / f"{name}-{seed}-{TRIALS}", name, seed)
            found = arms_of(study.folder / "export", rows)
            regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
            flat, flat_new = (np.asarray(x).reshape(len(x), -1) for x in (rows.x, rows.x_new))
            regression.fit(flat, rows.y)
            labels = np.searchsorted(regression.classes_, rows.y_new)
            found["ways"]["LogisticRegression"] = measured(
                regression.predict_proba(flat_new), labels
            )
            run = {"data": name, "split": seed, "commit": commit(), "n_train": len(rows.y)}
            run |= {"n_test": len(rows.y_new), "best": study.best.architecture, **found}
            print(json.dumps(run), flush=True)
            stored["runs"].append(rounded(run))
            store(stored, RESULTS)


def lines_of(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row per data set and way: mean ± standard deviation over the splits."""
    lines = []
    for name in SETS:
        group = [run for run in runs if run["data"] == name]
        for way in ARMS:
            each = [run["ways"][way] for run in group if way in run["ways"]]
            if each:
                keys = ("log_loss", "ece", "expected_error",
                        "confidence_above_accuracy")  # fmt: skip
                cells = [spread([one[key] for one in each]) for key in keys]
                lines.append([name, str(len(each)), way, *cells])
    return lines


def written(page: str) -> str:
    """Return the page with its table as the stored results give it."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    header = ["data", "n", "predicted by", "log loss", "calibration error",
              "of calibrated predictions", "confidence − accuracy"]  # fmt: skip
    own = table(header, lines_of(runs))
    return _TABLE.sub(lambda found: f"{found[1]}{own}{found[2]}", page)


def main() -> None:
    """Measure and store, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--keep", type=Path, default=Path("runs"))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data is not None:
        measure(given.data, given.keep, given.sets, given.splits)
    if given.page:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
