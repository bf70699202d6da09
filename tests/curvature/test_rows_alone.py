"""A datum's outputs are its own: every network is tried, and the user's data never change."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch
from messages import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import nas_evidence
from nas_evidence.curvature import KINDS
from nas_evidence.curvature.coverage import coverage
from nas_evidence.curvature.rows_alone import is_trusted, rows_to_try
from nas_evidence.training.own_family import check_first_step

Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Two layers, and any forward."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.head, self.does = nn.Linear(4, 4), nn.Linear(4, 3), forward
        self.generator = np.random.default_rng(0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def data() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(30, 4, generator=random), torch.arange(30) % 3


def _attention(m: Net, x: Tensor) -> Tensor:
    q = m.first(x)
    return m.head(functional.softmax(q @ q.T / 2, dim=-1) @ x)


def _counts(m: Net, x: Tensor) -> Tensor:
    m.calls += 1
    return m.head(m.first(x).tanh() * (1 + 0.1 * m.calls))


MIXING: dict[str, Forward] = {
    "F.batch_norm": lambda m, x: m.head(
        functional.batch_norm(m.first(x), None, None, training=True)
    ),
    "attention over the batch": _attention,
    "softmax over the batch": lambda m, x: m.head(m.first(x).softmax(0)),
    "mean of the batch": lambda m, x: m.head(m.first(x) - m.first(x).mean(0)),
    "norm of the batch": lambda m, x: m.head(m.first(x) / m.first(x).norm()),
    "sum over the batch": lambda m, x: m.head(m.first(x)).cumsum(0),
    "rolled": lambda m, x: m.head(m.first(x).tanh().roll(1, 0)),
    "place in the batch": lambda m, x: m.head(m.first(x) + torch.arange(len(x))[:, None]),
    "largest of the batch": lambda m, x: m.head(m.first(x) / m.first(x).abs().amax()),
    "sorted": lambda m, x: m.head(m.first(x).sort(0).values),
    "length of the batch": lambda m, x: m.head(m.first(x) / len(x)),
}
RANDOM: dict[str, Forward] = {
    "F.dropout": lambda m, x: m.head(functional.dropout(m.first(x), 0.5)),
    "little dropout": lambda m, x: m.head(functional.dropout(m.first(x), 0.05)),
    "noise": lambda m, x: m.head(m.first(x) + 0.01 * torch.randn(len(x), 4)),
    "numpy": lambda m, x: m.head(m.first(x) * m.generator.normal()),
    "gumbel": lambda m, x: m.head(functional.gumbel_softmax(m.first(x))),
    "state": _counts,
}
WRITING: dict[str, Forward] = {
    "sub_": lambda m, x: m.head(m.first(x.sub_(0.2).div_(0.5)).tanh()),
    "imul": lambda m, x: m.head(m.first(x.__imul__(2)).tanh()),
    "a column": lambda m, x: m.head(m.first(_without_column(x)).tanh()),
    "relu_": lambda m, x: m.head(m.first(x.relu_()).tanh()),
    "data": lambda m, x: m.head(m.first(_through_data(x)).tanh()),
    "clamp": lambda m, x: m.head(m.first(x.clamp_(-1e9, 1e9)).tanh()),
}
FAILING: dict[str, Forward] = {
    "squeeze": lambda m, x: m.head(m.first(x).tanh()).squeeze(),
    "rows": lambda m, x: m.head(m.first(x) + m.first(x)[1:2]),
    "pairs": lambda m, x: m.head(m.first(x.view(-1, 2, 4)[:, 0]).repeat(2, 1)[: len(x)]),
}


def _without_column(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def _through_data(x: Tensor) -> Tensor:
    x.data[:, 1] += 1
    return x


CODES = {
    **dict.fromkeys(MIXING, "data-of-batch-depend"),
    **dict.fromkeys(RANDOM, "model-random-in-evaluation"),
    **dict.fromkeys(WRITING, "model-writes-into-its-input"),
    **dict.fromkeys(FAILING, "model-fails-on-one-row"),
}
ALL = {**MIXING, **RANDOM, **WRITING, **FAILING}


def model_of(name: str) -> Net:
    torch.manual_seed(0)
    return Net(ALL[name])


@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn", "full_ggn"])
@pytest.mark.parametrize("name", ALL)
def test_a_datum_that_is_not_alone_is_refused_and_the_data_stay(name: str, kind: str) -> None:
    x, y = data()
    array = x.clone().numpy()
    given = torch.from_numpy(array)
    with refused(CODES[name]):
        nas_evidence.estimate_evidence(
            model_of(name), given, y, likelihood="categorical", curvature=kind,
            prior_precision=1.3,
        )  # fmt: skip
    assert_close(torch.from_numpy(array), x, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["softmax over the batch", "F.dropout", "sub_", "squeeze"])
def test_every_kind_and_every_door_refuses_it(name: str) -> None:
    x, y = data()
    before = x.clone()
    for kind in KINDS:
        with refused(CODES[name]):
            nas_evidence.estimate_evidence(
                model_of(name), x, y, likelihood="categorical", curvature=kind,
                prior_precision=1.3,
            )  # fmt: skip
    model = model_of(name)
    with refused(CODES[name]):
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), likelihood="categorical"
        )
    assert [one for one in coverage(model_of(name), (4,), 3) if one.covered] == []
    with refused("family-rows-not-alone", "x:Net"):
        check_first_step("x:Net", model_of(name), (4,), 3)
    assert_close(x, before, rtol=0, atol=0)


def test_layers_of_torch_that_mix_the_batch_are_refused() -> None:
    x, y = data()
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    for layer, code in ((norm, "batch-statistics"), (nn.Softmax(0), "data-of-batch-depend")):
        with refused(code):
            nas_evidence.estimate_evidence(
                nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)), x, y,
                likelihood="categorical", curvature="diag_ggn", prior_precision=1.3,
            )  # fmt: skip
    with refused("model-writes-into-its-input"):
        nas_evidence.estimate_evidence(
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), x, y,
            likelihood="categorical", curvature="diag_ggn", prior_precision=1.3,
        )  # fmt: skip


def test_a_loop_refuses_batch_normalisation_for_every_kind_even_without_parameters() -> None:
    x, y = data()
    for affine in (True, False):
        for kind in ("kfac_ggn", "full_ggn"):
            norm = nn.BatchNorm1d(4, affine=affine)
            model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3))
            with refused("batch-statistics", "BatchNorm1d"):
                nas_evidence.online_laplace(
                    model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y),
                    likelihood="categorical", curvature=kind,
                )  # fmt: skip


class Tied(nn.Module):
    """The decoder uses the weight of the encoder in its own operation, for some rows."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4, padding_idx=0) if when == "texts" else None
        self.encoder, self.head, self.when = nn.Linear(4, 4), nn.Linear(4, 3), when

    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            present = (x > 0)[..., None]
            x = (self.words(x) * present).sum(1)
        used = x.abs().sum(1, keepdim=True) > 0
        if self.when == "dead units":
            used = x[:, :1] > 0
        elif self.when == "branch":
            used = x[:, :1] > 0.5
        h = torch.tanh(self.encoder(x))
        again = functional.linear(h, self.encoder.weight.T)
        return self.head(h + torch.where(used, again, torch.zeros_like(again)))


