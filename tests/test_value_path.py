"""One `width` from a study file to the report: one word, one value, all the way."""

import re
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from commands import write_study
from fakes import Silent
from safetensors.torch import load_file
from searched import build_report

from nas_evidence.data import load
from nas_evidence.driver.driver import Driver
from nas_evidence.proposing.optuna_export import Export
from nas_evidence.proposing.startup import startup_points
from nas_evidence.spec.domains import IntRange
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.log import read_log
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import read_table
from nas_evidence.workers.inline import InlineExecutor

WIDTH = 37  # found nowhere else in the study
STUDY = f"""\
name = "path"
n_trials = 2
objective = "diag_ef"
estimators = ["diag_ef"]
[dataset]
name = "npz"
path = "{{data}}"
[family.mlp]
width = {{{{low = {WIDTH}, high = {WIDTH + 1}, log = true}}}}
depth = 1
[plan]
epochs = 2
[plan.online]
every = 2
curvature = "diag_ef"
"""


class Reader(Silent):
    """Reads the proposal from the disk at the moment a trial starts."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.written: dict[int, ArchitectureSpec] = {}

    def launched(self, assignment: Assignment) -> None:
        self.written |= read_log(self.folder).state.proposals
        super().launched(assignment)


@pytest.mark.slow
def test_a_width_keeps_its_name_and_value_from_the_file_to_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    spec = open_study(folder, load_study(write_study(tmp_path, STUDY)))
    assert spec.family["mlp"]["width"] == IntRange(low=WIDTH, high=WIDTH + 1, log=True)
    trial_id = next(
        i for i, point in enumerate(startup_points(spec)) if point.values["width"] == WIDTH
    )

    reader = Reader(folder)
    executor = InlineExecutor(load(spec.dataset, seed=spec.seed), spec.resources)
    Driver(spec, folder, executor, reader).run()
    values = {"depth": 1, "width": WIDTH, "shape": "constant"}
    assert reader.written[trial_id].values == values
    record: TrialRecord = next(r for r in reader.ends if r.trial_id == trial_id)
    assert record.architecture.values == values

    with closing(Export(spec, folder)) as export:
        export.update()
    asked = optuna.load_study(study_name="path", storage=f"sqlite:///{folder}/study.db")
    trial = next(one for one in asked.trials if one.user_attrs["number"] == trial_id)
    assert trial.params["mlp.width"] == WIDTH
    assert trial.user_attrs["architecture"]["values"] == values

    weights = load_file(folder / "models" / f"{trial_id}.safetensors")
    n_inputs, n_classes = 6, 3
    assert weights["linear1.weight"].shape == (WIDTH, n_inputs)
    assert weights["head.weight"].shape == (n_classes, WIDTH)
    n_parameters = WIDTH * (n_inputs + 1) + n_classes * (WIDTH + 1)

    row = read_table(folder, "trials").set_index("trial_id").loc[trial_id]
    assert (row["arch_width"], row["arch_depth"]) == (WIDTH, 1)
    assert row["architecture_key"] == record.architecture.key
    assert row["n_parameters"] == n_parameters
    terms = read_table(folder, "terms")
    terms = terms[(terms["trial_id"] == trial_id) & (terms["term"] == "log_det_ratio")]
    assert sorted(terms["group"]) == sorted(weights)

    page = build_report(folder).html.read_text(encoding="utf-8")
    assert re.search(rf'<td[^>]* data-value="{WIDTH}">{WIDTH}</td>', page)
    assert re.search(rf'<td[^>]* data-value="{n_parameters}">', page)
