"""Is a GPU right? Values on CUDA beside a CPU's, and every trial again: the same bits?

    python benchmarks/gpu/check.py measure --device cpu  --out cpu.json
    python benchmarks/gpu/check.py measure --device cuda --out gpu.json
    python benchmarks/gpu/check.py compare cpu.json gpu.json        exit code 1 if one is wrong

Golden values (float64), every kind of curvature on every model of tests/cases.py, and whole trials
of every family and likelihood. On CUDA a trial is trained three times: alone, again, and parked
and resumed on the way. The file is written after each of them.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import cases
import torch
from _common import read_json, versions, write_json

from nas_evidence.curvature import KINDS
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.workers.trial import Trial
from nas_evidence.workers.worker import make_reproducible

#: Kinds that any of the families has.
LAPLACE = tuple(kind for kind in KINDS if not CURVATURES[kind].is_full)
SIZES: Mapping[str, dict[str, int]] = {
    "cnn": {"depth": 2, "width": 4}, "mlp": {"depth": 1, "width": 8}, "linear": {},
    "resnet": {"depth": 8, "width": 4},
}  # fmt: skip
#: Name: data set, family, scores, changes of the plan.
TRIALS: Mapping[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "laplace cnn": ("digits", "cnn", LAPLACE, {}),
    "laplace resnet": ("digits", "resnet", ("diag_ef", "kfac_ggn_mc"), {}),
    "default mlp": ("digits", "mlp", ("conditional_evidence", "elpd"), {}),
    "default cnn": ("digits", "cnn", ("conditional_evidence", "elpd"), {}),
    "default resnet": ("digits", "resnet", ("conditional_evidence", "five_fold"), {}),
    "real targets": (
        "diabetes", "mlp", ("conditional_evidence", "elpd", "kfac_ggn"), {"settle": 1.0},
    ),
    "linear": ("diabetes", "linear", ("conditional_evidence", "full_ggn"), {"settle": 1.0}),
    "own noise": (
        "diabetes", "mlp", ("conditional_evidence", "elpd"),
        {"likelihood": "heteroscedastic", "settle": 0.5},
    ),
    "augmentation": (
        "digits", "cnn", ("two_fold", "diag_ef"),
        {"augment": ["RandomCrop", "RandomHorizontalFlip"]},
    ),
    "adam": ("digits", "cnn", ("diag_ef",), {"optimiser": "adam", "learning_rate": 0.002}),
    "bf16": ("digits", "cnn", ("conditional_evidence",), {"precision": "bf16"}),
    "compile": ("digits", "cnn", ("diag_ef",), {"compile": True}),
}  # fmt: skip
#: Largest relative differences. A trial drifts with the rounding of its steps.
EXACT, SINGLE, TRAINED = 1e-8, 1e-3, 0.05


@dataclass
class Found:
    """What one device computes, written to a file as it grows."""

    device: str
    out: Path | None
    about: dict[str, Any] = field(default_factory=dict)
    values: dict[str, float | str | None] = field(default_factory=dict)  # or why there is none
    truths: dict[str, float] = field(default_factory=dict)  # golden, by the same key
    same_bits: dict[str, list[bool]] = field(default_factory=dict)  # again, and after parking
    seconds: dict[str, float] = field(default_factory=dict)  # of trials
    warnings: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def note(self, key: str, compute: Callable[[], float]) -> None:
        """Keep a value; what it raises is a finding too."""
        try:
            self.values[key] = compute()
        except Exception as error:
            self.values[key] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.errors[key] = traceback.format_exc()[-3000:]

    def write(self) -> None:
        """Write the file."""
        names = ("about", "values", "truths", "same_bits", "seconds", "warnings", "errors")
        write_json(self.out, {name: getattr(self, name) for name in names})


def assignment(name: str) -> Assignment:
    """Return the trial of a name: six epochs with updates every two."""
    data, family, scores, changes = TRIALS[name]
    likelihood = {"likelihood": "gaussian"} if data == "diabetes" else {}
    plan = {
        "epochs": 6, "batch_size": 64, "learning_rate": 0.02, "settle": 0, "online": {"every": 2},
    }  # fmt: skip
    return Assignment.model_validate(
        {
            "trial_id": 3, "attempt": 1, "replicate": 0, "seed": 11, "estimators": scores,
            "architecture": ArchitectureSpec(family=family, values=SIZES[family]),
            "dataset": DatasetSpec(name=data), "plan": {**plan, **likelihood, **changes},
        }
    )  # fmt: skip


def trained(name: str, device: torch.device, *, park: bool = False) -> tuple[TrialRecord, str]:
    """Return the record of a trial and a digest of its weights.

    Args:
        name: of `TRIALS`.
        device: of its data.
        park: whether it is continued from its checkpoint by a second attempt.
    """
    given = assignment(name)
    arrays = load(DatasetSpec(name=given.dataset.name, max_train=300, max_test=100), seed=0)
    data, folder = to_tensors(arrays, device), Path(tempfile.mkdtemp())
    trial, n_slices = Trial.start(given, data, folder / "attempt-1"), 0
    while trial.status is TrialStatus.RUNNING:
        trial.advance(trial.network.epoch + 2 if trial.network else 2)
        n_slices += 1
        if park and n_slices == 2 and trial.status is TrialStatus.RUNNING:
            again = given.model_copy(update={"attempt": 2})
            trial = Trial.start(
                again, data, folder / "attempt-2", resume_from=folder / "attempt-1"
            )
    record = trial.finish()
    if record.status is not TrialStatus.COMPLETE or not trial.network:
        raise RuntimeError(f"{record.status.value}: {record.cause}\n{record.error}")
    weights = (p.detach().cpu().numpy().tobytes() for p in trial.network.model.parameters())
    return record, hashlib.sha256(b"".join(weights)).hexdigest()


def golden_values(found: Found) -> None:
    """Compute what tests/golden holds."""
    for name in cases.GOLDEN:
        case, truths = cases.golden(name)
        case.model = case.model.to(found.device)
        case.x, case.y = case.x.to(found.device), case.y.to(found.device)
        for kind, truth in truths.items():
            key = f"golden/{name}/{kind}"
            found.truths[key] = truth
            found.note(key, lambda k=kind, c=case: c.estimate(k, batch_size=64).value)


def case_values(found: Found) -> None:
    """Compute every kind of every case in both precisions."""
    for name in cases.CASES:
        for dtype in (torch.float64, torch.float32):
            case = cases.case(name)
            case.model = case.model.to(found.device, dtype)
            case.x, case.y = case.x.to(found.device, dtype), case.y.to(found.device)
            case.y = case.y.to(dtype) if case.y.is_floating_point() else case.y
            for kind in KINDS:
                key = f"case/{name}/{str(dtype)[6:]}/{kind}"
                found.note(key, lambda k=kind, c=case: c.estimate(k).value)


def trial_values(found: Found, name: str) -> float:
    """Train a trial, on a GPU again and parked on the way; return 1 for a complete one."""
    device = torch.device(found.device)
    started = time.perf_counter()
    record, weights = trained(name, device)
    found.seconds[name] = round(time.perf_counter() - started, 2)
    for evaluation in record.evaluations:
        if evaluation.epoch in (0, record.epochs):
            given = evaluation.estimate
            key = f"trial/{name}/{given.estimator}/{evaluation.epoch}"
            found.values[key] = given.value if given.valid else f"invalid: {given.note}"
    found.values[f"trial/{name}/test_nll_per_datum"] = record.test_nll_per_datum
    if device.type == "cuda":
        again = trained(name, device)[1], trained(name, device, park=True)[1]
        found.same_bits[name] = [digest == weights for digest in again]
    return 1.0


def measure(device: str, out: Path | None, *, quick: bool) -> Found:
    """Return all values of a device.

    Args:
        device: "cpu" or "cuda".
        out: written after each part.
        quick: golden values and two trials.
    """
    torch.set_num_threads(1)
    make_reproducible(torch.device(device))
    found = Found(device, out, about_of(device))
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        golden_values(found)
        if not quick:
            case_values(found)
        for name in ("default mlp", "real targets") if quick else TRIALS:
            found.note(f"trial/{name}", lambda n=name: trial_values(found, n))
            found.write()
    for each in seen:
        place = f"{Path(each.filename).name}:{each.lineno}"
        text = f"{place} {str(each.message).splitlines()[0][:200]}"
        found.warnings[text] = found.warnings.get(text, 0) + 1
    found.about["seconds"] = round(time.perf_counter() - started, 1)
    found.write()
    return found


def about_of(device: str) -> dict[str, Any]:
    """Return the device and the versions that a result depends on."""
    about: dict[str, Any] = {"device": device, "versions": versions("torch", "numpy")}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about |= {
            "gpu": properties.name,
            "gpu_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return about


def wrong(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> list[str]:
    """Return a line for each value of the GPU that differs too much, and each trial that does."""
    lines = []
    for key, value in gpu["values"].items():
        truth = gpu["truths"].get(key, cpu["values"].get(key))
        exact = key.startswith("golden/") or "/float64/" in key
        limit = EXACT if exact else SINGLE if key.startswith("case/") else TRAINED
        if isinstance(value, float | int) and isinstance(truth, float | int):
            agrees = abs(value - truth) / max(1e-6, abs(truth)) <= limit  # false for NaN
        else:
            agrees = value == truth
        if not agrees:
            lines.append(f"{key}: {truth} | {value}")
    for name, (again, parked) in gpu["same_bits"].items():
        if not (again and parked):
            lines.append(f"bits of {name!r}: again {again}, parked and resumed {parked}")
    return lines


def main() -> int:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("measure")
    one.add_argument("--device", required=True, choices=("cpu", "cuda"))
    one.add_argument("--out", type=Path)
    one.add_argument("--quick", action="store_true", help="few values: does it run?")
    both = verbs.add_parser("compare")
    both.add_argument("cpu", type=Path)
    both.add_argument("gpu", type=Path)
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options.device, options.out, quick=options.quick)
        return 0
    cpu, gpu = read_json(options.cpu), read_json(options.gpu)
    lines = wrong(cpu, gpu)
    for line in lines:
        print("DIFFERS", line)
    for text, count in gpu["warnings"].items():
        print("WARNING", count, text)
    for key, text in list(gpu["errors"].items())[:6]:
        print("---", key, text[-900:], sep="\n")
    n = len(gpu["values"]) + len(gpu["same_bits"])
    print(f"{n - len(lines)} of {n} agree: {json.dumps(gpu['about'])}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
