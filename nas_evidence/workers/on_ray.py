"""Trials on Ray actors: on this machine, or on a cluster that others may use too.

Actors are asked for with their CPUs and their share of a GPU, and Ray decides where they run. So
an autoscaler sees the demand, and other jobs have their part. They never restart or retry by
themselves: the driver decides what happens to a lost attempt. The data set is put into the object
store once and read in place. Only this module imports ray.
"""

import logging
import math
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

# What happens to its nodes is not for the screen; read once, when Ray is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util import metrics

from nas_evidence.data import ArrayData
from nas_evidence.plumbing.proxies import is_loopback
from nas_evidence.plumbing.unpacked import leave_unpacked
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import Assignment, ResourceSpec
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.workers.choice import (
    FEW_WORKERS,
    gpu_device,
    gpu_not_counted,
    gpus_are_hidden,
    no_gpu_here,
)
from nas_evidence.workers.executor import Launch, loss_of
from nas_evidence.workers.packing import PackingPool
from nas_evidence.workers.pool import SAID_AFTER, Failed, Limits, Place, Seat
from nas_evidence.workers.process import Answer, MakeWorker, WorkerProcess
from nas_evidence.workers.quiet import last_words, signals_deferred, stderr_to
from nas_evidence.workers.reachable import check_reachable
from nas_evidence.workers.rooms import Node
from nas_evidence.workers.shares import SHARES, finest_share, share_for
from nas_evidence.workers.store_token import refusal, token_in, why_unseen

_LOG = logging.getLogger(__name__)
#: Seconds between two looks at the nodes of the cluster.
LOOK_EVERY = 2.0
#: What Ray raises if it cannot start or join, besides a plain `Exception`.
_OF_RAY = (ConnectionError, TimeoutError, RuntimeError, RayError)
#: The pools on a Ray that one of them has started; the last one stops it. A process has one Ray.
_SHARING: set["RayExecutor"] = set()
_ONE_AT_A_TIME = threading.Lock()
#: The threads that drive a pool: another one there is inside a callback, while the first waits.
_DRIVING = set[int]()


class _Actor(WorkerProcess):
    """A worker process; the data comes inside a list, so that Ray does not copy it."""

    def __init__(
        self, box: list[Any], resources: ResourceSpec, store: tuple[str, str] | None, **how: Any
    ) -> None:
        # A runtime_env would cost each worker seconds; torch is not imported yet.
        os.environ["OMP_NUM_THREADS"] = str(resources.cpus)
        leave_unpacked(with_files=False)
        super().__init__(lambda: ray.get(box[0]), resources, **how)
        self._store = store

    def place(self) -> Place:
        context = ray.get_runtime_context()
        gpus: list[str] = context.get_accelerator_ids().get("GPU", [])
        gpu = gpus[0] if gpus else ""
        unusable = why_unseen(*self._store) if self._store else ""
        device = "" if gpu else gpu_device()
        address = ray.util.get_node_ip_address()
        return Place(context.get_node_id(), address, unusable, gpu, device)

    def pid(self) -> int:
        return os.getpid()


