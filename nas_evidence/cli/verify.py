"""The verbs for the soundness of a study folder: verify and repair."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nas_evidence.cli.options import AsJson, DataRoot, Steal
from nas_evidence.cli.terminal import counted, err, out, print_json, say_edits, typed
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # it imports data readers
    from nas_evidence.driver.verification import Load

Place = Annotated[str, typer.Argument(metavar="DIR", help="A study folder, or a store's URI.")]


def verify(place: Place, as_json: AsJson = False, data_root: DataRoot = None) -> None:
    """Check everything that a study holds, and change nothing; exit code 1 if something is wrong.

    The data set is compared too where it is at hand; the last line says what was not checked.

    Example: nas-evidence verify runs/digits
    """
    from nas_evidence.data.source import KEPT
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.driver.verification import check_data, not_checked
    from nas_evidence.driver.verification import verify as findings_of
    from nas_evidence.storage.study_folder import refuse_links

    store = working_copy(place)
    store.pull()
    if not (store.folder / "study.toml").is_file() and not (store.folder / "trials").is_dir():
        raise UserError(
            f"{place} is not a study: it has neither study.toml nor trials."
        ).with_code("not-a-study")
    refuse_links(store.folder)
    here = store.uri is None
    found = findings_of(store.folder, with_checkpoints=here)
    other_data, why = check_data(store.folder, _loader(store.folder, data_root))
    found += other_data
    if as_json:
        print_json([{"place": finding.place, "problem": finding.problem} for finding in found])
    else:
        for finding in found:
            out.print(f"{finding.place}: {finding.problem}")
        say_edits(store.folder)
    left = "; ".join(not_checked(store.folder, with_checkpoints=here, data=why))
    if not found:
        err.print("OK: no problems found.")
    if left:
        err.print(f"not checked: {left}")
    if found:
        mend = f"repair: {typed('repair', place)}"
        if found == other_data and found[0].place != KEPT:
            mend = "restore the data, or start another study with these"
        err.print(f"{counted(len(found), 'problem')} found; {mend}")
        raise typer.Exit(1)


def repair(place: Place, data_root: DataRoot = None, steal: Steal = False) -> None:
    """Restore what is damaged; train torn trials again from their seeds. Sound files stay.

    Example: nas-evidence repair runs/digits
    """
    from nas_evidence.api.runs import unfinished
    from nas_evidence.driver.mirror import working_copy
    from nas_evidence.driver.restoration import repair as mended
    from nas_evidence.spec.toml import load_study
    from nas_evidence.storage.redo import find_done
    from nas_evidence.storage.study_folder import locked

    store = working_copy(place)
    store.pull()
    folder, here = store.folder, store.uri is None
    if not (folder / "study.toml").is_file() and not (folder / "trials").is_dir():
        raise UserError(
            f"{place} is not a study: it has neither study.toml nor trials."
        ).with_code("not-a-study")
    with store.held(steal=steal), locked(folder, steal=steal):
        done = mended(folder, _loader(folder, data_root), with_checkpoints=here)
        for line in done or ["nothing to repair."]:
            out.print(line)
        study = load_study(folder / "study.toml")
        if unfinished(study, find_done(folder)):
            out.print(f"more:   {typed('resume', place)}")


def _loader(folder: Path, data_root: Path | None) -> "Load":
    """Return a function that loads the data of a study, once; own data are in its folder."""
    from nas_evidence.data import ArrayData, load

    loaded: list[ArrayData] = []

    def data(study: StudySpec) -> ArrayData:
        if not loaded:
            root = None if data_root is None else str(data_root)
            base = folder.resolve()
            loaded.append(load(study.dataset, seed=study.seed, data_root=root, base=base))
        return loaded[0]

    return data
