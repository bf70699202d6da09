"""What curvature costs beside the training, and beside other libraries, in CPU time.

    python -m benchmarks.run passes [--only model=mlp]
    python -m benchmarks.run posteriors

passes       A pass over a plain training epoch of the same data (forward, backward, step of SGD,
             128 rows), in turns, beside BackPACK, laplace-torch and curvlinops where they are
             installed (the extra `bench`). A pass takes as many rows at a time as ours chooses;
             peers 128 or 512, whichever is faster. A peer that refuses a model gives a row that
             says so. Random data.
posteriors   Laplace posteriors of the same trained networks by us and by laplace-torch: seconds,
             and log loss of 500 test rows of digits. Each has Kronecker factors of all weights,
             the exact GGN, and a prior precision for each tensor by the evidence; the linearised
             network predicts by "probit" or with draws.

Medians and ranges of the same turn. Candidates are compared only where they estimate the same
thing: `kfac_ggn` with KFLR, `_mc` with one sample. `gpu/probe.py` measures the like on a GPU.
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _common import seconds_of, spread
from _networks import COLOUR, GREY, Network, network, pass_over, plain_epoch, random_data
from run import Case, Given, Row, cells_of
from torch import Tensor, nn

import nas_evidence
from nas_evidence.curvature.batch_rows import rows_at_once

# --- passes

#: Name -> network, shape and number of the data.
MODELS: dict[str, tuple[Network | str, tuple[int, int, int], int]] = {
    "mlp": ("mlp", GREY, 2048),
    "small": ("small", GREY, 2048),
    "3c3d": ("3c3d", COLOUR, 512),
    "resnet20": (("resnet", {"depth": 20, "width": 16}), COLOUR, 256),
}
OURS = ("diag_ef", "diag_ggn", "diag_ggn_mc", "kfac_ggn", "kfac_ggn_mc")
#: Candidate -> what it estimates.
CANDIDATES = {kind: kind for kind in OURS} | {
    "backpack SumGradSquared": "diag_ef",
    "backpack DiagGGNExact": "diag_ggn",
    "backpack DiagGGNMC": "diag_ggn_mc",
    "backpack KFLR": "kfac_ggn",
    "backpack KFAC": "kfac_ggn_mc",
    "laplace BackPackEF": "diag_ef",
    "laplace AsdlEF": "diag_ef",
    "laplace CurvlinopsEF": "diag_ef",
    "laplace BackPackGGN": "kfac_ggn",
    "laplace AsdlGGN": "kfac_ggn",
    "laplace CurvlinopsGGN": "kfac_ggn",
    "laplace AsdlGGN mc": "kfac_ggn_mc",
    "laplace CurvlinopsGGN mc": "kfac_ggn_mc",
}
PEER_ROWS = (128, 512)
#: A candidate that takes more epochs than this is measured once.
SLOW = 25.0
REPEATS = 5
PEERS = ("backpack-for-pytorch", "laplace-torch", "curvlinops-for-pytorch", "asdfghjkl")


def runner(name: str, model: nn.Module, x: Tensor, y: Tensor, rows: int) -> Callable[[], object]:
    """Return one pass of a candidate over all data, `rows` at a time."""
    if name in OURS:
        return pass_over(name, model, x, y, rows)
    library, _, extension = name.partition(" ")
    make = backpack_pass if library == "backpack" else laplace_pass
    batch = make(extension, model.eval(), len(x))

    def run() -> None:
        total: Any = None
        for chosen in torch.arange(len(x)).split(rows):
            found = batch(x[chosen], y[chosen])
            total = found if total is None else total + found

    return run


class Sums(list[Tensor]):
    """Tensors of the parameters; adding adds each."""

    def __add__(self, other: Any) -> "Sums":
        return Sums(a + b for a, b in zip(self, other, strict=True))


def backpack_pass(extension: str, model: nn.Module, n_data: int) -> Callable[..., Sums]:
    """Return what a BackPACK extension computes of a batch."""
    import backpack
    from backpack import extensions

    extended = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    made = getattr(extensions, extension)()

    def batch(x: Tensor, y: Tensor) -> Sums:
        with backpack.backpack(made):
            loss(extended(x), y).backward()
        found = Sums()
        for parameter in extended.parameters():
            got = getattr(parameter, made.savefield)
            found += got if isinstance(got, list) else [got]
            delattr(parameter, made.savefield)
            parameter.grad = None
        return found

    return batch


def laplace_pass(extension: str, model: nn.Module, n_data: int) -> Callable[..., Any]:
    """Return what a curvature back end of laplace-torch computes of a batch."""
    import laplace.curvature as backends

    name, _, sampled = extension.partition(" ")
    options = {"stochastic": bool(sampled)} if name.endswith("GGN") else {}
    backend = getattr(backends, name)(model, "classification", **options)
    if name.endswith("EF"):
        return lambda x, y: backend.diag(x, y)[1]
    return lambda x, y: backend.kron(x, y, N=n_data)[1]


def faster_rows(name: str, model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the rows at a time with which a candidate is faster; raises where it refuses."""
    if name in OURS:
        return rows_at_once(model, x)
    most, seconds = max(PEER_ROWS), {}
    for rows in PEER_ROWS:
        runner(name, copy.deepcopy(model), x[:rows], y[:rows], rows)()  # warm-up, and refusals
        seconds[rows] = seconds_of(runner(name, copy.deepcopy(model), x[:most], y[:most], rows))
    return min(seconds, key=lambda rows: seconds[rows])


