"""Studies as jobs on a Ray cluster: submit one, or resume it there."""

import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from nas_evidence.api.progress import audience_for
from nas_evidence.api.python_words import speaking_python
from nas_evidence.api.request import (
    Asked,
    DataOptions,
    Settings,
    as_overrides,
    check_known,
    to_submit,
    with_data_parameters,
    with_workers,
)
from nas_evidence.api.runs import Audience, begun
from nas_evidence.api.trackers import check_track
from nas_evidence.jobs.code_package import STUDY_FILE, package_to_send, write_package
from nas_evidence.jobs.jobs import Submitted, jobs_of, submit_study
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import refuse_password
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # imports ray
    from nas_evidence.jobs.client import RayClient

#: Places of trackers that all nodes see, as examples.
_SEEN_BY_ALL = {
    "mlflow": "mlflow:http://HOST:5000",
    "tensorboard": "tensorboard:/nfs/DIR",
    "optuna": "optuna:postgresql://USER@HOST/NAME",
}


@with_data_parameters
@speaking_python()
def submit(
    study: str | Path,
    *,
    address: str,
    store: str | Path,
    name: str | None = None,
    n_trials: int | None = None,
    workers: int | None = None,
    metric: str | None = None,
    settings: Settings | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    allow_code: bool = False,
    progress: bool | Audience | None = None,
    track: str | Sequence[str] = (),
    **options: Unpack[DataOptions],
) -> Submitted:
    """Search on a cluster: start the study as a job there, or resume it; return at once.

    While a job of this name is alive, none is started.

    Args:
        study: the path of a study file or of data, or the name of a shipped study.
        address: URL of the dashboard of a Ray cluster: "http://HOST:8265".
        store: study folder that all nodes see, an absolute path or a URI.
        name: of the study on the cluster; by default its own.
        n_trials: trials to run; by default as the study file says, or 24.
        workers: how many trials run at once; by default as the study says.
        metric: to show first in report and `predict`.
        settings: any key of a study file: {"plan.epochs": 50}; or as `--set` takes them.
        data_root: folder of the named data sets on the cluster.
        download: fetch a named data set that is missing there.
        allow_code: run code that a study file names as module:NAME.
        progress: whether to print; by default on a terminal or in a notebook.
        track: where the driver on the cluster writes to as well; see `nas_evidence.search`.
        options: about the data, see `nas_evidence.api.request.DataOptions`.

    Returns:
        `job` (with `id`, `state` and `store`), `is_new`, and `before`, the job before a new one.

    Raises:
        ValueError: for a study, a store or a tracker that cannot be used there, a name in use with
            another store, or a cluster that does not answer.

    Example:
        there = dict(address="http://127.0.0.1:8265", store="/nfs/digits")
        nas_evidence.submit("digits", n_trials=100, **there).job.id  # "nas-digits-1"
    """
    check_known(submit, options)
    if not isinstance(study, str | Path):
        raise UserError(
            f"what is submitted must be a study file, a shipped study or a data file, but is a "
            f"{type(study).__name__}; write it to a file"
        ).with_code("submit-data-in-memory")
    place, tracked = str(store), (track,) if isinstance(track, str) else tuple(track)
    audience = audience_for(progress)
    named = {"n_trials": n_trials, "metric": metric}
    keys = {key: value for key, value in named.items() if value is not None}
    overrides = [*as_overrides(settings), *as_overrides(keys)]
    asked = to_submit(str(study), overrides, options, allow_code=allow_code)
    spec = with_workers(asked.spec, workers)
    for sentence in asked.decided:
        audience.say(sentence)
    check_store(place)
    check_track_there(tracked, place)
    passed_on = as_arguments(
        data_root=data_root,
        download=download,
        steal=True,  # from a lost host, once it has fallen silent
        allow_code=allow_code,
        track=tracked,
    )
    name = name or spec.name
    client = connect(address, audience.warn)
    if asked.source is None or not asked.source.files:
        arguments = ["search", STUDY_FILE, "--out", place, "--address", "auto", *passed_on]
        return send(client, name, place, arguments=arguments, spec=spec)
    # Ray would lay data where every user of the nodes can read them.
    arguments = ["resume", place, "--address", "auto", *passed_on]
    begin = partial(_begin_there, place, spec, asked, audience.say)
    return send(client, name, place, arguments=arguments, begin=begin)


