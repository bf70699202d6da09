"""Decode packed images: JPEG streams in one .npz into the arrays that a study reads.

    python benchmarks/gpu/images.py packed.npz images.npz

    <part>_jpeg     all streams one after another, uint8        part  train, test
    <part>_offsets  where each begins, and the end [n + 1]      y_<part>  labels [n]

A file that already holds x_train is copied. CIFAR-10 takes 18 MB so, and 184 MB decoded.
"""

import io
import itertools
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

_AT_ONCE = 2500


def decoded(streams: list[bytes]) -> np.ndarray:
    """Return images [n, height, width, 3], uint8."""
    opened = (Image.open(io.BytesIO(stream)).convert("RGB") for stream in streams)
    return np.stack([np.asarray(image) for image in opened])


def main(packed: Path, to: Path) -> None:
    """Decode on all cores."""
    stored = np.load(packed)
    if "x_train" in stored:
        shutil.copyfile(packed, to)
        return
    found = {}
    with ProcessPoolExecutor() as pool:
        for part in ("train", "test"):
            whole, at = stored[f"{part}_jpeg"].tobytes(), stored[f"{part}_offsets"].tolist()
            streams = [whole[a:b] for a, b in itertools.pairwise(at)]
            chunks = [streams[i : i + _AT_ONCE] for i in range(0, len(streams), _AT_ONCE)]
            found[f"x_{part}"] = np.concatenate(list(pool.map(decoded, chunks)))
            found[f"y_{part}"] = stored[f"y_{part}"].astype(np.int64)
    np.savez(to, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
