"""Claims about the losses of a trial under way: read from its checkpoint, without torch."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes import study
from records import curve_of

from nas_evidence.api.control import opened
from nas_evidence.storage.checkpoint_losses import last_checkpoint, losses_so_far
from nas_evidence.storage.study_folder import open_study
from nas_evidence.training.checkpoint import save_checkpoint


def checkpoint(folder: Path, n_epochs: int) -> Path:
    """A checkpoint with a curve of the network, and one of a fold after it."""
    own, of_fold = (
        [point.model_dump_json() for point in curve_of(losses, n_epochs, 1)]
        for losses in (lambda epoch: 1 / (1 + epoch), lambda _: 7.0)
    )
    model = {"weight": torch.zeros(3)}
    state = {"network": {"model": model, "curve": own}, "scores": {"folds": {"curve": of_fold}}}
    return save_checkpoint(folder, n_epochs, state)


def test_losses_are_those_of_the_whole_network_until_the_checkpoint(tmp_path: Path) -> None:
    for attempt, n_epochs in ((1, 2), (1, 12), (2, 5)):
        checkpoint(tmp_path / f"attempt-{attempt}", n_epochs)
    found = last_checkpoint(tmp_path)
    assert found is not None
    epoch, path = found
    assert epoch == 12
    losses = losses_so_far(path)
    assert [one for one, _ in losses] == list(range(1, 13))
    assert losses[3][1] == curve_of(lambda epoch: 1 / (1 + epoch), 12, 1)[3].train_nll_per_datum


def test_of_a_study_in_a_store_they_are_read_from_there(tmp_path: Path) -> None:
    open_study(tmp_path / "s", study())
    path = checkpoint(tmp_path / "s" / "checkpoints" / "000000" / "attempt-1", 5)
    store = opened(f"file://{tmp_path}/s", looking="results")
    found = last_checkpoint(store.folder / "checkpoints" / "000000")
    assert found is not None
    epoch, here = found
    assert (epoch, here.stat().st_size) == (5, 0)
    assert store.losses_so_far(here) == losses_so_far(path)
    path.unlink()  # the trial has gone on
    assert store.losses_so_far(here) == []


def test_of_a_large_checkpoint_in_a_store_few_bytes_are_fetched() -> None:
    read, content = list[int](), io.BytesIO()
    torch.save(
        {"curve": ['{"epoch":1,"train_nll_per_datum":0.5}'], "w": torch.ones(10**6)}, content
    )
    content.read = lambda n=-1: read.append(n) or io.BytesIO.read(content, n)  # type: ignore
    assert losses_so_far(content) == [(1, 0.5)]
    assert sum(read) < 10**5


def test_what_cannot_be_read_has_no_losses(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:200])
    assert losses_so_far(path) == []
    assert losses_so_far(tmp_path / "gone.pt") == []
    assert last_checkpoint(tmp_path / "gone") is None


@pytest.mark.slow
def test_it_needs_no_torch(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    code = (
        "import sys; from pathlib import Path;"
        "from nas_evidence.storage.checkpoint_losses import losses_so_far;"
        f"print(len(losses_so_far(Path({str(path)!r}))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
