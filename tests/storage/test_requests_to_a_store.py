"""How much a study asks of its store: each request takes a while, and costs money."""

import errno
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from contextvars import Context
from functools import partial
from pathlib import Path
from stat import S_IMODE

import fakes
import pytest
from counted_store import CountedStore
from fakes import facts_in, finished, last_log, record_of
from faulty import flipped
from records import asked, mlp
from toy_worker import run_at

import nas_evidence.driver.mirror as mirror_module
from nas_evidence.api.control import opened, status_in
from nas_evidence.driver.cancel import cancel
from nas_evidence.driver.mirror import Mirror
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.events import Asked, Ended, Launched
from nas_evidence.storage.faults import StoreError, StudyStoppedError
from nas_evidence.storage.log import Log, log_files, mend_log, piece, read_log
from nas_evidence.storage.requests import is_open, request_name
from nas_evidence.storage.store import UPLOADED_AT_ONCE, Store
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import write_record
from nas_evidence.storage.trial_row import TrialRow

study = partial(fakes.study, sampler={}, plan={"epochs": 20, "online": {"every": 1}})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_LOOK_EVERY", 1e6)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def uri() -> Iterator[str]:
    yield f"counted://{uuid.uuid4().hex}/s"
    CountedStore.objects.clear()
    CountedStore.reset()


def search(uri: str, spec: StudySpec) -> Path:
    """Run a study at a store in this process; return its folder here."""
    copy = Mirror(uri)
    KEPT.append(copy)
    run_at(copy, spec)
    return copy.folder


KEPT: list[Mirror] = []  # their folders live as long as they do


def names(kind: str, uri: str) -> list[str]:
    """Return the files of all requests of a kind, in order."""
    root = uri.removeprefix("counted://")
    return [key.removeprefix(f"{root}/") for what, key in CountedStore.log if what == kind]


def filled(uri: str, n_trials: int) -> StudySpec:
    """Store a study with so many finished trials; return it."""
    copy = Mirror(uri)
    with copy.held():
        spec = open_study(copy.folder, study(n_trials=n_trials + 10))
        with closing(Log(copy.folder)) as log:
            for trial_id in range(n_trials):
                trial = asked(mlp(width=trial_id + 1), dataset=spec.dataset, plan=spec.plan)
                log.write(Asked(number=trial_id, architecture=trial.architecture))
                record = record_of(trial.model_copy(update={"trial_id": trial_id}))
                files = write_record(copy.folder, record, spec)
                log.write(Ended(row=TrialRow.of(record), files=files))
                (copy.folder / "models" / f"{trial_id:06d}.safetensors").write_bytes(b"weights")
    CountedStore.reset()
    return spec


def test_a_slice_writes_no_log_unless_a_rung_was_scored(uri: str) -> None:
    """Each slice is one PUT of a checkpoint and one removal of the last one."""
    search(uri, study(n_trials=2))
    log = [name for name in names("put", uri) if name.startswith("logs/events/")]
    assert len(log) <= 3 * 2 + 2  # of 40 slices: at launches, ends and the end
    checkpoints = [name for name in names("put", uri) if name.endswith(".pt")]
    assert len(checkpoints) == 2 * 20


def test_a_score_at_a_rung_is_stored_before_its_trial_trains_on(uri: str) -> None:
    rungs = {"rule": "halving", "first_epoch": 4, "reduction": 2, "startup_trials": 1}
    folder = search(uri, study(n_trials=6, pruning=rungs))
    scored = [(e.trial_id, e.epoch) for e in facts_in(folder, "rung")]
    assert scored
    stored, checked = "", 0
    root = uri.removeprefix("counted://")
    assert CountedStore.objects[f"{root}/logs/events/000000.jsonl"]
    for what, name in STORED:
        if name.startswith("logs/events/"):
            stored += what.decode()
        elif name.endswith(".pt"):
            home, epoch = name.split("/")[1], int(name[-9:-3])
            for trial, rung in scored:
                if trial == int(home) and rung < epoch:
                    assert f'"event":"rung","trial_id":{trial},"epoch":{rung}' in stored
                    checked += 1
    assert checked


STORED: list[tuple[bytes, str]] = []


