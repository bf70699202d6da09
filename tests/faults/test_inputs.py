"""Bad, damaged and hostile inputs: one clear sentence at once, no hang, nothing wrong accepted.

A small slice of what Hypothesis makes runs by default, or N inputs of each kind:

    NAS_EVIDENCE_HOSTILE=200 python -m pytest tests/faults/test_inputs.py
"""

import ast
import io
import json
import os
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from commands import TINY
from fakes import record_of
from faulty import call, study
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import refused

import nas_evidence
from nas_evidence.data import load
from nas_evidence.driver.plan import plan_trials
from nas_evidence.exporting.program import Exported, load_exported
from nas_evidence.models import build
from nas_evidence.plumbing.parsing import parsed_json, parsed_toml
from nas_evidence.plumbing.seals import DamagedError, is_sealed_json, read_sealed_json, seal_object
from nas_evidence.plumbing.sums import write_sums
from nas_evidence.plumbing.tensor_seals import read_tensors, sealed_tensors
from nas_evidence.reporting.any_table import rank_table
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec
from nas_evidence.spec.toml import StudyError, load_study
from nas_evidence.storage.faults import StoreError
from nas_evidence.storage.store import Store
from nas_evidence.storage.tables import read_tables, write_record
from nas_evidence.training.checkpoint import read_checkpoint, save_checkpoint
from nas_evidence.workers.reachable import check_reachable

HEAD = 'name = "x"\n[dataset]\nname = "digits"\n[family.linear]\n'
PACKAGE = Path(nas_evidence.__file__).parent


def mistakes(folder: Path, tail: str) -> str:
    path = folder / "s.toml"
    path.write_text(HEAD + tail)
    with pytest.raises(StudyError) as error:
        load_study(path)
    said = str(error.value)
    assert "ydantic" not in said
    assert "constrained" not in said
    return said


@pytest.mark.parametrize("value", ["inf", "1e30", "nan"])
@pytest.mark.parametrize("key", ["learning_rate", "settle", "likelihood_power"])
def test_no_number_is_infinite_or_absurd(tmp_path: Path, key: str, value: str) -> None:
    assert f"{key} in [plan] must be <= " in mistakes(tmp_path, f"[plan]\n{key} = {value}\n")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("[resources]\nslice_timeout_seconds = inf\n", "slice_timeout_seconds in [resources]"),
        ("[budget]\nwall_seconds = 1e30\n", "wall_seconds in [budget]"),
        ("[plan]\nepochs = 1000000000000000000000\n", "epochs in [plan]"),
        ("[retries]\ncrashes = 0\n", '`crashes` must be a number of attempts or "unlimited"'),
        (
            "[family.mlp]\nwidth = {low = 1e30, high = 4}\n",
            "low in [family.mlp.width] must be an int",
        ),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, tail: str, expected: str) -> None:
    assert expected in mistakes(tmp_path, tail)


