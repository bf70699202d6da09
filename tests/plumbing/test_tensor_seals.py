"""A sealed file of tensors keeps one tensor with several names as one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.tensor_seals import n_numbers, on_cpu, read_tensors, sealed_tensors


def test_a_tensor_with_two_names_is_stored_once_and_read_under_both(tmp_path: Path) -> None:
    layer = nn.Linear(40, 40)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    path = tmp_path / "m.safetensors"
    path.write_bytes(sealed_tensors(on_cpu(model.state_dict()), {"epoch": "3"}))
    found, header = read_tensors(path)
    assert path.stat().st_size < 1.2 * 4 * (40 * 40 + 40)
    assert (header["epoch"], "shared" in header) == ("3", False)
    assert found["0.weight"] is found["2.weight"]
    assert n_numbers(found.values()) == n_numbers(model.state_dict().values()) == 40 * 41
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["transposed", "part", "empty"])
def test_views_of_one_memory_are_read_as_they_were(kind: str, tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    views = {"transposed": whole.mT, "part": whole[1], "empty": whole[:0]}
    path = tmp_path / "m.safetensors"
    path.write_bytes(sealed_tensors(on_cpu({"whole": whole, "view": views[kind]}), {}))
    found = read_tensors(path)[0]
    torch.testing.assert_close(found, {"whole": whole, "view": views[kind]}, rtol=0, atol=0)


def test_a_file_without_shared_tensors_has_no_word_of_them() -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(2)}
    assert b"shared" not in sealed_tensors(tensors, {})


def test_a_name_of_a_tensor_that_is_not_there_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(sealed_tensors({"a": torch.ones(2)}, {"shared": '{"b": "c"}'}))
    with pytest.raises(DamagedError):
        read_tensors(path)