@pytest.fixture(autouse=True)
def _keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each content in the order in which it was stored."""
    STORED.clear()
    plain = CountedStore._pipe_file

    async def pipe(self: CountedStore, path: str, value: bytes, **how: str) -> None:
        await plain(self, path, value, **how)
        STORED.append((bytes(value), path.partition("/s/")[2]))

    monkeypatch.setattr(CountedStore, "_pipe_file", pipe)


def test_a_trial_asks_its_store_for_little(uri: str) -> None:
    """Requests beside those of its checkpoints: two dozen, however many slices it has."""
    n_trials = 10
    search(uri, study(n_trials=n_trials))
    checkpoints = sum(name.endswith(".pt") for name in names("put", uri))
    assert checkpoints == n_trials * 20
    rest = sum(CountedStore.requests.values()) - 2 * checkpoints
    assert rest <= 24 * n_trials, CountedStore.requests


@pytest.mark.slow
def test_who_asks_for_the_status_fetches_no_terms_curves_models_or_logs(uri: str) -> None:
    filled(uri, 20)
    store = Store(uri)
    for name in ("data/train.parquet", "logs/driver.log", "report/index.html", "code/x.py"):
        store.put(name, b"large")
    CountedStore.reset()
    assert status_in(opened(uri, looking="status"))["n_finished"] == 20
    fetched = Counter(name.split("/")[0] for name in names("get", uri))
    small = {"study.toml", "submitted.json", "lock"}
    assert fetched.keys() <= {*small, "trials", "evidence", "logs"}
    assert "logs/driver.log" not in names("get", uri)


@pytest.mark.slow
@pytest.mark.parametrize("looking", ["status", "results", "logs", None])
def test_a_second_look_fetches_only_what_is_new(
    uri: str, looking: mirror_module.Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = filled(uri, 40)
    copy = opened(uri, looking=looking)
    CountedStore.reset()
    copy.pull()
    if looking:
        assert set(names("get", uri)) == {"lock", "logs/events/000001.jsonl"}
        assert set(names("list", uri)) <= {"checkpoints"}
    else:
        assert set(CountedStore.requests) == {"list"}
    other = Mirror(uri)
    with other.held():
        trial = asked(mlp(width=500), dataset=spec.dataset, plan=spec.plan)
        record = record_of(trial.model_copy(update={"trial_id": 40}))
        files = write_record(other.folder, record, spec)
        with closing(Log(other.folder)) as log:
            log.write(Ended(row=TrialRow.of(record), files=files))
    CountedStore.reset()
    copy.pull()
    new = set(names("get", uri))
    log = {name for name in new if name.startswith("logs/events/")}
    assert log == {f"logs/events/00000{n}.jsonl" for n in ((1, 2) if looking else (1,))}
    assert looking is None or not {"", "logs", "models"} & {*names("list", uri)}
    small = ("logs/", "lock", "study.toml", "submitted.json", "warm_start.json", "how_read.json",
             "refit_of.json")  # fmt: skip
    new = {name for name in new if not name.startswith(small)}
    seen = {"logs": (), "status": ("trials", "evidence")}
    tables = seen.get(str(looking), ("trials", "evidence", "terms", "curves"))
    assert new == {f"{table}/000040-a1.parquet" for table in tables}
    assert facts_in(copy.folder) == facts_in(other.folder)
    if looking != "logs":
        assert finished(copy.folder).keys() == set(range(41))


def test_what_was_changed_here_is_fetched_again(uri: str) -> None:
    filled(uri, 3)
    copy = opened(uri)
    (copy.folder / "trials" / "000001-a1.parquet").write_bytes(b"torn")
    last_log(copy.folder).write_bytes(b"torn")
    (copy.folder / "trials" / "000009-a1.parquet").write_bytes(b"of nobody")
    copy.pull()
    assert finished(copy.folder).keys() == {0, 1, 2}
    assert not (copy.folder / "trials" / "000009-a1.parquet").exists()
    assert len(facts_in(copy.folder, "end")) == 3


def test_a_log_that_was_mended_is_stored_and_fetched_anew(uri: str) -> None:
    filled(uri, 3)
    writer, reader = Mirror(uri), Mirror(uri)
    reader.looking = "logs"
    reader.pull()
    for _ in range(2):
        with writer.held():
            flipped(log_files(writer.folder)[0], at=300)
            past = mend_log(writer.folder, read_log(writer.folder))
            assert past.problems == []
            with closing(Log(writer.folder, past)) as log:
                log.write(Launched(trial_id=5, attempt=1))
        reader.pull()  # what it had already fetched is void
        state = read_log(writer.folder).state
        assert read_log(reader.folder).state == read_log(pulled(uri)).state == state
        assert read_log(pulled(uri)).problems == []
        assert len(Store(uri).list("logs/events")) == 1


def pulled(uri: str) -> Path:
    KEPT.append(Mirror(uri))
    KEPT[-1].pull()
    return KEPT[-1].folder


@pytest.mark.slow
def test_cancelling_fetches_who_holds_the_study_and_nothing_of_its_results(uri: str) -> None:
    filled(uri, 20)
    driver = Mirror(uri)
    with driver.held():

        def ended(seconds: float) -> None:
            driver.look_for_requests()
            assert is_open(driver.folder), "the driver has heard of it"
            asked_for.extend(names("get", uri))
            Store(uri).put("lock", b"")

        asked_for: list[str] = []
        CountedStore.reset()
        # In another context than the driver, as another process is.
        said = Context().run(cancel, Mirror(uri), sleep=ended)
        assert "20 of 30 trials are stored" in said
        assert set(asked_for) == {"lock", "study.toml"}
        assert names("put", uri)[:1] == [request_name()]
        (driver.folder / request_name()).unlink()


def test_objects_of_the_log_are_fetched_at_a_time(uri: str) -> None:
    copy = Mirror(uri)
    with copy.held(), closing(Log(copy.folder)) as log:
        for attempt in range(100):
            log.write(Launched(trial_id=0, attempt=attempt))
            copy.push_log()
    CountedStore.reset()
    copy = Mirror(uri)
    copy.looking = "logs"
    copy.pull()
    fetched = [name for name in names("get", uri) if name.startswith("logs/events/")]
    assert len(fetched) == 100
    assert CountedStore.most_at_a_time > 30
    assert len(facts_in(copy.folder, "launch")) == 100


def test_a_driver_that_is_taken_over_amid_many_files_begins_no_further_one(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Mirror(uri)
    plain, written = CountedStore._pipe_file, list[str]()

    async def pipe(self: CountedStore, path: str, value: bytes, **how: str) -> None:
        await plain(self, path, value, **how)
        if "/models/" in path:
            written.append(path)
            if len(written) == 5:
                home = path.partition("/models/")[0]
                CountedStore.objects[f"{home}/{piece(0)}"] = b"of another", -1
                monkeypatch.setattr(mirror_module, "FENCE_EVERY", 0.0)

    monkeypatch.setattr(CountedStore, "_pipe_file", pipe)

    def push() -> None:
        with copy.held():
            (copy.folder / "models").mkdir()
            for number in range(200):
                (copy.folder / "models" / f"{number:06d}.safetensors").write_bytes(b"weights")
            copy.push()

    with pytest.raises(StudyStoppedError):
        push()
    assert 5 <= len(written) < 5 + UPLOADED_AT_ONCE


# --- who may read a study folder may read its copy at `file://`, and nobody else


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(folder: Path, *names: str) -> list[str]:
    return [oct(S_IMODE((folder / name).stat().st_mode)) for name in names]


def private_data(folder: Path) -> Path:
    (folder / "data").mkdir(0o700, parents=True)
    path = folder / "data" / "train.parquet"
    path.touch(0o600)
    path.write_bytes(b"private")
    return path


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "open to all"])
def test_copies_of_data_at_a_file_uri_are_for_no_other_user(
    tmp_path: Path, is_there: bool
) -> None:
    there = tmp_path / "st"
    if is_there:
        there.mkdir(0o755)
    keeper = Mirror(f"file://{there}", tmp_path / "here" / "st")
    with keeper.held():
        private_data(keeper.folder)
        (keeper.folder / "trials").mkdir()
        (keeper.folder / "trials" / "x").touch()
    assert rights(tmp_path, "st") == ["0o755" if is_there else "0o700"]
    assert rights(there, "data", "data/train.parquet") == ["0o700", "0o600"]
    assert rights(there, "trials", "trials/x") == ["0o755", "0o644"]
    again = Mirror(f"file://{there}", tmp_path / "again" / "st")
    again.pull()
    assert rights(again.folder, "data/train.parquet") == ["0o600"]
    assert (again.folder / "data/train.parquet").read_bytes() == b"private"


def test_a_copy_that_was_open_to_all_is_closed_with_its_next_content(tmp_path: Path) -> None:
    path, there = private_data(tmp_path / "here"), tmp_path / "st" / "data"
    there.mkdir(parents=True)
    (there / "train.parquet").write_bytes(b"old")
    assert rights(there, "train.parquet") == ["0o644"]
    Store(f"file://{tmp_path}/st").upload({"data/train.parquet": path})
    assert rights(there, "train.parquet") == ["0o600"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(old: Path, new: Path) -> None:
        raise OSError(number, "not here", str(old), None, str(new))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match=f"{tmp_path}.* is on a file system without hard links"):
        Store(f"file://{tmp_path}/st").put("logs/events/000000.jsonl", b"1", if_absent=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
