"""Scikit-learn's bundled data: `digits`, images of ten classes, and `diabetes`, one real target.

    digits    1,797 images of 8 x 8 pixels, grey values 0 to 16
    diabetes  442 patients, ten features in their own units; the target measures the progression
              of the disease a year later, from 25 to 346 (Efron et al., 2004)

Neither has a test set. A seeded one is split off: of digits with the proportions of the classes.
"""

import numpy as np

from nas_evidence.data.arrays import RawArrays, random_rows, stratified_rows
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIABETES_TEST_SIZE, DIGITS_TEST_SIZE
from nas_evidence.spec.study import DatasetSpec, derive_seed


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the data, split; nothing is read from `data_root` or downloaded.

    Raises:
        ValueError: If the test set would leave no image, or fewer than two patients, for training.
    """
    from sklearn.datasets import load_diabetes, load_digits  # late: importing takes a second

    labels = spec.name == "digits"
    if labels:
        x, y = load_digits(return_X_y=True)
        x, y = x.reshape(-1, 1, 8, 8), y.astype(np.int64)
    else:
        x, y = load_diabetes(return_X_y=True, scaled=False)
        y = y.astype(np.float64)[:, None]
    n_test = spec.test_size or (DIGITS_TEST_SIZE if labels else DIABETES_TEST_SIZE)
    limit = len(y) if labels else len(y) - 1
    if n_test >= limit:
        raise UserError(
            f"`test_size < {limit}` must hold for data set '{spec.name}', which has {len(y)} "
            f"{'images' if labels else 'patients'}, but got {n_test}; lower it with "
            "--set dataset.test_size=N"
        ).with_code("test-size-too-large")
    generator = np.random.default_rng(derive_seed(seed, "split"))
    split = (
        stratified_rows(y, n_test, generator) if labels else random_rows(len(y), n_test, generator)
    )
    in_test = np.zeros(len(y), dtype=bool)
    in_test[split] = True
    x = x.astype(np.float32)
    return RawArrays(x[~in_test], y[~in_test], x[in_test], y[in_test])
