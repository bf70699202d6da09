"""Data sets: exact sizes, no leak from the test labels, one clear message for each mistake."""

import gzip
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import refused

from nas_evidence.data import ArrayData, load
from nas_evidence.data.arrays import moments, slices, value_range
from nas_evidence.data.mapped import MappedRows, stratified_rows
from nas_evidence.data.named import read_idx
from nas_evidence.data.tensors import batches, to_tensors
from nas_evidence.spec.study import DatasetSpec

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
TRAINING = ("x_train", "y_train", "mean", "std")


def assert_same(left: ArrayData, right: ArrayData, fields: tuple[str, ...]) -> None:
    for field in fields:
        np.testing.assert_array_equal(getattr(left, field), getattr(right, field), err_msg=field)


def example_arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.normal(size=(60, 5)),
        "y_train": np.arange(60) % 3,
        "x_test": generator.normal(size=(30, 5)),
        "y_test": np.arange(30) % 3,
    }


Write = Callable[..., DatasetSpec]


@pytest.fixture
def own(tmp_path: Path) -> Write:
    """Write the example, some arrays replaced, or dropped where None; return its spec."""

    def write(
        limits: dict[str, int] | None = None, *, folder: bool = False, **changed: Any
    ) -> DatasetSpec:
        arrays = {k: v for k, v in {**example_arrays(), **changed}.items() if v is not None}
        path = tmp_path / ("own" if folder else "own.npz")
        if folder:
            path.mkdir(exist_ok=True)
            for key, array in arrays.items():
                np.save(path / f"{key}.npy", array)
        else:
            np.savez(path, **arrays)
        return DatasetSpec(name="npz", path=str(path), **(limits or {}))

    return write


