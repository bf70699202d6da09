"""A folder of images through every door: search, predict, evaluate, export, command line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import QUICK
from PIL import Image

import nas_evidence
from nas_evidence.cli.predict import predict


def save(path: Path, seed: int, *more: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 7, *more)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour images, a grey one among them, and a hidden folder."""
    home = tmp_path_factory.mktemp("images") / "pets"
    for i in range(24):
        save(home / ("cat" if i % 2 else "dog") / f"{i:02}.png", i, *((3,) if i else ()))
    save(home / ".ipynb_checkpoints" / "a.png", 99)
    return home


@pytest.fixture(scope="module")
def study(pets: Path) -> nas_evidence.Study:
    return nas_evidence.search(
        str(pets), families="linear", image_size=5, n_trials=1, settings=QUICK,
        executor="inline", out=pets.parent / "s",
    )  # fmt: skip


@pytest.mark.slow
def test_a_folder_of_images_is_predicted_as_it_was_trained_on(
    study: nas_evidence.Study, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = study.arrays()
    with pytest.warns(UserWarning, match="left out"):
        given = study.predictor().given(str(pets)), study.predict(str(pets))
    np.testing.assert_array_equal(given[0].inputs, trained.x_train)
    with (
        pytest.warns(UserWarning, match="left out: 1 file or folder"),
        pytest.warns(UserWarning, match="24 of 24 rows were in the training data"),
    ):
        assert study.evaluate(str(pets)).n == 24
    alone = nas_evidence.Predictor.load(study.export(tmp_path / "winner"))
    again = nas_evidence.load(study.folder).predictor()
    for i in range(24):
        save(tmp_path / "new" / f"{i:02}.png", i, *((3,) if i else ()))
    new = [one.predict(str(tmp_path / "new")).probabilities for one in (alone, again)]
    np.testing.assert_array_equal(new[0], new[1])
    np.testing.assert_allclose(new[0][1::2], given[1].probabilities[:12], atol=1e-6)
    one = alone.predict(str(tmp_path / "new" / "00.png")).probabilities
    np.testing.assert_allclose(one, new[0][:1], atol=1e-6)
    predict(str(tmp_path / "winner"), tmp_path / "new", to=tmp_path / "p.csv")
    assert "24 rows" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "p.csv")
    assert table["image"].tolist() == [f"{i:02}.png" for i in range(24)]
