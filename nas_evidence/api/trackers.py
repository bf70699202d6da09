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
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from numbers import Real
from pathlib import Path
from threading import Thread
from typing import Any, Self

from nas_evidence.plumbing.user_error import UserError
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
    def of(cls, record: TrialRecord) -> Self:
        """Return what a record says."""
        from nas_evidence.storage.tables import rows_of_record

        rows = rows_of_record(record)
        return cls._of_rows(rows["trials"][0], rows["evidence"], rows["curves"])

    @classmethod
    def all_in(cls, folder: Path) -> list[Self]:
        """Return what the tables of a study folder say of its finished trials."""
        from nas_evidence.storage.tables import read_tables

        tables, _ = read_tables(folder, ["trials", "evidence", "curves"])
        scores, curves = (
            {
                key: own.to_dict("records")
                for key, own in tables[name].groupby(["trial_id", "attempt"])
            }
            for name in ("evidence", "curves")
        )
        return [
            cls._of_rows(row, scores.get(key, ()), curves.get(key, ()))
            for row in tables["trials"].to_dict("records")
            for key in [(row["trial_id"], row["attempt"])]
        ]

    @classmethod
    def _of_rows(cls, row: _Row, scores: Iterable[_Row], curve: Iterable[_Row]) -> Self:
        from nas_evidence.storage.tables import architecture_values

        series: dict[str, list[tuple[int, float]]] = {}
        points: list[tuple[str, int, Any]] = [
            (name, point["epoch"], point.get(name)) for point in curve for name in _CURVE
        ]
        for one in scores:
            if one["valid"]:
                value = one["per_datum"] if _is_number(one["per_datum"]) else one["value"]
                points.append((f"score/{one['estimator']}", one["epoch"], value))
        for name, epoch, value in points:
            if _is_number(value):
                series.setdefault(name, []).append((int(epoch), float(value)))
        values = {name: str(_plain(value)) for name, value in architecture_values(row).items()}
        return cls(
            key=(int(row["trial_id"]), int(row["attempt"])),
            about={"family": str(row["family"])}
            | values
            | {name: str(row[name]) for name in ("replicate", "status")},
            complete=row["status"] == TrialStatus.COMPLETE.value,
            series=series,
            final={name: float(row[name]) for name in _FINAL if _is_number(row.get(name))},
        )


def _is_number(value: object) -> bool:
    """Tell whether a value is a number that trackers take; pandas' missing value is none."""
    return isinstance(value, Real) and math.isfinite(value)


def _plain(value: Any) -> Any:
    """Return a whole float, as a column with gaps has, as the integer it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Tracker:
    """Where finished trials are written to as well; a base class for trackers of your own.

    Its methods run in one thread. What they raise ends the tracker with one warning, and the
    search goes on.

    >>> class Printing(Tracker):
    ...     def write(self, run):
    ...         print(run.name, dict(run.final))
    >>> Printing().write(Tracked((0, 1), {"family": "mlp"}, True, final={"epochs": 40.0}))
    trial-000000-attempt-1 {'epochs': 40.0}
    """

    def known(self) -> set[tuple[int, int]]:
        """Return the trials and attempts that are there already; they are not written again."""
        return set()

    def write(self, run: Tracked) -> None:
        """Write one finished trial."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left, after the last trial."""


class TensorBoard(Tracker):
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


class MLflow(Tracker):
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


class Optuna(Tracker):
    """Finished proposals in a database of Optuna; the log says which."""

    def __init__(self, study: StudySpec, folder: Path, url: str) -> None:
        from nas_evidence.proposing.optuna_export import Export

        self._export = Export(study, folder, url)

    def write(self, run: Tracked | None) -> None:
        """Copy what the log has."""
        try:
            self._export.update()
        except Exception:
            self._export.close()
            raise

    def close(self) -> None:
        """Copy what the log has, and close the connections."""
        self.write(None)
        self._export.close()


def check_track(wanted: Iterable[str | Tracker], *, installed: bool = True) -> None:
    """Check that the named trackers exist and, with `installed`, that their packages are here.

    Raises:
        ValueError: if not; says what to choose or to install. Also for a password in a URL, which
            would be seen.
    """
    for text in (one for one in wanted if isinstance(one, str)):
        name, _, place = text.partition(":")
        if name not in _NEEDS:
            raise UserError(
                "--track must be mlflow, mlflow:URI, tensorboard, tensorboard:DIR, optuna or "
                f"optuna:URL, but got {masked(text)!r}."
            ).with_code("unknown-tracker")
        refuse_password(text, "--track ", _PASSWORDS.get(name, "the environment"))
        if name == "optuna" and place:
            _check_url(place, installed=installed)
        if installed and find_spec(_NEEDS[name]) is None:
            raise UserError(
                f"--track {name} needs {_NEEDS[name]}: install it with "
                f"`pip install '.[{name}]'` in a clone."
            ).with_code("track-needs-package")