def passes(cell: Row, given: Given) -> list[Row]:
    """Return a row for each candidate of a model; candidates take turns in every repeat."""
    torch.set_num_threads(1)
    network_, shape, n_data = MODELS[cell["model"]]
    data = random_data(shape, 32 if given.quick else n_data)
    model, x, y = network(network_, shape), data.x_train, data.y_train
    rows: list[Row] = []
    runs: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    for candidate in CANDIDATES:
        try:
            sizes[candidate] = faster_rows(candidate, model, x, y)
            runs[candidate] = runner(candidate, copy.deepcopy(model), x, y, sizes[candidate])
        except Exception as error:  # a peer may fail in any way; the table says how
            why = f"{type(error).__name__}: {f'{error} '.splitlines()[0][:90]}"
            rows.append({"model": cell["model"], "candidate": candidate, "failed": why})
    found: dict[str, list[float]] = {candidate: [] for candidate in runs}
    plain_epoch(model, x, y)
    epochs: list[float] = []
    for _ in range(1 if given.quick else REPEATS):
        for candidate, run in runs.items():
            if not found[candidate] or found[candidate][0] <= SLOW:
                epochs.append(seconds_of(partial(plain_epoch, model, x, y)))
                found[candidate].append(seconds_of(run) / epochs[-1])
    for candidate, values in found.items():
        row = {"model": cell["model"], "candidate": candidate, "estimates": CANDIDATES[candidate]}
        row |= {"rows": sizes[candidate], "n_data": len(x), **spread(values)}
        rows.append({**row, "epoch_ms": round(1000 * min(epochs), 1)})
    return rows


# --- posteriors


