"""A study that is asked for again with something else says what differs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from messages import refused

from nas_evidence.api.request import asked_for, check_not_fewer
from nas_evidence.api.runs import begun


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(30, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0])
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame[:12].to_csv(tmp_path / "test.csv", index=False)
    return tmp_path / "t.csv"


def test_another_option_is_named_and_the_file_is_not_said_to_have_changed(table: Path) -> None:
    out = table.parent / "s"

    def begin(overrides: tuple[str, ...] = (), **options: object) -> None:
        asked = asked_for(str(table), overrides, {"target": "y", **options})  # type: ignore[typeddict-item]
        begun(out, asked.spec, asked.source)

    begin()
    begin()
    with refused("test-table-differs", "without"):
        begin(test=table.parent / "test.csv")
    with pytest.raises(ValueError, match=r"differs: .*drop"):
        begin(drop=["b"])
    with pytest.raises(ValueError, match=r"differs: .*test_fraction"):
        begin(test_fraction=0.3)
    with pytest.raises(ValueError, match=r"differs: .*seed"):
        begin(("seed=3",))
    pd.read_csv(table).assign(a=0.5).to_csv(table, index=False)
    with pytest.raises(ValueError, match=r"t\.csv has changed"):
        begin()


def test_a_study_is_not_resumed_with_fewer_trials(table: Path) -> None:
    spec = asked_for(str(table), ("n_trials=12",), {"target": "y"}).spec
    check_not_fewer(spec, None)
    check_not_fewer(spec, 12)
    with refused("fewer-trials-than-before", 12, 2):
        check_not_fewer(spec, 2)
