"""The verbs for the soundness of a study folder: verify and repair."""

from pathlib import Path
from typing import Annotated

import typer

from nas_evidence.cli.options import AsJson, DataRoot, opened
from nas_evidence.cli.terminal import counted, err, out, print_json, program
from nas_evidence.spec import StudySpec

Place = Annotated[str, typer.Argument(metavar="DIR", help="A study folder, or a store's URI.")]


def verify(place: Place, as_json: AsJson = False) -> None:
    """Check everything that a study holds, and change nothing; exit code 1 if something is wrong.

    What is not in the folder is not checked; the last line says what that is.

    Example: nas-evidence verify runs/digits
    """
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.driver.verifying import not_checked
    from nas_evidence.driver.verifying import verify as findings_of

    store = open_store(place)
    store.pull()
    if not (store.folder / "study.toml").is_file() and not (store.folder / "trials").is_dir():
        raise ValueError(f"{place} is not a study: it has neither study.toml nor trials.")
    here = store.uri is None
    found = findings_of(store.folder, with_checkpoints=here)
    if as_json:
        print_json([{"place": finding.place, "problem": finding.problem} for finding in found])
    else:
        for finding in found:
            out.print(f"{finding.place}: {finding.problem}")
    left = "; ".join(not_checked(store.folder, with_checkpoints=here))
    if found:
        err.print(f"not checked: {left}")
        err.print(f"{counted(len(found), 'problem')} found; mend: {program()} repair {place}")
        raise typer.Exit(1)
    err.print("everything is as it was written.")
    err.print(f"not checked: {left}")


def repair(place: Place, data_root: DataRoot = None) -> None:
    """Restore what is damaged; train torn trials again from their seeds. Sound files stay.

    Example: nas-evidence repair runs/digits
    """
    from nas_evidence.data import ArrayData, load
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.driver.repairing import repair as mended
    from nas_evidence.storage.study_folder import locked

    if "://" in place:
        raise ValueError(
            f"repair works on a folder, but got {place}: copy the study into a folder, repair it "
            "there, and copy it back."
        )
    folder = Path(place)
    if not folder.is_dir():
        raise ValueError(f"{place} is not a study folder: there is no such folder.")
    loaded: list[ArrayData] = []

    def data(study: StudySpec) -> ArrayData:
        if not loaded:
            root = None if data_root is None else str(data_root)
            loaded.append(load(study.dataset, seed=study.seed, data_root=root))
        return loaded[0]

    with open_store(place).held(), locked(folder):
        for line in mended(folder, data) or ["nothing to repair."]:
            out.print(line)
    store = opened(place)
    from nas_evidence.codec import load_study
    from nas_evidence.store import finished

    study = load_study(store.folder / "study.toml")
    if len(finished(store.folder)) < study.n_trials:
        out.print(f"more:   {program()} resume {place}")
