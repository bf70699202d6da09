"""MLflow: a study is an experiment, on a server or in a database, and a trial is a run."""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec

_TRIAL, _ATTEMPT, _STATUS = (f"nas_evidence.{name}" for name in ("trial", "attempt", "status"))
#: Maximum number of metrics and of parameters that a server takes at once.
_METRICS, _PARAMETERS = 1000, 100


class MLflow(Tracker):
    """The architecture as parameters, and values by epoch as metrics.

    The time of every metric is that of its run: a server leaves out what it has already.

    Args:
        spec: the study, of which the experiment has the name.
        folder: of the study; `mlflow.db` there, and `mlflow-artifacts/`, unless a place is given.
        uri: of a server or a database; by default $MLFLOW_TRACKING_URI, if set.
    """

    #: A path that no other path is, for MLflow may keep names as files.
    fits = re.compile(r"(?=.{1,250}\Z)(?!\.\.|/)(?:(?:^|/)(?!\.{1,2}(?:/|\Z))[\w.\- :]+)+")

    def __init__(self, spec: StudySpec, folder: Path, uri: str) -> None:
        super().__init__()
        uri, artifacts = uri or os.environ.get("MLFLOW_TRACKING_URI", ""), None
        if not uri:
            uri = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
            artifacts = (folder.resolve() / "mlflow-artifacts").as_uri()
            if set("?#%") & set(uri):  # mlflow would write it beside the study
                raise UserError(
                    "mlflow-without-database",
                    f"mlflow opens no database below {folder}; give track=mlflow:URI.",
                )
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        # Notes of its own code on libraries that it uses; nobody here can act on them.
        warnings.filterwarnings("ignore", module=r"mlflow\.")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)

        self.client = MlflowClient(tracking_uri=uri)
        found = self.client.get_experiment_by_name(spec.name)
        self.experiment: str = (
            found.experiment_id
            if found
            else self.client.create_experiment(spec.name, artifact_location=artifacts)
        )
        self._runs: dict[int, tuple[str, int]] = {}  # id and start by trial
        self._begun = set[int]()

    def known(self) -> set[tuple[int, int]]:
        """Return the trials whose run has ended."""
        keys: set[tuple[int, int]] = set()
        token = None
        while True:
            page = self.client.search_runs([self.experiment], max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                if _TRIAL in tags:
                    self._runs[int(tags[_TRIAL])] = run.info.run_id, run.info.start_time
                if _ATTEMPT in tags:
                    keys.add((int(tags[_TRIAL]), int(tags[_ATTEMPT])))
            token = page.token
            if not token:
                return keys

    def refuses(self, error: Exception) -> bool:
        """Return whether a server refuses what it was given."""
        return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE"

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Write metrics by epoch."""
        from mlflow.entities import Metric

        identity, when = self._run(trial_id, about)
        by_name: dict[str, list[Any]] = {}
        for epoch, values in points.items():
            for name, value in values.items():
                by_name.setdefault(name, []).append(Metric(name, value, when, epoch))

        def written(found: Mapping[str, list[Any]]) -> None:
            for some in _batched(chain(*found.values()), _METRICS):
                self.client.log_batch(identity, metrics=some)

        self.write("metric", by_name, written)

    def finish(self, trial: Tracked) -> None:
        """Write how the trial ended."""
        self.log(trial.key[0], trial.about, {0: {f"final/{k}": v for k, v in trial.final.items()}})
        identity, _ = self._run(trial.key[0], trial.about)
        self.client.set_tag(identity, _STATUS, str(trial.status))
        self.client.set_tag(identity, _ATTEMPT, str(trial.key[1]))
        ended = "FINISHED" if trial.status == "complete" else "FAILED"
        self.client.set_terminated(identity, ended)

    def keep_export(self, trial_id: int, folder: Path) -> None:
        """Write an exported model, as the artifact `export` of the run of its trial."""
        self.client.log_artifacts(self._runs[trial_id][0], str(folder), artifact_path="export")

    def _run(self, trial_id: int, about: Mapping[str, str]) -> tuple[str, int]:
        if trial_id not in self._runs:
            name, tags = f"trial-{trial_id:06d}", {_TRIAL: str(trial_id)}
            made = self.client.create_run(self.experiment, run_name=name, tags=tags)
            self._runs[trial_id] = made.info.run_id, made.info.start_time
        identity, when = self._runs[trial_id]
        if trial_id not in self._begun:  # also of a run that a killed process left without
            from mlflow.entities import Param

            def written(found: Mapping[str, str]) -> None:
                for some in _batched((Param(*one) for one in found.items()), _PARAMETERS):
                    self.client.log_batch(identity, params=some)

            self.write("parameter", about, written)
            self._begun.add(trial_id)
        return identity, when


def _batched(found: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of at most so many."""
    left = iter(found)
    while some := list(islice(left, size)):
        yield some
