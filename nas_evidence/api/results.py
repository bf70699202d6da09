"""A study and what it offers: ranking, scores, predictions, report, figures, exports."""

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import wraps
from html import escape
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

from nas_evidence.api.request import check_one
from nas_evidence.api.shared_options import (
    JudgeOptions,
    PredictOptions,
    RefitOptions,
    check_known,
    with_options,
)
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.record import TrialStatus, is_race
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import pandas and torch
    import numpy as np
    import pandas as pd

    from nas_evidence.api.figure import Figure
    from nas_evidence.baselines.comparison import Comparison, Importance
    from nas_evidence.baselines.stored_comparison import Within
    from nas_evidence.data import ArrayData
    from nas_evidence.data.given import Given
    from nas_evidence.data.source import Source
    from nas_evidence.driver.mirror import WorkingCopy
    from nas_evidence.exporting.predictor import Metrics, Prediction, Predictor
    from nas_evidence.reporting.contents import Report
    from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy
    from nas_evidence.spec.domains import ParameterValue
    from nas_evidence.storage.tables import Stamp, StudyTables
    from nas_evidence.workers.apart import ForkedObject
    from nas_evidence.workers.fork_server import ForkServer

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
#: What a forecast may be of.
Part = Literal["report", "export", "predict"]
#: Architectures in the table of a notebook.
_SHOWN = 10
#: Columns of the leaderboard, with their types; the parameters stand after `family`.
LEADERBOARD = {
    "rank": "Int64", "trial_id": "Int64", "family": "str", "n_parameters": "Int64",
    "score": "float64", "estimate": "float64", "error": "float64",
    "test_nll_per_datum": "float64", "test_accuracy": "float64", "test_rmse": "float64",
    "fit_seconds": "float64", "predict_seconds": "float64", "status": "str", "trials": "int64",
}  # fmt: skip
#: Of those, what the last trial says of an architecture without a complete one.
_OF_A_TRIAL = ("trial_id", "family", "n_parameters", "status")
#: Types of columns that hold a parameter, by the type of its values; None for several.
_COLUMN_TYPES: Mapping[type | None, str] = {
    int: "Int64",
    float: "float64",
    bool: "boolean",
    str: "object",
    None: "object",
}
#: Columns of `posterior` and of the ranking beside the parameters and the objective.
_POSTERIOR = ("trial_id", "family", "mean", "low", "high")
_RANKING = (
    "rank", "trial_id", "family", "n_parameters", "estimate", "estimate_error", "spread", "sotl",
)  # fmt: skip


def _cells(one: "RankedArchitecture", *names: str) -> dict[str, Any]:
    """Return fields of an architecture as the cells of a row."""
    return {name: getattr(one, name) for name in names}


def _mean_seconds(complete: "pd.DataFrame") -> "dict[Any, dict[str, float]]":
    """Return the seconds of the leaderboard by architecture, means over its trials."""
    found = complete.assign(
        fit_seconds=complete["train_seconds"] + complete["settle_seconds"].fillna(0),
        predict_seconds=complete["latency_seconds"],
    )
    means = found.groupby("architecture_key")[["fit_seconds", "predict_seconds"]].mean()
    return {str(key): dict(row) for key, row in means.iterrows()}


def _in_its_fork(method: F) -> F:
    """Let a method that needs torch run in the fork of a study, where it has one.

    If the fork is lost, for example for want of memory, it runs here.
    """

    @wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        if self._fork is not None:
            from nas_evidence.workers.apart import LostForkError

            try:
                return self._fork.call(method.__name__, *args, **options)
            except LostForkError as error:
                _LOG.warning("fork_lost error=%s; computing here", error)
                self._fork = None
        return method(self, *args, **options)

    return cast("F", called)


