"""What most tests need and few test.

Simple models are fitted once, nothing is forecast, and where no executor and no number of workers
is named trials run in the process itself: plain processes load torch again for each study.

`conftest.py` takes these shortcuts in the process of the tests, `forking.py` in the processes that
it forks. Tests of what is left out here have the mark `usefixtures("no_shortcuts")`.
"""

import functools
import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from nas_evidence.api import runs
from nas_evidence.baselines import measures, models
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers import choice

#: Draws of a bootstrap, in place of 100.
_N_DRAWS = 10
_PLAIN = {
    (runs.UnfinishedStudy, "forecast_told"): runs.UnfinishedStudy.forecast_told,
    (measures, "_N_DRAWS"): measures._N_DRAWS,
    (models, "baseline_models"): models.baseline_models,
    (choice, "chosen_executor"): choice.chosen_executor,
}


def take(folder: Path) -> None:
    """Take the shortcuts in this process; what simple models predict is kept in a folder."""
    runs.UnfinishedStudy.forecast_told = lambda *_, **__: nullcontext()
    measures._N_DRAWS = _N_DRAWS
    choice.chosen_executor = _chosen_executor
    models.baseline_models = functools.partial(_models, folder)


@contextmanager
def none_taken() -> Iterator[None]:
    """Undo the shortcuts inside."""
    taken = {(place, name): getattr(place, name) for place, name in _PLAIN}
    _set(_PLAIN)
    try:
        yield
    finally:
        _set(taken)


def _set(values: Mapping[tuple[Any, str], Any]) -> None:
    for (place, name), value in values.items():
        setattr(place, name, value)


def _chosen_executor(resources: ResourceSpec, *, joins: bool) -> tuple[str, str]:
    name, why = _PLAIN[choice, "chosen_executor"](resources, joins=joins)
    here = name == "local" and resources.workers in ("auto", 1)
    return ("inline", "this process") if here else (name, why)


def _models(folder: Path, arrays: Any) -> dict[str, models.Model]:
    """Return the simple models of these data, each fitted once to the same numbers."""
    is_number = models._is_number(arrays).tobytes()
    plain = _PLAIN[models, "baseline_models"](arrays)
    return {name: _once(model, folder, name.encode() + is_number) for name, model in plain.items()}


def _once(model: models.Model, folder: Path, name: bytes) -> models.Model:
    def fit(x: Any, y: Any, unseen: Any, n_outputs: int) -> Any:
        key = hashlib.sha256(name + pickle.dumps((x, y, unseen, n_outputs))).hexdigest()
        return _kept(folder / key, lambda: model(x, y, unseen, n_outputs))

    return fit


def _kept(path: Path, make: Callable[[], Any]) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())
    found = make()
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(pickle.dumps(found))
    os.replace(file.name, path)
    return found
