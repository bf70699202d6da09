"""The public names have types that a checker of somebody else's program sees."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nas_evidence

CONSUMER = """\
import nas_evidence
study = nas_evidence.search("mine.csv", target="price", n_trials=2)
reveal_type(study)
reveal_type(study.best.objective)
reveal_type(nas_evidence.load("runs/mine").predict("new.csv"))
nas_evidence.search("mine.csv", target=3)
nas_evidence.search("mine.csv", traget="price")
classifier = nas_evidence.EvidenceClassifier(n_trials=3, time_limit=60).fit([[1]], [1], groups=[1])
reveal_type(classifier)
regressor = nas_evidence.EvidenceRegressor().fit([[1]], [1])
print(regressor.predict([[1]]).shape)
mean, std = regressor.predict([[1]], return_std=True)
nas_evidence.EvidenceClassifier(trials=3)
"""
#: Reading the types of torch and pandas takes mypy a minute.
OWN_TYPES_ALONE = """\
[mypy]
cache_dir = cache
[mypy-torch.*,pandas.*,numpy.*,scipy.*,sklearn.*,pyarrow.*,matplotlib.*,optuna.*,ray.*]
follow_imports = skip
"""


@pytest.mark.long
@pytest.mark.slow
def test_mypy_on_a_program_that_uses_the_package_sees_its_types(tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "mypy.ini").write_text(OWN_TYPES_ALONE)
    root = Path(nas_evidence.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "consumer.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(root)},
        capture_output=True, text=True, check=False, timeout=3600,
    ).stdout  # fmt: skip
    told = [line for line in found.splitlines() if "consumer.py:" in line]
    lines = {line.partition("consumer.py:")[2].partition(":")[0]: line for line in told[::-1]}
    assert 'Revealed type is "nas_evidence.api.results.Study"' in lines["3"], found
    assert 'Revealed type is "float | None"' in lines["4"], found
    assert 'Revealed type is "nas_evidence.exporting.predicted.Prediction"' in lines["5"], found
    assert 'Argument "target" to "search" has incompatible type "int"' in lines["6"], found
    assert 'Unexpected keyword argument "traget"' in lines["7"], found
    assert '"nas_evidence.api.estimators.EvidenceClassifier"' in lines["9"], found
    assert not {"8", "10", "11", "12"} & lines.keys(), found
    assert 'argument "trials" for "EvidenceClassifier"' in lines["13"], found


def test_type_checkers_are_told_every_public_name_and_where_it_is() -> None:
    assert (Path(nas_evidence.__file__).parent / "py.typed").is_file()
    tree = ast.parse(Path(nas_evidence.__file__).read_text())
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nas_evidence")
        for alias in node.names
        if alias.name != "__version__"
    }
    assert told == nas_evidence._EXPORTS
    assert set(nas_evidence.__all__) == {*told, "__version__"}