@pytest.mark.parametrize("name", [r"a\u0000b", r"\u001b[31m", "x" * 5000, r"a\nb", "  "])
def test_a_name_is_short_and_printable(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(HEAD.replace('"x"', f'"{name}"'))
    with refused("study-name", 200) as error:
        load_study(path)
    assert len(str(error.value)) < 300 + len(str(path))


def test_the_only_estimator_is_the_objective(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(HEAD.replace("\n", '\nestimators = ["diag_ef"]\n', 1))
    assert load_study(path).objective == "diag_ef"


def test_a_table_grouped_by_a_column_of_many_values_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,score,truth\n" + "".join(f"{i},{i % 7},{i % 5}\n" for i in range(3000)))
    with refused("too-many-groups", 50, "id", 3000):
        rank_table(path, score="score", target="truth", group="id")


@pytest.fixture
def silent() -> str:
    """The address of a port that takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    with closing(server):
        yield f"127.0.0.1:{server.getsockname()[1]}"  # type: ignore[misc]


def test_an_address_of_nobody_is_told_before_ray_is_asked(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.workers.reachable.PATIENCE", 0.2)
    with pytest.raises(ValueError, match="nothing answers within"):
        check_reachable(silent)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ValueError, match="connection refused"):
        check_reachable(gone)
    with refused("address-form"):
        check_reachable("nowhere")


def test_a_port_of_another_service_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with refused("address-unreachable", "something else than a Ray cluster answers"):
            check_reachable(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["data://x/y", "data:text/plain,x", "nothing://x", "zip://x.zip"])
def test_a_store_that_cannot_be_written_is_refused_without_retries(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    if "://" in uri:
        for verb in (("status", uri), ("search", "digits", "--store", uri)):
            code, _, said = call(capsys, *verb)
            assert code in (1, 2)
            assert uri in said
            assert said.count("\n") == 1
    assert not slept


# --- a corpus of hostile inputs

hostile = settings(
    max_examples=int(os.environ.get("NAS_EVIDENCE_HOSTILE", "8")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TEXTS = st.text(max_size=30)
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**30, -1, 0, 1e30, float("inf"), float("nan")])
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=5,
)


def damaged(sound: bytes) -> st.SearchStrategy[bytes]:
    """Return flips, cuts, insertions and garbage of a sound content."""
    at = st.integers(0, max(0, len(sound) - 1))
    flips = st.lists(st.tuples(at, st.integers(0, 7)), min_size=1, max_size=3).map(
        lambda hits: _flipped(sound, hits)
    )
    cuts = at.map(lambda end: sound[:end])
    insertions = st.tuples(at, st.binary(min_size=1, max_size=20)).map(
        lambda given: sound[: given[0]] + given[1] + sound[given[0] :]
    )
    return st.one_of(flips, cuts, insertions, st.binary(max_size=200))


def _flipped(sound: bytes, hits: list[tuple[int, int]]) -> bytes:
    content = bytearray(sound)
    for place, bit in hits:
        content[place] ^= 1 << bit
    return bytes(content)


def as_toml(value: Any) -> str:
    """Return a value as TOML writes it after `key = `, or another where TOML has none such."""
    try:
        written = tomli_w.dumps({"v": value})
    except (TypeError, ValueError):
        return '"?"'
    return written.partition(" = ")[2].strip() if written.startswith("v = ") else '"?"'


LINES = TINY.format(data="d.npz").splitlines()
KEYS = [i for i, line in enumerate(LINES) if " = " in line]


def one_sentence(error: Exception) -> None:
    said = str(error)
    assert said
    assert not any(word in said for word in ("Traceback", "ydantic", "<class", "0x7f")), said


@pytest.mark.slow
@hostile
@given(place=st.sampled_from(KEYS), value=VALUES.map(as_toml))
def test_study_files_with_any_value_anywhere(tmp_path: Path, place: int, value: str) -> None:
    key = LINES[place].partition(" = ")[0]
    text = "\n".join([*LINES[:place], f"{key} = {value}", *LINES[place + 1 :]])
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
        with pytest.raises(StoreError) as error:
            remote.check()
        one_sentence(error.value)


# --- JSON and TOML that are nested deeper than Python allows, and what would run on reading

LISTS = "[" * 100_000 + "]" * 100_000
OBJECT = f'{{"trials": {LISTS}}}'


def test_deep_text_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_json(LISTS)
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_toml(f"a = {LISTS}")


def test_a_sealed_file_that_is_deep_or_no_json_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in (OBJECT, '{"trials": ]'):
        path.write_text(seal_object(text + "}" * (text[-1] == "]")))
        with pytest.raises(DamagedError):
            read_sealed_json(path.read_bytes(), path)
        assert not is_sealed_json(path)
    header = OBJECT.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_no_other_file_of_the_package_parses_json_or_toml() -> None:
    """A parser that is called elsewhere can end its caller with a RecursionError."""
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr)
        in {("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load")}
    ]
    # encode.py runs without the package, on a file of its own export.
    assert found == ["exporting/encode.py"] * 2 + ["plumbing/parsing.py"] * 2


def keywords(call: ast.Call) -> dict[str, object]:
    return {
        one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)
    }


@pytest.mark.slow
def test_nothing_that_is_stored_is_unpickled() -> None:
    safe = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
    seen, wrong = set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = [ast.unparse(one) for one in (node.func, *node.args[:1])]
            if (name := next((one for one in named if one in safe), None)) is not None:
                key, value = safe[name]
                seen.add(name)
                wrong += [] if keywords(node).get(key, "") is value else [f"{path}: {name}"]
            if named[0].startswith(("pickle.load", "cloudpickle.load", "joblib.load", "dill.")):
                wrong.append(f"{path}: {named[0]}")
    assert wrong == []
    assert seen == {*safe}


@pytest.mark.crossed
@pytest.mark.parametrize("place", ["report/comparison.json", "warm_start.json", "lock"])
@pytest.mark.parametrize("verb", ["verify", "report", "resume", "status"])
def test_a_study_with_a_deep_file_ends_in_a_sentence_or_goes_on(
    folder: Path, place: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / place).write_text(seal_object(OBJECT))
    more = ("--executor", "inline", "--trials", "6") if verb == "resume" else ()
    code, _, err = call(capsys, verb, folder, *more)
    assert "Recursion" not in err
    assert "unexpected" not in err
    if verb == "verify":
        assert code == 1
    if place == "report/comparison.json" and verb != "verify":
        assert code == 0


@pytest.mark.parametrize("name", ["meaning.json", "evidence.json", "architecture.toml"])
def test_an_export_with_a_deep_file_is_refused_by_name(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    export = folder / "export"
    (export / name).write_text(f"a = {LISTS}" if name.endswith("toml") else OBJECT)
    names = [path.name for path in export.iterdir() if path.name != "SHA256SUMS"]
    write_sums(export, sorted(names))
    data = tmp_path / "new.csv"
    data.write_text("x0,x1\n1,2\n")
    code, _, err = call(capsys, "predict", export, data)
    assert "unexpected" not in err
    assert code == 2
    if name == "meaning.json":
        assert "meaning.json is damaged" in err


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_data_that_are_deep_are_refused_by_name(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"t.{ending}"
    path.write_text(json.dumps({"a": 1}) + "\n" + LISTS if ending == "jsonl" else LISTS)
    code, _, err = call(capsys, "search", path, "--target", "y", "--out", tmp_path / "s")
    assert code == 2
    assert f"t.{ending} cannot be read as a table" in err