def _hidden(when: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Data of which the first rows, or nearly all, do not use the second place of the weight."""
    random = torch.Generator().manual_seed(4)
    if when == "texts":
        x = torch.randint(1, 6, (40, 3), generator=random)
        x[:30] = 0
    else:
        x = torch.randn(40, 4, generator=random).double()
        x[:36] = 0 if when == "zero rows" else x[:36] - 5
        x[36:, 0] = 1.5
    torch.manual_seed(0)
    return Tied(when).double(), x, torch.arange(40) % 3


@pytest.mark.parametrize("when", ["zero rows", "texts", "dead units", "branch"])
def test_a_weight_that_few_rows_use_twice_is_seen(when: str) -> None:
    """Against gradients one datum at a time; Kronecker kinds refuse."""
    model, x, y = _hidden(when)
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="categorical", curvature="full_ggn", prior_precision=1.3
    )
    full = reference.full_ggn(model, x, None)
    precision = [1.3] * len(list(model.parameters()))
    expected = reference.log_evidence(model, x, y, None, precision, [full])
    assert found.value == pytest.approx(expected, rel=1e-9)
    with refused("kind-does-not-support-model", "encoder.weight"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="categorical", curvature="kfac_ggn", prior_precision=1.3
        )


class Positions(nn.Module):
    """An embedding of positions whose input has no axis of the data."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.places, self.head = nn.Embedding(length, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.places(torch.arange(x.shape[1]))
        return self.head(h.tanh().mean(1))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_an_axis_as_long_as_the_batch_is_not_taken_for_the_data(
    n: int, length: int, batch_size: int
) -> None:
    torch.manual_seed(n)
    x, y = torch.randn(n, length, 4).double(), torch.arange(n) % 3
    model = Positions(length).double()
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="categorical", curvature="full_ggn", prior_precision=1.3,
        batch_size=batch_size,
    )  # fmt: skip
    full = reference.full_ggn(model, x, None)
    expected = reference.log_evidence(model, x, y, None, [1.3] * 3, [full])
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_what_changes_the_data_in_a_rare_branch_changes_a_copy() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        if len(x) == 2 and bool((x[0] == -x[1]).all()):  # one batch of the data
            x += 1
        return m.head(m.first(x).tanh())

    x, y = data()
    x[9] = -x[8]
    before = x.clone()
    torch.manual_seed(0)
    nas_evidence.estimate_evidence(
        Net(forward), x, y, likelihood="categorical", curvature="diag_ggn", prior_precision=1.3,
        batch_size=2,
    )  # fmt: skip
    assert_close(x, before, rtol=0, atol=0)


def test_networks_of_plain_layers_are_trusted_and_others_are_tried_on_rows_of_all_data() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    assert is_trusted(plain)
    hooked = copy.deepcopy(plain)
    hooked[1].register_forward_hook(lambda *given: given[2] - given[2].mean(0))
    assert not is_trusted(hooked)
    patched: Any = copy.deepcopy(plain)
    patched[1].forward = lambda x: x
    assert not is_trusted(patched)
    for other in (nn.Flatten(0), nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Softmax(0)):
        assert not is_trusted(nn.Sequential(nn.Linear(4, 4), other))
    x = torch.arange(1000.0)[:, None].repeat(1, 4)
    x[:, 1:] *= (torch.arange(1000) % 50 == 7)[:, None]
    rows = rows_to_try(hooked, x)
    assert len(rows) == 64
    assert rows[:, 0].median() > 200
    assert float(rows[0, 1]) > 0  # a row with entries comes first
