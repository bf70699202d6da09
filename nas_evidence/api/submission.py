"""Studies as jobs on a Ray cluster: submit one, or resume it there."""

import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from nas_evidence.api.control import connect, is_seen, opened, there
from nas_evidence.api.progress import audience_for
from nas_evidence.api.request import (
    Request,
    asked_for,
    check_not_fewer,
    overrides_of,
    with_workers,
)
from nas_evidence.api.runs import Run, begun, check_reaches
from nas_evidence.api.shared_options import (
    ResubmitOptions,
    SubmitOptions,
    check_known,
    flag_of,
    with_options,
)
from nas_evidence.api.trackers import check_track
from nas_evidence.jobs.code_package import STUDY_FILE, package_to_send, write_package
from nas_evidence.jobs.jobs import Submitted, jobs_of, submit_study
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import refuse_password
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.in_clear import sent_in_clear as store_in_clear
from nas_evidence.storage.kept_submission import Submission, keep_submission

if TYPE_CHECKING:  # imports ray
    from nas_evidence.jobs.client import RayClient

#: Places of trackers that all nodes see, as examples.
_SEEN_BY_ALL = {
    "mlflow": "mlflow:http://HOST:5000",
    "tensorboard": "tensorboard:/nfs/DIR",
    "optuna": "optuna:postgresql://USER@HOST/NAME",
}


@with_options(SubmitOptions)
def submit(
    study: str | Path,
    *,
    address: str,
    store: str | Path,
    name: str | None = None,
    **options: Unpack[SubmitOptions],
) -> Submitted:
    """Search on a cluster: start the study as a job there, or resume it; return at once.

    While a job of this name is alive, none is started.

    Args:
        study: the path of a study file or of data, or the name of a shipped study.
        address: URL of the dashboard of a Ray cluster: "http://HOST:8265".
        store: study folder that all nodes see, an absolute path or a URI.
        name: of the study on the cluster; by default its own.
        options: see `nas_evidence.api.shared_options.SubmitOptions`.

    Returns:
        `job` (with `id`, `state` and `store`), `is_new`, and `before`, the job before a new one.

    Raises:
        ValueError: for a study, a store or a tracker that cannot be used there, a name in use with
            another store, or a cluster that does not answer.

    Example:
        there = dict(address="http://127.0.0.1:8265", store="/nfs/digits")
        nas_evidence.submit("digits", n_trials=100, **there).job.id  # "nas-digits-1"
    """
    check_known("submit", SubmitOptions, options)
    if not isinstance(study, str | Path):
        raise UserError(
            "submit-data-in-memory",
            f"what is submitted must be a study file, a shipped study or a data file, but is a "
            f"{type(study).__name__}; write it to a file",
        )
    place, track = str(store), options.get("track", ())
    tracked, allow_code = (track,) if isinstance(track, str) else track, options.get("allow_code")
    audience = audience_for(options.get("progress"))
    asked = asked_for(
        str(study), overrides_of(options), options, allow_code=bool(allow_code), elsewhere=True
    )
    check_reaches(asked.code, "ray")
    spec = with_workers(asked.spec, options.get("workers"))
    if asked.decided:
        audience.read(asked.decided)
    if said := store_in_clear(place):
        audience.warn(said)
    check_store(place)
    check_track_there(tracked, place)
    passed_on = as_arguments(
        address="auto",
        data_root=options.get("data_root"),
        download=options.get("download"),
        steal=True,  # from a lost host, once it has fallen silent
        allow_code=allow_code,
        track=tracked,
    )
    name = name or spec.name
    client = connect(address, audience.warn)
    where = Submission(address.rstrip("/"), name, place)
    if asked.source is None or not asked.source.files:
        arguments = ["search", STUDY_FILE, "--out", place, *passed_on]
        return send(client, where, arguments=arguments, spec=spec, code=asked.code)
    # Ray would lay data where every user of the nodes can read them.
    begin = partial(_begin_there, where, spec, asked, audience.say)
    return send(client, where, arguments=["resume", place, *passed_on], begin=begin)


