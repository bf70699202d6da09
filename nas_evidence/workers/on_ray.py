"""Trials on a pool of Ray actors, on a local cluster or on an existing one.

Actors never restart or retry by themselves: the driver decides what happens to a lost attempt. An
actor that died, hung, raised, grew or hit a CUDA error is killed and replaced (`pool.py`). The
data set is put into the object store once and read in place. Ray's own output goes to a file. Only
this module imports ray.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nas_evidence.data import ArrayData
from nas_evidence.plumbing.unpacked import leave_unpacked
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import Assignment, ResourceSpec
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.workers.executor import Event, Launch
from nas_evidence.workers.node_check import NODE_LOST, Answered, Look, NodeCheck
from nas_evidence.workers.own_cluster import (
    WATCH_EVERY,
    ClusterLostError,
    all_run,
    answers,
    clear_leftovers,
    end_processes,
    ended_on_error,
    named,
    note_session,
    remove_session,
    starting,
    watch,
)
from nas_evidence.workers.packing import SHARES, Node, Slot, share_for
from nas_evidence.workers.pool import Limits, Pool, Seat
from nas_evidence.workers.pooled import START_TIMEOUT, PooledExecutor, WorkerLostError
from nas_evidence.workers.process import Answer, MakeWorker, WorkerProcess
from nas_evidence.workers.quiet import last_words, signals_deferred, stderr_to
from nas_evidence.workers.reachable import check_reachable

_LOG = logging.getLogger(__name__)
#: Longest wait for the process to be replaced after Ray has died, seconds.
LOST_PATIENCE = 60.0
#: Seconds after which Ray ends a process whose GCS is silent: one elsewhere may come back.
_RAY_GIVES_UP = os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60")  # noqa: SIM112
#: Seconds of silence after which it counts as dead.
GCS_PATIENCE = 0.75 * float(_RAY_GIVES_UP)
#: Seconds between two looks at the nodes of the cluster.
LOOK_EVERY = 2.0
#: What Ray raises if it cannot start or join, besides a plain `Exception`.
_OF_RAY = (ConnectionError, TimeoutError, RuntimeError, RayError)


class _Actor:
    """A worker process; the data comes inside a list, so that Ray does not copy it."""

    def __init__(self, box: list[Any], resources: ResourceSpec, **how: Any) -> None:
        # A runtime_env would cost each worker seconds; torch is not imported yet.
        os.environ["OMP_NUM_THREADS"] = str(resources.cpus)
        leave_unpacked(with_files=False)
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        gpu = next(iter(gpus), None)
        self.process = WorkerProcess(ray.get(box[0]), resources, gpu=gpu, **how)

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str | None, *arguments: Any) -> Answer:
        return self.process.call(method, *arguments)


class RayExecutor(PooledExecutor):
    """A pool of worker processes.

    Args:
        arrays: The data set.
        resources: The study's `[resources]`.
        logs: Folder for the logs of the workers and of Ray.
        store: URI of the study, if it has one; otherwise the study is in the folder of the logs.
        address: Cluster to join; without it, a local one is started.
        namespace: Namespace of the actors, for a shared cluster.
        gpu_memory_bytes: Memory of one GPU; queried if not given.
        memory_of: Estimates a trial's memory in bytes; `training/cost.py` by default.
        make_worker: Has the signature of `Worker`; for tests and benchmarks.
        on_cluster_lost: Called from a thread when Ray dies on this machine. Ray itself ends this
            process soon after; without it `poll` raises an error if there is time.
        limits: of the workers; None for the usual ones.

    Raises:
        ValueError: the cluster cannot hold the workers, they do not start, or a node does not
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
        gpu_memory_bytes: int | None = None,
        memory_of: Callable[[Assignment], int] | None = None,
        make_worker: MakeWorker | None = None,
        on_cluster_lost: Callable[[], None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__()
        self._on_lost = on_cluster_lost
        self._is_alive: Callable[[], bool] = lambda: True
        self._resources, self._logs, self._make_worker = resources, logs, make_worker
        self._memory_of = memory_of or (lambda assignment: _estimated_bytes(assignment, arrays))
        self._gpu_memory = gpu_memory_bytes
        self._until_close = ExitStack()
        self._stop_watching: Callable[[], None] = lambda: None
        self._store = store or str(logs)
        self._check: NodeCheck | None = None
        share = None if resources.gpus == "auto" else float(resources.gpus)
        self._addresses: dict[str, str] = {}
        called = partial(_called, self._addresses)
        limits = limits or Limits()
        self._pool = Pool(
            self, resources, self._share_of, share, nodes=(), called=called, limits=limits
        )
        with nullcontext() if address else starting():
            try:
                self._start(arrays, address, namespace)
            except BaseException:  # on Ctrl-C too: leave no cluster behind
                self.close()
                raise

    def _start(self, arrays: ArrayData, address: str | None, namespace: str | None) -> None:
        if address is None and (left := clear_leftovers(self._store)):
            self.notices.append(left)
        self._connect(address, namespace)
        self._check_capacity(patience=self._pool.limits.patience - 5.0 if address else 0.0)
        if address or len(self._pool.nodes) > 1:
            self._check_store()
        self._box = [ray.put(arrays)]
        # Without a configured share, workers are started when the first trial arrives.
        while self._pool.share is not None and not any(w.ready_at for w in self._pool.workers):
            self.poll(timeout=1.0)

    def poll(self, timeout: float) -> list[Event]:
        """Return the reports, records and losses that have arrived.

        Raises:
            ValueError: no node has had room for a worker for 30 s, or workers fail to start.
        """
        self._check_cluster()
        return super().poll(timeout)

    def close(self) -> None:
        """Stop the workers, and the cluster if we started it; Ctrl-C is deferred until then."""
        if self._on_lost is not None and not self._is_alive():
            self._check_cluster()
        self._stop_watching()
        with signals_deferred(), stderr_to(self._logs / "ray.log"):
            self._pool.close()
            ray.shutdown()
            self._until_close.close()

    # --- the pool's backend

    def begin(self, slot: Slot) -> Seat:
        """Start an actor in a slot; its first answer means that it is ready."""
        actor = ray.remote(_Actor).options(
            num_cpus=slot.cpus,
            num_gpus=slot.share,
            # Ray must not rerun a slice without the driver knowing.
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
        )
        how = {"share": slot.share, "logs": self._logs, "make_worker": self._make_worker}
        return self._started(Seat(actor.remote(self._box, self._resources, **how), slot))

    def end(self, worker: Seat) -> None:
        """Kill an actor; it may still be alive even if it cannot be reached."""
        # Each attempt writes to its own folder, so that late writes do no harm.
        with suppress(RayError):
            ray.kill(worker.actor, no_restart=True)

    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        return worker.actor.call.remote(method, *arguments)

    def _answered(self, workers: Sequence[Seat], timeout: float) -> list[Seat]:
        calls = {w.call: w for w in workers}
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        if ready:  # and whatever else has arrived
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [calls[ref] for ref in ready]

    def _answer(self, worker: Seat) -> Answer:
        try:
            answer: Answer = ray.get(worker.call)
        except RayError as error:
            self._looked = -math.inf  # the node may have gone with it
            raise WorkerLostError(_why(error), machine=_with_machine(error)) from error
        return answer

    def _share_of(self, launch: Launch) -> float:
        share = self._pool.share
        if share is not None:
            return max(share, launch.min_share) if share else 0.0
        try:
            wanted = self._memory_of(launch.assignment)
        except Exception as error:  # the model cannot be built: the trial will fail
            _LOG.warning("no_estimate trial_id=%d error=%r", launch.assignment.trial_id, error)
            wanted = 0
        return share_for(wanted, self._gpu_memory or 0, min_share=launch.min_share)

    # --- the cluster

    def _connect(self, address: str | None, namespace: str | None) -> None:
        resources = self._resources
        if address is not None and address != "auto":
            check_reachable(address)
        # address="local": never join a cluster that happens to be running.
        ours = {"num_cpus": resources.workers * resources.cpus, "include_dashboard": False}
        log = self._logs / "ray.log"
        ended = f"error: Ray ended this process while it started or joined; the cause: {log}"
        again = f"{ended}. Run the same command again when the cluster answers `ray status`."
        with last_words(again), signals_deferred(), stderr_to(log):
            self._until_close.enter_context(_prints_to(self._logs / "ray.log"))
            if address is None:
                self._until_close.enter_context(_only_what_trials_need())
            try:
                with nullcontext() if address else ended_on_error():
                    context = ray.init(
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
                        f"Ray did not start on this machine ({why}); it may be too busy. Run the "
                        f"same command again, or with --executor local. Details: {log}"
                    ).with_code("ray-not-started") from None
                raise UserError(
                    f"no Ray cluster can be joined at {address} ({why}); check that it runs and "
                    "that RAY_AUTH_TOKEN or ~/.ray/auth_token is its token."
                ).with_code("cluster-not-joined") from None
            self._watch(context.address_info, ours=address is None)

    def _check_cluster(self) -> None:
        """Leave the rest to `on_cluster_lost` if Ray has died here: it does not come back.

        Raises:
            ClusterLostError: Ray has died, and nobody else ends this process.
        """
        if self._is_alive():
            return
        if self._on_lost is not None:
            time.sleep(LOST_PATIENCE)
        raise ClusterLostError("Ray has died on this machine.")

    def _watch(self, address: Mapping[str, str], *, ours: bool) -> None:
        """Notice the death of raylet or GCS; note what our own cluster is, to clear it away."""
        processes: dict[str, str] = {}
        if ours:
            session = Path(address["session_dir"])
            processes = note_session(session, self._store)
            self._until_close.callback(remove_session, session)
        vital = named(processes, "raylet", "gcs_server")
        socket, heard = Path(address["raylet_socket_name"]), time.monotonic()

        def is_alive() -> bool:
            nonlocal heard
            if vital:
                return all_run(vital)
            with suppress(ValueError):
                check_reachable(address["gcs_address"])
                heard = time.monotonic()
            return answers(socket) and time.monotonic() - heard < GCS_PATIENCE

        def lost() -> None:
            _LOG.error("cluster_lost")
            gone.set()
            end_processes(processes)
            if self._on_lost is not None:
                self._on_lost()

        # Sockets are asked once a second, not at every poll.
        gone = threading.Event()
        self._is_alive = is_alive if vital else lambda: not gone.is_set()
        self._stop_watching = watch(is_alive, lost, every=WATCH_EVERY if vital else 1.0)

    def _refill(self) -> None:
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        self._pool.refill()

    def _look(self) -> None:
        alive = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
        self._addresses.update({name: n["NodeManagerAddress"] for name, n in alive.items()})
        nodes = [
            Node(name, n["Resources"].get("CPU", 0.0), int(n["Resources"].get("GPU", 0)))
            for name, n in alive.items()
        ]
        self._pool.nodes = [
            node
            for node in nodes
            if self._check is None
            or node.cpus < self._resources.cpus
            or self._check.sees(node.name, self._addresses[node.name])
        ]
        self._looked = time.monotonic()
        self._pool.drop_idle_of_lost_nodes()

    def _check_store(self) -> None:
        """Refuse a store that a node does not see; nodes that join later are checked too."""
        check = NodeCheck(self._store, _ask)
        self._until_close.callback(check.close)
        nodes = [node.name for node in self._pool.nodes if node.cpus >= self._resources.cpus]
        check.require({name: self._addresses[name] for name in nodes}, timeout=START_TIMEOUT)
        self._check = check

    def _check_capacity(self, *, patience: float) -> None:
        """Wait up to `patience` seconds for nodes to join, then check CPUs and GPUs."""
        pool, auto = self._pool, self._resources.gpus == "auto"
        end = time.monotonic() + patience
        while True:
            self._look()
            with_gpus = [node for node in pool.nodes if node.gpus]
            pool.share = pool.share if not auto else None if with_gpus else 0.0
            lacking = pool.missing(1)
            if not lacking:
                break
            if time.monotonic() >= end:
                raise UserError(f"{lacking}.").with_code("cluster-lacks")
            time.sleep(0.5)
        if pool.share is not None and (few := pool.missing(self._resources.workers)):
            self.notices.append(f"{few.partition(';')[0]}; more workers start when nodes join.")
        if pool.share is None and not self._gpu_memory:
            self._gpu_memory = _smallest_gpu(with_gpus)
            if not self._gpu_memory:
                raise UserError(
                    f"the cluster counts {sum(n.gpus for n in with_gpus)} GPUs, but torch finds "
                    "none there; install torch for CUDA, or add --set resources.gpus=0."
                ).with_code("gpus-without-cuda")


def _called(addresses: Mapping[str, str], node: str) -> str:
    """Return a node's address and the start of its name, as Ray's own tools show it."""
    return f"the node {node[:8]} at {addresses.get(node, 'an unknown address')}"


@contextmanager
def _only_what_trials_need() -> Iterator[None]:
    """Start a local cluster without its dashboard server and the monitor of its autoscaler.

    Nothing here asks either; each is a process that takes about a second of CPU time and 100 MB,
    and `ray.init` waits for the former even with `include_dashboard=False`. There is no setting
    for it: where Ray has these methods no longer, it starts what it likes.
    """
    node = getattr(_internal("node"), "Node", None)
    unused = ("start_api_server", "start_monitor")
    before = {name: getattr(node, name) for name in unused if hasattr(node, name)}
    for name in before:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(node, name, method)


def _internal(name: str) -> Any:
    """Return a module of Ray's own; None in a version that has none of this name."""
    try:
        return import_module(f"ray._private.{name}")
    except ImportError:
        return None


@contextmanager
def _prints_to(path: Path) -> Iterator[None]:
    """Send to a file what the cluster prints here, such as pages about a dead node.

    A Ray thread prints this whatever `log_to_driver` says; there is no setting for it. A version
    that prints otherwise goes on printing.
    """
    worker = _internal("worker")
    before = getattr(worker, "print_to_stdstream", None)

    def note(said: Any, *_: Any, **__: Any) -> None:
        with suppress(OSError, LookupError, TypeError), path.open("a") as file:
            file.writelines(f"{line}\n" for line in said["lines"])

    if before is None:
        yield
        return
    worker.print_to_stdstream = note
    try:
        yield
    finally:
        worker.print_to_stdstream = before


def _ask(node: str, look: Look) -> Answered:
    """Start the store check on a node."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    found = ray.remote(look_there).options(num_cpus=0, scheduling_strategy=where).remote(look)

    def answer(timeout: float) -> str | None:
        ready, _ = ray.wait([found], timeout=timeout)
        try:
            return str(ray.get(found)) if ready else None
        except (NodeDiedError, TaskUnschedulableError):
            return NODE_LOST
        except RayError as error:
            return _why(error)

    return answer


def look_there(look: Look) -> str:
    """Return why this node does not see the store, or ""."""
    return look()


def _estimated_bytes(assignment: Assignment, arrays: ArrayData) -> int:
    from nas_evidence.workers.worker import estimated_bytes  # imports torch

    return estimated_bytes(assignment, arrays)


def _smallest_gpu(nodes: list[Node]) -> int:
    """Return the memory of the smallest GPU in bytes; 0 if torch finds none on some node."""

    def first() -> int:
        import torch

        there = torch.cuda.is_available()
        return int(torch.cuda.get_device_properties(0).total_memory) if there else 0

    asked = [
        ray.remote(first).options(
            num_cpus=0,
            num_gpus=SHARES[-1],
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.name, soft=False),
        )
        for node in nodes
    ]
    try:
        return min(ray.get([task.remote() for task in asked], timeout=START_TIMEOUT))
    except RayError as error:
        late = f"no answer for {START_TIMEOUT:.0f} s, as if other jobs held all of them"
        raise StudyStoppedError(
            "the memory of the cluster's GPUs cannot be determined "
            f"({late if isinstance(error, GetTimeoutError) else _why(error)}). Run the same "
            "command again when `ray status` shows free GPUs, or give the share of a GPU for each "
            "trial: --set resources.gpus=1"
        ).with_code("gpu-memory-unknown") from None


def _with_machine(error: RayError) -> bool:
    """Return whether a worker was lost together with its machine."""
    gone = isinstance(error, ActorUnavailableError | NodeDiedError)
    return gone or (isinstance(error, ActorDiedError) and "its node has died" in str(error))


def _why(error: RayError) -> str:
    """Return one line that says why a call failed."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return str(cause) if isinstance(cause, OSError) else f"{type(cause).__name__}: {cause}"
    last = str(error).strip().splitlines()[-1].strip()
    if isinstance(error, ActorDiedError):
        crashed = "its node was lost" if _with_machine(error) else "the worker process crashed"
        return last if "creation task" in str(error) else crashed
    if isinstance(error, ActorUnavailableError):
        return "the worker could not be reached"
    return f"{'worker' if isinstance(error, RayActorError) else type(error).__name__}: {last}"
