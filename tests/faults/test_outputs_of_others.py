"""`--to` writes into an empty folder or its own; what others put there is refused and stays."""

import shutil
from pathlib import Path

import pytest
from faulty import Cli
from messages import refused

import nas_evidence
from nas_evidence.api.trackers import tracker_of
from nas_evidence.exporting.soundness import written_by_export, written_whole
from nas_evidence.plumbing.sums import write_sums

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    table = folder / "t.csv"
    table.write_text("a,b,y\n" + "".join(f"{k % 7},{k % 3},{k % 2}\n" for k in range(60)))
    nas_evidence.search(
        table, target="y", n_trials=1, out=folder / "s", executor="inline",
        settings={"plan.epochs": 2, "finalists": 0, "objective": "diag_ef",
                  "estimators": ["diag_ef"]},
    )  # fmt: skip
    return folder


@pytest.fixture
def study(made: Path) -> nas_evidence.Study:
    return nas_evidence.load(made / "s")


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


OF_AN_EXPORT = (
    "code/main.py", "members/me/notes.txt", "model.safetensors", "README.md", "evidence.json",
    "architecture.toml", "meaning.json", "posterior.safetensors", "model.pt2", "model.onnx",
    "SHA256SUMS", "ensemble.json", "thesis.tex",
)  # fmt: skip
OF_A_REPORT = (
    "index.html", "report.md", "report.json", "correlations.csv", "ranking.csv", "terms.csv",
    "SHA256SUMS", "style.css",
)  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("name", OF_AN_EXPORT)
@pytest.mark.parametrize("with_sums", [False, True])
def test_an_export_never_replaces_what_is_none(
    study: nas_evidence.Study, tmp_path: Path, name: str, with_sums: bool
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    if with_sums and name != "SHA256SUMS":  # as `sha256sum * > SHA256SUMS` writes them
        write_sums(tmp_path, [name])
    before = content(tmp_path)
    code = "output-held-for-good" if "/" in name else "output-held"
    with refused(code, tmp_path):
        study.export(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", OF_A_REPORT)
def test_a_report_never_replaces_what_is_none(
    study: nas_evidence.Study, tmp_path: Path, name: str, cli: Cli
) -> None:
    (tmp_path / name).write_text("mine")
    with refused("output-held", "`force`"):
        study.report(tmp_path)
    said = cli("report", study.folder, "--to", tmp_path, code=2)[1]
    assert "`force`" in said
    assert content(tmp_path) == {name: b"mine"}


def test_force_replaces_files_of_the_same_names_alone(
    study: nas_evidence.Study, tmp_path: Path, cli: Cli
) -> None:
    to = tmp_path / "to"
    for name in ("README.md", "model.pt2", "index.html", "mine/thesis.tex"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text("mine")
    cli("export", study.folder, "--to", to, "--force")
    assert written_by_export(to) >= {"README.md", "evidence.json", "SHA256SUMS"}
    assert not (to / "model.pt2").exists(), "the export would not be sound with it"
    study.report(to, force=True)
    assert (to / "index.html").read_text() != "mine"
    assert (to / "mine" / "thesis.tex").read_text() == "mine"


def test_code_of_others_is_not_mixed_with_an_export_even_by_force(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("mine")
    with refused("output-held-for-good", "code/main.py"):
        study.export(tmp_path, force=True)


def test_force_follows_no_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "mine")
    with (
        refused("output-through-link", "sub"),
        written_whole(tmp_path / "to", force=True) as made,
    ):
        (made / "sub").mkdir()
        (made / "sub" / "file").write_text("new")
    assert content(tmp_path / "mine") == {}


def test_what_the_verb_wrote_is_replaced_until_somebody_changes_it(
    study: nas_evidence.Study, tmp_path: Path
) -> None:
    for _ in range(2):
        study.export(tmp_path / "e")
        study.report(tmp_path / "r")
        study.report(study.folder / "report")  # its own, beside the comparison
    (tmp_path / "e" / "README.md").write_text("my own card")
    (tmp_path / "r" / "report.md").write_text("my own words")
    with refused("output-held", "README.md"):
        study.export(tmp_path / "e")
    with refused("output-held", "report.md"):
        study.report(tmp_path / "r")
    with refused("output-held", "r holds"):
        study.export(tmp_path / "r")


def test_files_that_came_while_an_export_was_made_are_seen(tmp_path: Path) -> None:
    with refused("output-held", "late.txt"), written_whole(tmp_path / "to") as made:
        (made / "README.md").write_text("new")
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "late.txt").write_text("mine")
    assert content(tmp_path) == {"to/late.txt": b"mine"}


def test_files_in_the_export_of_a_study_are_kept_in_damaged(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "s", tmp_path / "s"))
    study = nas_evidence.load(folder)
    study.export()
    (folder / "export" / "notes.txt").write_text("mine")
    study.export()
    assert (folder / "damaged" / "export" / "notes.txt").read_text() == "mine"
    assert not (folder / "export" / "notes.txt").exists()


def test_the_statistics_of_a_table_replace_nothing_else(tmp_path: Path, cli: Cli) -> None:
    rows = "".join(f"{k},{k * k}\n" for k in range(20))
    (tmp_path / "t.csv").write_text("s,t\n" + rows)
    asked = ("report", "--table", tmp_path / "t.csv", "--score", "s", "--target", "t", "--to")
    cli(*asked, tmp_path / "new")
    cli(*asked, tmp_path / "new")
    (tmp_path / "new" / "correlations.csv").write_text("mine")
    assert "`force`" in cli(*asked, tmp_path / "new", code=2)[1]
    cli(*asked, tmp_path / "new", "--force")
    assert (tmp_path / "new" / "correlations.csv").read_text() != "mine"


def test_predictions_never_replace_a_file_of_a_study_or_an_export(
    made: Path, study: nas_evidence.Study, cli: Cli, tmp_path: Path
) -> None:
    study.export(tmp_path / "e")
    (tmp_path / "e" / "own.csv").write_text("mine")
    [table] = (made / "s" / "trials").glob("*.parquet")
    before = table.read_bytes()
    said = cli("predict", made / "s", made / "t.csv", "--to", table, "--force", code=2)[1]
    assert f"would replace a file of {made / 's'}" in said
    assert table.read_bytes() == before


def test_a_tracker_removes_no_files_of_others(study: nas_evidence.Study, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    home = tmp_path / "board" / "trial-000000"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (tmp_path / "mine.prom").write_text("my_own_metric 1\n")
    board = tracker_of(f"tensorboard:{tmp_path / 'board'}", study.spec, study.folder)
    with refused("track-folder-held", "notes.txt"):
        board.log(0, {}, {1: {"loss": 1.0}})
    with refused("track-file-held", "mine.prom"):
        tracker_of(f"prometheus:{tmp_path / 'mine.prom'}", study.spec, study.folder)
    assert (home / "notes.txt").read_text() == "mine"
