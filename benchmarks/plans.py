"""How a network should be trained: test log loss of small networks under other plans.

settle   Settling after 40 epochs of SGD at 0.02: before, at its end, and the state that is kept.
         The seeds are of the training, so their spread is the seed noise. The rules of what is
         kept were chosen on these sets.
trial    Gradients of settling with the trial before it and without, from the same scheduled state
         of the plan of a search, 300 rows; passes count as gradients. Its rules are in
         `docs/results/few-rows-and-real-targets.md`.
length   Batches, steps and learning rates, with the plan that a search of a table has otherwise;
         four seeds of a cell side by side. A plan is `batch:steps:rate` or
         `batch:steps:rate:settle`; "proposed" is that of a search. The numbers of
         `data/proposed.py` were chosen on `CHOSEN_ON`; `KEPT_ASIDE` was looked at once.
updates  From how many rows an update may learn the prior precisions (decision 22 has the rule,
         written before the run): all; again, the same with other random signs; or n rows, each
         counted N / n times. Mean differences to all, with 1.645 standard errors.
few      The same for 650 to 5,000 rows, from n rows or a fifth of them, whichever is more, beside
         2,048 as it was.

    python benchmarks/plans.py settle DATA [--sets cancer kin8nm] [--seeds 3]
    python benchmarks/plans.py trial DATA [--sets diabetes R:ISLR:Wage:wage:logwage]
    python benchmarks/plans.py length DATA [--sets iris:100] [--plans 64:500:0.02 proposed]
    python benchmarks/plans.py updates DATA [--sets fashion_mnist] [--rows 1024 2048] [--train N]
    python benchmarks/plans.py few DATA [--sets digits:1297]

DATA is the folder of the data sets; each has one split. `--small`, one network and one seed, shows
whether it runs. `--to FILE` stores; settling_cpu, epochs_rule_cpu, update_rows and
update_few_rows are committed.
"""

import argparse
import copy
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from _common import conditions, read_json, show, write_json
from _networks import Network, assignment
from _sets import raw, split

from nas_evidence.data import load
from nas_evidence.data.proposed import LEARNING_RATE, training_length
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import DatasetSpec, TrainingPlan, derive_seed
from nas_evidence.training import settling as module
from nas_evidence.training.life import advance
from nas_evidence.training.loop import likelihood_of
from nas_evidence.training.mode import newton_decrement, update_cost
from nas_evidence.training.network import Network as Trained
from nas_evidence.training.parts import new_network, part_of, stop_of_part
from nas_evidence.training.settling import begin_settling, settle_slices
from nas_evidence.workers.trial import Trial

Row = dict[str, Any]


def networks(family: str, *sizes: tuple[int, int]) -> list[Network]:
    """Return networks of some depths and widths."""
    return [(family, {"depth": depth, "width": width}) for depth, width in sizes]


def data_of(name: str, root: Path, n_train: int, n_test: int, seed: int | list[int]) -> TensorData:
    """Return a set with the split that a seed draws."""
    x, y = raw(name, root)
    order = np.random.default_rng(seed).permutation(len(y))
    return to_tensors(split(name, x, y, order[:n_train], order[n_train:][:n_test]), "cpu")


@torch.no_grad()
def tested(state: Trained, data: TensorData, plan: TrainingPlan) -> tuple[float, float]:
    """Return test nll per datum, and accuracy or the root mean squared error, standardised."""
    likelihood = likelihood_of(plan, state.noise_std)
    outputs = state.model.eval()(data.x_test)
    nll = -float(likelihood.log_likelihood(outputs, data.y_test)) / len(data.y_test)
    if plan.likelihood == "categorical":
        return nll, float((outputs.argmax(1) == data.y_test).double().mean())
    return nll, float((outputs - data.y_test).double().square().mean().sqrt())


# --- settle

TABLE = [*networks("mlp", (1, 16), (1, 64), (2, 32), (3, 16), (3, 64)), ("linear", {})]
IMAGES = networks("mlp", (1, 32), (2, 32)) + networks("cnn", (1, 4), (2, 4))
WIDE = networks("mlp", (1, 128), (3, 169)) + networks("cnn", (2, 6), (3, 10))
STATES = ("before", "after", "kept")
#: Networks, training and test rows of each set.
SETS = {
    "diabetes": (TABLE, 300, 142),
    "bostonHousing": (TABLE, 400, 106),
    "kin8nm": (TABLE, 300, 1000),
    "wine-quality-red": (TABLE, 300, 1000),
    "power-plant": (TABLE, 300, 1000),
    "cancer": (TABLE, 300, 300),
    "australian": (TABLE, 400, 290),
    "waveform": (TABLE, 300, 2000),
    "satellite": (TABLE, 300, 2000),
    "digits_table": (TABLE, 400, 1000),
    "digits": (IMAGES, 400, 1000),
    "fashion_mnist": (IMAGES, 250, 2000),
    "digits_1297": (WIDE, 1297, 500),
}


