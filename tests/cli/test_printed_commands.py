"""Each command that a study prints can be typed: it is parsed, names what is there, and runs dry.

So can the calls in Python that stand where no command can do it. And each number that page and
terminal show is that of report.json.
"""

import html
import json
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import typer
from commands import forked_script, run, start
from page_numbers import not_in_json
from records import mlp
from searched import load, record

import nas_evidence
from nas_evidence.cli.main import app, with_ids
from nas_evidence.cli.verbs import VERBS
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.page import write_report
from nas_evidence.spec.record import Evaluation, EvidenceEstimate

pytestmark = pytest.mark.slow

COMMAND = re.compile(rf"nas-evidence (?:{'|'.join(VERBS)})\b[^`\n<)]*")
CALL = re.compile(r"nas_evidence\.(?:resume|search|load)\((?:[^()\n]|\([^()\n]*\))*\)")
#: What stands for a file or folder that is for the reader to name.
YOURS = re.compile(r"[A-Z][A-Z_]+(\.\w+)?")
QUICK = ("--set", "plan.epochs=2", "--set", "plan.settle=0")
NARROW = ("--set", "family.mlp.width.low=4", "--set", "family.mlp.width.high=5")
ONE = ("--set", 'estimators=["diag_ef"]', "--set", "objective=diag_ef",
       "--set", "plan.online.curvature=diag_ef")  # fmt: skip
INLINE = ("--executor", "inline")
OWN = """\
import pandas, nas_evidence
from torch import nn
from nas_evidence import Score
from nas_evidence.cli.validate import Check


class Fam:
    domains = {"width": {"low": 2, "high": 6}}

    def build(self, values, input_shape, n_outputs):
        return nn.Sequential(nn.Linear(input_shape[0], values["width"]), nn.ReLU(),
                             nn.Linear(values["width"], n_outputs))


NORM = Score("norm", "minus the length", lambda c: -sum(float(p.abs().sum()) for p in
             c.model.parameters()))
"""
SEARCH = """
import optuna
SAMPLER = optuna.samplers.RandomSampler(seed=0)
nas_evidence.search(
    pandas.read_csv("pets.csv"), target="pet", families=[Fam, "linear"], sampler=SAMPLER,
    n_trials=3, out="s", allow_code=True, settings={"plan.epochs": 2, "plan.settle": 0,
    "estimators": ["diag_ef", "__main__:NORM"], "objective": "diag_ef",
    "plan.online.curvature": "diag_ef"})
"""


def pets(home: Path) -> None:
    generator = np.random.default_rng(0)
    weight, town = generator.normal(10, 4, 60), generator.choice(["rome", "oslo"], 60)
    table = pd.DataFrame({"weight": weight, "town": town, "pet": np.where(weight > 10, "d", "c")})
    table.to_csv(home / "pets.csv", index=False)
    table.assign(pet=weight + generator.normal(size=60)).to_csv(home / "real.csv", index=False)


def said(home: Path, *words: object, code: int = 0) -> str:
    ended = run(*words, folder=home, code=code)
    return f"{ended.stdout}\n{ended.stderr}"


def of_classes(home: Path) -> str:
    wide = (*QUICK, *NARROW, "--test-fraction", "0.2", "--trials", "3", "--out", "s", *INLINE)
    told = said(home, "init", "pets.csv", "--target", "pet")
    return told + said(home, "search", "pets.csv", "--target", "pet", *wide)


def of_real_targets_without_test_rows(home: Path) -> str:
    few = (*QUICK, "--trials", "2", "--out", "s", *INLINE)
    return said(home, "search", "real.csv", "--target", "pet", *few)


def refitted(home: Path) -> str:
    few = (*QUICK, *ONE, "--trials", "2", "--out", "first", *INLINE)
    told = said(home, "search", "pets.csv", "--target", "pet", *few)
    return told + said(home, "refit", "first", "--top", "2", "--seeds", "1", "--out", "s", *INLINE)


