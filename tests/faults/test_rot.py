"""Flipped bits in checkpoints, weights and exports: noticed, never another result."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from faulty import flipped

from nas_evidence.exporting.program import Exported, load_exported
from nas_evidence.exporting.sums import write_sums
from nas_evidence.models import build
from nas_evidence.sealing import DamagedError, read_tensors, sealed_tensors
from nas_evidence.spec import ArchitectureSpec
from nas_evidence.training.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint

STATE = {"a": torch.arange(50.0), "epoch": 3, "names": ["x", "y"]}


def test_no_flipped_bit_of_a_checkpoint_is_read_as_another_state(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 3, STATE)
    sound, chance = path.read_bytes(), random.Random(0)
    for _ in range(200):
        flipped(path, chance.randrange(len(sound)), chance.randrange(8))
        with pytest.raises(DamagedError):
            read_checkpoint(path)
        path.write_bytes(sound)


def test_a_flipped_checkpoint_costs_a_slice_and_not_the_trial(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 2, {"epoch": 2})
    flipped(save_checkpoint(tmp_path, 4, {"epoch": 4}), 200)
    assert load_checkpoint(tmp_path) == {"epoch": 2}


def test_a_checkpoint_of_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "epoch-000003.pt")
    assert load_checkpoint(tmp_path)["epoch"] == 3  # type: ignore[index]


def test_no_flipped_bit_of_weights_is_read_as_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"w": torch.randn(7, 3), "b": torch.zeros(3, dtype=torch.float64)}
    path.write_bytes(sealed_tensors(tensors, {"noise_std": "0.5"}))
    sound, chance = path.read_bytes(), random.Random(0)
    for _ in range(400):
        flipped(path, chance.randrange(len(sound)), chance.randrange(8))
        try:
            got, header = read_tensors(path)
        except DamagedError:
            pass
        else:  # the flip is in blanks, or in the name of the checksum
            assert header["noise_std"] == "0.5"
            for name, tensor in tensors.items():
                torch.testing.assert_close(got[name], tensor, rtol=0, atol=0)
        path.write_bytes(sound)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export folder, as small as one can be."""
    spec = ArchitectureSpec(family="mlp", values={"width": 4, "depth": 1, "shape": "constant"})
    model = build(spec, (3,), 2, torch.Generator().manual_seed(0))
    whole = Exported(model, torch.zeros(3), torch.ones(3))
    n = sum(p.numel() for p in model.parameters())
    (tmp_path / "architecture.toml").write_text(
        f'family = "mlp"\ninput_shape = [3]\nn_classes = 2\nn_parameters = {n}\n'
        '[values]\nwidth = 4\ndepth = 1\nshape = "constant"\n'
    )
    content = sealed_tensors({k: t.contiguous() for k, t in whole.state_dict().items()}, {})
    (tmp_path / "model.safetensors").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("with_sums", [True, False])
@pytest.mark.parametrize("name", ["architecture.toml", "model.safetensors"])
def test_a_damaged_export_is_refused_with_its_documented_error(
    export: Path, name: str, with_sums: bool
) -> None:
    if with_sums:
        write_sums(export, ("architecture.toml", "model.safetensors"))
    inputs = torch.from_numpy(np.ones((2, 3), np.float32))
    right = load_exported(export)(inputs)
    sound, chance = (export / name).read_bytes(), random.Random(1)
    for _ in range(60):
        kind = chance.choice(["flip", "cut", "garbage"])
        if kind == "flip":
            flipped(export / name, chance.randrange(len(sound)), chance.randrange(8))
        elif kind == "cut":
            (export / name).write_bytes(sound[: chance.randrange(len(sound))])
        else:
            (export / name).write_bytes(chance.randbytes(chance.randrange(300)))
        loaded, said = None, ""
        try:
            loaded = load_exported(export)
        except ValueError as error:
            said = str(error)
        assert loaded or (str(export) in said and "\n" not in said)
        if loaded:
            assert not with_sums
            torch.testing.assert_close(loaded(inputs), right, rtol=0, atol=0)
        (export / name).write_bytes(sound)
