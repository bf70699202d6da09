"""Each option of a verb is a parameter of the function that the verb calls, and the reverse."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import typer.main

import nas_evidence
from nas_evidence.api.results import Study
from nas_evidence.cli.main import MOVED, VERBS, app

#: What Python calls an option, where it is not the same word.
NAMES = {
    "study": "data", "place": "folder", "trials": "n_trials", "time": "time_limit",
    "set": "settings", "store": "out", "trial": "trial_id", "dir": "folder",
}  # fmt: skip
#: The functions of each verb: one, or what gives the study and what is done with it.
CALLED: dict[str, tuple[Callable[..., Any], ...]] = {
    "search": (nas_evidence.search,),
    "resume": (nas_evidence.resume,),
    "refit": (nas_evidence.refit,),
    "list": (nas_evidence.list_studies,),
    "submit": (nas_evidence.submit,),
    "report": (nas_evidence.load, Study.report),
    "export": (nas_evidence.load, Study.export),
    "predict": (nas_evidence.predict,),
    "verify": (nas_evidence.verify,),
    "repair": (nas_evidence.repair,),
    "status": (nas_evidence.status,),
    "cancel": (nas_evidence.cancel,),
}
_TABLE = "the same statistics of any table are `nas_evidence.reporting.any_table.rank_table`"
#: Options that are no parameter, with the reason.
ONLY_TYPED = {
    ("search", "dry-run"): "prints what a search would do, and has no study to return",
    ("resume", "name"): "of a job on a cluster, as `resubmit`",
    **{("report", name): _TABLE for name in ("table", "score", "target", "group", "baseline")},
    ("predict", "to"): "`Prediction.to_frame` is written by pandas",
    ("predict", "id"): "columns that the written file copies",
    ("predict", "force"): "of the file that is written",
    ("predict", "reliability"): "`Study.plot('calibration', data)`",
    ("predict", "json"): "how it is printed",
    ("list", "json"): "how it is printed",
    ("verify", "json"): "how it is printed",
    ("status", "json"): "how it is printed",
    ("status", "all"): "of one trial, whose tables `read_table` returns",
    ("status", "log"): "a text, and no value",
    ("status", "follow"): "a text, and no value",
}
#: Parameters that are no option, with the reason.
ONLY_CALLED = {
    ("search", "y"): "data in memory",
    ("search", "families"): "objects; a study file names families",
    ("search", "sampler"): "objects; a study file names samplers",
    ("resume", "sampler"): "objects; a study file names samplers",
    ("search", "callbacks"): "objects",
    ("resume", "callbacks"): "objects",
    ("refit", "callbacks"): "objects",
    ("refit", "progress"): "the command line always prints",
    ("refit", "y"): "data in memory",
    ("search", "progress"): "the command line always prints",
    ("resume", "progress"): "the command line always prints",
    ("submit", "progress"): "the command line always prints",
    **{
        (verb, "warn"): "the command line always prints"
        for verb in ("predict", "status", "cancel")
    },
    ("cancel", "trial_id"): "the second word after the verb",
    ("report", "allow_code"): "a report runs no code",
}


def typed(verb: str) -> set[str]:
    """The names of all that can be typed after a verb, as Python has them."""
    command: Any = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    found = set()
    for one in command.params:
        words = [word.removeprefix("--") for word in one.opts if word.startswith("--")]
        found.add(words[-1] if words else str(one.name))
    return found - {"help"}


def python_name(word: str) -> str:
    return NAMES.get(word, word.replace("-", "_"))


def parameters(verb: str) -> set[str]:
    return {name for one in CALLED[verb] for name in signature(one).parameters} - {"self"}


@pytest.mark.parametrize("verb", CALLED)
def test_every_option_is_a_parameter_but_for_a_few_with_a_reason(verb: str) -> None:
    others = {name for own, name in ONLY_TYPED if own == verb}
    words = typed(verb)
    assert others <= words
    known = parameters(verb)
    assert {w for w in words - others if not {python_name(w), w} & known} == set()


@pytest.mark.parametrize("verb", CALLED)
def test_every_parameter_is_an_option_but_for_a_few_with_a_reason(verb: str) -> None:
    others = {name for own, name in ONLY_CALLED if own == verb}
    words = {python_name(word) for word in typed(verb)} | typed(verb)
    assert others <= parameters(verb)
    assert parameters(verb) - words == others


def test_there_are_at_most_eighteen_verbs_and_what_moved_names_one_of_them() -> None:
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert len(verbs) == sum(map(len, VERBS.values())) <= 18
    assert not verbs & set(MOVED)
    assert {successor.split()[0] for successor in MOVED.values()} <= verbs
