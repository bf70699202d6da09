"""The study's database: Optuna's tables, with each proposal and each result in one transaction.

Optuna's own storage looks up every parameter and attribute before it writes it, because others may
write at the same time: about twenty statements per trial. The driver is the only writer of its
study, so the rows of a trial are inserted as they are. The tables are those of Optuna, and its
storage and dashboard read them: `tests/proposing/test_rows.py` compares with what it would write.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy import Connection, func, insert, select, update

_TRIALS = models.TrialModel.__table__
_PARAMS = models.TrialParamModel.__table__
_VALUES = models.TrialValueModel.__table__
_USER = models.TrialUserAttributeModel.__table__
_SYSTEM = models.TrialSystemAttributeModel.__table__
_RUNNING = "RUNNING"


class Rows(RDBStorage):  # type: ignore[misc]
    """Optuna's storage for a study with one writer."""

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Insert a trial with all that it holds; return its id."""
        assert template_trial is not None
        given = template_trial
        with self.engine.begin() as connection:
            where = _TRIALS.c.study_id == study_id
            number = connection.scalar(select(func.count()).select_from(_TRIALS).where(where))
            row = {
                "number": number,
                "study_id": study_id,
                "state": given.state,
                "datetime_start": _utc(given.datetime_start),
                "datetime_complete": _utc(given.datetime_complete),
            }
            trial_id = int(connection.execute(insert(_TRIALS), row).inserted_primary_key[0])
            params = [
                {
                    "trial_id": trial_id,
                    "param_name": name,
                    "param_value": distribution.to_internal_repr(given.params[name]),
                    "distribution_json": distribution_to_json(distribution),
                }
                for name, distribution in given.distributions.items()
            ]
            if params:
                connection.execute(insert(_PARAMS), params)
            _attributes(connection, _USER, trial_id, given.user_attrs)
            _results(connection, trial_id, given)
        return trial_id

    def finish_trial(self, trial_id: int, result: FrozenTrial) -> None:
        """Store state, values and constraints of a running trial; does nothing if it has them."""
        with self.engine.begin() as connection:
            running = update(_TRIALS).where(
                _TRIALS.c.trial_id == trial_id, _TRIALS.c.state == _RUNNING
            )
            now = {"state": result.state, "datetime_complete": _utc(datetime.now())}
            if connection.execute(running, now).rowcount:
                _results(connection, trial_id, result)


def _results(connection: Connection, trial_id: int, trial: FrozenTrial) -> None:
    _attributes(connection, _SYSTEM, trial_id, trial.system_attrs)
    values: Sequence[float] = trial.values or ()
    rows = []
    for objective, value in enumerate(values):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        row = {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}
        rows.append(row)
    if rows:
        connection.execute(insert(_VALUES), rows)


def _attributes(connection: Connection, table: Any, trial_id: int, found: dict[str, Any]) -> None:
    rows = [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in found.items()
    ]
    if rows:
        connection.execute(insert(table), rows)


def _utc(local: datetime | None) -> datetime | None:
    """Return a local time as Optuna stores it: in UTC, without a zone."""
    return None if local is None else local.astimezone(UTC).replace(tzinfo=None)
