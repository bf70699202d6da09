"""MLflow: a study is an experiment, on a server or in a database, and a trial is a run."""

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec

_TRIAL, _ATTEMPT, _STATUS = (f"nas_evidence.{name}" for name in ("trial", "attempt", "status"))
#: Maximum number of metrics that a server takes at once.
_BATCH = 1000


class MLflow(Tracker):
    """The architecture as parameters, and values by epoch as metrics.

    The time of every metric is that of its run: a server leaves out what it has already.

    Args:
        spec: the study, of which the experiment has the name.
        folder: of the study; `mlflow.db` there, and `mlflow-artifacts/`, unless a place is given.
        uri: of a server or a database; by default $MLFLOW_TRACKING_URI, if set.
    """

    def __init__(self, spec: StudySpec, folder: Path, uri: str = "") -> None:
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

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Write metrics by epoch."""
        from mlflow.entities import Metric

        identity, when = self._run(trial_id, about)
        metrics = [
            Metric(name, value, when, epoch)
            for epoch, values in points.items()
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self.client.log_batch(identity, metrics=metrics[start : start + _BATCH])

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
            from mlflow.entities import Param

            name, tags = f"trial-{trial_id:06d}", {_TRIAL: str(trial_id)}
            made = self.client.create_run(self.experiment, run_name=name, tags=tags)
            self._runs[trial_id] = made.info.run_id, made.info.start_time
            params = [Param(name, value) for name, value in about.items()]
            self.client.log_batch(made.info.run_id, params=params)
        return self._runs[trial_id]
