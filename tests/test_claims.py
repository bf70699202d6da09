"""The claims of the first screen: committed results keep the promises that the page states."""

import json
from pathlib import Path

import claims
import claims_folds
import pytest


def test_no_cell_of_studies_judged_on_folds_breaks_its_promise() -> None:
    cells = json.loads(claims_folds.FILE.read_text(encoding="utf-8"))["cells"]
    assert {one["by"] for one in cells} == set(claims_folds.RANKINGS)
    for one in cells:
        for of in ("folds", "delivered"):
            place = (one["task"], one["rows"], one["architectures"], one["by"], of)
            below, false = (one["after"][f"{error}_{of}"] for error in ("below", "false_yes"))
            assert claims_folds.limits(below, one["n"])[0] <= claims_folds.BELOW, place
            assert claims_folds.limits(false, one["n"])[0] <= claims_folds.FALSE_YES, place


def test_a_claim_without_its_error_is_refused(tmp_path: Path) -> None:
    row = dict.fromkeys(claims.COLUMNS, "1")
    whole = {"rows": [row], "tables": [], "hardware": "", "versions": {}, "date": ""}
    (tmp_path / "a.json").write_text(json.dumps(whole))
    assert claims.stored(tmp_path) == {"a": whole}
    del row["after"]
    (tmp_path / "a.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="lacks"):
        claims.stored(tmp_path)


def test_a_bar_in_a_cell_stays_in_its_cell() -> None:
    assert claims.table(["a|b"], [["1|2"]]) == "| a\\|b |\n| --- |\n| 1\\|2 |"
