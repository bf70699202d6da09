"""TensorBoard: a folder of event files for each trial."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.plumbing.removal import remove_tree
from nas_evidence.plumbing.user_error import UserError

#: A file in the folder of a trial that has ended; its name ends with the attempt.
_ENDED = "ended-"
#: How TensorBoard names its files.
_EVENTS = "events.out.tfevents."


class TensorBoard(Tracker):
    """Scalars by epoch, and the architecture as text and as hyperparameters.

    Args:
        folder: of the folders.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._board = import_module("torch.utils.tensorboard")  # without types
        self._writers: dict[int, Any] = {}
        self._begun: set[int] = set()

    def known(self) -> set[tuple[int, int]]:
        """Return the trials whose folder has the file of the end."""
        ends = self._folder.glob(f"trial-*/{_ENDED}*")
        return {(int(p.parent.name[6:]), int(p.name.removeprefix(_ENDED))) for p in ends}

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Write scalars; the first time, the architecture too."""
        writer = self._writer(trial_id, about)
        for epoch, values in points.items():
            for name, value in values.items():
                writer.add_scalar(name, value, epoch)
        writer.flush()

    def pause(self, trial_id: int) -> None:
        """Close the file; another one in the same folder may continue it."""
        if writer := self._writers.pop(trial_id, None):
            writer.close()

    def finish(self, trial: Tracked) -> None:
        """Write the hyperparameters beside the last values, and close the file."""
        trial_id, attempt = trial.key
        writer = self._writer(trial_id, trial.about)
        for name, value in trial.final.items():
            writer.add_scalar(f"final/{name}", value, 0)
        last = {name: points[-1][1] for name, points in trial.series.items()} | dict(trial.final)
        about = {**trial.about, "status": str(trial.status)}
        for part in self._board.summary.hparams(about, last):
            writer.file_writer.add_summary(part)
        self.pause(trial_id)
        self._begun.discard(trial_id)
        (self._home(trial_id) / f"{_ENDED}{attempt}").touch()

    def _home(self, trial_id: int) -> Path:
        return self._folder / f"trial-{trial_id:06d}"

    def _writer(self, trial_id: int, about: Mapping[str, str]) -> Any:
        """Return the writer of a trial. What an earlier process left is written again."""
        home = self._home(trial_id)
        is_new = trial_id not in self._begun
        if is_new:
            files = (path for path in home.rglob("*") if path.is_symlink() or not path.is_dir())
            if foreign := [path for path in files if not path.name.startswith((_EVENTS, _ENDED))]:
                raise UserError(
                    "track-folder-held",
                    f"{foreign[0]} is not of track=tensorboard; give another folder: track="
                    "tensorboard:DIR.",
                )
            remove_tree(home)
            self._begun.add(trial_id)
        if trial_id not in self._writers:
            self._writers[trial_id] = self._board.SummaryWriter(home)
        if is_new:
            text = "\n\n".join(f"{name}: {value}" for name, value in about.items())
            self._writers[trial_id].add_text("architecture", text)
        return self._writers[trial_id]