def _check_url(url: str, *, installed: bool) -> None:
    if not re.fullmatch(r"[\w+]+://[^\s'\"]+", url):
        raise UserError(
            "--track optuna:URL needs the URL of a database such as "
            f"postgresql://USER@HOST:PORT/NAME or sqlite:////FOLDER/FILE.db, but got {url!r}."
        ).with_code("track-optuna-url")
    if installed and url.startswith("postgres") and find_spec("psycopg") is None:
        raise UserError(
            f"--track optuna:{url} needs psycopg: install it with "
            "`pip install '.[postgresql]'` in a clone."
        ).with_code("track-needs-psycopg")


def tracker_of(text: str, spec: StudySpec, folder: Path) -> Tracker:
    """Return the tracker that an option names; see the top of this file."""
    name, _, place = text.partition(":")
    if name == "tensorboard":
        return TensorBoard(Path(place) if place else folder / "tensorboard")
    if name == "optuna":
        return Optuna(spec, folder, place)
    place = place or os.environ.get("MLFLOW_TRACKING_URI", "")
    default = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
    if not place and set("?#%") & set(default):  # mlflow would write it beside the study
        raise UserError(
            f"mlflow opens no database below {folder}; give --track mlflow:URI."
        ).with_code("mlflow-without-database")
    return MLflow(place or default, spec.name)


class _Writing(Thread):
    """Writes to one tracker, and ends with its first failure.

    A daemon, unlike the threads of a pool: one that hangs does not keep the process from ending.
    """

    def __init__(self, wanted: str | Tracker, spec: StudySpec, folder: Path) -> None:
        self._text = wanted if isinstance(wanted, str) else type(wanted).__name__
        super().__init__(daemon=True, name=f"track {self._text}")
        self._wanted, self._spec, self._folder = wanted, spec, folder
        self._runs: queue.SimpleQueue[Tracked | None] = queue.SimpleQueue()  # None ends it
        self._failure: Exception | None = None

    def run(self) -> None:
        """Write what was missed before, then what is added."""
        try:
            tracker = self._wanted
            if isinstance(tracker, str):
                tracker = tracker_of(tracker, self._spec, self._folder)
            known = tracker.known()
            for run in chain(Tracked.all_in(self._folder), iter(self._runs.get, None)):
                if run.key not in known:
                    tracker.write(run)
                    known.add(run.key)
            tracker.close()
        except Exception as error:  # whatever a server or a disk may do
            _LOG.warning("tracker_stopped tracker=%s", self._text, exc_info=error)
            self._failure = error

    def add(self, run: Tracked | None) -> None:
        """Write a run later; None ends the thread."""
        if self.is_alive():
            self._runs.put(run)

    def warning(self) -> str:
        """Return why it has stopped, once."""
        failure, self._failure = self._failure, None
        if failure is None:
            return ""
        why = (masked(str(failure)).strip() or type(failure).__name__).splitlines()
        return f"warning: --track {self._text} has stopped, the search goes on: {why[0]}"

    def ended(self) -> str:
        """Wait for the end; return a warning if it has stopped or goes on."""
        self.join(_PATIENCE)
        if not self.is_alive():
            return self.warning()
        late = f"is not done after {_PATIENCE:.0f} s; left alone"
        return f"warning: --track {self._text} {late}"


class Tracking(Watcher):
    """A watcher that passes everything on, and tells trackers of finished trials.

    Trackers read the study from when it is entered, which is after the driver has taken it up: the
    driver alone mends what it finds. At the end it waits until they have written.

    Args:
        wanted: trackers, or their names as given to `--track`.
        spec: the study.
        folder: of the study.
        watcher: that is shown everything as before.
        say: called with one line if a tracker stops.
    """

    def __init__(
        self,
        wanted: Iterable[str | Tracker],
        spec: StudySpec,
        folder: Path,
        watcher: Watcher,
        say: Callable[[str], None],
    ) -> None:
        self._inner, self._say = watcher, say
        self._writing = [_Writing(text, spec, folder) for text in wanted]

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
            self._say_if(one.ended())

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
            self._say_if(one.warning())

    def _say_if(self, line: str) -> None:
        if line:
            self._say(line)
