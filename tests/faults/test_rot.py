"""Flipped bits in checkpoints, weights and exports: noticed, never another result."""

import random
from pathlib import Path

import pytest
import torch
from faulty import flipped

from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors
from nas_evidence.training.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint

STATE = {"a": torch.arange(50.0), "epoch": 3, "names": ["x", "y"]}


@pytest.mark.slow
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


@pytest.mark.slow
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
