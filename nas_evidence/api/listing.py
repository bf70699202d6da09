"""The studies in a folder, or below the URI of a store; needs no torch."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import OWN_DATA

if TYPE_CHECKING:  # imports the stores
    from nas_evidence.driver.mirror import WorkingCopy

#: Where studies are unless another place is named.
HOME = "runs"


@dataclass(frozen=True)
class ListedStudy:
    """What a list says of a study; of a damaged one only `place`, `state` and `problem`.

    place       its folder, or the URI of its store
    name        of the study
    state       "running", "waiting" (held by a process, and no trial can run), "stopped",
                "budget spent", "finished" or "damaged"
    waits_for   what it waits for, such as "2 workers, 0 of 2 CPUs free", "" if it does not say
    n_finished  of `n_trials` trials of the search
    n_trials    that were asked for
    best        the best architecture in words, None while none ranks
    trial_id    of the trial that represents it
    value       what ranks it, larger is better
    ranked_by   what the value is
    data        name of the data, "" if it is not known
    n_rows      of them, with test rows
    changed     when the study last wrote to its log, s since 1970
    refit_of    the study that found its architectures, "" for a search
    problem     what is wrong with it, "" if nothing is
    """

    place: str
    name: str = ""
    state: str = "damaged"
    n_finished: int = 0
    n_trials: int = 0
    best: str | None = None
    trial_id: int | None = None
    value: float | None = None
    ranked_by: str = ""
    data: str = ""
    n_rows: int | None = None
    changed: float | None = None
    refit_of: str = ""
    problem: str = ""
    waits_for: str = ""

    @property
    def age(self) -> float | None:
        """Return how long ago it last wrote, s."""
        return None if self.changed is None else max(0.0, time.time() - self.changed)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)


def list_studies(folder: str | Path = HOME) -> list[ListedStudy]:
    """Return the studies in a folder, those that changed last first; or the one that it is.

    What is no study is left out. One that cannot be read is "damaged".

    Args:
        folder: that holds study folders, or a URI below which studies are stored.

    Raises:
        ValueError: if there is no such folder, or the store does not answer.

    Example:
        [one.place for one in nas_evidence.list_studies() if one.state == "stopped"]
    """
    found = [_listed(place) for place in _places(str(folder))]
    return sorted(found, key=lambda one: (-(one.changed or 0.0), one.place))


def _places(home: str) -> Iterator[str]:
    """Yield the places of studies: of `home` itself, or directly below it."""
    if "://" in home:
        from nas_evidence.storage.store import Store

        store = Store(home)
        store.check_answers()
        if store.get("study.toml") is not None:
            yield store.place
            return
        for name in store.folders():
            below = f"{store.place.rstrip('/')}/{name}"
            if Store(below).get("study.toml") is not None:
                yield below
        return
    folder = Path(home).expanduser()
    if not folder.is_dir():
        if home == HOME and not folder.exists():
            return
        raise UserError(
            "list-of-no-folder", f"{home} is no folder; name one that holds studies, as {HOME}."
        )
    if _is_study(folder):
        yield home
        return
    yield from (str(one) for one in sorted(folder.iterdir()) if one.is_dir() and _is_study(one))


def _is_study(folder: Path) -> bool:
    """Return whether a folder is a study's, also one that has lost its study file."""
    return (folder / "study.toml").is_file() or (folder / "logs" / "events").is_dir()


def _listed(place: str) -> ListedStudy:
    from nas_evidence.driver.mirror import working_copy

    try:
        store = working_copy(place)
        store.looking = "status"
        store.pull()
        if store.uri is not None:
            store.look("how_read.json", "refit_of.json")
        with store.named():
            return _facts(store)
    except Exception as error:  # whatever it is, the others are listed
        lines = str(error).splitlines() or [type(error).__name__]
        return ListedStudy(place, problem=on_one_line("; ".join(lines)))


def _facts(store: "WorkingCopy") -> ListedStudy:
    from nas_evidence.driver.status import study_status
    from nas_evidence.spec.domains import architecture_text
    from nas_evidence.spec.toml import load_study
    from nas_evidence.storage.kept_how_read import read_how_read
    from nas_evidence.storage.kept_origin import read_origin
    from nas_evidence.storage.log import last_written

    folder = store.folder
    now, how, origin = study_status(folder), read_how_read(folder), read_origin(folder)
    dataset = load_study(folder / "study.toml").dataset
    state, best = now.state, now.best
    if now.waits_for:
        state = "waiting"
    words = None
    if best is not None:
        words = architecture_text(best.family, best.architecture.values)
    return ListedStudy(
        place=store.place,
        name=now.name,
        state=state,
        n_finished=now.n_finished,
        n_trials=now.n_trials,
        best=words,
        trial_id=None if best is None else best.trial_id,
        value=None if math.isnan(now.value) else now.value,
        ranked_by=now.ranks_by,
        data=(how.given if how else "") or ("" if dataset.name in OWN_DATA else dataset.name),
        n_rows=how.n_train + how.n_test if how else None,
        changed=last_written(folder),
        refit_of=origin.place if origin else "",
        waits_for=now.waits_for,
    )