class RayExecutor(PackingPool):
    """A pool of Ray actors.

    If this process is connected to Ray already, the actors run there, beside those of the caller,
    and that Ray stays.

    Args:
        arrays: The data set.
        resources: The study's `[resources]`.
        logs: Folder for the logs of the workers and of Ray.
        store: URI of the study, if it has one; otherwise the study is in the folder of the logs.
        address: Cluster to join; without it, Ray starts on this machine, unless it runs here.
        namespace: Namespace of the actors, for a shared cluster.
        most: Workers at most, if `workers` is "auto": the trials that are left.
        gpu_memory_bytes: Memory of one GPU; queried if not given.
        memory_of: Estimates a trial's memory in bytes; `training/cost.py` by default.
        make_worker: Has the signature of `Worker`; for tests and benchmarks.
        limits: of the workers; None for the usual ones.
        say: Told, in one line, what workers wait for.
        waits: Told again and again what the study waits for while no worker has room, then "".
        warn: Told, once, that a GPU stays unused.
        go_on: The command that continues the study, for the last line if Ray ends this process.

    Raises:
        ValueError: the cluster has no room for a worker, they do not start, or a node does not
            see the store.
    """

    def __init__(
        self,
        arrays: ArrayData,
        resources: ResourceSpec,
        logs: Path,
        *,
        store: str | None = None,
        address: str | None = None,
        namespace: str | None = None,
        most: int = FEW_WORKERS,
        gpu_memory_bytes: int | None = None,
        memory_of: Callable[[Assignment], int] | None = None,
        make_worker: MakeWorker | None = None,
        limits: Limits | None = None,
        say: Callable[[str], None] = lambda line: None,
        waits: Callable[[str], None] = lambda what: None,
        warn: Callable[[str], None] = lambda line: None,
        go_on: str = "run the same again",
    ) -> None:
        share = None if resources.gpus == "auto" else float(resources.gpus)
        how: dict[str, Any] = {"limits": limits, "say": say, "waits": waits}
        super().__init__(resources, share=share, most=most, **how)
        self._trials, self._joined = most, address is not None
        self._box: list[Any] = []
        # Asked for "auto": a share of 0 that the study names is an answer.
        self._warn = warn if resources.gpus == "auto" else None
        self._logs, self._make_worker = logs, make_worker
        self._memory_of = memory_of or (lambda assignment: _estimated_bytes(assignment, arrays))
        self._gpu_memory = gpu_memory_bytes
        self._known_bytes = dict[str, int]()  # by key of architecture
        self._place_of_study, self._token = store or str(logs), ""
        self._nodes: list[dict[str, Any]] = []  # those that are alive, as Ray tells of them
        self._looked = -math.inf
        self._blind: set[str] = set()
        self._until_close = ExitStack()
        if (thread := threading.get_ident()) in _DRIVING:
            raise UserError(
                "ray-inside-ray",
                "a callback of a study on Ray would wait for the workers that its own study "
                "holds; there use executor=inline or local, or begin when the first has returned.",
            )
        _DRIVING.add(thread)
        self._until_close.callback(_DRIVING.discard, thread)
        try:
            self._connect(address, namespace, go_on)
            self._look()
            self._first = {node["NodeID"] for node in self._nodes}
            self._decide_share(grows=self._joined)
            if self._joined:
                self._token = self._until_close.enter_context(token_in(self._place_of_study))
            self._box.append(ray.put(arrays))
            self._count_room()
            # Without a known share, workers are asked for when the first trial arrives.
            while self._share is not None and not any(w.ready_at for w in self.workers):
                self.poll(timeout=1.0)
        except BaseException:  # on Ctrl-C too: leave nothing behind
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers, and Ray if we started it; Ctrl-C is deferred until then."""
        with signals_deferred(), stderr_to(self._logs / "ray.log"):
            super().close()
            self._box = []  # the data leave the object store
            with _ONE_AT_A_TIME:
                if self in _SHARING:
                    _SHARING.remove(self)
                    if not _SHARING:
                        ray.shutdown()
            self._until_close.close()

    # --- actors

    def _begin(self, share: float, avoids: frozenset[str]) -> Seat:
        elsewhere = {"ray.io/node-id": f"!in({','.join(sorted(avoids))})"}
        actor = ray.remote(_Actor).options(
            num_cpus=self.resources.cpus,
            num_gpus=share,
            # Ray must not rerun a slice without the driver knowing.
            max_restarts=0,
            max_task_retries=0,
            label_selector=elsewhere if avoids else None,
        )
        how = {"share": share, "logs": self._logs, "make_worker": self._make_worker}
        store = (self._place_of_study, self._token) if self._token else None
        worker = Seat(actor.remote(self._box, self.resources, store, **how), share, avoids=avoids)
        worker.call, worker.silence = worker.actor.place.remote(), math.inf
        return worker

    def _end(self, worker: Seat) -> None:
        # It may still live even if it cannot be reached: each attempt writes to its own folder.
        with suppress(RayError):
            ray.kill(worker.actor, no_restart=True)

    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        return worker.actor.call.remote(method, *arguments)

    def _wait(
        self, workers: Sequence[Seat], timeout: float
    ) -> list[tuple[Seat, Answer | Place | Failed]]:
        calls = {w.call: w for w in workers}
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        if ready:  # and whatever else has arrived
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [(calls[ref], self._answer(calls[ref])) for ref in ready]

    def _answer(self, worker: Seat) -> Answer | Place | Failed:
        try:
            answer: Answer | Place = ray.get(worker.call)
        except RayError as error:
            self._look()  # the node may have gone with it
            return self._loss(error, worker)
        return answer

    def _loss(self, error: RayError, worker: Seat) -> Failed:
        """Return why a call failed, and what kind of loss it is."""
        if isinstance(error, RayTaskError):
            return Failed(*loss_of(error.cause))
        if isinstance(error, ActorUnavailableError | NodeDiedError):
            return Failed("the worker could not be reached", LossKind.MACHINE)
        if isinstance(error, RayActorError) and error.actor_init_failed:
            return Failed(_last_line(error))
        if isinstance(error, ActorDiedError):
            alive = {node["NodeID"] for node in self._nodes}
            if error.preempted or (worker.node and worker.node not in alive):
                return Failed("its node was lost", LossKind.MACHINE)
            return Failed("the worker process crashed")
        full = {OutOfMemoryError: LossKind.MEMORY, OutOfDiskError: LossKind.DISK}
        kind = full.get(type(error), LossKind.CRASH)
        return Failed(f"{type(error).__name__}: {_last_line(error)}", kind)

    def _placed(self, worker: Seat, place: Place) -> None:
        if not place.unusable:
            self._tell_of(place)
            super()._placed(worker, place)
            return
        text = refusal(self._place_of_study, place.address, place.unusable)
        if place.node in self._first:
            raise UserError("nodes-cannot-see", text)
        _LOG.warning("node_refused %s", text)  # it has joined later: the study goes on elsewhere
        self._blind.add(place.node)
        self._remove(worker)

    def _tell_of(self, place: Place) -> None:
        """Say once that a node has a GPU which Ray does not count, if trials get none."""
        if self.fixed_share != 0 or self._warn is None or not place.device:
            return
        if self._joined or not gpus_are_hidden():
            error = gpu_not_counted(place.address, place.device, joined=self._joined)
            self._warn(str(error))
        self._warn = None

    def _has_its_device(self, worker: Seat, device: str) -> bool:
        if not worker.share or device != "cpu":
            return True
        good = [w for w in self.workers if w.share and w.ready_at is not None and w is not worker]
        if worker.node in self._first or not good:
            raise self._no_cuda()
        _LOG.warning("node_refused torch finds no GPU node=%s", worker.node)  # it joined later
        self._blind.add(worker.node)
        return False

    def _no_cuda(self) -> UserError:
        self._look()
        n = sum(_has(node, "GPU") for node in self._nodes)
        return UserError(
            "gpus-without-cuda",
            f"the cluster counts {n:g} GPUs, but torch finds none there; install torch for "
            "CUDA, or set resources.gpus=0.",
        )

    # --- shares

    def _estimated_share(self, launch: Launch) -> float:
        least = max(launch.min_share, self._finest_share())
        wanted = self._bytes_of(launch.assignment)
        return share_for(wanted, self._gpu_memory or 0, min_share=least)

    def _bytes_of(self, assignment: Assignment) -> int:
        """Return the memory that a trial is expected to need; those that wait are asked often."""
        key = assignment.architecture.key
        if key not in self._known_bytes:
            try:
                wanted = self._memory_of(assignment)
            except Exception as error:  # the model cannot be built: the trial will fail
                _LOG.warning("no_estimate trial_id=%d error=%r", assignment.trial_id, error)
                wanted = 0
            self._known_bytes[key] = wanted
        return self._known_bytes[key]

    def _finest_share(self) -> float:
        """Return the smallest share for which a node has enough cores."""
        nodes = [node for node in self._nodes if _has(node, "GPU")]
        each = (_has(n, "CPU") // self.resources.cpus / _has(n, "GPU") for n in nodes)
        return finest_share(max(each, default=math.inf))

    def _decide_share(self, *, grows: bool) -> None:
        """Without a given share trials have none on CPUs alone, else what their memory needs.

        Args:
            grows: whether nodes may join later: those of a cluster without room for a worker yet
                are taken to have GPUs.
        """
        gpus = any(_has(node, "GPU") for node in self._nodes)
        if self.fixed_share is None:
            roomy = any(_has(node, "CPU") >= self.resources.cpus for node in self._nodes)
            if gpus or (grows and not roomy):
                self._gpu_memory = self._gpu_memory or self._asked_gpu_memory()
            else:
                self.fixed_share = self._share = 0.0
        elif self.fixed_share and not gpus and not grows:
            if (device := gpu_device()) and not gpus_are_hidden():
                here = self._nodes[0]["NodeManagerAddress"]
                raise gpu_not_counted(here, device, joined=False)
            raise no_gpu_here(self.fixed_share)

    def _asked_gpu_memory(self) -> int:
        """Return the memory of a GPU in bytes, as soon as one has room."""
        share, asked = SHARES[-1], time.monotonic()
        found = ray.remote(_gpu_bytes).options(num_cpus=0, num_gpus=share).remote()
        said = False
        try:
            while not ray.wait([found], timeout=1.0)[0]:
                waited = time.monotonic() - asked
                if waited > self.patience:
                    raise self._no_room(share, 1)
                self._tell_waiting(share, 1, waited)
                if waited > SAID_AFTER and not said:
                    self.say(
                        f"note: {self._shortage(share, 1)}; {self._for_how_long()}, since "
                        'resources.gpus is "auto" (set resources.gpus=0 runs without GPUs)'
                    )
                    said = True
        except BaseException:  # also Ctrl-C: nothing is left in the line of somebody's Ray
            ray.cancel(found)
            raise
        try:
            memory = int(ray.get(found))
        except RayError as error:
            raise StudyStoppedError(
                "gpu-memory-unknown",
                f"the memory of the cluster's GPUs cannot be determined ({_last_line(error)}). "
                "Run the same command again, or give the share of a GPU for each trial: set "
                "resources.gpus=1",
            ) from None
        if not memory:
            raise self._no_cuda()
        return memory

    # --- the cluster

    @property
    def packs(self) -> bool:
        """Whether each trial asks for its own worker: their number and shares are "auto"."""
        return self.resources.workers == "auto" and self.fixed_share is None

    @property
    def grows(self) -> bool:
        """Whether nodes may join: those of a cluster, not of this machine."""
        return self._joined

    @property
    def _usual_patience(self) -> float:
        """Who shares a cluster waits in line, however long that is."""
        return math.inf if self._joined else super()._usual_patience

    def _nodes_with_room(self) -> list[Node]:
        usable = [n for n in self._nodes if n["NodeID"] not in self._avoided | self._blind]
        return [Node(n["NodeID"], _has(n, "CPU"), int(_has(n, "GPU"))) for n in usable]

    def _count_room(self) -> None:
        """With `workers = "auto"` and one share for all, ask for as many as there is room for.

        On a cluster, which may grow, for twice as many: those that wait are the demand that an
        autoscaler sees.
        """
        if self.resources.workers != "auto" or self.fixed_share is None:
            return
        cpus, share = self.resources.cpus, self.fixed_share
        n = int(sum(_carried(node, cpus, share) for node in self._nodes))
        all_were_wanted, before = self._wanted == self.most, self.most
        left = max(1, self._trials - len(self._over))
        self.most = min(left, max(1, n) * (2 if self._joined else 1))
        if all_were_wanted or self._wanted > self.most:
            self._wanted = self.most
        for worker in [w for w in self.workers if not w.node and not w.launch]:
            if len(self.workers) > self._wanted:
                self._remove(worker)
        if self.most != before:
            _LOG.info("room workers=%d most=%d", n, self.most)

    def _connect(self, address: str | None, namespace: str | None, go_on: str) -> None:
        log = self._logs / "ray.log"
        self._until_close.enter_context(
            last_words(
                "error: this process was ended from outside; Ray does so when it has died on this "
                "machine or the head of the cluster is lost. Finished trials are stored, and the "
                f"others have their last checkpoint. Details: {log}. Continue: {go_on}"
            )
        )
        with _ONE_AT_A_TIME:
            if not ray.is_initialized():
                _SHARING.add(self)
                self._begin_ray(address, namespace)
                return
            if address not in (None, "auto") and not _is_this_ray(address):
                raise UserError(
                    "connected-to-another-ray",
                    f"this process is connected to another Ray than {address}; leave out the "
                    "address to run in that one, or call ray.shutdown() before.",
                )
            if _SHARING:
                _SHARING.add(self)
            self._joined = True
        self.say("note: the trials run in the Ray that this process is connected to")

    def _begin_ray(self, address: str | None, namespace: str | None) -> None:
        if address is not None and address != "auto":
            check_reachable(address)
        resources, log = self.resources, self._logs / "ray.log"
        # With workers = "auto" those of this machine, as Ray counts them.
        n = None if resources.workers == "auto" else resources.workers * resources.cpus
        if n is None and resources.cpus > (os.cpu_count() or 1):
            n = resources.cpus  # one worker at least
        # address="local": never join a cluster that happens to be running.
        ours = {"num_cpus": n, "include_dashboard": False}
        with signals_deferred(), stderr_to(log):
            try:
                ray.init(
                    address=address or "local",
                    namespace=namespace,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=True,
                    **({} if address else ours),
                )
            except Exception as error:
                if not isinstance(error, _OF_RAY) and type(error) is not Exception:
                    raise
                why = str(error).splitlines()[0]
                if address is None:
                    raise StudyStoppedError(
                        "ray-not-started",
                        f"Ray did not start on this machine ({why}); it may be too busy. Run the "
                        f"same command again, or with executor=local. Details: {log}",
                    ) from None
                raise UserError(
                    "cluster-not-joined",
                    f"no Ray cluster can be joined at {address} ({why}); check that it runs and "
                    "that RAY_AUTH_TOKEN or ~/.ray/auth_token is its token.",
                ) from None

    def _refill(self) -> None:
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        super()._refill()

    def _look(self) -> None:
        """Look which nodes are there; forget workers without a trial on those that are gone."""
        self._looked = time.monotonic()
        self._nodes = [node for node in ray.nodes() if node["Alive"]]
        alive = {"", *(node["NodeID"] for node in self._nodes)}
        for worker in [w for w in self.workers if w.node not in alive and not w.started]:
            self._remove(worker)
        self._count_room()

    def _to_avoid(self, suspects: frozenset[str]) -> frozenset[str]:
        """Return the nodes that do not see the store, and suspects while others have room."""
        bad = self._blind | suspects
        others = [node for node in self._nodes if node["NodeID"] not in bad]
        cpus, on_gpu = self.resources.cpus, self._share != 0
        enough = (_has(n, "CPU") >= cpus and (_has(n, "GPU") or not on_gpu) for n in others)
        return frozenset(bad if any(enough) else self._blind)

    def _node_label(self, node: str) -> str:
        """Return a node's address and the start of its name, as Ray's own tools show it."""
        addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in self._nodes}
        return f"the node {node[:8]} at {addresses.get(node, 'an unknown address')}"

    def _asked(self, share: float) -> str:
        """Return what one worker asks for."""
        return _counted(self.resources.cpus, "CPU") + (f" and {share:g} GPU" if share else "")

    def _shortage(self, share: float, n: int) -> str:
        # Some may be placed and still import: then they hold what is not free themselves.
        each = self._asked(share)
        workers = f"1 worker with {each} has" if n == 1 else f"{n} workers with {each} each have"
        free = ray.available_resources()
        there = {
            kind: sum(_has(node, kind) for node in self._nodes)
            for kind in ("CPU", *(["GPU"] if share else []))
        }
        has = " and ".join(
            f"{_counted(n, kind)} ({free.get(kind, 0.0):g} free)" for kind, n in there.items()
        )
        nodes = _counted(len(self._nodes), "node")
        return f"{workers} not started; the cluster has {has} on {nodes}"

    def _waits_for(self, share: float, n: int) -> str:
        free = ray.available_resources()
        there = {
            kind: sum(_has(node, kind) for node in self._nodes)
            for kind in ("CPU", *(["GPU"] if share else []))
        }
        left = (f"{free.get(kind, 0.0):g} of {_counted(has, kind)}" for kind, has in there.items())
        each = f" with {self._asked(share)}{' each' * (n > 1)}"
        each *= bool(share or self.resources.cpus > 1)
        return f"{_counted(n, 'worker')}{each}, {' and '.join(left)} free"


def metric(
    kind: str, name: str, text: str, labels: tuple[str, ...]
) -> Callable[[float, dict[str, str]], None]:
    """Return what sets a metric that Ray serves to Prometheus, given all labels.

    Args:
        kind: "gauge", or "counter", whose totals never fall.
        name: of the metric; Ray puts `ray_` before it.
        text: says what it is.
        labels: their names.
    """
    if kind == "gauge":
        return metrics.Gauge(name, text, labels).set
    counter = metrics.Counter(name, text, labels)
    known: defaultdict[tuple[str, ...], float] = defaultdict(float)  # by value of each label

    def set_total(total: float, tags: dict[str, str]) -> None:
        values = tuple(tags[label] for label in labels)
        if total > known[values]:  # Ray refuses 0
            counter.inc(total - known[values], tags)
            known[values] = total

    return set_total


def _has(node: dict[str, Any], kind: str) -> float:
    return float(node["Resources"].get(kind, 0.0))


def _counted(n: float, noun: str) -> str:
    return f"{n:g} {noun}{'s' * (n != 1)}"


def _carried(node: dict[str, Any], cpus: float, share: float) -> float:
    """Return how many workers a node has room for."""
    by_cores = _has(node, "CPU") // cpus
    return min(by_cores, int(_has(node, "GPU")) * (1 / share // 1)) if share else by_cores


def _estimated_bytes(assignment: Assignment, arrays: ArrayData) -> int:
    from nas_evidence.workers.worker import estimated_bytes  # imports torch

    return estimated_bytes(assignment, arrays)


def _gpu_bytes() -> int:
    """Return the memory of this process's GPU in bytes; 0 if torch finds none."""
    import torch

    there = torch.cuda.is_available()
    return int(torch.cuda.get_device_properties(0).total_memory) if there else 0


def _is_this_ray(address: str) -> bool:
    """Return whether HOST:PORT is the cluster that this process is connected to."""
    host, _, port = address.rpartition(":")
    here, _, its_port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        same = socket.gethostbyname(host.strip("[]")) == here
    except OSError:
        same = host == here
    own = is_loopback(host) and here == ray.util.get_node_ip_address()
    return port == its_port and (same or own)


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()
