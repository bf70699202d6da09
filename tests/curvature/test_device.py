"""What a pass costs beyond arithmetic on a device: waits and copies, counted on "meta".

Tensors on "meta" have no values, so any read of one raises, unless the mode below answers it.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.curvature.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.models import skeleton
from nas_evidence.spec.study import ArchitectureSpec

KINDS = ("diag_ef", "diag_ggn", "diag_ggn_mc", "kfac_ggn", "kfac_ggn_mc", "kfac_ef")
NETWORKS = {
    "mlp": ({"depth": 1, "width": 4}, (5,)),
    "cnn": ({"depth": 2, "width": 2}, (1, 8, 8)),
    "resnet": ({"depth": 8, "width": 8}, (1, 8, 8)),
}


class Traffic(TorchDispatchMode):
    """Counts reads of a device's values by the host, and copies to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.copies = 0, 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.reads += 1
            return 1
        if function is torch.ops.aten._to_copy.default:
            target = kwargs.get("device") or args[0].device
            if args[0].is_meta and target.type == "cpu":
                self.reads += 1
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            self.copies += target.type == "meta" and not args[0].is_meta
        return function(*args, **kwargs)


def traffic_of(
    kind: str, family: str, n_data: int, likelihood: Likelihood
) -> tuple[Traffic, CurvaturePass]:
    values, shape = NETWORKS[family]
    model = skeleton(ArchitectureSpec(family=family, values=values), shape, 3).to("meta")
    x = torch.empty(n_data, *shape, device="meta")
    if isinstance(likelihood, Categorical):
        y = torch.empty(n_data, dtype=torch.int64, device="meta")
    else:
        y = torch.empty(n_data, 3, device="meta")
    generator = torch.Generator().manual_seed(0)
    with Traffic() as traffic:
        pass_ = curvature_pass(kind, model, x, y, likelihood, batch_size=2, generator=generator)
    return traffic, pass_


@pytest.mark.slow
@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_reads_the_device_before_and_after_its_batches_only(kind: str, family: str) -> None:
    for n_data in (2, 7):  # one batch and four
        traffic, _ = traffic_of(kind, family, n_data, Categorical())
        # The range of the labels, the check of the gradients, and the sums at the end.
        assert traffic.reads == 2 + (family != "mlp")  # whose layers need no check
        assert traffic.copies == kind.endswith("_mc")  # all signs at once


def test_a_pass_over_real_targets_reads_twice() -> None:
    assert traffic_of("kfac_ggn_mc", "cnn", 7, Gaussian(0.5))[0].reads == 2


@pytest.mark.parametrize("kind", ["diag_ef", "kfac_ggn"])
def test_spectra_stay_on_the_device_and_are_checked_by_one_read(kind: str) -> None:
    _, pass_ = traffic_of(kind, "cnn", 4, Categorical())
    with Traffic() as traffic:
        spectra = pass_.curvature.spectra()
    assert all(spectrum.is_meta for spectrum in spectra)
    assert traffic.reads == 1


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
