"""Copies of a study for MLflow, TensorBoard and Optuna; only the driver's process writes them.

    mlflow[:URI]        experiment = the study; a run has the architecture as parameters, scores
                        and curves as metrics by epoch. URI: $MLFLOW_TRACKING_URI, else mlflow.db
                        in the study folder
    tensorboard[:DIR]   a folder per trial with the same; DIR: `tensorboard/` in the study folder
    optuna[:URL]        one trial per finished proposal, see proposing/optuna_export.py; URL:
                        `study.db` in the study folder

A tracker decides nothing and is no part of the study. It works in a thread of its own: a slow or
broken one never holds up the search, and its first failure is one warning. A resumed study also
writes the finished trials that its tracker has not seen.
"""

import logging
import math
import os
import queue
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol, Self

from nas_evidence.spec.domains import masked, refuse_password
from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, StudySpec
from nas_evidence.workers.executor import Lost, Watcher

_LOG = logging.getLogger(__name__)
_Row = Mapping[Any, Any]
#: What each tracker imports, and what installs it.
_NEEDS = {"mlflow": "mlflow", "tensorboard": "tensorboard", "optuna": "optuna"}
#: Where its client finds a password.
_PASSWORDS = {"optuna": "PGPASSWORD or ~/.pgpass", "mlflow": "MLFLOW_TRACKING_PASSWORD"}
#: Seconds between two looks at the journal.
_EVERY = 1.0
#: Seconds that the end of a search waits for a tracker.
_PATIENCE = 60.0
_CURVE = ("train_nll_per_datum", "learning_rate", "noise_std", "temperature")
_FINAL = (
    "n_parameters", "epochs", "test_accuracy", "test_nll_per_datum", "test_rmse", "total_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told of one finished trial.

    key      trial and attempt
    about    architecture and status
    series   values by name and epoch: the training curve, and each score, per datum where defined
    final    numbers of the whole trial
    """

    key: tuple[int, int]
    about: Mapping[str, str]
    complete: bool
    series: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its run."""
        return f"trial-{self.key[0]:06d}-attempt-{self.key[1]}"

    @classmethod
    def of(cls, record: TrialRecord) -> "Tracked":
        """Return what a record says."""
        from nas_evidence.storage.tables import rows_of_record

        rows = rows_of_record(record)
        return _of_rows(rows["trials"][0], rows["evidence"], rows["curves"])


class Tracker(Protocol):
    """Where runs are written."""

    def known(self) -> set[tuple[int, int]]:
        """Return the trials and attempts that are there already."""

    def write(self, run: Tracked) -> None:
        """Write one run."""


class TensorBoard:
    """Event files, one folder per trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def known(self) -> set[tuple[int, int]]:
        """Return the trials that have a folder."""
        parts = [path.name.split("-") for path in self.folder.glob("trial-*-attempt-*")]
        return {(int(part[1]), int(part[3])) for part in parts}

    def write(self, run: Tracked) -> None:
        """Write scalars by epoch, and the architecture as hyperparameters and as text."""
        board = import_module("torch.utils.tensorboard")  # without types
        writer = board.SummaryWriter(self.folder / run.name)
        for name, points in run.series.items():
            for epoch, value in points:
                writer.add_scalar(name, value, epoch)
        about = "\n\n".join(f"{name}: {value}" for name, value in run.about.items())
        writer.add_text("architecture", about)
        last = {name: points[-1][1] for name, points in run.series.items()} | dict(run.final)
        for name, value in run.final.items():
            writer.add_scalar(f"final/{name}", value, 0)
        for part in board.summary.hparams(dict(run.about), last):
            writer.file_writer.add_summary(part)
        writer.close()


class MLflow:
    """Runs of one experiment, on a server or in a database."""

    def __init__(self, uri: str, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        # Notes of its own code on libraries that it uses; nobody here can act on them.
        warnings.filterwarnings("ignore", module=r"mlflow\.")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        found = self.client.get_experiment_by_name(experiment)
        self.experiment = (
            found.experiment_id if found else self.client.create_experiment(experiment)
        )

    def known(self) -> set[tuple[int, int]]:
        """Return the trials that have a run."""
        keys: set[tuple[int, int]] = set()
        token = None
        while True:
            page = self.client.search_runs([self.experiment], max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                if "nas_evidence.trial" in tags and run.info.status != "RUNNING":
                    keys.add((int(tags["nas_evidence.trial"]), int(tags["nas_evidence.attempt"])))
            token = page.token
            if not token:
                return keys

    def write(self, run: Tracked) -> None:
        """Write parameters, metrics by epoch, and how the trial ended."""
        from mlflow.entities import Metric, Param

        trial, attempt = map(str, run.key)
        tags = {"nas_evidence.trial": trial, "nas_evidence.attempt": attempt}
        made = self.client.create_run(self.experiment, run_name=run.name, tags=tags)
        identity, when = made.info.run_id, made.info.start_time
        metrics = [
            Metric(name, value, when, epoch)
            for name, points in run.series.items()
            for epoch, value in points
        ]
        metrics += [Metric(f"final/{name}", value, when, 0) for name, value in run.final.items()]
        params = [Param(name, value) for name, value in run.about.items()]
        for start in range(0, len(metrics), 1000):  # the most that a server takes at once
            self.client.log_batch(identity, metrics=metrics[start : start + 1000])
        self.client.log_batch(identity, params=params)
        self.client.set_terminated(identity, "FINISHED" if run.complete else "FAILED")


def check_track(wanted: Sequence[str], *, installed: bool = True) -> None:
    """Check that the trackers exist and, with `installed`, that their packages are here.

    Raises:
        ValueError: if not; says what to choose or to install. Also for a password in a URL, which
            would be seen.
    """
    for text in wanted:
        name, _, place = text.partition(":")
        if name not in _NEEDS:
            raise ValueError(
                "--track must be mlflow, mlflow:URI, tensorboard, tensorboard:DIR, optuna or "
                f"optuna:URL, but got {masked(text)!r}."
            )
        refuse_password(text, "--track ", _PASSWORDS.get(name, "the environment"))
        if name == "optuna" and place:
            _check_url(place, installed=installed)
        if installed and find_spec(_NEEDS[name]) is None:
            raise ValueError(
                f"--track {name} needs {_NEEDS[name]}: install it with "
                f"`pip install 'nas-evidence[{name}]'`."
            )


def _check_url(url: str, *, installed: bool) -> None:
    if not re.fullmatch(r"[\w+]+://[^\s'\"]+", url):
        raise ValueError(
            "--track optuna:URL needs the URL of a database such as "
            f"postgresql://USER@HOST:PORT/NAME or sqlite:////FOLDER/FILE.db, but got {url!r}."
        )
    if installed and url.startswith("postgres") and find_spec("psycopg") is None:
        raise ValueError(
            f"--track optuna:{url} needs psycopg: install it with "
            "`pip install 'nas-evidence[postgresql]'`."
        )


def tracker_of(text: str, spec: StudySpec, folder: Path) -> Tracker:
    """Return the tracker that an option names; see the top of this file."""
    name, _, place = text.partition(":")
    if name == "tensorboard":
        return TensorBoard(Path(place) if place else folder / "tensorboard")
    place = place or os.environ.get("MLFLOW_TRACKING_URI", "")
    default = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
    if not place and set("?#%") & set(default):  # mlflow would write it beside the study
        raise ValueError(f"mlflow opens no database below {folder}; give --track mlflow:URI.")
    return MLflow(place or default, spec.name)


class _Writing(Thread):
    """Writes to a tracker in a thread; ends with its first failure."""

    def __init__(self, text: str) -> None:
        super().__init__(daemon=True, name=f"track {text}")
        self.text = text
        self.failure: Exception | None = None
        self._warned = False

    def warn(self, say: Callable[[str], None]) -> None:
        """Say once if the tracker has stopped."""
        if self.failure is not None and not self._warned:
            self._warned = True
            why = (masked(str(self.failure)).strip() or type(self.failure).__name__).splitlines()
            say(f"warning: --track {self.text} has stopped, the search goes on: {why[0]}")

    def add(self, run: Tracked | None) -> None:
        """Write a run later; None ends the thread."""

    def run(self) -> None:
        """Write until the end, or until that fails."""
        try:
            self.write()
        except Exception as error:  # whatever a server or a disk may do
            _LOG.warning("tracker_stopped tracker=%s", self.text, exc_info=error)
            self.failure = error

    def write(self) -> None:
        """Write until the end."""


class _WritingRuns(_Writing):
    """Writes runs to a tracker, one after the other."""

    def __init__(
        self, text: str, make: Callable[[], Tracker], earlier: Callable[[], list[Tracked]]
    ) -> None:
        super().__init__(text)
        self._make, self._earlier = make, earlier
        self._waiting: queue.Queue[Tracked | None] = queue.Queue()

    def add(self, run: Tracked | None) -> None:
        """Write a run later; None ends the thread."""
        if self.failure is None:
            self._waiting.put(run)

    def write(self) -> None:
        """Write what was missed before, then what is added."""
        tracker = self._make()
        known = tracker.known()
        for run in self._earlier():
            if run.key not in known:
                tracker.write(run)
                known.add(run.key)
        while (added := self._waiting.get()) is not None:
            if added.key not in known:
                tracker.write(added)


class _Exporting(_Writing):
    """Copies the journal to a database of Optuna."""

    def __init__(self, text: str, spec: StudySpec, folder: Path) -> None:
        super().__init__(text)
        self._spec, self._folder, self._over = spec, folder, Event()

    def add(self, run: Tracked | None) -> None:
        """Do nothing for a run: the journal has it; None ends the thread."""
        if run is None:
            self._over.set()

    def write(self) -> None:
        """Follow the journal."""
        from nas_evidence.proposing.optuna_export import Export

        export = Export(self._spec, self._folder, self.text.partition(":")[2])
        with closing(export):
            while not self._over.wait(_EVERY):
                export.update()
            export.update()


class Tracking(Watcher):
    """A watcher that passes everything on, and tells trackers of finished trials.

    Trackers read the study from when it is entered, which is after the driver has taken it up: the
    driver alone mends what it finds. At the end it waits until they have written.

    Args:
        wanted: as given to `--track`.
        spec: the study.
        folder: of the study.
        watcher: that is shown everything as before.
        say: called with one line if a tracker stops.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        spec: StudySpec,
        folder: Path,
        watcher: Watcher,
        say: Callable[[str], None],
    ) -> None:
        self._inner, self._say = watcher, say
        self._writing: list[_Writing] = [
            _Exporting(text, spec, folder)
            if text.partition(":")[0] == "optuna"
            else _WritingRuns(
                text, partial(tracker_of, text, spec, folder), partial(earlier_trials, folder)
            )
            for text in wanted
        ]

    def __enter__(self) -> Self:
        """Let the trackers begin."""
        for one in self._writing:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the trackers."""
        for one in self._writing:
            one.add(None)
        for one in self._writing:
            one.join(_PATIENCE if one.failure is None else None)
            one.warn(self._say)
            if one.is_alive():
                late = f"is not done after {_PATIENCE:.0f} s; left alone"
                self._say(f"warning: --track {one.text} {late}")

    def launched(self, assignment: Assignment) -> None:
        """Pass it on."""
        self._inner.launched(assignment)

    def progressed(self, report: SliceReport) -> None:
        """Pass it on."""
        self._inner.progressed(report)

    def parked(self, trial_id: int) -> None:
        """Pass it on."""
        self._inner.parked(trial_id)

    def lost(self, loss: Lost) -> None:
        """Pass it on."""
        self._inner.lost(loss)

    def ended(self, record: TrialRecord) -> None:
        """Pass it on, and tell the trackers."""
        self._inner.ended(record)
        for one in self._writing:
            one.add(Tracked.of(record))
            one.warn(self._say)


def earlier_trials(folder: Path) -> list[Tracked]:
    """Return the finished trials of a study folder, from its tables."""
    from nas_evidence.storage.tables import read_tables

    tables, _ = read_tables(folder, ["trials", "evidence", "curves"])
    scores, curves = (
        dict(iter(tables[name].groupby(["trial_id", "attempt"])))
        for name in ("evidence", "curves")
    )
    return [
        _of_rows(row, *(() if own is None else own.to_dict("records") for own in found))
        for row in tables["trials"].to_dict("records")
        for key in [(row["trial_id"], row["attempt"])]
        for found in [(scores.get(key), curves.get(key))]
    ]


def _of_rows(row: _Row, scores: Iterable[_Row], curve: Iterable[_Row]) -> Tracked:
    """Return what rows of the tables say of one trial."""
    from nas_evidence.storage.tables import architecture_values

    series: dict[str, list[tuple[int, float]]] = {}
    for point in curve:
        for name in _CURVE:
            _add(series, name, point["epoch"], point.get(name))
    for one in scores:
        if one["valid"]:
            value = one["value"] if _absent(one["per_datum"]) else one["per_datum"]
            _add(series, f"score/{one['estimator']}", one["epoch"], value)
    values = {name: str(_plain(value)) for name, value in architecture_values(row).items()}
    return Tracked(
        (int(row["trial_id"]), int(row["attempt"])),
        {
            "family": str(row["family"]),
            **values,
            "replicate": str(row["replicate"]),
            "status": str(row["status"]),
        },
        row["status"] == TrialStatus.COMPLETE.value,
        series,
        {name: float(row[name]) for name in _FINAL if not _absent(row.get(name))},
    )


def _add(
    series: dict[str, list[tuple[int, float]]], name: str, epoch: int, value: float | None
) -> None:
    if not _absent(value):
        assert value is not None
        series.setdefault(name, []).append((int(epoch), float(value)))


def _absent(value: Any) -> bool:
    """Tell whether a value is missing, or is a number that trackers do not take."""
    if isinstance(value, str | bool):
        return False
    return value is None or not _is_finite(value)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:  # pandas' missing value
        return False


def _plain(value: Any) -> Any:
    """Return a whole float, as a column with gaps has, as the integer it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
