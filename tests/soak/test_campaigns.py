"""A few studies of each campaign, what their committed runs found, and how a campaign goes on."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from learning_curves import synthetic
from simulated import SimulatedExecutor
from soak import faults, harness
from soak.harness import (
    ROOT,
    Found,
    begun,
    campaign,
    counted,
    differing,
    drive,
    run,
    tables_of,
)
from soak.kills import simulated_study

from nas_evidence.driver.mirror import Mirror

LONG_ON_RAY = [pytest.mark.slow, pytest.mark.long, pytest.mark.ray]


@pytest.fixture
def home() -> Iterator[Path]:
    with harness.kept(None) as home:
        yield home


@pytest.mark.parametrize(
    ("name", "studies"),
    [
        pytest.param("damage", [*map(str, range(6))], marks=pytest.mark.slow),
        pytest.param("pairs", [*map(str, range(6))], marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("faults", ["0", "5", "10"], marks=pytest.mark.slow),
        pytest.param("merges", ["19", "100"], marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("thousands", ["100 trials"], marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("memory", ["worker killed once"], marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(
            "disks",
            ["times in seconds, a store", "exFAT, names that differ in case"],
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
        pytest.param(
            "locales",
            ["de_DE.ISO-8859-1, PYTHONUTF8=0"],
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
        pytest.param("hosts", ["node cut off 10 s", "node killed"], marks=LONG_ON_RAY),
        pytest.param(
            "shared",
            ["folder: status, resume and cancel from another host"],
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
        pytest.param("slurm", ["requeued"], marks=[*LONG_ON_RAY, pytest.mark.soak]),
    ],
)
def test_a_sample_of_a_campaign_finds_nothing_wrong(
    name: str, studies: list[str], home: Path
) -> None:
    if reason := getattr(campaign(name), "why_not", str)():
        pytest.skip(reason)
    with campaign(name).studies(home, 0) as (_, disturb):
        found = {study: disturb(study) for study in studies}
    assert {study: one.wrong for study, one in found.items() if one.wrong} == {}
    assert all(one.counts or one.facts for one in found.values())


@pytest.mark.parametrize("name", harness.CAMPAIGNS)
def test_the_committed_run_found_nothing_wrong_and_the_page_has_it(name: str) -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert result["wrong"] == {}
    page = (ROOT / "docs" / "experiments" / "fault-campaigns.md").read_text(encoding="utf-8")
    if name not in ("kills", "slurm"):
        assert campaign(name).table(result) in page
    counts = {what: n for what, n in result["counts"].items() if "torn" not in what}
    n = sum(counts.values())
    if name == "damage":
        assert n == result["done"] > 2000
    elif name == "pairs":
        assert n == result["done"] == 500
    elif name == "faults":
        assert n > 1000
        assert counts.keys() >= {"head cut off", "node lost, race", "host lost, export"}
    elif name in ("merges", "thousands"):
        assert n > 10
    elif name in ("memory", "disks", "locales"):
        assert n == result["done"] >= 3
    elif name == "slurm":
        for job, restarts in (("undisturbed", 0), ("killed", 1)):
            seconds, *state = result["cases"]["requeued"][job][-1]
            assert state == ["COMPLETED", restarts]
            assert f"{seconds:.0f} s" in page
    elif name not in ("hosts", "shared"):
        assert f"| {n} | {result['done']} |" in page


@pytest.mark.slow
def test_a_driver_that_does_not_look_for_its_successor_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mirror, "_check_fence", lambda self: None)
    found = faults.between_machines(13, 7, {})
    assert found.counts["taken over"]
    assert "changed: by a driver after it had been taken over" in found.wrong


@pytest.mark.slow
def test_one_other_bit_in_any_table_is_a_difference(tmp_path: Path) -> None:
    study = simulated_study("plain", n_trials=4)
    for place in ("one", "other"):
        drive(
            study, str(tmp_path / place), partial(SimulatedExecutor, synthetic, workers=2, seed=0)
        )
    one, other = tables_of(tmp_path / "one"), tables_of(f"file://{tmp_path}/other")
    assert differing(one, other) == []
    for name, column in (("trials", "n_parameters"), ("evidence", "value"), ("curves", "sotl")):
        changed = one | {name: one[name].copy()}
        changed[name].loc[0, column] += 2.0**-40 if column == "sotl" else 1
        assert differing(one, changed) == [f"differ: {name}"]


@pytest.mark.slow
def test_a_campaign_goes_on_and_first_tries_again_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, bad = list[str](), {"1"}

    def disturb(number: str) -> Found:
        asked.append(number)
        return Found(Counter(kill=2), ["differ: trials"] if number in bad else [])

    fake = SimpleNamespace(studies=lambda *_: nullcontext((map(str, count()), disturb)))
    monkeypatch.setattr(harness, "campaign", lambda name: fake)
    given = Namespace(to=tmp_path / "r.json", minutes=1.0, until=6, only=None, seed=0)
    for until, numbers, wrong in ((6, "012", ["1"]), (8, "13", []), (8, "", [])):
        given.until = until
        result = begun(given.to, 0)
        run("fake", tmp_path, result, given)
        assert asked == list(numbers)
        assert list(result["wrong"]) == wrong
        assert counted(result).total() == until
        asked.clear()
        bad.clear()
    with pytest.raises(ValueError, match=r"r\.json was begun under other conditions; move it"):
        begun(given.to, 1)