def settled(network: Network, seed: int, data: TensorData) -> Row:
    """Return what one network is before and after settling, and which state is kept."""
    plan = TrainingPlan.model_validate(
        {
            "likelihood": "gaussian" if data.task == "real" else "categorical",
            "epochs": 40, "batch_size": 32, "learning_rate": 0.02, "settle": 0,
        }
    )  # fmt: skip
    given, n_data = assignment(network, plan, seed), len(data.x_train)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        trial.advance(plan.epochs)
    training = trial.network
    assert training is not None, trial.cause
    before = copy.deepcopy(training)
    settling, ends = begin_settling(training, plan.epochs), list[Trained]()
    finish = module._finish

    def end(one: Trained) -> None:
        ends.append(copy.deepcopy(one))
        finish(one)

    with patch.object(module, "_finish", end):
        while not settle_slices([training])[0]:
            pass
    row: Row = {"network": str(network), "kept": settling.kept, "moved": settling.moved}
    # "after" is the end of the alternation, whether it is kept or not.
    states = dict(zip(STATES, (before, *ends, training), strict=True))
    for at, state in states.items():
        row[f"test_nll_{at}"], row[f"test_measure_{at}"] = tested(state, data, plan)
    evidences = settling.scheduled_evidence, settling.evidence
    for at, evidence in zip(STATES, evidences, strict=False):
        row[f"evidence_{at}"] = float("nan") if evidence is None else evidence / n_data
        row[f"decrement_{at}"] = newton_decrement(states[at])[0] / n_data
    return row | {
        "converged": settling.converged,
        "train_seconds": training.train_seconds + training.evidence_seconds,
        "settle_seconds": settling.seconds,
    }


def summary(runs: pd.DataFrame) -> Row:
    """Return means over networks and seeds, and how often what happened."""
    groups = runs.groupby("network")
    means = runs.drop(columns=["moved", "converged"]).mean(numeric_only=True, skipna=False)
    noise = groups[[f"test_nll_{at}" for at in STATES]].std()
    worse = (groups["test_nll_kept"].mean() - groups["test_nll_before"].mean()).gt(
        noise["test_nll_before"]
    )
    known = runs[runs["evidence_after"].notna()]
    better = known["test_nll_after"] < known["test_nll_before"]
    rise = known["evidence_after"] - known["evidence_before"]
    # The evidence as it would be at the mode.
    corrected = rise + 0.5 * (known["decrement_after"] - known["decrement_before"])
    counts = {
        "kept_scheduled": runs["kept"] == "scheduled",
        "converged": runs["converged"],
        "hyperparameters_at_rest": runs["moved"] < 0.02,
        "nll_better_after": better,
        "evidence_sign_right": better == (rise > 0),
        "corrected_sign_right": better == (corrected > 0),
    }
    return {
        "networks": len(groups),
        "runs": len(runs),
        **{name: None if np.isnan(mean) else round(mean, 4) for name, mean in means.items()},
        **{f"seed_noise_{at}": round(noise[f"test_nll_{at}"].mean(), 4) for at in STATES},
        **{name: int(each.sum()) for name, each in counts.items()},
        "worse_beyond_seed_noise": worse.index[worse].tolist(),
    }


def settle(options: argparse.Namespace) -> None:
    """Measure settling on each set."""
    rows: list[Row] = []
    for name in options.sets or list(SETS)[: 1 if options.small else None]:
        chosen, n_train, n_test = SETS[name]
        data = data_of(name.removesuffix("_1297"), options.data, n_train, n_test, seed=0)
        runs = [
            show({"set": name, "family": network[0], **settled(network, seed, data)})
            for network in chosen[: 1 if options.small else None]
            for seed in range(1 if options.small else options.seeds)
        ]
        for family, some in pd.DataFrame(runs).groupby("family"):
            of = {"set": name, "n_train": len(data.x_train), "family": family}
            rows.append(show(of | summary(some)))
        what = "settling after 40 epochs, SGD 0.02, batches of 32, update every 5"
        units = "nats per datum; accuracy, or rmse of standardised targets; seconds"
        head = {**conditions(what, "torch"), "seeds": options.seeds, "units": units}
        write_json(options.to, head | {"rows": rows}, rows="rows")


# --- trial

