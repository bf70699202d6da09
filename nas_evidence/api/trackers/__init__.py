"""Copies of a study for other tools; only the driver's process writes them.

    mlflow[:URI]        experiment = the study; a run has the architecture as parameters, scores
                        and curves as metrics by epoch. URI: $MLFLOW_TRACKING_URI, else mlflow.db
                        in the study folder
    tensorboard[:DIR]   a folder per trial with the same; DIR: `tensorboard/` in the study folder
    optuna[:URL]        one trial per finished proposal, see proposing/optuna_export.py; URL:
                        `study.db` in the study folder
    wandb[:PROJECT]     a run per trial with the same; PROJECT: the name of the study
    trackio[:PROJECT]   the same, on this machine or in a Space of Hugging Face
    prometheus[:FILE]   counters, as metrics of Ray where Ray runs the trials; otherwise, or with
                        FILE, for node_exporter; FILE: `metrics.prom` in the study folder

A tracker decides nothing and is no part of the study. It works in a thread of its own: a slow or
broken one never holds up the search, and its first failure is one warning. A resumed study also
writes the finished trials that its tracker has not seen. A name that a tool does not take is
translated (`plumbing/names.py`). What it refuses all the same is left out and said once.
"""

import configparser
import contextlib
import netrc
import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from nas_evidence.exporting.soundness import read_json
from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.proxies import is_loopback, pass_proxies_by, proxy_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import refuse_password
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import Watcher

#: Each but the last, which needs none, is also the name of its package and of the extra for it.
TRACKERS = ("mlflow", "tensorboard", "optuna", "wandb", "trackio", "prometheus")
#: What may follow the name.
_PLACES = {"mlflow": "URI", "tensorboard": "DIR", "optuna": "URL", "prometheus": "FILE"}
#: Where its client finds a password.
_PASSWORDS = {"optuna": "PGPASSWORD or ~/.pgpass", "mlflow": "MLFLOW_TRACKING_PASSWORD"}

#: Where the server of a tracker is found, and its tokens.
_SERVERS = {
    "mlflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    "wandb": ("WANDB_BASE_URL", "WANDB_API_KEY"),
}


def check_track(wanted: Iterable[str], *, installed: bool = True) -> None:
    """Check that the named trackers exist and, with `installed`, that their packages are here."""
    for text in wanted:
        name, _, place = text.partition(":")
        if name not in TRACKERS:
            known = ", ".join(f"{one}[:{_PLACES.get(one, 'PROJECT')}]" for one in TRACKERS)
            raise UserError(
                "unknown-tracker", f"`track` must be one of {known}, but got {masked(text)!r}."
            )
        refuse_password(text, "`track` ", _PASSWORDS.get(name, "the environment"))
        if name == "optuna" and place:
            _check_url(place, installed=installed)
        if name not in _PLACES and not re.fullmatch(r"[\w. -]*", place):
            raise UserError(
                "track-project",
                f"track={name}:PROJECT takes letters, digits and .-_, but got {place!r}.",
            )
        if installed and name != "prometheus":
            _check_package(name, name, name)


def sent_in_clear(text: str) -> str:
    """Return what is to be said if a tracker sends a token over a network unencrypted, else ""."""
    name, _, place = text.partition(":")
    if name not in _SERVERS:
        return ""
    server, *tokens = _SERVERS[name]
    url = (place if name == "mlflow" else "") or os.environ.get(server, "") or _configured(name)
    parts = urlsplit(url)
    if parts.scheme != "http" or is_loopback(parts.hostname or ""):
        return ""
    used = next((token for token in tokens if os.environ.get(token)), "")
    used = used or _in_a_file(name, parts.hostname or "")
    if not used:
        return ""
    through = f" through the proxy {proxy}" if (proxy := proxy_of(url)) else ""
    return f"{used} is sent unencrypted to {masked(url)}{through}; use https or an SSH tunnel"