def _begin_there(store: str, spec: StudySpec, asked: Asked, say: Callable[[str], None]) -> None:
    """Begin a study in its store, with its data, which no other user can read.

    Raises:
        ValueError: if the store is not seen from here, or holds another study.
    """
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.outside_code import keep_code
    from nas_evidence.storage.store import StoreError

    why = "there is no such folder"
    if "://" in store or Path(store).parent.is_dir():
        there = working_copy(store)
        try:
            with there.held(steal=True):
                begun(there.folder, spec, asked.source, steal=True)
                keep_code(there.folder, spec)
        except StoreError as error:
            why = str(error).rstrip(".")
        else:
            say(f"data:   {store}/data, for no other user to read")
            return
    raise UserError(
        f"the data must be put into {store} from here, which fails: {why}. Give a --store that "
        "this machine and the nodes see, or put the data where every node sees them "
        "and name that path in [dataset] of a study file."
    ).with_code("data-not-sent-to-store")


def connect(address: str, warn: Callable[[str], None]) -> "RayClient":
    """Return the client of a cluster; warn if a token is sent unencrypted."""
    from nas_evidence.jobs.client import RayClient

    client = RayClient(address)
    if client.sends_token_in_clear:
        warn(f"the token is sent unencrypted to {address}; use https or an SSH tunnel")
    return client


def send(
    client: "RayClient",
    name: str,
    store: str,
    *,
    arguments: Sequence[str],
    spec: StudySpec | None = None,
    begin: Callable[[], None] | None = None,
) -> Submitted:
    """Submit a job unless one is alive; `begin` is called before one that will be new.

    Args:
        client: of the cluster.
        name: of the study there.
        store: of the study, as the nodes see it.
        arguments: of `nas-evidence` there.
        spec: the study, if its file is sent.
        begin: puts the study into the store.
    """
    if begin is not None and not any(job.alive for job in jobs_of(client, name)):
        begin()
    with tempfile.TemporaryDirectory(prefix="nas-evidence-") as folder:
        size = write_package(Path(folder), spec, package=package_to_send())
        return submit_study(
            client, name, store, arguments=arguments, folder=folder if size else None
        )


def as_arguments(
    *,
    data_root: str | Path | None,
    download: bool,
    steal: bool,
    allow_code: bool,
    track: Sequence[str] | None,
    trials: int | None = None,
    workers: int | None = None,
    overrides: Sequence[str] | None = None,
    metric: str | None = None,
    time: str | None = None,
) -> list[str]:
    """Return options as command-line arguments, for a job that passes them on."""
    given: list[tuple[str, object]] = [
        ("--trials", trials),
        ("--workers", workers),
        ("--data-root", data_root),
        ("--metric", metric),
        ("--time", time),
        *(("--set", text) for text in overrides or ()),
        *(("--track", text) for text in track or ()),
    ]
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    words += ["--download"] * download + ["--steal"] * steal
    return words + ["--allow-code"] * allow_code


def check_store(store: str) -> None:
    """Check that the nodes of a cluster can see a store.

    Raises:
        ValueError: if it is a relative path, or has a password in it.
    """
    refuse_password(store, "--store ")
    if not re.match(r"\w[\w+.-]*://", store) and not Path(store).is_absolute():
        raise UserError(
            f"--store must be an absolute path that all nodes see, or a URI, but got {store!r}."
        ).with_code("store-not-absolute")


def check_track_there(track: Sequence[str] | None, store: str) -> None:
    """Check trackers of a study that runs on a cluster; their packages have to be there, not here.

    Raises:
        ValueError: for an unknown tracker, or if it would write into the driver's copy of a store,
            which goes with the driver's node.
    """
    check_track(track or (), installed=False)
    for name in track or ():
        if "://" in store and name in _SEEN_BY_ALL:
            example = _SEEN_BY_ALL[name]
            raise UserError(
                f"--track {name} would write on the cluster beside a copy of {store}, which "
                f"nobody sees; name a place that all see, such as --track {example}."
            ).with_code("track-on-cluster")