def digits_mlp() -> nn.Module:
    """Return 64-64-64-10 on 8x8."""
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def digits_cnn() -> nn.Module:
    """Return two convolutions of 8 and 16 channels on 8x8, then a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


POSTERIORS = {"MLP 64-64-64-10": digits_mlp, "CNN 8-16": digits_cnn}
PEER = "laplace {}"
ALONE, LAPLACE = "the network alone, its training", ("AsdlGGN", "BackPackGGN", "CurvlinopsGGN")
#: Of 500 test rows by a way, "probit" or "mc".
Predict = Callable[[Tensor, str], Tensor]


def digits_tensors(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training rows of digits, 1,297 images of 8x8 with labels, and 500 to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8)[order] / 16
    y = torch.from_numpy(labels)[order]
    return x[:-500], y[:-500], x[-500:], y[-500:]


def trained(make: Callable[[], nn.Module], x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """Return a network at a mode of its log joint density with prior precision 1, by Adam."""
    model = make()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = 0.005 * (1 - epoch / epochs)
        for part in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            squares = torch.stack([parameter.square().sum() for parameter in model.parameters()])
            nll = nn.functional.cross_entropy(model(x[part]), y[part])
            (nll + squares.sum() / (2 * len(x))).backward()
            optimiser.step()
    return model.eval()


def by_own_posterior(model: nn.Module, x: Tensor, y: Tensor) -> Predict:
    """Return the predictions of our posterior, a prior precision for each tensor."""
    found = nas_evidence.posterior(model, (x, y), likelihood="categorical", structure="kronecker")
    return lambda rows, way: torch.as_tensor(found.predict(rows, method=way).probabilities)  # type: ignore[arg-type]


def by_laplace(backend: str, model: nn.Module, x: Tensor, y: Tensor) -> Predict:
    """Return the predictions of laplace-torch, a prior precision for each tensor."""
    import laplace
    import laplace.curvature as backends

    data = torch.utils.data.TensorDataset(x, y)
    found = laplace.Laplace(
        model, "classification", subset_of_weights="all", hessian_structure="kron",
        backend=getattr(backends, backend),
    )  # fmt: skip
    found.fit(torch.utils.data.DataLoader(data, batch_size=512))
    found.optimize_prior_precision(method="marglik", prior_structure="layerwise")

    def predict(rows: Tensor, way: str) -> Tensor:
        parts = [found(part, link_approx=way, n_samples=1000) for part in rows.split(128)]
        return torch.cat(parts).detach()

    return predict


def posteriors(cell: Row, given: Given) -> list[Row]:
    """Return seconds and test log loss of each way, and those of the network alone."""
    torch.set_num_threads(1)
    ways: dict[str, Callable[..., Predict]] = {"ours": by_own_posterior}
    ways |= {PEER.format(name): partial(by_laplace, name) for name in LAPLACE}
    make = POSTERIORS[cell["network"]]
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(1 if given.quick else REPEATS):
        x, y, x_test, y_test = digits_tensors(seed)
        torch.manual_seed(seed)
        trained(make, x[:64], y[:64], 1)  # what a process does once is not counted
        began = time.process_time()
        model = trained(make, x, y, 2 if given.quick else 60)
        seconds = time.process_time() - began
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model(x_test), y_test))
        values = {"fit_seconds": seconds, "predict_seconds": 0.0, "probit": loss, "mc": loss}
        found.setdefault(ALONE, []).append(values)
        for way, fit in ways.items():
            began = time.process_time()
            predict = fit(copy.deepcopy(model), x, y)
            fitted = time.process_time()
            probabilities = {"probit": predict(x_test, "probit")}
            done = time.process_time()
            probabilities["mc"] = predict(x_test, "mc")
            losses = {
                how: float(nn.functional.nll_loss(p.float().clamp_min(1e-30).log(), y_test))
                for how, p in probabilities.items()
            }
            values = {"fit_seconds": fitted - began, "predict_seconds": done - fitted}
            found.setdefault(way, []).append(values | losses)
    return [
        {**cell, "way": way, **{key: spread([one[key] for one in each], 4) for key in each[0]}}
        for way, each in found.items()
    ]


CASES = {
    "passes": Case(
        ("model", "candidate"), cells_of(("model", "candidate"), MODELS, CANDIDATES), passes,
        lambda cell: "cost/passes.csv", alone=True, packages=("torch", *PEERS),
    ),
    "posteriors": Case(
        ("network", "way"),
        cells_of(("network", "way"), POSTERIORS, (ALONE, "ours", *map(PEER.format, LAPLACE))),
        posteriors, lambda cell: "cost/posteriors.csv", alone=True, packages=("torch", *PEERS),
    ),
}  # fmt: skip
