"""Samplers of one's own: as module:NAME with a recorded copy, or as objects of Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from messages import refused
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from proposal_spaces import score, study

import nas_evidence
from nas_evidence.api.request import check_own_sampler, sampler_of
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.order import MAX_REPETITIONS
from nas_evidence.proposing.proposer import Learner, ProposalResult, Proposer
from nas_evidence.proposing.startup import startup_points
from nas_evidence.spec.study import IN_PYTHON, ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import dump_study, parse_study
from nas_evidence.storage.outside_code import code_of
from nas_evidence.storage.tables import read_table

MODULE = '''
import optuna
from helper import AT

class Fixed(optuna.samplers.BaseSampler):
    """Proposes one place of each domain, a little further at each of its proposals."""

    def __init__(self, seed, step=0.01):
        self.random, self.step, self.n = optuna.samplers.RandomSampler(seed), step, 0

    def infer_relative_search_space(self, study, trial):
        self.n += 1
        return {}

    def sample_relative(self, study, trial, space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        if not hasattr(distribution, "low"):
            return self.random.sample_independent(study, trial, name, distribution)
        return min(AT + self.step * self.n, 1.0)

def made(seed):
    return Fixed(seed)

OBJECT = optuna.samplers.TPESampler(n_startup_trials=1)
NUMBER = 3
'''


class Broken(RandomSampler):
    """Fails, or proposes what is outside the space."""

    def __init__(self, value: float | None = None) -> None:
        super().__init__()
        self.value = value

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        if self.value is None:
            raise KeyError("no such key")
        if isinstance(distribution, optuna.distributions.FloatDistribution):
            return self.value
        return super().sample_independent(study, trial, name, distribution)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "helper.py").write_text("AT = 0.5\n")
    return tmp_path


def proposed(spec: StudySpec, n: int, known: list[ArchitectureSpec] | None = None) -> list[Any]:
    """n proposals and their draws, each told; the first are those of an earlier process."""
    proposer = Proposer(spec)
    for number, one in enumerate(known or []):
        proposer.adopt(one)
        proposer.tell(number, ProposalResult((score(one), *[0.1] * len(spec.minimise))))
    for number in range(len(known or []), n):
        one = proposer.ask()
        proposer.tell(number, ProposalResult((score(one), *[0.1] * len(spec.minimise))))
    return proposer.proposals()


@contextmanager
def in_python(sampler: Any, **keys: Any) -> Iterator[StudySpec]:
    (named,), code = sampler_of(sampler)
    name = str(named.value)
    with code.in_use():
        yield study(sampler={"name": name}, **keys)


@pytest.mark.parametrize("name", ["Fixed", "made", "OBJECT"])
def test_one_named_by_reference_proposes_after_the_first_points_and_the_same_after_a_restart(
    home: Path, name: str
) -> None:
    spec = study(sampler={"name": f"mine:{name}"})
    with code_of([], [home], sampler=f"mine:{name}").in_use() as code:
        first = len(startup_points(spec))
        whole = proposed(spec, first + 5)
        assert proposed(spec, first + 5, whole[: first + 2]) == whole
        drawn = whole[first]
    assert {*code.files} == {"mine.py", "helper.py"}
    if name != "OBJECT" and drawn.family == "mlp":
        assert drawn.values["width"] == 41  # a little above the middle of 4 to 256


def test_arguments_reach_it(home: Path) -> None:
    draws = []
    for step in (0.0, 0.2):
        spec = study(sampler={"name": "mine:Fixed", "arguments": {"step": step}})
        with code_of([], [home], sampler="mine:Fixed").in_use():
            draws.append(Learner(spec).draw(0))
    assert draws[0].family == draws[1].family
    assert draws[0].values != draws[1].values


@pytest.mark.parametrize("made", [TPESampler, lambda: GPSampler(n_startup_trials=2),
                                  lambda: TPESampler(multivariate=True, seed=3)])  # fmt: skip
def test_draws_of_an_object_follow_from_the_seed_of_the_study_alone(made: Any) -> None:
    """Also of one that was made without a seed; and a redraw is another one."""
    with in_python(made()) as spec:
        first = len(startup_points(spec))
        one = proposed(spec, first + 3)
    with in_python(made()) as spec:
        assert proposed(spec, first + 3, one[: first + 1]) == one
        draws = {Learner(spec).draw(seed).key for seed in range(8)}
    assert len(draws) > MAX_REPETITIONS


def test_random_numbers_of_numpy_and_python_in_it_are_seeded() -> None:
    class Own(RandomSampler):
        def __init__(self) -> None:
            super().__init__()
            self.generator = np.random.default_rng()
            self.inside = RandomSampler()

        def sample_independent(self, *given: Any) -> Any:
            found = self.inside.sample_independent(*given)
            return self.generator.random() if isinstance(found, float) else found

    draws = []
    for _ in range(2):
        with in_python(Own()) as spec:
            draws.append([Learner(spec).draw(seed) for seed in range(3)])
    assert draws[0] == draws[1]


def test_it_may_serve_several_objectives() -> None:
    with in_python(optuna.samplers.NSGAIISampler(), minimise=("n_parameters",)) as spec:
        assert len(proposed(spec, len(startup_points(spec)) + 2)) > 2


@pytest.mark.parametrize(
    ("sampler", "code", "words"),
    [
        (3, "own-sampler-of-another-type", ("int", "BaseSampler")),
        (Path, "own-sampler-of-another-type", ("PosixPath",)),
        (lambda seed: None, "own-sampler-of-another-type", ("NoneType",)),
        (BaseSampler, "own-sampler-not-made", ("abstract",)),
        (Broken(), "own-sampler-failed", ("no such key", "Broken")),
        (Broken(1.5), "own-sampler-outside-space", ("1.5",)),
        (Broken(float("nan")), "own-sampler-failed", ("nan",)),
    ],
)
def test_what_is_no_sampler_is_refused_before_anything_runs(
    sampler: Any, code: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    with refused(code, *words):
        nas_evidence.search(x, y, sampler=sampler, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()


class Says(BaseSampler):
    """Proposes what it was given for the width and for the shape."""

    def __init__(self, width: Any = 0.5, shape: Any = "rectangle") -> None:
        self.given = {"width": width, "mlp.shape": shape}

    def infer_relative_search_space(self, *given: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, *given: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        return self.given[name]


SHAPED = {"mlp": {"width": {"low": 4, "high": 256}, "shape": ["rectangle", "triangle"]}}


@pytest.mark.parametrize(
    "says",
    [{"width": 7}, {"width": -1}, {"width": np.float32(7)}, {"width": np.int64(2)},
     {"width": True}, {"width": "0.5"}, {"width": np.bool_(True)}, {"shape": "round"},
     {"shape": 0}, {"shape": None}, {"shape": b"rectangle"}],
    ids=repr,
)  # fmt: skip
def test_a_value_outside_the_space_is_refused_whatever_its_type(says: dict[str, Any]) -> None:
    with in_python(Says(**says), family=SHAPED) as spec, pytest.raises(UserError) as raised:
        Learner(spec).draw(0)
    assert raised.value.code in ("own-sampler-outside-space", "own-sampler-failed")
    assert repr(*says.values()) in str(raised.value)


@pytest.mark.parametrize(("width", "end"), [(-1e-12, 0.0), (1 + 1e-12, 1.0)])
def test_a_number_that_rounding_leaves_outside_is_the_end(width: float, end: float) -> None:
    drawn = []
    for one in (width, end):
        with in_python(Says(one), family=SHAPED) as spec:
            drawn.append(Learner(spec).draw(0))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("width", [1, np.float32(0.25), np.float64(0.25), np.int64(0)])
def test_a_number_of_another_type_within_the_space_becomes_a_plain_one(width: Any) -> None:
    with in_python(Says(width, np.str_("triangle")), family=SHAPED) as spec:
        drawn = Learner(spec).draw(0).values
    with in_python(Says(float(width), "triangle"), family=SHAPED) as spec:
        assert Learner(spec).draw(0).values == drawn
    assert {type(one) for one in drawn.values()} <= {int, str}


def test_a_sampler_by_reference_that_is_none_is_refused(home: Path) -> None:
    with refused("own-sampler-of-another-type", "mine:NUMBER", "int"):
        code = code_of([], [home], sampler="mine:NUMBER")
        check_own_sampler(study(sampler={"name": "mine:NUMBER"}), code)


def test_an_object_takes_no_arguments_and_its_name_is_kept() -> None:
    with pytest.raises(ValueError, match="`arguments` must be left out"):
        study(sampler={"name": "python:TPESampler", "arguments": {"n_startup_trials": 3}})
    spec = study(sampler={"name": "mine:Fixed", "arguments": {"step": 0.5}})
    assert parse_study(dump_study(spec), "study.toml") == spec


@pytest.mark.parametrize(
    "settings",
    [{"sampler.name": "grid"}, {"sampler": {"name": "grid"}}, ["sampler.name = grid"],
     "sampler.name=grid"],
)  # fmt: skip
@pytest.mark.parametrize("sampler", [TPESampler(), "tpe"])
def test_two_places_that_name_a_sampler_are_refused(
    sampler: Any, settings: Any, tmp_path: Path
) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    with refused("sampler-named-twice", "grid"):
        nas_evidence.search(x, y, sampler=sampler, settings=settings, out=tmp_path / "study")
    with refused("sampler-named-twice", "grid"):
        sampler_of(sampler, settings)
    sampler_of(sampler, {"sampler.arguments": {}, "plan.epochs": 3})


@pytest.mark.slow
def test_a_search_with_an_object_is_resumed_with_it_and_says_what_is_missing_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    given: dict[str, Any] = {
        "families": ["mlp"], "out": tmp_path / "study", "progress": False,
        "settings": {"plan.epochs": 1, "plan.settle": 0.0, "estimators": ["diag_ef"],
                     "objective": "diag_ef", "finalists": 0},
    }  # fmt: skip
    found = nas_evidence.search(x, x[:, 0], sampler=TPESampler(), n_trials=8, **given)
    assert found.spec.sampler.name == IN_PYTHON + "TPESampler"
    with refused("sampler-of-python-missing", "TPESampler", "sampler="):
        nas_evidence.resume(found.folder, n_trials=9)
    with pytest.raises(ValueError, match="sampler"):
        nas_evidence.resume(found.folder, n_trials=9, sampler=GPSampler())
    before = read_table(found.folder, "trials")["architecture_key"]
    again = nas_evidence.resume(found.folder, n_trials=9, sampler=TPESampler(), progress=True)
    assert len(again.ranking) == 9
    told = " ".join("".join(capsys.readouterr()).split())
    assert "keeps the name python:TPESampler alone" in told
    assert read_table(found.folder, "trials")["architecture_key"][:8].tolist() == before.tolist()
    assert nas_evidence.load(found.folder).best is not None


def test_code_of_a_process_holds_the_object_and_no_other_process_gets_it() -> None:
    (_,), code = sampler_of(TPESampler())
    assert isinstance(code, Code)
    assert code.__getstate__()["local"] == {}
