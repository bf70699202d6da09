"""Curvature on an invented GPU: the values of the CPU, and what a pass costs beyond arithmetic."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import cases
import pytest
import torch
from both_devices import TOLERANCE, numbers_of
from cases import CASES, Case
from fake_gpu import FakeGpu
from launches import ALLOWED, STEP, Traffic, data_of, launches_of
from torch import Tensor, nn

from nas_evidence import estimate_evidence
from nas_evidence.curvature import KINDS, CurvaturePass, curvature_pass
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.models import build
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import ArchitectureSpec

BATCHED = ("diag_ef", "diag_ggn", "diag_ggn_mc", "kfac_ggn", "kfac_ggn_mc", "kfac_ef")
NETWORKS = {
    "mlp": ({"depth": 1, "width": 4}, (5,)),
    "cnn": ({"depth": 2, "width": 2}, (1, 8, 8)),
    "resnet": ({"depth": 8, "width": 8}, (1, 8, 8)),
}


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with FakeGpu() as found:
        yield found


def on_gpu(case: Case) -> Case:
    case.model, case.x, case.y = case.model.to("cuda"), case.x.to("cuda"), case.y.to("cuda")
    return case


def assert_kinds_agree(made: Callable[[], Case], kinds: Iterable[str], **asked: object) -> None:
    for kind in kinds:
        truth = made().estimate(kind, **asked)
        with FakeGpu() as gpu:
            found = on_gpu(made()).estimate(kind, **asked)
        assert gpu.launches.total() > 20
        assert numbers_of(found) == pytest.approx(numbers_of(truth), rel=TOLERANCE, abs=TOLERANCE)


def test_evidence_of_a_small_network_is_the_same_on_a_gpu() -> None:
    assert_kinds_agree(partial(cases.case, "mlp"), ("diag_ef", "kfac_ggn_mc", "full_ggn"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_evidence_is_the_same_on_a_gpu(name: str) -> None:
    assert_kinds_agree(partial(cases.case, name), KINDS, at_mode_correction=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_ratios_of_traces_and_few_draws_are_the_same_on_a_gpu(name: str) -> None:
    kinds = [kind for kind, one in CURVATURES.items() if one.form.shares_bias]
    assert_kinds_agree(partial(cases.case, name), kinds, trace_ratio=True)
    assert_kinds_agree(partial(cases.case, name), ("kfac_ggn_mc", "diag_ggn_mc"), n_draws=3)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[..., None])[0][:, -1])


def unusual(name: str) -> Case:
    """Return a network with layers that have rules of their own, or none."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 5, generator=draw).double(), torch.arange(6) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "attention":
            return Case(Attentive().double(), (x * 2).long() % 9, y)
        if name == "recurrent":
            return Case(Recurrent().double(), x, y)
        return Case(nn.Sequential(nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 3)).double(), x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("attention", ("diag_ef", "diag_ggn", "full_ggn", "kfac_ggn")),
        ("recurrent", ("diag_ef", "diag_ggn", "full_ef")),
        ("prelu", tuple(KINDS)),
    ],
)
def test_unusual_layers_have_the_same_curvature_on_a_gpu(name: str, kinds: tuple[str]) -> None:
    assert_kinds_agree(partial(unusual, name), kinds)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["regression", "conv_plain", "residual"])
@pytest.mark.parametrize("most_full", [0, 10_000])
def test_the_posterior_and_its_spread_are_the_same_on_a_gpu(name: str, most_full: int) -> None:
    def covariance(case: Case) -> Tensor:
        names = [name for name, _ in case.model.named_parameters()]
        assert case.prior_precision is not None
        precisions = case.prior_precision.to(case.x.device)[:, None].unbind()
        posterior = fit_posterior(
            case.model, case.x, case.y, case.likelihood,
            dict(zip(names, precisions, strict=True)), most_full=most_full,
        )  # fmt: skip
        found = posterior.output_covariance(case.model, case.x)
        assert found.device == case.x.device
        return found.cpu()

    truth = covariance(cases.case(name))
    with FakeGpu():
        found = covariance(on_gpu(cases.case(name)))
    torch.testing.assert_close(found, truth, rtol=TOLERANCE, atol=1e-12)


