"""The checksums of tables and tensors see what the formats do not; see docs/decisions/0030."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.table_checksum import is_sound
from nas_evidence.plumbing.tensor_seals import n_numbers, on_cpu, read_tensors, sealed_tensors

HOME = Path(__file__).parents[1] / "golden" / "own-code"


@pytest.mark.slow
def test_the_checksum_in_a_table_sees_every_bit_that_changes_it_and_that_of_pages_does_not() -> (
    None
):
    sound = pq.ParquetFile(HOME / "curves" / "000000-a1.parquet").read()
    stream = pa.BufferOutputStream()
    pq.write_table(
        sound, stream, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = stream.getvalue().to_pybytes()
    missed = Counter[str]()
    for at in range(0, len(content), 4):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at // 4 % 8)
        for pages in (True, False):
            file = pa.BufferReader(bytes(damaged))
            try:
                read = pq.ParquetFile(file, page_checksum_verification=pages).read()
                seen = not is_sound(read)
            except (OSError, ValueError, pa.ArrowException):
                continue
            if read.equals(sound) and read.schema.equals(sound.schema):
                continue
            missed["pages" if pages else "none"] += 1
            missed["table"] += not pages and not seen
    assert missed["table"] == 0
    assert 0 < missed["pages"] < missed["none"]


# --- a sealed file of tensors keeps one tensor with several names as one


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
