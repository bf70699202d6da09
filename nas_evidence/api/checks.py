"""The soundness of a study folder: verify, repair."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nas_evidence.plumbing.foreign_text import on_lines
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import data readers and stores
    from nas_evidence.data import ArrayData
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.driver.verification import Finding, Load


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    problems     what is not as it was written, each with its place; empty for a sound study
    not_checked  what could not be checked, one sentence each
    data_differ  whether the data at hand, and nothing else, are not those of the trials
    """

    problems: "tuple[Finding, ...]"
    not_checked: tuple[str, ...]
    data_differ: bool = False

    def __repr__(self) -> str:
        lines = [f"{one.place}: {one.problem}" for one in self.problems] or ["no problems found"]
        return on_lines("\n".join([*lines, *(f"not checked: {one}" for one in self.not_checked)]))


def verify(place: str | Path, *, data_root: str | Path | None = None) -> Verification:
    """Check everything that a study holds, and change nothing.

    The data set is compared too where it is at hand.

    Args:
        place: a study folder, or the URI of a store.
        data_root: folder of the named data sets.

    Raises:
        ValueError: if it is no study.

    Example:
        nas_evidence.verify("runs/mine").problems  # () if all is sound
    """
    from nas_evidence.data.source import KEPT
    from nas_evidence.driver.verification import check_data, not_checked
    from nas_evidence.driver.verification import verify as findings_of

    store = _fetched(place)
    here = store.uri is None
    found = findings_of(store.folder, with_checkpoints=here)
    other_data, why = check_data(store.folder, _loader(store.folder, data_root))
    left = not_checked(store.folder, with_checkpoints=here, data=why)
    data_differ = bool(other_data) and not found and other_data[0].place != KEPT
    return Verification((*found, *other_data), tuple(left), data_differ)


def repair(
    place: str | Path,
    *,
    data_root: str | Path | None = None,
    steal: bool = False,
    allow_code: bool = False,
) -> list[str]:
    """Restore what is damaged, and return what was done; torn trials are trained again.

    `verify` names what is left, if something is.

    Args:
        place: a study folder, or the URI of a store.
        data_root: folder of the named data sets.
        steal: take the study over from another host that is known to be dead.
        allow_code: run code that is named as module:NAME; networks of such a family are trained
            again only with it.

    Raises:
        ValueError: if it is no study, or another process works on it.

    Example:
        nas_evidence.repair("runs/mine")  # [] if nothing is damaged
    """
    from nas_evidence.driver.restoration import repair as mended
    from nas_evidence.storage.outside_code import code_of_folder
    from nas_evidence.storage.study_folder import locked

    store = _fetched(place)
    load = _loader(store.folder, data_root)
    with store.held(steal=steal), locked(store.folder, steal=steal), ExitStack() as stack:

        def data(study: StudySpec) -> "ArrayData":  # asked for before any training
            code = code_of_folder(store.folder, study, allowed=allow_code)
            stack.enter_context(code.in_use())
            return load(study)

        return mended(store.folder, data, with_checkpoints=store.uri is None)


def _fetched(place: str | Path) -> "WorkingCopy":
    from nas_evidence.driver.mirror import working_copy

    store = working_copy(str(place))
    store.check_answers()
    store.pull()
    if not (store.folder / "study.toml").is_file() and not (store.folder / "trials").is_dir():
        raise UserError(
            "not-a-study", f"{place} is not a study: it has neither study.toml nor trials."
        )
    return store


def _loader(folder: Path, data_root: str | Path | None) -> "Load":
    """Return a function that loads the data of a study, once; own data are in its folder."""
    from nas_evidence.data import load

    loaded: list[ArrayData] = []

    def data(study: StudySpec) -> "ArrayData":
        if not loaded:
            root = None if data_root is None else str(data_root)
            base = folder.resolve()
            loaded.append(load(study.dataset, seed=study.seed, data_root=root, base=base))
        return loaded[0]

    return data
