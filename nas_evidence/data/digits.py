"""Scikit-learn's bundled digits: 1,797 real 8x8 images of ten classes, grey values 0 to 16.

The data have no test set; a seeded, stratified one is split off.
"""

import numpy as np

from nas_evidence.data.arrays import RawArrays, stratified_rows
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIGITS_TEST_SIZE
from nas_evidence.spec.study import DatasetSpec, derive_seed


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the digits, split; nothing is read from `data_root` or downloaded.

    Raises:
        ValueError: If the test set would leave no training data.
    """
    from sklearn.datasets import load_digits  # late: importing takes a second

    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8).astype(np.float32)
    y = y.astype(np.int64)
    n_test = DIGITS_TEST_SIZE if spec.test_size is None else spec.test_size
    if n_test >= len(y):
        raise UserError(
            f"`test_size < {len(y)}` must hold for data set 'digits', which has {len(y)} images, "
            f"but got {n_test}; lower it with --set dataset.test_size=N"
        ).with_code("digits-test-size")
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    in_test[stratified_rows(y, n_test, generator)] = True
    return RawArrays(x[~in_test], y[~in_test], x[in_test], y[in_test])