def write_idx(path: Path, array: np.ndarray, *, zipped: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def write_mnist_like(folder: Path, y_test: np.ndarray, *, zipped: bool = False) -> None:
    generator = np.random.default_rng(1)
    for part, n in (("train", 40), ("t10k", 20)):
        images = generator.integers(0, 256, (n, 28, 28))
        write_idx(folder / f"{part}-images-idx3-ubyte", images, zipped=zipped)
    write_idx(folder / "train-labels-idx1-ubyte", np.arange(40) % 10, zipped=zipped)
    write_idx(folder / "t10k-labels-idx1-ubyte", y_test, zipped=zipped)


@pytest.mark.slow
def test_arrays_are_read_without_torch_and_without_scikit_learn():
    code = (
        "import sys; import nas_evidence.data; "
        "assert not {'torch', 'sklearn', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- stratified subsets


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_stratified_rows_are_exact_in_number_and_within_one_of_proportion(
    counts: list[int], fraction: float, seed: int
):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    n_rows = int(fraction * len(y))
    rows = stratified_rows(y, n_rows, np.random.default_rng(seed))
    assert len(rows) == n_rows == len(set(rows.tolist()))
    drawn = np.bincount(y[rows], minlength=len(counts))
    assert np.all(np.abs(drawn - n_rows * np.array(counts) / len(y)) < 1)
    np.testing.assert_array_equal(rows, stratified_rows(y, n_rows, np.random.default_rng(seed)))


def test_largest_remainder_by_hand():
    y = np.repeat([0, 1, 2], [5, 3, 2])  # of 4: 2.0, 1.2, 0.8 -> 2, 1, 1
    rows = stratified_rows(y, 4, np.random.default_rng(0))
    assert np.bincount(y[rows]).tolist() == [2, 1, 1]


# --- digits


def test_digits_split_is_exact_stratified_and_complete():
    data = load(DatasetSpec(name="digits"), seed=0)
    assert (len(data.x_train), len(data.x_test)) == (1297, 500)
    assert data.n_train == 1297
    assert data.input_shape == (1, 8, 8)
    assert data.n_outputs == 10
    assert data.x_train.dtype == np.float32
    assert (data.x_train.min(), data.x_train.max()) == (0, 16)
    total = np.bincount(data.y_train) + np.bincount(data.y_test)
    assert np.all(np.abs(np.bincount(data.y_test) - 500 * total / 1797) < 1)
    rows = np.concatenate([data.x_train, data.x_test]).reshape(1797, -1)
    assert rows.sum(dtype=np.float64) == 561_718  # the sum of all grey values of the set


def test_digits_split_depends_on_the_seed_alone():
    spec = DatasetSpec(name="digits", test_size=300)
    first = load(spec, seed=3)
    np.random.default_rng(0).random(7)
    assert_same(first, load(spec, seed=3), (*TRAINING, *ARRAYS))
    assert not np.array_equal(first.y_test, load(spec, seed=4).y_test)
    assert len(first.y_test) == 300


@pytest.mark.parametrize(("name", "n"), [("digits", 1797), ("diabetes", 441)])
def test_too_large_a_test_part_names_both_numbers(name: str, n: int):
    with refused("test-size-too-large", name, n):
        load(DatasetSpec(name=name, test_size=n), seed=0)


# --- subsets of any set


def test_max_train_does_not_move_the_test_part_nor_the_reverse():
    whole = load(DatasetSpec(name="digits"), seed=0)
    fewer = load(DatasetSpec(name="digits", max_train=200), seed=0)
    both = load(DatasetSpec(name="digits", max_train=200, max_test=50), seed=0)
    assert_same(whole, fewer, ("x_test", "y_test"))
    assert_same(fewer, both, TRAINING)
    assert np.bincount(fewer.y_train).tolist() == [20] * 10
    assert len(both.y_test) == 50
    assert fewer.n_outputs == 10


def test_scaling_is_of_the_rows_that_are_trained_on():
    data = load(DatasetSpec(name="digits", max_train=100), seed=0)
    mean, std = moments(data.x_train)
    np.testing.assert_array_equal(data.mean, mean)
    np.testing.assert_array_equal(data.std, std)


@pytest.mark.parametrize("part", ["train", "test"])
def test_more_than_available_names_both_numbers(part: str, own: Write):
    n = {"train": 60, "test": 30}[part]
    load(own({f"max_{part}": n}), seed=0)
    wrong = rf"max_{part} <= {n}.* got {n + 1}; lower it: set dataset.max_{part}"
    with pytest.raises(ValueError, match=wrong):
        load(own({f"max_{part}": n + 1}), seed=0)


# --- scaling


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_moments_of_images_are_per_channel(dtype: type):
    x = np.random.default_rng(0).integers(0, 256, (5000, 3, 2, 3)).astype(dtype)
    mean, std = moments(x)
    assert mean.shape == std.shape == (3, 1, 1)
    wide = x.astype(np.float64)
    # float64 sums, then one rounding to float32: 2^-24
    np.testing.assert_allclose(mean[:, 0, 0], wide.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(std[:, 0, 0], wide.std((0, 2, 3)), rtol=1e-7)


def test_constant_features_get_std_one_though_their_mean_rounds():
    x = np.full((1000, 3), 0.1, dtype=np.float32)
    x[:, 1] = np.arange(1000)
    _, std = moments(x)
    assert std[0] == std[2] == 1
    assert std[1] == pytest.approx(np.arange(1000).std())


def test_tensors_are_normalised_copies_also_of_read_only_arrays():
    arrays = load(DatasetSpec(name="digits"), seed=0)
    kept = {field: getattr(arrays, field).copy() for field in ARRAYS}
    data = to_tensors(arrays, "cpu")
    assert data.x_train.dtype == data.x_test.dtype == torch.float32
    assert data.y_train.dtype == data.y_test.dtype == torch.int64
    assert (data.n_outputs, data.input_shape) == (10, (1, 8, 8))
    # float32 rounding of 83,000 values near 1
    assert data.x_train.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert data.x_train.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)
    expected = (torch.tensor(kept["x_test"]) - arrays.mean.item()) / arrays.std.item()
    torch.testing.assert_close(data.x_test, expected)
    data.x_train.zero_()
    data.y_train.zero_()
    for field in ARRAYS:
        np.testing.assert_array_equal(getattr(arrays, field), kept[field])
    for field in (*ARRAYS, "mean", "std"):  # read-only, as they come out of a shared store
        getattr(arrays, field).flags.writeable = False
    to_tensors(arrays, "cpu")


def test_batches_visit_every_row_once_in_an_order_drawn_when_they_are_called():
    def drawn(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        waiting = batches(10, 4, generator)
        after = generator.get_state()
        found = [rows.tolist() for rows in waiting]
        assert torch.equal(generator.get_state(), after)
        return found

    assert [len(rows) for rows in drawn(0)] == [4, 4, 2]
    assert sorted(row for rows in drawn(0) for row in rows) == list(range(10))
    assert drawn(0) == drawn(0) != drawn(1)


# --- npz


#: The shape of stored images, and where the channels are; -1 if there are none.
AXES = {(6, 7): -1, (6, 7, 3): 2, (6, 7, 1): 2, (3, 6, 7): 0, (5, 6, 7): 0, (6, 6, 4): 2,
        (4, 6, 6): 0, (4, 4, 4): 0, (6, 7, 4): 0}  # fmt: skip


@pytest.mark.parametrize("stored", AXES)
def test_npz_images_become_channels_first(stored: tuple[int, ...], own: Write):
    x = np.random.default_rng(0).integers(0, 256, (60, *stored), dtype=np.uint8)
    data = load(own(x_train=x, x_test=x[:30]), seed=0)
    assert data.x_train.dtype == np.uint8
    x = x[:, None] if AXES[stored] == -1 else np.moveaxis(x, 1 + AXES[stored], 1)
    np.testing.assert_array_equal(data.x_train, x)


def test_npz_path_may_be_relative_to_the_data_root(own: Write, tmp_path: Path):
    absolute = own()
    relative = DatasetSpec(name="npz", path="own.npz")
    expected = load(absolute, seed=0, data_root="elsewhere")
    assert_same(load(relative, seed=0, data_root=str(tmp_path)), expected, ARRAYS)


def _bad_row(value: float) -> np.ndarray:
    x = example_arrays()["x_train"]
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"y_train": None}, r"y_train is missing; it has x_train, x_test, y_test"),
        ({"y_test": None}, "must have both x_test and y_test, or neither"),
        ({"y_train": np.arange(59) % 3}, "x_train and y_train .* 60 and 59"),
        ({"y_test": np.arange(31) % 3}, "x_test and y_test .* 30 and 31"),
        ({"x_train": _bad_row(np.inf)}, "x_train .*must be finite .* 1 of 60 .* row 7; remove"),
        ({"x_train": _bad_row(1e300)}, "x_train .*must be finite in float32"),
        ({"x_train": np.full((60, 5), "a")}, "x_train must be numbers, but is <U1 .*astype"),
        ({"x_train": np.full((60, 5), None)}, "x_train, a plain number array: .*bject.*astype"),
        ({"x_train": np.ones(60)}, r"x_train must be vectors .* \[60\]"),
        ({"x_test": np.ones((30, 4))}, r"agree .* \[5\] and float\d+ \[4\]"),
        ({"x_test": np.ones((30, 5), dtype=np.uint8)}, r"agree .* float\d+ .* uint8"),
        ({"y_test": np.full(30, "a")}, "test labels must be among .* 'a' is not"),
        ({"y_train": np.ones((60, 2, 1))}, r"y_train .* but the shape is \[60, 2, 1\]"),
        ({"y_train": np.ones(60, dtype=bool)}, "at least 2 classes, but every .* True"),
        ({"y_train": _bad_row(np.inf), "y_test": np.ones((30, 5))}, "y_train .* be finite"),
        ({"y_train": np.ones((60, 2)), "y_test": np.ones((30, 3))}, "as many columns"),
        ({"y_train": np.zeros(60, dtype=int)}, "at least 2 classes, but every .* 0"),
        ({"y_test": np.arange(30) % 4}, r"among the training labels, but '3' is not"),
        ({"y_train": np.array([None] * 60)}, r"y_train, a plain number array: .*bject.*\(str\)"),
    ],
)
def test_mistakes_are_named_with_the_file_or_the_folder(
    changed: dict[str, np.ndarray | None],
    says: str,
    own: Write,
):
    for folder in (False, True):
        with pytest.raises(ValueError, match=says) as caught:
            load(own(folder=folder, **changed), seed=0)
        assert ("own" if folder else "own.npz") in str(caught.value)