TRIED = [*networks("mlp", (1, 10), (1, 32), (2, 32), (3, 16)), ("linear", {})]
TRIAL_SETS = (
    "diabetes", "bostonHousing", "kin8nm", "wine-quality-red", "power-plant",
    "naval-propulsion-plant", "R:modeldata:concrete:compressive_strength",
    "R:mosaicData:SaratogaHouses:price", "friedman3", "R:modeldata:Sacramento:price",
    "R:modeldata:car_prices:Price", "R:ISLR:Wage:wage:logwage", "friedman2",
)  # fmt: skip


def tried(name: str, network: Network, seed: int, data: TensorData) -> Row:
    """Return gradients, kept state, evidence and test log loss with the trial and without."""
    plan = plan_of(data, "proposed")
    with tempfile.TemporaryDirectory() as folder:
        given = assignment(network, plan.model_copy(update={"settle": 0.0}), seed)
        trial = Trial.start(given, data, Path(folder))
        trial.advance(plan.epochs)
    assert trial.network is not None, trial.cause
    row: Row = {"set": name, "network": str(network), "seed": seed}
    inner, of_trial = module._is_lost_in_trial, 0.0

    def noted(one: Trained, evidence: float | None) -> bool:
        nonlocal of_trial
        settling = module._of(one)
        work, lost = settling.work, inner(one, evidence)
        if not settling.trial:
            of_trial = work + update_cost(plan, data) * settling.cost
        return lost

    for at, falls in (("without", ()), ("with", module.TRIAL_FALLS)):
        one, began = copy.deepcopy(trial.network), time.process_time()
        with (
            patch.object(module, "TRIAL_FALLS", falls),
            patch.object(module, "_is_lost_in_trial", noted),
        ):
            settling = begin_settling(one, plan.epochs)
            while not settle_slices([one])[0]:
                pass
        kept = settling.evidence if settling.kept == "settled" else settling.scheduled_evidence
        row |= {
            f"kept_{at}": settling.kept,
            f"gradients_{at}": round((of_trial + settling.work) / settling.cost),
            f"cpu_seconds_{at}": round(time.process_time() - began, 3),
            f"evidence_{at}": None if kept is None else kept / len(data.x_train),
            f"test_nll_{at}": tested(one, data, plan)[0],
        }
    return row


def trial(options: argparse.Namespace) -> None:
    """Compare settling with the trial before it and without on each set."""
    rows: list[Row] = []
    for name in options.sets or TRIAL_SETS[: 1 if options.small else None]:
        data = data_of(name, options.data, 300, 1000, seed=0)
        for network in TRIED[: 1 if options.small else None]:
            for seed in range(1 if options.small else 2):
                rows.append(show(tried(name, network, seed, data)))
        head = conditions("settling of real targets, 300 rows, with its trial", "torch")
        write_json(options.to, head | {"rows": rows}, rows="rows")


# --- length

CHOSEN_ON = (
    "bostonHousing:300", "diabetes:300", "kin8nm:300", "cancer:300", "australian:300",
    "waveform:300", "satellite:300", "kin8nm:1000", "wine-quality-red:1000",
)  # fmt: skip
KEPT_ASIDE = (
    "wine:110", "iris:100", "breast:300", "moons:300", "synth5:600", "friedman:200",
    "linnoise:300", "naval-propulsion-plant:300", "power-plant:1000", "diabetes:150",
    "friedman2:300", "friedman3:300",
)  # fmt: skip
N_SEEDS = 4


