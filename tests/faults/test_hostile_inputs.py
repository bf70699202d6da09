"""A corpus of hostile inputs: no traceback, no hang, nothing wrong accepted.

A small slice runs by default. NAS_EVIDENCE_HOSTILE=N runs N inputs of each kind:

    NAS_EVIDENCE_HOSTILE=200 python -m pytest tests/faults/test_hostile_inputs.py
"""

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from commands import TINY
from fakes import record_of
from faulty import study
from hostile import damaged, toml_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nas_evidence.data import load
from nas_evidence.driver.plan import plan_trials
from nas_evidence.exporting.program import Exported, load_exported
from nas_evidence.models import build
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.plumbing.tensor_seals import sealed_tensors
from nas_evidence.reporting.any_table import rank_table
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec
from nas_evidence.spec.toml import StudyError, load_study
from nas_evidence.storage.faults import StoreError
from nas_evidence.storage.store import Store
from nas_evidence.storage.tables import read_tables, write_record
from nas_evidence.training.checkpoint import read_checkpoint, save_checkpoint

N = int(os.environ.get("NAS_EVIDENCE_HOSTILE", "8"))
hostile = settings(
    max_examples=N,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LINES = TINY.format(data="d.npz").splitlines()
KEYS = [i for i, line in enumerate(LINES) if " = " in line]


def one_sentence(error: Exception) -> None:
    said = str(error)
    assert said
    assert not any(word in said for word in ("Traceback", "ydantic", "<class", "0x7f")), said


@pytest.mark.slow
@hostile
@given(place=st.sampled_from(KEYS), value=toml_values(lambda v: tomli_w.dumps({"v": v})))
def test_study_files_with_any_value_anywhere(tmp_path: Path, place: int, value: str) -> None:
    key = LINES[place].partition(" = ")[0]
    inline = value.partition(" = ")[2].strip() if value.startswith("v = ") else '"?"'
    text = "\n".join([*LINES[:place], f"{key} = {inline}", *LINES[place + 1 :]])
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    try:
        load_study(path)
    except StudyError as error:
        one_sentence(error)


@hostile
@given(content=damaged(TINY.format(data="d.npz").encode()))
def test_study_files_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    try:
        load_study(path)
    except StudyError as error:
        one_sentence(error)


def npz_bytes() -> bytes:
    file = io.BytesIO()
    x, y = np.ones((6, 3), np.float32), np.arange(6) % 2
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return file.getvalue()


@hostile
@given(content=damaged(npz_bytes()))
def test_npz_files_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    try:
        load(DatasetSpec(name="npz", path=str(path)), seed=0)
    except ValueError as error:
        one_sentence(error)


@hostile
@given(content=damaged(b"score,truth,id\n1,2,a\n2,3,b\n3,1,a\n5,4,b\n"))
def test_tables_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    try:
        rank_table(path, score="score", target="truth", group="id")
    except ValueError as error:
        one_sentence(error)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    spec = study(n_trials=1)
    point = ArchitectureSpec(family="mlp", values={"width": 9})
    write_record(folder, record_of(plan_trials([point], {}, spec)[0]), spec)
    return folder


@pytest.mark.slow
@hostile
@given(data=st.data())
def test_results_of_any_bytes_are_read_right_or_skipped(stored: Path, data: st.DataObject) -> None:
    path = stored / "evidence" / "000000-a1.parquet"
    sound = path.read_bytes()
    right = read_tables(stored)[0]["evidence"]
    try:
        path.write_bytes(data.draw(damaged(sound)))
        tables, unreadable = read_tables(stored)
        if not unreadable:
            pd.testing.assert_frame_equal(
                tables["evidence"][right.columns], right, check_exact=True
            )
    finally:
        path.write_bytes(sound)


@hostile
@given(data=st.data())
def test_checkpoints_of_any_bytes_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = save_checkpoint(tmp_path, 1, {"w": torch.ones(20), "epoch": 1})
    sound = path.read_bytes()
    content = data.draw(damaged(sound))
    path.write_bytes(content)
    if content != sound:
        with pytest.raises(DamagedError):
            read_checkpoint(path)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    spec = ArchitectureSpec(family="linear", values={})
    model = build(spec, (3,), 2, torch.Generator().manual_seed(0))
    whole = Exported(model, torch.zeros(3), torch.ones(3))
    n = sum(p.numel() for p in model.parameters())
    (folder / "architecture.toml").write_text(
        f'family = "linear"\ninput_shape = [3]\nn_classes = 2\nn_parameters = {n}\n[values]\n'
    )
    tensors = {name: tensor.contiguous() for name, tensor in whole.state_dict().items()}
    (folder / "model.safetensors").write_bytes(sealed_tensors(tensors, {}))
    write_sums(folder, ("architecture.toml", "model.safetensors"))
    return folder


@hostile
@given(name=st.sampled_from(["architecture.toml", "model.safetensors"]), data=st.data())
def test_exports_of_any_bytes_are_refused(export: Path, name: str, data: st.DataObject) -> None:
    sound = (export / name).read_bytes()
    content = data.draw(damaged(sound))
    try:
        (export / name).write_bytes(content)
        if content != sound:
            with pytest.raises(ValueError, match="is ") as error:
                load_exported(export)
            one_sentence(error.value)
    finally:
        (export / name).write_bytes(sound)


PROTOCOLS = ["data", "nothing", "zip", "file", "memory", "reference", "http", ""]


@hostile
@given(
    protocol=st.sampled_from(
        ["data", "nothing", "zip", "file", "memory", "reference", "http", ""]
    ),
    rest=st.text(alphabet="abc/:.@?#%[] \x00é", max_size=20),
)
def test_addresses_of_any_text_are_opened_or_refused(protocol: str, rest: str) -> None:
    try:
        remote = Store(f"{protocol}://{rest}")
    except ValueError as error:
        one_sentence(error)
        return
    if protocol in ("data", "zip", "reference"):  # cannot be written: known at once
        with pytest.raises(StoreError) as refused:
            remote.check()
        one_sentence(refused.value)
