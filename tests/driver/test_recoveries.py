"""Each branch of the recovery of a study is reached by its histories or by a fault test."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driver import test_race as race_tests
from driver.test_service_machine import History
from faults import test_seals

import nas_evidence.driver.driver as driver
import nas_evidence.driver.race as race
from nas_evidence.driver.rungs import Rungs
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.log import LOG, Log
from nas_evidence.storage.state import attempt_of, is_part
from nas_evidence.storage.tables import TABLES

BRANCHES = {
    *(f"log: {what}" for what in ("torn last line", "damaged line", "superseded process")),
    *(f"adopted: {what}" for what in ("no line", "another digest")),
    *(f"again: {what}" for what in ("damaged file", "on request")),
    *(f"removed: {what}" for what in ("unnamed", "merge without line", "merge with line")),
    *("contradiction refused", "rungs restored", "race round chosen again"),
}


def seen(name: str, found: Any, *given: Any) -> Iterator[str]:
    """Yield the branches that a call takes, from what it is given or what it has found."""
    match name, given:
        case "_begun", (log,):
            last = log._folder / LOG / log._past.name
            if last.is_file() and last.read_bytes()[-1:] not in (b"", b"\n"):
                yield "log: torn last line"
        case "mend_log", (_, past):
            for problem in past.problems:
                late = "superseded" in problem
                yield "log: superseded process" if late else "log: damaged line"
        case "adopt", (log, finds):
            for one in finds:
                yield f"adopted: {'another digest' if one.stem in log.state.files else 'no line'}"
        case "find_done", _ if found:
            state, bad = found.past.state, {path.stem for path in found.wrong}
            for i, attempt in found.redo.items():
                if state.stems.get((i, attempt), f"{i:06d}-a{attempt}") in bad:
                    yield "again: damaged file"
                elif state.again.get(i) == attempt:
                    yield "again: on request"
        case "remove_unnamed", (folder, state):
            paths = [path for table in TABLES for path in (folder / table).glob("[!._]*.parquet")]
            for stem in {path.stem for path in paths} - state.files.keys():
                merged = not is_part(stem) and is_part(state.stems.get(attempt_of(stem), ""))
                without = "merge without line" if is_part(stem) else "unnamed"
                yield f"removed: {'merge with line' if merged else without}"
        case "__init__", (_, _, log):
            if any(log.state.under_way.keys() & at.keys() for at in log.state.rungs.values()):
                yield "rungs restored"
        case "_rounds", _ if found:
            yield "race round chosen again"


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the branches of recovery that are reached meanwhile."""
    reached: Counter[str] = Counter()

    def count(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counting(*given: Any, **more: Any) -> Any:
            reached.update(seen(name, None, *given))
            try:
                found = call(*given, **more)
            except UserError as error:
                reached["contradiction refused"] += error.code == "files-contradict"
                raise
            reached.update(seen(name, found) if found is not None else ())
            return found

        patch.setattr(owner, name, counting)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mend_log", "adopt", "find_done", "remove_unnamed", "restored"):
            count(patch, driver, name)
        for owner, name in ((Log, "_begun"), (Rungs, "__init__"), (race, "_rounds")):
            count(patch, owner, name)
        yield reached


def killed_again_and_again() -> None:
    """Run a history of the service machine in which each driver dies a little later.

    The last ones die while they merge the tables.
    """
    one = History()
    one.begin("batch", "halving", 1, (), 1000, 0)
    for compact_at, kills in ((1000, range(8, 40)), (3, range(30))):
        one.compact_at = compact_at
        for after in kills:
            one.run(workers=2, chance=after, fault_rate=0.0, dies_after=after, seconds=None)
    one.teardown()


@pytest.mark.slow
def test_every_branch_of_recovery_is_reached(tmp_path: Path) -> None:
    with counted() as reached:
        killed_again_and_again()
        race_tests.test_a_round_whose_line_is_lost_keeps_its_trials_where_one_of_them_has_a_result()
        for number, test in enumerate((
            test_seals.test_a_torn_part_costs_only_its_own_trials_another_run,
            test_seals.test_a_line_that_a_crash_cut_short_is_not_damage,
            test_seals.test_lines_of_a_superseded_process_count_for_nobody,
            test_seals.test_sound_files_with_another_digest_are_adopted,
            test_seals.test_failed_trials_run_again_on_request_and_their_history_stays,
            test_seals.test_two_sound_files_that_contradict_each_other_stop_the_study,
            test_seals.test_a_flipped_bit_in_a_proposal_that_has_not_run_is_named_and_trains_nothing_else,
        )):  # fmt: skip
            (folder := tmp_path / str(number)).mkdir()
            test(folder)
    assert not BRANCHES - {name for name, n in reached.items() if n}, reached