def test_npz_that_is_no_npz_or_missing_is_refused_and_never_unpickled(tmp_path: Path):
    for content in (b"", b"hello", pickle.dumps({"x_train": 1})):
        (tmp_path / "own.npz").write_bytes(content)
        with refused("array-file-unreadable", "own.npz"):
            load(DatasetSpec(name="npz", path=str(tmp_path / "own.npz")), seed=0)
    with pytest.raises(ValueError, match=rf"gone\.npz in {tmp_path}.*--data-root"):
        load(DatasetSpec(name="npz", path=str(tmp_path / "gone.npz")), seed=0)
    np.save(tmp_path / "own.npy", np.zeros(3))
    with refused("format-not-read", "own.npy"):
        load(DatasetSpec(name="npz", path=str(tmp_path / "own.npy")), seed=0)


# --- real targets


def test_diabetes_is_split_by_the_seed_and_keeps_its_units():
    data = load(DatasetSpec(name="diabetes"), seed=0)
    assert (len(data.x_train), len(data.x_test)) == (300, 142)
    assert (data.task, data.n_outputs, data.input_shape) == ("real", 1, (10,))
    targets = np.concatenate([data.y_train, data.y_test])
    assert targets.dtype == np.float64
    assert targets.shape == (442, 1)
    assert (targets.min(), targets.max(), targets.sum()) == (25, 346, 67_243)  # of the whole set
    assert set(data.x_train[:, 1]) == {1, 2}  # sex, not standardised
    again, other = (load(DatasetSpec(name="diabetes"), seed=seed) for seed in (0, 1))
    assert_same(data, again, (*TRAINING, *ARRAYS, "y_mean", "y_std"))
    assert not np.array_equal(data.y_test, other.y_test)