def plan_of(data: TensorData, text: str) -> TrainingPlan:
    """Return the plan of a table with batch, steps, learning rate and settling of a text."""
    n_data, settle = len(data.x_train), float(data.task == "real")
    if text == "proposed":
        batch, epochs = training_length(n_data)
        rate = LEARNING_RATE
    else:
        first, steps, rate, *more = map(float, text.split(":"))
        batch, settle = int(first), sum(more, 0.0)
        epochs = max(20, min(400, round(steps * batch / n_data)))
    return TrainingPlan.model_validate(
        {
            "likelihood": "gaussian" if data.task == "real" else "categorical",
            "epochs": epochs, "batch_size": batch, "optimiser": "adam", "learning_rate": rate,
            "settle": settle, "online": {"every": max(1, epochs // 8)},
        }
    )  # fmt: skip


def cell(data: TensorData, network: Network, plan: TrainingPlan) -> Row:
    """Return test log loss, error and kept state of each seed, and the CPU seconds of all."""
    parts = [part_of(None, data, assignment(network, plan), f"s{k}") for k in range(N_SEEDS)]
    runs = [new_network(*part) for part in parts]
    started, left = time.process_time(), list(range(N_SEEDS))
    while left:
        ends = advance([runs[k] for k in left], stop_of_part(runs[left[0]]))
        left = [k for k, end in zip(left, ends, strict=True) if not (end or runs[k].is_over)]
    seconds = time.process_time() - started
    found = [tested(run, data, plan) for run in runs]
    return {
        "cpu_seconds": seconds, "log_loss": [nll for nll, _ in found],
        "error": [error for _, error in found],
        "settled_kept": sum(r.settling is not None and r.settling.kept == "settled" for r in runs),
    }  # fmt: skip


def length(options: argparse.Namespace) -> None:
    """Measure every set and plan, means over the networks."""
    rows: list[Row] = []
    sets = ("iris:100",) if options.small else (*CHOSEN_ON, *KEPT_ASIDE)
    for text in options.sets or sets:
        name, _, n_rows = text.partition(":")
        seed = 7 if text in KEPT_ASIDE else 0
        data = data_of(name, options.data, int(n_rows), 2000, seed)
        for plan in options.plans:
            chosen = networks("mlp", (1, 16), (2, 32), (3, 64))[: 1 if options.small else None]
            found = [cell(data, network, plan_of(data, plan)) for network in chosen]
            each = [fmean(losses) for losses in zip(*(f["log_loss"] for f in found), strict=True)]
            rows.append(show({
                "set": text, "plan": plan, "networks": len(found),
                "cpu_seconds": round(sum(f["cpu_seconds"] for f in found), 2),
                "log_loss": round(fmean(each), 4), "each_seed": [round(nll, 4) for nll in each],
                "error": round(fmean(fmean(f["error"]) for f in found), 4),
                "settled_kept": sum(f["settled_kept"] for f in found),
            }))  # fmt: skip
            head = conditions("plans of training: means over networks", "torch")
            write_json(options.to, head | {"rows": rows}, rows="rows")


# --- updates

EVERYTHING = 1 << 40
UPDATED = {
    "labels": networks("mlp", (2, 64), (3, 256)) + networks("cnn", (2, 4), (3, 6)),
    "real": networks("mlp", (1, 32), (2, 64)),
}


def with_other_signs(network: Trained, purpose: str, counter: int = 0) -> int:
    """Return the seed of one random stream of a network; of random signs another one."""
    other = f"again:{purpose}" if purpose.startswith("curvature:") else purpose
    return derive_seed(network.seed, other, counter)


def drawn(name: str, root: Path, n_train: int, seed: int) -> TensorData:
    """Return the data with the training rows of a seed."""
    if name in ("mnist", "fashion_mnist"):
        spec = DatasetSpec.model_validate({"name": name, "max_train": n_train})
        return to_tensors(load(spec, seed=seed, data_root=str(root)), "cpu")
    n_rows = len(raw(name, root)[1])
    n_test = {"cifar10": 5000, "digits": 500}.get(name, n_rows // 5)
    return data_of(name, root, min(n_train, n_rows - n_test), n_test, [seed, 18])


def updated(
    data: TensorData, network: Network, seed: int, rows: int, *, again: bool, epochs: int = 12
) -> Row:
    """Return what a training comes to whose updates see so many rows; again, with other signs."""
    keys: Row = {"epochs": epochs, "learning_rate": 0.05, "online": {"rows": rows}}
    if data.task == "real":
        keys |= {"likelihood": "gaussian", "optimiser": "adam", "learning_rate": 0.01}
        keys |= {"epochs": 40}
    plan = TrainingPlan.model_validate(keys)
    given = assignment(network, plan, seed, ("kfac_ggn_mc",))
    began = time.process_time()
    signs = with_other_signs if again else Trained.derived_seed
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Trained, "derived_seed", signs),
    ):
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(plan.epochs)
        record = trial.finish()
    [estimate] = (e.estimate for e in record.evaluations if e.estimate.estimator == "kfac_ggn_mc")
    return {
        "test_nll": float(record.test_nll_per_datum or "nan"),
        "evidence": float(estimate.per_datum or "nan"),
        "cpu_seconds": round(time.process_time() - began, 2),
        "evidence_seconds": round(record.evidence_seconds, 2),
    }


def updates(options: argparse.Namespace) -> None:
    """Measure updates from fewer rows on each set; other sets stay in the file as they are."""
    stored = read_json(options.to, {}) if options.to else {}
    n_train = 500 if options.small else options.train
    for name in options.sets or ["fashion_mnist"]:
        found: list[Row] = []
        for seed in (0, 1)[: 1 if options.small else None]:
            data = drawn(name, options.data, n_train, seed)
            for network in UPDATED[data.task][: 1 if options.small else None]:
                variants = {"all": EVERYTHING, "again": EVERYTHING}
                for rows, n in {**variants, **{str(n): n for n in options.rows}}.items():
                    of = {"seed": seed, "network": f"{network[0]} {network[1]}", "rows": rows}
                    again = rows == "again"
                    found.append(show(of | updated(data, network, seed, n, again=again)))
        apart = apart_of(found, options.rows, "all")
        stored[name] = {
            **conditions(f"{name}, {n_train} rows: updates from fewer rows", "torch"),
            "runs": found, "mean difference, 1.645 standard errors": apart,
        }  # fmt: skip
        write_json(options.to, stored)


# --- few

USUAL = 2048
_DIGITS = networks("mlp", (3, 169)) + networks("cnn", (1, 4), (3, 10))
_DIGITS += networks("resnet", (8, 10))
_GREY = networks("mlp", (2, 64)) + networks("cnn", (1, 4))
#: Networks, seeds, epochs and numbers of rows of each set, which is a name and training rows. The
#: first three are chosen on, the others looked at once. If a fifth of the rows is more, it counts.
FEW: dict[str, tuple[list[Network], int, int, tuple[int, ...]]] = {
    "digits:1297": (_DIGITS, 1, 30, (256, 512, 1024)),
    "digits:648": (_DIGITS, 1, 30, (256, 512)),
    "fashion_mnist:2500": (_GREY, 1, 12, (512, 1024)),
    "mnist:1000": (_GREY, 1, 20, (256, 512)),
    "satellite:1000": (networks("mlp", (1, 32), (2, 64)), 2, 30, (256, 512)),
    "mnist:5000": (_GREY, 1, 12, (1024,)),
}  # fmt: skip


def few(options: argparse.Namespace) -> None:
    """Measure updates of few rows on each set; what is in the file is not run again."""
    stored = read_json(options.to, {}) if options.to else {}
    for name in options.sets or FEW:
        chosen, n_seeds, epochs, numbers = FEW[name]
        of_set, _, n_train = name.partition(":")
        found: list[Row] = stored.get(name, {}).get("runs", [])
        for seed in range(1 if options.small else n_seeds):
            data = drawn(of_set, options.data, int(n_train), seed)
            for network in chosen[: 1 if options.small else None]:
                variants = {"usual": USUAL, "again": USUAL}
                variants |= {str(n): max(n, int(n_train) // 5) for n in numbers}
                for rows, n in variants.items():
                    of = {"seed": seed, "network": f"{network[0]} {network[1]}", "rows": rows}
                    if any(of.items() <= run.items() for run in found):
                        continue
                    again = rows == "again"
                    run = updated(data, network, seed, n, again=again, epochs=epochs)
                    found.append(show(of | run))
                    stored[name] = {"runs": found}
                    write_json(options.to, stored)
        apart = apart_of(found, numbers, "usual")
        stored[name] = {
            **conditions(f"{name} rows: updates from few rows", "torch"),
            "runs": found, "mean difference, 1.645 standard errors": apart,
        }  # fmt: skip
        write_json(options.to, stored)


def apart_of(
    found: list[Row], numbers: Iterable[int], usual: str
) -> dict[str, tuple[float, float | None]]:
    """Return, and show, how far updates from other signs and from so many rows are from usual."""
    apart = {
        f"{measure}, {rows} minus {usual}": difference(found, measure, rows, usual)
        for rows in ("again", *map(str, numbers))
        for measure in ("test_nll", "evidence", "cpu_seconds", "evidence_seconds")
    }
    show(apart)
    return apart


def difference(found: list[Row], measure: str, rows: str, than: str) -> tuple[float, float | None]:
    """Return the mean difference of some rows to others and 1.645 of its standard errors."""
    one, other = ([run[measure] for run in found if run["rows"] == r] for r in (rows, than))
    apart = [a - b for a, b in zip(one, other, strict=True)]
    error = 1.645 * stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else None
    return fmean(apart), error


def main() -> None:
    """Measure, print a line for each run, and store after each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("settle", "trial", "length", "updates", "few"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", help="names; of `length`, names and rows")
    parser.add_argument("--seeds", type=int, default=3, help="of `settle`")
    parser.add_argument("--plans", nargs="+", default=["16:2500:0.005", "proposed"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--train", type=int, default=8000, help="training rows of `updates`")
    parser.add_argument("--small", action="store_true", help="does it run?")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    modes = {"settle": settle, "trial": trial, "length": length, "updates": updates, "few": few}
    modes[options.mode](options)


if __name__ == "__main__":
    main()
