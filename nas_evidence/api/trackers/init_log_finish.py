"""Weights & Biases, Trackio, and whatever else has their `init`, `log` and `finish`.

What was written is noted in the study folder, since the tools cannot be asked without a network.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextvars import Context
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from nas_evidence.api.trackers.tracked import Tracked, Tracker
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.names import translated
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import StudyStatus

#: Names of projects that the tools keep apart.
_PROJECTS = {"wandb": re.compile(r"[\w. -]{1,128}"), "trackio": re.compile(r"[\w-]{1,128}")}
#: The same for the name of a file, which has at most 255 bytes.
_FILE = re.compile(r"[\w. -]{1,50}")


class InitLogFinish(Tracker):
    """One run for each trial: values by epoch as steps, the architecture as its configuration.

    Of a killed process, the run of a trial under way may lack what the tool had not sent yet.

    Args:
        tool: the package: wandb or trackio.
        spec: the study, which groups the runs.
        folder: of the study.
        project: by default the name of the study.
    """

    #: Others are kept for the tools themselves, or are changed by them.
    fits = re.compile(r"(?![-_]).{1,250}(?<!-)")

    def __init__(self, tool: str, spec: StudySpec, folder: Path, project: str = "") -> None:
        super().__init__()
        self._tool = import_module(tool)
        self._given: dict[str, Any] = {
            "project": project or translated(spec.name, _PROJECTS[tool]),
            "group": translated(spec.name, _PROJECTS["wandb"]),
            "resume": "allow",
        }
        if tool == "wandb":  # several runs in one process, which is not its own
            settings = self._tool.Settings(
                silent=True, console="off", disable_git=True, disable_code=True,
                x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
            )  # fmt: skip
            self._given |= {"reinit": "create_new", "settings": settings}
            self._given["dir"] = os.environ.get("WANDB_DIR", str(folder))
        else:
            self._given |= {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._is_wandb = tool == "wandb"
        self._runs: dict[int, Any] = {}
        called = translated(self._given["project"], _FILE)
        self._note = folder / "logs" / f"track-{tool}-{called}.json"
        told = parsed_json(self._note.read_text()) if self._note.is_file() else {}
        self._token: str = told.get("token") or secrets.token_hex(4)
        self._noted: dict[str, int] = told.get("ended", {})  # attempt by trial
        self._last: dict[str, dict[str, int]] = told.get("last", {})  # epochs of the others

    def known(self) -> set[tuple[int, int]]:
        """Return the trials that are noted as ended."""
        return {(int(trial_id), attempt) for trial_id, attempt in self._noted.items()}

    def written(self, trial_id: int) -> dict[str, int]:
        """Return the epochs that are noted."""
        return dict(self._last.get(str(trial_id), {}))

    def log(
        self, trial_id: int, about: Mapping[str, str], points: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Write values by epoch."""
        run, last = self._run(trial_id, about), self._last.setdefault(str(trial_id), {})
        for epoch, values in points.items():
            self.write("metric", values, partial(run.log, step=epoch))
            last.update(dict.fromkeys(values, epoch))
        self._keep_note()

    def study_ended(self, status: StudyStatus) -> None:
        """Finish all runs; `init` with the name of one continues it.

        Not earlier: wandb writes two runs of a name into one file if they begin in one second.
        """
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def finish(self, trial: Tracked) -> None:
        """Write how the trial ended, at the last step."""
        trial_id, attempt = trial.key
        final = {f"final/{name}": value for name, value in trial.final.items()}
        step = max((points[-1][0] for points in trial.series.values()), default=0)
        log = partial(self._run(trial_id, trial.about).log, step=step)
        self.write("metric", {"status": str(trial.status), **final}, log)
        self._runs.pop(trial_id).finish()
        self._noted[str(trial_id)] = attempt
        self._last.pop(str(trial_id), None)
        self._keep_note()

    def _run(self, trial_id: int, about: Mapping[str, str]) -> Any:
        if trial_id not in self._runs:
            name = f"trial-{trial_id:06d}-{self._token}"
            identity = {"id": name} if self._is_wandb else {}

            def begin(config: dict[str, Any]) -> None:
                # In a context of its own: `trackio.init` finishes the run that it finds in its.
                self._runs[trial_id] = Context().run(
                    self._tool.init, name=name, config=config, **identity, **self._given
                )

            self.write("the architecture", about, begin, together=True)
            if trial_id not in self._runs:
                begin({})
        return self._runs[trial_id]

    def _keep_note(self) -> None:
        note = {"token": self._token, "ended": self._noted, "last": self._last}
        self._note.parent.mkdir(exist_ok=True)
        write_whole(self._note, json.dumps(note))
