"""Presets: sets of keys of a study file that `search` takes by one word.

They are applied as `--set` is, before all other options, which therefore win.
"""

import json
from collections.abc import Mapping
from typing import Any

#: The keys of each preset, with their values; "default" leaves all as the study file has it.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"n_trials": 8, "plan.folds": 2, "finalists": 0},
    "default": {},
    "thorough": {"n_trials": 96, "plan.folds": 10, "finalists": 8},
}


def preset_overrides(name: str | None) -> list[str]:
    """Return the keys of a preset as `--set` takes them; none without a preset.

    >>> preset_overrides("quick")
    ['n_trials=8', 'plan.folds=2', 'finalists=0']

    Raises:
        ValueError: for an unknown name.
    """
    if name is not None and name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, but got {name!r}")
    keys = {} if name is None else PRESETS[name]
    return [f"{key}={json.dumps(value)}" for key, value in keys.items()]
