"""The checksum in a table sees what Parquet's page checksums do not; see docs/decisions/0030."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nas_evidence.plumbing.table_checksum import is_sound

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