def test_real_targets_are_standardised_by_the_training_part_and_labels_are_not(own: Write):
    generator = np.random.default_rng(3)
    y_train, y_test = (1e3 + 50 * generator.normal(size=(n, 2)) for n in (60, 30))
    y_train[:, 1] = 7.0  # constant where it is learned, not where it is tested
    arrays = load(own({"max_train": 40}, y_train=y_train, y_test=y_test), seed=0)
    assert (arrays.task, arrays.n_outputs, arrays.n_train) == ("real", 2, 40)
    kept = [row in y_train[:, 0] for row in arrays.y_train[:, 0]]
    assert all(kept)
    np.testing.assert_allclose(arrays.y_mean, arrays.y_train.mean(0))
    np.testing.assert_allclose(arrays.y_std, [arrays.y_train[:, 0].std(), 1.0])
    data = to_tensors(arrays, "cpu")
    assert data.y_train.dtype == torch.float32
    assert (data.task, data.n_outputs, data.y_train.shape) == ("real", 2, (40, 2))
    torch.testing.assert_close(data.y_train[:, 0].double().mean(), torch.tensor(0.0).double())
    torch.testing.assert_close(
        data.y_train[:, 0].double().std(correction=0), torch.tensor(1.0).double()
    )
    assert data.y_train[:, 1].tolist() == [0.0] * 40
    back = data.y_test.double() * data.y_std + data.y_mean
    # float32 rounding of numbers near 1, in units of y_std
    torch.testing.assert_close(back, torch.tensor(y_test), atol=1e-4, rtol=0)
    labels = to_tensors(load(own(), seed=0), "cpu")
    assert (labels.task, labels.n_outputs) == ("labels", 3)
    assert (labels.y_mean.tolist(), labels.y_std.tolist()) == ([0.0] * 3, [1.0] * 3)


# --- inputs that stay on disk


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(1).normal(size=(60, 5)),
        np.random.default_rng(1).normal(size=(60, 6, 7)).astype(np.float32),
        np.random.default_rng(1).integers(0, 256, (60, 6, 7, 3), dtype=np.uint8),
        np.asfortranarray(np.random.default_rng(1).normal(size=(60, 2, 6, 7))),
    ],
    ids=["vectors", "grey", "channels_last", "fortran_order"],
)
def test_rows_on_disk_are_the_rows_in_memory(x: np.ndarray, own: Write):
    limits = {"max_train": 40, "max_test": 12}
    in_memory = load(own(limits, x_train=x, x_test=x[:30]), seed=0)
    mapped = load(own(limits, folder=True, x_train=x, x_test=x[:30]), seed=0)
    assert isinstance(mapped.x_train, MappedRows)
    assert_same(in_memory, mapped, ("y_train", "y_test", "mean", "std"))
    expected, found = to_tensors(in_memory, "cpu"), to_tensors(mapped, "cpu")
    rows = torch.randperm(40)[:17]
    for part, n in (("x_train", 40), ("x_test", 12)):
        whole, lazy = getattr(expected, part), getattr(found, part)
        assert (len(lazy), lazy.shape, lazy.dtype) == (n, whole.shape, whole.dtype)
        assert lazy.device == whole.device
        torch.testing.assert_close(lazy[:], whole, rtol=0, atol=0)
        torch.testing.assert_close(lazy[3:9], whole[3:9], rtol=0, atol=0)
        inside = rows[rows < n]
        torch.testing.assert_close(lazy[inside], whole[inside], rtol=0, atol=0)
    assert value_range(mapped.x_train) == value_range(in_memory.x_train)


