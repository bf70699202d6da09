"""Run the trials of a study in its store; used by the command line and by Python alike."""

import logging
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

from nas_evidence.api.callbacks import Callbacks, Called, InThread, callbacks_of, columns_added_by
from nas_evidence.api.trackers import check_track, sent_in_clear, tracker_of
from nas_evidence.jobs.auth_token import sent_in_clear_to, use_token_if_there_is_one
from nas_evidence.jobs.jobs import namespace_of, submission_of_this_job
from nas_evidence.plumbing.durations import duration, rough_duration
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.words import counted
from nas_evidence.spec.domains import architecture_text
from nas_evidence.spec.parameters import check_parameters
from nas_evidence.spec.record import is_race, n_searched, trial_of
from nas_evidence.spec.registry import declared, imported, is_outside
from nas_evidence.spec.schedule import never_reached
from nas_evidence.spec.study import IN_PYTHON, ArchitectureSpec, ResourceSpec, StudySpec
from nas_evidence.storage.in_clear import sent_in_clear as store_in_clear
from nas_evidence.storage.kept_submission import keep_submission
from nas_evidence.storage.outside_code import keep_code, outside_names, size_said
from nas_evidence.workers.executor import Watcher, Where

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.data import ArrayData
    from nas_evidence.data.source import Source
    from nas_evidence.driver.driver import Driver
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.storage.best import Standing
    from nas_evidence.storage.redo import DoneTrials
    from nas_evidence.storage.tables import StudyTables
    from nas_evidence.workers.executor import Executor, MakeExecutor
    from nas_evidence.workers.fork_server import ForkServer

_LOG = logging.getLogger(__name__)
#: Seconds for the forecast of a search, so that one architecture of a family is mostly timed.
_FORECAST_PATIENCE = 0.5
#: Trials of which none is worth a forecast, which takes about as long as a short one.
_FEW = 2
#: Share of the workers' time without work from which it is said.
_MUCH_IDLE = 0.25
#: What is said of a reference that may not be imported.
NEEDS_ALLOW_CODE = (
    "code from outside nas-evidence, which runs only with allow_code (--allow-code)."
)


@dataclass(frozen=True)
class Run:
    """How to run a study: where its trials run, and where its data are."""

    executor: "str | MakeExecutor" = "inline"
    address: str | None = None  # cluster to join
    data_root: Path | None = None
    download: bool = False
    steal: bool = False
    allow_code: bool = False
    track: tuple[str, ...] = ()  # checked; see api/trackers
    limit: TimeLimit | None = None
    callbacks: tuple[Watcher, ...] = ()
    forks: "ForkServer | None" = None  # started ahead; see `forks_ahead`
    only_checks: bool = False  # see `Audience`

    def at(self, store: "WorkingCopy") -> AbstractContextManager[None]:
        """Return a context in which the study is at hand: held, or only looked at."""
        return (store.looked_at if self.only_checks else store.held)(steal=self.steal)


_ALONE = Run()


