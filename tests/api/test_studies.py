"""A search in Python: two lines from data to predictions with uncertainty."""

import functools
import inspect
import os
import pickle
import pydoc
import re
import shutil
import textwrap
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from commands import QUICK
from fakes import record_of
from messages import refused
from PIL import Image
from records import asked, mlp, plain_study

import nas_evidence
from nas_evidence.api.progress import NotebookProgress, ScriptProgress
from nas_evidence.api.request import as_overrides, of_memory
from nas_evidence.reporting import by_matplotlib
from nas_evidence.reporting.words import chance
from nas_evidence.spec.record import TrialStatus
from nas_evidence.workers.apart import LostForkError


def table(n: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    weight = generator.normal(10, 4, n)
    frame = pd.DataFrame({"weight": weight, "town": generator.choice(["rome", "oslo"], n)})
    frame.loc[3, "weight"] = np.nan
    return frame.assign(pet=np.where(weight > 10, "dog", "cat"), price=weight**2)


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.Study:
    out = tmp_path_factory.mktemp("study") / "pets"
    return nas_evidence.search(
        table(), target="pet", drop=["price"], n_trials=2, settings=QUICK, out=out
    )


def search(data: Any, y: Any, folder: Path, **more: Any) -> nas_evidence.Study:
    return nas_evidence.search(data, y, n_trials=1, settings=QUICK, out=folder / "s", **more)


@pytest.mark.slow
def test_a_study_ranks_and_predicts_with_class_names(classified: nas_evidence.Study) -> None:
    ranking = classified.ranking
    assert ranking["rank"].tolist() == [1, 2]
    assert classified.best.trial_id == ranking["trial_id"][0]
    found = classified.predict(table(7).drop(columns=["pet", "price"]))
    assert found.classes == ("cat", "dog")
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    assert set(found.labels) <= {"cat", "dog"}
    assert list(found.to_frame()) == ["prediction", "p(cat)", "p(dog)"]
    assert found.measures(table(7)["pet"]).keys() >= {"accuracy", "log_loss"}
    with refused("unknown-true-label", "'cow'"):
        found.measures(["cow"] * 7)


@pytest.mark.slow
def test_methods_agree_without_uncertainty_and_the_posterior_makes_less_sure(
    classified: nas_evidence.Study,
) -> None:
    methods = ("map", "probit", "mc")
    found = {m: classified.predict(table(), method=m).probabilities for m in methods}
    assert (found["probit"].argmax(1) == found["map"].argmax(1)).all()
    assert (found["probit"].max(1) <= found["map"].max(1) + 1e-12).all()
    assert np.abs(found["probit"] - found["mc"]).max() < 0.1
    unasked = classified.predict(table()).probabilities
    np.testing.assert_array_equal(unasked, found["map"])
    predictor = classified.predictor()
    same = {name: torch.zeros_like(t) for name, t in predictor.posterior.tensors.items()}
    sure = nas_evidence.Predictor(
        predictor.exported,
        type(predictor.posterior)(predictor.posterior.structure, predictor.posterior.names, same),
        predictor.meaning,
    )
    for method in ("probit", "mc"):
        np.testing.assert_allclose(
            sure.predict(table(), method=method).probabilities, found["map"], atol=1e-9
        )


def test_importance_and_its_figure_are_of_the_columns_of_the_table(
    classified: nas_evidence.Study,
) -> None:
    found = classified.importance("accuracy")
    drawn = classified.plot("importance", metric="accuracy").svg
    named = [f"{row.column}: {row.mean:.2f}" for row in found.itertuples()]
    assert re.findall(r'<rect class="box"[^>]*><title>(\w+: -?[\d.]{4})', drawn) == named
    assert "fall in accuracy" in drawn


def test_a_notebook_shows_a_study_as_a_table_with_nothing_unescaped(
    classified: nas_evidence.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = classified._repr_html_()
    assert "2 of 2 trials" in shown
    assert all(f"<td>{trial}</td>" in shown for trial in (0, 1))
    hostile = classified.ranking.assign(family="<script>")
    monkeypatch.setattr(nas_evidence.Study, "ranking", hostile)
    assert "<script>" not in classified._repr_html_()


@pytest.mark.slow
def test_the_summary_shown_is_one_screen_and_the_report_a_link(
    classified: nas_evidence.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = classified.summary()
    lines = repr(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("Report of ")
    assert lines[0].endswith("pets): 2 of 2 trials, ranked by diag_ef")
    assert lines[1].split()[:2] == ["Answer", "Take"]
    shown = found._repr_html_()
    assert escape(found.headline.answer) in shown
    monkeypatch.chdir(classified.folder.parent)
    page = classified.report()
    link = '<a href="pets/report/index.html" target="_blank">'
    assert page._repr_html_().startswith(link)
    assert page == Path(str(page)) == classified.folder / "report" / "index.html"
    assert pickle.loads(pickle.dumps(page)).is_file()
    assert page.parent._repr_html_() is None
    monkeypatch.chdir(classified.folder)
    monkeypatch.chdir("/")
    assert classified.report()._repr_html_().startswith('<a href="')


def test_help_on_search_has_each_option_about_the_data_in_plain_types() -> None:
    text = pydoc.render_doc(nas_evidence.search, renderer=pydoc.plaintext)
    assert "test_fraction: float | None = None" in text
    assert "        test_fraction: rows to split off" in text
    assert not {"Annotated", "Meant"} & set(re.findall(r"\w+", text))


@pytest.mark.slow
def test_the_example_of_search_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = inspect.getdoc(nas_evidence.search).partition("Example:")[2]
    short = functools.partial(nas_evidence.search, n_trials=1, settings=QUICK)
    monkeypatch.setattr(nas_evidence, "search", short, raising=False)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"nas_evidence": nas_evidence}
    exec(textwrap.dedent(example), found)
    assert found["study"].leaderboard()["rank"].tolist() == [1]


@pytest.mark.slow
def test_what_a_search_in_python_prints_and_refuses_names_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered = table().assign(id=range(60))
    search(numbered, None, tmp_path, target="pet", drop=["price"], progress=True)
    said = capsys.readouterr().out
    assert "column 'id' is left out: it looks like a row number; numeric=id to keep" in said
    with pytest.raises(ValueError, match=r"other data \(a DataFrame of 60 rows\).* as `out`"):
        search(table(), None, tmp_path, target="pet", drop=["price"])


@pytest.mark.slow
def test_a_study_is_loaded_and_resumed(classified: nas_evidence.Study) -> None:
    assert nas_evidence.load(classified.folder).ranking.equals(classified.ranking)
    more = nas_evidence.resume(classified.folder, n_trials=3)
    assert len(more.trials) == 3
    assert "3 of 3 trials" in repr(more)
    assert more.report().is_file()


@pytest.mark.slow
def test_a_study_of_a_relative_folder_is_found_after_the_working_folder_has_changed(
    classified: nas_evidence.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(classified.folder, tmp_path / "runs" / "pets")
    monkeypatch.chdir(tmp_path)
    study = nas_evidence.load("runs/pets")
    assert repr(study).startswith("Study('runs/pets'")
    stored = pickle.dumps(study)
    monkeypatch.chdir("/")
    for one in (study, pickle.loads(stored)):
        assert one.folder == tmp_path / "runs" / "pets"
        assert len(one.predict(table()).labels) == 60
    assert study.leaderboard().equals(classified.leaderboard())
    assert study.report().is_file()
    assert study.export().is_dir()


@pytest.mark.slow
def test_real_targets_have_intervals_in_their_unit(tmp_path: Path) -> None:
    frame = table().drop(columns="pet")
    study = search(frame, None, tmp_path, target="price", test_fraction=0.2)
    tested = study.leaderboard()[["test_nll_per_datum", "test_rmse"]]
    assert tested.loc[0].tolist() == study.trials.loc[0, list(tested)].tolist()
    found = study.predict(frame, level=0.8)
    assert found.std_model is not None
    assert (found.low >= 0).all()  # no price is negative
    assert (((found.low < found.mean) | (found.low == 0)) & (found.mean <= found.high)).all()
    noise = np.array(study.predictor().meaning["noise_std"]) * frame["price"].std()
    assert found.std.mean() == pytest.approx(np.hypot(found.std_model, noise).mean(), rel=0.2)
    assert abs(found.mean.mean() - frame["price"].mean()) < 2 * frame["price"].std()
    assert found.measures(frame["price"])["level"] == 0.8
    with refused("probabilities-of-real-targets", "price"):
        study.predict_proba(frame)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "tensor", "dataset", "text", "images"])
def test_data_in_memory_of_any_kind(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    y = np.array(["a", "b"] * 12)
    numbers = torch.arange(24) % 2
    given = {
        "array": (x, y),
        "tensor": (torch.tensor(x), numbers),
        "dataset": (torch.utils.data.TensorDataset(torch.tensor(x), numbers), None),
        "text": (np.array([["u", "1.5"], ["v", "2.5"]] * 12), y),
        "images": ((x.repeat(12, 1).reshape(24, 6, 6) * 20).astype(np.uint8), y),
    }
    study = search(*given[kind], tmp_path)
    data = given[kind][0] if kind != "dataset" else x
    if kind == "text":
        data = pd.DataFrame(data, columns=["x0", "x1"])
    found = study.predict(data)
    assert found.probabilities.shape == (24, 2)
    expected = (0, 1) if kind in ("tensor", "dataset") else ("a", "b")
    assert found.classes == expected


@pytest.mark.parametrize(
    ("data", "y", "more", "says"),
    [
        (np.ones((20, 2)), np.ones(19), {}, "each of the 20 rows, but has the shape .19."),
        (table(), None, {}, "name the column to predict with target=..., or give y"),
        (table(), [1], {}, r"one value for each of the 60 rows, but has the shape \[1\]"),
        (table(), np.ones(60), {"target": "pet"}, "not both"),
        (3, None, {}, "must be a DataFrame, .* but got int"),
        ("gone.csv", None, {}, "there is no file gone.csv"),
        ("digits", [1], {}, "y is for data in memory"),
        (np.ones((20, 2)), np.arange(20) % 2, {"target": "a"}, "not both"),
        (table(), "pet", {}, r"to name a column write search\(data, target='pet'\)"),
        (table(), None, {"target": "pet", "drop": "age"}, r"`drop` names the column 'age'"),
        (table(), None, {"target": "pet", "seed": -1}, "^seed=-1: "),
        (table(), None, {"target": "pet", "test": table()}, "test must be a file, not DataFrame"),
        (table(), None, {"target": "pet", "families": "mpl"}, "family 'mpl' is unknown"),
        (table(), None, {"target": "pet", "metric": "acc"}, r"did you mean metric=accuracy\?"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    data: Any, y: Any, more: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        search(data, y, tmp_path, **more)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_estimator_takes_missing_numbers_in_arrays_as_in_frames() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = x[:, 0].copy()
    regressor = nas_evidence.EvidenceRegressor(n_trials=1, settings=QUICK).fit(x, y)
    new = np.array([[np.nan, 0.5, 0.5]])
    with pytest.warns(UserWarning, match="'x0' is empty; the default from training"):
        found = regressor.predict(new)
    np.testing.assert_allclose(
        found, regressor.predict([[np.median(x[:, 0]), 0.5, 0.5]]), rtol=1e-4
    )
    x[::7, 0] = np.nan
    array = regressor.fit(x, y).predict(x)
    frame = regressor.fit(pd.DataFrame(x).add_prefix("x"), y).predict(
        pd.DataFrame(x).add_prefix("x")
    )
    np.testing.assert_array_equal(array, frame)


@pytest.mark.slow
def test_a_prediction_holds_the_sentences_that_it_warns_of(classified: nas_evidence.Study) -> None:
    new = table(5).assign(town="lima")
    with pytest.warns(UserWarning, match="'town'") as warned:
        found = classified.predict(new)
    assert found.warnings == tuple(str(one.message) for one in warned)
    assert "not seen in training ('lima')" in found.warnings[0]
    assert classified.predict(table(5)).warnings == ()


@pytest.mark.slow
def test_calibration_is_drawn_of_labelled_data(classified: nas_evidence.Study) -> None:
    with pytest.warns(UserWarning, match="17 of 30 rows were in the training data"):
        figure = classified.plot("calibration", table(30))
    found = classified.predict(table(30)).reliability(table(30)["pet"])
    points = zip(found.confidence, found.accuracy, strict=True)
    stated = [f"stated {chance(p)}: {100 * a:.0f} %" for p, a in points]
    assert re.findall(r'class="dot".*?<title>(stated .*? %: \d+ %)', figure.svg) == stated
    assert figure.caption.endswith(f"Of 30 rows. Calibration error: {found.error:.3f}.")
    with refused("evaluate-without-target", "y"):
        classified.plot("calibration", table(30).drop(columns="pet"))
    with refused("no-importance", "unknown"):
        classified.plot("parameters")


def test_a_figure_that_is_not_there_is_refused_with_those_that_are(
    classified: nas_evidence.Study,
) -> None:
    with refused("no-such-figure", "'rankings'", "loss", "ranking"):
        classified.plot("rankings")
    with refused("figure-without-data", "'ranking'"):
        classified.plot("ranking", table())


def test_a_figure_is_shown_by_a_notebook_and_saved_whole(
    classified: nas_evidence.Study, tmp_path: Path
) -> None:
    figure = classified.plot("ranking")
    shown = figure._repr_html_()
    assert shown.count("<svg viewBox") == 1
    assert "one marker per architecture" in shown
    path = figure.save(tmp_path / "ranking.svg")
    root = ElementTree.fromstring(path.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len([e for e in root.iter() if e.get("class") == "dot"]) == len(classified.ranking)
    with refused("figure-ending", "ranking.jpg", ".svg, .pdf or .png"):
        figure.save(tmp_path / "ranking.jpg")
    for size in ({"width": 0}, {"width": 101}, {"width": 50, "dpi": 1000}, {"dpi": -1}):
        with refused("figure-size", "100", "20,000"):
            figure.save(tmp_path / "ranking.svg", **size)
    with refused("figure-folder-missing", "none"):
        figure.save(tmp_path / "none" / "ranking.svg")


@pytest.mark.slow
def test_a_figure_has_its_values_and_is_saved_in_the_size_that_is_asked_for(
    classified: nas_evidence.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = classified.plot("ranking")
    board = classified.leaderboard()
    assert figure.data["score"].tolist() == board["score"].tolist()
    assert figure.data["n_parameters"].tolist() == board["n_parameters"].tolist()
    root = ElementTree.parse(figure.save(tmp_path / "r.svg", width=3.5)).getroot()
    assert float(root.attrib["width"]) == 96 * 3.5
    _, _, across, down = map(float, root.attrib["viewBox"].split())
    with Image.open(figure.save(tmp_path / "r.png", width=3.5, dpi=100)) as image:
        assert image.size == (350, int(350 * down / across))
        found = {(r, g, b) for _, (r, g, b, _) in image.convert("RGBA").getcolors(10**6)}
    assert (255, 255, 255) in found
    assert len(found) > 50  # markers, grid and text
    pdf = figure.save(tmp_path / "r.pdf", width=3.5).read_bytes()
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    assert [float(side) for side in box.groups()] == pytest.approx([252, 252 * down / across])
    monkeypatch.setattr(by_matplotlib, "_NEEDED", "no_such_package")
    for ending in (".png", ".pdf"):
        with refused("figure-needs-matplotlib", "no_such_package", "'.[figures]'", ".svg"):
            figure.save(tmp_path / f"r{ending}")
    assert figure.save(tmp_path / "r.svg").is_file()


@pytest.mark.slow
def test_evaluate_gives_the_metrics_of_labelled_data_in_any_form(
    classified: nas_evidence.Study, tmp_path: Path
) -> None:
    new = table(90)[60:]
    expected = classified.predict(new).measures(new["pet"])
    new.to_csv(tmp_path / "new.csv", index=False)
    for given in ((new,), (new.drop(columns="pet"), new["pet"]), (tmp_path / "new.csv",)):
        found = classified.evaluate(*given)
        assert dict(found) == pytest.approx(expected, rel=1e-6)
        assert found.n == 30
    assert re.search(rf"accuracy +{expected['accuracy']:.4f}\n", repr(found))
    assert dict(pickle.loads(pickle.dumps(found))) == dict(found)
    some = new.assign(pet=new["pet"].where(np.arange(30) < 12))
    with pytest.warns(UserWarning, match="18 of 30 rows have no target"):
        assert classified.evaluate(some).n == 12
    with pytest.warns(UserWarning, match="60 of 60 rows were in the training data"):
        classified.evaluate(table())
    with refused("evaluate-without-target", "pet"):
        classified.evaluate(new.drop(columns="pet"))
    with refused("evaluate-length", 30, 2):
        classified.evaluate(new.drop(columns="pet"), ["dog", "cat"])
    with refused("unknown-true-label", "'cow'"):
        classified.evaluate(new.assign(pet="cow"))


def test_a_prediction_of_a_trial_that_is_not_there_is_refused(
    classified: nas_evidence.Study,
) -> None:
    with refused("trial-not-finished", 77):
        classified.predict(table(), trial_id=77)


def test_probabilities_are_those_of_predict_in_the_order_of_the_classes(
    classified: nas_evidence.Study,
) -> None:
    found = classified.predict_proba(table())
    np.testing.assert_array_equal(found, classified.predict(table()).probabilities)
    np.testing.assert_array_equal(found, classified.predictor().predict_proba(table()))


@pytest.mark.slow
def test_a_study_at_a_uri_is_searched_loaded_reported_and_resumed(tmp_path: Path) -> None:
    uri = (tmp_path / "there").as_uri()
    frame = table().drop(columns="price")
    study = nas_evidence.search(frame, target="pet", n_trials=1, settings=QUICK, out=uri)
    assert (study.place, study.report().name) == (uri, "index.html")
    assert (tmp_path / "there" / "report" / "index.html").is_file()
    study.export(trial_id=0)
    assert (tmp_path / "there" / "export" / "evidence.json").is_file()
    again = nas_evidence.load(uri)
    assert again.ranking.equals(study.ranking)
    np.testing.assert_array_equal(again.predict_proba(frame), study.predict_proba(frame))
    assert len(nas_evidence.resume(uri, n_trials=2, steal=True).trials) == 2
    assert nas_evidence.verify(uri).problems == ()
    assert pickle.loads(pickle.dumps(again)).ranking["rank"].tolist() == [1, 2]


def test_settings_are_of_any_type_that_a_study_file_has(tmp_path: Path) -> None:
    frame = table().drop(columns="price")
    first = [{"family": "linear"}]
    settings = {**QUICK, "first": first, "plan.online": {"every": "never"}}
    asked = of_memory(frame, None, {"target": "pet"}, as_overrides(settings))
    assert list(asked.spec.first) == first
    assert asked.spec.plan.online.every == "never"
    with refused("setting-of-no-type", "plan.epochs", "None"):
        nas_evidence.search(frame, target="pet", settings={"plan.epochs": None})


def test_options_may_be_scalars_of_numpy_and_names_that_are_numbers() -> None:
    frame = table().drop(columns="price").rename(columns={"pet": 3})
    given = {"seed": np.uint8(3), "n_trials": np.int64(2), "plan.learning_rate": np.float32(0.5)}
    found = of_memory(frame, None, {"target": 3}, as_overrides({**QUICK, **given})).spec
    assert (found.seed, found.n_trials, found.plan.learning_rate) == (3, 2, 0.5)
    assert found.dataset.target == "3"


def test_numbers_of_numpy_choose_and_continue_as_those_of_python(
    classified: nas_evidence.Study, tmp_path: Path
) -> None:
    first = np.int64(classified.leaderboard().trial_id[0])
    assert classified.predictor(first) is classified.predictor(int(first))
    classified.export(tmp_path / "e", trial_id=first)
    folder = Path(shutil.copytree(classified.folder, tmp_path / "s"))
    n = nas_evidence.load(folder).spec.n_trials
    assert nas_evidence.resume(folder, n_trials=np.int64(n), progress=False).spec.n_trials == n
    for wrong in (1.5, "2", True):
        with refused("option-no-whole-number", "trial_id"):
            classified.predictor(wrong)


def test_a_space_that_no_input_fits_is_refused_before_anything_runs(tmp_path: Path) -> None:
    frame = table().drop(columns="price")
    for families, code in (([], "no-family-asked"), (["cnn", "resnet"], "families-of-images")):
        with refused(code):
            nas_evidence.search(
                frame, target="pet", families=families, out=tmp_path / "s", progress=False
            )
    assert [*tmp_path.glob("s/trials/*")] == []


def test_a_place_that_is_no_study_is_not_searched_for_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("not-a-study-folder"):
        nas_evidence.load(tmp_path)
    with refused("place-of-code-0"):
        nas_evidence.load("a\0b")


def test_executor_and_address_are_checked_before_the_data_are_read() -> None:
    with refused("address-without-ray"):
        nas_evidence.search("gone.csv", executor="local", address="auto")
    with refused("address-of-dashboard"):
        nas_evidence.resume("gone", executor="ray", address="http://host:8265")
    with refused("unknown-executor", "slurm", "`executor`"):
        nas_evidence.search("gone.csv", executor="slurm")
    with refused("executor-needs-allow-code", "allow_code (--allow-code)"):
        nas_evidence.resume("gone", executor="json:loads")
    with refused("executor-not-callable", "str"):
        nas_evidence.search("gone.csv", executor="string:digits", allow_code=True)
    with refused("reference-not-imported", "what makes an executor"):
        nas_evidence.search("gone.csv", executor="string:digit", allow_code=True)


def test_a_leaderboard_has_every_architecture_in_the_order_of_the_ranking(
    classified: nas_evidence.Study,
) -> None:
    found = classified.leaderboard()
    assert list(found) == [
        "rank", "trial_id", "family", "depth", "width", "shape", "n_parameters", "score",
        "estimate", "error", "test_nll_per_datum", "test_accuracy", "fit_seconds",
        "predict_seconds", "status", "trials",
    ]  # fmt: skip
    trials = classified.trials.set_index("trial_id").loc[found["trial_id"]]
    fits = (trials["train_seconds"] + trials["settle_seconds"]).tolist()
    assert found["fit_seconds"].tolist() == pytest.approx(fits)
    assert found["predict_seconds"].tolist() == trials["latency_seconds"].tolist()
    assert found["test_accuracy"].isna().all()  # there are no test rows
    ranking = classified.ranking
    for name, own in (("rank", "rank"), ("trial_id", "trial_id"), ("score", "diag_ef")):
        assert found[name].tolist() == ranking[own].tolist()
    assert found["trials"].sum() == len(classified.trials)
    assert set(found["status"]) == {"complete"}


def test_a_notebook_shows_one_block_with_what_is_done_and_the_best() -> None:
    shown: list[str] = []
    spec = plain_study(name="a<b", n_trials=3, objective="kfac_ggn", estimators=["kfac_ggn"])
    block = NotebookProgress(spec, 1, show=shown.append)
    assert "a&lt;b: 1 of 3 trials" in shown[0]
    for trial_id, status in ((1, TrialStatus.DIVERGED), (2, TrialStatus.COMPLETE)):
        block.ended(record_of(asked(mlp(width=7 + trial_id), trial_id=trial_id), status))
    assert "2 of 3 trials · less than a minute left · last mlp(width=8) diverged" in shown[1]
    assert "best" not in shown[1]
    assert "3 of 3 trials · best mlp(width=9), kfac_ggn -0.5" in shown[2]


def test_a_script_without_a_terminal_prints_at_most_one_line_a_minute() -> None:
    spec = plain_study(n_trials=4, objective="kfac_ggn", estimators=["kfac_ggn"])
    now, lines = [0.0], list[str]()
    shown = ScriptProgress(spec, 0, tell=lines.append, clock=lambda: now[0])
    for trial_id, seconds in enumerate((10, 45, 4, 2)):
        now[0] += seconds
        shown.ended(record_of(asked(mlp(width=7), trial_id=trial_id), TrialStatus.COMPLETE))
    [line] = lines
    assert line.startswith("s: 4 of 4 trials, best mlp(width=7), kfac_ggn -0.")


@pytest.mark.slow
@pytest.mark.parametrize(("n", "folds"), [(60, 5), (1000, 2)])
def test_the_folds_follow_the_rows_also_where_the_epochs_are_given(
    n: int, folds: int, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(n, 2))
    settings = {"plan.epochs": 1, "plan.online.every": "never", "plan.settle": 0, "first": []}
    study = nas_evidence.search(
        x, (x[:, 0] > 0).astype(int), n_trials=1, out=tmp_path / "s", settings=settings, workers=1
    )
    assert study.spec.plan.folds == folds


def test_a_study_whose_fork_is_lost_goes_on_in_this_process(
    classified: nas_evidence.Study, caplog: pytest.LogCaptureFixture
) -> None:
    class Lost:
        def call(self, method: str, *arguments: object) -> None:
            raise LostForkError(f"the process of {method} ended early")

    study = nas_evidence.load(classified.folder)
    study._fork = Lost()  # type: ignore[assignment]
    assert study.forecast([]) == ""
    assert study._fork is None
    assert "the process of forecast ended early" in caplog.text
