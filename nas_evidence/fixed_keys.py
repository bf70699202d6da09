"""Study keys that became constants: their names and values.

Study files no longer hold them. A file, a `--set` or an assignment of an older version may still
set one to its constant; any other value is refused by name rather than ignored.
"""

import json
from collections.abc import Mapping
from typing import Any

#: E of sotl_e: the last epochs whose losses are summed.
SOTL_EPOCHS = 1
#: gamma of sotl_ema: the discount per earlier epoch.
SOTL_GAMMA = 0.9
#: Weight of the past in the moving average of the evidence that `patience` watches.
EVIDENCE_SMOOTHING = 0.5
#: Formerly the latest finished trials that TPE learnt from; see `MAX_LEARNT` in the proposer.
MAX_HISTORY = 1000
#: Draws from TPE's density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24
#: Trials that a worker process runs before it is replaced, if it has served long enough.
TRIALS_PER_WORKER = 50
#: Growth of a worker's resident memory after which it is replaced, bytes.
WORKER_GROWTH_BYTES = 2 * 1024**3

#: Every key that study files once had: dotted name -> its constant.
FIXED_KEYS: Mapping[str, str | bool | int | float | list[float]] = {
    "plan.prequential_fractions": [0.5],
    "plan.sotl_epochs": SOTL_EPOCHS,
    "plan.sotl_gamma": SOTL_GAMMA,
    "plan.online.smoothing": EVIDENCE_SMOOTHING,
    "sampler.families": "shared",
    "sampler.max_history": MAX_HISTORY,
    "sampler.n_ei_candidates": N_EI_CANDIDATES,
    "sampler.multivariate": True,
    "sampler.group": True,
    "sampler.constant_liar": True,
    "resources.trials_per_worker": TRIALS_PER_WORKER,
    "resources.worker_growth_bytes": WORKER_GROWTH_BYTES,
}


#: Renamed keys: old -> new.
RENAMED_KEYS: Mapping[str, str] = {"plan.prequential_orders": "folds"}


def is_of_version_0_1(data: Mapping[str, Any]) -> bool:
    """Tell whether tables are a study that version 0.1 stored, with every key explicit.

    Its trials did not settle; continued, the study does not settle either.
    """

    def has(name: str) -> bool:
        table: Any = data
        for part in name.split("."):
            if not isinstance(table, Mapping) or part not in table:
                return False
            table = table[part]
        return True

    return all(map(has, (*FIXED_KEYS, *RENAMED_KEYS))) and not has("plan.settle")


def without_fixed(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return nested tables without the fixed keys, and an error for each one with another value.

    The errors are sentences by dotted name; empty if every fixed key has its constant.

    >>> without_fixed({"sampler": {"name": "tpe", "n_ei_candidates": 24}})
    ({'sampler': {'name': 'tpe'}}, {})
    >>> without_fixed({"sampler": {"n_ei_candidates": 48}})[1]["sampler.n_ei_candidates"]
    '`n_ei_candidates` in [sampler] is fixed at 24, but got 48; remove it'
    """
    mistakes: dict[str, str] = {}

    def kept(table: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in table.items():
            name = ".".join((*path, key))
            if name in RENAMED_KEYS:
                result.setdefault(RENAMED_KEYS[name], value)
            elif name not in FIXED_KEYS:
                result[key] = kept(value, (*path, key)) if isinstance(value, Mapping) else value
            elif not _same(value, fixed := FIXED_KEYS[name]):
                mistakes[name] = (
                    f"`{key}` in [{'.'.join(path)}] is fixed at {json.dumps(fixed)}, "
                    f"but got {json.dumps(value, default=str)}; remove it"
                )
        return result

    return kept(data, ()), mistakes


def _same(value: object, fixed: object) -> bool:
    value = list(value) if isinstance(value, tuple) else value
    return value == fixed and isinstance(value, bool) == isinstance(fixed, bool)
