"""What to do next with a study, as one command that can be copied whole.

The sentences of the first screen name remedies as keys with values, such as
`set plan.epochs=40` or `target_scale=log (--target-scale)`. A search again begins from the study
file in the folder of the study, which also knows its data.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.plumbing.foreign_text import python_text, shell_word
from nas_evidence.reporting.headline import Headline
from nas_evidence.reporting.study_tables import RankedStudy
from nas_evidence.spec.study import PRESETS
from nas_evidence.spec.toml import Override
from nas_evidence.storage.kept_submission import resume_command
from nas_evidence.storage.outside_code import code_options, only_in_python

#: A key with its value where a sentence says that it is to be set.
_SET = re.compile(r"(?:[Ss]et |again with |or )([a-z][\w.]*=[\w.+-]*\w(?: and [a-z_]+=\w+)*)")
_FINALISTS = re.compile(r"\bfinalists=\d+")
#: Keys that are options of their own; all others are given with --set.
_FLAGS = {
    "target_scale": "--target-scale", "test_fraction": "--test-fraction", "preset": "--preset",
}  # fmt: skip
#: What stands for rows to predict, by the kind of data.
_NEW = {"table": "NEW.csv", "images": "NEW_FOLDER"}
#: Longest name of a folder, bytes, before a hyphen and a number.
_LONGEST = 240
_SEARCH_AGAIN = re.compile("[Ss]earch again")


@dataclass(frozen=True)
class NextStep:
    """What to do next: a sentence that ends with a colon, and the command.

    Where only a script or notebook has the sampler or a family, `language` is "python", and the
    command a call.
    """

    words: str
    command: str

    @property
    def language(self) -> str:
        """What the command is typed into: "sh" or "python"."""
        return "python" if self.command.startswith("nas_evidence.") else "sh"


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
    spec, folder = study.spec, study.tables.folder
    if is_running:
        return NextStep("The search goes on. To follow it:", _command("watch", place))
    if study.n_searched < spec.n_trials:
        done = f"{study.n_searched} of {spec.n_trials} trials are finished"
        command = resume_command(place, folder, spec, data_root=data_root)
        return NextStep(f"{done}. To run the others:", command)
    if not (is_refit or "://" in place):  # a store holds no file that `search` could read
        if remedies := _remedies(study, said):
            command = _search(study, place, remedies, data_root)
            return NextStep("Search again, as advised above:", command)
        if said.worth.startswith("No: clearly worse"):
            words = f"To look for a better network with {PRESETS['thorough']['n_trials']} trials:"
            return NextStep(words, _search(study, place, {"preset": "thorough"}, data_root))
    if "`nas-evidence report`" in said.worth:
        root = [] if data_root is None else ["--data-root", data_root]
        return NextStep("To compare it with simple models:", _command("report", place, *root))
    if finalists := _FINALISTS.search(said.sure):
        words = "To know how sure this is, train the best again:"
        again = resume_command(place, folder, spec, finalists.group(), data_root=data_root)
        return NextStep(words, again)
    new = _NEW.get(spec.dataset.name, "NEW.npz")
    code = ["--allow-code"] * bool(code_options(spec, asks=False))
    command = _command("predict", place, new, *code)
    if only_in_python(spec, asks=False):
        command = f"{load_call(study, place)}.predict({new!r})"
    return NextStep(f"To use it, with {new} as your new rows:", command)


def _remedies(study: RankedStudy, said: Headline) -> dict[str, str]:
    """Return the keys that the sentences advise for a search again, with their values."""
    if said.answer.startswith("Choose none yet"):
        return _options([said.answer], every=True)
    if said.answer.startswith("Nothing can be ranked"):
        return {"plan.learning_rate": f"{study.spec.plan.learning_rate / 10:g}"}
    again = [one for one in (*said.advice, said.worth) if _SEARCH_AGAIN.search(one)]
    return _options(again)


def _options(sentences: Sequence[str], *, every: bool = False) -> dict[str, str]:
    """Return the first key that each sentence sets and those joined to it, or `every` one.

    >>> _options(["Search again with target_scale=log or plan.likelihood=x (--set)."])
    {'target_scale': 'log'}
    >>> _options(["more folds (set plan.folds=5) or more epochs (set plan.epochs=8)"], every=True)
    {'plan.folds': '5', 'plan.epochs': '8'}
    """
    found: dict[str, str] = {}
    for sentence in sentences:
        said = _SET.findall(sentence)
        for together in said if every else said[:1]:
            for key, value in (one.split("=", 1) for one in together.split(" and ")):
                found.setdefault(key, value)
    return found


def _search(
    study: RankedStudy, place: str, keys: Mapping[str, str], data_root: Path | None
) -> str:
    """Return the command, or the call, that searches again beside a study, with other keys."""
    file, out, code = f"{place}/study.toml", _another(place), code_options(study.spec)
    if only_in_python(study.spec):
        settings = [f"{key}={value}" for key, value in keys.items() if key not in _FLAGS]
        typed = {k: Override.typed(f"{k}={value}").value for k, value in keys.items()}
        given = {key: repr(value) for key, value in typed.items() if key in _FLAGS} | code
        given |= {"settings": repr(settings)} if settings else {}
        given |= {} if data_root is None else {"data_root": repr(str(data_root))}
        return _call("search", file, {**given, "out": repr(out)})
    words = [file]
    for key, value in keys.items():
        words += [_FLAGS[key], value] if key in _FLAGS else ["--set", f"{key}={value}"]
    words += [] if data_root is None else ["--data-root", str(data_root)]
    return _command("search", *words, *["--allow-code"] * bool(code), "--out", out)


def repeated(study: RankedStudy, place: str, data_root: Path | None = None) -> str:
    """Return what runs the same search again, beside it; "" for a store."""
    return "" if "://" in place else _search(study, place, {}, data_root)


def load_call(study: RankedStudy, place: str) -> str:
    """Return the call in Python that loads a study so that it predicts."""
    return _call("load", place, code_options(study.spec, asks=False))


def _call(verb: str, place: str, given: Mapping[str, str]) -> str:
    more = "".join(f", {key}={value}" for key, value in given.items())
    return f"nas_evidence.{verb}({python_text(place)}{more})"


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
