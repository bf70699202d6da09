"""Each option of a verb is a parameter of the function behind it; messages name both alike."""

import ast
import re
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer.main

import nas_evidence
from nas_evidence.api.results import Study
from nas_evidence.api.shared_options import flag_of
from nas_evidence.cli.main import MOVED, app

PACKAGE = Path(nas_evidence.__file__).parent
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
    **{
        (verb, "dry-run"): "prints what it would do, and has no study to return"
        for verb in ("search", "resume", "refit")
    },
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


#: An option of the command line; an argument of Python with its flag; a whole command.
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z0-9-]*|(?<= \()--[a-z][a-z0-9-]*")
NAMED = re.compile(r"\b([a-z_]+)(?:=\S+)? \((--[a-z-]+)\)")
COMMAND = re.compile(r"`(?:nas-evidence|pip|ray|resume|ulimit) [^`]*`")
#: Arguments that only Python has, of other functions too, and a name of an example.
FOREIGN = {
    "column", "diagnose", "differentiable", "inplace", "orient", "rare", "requires_grad",
    "sampler", "shuffle", "sparse", "structure", "training",
}  # fmt: skip
#: Files whose sentences only the command line can cause, or that hold style sheets.
TYPED_FILES = ("__main__.py", "reporting/any_table.py", "api/figure.py")


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


def words(node: ast.expr) -> str:
    """Return a text in quotes with what is filled in as {expression}; of all else nothing."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(words, parts))
        case ast.FormattedValue(value=value):
            return "{" + re.sub(r"[{}]", "", ast.unparse(value)).replace('"', "'") + "}"
        case ast.BinOp(left=left, right=right):
            return words(left) + words(right)
    return ""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def messages() -> str:
    """All that errors are made with."""
    made = (
        [*call.args, *(one.value for one in call.keywords)]
        for _, tree in trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and re.search(r"(Error|Mistake)$", ast.unparse(call.func))
    )
    return COMMAND.sub("", "\n".join(words(one) for given in made for one in given))


def sentences() -> Iterator[tuple[str, str]]:
    """File and text of what the rooms that both doors share may say."""
    for place, tree in trees():
        if place.startswith("cli/") or place in TYPED_FILES:
            continue
        nodes = [*ast.walk(tree)]
        inside = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        inside |= {id(p) for node in nodes if isinstance(node, ast.JoinedStr) for p in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in inside:
                yield place, COMMAND.sub("", words(node))


@pytest.mark.slow
def test_a_flag_in_a_sentence_stands_behind_the_argument_of_python() -> None:
    arguments = {name for verb in CALLED for name in parameters(verb)}
    found = [(place, text) for place, text in sentences() if FLAG.search(text)]
    assert len(found) >= 20
    for place, text in found:
        if FLAG.fullmatch(text):  # a word of a command
            continue
        pairs = [(name, flag) for name, flag in NAMED.findall(text) if name in arguments]
        settings = [("settings", "--set")] * text.count(" (--set)")
        said = {(name, flag) for name, flag in [*pairs, *settings] if flag_of(name) == flag}
        assert {flag for _, flag in said} == {*FLAG.findall(text)}, (place, text)


def test_each_value_in_a_message_is_of_an_argument_of_both_doors() -> None:
    typed_ones = {python_name(word) for verb in CALLED for word in typed(verb)}
    both = {name for verb in CALLED for name in parameters(verb)} & typed_ones
    given = {*re.findall(r"(?<![\w.])([a-z_]+)=(?!=)", messages())}
    assert len(given & both) >= 6
    assert given - both == FOREIGN, given - both ^ FOREIGN


def test_each_flag_in_a_message_can_be_typed() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert {*FLAG.findall(messages())} <= {o for c in commands for p in c.params for o in p.opts}


def test_what_moved_is_no_verb_and_names_one() -> None:
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not verbs & set(MOVED)
    assert {successor.split()[0] for successor in MOVED.values()} <= verbs
