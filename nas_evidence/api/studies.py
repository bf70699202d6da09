"""Studies in Python: search, resume and load, and what a study offers afterwards."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from html import escape
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, get_args

from nas_evidence.api.progress import audience_for
from nas_evidence.api.python_words import speaking_python
from nas_evidence.api.request import (
    Asked,
    DataOptions,
    asked_for,
    check_not_fewer,
    data_parameters,
    of_memory,
    with_families,
)
from nas_evidence.api.runs import (
    Audience,
    Run,
    begun,
    finish_off,
    left_out,
    run_trials,
    unfinished,
)
from nas_evidence.plumbing.time_limit import TimeLimit, seconds_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus, is_race
from nas_evidence.spec.study import StudySpec, preset_overrides
from nas_evidence.workers.executor import MakeExecutor, Watcher, Where

if TYPE_CHECKING:  # these import pandas and torch
    import pandas as pd

    from nas_evidence.baselines.comparison import Importance
    from nas_evidence.data import ArrayData
    from nas_evidence.data.source import Source
    from nas_evidence.exporting.predictor import Prediction, Predictor
    from nas_evidence.reporting.live import Stamp
    from nas_evidence.reporting.study_tables import RankedArchitecture
    from nas_evidence.reporting.study_tables import Study as StudyAsShown
    from nas_evidence.storage.tables import StudyTables

__all__ = ["Study", "load", "resume", "search"]
_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Architectures in the table of a notebook.
_SHOWN = 10
#: A line of the docstring of `search`, for which help() has one on each option.
_OPTIONS = "options: about the data, see `nas_evidence.api.request.DataOptions`."


class Study:
    """A study in its folder; everything is read from there when it is asked for.

    Example:
        study = nas_evidence.load("runs/mine")
        study.ranking.head()  # a DataFrame, the best architecture first
        study.importance("rmse")  # a DataFrame, the most important column first
        study.export("winner")  # Path("winner"): weights and a model card
    """

    def __init__(
        self,
        folder: str | Path,
        data_root: str | Path | None = None,
        *,
        allow_code: bool = False,
        spec: StudySpec | None = None,  # if it was read already
    ) -> None:
        from nas_evidence.storage.outside_code import admitted
        from nas_evidence.storage.study_folder import read_study

        self.folder = Path(folder).expanduser()
        self.data_root = None if data_root is None else Path(data_root)
        self.spec: StudySpec = spec or read_study(self.folder)
        if allow_code:
            admitted(self.spec, [self.folder.resolve() / "code"], allowed=True)
        self._predictors: dict[int | None, Predictor] = {}
        self._data: Source | None = None
        self._read: tuple[Stamp, StudyTables] | None = None
        self._shown: StudyAsShown | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs; the rest is read from the folder again."""
        return {**self.__dict__, "_predictors": {}, "_data": None}

    def __repr__(self) -> str:
        raced = [is_race(trial_id) for trial_id in self._tables().trials["trial_id"]]
        race = f" and {sum(raced)} in the race" if any(raced) else ""
        done = f"{raced.count(False)} of {self.spec.n_trials} trials{race}"
        order = "the estimate" if self.spec.rank_by == "estimate" else self.spec.objective
        return f"Study({str(self.folder)!r}: {done}, ranked by {order})"

    def _repr_html_(self) -> str:
        table = self.ranking
        rest = f"; the best {_SHOWN}" * (len(table) > _SHOWN)
        shown = table.head(_SHOWN).to_html(index=False, na_rep="") if len(table) else ""
        return f"<p>{escape(repr(self) + rest)}</p>{shown}"

    @property
    def ranking(self) -> "pd.DataFrame":
        """One row per architecture, the best first: rank, trial, family, parameters, scores."""
        import pandas as pd

        rows = [
            {
                "rank": one.rank,
                "trial_id": one.trial_id,
                "family": one.family,
                **one.values,
                "n_parameters": one.n_parameters,
                "estimate": one.estimate,
                "estimate_error": one.estimate_error,
                self.spec.objective: one.objective,
                "spread": one.spread,
                "sotl": one.sotl,
                "test_accuracy": one.test_accuracy,
                "test_nll_per_datum": one.test_nll,
                "test_rmse": one.test_rmse,
            }
            for one in self._ranked().ranking
        ]
        return pd.DataFrame(rows).dropna(axis=1, how="all")

    @property
    def posterior(self) -> "pd.DataFrame":
        """What all scores together say of each architecture, in the unit of `ranking`.

        One row each, the best `mean` first, with its own score and the 90 % interval `low` to
        `high` of the true one; see `nas_evidence.maths.architecture_posterior`.
        """
        import pandas as pd

        from nas_evidence.reporting.recommendation import estimates

        rows = [
            {
                "trial_id": one.architecture.trial_id,
                "family": one.architecture.family,
                **one.architecture.values,
                self.spec.objective: one.architecture.objective,
                "mean": one.mean,
                "low": one.low,
                "high": one.high,
            }
            for one in estimates(self._ranked())
        ]
        return pd.DataFrame(rows)

    @property
    def correlations(self) -> "pd.DataFrame":
        """How far each score agrees with each test result: the rows of `correlations.csv`.

        One row a score, target and group (`all`, or a family): Spearman's `rho`, Kendall's `tau`,
        the partial rho given the number of parameters, and the regret of the first 1, 3 and 10,
        each with its 95 % interval; see docs/how-to/reading-the-report.md. Undefined values are
        missing, and `note` says why.

        >>> study.correlations.query("group == 'all'")[["score", "rho"]]  # doctest: +SKIP
        """
        import pandas as pd

        from nas_evidence.reporting.contents import trust_of
        from nas_evidence.reporting.correlations import COLUMNS

        rows = trust_of(self._ranked()).rows
        return pd.DataFrame([row.cells() for row in rows], columns=list(COLUMNS))

    @property
    def best(self) -> "RankedArchitecture":
        """The best architecture.

        Raises:
            ValueError: while no trial is complete.
        """
        winner = self._ranked().winner
        if winner is None:
            raise UserError(
                f"no trial of {self.folder} is complete; continue it with resume"
            ).with_code("study-without-complete-trial")
        return winner

    @property
    def trials(self) -> "pd.DataFrame":
        """The table `trials`: one row per finished trial, whatever its status."""
        return self._tables().trials.copy()

    @property
    def missing(self) -> list[str]:
        """What of the results is missing or not as it was written, one line each."""
        return self._tables().missing

    @speaking_python()
    def predict(
        self,
        data: Any,
        *,
        method: Literal["probit", "mc", "map"] | None = None,
        level: float = 0.9,
        quantiles: Sequence[float] = (),
        metric: str | None = None,
        trial_id: int | None = None,
        top: int | None = None,
        raw: bool = False,
    ) -> "Prediction":
        """Return predictions with uncertainty by the best network, a trial's, or an ensemble.

        Args:
            data: a DataFrame, array, tensor, or the path of a table, .npz file or image folder.
            method: of classes, see `nas_evidence.exporting.predictor`.
            level: probability of the intervals of real targets.
            quantiles: (0.1, 0.5, 0.9) for the columns q10, q50 and q90 of `to_frame`.
            metric: to judge by, by default that of the study; of two classes the predicted one is
                chosen by the threshold that is best by it.
            trial_id: of another network than the best.
            top: of an ensemble of so many best networks, with stacked weights.
            raw: leave out the calibration factor (fitted out of fold).

        Raises:
            ValueError: for data unlike the training data, or without a complete trial.
        """
        predictor = self.predictor(trial_id, top=top)
        return predictor.predict(
            data, method=method, level=level, quantiles=quantiles, metric=metric, raw=raw
        )

    def predictor(self, trial_id: int | None = None, *, top: int | None = None) -> "Predictor":
        """Return the best network, a trial's, or an ensemble, to predict; exported if need be.

        Example:
            study.predictor(top=3).predict(new).mean  # the ensemble of the three best
        """
        from nas_evidence.exporting.predictor import Predictor
        from nas_evidence.exporting.soundness import is_export_of

        if top is not None:
            return Predictor.load(self._ensemble(trial_id, top))
        if trial_id not in self._predictors:
            chosen = self.best.trial_id if trial_id is None else trial_id
            folder = self.folder / "export"
            if not is_export_of(folder, chosen, self.spec.metric):
                folder = folder if trial_id is None else folder.with_name(f"export-{chosen}")
                self.export(folder, trial_id=chosen)
            self._predictors[trial_id] = Predictor.load(folder)
        return self._predictors[trial_id]

    @speaking_python()
    def importance(self, metric: str | None = None) -> "pd.DataFrame":
        """Return which columns of the table the best network uses, the most important first.

        One row each: `column`, and `mean` and `std` over 5 permutations of how much worse `metric`
        becomes when the values of the column are put in random order. On up to 1,000 test rows;
        without test rows on rows of the training table, and then optimistic, since the network has
        seen them. At most the first 200 columns; see `nas_evidence.baselines.permutation`.

        Args:
            metric: in its own unit; by default that of the study, else the log loss.

        Raises:
            ValueError: if the data are not a table, or the metric is unknown.
        """
        import pandas as pd

        return pd.DataFrame([one.model_dump() for one in self._importance(metric).columns])

    def _importance(self, metric: str | None) -> "Importance":
        from nas_evidence.baselines.permutation import column_importance

        found = column_importance(self.predictor(), self.arrays(), metric=metric)
        if found is None:
            raise UserError(
                f"importance is of the columns of a table, but {self.folder} was searched on "
                f"arrays or images ({self.spec.dataset.name}); search a DataFrame or a table file"
            ).with_code("importance-without-columns")
        return found

    def report(self, to: str | Path | None = None) -> Path:
        """Write the report and return the path of its page.

        Example:
            study.report("shown")  # Path("shown/index.html")
        """
        from nas_evidence.baselines.stored_comparison import kept_comparison
        from nas_evidence.reporting.page import build_report

        tables = self._tables()
        with suppress(ValueError, OSError):  # without the data the report does without
            kept_comparison(tables, self._source())
        html: Path = build_report(tables, None if to is None else Path(to)).html
        return html

    def export(
        self,
        to: str | Path | None = None,
        *,
        trial_id: int | None = None,
        top: int | None = None,
        pt2: bool = False,
        onnx: bool = False,
        raw: bool = False,
        license: str | None = None,
        track: str | None = None,
    ) -> Path:
        """Write the best network, a trial's, or an ensemble of the `top` best; return the folder.

        With `pt2` also as a program for torch alone; with `onnx` as ONNX, which needs the extra of
        that name. `raw` leaves out the calibration factor. `license`, such as "mit", is stated in
        the model card. `track`, "mlflow" or "mlflow:URI", also writes the folder of one network as
        the artifact `export` of the run of its trial. An ensemble has `ensemble.json`
        with its weights, and with what it gains over its best member in nats per datum.

        Raises:
            ValueError: for a trial or `track` with `top`, or fewer complete architectures than
                `top`.
        """
        from nas_evidence.api.trackers import keep_export
        from nas_evidence.exporting.ensemble import export_ensemble
        from nas_evidence.exporting.folder import export_winner

        if trial_id is not None and top is not None:
            raise UserError(f"give trial_id={trial_id} or top={top}, not both").with_code(
                "trial-and-top"
            )
        name = ("export" if top is None else f"export-top-{top}") + "-raw" * raw
        folder = Path(to or self.folder / name)
        given = (self._tables(), folder, self.arrays())
        if top is None:
            export_winner(*given, trial_id=trial_id, pt2=pt2, onnx=onnx, raw=raw, license=license)
        else:
            export_ensemble(*given, top=top, pt2=pt2, onnx=onnx, raw=raw, license=license)
        if track is not None:
            keep_export(track, self.spec, self.folder, folder)
        return folder

    def _ensemble(self, trial_id: int | None, top: int) -> Path:
        """Return the folder of an ensemble of the best networks as they are now."""
        from nas_evidence.exporting.ensemble import best_trials, is_ensemble_of

        now = best_trials(self._tables(), top)
        folder = self.folder / f"export-top-{top}"
        if trial_id is None and is_ensemble_of(folder, now):
            return folder
        return self.export(trial_id=trial_id, top=top)

    def arrays(self) -> "ArrayData":
        """Return the data of the study as they are loaded for a search."""
        return self._source().arrays(seed=self.spec.seed)

    def plot_ranking(self) -> Any:
        """Return a matplotlib figure of the objective of every architecture."""
        from nas_evidence.reporting.plots import plot_ranking

        return plot_ranking(self._ranked())

    def plot_curves(self) -> Any:
        """Return a matplotlib figure of the training loss of every complete trial by epoch."""
        from nas_evidence.reporting.plots import plot_curves

        return plot_curves(self._ranked())

    @speaking_python()
    def plot_importance(self, metric: str | None = None) -> Any:
        """Return a matplotlib figure of what `importance` returns: which columns matter.

        Raises:
            ValueError: as `importance`.
        """
        from nas_evidence.reporting.plots import plot_importance

        return plot_importance(self._importance(metric))

    def plot_parameters(self) -> Any:
        """Return a matplotlib figure of how much each parameter of the architecture decides.

        Raises:
            ValueError: while too few architectures are ranked to tell.
        """
        from nas_evidence.reporting.plots import plot_parameters

        return plot_parameters(self._ranked())

    def plot_calibration(self, data: Any = None, *, trial_id: int | None = None) -> Any:
        """Return a matplotlib figure of stated probabilities against what is true.

        Args:
            data: with the target, see `predict`, and not trained on; by default the training
                data, each datum predicted by a network of the same architecture that had not
                seen its fold.
            trial_id: of another network than the best.

        Raises:
            ValueError: if `data` does not hold the target, or no fold predicted the training data.
        """
        from nas_evidence.data.given import rows_seen
        from nas_evidence.data.tensors import to_tensors
        from nas_evidence.exporting.unseen import unseen_reliability
        from nas_evidence.exporting.winner import load_winner
        from nas_evidence.reporting.plots import plot_reliability

        if data is not None:
            predictor = self.predictor(trial_id)
            given = predictor.given(data).labelled()
            if given is None or given.truth is None:
                raise UserError(
                    "calibration compares with the truth, but data has no target column"
                ).with_code("calibration-without-target")
            found = predictor.predict(given).reliability(given.truth)
            if n_seen := rows_seen(given.inputs, self.arrays()):
                n_rows = len(given.inputs)
                warnings.warn(
                    f"{n_seen} of {n_rows} rows were in the training data: this is not the "
                    "calibration on new data",
                    stacklevel=2,
                )
        else:
            chosen = self.best.trial_id if trial_id is None else trial_id
            if chosen not in set(self._tables().trials["trial_id"]):
                raise UserError(f"{self.folder} has no finished trial {chosen}").with_code(
                    "no-such-finished-trial"
                )
            arrays = self.arrays()
            winner = load_winner(self._tables(), arrays, chosen)
            found = unseen_reliability(winner, to_tensors(arrays, "cpu"))
        labels = self.spec.plan.likelihood == "categorical"
        return plot_reliability(found, labels=labels)

    def _source(self) -> "Source":
        """Return the data, read when they are first asked for."""
        from nas_evidence.data.source import stored_source

        if self._data is None:
            base = self.folder.resolve()
            self._data = stored_source(self.spec.dataset, base=base, data_root=self.data_root)
        return self._data

    def _tables(self, spec: StudySpec | None = None) -> "StudyTables":
        """Return what the folder holds, read again only if its files have changed."""
        from nas_evidence.reporting.live import stamp
        from nas_evidence.storage.tables import read_study_tables

        now = stamp(self.folder)
        if self._read is None or self._read[0] != now:
            self._read, self._shown = (now, read_study_tables(self.folder, spec)), None
        return self._read[1]

    def _ranked(self) -> "StudyAsShown":
        from nas_evidence.reporting.study_tables import ranked_study

        tables = self._tables()
        if self._shown is None:
            self._shown = ranked_study(tables)
        return self._shown


