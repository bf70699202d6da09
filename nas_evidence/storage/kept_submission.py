"""The file of a study that says on which cluster its last run was submitted, for all hints.

Whoever reads a hint about such a study may sit on another machine than its driver: a command
without the address would run the study there.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.foreign_text import shell_word
from nas_evidence.plumbing.seals import read_sealed_json, sealed_json
from nas_evidence.spec.study import IN_PYTHON, StudySpec
from nas_evidence.storage.outside_code import code_names, only_in_python

#: In the folder of a study.
FILE = "submitted.json"
#: Of a dashboard, without a password.
_ADDRESS = re.compile(r"https?://[\w.:/\[\]-]+")


@dataclass(frozen=True)
class Submission:
    """A study that runs as a job on a cluster.

    address  of the dashboard, as whoever submitted it has it
    name     of the study there
    store    study folder or URI, as the nodes see it
    """

    address: str
    name: str
    store: str

    @property
    def words(self) -> tuple[str, ...]:
        """The options that name the study on the command line."""
        return "--address", self.address, "--name", self.name


def keep_submission(folder: Path, found: Submission | None) -> None:
    """Write where a study was submitted, None if it runs from here, unless that is known."""
    if read_submission(folder) != found:
        facts = {} if found is None else asdict(found)
        write_whole(folder / FILE, sealed_json(facts).encode(), private=True)


def read_submission(folder: Path) -> Submission | None:
    """Return where a study was last submitted; None if nowhere, or if the file is damaged."""
    path = folder / FILE
    try:
        facts = read_sealed_json(path.read_bytes(), path)
        found = Submission(*(str(facts[name]) for name in ("address", "name", "store")))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if _ADDRESS.fullmatch(found.address) else None


def resume_command(
    place: object,
    folder: Path,
    spec: StudySpec,
    *settings: str,
    data_root: Path | None = None,
) -> str:
    """Return the command that continues a study where it was submitted; else as `resume_call`.

    Args:
        place: of the study, as its user named it.
        folder: where it is here.
        spec: the study.
        settings: keys of the study file with new values, KEY=VALUE.
        data_root: the folder of the data sets, if one was named.
    """
    if only_in_python(spec):
        more = f", settings={[*settings]}" if settings else ""
        return resume_call(place, folder, spec, more)
    found = read_submission(folder)
    words = [str(place)] if found is None else [found.store, *found.words]
    for setting in settings:
        words += ["--set", setting]
    words += [] if data_root is None else ["--data-root", str(data_root)]
    words += ["--allow-code"] * bool(code_names(spec))
    return " ".join(["nas-evidence resume", *map(shell_word, words)])


def resume_call(place: object, folder: Path, spec: StudySpec, more: str = "") -> str:
    """Return the call in Python that continues a study where it was submitted.

    Args:
        place: of the study, as its user named it.
        folder: where it is here.
        spec: the study.
        more: arguments, after a comma.
    """
    more = ", sampler=SAMPLER" * spec.sampler.own.startswith(IN_PYTHON) + more
    more = ", allow_code=True" * bool(code_names(spec)) + more
    found = read_submission(folder)
    if found is None:
        return f"nas_evidence.resume({str(place)!r}{more})"
    where = f"address={found.address!r}, name={found.name!r}"
    return f"nas_evidence.resubmit({found.store!r}, {where}{more})"
