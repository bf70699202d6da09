"""What every data set owes the rest of the house; a new one is tested by being registered."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nas_evidence.data import load
from nas_evidence.data.named import NAMED
from nas_evidence.data.tensors import to_tensors
from nas_evidence.models import infeasible
from nas_evidence.spec.dataset import OWN_DATA
from nas_evidence.spec.study import DATASET_NAMES, ArchitectureSpec, DatasetSpec

#: Where a set that needs files may lie: below the folder of reference data.
FILES = {"mnist": "data", "fashion_mnist": "data", "cifar10": "data", "cifar100": "data"}
DATASETS = (*NAMED, *OWN_DATA)
N_TRAIN, N_TEST = 60, 40


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    path = tmp_path / "own.npz"
    labels = np.arange(200) % 4
    images = generator.integers(0, 256, (200, 5, 6), dtype=np.uint8)
    np.savez(
        path, x_train=images[:120], y_train=labels[:120], x_test=images[120:], y_test=labels[120:]
    )
    return path


def own_table(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(200, 3)), columns=["a", "b", "c"])
    frame["y"] = np.arange(200) % 4
    frame.to_csv(folder / "own.csv", index=False)
    return folder / "own.csv"


def own_images(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for i in range(200):
        home = folder / "own" / f"class{i % 4}"
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (5, 6), dtype=np.uint8)).save(home / f"{i}.png")
    return folder / "own"


def spec(name: str, path: Path | str) -> DatasetSpec:
    more: dict[str, object] = {"max_train": N_TRAIN, "max_test": N_TEST}
    if name in OWN_DATA:
        more["path"] = str(path)
    if name in ("table", "images"):
        more["test_fraction"] = 0.4
    return DatasetSpec(name=name, target="y" if name == "table" else None, **more)


def test_the_registry_and_the_study_file_know_the_same_names() -> None:
    assert set(DATASETS) == set(DATASET_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_it_is_what_was_asked_for_and_the_same_every_time(
    name: str, own_file: Path, request: pytest.FixtureRequest
) -> None:
    root = None
    if name in FILES:
        root = str(request.getfixturevalue("shared") / FILES[name])
    own = {"table": own_table, "images": own_images}
    asked = spec(name, own[name](own_file.parent) if name in own else own_file)
    try:
        data, again = (load(asked, seed=3, data_root=root) for _ in range(2))
    except ValueError as error:
        if name not in FILES:
            raise
        pytest.skip(f"its files are not here: {error}")
    other = load(asked, seed=4, data_root=root)
    arrays = ("x_train", "y_train", "x_test", "y_test", "mean", "std", "y_mean", "y_std")
    for array in arrays:
        np.testing.assert_array_equal(getattr(data, array), getattr(again, array))
    assert not np.array_equal(data.x_train, other.x_train)
    assert data.name == name

    assert (len(data.x_train), len(data.y_train), data.n_train) == (N_TRAIN,) * 3
    assert len(data.x_test) == len(data.y_test) == N_TEST
    assert data.x_train.dtype == data.x_test.dtype
    assert data.x_train.dtype in (np.uint8, np.float32)
    if data.task == "labels":
        assert data.y_train.dtype == data.y_test.dtype == np.int64
        assert set(data.y_train) == set(range(data.n_outputs)) >= set(data.y_test)
    else:
        assert data.y_train.dtype == data.y_test.dtype == np.float64
        assert data.y_train.shape == (N_TRAIN, data.n_outputs)
        assert data.y_test.shape == (N_TEST, data.n_outputs)
    assert data.y_mean.shape == data.y_std.shape == (data.n_outputs,)
    assert (data.y_std > 0).all()
    assert data.x_train.shape[1:] == data.x_test.shape[1:] == data.input_shape
    assert (data.std > 0).all()
    one_input = (data.x_train[0] - data.mean) / data.std
    assert one_input.shape == data.input_shape

    tensors = to_tensors(data, "cpu")
    assert abs(tensors.x_train.double().mean().item()) < 1e-4
    if data.task == "real":
        assert tensors.y_train.double().mean(0).abs().max() < 1e-6
    assert infeasible(ArchitectureSpec(family="linear"), data.input_shape, data.n_outputs) is None


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", "diabetes"}))
def test_missing_files_are_one_error_that_names_the_set_and_the_remedy(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"{name}(.|\n)*--data-root"):
        load(spec(name, tmp_path / "gone.csv"), seed=0, data_root=str(tmp_path))
    assert not list(tmp_path.iterdir())
