"""ONNX: onnxruntime gives what torch gives, for every shipped family, alone and together."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nas_evidence.data import ArrayData, load
from nas_evidence.exporting import onnx_program
from nas_evidence.exporting.onnx_program import write_onnx
from nas_evidence.exporting.program import Exported, Mixed
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec

try:
    import onnxruntime
    import onnxscript  # noqa: F401
except ImportError as missing:
    pytest.skip(f"the extra onnx is not installed: {missing}", allow_module_level=True)


@pytest.fixture(scope="module")
def digits() -> ArrayData:
    return load(DatasetSpec(name="digits", max_train=60, max_test=10), seed=0)


def network(
    family: str, arrays: ArrayData, seed: int = 0, *, noisy: bool = False, **values: int | str
) -> Exported:
    spec = ArchitectureSpec(family=family, values=values)
    generator = torch.Generator().manual_seed(seed)
    width = (1 + noisy) * arrays.n_outputs
    model = build(spec, arrays.input_shape, width, generator)
    with torch.no_grad():  # a network fresh from its initialisation may have outputs of 0
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    mean, std = torch.from_numpy(arrays.mean), torch.from_numpy(arrays.std)
    if arrays.task == "labels":
        return Exported(model, mean, std, scale=torch.tensor(0.7)).eval()
    scale, shift = (torch.from_numpy(v).float() for v in (arrays.y_std, arrays.y_mean))
    likelihood = Heteroscedastic() if noisy else None
    return Exported(model, mean, std, likelihood=likelihood, scale=scale, shift=shift).eval()


def run(path: Path, rows: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"inputs": rows.astype(np.float32)})[0])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("linear", {}),
        ("mlp", {"depth": 2, "width": 9}),
        ("cnn", {"depth": 2, "width": 3}),
        ("resnet", {"depth": 8, "width": 4}),
    ],
)
def test_every_family_gives_in_onnxruntime_what_it_gives_in_torch(
    digits: ArrayData, tmp_path: Path, family: str, values: dict[str, int]
) -> None:
    exported = network(family, digits, **values)
    assert write_onnx(exported, tmp_path / "m.onnx", digits) <= 1e-5
    with torch.no_grad():
        expected = exported(torch.from_numpy(digits.x_test)).numpy()
    np.testing.assert_allclose(run(tmp_path / "m.onnx", digits.x_test), expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_an_ensemble_and_real_targets_are_one_file_each(digits: ArrayData, tmp_path: Path) -> None:
    members = [network("mlp", digits, seed, depth=1, width=5) for seed in (1, 2)]
    both = Mixed(members, np.array([0.3, 0.7]))
    write_onnx(both, tmp_path / "both.onnx", digits)
    logs = run(tmp_path / "both.onnx", digits.x_test)
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=1e-5)
    real = load(DatasetSpec(name="diabetes", max_train=60, max_test=10), seed=0)
    exported = network("mlp", real, depth=1, width=5)
    assert write_onnx(exported, tmp_path / "real.onnx", real) <= 1e-5
    assert run(tmp_path / "real.onnx", real.x_test).mean() == pytest.approx(150, abs=60)


def test_without_the_extra_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_program, "_NEEDED", ("onnx", "no_such_runtime"))
    with pytest.raises(ValueError, match=r"needs no_such_runtime: .*\.\[onnx\]"):
        onnx_program.check_installed()


@pytest.mark.slow
def test_a_network_that_predicts_its_noise_gives_the_mean_alone(tmp_path: Path) -> None:
    real = load(DatasetSpec(name="diabetes", max_train=60, max_test=10), seed=0)
    exported = network("mlp", real, noisy=True, depth=1, width=5)
    assert write_onnx(exported, tmp_path / "m.onnx", real) <= 1e-5
    with torch.no_grad():
        scaled = (torch.from_numpy(real.x_test) - exported.mean) / exported.std
        outputs = exported.model(scaled)
    assert outputs.shape == (10, 2)
    means = Heteroscedastic().mean(outputs).numpy()
    found = run(tmp_path / "m.onnx", real.x_test)
    np.testing.assert_allclose(found, means * real.y_std + real.y_mean, rtol=1e-4)