def pass_of(
    gpu: FakeGpu, kind: str, family: str, n: int, likelihood: Likelihood
) -> tuple[Traffic, CurvaturePass]:
    """Return what a pass in batches of two does, and what it finds."""
    values, shape = NETWORKS[family]
    draw = torch.Generator().manual_seed(1)
    model = build(ArchitectureSpec(family=family, values=values), shape, 10, draw)
    with torch.no_grad():  # off the zeros that Fixup starts with
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    model.to("cuda")
    data = data_of(n, shape)
    y = data.y_train
    if isinstance(likelihood, Gaussian):
        y = torch.nn.functional.one_hot(y, 10).float()
    generator = torch.Generator().manual_seed(0)
    gpu.forget()
    found = curvature_pass(
        kind, model, data.x_train, y, likelihood, batch_size=2, generator=generator
    )
    return Traffic.of(gpu), found


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("kind", BATCHED)
def test_a_pass_reads_the_gpu_before_and_after_its_batches_only(
    kind: str, family: str, gpu: FakeGpu
) -> None:
    for n in (2, 7):  # one batch and four
        traffic, _ = pass_of(gpu, kind, family, n, Categorical())
        # The range of the labels, the check of the gradients, and the sums at the end.
        assert traffic.reads == 2 + (family != "mlp")  # whose layers need no check
        assert traffic.copies == kind.endswith("_mc")  # all signs at once


def test_a_pass_over_real_targets_reads_twice(gpu: FakeGpu) -> None:
    assert pass_of(gpu, "kfac_ggn_mc", "cnn", 7, Gaussian(0.5))[0].reads == 2


@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn"])
def test_spectra_stay_on_the_gpu_and_are_checked_by_one_read(kind: str, gpu: FakeGpu) -> None:
    _, found = pass_of(gpu, kind, "cnn", 4, Categorical())
    gpu.forget()
    spectra = found.curvature.spectra()
    assert all(spectrum.is_cuda for spectrum in spectra)
    decompositions = sum(gpu.launches[name] for name in ("_linalg_eigh", "linalg_eigh"))
    assert gpu.reads.total() == 1 + decompositions


def test_full_precision_holds_inside_and_restores_the_users_settings() -> None:
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.conv)
    before = [setting.fp32_precision for setting in settings]
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "tf32"
        with torch.autocast("cpu"), full_precision():
            assert [setting.fp32_precision for setting in settings] == ["ieee"] * 3
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        with pytest.raises(KeyError), full_precision():
            raise KeyError
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
        assert torch.backends.mkldnn.conv.fp32_precision == before[2]
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def test_curvature_is_in_full_precision_whatever_the_user_allows() -> None:
    model = torch.nn.Linear(4, 3)
    seen: list[tuple[str, torch.dtype]] = []

    def look(_: Any, __: Any, out: Tensor) -> None:
        seen.append((torch.backends.cudnn.conv.fp32_precision, out.dtype))

    model.register_forward_hook(look)
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    with torch.autocast("cpu"):
        pass_ = curvature_pass("kfac_ggn", model, x, y, Categorical(), batch_size=2)
    assert set(seen) == {("ieee", torch.float32)}
    assert pass_.curvature.spectra()[0].dtype == torch.float64


def launches_of_resnet(depth: int, width: int, *kinds: str) -> dict[str, int]:
    values: dict[str, object] = {"depth": depth, "width": width}
    return launches_of("resnet", values, image=(1, 8, 8), rows=4, kinds=kinds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "times"),
    [(8, 4), *(pytest.param(depth, 6, marks=pytest.mark.long) for depth in (14, 32))],
)
def test_a_pass_of_diag_ef_launches_a_few_times_what_a_training_step_does(
    depth: int, times: int
) -> None:
    found = launches_of_resnet(depth, 4, "diag_ef")
    assert 0 < found["diag_ef"] <= times * found[STEP]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diag_ef", "ekfac_ggn", "kfac_ggn_mc"])
def test_a_pass_launches_as_much_for_wide_networks_as_for_narrow_ones(kind: str) -> None:
    """But for the forms of a layer that are chosen by its width."""
    narrow, wide = (launches_of_resnet(8, width, kind)[kind] for width in (4, 16))
    assert 0 < wide <= ALLOWED * narrow


# --- a pass that ends for want of memory says so: the network is not to blame


class Hungry(nn.Module):
    def __init__(self, fails_on: int) -> None:
        super().__init__()
        self.layer, self.fails_on = nn.Linear(3, 2), fails_on

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == self.fails_on:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return self.layer(x)


@pytest.mark.parametrize("kind", ["diag_ef", "full_ggn", "kfac_ggn"])
@pytest.mark.parametrize("fails_on", [1, 8])
def test_want_of_memory_is_no_fault_of_the_model(kind: str, fails_on: int) -> None:
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    with pytest.raises(RuntimeError) as caught:
        estimate_evidence(
            Hungry(fails_on), x, y, likelihood="categorical", curvature=kind, prior_precision=1.0
        )
    assert is_memory_full(caught.value)
    assert type(caught.value) is RuntimeError, caught.value