def _in_its_code(cls: type[T]) -> type[T]:
    """Let all that a study offers look up references in the study's own code."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inside(self: Any, *args: Any, **options: Any) -> Any:
            with self._code.in_use():
                return function(self, *args, **options)

        return inside

    for name, member in [*vars(cls).items()]:
        if name.startswith("_") and name not in ("__repr__", "_repr_html_"):
            continue
        if isinstance(member, property):
            assert member.fget is not None
            setattr(cls, name, property(wrapped(member.fget), doc=member.__doc__))
        elif isinstance(member, FunctionType):
            setattr(cls, name, wrapped(member))
    return cls


@_in_its_code
class Study:
    """A study in its folder; everything is read from there when it is asked for.

    A study in a store at a URI is fetched into a folder here; a report or an export in its own
    folder goes back to the store.

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
        code: Code | None = None,  # if it is imported already
        store: "WorkingCopy | None" = None,  # if it is here already
    ) -> None:
        from nas_evidence.driver.mirror import working_copy
        from nas_evidence.storage.outside_code import code_of_folder
        from nas_evidence.storage.study_folder import read_study

        self._store = store or working_copy(str(folder))
        if store is None:
            self._store.check_answers()
            self._store.pull()
        # Absolute, for the working folder may change; `place` is shown as it was named.
        self.place, self.folder = self._store.place, self._store.folder.absolute()
        self.data_root = None if data_root is None else Path(data_root).expanduser().absolute()
        with self._store.named():
            self.spec: StudySpec = spec or read_study(self._store.folder)
        if code is None:
            code = code_of_folder(self._store.folder, self.spec, allowed=allow_code)
        self._code = code
        self._predictors: dict[int | None, Predictor] = {}
        self._data: Source | None = None
        self._read: tuple[Stamp, StudyTables] | None = None
        self._shown: RankedStudy | None = None
        self._said: tuple[StudyTables, str | None, Report] | None = None
        self.not_compared = ""
        self._fork: ForkedObject | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs; the rest is read from the folder again."""
        own = dict.fromkeys(("_data", "_store", "_fork"))
        return {**self.__dict__, "_predictors": {}, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the folder again, or fetch the store again."""
        from nas_evidence.driver.mirror import working_copy
        from nas_evidence.spec.registry import import_outside
        from nas_evidence.storage.outside_code import outside_names

        self.__dict__.update(state)
        self._store = working_copy(self.place)
        if self._code.files:
            with self._code.in_use():
                import_outside(outside_names(self.spec))
        if self._store.uri is not None:
            self._store.pull()
            self.folder = self._store.folder

    def __repr__(self) -> str:
        from nas_evidence.storage.kept_submission import resume_call
        from nas_evidence.storage.study_folder import is_locked

        if said := self._unfinished():
            return f"Study({self.place!r}: {said})"
        raced = [is_race(trial_id) for trial_id in self._tables().trials["trial_id"]]
        race = f" and {sum(raced)} in the race" if any(raced) else ""
        done = f"{raced.count(False)} of {self.spec.n_trials} trials{race}"
        more = raced.count(False) < self.spec.n_trials and not is_locked(self.folder)
        go_on = f"; {resume_call(self.place, self.folder, self.spec)} goes on" if more else ""
        by = self._tables().standings.ranks_by
        return f"Study({self.place!r}: {done}, ranked by {by}{go_on})"

    def _unfinished(self) -> str:
        """Say that no trial is complete, and what goes on; "" if one is, or if trials run."""
        from nas_evidence.reporting.problems import unfinished_sentence
        from nas_evidence.storage.study_folder import is_locked

        rows = self._tables().rows
        if is_locked(self.folder) or any(r.status is TrialStatus.COMPLETE for r in rows):
            return ""
        return unfinished_sentence(self._ranked(), self.place)

    def _repr_html_(self) -> str:
        table = self.ranking
        rest = f"; the best {_SHOWN}" * (len(table) > _SHOWN)
        shown = table.head(_SHOWN).to_html(index=False, na_rep="") if len(table) else ""
        return f"<p>{escape(repr(self) + rest)}</p>{shown}"

    @property
    def ranking(self) -> "pd.DataFrame":
        """One row per architecture, the best first: rank, trial, family, parameters, scores."""
        import pandas as pd

        from nas_evidence.reporting.study_tables import AVERAGED

        others = (*_RANKING, *AVERAGED)
        rows = [
            _cells(one, "rank", "trial_id", "family")
            | self._parameters(one.values, others)
            | _cells(one, "n_parameters", "estimate", "estimate_error")
            | {self.spec.objective: one.objective}
            | _cells(one, "spread", "sotl", *AVERAGED)
            for one in self._ranked().ranking
        ]
        return self._typed(pd.DataFrame(rows), others)

    def leaderboard(self) -> "pd.DataFrame":
        """Return one row per architecture in the order of the ranking, whatever became of it.

        The columns depend on the space and the kind of target alone: `rank` (missing without a
        valid score), `trial_id` (of its best trial), `family`, every parameter of the space
        (`arch_NAME` where NAME is another column), `n_parameters`, `score` (the objective, larger
        is better), `estimate` and its `error` (a standard deviation, in the same unit), the
        results on test rows (`test_nll_per_datum` is the log loss; missing without test rows),
        `fit_seconds` of one training, `predict_seconds` of one row, `status` and `trials` (how
        many). Results and seconds are means over the complete trials. Architectures without a
        complete trial are last. Columns that callbacks have added follow, with the values of that
        trial.

        Example:
            study.leaderboard().query("family == 'mlp'").head()
        """
        import pandas as pd

        from nas_evidence.spec.parameters import columns_of, types_of
        from nas_evidence.storage.tables import architecture_values, own_columns

        if said := self._unfinished():
            warnings.warn(said, UserWarning, stacklevel=3)
        space = types_of(self.spec)
        columns = columns_of(space, LEADERBOARD)
        shown, trials = self._ranked(), self._tables().trials
        trials = trials.drop_duplicates("trial_id", keep="last")
        counts = trials["architecture_key"].value_counts()
        keys = trials.set_index("trial_id")["architecture_key"]
        tests = self.spec.plan.declared.kind.tests
        seconds = _mean_seconds(trials[trials["status"] == TrialStatus.COMPLETE.value])
        rows = [
            _cells(one, "rank", "trial_id", "family", "n_parameters", "estimate")
            | {column: one.values.get(name) for name, column in columns.items()}
            | {"score": one.objective, "error": one.estimate_error}
            | _cells(one, *tests)
            | seconds[keys[one.trial_id]]
            | {"status": TrialStatus.COMPLETE.value, "trials": counts[keys[one.trial_id]]}
            for one in shown.ranking
        ]
        complete = {keys[one.trial_id] for one in shown.ranking}
        others = trials[~trials["architecture_key"].isin(complete)]
        for row in others.drop_duplicates("architecture_key", keep="last").to_dict("records"):
            values = architecture_values(row)
            found = {name: None if pd.isna(row[name]) else row[name] for name in _OF_A_TRIAL}
            own = {column: values.get(name) for name, column in columns.items()}
            rows.append({**found, **own, "trials": counts[row["architecture_key"]]})
        before = ("rank", "trial_id", "family")
        types = {name: LEADERBOARD[name] for name in before}
        types |= {column: _COLUMN_TYPES[space[name]] for name, column in columns.items()}
        types |= {
            name: kind
            for name, kind in LEADERBOARD.items()
            if name in tests or not name.startswith("test_")
        }
        table = pd.DataFrame(rows, columns=list(types)).astype(types)
        own_values = trials.set_index("trial_id")[own_columns(trials.columns)]
        return table.join(own_values, on="trial_id")

    @property
    def posterior(self) -> "pd.DataFrame":
        """What all scores together say of each architecture, in the unit of `ranking`.

        One row each, the best `mean` first, with its own score and the 90 % interval `low` to
        `high` of the true one; see `nas_evidence.maths.architecture_posterior`.
        """
        import pandas as pd

        from nas_evidence.reporting.recommendation import estimates

        shown = [(one.architecture, one) for one in estimates(self._ranked())]
        rows = [
            {
                "trial_id": own.trial_id, "family": own.family,
                **self._parameters(own.values, _POSTERIOR),
                self.spec.objective: own.objective, "mean": one.mean, "low": one.low,
                "high": one.high,
            }
            for own, one in shown
        ]  # fmt: skip
        return self._typed(pd.DataFrame(rows), _POSTERIOR)

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
            ValueError: while no trial is complete, or if none has a finite score.
        """
        from nas_evidence.reporting.problems import unfinished_sentence, unranked_sentence

        winner = self._ranked().winner
        if winner is None:
            if said := unranked_sentence(self._ranked()):
                raise UserError("study-without-finite-score", f"{self.place}: {said}")
            raise UserError(
                "study-without-complete-trial",
                f"{self.place}: {unfinished_sentence(self._ranked(), self.place)}",
            )
        return winner

    @property
    def trials(self) -> "pd.DataFrame":
        """The table `trials`: one row per finished trial, whatever its status."""
        return self._tables().trials.copy()

    def scores(self, *, per_datum: bool = False) -> "pd.DataFrame":
        """Return the scores of each finished trial: one row a trial, one column a score.

        They are those after the last epoch of its last attempt, larger is better, in the unit of
        the column `value` of the table `evidence`; `n_parameters` is the number. A score that is
        missing or not valid is NaN. The index is `trial_id`, as in `trials`. First are the scores
        that the study asks for, last those that cost nothing.

        Args:
            per_datum: log evidence and log densities are divided by the data that they are of.

        Example:
            study.scores().corr(method="spearman")
            study.scores().join(study.trials.set_index("trial_id")[["family", "test_rmse"]])
        """
        from nas_evidence.reporting.study_tables import by_trial
        from nas_evidence.spec.registry import FREE_SCORES

        tables = self._tables()
        found = by_trial(tables.evidence, "value").astype(float)
        if per_datum:
            found = by_trial(tables.evidence, "per_datum").astype(float).fillna(found)
        names = dict.fromkeys([*self.spec.estimators, *found.columns.difference(FREE_SCORES)])
        ids = tables.trials["trial_id"].drop_duplicates()
        return found.reindex(index=ids, columns=[*names, *FREE_SCORES])

    @property
    def missing(self) -> list[str]:
        """What of the results is missing or not as it was written, one line each."""
        return self._tables().missing

    @with_options(PredictOptions)
    def predict(
        self,
        data: Any,
        *,
        trial_id: int | None = None,
        top: int | None = None,
        **options: Unpack[PredictOptions],
    ) -> "Prediction":
        """Return predictions with uncertainty by the best network, or by others of the study.

        Args:
            data: a DataFrame, dict of columns, list of rows, array, tensor, or the path of a
                table, .npz file or image folder.
            trial_id: of one network, that of this trial.
            top: of so many best networks, with equal weights.
            options: see `nas_evidence.api.shared_options.PredictOptions`.

        Raises:
            ValueError: for data unlike the training data, or without a complete trial.
        """
        return self.predictor(trial_id, top=top).predict(data, **options)

    def predictor(self, trial_id: int | None = None, *, top: int | None = None) -> "Predictor":
        """Return the best network, another one, or several together; exported if need be.

        Arguments as of `predict`.

        Example:
            study.predictor(top=3).predict(new).mean  # the three best together
        """
        from nas_evidence.exporting.predictor import Predictor

        trial_id, top = check_one(trial_id, top)
        if top is None and trial_id in self._predictors:
            return self._predictors[trial_id]
        folder, there = self._export_of(trial_id, top)
        if not there:
            self.export(folder if top is None else None, trial_id=trial_id, top=top)
        found = Predictor.load(folder)
        if top is None:
            self._predictors[trial_id] = found
        return found

    def is_exported(self, trial_id: int | None = None) -> bool:
        """Return whether the sound export of a trial is in the folder `export` of the study.

        By default that of the best network.
        """
        return self._holds(
            self.folder / "export", self._best_id() if trial_id is None else trial_id
        )

    def _best_id(self) -> int:
        from nas_evidence.storage.told_order import best_trial

        found = best_trial(self._tables())
        return self.best.trial_id if found is None else found  # `best` refuses a study without one

    def _holds(self, folder: Path, trial_id: int) -> bool:
        from nas_evidence.exporting.soundness import is_export_of

        conditions = self._tables().conditions(trial_id)
        return is_export_of(folder, trial_id, self.spec.metric, conditions=conditions)

    def _export_of(self, trial_id: int | None, top: int | None) -> tuple[Path, bool]:
        """Return where the export of the best network or of others is, and if it is there."""
        folder = self.folder / "export"
        if top is not None:
            from nas_evidence.exporting.folder import best_trials
            from nas_evidence.exporting.soundness import is_ensemble_of

            now, own = best_trials(self._tables(), top), folder.with_name(f"export-top-{top}")
            known = {self._tables().conditions(one) for one in now}
            return own, is_ensemble_of(own, now, known, self.spec.metric)
        there = self.is_exported(trial_id)
        if there or trial_id is None:
            return folder, there
        own = folder.with_name(f"export-{trial_id}")
        return own, self._holds(own, trial_id)

    def predict_proba(
        self,
        data: Any,
        *,
        method: Literal["probit", "mc", "map"] | None = None,
        trial_id: int | None = None,
        top: int | None = None,
    ) -> "np.ndarray":
        """Return class probabilities [n, C] in the order of the sorted classes; see `predict`.

        Raises:
            ValueError: if the targets are real numbers.

        Example:
            study.predict_proba(new)[:, 1]  # of two classes the probability of the second
        """
        predictor = self.predictor(trial_id, top=top)
        return predictor.predict_proba(data, method=method)

    @with_options(JudgeOptions)
    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        trial_id: int | None = None,
        top: int | None = None,
        **options: Unpack[JudgeOptions],
    ) -> "Metrics":
        """Return metrics of labelled data: the numbers that `nas-evidence predict` prints.

        Rows without a label are left out. Rows that were trained on are counted in a warning.

        Args:
            data: as for `predict`, with the target column; or inputs, and the targets as `y`.
            y: true labels or targets [n].
            trial_id: of one network, that of this trial.
            top: of so many best networks, with equal weights.
            options: see `nas_evidence.api.shared_options.JudgeOptions`.

        Raises:
            ValueError: for data without a label, or with one that is not among the classes.

        Example:
            study.evaluate("labelled.csv")["accuracy"]
        """
        predictor = self.predictor(trial_id, top=top)
        given = predictor.given(data, y)
        for doubt in given.warnings:
            warnings.warn(doubt, UserWarning, stacklevel=3)
        found = predictor.evaluate(given, **options)
        if seen := seen_in_training(given, self):
            warnings.warn(seen, UserWarning, stacklevel=3)
        return found

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
                "importance-without-columns",
                f"importance is of the columns of a table, but {self.place} was searched on "
                f"arrays or images ({self.spec.dataset.name}); search a DataFrame or a table file",
            )
        return found

    def report(
        self, to: str | Path | None = None, *, metric: str | None = None, force: bool = False
    ) -> Path:
        """Write the report and return the path of its page, which a notebook shows as a link.

        `metric` is shown after the log loss, by default that of the study. The folder `to` must be
        empty or hold a report; with `force` files with the names of a report's are replaced, and
        others stay.

        Example:
            study.report("shown")  # Path("shown/index.html")
        """
        from nas_evidence.api.report_page import ReportPage
        from nas_evidence.reporting.live import running_now
        from nas_evidence.reporting.page import check_place, write_report, write_report_whole

        if to is not None and Path(to).resolve() == (self.folder / "report").resolve():
            to = None  # its own place, which holds more
        if to is not None:
            check_place(Path(to), force=force)
        found = self.summary(metric)
        live = running_now(self.folder, losses=self._store.losses_so_far)
        if to is not None:
            return ReportPage(write_report_whole(found, Path(to), live=live, force=force))
        html = write_report(found, self.folder / "report", live=live).html
        self._store.push()
        return ReportPage(html)

    def summary(self, metric: str | None = None, *, within: "Within" = nullcontext) -> "Report":
        """Return what the report says, as values: `headline`, `verdict`, `problems`, ...

        Shown in a notebook or at a prompt, it is the first screen of the report in words.
        `how_read` says how the data were read; it is None of a study of an older version.
        The winner is compared with simple models, if that is not stored. Where that fails, for
        example without the data, `not_compared` says why.

        Args:
            metric: shown after the log loss, by default that of the study.
            within: a context manager that limits the time of each simple model.

        Example:
            study.summary().headline.worth  # "The winner is clearly better than ..."
        """
        from nas_evidence.reporting.contents import report_on
        from nas_evidence.storage.kept_how_read import read_how_read
        from nas_evidence.storage.kept_origin import read_origin

        tables = self._tables()
        if self._said is None or self._said[0] is not tables or self._said[1] != metric:
            compared, self.not_compared = self._compared(within)
            found = report_on(
                self._ranked(), compared, place=Path(self.place), metric=metric,
                how_read=read_how_read(self.folder), refit_of=read_origin(self.folder),
                data_root=self.data_root,
            )  # fmt: skip
            self._said = tables, metric, found
        return self._said[2]

    @_in_its_fork
    def _compared(self, within: "Within") -> "tuple[Comparison | None, str]":
        """Return the winner beside simple models, and why it is not compared, "" if it is."""
        from nas_evidence.baselines.comparison import read_comparison
        from nas_evidence.baselines.stored_comparison import kept_comparison

        try:
            return kept_comparison(self._tables(), self._source(), within=within), ""
        except (ValueError, OSError, RuntimeError) as error:
            return read_comparison(self.folder), str(error)

    @_in_its_fork
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
        force: bool = False,
    ) -> Path:
        """Write the best network, or others of the study; return the folder.

        `trial_id` is of another network, and `top` of those of so many best architectures, which
        predict together with equal weights; `ensemble.json` says of which.

        With `pt2` also as a program for torch alone; with `onnx` as ONNX, which needs the extra of
        that name. `raw` leaves out the calibration factor. `license`, such as "mit", is stated in
        the model card. `track`, "mlflow" or "mlflow:URI", also writes the folder of one
        architecture as the artifact `export` of the run of its trial.

        The folder `to` must be empty or hold an export that nobody has changed. With `force` files
        with the names of an export's are replaced, and others stay.

        Raises:
            ValueError: for both a trial and `top`, for fewer complete architectures than `top`, or
                for a folder with files of other origin.
        """
        from nas_evidence.api.trackers import keep_export
        from nas_evidence.exporting.folder import export_ensemble, export_winner
        from nas_evidence.exporting.soundness import (
            conditions_in,
            is_of_other_kind,
            is_replaceable,
        )
        from nas_evidence.storage.set_aside import set_aside

        trial_id, top = check_one(trial_id, top)
        if trial_id is None and self._unfinished():
            _ = self.best  # says what goes on
        name = ("export" if top is None else f"export-top-{top}") + "-raw" * raw
        folder = Path(to or self.folder / name)
        known = {*self._tables().trials["content_hash"]}
        is_of_another = folder.absolute().parent == self.folder and (
            bool(conditions_in(folder) - known)
            or is_of_other_kind(folder, several=top is not None)
        )
        if is_of_another or (to is None and not is_replaceable(folder)):
            set_aside(self.folder, folder.name)
        given = (self._tables(), folder, self.arrays())
        how: Any = {"pt2": pt2, "onnx": onnx, "raw": raw, "license": license, "force": force}
        if top is not None:
            export_ensemble(*given, top=top, **how)
        else:
            export_winner(*given, trial_id=trial_id, **how)
        if track is not None:
            keep_export(track, self.spec, self.folder, folder)
        if to is None:
            self._store.push()
        return folder

    @_in_its_fork
    def cost(self, export: str | Path | None = None) -> dict[str, float]:
        """Return what an export costs to keep and to use: `bytes` and `milliseconds_per_row`.

        The milliseconds are those of predictions of up to 256 rows, here and now.

        Args:
            export: its folder; by default that of the best network.

        Example:
            study.cost()["bytes"]
        """
        from nas_evidence.exporting.predictor import Predictor
        from nas_evidence.exporting.size_and_time import milliseconds_per_row, size_of

        if export is None:
            predictor, folder = self.predictor(), self.folder / "export"
        else:
            predictor, folder = Predictor.load(export), Path(export)
        each = milliseconds_per_row(predictor, self.arrays())
        return {"bytes": size_of(folder), "milliseconds_per_row": each}

    @with_options(RefitOptions)
    def refit(
        self,
        data: Any = None,
        y: Any = None,
        *,
        trial_id: int | None = None,
        top: int | None = None,
        seeds: int = 3,
        seed: int | None = None,
        out: str | Path | None = None,
        **options: Unpack[RefitOptions],
    ) -> "Study":
        """Train the best architecture again, on all rows or on other ones; a study of its own.

        All rows are those of the study with its test rows. Columns, classes, scale of the target
        and training plan stay; means, medians and categories are fitted again. The prior and the
        noise are learned again. Its folder says what it comes from.

        Args:
            data: in place of the study's own rows: a DataFrame, array or tensor, or the path of a
                table, .npz file or image folder.
            y: labels or targets, if `data` does not hold them.
            trial_id: of another architecture than the best.
            top: train the so many best architectures.
            seeds: trainings of each architecture, from random starts.
            seed: of the new study; by default that of this one.
            out: its folder, or the URI of a store; by default that of this study and "-refit".
            options: see `nas_evidence.api.shared_options.RefitOptions`.

        Raises:
            ValueError: without a complete trial, or for rows that do not fit the study.
            RuntimeError: if every trial failed, or none was complete in the time.

        Example:
            study.refit(seeds=1).predict(new)
        """
        from nas_evidence.api.refitting import refitted

        check_known("refit", RefitOptions, options)
        found: Study = refitted(
            self, data, y, trial_id=trial_id, top=top, seeds=seeds, seed=seed, out=out,
            options=options, taken=LEADERBOARD,
        )  # fmt: skip
        return found

    @_in_its_fork
    def forecast(
        self,
        parts: Collection[Part] = ("report", "export"),
        *,
        trial_id: int | None = None,
        top: int | None = None,
    ) -> str:
        """Say how long report and export will take, and where, if they train or take a minute.

        Some rows are timed for about a second if it may be more. Both compute on a GPU if the
        network was trained on one and this process may use one (docs/how-to/cluster.md).

        Args:
            parts: what is wanted; "predict" is of the export that predictions need.
            trial_id: of one network, that of this trial.
            top: of so many best networks together.

        Example:
            study.forecast(["export"])  # "about 25 min on the CPU, mostly the posterior of ..."
        """
        from nas_evidence.baselines.stored_comparison import is_compared

        tables = self._tables()
        left = [part for part in parts if part != "report" or not is_compared(tables)]
        try:
            if "predict" in left and self._export_of(trial_id, top)[1]:
                left.remove("predict")
            if not left:
                return ""

            # Only now, since they import torch, which takes seconds.
            from nas_evidence.exporting.folder import best_trials, trial_to_export
            from nas_evidence.exporting.forecast import forecast_of

            one = [trial_to_export(tables, trial_id)] if top is None else []
            chosen = one or best_trials(tables, top or 0)
            return forecast_of(tables, self.arrays(), chosen, left)
        except (ValueError, OSError, RuntimeError) as error:  # report or export will say it
            _LOG.info("no_forecast error=%r", error)
            return ""

    def arrays(self) -> "ArrayData":
        """Return the data of the study as they are loaded for a search."""
        return self._source().arrays(seed=self.spec.seed)

    def features(self, data: Any = None) -> "np.ndarray":
        """Return rows as the numbers that simple models see [n, d]: by default the training rows.

        Example:
            study.features("new.csv")
        """
        from nas_evidence.baselines.models import flat
        from nas_evidence.data.given import features_of

        arrays = self.arrays()
        if data is None:
            return flat(arrays.x_train)
        read, targets = arrays.meaning, ",".join(arrays.meaning.targets)
        given = features_of(data, read.preparation, target=targets or None, images=read.images)
        return flat(given.inputs)

    def plot(self, name: str, data: Any = None, *, metric: str | None = None) -> "Figure":
        """Return a figure of the report.

        A notebook shows it, `save` writes it as SVG, PDF or PNG, and `data` has its values as a
        DataFrame with the columns in brackets. Of an architecture they are `rank`, `trial_id`,
        `family`, `architecture` and `n_parameters`:

        ranking      score by number of parameters (of an architecture, score)
        scatter      score against test result (of an architecture, score, test_...)
        comparison   log loss of simple models above the winner's (model, behind, low, high)
        history      score of each trial (trial, trial_id, family, architecture, status, score,
                     best, raced)
        loss         training loss by epoch (of an architecture, epoch, train_nll_per_datum)
        score        objective by epoch (of an architecture, epoch, the objective)
        correlations Spearman's rho of each score with test results (score, rho, low, high, role)
        epochs       the same by epoch, and regret (score, epoch, rho, regret)
        calibration  share that is right, or inside, by stated probability (stated, found, n)
        importance   of columns, as `importance` returns it (column, mean, std)
        parameters   importance of each parameter of the architecture (parameter, divergence)
        confusion    counts of classes (true, predicted, n)
        pairs        predicted against true values (true, predicted)
        quarters     coverage by quarter of the prediction (quarter, low, high, n, inside_50,
                     inside_90)
        pit          histogram of the probability integral transform (low, high, n)
        front_COST   objective against a cost of `minimise` (of an architecture, the objective,
                     the cost, on_front)

        Which of them there are depends on the study. Of several targets `data` has a column
        `target` in calibration and pit.

        Args:
            name: of the figure.
            data: for "calibration", labelled data that were not trained on, see `evaluate`; by
                default the held-out data of the report.
            metric: for "importance", see `importance`.

        Raises:
            ValueError: for a figure that this study does not have; names those that it has.

        Example:
            study.plot("ranking").save("ranking.pdf")
            study.plot("ranking").data  # a DataFrame
        """
        from nas_evidence.api.figure import calibration_of, figures_of_report, importance_of

        if data is not None and name != "calibration":
            raise UserError(
                "figure-without-data", f"data are for plot('calibration'), but not for {name!r}"
            )
        if name == "importance":
            return importance_of(self._importance(metric), self.spec.plan.declared.kind)
        if data is not None:
            return calibration_of(self.evaluate(data))
        found = figures_of_report(self.summary())
        if name == "parameters" and name not in found:
            from nas_evidence.reporting.importance import importance_sentence

            raise UserError("no-importance", importance_sentence([]))
        if name not in found:
            raise UserError(
                "no-such-figure",
                f"this study has no figure {name!r}; it has {', '.join(sorted(found))}"
                f"{meant(name, found)}",
            )
        return found[name]

    @contextmanager
    def _with_fork_of(self, forks: "ForkServer") -> Iterator[None]:
        """Compute what needs torch in a fork of a server, inside the block.

        A process that only drives a search then never imports torch: 1.2 s, and 300 MB.
        """
        from nas_evidence.workers.apart import ForkedObject

        data = self._source().taken(seed=self.spec.seed)
        with closing(ForkedObject(forks, _copy_with, self, data)) as self._fork:
            try:
                yield
            finally:
                self._fork = None

    def _source(self) -> "Source":
        """Return the data, read when they are first asked for."""
        from nas_evidence.data.source import stored_source

        if self._data is None:
            base = self.folder.resolve()
            self._data = stored_source(self.spec.dataset, base=base, data_root=self.data_root)
        return self._data

    def _tables(self, spec: StudySpec | None = None) -> "StudyTables":
        """Return what the folder holds, read again only if its files have changed."""
        from nas_evidence.storage.tables import read_study_tables, stamp

        now = stamp(self.folder)
        if self._read is None or self._read[0] != now:
            self._read, self._shown = (now, read_study_tables(self.folder, spec)), None
        return self._read[1]

    def _parameters(
        self, values: Mapping[str, "ParameterValue"], others: Iterable[str]
    ) -> dict[str, "ParameterValue | None"]:
        """Return the cells of all parameters of the space, beside other columns."""
        from nas_evidence.spec.parameters import columns_of, types_of

        columns = columns_of(types_of(self.spec), {*others, str(self.spec.objective)})
        return {column: values.get(name) for name, column in columns.items()}

    def _typed(self, table: "pd.DataFrame", others: Iterable[str]) -> "pd.DataFrame":
        """Return a table without empty columns, whose whole numbers and truths stay so."""
        from nas_evidence.spec.parameters import columns_of, types_of

        space = types_of(self.spec)
        columns = columns_of(space, {*others, str(self.spec.objective)})
        types = {
            column: _COLUMN_TYPES[space[name]]
            for name, column in columns.items()
            if column in table and space[name] in (int, bool) and table[column].isna().any()
        }
        return table.astype(types).dropna(axis=1, how="all")

    def _ranked(self) -> "RankedStudy":
        from nas_evidence.reporting.study_tables import ranked_study

        tables = self._tables()
        if self._shown is None:
            self._shown = ranked_study(tables)
        return self._shown


def _copy_with(study: Study, data: "Source") -> Study:
    """Return a study that another process has sent, with its data; its code is in use."""
    study._code.use()
    study._data = data
    return study


def seen_in_training(given: "Given", study: Study) -> str:
    """Say how many rows a study was trained on; "" for none, or if its data are not here."""
    from nas_evidence.data.given import rows_seen

    n_seen = 0
    with suppress(OSError, ValueError):
        n_seen = rows_seen(given.inputs, study.arrays())
    return (
        f"{n_seen} of {len(given.inputs)} rows were in the training data: these metrics are not "
        "of new data"
    ) * (n_seen > 0)