def _with_data_parameters(function: _Function) -> _Function:
    """Show the options about data in the signature of a function, and what they mean."""
    plain = signature(function)
    *own, _ = plain.parameters.values()
    options = {p: get_args(p.annotation) for p in data_parameters()}
    added = [p.replace(annotation=kind) for p, (kind, _) in options.items()]
    function.__signature__ = plain.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    meant = "".join(f"\n        {p.name}: {said.text[0].lower()}{said.text[1:]}"
                    for p, (_, said) in options.items())  # fmt: skip
    function.__doc__ = (function.__doc__ or "").replace(_OPTIONS, meant.lstrip())
    return function


@_with_data_parameters
@speaking_python()
def search(
    data: Any,
    y: Any = None,
    *,
    families: Sequence[Any] | str | None = None,
    n_trials: int | None = None,
    seed: int | None = None,
    time_limit: float | str | None = None,
    preset: Literal["quick", "default", "thorough"] | None = None,
    metric: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    data_root: str | Path | None = None,
    allow_code: bool = False,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    callbacks: Sequence[Watcher] = (),
    executor: Where | MakeExecutor | None = None,
    **options: Unpack[DataOptions],
) -> Study:
    """Search architectures for data, or run a study file; continue if its folder exists.

    Args:
        data: a DataFrame, array, tensor or torch Dataset; or the path of a table, .npz file,
            image folder or study file, or the name of a shipped study.
        y: labels or targets, if `data` does not hold them.
        families: what to search: names of families, or families of your own (see
            `nas_evidence.spec.families`); by default those that fit the data.
        n_trials: trials to run; by default as the study file says, or 24.
        seed: of all that is random; by default as the study file says, or 0.
        time_limit: seconds for all of it, or "10m", "2h"; trials that do not fit are left out and
            run when the study is resumed.
        preset: a set of keys, see `nas_evidence.spec.study.PRESETS`; `n_trials` and `settings`
            win.
        metric: to show first in report and `predict`: "f1", "rmse", ...; see the key
            `metric` of a study file.
        settings: any key of a study file: {"plan.epochs": 50}.
        out: study folder; by default runs/<name>.
        workers: 1 for this process, more for as many worker processes.
        data_root: folder of the named data sets.
        allow_code: run code that a study file names as module:NAME.
        progress: whether to print; by default on a terminal or in a notebook.
        track: where to write to as well: "mlflow", "mlflow:URI", "tensorboard",
            "tensorboard:DIR", "optuna", "optuna:URL", "wandb", "wandb:PROJECT", "trackio",
            "trackio:PROJECT", "prometheus" or "prometheus:FILE".
        callbacks: told what happens while it runs; see `nas_evidence.Watcher`.
        executor: where trials run: "inline", "local", "ray" or "auto", or what makes an executor
            of your own, see `nas_evidence.testing.ExecutorContract`; by default as `workers` says.
        options: about the data, see `nas_evidence.api.request.DataOptions`.

    Returns:
        The study with its finished trials: `ranking`, `best`, `predict`, `report`, `export`.

    Raises:
        ValueError: for data or settings that cannot be used; one sentence with a remedy.
        RuntimeError: if every trial failed, or none was complete in the time.

    Example:
        study = nas_evidence.search(frame, target="price", n_trials=24, test_fraction=0.2)
    """
    if unknown := options.keys() - DataOptions.__annotations__.keys():
        known = signature(search).parameters
        near = get_close_matches(min(unknown), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"search() got an unexpected keyword argument {min(unknown)!r}{hint}")
    limit = None if time_limit is None else TimeLimit(seconds_of(time_limit))
    named = {"n_trials": n_trials, "seed": seed, "metric": metric}
    keys = {**(settings or {}), **{k: value for k, value in named.items() if value is not None}}
    overrides = preset_overrides(preset)
    overrides += [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    root = None if data_root is None else Path(data_root)
    if isinstance(data, str | Path):
        if y is not None:
            raise UserError(
                "y is for data in memory; name the column of a file with target"
            ).with_code("y-with-file")
        asked = asked_for(str(data), overrides, options, allow_code=allow_code, data_root=root)
    else:
        if isinstance(y, str):
            raise UserError(
                f"y must be values; to name a column write search(data, target={y!r})"
            ).with_code("y-names-column")
        asked = of_memory(data, y, options, overrides)
    if out is not None:
        folder = Path(out).expanduser()
    else:
        folder = _folder_of(asked, named=isinstance(data, str | Path))
    run = _run_with(
        executor or ("inline" if workers == 1 else "auto"),
        root,
        allow_code=allow_code,
        track=track,
        callbacks=callbacks,
        limit=limit,
    )
    resources = asked.spec.resources.model_copy(update={"workers": workers})
    spec = with_families(asked.spec, families).model_copy(update={"resources": resources})
    audience = audience_for(progress)
    for sentence in asked.decided:
        audience.say(sentence)
    spec, source = begun(folder, spec, asked.source, data_root=root)
    return _run(spec, folder, run, audience, source)


@speaking_python()
def resume(
    folder: str | Path,
    *,
    n_trials: int | None = None,
    time_limit: float | str | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int = 1,
    data_root: str | Path | None = None,
    allow_code: bool = False,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    callbacks: Sequence[Watcher] = (),
    executor: Where | MakeExecutor | None = None,
) -> Study:
    """Continue a study after a stop or a crash, or with more trials, time or another budget.

    Args:
        folder: of the study.
        n_trials: trials in all; by default as before.
        time_limit: seconds for the whole call, or "10m", "2h".
        settings: keys of the study file that may change between runs: {"finalists": 5}.
        workers: 1 for this process, more for as many worker processes.
        data_root: folder of the named data sets.
        allow_code: run code that the study names as module:NAME.
        progress: whether to print; by default on a terminal or in a notebook.
        track: where to write to as well; see `search`.
        callbacks: told what happens while it runs; see `nas_evidence.Watcher`.
        executor: where trials run; see `search`.

    Returns:
        The study with the old and the new trials.

    Raises:
        ValueError: if it is not a study folder, or a key may not change.
        RuntimeError: if every trial failed.

    Example:
        study = nas_evidence.resume("runs/mine", n_trials=48)
    """
    limit = None if time_limit is None else TimeLimit(seconds_of(time_limit))
    from nas_evidence.data.source import stored_source
    from nas_evidence.storage.outside_code import admitted
    from nas_evidence.storage.study_folder import open_study, read_study

    folder = Path(folder).expanduser()
    overrides = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    spec = read_study(folder, overrides)
    check_not_fewer(spec, n_trials)
    resources = spec.resources.model_copy(update={"workers": workers})
    changes = {"resources": resources, "n_trials": n_trials or spec.n_trials}
    spec = admitted(spec.model_copy(update=changes), [folder / "code"], allowed=allow_code)
    root = None if data_root is None else Path(data_root)
    run = _run_with(
        executor or ("inline" if workers == 1 else "auto"),
        root,
        allow_code=allow_code,
        track=track,
        callbacks=callbacks,
        limit=limit,
    )
    spec = open_study(folder, spec)
    source = stored_source(spec.dataset, base=folder.resolve(), data_root=root)
    return _run(spec, folder, run, audience_for(progress), source)


@speaking_python()
def load(
    folder: str | Path, *, data_root: str | Path | None = None, allow_code: bool = False
) -> Study:
    """Return the study in a folder; with `allow_code`, import the code that it names.

    Raises:
        ValueError: if it is not a study folder.

    Example:
        nas_evidence.load("runs/mine").predict(new)
    """
    return Study(folder, data_root, allow_code=allow_code)


def _run_with(
    executor: Where | MakeExecutor,
    data_root: Path | None,
    *,
    allow_code: bool,
    track: str | Sequence[str],
    callbacks: Sequence[Watcher],
    limit: TimeLimit | None,
) -> Run:
    from nas_evidence.api.trackers import check_track

    wanted = (track,) if isinstance(track, str) else tuple(track)
    check_track(wanted)
    return Run(
        executor,
        data_root=data_root,
        allow_code=allow_code,
        track=wanted,
        callbacks=tuple(callbacks),
        limit=limit,
    )


def _run(spec: StudySpec, folder: Path, run: Run, audience: Audience, data: "Source") -> Study:
    from nas_evidence.driver.mirror import open_store
    from nas_evidence.storage.redo import find_done
    from nas_evidence.storage.study_folder import locked

    with locked(folder):
        finds = find_done(folder)
        if unfinished(spec, folder, finds.done):
            run_trials(spec, open_store(str(folder)), run, audience, data=data, finds=finds)
        else:
            finish_off(spec, open_store(str(folder)), run, audience, finds)
    study = Study(folder, run.data_root, spec=spec)
    study._data = data
    statuses = set(study._tables(spec).trials["status"])
    cut = left_out(spec, folder, run.limit) if run.limit is not None else ""
    if cut:
        audience.say(f"time: {cut}; resume the study for the others")
    if cut and not statuses:
        raise RuntimeError(f"no trial of {folder} was complete in its time; resume it with more")
    if statuses and TrialStatus.COMPLETE.value not in statuses:
        from nas_evidence.reporting.problems import problems

        why = problems(study._ranked())[0].detail
        raise RuntimeError(f"no trial of {folder} is complete, most often because: {why}")
    return study


def _folder_of(asked: Asked, *, named: bool) -> Path:
    """Return runs/<name>; for data in memory, which have none, with the start of their hash."""
    from nas_evidence.storage.study_folder import default_folder

    folder = default_folder(asked.spec)
    content = asked.spec.dataset.content
    if named or content is None:
        return folder
    return folder.with_name(f"{folder.name}-{content[:8]}")