def interrupted(home: Path) -> str:
    many = (*QUICK, *ONE, "--trials", "90", "--out", "s", *INLINE)
    process = start("search", "pets.csv", "--target", "pet", *many, folder=home)
    while not process.stdout.readline().startswith("[2/"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    return out + err + said(home, "search", "s", code=2)


def out_of_budget(home: Path) -> str:
    few = (*QUICK, *ONE, "--trials", "1", "--out", "s", *INLINE)
    told = said(home, "search", "pets.csv", "--target", "pet", *few)
    more = ("--trials", "9", "--set", "budget.wall_seconds=0.01", *INLINE)
    return told + said(home, "resume", "s", *more)


def with_code_of_a_module(home: Path) -> str:
    (home / "own.py").write_text(OWN)
    text = (
        'name = "own"\nn_trials = 2\n[dataset]\nname = "table"\npath = "pets.csv"\n'
        'target = "pet"\n[family.mine]\nmodule = "own:Fam"\nwidth = {low = 2, high = 3}\n'
    )
    (home / "own.toml").write_text(text)
    few = (*QUICK, *ONE, "--set", "finalists=0", "--allow-code", "--out", "s", *INLINE)
    told = said(home, "search", "own.toml", *few)
    return told + said(home, "resume", "s", "--trials", "4", "--time", "0.01s", "--allow-code",
                       *INLINE)  # fmt: skip


def with_objects(home: Path) -> str:
    ended, out, err = forked_script(OWN + SEARCH, home)
    assert ended == 0, err
    return out + err


KINDS = [of_classes, of_real_targets_without_test_rows, refitted, interrupted, out_of_budget,
         with_code_of_a_module, with_objects]  # fmt: skip


def outputs(home: Path, told: str) -> Iterator[str]:
    """Give all that a study in `s` says, by every door."""
    code = ("--allow-code",) * ("Fam" in (home / "s" / "study.toml").read_text())
    yield told
    yield said(home, "report", "s")
    for words in (("status", "s"), ("status", "s", "0"), ("list", "."), ("verify", "s")):
        yield said(home, *words)
    yield "".join(_texts(json.loads(run("status", "s", "--json", folder=home).stdout)))
    if "__main__" not in (home / "s" / "study.toml").read_text():
        yield said(home, "predict", "s", "pets.csv", "--to", "p.csv", *code)
        yield said(home, "export", "s", "--to", "e", *code)
        yield (home / "e" / "README.md").read_text()
    yield from pages(home / "s" / "report")


def pages(report: Path) -> Iterator[str]:
    yield (report / "report.md").read_text().replace("\\", "")
    yield "\n".join(_texts(json.loads((report / "report.json").read_text())))
    page = re.findall(r"<code>(.*?)</code>", (report / "index.html").read_text(), re.DOTALL)
    yield "\n".join(html.unescape(re.sub(r"<[^>]*>", "", one)) for one in page)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield f"{value}\n"


def check(command: str, home: Path) -> str:
    """Type a command; return its verb, "" where only the verb is named."""
    _, verb, *words = shlex.split(command.rstrip(" .,;:"))
    if not words:
        return ""
    group = typer.main.get_command(app)
    with click.Context(group, info_name="nas-evidence") as context:
        _, of_verb, rest = group.resolve_command(context, with_ids([verb, *words]))
        of_verb.make_context(verb, rest, parent=context)  # else a usage error
    place = next((word for word in words if not word.startswith("-")), "")
    assert YOURS.fullmatch(place) or (home / place).exists(), command
    if verb in ("search", "resume", "refit") and not YOURS.fullmatch(place):
        ended = run(verb, *words, "--dry-run", folder=home)
        assert "valid: nothing was written" in ended.stdout, command
    return verb


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_each_command_that_a_study_prints_can_be_typed_and_each_number_is_that_of_json(
    kind: Callable[[Path], str], tmp_path: Path
) -> None:
    pets(tmp_path)
    found, calls, told = dict[str, str](), set[str](), [*outputs(tmp_path, kind(tmp_path))]
    shown = nas_evidence.load(tmp_path / "s").summary()
    assert not_in_json(shown, tmp_path / "s" / "report", told[1]) == []
    for text in told:
        found |= {one.strip(): "" for one in COMMAND.findall(text)}
        calls |= {*CALL.findall(text)}
    found = {command: check(command, tmp_path) for command in found}
    if kind is with_objects:
        assert not {"search", "resume", "refit", "predict"} & {*found.values()}, found
        assert {one.partition("(")[0] for one in calls} == {
            "nas_evidence.load", "nas_evidence.resume",
        }  # fmt: skip
        sampler = "import optuna, typer\nSAMPLER = optuna.samplers.RandomSampler(seed=0)\n"
        for one in calls:
            check_only = one if "load" in one else f"{one[:-1]}, progress=Check())"
            script = f"{OWN}{sampler}try:\n    {check_only}\nexcept typer.Exit:\n    pass\n"
            ended, _, err = forked_script(script, tmp_path)
            assert ended == 0, (one, err)
    else:
        assert "search" in found.values() or kind is not of_classes, found
        assert {"report", "resume"} & {*found.values()} or kind is of_classes


def test_the_command_of_an_advised_score_is_taken_by_the_study_file(tmp_path: Path) -> None:
    """Where the estimate ranks, that has to go, too."""
    rng, names = np.random.default_rng(0), ("conditional_evidence", "elpd")
    records = []
    for i, loss in enumerate(rng.normal(size=20)):
        one = record(i, 1, test_nll_per_datum=loss)
        own = dict(zip(names, (loss, -loss / 3), strict=True))  # their mean is in reverse
        seen = [EvidenceEstimate(estimator=n, value=100 * v, per_datum=v) for n, v in own.items()]
        evaluations = tuple(Evaluation(epoch=20, estimate=e) for e in seen)
        update = {"architecture": mlp(width=4 + i), "evaluations": evaluations}
        records.append(one.model_copy(update=update))
    study = load(
        tmp_path / "s", records, n_trials=20, estimators=names, objective=names[0],
        rank_by="estimate",
    )  # fmt: skip
    report = report_on(study, place=Path("s"))
    [advice] = [one for one in report.headline.advice if "ranks these" in one]
    assert "Set rank_by=score and objective=elpd, search again" in advice
    write_report(report, tmp_path / "s" / "report")
    found = {one for text in pages(tmp_path / "s" / "report") for one in COMMAND.findall(text)}
    assert (
        "nas-evidence search s/study.toml --set rank_by=score --set objective=elpd --out s-2"
        in {one.strip() for one in found}
    )
    assert {check(one, tmp_path) for one in found} >= {"search"}
