"""Tables of pages that are made: what stands behind them."""

import doctest

import gallery
import performance_tables
import pytest
import tables


def test_the_page_in_full_has_every_value_of_every_kept_result() -> None:
    text = gallery.written_in_full()
    for result in gallery.stored_results().values():
        assert f"### {result['figure']}: {result['title']}" in text
        for row in result["rows"]:
            assert f"| {' '.join(row['what'].split())} |" in text


def test_the_peer_is_the_fastest_that_returned_a_result() -> None:
    rows = [
        {"model": "mlp", "candidate": "diag_ef", "estimates": "diag_ef", "median": 0.5},
        {"model": "mlp", "candidate": "slow", "estimates": "diag_ef", "median": 3.0},
        {"model": "mlp", "candidate": "fast", "estimates": "diag_ef", "median": 2.0},
        {"model": "mlp", "candidate": "failed", "estimates": "diag_ef", "error": "no such layer"},
        {"model": "mlp", "candidate": "other", "estimates": "diag_ggn", "median": 1.0},
    ]
    assert performance_tables.peer(rows, "mlp", "diag_ef")["candidate"] == "fast"
    assert performance_tables.peer(rows, "mlp", "kfac_ggn") is None
    assert performance_tables.own(rows, "mlp", "diag_ef")["median"] == 0.5


def test_seconds_of_processes_are_booked_by_role() -> None:
    roles = {"driver": 4.0, "server": 2.0, "fork 1": 5.0, "fork 2": 6.0, "fork 3": 1.0}
    found = performance_tables._by_role(roles)
    assert found["workers"] == 11.0
    assert found["comparison and export"] == 1.0
    assert sum(found.values()) == sum(roles.values())


def test_what_grows_is_the_least_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        {"cell": "trials/4", "cpu": 7.0, "parts": {"training": 2.0}, "trials": 4},
        {"cell": "trials/4", "cpu": 6.0, "parts": {"training": 1.5}, "trials": 4},
        {"cell": "trials/16", "cpu": 9.0, "parts": {"training": 4.0}, "trials": 16},
        {"cell": "rows/300", "cpu": 9.0, "parts": {"training": 4.0, "density": 2.0}, "trials": 3},
    ]
    monkeypatch.setattr(performance_tables, "cell_runs", lambda: runs)
    assert performance_tables.grown("trials") == ([4, 16], [6.0, 9.0])
    assert performance_tables.grown("around") == ([4, 16], [4.5, 5.0])
    assert performance_tables.grown("rows") == ([300], [2.0])


def test_the_digits_of_a_spread_fit_its_size() -> None:
    assert doctest.testmod(tables).failed == 0
