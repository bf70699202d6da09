"""No public call waits for what its caller holds: from a callback each works, or is refused."""

import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import assert_same, found
from messages import refused

import nas_evidence
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import Event, Lost
from nas_evidence.workers.inline import InlineExecutor

pytestmark = pytest.mark.slow

#: Seconds after which a search hangs, on a machine that is loaded ten times over.
LIMIT = 300.0
_CHANCE = np.random.default_rng(0)
X = pd.DataFrame(_CHANCE.normal(size=(40, 3)), columns=list("abc"))
Y = (X["a"] > 0).astype(int).rename("y")
SETTINGS = {"plan.epochs": 8, "finalists": 0, "estimators": ["diag_ef"], "objective": "diag_ef"}
OTHER: dict[str, Any] = {"n_trials": 1, "families": ["linear"], "settings": SETTINGS}


class Losing(InlineExecutor):
    """Loses the first attempt; a rung parks trials of its one worker."""

    def __init__(self, arrays: Any, resources: ResourceSpec, logs: Path, **how: Any) -> None:
        super().__init__(arrays, resources, **how)
        self._has_lost = False

    def poll(self, timeout: float) -> list[Event]:
        if self._launch is None or self._has_lost:
            return super().poll(timeout)
        lost, self._has_lost = self._launch.assignment, True
        self._launch = None
        self._calls.clear()
        return [Lost(lost.trial_id, lost.attempt, "the worker crashed", LossKind.CRASH)]


#: Every hook of a watcher inline, and two while processes work.
HOOKS = {
    **{(hook, "inline"): Losing for hook in vars(nas_evidence.Watcher) if hook[0] != "_"},
    ("launched", "local"): "local",
    ("ended", "local"): "local",
}
del HOOKS["columns", "inline"]


def search(folder: Path, executor: Any, *callbacks: nas_evidence.Watcher) -> nas_evidence.Study:
    settings = {**SETTINGS, "scheduling": "batch", "batch": 2, "pruning.rule": "halving"}
    return nas_evidence.search(
        X, Y, out=folder, n_trials=2, families=["linear", "mlp"], settings=settings,
        executor=executor, workers=1, callbacks=callbacks, progress=False,
    )  # fmt: skip


def loaded(name: str, *given: Any, **how: Any) -> Callable[[Path, Path], Any]:
    """Return a function that calls a method of the study in a folder."""
    return lambda s, to: getattr(nas_evidence.load(s), name)(*given, **how)


#: What blocks while it computes, reads or writes: of the study `s`, with a folder `to` of its own.
CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "search of another": lambda s, to: nas_evidence.search(X, Y, out=to, progress=False, **OTHER),
    "search of processes": lambda s, to: nas_evidence.search(
        X, Y, out=to, progress=False, workers=2, executor="local", **OTHER
    ),
    "search of the same": lambda s, to: search(s, "inline"),
    "resume": lambda s, to: nas_evidence.resume(s, progress=False),
    "refit": loaded("refit", seeds=1, out="refitted", progress=False),
    "fit": lambda s, to: nas_evidence.EvidenceClassifier(n_trials=1, settings=SETTINGS).fit(X, Y),
    "cancel": lambda s, to: nas_evidence.cancel(s),
    "cancel a trial": lambda s, to: nas_evidence.cancel(s, 0),
    "verify": lambda s, to: nas_evidence.verify(s),
    "repair": lambda s, to: nas_evidence.repair(s),
    "status": lambda s, to: nas_evidence.status(s),
    "list": lambda s, to: nas_evidence.list_studies(s.parent),
    "compare": lambda s, to: nas_evidence.compare([s, s]),
    "read_table": lambda s, to: nas_evidence.read_table(s, "trials"),
    "submit": lambda s, to: nas_evidence.submit(
        "digits", address="http://127.0.0.1:9", name="n", store=str(to)
    ),
    "predict": lambda s, to: nas_evidence.predict(s, X),
    "leaderboard": loaded("leaderboard"),
    "report": loaded("report"),
    "summary": loaded("summary"),
    "plot": loaded("plot", "score"),
    "export": loaded("export"),
    "evaluate": loaded("evaluate", X, Y),
    "importance": loaded("importance"),
    "cost": loaded("cost"),
    "forecast": loaded("forecast"),
}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study without a callback."""
    search(folder := tmp_path_factory.mktemp("calm") / "s", Losing)
    return folder


def in_time(call: Callable[[], object]) -> None:
    """Do a call in a thread; fail with its stack if it is not over in time."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(LIMIT)
    if thread.is_alive():
        stack = traceback.extract_stack(sys._current_frames()[thread.ident])
        pytest.fail("".join(["it hangs at\n", *traceback.format_list(stack)]))


def ways(result: list[Any], call: Callable[[], Any]) -> None:
    """Note what a call returns or raises."""
    try:
        with warnings.catch_warnings(action="ignore"):
            result.append(call())
    except BaseException as error:
        result.append(error)


@pytest.mark.crossed
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("hook", HOOKS, ids=" ".join)
def test_from_a_callback_a_call_works_or_is_refused_at_once(
    name: str, hook: tuple[str, str], calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, answers, ends = tmp_path / "s", [], []  # type: ignore[var-annotated]

    def hooked(self: object, *given: object) -> dict[str, float]:
        if not answers:
            ways(answers, lambda: CALLS[name](folder, tmp_path / "to"))
        return {}

    watcher = type("Calls", (nas_evidence.Watcher,), {hook[0]: hooked, "columns": {"j": float}})
    in_time(lambda: ways(ends, lambda: search(folder, HOOKS[hook], watcher())))
    (answer,), (end,) = answers, ends
    if isinstance(answer, BaseException):
        assert isinstance(answer, ValueError | RuntimeError)
        assert "\n" not in str(answer)
    if name != "cancel":
        assert isinstance(end, nas_evidence.Study)
    if "cancel" not in name:
        rows = [found(one, without=["attempt", "j"])["evidence"] for one in (calm, folder)]
        assert_same({"evidence": rows[0]}, {"evidence": rows[1]})


def test_a_fit_inside_a_callback_of_a_fit_is_done(tmp_path: Path) -> None:
    inner: list[Any] = []

    class Fits(nas_evidence.Watcher):
        def ended(self, record: object) -> None:
            ways(inner, lambda: CALLS["fit"](tmp_path, tmp_path))

    model = nas_evidence.EvidenceClassifier(n_trials=1, settings=SETTINGS, callbacks=[Fits()])
    in_time(lambda: model.fit(X, Y))
    assert isinstance(inner[0], nas_evidence.EvidenceClassifier)


def test_a_study_on_ray_in_a_callback_of_one_is_refused_before_it_connects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nas_evidence.workers import on_ray

    monkeypatch.setattr(on_ray, "_DRIVING", {threading.get_ident()})
    with refused("ray-inside-ray"):
        on_ray.RayExecutor(None, ResourceSpec(), tmp_path)  # type: ignore[arg-type]
    assert {threading.get_ident()} == on_ray._DRIVING