@with_options(ResubmitOptions)
def resubmit(
    store: str | None = None,
    *,
    address: str,
    name: str | None = None,
    retry_failed: bool | Sequence[int] = False,
    **options: Unpack[ResubmitOptions],
) -> Submitted:
    """Resume a study as a job on a cluster; return at once.

    Args:
        store: study folder that all nodes see, or a URI; by default that of the last job.
        address: URL of the dashboard of a Ray cluster: "http://HOST:8265".
        name: of the study on the cluster; by default its own, if the store is seen from here.
        retry_failed: run failed trials again, all, or those with these ids.
        options: see `nas_evidence.api.shared_options.ResubmitOptions`.

    Raises:
        ValueError: without store and name, or for a store that the cluster cannot see.

    Example:
        nas_evidence.resubmit("/nfs/digits", address="http://127.0.0.1:8265", n_trials=200)
    """
    check_known("resubmit", ResubmitOptions, options)
    warn = audience_for(options.pop("progress", None)).warn
    if store is None:
        if name is None:
            raise UserError(
                "resume-on-cluster-without-name",
                "resume needs a study folder, or the `name` of a study on the cluster.",
            )
        store = there(None, address, name, warn).store
    if said := store_in_clear(store):
        warn(said)
    check_store(store)
    check_track_there(options.get("track"), store)
    if is_seen(store):
        from nas_evidence.storage.study_folder import read_study

        spec = read_study(opened(store, looking="logs").folder)
        check_not_fewer(spec, options.get("n_trials"))
        name = name or spec.name
    if name is None:
        raise UserError(
            "store-out-of-sight", f"{store} cannot be seen from here; give its `name`."
        )
    retried = retry_failed if isinstance(retry_failed, bool) else ",".join(map(str, retry_failed))
    words = as_arguments(address="auto", **options, steal=True, retry_failed=retried)
    where = Submission(address.rstrip("/"), name, store)
    return send(connect(address, warn), where, arguments=["resume", store, *words])


def _begin_there(
    where: Submission, spec: StudySpec, asked: Request, say: Callable[[str], None]
) -> None:
    """Begin a study in its store, with its data, which no other user can read."""
    from nas_evidence.data.decided import how_read_of
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.storage.faults import StoreError
    from nas_evidence.storage.kept_how_read import keep_how_read
    from nas_evidence.storage.outside_code import keep_code, with_kept

    store, why = where.store, "there is no such folder"
    if "://" in store or Path(store).parent.is_dir():
        there = working_copy(store)
        try:
            with there.held(steal=True):
                begun(there.folder, spec, asked.source, Run(steal=True))
                if asked.arrays is not None:
                    keep_how_read(there.folder, how_read_of(asked.arrays, asked.given))
                keep_code(there.folder, with_kept(there.folder, asked.code))
                keep_submission(there.folder, where)
        except StoreError as error:
            why = str(error).rstrip(".")
        else:
            say(f"data:   {store}/data, for no other user to read")
            return
    raise UserError(
        "data-not-sent-to-store",
        f"the data must be put into {store} from here, which fails: {why}. Give a `store` that "
        "this machine and the nodes see. Or put the data where every node sees them, "
        "and name that path in [dataset] of a study file.",
    )


def send(
    client: "RayClient",
    where: Submission,
    *,
    arguments: Sequence[str],
    spec: StudySpec | None = None,
    begin: Callable[[], None] | None = None,
    code: Code | None = None,
) -> Submitted:
    """Submit a job unless one is alive; `begin` is called before one that will be new.

    Args:
        client: of the cluster.
        where: the study there; its folder says so, if it is seen from here.
        arguments: of `nas-evidence` there.
        spec: the study, if its file is sent.
        begin: puts the study into the store.
        code: what the study names as module:NAME, if its file is sent.
    """
    name, store = where.name, where.store
    if begin is not None and not any(job.alive for job in jobs_of(client, name)):
        begin()
    with tempfile.TemporaryDirectory(prefix="nas-evidence-") as folder:
        size = write_package(Path(folder), spec, package=package_to_send(), code=code)
        found = submit_study(
            client, name, store, arguments=arguments, folder=folder if size else None,
            address=where.address,
        )  # fmt: skip
    if found.is_new and "://" not in store and (Path(store) / "study.toml").is_file():
        with suppress(OSError):  # the job says it, too, when it begins
            keep_submission(Path(store), where)
    return found


def as_arguments(**given: Any) -> list[str]:
    """Return arguments of `search` and `resume` as words of the command line, for a job.

    >>> as_arguments(n_trials=3, settings=["seed=1", "plan.epochs=2"], steal=True, name=None)
    ['--trials', '3', '--set', 'seed=1', '--set', 'plan.epochs=2', '--steal']
    >>> as_arguments(seed=0, steal=False)
    ['--seed', '0']
    """
    words = []
    for name, value in given.items():
        option = flag_of(name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not None and one is not False:
                words += [option] if one is True else [option, str(one)]
    return words


def check_store(store: str) -> None:
    """Check that the nodes of a cluster can see a store."""
    refuse_password(store, "`store` ")
    if not re.match(r"\w[\w+.-]*://", store) and not Path(store).is_absolute():
        raise UserError(
            "store-not-absolute",
            f"`store` must be an absolute path that all nodes see, or a URI, but got {store!r}.",
        )


def check_track_there(track: Sequence[str] | None, store: str) -> None:
    """Check trackers of a study on a cluster; their packages have to be there, not here."""
    check_track(track or (), installed=False)
    for name in track or ():
        if "://" in store and name in _SEEN_BY_ALL:
            example = _SEEN_BY_ALL[name]
            raise UserError(
                "track-on-cluster",
                f"track={name} would write on the cluster beside a copy of {store}, which "
                f"nobody sees; name a place that all see, such as track={example}.",
            )
