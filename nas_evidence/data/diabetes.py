"""Scikit-learn's bundled diabetes data: 442 patients, ten features, one real target.

The target measures the progression of the disease a year later, from 25 to 346 (Efron et al.,
2004). The features are in their own units. The data have no test set; a seeded, random one is
split off.
"""

import numpy as np

from nas_evidence.data.arrays import RawArrays, random_rows
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DIABETES_TEST_SIZE
from nas_evidence.spec.study import DatasetSpec, derive_seed


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the patients, split; nothing is read from `data_root` or downloaded.

    Raises:
        ValueError: If the test set would leave fewer than two patients for training.
    """
    from sklearn.datasets import load_diabetes  # late: importing takes a second

    x, y = load_diabetes(return_X_y=True, scaled=False)
    n_test = DIABETES_TEST_SIZE if spec.test_size is None else spec.test_size
    if n_test >= len(y) - 1:
        raise UserError(
            f"`test_size < {len(y) - 1}` must hold for data set 'diabetes', which has {len(y)} "
            f"patients, but got {n_test}; lower it with --set dataset.test_size=N"
        ).with_code("diabetes-test-size")
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    in_test[random_rows(len(y), n_test, generator)] = True
    x, y = x.astype(np.float32), y.astype(np.float64)[:, None]
    return RawArrays(x[~in_test], y[~in_test], x[in_test], y[in_test])