def _configured(name: str) -> str:
    """Return the server in the settings file of W&B, "" if there is none."""
    if name != "wandb":
        return ""
    home = os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb"
    for folder in (Path("wandb"), Path(home)):
        if url := _value(folder / "settings", "default", "base_url"):
            return url
    return ""


def _in_a_file(name: str, host: str) -> str:
    """Return the file in which a tracker's client finds a password for a host, "" if in none."""
    credentials = Path.home() / ".mlflow" / "credentials"
    if name == "mlflow" and _value(credentials, "mlflow", "mlflow_tracking_password"):
        return f"the password in {credentials}"
    named = os.environ.get("NETRC")
    places = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for place in places:
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if netrc.netrc(place.expanduser()).authenticators(host):
                return f"the password in {place}"
    return ""


def _value(place: Path, section: str, key: str) -> str:
    """Return a value of a file of settings, "" if it has none."""
    read = configparser.ConfigParser(default_section="", interpolation=None)
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        read.read(place, encoding="utf-8")
        return read.get(section, key, fallback="")
    return ""


def _check_url(url: str, *, installed: bool) -> None:
    if not re.fullmatch(r"[\w+]+://[^\s'\"]+", url):
        raise UserError(
            "track-optuna-url",
            "track=optuna:URL needs the URL of a database such as "
            f"postgresql://USER@HOST:PORT/NAME or sqlite:////FOLDER/FILE.db, but got {url!r}.",
        )
    if installed and url.startswith("postgres"):
        _check_package(f"optuna:{url}", "psycopg", "postgresql")


def _check_package(track: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise UserError(
            "track-needs-package",
            f"track={track} needs {package}: install it with `pip install '.[{extra}]'` "
            "in a clone.",
        )


def tracker_of(text: str, spec: StudySpec, folder: Path, *, on_ray: bool = False) -> Watcher:
    """Return the tracker that an option names; see the top of this file.

    Args:
        text: the option.
        spec: the study.
        folder: of the study.
        on_ray: whether Ray runs the trials.
    """
    name, _, place = text.partition(":")
    pass_proxies_by(place)
    if name == "tensorboard":
        from nas_evidence.api.trackers.tensorboard import TensorBoard

        return TensorBoard(Path(place) if place else folder / "tensorboard")
    if name == "prometheus":
        from nas_evidence.api.trackers.prometheus import Prometheus, to_file, to_ray

        if on_ray and not place:
            return Prometheus(to_ray())
        return Prometheus(to_file(Path(place) if place else folder / "metrics.prom"))
    if name == "optuna":
        from nas_evidence.api.trackers.optuna import Optuna

        return Optuna(spec, folder, place)
    if name == "mlflow":
        from nas_evidence.api.trackers.mlflow import MLflow

        return MLflow(spec, folder, place)
    from nas_evidence.api.trackers.init_log_finish import InitLogFinish

    return InitLogFinish(name, spec, folder, place)


def keep_export(text: str, spec: StudySpec, folder: Path, export: Path) -> None:
    """Write an export of the winner as an artifact of the run of its trial, which may be new.

    Args:
        text: "mlflow" or "mlflow:URI".
        spec: the study.
        folder: of the study.
        export: folder of one network.

    Raises:
        ValueError: for another tracker, or an ensemble.
    """
    check_track([text])
    name, _, place = text.partition(":")
    if name != "mlflow":
        raise UserError(
            "export-track",
            f"an export is kept by track=mlflow or mlflow:URI, but got {masked(text)!r}.",
        )
    if not (export / "evidence.json").is_file():
        raise UserError(
            "export-track-ensemble",
            f"`track` keeps the export of one architecture, but {export} holds an ensemble of "
            "several; leave out `track`.",
        )
    from nas_evidence.api.trackers.mlflow import MLflow

    pass_proxies_by(place)
    tracker = MLflow(spec, folder, place)
    tracker.study_started(spec, folder)
    trial_id = read_json(export, "evidence.json")["trial_id"]
    tracker.keep_export(trial_id, export)