def run_of(options: Mapping[str, Any]) -> Run:
    """Return how to run a study by the options of `search`; checked before anything slow.

    Raises:
        ValueError: for an unknown tracker or executor, an address that cannot be joined, or
            callbacks that are none; or if the current folder was removed.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "current-folder-removed",
            "the current folder was removed; go to another one (`os.chdir`).",
        ) from None
    limit, root, track = (options.get(name) for name in ("time_limit", "data_root", "track"))
    if limit is not None and not isinstance(limit, TimeLimit):
        limit = TimeLimit(seconds_of(limit))
    run = Run(
        options.get("executor") or ("inline" if options.get("workers", 1) == 1 else "auto"),
        options.get("address"),
        None if root is None else Path(root),
        options.get("download", False),
        options.get("steal", False),
        options.get("allow_code", False),
        (track,) if isinstance(track, str) else tuple(track or ()),
        limit,
        callbacks_of(options.get("callbacks", ())),
        only_checks=getattr(options.get("progress"), "only_checks", False),
    )
    check_track(run.track)
    if isinstance(run.executor, str) and run.executor not in get_args(Where):
        run = replace(run, executor=_imported_executor(run.executor, allowed=run.allow_code))
    if run.address is None:
        return run
    if run.executor not in ("auto", "ray"):
        raise UserError(
            "address-without-ray",
            "`address` joins a Ray cluster: it works only with executor=ray.",
        )
    if "@" in run.address:
        raise UserError(
            "address-with-password",
            "`address` must hold no password; the token comes from RAY_AUTH_TOKEN.",
        )
    if "://" in run.address:
        raise UserError(
            "address-of-dashboard",
            f"`address` must be auto or HOST:PORT to join a cluster from here, but got "
            f"{run.address}; to run on the cluster itself use `nas-evidence submit`.",
        )
    return run


@contextmanager
def forks_ahead(run: Run) -> Iterator[Run]:
    """Start what forks plain processes while study and data are read, if trials will run there.

    It imports torch, which takes longer than reading a table. It is gone after the block.
    """
    from nas_evidence.workers.choice import chosen_executor
    from nas_evidence.workers.fork_server import ForkServer

    name = run.executor
    if name == "auto":  # resources of the study may be others: then it is ended
        name, _ = chosen_executor(ResourceSpec(), joins=run.address is not None)
    if name != "local" or run.only_checks:
        yield run
        return
    with closing(ForkServer(None)) as forks:
        forks.start()
        yield replace(run, forks=forks)


def check_reaches(code: Code, executor: "str | MakeExecutor") -> None:
    """Check that the processes in which trials run have the code of a study.

    Raises:
        ValueError: for what a notebook or a script defines, unless trials run in this process.
    """
    local = [name for name in code.local if not name.startswith(IN_PYTHON)]  # samplers ask here
    if local and executor in ("auto", "local", "ray"):
        remedy = "workers=1" if executor == "auto" else "executor=inline"
        raise UserError(
            "code-of-this-process-only",
            f"{local[0]} is defined in the script or notebook that runs, which "
            f"worker processes do not have; put it into a module, or use {remedy}.",
        )


def _imported_executor(name: str, *, allowed: bool) -> "MakeExecutor":
    if not is_outside(name):
        raise UserError(
            "unknown-executor",
            f"`executor` must be {', '.join(get_args(Where))} or module:NAME, but got {name!r}.",
        )
    if not allowed:
        raise UserError(
            "executor-needs-allow-code",
            f"executor={name} is {NEEDS_ALLOW_CODE}",
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found = imported(name, "what makes an executor")
    if not callable(found):
        raise UserError(
            "executor-not-callable",
            f"executor={name} must name a class or function that makes an executor, but it is "
            f"a {type(found).__name__}.",
        )
    return cast("MakeExecutor", found)


class Audience:
    """Who is told what happens; this one only warns, as Python does."""

    #: Whether all is checked, and then nothing is written and nothing runs: `ready` ends it.
    only_checks = False

    def say(self, line: str) -> None:
        """Print one line of text."""

    def read(self, sentences: Sequence[str]) -> None:
        """Tell how the data were read."""
        for sentence in sentences:
            self.say(sentence)

    def warn(self, line: str) -> None:
        """Print one line, of what has stopped while the search goes on."""
        warnings.warn(line, RuntimeWarning, stacklevel=2)

    def begins(self, store: "WorkingCopy") -> None:
        """The study is held."""

    def ready(self, spec: StudySpec, ahead: "Ahead | None") -> NoReturn:
        """Say that all is checked, and end; `ahead` is None where no trial is left."""
        raise NotImplementedError

    @contextmanager
    def running(self, spec: StudySpec, store: "WorkingCopy", run: Run) -> Iterator[None]:
        """Return a context around the trials; an interrupt says what goes on."""
        from nas_evidence.storage.kept_submission import resume_call
        from nas_evidence.storage.log import read_log

        try:
            yield
        except KeyboardInterrupt:
            n_stored = n_searched(read_log(store.folder).state.rows)
            raise KeyboardInterrupt(
                f"stopped; nothing is lost, and {n_stored} of {spec.n_trials} trials are stored; "
                f"{resume_call(store.place, store.folder, spec)} goes on"
            ) from None

    def leads(self, line: str) -> None:
        """Say that the network that leads is trained on all rows, after an interrupt."""
        self.say(line)

    def starting(self) -> AbstractContextManager[object]:
        """Return what is shown while the workers start."""
        return nullcontext()

    def watching(self, spec: StudySpec, n_done: int) -> AbstractContextManager[Watcher]:
        """Return a watcher of the driver, for the study and its number of finished trials."""
        return nullcontext(Watcher())

    def go_on(self, place: str, run: Run) -> str:
        """Return the command that continues the study, for the last line of a lost process."""
        return "run the same again"

    def ends(self, study: Any, run: Run, ran: bool) -> None:
        """The trials are over, or none was left (not `ran`); the study is still held."""
        if cut := left_out(study.spec, study.folder, run.limit):
            self.say(f"time: {cut}; resume the study for the others")


def begun(
    folder: Path,
    spec: StudySpec,
    source: "Source | None",
    run: Run = _ALONE,
) -> "tuple[StudySpec, Source]":
    """Create the folder of a study with its data, or continue it; return both as stored there.

    Where `run` only checks, nothing is written.

    `epochs`, `every` and `rank_by` of "auto" are decided here: as stored, or for the data. The
    data of a study that goes on are read from its folder, and checked; those of a new one are at
    hand.

    Raises:
        ValueError: if the folder holds another study, or one of other data, or if a new study
            asks for what its epochs never reach.
    """
    from nas_evidence.data.proposed import with_numbers
    from nas_evidence.data.source import stored_source
    from nas_evidence.storage.kept_how_read import read_how_read
    from nas_evidence.storage.set_aside import set_aside
    from nas_evidence.storage.study_folder import agreed, open_study, read_study

    old = read_study(folder) if (folder / "study.toml").is_file() else None
    if old is None:
        check_parameters(spec)
    if source is not None and old is not None:
        how = read_how_read(folder)
        source.check_unchanged(old.dataset, folder, "" if how is None else how.size)
    data = source
    if data is None or old is not None:
        base = folder.resolve()
        data = stored_source(
            spec.dataset, base=base, data_root=run.data_root, download=run.download
        )
    in_folds = any(declared(name).division == "plan" for name in spec.estimators)
    open_order = spec.rank_by == "auto" and spec.can_be_estimated
    asks_rows = old is None and (
        spec.plan.automatic or (in_folds and spec.plan.folds == "auto") or open_order
    )
    n_rows = data.arrays(seed=spec.seed).n_train if asks_rows else 0
    plan = with_numbers(spec.plan, n_rows, None if old is None else old.plan)
    if old is None and (unreached := never_reached(plan, spec.pruning.rule)):
        first, *_ = unreached.values()
        raise UserError(first.code, "; ".join(text for _, text in unreached.values()))
    spec = spec.model_copy(update={"plan": plan})
    if old is None:
        spec = spec.with_order(n_rows).with_whole()
    elif spec.rank_by == "auto":
        spec = spec.model_copy(update={"rank_by": old.rank_by})
    if run.only_checks:
        return agreed(folder, spec), data
    stored = open_study(folder, spec, steal=run.steal)
    if source is not None:
        for name in source.spoilt(folder):
            set_aside(folder, name)
        source.write(folder)
    return stored, data


def unfinished(spec: StudySpec, finds: "DoneTrials") -> bool:
    """Return whether trials of the search or of the race of the finalists are left."""
    from nas_evidence.driver.race import is_finished

    return not is_finished(spec, finds.past.state.race, finds.done)


@dataclass(frozen=True)
class RunEnd:
    """What is left of a run while its study is still held.

    tables  of the study
    ran     whether trials ran
    forks   the server that has forked the workers, if it has imported torch and the study is here
    """

    tables: "StudyTables"
    ran: bool
    forks: "ForkServer | None"


@contextmanager
def study_run(
    spec: StudySpec,
    store: "WorkingCopy",
    run: Run,
    audience: Audience,
    data: "Source",
    code: Code,
    again: Collection[int],
) -> Iterator[RunEnd]:
    """Run what is left of a study; give what came of it, while it is locked.

    `again` has the failed trials that run again. Whoever only checks is told what is ready.

    Raises:
        KeyboardInterrupt: also if another terminal cancels the study.
        ValueError: if another process works on it, or the data do not fit it.
    """
    from nas_evidence.storage.best import Standings
    from nas_evidence.storage.conditions import hash_to_run
    from nas_evidence.storage.redo import ask_to_retry, find_done, set_aside_wrong
    from nas_evidence.storage.study_folder import locked
    from nas_evidence.storage.tables import read_study_tables
    from nas_evidence.workers.fork_server import ForkServer

    folder = store.folder
    if run.only_checks:
        finds = find_done(folder)
        done = {i: row for i, row in finds.done.items() if i not in again}
        left = UnfinishedStudy(spec, store, run, audience, data, replace(finds, done=done))
        ahead = left.ahead() if unfinished(spec, left.finds) else None
        if ahead is not None:
            hash_to_run(folder, spec, *left.conditions(ahead.arrays))
        audience.ready(spec, ahead)
    audience.begins(store)
    if again:
        ask_to_retry(folder, again)
    if said := store_in_clear(store.place):
        audience.warn(said)
    forks = run.forks or ForkServer(None)
    with locked(folder, steal=run.steal), closing(forks):
        keep_submission(folder, submission_of_this_job())
        left = UnfinishedStudy(spec, store, run, audience, data, find_done(folder), forks, code)
        reported = (folder / "report").is_dir()
        before = Standings(spec, left.finds.done.values()).best if reported else None
        if ran := unfinished(spec, left.finds):
            with audience.running(spec, store, run):
                left.run_trials()
        else:
            forks.close()
            audience.say(f"{spec.name}: all {spec.n_trials} trials are finished")
            for line in left.finds.notes:  # files of no trial of this study
                audience.say(f"note: {line}")
            set_aside_wrong(folder, left.finds)
            left.finish_off()
        tables = read_study_tables(folder, spec)
        if another := other_first(before, tables.standings.best):
            audience.say(another)
        yield RunEnd(tables, ran, forks if forks.runs and store.uri is None else None)


def other_first(before: "Standing | None", now: "Standing | None") -> str:
    """Say that another architecture comes first than in the last report; "" if none does."""
    if before is None or now is None or before.key == now.key:
        return ""
    was, is_now = (
        f"{architecture_text(one.architecture.family, one.architecture.values)} "
        f"(trial {one.trial_id})"
        for one in (before, now)
    )
    return f"note:   {is_now} comes first now; in the last report it was {was}"


@dataclass(frozen=True)
class Ahead:
    """What a run is about to do, all of it checked.

    arrays   of the study
    left     most trials, of the search and after it
    workers  at once; None for as many as there is room
    unused   a GPU that is left unused, and why
    """

    arrays: "ArrayData"
    left: int
    workers: int | None
    unused: "UserError | None"


@dataclass
class UnfinishedStudy:
    """The part of a study that has not run yet, and how to run it.

    spec      the study as stored
    store     its place
    run       how to run it
    audience  who is told
    data      of the study
    finds     which trials are done
    forks     forks workers, should they be plain processes; the caller's to close
    code      what the study names as module:NAME
    """

    spec: StudySpec
    store: "WorkingCopy"
    run: Run
    audience: Audience
    data: "Source"
    finds: "DoneTrials"
    forks: "ForkServer | None" = None
    code: Code = field(default_factory=Code)
    _starting: bool = False  # the workers of an executor on Ray

    def ahead(self) -> Ahead:
        """Say what will run, and check it; nothing is written.

        Raises:
            ValueError: if the data are missing or do not fit the study.
        """
        from nas_evidence.data.arrays import check_space, check_task
        from nas_evidence.driver.race import race_left, whole_left
        from nas_evidence.workers.choice import chosen_executor, n_workers, unused_gpu

        spec, run, say, done = self.spec, self.run, self.audience.say, self.finds.done
        n_done = n_searched(done)
        left = spec.n_trials - n_done
        race = race_left(spec, self.finds.past.state.race, done)
        name, why = run.executor, ""
        if name == "auto":
            name, why = chosen_executor(spec.resources, joins=run.address is not None)
            self.run = replace(run, executor=name)
        whole = whole_left(spec, done, over=not (left or race))
        most = left + race + whole
        workers = n_workers(spec.resources, name, most)
        at_once = "workers as there is room" if workers is None else counted(workers, "worker")
        trials = f"{left} of {spec.n_trials} trials" if n_done else counted(left, "trial")
        if race:
            trials += f", then up to {race} retrainings of the best"
        if whole:
            trials += f", then the best {whole} on all rows"
        end = ";" if most > left else ","
        # Before anything slow: reading data takes a second, Ray and torch take several.
        say(f"{spec.name}: {trials}{end} {at_once} -> {self.store.place}")
        arrays = self.data.arrays(seed=spec.seed)
        check_task(spec.plan, arrays)
        check_space(spec.family, arrays)
        if why:
            say(f"{spec.name}: trials run {why}")
        if unused := unused_gpu(spec.resources, name):
            self.audience.warn(str(unused))
        if any(map(is_outside, spec.family)):
            from nas_evidence.training.own_family import check_own_families

            check_own_families(spec, arrays.input_shape, spec.plan.head_width(arrays.n_outputs))
        if any(map(is_outside, spec.estimators)):
            from nas_evidence.driver.own_scores import check_own_scores

            check_own_scores(spec, arrays)
        return Ahead(arrays, most, workers, unused)

    def conditions(self, arrays: "ArrayData") -> tuple[str, set[str]]:
        """Return the hash of the data, and those of the conditions of trials that have ended."""
        from nas_evidence.data.digest import data_digest

        rows = self.finds.done.values()
        return data_digest(arrays), {row.content_hash for row in rows if row.content_hash}

    def run_trials(self) -> None:
        """Announce the run, prepare the data, and run the rest of the study.

        Raises:
            KeyboardInterrupt: also if another terminal cancels the study.
            ValueError: if the data are missing or do not fit the study.
        """
        from nas_evidence.data.decided import how_read_of
        from nas_evidence.storage.conditions import note_conditions
        from nas_evidence.storage.kept_how_read import keep_how_read

        ahead = self.ahead()
        spec, run, say, arrays = self.spec, self.run, self.audience.say, ahead.arrays
        n_left, workers = ahead.left, ahead.workers
        keep_how_read(self.store.folder, how_read_of(arrays))
        content_hash, restored = note_conditions(self.store.folder, spec, *self.conditions(arrays))
        for line in restored:
            say(f"note: {line}")
        keep_code(self.store.folder, self.code)
        if said := size_said(self.code):
            say(f"note: {said}")
        if self.forks is not None:
            if run.executor != "local":
                self.forks.close()
            else:
                self.forks.settle((self.store.folder / "logs").resolve(), spec.resources.cpus)
                self.forks.start()
                import_module("nas_evidence.driver.driver")  # meanwhile
        # Where trials take seconds, or are few, the first of them say as soon how long the rest
        # take.
        short = run.executor == "local" or n_left <= _FEW
        unknown = workers is None and run.address is not None  # how many the cluster carries
        silent = run.limit is not None or short or unknown
        told = nullcontext() if silent else self.forecast_told(arrays, n_left, workers)
        try:
            with told, closing(self._executor(arrays, workers, n_left)) as pool:
                if run.executor == "inline" and ahead.unused is None:
                    self._check_gpu()
                with self.audience.watching(spec, n_searched(self.finds.done)) as shown:
                    watcher = self._callbacks(shown, on_ray=run.executor == "ray")
                    # Before a limit as many trials as possible are to end.
                    limited = run.limit is not None or spec.budget.wall_seconds is not None
                    flops = None if limited or workers == 1 else partial(_flops, spec, arrays)
                    driver = self._driver(pool, watcher, self.finds, content_hash, flops=flops)
                    for notice in (*_sampler_notices(spec), *driver.notices):
                        say(f"note: {notice}")
                    with watcher:  # now that the driver has mended what trackers read
                        driver.run()
                        if driver.is_finished():
                            watcher.status = "complete"
                        else:
                            watcher.status = "cancelled" if driver.requests.study else "incomplete"
                if (idle := pool.idle_share()) >= _MUCH_IDLE:
                    say(f"the workers had nothing to do for {idle:.0%} of the time")
        except _Cancelled:
            raise
        except KeyboardInterrupt:
            self._train_leader(arrays, content_hash)
            raise
        if driver.requests.study and not driver.is_finished():
            raise _Cancelled

    def _driver(
        self, pool: "Executor", watcher: Watcher, finds: "DoneTrials", known: str, **how: Any
    ) -> "Driver":
        from nas_evidence.driver.driver import Driver

        time_left = None if self.run.limit is None else self.run.limit.for_trials
        return Driver(
            self.spec, self.store.folder.resolve(), self.store.around(pool), watcher, finds=finds,
            content_hash=known, time_left=time_left, **how,
        )  # fmt: skip

    def _train_leader(self, arrays: "ArrayData", content_hash: str) -> None:
        """Train the network that leads on all rows, if its trials trained their folds alone."""
        from nas_evidence.driver.race import next_whole
        from nas_evidence.spec.divisions import fewest_parts
        from nas_evidence.storage.redo import find_done

        spec, finds = self.spec, find_done(self.store.folder)
        for trial_id in next_whole(spec, finds.done, n=1):
            row = finds.done[trial_of(trial_id)]
            parts = fewest_parts(spec.plan, spec.estimators, arrays.n_train)
            self.audience.leads(
                f"stopping: the network that leads, of trial {row.trial_id}, is trained on all "
                f"rows first: {rough_duration(row.total_seconds / (parts - 1))}. Ctrl-C "
                "again leaves that to `predict` and `export`."
            )
            with closing(self._executor(arrays, 1, 1)) as pool:
                self._driver(pool, Watcher(), finds, content_hash, leader_alone=True).run()

    def finish_off(self) -> None:
        """Log and track what was stored of a finished study before a crash; nothing runs."""
        from nas_evidence.driver.driver import Driver
        from nas_evidence.workers.inline import InlineExecutor

        folder, watcher = self.store.folder.resolve(), self._callbacks(Watcher())
        idle = InlineExecutor(None, self.spec.resources)
        driver = Driver(self.spec, folder, idle, watcher, finds=self.finds)
        for notice in driver.notices:
            self.audience.say(f"note: {notice}")
        with watcher:
            if any((folder / "checkpoints").glob("*")):  # killed before the last trial was told
                driver.run()
            watcher.status = "complete"

    def _check_gpu(self) -> None:
        """Warn if trials of this process run on CPUs beside a GPU; torch is imported by now."""
        from nas_evidence.workers.choice import gpu_device, gpu_not_found, gpus_are_hidden
        from nas_evidence.workers.trial import device_for

        gpus, device = self.spec.resources.gpus, gpu_device()
        if gpus and device and not gpus_are_hidden() and device_for(gpus).type == "cpu":
            self.audience.warn(str(gpu_not_found(device)))

    @contextmanager
    def forecast_told(self, arrays: "ArrayData", left: int, workers: int | None) -> Iterator[None]:
        """Say how long the trials left will take; with Ray, found out while its workers start.

        Torch is imported for this alone and some training steps are timed, which takes seconds.
        """

        def tell() -> None:
            try:
                import_module("nas_evidence.driver.driver")  # needed next, and slow too
                from nas_evidence.driver.runtime import forecast_seconds
                from nas_evidence.workers.trial import device_for

                seconds = forecast_seconds(
                    self.spec, arrays, n_trials=left, workers=workers, patience=_FORECAST_PATIENCE
                )
            except Exception as error:  # the trials will say what is wrong
                _LOG.warning("no_forecast error=%r", error)
                return
            device = "GPU" if device_for(self.spec.resources.gpus).type == "cuda" else "CPU"
            self.audience.say(f"{self.spec.name}: {rough_duration(seconds)} on the {device}")

        teller = Thread(target=copy_context().run, args=[tell], daemon=True)
        teller.start()
        if self.run.executor == "inline":
            teller.join()
        try:
            yield
        finally:
            teller.join()

    def _callbacks(self, shown: Watcher, *, on_ray: bool = False) -> Callbacks:
        """Return the watcher of a driver; `on_ray` tells whether Ray is connected."""
        spec, folder = self.spec, self.store.folder

        def same(watcher: Watcher) -> Watcher:
            return watcher

        called = [
            Called(partial(same, one), f"callback {type(one).__name__}", columns_added_by([one]))
            for one in self.run.callbacks
        ]
        for said in filter(None, map(sent_in_clear, self.run.track)):
            self.audience.warn(said)
        tracking = [
            InThread(partial(tracker_of, text, spec, folder, on_ray=on_ray), f"track={text}")
            for text in self.run.track
        ]
        return Callbacks(shown, [*called, *tracking], spec, folder, self.audience.warn)

    def _executor(self, arrays: "ArrayData", workers: int | None, left: int) -> "Executor":
        spec, store, run = self.spec, self.store, self.run
        make_worker = store.make_worker
        logs = (store.folder / "logs").resolve()
        if run.executor == "inline":
            from nas_evidence.workers.inline import InlineExecutor

            return InlineExecutor(arrays, spec.resources, make_worker=make_worker)
        if outside := outside_names(spec):
            from nas_evidence.workers.process import worker_with_code

            make_worker = partial(worker_with_code, self.code, outside, make_worker)
        number = "auto" if workers is None else workers
        resources = spec.resources.model_copy(update={"workers": number})
        if not isinstance(run.executor, str):
            return run.executor(arrays, resources, logs, make_worker=make_worker)
        if run.executor == "local":
            from nas_evidence.workers.local import LocalExecutor

            return LocalExecutor(
                arrays, resources, logs, make_worker=make_worker, forks=self.forks
            )
        if run.address is not None:
            use_token_if_there_is_one()
            if there := sent_in_clear_to(run.address):
                self.audience.warn(
                    f"the token of the cluster is sent unencrypted to {there}; set "
                    "RAY_USE_TLS=1 there and here, or use an SSH tunnel"
                )
        from nas_evidence.workers.on_ray import RayExecutor
        from nas_evidence.workers.pool import Limits

        self._starting = True
        with self.audience.starting():
            executor = RayExecutor(
                arrays,
                resources,
                logs,
                address=run.address,
                namespace=namespace_of(spec.name, store.place) if run.address else None,
                most=left,
                make_worker=make_worker,
                store=store.uri,
                limits=Limits() if run.limit is None else Limits(patience=run.limit.left()),
                say=self.audience.say,
                waits=self._waits,
                warn=self.audience.warn,
                go_on=self.audience.go_on(store.place, run),
            )
        self._starting = False
        return executor

    def _waits(self, what: str) -> None:
        """Let `status` say what the study waits for; end it if it is cancelled before a trial."""
        from nas_evidence.storage.holding import say_waiting
        from nas_evidence.storage.requests import is_open, withdraw

        folder = self.store.folder
        say_waiting((folder, self.store.place), what)
        if self._starting and what:  # later the driver looks for requests
            self.store.look_for_requests()
            if is_open(folder):
                withdraw(folder)
                raise _Cancelled


class _Cancelled(KeyboardInterrupt):
    """Another terminal has cancelled the study."""


def _flops(spec: StudySpec, arrays: "ArrayData", architecture: ArchitectureSpec) -> float:
    """Return the flops of an architecture, 0 if it cannot be built; its trial says why."""
    from nas_evidence.training.cost import cost_of

    width = spec.plan.head_width(arrays.n_outputs)
    try:
        return cost_of(architecture, arrays.input_shape, width, spec.plan, ()).flops
    except Exception as error:
        _LOG.warning("no_flops architecture=%s error=%r", architecture, error)
        return 0.0


def _sampler_notices(spec: StudySpec) -> list[str]:
    """Return what the sampler leaves to chance; Optuna is imported only where it proposes."""
    if not spec.sampler.of_optuna:
        return []
    from nas_evidence.proposing.optuna_samplers import sampler_notices

    return sampler_notices(spec)


def left_out(spec: StudySpec, folder: Path, limit: TimeLimit | None) -> str:
    """Say what a time limit left out, "" if nothing."""
    from nas_evidence.storage.redo import find_done

    if limit is None or not unfinished(spec, finds := find_done(folder)):
        return ""
    n_done = n_searched(finds.done)
    raced = sum(map(is_race, finds.done))
    race = f" and {raced} of the race" if raced else ""
    return f"{n_done} of {spec.n_trials} trials{race} in {duration(limit.seconds - limit.left())}"