def test_mapped_rows_travel_as_a_path(own: Write):
    x = example_arrays()["x_train"].repeat(1000, axis=1)
    data = load(own({"max_train": 40}, folder=True, x_train=x, x_test=x[:30]), seed=0)
    content = pickle.dumps(data.x_train)
    assert len(content) < 2_000
    np.testing.assert_array_equal(pickle.loads(content)[:], data.x_train[:])
    few = np.array([3, 8])
    np.testing.assert_array_equal(data.x_train.subset(few)[:], data.x_train[few])


@pytest.mark.slow
def test_a_file_larger_than_a_slice_is_never_read_whole(tmp_path: Path):
    (tmp_path / "own").mkdir()
    n_bytes = 0
    for part, n in (("train", 1100), ("test", 20)):
        x = np.lib.format.open_memmap(
            tmp_path / "own" / f"x_{part}.npy", "w+", np.float32, (n, 3, 100, 100)
        )
        x[::7] = 1.5
        n_bytes += x.nbytes
        np.save(tmp_path / "own" / f"y_{part}.npy", np.arange(n) % 2)
        del x
    tracemalloc.start()
    try:
        data = to_tensors(load(DatasetSpec(name="npz", path=str(tmp_path / "own")), seed=0), "cpu")
        assert data.x_train[5:7].shape == (2, 3, 100, 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_bytes > 130e6
    # One slice of 4 Mi numbers, and its difference to the mean and square in float64.
    assert peak < 110e6


@pytest.mark.parametrize("shape", [(10_000, 3), (50, 3, 300, 300)])
def test_slices_cover_all_rows_in_order(shape: tuple[int, ...]):
    x = np.arange(shape[0])[(slice(None), *[None] * (len(shape) - 1))]
    x = np.broadcast_to(x, shape)
    parts = list(slices(x))
    assert len(parts) > 2
    assert np.concatenate([p.reshape(len(p), -1)[:, 0] for p in parts]).tolist() == list(
        range(shape[0])
    )


def test_a_torn_file_in_a_folder_is_named(own: Write, tmp_path: Path):
    spec = own(folder=True)
    torn = tmp_path / "own" / "x_test.npy"
    for content in (torn.read_bytes()[:-100], b"", b"hello"):
        torn.write_bytes(content)
        with refused("array-file-unreadable", "x_test.npy"):
            load(spec, seed=0)


# --- MNIST and its like


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw")]
)
def test_idx_files_are_read_plain_or_zipped_and_nothing_is_written(
    name: str, folder: str, zipped: bool, tmp_path: Path
):
    write_mnist_like(tmp_path / folder, np.arange(20) % 10, zipped=zipped)
    before = sorted(tmp_path.rglob("*"))
    data = load(DatasetSpec(name=name), seed=0, data_root=str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    assert data.x_train.shape == (40, 1, 28, 28)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64
    expected = np.random.default_rng(1).integers(0, 256, (40, 28, 28))
    np.testing.assert_array_equal(data.x_train[:, 0], expected)
    to_tensors(data, "cpu")


def test_named_sets_say_what_is_missing_and_the_remedy(tmp_path: Path):
    for name, file, folder in (
        ("mnist", "t10k-labels-idx1-ubyte", "MNIST/raw"),
        ("cifar10", "", "cifar-10-batches-py"),
        ("cifar100", "", "cifar-100-python"),
    ):
        if name == "mnist":
            write_mnist_like(tmp_path / folder, np.arange(20) % 10)
            (tmp_path / folder / file).unlink()
        with refused("array-file-unreadable", name, file or folder, tmp_path, "--data-root"):
            load(DatasetSpec(name=name), seed=0, data_root=str(tmp_path))
        with pytest.raises(ValueError, match=rf"{folder}/ with data_root \(--data-root\)"):
            load(DatasetSpec(name=name), seed=0)


def test_damaged_idx_files_are_named(tmp_path: Path):
    path = tmp_path / "labels"
    write_idx(path, np.arange(5))
    assert read_idx(path).tolist() == [0, 1, 2, 3, 4]
    whole = path.read_bytes()
    unreadable = "array-file-unreadable"
    for content in (whole[:-1], whole[:3], b"", b"x" * 40):
        path.write_bytes(content)
        with refused(unreadable, "labels", "IDX"):
            read_idx(path)
    path.unlink()
    for content in (gzip.compress(whole)[:-6], b"hello", gzip.compress(whole)[:12] + b"\xff" * 20):
        path.with_name("labels.gz").write_bytes(content)
        with refused(unreadable, "labels", "IDX"):
            read_idx(path)


def test_images_and_labels_must_be_as_many(tmp_path: Path):
    write_mnist_like(tmp_path / "MNIST/raw", np.arange(19) % 10)
    with refused("images-labels-differ", "MNIST", "t10k", 20, 19):
        load(DatasetSpec(name="mnist"), seed=0, data_root=str(tmp_path))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_download_that_fails_is_one_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import torchvision.datasets

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    for module in (torchvision.datasets.mnist, torchvision.datasets.cifar):
        monkeypatch.setattr(module, "download_and_extract_archive", offline)
    with refused("array-file-unreadable", name, tmp_path, "network"):
        load(DatasetSpec(name=name), seed=0, data_root=str(tmp_path), download=True)


# --- CIFAR


def write_cifar(root: Path, name: str) -> np.ndarray:
    """Write tiny pickles in the layout of CIFAR; return the training images [n, 3, 32, 32]."""
    generator = np.random.default_rng(2)
    folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    folder.mkdir(parents=True)
    labels, meta = ("labels", "batches.meta") if name == "cifar10" else ("fine_labels", "meta")
    files = (
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        if name == "cifar10"
        else ["train", "test"]
    )
    images = []
    for file in files:
        pixels = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        content = {"data": pixels, labels: [i % 10 for i in range(20)]}
        (folder / file).write_bytes(pickle.dumps(content))
        images.append(pixels.reshape(-1, 3, 32, 32))
    names = {"label_names": [], "fine_label_names": []}
    (folder / meta).write_bytes(pickle.dumps(names))
    return np.concatenate(images[:-1])


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_channels_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torchvision.datasets

    images = write_cifar(tmp_path, name)
    with refused("array-file-unreadable", name, "published"):
        load(DatasetSpec(name=name), seed=0, data_root=str(tmp_path))
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    data = load(DatasetSpec(name=name), seed=0, data_root=str(tmp_path))
    np.testing.assert_array_equal(data.x_train, images)
    assert data.x_train.flags.c_contiguous
    assert data.input_shape == (3, 32, 32)
    assert data.mean.shape == (3, 1, 1)
    assert len(data.y_test) == 20


# --- the test labels decide nothing


def test_permuted_test_labels_leave_training_and_test_inputs_equal(own: Write, tmp_path: Path):
    permuted = np.random.default_rng(5).permutation(30) % 3
    for limits, same in (({}, (*TRAINING, "x_test")), ({"max_test": 9}, TRAINING)):
        left, right = (
            load(own({"max_train": 30, **limits}, y_test=y), seed=0)
            for y in (np.arange(30) % 3, permuted)
        )
        assert_same(left, right, same)
        assert left.n_outputs == right.n_outputs

    both = []
    for labels in (np.arange(20) % 10, np.zeros(20, dtype=int)):
        write_mnist_like(tmp_path / "MNIST/raw", labels)
        spec = DatasetSpec(name="mnist", max_train=20)
        both.append(load(spec, seed=0, data_root=str(tmp_path)))
    assert_same(*both, (*TRAINING, "x_test"))
    assert both[0].n_outputs == both[1].n_outputs


# --- real files


@pytest.mark.slow
def test_fashion_mnist_is_the_real_one(shared: Path):
    spec = DatasetSpec(name="fashion_mnist", max_test=1000)
    data = load(spec, seed=0, data_root=str(shared / "data"))
    assert data.x_train.shape == (60000, 1, 28, 28)
    assert np.bincount(data.y_train).tolist() == [6000] * 10
    assert np.bincount(data.y_test).tolist() == [100] * 10
    # widely quoted for this set: mean 0.2860, standard deviation 0.3530 of grey / 255
    assert data.mean.item() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert data.std.item() / 255 == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.slow
def test_mnist_is_the_real_one(shared: Path):
    spec = DatasetSpec(name="mnist", max_train=5000)
    data = load(spec, seed=0, data_root=str(shared / "data"))
    assert data.input_shape == (1, 28, 28)
    assert len(data.y_train) == 5000
    assert np.bincount(data.y_test)[:3].tolist() == [980, 1135, 1032]
