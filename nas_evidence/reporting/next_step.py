"""What to do next with a study, as one command that can be copied whole.

The sentences of the first screen name remedies as keys with values, such as
`set plan.epochs=40` or `target_scale=log (--target-scale)`. A search again begins from the study
file in the folder of the study, which also knows its data.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.plumbing.foreign_text import python_text, shell_word
from nas_evidence.reporting.headline import Headline
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.storage.kept_submission import resume_command
from nas_evidence.storage.outside_code import code_names, only_in_python

#: A key with its value where a sentence says that it is to be set.
_SET = re.compile(r"(?:[Ss]et |again with |or )([a-z][\w.]*=[\w.+-]*\w(?: and [a-z_.]+=\w+)*)")
_FINALISTS = re.compile(r"\bfinalists=\d+")
#: Keys that are options of their own; all others are given with --set.
_FLAGS = {"target_scale": "--target-scale", "test_fraction": "--test-fraction"}
#: What stands for rows to predict, by the kind of data.
_NEW = {"table": "NEW.csv", "images": "NEW_FOLDER"}
#: Longest name of a folder, bytes, before a hyphen and a number.
_LONGEST = 240
_SEARCH_AGAIN = re.compile("[Ss]earch again")


@dataclass(frozen=True)
class NextStep:
    """What to do next: a sentence that ends with a colon, and the command.

    It is Python for a simple model, and where only a script has the sampler or a family.
    """

    words: str
    command: str


def next_step(
    study: RankedStudy,
    said: Headline,
    place: str,
    *,
    is_running: bool = False,
    is_refit: bool = False,
    data_root: Path | None = None,
) -> NextStep:
    """Return what to do next.

    Args:
        study: as it is stored.
        said: the first screen of the study.
        place: its folder or URI, as the reader names it.
        is_running: whether a process runs the study now.
        is_refit: whether its architectures are those of another study, so that a search again
            would be another study.
        data_root: the folder of the data sets, if one was named.
    """
    spec, root = study.spec, [] if data_root is None else ["--data-root", str(data_root)]

    def resume(*settings: str) -> str:
        folder = study.tables.folder
        return resume_command(place, folder, spec, *settings, data_root=data_root)

    if is_running:
        return NextStep("The search goes on. To follow it:", _command("watch", place))
    if study.n_searched < spec.n_trials:
        done = f"{study.n_searched} of {spec.n_trials} trials are finished"
        return NextStep(f"{done}. To run the others:", resume())
    new = _NEW.get(spec.dataset.name, "NEW.npz")
    if said.code:
        lines = said.code.format(study=load_call(study, place, data_root), new=python_text(new))
        return NextStep(f"To use the simple model, with {new} as your new rows, in Python:", lines)
    options = [] if is_refit else _remedies(study, said)
    if options and (again := repeated(study, place, data_root, options)):
        return NextStep("Search again, as advised above:", again)
    if "`nas-evidence report`" in said.worth:
        return NextStep("To compare it with simple models:", _command("report", place, *root))
    if finalists := _FINALISTS.search(said.sure):
        words = "To know how sure this is, train the best again:"
        return NextStep(words, resume(finalists.group()))
    code = ["--allow-code"] * bool(code_names(spec, asks=False))
    command = _command("predict", place, new, *code)
    if only_in_python(spec, asks=False):
        command = f"{load_call(study, place)}.predict({new!r})"
    anyway = " all the same" * said.answer.startswith("Choose none yet")
    return NextStep(f"To use it{anyway}, with {new} as your new rows:", command)


def _remedies(study: RankedStudy, said: Headline) -> list[str]:
    """Return the options that the sentences advise for a search again, without repeating a key."""
    if said.answer.startswith("Nothing can be ranked"):
        return ["--set", f"plan.learning_rate={study.spec.plan.learning_rate / 10:g}"]
    again = [one for one in (*said.advice, said.worth) if _SEARCH_AGAIN.search(one)]
    return _options(again)


def _options(sentences: Sequence[str]) -> list[str]:
    """Return what to type for the first key that each sentence sets and those joined to it.

    >>> _options(["Search again with target_scale=auto and plan.likelihood=x (--set)."])
    ['--target-scale', 'auto', '--set', 'plan.likelihood=x']
    """
    found: dict[str, str] = {}
    for sentence in sentences:
        for together in _SET.findall(sentence)[:1]:
            for key, value in (one.split("=", 1) for one in together.split(" and ")):
                found.setdefault(key, value)
    typed: list[str] = []
    for key, value in found.items():
        typed += [_FLAGS[key], value] if key in _FLAGS else ["--set", f"{key}={value}"]
    return typed


def repeated(
    study: RankedStudy,
    place: str,
    data_root: Path | None = None,
    options: Sequence[str] = (),
) -> str:
    """Return the command that runs the same search again, beside it, or one with other options.

    It is "" for a store, which holds no file that `search` could read, and where only a script or
    notebook has some code of the study.
    """
    if "://" in place or only_in_python(study.spec):
        return ""
    given = [] if data_root is None else ["--data-root", str(data_root)]
    given += ["--allow-code"] * bool(code_names(study.spec))
    return _command("search", f"{place}/study.toml", *options, *given, "--out", _another(place))


def load_call(study: RankedStudy, place: str, data_root: Path | None = None) -> str:
    """Return the call in Python that loads a study so that it predicts."""
    code = "" if data_root is None else f", data_root={python_text(data_root)}"
    code += ", allow_code=True" * bool(code_names(study.spec, asks=False))
    return f"nas_evidence.load({python_text(place)}{code})"


def _another(place: str) -> str:
    """Return the next free place beside that of a study.

    >>> _another("runs/no-such-study"), _another("runs/no-such-study-2")
    ('runs/no-such-study-2', 'runs/no-such-study-3')
    """
    stem, _, n = place.rpartition("-")
    stem, n = (stem, n) if stem and n.isdecimal() else (place, "1")
    number = int(n) + 1
    while len(os.fsencode(Path(stem).name)) > _LONGEST:
        stem = stem[:-1]
    while Path(f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"


def _command(*words: object) -> str:
    return f"nas-evidence {' '.join(map(shell_word, words))}"
