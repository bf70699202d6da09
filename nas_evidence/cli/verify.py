"""The verbs for the soundness of a study folder: verify and repair."""

from pathlib import Path
from typing import Any

import typer

import nas_evidence
from nas_evidence.cli.options import AsJson, StudyPlace, with_parameters_of
from nas_evidence.cli.terminal import err, here, out, print_json, say_edits, typed
from nas_evidence.reporting.words import counted


@with_parameters_of(nas_evidence.verify)
def verify(place: StudyPlace, as_json: AsJson = False, **given: Any) -> None:
    """Check everything that a study holds, and change nothing; exit code 1 if something is wrong.

    The data set is compared too where it is at hand; the last line says what was not checked.

    Example: nas-evidence verify runs/digits
    """
    found = nas_evidence.verify(place, **given)
    if as_json:
        print_json([{"place": one.place, "problem": one.problem} for one in found.problems])
    else:
        for one in found.problems:
            out.print(f"{one.place}: {one.problem}")
        if "://" not in place:
            say_edits(Path(place).expanduser())
    if not found.problems:
        err.print("OK: no problems found.")
    if found.not_checked:
        err.print(f"not checked: {'; '.join(found.not_checked)}")
    if found.problems:
        steal = " --steal" * any(one.place == "lock" for one in found.problems)
        mend = f"repair: {typed('repair', place)}{steal}"
        if found.data_differ:
            mend = "restore the data, or start another study with these"
        err.print(f"{counted(len(found.problems), 'problem')} found; {mend}")
        raise typer.Exit(1)


@with_parameters_of(nas_evidence.repair)
def repair(place: StudyPlace, **given: Any) -> None:
    """Restore what is damaged; train torn trials again from their seeds. Sound files stay.

    What cannot be restored is named at the end; then the exit code is 1.

    Example: nas-evidence repair runs/digits
    """
    from nas_evidence.api.runs import unfinished
    from nas_evidence.storage.kept_submission import resume_command
    from nas_evidence.storage.redo import find_done

    for line in nas_evidence.repair(place, **given) or ["nothing to repair."]:
        out.print(line)
    study = nas_evidence.load(place)
    if unfinished(study.spec, find_done(study.folder)):
        out.print(f"more:   {here(resume_command(place, study.folder, study.spec))}")
    left = nas_evidence.verify(place, data_root=given.get("data_root")).problems
    for one in left:
        out.print(f"left:   {one.place}: {one.problem}")
    if left:
        raise typer.Exit(1)
